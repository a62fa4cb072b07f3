"""AdaFedSemi (Wang et al. 2022): labels at clients, unlabelled rows at the server, and a bandit that sets participation and threshold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, cast

import torch

from atoll.core.algebra import tree as T
from atoll.core.algebra.aggregate import Aggregate, Mean
from atoll.core.algebra.tree import Tree
from atoll.core.capability import Need
from atoll.core.errors import CompositionError, ConfigError
from atoll.learn.algorithm import Algorithm, Gradient, LocalWork, LossGradients, RoundInfo
from atoll.learn.bandits import DiscountedUCB
from atoll.learn.capabilities import ONE_MODEL, SAMPLE
from atoll.learn.card import Card
from atoll.learn.local.own_loss import OwnLoss
from atoll.learn.selection import Uniform
from atoll.learn.server.rounds import ServerRounds, server_round
from atoll.learn.topology.base import Star
from atoll.learn.wrapped import innermost

from ..look import OneLook
from ..losses import cross_entropy_of_rows, mean_of, seen
from ..objectives.consistency import check_threshold
from ..views.base import View
from ..views.defaults import strong, weak
from .base import Method, local_sgd
from .supervised import SupervisedLoss

if TYPE_CHECKING:
    from atoll.core.federation.federation import Federation
    from atoll.learn.context import Context

__all__ = ["POOL", "AdaFedSemi", "AdaptiveRounds", "PoolLoss"]

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
class AdaFedSemi(Method):
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
        return {**self.base.helpers, POOL: POOL}

    def asks(self, phase: str) -> tuple[str, ...]:
        """Ask the pool in its phase."""
        return (POOL,) if phase == POOL else self.base.asks(phase)

    def plan(self, state: Tree) -> tuple[str, ...]:
        """Train at clients, then at the pool."""
        return (*self.base.plan(state), POOL)

    def contacts(self, rounds: int) -> int | None:
        """Return the base's number of rounds with contacts."""
        return self.base.contacts(rounds)

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

    def start(self, broadcast: Tree, client: Tree) -> Tree:
        """Start with the base's local state."""
        probed = isinstance(client, dict) and "probe" in client
        return super().start(broadcast, client["client"] if probed else client)

    def finish(self, local: Tree, broadcast: Tree, client: Tree, work: LocalWork) -> tuple[dict[str, Aggregate], Tree]:
        """Reply as the base does, with the received model's loss on labelled rows as a metric."""
        if not (isinstance(client, dict) and "probe" in client):
            return super().finish(local, broadcast, client, work)
        reply, kept = super().finish(local, broadcast, client["client"], work)
        loss, count = client["probe"][0], client["probe"][1]
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
class _Probe(OneLook):
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

    def found(self, local: Tree) -> dict[str, Tree]:
        """Return the measure."""
        return {"probe": local["probe"]}


