"""AdaFedSemi (Wang et al. 2022): labels at clients, unlabelled rows at the server, and a bandit that sets participation and threshold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, cast

import torch

from atoll.core.algebra import tree as T
from atoll.core.algebra.aggregate import Aggregate, Mean
from atoll.core.algebra.tree import Tree
from atoll.core.errors import ConfigError
from atoll.core.facets import facet
from atoll.learn.algorithm import Algorithm, Gradient, Helped, LocalWork, LossGradients, Phased, RoundInfo
from atoll.learn.card import Card
from atoll.learn.local.own_loss import OwnLoss
from atoll.learn.wrapped import innermost

from ..losses import cross_entropy_of_rows, mean_of, seen
from ..objectives.consistency import check_threshold
from ..pre_pass import PrePass, split_pre_pass
from ..views.base import View
from ..views.defaults import strong, weak
from .base import Method, local_sgd
from .supervised import SupervisedLoss

__all__ = ["POOL", "AdaFedSemi", "PoolLoss"]

POOL = "pool"
"""Name and role of the party with the server's unlabelled rows."""


@dataclass(frozen=True)
class PoolLoss(OwnLoss):
    """``mean_U [max q > tau] CE(argmax q, f(strong x))``, with what the received model says of the weak view, ``q``."""

    weak: View | None
    strong: View | None
    least: float
    task: ClassVar[str] = "classes"

    def __call__(self, *, model: Any, x: Any, keys: Any, real: Any, broadcast: Any) -> Any:
        """Return the loss of a mini-batch."""
        said = model(seen(self.weak, x, keys, 0, real), broadcast["params"], training=False)
        check_threshold(self.least, said.shape[1], "AdaFedSemi")
        sure, classes = torch.softmax(said.detach(), 1).max(1)
        far = cross_entropy_of_rows(model(seen(self.strong, x, keys, 1, real)), classes)
        return mean_of(torch.where(sure > broadcast["tau"], far, 0.0), real)


@dataclass(frozen=True)
class _Sure(OwnLoss):
    """The share of a mini-batch's rows of which the received model is surer than the threshold."""

    weak: View | None

    def __call__(self, *, model: Any, x: Any, keys: Any, real: Any, broadcast: Any) -> Any:
        """Return it."""
        said = model(seen(self.weak, x, keys, 0, real), broadcast["params"], training=False)
        return mean_of((torch.softmax(said, 1).amax(1) > broadcast["tau"]).to(real.dtype), real)


@dataclass(frozen=True)
class _Labelled(OwnLoss):
    """The loss of a mini-batch's labelled rows as they are, and their number, ``(2,)``."""

    def __call__(self, *, model: Any, x: Any, target: Any, labelled: Any, real: Any) -> Any:
        """Return both."""
        known = labelled * real
        return torch.stack([mean_of(cross_entropy_of_rows(model(x), target), known), known.sum()])


