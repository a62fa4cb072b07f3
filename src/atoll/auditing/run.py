"""Audits: of a training, by canaries and what its ledger claims; and of a randomiser, by the replies that a server sees."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt
from numpy.typing import NDArray

from atoll.core.algebra.aggregate import Parts
from atoll.core.algebra.rng import Rng
from atoll.core.algebra.tree import Tree
from atoll.core.calls import checked_call
from atoll.core.errors import ConfigError, DataError
from atoll.core.event import Ledger
from atoll.core.persistence.files import as_json, write_bytes
from atoll.core.requests.island import Secret
from atoll.core.requests.results import Combined
from atoll.core.requests.stage import Stage
from atoll.core.requests.task import task
from atoll.core.validation import Checked
from atoll.data.missing import known_rows
from atoll.learn.aggregation.base import Renormalised
from atoll.learn.algorithm import Algorithm, RoundInfo
from atoll.learn.private.central import CentralDP
from atoll.learn.private.noisy_sum import NoisySum
from atoll.privacy import LossTally
from atoll.privacy.canaries import Audit, Tradeoff, guessed, lower_bound
from atoll.stages import LocalGaussian, LocalLaplace
from atoll.stages.local import Rows

if TYPE_CHECKING:
    from atoll.core.federation.federation import Federation
    from atoll.data import Dataset, Islands
    from atoll.learn.private.base import Mechanism
    from atoll.learn.training import Training

__all__ = [
    "Canaries",
    "HalfGaussian",
    "HalfLaplace",
    "Planted",
    "PrivateNormaliser",
    "SeededNoise",
    "UnclippedReplies",
    "WeakNoise",
    "audit",
    "audit_replies",
    "averaging",
    "central",
    "claimed_epsilon",
    "noise_of_seed",
    "own_value",
]


# ------------------------------------------------------------------ mechanisms that lie on purpose
#
# Mechanisms that lie on purpose: each claims what `CentralDP` claims, and breaks one thing. An audit that misses one is no audit.


@dataclass(frozen=True, kw_only=True)
class WeakNoise(CentralDP):
    """Noise is ``factor`` times what the ledger says. 0.5 is half the sensitivity; ``1 / sqrt(n)`` counts the shares of ``n`` clients twice.

    Attributes:
        factor: the noise's true standard deviation over the declared one.
    """

    factor: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (self.factor > 0 and math.isfinite(self.factor)):
            raise ConfigError(f"factor={self.factor}", where="WeakNoise", remedy="use a finite number above 0")

    def parts(self, training: Any, taking: Any, noise: float) -> Mapping[str, Any]:
        """Install less noise than is claimed."""
        made = dict(super().parts(training, taking, noise))
        return {**made, "aggregation": replace(made["aggregation"], noise=noise * self.factor)}


@dataclass(frozen=True, kw_only=True)
class UnclippedReplies(CentralDP):
    """Clients send their updates as they are, and the noise is for clipped ones."""

    def parts(self, training: Any, taking: Any, noise: float) -> Mapping[str, Any]:
        """Leave the clip out."""
        made = dict(super().parts(training, taking, noise))
        return {**made, "algorithm": training.algorithm, "uplink": training.uplink}


@dataclass(frozen=True, kw_only=True)
class SeededNoise(CentralDP):
    """Noise follows from the job's seed, which the server and every client know: whoever has it subtracts the noise.

    Attributes:
        seed: the seed.
    """

    seed: int = 0

    def parts(self, training: Any, taking: Any, noise: float) -> Mapping[str, Any]:
        """Draw noise from the seed."""
        made = dict(super().parts(training, taking, noise))
        own = _settings(made["aggregation"])
        return {**made, "aggregation": _OfSeed(**own, seed=self.seed)}


@dataclass(frozen=True, kw_only=True)
class PrivateNormaliser(CentralDP):
    """Replies are weighted by their numbers of examples, which are private, and the noise is for equal weights."""

    def parts(self, training: Any, taking: Any, noise: float) -> Mapping[str, Any]:
        """Weight by examples."""
        made = dict(super().parts(training, taking, noise))
        own = _settings(made["aggregation"])
        return {**made, "aggregation": _ByExamples(**own)}


def noise_of_seed(seed: int, leaf: str, number: int, shape: tuple[int, ...], deviation: float) -> Any:
    """The noise on one leaf in one round."""
    return deviation * Rng(seed).child("noise", leaf, number).generator().standard_normal(shape)


@dataclass(frozen=True, kw_only=True)
class _OfSeed(NoisySum):
    seed: int

    def combine(self, combined: Combined, params: Tree, memory: Tree, info: RoundInfo) -> tuple[dict[str, Any], Tree]:
        """Add noise that follows from the seed and the round."""
        del params
        deviation = self.noise * self.sensitivity
        made: dict[str, Any] = {}
        for name, tree in combined.value.items():
            made[name] = {
                leaf: (
                    np.asarray(value) * combined.weight[name]
                    + noise_of_seed(self.seed, leaf, info.round, np.shape(value), deviation)
                )
                / self.expected
                for leaf, value in tree.items()
            }
        return made, memory


@dataclass(frozen=True, kw_only=True)
class _ByExamples(NoisySum):
    def algorithm(self, base: Algorithm) -> Algorithm:
        """Return the base with its own weights."""
        return Renormalised().algorithm(base)

    def combine(self, combined: Combined, params: Tree, memory: Tree, info: RoundInfo) -> tuple[dict[str, Any], Tree]:
        """Divide by what the sum happens to weigh."""
        weighed = replace(combined, weight=dict.fromkeys(combined.weight, self.expected))
        return super().combine(weighed, params, memory, info)


def _settings(part: Any) -> dict[str, Any]:
    return {field.name: getattr(part, field.name) for field in fields(part)}


@dataclass(frozen=True)
class HalfLaplace(LocalLaplace):
    """Laplace noise for half the sensitivity: two values of L1 norm ``bound`` are ``2 bound`` apart, not ``bound``."""

    def randomise(self, rows: Rows, draws: list[np.random.Generator]) -> Rows:
        """Clip as declared and add half the noise."""
        return LocalLaplace(bound=self.bound, epsilon=2 * self.epsilon).randomise(rows, draws)


@dataclass(frozen=True)
class HalfGaussian(LocalGaussian):
    """Gaussian noise for half the sensitivity: two values of norm ``bound`` are ``2 bound`` apart, not ``bound``."""

    def randomise(self, rows: Rows, draws: list[np.random.Generator]) -> Rows:
        """Clip as declared and add half the noise."""
        return LocalGaussian(bound=self.bound, multiplier=self.multiplier / 2).randomise(rows, draws)


# ------------------------------------------------------------------ canaries
#
# Canaries: users or examples that are in a training by the toss of a coin, and what the released model says about each coin.


Array = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Canaries(Checked):
    """Canaries with one rare feature each, for linear models.

    Canary ``i`` has a feature that nobody else has, of value ``strength``, no other feature, and a random label. Its gradient touches only
    its own row of the weight matrix (and the bias, ``strength`` times less), so that it uses up the clipping bound in a direction of its own:
    the worst case that clipping allows. These are Dirac canaries (Nasr et al. 2023) made of data, so that they run through the same code as everybody's data.

    Attributes:
        count: number of coins.
        unit: what a canary is: ``"user"``, a client with one example, or ``"example"``, a row of a client that is there anyway.
        neighbours: ``"add-remove"``: the coin decides whether the canary is there. ``"replace-one"``: it decides which of two labels it has.
        rows: examples of a canary user, all the same.
        strength: value of the rare feature. Large values make the gradient longer than the clipping bound.
        guesses: how many coins the auditor guesses; by default half of them, those about which it is most certain.
        confidence: of the lower bound.
        tradeoff: what is claimed: one ``(epsilon, delta)``, or Gaussian noise, whose bound is far tighter; see `atoll.privacy.lower_bound`.
        seed: draws coins and labels; ``None`` from the operating system.
    """

    count: int = 1000
    unit: Literal["user", "example"] = "user"
    neighbours: Literal["add-remove", "replace-one"] = "add-remove"
    rows: int = 1
    strength: float = 30.0
    guesses: int | None = None
    confidence: float = 0.95
    tradeoff: Tradeoff = "approximate"
    seed: int | None = None

    def __post_init__(self) -> None:
        if self.unit not in ("user", "example") or self.neighbours not in ("add-remove", "replace-one"):
            raise ConfigError(
                f"unit={self.unit!r}, neighbours={self.neighbours!r}",
                where="Canaries",
                remedy="use unit 'user' or 'example', and neighbours 'add-remove' or 'replace-one'",
            )
        if self.tradeoff not in ("approximate", "gaussian"):
            raise ConfigError(f"tradeoff={self.tradeoff!r}", where="Canaries", remedy="use 'approximate' or 'gaussian'")
        if not (
            self.rows >= 1
            and self.count >= 2
            and 1 <= self.guessed <= self.count
            and 0 < self.confidence < 1
            and self.strength > 0
        ):
            raise ConfigError(
                f"count={self.count}, guesses={self.guesses}, confidence={self.confidence}, rows={self.rows}, strength={self.strength}",
                where="Canaries",
                remedy="use at least 2 canaries, guess 1 to all of them, and use a confidence in (0, 1) and a strength above 0",
            )

    @property
    def guessed(self) -> int:
        """How many coins the auditor guesses."""
        return self.count // 2 if self.guesses is None else self.guesses

    def plant(self, islands: Islands) -> Planted:
        """Return the clients with the canaries among them; features that are not in a table are flattened first.

        Raises:
            DataError: the data are not a classification.
        """
        from atoll.data import Dataset, Islands

        if islands.task not in ("classification", "binary") or not islands.classes:
            raise DataError(
                f"canaries have random labels, but the data are of task {islands.task!r}",
                where="Canaries",
                remedy="audit with data of a classification with integer labels",
            )
        draw = Secret(self.seed).generator()
        coins, classes = draw.random(self.count) < 0.5, int(islands.classes)
        labels = draw.integers(0, classes, self.count)
        first = int(np.prod(np.shape(islands.shard(0).x)[1:]))
        others = (labels + 1 + draw.integers(0, classes - 1, self.count)) % classes if classes > 1 else labels
        swapped = self.neighbours == "replace-one"
        there = np.arange(self.count) if swapped else np.flatnonzero(coins)
        rows = np.zeros((len(there), first + self.count))
        rows[np.arange(len(there)), first + there] = self.strength
        has = np.where(coins, labels, others)[there] if swapped else labels[there]
        hosts = draw.integers(0, len(islands), len(there)) if self.unit == "example" else np.full(len(there), -1)
        sets: dict[str, Dataset] = {}
        for i, name in enumerate(islands.names):
            shard, mine = known_rows(islands.shard(i), "an audit"), hosts == i
            x = np.concatenate([self._widen_features(shard.x, first), rows[mine]])
            sets[str(name)] = Dataset({"x": x, "y": np.concatenate([shard.y, has[mine]])}, **self._about(islands))
        if self.unit == "user":
            for i, at in enumerate(there):
                sets[f"canary-{at}"] = Dataset(
                    {"x": np.repeat(rows[i : i + 1], self.rows, axis=0), "y": np.repeat(has[i : i + 1], self.rows)},
                    **self._about(islands),
                )
        test = islands.test
        if test is not None:
            test = Dataset({"x": self._widen_features(test.x, first), "y": test.y}, **self._about(islands))
        made = Islands.from_datasets(sets, test=test, scheme="with canaries")
        return Planted(self, made, first, coins, labels, others if swapped else None)

    def _widen_features(self, x: Any, first: int) -> Array:
        """Features of other clients: theirs, and zeros for the canaries'."""
        flat = np.asarray(x, np.float64).reshape(len(x), first)
        return np.concatenate([flat, np.zeros((len(flat), self.count))], axis=1)

    def _about(self, islands: Islands) -> dict[str, Any]:
        return {"task": islands.task, "classes": islands.classes, "name": islands.name}


