"""The trainings of `labels-robust`, by name, and their scores, which are kept."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.reproduce import Lab, NotKept

from ..semi.trainings import TrialSize, digits, network

if TYPE_CHECKING:
    from atoll.data import Islands
    from atoll.learn import Algorithm

__all__ = ["POISONS", "RADIUS", "RobustTrial", "robust_scores"]

RADIUS = 0.1
POISONS = ("clean", "flipped", "noise")
_WORK: dict[str, Any] = {"lr": 0.05, "steps": 16, "batch_size": 48}


@dataclass(frozen=True)
class RobustTrial:
    """One kind of training.

    Attributes:
        method: ``"labels"``, ``"guesses"`` (plain pseudo-labels), ``"attacked labels"``, ``"attacked guesses"``, ``"FixMatch"``, ``"SemiFL"`` or ``"RSCFed"``.
        poison: ``"clean"``; ``"flipped"``: 3 of 10 clients have the next class on each of their labels; ``"noise"``: 3 of 10 clients have noise in place of images.
        labels: labelled rows of all clients.
    """

    method: str
    poison: str = "clean"
    labels: int = 100

    @property
    def title(self) -> str:
        """Its name among kept scores."""
        return f"{self.method}-{self.poison}-{self.labels}".replace(" ", "-")

    def algorithm(self, rounds: int) -> Algorithm:
        """Return what clients train by."""
        from atoll.labels import FixMatch, RobustSelfTraining, RSCFed, SemiFL, Supervised
        from atoll.labels.views import weak

        work, near = {**_WORK, "horizon": rounds}, weak("images")
        made: dict[str, Any] = {
            "labels": lambda: Supervised(view=near, **work),
            "guesses": lambda: RobustSelfTraining(radius=0.0, view=near, **work),
            "attacked labels": lambda: RobustSelfTraining(radius=RADIUS, weight=0.0, view=near, **work),
            "attacked guesses": lambda: RobustSelfTraining(radius=RADIUS, view=near, **work),
            "FixMatch": lambda: FixMatch(**work),
            "SemiFL": lambda: SemiFL(labels_at="clients", **work),
            "RSCFed": lambda: RSCFed(**work),
        }
        algorithm: Algorithm = made[self.method]()
        return algorithm

    def islands(self, scale: TrialSize, seed: int) -> Islands:
        """Return the clients, with few labels each, of whom some are poisoned."""
        import atoll.data

        few = atoll.data.unlabel(digits(scale, seed), keep=self.labels, at="rows", seed=seed)
        if self.poison == "clean":
            return few
        how = atoll.data.Mislabel(1.0, kind="pairs") if self.poison == "flipped" else atoll.data.Irrelevant()
        return atoll.data.corrupt(few, {how: 0.3}, seed=seed)


def robust_scores(lab: Lab, trial: RobustTrial, scale: TrialSize) -> list[dict[str, float]] | None:
    """Return ``plain`` and ``attacked`` accuracy of each seed's model; ``None`` if one is not kept and nothing may be trained.

    Raises:
        Interrupted: the user asked to stop; finished trainings are kept.
    """
    try:
        return [
            lab.scores(f"{trial.title}-{scale.rows}-{scale.rounds}-{seed}", partial(_one, trial, scale, seed))
            for seed in range(scale.seeds)
        ]
    except NotKept:
        return None


def _one(trial: RobustTrial, scale: TrialSize, seed: int) -> dict[str, float]:
    import torch

    import atoll
    from atoll.labels.evaluators import accuracy_under_attack

    data = trial.islands(scale, seed)
    job = atoll.Training(
        model=network, algorithm=trial.algorithm(scale.rounds), selection=atoll.Uniform(scale.cohort), rounds=scale.rounds,
        evaluation=atoll.Evaluation(every=scale.rounds), compile="never",
    )  # fmt: skip
    result = atoll.simulate(job, data, engine="inline", seed=seed, progress=False)
    test: Any = data.test
    x, y = torch.from_numpy(np.array(test["x"][:500])), torch.from_numpy(np.array(test["y"][:500]))
    under = accuracy_under_attack(result.model, x, y, RADIUS)[1]
    return {"plain": float(result.metrics.last("test/accuracy")), "attacked": under}
