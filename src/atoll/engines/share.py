"""Splitting a cohort among workers by the work that its clients declare."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.core.execution.executor import Executor
    from atoll.core.requests.request import Request

__all__ = ["cut", "dealt", "shares"]

_WORTH = 0.98
"""Clients are dealt out if the busiest part then has at most this share of the work that it has in order."""


def shares(executor: Executor, request: Request, positions: NDArray[np.int64], parts: int) -> list[NDArray[np.int64]]:
    """Split a cohort into contiguous parts of nearly equal work, so that merging them in order keeps the cohort's order.

    Work is what the task declares (`Task.work`): mini-batches, or examples if it declares none. Nothing is measured, so the split is the same on
    every machine. If all clients have equal size, their work is not computed.
    """
    return cut(positions, _work(executor, request, positions, parts), parts)


def dealt(executor: Executor, request: Request, positions: NDArray[np.int64], parts: int) -> list[NDArray[np.int64]]:
    """Split a cohort as `shares` does, or deal it out if that is better balanced: the longest client first, each to the part with the least work.

    Each part is in cohort order. A few clients of unequal size differ by several per cent.
    """
    work = _work(executor, request, positions, parts)
    in_order = cut(positions, work, parts)
    hands: list[list[int]] = [[] for _ in range(parts)]
    loads = np.zeros(parts)
    for at in np.argsort(-work, kind="stable").tolist():
        least = int(np.argmin(loads))
        hands[least].append(at)
        loads[least] += work[at]
    ends = np.cumsum([0, *map(len, in_order)])
    busiest = max(float(work[a:b].sum()) for a, b in pairwise(ends))
    if loads.max() > _WORTH * busiest:
        return in_order
    return [positions[np.sort(np.array(hand, dtype=np.int64))] for hand in hands]


def _work(executor: Executor, request: Request, positions: NDArray[np.int64], parts: int) -> NDArray[np.float64]:
    if parts < 2 or len(positions) < 2:
        return np.ones(len(positions))
    sizes: Any = getattr(executor.population, "sizes", None)
    if sizes is not None and positions.max() < len(sizes) and (sizes[positions] == sizes[positions[0]]).all():
        return np.ones(len(positions))
    work = request.workload(executor.population, positions, executor.data)
    made: NDArray[np.float64] = np.where(work.batches > 0, work.batches, work.examples)
    return made


def cut(positions: NDArray[np.int64], work: NDArray[np.float64], parts: int) -> list[NDArray[np.int64]]:
    """Split where the preceding work is nearest to an equal share; by number of clients if no work is known.

    Args:
        positions: positions of the clients.
        work: work of each client in any unit, ``(clients,)``.
        parts: number of parts, some of which may be empty.
    """
    if not work.any() or (work == work[0]).all():
        return [np.asarray(part, dtype=np.int64) for part in np.array_split(positions, parts)]
    before = np.concatenate([[0.0], np.cumsum(work)])
    wanted = before[-1] * np.arange(1, parts) / parts
    above = np.searchsorted(before, wanted)
    nearer = wanted - before[above - 1] <= before[above] - wanted
    return [np.asarray(part, dtype=np.int64) for part in np.split(positions, above - nearer)]
