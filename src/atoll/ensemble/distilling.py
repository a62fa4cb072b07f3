"""One model from many: a student learns what an ensemble says of rows without labels, once or in every round.

One-shot federated learning trains every client alone, once, and joins the models (`IndividualClusters`). A student that imitates them is as small as one of them. FedDF does so in
every round: it starts the next one from a student that imitates the clients' models, and not from the mean of their weights alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from atoll.core.algebra.rng import Rng
from atoll.core.errors import ConfigError, DataError
from atoll.core.job import members_of
from atoll.core.validation import Checked, require_parts
from atoll.learn.round.evaluation import Evaluation
from atoll.learn.training import Training
from atoll.torch import seeded

from .clusters import IndividualClusters
from .job import Federated
from .joining import JoinedLeaves, descend, log_probabilities, probabilities_of
from .model import score_probabilities

if TYPE_CHECKING:
    from atoll.core.federation.federation import Federation

__all__ = ["Distillation", "FedDF", "average_models", "distil"]


@dataclass(frozen=True, kw_only=True)
class Distillation(Checked):
    """How a student imitates a teacher: steps of Adam on ``T^2 KL(p_teacher^(1/T) || p_student^(1/T))`` over mini-batches of rows without labels (Hinton et al. 2015).

    Attributes:
        steps: of Adam.
        lr: of Adam.
        batch: rows of a step; ``None`` for all.
        temperature: ``T``, above 0; larger ones show more of the improbable classes.
        seed: of the mini-batches.
    """

    steps: int = 300
    lr: float = 0.005
    batch: int | None = 64
    temperature: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if (
            self.steps < 1
            or not (self.lr > 0 and math.isfinite(self.lr))
            or (self.batch is not None and self.batch < 1)
        ):
            raise ConfigError(
                f"steps={self.steps}, lr={self.lr}, batch={self.batch}",
                where="Distillation",
                remedy="use at least one step and one row, and a finite rate above 0",
            )
        if not (self.temperature > 0 and math.isfinite(self.temperature)):
            raise ConfigError(
                f"temperature={self.temperature}", where="Distillation", remedy="use a finite number above 0, such as 1"
            )


def distil(teacher: nn.Module, rows: NDArray[Any], student: Any, settings: Distillation | None = None) -> nn.Module:
    """Return a student that imitates a teacher on rows without labels; neither of the given models changes.

    Args:
        teacher: a classifier, such as the ``model`` of a `FederatedEnsemble` that needs no leaf of a row.
        rows: features, ``(n, ...)``; they may be generated.
        student: the model to begin with, or a function that makes one.
        settings: by default those of `Distillation`.

    Raises:
        DataError: there is no row, or the models answer different classes.
    """
    how = settings or Distillation()
    x = torch.tensor(np.asarray(rows))
    if not len(x):
        raise DataError(
            "there is no row to learn from", where="distil", remedy="give rows without labels, which may be generated"
        )
    made = deepcopy(student) if isinstance(student, nn.Module) else seeded(student, how.seed)
    made.train().requires_grad_(True)
    with torch.no_grad():
        told = (log_probabilities(deepcopy(teacher).eval()(x)) / how.temperature).log_softmax(-1)
        classes = log_probabilities(made(x[:1])).shape[-1]
    if classes != told.shape[-1]:
        raise DataError(
            f"a student of {classes} classes for a teacher of {told.shape[-1]}",
            where="distil",
            remedy="give the student as many outputs as the teacher has classes",
        )
    generator = Rng.of(how.seed).child("distil").generator()
    size = len(x) if how.batch is None else min(how.batch, len(x))

    def loss() -> torch.Tensor:
        chosen = torch.from_numpy(generator.permutation(len(x))[:size])
        said = (log_probabilities(made(x[chosen])) / how.temperature).log_softmax(-1)
        gap = nn.functional.kl_div(said, told[chosen], reduction="batchmean", log_target=True)
        return gap * how.temperature**2

    descend([one for one in made.parameters() if one.requires_grad], loss, how.steps, how.lr, 0.0)
    return made.eval().requires_grad_(False)


def average_models(models: Sequence[nn.Module], weights: Sequence[float]) -> nn.Module:
    """Return the model with the weighted mean of the models' numbers; counters of layers are those of the first.

    Args:
        models: models of one architecture.
        weights: one each, 0 or more, of which one is above 0.
    """
    given = np.asarray(weights, np.float64) / np.sum(weights)
    states = [one.state_dict() for one in models]
    made = deepcopy(models[0])
    mean = {}
    for name, first in states[0].items():
        parts = [float(share) * state[name] for share, state in zip(given, states, strict=True)]
        mean[name] = torch.stack(parts).sum(0).to(first.dtype) if first.is_floating_point() else first
    made.load_state_dict(mean)
    return made


@dataclass(frozen=True, kw_only=True)
class FedDF(Checked):
    """Ensemble distillation for robust model fusion (Lin, Kong, Stich, Jaggi, NeurIPS 2020), as a program for simulated clients: ``atoll.simulate(FedDF(...), islands)`` gives the model.

    In each round the clients train from the server's model. The server takes the mean of their weights, and lets it imitate the mean of their logits on rows without
    labels. It sees every client's model, so this is no method for secure sums.

    Attributes:
        training: the clients' work in a round: its model, algorithm and loss; its rounds do not count.
        rows: rows without labels, at the server.
        rounds: how many.
        clients: clients of a round, drawn; 0 for all.
        distillation: how the server's model imitates.
    """

    training: Training
    rows: NDArray[Any] = field(repr=False)
    rounds: int = 10
    clients: int = 0
    distillation: Distillation = field(default_factory=Distillation)

    def __post_init__(self) -> None:
        require_parts(
            self,
            {
                "training": (Training, "atoll.Training(model=...)"),
                "distillation": (Distillation, "atoll.ensemble.Distillation()"),
            },
        )
        if self.rounds < 1 or self.clients < 0:
            raise ConfigError(
                f"rounds={self.rounds}, clients={self.clients}",
                where="FedDF",
                remedy="use at least one round, and 0 or more clients",
            )

    async def __call__(self, fed: Federation) -> nn.Module:
        """Run the rounds; each is recorded with the model's scores on the test rows."""
        model: Any = self.training.model
        test = getattr(fed.world.population, "test", None)
        for number in range(1, self.rounds + 1):
            names = [str(name) for name in fed.parties.names]
            if 0 < self.clients < len(names):
                drawn = fed.rng.child("clients", number).generator().choice(len(names), self.clients, replace=False)
                names = [names[place] for place in sorted(drawn.tolist())]
            leaf = self.training.replace(model=model, rounds=1, evaluation=Evaluation(server=False))
            job = Federated(clusters=IndividualClusters(), leaf=leaf, aggregate="logits", smallest=1)
            found = await fed.run(job, names, scope=f"round-{number}")
            sizes = getattr(members_of(fed.world.population, names), "sizes", [1] * len(names))
            teacher = JoinedLeaves(found.leaves, "logits")
            mean = average_models(found.leaves, list(sizes))
            model = distil(teacher, self.rows, mean, self.distillation).requires_grad_(True)
            row: dict[str, Any] = {"round": number}
            if test is not None and len(test):
                with torch.no_grad():
                    chances = probabilities_of(log_probabilities(model(torch.tensor(np.asarray(test.x)))))
                row |= {
                    f"test/{name}": value for name, value in score_probabilities(chances, np.asarray(test.y)).items()
                }
            fed.record(row)
        made: nn.Module = model.requires_grad_(False)
        return made
