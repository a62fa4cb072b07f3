"""A PyTorch model as a learner: what a `Training` needs of it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

import torch
from atoll.core import message as M
from atoll.core.aggregate import Aggregate, Parts
from atoll.core.errors import ConfigError
from atoll.core.rng import Rng
from atoll.core.task import Batch, Summed, Task, Work
from atoll.core.tree import Tree
from atoll.learn.evaluation import as_parts
from atoll.learn.learner import LearnerSettings
from atoll.learn.local import count_steps
from torch import nn

from .choose import Choices
from .local import LocalTraining
from .models import buffers_of, init, load, params_of
from .scoring import row_sums, score_rows

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.core.cohort import Cohort

__all__ = ["TorchLearner", "adapt"]


def adapt(model: nn.Module, settings: LearnerSettings, data: Any) -> TorchLearner:
    """Make a learner of a module for a federated data set.

    Raises:
        DataError: the model does not fit the data.
    """
    learner = TorchLearner(model, settings, data)
    learner.check(data)
    return learner


class TorchLearner:
    """Trains and evaluates a ``torch.nn.Module``.

    Args:
        model: the module; a module's own weights are where training starts, a factory is called under the run's seed.
        settings: algorithm, loss, device, compilation, buffers.
        data: the federated data set, for its task.
    """

    def __init__(self, model: nn.Module, settings: LearnerSettings, data: Any) -> None:
        self.module = model
        self.factory: Callable[[], nn.Module] | None = settings.factory
        loss = settings.loss if settings.loss != "auto" else _loss_for(getattr(data, "task", "classification"))
        self.training = LocalTraining(
            model,
            settings.algorithm,
            loss=loss,
            device=settings.device,
            compile=settings.compile,
            buffers=settings.buffers,
            volume=settings.volume,
        )
        self.algorithm = settings.algorithm
        self.train = Task(
            "atoll.torch.learner:train",
            self._train,
            many=self._many,
            sums=self._sums,
            work=self._work,
            tuning=_Tuning(self),
        )
        self.measure = Task("atoll.torch.learner:measure", self._measure, many=self._measure_many)

    # ------------------------------------------------------------------ the learner

    def init(self, rng: Rng) -> Tree:
        """The initial parameters, as arrays."""
        return params_of(self.module if self.factory is None else init(self.factory, rng))

    def buffers(self) -> Tree:
        """The model's running statistics, when clients average them."""
        return buffers_of(self.module) if self.training.buffers == "averaged" else {}

    def evaluate(self, params: Tree, data: Any) -> dict[str, float]:
        """Sums over a data set: ``n``, ``loss_sum`` and, by task, ``correct`` or ``squared_error`` and ``absolute_error``."""
        sums = row_sums(self.training, params, data)
        return {name: float(rows.sum()) for name, rows in sums.items()}

    def scores(self, params: Tree, x: Any) -> NDArray[Any]:
        """The model's outputs for some inputs."""
        return score_rows(self.training, params, x)

    def export(self, params: Tree) -> nn.Module:
        """A copy of the module with these parameters."""
        return load(self.module, params)

    def check(self, data: Any) -> None:
        """Refuse data that the model does not fit, before anyone is contacted."""
        test = getattr(data, "test", None)
        sample = test if test is not None and len(test) else next((data.shard(i) for i in range(len(data))), None)
        if sample is not None and len(sample):
            self.training.look_at(sample, "the test data" if sample is test else "the first client's data")

    # ------------------------------------------------------------------ tasks

    def _work(self, data: Any, args: Any) -> Work:
        del args
        n = len(data)
        return Work(float(n), float(count_steps(self.algorithm, n)), float(self.algorithm.epochs))

    def _train(self, island: Any, message: Tree) -> dict[str, Aggregate]:
        with one_thread():
            reply, state = self.training.one(island.data, message["broadcast"], island.state, island.rng.key)
        if state is not None:
            island.state = state
        return reply

    def _inputs(self, cohort: Cohort) -> tuple[Any, list[Tree] | None]:
        """Where the cohort's rows come from, and its private states (``None`` when nobody has any)."""
        gather = getattr(cohort.population, "gather", None)
        shards: Any = (
            (lambda places: gather(cohort.positions[places], "x", "y"))
            if gather is not None
            else [cohort.shard(i) for i in range(len(cohort))]
        )
        states = [cohort.state(i) for i in range(len(cohort))]
        return shards, (states if any(state is not None for state in states) else None)

    def _many(self, cohort: Cohort, message: Tree) -> Iterator[Batch]:
        shards, states = self._inputs(cohort)
        with one_thread():
            yield from self.training.many(shards, message["broadcast"], states, cohort.keys)

    def _sums(self, cohort: Cohort, message: Tree) -> Summed:
        shards, states = self._inputs(cohort)
        with one_thread():
            made = self.training.many_sum(shards, message["broadcast"], states, cohort.keys)
        sent = {
            name: {"kind": total.kind, "value": total.value, "weight": 1.0}
            for name, total in made.totals.items()
            if total.kind != "parts"
        }
        return Summed(made.totals, made.kept, made.rejected, made.states, M.nbytes(sent))

    def _measure(self, island: Any, message: Tree) -> Any:
        return as_parts(self.evaluate(message["params"], island.data))

    def _measure_many(self, cohort: Cohort, message: Tree) -> Iterator[Batch]:
        """All clients' rows through the model together, then added up client by client."""
        shards, _ = self._inputs(cohort)
        chunk = 1024
        for begin in range(0, len(cohort), chunk):
            places = np.arange(begin, min(begin + chunk, len(cohort)))
            if callable(shards):
                x, y, offsets = shards(places)
            else:
                columns = [(np.asarray(shards[i].x), np.asarray(shards[i].y)) for i in places]
                x, y = np.concatenate([c[0] for c in columns]), np.concatenate([c[1] for c in columns])
                offsets = np.concatenate([[0], np.cumsum([len(c[0]) for c in columns])])
            rows = row_sums(self.training, message["params"], (x, y))
            running = {name: np.concatenate([[0.0], np.cumsum(values)]) for name, values in rows.items()}
            value = {name: total[offsets[1:]] - total[offsets[:-1]] for name, total in running.items()}
            yield Batch(places, {"measure": Parts(value, examples=value["n"], metric=True)})


class _Tuning:
    """Records and repeats how a learner's cohorts are run."""

    def __init__(self, learner: TorchLearner) -> None:
        self._learner = learner

    @property
    def choices(self) -> dict[str, Any]:
        """What was decided."""
        return self._learner.training.choices

    def recall(self, choices: dict[str, Any]) -> None:
        """Repeat an earlier decision."""
        self._learner.training._choices = Choices.of(choices) if choices else None

    def prepare(self, cohort: Cohort, message: Tree) -> float:
        """Decide and compile; return the expected seconds of this cohort on one core."""
        shards, states = self._learner._inputs(cohort)
        training = self._learner.training
        with one_thread():
            training.prepare(shards, message["broadcast"], states, cohort.keys)
        return training.expected_seconds(len(cohort))


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Small operations lose more to threads than they gain; cohorts are spread over processes instead."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _loss_for(task: str) -> str:
    losses = {"classification": "cross_entropy", "regression": "mse", "binary": "bce"}
    if task not in losses:
        raise ConfigError(f"no loss is the usual one for task {task!r}", where="loss", remedy="name a loss")
    return losses[task]
