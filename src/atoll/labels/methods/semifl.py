"""SemiFL (Diao et al. 2022): labels at a party of their own, and the global model's pseudo-labels at clients."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch

from atoll.learn.card import Card
from atoll.learn.local.own_loss import OwnLoss

from ..losses import cross_entropy_of_rows, each_through, mean_of, mix_rows, seen
from ..objectives.consistency import pseudo_labels
from ..views.base import View
from ..views.defaults import strong, weak
from .fixmatch import require_threshold
from .labelled_party import LabelledParty

__all__ = ["SemiFL", "SemiFLLoss"]


@dataclass(frozen=True)
class SemiFLLoss(OwnLoss):
    """``mean_L CE(y, f(weak)) + weight (mean_F CE(g, f(strong)) + mean_F [w CE(g, f(m)) + (1 - w) CE(g', f(m))])``.

    ``g`` is what the global model says of the weak view, and ``F`` the rows without a label of which it is surer than ``tau``. ``m = w x + (1 - w) x'``
    mixes a row with another one of the mini-batch, sure or not, and ``g'`` is what the global model says of that one. Diao et al. 2022, section 3.
    They draw ``w`` from ``Beta(mix, mix)``; here it is the larger of ``w`` and ``1 - w``, so that the sure row weighs more. A row with a label has it
    as its ``g``. With ``labels=False``, no row of a client has one, and the first term is left out. Gradients of the first two terms flow through one pass
    of the model, which sees each row through the view that its loss asks for.
    """

    weak: View | None
    strong: View | None
    tau: float
    weight: float
    mix: float
    labels: bool = True
    task: ClassVar[str] = "classes"

    def __call__(self, *, model: Any, x: Any, target: Any, labelled: Any, keys: Any, real: Any, broadcast: Any) -> Any:
        """Return the loss of a mini-batch."""
        near = seen(self.weak, x, keys, 0, real)
        if self.weight == 0.0:
            return mean_of(cross_entropy_of_rows(model(near), target), labelled * real)
        guess, kept = pseudo_labels(model(near, broadcast["params"], training=False), self.tau, "SemiFL")
        guess = torch.where(labelled, target, guess)
        counts = kept * ~labelled * real
        far = seen(self.strong, x, keys, 1, real)
        losses = cross_entropy_of_rows(model(each_through(labelled, near, far) if self.labels else far), guess)
        hidden = mean_of(losses, counts)
        if self.mix > 0.0:
            rows, other, share = mix_rows(x, keys, 2, real, self.mix)
            outputs = model(rows)
            both = share * cross_entropy_of_rows(outputs, guess)
            both = both + (1.0 - share) * cross_entropy_of_rows(outputs, guess[other])
            hidden = hidden + mean_of(both, counts)
        return mean_of(losses, labelled * real) + self.weight * hidden if self.labels else self.weight * hidden


@dataclass(frozen=True, kw_only=True)
class SemiFL(LabelledParty):
    """Alternate: a party with labels trains the global model, and clients fit the pseudo-labels that the global model gives their rows.

    The first round begins with ``warm_up`` steps on labels, every later one with ``label_steps``: after the clients' replies are averaged, as the paper has
    it. Then clients train. The global model makes the pseudo-labels, not the one that trains: that is what a client's own model cannot spoil. Clients are
    stateless. The labels are the rows of a helper party, ``"labels"``: in a simulation those of ``islands.others``, between organisations its site's.
    With ``labels_at="clients"``, no helper is asked, and clients train on their own labels too: at least an eighth of a mini-batch has one, if
    the client has as many.

    Attributes:
        tau: how sure the global model must be of a pseudo-label, a probability above ``1/C``.
        weight: of the rows without labels, 0 or more.
        mix: parameter of mixup's Beta distribution; 0 for no mixup. The paper has .75; with 20 labels on MNIST, training without it ended higher.
        weak: the view of labelled rows and for pseudo-labels.
        strong: the view that must agree.
        labels_at: ``"server"``: labels lie at the helper party; ``"clients"``: at clients.
        warm_up: steps on labels before the first round.
        label_steps: steps on labels before every later round.
        label_batch: labelled rows in a mini-batch of these steps.
    """

    labelled_share: float = 0.125
    tau: float = 0.95
    weight: float = 1.0
    mix: float = 0.0
    weak: View | None = field(default_factory=lambda: weak("images"))
    strong: View | None = field(default_factory=lambda: strong("images"))
    citation: ClassVar[str] = (
        "Diao, Ding, Tarokh. SemiFL: Semi-Supervised Federated Learning for Unlabeled Clients with Alternate Training. NeurIPS 2022."
    )
    card: ClassVar[Card] = Card(
        family="wrapper", note="Labels at the server; the global model makes the pseudo-labels."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        require_threshold(self.tau, self.weight, "SemiFL")

    @property
    def losses(self) -> tuple[Any, ...]:
        """SemiFL's loss at clients."""
        return (SemiFLLoss(self.weak, self.strong, self.tau, self.weight, self.mix, self.labels_at == "clients"),)
