"""Private summaries of data that may not move: points of a public set that stand for the parties' rows.

Parties release private embeddings, and the server chooses public points that match them.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal, localcontext
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from atoll.core.algebra.aggregate import Sum
from atoll.core.algebra.rng import Rng, name_order
from atoll.core.algebra.tree import Tree
from atoll.core.calls import checked_call
from atoll.core.errors import ConfigError, DataError
from atoll.core.event import Event, Gaussian, Laplace
from atoll.core.federation.reducer import Plain, Reducer
from atoll.core.requests.island import Secret
from atoll.core.requests.task import task
from atoll.core.validation import Checked
from atoll.privacy import NoisePlan, RandomisedResponse, noise_for
from atoll.privacy.discrete import DIGITS, add_gaussian, add_laplace, words_of

if TYPE_CHECKING:
    from atoll.core.federation.federation import Federation
    from atoll.core.requests.island import Island

__all__ = [
    "ChosenPoints",
    "DataSummary",
    "Mwem",
    "Points",
    "RandomFeatures",
    "choose_points",
    "discrepancy",
    "histogram_of",
    "noisy_embedding",
]

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class RandomFeatures:
    """``phi(x) = sqrt(2 / D) cos(W x + b)`` with ``W ~ N(0, width^-2 I)`` and ``b ~ U[0, 2 pi]``.

    ``E <phi(x), phi(y)> = exp(-||x - y||^2 / (2 width^2))``, with an error of order ``D^(-1/2)``. Rahimi, Recht 2007, "Random Features for Large-Scale Kernel
    Machines". The hash is public: it follows from the seed. It hides nothing by itself; noise on sums of it does.

    Attributes:
        count: number of features, ``D``.
        width: width of the kernel, in units of the rows.
        seed: draws the hash.
        columns: names of the rows' columns, if they have any: the numbers of a column are drawn in the order of the names, so that no order of columns changes features.
    """

    count: int = 200
    width: float = 1.0
    seed: int = 0
    columns: Sequence[str] = ()

    def __post_init__(self) -> None:
        if self.count < 1 or not (math.isfinite(self.width) and self.width > 0):
            raise ConfigError(
                f"count={self.count}, width={self.width}",
                where="RandomFeatures",
                remedy="use at least one feature, and a finite width above 0",
            )

    @property
    def length(self) -> float:
        """Largest L2 norm of a row's features."""
        return math.sqrt(2.0)

    def of(self, rows: Any) -> Array:
        """Features of rows, ``(rows, count)``, from rows of any shape."""
        flat = np.asarray(rows, np.float64).reshape(len(rows), -1)
        draw = Rng(self.seed).child("random features").generator()
        turns = draw.normal(0.0, 1 / self.width, (flat.shape[1], self.count))
        if len(self.columns) == len(turns):
            turns[name_order(self.columns)] = turns.copy()
        found: Array = math.sqrt(2 / self.count) * np.cos(flat @ turns + draw.uniform(0, 2 * math.pi, self.count))
        return found


# ---------------------------------------------------------------- points that stand for a distribution


@dataclass(frozen=True)
class ChosenPoints:
    """Points and their weights.

    Attributes:
        points: rows of the candidates, in the order of choice, ``(points,)``.
        weights: their weights; they sum to 1.
        discrepancies: squared discrepancy after each choice; it never grows.
    """

    points: NDArray[np.int64]
    weights: Array
    discrepancies: list[float]


