"""Splitting a cohort among workers by the work that its clients declare."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.core.execution.executor import Executor
    from atoll.core.requests.request import Request

__all__ = ["cut", "shares"]


def shares(executor: Executor, request: Request, positions: NDArray[np.int64], parts: int) -> list[NDArray[np.int64]]:
    """Split a cohort into contiguous parts of nearly equal work, so that merging them in order keeps the cohort's order.

    Work is what the task declares (`Task.work`): mini-batches, or examples if it declares none. Nothing is measured, so the split is the same on
    every machine. If all clients have equal size, their work is not computed.
    """
    if parts < 2 or len(positions) < 2:
        return cut(positions, np.ones(len(positions)), parts)
    sizes: Any = getattr(executor.population, "sizes", None)
    if sizes is not None and positions.max() < len(sizes) and (sizes[positions] == sizes[positions[0]]).all():
        return cut(positions, np.ones(len(positions)), parts)
    work = request.workload(executor.population, positions, executor.data)
    return cut(positions, np.where(work.batches > 0, work.batches, work.examples), parts)


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
