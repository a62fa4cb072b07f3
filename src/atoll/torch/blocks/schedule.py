"""Which rows each client takes at each step, as arrays: mini-batches of a whole block of clients, padded exactly.

The order of a client's batches is that of `atoll.learn.local.update.batch_rows`: keyed by (client key, epoch), with the
last partial batch kept and a full batch in stored order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core.algebra.rng import shuffles
from atoll.learn.local.own_loss import LABELLED
from atoll.learn.local.update import count_many, share_of, topped_up

from ..tracing.keyed import step_seeds

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch
    from numpy.typing import NDArray

    from atoll.learn.algorithm import Algorithm
    from atoll.learn.local.examples import StepSecrets
    from atoll.learn.local.update import Counted

    from .pool import Pool

__all__ = ["BatchSchedule", "LabelledRows", "Orders", "cut_blocks", "labelled_rows", "pad_width", "schedule"]

# Which rows of a pool have labels, for mini-batches of a block that must hold some of them.


def labelled_rows(columns: Mapping[str, torch.Tensor]) -> NDArray[np.bool_] | None:
    """Return which rows have a label, ``(rows,)``; ``None`` if no column says it. A row with several entries needs one."""
    column = columns.get(LABELLED)
    return None if column is None else (column != 0).reshape(len(column), -1).any(1).cpu().numpy()


@dataclass(frozen=True)
class LabelledRows:
    """The labelled rows of a pool, and how many of them a mini-batch needs.

    Attributes:
        rows: which rows have a label, ``(rows of the pool,)``.
        offsets: the pool's offsets.
        share: of a mini-batch; see `atoll.learn.local.update.topped_up`.
    """

    rows: NDArray[np.bool_]
    offsets: NDArray[np.int64]
    share: float

    @classmethod
    def of(cls, pool: Pool, algorithm: Algorithm) -> LabelledRows | None:
        """Return the labelled rows; ``None`` if the mini-batches stay as they are: none or all rows have labels, or the algorithm wants no share."""
        share = share_of(algorithm)
        rows = labelled_rows(pool.columns) if share else None
        return None if rows is None or rows.all() or not rows.any() else cls(rows, pool.offsets, share)

    def topped_up(self, orders: NDArray[Any], members: NDArray[np.int64], keys: NDArray[np.uint64]) -> NDArray[Any]:
        """Return the mini-batches of some clients, ``(clients, steps, size)``, with enough labelled rows."""
        if orders.shape[2] == self.offsets[members[0] + 1] - self.offsets[members[0]]:  # all rows at once
            return orders
        own = [self.rows[self.offsets[client] : self.offsets[client + 1]] for client in members.tolist()]
        made = [topped_up(o, r, self.share, k) for o, r, k in zip(orders, own, keys.tolist(), strict=True)]
        return np.stack(made)


@dataclass
class BatchSchedule:
    """The mini-batches of a block of clients.

    Attributes:
        rows: row numbers in the pool, ``(clients, steps, batch)``; padded entries repeat a row that exists.
        weights: 1.0 for a real row, 0.0 for padding, same shape; ``None`` when nothing is padded.
        active: whether a client takes the step, ``(clients, steps)``; ``None`` when all take all.
        steps: steps of each client, ``(clients,)``.
        sizes: examples of each client, ``(clients,)``.
        seeds: of each client's random draws at each step, ``(clients, steps, 2)``.
        secrets: where each client's noise comes from, ``None`` for an empty slot; of no client if the algorithm draws none.
    """

    rows: NDArray[np.int64]
    weights: NDArray[np.float32] | None
    active: NDArray[np.bool_] | None
    steps: NDArray[np.int64]
    sizes: NDArray[np.int64]
    seeds: NDArray[np.int64]
    secrets: Sequence[StepSecrets | None] = ()

    def one(self, i: int) -> BatchSchedule:
        """Return the schedule of one client of a block in which all clients take all steps."""
        row = slice(i, i + 1)
        weights = None if self.weights is None else self.weights[row]
        return BatchSchedule(self.rows[row], weights, None, self.steps[row], self.sizes[row], self.seeds[row])


def cut_blocks(sizes: NDArray[np.int64], block: int) -> Iterator[NDArray[np.int64]]:
    """Cut a cohort of equal clients into blocks of at most ``block``, in order."""
    for start in range(0, len(sizes), block):
        yield np.arange(start, min(start + block, len(sizes)))


def pad_width(width: int) -> int:
    """Return the next of 1, 2, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, ...: few distinct widths, so that few programs are made."""
    if width <= 2:
        return max(width, 1)
    power = 1 << ((width - 1).bit_length() - 1)
    return next(w for w in (power * q // 4 for q in (4, 5, 6, 7, 8)) if w >= width)


def schedule(
    members: NDArray[np.int64],
    offsets: NDArray[np.int64],
    keys: NDArray[np.uint64],
    algorithm: Counted,
    *,
    slots: int | None = None,
    exact: bool = False,
    labelled: LabelledRows | None = None,
) -> BatchSchedule:
    """Lay out the mini-batches of some clients.

    Args:
        members: which clients of the pool, in block order.
        offsets: the pool's offsets, ``(clients of the pool + 1,)``.
        keys: one key for each client of the pool.
        algorithm: its epochs, batch size and steps.
        slots: clients of the block including empty slots; ``None`` for as many as there are members.
        exact: keep the width of a full batch as it is instead of padding it to one of few widths.
        labelled: of which rows each mini-batch must hold some.
    """
    sizes = (offsets[members + 1] - offsets[members]).astype(np.int64)
    slots = len(members) if slots is None else slots
    steps = count_many(algorithm, sizes, keys[members])
    same = slots == len(members) and bool((sizes == sizes[0]).all() and (steps == steps[0]).all())
    total = int(steps.max())
    largest = int(sizes.max())
    width = int(algorithm.batch_of(largest))
    if algorithm.batch_size is None or largest < algorithm.batch_size:
        width = width if exact or same else pad_width(width)
    width = max(width, 1)
    if same and total and sizes[0] % width == 0:
        rows = _orders(int(sizes[0]), width, total, keys[members], algorithm.cyclic)
        rows = rows if labelled is None else labelled.topped_up(rows, members, keys[members])
        rows = rows + offsets[members][:, None, None]
        return BatchSchedule(rows, None, None, steps, sizes, step_seeds(keys[members], np.arange(total)))
    plan = Orders(members, offsets, keys, algorithm, labelled).rectangle(slots, (0, total), width)
    if plan.weights is not None and plan.weights.all():
        plan.weights = None
    if plan.active is not None and plan.active.all():
        plan.active = None
    return plan


class Orders:
    """The mini-batches of some clients, each in its own length; any range of steps can be laid out as a rectangle.

    Args:
        members: which clients of the pool, in block order.
        offsets: the pool's offsets.
        keys: one key for each client of the pool.
        algorithm: its epochs, batch size and steps.
        labelled: of which rows each mini-batch must hold some.
    """

    def __init__(
        self,
        members: NDArray[np.int64],
        offsets: NDArray[np.int64],
        keys: NDArray[np.uint64],
        algorithm: Counted,
        labelled: LabelledRows | None = None,
    ) -> None:
        self.sizes = (offsets[members + 1] - offsets[members]).astype(np.int64)
        self.steps = count_many(algorithm, self.sizes, keys[members])
        self._keys, self._begin = keys[members], offsets[members]
        self._groups: list[tuple[NDArray[np.int64], NDArray[Any]]] = []
        for n, steps in _kinds(self.sizes, self.steps):
            at = np.flatnonzero((self.sizes == n) & (self.steps == steps))
            size = int(algorithm.batch_of(n))
            if n and steps:
                made = _orders(n, size, steps, self._keys[at], algorithm.cyclic)
                made = made if labelled is None else labelled.topped_up(made, members[at], self._keys[at])
                self._groups.append((at, made))

    def rectangle(self, slots: int, stretch: tuple[int, int], width: int) -> BatchSchedule:
        """Lay out the steps ``stretch[0] .. stretch[1] - 1`` of the first ``slots`` clients.

        Slots without a client, steps after a client's last, and places after a partial batch are masked.
        """
        begin, end = stretch
        shape = (slots, end - begin, width)
        rows = np.zeros(shape, dtype=np.int64)
        weights = np.zeros(shape, dtype=np.float32)
        for at, orders in self._groups:
            at, made = at[at < slots], orders[: int((at < slots).sum()), begin:end]
            if not made.size:
                continue
            real = made >= 0
            first = self._begin[at][:, None, None]
            # A padded entry repeats the client's first row, so that the model's results there are finite.
            rows[at, : made.shape[1]] = first
            rows[at, : made.shape[1], : made.shape[2]] = np.where(real, made, 0) + first
            weights[at, : made.shape[1], : made.shape[2]] = real
        sizes, steps, seeds = (np.zeros((slots, *more), np.int64) for more in ((), (), (end - begin, 2)))
        count = min(slots, len(self.sizes))
        sizes[:count], steps[:count] = self.sizes[:count], self.steps[:count]
        seeds[:count] = step_seeds(self._keys[:count], np.arange(begin, end))
        active = np.arange(begin, end)[None, :] < steps[:, None]
        return BatchSchedule(rows, weights, active, steps, sizes, seeds)


def _kinds(sizes: NDArray[np.int64], steps: NDArray[np.int64]) -> list[tuple[int, int]]:
    """Return the distinct pairs of a size and a number of steps, sorted."""
    if len(sizes) and (sizes == sizes[0]).all() and (steps == steps[0]).all():
        return [(int(sizes[0]), int(steps[0]))]
    return sorted(set(zip(sizes.tolist(), steps.tolist(), strict=True)))


def _orders(n: int, size: int, steps: int, keys: NDArray[np.uint64], cyclic: bool) -> NDArray[Any]:
    """Return row numbers ``(clients, steps, size)`` of clients with ``n`` examples; -1 fills a partial last batch."""
    per_epoch = -(-n // size)
    passes = -(-steps // per_epoch)
    if size == n:
        return np.broadcast_to(np.arange(n), (len(keys), steps, n))
    orders = np.broadcast_to(np.arange(n), (len(keys), passes, n)) if cyclic else shuffles(keys, passes, n)
    short = per_epoch * size - n
    if short:
        orders = np.concatenate([orders, np.full((len(keys), passes, short), -1, dtype=orders.dtype)], axis=2)
    return orders.reshape(len(keys), passes * per_epoch, size)[:, :steps]
