"""One model from many: a student learns what an ensemble says of rows without labels, once or in every round.

One-shot federated learning trains every client alone, once, and joins the models (`IndividualClusters`). A student that imitates them is as small as one of them. FedDF does so in
every round: it starts the next one from a student that imitates the clients' models, and not from the mean of their weights alone. In FedMD the students are the clients: each keeps a model of
its own form, and only answers to public rows travel.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from atoll.core.algebra.aggregate import Aggregate, Mean
from atoll.core.algebra.rng import Rng
from atoll.core.errors import ConfigError, DataError
from atoll.core.federation.reducer import Reducer
from atoll.core.job import members_of
from atoll.core.requests.task import Task
from atoll.core.validation import Checked, require_parts
from atoll.learn.checks import require_count, require_positive
from atoll.learn.round.evaluation import Evaluation
from atoll.learn.training import Training
from atoll.torch import seeded

from .clusters import IndividualClusters
from .job import Federated
from .joining import JoinedLeaves, descend, log_probabilities, probabilities_of
from .model import score_probabilities

if TYPE_CHECKING:
    from atoll.core.algebra.tree import Tree
    from atoll.core.federation.federation import Federation
    from atoll.core.requests.island import Island

__all__ = ["Distillation", "FedBE", "FedDF", "FedMD", "average_models", "distil"]


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
    with torch.no_grad():
        told = log_probabilities(deepcopy(teacher).eval()(x))
        classes = log_probabilities(deepcopy(made).eval()(x[:1])).shape[-1]
    if classes != told.shape[-1]:
        raise DataError(
            f"a student of {classes} classes for a teacher of {told.shape[-1]}",
            where="distil",
            remedy="give the student as many outputs as the teacher has classes",
        )
    return _imitate(made, x, told, how, Rng.of(how.seed).child("distil"))


def _imitate(made: nn.Module, x: torch.Tensor, told: torch.Tensor, how: Distillation, rng: Rng) -> nn.Module:
    """Train a model towards log probabilities of rows, ``(B, K)``, and return it."""
    target = (told / how.temperature).log_softmax(-1)

    def loss(chosen: torch.Tensor) -> torch.Tensor:
        said = (log_probabilities(made(x[chosen])) / how.temperature).log_softmax(-1)
        gap = nn.functional.kl_div(said, target[chosen], reduction="batchmean", log_target=True)
        return gap * how.temperature**2

    return _descend_rows(made, len(x), loss, how, rng)


def _fit_labels(made: nn.Module, x: torch.Tensor, y: torch.Tensor, how: Distillation, rng: Rng) -> nn.Module:
    """Train a model on labelled rows, and return it."""

    def loss(chosen: torch.Tensor) -> torch.Tensor:
        return nn.functional.nll_loss(log_probabilities(made(x[chosen])), y[chosen])

    return _descend_rows(made, len(x), loss, how, rng)


def _descend_rows(made: nn.Module, rows: int, loss: Any, how: Distillation, rng: Rng) -> nn.Module:
    """Take steps of Adam on a loss of mini-batches of rows."""
    made.train().requires_grad_(True)
    generator = rng.generator()
    size = rows if how.batch is None else min(how.batch, rows)
    moved = [one for one in made.parameters() if one.requires_grad]
    descend(moved, lambda: loss(torch.from_numpy(generator.permutation(rows)[:size])), how.steps, how.lr, 0.0)
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

    def join_models(
        self, models: Sequence[nn.Module], mean: nn.Module, sizes: Sequence[float], rng: Rng
    ) -> JoinedLeaves:
        """Return the teacher of a round.

        Args:
            models: the clients'.
            mean: their weighted mean.
            sizes: rows of each client.
            rng: of what is drawn.
        """
        del mean, sizes, rng
        return JoinedLeaves(models, "logits")

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
            sizes = [float(n) for n in getattr(members_of(fed.world.population, names), "sizes", [1] * len(names))]
            mean = average_models(found.leaves, sizes)
            teacher = self.join_models(found.leaves, mean, sizes, fed.rng.child("models", number))
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


@dataclass(frozen=True, kw_only=True)
class FedBE(FedDF):
    """FedDF with a Bayesian ensemble as its teacher (Chen, Chao, ICLR 2021): the clients' models, their mean, and models drawn from a distribution around these.

    ``p = mean of p_m`` over all of them. ``"gaussian"`` draws each number from ``N(mu, sigma^2)``, the clients' weighted mean and variance; ``"dirichlet"`` draws weights of the
    clients' models, ``gamma ~ Dir(concentration n_k / n K)``, around their shares of rows. Layers' statistics are means, so that no variance is below 0. The paper's student
    takes averaged steps of SGD; here it is `distil`'s.

    Attributes:
        samples: models drawn in a round.
        law: ``gaussian`` or ``dirichlet``.
        concentration: of ``dirichlet``, above 0.
    """

    samples: int = 10
    law: Literal["gaussian", "dirichlet"] = "gaussian"
    concentration: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require_count("FedBE", samples=self.samples)
        require_positive("FedBE", concentration=self.concentration)

    def join_models(
        self, models: Sequence[nn.Module], mean: nn.Module, sizes: Sequence[float], rng: Rng
    ) -> JoinedLeaves:
        """Return the mean of the probabilities of the clients' models, their mean and those that are drawn."""
        draw = rng.generator()
        shares = np.asarray(sizes, np.float64) / np.sum(sizes)
        if self.law == "dirichlet":
            alpha = np.maximum(self.concentration * shares * len(models), 1e-6)
            drawn = [average_models(models, draw.dirichlet(alpha).tolist()) for _ in range(self.samples)]
        else:
            drawn = [_draw_gaussian(models, mean, shares, draw) for _ in range(self.samples)]
        every = [one.eval().requires_grad_(False) for one in (*models, deepcopy(mean), *drawn)]
        return JoinedLeaves(every, "mean")