@dataclass(frozen=True, kw_only=True)
class AdaptiveRounds(Star):
    """A bandit chooses, for ``window`` rounds at a time, the share ``P`` of clients that train and the threshold of the pool.

    Every pair of ``shares`` and ``taus`` is an arm of a discounted UCB (`atoll.learn.bandits.DiscountedUCB`). An arm's reward is what the clients' labelled rows gained for what the window
    cost, as a share of the best so far:

        ``r = e / max e``, ``e = max(0, 1 - L' / L) / (price P + (1 - price) used)``,

    with the mean loss ``L`` of labelled rows before the window and ``L'`` after it, and the share ``used`` of the pool's rows above the threshold. Source and paper name the bandit and its
    two arms; the reward is ours. A loss is known one round after its window, so an arm is chosen without the last reward.

    Attributes:
        shares: shares of the clients, above 0 and at most 1.
        taus: thresholds, probabilities above ``1/C``.
        window: rounds between two choices.
        discount: of earlier rewards, per choice.
        width: of the confidence bound.
        price: share of a contact in the cost, from 0 to 1; the rest is the pool's work.
    """

    shares: tuple[float, ...] = (0.25, 0.5, 1.0)
    taus: tuple[float, ...] = (0.7, 0.9, 0.97)
    window: int = 2
    discount: float = 0.9
    width: float = 0.05
    price: float = 0.7

    def __post_init__(self) -> None:
        good = (
            bool(self.shares)
            and all(0 < s <= 1 for s in self.shares)
            and bool(self.taus)
            and all(0 < t <= 1 for t in self.taus)
        )
        if not good or self.window < 1 or not 0 <= self.price <= 1:
            raise ConfigError(
                f"shares={self.shares}, taus={self.taus}, window={self.window}, price={self.price}",
                where="AdaptiveRounds",
                remedy="use shares and thresholds above 0 and at most 1, a window of 1 or more, and a price from 0 to 1",
            )
        self.bandit  # noqa: B018 - refuses what makes no sense

    @property
    def bandit(self) -> DiscountedUCB:
        """The agent."""
        return DiscountedUCB(arms=len(self.arms), discount=self.discount, width=self.width)

    @property
    def arms(self) -> list[tuple[float, float]]:
        """All pairs of a share and a threshold."""
        return [(share, tau) for share in self.shares for tau in self.taus]

    @property
    def needs(self) -> tuple[Need, ...]:
        """The base's needs, a uniform sample, and rounds that begin at one model."""
        why = "sets the share of clients in a round"
        return (*super().needs, Need(SAMPLE, why), Need(ONE_MODEL, why))

    def check(self, context: Context) -> None:
        """Refuse an algorithm without a threshold."""
        if POOL not in context.algorithm.phases:
            raise CompositionError(
                f"AdaptiveRounds sets a threshold, and {type(context.algorithm).__name__} has no pool of unlabelled rows",
                where="Training.topology",
                remedy="use algorithm=AdaFedSemi(), or leave out the topology",
            )

    def course(self, context: Context) -> _Adapting:
        """Return rounds with a bandit."""
        return _Adapting(self, context)


class _Adapting(ServerRounds):
    """One server's rounds whose cohort and threshold a bandit sets."""

    def __init__(self, rule: AdaptiveRounds, context: Context) -> None:
        super().__init__(context)
        self.rule = rule

    def initial(self, fed: Federation) -> Tree:
        """Start with nothing known."""
        known = self.rule.bandit.nothing()
        fresh = {"known": known, "arm": 0, "last": -1, "loss": -1.0, "cost": 0.0, "best": 0.0}
        return {**super().initial(fed), "bandit": fresh}

    async def round(self, fed: Federation, state: Tree, number: int) -> tuple[Tree, dict[str, Any]]:
        """Choose at the beginning of a window, run the round, and learn when the next window's loss is known."""
        rule, know = self.rule, dict(state["bandit"])
        first, due = (number - 1) % rule.window == 0, float(know["cost"])
        if first:
            know.update(last=know["arm"] if number > 1 else -1, arm=rule.bandit.choose(know["known"]), cost=0.0)
        share, tau = rule.arms[int(know["arm"])]
        context = replace(self.context, selection=Uniform(share))
        within = {**state, "server": {**state["server"], "tau": tau}}
        made, row = await server_round(fed, context, within, number)
        row = {**row, "share": share, "tau": tau}
        loss = float(row.get("labelled_loss", -1.0))
        if first and loss >= 0.0:
            if int(know["last"]) >= 0 and know["loss"] > 0.0 and due > 0.0:
                gain = max(0.0, 1.0 - loss / float(know["loss"])) / due
                know["best"] = max(float(know["best"]), gain)
                row["reward"] = gain / know["best"] if know["best"] else 0.0
                know["known"] = rule.bandit.seen(know["known"], int(know["last"]), row["reward"])
            know["loss"] = loss
        used = float(made["server"]["used"])
        know["cost"] = float(know["cost"]) + rule.price * share + (1.0 - rule.price) * used
        row["pool_used"] = used
        return {**made, "bandit": know}, row
