"""Learners whose local training is a black box: an estimator's own fit, or a user's own loop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from atoll.core.algebra.aggregate import Aggregate
from atoll.core.algebra.rng import Rng
from atoll.core.algebra.tree import Tree, items
from atoll.core.capability import Capability
from atoll.core.errors import DataError
from atoll.core.requests.task import Task, Workload

from ..algorithm import Algorithm, LocalWork
from ..capabilities import TRAINING
from ..learner import LearnerSettings, require_fit
from ..round.evaluation import measure_client, own_model
from .reports import Reporting, as_metrics, as_reports, training_passes
from .update import asked_epochs, coming_epochs, finish_update, start_update, whole_times

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.core.requests.island import Island

__all__ = ["OpaqueLearner", "epochs_done"]


def epochs_done(algorithm: Algorithm, asked: int | None) -> float:
    """Return what counts as epochs in one contact of a model that runs its own training."""
    if asked is None or algorithm.steps is None:
        return float(asked or algorithm.epochs)
    return float(algorithm.epochs * whole_times(algorithm, asked))


class OpaqueLearner(Reporting):
    """Base class of such learners. The algorithm's ``start`` and ``finish`` run as usual, with ``fit`` instead of its steps.

    So the algorithm decides what is sent and how it is combined. The training itself (learning rate, batches) belongs to the model;
    the algorithm's ``lr`` and ``batch_size`` are not used.

    One call of ``fit`` counts as the algorithm's own ``epochs`` (or ``steps``). If a request asks for another number, the client calls ``fit`` that many
    times, each time from the last result, and refuses a number that is not a multiple. The loss reported after training is that of
    the trained model.

    Args:
        name: prefix of the tasks' names.
        settings: the training's settings.

    Raises:
        CompositionError: the algorithm changes the local step, which is impossible here.
    """

    takes_device = False
    offers: ClassVar[frozenset[Capability]] = frozenset({TRAINING})

    def __init__(self, name: str, settings: LearnerSettings) -> None:
        self.algorithm = settings.algorithm
        require_fit(settings.algorithm, type(self).__name__, self.offers)
        self.train = Task(f"{name}:train", self._train, load=self._load)
        self.measure = Task(f"{name}:measure", self._measure)
        self.report = self.survey(f"{name}:report")

    def usable(self, data: Any) -> Any:
        """Return the client's rows for training: all of them, unless the learner leaves some out."""
        return data

    def fit(self, params: Tree, data: Any, rng: Rng, memory: Tree) -> tuple[Tree, Tree]:
        """Train on a client's data.

        Args:
            params: the starting point; must not be changed in place.
            data: the client's rows.
            rng: the stream of this client and round.
            memory: the memory from the last call at this client, ``None`` at first.

        Returns:
            The trained parameters (``None`` if nothing can be learned from these rows) and the new memory.
        """
        raise NotImplementedError

    def fit_for(self, params: Tree, data: Any, rng: Rng, memory: Tree, epochs: int | None) -> tuple[Tree, Tree]:
        """Return the result of ``fit`` for ``epochs`` epochs (or steps) instead of the algorithm's own.

        Raises:
            CompositionError: the request is for a part of a training that cannot be divided.
        """
        found: Tree = None
        for time in range(whole_times(self.algorithm, epochs)):
            stream = rng.child("again", time) if time else rng
            made, memory = self.fit(params, data, stream, memory)
            found, params = (found, params) if made is None else (made, _same_shapes(params, made))
        return found, memory

    def personal(self, params: Tree, state: Tree) -> Tree:
        """Return the model of a client with this private state."""
        return own_model(self.algorithm, params, None if state is None else state["algorithm"])

    def buffers(self) -> Tree:
        """Return no buffers."""
        return {}

    def _load(self, sizes: NDArray[np.int64], args: Any, message: Tree) -> Workload:
        del args  # one call of `fit`, whatever the phase
        epochs = epochs_done(self.algorithm, coming_epochs(self.algorithm, message)) + training_passes(message)
        passes = np.full(len(sizes), epochs)
        return Workload(sizes.astype(np.float64), passes, passes)

    def _train(self, island: Island, message: Tree) -> dict[str, Aggregate]:
        asked, epochs = self._list_requested(message), asked_epochs(self.algorithm, message)
        data, broadcast = self.usable(island.data), message["broadcast"]
        kept = island.state or {"algorithm": None, "memory": None}
        local = start_update(self.algorithm, broadcast, kept["algorithm"])
        found, memory = (None, None)
        if len(data):
            found, memory = self.fit_for(local["params"], data, island.rng, kept["memory"], epochs)
        trained = local["params"] if found is None else found
        examples = 0.0 if found is None else float(len(data))
        work = LocalWork(examples, epochs_done(self.algorithm, epochs))
        reply, client = finish_update(self.algorithm, {**local, "params": trained}, broadcast, kept["algorithm"], work)
        if client is not None or memory is not None:
            island.state = {"algorithm": client, "memory": memory}
        sums = self.evaluate(trained, data)
        if "loss_sum" in sums or "loss" in sums:
            loss = sums.get("loss_sum", sums.get("loss", 0.0)) / max(1.0, sums["n"])
            reply = {**reply, **as_metrics({"loss": loss}, float(len(data)))}
        return {**reply, **as_reports({name: self._loss_of(sums, len(data), name) for name in asked})}

    def _measure(self, island: Island, message: Tree) -> dict[str, Aggregate]:
        return measure_client(self, island, message)


def _same_shapes(before: Tree, after: Tree) -> Tree:
    """Refuse parameters of another structure: NumPy would silently broadcast some of them."""
    old = {path: np.shape(leaf) for path, leaf in items(before)}
    new = {path: np.shape(leaf) for path, leaf in items(after)}
    if old != new:
        wrong = next(path for path in [*old, *new] if old.get(path) != new.get(path))
        raise DataError(
            f"training returned parameter {wrong!r} of shape {new.get(wrong)}, but it had shape {old.get(wrong)}",
            remedy="return parameters with the same names and shapes as `init` returns",
        )
    return after
