"""One model from many: a student learns what an ensemble says of rows without labels, once or after every round.

One-shot federated learning trains every client alone, once, and joins the models (`IndividualClusters`). A student that imitates them is as small as one of them. FedDF does so after
every round: the next one starts from a student that imitates the clients' models, and not from the mean of their weights alone.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from atoll.core.algebra import tree as T
from atoll.core.algebra.aggregate import Mean
from atoll.core.algebra.rng import Rng
from atoll.core.algebra.tree import Tree
from atoll.core.capability import SINGLE_REPLIES, Need
from atoll.core.errors import ConfigError, DataError
from atoll.core.requests.results import Combined
from atoll.core.validation import Checked, require_parts
from atoll.learn.aggregation.base import Aggregation
from atoll.learn.aggregation.keep_local import SingleReplies
from atoll.learn.algorithm import Algorithm, RoundInfo
from atoll.learn.capabilities import ONE_MODEL, PLAIN_MEAN
from atoll.learn.checks import require_count, require_finite, require_positive
from atoll.learn.round.state import global_model
from atoll.learn.topology.base import Star, refuse
from atoll.learn.wrapped import dry_reply
from atoll.rounds.loop import Course, WrappedCourse
from atoll.torch import TorchLearner, seeded
from atoll.torch.models import array_of
from atoll.torch.own_state import seed_generators

from .joining import JoinedLeaves, descend, log_probabilities

if TYPE_CHECKING:
    from atoll.core.federation.federation import Federation
    from atoll.learn.context import Context

__all__ = [
    "Distillation",
    "FedBE",
    "FedDF",
    "answer_rows",
    "average_models",
    "distil",
    "fit_labels",
    "imitate",
    "rows_for",
]


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
    x = rows_for(teacher, rows)
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
    return imitate(made, x, told, how, Rng.of(how.seed).child("distil"))


def imitate(made: nn.Module, x: torch.Tensor, told: torch.Tensor, how: Distillation, rng: Rng) -> nn.Module:
    """Train a model towards log probabilities of rows, ``(B, K)``, and return it."""
    target = (told / how.temperature).log_softmax(-1)

    def loss(chosen: torch.Tensor) -> torch.Tensor:
        said = (log_probabilities(made(x[chosen])) / how.temperature).log_softmax(-1)
        gap = nn.functional.kl_div(said, target[chosen], reduction="batchmean", log_target=True)
        return gap * how.temperature**2

    return _descend_rows(made, len(x), loss, how, rng)


def fit_labels(made: nn.Module, x: torch.Tensor, y: torch.Tensor, how: Distillation, rng: Rng) -> nn.Module:
    """Train a model on labelled rows, and return it."""

    def loss(chosen: torch.Tensor) -> torch.Tensor:
        return nn.functional.nll_loss(log_probabilities(made(x[chosen])), y[chosen])

    return _descend_rows(made, len(x), loss, how, rng)


def _descend_rows(made: nn.Module, rows: int, loss: Any, how: Distillation, rng: Rng) -> nn.Module:
    """Take steps of Adam on a loss of mini-batches of rows. What is frozen stays, in a model that is not frozen altogether."""
    made.train()
    if not any(one.requires_grad for one in made.parameters()):
        made.requires_grad_(True)
    generator = rng.generator()
    size = rows if how.batch is None else min(how.batch, rows)
    moved = [one for one in made.parameters() if one.requires_grad]
    with seed_generators(rng.child("layers").key):  # of dropout
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
class FedDF(Star):
    """Ensemble distillation for robust model fusion (Lin, Kong, Stich, Jaggi, NeurIPS 2020): one server, whose model imitates the clients' models after every round.

    A round is that of the training: clients start from the server's model, and its algorithm makes the mean ``w``. Then the server takes steps from ``w`` towards the mean of
    the clients' logits on rows without labels, and the next round starts from there. It needs every client's model, so this is no method for secure sums. What clients send and
    receive is what they do without it: one model each way.

    Example::

        job = Training(model=mlp(64, 10, (32,)), topology=FedDF(rows=unlabelled), rounds=10)

    Attributes:
        rows: rows without labels, at the server; ``None`` for ``islands.public``, and in a job between organisations for ``data.public`` of its file. They may be generated.
        distillation: how the server's model imitates.
    """

    rows: Any = field(default=None, repr=False, compare=False)
    distillation: Distillation = field(default_factory=Distillation)

    def __post_init__(self) -> None:
        require_parts(self, {"distillation": (Distillation, "atoll.ensemble.Distillation()")})

    @property
    def needs(self) -> tuple[Need, ...]:
        """Single replies of one round, and a plain mean."""
        return (
            *super().needs,
            Need(SINGLE_REPLIES, "lets the server's model imitate each client's", "Star()"),
            Need(ONE_MODEL, "joins models that were trained from one", "Star()"),
            Need(PLAIN_MEAN, "starts from the mean of the clients' models", "Star()"),
        )

    def algorithm(self, base: Algorithm) -> Algorithm:
        """Return the base with its update as a single reply."""
        return SingleReplies(base=base)

    def check(self, context: Context) -> None:
        """Refuse models that do not answer classes, and algorithms without a mean update of a model."""
        super().check(context)
        learner, task = context.learner, context.clients.task
        if not isinstance(learner, TorchLearner):
            refuse(self, f"a {type(learner).__name__} is no PyTorch model", "model", "use one, such as atoll.models.mlp(8, 2), or topology=Star()")  # fmt: skip
        if task and task not in ("classification", "binary"):
            refuse(self, f"labels of the task {task!r} are no classes", "topology", "use Star()")
        base = context.algorithm
        for stage in (stage for phase in base.phases for stage in context.uplink(phase).summand_stages):
            refuse(self, f"{type(stage).__name__} acts on sums, and here single models are joined", "uplink", "use stages that act on values, such as atoll.stages.QSGD()")  # fmt: skip
        if not isinstance(dry_reply(base, learner.init(Rng(0))).get("update"), Mean):
            refuse(self, f"{type(base).__name__} does not reply with the mean update of a model", "algorithm", "use FedAvg() or FedProx()")  # fmt: skip

    def join_models(
        self, models: Sequence[nn.Module], mean: nn.Module, sizes: Sequence[float], rng: Rng
    ) -> JoinedLeaves:
        """Return the teacher of a round.

        Args:
            models: the clients'.
            mean: the model that the algorithm has made of them.
            sizes: rows of each client.
            rng: of what is drawn.
        """
        del mean, sizes, rng
        return JoinedLeaves(models, "logits")

    def course(self, context: Context) -> Course:
        """Return the rounds of the training's pacing, each with a distillation at its end."""
        rounds = super().course(replace(context, aggregation=_ModelsKept()))
        return _FusedRounds(rounds, context, self)


