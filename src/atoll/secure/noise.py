"""Noise underneath secure sums: clients round their updates to a grid and add noise of whole numbers, in words that add up."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from atoll.core.algebra import tree as T
from atoll.core.algebra.tree import Tree
from atoll.core.errors import CompositionError, ConfigError, DataError
from atoll.core.event import Event
from atoll.core.message.words import word_dtype
from atoll.core.requests.stage import Guarding, Stage, StageContext, Worded
from atoll.privacy.discrete import (
    DISTANCE,
    DiscreteGaussianLaw,
    DiscreteSampler,
    LaplacePartLaw,
    Law,
    SkellamLaw,
    Source,
    sampler_of,
)
from atoll.privacy.events import DistributedGaussian, Skellam, SkellamMixture
from atoll.stages.coded.words import lifted
from atoll.stages.rows import numpy_leaf

from .keystream import SEED, Keystream, derived

__all__ = [
    "DiscreteGaussianNoise",
    "ExcessNoise",
    "LatticeNoise",
    "MOST_PARTS",
    "SkellamMixtureNoise",
    "SkellamNoise",
    "conditional",
    "draw_laplace_part",
    "in_steps",
    "mean_square",
    "rounded_bound",
    "unconditional",
]


# ------------------------------------------------------------------ noise in parts
#
# Noise in parts: as much as the smallest sum needs, of which a larger sum gives back what it does not need.


MOST_PARTS = 100
"""Parts that a client's noise may have: each costs a table of half a megabyte, and a share of its seed at every holder."""


@dataclass(frozen=True)
class ExcessNoise:
    """The noise of one client as a base and parts, each a Skellam variable with a seed of its own (XNoise; Jiang, Wang, Chen 2024).

    A sum of ``S`` clients, ``c`` of which may tell the server their noise, has enough noise if each client's has the variance ``u_S = V / (S - c)``. A client adds
    the base of variance ``u_most``, whose seed nobody else ever learns, and parts ``k = 1 .. most - least`` of variance ``u_(most - k) - u_(most - k + 1)``. Base and parts up to
    ``most - S`` have together the variance ``u_S``; the parts above are excess in a sum of ``S``. Skellam variables add up to Skellam variables, so what remains
    has the law of the target, exactly.

    Part ``k`` follows from seed ``s_k``: ``s_1`` is a secret of the client, and ``s_(k + 1)`` follows from ``s_k`` by HKDF. Whoever learns ``s_k`` knows the parts from ``k`` on, and
    nothing of those before. The last link, ``s_(most - least + 1)``, belongs to no part: it commits to the others. We deviate from the paper, where each part has an independent seed.

    Attributes:
        variance: the noise that a sum needs, ``V``, in steps of the grid squared.
        most: the largest sum that gives back all it need not have; above it, noise grows with the replies.
        least: the smallest sum.
        corrupt: clients whose noise does not count, ``c``.
    """

    variance: float
    most: int
    least: int
    corrupt: int = 0

    @property
    def parts(self) -> int:
        """Number of parts beside the base."""
        return self.most - self.least

    def needed(self, replies: int) -> float:
        """The variance of one client's noise that a sum of so many replies needs, ``u_S``."""
        return self.variance / (replies - self.corrupt)

    def variance_of(self, part: int) -> float:
        """The variance of a part; part 0 is the base."""
        if part == 0:
            return self.needed(self.most)
        return self.needed(self.most - part) - self.needed(self.most - part + 1)

    @property
    def anchor(self) -> int:
        """The number of the link that belongs to no part."""
        return self.parts + 1

    def first(self, replies: int) -> int:
        """The first part that a sum of so many replies does not need; `anchor` if it needs all."""
        return min(self.anchor, max(1, self.most - replies + 1))

    @staticmethod
    def link(seed: bytes, steps: int = 1) -> bytes:
        """Return the seed so many parts further on."""
        for _ in range(steps):
            seed = derived(seed, "next part")
        return seed

    def chain(self, seed: bytes) -> list[bytes]:
        """Return the seeds of all parts, from that of part 1."""
        made = [seed]
        while len(made) < self.parts:
            made.append(self.link(made[-1]))
        return made

    def drawn(self, seed: bytes, count: int, first: int = 1) -> NDArray[np.int64]:
        """Return the sum of the parts from ``first`` on.

        Args:
            seed: that of part ``first``.
            count: number of entries.
            first: the part.
        """
        total = np.zeros(count, dtype=np.int64)
        for part in range(first, self.anchor):
            total += sampler_of(SkellamLaw(self.variance_of(part))).draw(Keystream(derived(seed, "noise")), count)
            seed = self.link(seed)
        return total


