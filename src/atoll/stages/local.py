"""Local differential privacy: stages whose encodings are private one by one, whoever sees them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from atoll.core.algebra import tree as T
from atoll.core.algebra.tree import Tree
from atoll.core.errors import CompositionError, ConfigError
from atoll.core.event import Event, Gaussian, Laplace
from atoll.core.facets import facet
from atoll.core.requests.stage import Guarding, Stage, StageContext, WithMemory
from atoll.privacy import Shuffled
from atoll.privacy.discrete import GaussianLattice, LaplaceLattice, clip_rows, words_of
from atoll.privacy.events import RandomisedResponse

from .remembering import one_of
from .rows import lay_out, numpy_leaf, put_back

__all__ = [
    "Anonymous",
    "FedSel",
    "LocalGaussian",
    "LocalLaplace",
    "RandomisedSigns",
    "Randomiser",
    "Rows",
    "SparseVector",
    "choose_places",
    "require_positive",
    "response",
]

Rows = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Randomiser(Stage, Guarding):
    """Base class of local randomisers: ``randomise`` turns each client's vector into one that is private by itself.

    Neighbours replace one client's value by any other: the bound is the stage's own, and nothing needs to come before it. Its encodings are plain
    numbers of the value's form, so they add up in a secure sum, which then also shuffles them.
    """

    linear: ClassVar[bool] = False
    unbiased: ClassVar[bool] = False
    secret: ClassVar[bool] = True

    def randomise(self, rows: Rows, draws: list[np.random.Generator]) -> Rows:
        """Return what each client releases, ``(clients, entries)``.

        Args:
            rows: the clients' vectors, ``(clients, entries)``.
            draws: a generator from each client's own secret.
        """
        raise NotImplementedError

    def encode(self, value: Tree, context: StageContext) -> Tree:
        """Encode a block of one."""
        return T.map(lambda leaf: leaf[0], self.encode_block(one_of(value), context))

    def encode_block(self, block: Tree, context: StageContext) -> Tree:
        """Randomise each client's value with its own secret."""
        rows, like = lay_out(block)
        draws = [secret.generator() for secret in context.secrets()]
        return put_back(self.randomise(np.asarray(rows, np.float64), draws), like)


def require_positive(stage: Any, *names: str) -> None:
    """Refuse settings that are not finite numbers above 0.

    Raises:
        ConfigError: names the first.
    """
    for name in names:
        value = getattr(stage, name)
        if not (math.isfinite(value) and value > 0):
            raise ConfigError(f"{name}={value}", where=type(stage).__name__, remedy="use a finite number > 0")


# ---------------------------------------------------------------- Laplace and Gaussian noise at each client


@dataclass(frozen=True)
class LocalLaplace(Randomiser):
    """Scale the value down to an L1 norm of at most ``bound``, and add Laplace noise of scale ``2 bound / epsilon`` to each entry.

    Two values of L1 norm ``bound`` are at most ``2 bound`` apart, so the release is ``epsilon``-private against everybody who sees it. Dwork, McSherry,
    Nissim, Smith 2006, "Calibrating Noise to Sensitivity in Private Data Analysis". The noise is discrete Laplace on a lattice of a power of two, and the value is
    rounded to the lattice towards zero, so that its norm stays bounded: no last bits tell it (Mironov 2012). See `atoll.privacy.discrete`.

    Attributes:
        bound: largest L1 norm.
        epsilon: of one release.
        unit: ``"user"`` or ``"island"``.
    """

    bound: float = 1.0
    epsilon: float = 1.0
    unit: Literal["user", "island"] = "user"

    def __post_init__(self) -> None:
        require_positive(self, "bound", "epsilon")

    def randomise(self, rows: Rows, draws: list[np.random.Generator]) -> Rows:
        """Clip and add noise."""
        return _noisy(rows, self.bound, 1, LaplaceLattice(2 * self.bound / self.epsilon), draws)

    def events(self, sensitivity: float | None) -> tuple[Event, ...]:
        """Return one Laplace release."""
        del sensitivity
        return (Laplace(unit=self.unit, epsilon=self.epsilon),)


