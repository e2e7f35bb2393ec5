"""Every peer in an environment of its own, made from a lock of exact versions. Plain standard library."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

__all__ = ["TORCH", "Unavailable", "ours", "peer"]

HERE = Path(__file__).resolve().parent
# The same everywhere, and first: peers that merely want some torch must not choose one, with gigabytes of CUDA behind.
TORCH = "torch==2.13.0"
_STAMP = ".made-from"


class Unavailable(Exception):
    """An environment could not be made; the message says what was tried."""


def peer(name: str, say: Callable[[str], None]) -> Path:
    """The Python of `.venv-NAME`, which is made if it is absent or its lock has changed."""
    lock = HERE / f"requirements-{name}.txt"
    return _made(name, ["-r", str(lock)], lock.read_bytes(), say)


def ours(say: Callable[[str], None]) -> Path:
    """A Python that has fedmt: this one, the checkout's `.venv`, or one made for it."""
    for candidate in (Path(sys.executable), HERE.parent / ".venv" / "bin" / "python"):
        if candidate.exists() and _has_fedmt(candidate):
            return candidate
    project = HERE.parent / "pyproject.toml"
    return _made("fedmt", ["-e", str(HERE.parent)], project.read_bytes(), say)


def _has_fedmt(python: Path) -> bool:
    return subprocess.run([python, "-c", "import fedmt, torch"], capture_output=True, check=False).returncode == 0


def _made(name: str, wanted: list[str], lock: bytes, say: Callable[[str], None]) -> Path:
    folder = HERE / f".venv-{name}"
    python = folder / "bin" / "python"
    stamp = hashlib.sha256(f"{TORCH}\n{sys.version_info[:2]}\n".encode() + lock).hexdigest()
    if (folder / _STAMP).is_file() and (folder / _STAMP).read_text(encoding="ascii") == stamp:
        return python
    say(f"making {folder.name}")
    shutil.rmtree(folder, ignore_errors=True)
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    for command in ([sys.executable, "-m", "venv", str(folder)], [*pip, TORCH], [*pip, TORCH, *wanted]):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            errors = [line for line in (done.stderr or done.stdout).splitlines() if not line.startswith("WARNING")]
            raise Unavailable(f"{' '.join(command)}: {errors[-1].strip() if errors else f'code {done.returncode}'}")
    (folder / _STAMP).write_text(stamp, encoding="ascii")
    return python