def draw_laplace_part(scale: float, parties: int, source: Source, count: int) -> NDArray[np.int64]:
    """One party's part of discrete Laplace noise that no party knows: the parts of all parties but any one add up to the wanted law, exactly.

    A party that is curious takes its own part off, and what is left hides as much as was wanted. The noise of all has the variance ``n / (n - 1)`` of the wanted one; noise of which each party's suffices alone has n times it.

    Args:
        scale: of the wanted law, ``P(k) ~ exp(-|k| / scale)``.
        parties: n, at least 2.
        source: uniform random words of this party's secret.
        count: number of entries.

    Raises:
        ConfigError: there is one party, which would know all noise.
    """
    if parties < 2:
        raise ConfigError(f"noise in parts of {parties} party", where="draw_laplace_part", remedy="use two parties or more, or noise that suffices alone")  # fmt: skip
    sampler = sampler_of(LaplacePartLaw(scale, parties - 1))
    return sampler.draw(source, count) - sampler.draw(source, count)


# ------------------------------------------------------------------ numbers to whole numbers at random: unbiased, with a length that is bounded for certain


Array = NDArray[Any]
_FRACTION = 32
_UNIT = 1 << _FRACTION
_TRIES = 64


def in_steps(values: Array, clip: float, step: float) -> NDArray[np.int64]:
    """Return numbers in units of ``step / 2^32``, after the vector is scaled down to a length of at most ``clip``. They are exact from here on.

    Args:
        values: one vector, float64.
        clip: the largest length.
        step: the grid; ``clip / step`` is at most ``2^30``.
    """
    peak = float(np.abs(values).max(initial=0.0))
    part = values / peak if peak > 1e100 or 0 < peak < 1e-100 else values  # else squares overflow, or vanish
    length = math.sqrt(float(part @ part)) * (peak if part is not values else 1.0)
    factor = min(1.0, clip / length) if length > 0 else 1.0
    return np.rint(values * factor / step * _UNIT).astype(np.int64)


