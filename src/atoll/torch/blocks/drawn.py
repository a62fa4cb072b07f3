"""Blocks of clients whose mini-batches and noise come from their secrets: mini-batches of different sizes, padded to one of few widths."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from atoll.core.algebra.rng import Rng
from atoll.learn.local.update import step_secrets

from ..examples.normal import normal_transform
from ..tracing.keyed import step_seeds
from .course import BlockCourse
from .schedule import BatchSchedule, cut_blocks, pad_width

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.learn.algorithm import Algorithm
    from atoll.learn.local.examples import StepSecrets

    from .pool import Pool

__all__ = ["drawn_courses"]


def drawn_courses(
    pool: Pool, keys: NDArray[np.uint64], algorithm: Algorithm, block: int, *, trial: bool, native: bool = False
) -> Iterator[tuple[NDArray[np.int64], BlockCourse]]:
    """Yield the blocks of a cohort: ``(clients, course)``, one client each if ``block`` is 0.

    Args:
        pool: the rows, with the clients' secrets.
        keys: one random key for each client.
        algorithm: the algorithm, with ``example_steps``.
        block: clients in a block.
        trial: nothing of this leaves: draw from the clients' keys, not from their secrets.
        native: steps run in native code, which is made for two widths.
    """
    plan = algorithm.example_steps
    assert plan is not None  # noqa: S101
    for members in cut_blocks(pool.sizes, block or 1):
        drawn: list[StepSecrets] = []
        for i in members.tolist():
            secret: Rng | None = None if trial or pool.secrets is None else pool.secrets[i]
            made = step_secrets(algorithm, int(pool.sizes[i]), int(keys[i]), secret, pool.epochs)
            assert made is not None  # noqa: S101 - the algorithm has example steps
            made.stream.transform = normal_transform() if native else None
            drawn.append(made)
        yield members, _course(members, pool, keys, drawn, block or 1, plan.batch, native)


def _width(rows: int, expected: int, quarters: Sequence[int]) -> int:
    """Return the width of a mini-batch of some rows where ``expected`` are expected: the first that fits of some quarters of them, or one of few above."""
    return next((w for w in (-(-expected * k // 4) for k in quarters) if rows <= w), pad_width(rows))


def _course(
    members: NDArray[np.int64],
    pool: Pool,
    keys: NDArray[np.uint64],
    drawn: list[StepSecrets],
    slots: int,
    expected: int,
    native: bool,
) -> BlockCourse:
    steps, sizes = np.zeros(slots, np.int64), np.zeros(slots, np.int64)
    steps[: len(members)] = [len(own.rows) for own in drawn]
    sizes[: len(members)] = pool.sizes[members]
    most = [max((len(own.rows[s]) for own in drawn if s < len(own.rows)), default=1) for s in range(int(steps.max()))]
    quarters = (5, 7) if native else (3, 5, 7)
    widths = [_width(width, expected, quarters) for width in most]
    if slots > 1 and not native:  # small models, whose steps cost calls: one width saves more programs than rows
        widths = [max([_width(expected + 4 * math.isqrt(expected), expected, ()), *widths])] * len(widths)
    pieces, begin = list[BatchSchedule](), 0
    while begin < len(widths):
        end = next((s for s in range(begin, len(widths)) if widths[s] != widths[begin]), len(widths))
        pieces.append(_rectangle(members, pool, keys, drawn, slots, (begin, end), widths[begin], steps, sizes))
        begin = end
    made = tuple(_width(0, expected, (k,)) for k in quarters) if native else None
    return BlockCourse(steps, sizes, pieces, made)


def _rectangle(
    members: NDArray[np.int64],
    pool: Pool,
    keys: NDArray[np.uint64],
    drawn: list[StepSecrets],
    slots: int,
    stretch: tuple[int, int],
    width: int,
    steps: NDArray[np.int64],
    sizes: NDArray[np.int64],
) -> BatchSchedule:
    """Lay out the steps ``stretch[0] .. stretch[1] - 1``; what is padded repeats the client's first row, with weight 0."""
    begin, end = stretch
    shape = (slots, end - begin, width)
    rows, weights = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.float32)
    seeds = np.zeros((slots, end - begin, 2), np.int64)
    seeds[: len(members)] = step_seeds(keys[members], np.arange(begin, end))
    for slot, (client, own) in enumerate(zip(members.tolist(), drawn, strict=True)):
        first = int(pool.offsets[client]) if pool.sizes[client] else 0
        rows[slot] = first
        for s, taken in enumerate(own.rows[begin:end]):
            rows[slot, s, : len(taken)] = taken + first
            weights[slot, s, : len(taken)] = 1.0
    active = np.arange(begin, end)[None, :] < steps[:, None]
    secrets: list[StepSecrets | None] = [*drawn, *[None] * (slots - len(drawn))]
    return BatchSchedule(rows, weights, None if active.all() else active, steps, sizes, seeds, secrets)