@dataclass(frozen=True)
class Planted:
    """Clients with canaries among them.

    Attributes:
        canaries: the canaries' settings.
        islands: the clients.
        first: the feature of the first canary.
        coins: whether each canary is in (or has its first label), ``(canaries,)``. The run must not know.
        labels: the label of each canary, ``(canaries,)``.
        others: the labels of canaries that lost their coin, for neighbours by replacing one.
    """

    canaries: Canaries
    islands: Islands = field(repr=False)
    first: int
    coins: npt.NDArray[np.bool_] = field(repr=False)
    labels: npt.NDArray[np.int64] = field(repr=False)
    others: npt.NDArray[np.int64] | None = field(repr=False)

    @property
    def features(self) -> int:
        """Features of an example, with those of the canaries."""
        return self.first + self.canaries.count

    @property
    def classes(self) -> int:
        """Number of classes."""
        return int(self.islands.classes or 2)

    def scores(self, params: Tree, known: Tree = None) -> Array:
        """How far the model moved towards each canary: the product of its own weights with the direction of its update, ``(canaries,)``.

        Args:
            params: what was released: ``{"weight": (features, classes), ...}`` of a linear model that began at 0, or a sum of its updates.
            known: a part of it that the auditor knows, such as noise from a seed; it is subtracted.

        Raises:
            ConfigError: it is not the weight matrix of a linear model on these data.
        """
        weight = np.asarray(params["weight"] if isinstance(params, dict) and "weight" in params else params, np.float64)
        if weight.shape != (self.features, self.classes):
            raise ConfigError(
                f"weights of shape {weight.shape}; the canaries need {(self.features, self.classes)}",
                where="Planted.scores",
                remedy=f"train atoll.models.linear({self.features}, {self.classes})",
            )
        if known is not None:
            weight = weight - np.asarray(known["weight"])
        towards = np.eye(self.classes)[self.labels]
        away = 1 / self.classes if self.others is None else np.eye(self.classes)[self.others]
        return np.asarray((weight[self.first :] * (towards - away)).sum(axis=1))

    def audit(self, scores: npt.ArrayLike, claimed: float, delta: float, adversary: str = "model") -> Audit:
        """Return what the scores say about the claimed epsilon."""
        settings = self.canaries
        right = guessed(scores, self.coins, settings.guessed)
        lower = lower_bound(right, settings.guessed, settings.confidence, delta, settings.count, settings.tradeoff)
        return Audit(
            claimed=claimed, lower=lower, confidence=settings.confidence, delta=delta, right=right, guesses=settings.guessed,
            canaries=settings.count, unit=settings.unit, neighbours=settings.neighbours, adversary=adversary,
            tradeoff=settings.tradeoff,
        )  # fmt: skip


