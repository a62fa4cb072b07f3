"""Noise of whole numbers at the clients, in words that add up: differential privacy underneath a secure sum."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from atoll.core.algebra import tree as T
from atoll.core.algebra.tree import Tree
from atoll.core.errors import CompositionError, ConfigError, DataError
from atoll.core.event import Event
from atoll.core.message.words import word_dtype
from atoll.core.requests.context import StageContext
from atoll.core.requests.stage import Guarding, Stage, Worded
from atoll.privacy.discrete import DISTANCE, DiscreteSampler, Law, Source, sampler_of
from atoll.stages.coded.words import lifted
from atoll.stages.rows import numpy_leaf

from ..keystream import SEED, Keystream
from .excess import MOST_PARTS, ExcessNoise
from .rounding import conditional, in_steps, rounded_bound

__all__ = ["LatticeNoise"]

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
        if self.unit not in ("user", "island"):
            raise ConfigError(f"unit={self.unit!r}", where=where, remedy="use 'user' or 'island'")
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
