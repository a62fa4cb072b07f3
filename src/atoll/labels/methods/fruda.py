"""FRuDA: a target adapts to the collaborator that promises the smallest error, with discriminators exchanged now and then."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from atoll.core.algebra.tree import Tree
from atoll.core.errors import ConfigError
from atoll.learn.algorithm import Labelled, Movable, RoundInfo
from atoll.learn.card import Card
from atoll.learn.local.own_loss import OwnLoss

from ..domain_network import outputs_of
from ..losses import mean_of, seen
from ..streams import Frozen, Stream
from ..views.base import View
from .base import Method
from .fade import game_of

__all__ = ["FRuDA", "PairLoss"]


@dataclass(frozen=True)
class PairLoss(OwnLoss):
    """The game of one pair: the collaborator's rows pass the features that it had, the target's rows those in training.

    Attributes:
        view: of all rows.
        weight: of the features' side.
    """

    view: View | None
    weight: float

    def __call__(self, *, model: Any, x: Any, labelled: Any, keys: Any, real: Any, broadcast: Any) -> Any:
        """Return the loss of a mini-batch."""
        rows, params = seen(self.view, x, keys, 0, real), broadcast["params"]
        fixed = outputs_of(model(rows, broadcast["anchor"]), params, "FRuDA")
        moving = outputs_of(model(rows), params, "FRuDA")
        here = game_of(fixed, labelled, self.weight, 1, certain=False)
        there = game_of(moving, labelled, self.weight, 1, certain=False)
        return mean_of(here, labelled * real) + mean_of(there, ~labelled * real)


@dataclass(frozen=True, kw_only=True)
class FRuDA(Method, Labelled, Movable):
    """Adversarial adaptation of one target to one collaborator (Gan et al. 2022). No label takes part: the collaborator's model is the start.

    Train a model at the source first and give it as ``Training.model``. The collaborator is the source, or a target that has already adapted: the one with the
    smallest bound on the target's error, `atoll.labels.objectives.transfer_bound`, from quantiles that each domain tells (`sliced_quantiles`). The collaborator's rows are marked by labels; the loss does not read them.
    Its features and the classifier stay as they are, the target's features learn to look like the collaborator's, and both train one discriminator.

    In the paper, the two exchange gradients of the discriminator every ``lazy`` steps. Here they take ``lazy`` local steps and average: the same for
    ``lazy=1`` and plain gradient steps.

    Attributes:
        lazy: local steps between two exchanges, in place of the base's.
        weight: of the adversarial gradient on the features, 0 or more.
        view: of all rows; ``None`` for the rows as they are.
    """

    lazy: int = 4
    weight: float = 0.1
    view: View | None = None
    citation: ClassVar[str] = (
        "Gan, Mathur, Isopoussu, Kawsar, Berthouze, Lane. FRuDA: Framework for Distributed Adversarial Domain Adaptation. IEEE TPDS 33(11), 2022."
    )
    card: ClassVar[Card] = Card(
        family="wrapper", note="One collaborator and one target; start from the collaborator's model."
    )

    def __post_init__(self) -> None:
        if self.lazy < 1 or not self.weight >= 0.0:
            raise ConfigError(
                f"lazy={self.lazy}, weight={self.weight}",
                where="FRuDA",
                remedy="use at least 1 step between exchanges, and a weight of 0 or more",
            )
        if self.steps is None:
            object.__setattr__(self, "steps", self.lazy)
        super().__post_init__()

    @property
    def losses(self) -> tuple[Any, ...]:
        """The game of the pair."""
        return (PairLoss(self.view, self.weight),)

    @property
    def streams(self) -> tuple[Stream, ...]:
        """The classifier is the collaborator's and stays."""
        return (Frozen("classifier."),)

    def init(self, params: Tree) -> Tree:
        """Start with the collaborator's features as the anchor."""
        return {**super().init(params), "anchor": _features(params)}

    def broadcast(self, state: Tree, phase: str) -> Tree:
        """Send the model and the anchor."""
        return {**super().broadcast(state, phase), "anchor": state["anchor"]}

    def fold(self, state: Tree, sums: Any, info: RoundInfo, phase: str) -> Tree:
        """Fold as the base does; the anchor stays."""
        return {**super().fold(state, sums, info, phase), "anchor": state["anchor"]}

    def advance(self, state: Tree, info: RoundInfo) -> Tree:
        """Advance as the base does; the anchor stays."""
        return {**super().advance(state, info), "anchor": state["anchor"]}

    def moved(self, state: Tree) -> Tree:
        """Bring the state up to date as the base does; the anchor stays."""
        return {**super().moved(state), "anchor": state["anchor"]}


def _features(params: Tree) -> Tree:
    return {name: leaf for name, leaf in params.items() if name.startswith("features.")}
