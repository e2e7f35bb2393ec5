"""A Hugging Face dataset saved on disk (`datasets`' `save_to_disk`). Needs the extra `hub`.

`hub:FOLDER`, or `hub:FOLDER#SPLIT` where the folder holds several splits and not `train` is meant. Rows are what
tables.py knows: `translation`, columns named by languages, or `source` and `target`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fedmt.corpus import tables
from fedmt.corpus.pairs import Direction, Pair
from fedmt.errors import CorpusError

__all__ = ["holds", "pairs"]


def holds(folder: Path) -> bool:
    """Whether the folder looks like a saved dataset."""
    return any((folder / name).is_file() for name in ("dataset_info.json", "dataset_dict.json"))


def pairs(source: str, direction: Direction) -> Iterator[Pair]:
    name, _, split = source.partition("#")
    folder = Path(name)
    if not holds(folder):
        raise CorpusError(f"{folder}: is no dataset saved on disk; save one there with datasets' save_to_disk")
    try:
        import datasets
    except ImportError:
        raise CorpusError(f'{folder}: reading a dataset needs an extra: pip install "fedmt[hub]"') from None
    try:
        loaded = datasets.load_from_disk(str(folder))
    except Exception as error:  # its errors have no common root
        raise CorpusError(f"{folder}: the dataset cannot be loaded: {' '.join(str(error).split())}") from error
    if isinstance(loaded, datasets.DatasetDict):
        chosen = split or ("train" if "train" in loaded else "")
        if chosen not in loaded:
            raise CorpusError(f"{source}: say which split, hub:{folder}#SPLIT, one of {', '.join(loaded)}")
        loaded = loaded[chosen]
    elif split:
        raise CorpusError(f"{source}: the folder holds one set and no splits; leave out #{split}")
    return _rows(folder, loaded, direction)


def _rows(folder: Path, rows: Any, direction: Direction) -> Iterator[Pair]:
    feature = rows.features.get("translation")
    inner = list(getattr(feature, "languages", None) or feature or [])
    names = [str(name) for name in inner] or list(rows.features)
    keys = tables.columns(names, direction)
    if keys is None:
        raise CorpusError(f"{folder}: no pair of {direction}; its columns are {', '.join(names)}")
    for number, row in enumerate(rows):
        values = row["translation"] if inner else row
        source, target = values[keys[0]], values[keys[1]]
        if source is None or target is None:
            continue
        if not isinstance(source, str) or not isinstance(target, str):
            raise CorpusError(f"{folder}: row {number}: {keys[0]} and {keys[1]} must be text")
        yield Pair(source, target)
