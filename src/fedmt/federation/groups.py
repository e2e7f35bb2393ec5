"""Who merges with whom: a label for each silo and side of the engine. Silos of one label call a tensor by one name.

So a group is a renaming, and whoever sums tensors by their names needs to know nothing of groups. The empty label is
everyone's. Knows no text and no engine: languages' families are told by the caller, gradients come as vectors.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from math import comb
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from fedmt.checking import meant
from fedmt.choices import (
    Groups,
    GroupsAlone,
    GroupsExplicit,
    GroupsFamilies,
    GroupsGradients,
    GroupsNone,
    GroupsRandom,
)
from fedmt.errors import InputError, Refused
from fedmt.place import Side

# Groups are checked with every recipe, and torch takes seconds to be imported.
if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Directions", "Family", "Gradients", "Grouping", "agreement", "cluster", "group", "mistakes"]

Directions: TypeAlias = Mapping[str, tuple[str, str]]
"""Source and target language of each silo."""
Family: TypeAlias = Callable[[str, str], str]
"""The family of a language's code, at the level `family` or `branch`; an InputError where it knows none."""
Gradients: TypeAlias = "Mapping[str, Mapping[Side, Tensor]]"
"""One vector for each silo and side."""

_SIDES: tuple[Side, Side] = ("encoder", "decoder")
# No name of a recipe begins so.
_REST = "_rest"


@dataclass(frozen=True)
class Grouping:
    """`labels` of each silo, in the silos' order, on each of the three sides; the empty label is everyone's."""

    labels: Mapping[str, Mapping[Side, str]]

    def label(self, silo: str, side: Side) -> str:
        return self.labels[silo][side]

    def key(self, silo: str, side: Side, name: str) -> str:
        """What the silo's tensor of this name is called where tensors are merged."""
        label = self.labels[silo][side]
        return f"{label}/{name}" if label else name

    def together(self, silo: str) -> tuple[str, ...]:
        """Equal for silos that share all tensors, and so are sent one and the same engine."""
        own = self.labels[silo]
        return own["encoder"], own["decoder"], own["shared"]

    def along(self, side: Side) -> list[str]:
        """The labels of one side in the silos' order, for `agreement`."""
        return [own[side] for own in self.labels.values()]

    def as_numbers(self) -> dict[str, dict[str, str]]:
        """Plain values, for a checkpoint's JSON."""
        return {silo: {str(side): label for side, label in own.items()} for silo, own in self.labels.items()}

    @classmethod
    def from_numbers(cls, numbers: Mapping[str, Mapping[str, Any]]) -> Grouping:
        return cls({silo: {cast(Side, side): str(own[side]) for side in own} for silo, own in numbers.items()})


def group(
    groups: Groups,
    silos: Sequence[str],
    directions: Directions,
    seed: int,
    family: Family,
    gradients: Gradients | None = None,
) -> Grouping:
    """The groups that a recipe asks for. Which silos stand together does not depend on the silos' order.

    What belongs to neither side merges with everyone, except under `alone`.
    """
    if isinstance(groups, GroupsAlone):
        own = silos if len(silos) > 1 else [""] * len(silos)
        return Grouping({silo: _sides(label, label, label) for silo, label in zip(silos, own, strict=True)})
    encoder, decoder = (_labels(groups, side, silos, directions, seed, family, gradients) for side in _SIDES)
    return Grouping({silo: _sides(*labels) for silo, *labels in zip(silos, encoder, decoder, strict=True)})


def _sides(encoder: str, decoder: str, shared: str = "") -> dict[Side, str]:
    return {"encoder": encoder, "decoder": decoder, "shared": shared}


def _labels(
    groups: Groups,
    side: Side,
    silos: Sequence[str],
    directions: Directions,
    seed: int,
    family: Family,
    gradients: Gradients | None,
) -> list[str]:
    """One side's label of each silo, in their order."""
    match groups:
        case GroupsFamilies(sides=sides, level=level) if sides in ("both", side):
            return _everyone(_families(side, silos, directions, family, level))
        case GroupsRandom(sides=sides, count=count) if sides in ("both", side):
            number = count or len(set(_families(side, silos, directions, family, "branch")))
            return _numbered(silos, _drawn(silos, number, f"{seed}/{side}"))
        case GroupsGradients(sides=sides, count=count, threshold=threshold) if sides in ("both", side):
            if gradients is None:
                raise ValueError("groups of gradients need gradients")
            return _numbered(silos, cluster({silo: gradients[silo][side] for silo in silos}, count, threshold))
        case GroupsExplicit():
            named: dict[str, list[str]] = getattr(groups, side)
            label = {silo: name for name, members in named.items() for silo in members}
            return _everyone([label.get(silo, _REST) for silo in silos])
        case GroupsNone() | GroupsAlone() | GroupsFamilies() | GroupsRandom() | GroupsGradients():
            return [""] * len(silos)


def _families(side: Side, silos: Iterable[str], directions: Directions, family: Family, level: str) -> list[str]:
    return [family(directions[silo][_SIDES.index(side)], level) for silo in silos]


def _everyone(labels: list[str]) -> list[str]:
    return labels if len(set(labels)) > 1 else [""] * len(labels)


