"""Tiny wheels that look like the real ones, and packages that point at them."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path

import polib

from fedmt import files
from fedmt.corpus.catalogues import Layout
from fedmt.corpus.packages import Package

LANGUAGE = r"(?P<language>[A-Za-z]{2,3}(?:[_@-][A-Za-z0-9]+)*)"
PO = Layout(rf"app/locale/{LANGUAGE}/LC_MESSAGES/\w+\.po")
MO = Layout(rf"app/locale/{LANGUAGE}/LC_MESSAGES/\w+\.mo")
JSON = Layout(rf"app/parts/\w+/translations/{LANGUAGE}\.json", english="file")
HEAD = 'msgid ""\nmsgstr "Content-Type: text/plain; charset=UTF-8\\n"\n"Plural-Forms: {plural};\\n"\n\n'


def po(entries: str, plural: str = "nplurals=2; plural=(n != 1)") -> str:
    return HEAD.format(plural=plural) + entries


def simple(messages: Mapping[str, str]) -> str:
    """A PO file of plain messages."""
    return po("\n".join(f"msgid {_quoted(name)}\nmsgstr {_quoted(text)}\n" for name, text in messages.items()))


def mo(text: str) -> bytes:
    return bytes(polib.pofile(text).to_binary())


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


def write(folder: Path, contents: Mapping[str, str | bytes], name: str = "app", version: str = "1.0") -> Path:
    """A wheel that pip accepts too."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{version}-py3-none-any.whl"
    info = f"{name}-{version}.dist-info"
    whole = {
        **contents,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/RECORD": "",
    }
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for inner, content in whole.items():
            # A fixed date keeps the hash the same.
            archive.writestr(zipfile.ZipInfo(inner), content)
    return path


def package(path: Path, layout: Layout = PO, name: str = "app") -> Package:
    """What the table would say of this wheel."""
    return Package(
        name=name,
        version="1.0",
        organisation=f"{name}-office",
        about="a test",
        licence="MIT",
        homepage="https://example.org",
        wheel=path.name,
        sha256=files.sha256_file(path),
        size=path.stat().st_size,
        layout=layout,
    )