@dataclass(frozen=True, kw_only=True)
class AdaFedSemi(Method, Helped):
    """Clients train on their labelled rows; then the server's own unlabelled rows teach the averaged model, where it is sure.

    A round is the base's, with labels at clients, and then ``pool_steps`` steps at the party ``"pool"``, which has the server's unlabelled rows: in a simulation those of
    ``islands.others``, between organisations its site's. The averaged model makes the pseudo-labels. Without a row above ``tau`` it is the algorithm inside.

    Fewer clients a round cost less and learn less; a higher threshold costs the server less and uses fewer rows. `AdaptiveRounds` sets both, round by round:
    ``Training(model=net, algorithm=AdaFedSemi(), topology=AdaptiveRounds())``.

    Attributes:
        tau: how sure the averaged model must be, a probability above ``1/C``.
        pool_steps: steps on the server's rows in a round.
        pool_batch: rows in a mini-batch of these steps.
        weak: the view of labelled rows and for pseudo-labels.
        strong: the view that must agree.
    """

    tau: float = 0.9
    pool_steps: int = 20
    pool_batch: int = 48
    weak: View | None = field(default_factory=lambda: weak("images"))
    strong: View | None = field(default_factory=lambda: strong("images"))
    citation: ClassVar[str] = (
        "Wang, Xu, Liu, Xu, Huang, Zhao. Enhancing Federated Learning with In-Cloud Unlabeled Data. ICDE 2022."
    )
    card: ClassVar[Card] = Card(family="wrapper", note="Labels at clients, unlabelled rows at the server.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.tau <= 1 or self.pool_steps < 1 or self.pool_batch < 1:
            raise ConfigError(
                f"tau={self.tau}, pool_steps={self.pool_steps}, pool_batch={self.pool_batch}",
                where="AdaFedSemi",
                remedy="use a probability above 1/C, and 1 or more steps and rows",
            )
        object.__setattr__(self, "phases", (*self.base.phases, POOL))

    @property
    def losses(self) -> tuple[Any, ...]:
        """Cross-entropy of labelled rows; and the measure of the received model on them."""
        return (SupervisedLoss(self.weak), _Labelled())

    @property
    def helpers(self) -> Mapping[str, str]:
        """The party with the server's rows."""
        return {**facet(self.base, Helped).helpers, POOL: POOL}

    def asks(self, phase: str) -> tuple[str, ...]:
        """Ask the pool in its phase."""
        return (POOL,) if phase == POOL else facet(self.base, Helped).asks(phase)

    def plan(self, state: Tree) -> tuple[str, ...]:
        """Train at clients, then at the pool."""
        return (*self.base.plan(state), POOL)

    def contacts(self, rounds: int) -> int | None:
        """Return the base's number of rounds with contacts."""
        return facet(self.base, Phased).contacts(rounds)

    def passes(self, phase: str) -> tuple[Algorithm, ...]:
        """Teach the model at the pool; at clients, measure it, then run the base's passes."""
        if phase == POOL:
            steps = local_sgd(innermost(self.base).lr, self.pool_steps, self.pool_batch)
            return (_Teaching(base=steps, weak=self.weak, strong=self.strong, tau=self.tau),)
        return (_Probe(method=self), *super().passes(phase))

    def init(self, params: Tree) -> Tree:
        """Start with the base's state and the threshold."""
        return {**super().init(params), "tau": self.tau, "used": 0.0}

    def _outer(self, state: Tree, made: Tree) -> Tree:
        return {**super()._outer(state, made), "tau": state["tau"], "used": state["used"]}

    def broadcast(self, state: Tree, phase: str) -> Tree:
        """Send the model with the threshold to the pool, and the base's broadcast to clients."""
        if phase != POOL:
            return super().broadcast(state, phase)
        return {"params": state["params"], "lr": float(self.base.lr) * self.rate(state["turn"]), "tau": state["tau"]}

    def fold(self, state: Tree, sums: Mapping[str, Any], info: RoundInfo, phase: str) -> Tree:
        """Take over what the pool taught; fold clients' replies as the base does."""
        if phase != POOL:
            return super().fold(state, sums, info, phase)
        return {**state, "params": T.add(state["params"], sums["update"]), "used": float(sums["used"])}

    def finish(self, local: Tree, broadcast: Tree, client: Tree, work: LocalWork) -> tuple[dict[str, Aggregate], Tree]:
        """Reply as the base does, with the received model's loss on labelled rows as a metric."""
        reply, kept = super().finish(local, broadcast, client, work)
        found = split_pre_pass(client)[1]
        if not found:
            return reply, kept
        loss, count = found["probe"][0], found["probe"][1]
        return {**reply, "labelled_loss": Mean(loss, examples=count, role="metric")}, kept


@dataclass(frozen=True, kw_only=True)
class _Teaching(Method):
    """Steps on pseudo-labels at the pool."""

    weak: View | None
    strong: View | None
    tau: float

    @property
    def losses(self) -> tuple[Any, ...]:
        """The pool's loss, and how many rows count."""
        return (PoolLoss(self.weak, self.strong, self.tau), _Sure(self.weak))

    def start(self, broadcast: Tree, client: Tree) -> Tree:
        """Start with no row used."""
        made = super().start(broadcast, client)
        return {**made, "used": T.leaves(made["params"])[0].reshape(-1)[:1].sum() * 0.0}

    def step(self, local: Tree, grad: Gradient, broadcast: Tree) -> Tree:
        """Take a step, and count."""
        inner = {name: value for name, value in local.items() if name != "used"}
        used = local["used"] + cast("LossGradients", grad).read(self.losses[1], local["params"])
        return {**super().step(inner, grad, broadcast), "used": used}

    def finish(self, local: Tree, broadcast: Tree, client: Tree, work: LocalWork) -> tuple[dict[str, Aggregate], Tree]:
        """Reply with the update and the share of rows that counted."""
        inner = {name: value for name, value in local.items() if name != "used"}
        reply, kept = super().finish(inner, broadcast, client, work)
        share = local["used"] / work.steps
        return {**reply, "used": Mean(share, examples=work.examples, role="side")}, kept


@dataclass(frozen=True, kw_only=True)
class _Probe(PrePass):
    """One look at all of the client's labelled rows with the received model."""

    method: AdaFedSemi

    def start(self, broadcast: Tree, client: Tree) -> Tree:
        """Start with nothing measured."""
        del client
        zero = T.leaves(broadcast["params"])[0].reshape(-1)[:1].sum() * 0.0
        return {"params": broadcast["params"], "probe": T.stack([zero, zero])}

    def step(self, local: Tree, grad: Gradient, broadcast: Tree) -> Tree:
        """Measure."""
        return {**local, "probe": cast("LossGradients", grad).read(self.method.losses[1], local["params"])}

    def read_found(self, local: Tree) -> dict[str, Tree]:
        """Return the measure."""
        return {"probe": local["probe"]}
