"""Every peer in an environment of its own, made from a lock of exact versions. Plain standard library."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

__all__ = ["Unavailable", "ours", "peer"]

HERE = Path(__file__).resolve().parent
LOCK = HERE.parent / "requirements.lock"
# The same torch everywhere, and first: a peer that wants some torch would bring one with gigabytes of CUDA behind it.
TORCH = next(line for line in LOCK.read_text(encoding="utf-8").splitlines() if line.startswith("torch=="))
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
_STAMP = ".made-from"


class Unavailable(Exception):
    """An environment could not be made; the message says what was tried."""


def peer(name: str, say: Callable[[str], None]) -> Path:
    """The Python of `.venv-NAME`, which is made if it is absent or its lock has changed."""
    return _made(name, HERE / f"requirements-{name}.txt", say)


def ours(say: Callable[[str], None]) -> Path:
    """A Python that has fedmt: this one, the checkout's `.venv`, or one made for it."""
    for candidate in (Path(sys.executable), HERE.parent / ".venv" / "bin" / "python"):
        if candidate.exists() and _has_fedmt(candidate):
            return candidate
    python = _made("fedmt", LOCK, say)
    if not _has_fedmt(python):
        _do([*_pip(python), "--no-deps", "--no-build-isolation", "--editable", str(HERE.parent)])
    return python


def _has_fedmt(python: Path) -> bool:
    return subprocess.run([python, "-c", "import fedmt, torch"], capture_output=True, check=False).returncode == 0


def _made(name: str, lock: Path, say: Callable[[str], None]) -> Path:
    folder = HERE / f".venv-{name}"
    python = folder / "bin" / "python"
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    stamp = hashlib.sha256(f"{TORCH}\n{version}\n".encode() + lock.read_bytes()).hexdigest()
    kept = folder / _STAMP
    if python.exists() and kept.is_file() and kept.read_text(encoding="ascii") == stamp:
        return python
    say(f"making {folder.name}")
    shutil.rmtree(folder, ignore_errors=True)
    _do([sys.executable, "-m", "venv", str(folder)])
    _torch(_pip(python))
    _do([*_pip(python), "--requirement", str(lock)])
    kept.write_text(stamp, encoding="ascii")
    return python


def _torch(pip: list[str]) -> None:
    """A wheel that pip is told of on this disk, else the build for processors, else what the package index has."""
    for source in (["--no-index"], ["--retries", "1", "--timeout", "30", "--index-url", CPU_INDEX], []):
        try:
            return _do([*pip, "--no-deps", *source, TORCH])
        except Unavailable as unavailable:
            last = unavailable
    raise last


def _pip(python: Path) -> list[str]:
    return [str(python), "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]


def _do(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        errors = [line for line in (done.stderr or done.stdout).splitlines() if not line.startswith("WARNING")]
        raise Unavailable(f"{' '.join(command)}: {errors[-1].strip() if errors else f'code {done.returncode}'}")