@dataclass(frozen=True)
class LocalGaussian(Randomiser):
    """Scale the value down to an L2 norm of at most ``bound``, and add ``N(0, (2 bound multiplier)^2)`` to each entry.

    Two values of norm ``bound`` are at most ``2 bound`` apart, so each reply is a Gaussian release of noise multiplier ``multiplier``. `GaussianNoise` behind
    `Clip` counts neighbours by adding or removing a client, whose reply then is missing; that says nothing to somebody who sees single replies.

    Attributes:
        bound: largest L2 norm.
        multiplier: noise over ``2 bound``.
        unit: ``"user"`` or ``"island"``.
    """

    bound: float = 1.0
    multiplier: float = 1.0
    unit: Literal["user", "island"] = "user"

    def __post_init__(self) -> None:
        require_positive(self, "bound", "multiplier")

    def randomise(self, rows: Rows, draws: list[np.random.Generator]) -> Rows:
        """Clip and add noise."""
        return _noisy(rows, self.bound, 2, GaussianLattice(2 * self.bound * self.multiplier), draws)

    def events(self, sensitivity: float | None) -> tuple[Event, ...]:
        """Return one Gaussian release."""
        del sensitivity
        return (Gaussian(unit=self.unit, noise_multiplier=self.multiplier),)


def _noisy(
    rows: Rows, bound: float, norm: int, lattice: LaplaceLattice | GaussianLattice, draws: list[np.random.Generator]
) -> Rows:
    """Clip each row on the lattice, and add the client's noise."""
    found = clip_rows(rows, bound, norm, lattice.step)
    for row, draw in zip(found, draws, strict=True):
        row += lattice.draw(words_of(draw), len(row))
    found *= lattice.step
    return found


# ---------------------------------------------------------------- randomised response on single entries of an update


@dataclass(frozen=True)
class RandomisedSigns(Randomiser):
    """Each client reports the signs of ``entries`` entries, each by randomised response; where they are is drawn without looking at the value.

    An entry, clipped to ``[-limit, limit]``, becomes ``+1`` with probability ``1/2 + x / (2 limit)``, else ``-1``, and then flips with
    probability ``1 / (1 + e^(epsilon / entries))``. The server gets ``sign * limit * c * d / entries`` at that entry, with ``c = (e^a + 1) / (e^a - 1)``,
    ``a = epsilon / entries`` and ``d`` entries in all: its mean is the clipped value. Duchi, Jordan, Wainwright 2018, "Minimax Optimal Procedures for Locally
    Private Estimation"; Nguyên et al. 2016, "Collecting and Analyzing Data from Smart Device Users with Local Differential Privacy", algorithm 4.

    Attributes:
        limit: largest magnitude of an entry.
        epsilon: of one release, all its entries together.
        entries: how many are reported. A value with fewer reports all of them, each with ``epsilon / entries``: it costs less than the ledger says.
        unit: ``"user"`` or ``"island"``.
    """

    limit: float = 0.1
    epsilon: float = 1.0
    entries: int = 1
    unit: Literal["user", "island"] = "user"

    def __post_init__(self) -> None:
        require_positive(self, "limit", "epsilon")
        if self.entries < 1:
            raise ConfigError(f"entries={self.entries}", where="RandomisedSigns", remedy="report at least one entry")

    def randomise(self, rows: Rows, draws: list[np.random.Generator]) -> Rows:
        """Report the signs of random entries."""
        found = np.zeros_like(rows)
        size = rows.shape[1]
        count = min(self.entries, size)
        for row, out, draw in zip(rows, found, draws, strict=True):
            at = draw.choice(size, count, replace=False)
            out[at] = response(row[at], self.limit, self.epsilon / self.entries, draw) * (size / count)
        return found

    def events(self, sensitivity: float | None) -> tuple[Event, ...]:
        """Return one randomised response for each entry."""
        del sensitivity
        return (RandomisedResponse(unit=self.unit, epsilon=self.epsilon / self.entries, count=self.entries),)


def response(values: Rows, limit: float, epsilon: float, draw: np.random.Generator) -> Rows:
    """Report clipped numbers by one randomised bit each: ``+-limit (e^epsilon + 1) / (e^epsilon - 1)``, with the clipped numbers as means."""
    share = np.clip(np.nan_to_num(values, nan=0.0), -limit, limit) / limit
    up = draw.random(len(values)) < (1 + share) / 2
    told = up ^ (draw.random(len(values)) < 1 / (1 + math.exp(epsilon)))
    found: Rows = np.where(told, limit, -limit) / math.tanh(epsilon / 2)
    return found