@checked_call
def choose_points(features: Any, target: Any, size: int) -> ChosenPoints:
    """Choose points greedily.

    ``||target - sum_i w_i phi(z_i)||^2`` is the squared maximum mean discrepancy of the weighted points to a distribution with mean embedding ``target``. Each step
    moves a share ``g`` of the weight to one more point; point and share minimise the discrepancy (kernel herding with line search: Bach, Lacoste-Julien, Obozinski
    2012). So it never grows, whatever noise the target has; with equal weights it can.

    Args:
        features: of the candidates, ``(candidates, features)``.
        target: mean embedding of the distribution, ``(features,)``.
        size: number of points.

    Raises:
        ConfigError: there are fewer candidates than points, or shapes differ.
    """
    phi, goal = np.asarray(features, np.float64), np.asarray(target, np.float64)
    if phi.ndim != 2 or goal.shape != phi.shape[1:] or not 1 <= size <= len(phi):
        raise ConfigError(
            f"size={size}, {phi.shape} features of candidates, a target of shape {goal.shape}",
            where="choose_points",
            remedy="choose 1 to all candidates, and give the target as many features as they have",
        )
    first = int(np.argmin(((phi - goal) ** 2).sum(axis=1)))
    points, weights, mean = [first], np.ones(1), phi[first].copy()
    found = [float(((goal - mean) ** 2).sum())]
    free = np.ones(len(phi), bool)
    free[first] = False
    for _ in range(size - 1):
        way, rest = phi - mean, goal - mean
        lengths, gains = (way**2).sum(axis=1), way @ rest
        share = np.clip(gains / np.where(lengths > 0, lengths, 1.0), 0.0, 1.0)
        drop = np.where(free, 2 * share * gains - share**2 * lengths, -np.inf)
        at = int(np.argmax(drop))
        free[at] = False
        weights = np.append(weights * (1 - share[at]), share[at])
        points.append(at)
        mean = mean + share[at] * way[at]
        found.append(float(((goal - mean) ** 2).sum()))
    return ChosenPoints(np.array(points), weights, found)


@checked_call
def discrepancy(one: Any, other: Any) -> float:
    """Maximum mean discrepancy of two mean embeddings: their distance."""
    return float(np.linalg.norm(np.asarray(one) - np.asarray(other)))


# ---------------------------------------------------------------- MWEM


@dataclass(frozen=True, kw_only=True)
class Mwem:
    """Approximate a histogram by answers to linear queries.

    Hardt, Ligett, McSherry 2012, "A Simple and Practical Algorithm for Differentially Private Data Release", figure 1.
    In each of ``steps`` rounds the exponential mechanism chooses a query that is answered badly (``epsilon / (2 steps)``; one row changes an answer by at most
    1), Laplace noise of scale ``2 steps / epsilon`` measures it (``m``), and ``A(x) <- A(x) exp(q(x) (m - q(A)) / (2 n))``, normalised to ``n`` rows. The result is the
    mean of all ``A``. The number of rows is public: neighbours replace one row. Choices and measurements are drawn in whole steps, so that no last bits tell the data.

    Attributes:
        epsilon: of the whole.
        steps: rounds.
    """

    epsilon: float = 1.0
    steps: int = 10

    def __post_init__(self) -> None:
        if self.steps < 1 or not (math.isfinite(self.epsilon) and self.epsilon > 0):
            raise ConfigError(
                f"epsilon={self.epsilon}, steps={self.steps}",
                where="Mwem",
                remedy="use a finite epsilon above 0, and at least one step",
            )

    @property
    def events(self) -> tuple[Event, ...]:
        """What one histogram costs: the choices (randomised response is the worst of all that is equally private) and the measurements."""
        each = self.epsilon / (2 * self.steps)
        return (
            RandomisedResponse(unit="example", epsilon=each, count=self.steps),
            Laplace(unit="example", epsilon=each, count=self.steps),
        )

    def histogram(self, counts: Array, queries: Array, secret: Secret) -> Array:
        """Return an approximate histogram, ``(domain,)``, that sums to the number of rows.

        Args:
            counts: rows at each place of the domain, ``(domain,)``.
            queries: values in [0, 1], ``(queries, domain)``.
            secret: of the party.

        Raises:
            ConfigError: a query has a value outside [0, 1], so that one row could change its answer by more than 1.
        """
        if queries.size == 0 or queries.min() < 0 or queries.max() > 1:
            raise ConfigError("queries outside [0, 1]", where="Mwem", remedy="give queries with values in [0, 1]")
        n, draw, each = float(counts.sum()), secret.generator(), self.epsilon / (2 * self.steps)
        if n == 0:
            return np.zeros(len(counts))
        true = queries @ counts
        weights = np.full(len(counts), n / len(counts))
        total = np.zeros(len(counts))
        for _ in range(self.steps):
            errors = np.abs(true - queries @ weights)
            at = choose(errors, each, draw)
            measured = float(add_laplace(true[at], 1 / each, draw, 1.0))
            moved = np.log(weights) + queries[at] * (measured - queries[at] @ weights) / (2 * n)
            weights = np.exp(moved - moved.max())
            weights *= n / weights.sum()
            total += weights
        found: Array = total / self.steps
        return found


