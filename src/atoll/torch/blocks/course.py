"""How blocks of unequal clients run in few shapes: clients leave their block when they are done, batches get one of few widths.

Sizes with a heavy tail would otherwise cost twice: a program for every number of steps and every width, and a block
that runs as long as its largest client. Here clients are sorted by their steps. A block moves to the next of a few
smaller blocks (its *rungs*, each an eighth of the one before) as soon as its clients fit there. A partial batch is a
mask. A width without a program runs without one.

So a block has at most three rungs, fewer than seven slots in eight are ever idle, and there is one program for each
rung and width.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from atoll.learn.local.update import count_many

from .schedule import BatchSchedule, Orders, pad_width

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.learn.local.partial import Counted

    from .choose import Choices
    from .labelled import LabelledRows

__all__ = [
    "BlockCourse",
    "blocks_of",
    "courses",
    "drills",
    "fit",
    "is_uneven",
    "natural_widths",
    "program_widths",
    "rungs",
]

_RUNG = 8  # the next rung has an eighth of the block's size
_ROWS = 4096  # rows of one step of a block without a program


@dataclass
class BlockCourse:
    """The path of a block of clients through their local steps.

    Attributes:
        steps: steps of each slot's client, ``(slots,)``.
        sizes: examples of each slot's client, ``(slots,)``.
        pieces: rectangles of mini-batches one after the other, with falling numbers of slots.
        widths: widths that programs are kept for; ``None`` for all.
        bare: whether windows of full batches get a separate program without weights.
    """

    steps: NDArray[np.int64]
    sizes: NDArray[np.int64]
    pieces: Iterable[BatchSchedule]
    widths: tuple[int, ...] | None = None
    bare: bool = False

    @classmethod
    def even(cls, plan: BatchSchedule, widths: tuple[int, ...] | None) -> BlockCourse:
        """Return one rectangle."""
        return cls(plan.steps, plan.sizes, (plan,), widths)


def rungs(block: int) -> list[int]:
    """Return the block sizes that a block passes through: 50, 7, 1."""
    made = [block]
    while made[-1] > 2:
        made.append(-(-made[-1] // _RUNG))
    return made


def natural_widths(algorithm: Counted, sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the examples in a full mini-batch of each client, ``(clients,)``."""
    return np.asarray(algorithm.batch_of(sizes))


