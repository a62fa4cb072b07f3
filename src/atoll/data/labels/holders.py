"""Who has which labels."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from atoll.core.calls import checked_call
from atoll.core.errors import DataError

from ..dataset import About
from ..missing import labelled_rows
from .hiding import LABELS

if TYPE_CHECKING:
    from ..dataset import Dataset
    from ..islands import Islands

__all__ = ["LabelMap", "LabelPool", "label_map", "require_labels", "require_public"]

Place = Literal["client", "helper", "public", "test"]


@dataclass(frozen=True)
class LabelPool:
    """The labels of one party, or of one pool of rows at the server.

    Attributes:
        name: the party's name; "public" or "test" for the server's pools.
        place: "client", "helper", "public" (rows that everyone may see) or "test" (the server's rows that only measure).
        rows: number of rows.
        labelled: rows with a label.
        classes: the classes that have a label here, by name; empty for a regression.
    """

    name: str
    place: Place
    rows: int
    labelled: int
    classes: tuple[str, ...] = ()

    @property
    def state(self) -> Literal["all", "part", "none"]:
        """Which of the rows have a label."""
        return "none" if not self.labelled else "all" if self.labelled == self.rows else "part"


@dataclass(frozen=True)
class LabelMap:
    """Who has which labels.

    Attributes:
        pools: clients first, then helper parties, then the public and the test rows.
        classes: all classes, by name; empty for a regression.
    """

    pools: tuple[LabelPool, ...]
    classes: tuple[str, ...] = ()

    def __iter__(self) -> Iterator[LabelPool]:
        return iter(self.pools)

    def at(self, place: Place) -> tuple[LabelPool, ...]:
        """The pools in one kind of place."""
        return tuple(pool for pool in self.pools if pool.place == place)

    @property
    def to_train(self) -> tuple[LabelPool, ...]:
        """The pools whose labels may train: clients, and the helper party ``labels``."""
        return tuple(pool for pool in self.pools if pool.place == "client" or pool.name == LABELS)

    @property
    def positions(self) -> tuple[int, ...]:
        """The positions of clients with a label among all clients."""
        return tuple(place for place, pool in enumerate(self.at("client")) if pool.labelled)

    @property
    def labelled(self) -> int:
        """Rows with a label that may train."""
        return sum(pool.labelled for pool in self.to_train)

    @property
    def unknown(self) -> tuple[str, ...]:
        """Classes of which no row that may train has a label."""
        known = {name for pool in self.to_train for name in pool.classes}
        return tuple(name for name in self.classes if name not in known)

    def table(self, most: int = 20) -> str:
        """Return aligned lines, one a pool; of more than ``most`` clients only the sum of the others."""
        shown, rest = self.pools, tuple[LabelPool, ...]()
        if len(self.at("client")) > most:
            shown = (*self.at("client")[:most], *(pool for pool in self.pools if pool.place != "client"))
            rest = self.at("client")[most:]
        lines = [("party", "place", "rows", "labels", "classes")]
        lines += [(p.name, p.place, f"{p.rows:,}", f"{p.labelled:,} ({p.state})", self._shown(p)) for p in shown]
        if rest:
            total = f"{sum(p.labelled for p in rest):,}"
            lines.append((f"{len(rest):,} more", "client", f"{sum(p.rows for p in rest):,}", total, ""))
        if self.unknown:
            lines.append(("nobody", "", "", "", ", ".join(self.unknown)))
        widths = [max(len(line[k]) for line in lines) for k in range(4)]
        return "\n".join(
            "  ".join([*(f"{cell:<{width}}" for cell, width in zip(line[:4], widths, strict=True)), line[4]]).rstrip()
            for line in lines
        )

    def _shown(self, pool: LabelPool) -> str:
        return "all" if self.classes and len(pool.classes) == len(self.classes) else ", ".join(pool.classes)

    def __str__(self) -> str:
        return self.table()


@checked_call
def label_map(islands: Islands) -> LabelMap:
    """Describe who has which labels: each client, helper party and pool.

    Args:
        islands: the population. Its rows are read once.

    Example:
        >>> import atoll.data
        >>> islands = atoll.data.iid(atoll.data.iris().with_test(None), parties=2, seed=0)
        >>> print(atoll.data.label_map(atoll.data.unlabel(islands, keep=1, at="parties", seed=0)))
        party     place   rows  labels    classes
        client-0  client  60    60 (all)  all
        client-1  client  60    0 (none)
    """
    names = _names(islands.about)
    pools = [_pool(str(shard.name), "client", shard, islands.about) for shard in islands]
    pools += [_pool(name, "helper", data, islands.about) for name, data in islands.others.items()]
    extra: list[tuple[Place, Dataset | None]] = [("public", islands.public), ("test", islands.test)]
    pools += [_pool(str(place), place, data, islands.about) for place, data in extra if data is not None]
    return LabelMap(tuple(pools), names)


def _names(about: About) -> tuple[str, ...]:
    if about.task == "binary":
        return about.labels or ("negative", "positive")
    if about.task != "classification":
        return ()
    return about.labels or tuple(map(str, range(about.classes or 0)))


def _pool(name: str, place: Place, data: Any, about: About) -> LabelPool:
    there = labelled_rows(data)
    classes: tuple[str, ...] = ()
    names = _names(about)
    if names and there.any():
        codes = np.asarray(data["y"])[there]
        codes = (codes > 0).astype(np.int64) if about.task == "binary" else codes
        classes = tuple(names[code] for code in np.unique(codes))
    return LabelPool(name, place, len(data), int(there.sum()), classes)


@checked_call
def require_labels(
    islands: Islands, who: str, *, every_class: bool = True, at: Sequence[str] = ("clients", LABELS)
) -> LabelMap:
    """Refuse data from which nobody can learn the target.

    Args:
        islands: the population.
        who: the part that needs labels, for errors.
        every_class: whether each class must have a label.
        at: where the part learns from labels: ``"clients"``, and names of helper parties.

    Raises:
        DataError: nobody there has a label, or a class has none there; names the parties or the class.
    """
    found = label_map(islands)
    pools = [pool for pool in found if ("clients" if pool.place == "client" else pool.name) in at]
    where, holders = f"islands of {islands.name!r}", [pool.name for pool in pools if pool.labelled]
    if not holders:
        others = [pool.name for pool in found if pool.place in ("client", "helper") and pool.labelled]
        raise DataError(
            f"{who} needs labels, and no party has any: {_first(pool.name for pool in pools)}"
            if not others
            else f"{who} learns from labels at {' and '.join(at)}, which have none: labels are at {_first(others)}",
            where=where,
            remedy=f"label a few rows at {' or '.join(at)}, or use a method whose labels are elsewhere, or that needs none: `atoll labels methods` lists them",
        )
    known = {name for pool in pools for name in pool.classes}
    unknown = [name for name in found.classes if name not in known] if every_class else []
    if unknown:
        raise DataError(
            f"{who} cannot learn {'a class' if len(unknown) == 1 else 'classes'} without a label: {', '.join(unknown)} (labels are at {_first(holders)})",
            where=where,
            remedy="label a row of each class at one of these parties, or leave the class out of the data",
        )
    return found


def _first(names: Iterable[str]) -> str:
    """The first five names."""
    every = list(names)
    return ", ".join(every[:5]) + (", ..." if len(every) > 5 else "")


@checked_call
def require_public(islands: Islands, who: str) -> Dataset:
    """Return the public rows, or refuse a population without any.

    Raises:
        DataError: there are none.
    """
    if islands.public is None or not len(islands.public):
        raise DataError(
            f"{who} needs rows that every party may see, and there is no public pool",
            where=f"islands of {islands.name!r}",
            remedy="give some: islands.with_public(rows)",
        )
    return islands.public