# ------------------------------------------------------------------ audits
#
# Audits: of a training, by canaries and what its ledger claims; and of a randomiser, by the replies that a server sees.


@checked_call
def audit(
    job: Training | Callable[[Planted], Training],
    islands: Any,
    canaries: Canaries | None = None,
    *,
    delta: float = 1e-5,
    accountant: str = "pld",
    adversary: str = "model",
    claimed: float | None = None,
    known: Callable[[Planted], Tree] | None = None,
    seed: int = 0,
    engine: Any = "batched",
    folder: str | Path | None = None,
) -> Audit:
    """Train once with canaries, and bound from below the epsilon that the run really had.

    The model becomes `atoll.models.linear` with a feature more for each canary; every other part of the job is as given. So the audit is one of
    the mechanism as it is installed in this job, against somebody who sees the final model and knows everything but the coins.

    Args:
        job: the training, or a function that makes it for the planted data.
        islands: the clients that are there anyway.
        canaries: by default 1,000 users.
        delta: delta of the claim.
        accountant: how the ledger is counted; see `atoll.privacy.epsilon_of`.
        adversary: whom the claim is about: ``"server"``, ``"clients"`` or ``"model"``.
        claimed: the claimed epsilon; by default that of the ledger.
        known: a part of the released model that the auditor knows, and subtracts.
        seed: seed of the run; coins and noise do not follow from it.
        engine: the engine.
        folder: a run folder; it then also has ``audit.json``, which the report shows.

    Returns:
        The claim and the lower bound.

    Raises:
        ConfigError: the training releases nothing under privacy, so that there is no claim.
    """
    from atoll.models import linear
    from atoll.simulation import simulate

    planted = (canaries or Canaries()).plant(islands)
    whole = job(planted) if not hasattr(job, "replace") else job
    whole = whole.replace(model=linear(planted.features, planted.classes))
    with tempfile.TemporaryDirectory(prefix="atoll-audit-") as place:
        where = Path(folder) if folder is not None else Path(place) / "run"
        result = simulate(whole, planted.islands, engine=engine, seed=seed, folder=where, progress=False)
        said = claimed_epsilon(where, delta, accountant, adversary, planted.canaries.neighbours)
        if claimed is None and said is None:
            raise ConfigError(
                "the training claims no epsilon: its ledger is empty",
                where="audit",
                remedy="give the training a privacy mechanism, or pass claimed=",
            )
        scores = planted.scores(result.params, None if known is None else known(planted))
        found = planted.audit(scores, claimed if claimed is not None else said or 0.0, delta, adversary)
        if folder is not None:
            write_bytes(where / "audit.json", as_json(found.plain(), indent=1).encode())
    return found


