"""Cuts of many rows: parties show what XGBoost's queue would hold each time it is full, and the server finds XGBoost's cuts with it.

XGBoost takes the values of a feature in the order of the rows, here those of one party after the other's. Equal values that follow each other are one run. Beyond `SketchSizes.queue`
runs its cuts depend on which runs fill its queue together, not on their order in it (`atoll.trees.sketch`). So each party says how many runs it has. Of the features that need it,
it also says the first and the last value, as its first run may continue the last one of the party before. The server says how many runs are before it. The party sends the values of each queue,
sorted, and how many of its rows have each. The server learns all values of these features by party, in blocks of thousands of rows, and the first and the last row. Features that are missing are left out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core.algebra.aggregate import Parts
from atoll.core.errors import MessageError, QuorumError
from atoll.core.requests.task import task
from atoll.data.missing import known_rows

from .parties import features_of
from .sketch import SketchSizes, cuts_of_blocks, ordered

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from atoll.core.federation.federation import Federation
    from atoll.core.requests.party import Parties
    from atoll.core.requests.task import Task

    from .job import Trees

__all__ = [
    "count_runs",
    "cuts_by_blocks",
    "cuts_of_column",
    "runs_before",
    "runs_of",
    "send_blocks",
    "send_ends",
    "sorted_blocks",
]

_MOST = 1 << 22
"""Values that a party sends at a time, at 16 bytes each, unless one feature has more."""


def runs_of(column: NDArray[Any]) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """The values of a feature in the order of the rows, and how many rows one after the other have each; NaN are left out, zeros of both signs are one."""
    present = column.astype(np.float32)
    present = present[~np.isnan(present)] + np.float32(0.0)
    first = np.flatnonzero(np.append(True, present[1:] != present[:-1])[: len(present)])
    return present[first], np.diff(np.append(first, len(present)))


def sorted_blocks(
    values: NDArray[np.float32], rows: NDArray[np.int64], start: int, queue: int
) -> tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.int64]]:
    """Block, value and rows of runs, ascending by block and value; runs of a block that have the same value are added up.

    Args:
        values: of the runs.
        rows: of the runs.
        start: the runs before the first.
        queue: the runs of a block.
    """
    block = (start + np.arange(len(values))) // queue
    order = np.lexsort((values, block))
    block, values, rows = block[order], values[order], rows[order]
    new = np.append(True, (block[1:] != block[:-1]) | (values[1:] != values[:-1]))
    first = np.flatnonzero(new[: len(values)])
    return block[first], values[first], np.add.reduceat(rows, first) if len(first) else rows


def cuts_of_column(column: NDArray[Any], max_bin: int) -> NDArray[np.float32]:
    """Where XGBoost's bins of a feature begin, from all of its values in the order of the rows; NaN are left out."""
    values, rows = runs_of(column)
    queue = SketchSizes.of(int(rows.sum()), max_bin).queue if len(rows) else 1
    return cuts_of_blocks(*sorted_blocks(values, rows, 0, queue), max_bin)


def runs_before(counts: NDArray[np.int64], ends: NDArray[np.uint32]) -> NDArray[np.int64]:
    """The runs before the first of each party, ``(parties, features)``; one fewer where it continues the last run of those before.

    Args:
        counts: runs, ``(parties, features)``.
        ends: first and last value of each party, see `cuts.ordered`, ``(parties, 2, features)``.
    """
    before, total = np.zeros_like(counts), np.zeros(counts.shape[1], np.int64)
    last = np.zeros(counts.shape[1], np.uint32)
    for k, (runs, (begin, end)) in enumerate(zip(counts, ends, strict=True)):
        before[k] = total - ((total > 0) & (runs > 0) & (begin == last))
        total, last = np.where(runs > 0, before[k] + runs, total), np.where(runs > 0, end, last)
    return before


@task
def count_runs(island: Any, message: dict[str, Any]) -> dict[str, Parts]:
    """Rows, runs and different values of each feature, ``(3, features)``."""
    x = features_of(known_rows(island.data, "trees"))
    runs = [runs_of(x[:, f]) for f in np.asarray(message["features"])]
    made = [[rows.sum(), len(values), len(np.unique(values))] for values, rows in runs]
    return {"counts": Parts(np.array(made, np.int64).T)}


@task
def send_ends(island: Any, message: dict[str, Any]) -> dict[str, Parts]:
    """The first and the last value of each feature, see `cuts.ordered`, ``(2, features)``; 0 where all are missing."""
    x = features_of(known_rows(island.data, "trees"))
    runs = [runs_of(x[:, f])[0] for f in np.asarray(message["features"])]
    made = [ordered(values[[0, -1]]) if len(values) else np.zeros(2, np.uint32) for values in runs]
    return {"ends": Parts(np.array(made, np.uint32).T)}


