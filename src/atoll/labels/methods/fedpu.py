"""FedPU (Lin et al. 2022): clients that label some classes only, and the whole risk of positive and unlabelled rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import torch

from atoll.core.algebra import tree as T
from atoll.core.algebra.aggregate import Aggregate
from atoll.core.algebra.tree import Tree
from atoll.core.errors import ConfigError
from atoll.learn.algorithm import Algorithm, Gradient, LocalWork, LossGradients
from atoll.learn.card import Card
from atoll.learn.local.own_loss import OwnLoss

from ..losses import mean_of, seen
from ..objectives.label_noise import check_priors, positive_unlabelled
from ..pre_pass import PrePass, split_pre_pass
from ..views.base import View
from .base import Method

__all__ = ["FedPU", "PositiveLoss"]


@dataclass(frozen=True)
class PositiveLoss(OwnLoss):
    """The mean of `atoll.labels.objectives.positive_unlabelled` over a mini-batch, with what the client knows of all its rows."""

    view: View | None
    nonnegative: bool
    task: ClassVar[str] = "classes"

    def __call__(self, *, model: Any, x: Any, target: Any, labelled: Any, keys: Any, real: Any, broadcast: Any) -> Any:
        """Return the client's risk."""
        known = broadcast["known"]
        risk = positive_unlabelled(
            model(seen(self.view, x, keys, 0, real)), target, labelled & (real > 0), known[1], known[0] > 0, known[0],
            real=real, nonnegative=self.nonnegative,
        )  # fmt: skip
        return mean_of(risk, real)


@dataclass(frozen=True)
class KnownShares(OwnLoss):
    """Of each class, the labelled rows as a share of all rows, and the prior, ``(2, C)``.

    The prior is the given one, or the labelled share and the shares that the model gives the unlabelled rows.
    """

    priors: tuple[float, ...] | None

    def __call__(self, *, model: Any, x: Any, target: Any, labelled: Any, real: Any) -> Any:
        """Return the shares of a mini-batch."""
        outputs = model(x)
        classes = torch.arange(outputs.shape[1], device=outputs.device)
        whose = ((target.unsqueeze(1) == classes) & labelled.unsqueeze(1)).to(outputs.dtype) * real.unsqueeze(1)
        shares = whose.sum(0) / real.sum()
        if self.priors is not None:
            if len(self.priors) != outputs.shape[1]:
                raise ConfigError(
                    f"{len(self.priors)} priors for a model with {outputs.shape[1]} outputs",
                    where="FedPU.priors",
                    remedy="give the share of each class among a client's rows, or None",
                )
            return torch.stack([shares, torch.tensor(self.priors, dtype=outputs.dtype, device=outputs.device)])
        guessed = torch.softmax(outputs, 1) * ((~labelled).to(outputs.dtype) * real).unsqueeze(1)
        return torch.stack([shares, shares + guessed.sum(0) / real.sum()])


@dataclass(frozen=True, kw_only=True)
class FedPU(Method):
    """Each client labels rows of some classes, and learns from its other rows that they may be of none of these.

    A client cannot tell its unlabelled classes apart; the clients that label them can. Local steps descend the unbiased risk of positive and unlabelled rows
    (`atoll.labels.objectives.positive_unlabelled`), with shares and priors from all of the client's rows, counted before the steps of each contact and kept
    nowhere. With every label it is the algorithm inside. A client without any label learns nothing; FedPU does not use such clients.

    The authors' published code trains on cross-entropy of the labelled rows alone, without this risk.

    Attributes:
        priors: the share of each class among a client's rows, labelled or not, the same for all clients. ``None``: each client estimates its own as the labelled
            rows and what the received model says of the others, which is biased as long as the model is.
        nonnegative: keep the estimate of the unlabelled part of the risk from falling below 0 (Kiryo et al. 2017).
        view: the view of all rows; ``None`` for the rows as they are.
    """

    priors: Sequence[float] | None = None
    nonnegative: bool = True
    view: View | None = None
    citation: ClassVar[str] = (
        "Lin, Chen, Xu, Xu, Gui, Deng, Wang. Federated Learning with Positive and Unlabeled Data. ICML 2022."
    )
    card: ClassVar[Card] = Card(family="wrapper", note="Each client labels rows of some classes only.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.priors is not None:
            object.__setattr__(self, "priors", tuple(float(p) for p in self.priors))
            check_priors(torch.tensor(self.priors, dtype=torch.float64), "FedPU.priors")

    @property
    def losses(self) -> tuple[Any, ...]:
        """The risk, and the counts."""
        return (PositiveLoss(self.view, self.nonnegative), KnownShares(self.priors))  # type: ignore[arg-type]

    @property
    def needs_every_class(self) -> bool:
        """No: rows of none of the labelled classes teach a class that nobody labels."""
        return False

    def passes(self, phase: str) -> tuple[Algorithm, ...]:
        """Count in one pass over all rows, then run the base's passes."""
        return (_Count(method=self), *super().passes(phase))

    def start(self, broadcast: Tree, client: Tree) -> Tree:
        """Start with the base's local state and the counts."""
        return {**super().start(broadcast, client), **split_pre_pass(client)[1]}

    def step(self, local: Tree, grad: Gradient, broadcast: Tree) -> Tree:
        """Take the base's step on the risk with the client's counts."""
        if "known" not in local:
            return super().step(local, grad, broadcast)
        inner = {name: value for name, value in local.items() if name != "known"}
        return {
            **super().step(inner, cast("LossGradients", grad).on(None, known=local["known"]), broadcast),
            "known": local["known"],
        }

    def finish(self, local: Tree, broadcast: Tree, client: Tree, work: LocalWork) -> tuple[dict[str, Aggregate], Tree]:
        """Reply as the base does; the counts are not kept."""
        inner = {name: value for name, value in local.items() if name != "known"}
        return super().finish(inner, broadcast, client, work)


@dataclass(frozen=True, kw_only=True)
class _Count(PrePass):
    """One look at all of the client's rows."""

    method: FedPU

    def start(self, broadcast: Tree, client: Tree) -> Tree:
        """Start with nothing known."""
        del client
        return {"params": broadcast["params"], "known": T.leaves(broadcast["params"])[0].reshape(-1)[:1]}

    def step(self, local: Tree, grad: Gradient, broadcast: Tree) -> Tree:
        """Count."""
        return {**local, "known": cast("LossGradients", grad).read(self.method.losses[1], local["params"])}

    def read_found(self, local: Tree) -> dict[str, Tree]:
        """Return the counts."""
        return {"known": local["known"]}
