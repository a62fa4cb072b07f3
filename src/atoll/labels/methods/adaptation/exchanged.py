"""Features that leave their parties: what FADA's parties send, and the discriminators that its server trains on it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch

from atoll.core.algebra import tree as T
from atoll.core.algebra.aggregate import Aggregate, Parts
from atoll.core.algebra.rng import Rng
from atoll.core.algebra.tree import Tree
from atoll.learn.algorithm import LocalWork
from atoll.learn.card import Card
from atoll.learn.local.own_loss import OwnLoss

from ...domain_network import outputs_of
from ...look import OneLook
from ...losses import seen
from ...objectives.adversarial import domain_loss
from ...views.base import View

__all__ = ["FeatureLook", "RowFeatures", "judged", "trained_judge"]

_TAGS = 2**24


def judged(judge: Mapping[str, Any], z: Any) -> Any:
    """Return a discriminator's logits of features, ``b . tanh(z A + a) + c``, ``(B,)``: above 0 for the source."""
    return torch.tanh(z @ judge["A"] + judge["a"]) @ judge["b"] + judge["c"]


def trained_judge(source: Any, target: Any, *, hidden: int, steps: int, lr: float, rng: Rng) -> Tree:
    """Return a discriminator after gradient steps on ``mean_S a + mean_T a``, with ``a`` DANN's loss (`atoll.labels.objectives.domain_loss`).

    Args:
        source: the source's features, ``(n, D)``.
        target: the target's, ``(m, D)``.
        hidden: hidden units.
        steps: steps over all features.
        lr: learning rate.
        rng: the random stream of its first parameters.
    """
    z = torch.from_numpy(np.concatenate([source, target]))
    of = torch.cat([torch.ones(len(source)), torch.zeros(len(target))]).to(z.dtype)
    share = torch.where(of > 0, 1.0 / len(source), 1.0 / len(target)).to(z.dtype)
    draw, width = rng.generator(), z.shape[1]
    shapes = {"A": (width, hidden), "a": (hidden,), "b": (hidden,), "c": ()}
    spread = {"A": width**-0.5, "a": 0.0, "b": hidden**-0.5, "c": 0.0}
    judge = {name: torch.tensor(draw.normal(size=s) * spread[name], dtype=z.dtype) for name, s in shapes.items()}
    for _ in range(steps):
        free = {name: leaf.requires_grad_() for name, leaf in judge.items()}
        loss = (domain_loss(judged(free, z), of) * share).sum()
        slopes = torch.autograd.grad(loss, list(free.values()))
        judge = {name: (leaf - lr * slope).detach() for (name, leaf), slope in zip(free.items(), slopes, strict=True)}
    return {name: leaf.detach().numpy() for name, leaf in judge.items()}


@dataclass(frozen=True)
class RowFeatures(OwnLoss):
    """Reads features of a mini-batch's rows: by the model that was sent, or by each of ``broadcast["models"]``; and a random tag.

    Attributes:
        view: of the rows.
        rows: how many there are with padding, a mini-batch or more.
    """

    view: View | None = None
    rows: int = 64

    def __call__(self, *, model: Any, x: Any, keys: Any, real: Any, broadcast: Any) -> Any:
        """Return ``{"features": (rows, D) or (models, rows, D), "real": (rows,), "tag": ()}``; ``real`` is 0 for padding."""
        rows, params = seen(self.view, x, keys, 0, real), broadcast["params"]
        if "models" in broadcast:
            count = len(next(iter(broadcast["models"].values())))
            sent = [{name: leaf[i] for name, leaf in broadcast["models"].items()} for i in range(count)]
            z = torch.stack([outputs_of(model(rows, one), params, "FADA").features for one in sent])
        else:
            z = outputs_of(model(rows, params), params, "FADA").features
        more = self.rows - len(real)
        z, real = torch.nn.functional.pad(z, (0, 0, 0, more)), torch.nn.functional.pad(real, (0, more))
        return {"features": z, "real": real, "tag": (keys[0] % _TAGS + 1).to(z.dtype)}


@dataclass(frozen=True, kw_only=True)
class FeatureLook(OneLook):
    """A pass that trains nothing: a party sends features of a mini-batch of its rows. A source keeps its tag."""

    view: View | None = None
    card: ClassVar[Card] = Card(part=True, note="A part of FADA: it does not train.")

    @property
    def losses(self) -> tuple[Any, ...]:
        """What is read."""
        return (RowFeatures(self.view, self.batch_size or 1),)

    def start(self, broadcast: Tree, client: Tree) -> Tree:
        """Start with padding alone."""
        del client
        params, rows = broadcast["params"], self.batch_size or 1
        none = next(leaf for name, leaf in params.items() if name.startswith("classifier.") and len(leaf.shape) == 2)
        z = T.stack([none[0] * 0.0] * rows)
        if "models" in broadcast:
            z = T.stack([z] * len(next(iter(broadcast["models"].values()))))
        real = z.reshape(-1, rows, z.shape[-1])[0, :, 0]
        return {"params": params, "read": {"features": z, "real": real, "tag": none[0, 0] * 0.0}}

    def finish(self, local: Tree, broadcast: Tree, client: Tree, work: LocalWork) -> tuple[dict[str, Aggregate], Tree]:
        """Reply with the features, and with the tag that the party has or now gets."""
        del broadcast
        read = local["read"]
        tag = client["tag"] + read["tag"] * (client["tag"] == 0)
        return {"look": Parts({**read, "tag": tag}, examples=work.examples, role="side")}, {**client, "tag": tag}