def _numbered(silos: Sequence[str], parts: Sequence[Sequence[str]]) -> list[str]:
    """g1, g2, … in the order in which a silo of theirs first comes."""
    part = {silo: index for index, members in enumerate(parts) for silo in members}
    order = {index: f"g{place}" for place, index in enumerate(dict.fromkeys(part[silo] for silo in silos), 1)}
    return _everyone([order[part[silo]] for silo in silos])


def _drawn(silos: Iterable[str], count: int, salt: str) -> list[list[str]]:
    """Parts whose sizes differ by one at most. By hash, so that no library's generator decides."""

    def rank(silo: str) -> tuple[bytes, str]:
        return blake2b(f"{salt}/{silo}".encode(), digest_size=8, person=b"fedmt.groups").digest(), silo

    shuffled = sorted(silos, key=rank)
    return [shuffled[start::count] for start in range(min(count, len(shuffled)))]


# ── gradients ───────────────────────────────────────────────────────────────────────────────────────────────────────


def cluster(vectors: Mapping[str, Tensor], count: int | None, threshold: float | None) -> list[list[str]]:
    """Average linkage (UPGMA) on cosine distance: the nearest two clusters join until there are `count`, or until the
    nearest are further apart than `threshold`. Of equally near ones those whose names come first join.
    """
    names = sorted(vectors)
    distance = _distances([vectors[name] for name in names], names)
    clusters = [[index] for index in range(len(names))]
    while len(clusters) > (count or 1):
        apart, one, other = min(
            (float(distance[np.ix_(clusters[one], clusters[other])].mean()), one, other)
            for one in range(len(clusters))
            for other in range(one + 1, len(clusters))
        )
        if threshold is not None and apart > threshold:
            break
        # Sorted and put in the place of the first: clusters stay in the order of their first names.
        clusters[one] = sorted(clusters[one] + clusters.pop(other))
    return [[names[index] for index in members] for members in clusters]


def _distances(vectors: Sequence[Tensor], names: Sequence[str]) -> NDArray[np.float64]:
    rows: list[NDArray[np.float64]] = []
    for name, vector in zip(names, vectors, strict=True):
        row = vector.detach().cpu().double().flatten().numpy()
        length = float(np.linalg.norm(row))
        if not np.isfinite(length) or length == 0:
            raise Refused(name, f"its gradient has the length {length}, and so no direction to be grouped by")
        if rows and row.shape != rows[0].shape:
            raise Refused(name, f"its gradient has {row.size} values, that of {names[0]} {rows[0].size}")
        rows.append(row / length)
    # Rounded: what the precision of gradients cannot tell apart is equally far apart.
    matrix = np.stack(rows)
    distances: NDArray[np.float64] = np.round(1.0 - matrix @ matrix.T, 6)
    return distances


# ── checking, comparing ─────────────────────────────────────────────────────────────────────────────────────────────


def mistakes(
    groups: Groups, silos: Sequence[str], directions: Directions, family: Family
) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """What of a recipe's groups does not fit its silos: the path of the key, and what is wrong with it."""
    if isinstance(groups, GroupsExplicit):
        yield from _unfit(groups, silos)
    count = groups.count if isinstance(groups, GroupsRandom | GroupsGradients) else None
    if count is not None and count > len(silos):
        yield ("groups", "count"), f"{count} groups of {len(silos)} silos; allowed: at most one a silo"
    if isinstance(groups, GroupsFamilies) or (isinstance(groups, GroupsRandom) and count is None):
        level = groups.level if isinstance(groups, GroupsFamilies) else "branch"
        ends = [side for side in _SIDES if groups.sides in ("both", side)]
        told = set()
        for silo in silos:
            for side in ends:
                try:
                    family(directions[silo][_SIDES.index(side)], level)
                except InputError as error:
                    told.add(str(error))
        yield from ((("groups", "kind"), text) for text in sorted(told))


def _unfit(groups: GroupsExplicit, silos: Sequence[str]) -> Iterator[tuple[tuple[str | int, ...], str]]:
    if not groups.encoder and not groups.decoder:
        yield ("groups", "kind"), "names no group; allowed: groups under `encoder`, under `decoder`, or under both"
    for side in _SIDES:
        named: dict[str, list[str]] = getattr(groups, side)
        for name, members in named.items():
            if not members:
                yield ("groups", side, name), "is empty; allowed: one silo or more"
            for index, silo in enumerate(members):
                if silo not in silos:
                    yield (
                        ("groups", side, name, index),
                        f"there is no silo {silo!r}{meant(silo, silos)}; allowed: {', '.join(silos)}",
                    )


def agreement(one: Sequence[Hashable], other: Sequence[Hashable]) -> float:
    """The adjusted Rand index of two labellings of the same things: 1 the same groups, about 0 no more than chance."""
    if len(one) != len(other):
        raise ValueError(f"labellings of {len(one)} and of {len(other)} things")
    pairs = comb(len(one), 2)
    both = _pairs(zip(one, other, strict=True))
    first, second = _pairs(one), _pairs(other)
    expected = first * second / pairs if pairs else 0.0
    most = (first + second) / 2
    # All apart in both, or all together: nothing is left to chance.
    return 1.0 if most == expected else (both - expected) / (most - expected)


def _pairs(labels: Iterable[Hashable]) -> int:
    """How many pairs of things have one label."""
    return sum(comb(number, 2) for number in Counter(labels).values())
