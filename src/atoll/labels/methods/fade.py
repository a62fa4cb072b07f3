"""FADE: adversarial adaptation in which every party keeps its features, and discriminators are averaged like the model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from atoll.core.errors import CompositionError, ConfigError
from atoll.learn.algorithm import Labelled
from atoll.learn.card import Card
from atoll.learn.local.own_loss import OwnLoss

from ..domain_network import DomainOutputs, outputs_of
from ..losses import cross_entropy_of_rows, mean_of, seen
from ..objectives.domains import certainty, domain_loss
from ..views.base import View
from .base import Method

__all__ = ["FADE", "AdversarialLoss", "game_of"]


def game_of(out: DomainOutputs, source: Any, weight: Any, power: int, *, certain: bool) -> Any:
    """Return both sides of the game for each row, ``(B,)``: the discriminator descends its loss, the features ascend ``weight`` times the same loss.

    Args:
        out: the network's outputs.
        source: 1 for a row of a source, 0 for one of the target, ``(B,)``.
        weight: of the features' side.
        power: of the loss; see `atoll.labels.objectives.domain_loss`.
        certain: weigh each row by `atoll.labels.objectives.certainty`.

    Raises:
        CompositionError: the network has no discriminator.
    """
    if out.score is None or out.held is None:
        raise CompositionError(
            "an adversarial method, and a network without a discriminator",
            where="FADE",
            remedy="give DomainNetwork(..., discriminator=nn.Sequential(...))",
        )
    both = weight * domain_loss(out.score, source, power) + (1.0 - weight) * domain_loss(out.held, source, power)
    return both * certainty(out.logits) if certain else both


@dataclass(frozen=True)
class AdversarialLoss(OwnLoss):
    """``mean_S CE + mean_S a + mean_T a``, with ``a`` from `game_of`: rows with a label are of a source, rows without one of the target.

    Attributes:
        view: of all rows; ``None`` for the rows as they are.
        weight: of the features' side.
        power: of the discriminator's loss.
        certain: weigh rows by how sure the classifier is.
        ramp: the weight rises over so many rounds.
    """

    view: View | None = None
    weight: float = 0.1
    power: int = 2
    certain: bool = True
    ramp: int = 0
    task: ClassVar[str] = "classes"

    def __call__(
        self,
        *,
        model: Any,
        x: Any,
        target: Any,
        labelled: Any,
        keys: Any,
        real: Any,
        round: Any,  # noqa: A002 - the name by which losses ask
        broadcast: Any,
    ) -> Any:
        """Return the loss of a mini-batch."""
        out = outputs_of(model(seen(self.view, x, keys, 0, real)), broadcast["params"], "FADE")
        weight = self.weight * (round / self.ramp).clamp(max=1.0) if self.ramp else self.weight
        game = game_of(out, labelled, weight, self.power, certain=self.certain)
        loss = mean_of(cross_entropy_of_rows(out.logits, target), labelled * real)
        return loss + mean_of(game, labelled * real) + mean_of(game, ~labelled * real)


@dataclass(frozen=True, kw_only=True)
class FADE(Method, Labelled):
    """Adversarial adaptation from labelled parties to one without labels, in which no feature leaves a party (Hong et al. 2021).

    Each party trains features, classifier and discriminator on its own rows; all three are averaged. A discriminator that sees one domain alone has
    little to learn, for which FADE has two tricks: the squared loss, and a discriminator that sees class probabilities times features
    (``DomainNetwork(conditional=True)``). ``FADE(power=1, certain=False)`` with an unconditional network is DANN at one party that has all rows, and
    its federation by plain averaging at several.

    Attributes:
        weight: of the adversarial gradient on the features, 0 or more. At 0 the discriminator learns and changes nothing else.
        power: 2 for FADE's squared loss, 1 for DANN's.
        certain: weigh rows by ``1 + exp(-entropy)`` of their prediction.
        ramp: let the weight rise over so many rounds; 0 for its full size at once.
        view: of all rows; ``None`` for the rows as they are.
    """

    weight: float = 0.1
    power: int = 2
    certain: bool = True
    ramp: int = 0
    view: View | None = None
    citation: ClassVar[str] = (
        "Hong, Zhu, Yu, Wang, Dodge, Zhou. Federated Adversarial Debiasing for Fair and Transferable Representations. KDD 2021."
    )
    card: ClassVar[Card] = Card(
        family="wrapper", note="Labels at sources, none at the target; discriminators are averaged."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.weight >= 0.0 or self.power < 1 or self.ramp < 0:
            raise ConfigError(
                f"weight={self.weight}, power={self.power}, ramp={self.ramp}",
                where="FADE",
                remedy="use a weight of 0 or more, power 1 or 2, and a ramp of 0 rounds or more",
            )

    @property
    def losses(self) -> tuple[Any, ...]:
        """Cross-entropy of labelled rows and the adversarial game of all."""
        return (AdversarialLoss(self.view, self.weight, self.power, self.certain, self.ramp),)