def claimed_epsilon(
    folder: Path, delta: float, accountant: str = "pld", adversary: str = "model", neighbours: str = "add-remove"
) -> float | None:
    """The largest epsilon of a party in the ledger of a run folder; ``None`` if it has no entry."""
    path = folder / "checkpoints" / "ledger.jsonl"
    if not path.exists():
        return None
    tally = LossTally(Ledger(path)).update()
    return tally.most(delta, accountant, adversary, neighbours) if tally.losses else None


def averaging(planted: Planted, privacy: Mechanism | None, rounds: int, **parts: Any) -> Training:
    """Return federated averaging of everybody on planted data, with a mechanism.

    Args:
        planted: the clients, with canaries.
        privacy: the mechanism.
        rounds: number of rounds.
        parts: further parts of the training.
    """
    import atoll

    fixed: dict[str, Any] = {
        "algorithm": atoll.FedAvg(lr=0.5),
        "selection": atoll.Everyone(),
        "pacing": atoll.Synchronous(quorum=1.0),
        "rounds": rounds,
        "evaluation": atoll.Evaluation(every=rounds),
        "checkpoint_every": rounds,
        "privacy": privacy,
    }
    return atoll.Training(model=atoll.models.linear(planted.features, planted.classes), **{**fixed, **parts})