@dataclass(frozen=True)
class _ModelsKept(Aggregation):
    """The mean by examples, which keeps the single updates until they are joined."""

    def combine(self, combined: Combined, params: Tree, memory: Tree, info: RoundInfo) -> tuple[dict[str, Any], Tree]:
        del info
        if combined.kinds.get("update") != "parts":
            return combined.value, memory
        parts = combined.value["update"]
        if not any(part.weight > 0 for part in parts):  # nobody has rows
            return {**combined.value, "update": T.scale(parts[0].value, 0.0)}, None
        parts = [part for part in parts if part.weight > 0]
        whole = sum(float(part.weight) for part in parts)
        mean = functools.reduce(T.add, [T.scale(part.value, float(part.weight) / whole) for part in parts])
        models = [T.add(params, part.value) for part in parts]
        kept = {"models": models, "sizes": [float(part.weight) for part in parts]}
        return {**combined.value, "update": mean}, kept


class _FusedRounds(WrappedCourse):
    """Rounds whose model imitates the models of the round's clients."""

    def __init__(self, course: Course, context: Context, rule: FedDF) -> None:
        super().__init__(course)
        self._context, self._rule = context, rule

    @functools.cached_property
    def _rows(self) -> NDArray[Any]:
        """The rows without labels."""
        given = self._rule.rows
        if given is None and self._context.public is not None:
            given = self._context.public.x
        if given is None or not len(given):
            raise DataError(
                "there are no rows without labels to imitate models on",
                where=f"{type(self._rule).__name__}.rows",
                remedy="give rows=, which may be generated, or islands.with_public(rows); in a job file, a source as data.public",
            )
        return np.asarray(given)

    def initial(self, fed: Federation) -> Tree:
        """Start as the training does, once the model has answered one of the rows."""
        state = super().initial(fed)
        learner: Any = self._context.learner
        answer_rows(learner.export(global_model(state)), self._rows[:1], f"{type(self._rule).__name__}.rows")
        return state

    async def round(self, fed: Federation, state: Tree, number: int) -> tuple[Tree, dict[str, Any]]:
        """Run a round, and let its mean imitate its models."""
        state, row = await super().round(fed, state, number)
        kept, state = state["aggregation"], {**state, "aggregation": None}
        if kept is None:
            return state, row
        learner: Any = self._context.learner
        params, buffers = state["server"]["params"], state["buffers"]
        models = [learner.export({**one, **buffers}).requires_grad_(False) for one in kept["models"]]
        mean = learner.export(global_model(state))
        for name, one in mean.named_parameters():
            one.requires_grad_(name in params)  # what no client trains stays
        rng = fed.rng.child("models", number)
        teacher = self._rule.join_models(models, deepcopy(mean), kept["sizes"], rng)
        made = distil(teacher, self._rows, mean, self._rule.distillation)
        own = {**dict(made.named_parameters()), **dict(made.named_buffers())}
        fused = {name: array_of(own[name]).astype(np.asarray(value).dtype) for name, value in params.items()}
        require_finite(fused, number)
        state = {**state, "buffers": {name: array_of(own[name]) for name in buffers}}
        return {**state, "server": {**state["server"], "params": fused}}, row


def answer_rows(model: nn.Module, rows: NDArray[Any], where: str) -> torch.Tensor:
    """Return the log probabilities that a model gives rows, ``(B, K)``.

    Raises:
        DataError: it cannot answer rows of this form.
    """
    try:
        with torch.no_grad():
            return log_probabilities(model(rows_for(model, rows)))
    except (RuntimeError, ValueError, IndexError, TypeError) as error:
        raise DataError(
            f"the model cannot answer rows of shape {rows.shape[1:]}: {str(error).splitlines()[0]}",
            where=where,
            remedy="give rows of the form that clients have, without their labels",
        ) from error


def rows_for(model: nn.Module, rows: Any) -> torch.Tensor:
    """Return rows as a tensor; fractions in the model's precision."""
    made = torch.tensor(np.asarray(rows))
    first = next(model.parameters(), None)
    fractions = made.is_floating_point() and first is not None and first.is_floating_point()
    return made.to(first.dtype) if fractions and first is not None else made


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
