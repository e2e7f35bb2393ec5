"""Language codes: what an engine calls a language that a recipe calls `de`, `pt-BR` or `zh_Hant`. Knows no engine."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

__all__ = ["english", "find"]

# ISO 639-1: the English name, and the ISO 639-3 codes under which engines know it (an individual language where
# the short code names a whole group, as Standard Arabic for `ar`), the usual script first where there are several.
_TABLE = """
af Afrikaans afr|am Amharic amh|ar Arabic arb,ara|as Assamese asm|az Azerbaijani azj,aze|ba Bashkir bak
be Belarusian bel|bg Bulgarian bul|bm Bambara bam|bn Bengali ben|bo Tibetan bod|br Breton bre|bs Bosnian bos
ca Catalan cat|cs Czech ces|cy Welsh cym|da Danish dan|de German deu|dz Dzongkha dzo|ee Ewe ewe|el Greek ell
en English eng|eo Esperanto epo|es Spanish spa|et Estonian est,ekk|eu Basque eus|fa Persian pes,fas|ff Fulah fuv,ful
fi Finnish fin|fj Fijian fij|fo Faroese fao|fr French fra|fy Frisian fry|ga Irish gle|gd Gaelic gla|gl Galician glg
gn Guarani grn|gu Gujarati guj|ha Hausa hau|he Hebrew heb|hi Hindi hin|hr Croatian hrv|ht Haitian hat|hu Hungarian hun
hy Armenian hye|id Indonesian ind|ig Igbo ibo|is Icelandic isl|it Italian ita|ja Japanese jpn|jv Javanese jav
ka Georgian kat|kg Kongo kon|ki Kikuyu kik|kk Kazakh kaz|km Khmer khm|kn Kannada kan|ko Korean kor|ks Kashmiri kas
ku Kurdish kmr,kur|ky Kyrgyz kir|lb Luxembourgish ltz|lg Ganda lug|li Limburgish lim|ln Lingala lin|lo Lao lao
lt Lithuanian lit|lv Latvian lvs,lav|mg Malagasy plt,mlg|mi Maori mri|mk Macedonian mkd|ml Malayalam mal
mn Mongolian khk,mon|mr Marathi mar|ms Malay zsm,msa|mt Maltese mlt|my Burmese mya|ne Nepali npi,nep
nl Dutch nld|nn Norwegian nno|no Norwegian nor|ny Nyanja nya|oc Occitan oci|om Oromo gaz,orm|or Odia ory,ori
pa Punjabi pan|pl Polish pol|ps Pashto pbt,pus|pt Portuguese por|qu Quechua quy,que|rn Rundi run|ro Romanian ron
ru Russian rus|rw Kinyarwanda kin|sa Sanskrit san|sc Sardinian srd|sd Sindhi snd|sg Sango sag|si Sinhala sin
sk Slovak slk|sl Slovenian slv|sm Samoan smo|sn Shona sna|so Somali som|sq Albanian als,sqi|sr Serbian srp
ss Swati ssw|st Sotho sot|su Sundanese sun|sv Swedish swe|sw Swahili swh,swa|ta Tamil tam|te Telugu tel|tg Tajik tgk
th Thai tha|ti Tigrinya tir|tk Turkmen tuk|tl Tagalog tgl|tn Tswana tsn|tr Turkish tur|ts Tsonga tso|tt Tatar tat
tw Twi twi|ug Uyghur uig|uk Ukrainian ukr|ur Urdu urd|uz Uzbek uzn,uzb|vi Vietnamese vie|wo Wolof wol|xh Xhosa xho
yi Yiddish ydd,yid|yo Yoruba yor|zh Chinese zho,cmn|zu Zulu zul
"""

_NAMES: dict[str, str] = {}
_CANONICAL: dict[str, str] = {"iw": "he", "in": "id", "ji": "yi", "jw": "jv", "nb": "no", "nob": "no", "fil": "tl"}
for _row in _TABLE.replace("\n", "|").strip("|").split("|"):
    _short, _name, _long = _row.split()
    _NAMES[_short] = _name
    for _code in (_short, *_long.split(",")):
        _CANONICAL.setdefault(_code, _short)

# Where a language is written in two scripts, its region says which: Taiwan writes traditional characters.
_SCRIPTS = {"tw": "hant", "hk": "hant", "mo": "hant", "cn": "hans", "sg": "hans"}
_USUAL = {"zh": "hans", "sr": "cyrl", "uz": "latn", "az": "latn", "kk": "cyrl", "pa": "guru", "ks": "deva"}


def _parts(code: str) -> tuple[str, str | None, str | None]:
    """A code's language (as its shortest code), script and region, all in lower case."""
    language, *rest = code.lower().replace("-", "_").split("_")
    script = next((part for part in rest if len(part) == 4 and part.isalpha()), None)
    region = next((part for part in rest if len(part) in (2, 3) and part != "xx"), None)
    return _CANONICAL.get(language, language), script or _SCRIPTS.get(region or ""), region


def find(asked: str, codes: Iterable[str]) -> str | None:
    """The one of `codes` that means the language `asked`; none, if none does.

    The same code wins; then the same language in the same script and region. Two different scripts never match.
    """
    asked_language, asked_script, asked_region = _parts(asked)
    script = asked_script or _USUAL.get(asked_language)
    best: tuple[tuple[int, int, int], str] | None = None
    for code in codes:
        if code.lower().replace("-", "_") == asked.lower().replace("-", "_"):
            return code
        language, found_script, region = _parts(code)
        if language != asked_language or (asked_script and found_script and asked_script != found_script):
            continue
        rank = (int(found_script == script), int(region == asked_region), int(region is None))
        if best is None or rank > best[0]:
            best = rank, code
    return best[1] if best else None


def english(code: str, names: Mapping[str, str] = _NAMES) -> str | None:
    """The English name of a language, as in a T5's `translate English to German`."""
    return names.get(_parts(code)[0])