# ---------------------------------------------------------------- FedSel


@dataclass(frozen=True)
class FedSel(Randomiser, WithMemory):
    """Report ``entries`` entries, each chosen among the largest by a private choice and reported by randomised response.

    The choice (perturbed sampling): with probability ``p = e^a k / (d - k + e^a k)`` a uniform one of the ``k`` largest of ``d`` magnitudes, else a uniform
    one of the others. Whether an entry is among the largest changes its chance by a factor of ``e^a`` exactly, so that the choice is ``a``-private. The report:
    one bit by randomised response with ``b``, see `RandomisedSigns`. ``(a + b) entries = epsilon`` and ``a = share (a + b)``. What was not reported waits in a
    private residual and is added to the next round's update. Liu, Cao, Yoshikawa, Chen 2020, "FedSel: Federated SGD under Local Differential Privacy with Top-k
    Dimension Selection", sections 4 and 5. We deviate: several entries are chosen one after the other, each among those that are left.

    The server gets the reported value without a factor for the choice: the mean of a reply is not the update, as with every choice of the largest.

    Attributes:
        limit: largest magnitude of a reported entry.
        epsilon: of one release.
        fraction: ``k / d``.
        entries: how many are reported; a value with fewer reports all of them, each with its share of epsilon.
        share: part of epsilon for the choice, in (0, 1).
        decay: factor on the residual from round to round, in [0, 1].
        unit: ``"user"`` or ``"island"``.
    """

    limit: float = 0.1
    epsilon: float = 1.0
    fraction: float = 0.1
    entries: int = 1
    share: float = 0.5
    decay: float = 1.0
    unit: Literal["user", "island"] = "user"
    remembers: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require_positive(self, "limit", "epsilon")
        if not (self.entries >= 1 and 0 < self.fraction <= 1 and 0 < self.share < 1 and 0 <= self.decay <= 1):
            raise ConfigError(
                f"entries={self.entries}, fraction={self.fraction}, share={self.share}, decay={self.decay}",
                where="FedSel",
                remedy="use at least one entry, a fraction in (0, 1], a share in (0, 1) and a decay in [0, 1]",
            )

    def fresh(self, value: Tree) -> Tree:
        """Return a zero residual."""
        return {"residual": T.map(lambda leaf: np.zeros_like(numpy_leaf(leaf))[()], value)}

    def remember(self, value: Tree, memory: Tree, context: StageContext) -> tuple[Tree, Tree]:
        """Encode a block of one."""
        sent, kept = self.remember_block(one_of(value), one_of(memory), context)
        return T.map(lambda leaf: leaf[0], sent), T.map(lambda leaf: leaf[0], kept)

    def remember_block(self, block: Tree, memory: Tree, context: StageContext) -> tuple[Tree, Tree]:
        """Report from the update plus the residual; what was reported leaves the residual."""
        rows, like = lay_out(T.add(T.map(numpy_leaf, block), T.scale(memory["residual"], self.decay)))
        draws = [secret.generator() for secret in context.secrets()]
        sent = self.randomise(np.asarray(rows, np.float64), draws)
        return put_back(sent, like), {"residual": put_back(np.where(sent != 0, 0.0, rows), like)}

    def randomise(self, rows: Rows, draws: list[np.random.Generator]) -> Rows:
        """Choose and report entries."""
        found = np.zeros_like(rows)
        count = min(self.entries, rows.shape[1])
        each = self.epsilon / self.entries  # as the ledger has it: a value with fewer entries costs less
        for row, out, draw in zip(rows, found, draws, strict=True):
            at = choose_places(np.abs(np.nan_to_num(row)), self.fraction, count, self.share * each, draw)
            out[at] = response(row[at], self.limit, (1 - self.share) * each, draw)
        return found

    def events(self, sensitivity: float | None) -> tuple[Event, ...]:
        """Return the choices and the reports: randomised response is the worst of all that is equally private."""
        del sensitivity
        each = self.epsilon / self.entries
        parts = (self.share * each, (1 - self.share) * each)
        return tuple(RandomisedResponse(unit=self.unit, epsilon=part, count=self.entries) for part in parts)


