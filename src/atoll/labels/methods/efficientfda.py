"""EfficientFDA: domains are aligned by the means of their features, which parties add up under encryption."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import numpy as np
import torch

from atoll.core.algebra.aggregate import Aggregate, Sum
from atoll.core.algebra.tree import Tree
from atoll.core.errors import CompositionError, ConfigError
from atoll.learn.algorithm import Algorithm, Gradient, Labelled, LocalWork, LossGradients, Movable, RoundInfo
from atoll.learn.card import Card
from atoll.learn.local.own_loss import OwnLoss

from ..domain_network import outputs_of, width_of
from ..losses import cross_entropy_of_rows, mean_of, seen
from ..views.base import View
from .base import Method

__all__ = ["AlignedLoss", "EfficientFDA", "FeatureGap", "FeatureSums"]


@dataclass(frozen=True)
class FeatureSums(OwnLoss):
    """What a party adds up over a batch: features and rows, of labelled rows and of the others. It is read, never descended."""

    view: View | None = None

    def __call__(self, *, model: Any, x: Any, labelled: Any, keys: Any, real: Any, broadcast: Any) -> Any:
        """Return ``{"sums": (2, D), "rows": (2,)}``: of rows with a label, and of rows without."""
        z = outputs_of(model(seen(self.view, x, keys, 0, real)), broadcast["params"], "EfficientFDA").features
        of = torch.stack([labelled * real, ~labelled * real]).to(z.dtype)
        return {"sums": of @ z, "rows": of.sum(1)}


@dataclass(frozen=True)
class AlignedLoss(OwnLoss):
    """``mean_S CE + 2 weight <gap, mean_S z> - 2 weight r <gap, mean_T z>``, whose gradient at the broadcast model is that of the MMD; see `EfficientFDA`.

    Attributes:
        view: of all rows.
        weight: of the discrepancy.
    """

    view: View | None = None
    weight: float = 1.0
    task: ClassVar[str] = "classes"

    def __call__(self, *, model: Any, x: Any, target: Any, labelled: Any, keys: Any, real: Any, broadcast: Any) -> Any:
        """Return the loss of a mini-batch."""
        out = outputs_of(model(seen(self.view, x, keys, 0, real)), broadcast["params"], "EfficientFDA")
        along = out.features @ broadcast["gap"]
        ratio = broadcast["parties"][0] / broadcast["parties"][1].clamp(min=1.0)
        taught = mean_of(cross_entropy_of_rows(out.logits, target), labelled * real)
        pull = mean_of(along, labelled * real) - ratio * mean_of(along, ~labelled * real)
        return taught + 2.0 * self.weight * pull


@dataclass(frozen=True, kw_only=True)
class FeatureGap(Algorithm, Labelled):
    """A pass that trains nothing: a party's share of the gap between the mean features of sources and of targets.

    It replies ``z_S / sources - z_T / targets``, with the mean features of its rows of each kind and how many parties have any, and whether it has any itself.
    In the first round the counts are unknown, and the share is 0. The server sees only sums over all parties.

    Attributes:
        batch_size: rows whose features are added up; ``None`` for all.
        view: of the rows.
    """

    batch_size: int | None = None
    steps: int | None = 1
    view: View | None = None
    card: ClassVar[Card] = Card(part=True, note="A part of EfficientFDA: it does not train.")

    @property
    def losses(self) -> tuple[Any, ...]:
        """What is read."""
        return (FeatureSums(self.view),)

    def start(self, broadcast: Tree, client: Tree) -> Tree:
        """Start with sums of 0."""
        del client
        none = broadcast["parties"] * 0.0
        read = {"sums": none[:, None] * broadcast["gap"], "rows": none}
        return {"params": broadcast["params"], "read": read}

    def step(self, local: Tree, grad: Gradient, broadcast: Tree) -> Tree:
        """Add up the features of the batch."""
        del broadcast
        return {**local, "read": cast("LossGradients", grad).read(self.losses[0], local["params"])}

    def finish(self, local: Tree, broadcast: Tree, client: Tree, work: LocalWork) -> tuple[dict[str, Aggregate], Tree]:
        """Reply with the share of the gap, and with who is a source and a target."""
        del work
        there = (local["read"]["rows"] > 0) * (broadcast["parties"] * 0.0 + 1.0)
        share = _inverse(local["read"]["rows"]) * _inverse(broadcast["parties"])
        parts = local["read"]["sums"] * share[:, None]
        return {"gap": Sum(parts[0] - parts[1], role="side"), "parties": Sum(there, role="side")}, client


def _inverse(count: Any) -> Any:
    """Return ``1 / count``, and 0 for 0."""
    none = (count <= 0) * 1.0
    return (1.0 - none) / (count + none)


@dataclass(frozen=True, kw_only=True)
class EfficientFDA(Method, Labelled, Movable):
    """Alignment of mean features, ``weight ||mean_i mean z_i - mean_T mean z||^2``, from one encrypted sum a round (Kang, Li and Zhang 2022).

    A round has two contacts. In the first, each party adds up the features of its batch *before* it encrypts, so that a batch costs as many ciphertexts as its
    features need, and not that many for each row; the sum of all parties' shares is the gap between the domains. In the second, each party
    applies the chain rule in the clear: the gradient of the discrepancy is ``2 weight gap`` times the Jacobian of its own mean. With ``steps=1`` and the
    same rows, this is the gradient of `atoll.labels.objectives.linear_mmd` of all parties' features; later steps of a round keep the gap.

    The encryption is the training's reducer: ``Training(..., reducer=atoll.reducers.Encrypted(scheme="paillier"))`` encrypts features and updates,
    and equals the training without it up to fixed-point rounding. Nobody sees one party's mean.

    Attributes:
        weight: of the discrepancy, 0 or more.
        rows: rows of a party whose features are added up in a round; ``None`` for all.
        view: of all rows; ``None`` for the rows as they are.
    """

    weight: float = 0.1
    rows: int | None = None
    view: View | None = None
    citation: ClassVar[str] = (
        "Kang, Li, Zhang. Communicational and Computational Efficient Federated Domain Adaptation. IEEE TPDS 33(12), 2022."
    )
    card: ClassVar[Card] = Card(
        family="wrapper",
        everyone=True,
        note="Labels at sources, none at the target; sums of features may be encrypted.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.weight >= 0.0:
            raise ConfigError(f"weight={self.weight}", where="EfficientFDA", remedy="use 0 or more")
        if self.base.phases != ("train",):
            raise CompositionError(
                f"EfficientFDA around {type(self.base).__name__}, which has phases {', '.join(self.base.phases)}",
                where="EfficientFDA",
                remedy="use a base with one contact a round, such as FedAvg or FedProx",
            )
        object.__setattr__(self, "phases", ("means", "train"))
        object.__setattr__(self, "card", type(self).card)

    @property
    def losses(self) -> tuple[Any, ...]:
        """Cross-entropy of labelled rows, and the pull of the gap."""
        return (AlignedLoss(self.view, self.weight),)

    def plan(self, state: Tree) -> tuple[str, ...]:
        """Return both phases."""
        del state
        return self.phases

    def passes(self, phase: str) -> tuple[Algorithm, ...]:
        """Run the pass of the means, or the method's own."""
        return (FeatureGap(batch_size=self.rows, view=self.view),) if phase == "means" else super().passes("train")

    def init(self, params: Tree) -> Tree:
        """Start with no gap and unknown counts."""
        kind = next(iter(params.values())).dtype
        gap = np.zeros(width_of(params, "EfficientFDA"), kind)
        return {**super().init(params), "gap": gap, "parties": np.zeros(2, kind)}

    def broadcast(self, state: Tree, phase: str) -> Tree:
        """Send the model, the gap, and how many parties are sources and targets."""
        return {**super().broadcast(state, "train"), **_pick_kept(state)}

    def fold(self, state: Tree, sums: Mapping[str, Any], info: RoundInfo, phase: str) -> Tree:
        """Keep the gap, or fold the updates."""
        if phase == "means":
            return {**state, **_pick_kept(sums)}
        return {**super().fold(state, sums, info, "train"), **_pick_kept(state)}

    def advance(self, state: Tree, info: RoundInfo) -> Tree:
        """Advance as the base does."""
        return {**super().advance(state, info), **_pick_kept(state)}

    def moved(self, state: Tree) -> Tree:
        """Bring the state up to date as the base does."""
        return {**super().moved(state), **_pick_kept(state)}


def _pick_kept(state: Mapping[str, Any]) -> dict[str, Any]:
    return {name: state[name] for name in ("gap", "parties")}
