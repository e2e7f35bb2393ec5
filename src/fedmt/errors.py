"""Every error that fedmt raises on purpose.

    FedmtError
    ├── InputError            what the user gave is wrong           → exit code 2, one line
    │   ├── CommandError      a command line
    │   ├── RecipeError       a recipe (may hold several mistakes)
    │   ├── CorpusError       a corpus file
    │   ├── EngineError       an engine's folder or name
    │   └── RunError          a run's folder
    └── Failure               the input was right, the work failed  → exit code 1, one line
        ├── Diverged          training has left the finite numbers
        ├── FetchError        something could not be downloaded
        ├── QuorumError       too few silos answered
        └── Refused           an update that the coordinator will not fold

A message says where, what is wrong, and what is allowed; it is one line.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = [
    "CommandError",
    "CorpusError",
    "Diverged",
    "EngineError",
    "Failure",
    "FedmtError",
    "FetchError",
    "InputError",
    "QuorumError",
    "RecipeError",
    "Refused",
    "RunError",
]


class FedmtError(Exception):
    """The root; `exit_code` is what the command line returns for it."""

    exit_code = 1


class InputError(FedmtError):
    exit_code = 2


class CommandError(InputError):
    pass


class RecipeError(InputError):
    """All mistakes of a recipe at once, one line each."""

    def __init__(self, mistakes: str | Sequence[str]) -> None:
        self.mistakes = [mistakes] if isinstance(mistakes, str) else list(mistakes)
        super().__init__("\n".join(self.mistakes))


class CorpusError(InputError):
    pass


class EngineError(InputError):
    pass


class RunError(InputError):
    pass


class Failure(FedmtError):
    pass


class Diverged(Failure):
    pass


class FetchError(Failure):
    pass


class QuorumError(Failure):
    pass


class Refused(Failure):
    """An update that the coordinator will not fold: which silo, and why."""

    def __init__(self, silo: str, reason: str) -> None:
        self.silo = silo
        self.reason = reason
        super().__init__(f"update of {silo} refused: {reason}")
