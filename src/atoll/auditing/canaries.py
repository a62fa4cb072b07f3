"""Canaries: users or examples that are in a training by the toss of a coin, and what the released model says about each coin."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from atoll.core.algebra.tree import Tree
from atoll.core.errors import ConfigError, DataError
from atoll.core.requests.island import Secret
from atoll.core.validation import Checked
from atoll.data.missing import known_rows
from atoll.privacy.canaries import Audit, Tradeoff, guessed, lower_bound

if TYPE_CHECKING:
    from atoll.data import Dataset, Islands

__all__ = ["Canaries", "Planted"]

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
