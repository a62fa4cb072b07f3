"""Is federating worth it? Compare each island alone, federated training, and all data in one place, with equal model and work."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from atoll.core.algebra import tree as T
from atoll.core.algebra.aggregate import Mean
from atoll.core.algebra.tree import Tree
from atoll.core.errors import CompositionError, DataError
from atoll.learn.round.evaluation import scores
from atoll.learn.selection.uniform import Everyone

if TYPE_CHECKING:
    from atoll.core.federation.federation import Federation
    from atoll.data import Islands
    from atoll.learn import Algorithm, Training
    from atoll.simulation import Result

__all__ = ["baseline_arms", "epochs_per_island", "train_alone", "train_pooled"]


def epochs_per_island(job: Training, parties: int) -> int:
    """Mean number of local epochs of an island in the whole federated training; at least one.

    ``rounds * cohort / population * epochs``: the other ways of training get the same work.
    """
    cohort = job.selection.cohort_size(parties)
    return max(1, math.ceil(job.rounds * cohort / parties * job.algorithm.epochs))


def train_alone(job: Training, islands: Islands, **simulation: Any) -> list[float]:
    """Train each island by itself, as long as it trains in the federation; test each model on the common test set.

    Args:
        job: the federated training to compare with.
        islands: its data, with a test set.
        simulation: further arguments of ``simulate``, such as ``engine`` and ``seed``.

    Returns:
        Each island's accuracy, in island order.

    Raises:
            DataError: there is no test set, or it has no accuracy.
    """
    from atoll.simulation import simulate

    epochs = epochs_per_island(job, len(islands))
    algorithm = replace(job.algorithm, epochs=epochs)
    solo = job.replace(algorithm=algorithm, uplink=(), downlink=None, callbacks=(), stop=())
    learner = solo.learner(islands)

    async def program(fed: Federation) -> list[float]:
        params = learner.init(fed.rng.child("init"))
        phase = algorithm.phases[0]
        message = {"broadcast": algorithm.broadcast(algorithm.init(params), phase), "phase": phase}
        replies = await fed.ask_all(fed.parties, learner.train, message)
        updates = [_update(reply, algorithm) for reply in replies.values]
        return [_accuracy(learner.evaluate(T.add(params, update), islands.test)) for update in updates]

    found: list[float] = simulate(program, islands, tasks=[learner.train], **simulation)
    return found


def _update(reply: dict[str, Any], algorithm: Algorithm) -> Tree:
    """The change from the global model to an island's own model."""
    if not isinstance(reply.get("update"), Mean):
        raise CompositionError(
            f"{type(algorithm).__name__} does not reply with an update of a local model",
            where="train_alone",
            remedy="use an algorithm such as FedAvg",
        )
    return reply["update"].value


def _accuracy(sums: dict[str, float]) -> float:
    found = scores(sums)
    if "accuracy" not in found:
        raise DataError(
            f"the test set gives {', '.join(found) or 'nothing'}, and no accuracy",
            where="islands.test",
            remedy="use classified data with a test set",
        )
    return found["accuracy"]


def train_pooled(
    job: Training, islands: Islands, *, on_record: Callable[[dict[str, Any]], None] | None = None, **simulation: Any
) -> Result:
    """Train the same model on all rows in one place, for as many epochs; one round is one epoch."""
    from atoll.data import Islands
    from atoll.simulation import simulate

    epochs = epochs_per_island(job, len(islands))
    one_place = Islands.from_datasets({"everyone": islands.pooled()}, test=islands.test, scheme="pooled")
    central = job.replace(
        algorithm=replace(job.algorithm, epochs=1),
        selection=Everyone(),
        uplink=(),
        downlink=None,
        rounds=epochs,
        stop=(),
    )
    made: Result = simulate(central, one_place, on_record=on_record, **simulation)
    return made


def _as_islands(given: Any, job: Training) -> Islands:
    """Return data sets by client as islands with test rows.

    Raises:
        DataError: it is none, or there are no test rows, on which all arms are compared.
    """
    from atoll.data import Islands
    from atoll.data.federated import as_population

    made = as_population(given, one_form=job.one_form)
    if not isinstance(made, Islands) or made.test is None:
        raise DataError(
            f"{made!r} has no test rows, on which the arms are compared"
            if isinstance(made, Islands)
            else f"a {type(given).__name__} is no federated data set",
            where="baseline_arms",
            remedy="give islands with test rows: Islands.from_datasets(parts).with_test(rows), or islands.holdout(0.2)",
        )
    return made


def baseline_arms(job: Training) -> dict[str, Any]:
    """Return the arms that say whether federating is worth it: each island ``alone``, ``federated``, and all rows ``pooled``, with equal work.

    Example::

        found = atoll.study.run_study(atoll.study.baseline_arms(job), islands)

    ``alone`` is the mean over the islands of the accuracy on the common test rows; its rows have the worst and the best island too.
    """

    def alone(islands: Islands, seed: int) -> dict[str, float]:
        found = train_alone(job, _as_islands(islands, job), seed=seed, progress=False)
        return {"test/accuracy": sum(found) / len(found), "alone/worst": min(found), "alone/best": max(found)}

    def score_pooled(islands: Islands, seed: int) -> dict[str, float]:
        made = train_pooled(job, _as_islands(islands, job), seed=seed, progress=False)
        return {"test/accuracy": float(made.metrics.last("test/accuracy"))}

    return {"alone": alone, "federated": job, "pooled": score_pooled}
