from pathlib import PurePath

import pytest

from fedmt.corpus import languages
from fedmt.corpus.languages import Code
from fedmt.corpus.pairs import Direction


@pytest.mark.parametrize(
    ("code", "parts"),
    [
        ("de", Code("de", "", "")),
        ("DE_at", Code("de", "", "AT")),
        ("deu", Code("de", "", "")),
        ("ger", Code("de", "", "")),
        ("de_DE.UTF-8", Code("de", "", "DE")),
        ("deu_Latn", Code("de", "Latn", "")),
        ("zh-Hant-TW", Code("zh", "Hant", "TW")),
        ("sr@latin", Code("sr", "Latn", "")),
        ("es-419", Code("es", "", "419")),
        ("de-DE-1996", Code("de", "", "DE")),
        ("en-x-pirate", Code("en", "", "")),
        ("iw", Code("he", "", "")),
        ("hsb", Code("hsb", "", "")),
    ],
)
def test_a_code_is_taken_apart(code: str, parts: Code) -> None:
    assert languages.parse(code) == parts


@pytest.mark.parametrize("text", ["", "d", "german", "de DE", "de-", "Die Datei", "*all*"])
def test_what_has_not_the_shape_of_a_code_is_none(text: str) -> None:
    assert languages.parse(text) is None


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("de", "de-DE"),
        ("de", "de_AT"),
        ("de", "deu"),
        ("de", "DE"),
        ("pt-BR", "pt"),
        ("pt-BR", "pt_br"),
        ("zh-CN", "zh-Hans"),
        ("zh-TW", "zh_Hant"),
        ("no", "nb-NO"),
        ("no", "nn"),
        ("he", "iw"),
        ("zho_Hans", "zh-CN"),
        ("fil", "tl"),
    ],
)
def test_codes_of_one_language_match_both_ways(one: str, other: str) -> None:
    assert languages.matches(one, other)
    assert languages.matches(other, one)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("de", "nl"),
        ("de", "den"),
        ("pt-BR", "pt-PT"),
        ("zh-CN", "zh-TW"),
        ("zh-Hans", "zh-HK"),
        ("sr-Latn", "sr-Cyrl"),
        ("nb", "nn"),
        ("de", ""),
        ("de", "*all*"),
    ],
)
def test_codes_that_contradict_each_other_do_not_match(one: str, other: str) -> None:
    assert not languages.matches(one, other)
    assert not languages.matches(other, one)


@pytest.mark.parametrize("code", ["de", "de-DE", "pt_BR", "deu", "zh-Hans-CN", "es-419", "de-DE-1996"])
def test_codes_of_the_list_are_known(code: str) -> None:
    assert languages.known(code)


@pytest.mark.parametrize("text", ["app", "yes", "my-app", "score", "hsb", "Datei"])
def test_words_in_the_shape_of_a_code_are_not_known(text: str) -> None:
    assert not languages.known(text)


def test_the_side_of_a_code_is_the_exact_one_first() -> None:
    assert languages.side(Direction("de", "en"), "de-CH") == 0
    assert languages.side(Direction("de", "en"), "eng") == 1
    assert languages.side(Direction("de", "en"), "fr") is None
    assert languages.side(Direction("de", "de-AT"), "de-AT") == 1
    assert languages.side(Direction("de", "de-AT"), "de-CH") == 0


def test_text_may_go_the_direction_or_the_other_way() -> None:
    direction = Direction("de", "en")
    assert languages.turned(direction, "de-DE", "en-GB") is False
    assert languages.turned(direction, "en-GB", "de-DE") is True
    assert languages.turned(direction, "en", "fr") is None


def test_an_exact_code_serves_alone_and_variants_only_in_its_absence() -> None:
    assert languages.best("pt", ["pt-BR", "pt", "pt-PT"]) == ["pt"]
    assert languages.best("pt", ["pt-BR", "en", "pt-PT"]) == ["pt-BR", "pt-PT"]
    assert languages.best("pt", ["en"]) == []


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("de.po", "de"),
        ("pt_BR.po.gz", "pt_BR"),
        ("messages.de.xlf", "de"),
        ("django-pt_BR.po", "pt_BR"),
        ("app_de.mo", "de"),
        ("de/LC_MESSAGES/my.po", "de"),
        ("locale/de_AT/app.po", "de_AT"),
        ("locale/app.po", None),
        ("sr@latin.po", "sr@latin"),
    ],
)
def test_a_file_is_named_by_its_language(path: str, code: str | None) -> None:
    assert languages.in_path(PurePath(path)) == code


def test_a_long_listing_is_cut() -> None:
    assert languages.listing(["de", ""]) == "de, text of no stated language"
    assert languages.listing([]) == "no language"
    assert languages.listing([f"q{letter}" for letter in "abcdefghij"]).endswith("qh and 2 more")