def _draw_gaussian(
    models: Sequence[nn.Module], mean: nn.Module, shares: NDArray[np.float64], draw: np.random.Generator
) -> nn.Module:
    """Return a model each of whose parameters is drawn around the mean with the models' variance."""
    made = deepcopy(mean)
    with torch.no_grad():
        for own, *others in zip(made.parameters(), *(one.parameters() for one in models), strict=True):
            spread = sum(float(share) * (other - own) ** 2 for share, other in zip(shares, others, strict=True))
            noise = torch.from_numpy(draw.normal(size=tuple(own.shape))).to(own.dtype)
            own.copy_(own + torch.as_tensor(spread).sqrt() * noise)
    return made


@dataclass(frozen=True, kw_only=True)
class FedMD(Checked):
    """Model distillation between clients whose models may be of different forms (Li, Wang 2019), as a program for simulated clients: ``atoll.simulate(FedMD(...), islands)`` gives each client's model.

    First every client trains on the public rows, if these have labels, and on its own. In each round it answers some public rows; the server takes the mean of the answers'
    logits, and sends it to all. Every client imitates the mean (``digest``), and trains on its own rows again (``revisit``). A reply has ``rows x classes`` numbers, whatever
    the model's size, and it is a mean of equal weights, so a secure reducer can add it up. The paper imitates class scores by their absolute difference; here a client
    takes `Distillation`'s divergence.

    Example::

        models = {name: mlp(64, 10, (16 + 8 * place,)) for place, name in enumerate(islands.names)}
        simulate(FedMD(models=models, rows=public), islands)

    Attributes:
        models: one model, or what makes one, for all clients; or by a client's name.
        rows: public rows, which the server sends.
        labels: their classes, as whole numbers; ``None`` if nobody knows them.
        rounds: how many.
        answered: public rows of a round, drawn; 0 for all.
        begin: the training on labelled rows before the first round.
        digest: how a client imitates the mean.
        revisit: the training on a client's own rows in each round; its temperature does not count.
        reducer: how answers are added up; ``None`` for plainly.
    """

    models: Any = field(repr=False)
    rows: NDArray[Any] = field(repr=False)
    labels: NDArray[Any] | None = field(default=None, repr=False)
    rounds: int = 10
    answered: int = 0
    begin: Distillation = field(default_factory=Distillation)
    digest: Distillation = field(default_factory=lambda: Distillation(steps=50))
    revisit: Distillation = field(default_factory=lambda: Distillation(steps=50))
    reducer: Reducer | None = None

    def __post_init__(self) -> None:
        settings = (Distillation, "atoll.ensemble.Distillation()")
        require_parts(self, {"begin": settings, "digest": settings, "revisit": settings})
        if self.rounds < 1 or self.answered < 0:
            raise ConfigError(
                f"rounds={self.rounds}, answered={self.answered}",
                where="FedMD",
                remedy="use at least one round, and 0 or more public rows",
            )
        if not len(self.rows):
            raise DataError(
                "there is no public row to answer", where="FedMD.rows", remedy="give rows, which may be generated"
            )
        if self.labels is not None and len(self.labels) != len(self.rows):
            raise DataError(
                f"{len(self.labels)} labels of {len(self.rows)} public rows",
                where="FedMD.labels",
                remedy="give each row its class, or labels=None",
            )

    async def __call__(self, fed: Federation) -> dict[str, nn.Module]:
        """Run the rounds; each is recorded with the mean accuracy of the clients' models on the test rows, and that of their joined answers."""
        self._require_models([str(name) for name in fed.parties.names])
        chosen = self._draw(fed, 1)
        message: Tree = {"seed": fed.rng.child("models").key % 2**31, "answer": np.asarray(self.rows)[chosen]}
        if self.labels is not None:
            message |= {"rows": np.asarray(self.rows), "labels": np.asarray(self.labels, np.int64)}
        answers = await fed.sum(fed.parties, self.start, message, at="start", reducer=self.reducer)
        for number in range(1, self.rounds + 1):
            after = self._draw(fed, number + 1)
            digested = {
                "rows": np.asarray(self.rows)[chosen],
                "mean": answers["answers"],
                "answer": np.asarray(self.rows)[after],
            }
            answers = await fed.sum(fed.parties, self.turn, digested, at=("turn", number), reducer=self.reducer)
            chosen = after
            found = await self._show(fed, number, message["seed"])
            fed.record({"round": number, **self._score(fed, found)})
        return found

    def _draw(self, fed: Federation, number: int) -> NDArray[np.int64]:
        if not 0 < self.answered < len(self.rows):
            return np.arange(len(self.rows))
        return np.sort(fed.rng.child("rows", number).generator().choice(len(self.rows), self.answered, replace=False))

    def _require_models(self, names: Sequence[str]) -> None:
        lost = [name for name in names if isinstance(self.models, Mapping) and name not in self.models]
        if lost:
            raise ConfigError(
                f"client {lost[0]!r} has no model",
                where="FedMD.models",
                remedy="give each client one, or one model for all",
            )

    def _model_of(self, name: str, seed: int) -> nn.Module:
        given = self.models[name] if isinstance(self.models, Mapping) else self.models
        return deepcopy(given) if isinstance(given, nn.Module) else seeded(given, seed)

    def _restore(self, name: str, seed: int, kept: Mapping[str, Any]) -> nn.Module:
        """Return a client's model with the values that it has kept."""
        made = self._model_of(name, seed)
        made.load_state_dict({key: torch.tensor(value) for key, value in kept.items()})
        return made

    @property
    def tasks(self) -> tuple[Task, ...]:
        """The clients' tasks."""
        return self.start, self.turn, self.show

    @property
    def start(self) -> Task:
        """Train on labelled rows, and answer public ones."""
        return Task("atoll.ensemble.distilling:start", self._start)

    @property
    def turn(self) -> Task:
        """Imitate the mean answer, train on the client's own rows, and answer again."""
        return Task("atoll.ensemble.distilling:turn", self._turn)

    @property
    def show(self) -> Task:
        """Show the observer of a simulation a client's model."""
        return Task("atoll.ensemble.distilling:show", lambda island, message: {"state": island.state["model"]})

    def _start(self, island: Island, message: Tree) -> dict[str, Aggregate]:
        made = self._model_of(island.name, int(message["seed"]))
        if "labels" in message:
            x, y = torch.tensor(np.asarray(message["rows"])), torch.tensor(np.asarray(message["labels"]))
            made = _fit_labels(made, x, y, self.begin, island.rng.child("public"))
        return self._keep(island, self._train_own(made, island, self.begin), int(message["seed"]), message["answer"])

    def _turn(self, island: Island, message: Tree) -> dict[str, Aggregate]:
        seed = int(island.state["seed"])
        made = self._restore(island.name, seed, island.state["model"])
        x, mean = torch.tensor(np.asarray(message["rows"])), torch.tensor(np.asarray(message["mean"]))
        made = _imitate(made, x, mean.to(x.dtype), self.digest, island.rng.child("digest"))
        return self._keep(island, self._train_own(made, island, self.revisit), seed, message["answer"])

    def _train_own(self, made: nn.Module, island: Island, how: Distillation) -> nn.Module:
        x, y = (
            torch.tensor(np.asarray(island.data["x"])),
            np.maximum(np.asarray(island.data["y"]), 0),
        )  # of two classes also -1 and 1
        return _fit_labels(made, x, torch.tensor(y.astype(np.int64)), how, island.rng.child("own")) if len(y) else made

    def _keep(self, island: Island, made: nn.Module, seed: int, rows: Any) -> dict[str, Aggregate]:
        """Keep a client's model as its private state, and return its answers to public rows."""
        island.state = {
            "seed": seed,
            "model": {name: value.numpy().copy() for name, value in made.state_dict().items()},
        }
        with torch.no_grad():
            answers = log_probabilities(made(torch.tensor(np.asarray(rows))))
        return {"answers": Mean(answers.numpy())}

    async def _show(self, fed: Federation, number: int, seed: int) -> dict[str, nn.Module]:
        """Return the clients' models, as an observer sees them."""
        watch = fed.scope("observer")
        watch.settle_at(fed.parties, fed.hub, fed.home)
        watch.observe()
        told = (await watch.exchange(watch.parties, self.show, {}, at=("show", number))).by_name()
        return {
            str(name): self._restore(str(name), seed, reply["state"]).eval().requires_grad_(False)
            for name, reply in told.items()
        }

    @staticmethod
    def _score(fed: Federation, found: Mapping[str, nn.Module]) -> dict[str, float]:
        test = getattr(fed.world.population, "test", None)
        if test is None or not len(test):
            return {}
        x, y = torch.tensor(np.asarray(test.x)), np.asarray(test.y)
        with torch.no_grad():
            each = [probabilities_of(log_probabilities(one(x))) for one in found.values()]
            joined = probabilities_of(JoinedLeaves(list(found.values()), "logits")(x))
        alone = [score_probabilities(one, y)["accuracy"] for one in each]
        return {
            "test/accuracy": float(np.mean(alone)),
            "test/joined_accuracy": score_probabilities(joined, y)["accuracy"],
        }
