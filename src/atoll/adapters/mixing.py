"""A mixture of a participant's own: scores of the frozen encoder, of the shared adapter, and of one that goes on learning at the participant."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core.algebra.rng import Rng
from atoll.core.errors import ConfigError, DataError
from atoll.data import Dataset, Islands
from atoll.learn.algorithms.fedavg import FedAvg
from atoll.learn.algorithms.local_adaptive import LocalAdam
from atoll.learn.metrics import LogLoss

from .encoder import unit_rows

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.data.islands import Shard

    from .job import Tuning

__all__ = ["PersonalMixture", "mix_personal"]


@dataclass(frozen=True)
class PersonalMixture:
    """A participant's mixture ``s(x) = a_frozen s_frozen(x) + a_shared s_shared(x) + a_own s_own(x)`` of class scores; the three weights add up to 1.

    Attributes:
        frozen: weight of the prompts alone, without an adapter.
        shared: weight of the adapter that all participants have.
        own: weight of the adapter that went on learning at this one.
        params: the values of that adapter, which stay at the participant.
    """

    frozen: float
    shared: float
    own: float
    params: Mapping[str, Any] = field(repr=False)
    _scorer: _Scorer = field(repr=False, compare=False)

    def score(self, rows: Dataset | Shard) -> NDArray[np.float64]:
        """Return the mixed scores of rows with their column of texts or images, ``(rows, classes)``."""
        weights = (self.frozen, self.shared, self.own)
        return np.asarray(sum(w * one for w, one in zip(weights, self._scorer.score(rows, self.params), strict=True)))


def mix_personal(
    job: Tuning,
    params: Mapping[str, Any],
    train: Dataset | Shard,
    chosen_by: Dataset | Shard,
    *,
    algorithm: FedAvg | None = None,
    epochs: int = 5,
    step: float = 0.25,
    seed: int = 0,
) -> PersonalMixture:
    """Let a shared adapter go on learning at a participant, and choose how much of which it uses there. Nothing leaves the participant.

    The weights are those of a grid with the best accuracy on ``chosen_by``; of equally good ones those with the least cross entropy, and then with most of the
    shared adapter. Source: Mansour, Mohri, Ro, Suresh 2020, "Three Approaches for Personalization with Applications to Federated Learning", section 5 (interpolation of models),
    with the frozen encoder as a third part.

    Args:
        job: the tuning that made the shared adapter.
        params: its values, ``result.params``.
        train: the participant's rows to learn from.
        chosen_by: others of its rows, to choose the weights by.
        algorithm: how it learns there: `FedAvg` or `LocalAdam`; by default Adam with rate .001 and 32 rows a step.
        epochs: passes over ``train``.
        step: distance of the weights on the grid, 1 divided by a whole number.
        seed: orders the rows.

    Raises:
        ConfigError: the algorithm is another one, the step does not divide 1, or there are no epochs.
        DataError: there are no rows to choose by, or the values are not those of the job.
    """
    local = LocalAdam(lr=0.001, batch_size=32) if algorithm is None else algorithm
    if type(local) not in (FedAvg, LocalAdam):
        raise ConfigError(
            f"algorithm is a {type(local).__name__}", where="mix_personal", remedy="use FedAvg(...) or LocalAdam(...)"
        )
    parts = round(1 / step) if step > 0 else 0
    if epochs < 1 or parts < 1 or abs(parts * step - 1) > 1e-9:
        raise ConfigError(
            f"epochs={epochs}, step={step}",
            where="mix_personal",
            remedy="use at least 1 epoch, and a step such as 0.25",
        )
    if job.causal or len(chosen_by) == 0:
        raise DataError(
            "there are no classes" if job.causal else "there are no rows to choose the weights by",
            where="mix_personal",
            remedy="use a tuning of classes, and give some rows of the participant that it does not train on",
        )
    own_job: Any = job.replace(algorithm=local)
    scorer = _Scorer(own_job, params, train if isinstance(train, Dataset) else train.source.take(train.rows))
    own = scorer.train(train, epochs, seed)
    table = np.stack(scorer.score(chosen_by, own))
    best = _choose(table, np.asarray(chosen_by["y"]), parts, scorer.prompts is not None)
    return PersonalMixture(*best, own, scorer)


def _choose(table: NDArray[np.float64], y: NDArray[Any], parts: int, prompted: bool) -> tuple[float, float, float]:
    """Return the best weights for scores ``(3, rows, classes)``."""
    found = []
    for frozen in range(parts + 1 if prompted else 1):
        for own in range(parts + 1 - frozen):
            weights = np.array([frozen, parts - frozen - own, own]) / parts
            scores = np.tensordot(weights, table, 1)
            right = float((scores.argmax(1) == y).mean())
            lost = LogLoss().of(scores, y)["loss"]
            found.append((-right, lost, -weights[1], frozen, tuple(weights.tolist())))
    return min(found)[-1]


class _Scorer:
    """What scores rows with the frozen encoder, with shared values, and with given ones."""

    def __init__(self, job: Tuning, params: Mapping[str, Any], rows: Dataset) -> None:
        self._rows, self._params = job.model.rows, dict(params)
        self._learner: Any = job.learner(Islands.from_datasets({"own": rows}))
        first = self._learner.init(Rng.of(0))
        if {name: np.shape(value) for name, value in first.items()} != {n: np.shape(v) for n, v in params.items()}:
            raise DataError(
                "the values are not those of this job",
                where="mix_personal",
                remedy="give result.params of the same tuning",
            )
        target = job.model.target(rows)
        self.prompts, self._scale = target.prompts, target.scale

    def train(self, rows: Dataset | Shard, epochs: int, seed: int) -> dict[str, NDArray[np.float32]]:
        """Return the values after some epochs on rows."""
        algorithm = self._learner.algorithm
        training, phase = self._learner.plan(algorithm.phases[-1])[-1], algorithm.phases[-1]
        sent = algorithm.broadcast(algorithm.init(self._params), phase)
        key = int(Rng.of(seed).child("mixture").generator().integers(2**63))
        reply, _ = training.one(self._rows.encode(rows), sent, None, key, epochs=epochs)
        update = reply["update"].value
        return {name: np.asarray(value + np.asarray(update[name])) for name, value in self._params.items()}

    def score(self, rows: Dataset | Shard, own: Mapping[str, Any]) -> list[NDArray[np.float64]]:
        """Return the scores of the three parts, ``(rows, classes)`` each; zeros of the frozen encoder where there are no prompts."""
        x = np.asarray(self._rows.encode(rows)["x"])
        made = [np.asarray(self._learner.scores(params, x), dtype=np.float64) for params in (self._params, own)]
        frozen = np.zeros_like(made[0])
        if self.prompts is not None:
            features, prompts = (unit_rows(one) for one in (self._rows.features_of(rows), self.prompts))
            frozen = self._scale * (features.astype(np.float64) @ prompts.T)
        return [frozen, *made]
