"""Language codes: when `de` is `de-DE`, `deu` or `de_AT.UTF-8`, and which side of a direction a code stands for.

A code is taken apart into language, script and region. Two codes match when the languages are equal and neither their
scripts nor their regions contradict each other: `pt` matches `pt-BR`, `pt-PT` does not. Chinese regions imply their
script, so `zh-CN` matches `zh-Hans`. Knows nothing of files' contents.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from pathlib import PurePath
from typing import NamedTuple

from fedmt.corpus.pairs import Direction

__all__ = ["Code", "best", "exact", "in_path", "known", "listing", "matches", "parse", "side", "turned"]


class Code(NamedTuple):
    language: str
    script: str
    region: str


# ISO 639: the code of two letters, then those of three (terminological, and bibliographic where it differs).
_ISO = """
aa aar,ab abk,ae ave,af afr,ak aka,am amh,an arg,ar ara,as asm,av ava,ay aym,az aze,ba bak,be bel,bg bul,bi bis,bm bam,
bn ben,bo bod tib,br bre,bs bos,ca cat,ce che,ch cha,co cos,cr cre,cs ces cze,cu chu,cv chv,cy cym wel,da dan,
de deu ger,dv div,dz dzo,ee ewe,el ell gre,en eng,eo epo,es spa,et est,eu eus baq,fa fas per,ff ful,fi fin,fj fij,
fo fao,fr fra fre,fy fry,ga gle,gd gla,gl glg,gn grn,gu guj,gv glv,ha hau,he heb,hi hin,ho hmo,hr hrv,ht hat,hu hun,
hy hye arm,hz her,ia ina,id ind,ie ile,ig ibo,ii iii,ik ipk,io ido,is isl ice,it ita,iu iku,ja jpn,jv jav,ka kat geo,
kg kon,ki kik,kj kua,kk kaz,kl kal,km khm,kn kan,ko kor,kr kau,ks kas,ku kur,kv kom,kw cor,ky kir,la lat,lb ltz,lg lug,
li lim,ln lin,lo lao,lt lit,lu lub,lv lav,mg mlg,mh mah,mi mri mao,mk mkd mac,ml mal,mn mon,mr mar,ms msa may,mt mlt,
my mya bur,na nau,nb nob,nd nde,ne nep,ng ndo,nl nld dut,nn nno,no nor,nr nbl,nv nav,ny nya,oc oci,oj oji,om orm,or ori,
os oss,pa pan,pi pli,pl pol,ps pus,pt por,qu que,rm roh,rn run,ro ron rum,ru rus,rw kin,sa san,sc srd,sd snd,se sme,
sg sag,sh hbs,si sin,sk slk slo,sl slv,sm smo,sn sna,so som,sq sqi alb,sr srp,ss ssw,st sot,su sun,sv swe,sw swa,ta tam,
te tel,tg tgk,th tha,ti tir,tk tuk,tl tgl,tn tsn,to ton,tr tur,ts tso,tt tat,tw twi,ty tah,ug uig,uk ukr,ur urd,uz uzb,
ve ven,vi vie,vo vol,wa wln,wo wol,xh xho,yi yid,yo yor,za zha,zh zho chi,zu zul
"""
# Withdrawn codes, and the member of a macro-language that corpora mean by it.
_ALIASES = """
he iw,id in,yi ji ydd,ro mo,tl fil,zh cmn,ar arb,fa pes,et ekk,lv lvs,ms zsm,sw swh,az azj,mn khk,ne npi,uz uzn,sq als,
mg plt,ps pbt,or ory,om gaz,qu quy,ay ayr,gn gug,ku kmr
"""
_TWO = {
    code: names[0]
    for table in (_ISO, _ALIASES)
    for entry in table.replace("\n", "").split(",")
    for names in [entry.split()]
    for code in names
}
_SCRIPT_OF_REGION = {
    **{("zh", region): "Hans" for region in ("CN", "SG", "MY")},
    **{("zh", region): "Hant" for region in ("TW", "HK", "MO")},
}
_SCRIPT_OF_MODIFIER = {"latin": "Latn", "cyrillic": "Cyrl", "devanagari": "Deva", "arabic": "Arab"}
_SHAPE = re.compile(r"([A-Za-z]{2,3})((?:[-_][A-Za-z0-9]{1,8})*)(?:\.[A-Za-z0-9-]+)?(?:@([A-Za-z]+))?")


@lru_cache(maxsize=4096)
def parse(code: str) -> Code | None:
    """The code's parts, or None where it has not the shape of one. Variants and extensions are left out."""
    match = _SHAPE.fullmatch(code.strip())
    if match is None:
        return None
    language = match[1].lower()
    script = _SCRIPT_OF_MODIFIER.get((match[3] or "").lower(), "")
    region = ""
    for part in re.split(r"[-_]", match[2])[1:]:
        if len(part) == 1:
            break
        if re.fullmatch(r"[A-Za-z]{4}", part) and not script:
            script = part.title()
        elif re.fullmatch(r"[A-Za-z]{2}|\d{3}", part) and not region:
            region = part.upper()
    return Code(_TWO.get(language, language), script, region)


