"""One contact of a NumPy learner: its input, the kept state, and what may leave."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core.algebra.aggregate import Aggregate, Mean
from atoll.core.algebra.tree import Tree
from atoll.core.facets import facet
from atoll.core.requests.task import Workload

from ..algorithm import Phased, Private
from .partial import Counted, asked_epochs, coming_epochs, epochs_of_pass, quota
from .release import released
from .reports import training_passes
from .update import ClippedGradient, Curvature, LossGradient, count_many, local_contact

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.core.requests.island import Island

    from ..algorithm import Algorithm

__all__ = ["declared", "load_of", "trained"]


def load_of(algorithm: Algorithm) -> Callable[[NDArray[np.int64], Mapping[str, Any], Tree], Workload]:
    """Return ``declared`` as the ``load`` of a `Task` that trains with an algorithm."""
    return functools.partial(_load, algorithm)


def _load(algorithm: Algorithm, sizes: NDArray[np.int64], args: Mapping[str, Any], message: Tree) -> Workload:
    del args
    return declared(algorithm, sizes, message)


def declared(algorithm: Algorithm, sizes: NDArray[np.int64], message: Tree = None) -> Workload:
    """Return the work that clients declare beforehand: examples, mini-batch steps and epochs, summed over all passes.

    Args:
        algorithm: the pure functions.
        sizes: examples of each client, ``(clients,)``.
        message: the request's message. The passes are those of its ``"phase"``, or of all phases if it names none (a node that is its own server);
            its ``"epochs"`` replace the algorithm's own, and a ``"profile"`` in its ``"reports"`` is one more pass over the data.
    """
    named = isinstance(message, Mapping) and "phase" in message
    phases = (str(message["phase"]),) if named else algorithm.phases
    asked = coming_epochs(algorithm, message)
    passes = [
        quota(part, epochs_of_pass(algorithm, part, asked))
        for phase in phases
        for part in facet(algorithm, Phased).passes(phase)
    ]
    batches, epochs = np.zeros(len(sizes)), np.zeros(len(sizes))
    for part in passes:
        steps = count_many(part, sizes)
        batches += steps
        epochs += steps / _batches(part, sizes) if part.steps is not None else part.epochs
    looks = training_passes(message)
    if looks:
        batches += np.where(sizes > 0, looks * _batches(algorithm, sizes), 0)
    return Workload(sizes.astype(np.float64) * len(passes), batches, epochs + looks)


def _batches(part: Counted, sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the number of mini-batches of a pass over the data; 1 without a pass."""
    return np.asarray(np.maximum(-(-sizes // np.maximum(part.batch_of(sizes), 1)), 1))


def trained(
    algorithm: Algorithm,
    island: Island,
    message: Tree,
    rows: tuple[Any, Any],
    loss_gradient: LossGradient,
    curvature: Curvature,
    weight: float = 1.0,
    clipped: ClippedGradient | None = None,
) -> dict[str, Aggregate]:
    """Run a phase at a client, keep its state, and return what may leave: with privacy only the mechanism's reply, otherwise also the mean loss.

    Args:
        algorithm: the pure functions.
        island: the client.
        message: ``{"broadcast", "phase"}``, and optionally ``"epochs"``; see `atoll.learn.local.partial`.
        rows: inputs and targets.
        loss_gradient: see ``local_update``.
        curvature: see ``local_update``.
        weight: weight of the client's loss in the cohort's mean.
        clipped: see ``local_update``.

    Raises:
        DataError: the data break an assumption of the algorithm's privacy.
        CompositionError: the algorithm does not support the requested amount of local work.
    """
    epochs = asked_epochs(algorithm, message)
    secret = released(algorithm, island)
    x, y = rows
    # Overflows are not finite; adding up replies rejects and names them.
    with np.errstate(over="ignore", invalid="ignore"):
        reply, state, loss = local_contact(
            algorithm,
            message["phase"],
            loss_gradient,
            message["broadcast"],
            island.state,
            x,
            y,
            island.rng.key,
            curvature,
            secret,
            epochs,
            clipped,
        )
    if state is not None:
        island.state = state
    if secret is not None or facet(algorithm, Private).alone:
        return reply
    return {**reply, "loss": Mean(np.float64(loss), examples=weight, role="metric")}