def central(planted: Planted, epsilon: float, delta: float, rounds: int = 2, sabotage: float = 1.0) -> Training:
    """Return a training of everybody whose rounds cost ``epsilon`` together.

    Args:
        planted: the clients, with canaries.
        epsilon: what the run claims.
        delta: its delta.
        rounds: number of rounds.
        sabotage: factor on the noise; 1 is what the ledger says.
    """
    return averaging(planted, WeakNoise(epsilon=epsilon, delta=delta, clip=1.0, factor=sabotage), rounds)


@task
def own_value(island: Any, message: Tree) -> Mapping[str, Parts]:
    """Reply with the party's own vector."""
    del message
    return {"value": Parts(np.asarray(island.data, np.float64))}


@checked_call
def audit_replies(
    stage: Stage,
    *,
    canaries: int = 1000,
    guesses: int | None = None,
    entries: int = 4,
    apart: bool = False,
    delta: float = 0.0,
    confidence: float = 0.95,
    tradeoff: Tradeoff = "approximate",
    seed: int | None = None,
) -> Audit:
    """Ask canaries for their vectors through a randomiser, and bound its epsilon from below.

    Each canary's coin decides which of two vectors it has, both far beyond any bound: ``+e_1`` or ``-e_1`` times a million; or ``+e_1`` or ``-e_2`` if ``apart``, which also
    tells where the large entry is. The score is the difference of what came back in these places.

    Args:
        stage: the randomiser, as an uplink stage with events.
        canaries: clients, a coin each.
        guesses: how many coins are guessed; by default half of them.
        entries: length of a vector, at least 2.
        apart: whether the two vectors have their large entry in different places.
        delta: of the claim and the bound; 0 for pure randomisers.
        confidence: of the bound.
        tradeoff: what is claimed: one ``(epsilon, delta)``, or Gaussian noise; see `atoll.privacy.lower_bound`.
        seed: draws the coins; ``None`` from the operating system.

    Returns:
        The claim of the ledger and the lower bound, for a user whose value is replaced, against the server.
    """
    from atoll.simulation import simulate

    coins = Secret(seed).generator().random(canaries) < 0.5
    one, other = np.zeros(entries), np.zeros(entries)
    one[0], other[1 if apart else 0] = 1e6, -1e6
    clients = {f"canary-{i}": one if coin else other for i, coin in enumerate(coins)}

    async def program(fed: Federation) -> list[NDArray[np.float64]]:
        done = await fed.sum(fed.parties, own_value, uplink=[stage], quorum=len(fed.parties))
        return [np.asarray(part.value) for part in done["value"]]

    with tempfile.TemporaryDirectory(prefix="atoll-audit-") as place:
        where = Path(place) / "run"
        seen = np.array(simulate(program, clients, engine="inline", folder=where, tasks=[own_value], progress=False))
        claimed = claimed_epsilon(where, delta, "pld" if delta else "exact", "server", "replace-one") or 0.0
    many = canaries // 2 if guesses is None else guesses
    right = guessed(seen[:, 0] + (seen[:, 1] if apart else 0.0), coins, many)
    return Audit(
        claimed=claimed, lower=lower_bound(right, many, confidence, delta, canaries, tradeoff), confidence=confidence, delta=delta, right=right,
        guesses=many, canaries=canaries, unit="user", neighbours="replace-one", adversary="server", tradeoff=tradeoff,
    )  # fmt: skip
