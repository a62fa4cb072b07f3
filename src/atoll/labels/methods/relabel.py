"""Relabel: labels that the global model denies are taken away, and their rows go on as rows without a label."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from atoll.core.algebra.tree import Tree
from atoll.core.errors import ConfigError
from atoll.core.facets import facet
from atoll.learn.algorithm import Algorithm, Gradient, Labelled, Phased
from atoll.learn.card import Card
from atoll.learn.wrapped import Wrapped

from ..losses import seen
from ..views.base import View
from ..views.defaults import weak
from .base import require_views
from .fixmatch import FixMatch
from .guard import Hiding, HidingLoss, require_labelled

__all__ = ["DeniedLabels", "Relabel"]

_VIEW = 1 << 10  # number of the view for the verdict: no method uses it


@dataclass(frozen=True)
class DeniedLabels(HidingLoss):
    """Hide the labels that the global model denies.

    Row ``i`` keeps its label if ``argmax_c p_c(x_i) = y_i``, or if ``max_c p_c(x_i) < sure``, with ``p`` the softmax of what the global model says of
    the row's weak view. Every row does in the first ``after`` contacts.

    Attributes:
        view: the view for the verdict.
        after: contacts before the first verdict.
        sure: how sure the global model must be to deny a label.
    """

    view: View | None
    after: int
    sure: float
    reads: ClassVar[tuple[str, ...]] = ("model", "x", "target", "labelled", "keys", "real", "round", "broadcast")

    def hidden(self, given: dict[str, Any]) -> Any:
        """Return which labels the global model denies."""
        shown = seen(self.view, given["x"], given["keys"], _VIEW, given["real"])
        scores = given["model"](shown, given["broadcast"]["params"], training=False).detach().softmax(1)
        sure, said = scores.max(1)
        return (said != given["target"]) & (sure >= self.sure) & (given["round"] > self.after)


@dataclass(frozen=True, kw_only=True)
class Relabel(Wrapped, Labelled):
    """Train on all labels for ``after`` rounds; from then on, leave out each label that the global model denies.

    A network learns what many rows agree on before it learns single wrong labels (Arpit et al. 2017), so its early verdict is better than the labels. A row
    that loses its label goes on as a row without one: the method inside gives it a pseudo-label. The verdict is made anew in every round by the model that
    the server sends, from the row alone. So clients keep nothing, nothing about a row leaves them, and a label that was denied too early comes back.

    Use it around a method with labels at the clients, such as ``Relabel(base=FixMatch(tau=0.95))``.

    Attributes:
        base: the method; its losses must ask for ``labelled``.
        after: rounds with a contact before labels are denied.
        sure: how sure the global model must be to deny a label; at 0 it denies whenever it says something else.
        view: the view of a row for the verdict.
    """

    base: Algorithm = field(default_factory=FixMatch, kw_only=False)
    after: int = 8
    sure: float = 0.0
    view: View | None = field(default_factory=lambda: weak("images"))
    citation: ClassVar[str] = (
        "Arpit, Jastrzebski, Ballas, et al. A Closer Look at Memorization in Deep Networks. ICML 2017; Song, Kim, Lee. SELFIE: Refurbishing Unclean "
        "Samples for Robust Deep Learning. ICML 2019."
    )
    card: ClassVar[Card] = Card(
        family="wrapper", note="For wrong labels: the global model judges, clients are stateless."
    )

    def __post_init__(self) -> None:
        own = {name: getattr(type(self), name) for name in ("citation", "card")}
        super().__post_init__()
        for name, value in own.items():
            object.__setattr__(self, name, value)
        if self.after < 0:
            raise ConfigError(f"after={self.after}", where="Relabel", remedy="use a number of rounds, 0 or more")
        if not 0.0 <= self.sure <= 1.0:
            raise ConfigError(f"sure={self.sure}", where="Relabel", remedy="use a probability from 0 to 1")
        require_labelled(self.base, "Relabel")
        require_views(self)

    @property
    def losses(self) -> tuple[Any, ...]:
        """The base's losses, without denied labels."""
        return tuple(self._make_hiding_loss(loss) for loss in facet(self.base, Labelled).losses)

    def _make_hiding_loss(self, loss: Any) -> Any:
        return DeniedLabels(loss, self.view, self.after, self.sure)

    def step(self, local: Tree, grad: Gradient, broadcast: Tree) -> Tree:
        """Take the base's step."""
        oracle: Any = Hiding(grad, self._make_hiding_loss)
        return super().step(local, oracle, broadcast)

    def passes(self, phase: str) -> tuple[Algorithm, ...]:
        """Run the base's passes. Those on losses of their own, such as at a party with labels, leave out denied labels too."""
        made = facet(self.base, Phased).passes(phase)
        return tuple(
            Relabel(base=part, after=self.after, sure=self.sure, view=self.view)
            if facet(part, Labelled).losses
            else part
            for part in made
        )
