"""How blocks of unequal clients run in few shapes: clients leave their block when they are done, batches get one of few widths.

Sizes with a heavy tail would otherwise cost twice: a program for every number of steps and every width, and a block
that runs as long as its largest client. Here clients are sorted by their steps. A block moves to the next of a few
smaller blocks (its *rungs*, each an eighth of the one before) as soon as its clients fit there. A partial batch is a
mask. A width without a program runs without one.

So a block has at most three rungs, fewer than seven slots in eight are ever idle, and there is one program for each
rung and width.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core.algebra.rng import Rng
from atoll.learn.local.update import count_many, step_secrets
from atoll.native import library_of

from ..native import enabled
from ..tracing.keyed import step_seeds
from .schedule import BatchSchedule, Orders, cut_blocks, pad_width

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.learn.algorithm import Algorithm
    from atoll.learn.local.examples import StepSecrets
    from atoll.learn.local.update import Counted

    from .choices import Choices
    from .pool import Pool
    from .schedule import LabelledRows

__all__ = [
    "BlockCourse",
    "blocks_of",
    "courses",
    "drawn_courses",
    "drills",
    "fit",
    "is_uneven",
    "natural_widths",
    "normal_transform",
    "program_widths",
    "rungs",
]

# The transform of Box and Muller in vector code: from keystream to normal numbers at a third of the time of NumPy's functions.


_SOURCE = r"""
#include <cmath>
#include <cstdint>

static inline float from_bits(int32_t i) { float f; __builtin_memcpy(&f, &i, 4); return f; }
static inline int32_t to_bits(float f) { int32_t i; __builtin_memcpy(&i, &f, 4); return i; }

// sin(2 pi a) for |a| <= 1/4, by its series to the 13th power: within 1e-7.
static inline float sine(float a) {
  const float x = a * 6.283185307179586f, y = x * x;
  return x * (1.f + y * (-1.6666667e-1f + y * (8.3333333e-3f + y * (-1.98412698e-4f + y * (2.75573192e-6f + y * (-2.50521084e-8f + y * 1.60590438e-10f))))));
}

// The logarithm of a positive normal number: that of its fraction in [sqrt(1/2), sqrt(2)) by the series of 2 atanh(z), and its exponent.
static inline float logarithm(float x) {
  const int32_t bits = to_bits(x), up = (bits - 0x3f3504f3) >> 23;
  const float f = from_bits(bits - (up << 23)), z = (f - 1.f) / (f + 1.f), w = z * z;
  const float series = 2.f * z * (1.f + w * (0.33333333f + w * (0.2f + w * (0.14285714f + w * 0.11111111f))));
  return float(up) * 0.6931471805599453f + series;
}

extern "C" void normals(const uint32_t* __restrict bits, const int32_t* __restrict angles, int64_t pairs, float factor, float* __restrict first,
                        float* __restrict second, int64_t more) {
  for (int64_t i = 0; i < more; ++i) {
    const float u = float(bits[i] | 1u) * 2.3283064365386963e-10f, a = float(angles[i]) * 2.3283064365386963e-10f;
    const float r = sqrtf(factor * logarithm(u)), b = fabsf(a);
    first[i] = r * sine(0.25f - b);
    second[i] = r * sine(b > 0.25f ? copysignf(0.5f - b, a) : a);
  }
  for (int64_t i = more; i < pairs; ++i) {
    const float u = float(bits[i] | 1u) * 2.3283064365386963e-10f, a = float(angles[i]) * 2.3283064365386963e-10f;
    first[i] = sqrtf(factor * logarithm(u)) * sine(0.25f - fabsf(a));
  }
}
"""


@cache
def normal_transform() -> Callable[[NDArray[Any], NDArray[Any], float], None] | None:
    """Return ``(words, out, deviation)``, which writes normal numbers made of 32-bit words; ``None`` without a compiler."""
    library = library_of(_SOURCE) if enabled() else None
    if library is None:
        return None
    run, pointer, number = library.normals, ctypes.c_void_p, ctypes.c_int64
    run.restype, run.argtypes = None, [pointer, pointer, number, ctypes.c_float, pointer, pointer, number]

    def transform(words: NDArray[Any], out: NDArray[Any], deviation: float) -> None:
        pairs = len(words) // 2
        bits, first = words.ctypes.data, out.ctypes.data
        factor = float(np.float32(-2.0 * deviation**2))
        run(bits, bits + 4 * pairs, pairs, factor, first, first + 4 * pairs, len(out) - pairs)

    return transform


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
    if chosen.shapes.widths is None:
        return pad_width(natural)
    return next((w for w in sorted(chosen.shapes.widths) if natural <= w <= chosen.shapes.stretch * max(natural, 1)), 0)


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
        known = chosen.shapes.widths is None or width in chosen.shapes.widths
        ladder = rungs(chosen.block if known else len(members))
        orders = Orders(members, offsets, keys, algorithm, labelled)
        full, empty = (np.zeros(chosen.block, np.int64) for _ in range(2))
        full[: len(members)], empty[: len(members)] = orders.steps, orders.sizes
        pieces = (orders.rectangle(r, part, width) for r, part in _descend(orders.steps, ladder, chosen.shapes.unroll))
        yield members, BlockCourse(full, empty, pieces, chosen.shapes.widths)


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
    return member, BlockCourse(
        plan.steps, plan.sizes, (plan,), chosen.shapes.widths, bare=width == algorithm.batch_size
    )


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
    for width in chosen.shapes.widths or ():
        pieces: list[BatchSchedule] = []
        for r in rungs(slots) if chosen.mode == "vector" else [1]:
            steps = chosen.shapes.unroll * 2 + (chosen.shapes.unroll > 1 and chosen.mode == "single")
            rows, seeds = np.zeros((r, steps, width), np.int64), np.zeros((r, steps, 2), np.int64)
            weights = np.ones((r, steps, width), np.float32)
            weights[:, chosen.shapes.unroll :, -1] = 0.0
            active = np.ones((r, steps), bool)
            active[-1, -1] = False
            counts = np.ones(r, np.int64)
            pieces.append(
                BatchSchedule(rows, weights, active if chosen.mode == "vector" else None, counts, counts, seeds)
            )
        ones = np.ones(slots, np.int64)
        yield BlockCourse(
            ones, ones, pieces, chosen.shapes.widths, chosen.mode == "single" and width == algorithm.batch_size
        )


# Blocks of clients whose mini-batches and noise come from their secrets: mini-batches of different sizes, padded to one of few widths.


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
