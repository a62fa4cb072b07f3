"""Rounds whose share of clients and threshold a bandit sets, for AdaFedSemi (Wang et al. 2022)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from atoll.core.algebra.tree import Tree
from atoll.core.capability import Need
from atoll.core.errors import CompositionError, ConfigError
from atoll.learn.capabilities import ONE_MODEL, SAMPLE
from atoll.learn.round.rounds import ServerRounds, server_round
from atoll.learn.selection.uniform import Uniform
from atoll.learn.topology.base import Star
from atoll.programs.bandits import DiscountedUCB

from .adafedsemi import POOL

if TYPE_CHECKING:
    from atoll.core.federation.federation import Federation
    from atoll.learn.context import Context

__all__ = ["AdaptiveRounds"]


@dataclass(frozen=True, kw_only=True)
class AdaptiveRounds(Star):
    """A bandit chooses, for ``window`` rounds at a time, the share ``P`` of clients that train and the threshold of the pool.

    Every pair of ``shares`` and ``taus`` is an arm of a discounted UCB (`atoll.programs.bandits.DiscountedUCB`). An arm's reward is what the clients' labelled rows gained for what the window
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