def program_widths(
    algorithm: Counted, sizes: NDArray[np.int64], steps: NDArray[np.int64], mode: str, exact: bool
) -> tuple[int, ...]:
    """Return the one or two widths to make programs for, given the clients of a first cohort.

    Widths are the batch size and powers of two below it. The largest suits a block of small clients; if a single
    client's step is real work, the two with most steps are used.
    """
    natural = natural_widths(algorithm, sizes)
    kinds = np.unique(natural[natural > 0])
    if len(kinds) == 1:
        return (int(kinds[0]),)
    if exact:
        return () if algorithm.batch_size is None else (algorithm.batch_size,)
    most = algorithm.batch_size or 256
    classes = np.array([most if w >= most else min(most, 1 << (int(w) - 1).bit_length()) for w in natural if w])
    if mode == "vector":
        top = int(classes.max())
        return (top,) if algorithm.batch_size is not None else (max(1, top // 4), top)
    work = {int(c): int(steps[natural > 0][classes == c].sum()) for c in np.unique(classes)}
    return tuple(sorted(sorted(work, key=lambda c: -work[c])[:2]))


def fit(natural: int, chosen: Choices) -> int:
    """Return the width of the program for a client's batches; 0 if none fits without too much padding."""
    if chosen.widths is None:
        return pad_width(natural)
    return next((w for w in sorted(chosen.widths) if natural <= w <= chosen.stretch * max(natural, 1)), 0)


def blocks_of(
    sizes: NDArray[np.int64], steps: NDArray[np.int64], algorithm: Counted, chosen: Choices
) -> Iterator[tuple[NDArray[np.int64], int]]:
    """Cut a cohort into blocks of at most ``chosen.block`` clients with like numbers of steps; yield ``(clients, width)``.

    All clients of a block share a width: that of a program or, if none fits, that of the widest, which is less than
    twice the narrowest.
    """
    natural = natural_widths(algorithm, sizes)
    cut: list[int] = []
    program, width, most = 0, 0, 0
    for client in np.lexsort((sizes, steps))[::-1].tolist():
        own = max(1, int(natural[client]))
        wanted = fit(own, chosen)
        alike = wanted == program and (wanted or width < 2 * own)
        if not alike or len(cut) == most:
            if cut:
                yield np.array(cut), width
            cut, program, width = [], wanted, wanted or own
            most = chosen.block if wanted else min(chosen.block, max(1, _ROWS // own))
        cut.append(client)
    if cut:
        yield np.array(cut), width


def courses(
    offsets: NDArray[np.int64],
    keys: NDArray[np.uint64],
    algorithm: Counted,
    chosen: Choices,
    exact: bool = False,
    labelled: LabelledRows | None = None,
) -> Iterator[tuple[NDArray[np.int64], BlockCourse]]:
    """Yield the blocks of a cohort of unequal clients: ``(clients, course)``; in mode "single", one client each."""
    sizes = np.diff(offsets).astype(np.int64)
    if chosen.mode == "single":
        for client in range(len(sizes)):
            yield _alone(np.array([client]), offsets, keys, algorithm, chosen, exact, labelled)
        return
    steps = count_many(algorithm, sizes, keys)
    for members, width in blocks_of(sizes, steps, algorithm, chosen):
        known = chosen.widths is None or width in chosen.widths
        ladder = rungs(chosen.block if known else len(members))
        orders = Orders(members, offsets, keys, algorithm, labelled)
        full, empty = (np.zeros(chosen.block, np.int64) for _ in range(2))
        full[: len(members)], empty[: len(members)] = orders.steps, orders.sizes
        pieces = (orders.rectangle(r, part, width) for r, part in _descend(orders.steps, ladder, chosen.unroll))
        yield members, BlockCourse(full, empty, pieces, chosen.widths)


def _alone(
    member: NDArray[np.int64],
    offsets: NDArray[np.int64],
    keys: NDArray[np.uint64],
    algorithm: Counted,
    chosen: Choices,
    exact: bool,
    labelled: LabelledRows | None,
) -> tuple[NDArray[np.int64], BlockCourse]:
    orders = Orders(member, offsets, keys, algorithm, labelled)
    natural = max(1, int(natural_widths(algorithm, orders.sizes)[0]))
    width = natural if exact else fit(natural, chosen) or natural
    plan = orders.rectangle(1, (0, int(orders.steps[0])), width)
    plan.active = None
    return member, BlockCourse(plan.steps, plan.sizes, (plan,), chosen.widths, bare=width == algorithm.batch_size)


def _descend(steps: NDArray[np.int64], ladder: list[int], unroll: int) -> Iterator[tuple[int, tuple[int, int]]]:
    """Yield ``(slots, (first step, end))``: the smallest rung that holds all clients with steps left.

    Args:
        steps: of the block's clients, falling.
        ladder: rungs, falling.
        unroll: steps in one call; a rung ends only between calls.
    """
    windows = -(-int(steps[0]) // unroll)
    if not windows:
        return
    busy = len(steps) - np.searchsorted(steps[::-1], np.arange(windows) * unroll, side="right")
    rising = np.array(ladder[::-1])
    slots = rising[np.searchsorted(rising, busy)]
    begins = np.flatnonzero(np.diff(slots, prepend=-1))
    for begin, end in zip(begins, [*begins[1:], windows], strict=True):
        yield int(slots[begin]), (int(begin) * unroll, int(end) * unroll)


def is_uneven(algorithm: Counted, sizes: NDArray[np.int64], keys: NDArray[np.uint64]) -> bool:
    """Tell whether clients differ in their numbers of examples or steps."""
    steps = count_many(algorithm, sizes, keys)
    return bool((sizes != sizes[:1]).any() or (steps != steps[:1]).any())


def drills(chosen: Choices, algorithm: Counted, slots: int) -> Iterator[BlockCourse]:
    """Courses on the pool's first row that pass once through every program of cohorts of unequal clients."""
    for width in chosen.widths or ():
        pieces: list[BatchSchedule] = []
        for r in rungs(slots) if chosen.mode == "vector" else [1]:
            steps = chosen.unroll * 2 + (chosen.unroll > 1 and chosen.mode == "single")
            rows, seeds = np.zeros((r, steps, width), np.int64), np.zeros((r, steps, 2), np.int64)
            weights = np.ones((r, steps, width), np.float32)
            weights[:, chosen.unroll :, -1] = 0.0
            active = np.ones((r, steps), bool)
            active[-1, -1] = False
            counts = np.ones(r, np.int64)
            pieces.append(
                BatchSchedule(rows, weights, active if chosen.mode == "vector" else None, counts, counts, seeds)
            )
        ones = np.ones(slots, np.int64)
        yield BlockCourse(ones, ones, pieces, chosen.widths, chosen.mode == "single" and width == algorithm.batch_size)
