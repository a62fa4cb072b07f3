"""FedSSL (Fan et al. 2022): pseudo-labels at clients, and rows that one private generator makes for all of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from atoll.core.algebra.tree import Tree
from atoll.core.errors import ConfigError
from atoll.learn.card import Card
from atoll.learn.local.own_loss import OwnLoss

from ..losses import cross_entropy_of_rows, mean_of, seen
from ..objectives.consistency import check_threshold, pseudo_label
from ..views.base import View
from ..views.defaults import strong, weak
from ..views.draws import child_keys_of_rows, normals
from .base import Method
from .fixmatch import require_threshold
from .generator import RowDecoder

__all__ = ["FedSSL", "GeneratedLoss"]


@dataclass(frozen=True)
class GeneratedLoss(OwnLoss):
    """``mean_L CE(y, f(weak x)) + weight mean_U l(x) + synthetic mean_U l(g(z))`` with the pseudo-label loss ``l`` under the received model.

    A row without a label has one made row beside it, whose code ``z`` is drawn from the row's key.
    """

    decoder: RowDecoder
    weak: View | None
    strong: View | None
    tau: float
    weight: float
    synthetic: float
    task: ClassVar[str] = "classes"

    def __call__(self, *, model: Any, x: Any, target: Any, labelled: Any, keys: Any, real: Any, broadcast: Any) -> Any:
        """Return the loss of a mini-batch."""
        shown, hidden = seen(self.weak, x, keys, 0, real), ~labelled * real
        near = model(shown)
        loss = mean_of(cross_entropy_of_rows(near, target), labelled * real)
        check_threshold(self.tau, near.shape[1], "FedSSL")
        if self.weight > 0.0:
            said = model(shown, broadcast["params"], training=False)
            far = model(seen(self.strong, x, keys, 1, real))
            loss = loss + self.weight * mean_of(pseudo_label(far, said, self.tau), hidden)
        if self.synthetic > 0.0:
            codes = normals(child_keys_of_rows(keys, 2), 0, self.decoder.generator.latent).to(x.dtype)
            made = self.decoder.rows(codes, broadcast["generator"])
            said = model(seen(self.weak, made, keys, 3, real), broadcast["params"], training=False)
            far = model(seen(self.strong, made, keys, 4, real))
            loss = loss + self.synthetic * mean_of(pseudo_label(far, said, self.tau), hidden)
        return loss


@dataclass(frozen=True, kw_only=True)
class FedSSL(Method):
    """Clients fit pseudo-labels of their own rows and of made rows, which are the same distribution everywhere, so that models drift apart less.

    The made rows come from one generator. Clients train it together beforehand, under DP-SGD, in a training of its own whose ledger has what it costs; see `Generator`. The server
    sends its decoder with the model. The received model gives the pseudo-labels. With all labels, or both weights 0, it is the algorithm inside.

    The survey has no formula for it, and no generator's kind; a variational autoencoder and one made row for each unlabelled row are ours.

    Attributes:
        decoder: ``generator.decoder(trained.params)``.
        tau: how sure the received model must be, a probability above ``1/C``.
        weight: of the client's own rows without labels, 0 or more.
        synthetic: of made rows, 0 or more.
        weak: the view of labelled rows and for pseudo-labels.
        strong: the view that must agree.
    """

    decoder: RowDecoder
    tau: float = 0.95
    weight: float = 1.0
    synthetic: float = 0.5
    weak: View | None = field(default_factory=lambda: weak("images"))
    strong: View | None = field(default_factory=lambda: strong("images"))
    citation: ClassVar[str] = "Fan, Hu, Huang. Private Semi-Supervised Federated Learning. IJCAI 2022."
    card: ClassVar[Card] = Card(
        family="wrapper", note="Made rows from a generator under DP-SGD; pseudo-labels by the received model."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        require_threshold(self.tau, self.weight, "FedSSL")
        if not isinstance(self.decoder, RowDecoder) or not self.synthetic >= 0:
            raise ConfigError(
                f"decoder={type(self.decoder).__name__}, synthetic={self.synthetic}",
                where="FedSSL",
                remedy="give generator.decoder(trained.params), and 0 or more",
            )

    @property
    def losses(self) -> tuple[Any, ...]:
        """The loss on own and made rows."""
        return (GeneratedLoss(self.decoder, self.weak, self.strong, self.tau, self.weight, self.synthetic),)

    def broadcast(self, state: Tree, phase: str) -> Tree:
        """Send the decoder with the base's broadcast."""
        made = super().broadcast(state, phase)
        return {**made, "generator": dict(self.decoder.params)} if self.synthetic > 0 else made
