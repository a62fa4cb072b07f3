"""FixMatch at clients: what the model believes of a weak view, it must say of a strong one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from atoll.core.errors import ConfigError
from atoll.learn.card import Card
from atoll.learn.local.own_loss import OwnLoss

from ..losses import cross_entropy_of_rows, each_through, mean_of, seen
from ..objectives.consistency import check_threshold, fixmatch
from ..views.base import View
from ..views.defaults import strong, weak
from .base import Method

__all__ = ["FixMatch", "FixMatchLoss", "require_threshold"]


def require_threshold(tau: float, weight: float, where: str) -> None:
    """Refuse a threshold outside (0, 1], or a negative weight, before the number of classes is known.

    Raises:
        ConfigError: names the value.
    """
    if not 0.0 < tau <= 1.0:
        raise ConfigError(f"tau={tau}", where=where, remedy="use a probability above 1/C, such as 0.95")
    if not weight >= 0.0:
        raise ConfigError(f"weight={weight}", where=where, remedy="use 0 or more")


@dataclass(frozen=True)
class FixMatchLoss(OwnLoss):
    """``mean_L CE(y, f(weak(x))) + weight / |U| sum_U [max p > tau] CE(argmax p, f(strong(x)))`` with ``p = softmax f(weak(x))``.

    Sohn et al. 2020, "FixMatch", equations 3 and 4. ``L`` and ``U`` are the mini-batch's rows with and without a label.
    Gradients flow through one pass of the model, which sees each row through the view that its loss asks for.
    """

    weak: View | None
    strong: View | None
    tau: float
    weight: float
    task: ClassVar[str] = "classes"
    method: ClassVar[str] = "FixMatch"

    def __call__(self, *, model: Any, x: Any, target: Any, labelled: Any, keys: Any, real: Any) -> Any:
        """Return the loss of a mini-batch."""
        weakly = seen(self.weak, x, keys, 0, real)
        near = model(weakly)
        check_threshold(self.tau, near.shape[1], self.method)
        if self.weight == 0.0:
            return mean_of(cross_entropy_of_rows(near, target), labelled * real)
        outputs = model(each_through(labelled, weakly, seen(self.strong, x, keys, 1, real)))
        loss = mean_of(cross_entropy_of_rows(outputs, target), labelled * real)
        unlabelled = ~labelled * real
        return loss + self.weight * mean_of(self.of_rows(outputs, near, unlabelled), unlabelled)

    def of_rows(self, outputs: Any, near: Any, unlabelled: Any) -> Any:
        """Return the loss of each row against its pseudo-label: 0 where the model is not sure.

        Args:
            outputs: logits of the strong view, ``[B, C]``.
            near: logits of the weak view, ``[B, C]``.
            unlabelled: which rows have no label, ``[B]``.
        """
        del unlabelled
        return fixmatch(outputs, near, self.tau)


@dataclass(frozen=True, kw_only=True)
class FixMatch(Method):
    """FixMatch in every local step, averaged by the algorithm inside: labels and unlabelled rows at clients.

    At least an eighth of a mini-batch has labels, seven unlabelled rows for one as in the paper, if the client has as many. With few labels at each client,
    it often loses to labelled rows alone: a client's own model makes the pseudo-labels. `SemiFL` takes the global model.

    Attributes:
        tau: how sure the model must be of a pseudo-label, a probability above ``1/C``.
        weight: of the unlabelled rows' loss, 0 or more. At 0, it is `Supervised` with the weak view and the same ``labelled_share``, bit for bit.
        weak: the view of labelled rows and for pseudo-labels.
        strong: the view that must agree.
    """

    labelled_share: float = 0.125
    tau: float = 0.95
    weight: float = 1.0
    weak: View | None = field(default_factory=lambda: weak("images"))
    strong: View | None = field(default_factory=lambda: strong("images"))
    citation: ClassVar[str] = (
        "Sohn, Berthelot, Li, Zhang, Carlini, Cubuk, Kurakin, Zhang, Raffel. FixMatch: Simplifying Semi-Supervised Learning with Consistency and "
        "Confidence. NeurIPS 2020."
    )
    card: ClassVar[Card] = Card(
        family="wrapper", note="Labels at clients; a client's own model makes its pseudo-labels."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        require_threshold(self.tau, self.weight, type(self).__name__)

    @property
    def losses(self) -> tuple[Any, ...]:
        """FixMatch's loss."""
        return (FixMatchLoss(self.weak, self.strong, self.tau, self.weight),)
