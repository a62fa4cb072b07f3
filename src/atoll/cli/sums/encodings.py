"""The encodings of a secure sum, by name."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from atoll.core.errors import CompositionError, ConfigError
from atoll.secure import FixedPoint
from atoll.secure.words import spare

from .settings import SumSettings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from atoll.core.requests.chain import Chain
    from atoll.core.requests.stage import Stage

__all__ = ["ENCODINGS", "Encoding", "range_of", "wide"]


@dataclass(frozen=True)
class Encoding:
    """How arrays become words.

    Attributes:
        bound: number of survivors -> largest error of an entry of their sum, if nothing is clamped or overflows.
        modulus_bits: bits of a word.
        bits_per_weight: bits that a party sends for each of its numbers, without keys and shares.
        codec: how numbers become words.
        uplink: stages.
        codewords: number of codewords of an index; 0 for numbers.
    """

    bound: Callable[[int], float]
    modulus_bits: int
    bits_per_weight: float
    codec: FixedPoint = field(default_factory=FixedPoint)
    uplink: Sequence[Stage] | Chain = ()
    codewords: int = 0


def range_of(settings: SumSettings, arrays: Sequence[NDArray[np.float64]]) -> float:
    """The public range of the values: as typed, or the largest magnitude in the arrays."""
    return settings.value_range or largest(arrays) or 1.0


def largest(arrays: Sequence[NDArray[np.float64]]) -> float:
    """The largest magnitude of a finite number in the arrays."""
    return max((float(np.abs(a[np.isfinite(a)]).max(initial=0.0)) for a in arrays), default=0.0)


def make_fixed(settings: SumSettings, arrays: Sequence[NDArray[np.float64]]) -> Encoding:
    """Fixed point, see `FixedPoint`: ``p = bits + ceil(log2 parties)``.

    Raises:
        CompositionError: a word cannot hold the sum.
    """
    extra = spare(len(arrays))
    bits = settings.bits or min(24, (settings.modulus_bits or 64) - extra)
    if settings.modulus_bits is not None and settings.modulus_bits < bits + extra:
        raise CompositionError(
            f"words of {settings.modulus_bits} bits cannot hold a sum of {len(arrays)} values of {bits} bits",
            where="--modulus-bits",
            remedy=f"use --modulus-bits {bits + extra} or more, or --bits {max(2, settings.modulus_bits - extra)}",
        )
    limit = range_of(settings, arrays)
    codec = FixedPoint(value_bits=bits, weight_bits=0, value_range=limit)  # a sum without weights
    modulus, unit, _ = codec.narrow("sum", len(arrays), limit)
    step = math.ldexp(1.0, unit)
    # The largest whole number is one unit below the range, so a value at the range itself is off by up to a unit.
    at_range = largest(arrays) > step * (2 ** (bits - 1) - 1.5)
    # With many bits, what double precision rounds in adding up shows too.
    each = step * (1.0 if at_range else 0.5) + limit * np.finfo(np.float64).eps
    return Encoding(lambda n: n * each, modulus, float(modulus), codec)


def wide(settings: SumSettings, arrays: Sequence[NDArray[np.float64]]) -> Encoding:
    """Fixed point in words of 64 bits, whatever the range: what protocols have that compute with the words.

    Raises:
        ConfigError: the words are asked to be others.
    """
    typed = {"--bits": settings.bits, "--modulus-bits": settings.modulus_bits, "--range": settings.value_range}
    for option, given in typed.items():
        if given is not None:
            raise ConfigError(f"{option} {given}", remedy=f"leave {option} out: words of this protocol have 64 bits")
    bits, unit, _ = FixedPoint.wide(len(arrays), whole=False)
    each = math.ldexp(0.5, unit) + largest(arrays) * np.finfo(np.float64).eps
    return Encoding(lambda n: n * each, bits, float(bits))


def scalar(settings: SumSettings, arrays: Sequence[NDArray[np.float64]]) -> Encoding:
    """Codes of ``--bits`` (8) in words of ``--modulus-bits`` (enough for all parties), see `ScalarQuantizer`; the range is that of all arrays."""
    from atoll.stages import ScalarQuantizer

    bits = settings.bits or 8
    word = settings.modulus_bits or bits + max(1, spare(len(arrays)))
    stage = ScalarQuantizer(bits, word, spread=1.0, layers="all", least=0)
    whole = (
        np.stack(_finite(arrays))
        if settings.value_range is None
        else np.array([-settings.value_range, settings.value_range])
    )
    chain = _fit_chain(stage, whole, settings.seed)
    step = float(chain.fitted["x"]["0"]["scale"]["x"])
    return Encoding(lambda n: n * step / 2, word, float(word), uplink=chain)


def make_pruned(settings: SumSettings, arrays: Sequence[NDArray[np.float64]]) -> Encoding:
    """``--keep`` (0.125) of the entries, the same ones at every party, in fixed point; the others count as 0. See `RandomK`."""
    from atoll.stages import RandomK

    keep, made = settings.keep or 0.125, make_fixed(settings, arrays)
    limit = range_of(settings, arrays)
    stage = RandomK(keep, scaled=False, shared=True)
    return Encoding(
        lambda n: n * limit + made.bound(n), made.modulus_bits, keep * made.modulus_bits, made.codec, [stage]
    )


def product(settings: SumSettings, arrays: Sequence[NDArray[np.float64]]) -> Encoding:
    """An index among ``--codewords`` (32) for ``--block`` (8) entries, see `ProductQuantizer`; the codebook is fitted to the first array."""
    from atoll.stages import ProductQuantizer
    from atoll.stages.coded.product import nearest

    block, many = settings.block or 8, settings.codewords or 32
    stage = ProductQuantizer(block, many, spread=1.0, layers="all", least=0)
    codewords = stage.words_of(arrays[0].shape)
    if not codewords:
        raise CompositionError(
            f"arrays of {arrays[0].size} entries in blocks of {block}",
            where="--block",
            remedy="use shorter blocks: at least 8 a party",
        )
    known = _finite(arrays)
    chain = _fit_chain(stage, known[0], settings.seed)
    book = chain.fitted["x"]["0"]["books"][0]
    cut = [np.pad(np.ravel(a), (0, -a.size % block)).reshape(-1, block) for a in known]
    worst = max(float(np.abs(blocks - book[nearest(blocks, book)]).max()) for blocks in cut)
    counts, index = len(arrays).bit_length(), max(1, (codewords - 1).bit_length())
    return Encoding(lambda n: n * worst, counts, index / block, FixedPoint(value_range=1.0), chain, codewords)


def _finite(arrays: Sequence[NDArray[np.float64]]) -> Sequence[NDArray[np.float64]]:
    """The arrays of parties that will not drop out for a number that is none; zeros if there are none."""
    return [a for a in arrays if np.isfinite(a).all()] or [np.zeros_like(arrays[0])]


def _fit_chain(stage: Stage, example: NDArray[np.float64], seed: int) -> Chain:
    """A chain of a stage with round parameters that are fitted to this."""
    from atoll.core.algebra.rng import Rng
    from atoll.core.requests.chain import Chain, fit_chain

    chain = Chain([stage])
    return chain.knowing(fit_chain(chain, None, {"x": {"0": {"x": example}}}, Rng.of(seed).child("fit"), 1))


ENCODINGS: dict[str, Callable[[SumSettings, Sequence[NDArray[np.float64]]], Encoding]] = {
    "fixed": make_fixed,
    "sq": scalar,
    "prune": make_pruned,
    "pq": product,
}
"""Name -> function of the settings and all parties' arrays, which stand for what is public."""