def choose_places(sizes: Rows, fraction: float, count: int, epsilon: float, draw: np.random.Generator) -> np.ndarray:
    """Choose ``count`` different places by perturbed sampling, each ``epsilon``-private; ``sizes`` are magnitudes, ``(entries,)``."""
    left = np.arange(len(sizes))
    found = np.empty(count, np.int64)
    for i in range(count):
        k = min(len(left), max(1, int(fraction * len(left))))
        order = np.argpartition(sizes[left], len(left) - k)
        others, top = order[: len(left) - k], order[len(left) - k :]
        grown = math.exp(epsilon) * k
        among = top if not len(others) or draw.random() < grown / (len(others) + grown) else others
        at = int(among[draw.integers(len(among))])
        found[i] = left[at]
        left = np.delete(left, at)
    return found


# ---------------------------------------------------------------- the sparse vector technique


@dataclass(frozen=True)
class SparseVector(Randomiser):
    """Report at most ``entries`` entries whose magnitude passes a noisy threshold, with noise; the others are zero.

    Entries are clipped to ``[-limit, limit]``, so magnitudes of any two updates are at most ``limit`` apart, entry by entry, and entries at most ``2 limit``. With
    ``c = entries`` and ``epsilon = e1 + e2 + e3``:

    1. the threshold gets ``Lap(limit / e1)``, once;
    2. entries, in an order drawn without looking at them, are compared with it once each: ``|x| + Lap(2 c limit / e2) >= threshold``;
    3. the first ``c`` that pass end it; their values get ``Lap(2 c limit / e3)``.

    Steps 1 and 2 are ``e1 + e2``-private for any number of entries that do not pass (Lyu, Su, Li 2017, "Understanding the Sparse Vector Technique for Differential
    Privacy", theorem 4), with their best split ``e2 = e1 (2 c)^(2/3)``; step 3 adds ``e3``. The whole budget counts, also if fewer entries pass. The ledger has one
    randomised response of ``epsilon``, whose loss dominates that of every ``epsilon``-private release (Kairouz, Oh, Viswanath 2015).

    All noise is discrete Laplace on lattices of powers of two, the same for threshold and comparisons; entries are rounded to them towards zero (`atoll.privacy.discrete`).

    NVIDIA FLARE's SVTPrivacy is not this mechanism: it asks again, with new noise, until enough entries have passed, and gives each of ``c`` values noise for one, so values alone cost
    ``c e3`` where it counts ``e3``.

    Attributes:
        limit: largest magnitude of an entry.
        epsilon: of one release.
        entries: how many are reported at most.
        threshold: magnitude that an entry should pass, as a share of ``limit``.
        values: share of epsilon for the values.
        unit: ``"user"`` or ``"island"``.
    """

    limit: float = 0.1
    epsilon: float = 1.0
    entries: int = 1
    threshold: float = 0.5
    values: float = 0.5
    unit: Literal["user", "island"] = "user"

    def __post_init__(self) -> None:
        require_positive(self, "limit", "epsilon")
        if self.entries < 1:
            raise ConfigError(f"entries={self.entries}", where="SparseVector", remedy="report at least one entry")
        if not (0 < self.values < 1 and math.isfinite(self.threshold) and self.threshold >= 0):
            raise ConfigError(
                f"values={self.values}, threshold={self.threshold}",
                where="SparseVector",
                remedy="use a share of epsilon between 0 and 1, and a threshold of at least 0",
            )

    @property
    def budgets(self) -> tuple[float, float, float]:
        """Epsilon of the threshold, of the comparisons and of the values; they add up to ``epsilon``."""
        asking = self.epsilon * (1 - self.values)
        first = asking / (1 + (2 * self.entries) ** (2 / 3))
        return first, asking - first, self.epsilon * self.values

    def randomise(self, rows: Rows, draws: list[np.random.Generator]) -> Rows:
        """Report the entries that pass."""
        found = np.zeros_like(rows)
        clipped = np.clip(np.nan_to_num(rows, nan=0.0), -self.limit, self.limit)
        told = LaplaceLattice(2 * self.entries * self.limit / self.budgets[2])
        for row, out, draw in zip(clipped, found, draws, strict=True):
            order = draw.permutation(len(row))
            passed = self.passed(np.abs(row[order]), draw)
            at = order[passed]
            out[at] = np.clip(told.add(row[at], words_of(draw)), -self.limit, self.limit)
        return found

    def passed(self, sizes: Rows, draw: np.random.Generator) -> np.ndarray:
        """The places of the first entries that pass, in the order of the comparisons.

        Args:
            sizes: magnitudes of the clipped entries, ``(entries,)``.
            draw: the client's secret stream.
        """
        first, asking, _ = self.budgets
        of_threshold = LaplaceLattice(self.limit / first)
        of_size = LaplaceLattice(2 * self.entries * self.limit / asking, of_threshold.step)
        least = of_threshold.add(np.array([self.threshold * self.limit]), words_of(draw))
        return np.flatnonzero(of_size.add(sizes, words_of(draw)) >= least)[: self.entries]

    def events(self, sensitivity: float | None) -> tuple[Event, ...]:
        """Return one release of the whole budget."""
        del sensitivity
        return (RandomisedResponse(unit=self.unit, epsilon=self.epsilon),)


