"""Who does how much: cutting a cohort among workers by the work that its clients declare."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.core.execution.executor import Executor
    from atoll.core.requests.request import Request

__all__ = ["cut", "shares"]


def shares(executor: Executor, request: Request, positions: NDArray[np.int64], parts: int) -> list[NDArray[np.int64]]:
    """Cut a cohort into contiguous parts of nearly equal work, so that merging them in order keeps the cohort's order.

    Work is what the task declares (`Task.work`): mini-batches, or examples where it names none. Nothing is measured, so the cut is the same on
    every machine. Clients of equal size are not asked.
    """
    if parts < 2 or len(positions) < 2:
        return cut(positions, np.ones(len(positions)), parts)
    sizes: Any = getattr(executor.population, "sizes", None)
    if sizes is not None and positions.max() < len(sizes) and (sizes[positions] == sizes[positions[0]]).all():
        return cut(positions, np.ones(len(positions)), parts)
    work = request.workload(executor.population, positions, executor.data)
    return cut(positions, np.where(work.batches > 0, work.batches, work.examples), parts)


def cut(positions: NDArray[np.int64], work: NDArray[np.float64], parts: int) -> list[NDArray[np.int64]]:
    """Cut where the work before is nearest to an equal share; by number where no work is known.

    Args:
        positions: of the clients.
        work: of each, any unit, ``(clients,)``.
        parts: how many, some of which may be empty.
    """
    if not work.any() or (work == work[0]).all():
        return [np.asarray(part, dtype=np.int64) for part in np.array_split(positions, parts)]
    before = np.concatenate([[0.0], np.cumsum(work)])
    wanted = before[-1] * np.arange(1, parts) / parts
    above = np.searchsorted(before, wanted)
    nearer = wanted - before[above - 1] <= before[above] - wanted
    return [np.asarray(part, dtype=np.int64) for part in np.split(positions, above - nearer)]