def known(code: str) -> bool:
    """Whether this is surely a language's code, by the ISO list; `app` and `yes` have the shape and are none."""
    match = _SHAPE.fullmatch(code.strip())
    parts = re.split(r"[-_]", match[2])[1:] if match else []
    return (
        match is not None
        and match[1].lower() in _TWO
        and all(re.fullmatch(r"[A-Za-z]{2}|[A-Za-z]{4}|\d{3}|\d[a-z0-9]{3}|[a-z0-9]{5,8}", part) for part in parts)
    )


def exact(asked: str, found: str) -> bool:
    """The same code, however it is written: `pt_br` and `pt-BR`, `de` and `deu`."""
    return parse(asked) == parse(found) is not None


@lru_cache(maxsize=4096)
def matches(asked: str, found: str) -> bool:
    """Whether text marked `found` is text of the language `asked`."""
    one, other = parse(asked), parse(found)
    if one is None or other is None:
        return False
    languages = {one.language, other.language}
    if len(languages) > 1 and languages not in ({"no", "nb"}, {"no", "nn"}):
        return False
    if one.region and other.region and one.region != other.region:
        return False
    scripts = {code.script or _SCRIPT_OF_REGION.get((code.language, code.region), "") for code in (one, other)} - {""}
    return len(scripts) < 2


def side(direction: Direction, found: str) -> int | None:
    """0 where `found` is the direction's source language, 1 where it is its target, else None.

    An exact code wins over a variant: for `de` to `de-AT`, `de-AT` is the target.
    """
    for test in (exact, matches):
        for index in (0, 1):
            if test(direction[index], found):
                return index
    return None


def turned(direction: Direction, source: str, target: str) -> bool | None:
    """False where text from `source` to `target` goes the direction's way, True where it goes the other way."""
    for turn, asked in ((False, direction), (True, direction[::-1])):
        if matches(asked[0], source) and matches(asked[1], target):
            return turn
    return None


def best(asked: str, found: Iterable[str]) -> list[str]:
    """Those of `found` that serve best for `asked`: the exact code alone, else every variant."""
    variants = [code for code in found if matches(asked, code)]
    return [code for code in variants if exact(asked, code)][:1] or variants


def in_path(path: PurePath) -> str | None:
    """The language a file is named by: `de.po`, `messages.de.xlf`, `django-pt_BR.po`, `de/LC_MESSAGES/app.mo`."""
    folders = list(reversed(path.parts[:-1]))
    if folders and folders[0] == "LC_MESSAGES":
        names = folders[1:2]
    else:
        name = re.sub(r"\.(gz|[A-Za-z]+)$", "", path.name.removesuffix(".gz"))
        tail = re.compile(r"(?:^|[._-])([A-Za-z]{2,3}(?:[-_][A-Za-z]{2,4}){0,2}(?:@[a-z]+)?)$")
        found = (tail.search(name, start) for start in range(len(name)))
        names = [match[1] for match in found if match] + folders[:1]
    return next((name for name in names if known(name)), None)


def listing(codes: Iterable[str], most: int = 8) -> str:
    """Codes as a message shows them."""
    shown = [code or "text of no stated language" for code in codes]
    return ", ".join(shown[:most]) + (f" and {len(shown) - most} more" if len(shown) > most else "") or "no language"
