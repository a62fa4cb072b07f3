"""Private summaries as a program: parties release private embeddings, and the server chooses public points that match them."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from atoll.core.algebra.aggregate import Sum
from atoll.core.algebra.tree import Tree
from atoll.core.errors import ConfigError, DataError
from atoll.core.event import Gaussian
from atoll.core.federation.reducer import Plain, Reducer
from atoll.core.requests.task import task
from atoll.core.validation import Checked
from atoll.privacy import NoisePlan, noise_for
from atoll.privacy.discrete import add_gaussian

from .features import RandomFeatures
from .greedy import ChosenPoints, choose_points
from .mwem import Mwem

if TYPE_CHECKING:
    from atoll.core.federation.federation import Federation
    from atoll.core.requests.island import Island

__all__ = ["DataSummary", "Points", "histogram_of", "noisy_embedding"]

Array = NDArray[np.float64]


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
        phi = self.features.of(public.x)
        hashed = {"count": self.features.count, "width": self.features.width, "seed": self.features.seed}

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