def _once(exact: NDArray[np.int64], source: Source) -> NDArray[np.int64]:
    """Round up with the probability of the fraction, exactly, by 32 random bits an entry."""
    bits = source(-(-len(exact) // 2)).view(np.uint32)[: len(exact)]
    down: NDArray[np.int64] = exact >> _FRACTION
    down += (exact & (_UNIT - 1)) > bits
    return down


def unconditional(exact: NDArray[np.int64], source: Source) -> NDArray[np.int64]:
    """Return whole numbers whose mean is the exact value."""
    return _once(exact, source)


def conditional(exact: NDArray[np.int64], most: int, source: Source) -> NDArray[np.int64]:
    """Round until the squared length is at most ``most``; after 64 tries, towards zero, which is never longer than the vector itself.

    Kairouz, Liu, Steinke 2021, Definition 2 and Proposition 22: the mean is off by at most ``sqrt(d) (1 - p) / p`` steps, with ``p`` the probability that one try fits.
    """
    for _ in range(_TRIES):
        made = _once(exact, source)
        if _square(made) <= most:
            return made
    whole: NDArray[np.int64] = np.sign(exact) * (np.abs(exact) >> _FRACTION)
    return whole


def mean_square(exact: NDArray[np.int64]) -> float:
    """``sum_j E u_j^2 = sum_j x_j^2 + p_j (1 - p_j)`` for entries ``u`` rounded at random, ``p`` their fraction; rounded upwards."""
    low = (exact >> _FRACTION).astype(np.float64)
    share = (exact & (_UNIT - 1)).astype(np.float64) / _UNIT
    return float((low * low + share * (2 * low + 1)).sum()) * (1 + 1e-12)


def rounded_bound(clip: float, step: float, entries: int, beta: float = math.exp(-0.5)) -> float:
    """The length that a vector of at most ``clip`` keeps after rounding, except with probability ``beta``, and for certain if ``beta`` is 0.

    The least of ``c + g sqrt(d)`` and the root of ``c^2 + g^2 d / 4 + sqrt(2 ln(1 / beta)) g (c + g sqrt(d) / 2)``; Kairouz, Liu, Steinke 2021, Proposition 22.
    """
    certain = clip + step * math.sqrt(entries)
    if beta == 0:
        return certain
    likely = math.sqrt(2 * math.log(1 / beta)) * step * (clip + step * math.sqrt(entries) / 2)
    return min(certain, math.sqrt(clip**2 + step**2 * entries / 4 + likely))


def _square(whole: NDArray[np.int64]) -> int:
    """The exact squared length: entries are below ``2^31``, so sums of few of them would overflow only above ``2^62`` each."""
    if len(whole) and int(np.abs(whole).max()) >= 1 << 20:
        return sum(int(x) * int(x) for x in whole.tolist())
    return sum(int((part * part).sum()) for part in np.array_split(whole, max(1, len(whole) >> 20)))


# ------------------------------------------------------------------ noise of whole numbers at the clients, in words that add up
#
# Noise of whole numbers at the clients, in words that add up: differential privacy underneath a secure sum.


_MANY = 1 << 40
"""Entries that a vector may have: accountants of whole numbers hardly depend on it."""


@dataclass(frozen=True, kw_only=True)
class LatticeNoise(Stage, Worded, Guarding):
    """Base class of stages that clip, round to a grid, add noise of whole numbers and send words modulo ``2^bits``.

    With grid ``g = step``, an update ``x`` (scaled down to ``||x|| <= clip``) becomes ``round(x / g) + noise mod 2^bits``. Sums of words decode to ``g`` times their
    centred lift. Rounding is random and unbiased, and repeated until ``||round(x / g)|| <= D = inflation clip / g``, so ``D`` bounds what one client
    can change, for certain and in exact arithmetic. The noise of ``least - corrupt`` replies together has the variance ``(multiplier D)^2``; more replies add more. Everything
    after the noise (the modulus, masks, other stages) works on what is released already, so a sum that wraps around is wrong, but never less private.

    Errors of the sum of ``n`` replies, an entry: a variance of at most ``n g^2 (1/4 + multiplier^2 D^2 / (least - corrupt))``, and what conditional rounding shifts
    (`rounding.conditional`). Wrap-around: see `wraps`. Noise and rounding come from a keystream of the client's secret; the noise is within ``2^-100`` of its law, an entry, and
    events carry that distance.

    Attributes:
        multiplier: noise of ``least - corrupt`` replies divided by what one client can change.
        clip: largest L2 norm of a client's summand; longer ones are scaled down.
        step: the grid ``g``, in the unit of the update.
        least: replies that share the noise: a sum that is used has at least as many. 1 is local noise, which holds
            against those who see single replies. More than 1 needs a secure reducer and a quorum of ``least``.
        corrupt: how many of them may tell the server their noise, so that it does not count.
        bits: word length.
        inflation: by how much rounding may lengthen an update.
        replaced: whether neighbours replace a client's update (``D`` is doubled) or leave it out. A server sees who takes part: against it, accountants count
            replacement in either case.
        unit: the unit of protection.
        most: the replies up to which a reducer takes back what a sum has beyond its noise (`ExcessNoise`), above ``least``; 0 is none. Under a reducer
            that cannot, the stage adds all of the noise itself, and none is taken back.
    """

    multiplier: float
    clip: float
    step: float
    least: int = 1
    corrupt: int = 0
    bits: int = 24
    inflation: float = 1.01
    replaced: bool = False
    unit: Literal["user", "island"] = "user"
    most: int = 0
    on: ClassVar[Literal["value", "summand"]] = "summand"
    linear: ClassVar[bool] = False
    words: ClassVar[bool] = True
    secret: ClassVar[bool] = True
    adds_up: ClassVar[bool] = False
    """Whether the sum of the parties' noise has the law of one party's."""

    def __post_init__(self) -> None:
        where = type(self).__name__
        for name in ("multiplier", "clip", "step"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise ConfigError(f"{name}={value}", where=where, remedy="use a finite number above 0")
        if self.least < 1 or not 2 <= self.bits <= 32:
            remedy = "use 1 reply or more, and words of 2 to 32 bits"
            raise ConfigError(f"least={self.least}, bits={self.bits}", where=where, remedy=remedy)
        if not 0 <= self.corrupt < self.least:
            remedy = "use 0 or more, and fewer than least: somebody must add the noise that counts"
            raise ConfigError(f"corrupt={self.corrupt} of least={self.least}", where=where, remedy=remedy)
        if not 1 <= self.inflation < math.inf:
            raise ConfigError(
                f"inflation={self.inflation}", where=where, remedy="use a factor of at least 1, such as 1.01"
            )
        self._require_parts(where)
        self._require_noise(where)

    def _require_parts(self, where: str) -> None:
        """Refuse parts that do not add up, or too many."""
        if self.most and not self.adds_up:
            raise ConfigError(
                f"most={self.most}", where=where,
                remedy="use SkellamNoise or SkellamMixtureNoise: other noise has another law when parts are missing",
            )  # fmt: skip
        if self.most and not self.least < self.most <= self.least + MOST_PARTS:
            raise ConfigError(
                f"most={self.most} for least={self.least}", where=where,
                remedy=f"use more than least and at most least + {MOST_PARTS}, or 0 to keep all noise",
            )  # fmt: skip

    def _require_noise(self, where: str) -> None:
        """Refuse a grid for which the noise of one party has no table."""
        if not 1 <= self._most < 1 << 60:
            raise ConfigError(
                f"step={self.step} for clip={self.clip}",
                where=where,
                remedy="use a step below clip and above clip / 2^30",
            )
        variance, largest = self.variance / self.sharing, self.law(1.0).largest
        if variance > largest:
            finest = self.step * math.sqrt(variance / largest)
            raise ConfigError(
                f"step={self.step:g}: the noise of one party has a variance of {variance:.3g} steps^2, above {largest:g}",
                where=where,
                remedy=f"use a coarser grid, step={finest * 1.01:.3g} or more",
            )

    # ------------------------------------------------------------------ numbers that follow from the settings

    @property
    def sharing(self) -> int:
        """Replies whose noise counts."""
        return self.least - self.corrupt

    @property
    def _most(self) -> int:
        """The largest squared length of a rounded update, in steps."""
        return math.floor((self.inflation * self.clip / self.step) ** 2)

    @property
    def apart(self) -> float:
        """How far one client moves the sum, in steps: ``D``, or ``2 D``."""
        return math.sqrt(self._most) * (2 if self.replaced else 1)

    @property
    def variance(self) -> float:
        """Variance of the noise of `sharing` replies, in steps^2."""
        return (self.multiplier * self.apart) ** 2

    @property
    def slack(self) -> float:
        """Statistical distance of the noise of `sharing` replies from its law, for vectors of at most ``2^40`` entries."""
        draws = self.sharing if self.excess is None else self.sharing * (1 + self.excess.parts)
        return min(0.5, draws * _MANY * DISTANCE)

    @cached_property
    def excess(self) -> ExcessNoise | None:
        """The noise in parts, if a reducer may take some back; larger by ``2^-40`` than it must be, so that rounded variances never add up to less."""
        return ExcessNoise(self.variance * (1 + 2.0**-40), self.most, self.least, self.corrupt) if self.most else None

    def law(self, variance: float) -> Law:
        """The law of one party's noise."""
        raise NotImplementedError

    def _sampler(self, context: StageContext) -> DiscreteSampler:
        """The noise that this stage adds: all of it, or what remains beside the parts that a reducer adds and takes back."""
        parts = self.excess if context.excess_added else None
        return sampler_of(self.law(self.variance / self.sharing if parts is None else parts.variance_of(0)))

    def deviation(self, parties: int) -> float:
        """Standard deviation of an entry of the sum of so many replies, noise and rounding together, in the unit of the update; without noise that is taken back."""
        each = self.variance / self.sharing if self.excess is None else self.excess.needed(min(parties, self.most))
        return self.step * math.sqrt(parties * (0.25 + each))

    def wraps(self, parties: int, entries: int, largest: float = 1.0) -> float:
        """A bound of the probability that an entry of the sum wraps around, for all entries together.

        Noise and rounding leave ``2^(bits - 1) - n (largest clip / g + 1)`` steps on either side. The noise is sub-exponential: ``P(|Z| > t)`` is at most
        ``2 exp(-t^2 / (2 (v + t / 3)))`` with ``v`` the variance of all noise (Bernstein for Skellam; discrete Gaussians have less).

        Args:
            parties: replies in the sum ``n``.
            entries: entries of the vector.
            largest: how large an entry of an update of length 1 is at most: 1, or ``stages.coded.rotation.bound_entry`` behind a rotation.
        """
        room = 2.0 ** (self.bits - 1) - parties * (largest * self.clip / self.step + 1)
        if room <= 0:
            return 1.0
        variance = parties * self.variance / self.sharing
        return min(1.0, 2 * entries * math.exp(-(room**2) / (2 * (variance + room / 3))))

    # ------------------------------------------------------------------ the two halves

    def encode(self, value: Tree, context: StageContext) -> Tree:
        """Clip, round and add noise.

        Raises:
            CompositionError: single replies could be seen, or fewer replies than ``least`` share the noise.
            DataError: the grid is too coarse for so many entries.
        """
        if self.least > 1 and not (context.hidden and context.replies >= self.least):
            raise CompositionError(
                f"noise that {self.least} replies share, and "
                + ("single replies can be seen" if not context.hidden else f"a sum of {context.replies} replies of equal weight may be used"),
                where=type(self).__name__,
                remedy=f"use a secure reducer with equal weights and a quorum of at least {self.least}, or least=1 for local noise",
            )  # fmt: skip
        arrays = T.map(numpy_leaf, value)
        leaves = T.leaves(arrays)
        vector = (
            np.concatenate([np.asarray(leaf, dtype=np.float64).ravel() for leaf in leaves]) if leaves else np.empty(0)
        )
        source = Keystream(context.secret.bytes(SEED))
        whole = self._round_vector(vector, source)
        whole += self._sampler(context).draw(source, len(whole))
        words = (whole & ((1 << self.bits) - 1)).astype(word_dtype(self.bits))
        codes, at = [], 0
        for leaf in leaves:
            codes.append(words[at : at + leaf.size].reshape(leaf.shape))
            at += leaf.size
        return {
            "like": T.map(lambda leaf: np.zeros((0, *leaf.shape), dtype=leaf.dtype), arrays),
            "codes": T.rebuild(arrays, codes),
        }

    def _round_vector(self, vector: NDArray[np.float64], source: Source) -> NDArray[np.int64]:
        needed = rounded_bound(self.clip, self.step, len(vector))
        if needed > self.inflation * self.clip * (1 + 1e-12):
            raise DataError(
                f"a grid of {self.step:g} for {len(vector)} entries lengthens an update of length {self.clip:g} to {needed:.4g}",
                where=type(self).__name__,
                remedy=f"use a finer step (with more bits), or inflation={math.ceil(needed / self.clip * 1000) / 1000:g}",
            )
        return conditional(in_steps(vector, self.clip, self.step), self._most, source)

    def decode(self, total: Tree, public: Tree, n: int) -> Tree:
        """Lift the sum of the words, and scale it."""
        del public, n
        return T.map(
            lambda leaf, like: (self.step * lifted(leaf, self.bits)).astype(like.dtype), total["codes"], total["like"]
        )

    # ------------------------------------------------------------------ promises

    def word_bits(self, sent: Tree) -> Tree:
        """``bits`` for the words."""
        return {"like": T.map(lambda leaf: None, sent["like"]), "codes": T.map(lambda leaf: self.bits, sent["codes"])}

    def wire_bits(self, value: Tree) -> int:
        """``8 ceil(entries bits / 8)`` a leaf."""
        return sum(8 * -(-math.prod(np.shape(leaf)) * self.bits // 8) for leaf in T.leaves(value))

    def covers(self, other: Stage) -> bool:
        """Whether this stage adds at least as much noise for the same unit and neighbours, to updates of at most the same length, without more trust."""
        if not isinstance(other, type(self)):
            return False
        alike = (self.unit, self.replaced or not other.replaced) == (other.unit, True)
        return (
            alike
            and self.multiplier >= other.multiplier
            and self.clip <= other.clip
            and self.least <= other.least
            and self.corrupt >= other.corrupt
        )

    def events(self, sensitivity: float | None) -> tuple[Event, ...]:
        """Return one release; the bound of the noise is the stage's own ``clip``."""
        del sensitivity
        return (self.released(),)

    @property
    def between(self) -> str:
        """The neighbours whose distance `apart` is, as events say it."""
        return "" if self.replaced else "add-remove"

    def released(self) -> Event:
        """What one reply releases."""
        raise NotImplementedError


# ------------------------------------------------------------------ discrete Gaussian and Skellam noise, and Skellam noise on plainly rounded updates


_SHRINK = 0.99


@dataclass(frozen=True, kw_only=True)
class DiscreteGaussianNoise(LatticeNoise):
    """Discrete Gaussian noise at each client: the distributed discrete Gaussian mechanism (Kairouz, Liu, Steinke 2021).

    The sum of the clients' noise is no discrete Gaussian. Its accounting has a term for that (`DistributedGaussian`), which is invisible once each client's noise
    has a standard deviation of a few steps, and is refused below half a step. See `LatticeNoise` for settings and errors.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sharing > 1 and self.variance < self.sharing / 4:
            raise ConfigError(
                f"step={self.step:g}: the noise of one party has a standard deviation of {math.sqrt(self.variance / self.sharing):.3g} steps",
                where="DiscreteGaussianNoise",
                remedy="use a finer step, for at least half a step, or SkellamNoise",
            )

    def law(self, variance: float) -> Law:
        """The discrete Gaussian of this parameter."""
        return DiscreteGaussianLaw(variance)

    def released(self) -> Event:
        """The sum of the discrete Gaussians that count."""
        return DistributedGaussian(
            unit=self.unit,
            variance=self.variance,
            sensitivity=self.apart,
            values=_MANY,
            parties=self.sharing,
            slack=self.slack,
            between=self.between,
        )


@dataclass(frozen=True, kw_only=True)
class SkellamNoise(LatticeNoise):
    """Skellam noise at each client: sums of Skellam variables are Skellam, so ``least`` clients together release one (Agarwal, Kairouz, Liu 2021).

    It costs a little more than a discrete Gaussian on coarse grids, and works with any variance. See `LatticeNoise` for settings and errors.
    """

    adds_up: ClassVar[bool] = True

    def law(self, variance: float) -> Law:
        """The Skellam law of this variance."""
        return SkellamLaw(variance)

    def released(self) -> Event:
        """One Skellam release."""
        return Skellam(
            unit=self.unit, variance=self.variance, sensitivity=self.apart, values=_MANY, slack=self.slack, between=self.between,
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class SkellamMixtureNoise(SkellamNoise):
    """Skellam noise on updates that are rounded once, without a bound of the rounded length (Bao et al. 2022, SMM).

    Rounding is part of the mechanism: what counts is the mean squared length after it, ``sum_j x_j^2 + p_j (1 - p_j)`` with ``p`` the fractions, which is kept at
    ``(inflation clip / g)^2`` or below. So rounding has no bias at all, and grids can be coarser than with conditional rounding. An update that would
    exceed the bound is scaled down.
    """

    def _round_vector(self, vector: NDArray[np.float64], source: Source) -> NDArray[np.int64]:
        exact = in_steps(vector, self.clip, self.step)
        while mean_square(exact) > self._most:
            exact = (exact * _SHRINK).astype(np.int64)
        return unconditional(exact, source)

    def released(self) -> Event:
        """One mixture."""
        reach = math.isqrt(self._most) + 1
        return SkellamMixture(
            unit=self.unit, variance=self.variance, sensitivity=self.apart, values=_MANY, slack=self.slack,
            largest=2 * reach if self.replaced else reach, both=self.replaced, between=self.between,
        )  # fmt: skip
