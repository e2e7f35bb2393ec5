import pytest

from fedmt.engine.codes import english, find

MBART50 = ["ar_AR", "de_DE", "en_XX", "es_XX", "he_IL", "id_ID", "pt_XX", "zh_CN"]
M2M100 = ["ar", "de", "en", "he", "no", "pt", "tl", "zh"]
NLLB = ["arb_Arab", "arz_Arab", "deu_Latn", "eng_Latn", "heb_Hebr", "nno_Latn", "nob_Latn", "pes_Arab", "srp_Cyrl",
        "lvs_Latn", "zho_Hans", "zho_Hant", "yue_Hant"]  # fmt: skip


@pytest.mark.parametrize(
    ("asked", "codes", "found"),
    [
        ("de", MBART50, "de_DE"),
        ("de-AT", MBART50, "de_DE"),
        ("de_DE", MBART50, "de_DE"),
        ("DE", MBART50, "de_DE"),
        ("deu", MBART50, "de_DE"),
        ("pt-BR", MBART50, "pt_XX"),
        ("iw", MBART50, "he_IL"),
        ("fr", MBART50, None),
        ("de-CH", M2M100, "de"),
        ("nb", M2M100, "no"),
        ("fil", M2M100, "tl"),
        ("de", NLLB, "deu_Latn"),
        ("deu_Latn", NLLB, "deu_Latn"),
        ("ar", NLLB, "arb_Arab"),
        ("arz", NLLB, "arz_Arab"),
        ("fa", NLLB, "pes_Arab"),
        ("lv", NLLB, "lvs_Latn"),
        ("no", NLLB, "nob_Latn"),
        ("nn", NLLB, "nno_Latn"),
        ("zh", NLLB, "zho_Hans"),
        ("zh-CN", NLLB, "zho_Hans"),
        ("zh-TW", NLLB, "zho_Hant"),
        ("zh_Hant", NLLB, "zho_Hant"),
        ("sr", NLLB, "srp_Cyrl"),
        ("sr_Latn", NLLB, None),
        ("tlh", NLLB, None),
        ("pt-BR", ["pt", "pt-BR"], "pt-BR"),
        ("pt-PT", ["pt-BR", "pt"], "pt"),
        ("pt-PT", ["pt-BR", "pt-PT"], "pt-PT"),
    ],
)
def test_a_language_is_found_under_an_engines_own_code(asked: str, codes: list[str], found: str | None) -> None:
    assert find(asked, codes) == found


def test_a_language_has_its_english_name() -> None:
    assert [english(code) for code in ("de", "deu", "de-AT", "zh_Hant", "tlh")] == [
        "German", "German", "German", "Chinese", None
    ]  # fmt: skip
