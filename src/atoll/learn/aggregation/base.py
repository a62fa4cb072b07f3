"""The contract of an aggregation, and those that change weights or models in one line: plain, equal, rescaled, the global model kept."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from atoll.core.algebra import tree as T
from atoll.core.algebra.aggregate import Aggregate, Mean
from atoll.core.algebra.tree import Tree
from atoll.core.capability import SINGLE_REPLIES, Capability, Need
from atoll.core.errors import CompositionError, ConfigError
from atoll.core.event import Event
from atoll.core.requests.results import Combined
from atoll.core.validation import Checked

from ..algorithm import Algorithm, LocalWork, RoundInfo
from ..capabilities import DRAW_ODDS, ONE_MODEL, PLAIN_MEAN, WHOLE_POPULATION
from ..wrapped import Wrapped, dry_reply

__all__ = [
    "Aggregation",
    "EqualWeights",
    "KeepGlobal",
    "ONE_BY_ONE",
    "Renormalised",
    "Rescaled",
    "population_weight",
    "require_examples",
    "scale_means",
]


ONE_BY_ONE = (
    Need(SINGLE_REPLIES, "sees single replies", "Renormalised, Rescaled or KeepGlobal"),
    Need(ONE_MODEL, "keeps single models of one round's base", "Renormalised(), Rescaled() or KeepGlobal()"),
)
"""The needs of an operator that sees single replies."""


@dataclass(frozen=True)
class Aggregation(Checked):
    """Base class of operators; the base takes the mean over the clients that replied.

    Attributes:
        weighs_population: whether the operator uses the examples of the whole population, ``RoundInfo.weight``.
        weighs_odds: whether the operator uses the probabilities of the draws, ``RoundInfo.odds``.
    """

    weighs_population: ClassVar[bool] = False
    weighs_odds: ClassVar[bool] = False

    @property
    def needs(self) -> tuple[Need, ...]:
        """What the other parts of a training must offer; add your own rows to ``super().needs``."""
        odds = Need(DRAW_ODDS, "weights by the probability of every draw", "another aggregation")
        whole = Need(WHOLE_POPULATION, "weights the whole population", "Renormalised() or EqualWeights()")
        return (*((odds,) if self.weighs_odds else ()), *((whole,) if self.weighs_population else ()))

    @property
    def offers(self) -> frozenset[Capability]:
        """What the operator offers to the other parts of a training: a plain mean, if the class changes neither replies nor their sum."""
        kind = type(self)
        plain = kind.combine is Aggregation.combine and kind.algorithm is Aggregation.algorithm
        return frozenset({PLAIN_MEAN}) if plain else frozenset()

    def algorithm(self, base: Algorithm) -> Algorithm:
        """Return the algorithm that clients run: the base, or the base with other replies."""
        return base

    @property
    def event(self) -> Event | None:
        """What a round's sums release about a client, with noise that this operator adds from ``RoundInfo.secret``; ``None`` if it adds none.

        The event is in the ledger before ``combine`` is called: for every client if it counts a secret sample, else for those in the sum.
        """
        return None

    @property
    def noisy(self) -> bool:
        """Whether ``combine`` draws on ``RoundInfo.secret``; by default if it releases something."""
        return self.event is not None

    def disclosed(self, info: RoundInfo) -> RoundInfo:
        """Return what a fold may know of a round; an operator that protects who takes part hides how many did."""
        return info

    def check(self, base: Algorithm, params: Tree) -> None:
        """Refuse an algorithm that does not work with this operator, before any client is contacted."""

    def check_rows(self, there: bool) -> None:
        """Refuse what ``measured`` cannot do, before any client is contacted; ``there`` says whether the server has its own test rows."""

    def init(self, params: Tree) -> Tree:
        """Return the operator's memory before the first round."""
        del params
        return None

    def combine(self, combined: Combined, params: Tree, memory: Tree, info: RoundInfo) -> tuple[dict[str, Any], Tree]:
        """Return what the algorithm's fold receives.

        Args:
            combined: the replies of a phase, as results, weights and kinds.
            params: the model that the clients received, ``w(t-1)``.
            memory: the operator's memory.
            info: the round.

        Returns:
            name -> combined value, and the new memory.
        """
        del params, info
        return combined.value, memory

    def measured(
        self, memory: Tree, utility: Callable[[Tree], float] | None, name: Callable[[int], str]
    ) -> tuple[dict[str, Any], Tree]:
        """Return further entries for the row of a round with replies, and the memory after it.

        Args:
            memory: the operator's memory after ``combine``.
            utility: minus the loss of a model on the server's own test rows; ``None`` without test rows.
            name: gives the name of the client at a position.
        """
        del utility, name
        return {}, memory


@dataclass(frozen=True)
class Renormalised(Aggregation):
    """Partial aggregation with ``a_k = n_k / sum_{j in S} n_j``: the mean over the clients that replied, by examples.

    FedAvg's text does this in practice. The weights sum to 1 in every round.
    """


