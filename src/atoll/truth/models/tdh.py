"""`TDH`: claims of many values, of which some contain others, as a country contains a town."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from atoll.core.errors import DataError
from atoll.core.redaction import private
from atoll.data.readers.csv import table_of_csv

from ..reports import CodedReports, TaskLayout, Values
from .model import Arrays, Floats, Term, TruthModel

__all__ = ["TDH", "read_hierarchy"]

_PRIOR = np.array([3.0, 3.0, 2.0])  # of exact, general and wrong claims
_TRUTH_PRIOR = 2.0  # of each candidate


class _Pairs(NamedTuple):
    """How each candidate of a task, if it is claimed, stands to each that may be true: ``(pairs,)`` arrays, the claimed one first.

    Attributes:
        starts: the first pair of each cell that is claimed; the pairs of a cell follow in the order of its task's candidates.
        kind: 0 exact, 1 general (the claim contains the truth), 2 wrong.
        many: how many candidates stand so to the truth.
        general: whether the truth has any candidate that contains it.
        wrong: whether it has a candidate that is wrong.
    """

    starts: NDArray[np.int64]
    kind: NDArray[np.int64]
    many: Floats
    general: NDArray[np.bool_]
    wrong: NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class TDH(TruthModel):
    """A source claims the truth, something more general that contains it, or something wrong (Jung et al. 2019).

    Source ``s`` does so with probabilities ``phi_s = (exact, general, wrong)``. If ``v`` is true, the claim ``v`` has probability ``phi_s[0]``; each of the candidates that contain ``v`` has an equal part of ``phi_s[1]``, and each other candidate of ``phi_s[2]``.
    Where no candidate contains ``v``, exact and general are one. Expectation and maximisation::

        f_s[v]  is proportional to  P(claim of s | v) mu[v]         what source s adds to each candidate of its object
        mu[v]   = (sum over s of f_s[v] + 1) / (sources + candidates)
        phi_s   = (expected exact, general, wrong claims + (2, 2, 1)) / (claims + 5)

    Without a hierarchy no candidate contains another one. The truth is the candidate of the largest ``mu``.

    Source: Jung, Kim and Shim, "Crowdsourced Truth Discovery in the Presence of Hierarchies for Knowledge Fusion", EDBT 2019, section 3, without its workers; priors as there. We divide the parts anew where a kind of claim is impossible.

    Args:
        contains: value -> the values that contain it, see `read_hierarchy`; for example ``{"Oslo": ("Norway",)}``.
    """

    values: ClassVar[tuple[Values, ...]] = ("claims", "classes")
    opening: ClassVar[tuple[str, ...]] = ("claims",)

    iterations: int = 50
    contains: Mapping[str, tuple[str, ...]] = field(default_factory=dict, repr=False, hash=False)

    def terms(self, step: str, layout: TaskLayout) -> dict[str, Term]:
        """The claims of each candidate, in parts."""
        return {"claims": Term((layout.cells,), 1.0, signed=False)}

    def start_workers(self, layout: TaskLayout, workers: int) -> Arrays:
        """The mean of the prior."""
        return {"kinds": np.tile(_PRIOR / _PRIOR.sum(), (workers, 1))}

    def contribute(self, step: str, state: Arrays, reports: CodedReports, broadcast: Arrays) -> Arrays:
        """The claims, or the candidates that may stand behind each."""
        layout = reports.layout
        if step == "claims":
            return {"claims": np.bincount(reports.cell, minlength=layout.cells).astype(np.float64)}
        _, cell, part, _ = self._parts(state, reports, broadcast)
        return {"claims": np.bincount(cell, part, layout.cells).astype(np.float64, copy=False)}

    def combine(self, step: str, layout: TaskLayout, sums: Arrays, broadcast: Arrays) -> Arrays:
        """The probability of each candidate; an object without claims keeps what was there."""
        claims = sums["claims"]
        whole = layout.sum_tasks(claims) + layout.widths * (_TRUTH_PRIOR - 1)
        silent = layout.sum_tasks(claims) < 0.5
        mean = (claims + _TRUTH_PRIOR - 1) / whole[layout.owners]
        return {"truth": np.where(silent[layout.owners], broadcast["truth"], mean)}

    def learn(self, step: str, state: Arrays, reports: CodedReports, broadcast: Arrays) -> Arrays:
        """How often a source is exact, general and wrong."""
        layout = reports.layout
        report, _, part, pair = self._parts(state, reports, broadcast)
        pairs, worker = _relate(layout, _Frozen(self.contains)), reports.worker[report]
        kind, general = pairs.kind[pair], pairs.general[pair]
        kinds = state["kinds"][worker]
        split = kinds[:, 1] / (kinds[:, 0] + kinds[:, 1])  # where exact and general are one
        counted = np.stack([
            part * np.where(kind == 0, np.where(general, 1.0, 1 - split), 0.0),
            part * np.where(kind == 1, 1.0, np.where((kind == 0) & ~general, split, 0.0)),
            part * (kind == 2),
        ])  # fmt: skip
        counts = np.stack([np.bincount(worker, one, len(reports.workers)) for one in counted], axis=1) + _PRIOR - 1
        found = counts / counts.sum(axis=1, keepdims=True)
        return {"kinds": np.where(reports.counts[:, None] > 0, found, state["kinds"])}

    def _parts(self, state: Arrays, reports: CodedReports, broadcast: Arrays) -> tuple[NDArray[np.int64], NDArray[np.int64], Floats, NDArray[np.int64]]:  # fmt: skip
        """For each report and each candidate of its task: the report, the candidate's cell, how probable it is given the report, and their pair."""
        layout = reports.layout
        pairs = _relate(layout, _Frozen(self.contains))
        widths = layout.widths[reports.task]
        report = np.repeat(np.arange(len(widths)), widths)
        within = np.arange(len(report)) - np.repeat(np.cumsum(widths) - widths, widths)
        cell = layout.starts[reports.task][report] + within
        pair = pairs.starts[reports.cell][report] + within
        exact, general, wrong = state["kinds"][reports.worker[report]].T
        apart = pairs.general[pair]
        exact, general = np.where(apart, exact, exact + general), np.where(apart, general, 0.0)
        possible = exact + general + np.where(pairs.wrong[pair], wrong, 0.0)
        likely = np.choose(pairs.kind[pair], (exact, general, wrong)) / possible / pairs.many[pair]
        part = likely * broadcast["truth"][cell]
        return report, cell, part / np.bincount(report, part)[report], pair

    def skills(self, layout: TaskLayout, state: Arrays) -> Floats:
        """How often each source claims the truth itself; without a hierarchy, also what could be more general."""
        kinds = state["kinds"]
        return kinds[:, 0] if self.contains else 1 - kinds[:, 2]