def choose(errors: Array, epsilon: float, draw: np.random.Generator) -> int:
    """Return a place by the exponential mechanism, ``P(i) ~ exp(epsilon error_i / 2)``, for errors that one row moves by at most 1.

    Errors count in steps of ``2^-20``, rounded down, which one row moves by at most ``2^20 + 1``. Weights have 60 digits, and 128 random bits choose.
    """
    steps = np.floor(errors * 2.0**20).astype(np.int64).tolist()
    most, bits = max(steps), [int(word) for word in words_of(draw)(2)]
    with localcontext(DIGITS):
        rate = Decimal(epsilon) / (2 * ((1 << 20) + 1))
        weights = [(rate * (step - most)).exp() for step in steps]
        left = sum(weights) * (Decimal((bits[0] << 64) | bits[1]) / Decimal(1 << 128))
        for place, weight in enumerate(weights):
            left -= weight
            if left < 0:
                return place
    return len(steps) - 1


# ---------------------------------------------------------------- the program: parties release embeddings, the server chooses points


@task
def noisy_embedding(island: Island, message: Tree) -> dict[str, Sum]:
    """The sum of the features of a party's rows, with its share of the noise: ``(features,)``."""
    hashed = RandomFeatures(**message["features"])
    rows = np.asarray(island.data["x"], np.float64)
    island.spend(Gaussian(unit="example", noise_multiplier=message["noise"]))
    scale = message["noise"] * 2 * hashed.length / math.sqrt(message["sharing"])  # each party's share
    moved = 2 * hashed.length / math.sqrt(message["sharing"])
    noisy = add_gaussian(hashed.of(rows).sum(axis=0), scale, island.secret.generator(), moved)
    return {"sum": Sum(noisy), "rows": Sum(np.float64(len(rows)))}


@task
def histogram_of(island: Island, message: Tree) -> dict[str, Sum]:
    """A party's private histogram over the public points: each row counts at the nearest, and MWEM releases it."""
    hashed, release = RandomFeatures(**message["features"]), Mwem(**message["mwem"])
    places = np.asarray(message["points"], np.float64)
    rows = np.asarray(island.data["x"], np.float64).reshape(len(island.data), -1)
    near = (rows**2).sum(axis=1)[:, None] - 2 * rows @ places.T + (places**2).sum(axis=1)
    counts = np.bincount(near.argmin(axis=1), minlength=len(places)).astype(float)
    queries = (1 + hashed.of(places).T * math.sqrt(hashed.count / 2)) / 2  # cosines, moved to [0, 1]
    for event in release.events:
        island.spend(event)
    made = release.histogram(counts, queries, island.secret)
    return {"histogram": Sum(made), "rows": Sum(np.float64(len(rows)))}


@dataclass(frozen=True)
class Points:
    """A summary.

    Attributes:
        x: the chosen public rows, ``(points, ...)``.
        chosen: which they are, their weights, and the discrepancy after each choice.
        target: the private mean embedding of all rows, ``(features,)``.
        rows: number of rows of all parties; it is public.
    """

    x: Any = field(repr=False)
    chosen: ChosenPoints
    target: Array = field(repr=False)
    rows: int


