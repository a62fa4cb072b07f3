"""Scalar quantisation whose words add up modulo ``2^p``: compression underneath secure sums.

Check words tell how many entries of a sum of words wrapped around, which under masks the words themselves do not. A party sends, beside its codes ``q_j``, one word for
each run of ``m`` entries: ``t = sum_j e_j q_j mod 2^(p + 10)``, with public signs ``e_j``. The words of the sum
decode to ``Q_j - 2^p w_j``, where ``w_j`` is 0 for an entry that did not wrap around and 1 or -1 for one that did. The sum of the check words has
``sum_j e_j Q_j``, so it shows ``k = sum_j e_j w_j``. Over random signs the mean of ``k^2`` is ``sum_j w_j^2`` (Alon, Matias and Szegedy 1996): ``k^2``, summed over
the runs, is exact if at most one entry of each run wrapped around, and without bias otherwise. Its standard error is a share ``sqrt(2/runs)`` of itself at most.

Check words are sums of what the server learns anyway: the exact sum of the codes.

Ranges and word lengths follow what was counted in the last sum, within bounds that are set beforehand. Round parameters have, beside scale and zero point, ``spread``
(the range is so many times that of the mean), ``word`` (bits of a word, ``p``) and ``hold`` (fits for which words do not shrink). With each fit:

* **Range.** If more than the share ``adapt`` of the entries was clamped, the factor grows by 1.5; if less than a quarter of it, it shrinks by 0.9.
* **Wrapped sums fit nothing.** If more than the share ``adapt`` of the sums overflowed, their mean is no guide: the scale stays. If words are as long as they may be,
scale and factor double.
* **Words.** If more than the share ``adapt`` of the sums overflowed, ``p`` grows by a bit, by two if more than ten times as many did, and does not shrink at the next eight fits.
  Otherwise it goes to the length that the last sum needs with a bit to spare (`bits_for`): up at once, down by a bit a fit.

Only counts of the current version move anything, so that an old version's replies, which come late, are not answered twice. If overflows are not known, ``p`` is the most.

All of it follows from sums that the server has: the mean, the number of clamped entries of all parties together, and check words. So the choice tells
nobody more. A server that lies may choose any range and ``p`` within the form of the stage; what it learns is then the sum of other roundings of the same updates.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Integral
from typing import Any, ClassVar, Literal

import numpy as np

from atoll.core.algebra import tree as T
from atoll.core.algebra.rng import Rng
from atoll.core.algebra.tree import Tree
from atoll.core.errors import ConfigError
from atoll.core.requests.stage import Estimated, Fitting, Stage, StageContext, Worded

from ..packed import packed_bytes, wire_scale
from ..rows import numpy_leaf, template_of
from .words import Layers, coded, lifted, of_version, under, untouched

__all__ = ["Bounds", "SPARE", "ScalarQuantizer", "begin_fit", "bits_for", "check_words", "exceeded", "wrapped_around"]

Array = np.ndarray[Any, np.dtype[Any]]
SPARE = 10
"""Bits by which a check word is longer than a word: ``k`` of a run is at most 511."""


@functools.lru_cache(maxsize=64)
def _signs(size: int, place: int) -> Array:
    """Public signs of the entries of a leaf, -1 and 1."""
    stream = Rng(0).child("check words", place).generator().bit_generator
    raw = np.atleast_1d(stream.random_raw(-(-size // 64))).astype("<u8")
    signs: Array = 1 - 2 * np.unpackbits(raw.view(np.uint8), count=size).astype(np.int8)
    signs.flags.writeable = False
    return signs


def _runs(values: Array, run: int, place: int) -> Array:
    """Signed sums of runs of entries, int64."""
    signed = np.ravel(values).astype(np.int64) * _signs(np.size(values), place)
    return np.add.reduceat(signed, np.arange(0, signed.size, run))


def check_words(codes: Array, bits: int, run: int, place: int) -> Array:
    """The check words of a leaf, ``ceil(size / run)`` unsigned integers of ``bits + SPARE`` bits.

    Args:
        codes: the codes of one party.
        bits: of a word of a code.
        run: entries of a run.
        place: of the leaf, from 0: each has signs of its own.
    """
    made = _runs(codes, run, place).astype(np.uint64) & np.uint64((1 << (bits + SPARE)) - 1)
    return made.astype(np.uint32) if bits + SPARE <= 32 else made


def wrapped_around(checks: Array, decoded: Array, bits: int, run: int, place: int) -> int:
    """Estimate how many entries of a sum wrapped around.

    Args:
        checks: the sum of the parties' check words of a leaf, reduced or not.
        decoded: the sum of the codes as it was decoded, whole numbers.
        bits: of a word of a code.
        run: as in `check_words`.
        place: as in `check_words`.
    """
    off = np.asarray(checks).astype(np.uint64) - _runs(decoded, run, place).astype(np.uint64)
    k = lifted(off.astype(np.int64), bits + SPARE) >> np.int64(bits)
    return int(min((k * k).sum(), np.size(decoded)))


# ---------------------------------------------------------------- ranges and word lengths that follow what was counted in the last sum

_HOLD = 8


def begin_fit(spread: float, word: int) -> dict[str, Any]:
    """The parameters of the first fit."""
    return {"spread": float(spread), "word": int(word), "hold": 0}


def bits_for(most: float) -> int:
    """The length of a word for sums up to ``most`` in magnitude, with a sign and a bit to spare: a sum may be twice as large as the last."""
    return 2 + math.ceil(math.log2(most + 1))


def exceeded(known: Tree, told: Mapping[str, int], share: float) -> bool:
    """Whether more than a share was clamped or overflowed under these parameters."""
    if told["version"] != known["version"]:
        return False
    return _compute_clamped(told) > share or (_compute_overflowed(told) or 0.0) > share


def _compute_clamped(told: Mapping[str, int]) -> float:
    return told["clamped"] / max(1, told["coded"])


def _compute_overflowed(told: Mapping[str, int]) -> float | None:
    """The share of sums that wrapped around; ``None`` if it is not known."""
    return None if told.get("unchecked") or "overflowed" not in told else told["overflowed"] / max(1, told["words"])


@dataclass(frozen=True)
class Bounds:
    """What is tolerated, and how far parameters may move.

    Attributes:
        share: of clamped entries and of overflowed sums.
        least_spread: smallest factor of the range.
        most_spread: largest.
        least_word: smallest word length.
        most_word: largest.
    """

    share: float
    least_spread: float
    most_spread: float
    least_word: int
    most_word: int

    def spread(self, known: Tree, told: Mapping[str, int] | None) -> float:
        """The next factor of the range."""
        before = float(known["spread"])
        if told is None or told["version"] != known["version"]:
            return before
        if self.wrapped(known, told):
            return min(self.most_spread, 2 * before) if int(known["word"]) >= self.most_word else before
        clamped = _compute_clamped(told)
        factor = 1.5 if clamped > self.share else 0.9 if clamped < self.share / 4 else 1.0
        return min(self.most_spread, max(self.least_spread, before * factor))

    def wrapped(self, known: Tree, told: Mapping[str, int] | None) -> bool:
        """Whether so many sums overflowed under these parameters that their mean is no guide."""
        current = told is not None and told["version"] == known["version"]
        return told is not None and current and (_compute_overflowed(told) or 0.0) > self.share

    def steer_bounds(self, known: Tree, told: Mapping[str, int] | None, spread: float, needed: int) -> dict[str, Any]:
        """The next factor and word length.

        Args:
            known: the parameters so far.
            told: what was counted in the last sum.
            spread: the next factor of the range.
            needed: the length that the last sum needs under the next scale.
        """
        word, hold = int(known["word"]), int(known["hold"])
        if told is not None and told["version"] == known["version"]:
            lost = _compute_overflowed(told)
            if lost is None:
                word, hold = self.most_word, 0
            elif lost > self.share:
                word, hold = word + (2 if lost > 10 * self.share else 1), _HOLD
            elif needed >= word or not hold:
                word, hold = max(word - 1, needed), max(0, hold - 1)
            else:
                hold -= 1
        return {"spread": spread, "word": min(self.most_word, max(self.least_word, word)), "hold": hold}


# ---------------------------------------------------------------- scalar quantisation whose words add up modulo ``2^p``

COUNT_BITS = 32
"""Bits of the word in which parties count clamped entries."""


@dataclass(frozen=True)
class ScalarQuantizer(Stage, Worded, Fitting, Estimated):
    """Quantise each layer to ``b`` bits under a scale that all parties share, so that codes add up in words of ``p`` bits.

    ``q = clamp(round(x/s) + z, 0, 2^b - 1)`` decodes to ``s (q - z)``, and the sum ``Q`` of ``n`` codes modulo ``2^p`` to ``s lift((Q - n z) mod 2^p)``: the
    zero point counts once for each party in the sum. Prasad, Ghosh, Cormode, Mironov, Yousefpour, Stock 2022, "Reconciling Security and Communication
    Efficiency in Federated Learning"; its printed decoder (``s Q - z/N``) lacks the factor, and a decoder by ``n z`` follows from its own operator.

    * *affine*: ``s = (max - min)/(2^b - 1)``, ``z = round(-min/s)`` for each layer. *symmetric*: ``s = max |x| / (2^(b-1) - 1)`` and ``z = 2^(b-1) - 1``.
    * *Without overflow* if ``n (2^b - 1) < 2^p``. The centred lift, into ``[-2^(p-1), 2^(p-1))``, also decodes sums that are small because terms cancel.
      A sum outside wraps around. Every row has the share of these entries (``overflowed``): counted in a simulation without masks, and estimated from
      check words (`checks`) under masks, where single overflows are counted too.
    * *Clamped* entries, outside the fitted range, are counted at the party; their number is a word of the encoding, and a share in the row.
    * Without clamping or overflow the sum is off by at most ``n s / 2`` (``n s`` when stochastic, which is unbiased).

    Scale and zero point are fitted to the last sum or a mock client's reply, times ``spread``; until then, values go as numbers. With ``limit`` they are fixed.
    With ``adapt`` the range and the word length follow the sums too: see `atoll.stages.coded.scalar`.
    Leaves with fewer than two axes (biases, normalisation layers) or fewer than ``least`` entries stay numbers.

    On the wire: ``p`` bits an entry, ``p + 10`` bits for every ``checked`` entries of a layer, and 32 bits for the number of clamped entries.

    Attributes:
        bits: ``b``, from 1 to 16.
        modulus_bits: ``p``, above ``b`` and at most 32; ``None`` is ``b + 8``, which holds 256 parties.
        scheme: ``"affine"`` or ``"symmetric"``.
        stochastic: whether to round at random, so that the mean is preserved.
        lift: ``"centred"`` or ``"unsigned"``, into ``[0, 2^p)`` before the zero points are subtracted.
        spread: how many times wider the range is than that of the fitted value, because single replies are larger than their mean.
        limit: a fixed range ``[-limit, limit]`` for all layers, instead of a fitted one.
        refresh: rounds between two fits.
        layers: ``"matrices"`` codes leaves with at least two axes, ``"all"`` every leaf.
        least: entries that a coded leaf must have.
        checked: entries that share a check word, up to 512; 0 sends none, and then overflows under masks are not known.
        adapt: share of clamped entries, and of overflowed sums, above which the range and the words grow, and below which they shrink: words from ``b + 1``
            to ``p`` bits, and ranges from a quarter of ``spread`` to four times it. ``None`` leaves both as they are set.
    """

    bits: int = 8
    modulus_bits: int | None = None
    scheme: Literal["affine", "symmetric"] = "affine"
    stochastic: bool = False
    lift: Literal["centred", "unsigned"] = "centred"
    spread: float = 4.0
    limit: float | None = None
    refresh: int = 1
    layers: Layers = "matrices"
    least: int = 10
    checked: int = 128
    adapt: float | None = None
    on: ClassVar[Literal["value", "summand"]] = "summand"
    linear: ClassVar[bool] = False
    words: ClassVar[bool] = True
    fits: ClassVar[bool] = True

    def __post_init__(self) -> None:
        where = "ScalarQuantizer"
        if not (isinstance(self.bits, Integral) and 1 <= self.bits <= 16):
            raise ConfigError(f"bits={self.bits}", where=where, remedy="use 1 to 16 bits")
        if self.modulus_bits is not None and not self.bits < self.modulus_bits <= 32:
            raise ConfigError(
                f"modulus_bits={self.modulus_bits} for codes of {self.bits} bits",
                where=where,
                remedy=f"use {self.bits + 1} to 32 bits: n parties need {self.bits} + ceil(log2 n) to exclude overflow",
            )
        if self.scheme == "symmetric" and self.bits < 2:
            raise ConfigError("bits=1 with scheme='symmetric'", where=where, remedy="use 'affine', or 2 bits")
        if not (self.spread > 0 and math.isfinite(self.spread)):
            raise ConfigError(f"spread={self.spread}", where=where, remedy="use a finite number above 0")
        if self.limit is not None and not (self.limit > 0 and math.isfinite(self.limit)):
            raise ConfigError(f"limit={self.limit}", where=where, remedy="use a finite number above 0, or None")
        if self.refresh < 1 or self.least < 0:
            remedy = "use a refresh of at least 1 round, and least of at least 0 entries"
            raise ConfigError(f"refresh={self.refresh}, least={self.least}", where=where, remedy=remedy)
        if not 0 <= self.checked <= 512:
            raise ConfigError(
                f"checked={self.checked}", where=where, remedy="use 1 to 512 entries, or 0 for no check words"
            )
        if self.adapt is not None and not (0 < self.adapt < 0.5 and self.limit is None and self.checked):
            raise ConfigError(
                f"adapt={self.adapt} with limit={self.limit} and checked={self.checked}",
                where=where,
                remedy="use a share from above 0 to below 0.5, such as 0.001, check words, and no fixed limit",
            )
        object.__setattr__(self, "unbiased", self.stochastic)
        object.__setattr__(self, "fits", self.limit is None)
        object.__setattr__(self, "adapts", self.adapt is not None)

    @property
    def word(self) -> int:
        """Bits of a word, ``p``; with ``adapt``, the most."""
        return self.modulus_bits if self.modulus_bits is not None else self.bits + 8

    @property
    def top(self) -> int:
        """The largest code."""
        return (1 << self.bits) - (2 if self.scheme == "symmetric" else 1)

    # ------------------------------------------------------------------ round parameters

    def public(self, rng: Rng) -> Tree:
        """Return scale and zero point of a fixed limit; ``None`` before the first fit."""
        del rng
        return None if self.limit is None else {**self.over(-self.limit, self.limit), "version": 1}

    def fit(self, example: Tree, rng: Rng) -> dict[str, Tree]:
        """Return scale and zero point of each layer, for ``spread`` times its range. A layer of zeros has that of the widest layer."""
        del rng
        made = self._for_range(example, self.spread)
        return made if self.adapt is None else {**made, **begin_fit(self.spread, self.word)}

    def stale(self, known: Tree, told: Mapping[str, int] | None) -> bool:
        """Whether more than the share ``adapt`` was clamped or overflowed under these parameters."""
        return self.adapt is not None and told is not None and exceeded(known, told, self.adapt)

    def refit(self, example: Tree, rng: Rng, known: Tree, told: Mapping[str, int] | None) -> dict[str, Tree]:
        """Return scale and zero point, and with ``adapt`` the factor of the range and the word length that follow from what was counted."""
        if self.adapt is None:
            return self.fit(example, rng)
        bounds = Bounds(self.adapt, self.spread / 4, 4 * self.spread, self.bits + 1, self.word)
        spread = bounds.spread(known, told)
        if bounds.wrapped(known, told):
            wider = T.map(lambda scale: np.float32(float(scale) * spread / known["spread"]), known["scale"])
            made: dict[str, Tree] = {"scale": wider, "zero": known["zero"]}
        else:
            made = self._for_range(example, spread)
        return {**made, **bounds.steer_bounds(known, told, spread, self._count_bits(example, made["scale"], told))}

    def _count_bits(self, example: Tree, scales: Tree, told: Mapping[str, int] | None) -> int:
        """Bits of a word that holds twice the last sum in codes of this scale, with its sign; see `bits_for`."""
        if told is None:
            return self.word
        rows = zip(T.leaves(T.map(numpy_leaf, example)), T.leaves(scales), strict=True)
        coded_rows = [(x, s) for x, s in rows if coded(x.shape, self.layers, self.least)]
        most = max((float(np.abs(x).max(initial=0)) / float(s) for x, s in coded_rows), default=0.0)
        return bits_for(told["n"] * (self.top if self.lift == "unsigned" else most))

    def _for_range(self, example: Tree, spread: float) -> dict[str, Tree]:
        arrays = T.map(numpy_leaf, example)
        peak = max((float(np.abs(leaf).max(initial=0)) for leaf in T.leaves(arrays)), default=0.0) or 1.0

        def fit_leaf(leaf: Any) -> dict[str, Tree]:
            low, high = (spread * float(f(leaf, initial=0)) for f in (np.min, np.max))
            return self.over(low, high) if high > low else self.over(-spread * peak, spread * peak)

        rows = [fit_leaf(leaf) for leaf in T.leaves(arrays)]
        return {key: T.rebuild(arrays, [row[key] for row in rows]) for key in ("scale", "zero")}

    def over(self, low: float, high: float) -> dict[str, Tree]:
        """Return scale and zero point for entries from ``low`` to ``high``; the range is widened to have 0 in it."""
        low, high = min(low, 0.0), max(high, 0.0)
        if self.scheme == "symmetric":
            zero = (1 << (self.bits - 1)) - 1
            return {"scale": self._scale(max(-low, high) / zero), "zero": np.int64(zero)}
        scale = self._scale((high - low) / self.top)
        return {"scale": scale, "zero": np.int64(min(self.top, max(0, round(-low / float(scale)))))}

    @staticmethod
    def _scale(exact: float) -> np.float32:
        least = float(np.finfo(np.float32).tiny)
        return np.float32(wire_scale(np.array(max(exact, least)), up=True))

    # ------------------------------------------------------------------ the two halves

    def encode(self, value: Tree, context: StageContext) -> Tree:
        """Return the codes as words, other leaves as they are, how many entries were clamped, and the check words."""
        public = context.public
        if public is None:
            return untouched(value)
        arrays = T.map(numpy_leaf, value)
        draw = context.rng.generator() if self.stochastic else None
        clamped, word = 0, self._word_of(public)
        leaves, checks = [], []
        for place, (leaf, scale, zero) in enumerate(self._with_parameters(arrays, public)):
            if not coded(leaf.shape, self.layers, self.least):
                leaves.append(leaf)
                continue
            exact = leaf.astype(np.float64) / float(scale) + int(zero)
            whole = np.rint(exact) if draw is None else np.floor(exact + draw.random(exact.shape))
            words = whole.clip(0, self.top)
            clamped += int((words != whole).sum())
            leaves.append(np.asarray(words, dtype=np.uint32))  # also of an entry without axes
            if self.checked:
                checks.append(check_words(words, word, self.checked, place))
        like = T.map(lambda leaf: np.zeros((0, *leaf.shape), dtype=leaf.dtype), arrays)
        codes = T.rebuild(arrays, leaves)
        counted = np.array([clamped], dtype=np.uint32)
        parts = {"like": like, "codes": codes, "clamped": counted, "checks": checks}
        if self.adapt is not None:  # the length is in the form, as the version is: words of two lengths do not add up
            parts["word"] = np.zeros((0, word), dtype=np.uint8)
        return under(public["version"], parts)

    def decode(self, total: Tree, public: Tree, n: int) -> Tree:
        """Lift the sum of the words, and scale it."""
        if public is None:
            return of_version(total, 0, "ScalarQuantizer")["numbers"]
        parts = of_version(total, public["version"], "ScalarQuantizer")
        leaves = []
        rows = zip(self._with_parameters(parts["codes"], public), T.leaves(parts["like"]), strict=True)
        for (leaf, scale, zero), like in rows:
            leaf = np.asarray(leaf)
            if leaf.dtype.kind in "ui":
                leaf = float(scale) * self._lift_words(leaf, int(zero), n, self._word_of(public))
            leaves.append(leaf.astype(like.dtype))
        return T.rebuild(parts["codes"], leaves)

    def _word_of(self, public: Tree) -> int:
        """Bits of a word under these parameters."""
        return int(public.get("word", self.word))

    def _lift_words(self, words: Any, zero: int, n: int, word: int) -> Any:
        if self.lift == "unsigned":
            return lifted(words, word, centred=False) - n * zero
        return lifted(words.astype(np.int64) - n * zero, word)

    @staticmethod
    def _with_parameters(tree: Tree, public: Tree) -> list[tuple[Any, Any, Any]]:
        """Leaves with their scale and zero point."""
        leaves = T.leaves(tree)
        columns = [
            T.leaves(public[name]) if isinstance(public[name], dict | list | tuple) else [public[name]] * len(leaves)
            for name in ("scale", "zero")
        ]
        return list(zip(leaves, *columns, strict=True))

    # ------------------------------------------------------------------ promises

    def word_bits(self, sent: Tree) -> Tree:
        """``p`` for codes, ``p + 10`` for check words, 32 for the number of clamped entries, ``None`` for other leaves."""
        ((version, parts),) = sent.items()
        bits = T.map(lambda leaf: None, parts)
        if "codes" in parts:
            word = np.shape(parts["word"])[-1] if "word" in parts else self.word
            bits["codes"] = T.map(lambda leaf: word if np.asarray(leaf).dtype.kind == "u" else None, parts["codes"])
            bits["clamped"] = COUNT_BITS
            bits["checks"] = [word + SPARE for _ in parts["checks"]]
        return {version: bits}

    def counts(self, total: Tree, public: Tree, n: int, exact: bool) -> dict[str, int]:
        """Count clamped entries, and overflowed ones: exactly if the sum is exact or none can have overflowed, else by the check words, if there are any."""
        if public is None:
            return {}
        parts = of_version(total, public["version"], "ScalarQuantizer")
        every = list(enumerate(self._with_parameters(parts["codes"], public)))
        places = [place for place, row in every if np.asarray(row[0]).dtype.kind in "ui"]
        rows = [every[place][1] for place in places]
        words = sum(int(np.size(leaf)) for leaf, _, _ in rows)
        word = self._word_of(public)
        made = {"words": words, "coded": n * words, "clamped": int(np.asarray(parts["clamped"]).sum())}
        if exact and n * self.top < 1 << 32 and all(np.asarray(leaf).dtype == np.uint32 for leaf, _, _ in rows):
            wrong = (
                self._lift_words(leaf, int(z), n, word) != np.asarray(leaf).astype(np.int64) - n * int(z)
                for leaf, _, z in rows
            )
            made["overflowed"] = sum(int(one.sum()) for one in wrong)
        elif all(self.holds(n, int(zero), word) for _, _, zero in rows):
            made["overflowed"] = 0
        elif parts["checks"]:
            known = zip(parts["checks"], places, rows, strict=True)
            made["overflowed"] = sum(
                wrapped_around(
                    check, self._lift_words(np.asarray(leaf), int(z), n, word) + n * int(z), word, self.checked, at
                )
                for check, at, (leaf, _, z) in known
            )
        if self.adapt is not None:
            made["word_bits"] = word
        return made

    def holds(self, n: int, zero: int | None = None, word: int | None = None) -> bool:
        """Return whether the sum of any ``n`` codes can be decoded: whether it stays within ``p`` bits.

        Args:
            n: number of parties.
            zero: the zero point; ``None`` for any.
            word: bits of a word; by default the most.
        """
        word = self.word if word is None else word
        if self.lift == "unsigned":
            return n * self.top < 1 << word
        half = 1 << (word - 1)
        zeros = (0, self.top) if zero is None else (zero,)
        return all(n * z <= half and n * (self.top - z) < half for z in zeros)

    def wire_bits(self, value: Tree) -> int | None:
        """As `most_bits`; with ``adapt`` it depends on the round."""
        return None if self.adapt is not None else self.most_bits(value)

    def most_bits(self, value: Tree) -> int:
        """``8 ceil(entries p / 8)`` a coded leaf and its check words, 32, and the other leaves whole."""

        def size(shape: tuple[int, ...], item: int) -> int:
            entries = math.prod(shape)
            if not coded(shape, self.layers, self.least):
                return entries * item
            checks = packed_bytes(-(-entries // self.checked), self.word + SPARE) if self.checked else 0
            return packed_bytes(entries, self.word) + checks

        shapes = [(leaf.shape[1:], leaf.itemsize) for leaf in T.leaves(template_of(value))]
        return 8 * sum(size(shape, item) for shape, item in shapes) + COUNT_BITS