class _Frozen:
    """A hierarchy as a key: one object is one hierarchy."""

    def __init__(self, contains: Mapping[str, tuple[str, ...]]) -> None:
        self.contains = contains

    def __hash__(self) -> int:
        return id(self.contains)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Frozen) and self.contains is other.contains


@lru_cache(maxsize=4)
def _relate(layout: TaskLayout, hierarchy: _Frozen) -> _Pairs:
    """Compare the candidates of every task with each other."""
    above = hierarchy.contains
    kinds, many, general, wrong = [], [], [], []
    for task in range(len(layout.tasks)):
        names = layout.names_of(task)
        width = len(names)
        kind = np.full((width, width), 2)
        for true, name in enumerate(names):
            over = above.get(name, ())
            kind[[at for at, other in enumerate(names) if other in over], true] = 1
        np.fill_diagonal(kind, 0)
        counts = np.stack([(kind == k).sum(axis=0) for k in range(3)])
        kinds.append(kind.ravel())
        many.append(counts[kind, np.arange(width)].ravel())
        general.append(np.tile(counts[1] > 0, width))
        wrong.append(np.tile(counts[2] > 0, width))
    sizes = layout.widths[layout.owners]
    joined = [np.concatenate(one) for one in (kinds, many, general, wrong)]
    return _Pairs(np.cumsum(sizes) - sizes, joined[0], joined[1].astype(np.float64), joined[2], joined[3])


def read_hierarchy(path: str | Path) -> dict[str, tuple[str, ...]]:
    """Read which values contain which from a CSV file with the columns ``ID,name,parentID``; a root's parent is no ID of the file.

    Several lines may have one name, as towns do: a name is contained in what any of them is contained in.

    Returns:
        Name -> the names that contain it, without the root.

    Raises:
        DataError: a column is missing, an ID stands twice, or values contain each other in a circle.
    """
    where, table = Path(path).name, table_of_csv(path, text="all", holes=())
    absent = [name for name in ("ID", "name", "parentID") if name not in table]
    if absent:
        raise DataError(f"there is no column {absent[0]!r}", where=where, remedy="name the columns ID, name, parentID")
    ids, names, parents = (table[name].tolist() for name in ("ID", "name", "parentID"))
    known = dict(zip(ids, zip(names, parents, strict=True), strict=True))
    if len(known) < len(ids):
        raise DataError("an ID stands on two lines", where=where, remedy="give each value an ID of its own")
    found: dict[str, set[str]] = {}
    for one in ids:
        (name, parent), seen = known[one], {one}
        while parent in known:
            if parent in seen:
                raise DataError(f"{private(name)} contains itself", where=where, remedy="correct the parents: each value is contained in what is above it")  # fmt: skip
            seen.add(parent)
            above, grand = known[parent]
            if grand in known:  # the root contains everything, and says nothing
                found.setdefault(name, set()).add(above)
            parent = grand
    return {name: tuple(sorted(above - {name})) for name, above in found.items()}