def require_examples(operator: Aggregation, base: Algorithm, params: Tree) -> None:
    """Refuse an algorithm that does not weight its means by examples: the population is weighted by them.

    Raises:
        CompositionError: the algorithm weights clients equally, or in another way.
    """
    for phase in base.phases:
        for name, aggregate in dry_reply(base, params, phase, examples=3.0).items():
            if isinstance(aggregate, Mean) and float(aggregate.examples) != 3.0:
                raise CompositionError(
                    f"{type(base).__name__} does not weight its mean {name!r} by examples, but {type(operator).__name__} weights the population by them",
                    where="Training.aggregation",
                    remedy="use Renormalised, or an algorithm such as FedAvg",
                )


def population_weight(info: RoundInfo) -> float:
    """Return the examples of the whole population.

    Raises:
        ConfigError: the number is unknown or 0.
    """
    if info.weight is None or not info.weight > 0:
        raise ConfigError(
            f"the population has {info.weight} examples",
            where="RoundInfo.weight",
            remedy="give the training the federated data set, or use the operator Renormalised",
        )
    return info.weight


def scale_means(combined: Combined, factor: float) -> dict[str, Any]:
    """Turn every mean ``sum_S n_k v_k / sum_S n_k`` into ``factor * sum_S n_k v_k``; other replies stay unchanged."""
    return {
        name: T.scale(value, factor * combined.weight[name]) if combined.kinds[name] == "mean" else value
        for name, value in combined.value.items()
    }


# ---------------------------------------------------------------- equal weights


@dataclass(frozen=True)
class EqualWeights(Aggregation):
    """Partial aggregation with ``a_k = 1/|S|``.

    If clients are drawn with replacement with probability ``n_k / n`` (``SizeProportional``), it is unbiased for
    ``sum_k (n_k / n) w_k``. Li et al. 2020, "Federated Optimization in Heterogeneous Networks", Algorithms 1 and 2.
    """

    def algorithm(self, base: Algorithm) -> Algorithm:
        """Return the base with every mean weighted by 1."""
        return _Equal(base=base)


@dataclass(frozen=True, kw_only=True)
class _Equal(Wrapped):
    """Replies with weight 1, also of a pass of another kind, such as a full gradient."""

    def _keeps(self, part: Algorithm, last: bool) -> bool:
        """Keep the last pass too: what it sends has weight 1, whatever it is."""
        return last or super()._keeps(part, last)

    def finish(self, local: Tree, broadcast: Tree, client: Tree, work: LocalWork) -> tuple[dict[str, Aggregate], Tree]:
        """Return the base's reply with equal weights, also if it weights sums and single replies by examples."""
        reply, state = self.base.finish(local, broadcast, client, replace(work, examples=work.examples * 0.0 + 1.0))
        return {name: replace(a, examples=1.0) if isinstance(a, Mean) else a for name, a in reply.items()}, state


# ---------------------------------------------------------------- the global model kept


@dataclass(frozen=True)
class KeepGlobal(Aggregation):
    """``w(t) = sum_{k in S} (n_k/n) w_k + sum_{k not in S} (n_k/n) w(t-1) = w(t-1) + sum_{k in S} (n_k/n) (w_k - w(t-1))``.

    The step is scaled by the share of the examples that replied. Wu 2021, Eq. 2.46.
    """

    weighs_population: ClassVar[bool] = True

    def check(self, base: Algorithm, params: Tree) -> None:
        """Refuse an algorithm that does not weight by examples."""
        require_examples(self, base, params)

    def combine(self, combined: Combined, params: Tree, memory: Tree, info: RoundInfo) -> tuple[dict[str, Any], Tree]:
        """Return means over the population, with nothing from absent clients."""
        del params
        return scale_means(combined, 1.0 / population_weight(info)), memory


# ---------------------------------------------------------------- rescaled partial aggregation


@dataclass(frozen=True)
class Rescaled(Aggregation):
    """Partial aggregation with ``a_k = (n_k/n) |U|/|S|``, unbiased under uniform selection (Wu 2021, Eq. 2.47).

    The weights sum to ``A = sum_{k in S} a_k``, which is 1 only in expectation. On updates, the next model is
    ``w(t-1) + sum a_k (w_k - w(t-1))``. On models, as the equation says literally, it is ``sum a_k w_k``: this scales the whole model
    by ``A``, which is much noisier if clients' sizes differ. Both have the same expectation.

    Attributes:
        models: average models instead of updates; only for algorithms that reply with an ``update`` of the model.
    """

    models: bool = False
    weighs_population: ClassVar[bool] = True

    def check(self, base: Algorithm, params: Tree) -> None:
        """Refuse an algorithm that does not weight by examples; on models, one without an update of the model."""
        require_examples(self, base, params)
        if self.models and "update" not in dry_reply(base, params):
            raise CompositionError(
                f"{type(base).__name__} does not reply with an update of the model",
                where="aggregation",
                remedy="use Rescaled(models=False)",
            )

    def combine(self, combined: Combined, params: Tree, memory: Tree, info: RoundInfo) -> tuple[dict[str, Any], Tree]:
        """Return means over the population, divided by the share of clients that replied."""
        factor = info.population / (info.replied * population_weight(info))
        sums = scale_means(combined, factor)
        if self.models and combined.kinds.get("update") == "mean":
            excess = factor * combined.weight["update"] - 1.0
            sums["update"] = T.add(sums["update"], T.scale(params, excess))
        return sums, memory
