"""MoCo at clients: a key attracts its row, and a queue of earlier keys repels, whatever the size of the mini-batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from atoll.core.algebra import tree as T
from atoll.core.algebra.aggregate import Aggregate
from atoll.core.algebra.tree import Tree
from atoll.core.errors import ConfigError
from atoll.learn.algorithm import Gradient, LocalWork
from atoll.learn.card import Card
from atoll.learn.local.own_loss import OwnLoss

from ..heads import embedding_of, parts_of, seen_by
from ..losses import mean_of, seen
from ..objectives.contrastive import enqueue, info_nce
from ..streams import Stream, Trailing
from ..views.base import View
from .selfsupervised import SelfSupervised, prepare_embeddings

__all__ = ["FedMoCo", "MoCoKeys", "MoCoLoss"]


@dataclass(frozen=True)
class MoCoKeys(OwnLoss):
    """Reads the target network's projections of the second views, and which rows are real."""

    view: View | None
    normalise: bool

    def __call__(self, *, model: Any, x: Any, keys: Any, real: Any, broadcast: Any) -> Any:
        """Return the keys, ``(rows, width)``, and ``real``."""
        params, rows = broadcast["params"], seen(self.view, x, keys, 1, real)
        made = seen_by(model, rows, real, "FedMoCo", params, broadcast["target"])
        found = parts_of(made, params, "FedMoCo").projection
        return {"keys": prepare_embeddings(found, real, self.normalise), "real": real}


@dataclass(frozen=True)
class MoCoLoss(OwnLoss):
    """InfoNCE of the first views' projections with ``broadcast["keys"]`` against ``broadcast["queue"]``; see `atoll.labels.objectives.info_nce`."""

    view: View | None
    temperature: float
    normalise: bool

    def __call__(self, *, model: Any, x: Any, keys: Any, real: Any, broadcast: Any) -> Any:
        """Return the mean over the mini-batch's rows."""
        params = broadcast["params"]
        made = seen_by(model, seen(self.view, x, keys, 0, real), real, "FedMoCo", params)
        query = prepare_embeddings(parts_of(made, params, "FedMoCo").projection, real, self.normalise)
        return mean_of(info_nce(query, broadcast["keys"], broadcast["queue"], self.temperature), real)


@dataclass(frozen=True, kw_only=True)
class FedMoCo(SelfSupervised):
    """MoCo in every local step, averaged by the algorithm inside.

    A client keeps its queue of keys, and with ``memory="client"`` its target network. MoCoKeys of other clients never reach it.

    Attributes:
        temperature: of the softmax, above 0.
        queue: keys that a client keeps.
        keep: share of the target network that a step keeps, in [0, 1].
        memory: as in `FedBYOL`.
    """

    temperature: float = 0.2
    queue: int = 512
    keep: float = 0.99
    memory: str = "client"
    citation: ClassVar[str] = (
        "He, Fan, Wu, Xie, Girshick. Momentum Contrast for Unsupervised Visual Representation Learning. CVPR 2020."
    )
    card: ClassVar[Card] = Card(family="wrapper", note="Clients keep a queue of keys, so they must return.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.queue < 1:
            raise ConfigError(f"queue={self.queue}", where="FedMoCo", remedy="keep 1 key or more, such as 512")

    @property
    def streams(self) -> tuple[Stream, ...]:
        """The target network: a copy that follows."""
        return (Trailing(name="target", keep=self.keep, memory=self.memory),)

    @property
    def objective(self) -> OwnLoss:
        """InfoNCE."""
        return MoCoLoss(self.view, self.temperature, self.normalise)

    @property
    def losses(self) -> tuple[Any, ...]:
        """InfoNCE, and what reads the keys."""
        return (*super().losses, MoCoKeys(self.view, self.normalise))

    def client_init(self, params: Tree) -> Tree:
        """Start with the method's private state and an empty queue."""
        empty = embedding_of(params, "FedMoCo") * 0.0
        return {"method": super().client_init(params), "queue": T.stack([empty] * self.queue)}

    def start(self, broadcast: Tree, client: Tree) -> Tree:
        """Start with the method's local state and the queue."""
        return {**super().start(broadcast, client["method"]), "queue": client["queue"]}

    def step(self, local: Tree, grad: Gradient, broadcast: Tree) -> Tree:
        """Contrast queries with the queue, then let the keys enter it."""
        inner = {name: value for name, value in local.items() if name != "queue"}
        oracle: Any = grad
        read = oracle.on(None, **local["copies"]).read(MoCoKeys(self.view, self.normalise), local["params"])
        made = super().step(inner, oracle.on(None, keys=read["keys"], queue=local["queue"]), broadcast)
        return {**made, "queue": enqueue(local["queue"], read["keys"], read["real"])}

    def finish(self, local: Tree, broadcast: Tree, client: Tree, work: LocalWork) -> tuple[dict[str, Aggregate], Tree]:
        """Return the method's reply, and keep the queue."""
        inner = {name: value for name, value in local.items() if name != "queue"}
        reply, kept = super().finish(inner, broadcast, client["method"], work)
        return reply, {"method": kept, "queue": local["queue"]}

    def personal(self, params: Tree, client: Tree) -> Tree:
        """Return the method's model for this client."""
        return super().personal(params, None if client is None else client["method"])