# ---------------------------------------------------------------- a randomiser whose replies are seen only together with those of others


@dataclass(frozen=True)
class Anonymous(Stage, WithMemory, Guarding):
    """Randomise, and count a reply as one of ``clients`` in an order that nobody knows; see `atoll.privacy.Shuffled`.

    Nothing is shuffled here: it is the sum that hides the order, and whoever adds up that must be trusted to reveal the sum alone. A party refuses to
    reply where a sum of fewer replies could be used.

    Attributes:
        stage: a randomiser with an epsilon of its own.
        clients: replies of a sum, at least.
        shuffled_by: who hides whose reply is whose: ``"server"`` or ``"reducer"``.
    """

    stage: Randomiser = field(default_factory=LocalLaplace)
    clients: int = 1
    shuffled_by: Literal["server", "reducer"] = "server"
    linear: ClassVar[bool] = False
    unbiased: ClassVar[bool] = False
    secret: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not hasattr(self.stage, "randomise") or not all(hasattr(e, "epsilon") for e in self.stage.events(None)):
            raise ConfigError(
                f"stage={type(self.stage).__name__} has no epsilon of its own",
                where="Anonymous",
                remedy="use a pure randomiser, such as LocalLaplace or RandomisedSigns",
            )
        object.__setattr__(self, "remembers", facet(self.stage, WithMemory).remembers)

    def encode(self, value: Tree, context: StageContext) -> Tree:
        """Randomise one client's value."""
        return self.stage.encode(value, self._among(context))

    def encode_block(self, block: Tree, context: StageContext) -> Tree:
        """Randomise each client's value."""
        return self.stage.encode_block(block, self._among(context))

    def fresh(self, value: Tree) -> Tree:
        """Return the randomiser's first memory."""
        return facet(self.stage, WithMemory).fresh(value)

    def remember(self, value: Tree, memory: Tree, context: StageContext) -> tuple[Tree, Tree]:
        """Randomise with memory."""
        return facet(self.stage, WithMemory).remember(value, memory, self._among(context))

    def remember_block(self, block: Tree, memory: Tree, context: StageContext) -> tuple[Tree, Tree]:
        """Randomise each client's value with its memory."""
        return facet(self.stage, WithMemory).remember_block(block, memory, self._among(context))

    def events(self, sensitivity: float | None) -> tuple[Event, ...]:
        """Return one shuffled reply."""
        del sensitivity
        events = self.stage.events(None)
        epsilon = math.fsum(getattr(event, "epsilon", math.inf) * event.count for event in events)
        return (Shuffled(unit=events[0].unit, epsilon=epsilon, clients=self.clients, shuffled_by=self.shuffled_by),)

    def _among(self, context: StageContext) -> StageContext:
        """Refuse a sum that could have fewer replies, or that is not as hidden as it is counted."""
        if context.replies < self.clients or (self.shuffled_by == "reducer" and not context.hidden):
            raise CompositionError(
                f"a reply is counted as one of {self.clients} behind a {self.shuffled_by}, and this sum may have {context.replies}"
                + ("" if context.hidden else " that the server sees one by one"),
                where="Anonymous",
                remedy="use a quorum of all invited clients, and a secure reducer where shuffled_by is 'reducer'",
            )
        return context
