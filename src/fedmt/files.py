"""Files that are whole or absent: written beside their place, synced, then renamed into it."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

__all__ = ["read_json", "sha256_file", "sweep", "write_bytes", "write_folder", "write_json", "write_text"]


def write_bytes(path: Path, content: bytes | bytearray | memoryview | Iterable[bytes | memoryview]) -> None:
    """Write `path` atomically. An iterable is written part by part, so that a large file need not stand in memory."""
    path.parent.mkdir(parents=True, exist_ok=True)
    parts: Iterable[Any] = [content] if isinstance(content, (bytes, bytearray, memoryview)) else content
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            for part in parts:
                file.write(part)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o644)  # noqa: PTH101 - mkstemp makes it private; a run folder is read by other programs
        os.replace(name, path)  # noqa: PTH105
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def write_text(path: Path, text: str) -> None:
    write_bytes(path, text.encode("utf-8"))


def write_json(path: Path, value: Any) -> None:
    write_text(path, json.dumps(value, ensure_ascii=False, indent=1, sort_keys=False) + "\n")


def read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def write_folder(path: Path, fill: Callable[[Path], None]) -> None:
    """Fill a folder beside `path` and put it in its place; what stood there before goes only when the new one is whole.

    Between the two renames neither stands under the name for an instant; a kill there leaves the old folder as
    `.NAME.old`, which `restore_folder` puts back.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part"))
    try:
        fill(fresh)
        for file in fresh.rglob("*"):
            if file.is_file():
                with file.open("rb") as handle:
                    os.fsync(handle.fileno())
        fresh.chmod(0o755)
    except BaseException:
        shutil.rmtree(fresh, ignore_errors=True)
        raise
    old = path.with_name(f".{path.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if path.exists():
        path.rename(old)
    fresh.rename(path)
    sync_folder(path.parent)
    shutil.rmtree(old, ignore_errors=True)


def restore_folder(path: Path) -> bool:
    """Undo a `write_folder` that was killed between its renames; says whether `path` stands now."""
    old = path.with_name(f".{path.name}.old")
    if not path.exists() and old.exists():
        old.rename(path)
    return path.exists()


def sweep(folder: Path) -> None:
    """Remove what a killed process left half written, here and below."""
    for path in list(folder.rglob(".*.part")):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sha256_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