@task
def send_blocks(island: Any, message: dict[str, Any]) -> dict[str, Parts]:
    """The values that a queue holds with others, of one feature after the other, see `sorted_blocks`; ``sizes`` says how many each feature has."""
    x = features_of(known_rows(island.data, "trees"))
    asked = zip(*(np.asarray(message[name]).tolist() for name in ("features", "starts", "queues")), strict=True)
    made = [sorted_blocks(*runs_of(x[:, f]), start, queue) for f, start, queue in asked]
    block, values, rows = (np.concatenate(column) for column in zip(*made, strict=True))
    sizes = np.array([len(mine) for mine, _, _ in made])
    return {"blocks": Parts({"block": block.astype(np.int32), "values": values, "rows": rows, "sizes": sizes})}


async def cuts_by_blocks(fed: Federation, job: Trees, features: list[int]) -> dict[int, NDArray[np.float32]]:
    """The cuts of those features whose cuts depend on the order of the rows: with more rows than XGBoost's queue holds, and more values than bins.

    A party that is lost meanwhile makes bins less even, no more.

    Raises:
        QuorumError: fewer than ``job.least`` parties replied.
        MessageError: a party's reply has another form.
    """
    cohort, counts = await _replies(fed, fed.parties, job, count_runs, features, "counts", 3)
    sizes = [SketchSizes.of(int(rows), job.max_bin) for rows in counts[:, 0].sum(axis=0)]
    total, _, different = counts.sum(axis=0)
    asked = [k for k, size in enumerate(sizes) if total[k] > size.queue and different[k] > size.steps[-1]]
    if not asked:
        return {}
    features, sizes, runs = [features[k] for k in asked], [sizes[k] for k in asked], counts[:, 1, asked]
    still, ends = await _replies(fed, cohort, job, send_ends, features, "ends", 2)
    runs = runs[np.isin(cohort.positions, still.positions)]
    before, cohort = runs_before(runs, ends), still
    cuts = {}
    for number, mine in enumerate(_groups(runs.max(axis=0))):
        parts: list[list[tuple[NDArray[Any], ...]]] = []
        for k in range(len(cohort)):
            message = {
                "features": np.array([features[f] for f in mine]),
                "starts": before[k, mine],
                "queues": np.array([sizes[f].queue for f in mine]),
            }
            try:
                sent = await fed.sum(cohort[k : k + 1], send_blocks, message, at=("blocks", number, k))
            except QuorumError:
                if len(parts) + len(cohort) - k - 1 < job.least:
                    raise
                continue
            parts.append(_by_feature(sent["blocks"][0].value, len(mine)))
        for f, each in zip(mine, zip(*parts, strict=True), strict=True):
            block, values, rows = (np.concatenate(column) for column in zip(*each, strict=True))
            cuts[features[f]] = cuts_of_blocks(block, values, rows, job.max_bin)
    return cuts


async def _replies(
    fed: Federation, cohort: Parties, job: Trees, asked: Task, features: list[int], name: str, lines: int
) -> tuple[Parties, NDArray[Any]]:
    """Who replied, and the replies, ``(parties, lines, features)``."""
    found = await fed.sum(cohort, asked, {"features": np.array(features)}, quorum=job.least, at=name)
    made = [np.asarray(part.value) for part in found[name]]
    _require(all(each.shape == (lines, len(features)) and bool((each >= 0).all()) for each in made), name)
    return found.senders, np.stack(made)


def _groups(values: NDArray[np.int64]) -> Iterator[list[int]]:
    """Features that are asked for at a time."""
    mine: list[int] = []
    for f in range(len(values)):
        if mine and values[[*mine, f]].sum() > _MOST:
            yield mine
            mine = []
        mine = [*mine, f]
    yield mine


def _by_feature(reply: Any, features: int) -> list[tuple[NDArray[Any], ...]]:
    """Block, value and rows of each feature."""
    block, values, rows, sizes = (np.asarray(reply[name]) for name in ("block", "values", "rows", "sizes"))
    _require(sizes.shape == (features,) and bool((sizes >= 0).all()), "sizes")
    _require(block.shape == values.shape == rows.shape == (int(sizes.sum()),), "values")
    _require(bool(np.isfinite(values).all() and (rows > 0).all() and (block >= 0).all()), "values")
    ends = np.cumsum(sizes)[:-1]
    return list(zip(*(np.split(column, ends) for column in (block, values, rows)), strict=True))


def _require(good: bool, what: str) -> None:
    if not good:
        raise MessageError(
            f"the {what} of a party's values have another form than it was asked for",
            where="Trees(exact_cuts=True)",
            remedy="let all parties run the same version of Atoll, or leave exact_cuts out",
        )
