"""Which rows each client takes at each step, as arrays: mini-batches of a whole block of clients, padded exactly.

The order of a client's batches is that of `atoll.learn.local.batch_rows`: keyed by (client key, epoch), the last partial batch
kept, a full batch taken as it lies.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core.rng import shuffles
from atoll.learn.local import count_many, count_steps

from .keyed import step_seeds

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.learn.algorithm import Algorithm

__all__ = ["Schedule", "cut_blocks", "pad_width", "schedule"]


@dataclass
class Schedule:
    """The mini-batches of a block of clients.

    Attributes:
        rows: row numbers in the pool, ``(clients, steps, batch)``; padded entries repeat a row that exists.
        weights: 1.0 for a real row, 0.0 for padding, same shape; ``None`` when nothing is padded.
        active: whether a client takes the step, ``(clients, steps)``; ``None`` when all take all.
        steps: steps of each client, ``(clients,)``.
        sizes: examples of each client, ``(clients,)``.
        seeds: for the draws of each client at each step, ``(clients, steps, 2)``.
    """

    rows: NDArray[np.int64]
    weights: NDArray[np.float32] | None
    active: NDArray[np.bool_] | None
    steps: NDArray[np.int64]
    sizes: NDArray[np.int64]
    seeds: NDArray[np.int64]

    def one(self, i: int) -> Schedule:
        """The schedule of one client of a block in which all take all steps."""
        row = slice(i, i + 1)
        weights = None if self.weights is None else self.weights[row]
        return Schedule(self.rows[row], weights, None, self.steps[row], self.sizes[row], self.seeds[row])


def cut_blocks(sizes: NDArray[np.int64], algorithm: Algorithm, block: int) -> Iterator[NDArray[np.int64]]:
    """Cut a cohort into blocks of at most ``block`` clients with like numbers of steps and examples.

    A cohort whose clients are all alike keeps its order; no client's result depends on the cut.
    """
    if len(sizes) == 0:
        return
    if (sizes == sizes[0]).all():
        order = np.arange(len(sizes))
    else:
        steps = np.array([count_steps(algorithm, int(n)) for n in sizes])
        order = np.lexsort((sizes, steps))
    for start in range(0, len(order), block):
        yield order[start : start + block]


def pad_width(width: int) -> int:
    """The next of 1, 2, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, ...: few distinct widths, so that few programs are made."""
    if width <= 2:
        return max(width, 1)
    power = 1 << ((width - 1).bit_length() - 1)
    return next(w for w in (power * q // 4 for q in (4, 5, 6, 7, 8)) if w >= width)


def schedule(
    members: NDArray[np.int64],
    offsets: NDArray[np.int64],
    keys: NDArray[np.uint64],
    algorithm: Algorithm,
    *,
    slots: int | None = None,
    exact: bool = False,
) -> Schedule:
    """Lay out the mini-batches of some clients.

    Args:
        members: which clients of the pool, in block order.
        offsets: the pool's offsets, ``(clients of the pool + 1,)``.
        keys: one key for each client of the pool.
        algorithm: its epochs, batch size and steps.
        slots: clients of the block including empty slots; ``None`` for as many as there are members.
        exact: keep the width of a full batch as it is instead of padding it to one of few widths.
    """
    sizes = (offsets[members + 1] - offsets[members]).astype(np.int64)
    slots = len(members) if slots is None else slots
    same = slots == len(members) and bool((sizes == sizes[0]).all())
    counts = np.zeros(slots, dtype=np.int64)
    counts[: len(sizes)] = count_many(algorithm, sizes, keys[members])
    same = same and bool((counts == counts[0]).all())
    total = int(counts.max())
    largest = int(sizes.max())
    width = largest if algorithm.batch_size is None else min(algorithm.batch_size, largest)
    if algorithm.batch_size is None or largest < algorithm.batch_size:
        width = width if exact or same else pad_width(width)
    width = max(width, 1)
    if same and total and sizes[0] % width == 0:
        rows = _orders(int(sizes[0]), width, total, keys[members]) + offsets[members][:, None, None]
        return Schedule(rows, None, None, counts, sizes, step_seeds(keys[members], np.arange(total)))
    return _padded(members, offsets, keys, sizes, counts, (slots, total, width))


def _padded(
    members: NDArray[np.int64],
    offsets: NDArray[np.int64],
    keys: NDArray[np.uint64],
    sizes: NDArray[np.int64],
    counts: NDArray[np.int64],
    shape: tuple[int, int, int],
) -> Schedule:
    rows = np.zeros(shape, dtype=np.int64)
    weights = np.zeros(shape, dtype=np.float32)
    for n, steps in sorted({(int(n), int(c)) for n, c in zip(sizes, counts, strict=False) if n}):
        at = np.flatnonzero((sizes == n) & (counts[: len(sizes)] == steps))
        size = min(shape[2], n)
        made = _orders(n, size, steps, keys[members[at]])
        begin = offsets[members[at]][:, None, None]
        # A padded entry repeats the client's first row, so that whatever the model computes there is finite.
        block = np.broadcast_to(begin, (len(at), steps, shape[2])).copy()
        real = made >= 0
        block[:, :, :size] += np.where(real, made, 0)
        rows[at, :steps] = block
        weights[at, :steps, :size] = real
    taken = np.arange(shape[1])[None, :] < counts[:, None]
    filled = np.zeros(shape[0], dtype=np.int64)
    filled[: len(sizes)] = sizes
    seeds = np.zeros((shape[0], shape[1], 2), dtype=np.int64)
    seeds[: len(members)] = step_seeds(keys[members], np.arange(shape[1]))
    masks = (None if weights.all() else weights, None if taken.all() else taken)
    return Schedule(rows, *masks, counts, filled, seeds)


def _orders(n: int, size: int, steps: int, keys: NDArray[np.uint64]) -> NDArray[Any]:
    """Row numbers ``(clients, steps, size)`` of clients with ``n`` examples; -1 where a last batch is partial."""
    per_epoch = -(-n // size)
    passes = -(-steps // per_epoch)
    if size == n:
        return np.broadcast_to(np.arange(n), (len(keys), steps, n))
    orders = shuffles(keys, passes, n)
    short = per_epoch * size - n
    if short:
        orders = np.concatenate([orders, np.full((len(keys), passes, short), -1, dtype=orders.dtype)], axis=2)
    return orders.reshape(len(keys), passes * per_epoch, size)[:, :steps]
