from __future__ import annotations

import os

import pytest


@pytest.fixture(autouse=True)
def _no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that dies loses nothing that the kernel has; only a power cut would."""
    monkeypatch.setattr(os, "fsync", lambda _: None)