@dataclass(frozen=True, kw_only=True)
class DataSummary(Checked):
    """Choose public points that stand for all parties' rows, without seeing any.

    Parties release their rows' embedding by random Fourier features with Gaussian noise, or histograms by MWEM whose queries are the same features; the server
    adds them up and chooses points of ``islands.public`` greedily. Sarpatwar, Shanmugam, Ganapavarapu, Jagmohan, Vaculin 2019, "Differentially Private
    Distributed Data Summarization under Covariate Shift".

    Unit: one example. Neighbours: replace one; numbers of rows are public. Adversary: the server, and everybody who gets the points. With a
    secure ``reducer`` parties share the Gaussian noise of the sum, which then has that of one party instead of ``m``; otherwise, and with MWEM, each release
    is private by itself.

    Attributes:
        size: number of points.
        epsilon: of each example.
        delta: its delta; only the noise needs it.
        method: ``"features"`` (noise on the embedding) or ``"mwem"``.
        features: the random features.
        steps: steps of MWEM.
        reducer: how replies are combined.

    Example:
        >>> import atoll
        >>> rows = atoll.data.digits()
        >>> islands = atoll.data.iid(rows, parties=5, seed=0).with_public(rows.take(slice(0, 200)))
        >>> made = DataSummary(size=10, epsilon=2.0, features=RandomFeatures(width=3.0))
        >>> points = atoll.simulate(made.program(islands), islands, engine="inline")
        >>> len(points.chosen.points), round(float(points.chosen.weights.sum()), 6)
        (10, 1.0)
    """

    size: int
    epsilon: float
    delta: float = 1e-5
    method: Literal["features", "mwem"] = "features"
    features: RandomFeatures = field(default_factory=RandomFeatures)
    steps: int = 10
    reducer: Reducer = field(default_factory=Plain)
    citation: ClassVar[str] = (
        "Sarpatwar, Shanmugam, Ganapavarapu, Jagmohan, Vaculin. Differentially Private Distributed Data Summarization under Covariate Shift. NeurIPS 2019."
    )

    def __post_init__(self) -> None:
        if self.size < 1 or self.method not in ("features", "mwem"):
            raise ConfigError(
                f"size={self.size}, method={self.method!r}",
                where="DataSummary",
                remedy="choose at least one point, by method 'features' or 'mwem'",
            )
        Mwem(epsilon=self.epsilon, steps=self.steps)  # refuses an epsilon or steps that make no sense

    @property
    def noise(self) -> float:
        """Noise multiplier of one embedding that keeps epsilon."""
        plan = NoisePlan(
            mechanism="gaussian",
            noise=1.0,
            delta=self.delta,
            unit="example",
            neighbours="replace-one",
            adversary="server",
        )
        return noise_for(plan, self.epsilon, "pld").noise

    def program(self, data: Any) -> Callable[[Federation], Awaitable[Points]]:
        """Return the program of this summary on a federated data set.

        Raises:
            DataError: the server has no public rows to choose from.
        """
        public = getattr(data, "public", None)
        if public is None or len(public) < self.size:
            raise DataError(
                f"the server has {0 if public is None else len(public)} public rows, and {self.size} points are wanted",
                where="DataSummary",
                remedy="give the federated data set public rows, with_public(...)",
            )
        given = replace(self.features, columns=list(self.features.columns or data.about.features))
        phi, hashed = given.of(public.x), vars(given)

        async def program(fed: Federation) -> Points:
            if self.method == "features":
                sharing = len(fed.parties) if self.reducer.secure else 1
                message: Tree = {"features": hashed, "noise": self.noise, "sharing": sharing}
                done = await fed.sum(
                    fed.parties, noisy_embedding, message, reducer=self.reducer, quorum=len(fed.parties)
                )
                total = done["sum"]
            else:
                places = np.asarray(public.x, np.float64).reshape(len(public), -1)
                message = {
                    "features": hashed, "points": places, "mwem": {"epsilon": self.epsilon, "steps": self.steps},
                }  # fmt: skip
                done = await fed.sum(fed.parties, histogram_of, message, reducer=self.reducer)
                total = np.asarray(done["histogram"]) @ phi
            rows = round(float(done["rows"]))
            target = np.asarray(total) / max(1, rows)
            chosen = choose_points(phi, target, self.size)
            fed.record({"points": self.size, "rows": rows, "discrepancy": math.sqrt(chosen.discrepancies[-1])})
            return Points(np.asarray(public.x)[chosen.points], chosen, target, rows)

        return program
