"""Is an ensemble worth it? One model, the same model as wide as all leaves, opt-in data alone, and every way to join leaves, on the same test rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core.errors import DataError
from atoll.learn.round.evaluation import Evaluation

if TYPE_CHECKING:
    from atoll.data import Dataset, Islands
    from atoll.ensemble import Federated, FederatedEnsemble

__all__ = ["EnsembleArms", "compare_ensemble"]


@dataclass(frozen=True)
class EnsembleArms:
    """What each arm scores.

    Attributes:
        scores: arm -> ``auc`` and ``accuracy``: ``baseline`` is one model of all clients, ``wide`` one with the width of all leaves, ``opt_in_alone`` one of the rows that
            the server has, ``own_leaf`` the leaf of the row's user, and the others ways to join.
        parameters: numbers of ``baseline``, ``ensemble`` and ``wide``.
        ensemble: the ensemble.
    """

    scores: dict[str, dict[str, float]]
    parameters: dict[str, int]
    ensemble: FederatedEnsemble


def compare_ensemble(
    job: Federated, islands: Islands, wide: Any = None, seed: int = 0, **simulation: Any
) -> EnsembleArms:
    """Train an ensemble and its rivals on the same users, under the same seed, mechanism and number of rounds.

    Every rival trains on the users that train leaves, not on opt-in users, but for ``opt_in_alone``, which trains on these alone, without noise.

    Args:
        job: the ensemble.
        islands: its data, with test rows.
        wide: the model with the width of all leaves; ``None`` leaves the arm out.
        seed: the seed.
        simulation: further arguments of ``simulate``, such as ``engine``.

    Raises:
        DataError: there are no test rows.
    """
    from atoll.simulation import simulate

    if islands.test is None or not len(islands.test):
        raise DataError(
            "there are no test rows, on which the arms are compared",
            where="compare_ensemble",
            remedy="give islands with test rows: islands.with_test(rows)",
        )
    made: FederatedEnsemble = simulate(job, islands, seed=seed, **simulation).outcome
    away = set(made.opt_in)
    theirs = [place for place, name in enumerate(islands.names) if str(name) not in away]
    plain = job.leaf.replace(evaluation=Evaluation(every=job.leaf.rounds, server=False))
    scores, parameters = {}, {}
    for arm, model in (("baseline", job.leaf.model), ("wide", wide)):
        if model is not None:
            found = simulate(plain.replace(model=model), islands.subset(theirs), seed=seed, **simulation).model
            scores[arm] = _score(found, islands.test)
            parameters[arm] = sum(one.numel() for one in found.parameters())
    if away:
        there = [place for place, name in enumerate(islands.names) if str(name) in away]
        alone = simulate(plain.replace(privacy=None, budget=None), islands.subset(there), seed=seed, **simulation)
        scores["opt_in_alone"] = _score(alone.model, islands.test)
    scores |= {name: dict(found) for name, found in made.scores.items()}
    return EnsembleArms(scores, {**parameters, "ensemble": made.parameters}, made)


def _score(model: Any, test: Dataset) -> dict[str, float]:
    import torch

    from atoll.ensemble.joining import log_probabilities
    from atoll.ensemble.model import score_probabilities

    with torch.no_grad():
        chances = log_probabilities(model(torch.tensor(np.asarray(test.x)))).double().exp().numpy()
    return score_probabilities(chances, np.asarray(test.y))
