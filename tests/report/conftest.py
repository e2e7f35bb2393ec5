from __future__ import annotations

from pathlib import Path

import pytest

from fedmt.report.folder import RunFolder
from tests.report import runs


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """Shared: tests that write into a run folder build their own."""
    return runs.build(tmp_path_factory.mktemp("runs") / "demo")


@pytest.fixture
def small(tmp_path: Path) -> RunFolder:
    return runs.build(tmp_path / "small", n=12, resamples=20)
