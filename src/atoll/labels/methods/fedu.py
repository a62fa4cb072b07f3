"""FedU: BYOL whose clients keep their target network, and their predictor while it differs much from the global one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from atoll.core.algebra import tree as T
from atoll.core.algebra.aggregate import Aggregate
from atoll.core.algebra.tree import Tree
from atoll.core.errors import ConfigError, nearest
from atoll.learn.algorithm import LocalWork
from atoll.learn.card import Card

from .fedbyol import FedBYOL

__all__ = ["FedU", "Returning"]

_MEASURED = ("encoder", "predictor")


@dataclass(frozen=True, kw_only=True)
class Returning(FedBYOL):
    """Base class of methods whose clients begin a round between the global online network and the one that they ended their last round with.

    Private state: the target network and the online network.
    """

    memory: str = "client"

    def client_init(self, params: Tree) -> Tree:
        """Start with the method's private state; the client's last online network is the global one, from which it cannot differ."""
        return {"method": super().client_init(params), "online": params, **self.memories(params)}

    def memories(self, params: Tree) -> Tree:
        """Return further private state of a client, before its first round."""
        del params
        return {}

    def meet_global(self, globally: Tree, locally: Tree, client: Tree) -> tuple[Tree, Tree]:
        """Return the online network with which a client begins a round, and its new `memories`.

        Args:
            globally: the global online network.
            locally: the one with which the client ended its last round.
            client: its private state.
        """
        raise NotImplementedError

    def start(self, broadcast: Tree, client: Tree) -> Tree:
        """Start with the online network that `meet_global` returns."""
        params, memories = self.meet_global(broadcast["params"], client["online"], client)
        return {**super().start({**broadcast, "params": params}, client["method"]), **memories}

    def finish(self, local: Tree, broadcast: Tree, client: Tree, work: LocalWork) -> tuple[dict[str, Aggregate], Tree]:
        """Reply with the change of the global online network, and keep the local one."""
        memories = {name: local[name] for name in self.memories(broadcast["params"])}
        inner = {name: value for name, value in local.items() if name not in memories}
        reply, kept = super().finish(inner, broadcast, client["method"], work)
        return reply, {"method": kept, "online": local["params"], **memories}

    def personal(self, params: Tree, client: Tree) -> Tree:
        """Return the method's model for this client."""
        return super().personal(params, None if client is None else client["method"])


def part(params: Tree, which: str) -> Tree:
    """Return the predictor's parameters, or all others: encoder and projector."""
    return {n: leaf for n, leaf in params.items() if n.startswith("predictor.") == (which == "predictor")}


def divergence(locally: Tree, globally: Tree, which: str) -> Any:
    """Return the distance of a part to the global one in units of the latter's length, ``|w_k - w| / |w|``."""
    there = part(globally, which)
    return T.norm(T.sub(part(locally, which), there)) / T.norm(there)


@dataclass(frozen=True, kw_only=True)
class FedU(Returning):
    """FedU: clients receive the global encoder and projector, (93), and the global predictor only if they are close to it.

    ``w_k = w`` for encoder and projector. With ``d`` the relative divergence of the client's last online network from the global one, the client
    takes the global predictor if ``d < threshold`` and keeps its own otherwise. The target network never leaves a client. All of the online
    network is averaged.

    The survey measures the divergence of the *predictor*, the authors' code that of the *encoder's* convolutions, as a mean length, with threshold 0.4.
    Lengths grow with the model, so that here ``d = |w_k - w| / |w|``.

    Attributes:
        threshold: of the divergence; infinity for the global predictor always.
        measured: ``"predictor"`` or ``"encoder"``, which here has the projector with it.
    """

    threshold: float = 0.4
    measured: str = "predictor"
    citation: ClassVar[str] = (
        "Zhuang, Gan, Wen, Zhang, Yi. Collaborative Unsupervised Visual Representation Learning from Decentralized Data. ICCV 2021."
    )
    card: ClassVar[Card] = Card(
        family="wrapper", note="Clients keep a target network and their predictor, so they must return."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.threshold >= 0.0:
            raise ConfigError(f"threshold={self.threshold}", where="FedU", remedy="use 0 or more, such as 0.4")
        if self.measured not in _MEASURED:
            raise ConfigError(
                f"measured={self.measured!r}.{nearest(str(self.measured), _MEASURED)}",
                where="FedU",
                remedy="use 'predictor' or 'encoder'",
            )

    def meet_global(self, globally: Tree, locally: Tree, client: Tree) -> tuple[Tree, Tree]:
        """Return the global network, with the client's predictor if the divergence reaches the threshold."""
        del client
        takes = divergence(locally, globally, self.measured) < self.threshold
        where = T.namespace(next(iter(globally.values()))).where
        own = part(locally, "predictor")
        return {n: where(takes, leaf, own[n]) if n in own else leaf for n, leaf in globally.items()}, {}
