"""Merges that a few silos cannot pull where they like: value by value, without the highest and the lowest.

    trimmed   the mean of what is left when a share of the values is cut off at each end
    median    of the middle one, or two

Every silo counts the same, whatever it says of its size. A sum would not do, so updates wait on disk, and values are
compared a stretch at a time: memory holds a stretch of each update, and no update. (Yin et al. 2018, *Byzantine-Robust
Distributed Learning*.)
"""

from __future__ import annotations

import mmap
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path

import torch
from torch import Tensor

from fedmt.choices import MergeMedian, MergeTrimmed, Missing
from fedmt.exchange import codec
from fedmt.exchange.update import Update

__all__ = ["Ranking"]

STRETCH = 1 << 18


class Ranking:
    """As `merge.Fold`, for these merges; `folder` is where updates wait (none: the system's)."""

    def __init__(self, merge: MergeTrimmed | MergeMedian, folder: Path | None) -> None:
        self._merge, self._folder = merge, folder
        self._waiting: list[mmap.mmap] = []
        self.count = 0

    def add(self, update: Update, could: Iterable[str] | None = None) -> None:  # noqa: ARG002 - only senders count
        if self._folder is not None:
            self._folder.mkdir(parents=True, exist_ok=True)
        masks = {f"mask/{name}": mask for name, mask in update.masks.items()}
        # Without a name: it goes with the process, however that ends.
        with tempfile.TemporaryFile(dir=self._folder) as file:
            for part in codec.parts({**update.tensors, **masks}):
                file.write(part)
            file.flush()
            self._waiting.append(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        self.count += 1

    def result(
        self, base: Mapping[str, Tensor], rate: float = 1.0, missing: Missing = "renormalise"
    ) -> dict[str, Tensor]:
        """The merged tensors, in the order, shapes and dtypes of `base`. What waited is gone."""
        assert missing == "renormalise"
        updates = [codec.unpack(memoryview(one))[0] for one in self._waiting]
        merged = {name: self._merged(name, before, updates, rate) for name, before in base.items()}
        with ExitStack() as stack:
            updates.clear()
            for one in self._waiting:
                stack.callback(_close, one)
            self._waiting = []
        return merged

    def _merged(self, name: str, before: Tensor, updates: list[dict[str, Tensor]], rate: float) -> Tensor:
        senders = [update for update in updates if name in update]
        if not senders:
            return before
        after = torch.empty(before.numel(), dtype=before.dtype)
        start = before.reshape(-1)
        for first in range(0, before.numel(), STRETCH):
            stretch = slice(first, first + STRETCH)
            values = torch.stack([_values(update, name, stretch) for update in senders])
            own = start[stretch].double()
            found = self._middle(values)
            found = torch.where(found.isnan(), own, found)
            after[stretch] = found if rate == 1 else own + rate * (found - own)
        return after.reshape(before.shape)

    def _middle(self, values: Tensor) -> Tensor:
        """Of each column the mean of those that are not cut off; of a column that nobody sent, no number."""
        ranked = values.sort(dim=0).values  # what is no number comes last
        there = (~ranked.isnan()).sum(dim=0)
        cut = (there - 1) // 2 if isinstance(self._merge, MergeMedian) else (there * self._merge.share).long()
        place = torch.arange(len(values))[:, None]
        kept = (place >= cut) & (place < there - cut)
        return torch.where(kept, ranked, 0.0).sum(dim=0) / kept.sum(dim=0)


def _values(update: Mapping[str, Tensor], name: str, stretch: slice) -> Tensor:
    """What one silo sent, and no number where it sent none."""
    values = update[name].reshape(-1)[stretch].double()
    mask = update.get(f"mask/{name}")
    return values if mask is None else values.masked_fill(~mask.reshape(-1)[stretch], torch.nan)


def _close(content: mmap.mmap) -> None:
    try:
        content.close()
    except BufferError:  # a view is still alive somewhere; the map goes with it
        return
