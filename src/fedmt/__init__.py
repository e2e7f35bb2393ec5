"""fedmt lets organisations that may not share text train one machine-translation engine together.

    recipe = fedmt.read_recipe("courts.yaml", ["rounds=3"])
    folder = fedmt.run(recipe, Path("runs/courts"))
    engine = fedmt.load_engine("runs/courts/engine")
    fedmt.translate(engine, ["Die Datei konnte nicht gelesen werden."], fedmt.Direction("de", "en"))

Nothing is imported before it is used: torch alone takes seconds.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedmt.corpus.pairs import Direction, Pair
    from fedmt.engine.decoder import translate
    from fedmt.engine.engine import Engine
    from fedmt.engine.engine import load as load_engine
    from fedmt.errors import Failure, FedmtError, InputError
    from fedmt.experiment import run
    from fedmt.reading import read as read_recipe
    from fedmt.reading import write as write_recipe
    from fedmt.recipe import Recipe
    from fedmt.report.folder import RunFolder

__all__ = [
    "Direction",
    "Engine",
    "Failure",
    "FedmtError",
    "InputError",
    "Pair",
    "Recipe",
    "RunFolder",
    "__version__",
    "load_engine",
    "read_recipe",
    "run",
    "translate",
    "write_recipe",
]

__version__ = "0.1.0"

_WHERE = {
    "Direction": ("fedmt.corpus.pairs", "Direction"),
    "Engine": ("fedmt.engine.engine", "Engine"),
    "Failure": ("fedmt.errors", "Failure"),
    "FedmtError": ("fedmt.errors", "FedmtError"),
    "InputError": ("fedmt.errors", "InputError"),
    "Pair": ("fedmt.corpus.pairs", "Pair"),
    "Recipe": ("fedmt.recipe", "Recipe"),
    "RunFolder": ("fedmt.report.folder", "RunFolder"),
    "load_engine": ("fedmt.engine.engine", "load"),
    "read_recipe": ("fedmt.reading", "read"),
    "run": ("fedmt.experiment", "run"),
    "translate": ("fedmt.engine.decoder", "translate"),
    "write_recipe": ("fedmt.reading", "write"),
}


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'fedmt' has no attribute {name!r}")
    module, attribute = _WHERE[name]
    value = getattr(import_module(module), attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
