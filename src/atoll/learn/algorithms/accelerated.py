"""The Local and the Global Acceleration Framework: transforms of the local direction around any algorithm.

Source: the survey "Advancements in Federated Learning: Models, Methods, and Privacy", Algorithms 4 and 5.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from atoll.core.algebra.aggregate import Aggregate, Mean
from atoll.core.algebra.tree import Tree
from atoll.core.errors import CompositionError, ConfigError
from atoll.learn.algorithm import Algorithm, Gradient, LocalWork, RoundInfo
from atoll.learn.card import Card
from atoll.learn.transforms import Momentum, Transform
from atoll.learn.transforms.base import apply_all, init_all
from atoll.learn.wrapped import Wrapped

if TYPE_CHECKING:
    Cooperative = Algorithm
else:
    Cooperative = object  # a mix-in: it brings no fields of its own

__all__ = ["Accelerated", "Transformed"]

_MEMORIES = ("round", "client", "server")


class Transformed(Cooperative):
    """Mix-in: transforms of the local direction, over whatever algorithm comes next in the order of base classes.

    Where the memory lives is ``memory``: ``"round"`` begins afresh in every round, ``"client"`` is private state (local acceleration),
    ``"server"`` goes out with the model, comes back with the update and is averaged like it (global acceleration).
    """

    memory: str = "round"

    def chain(self) -> tuple[Transform, ...]:
        """The transforms, in order."""
        raise NotImplementedError

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.memory not in _MEMORIES:
            raise ConfigError(
                f"memory={self.memory!r}", where=type(self).__name__, remedy=f"use one of {', '.join(_MEMORIES)}"
            )

    def _lives(self, where: str) -> bool:
        return self.memory == where and any(transform.remembers for transform in self.chain())

    def init(self, params: Tree) -> Tree:
        """The base's state, and the shared memory."""
        own = {"memory": init_all(self.chain(), params)} if self._lives("server") else {}
        return {**super().init(params), **own}

    def broadcast(self, state: Tree, phase: str) -> Tree:
        """The base's, with the shared memory."""
        own = {"memory": state["memory"]} if self._lives("server") else {}
        return {**super().broadcast(state, phase), **own}

    def client_init(self, params: Tree) -> Tree:
        """The base's private state, and the private memory."""
        inner = super().client_init(params)
        return {"base": inner, "memory": init_all(self.chain(), params)} if self._lives("client") else inner

    def passes(self, phase: str) -> tuple[Algorithm, ...]:
        """The base's; passes that are not ours leave the private memory as it is."""
        made = super().passes(phase)
        if not self._lives("client"):
            return made
        return tuple(part if isinstance(part, Transformed) else _Through(base=part, owner=self) for part in made)

    def start(self, broadcast: Tree, client: Tree) -> Tree:
        """The base's local state with the memory."""
        if self._lives("client"):
            return {**super().start(broadcast, client["base"]), "memory": client["memory"]}
        shared = self._lives("server")
        memory = broadcast["memory"] if shared else init_all(self.chain(), broadcast["params"])
        return {**super().start(broadcast, client), "memory": memory}

    def direction(self, local: Tree, grad: Gradient, broadcast: Tree) -> tuple[Tree, Tree]:
        """The base's direction through all transforms."""
        v, local = super().direction(local, grad, broadcast)
        v, memory = apply_all(self.chain(), v, local["memory"], local["params"], broadcast["params"])
        return v, {**local, "memory": memory}

    def finish(self, local: Tree, broadcast: Tree, client: Tree, work: LocalWork) -> tuple[dict[str, Aggregate], Tree]:
        """The base's reply, and the memory to where it lives."""
        private = self._lives("client")
        reply, kept = super().finish(local, broadcast, client["base"] if private else client, work)
        if self._lives("server"):
            reply = {**reply, "memory": Mean(local["memory"], examples=work.examples)}
        if private:
            kept = super().client_init(broadcast["params"]) if kept is None else kept
            return reply, {"base": kept, "memory": local["memory"]}
        return reply, kept

    def fold(self, state: Tree, sums: Mapping[str, Any], info: RoundInfo, phase: str) -> Tree:
        """The base's, with the mean memory."""
        after = super().fold(state, sums, info, phase)
        return {**after, "memory": sums.get("memory", state["memory"])} if self._lives("server") else after

    def advance(self, state: Tree, info: RoundInfo) -> Tree:
        """The base's, with the memory as it is."""
        after = super().advance(state, info)
        return {**after, "memory": state["memory"]} if self._lives("server") else after

    def personal(self, params: Tree, client: Tree) -> Tree:
        """The base's."""
        return super().personal(params, client["base"] if self._lives("client") and client is not None else client)


@dataclass(frozen=True, kw_only=True)
class _Through(Wrapped):
    """A pass of the base that does not train: its client state lies beside a memory that it does not touch."""

    owner: Algorithm

    def client_init(self, params: Tree) -> Tree:
        """The whole algorithm's."""
        return self.owner.client_init(params)

    def start(self, broadcast: Tree, client: Tree) -> Tree:
        """The base's."""
        return self.base.start(broadcast, client["base"])

    def finish(self, local: Tree, broadcast: Tree, client: Tree, work: LocalWork) -> tuple[dict[str, Aggregate], Tree]:
        """The base's, with the memory as it was."""
        reply, kept = self.base.finish(local, broadcast, client["base"], work)
        return reply, {"base": client["base"] if kept is None else kept, "memory": client["memory"]}


@dataclass(frozen=True, kw_only=True)
class Accelerated(Transformed, Wrapped):
    """Any algorithm with transforms of its local direction: ``y <- y - lr * V(v, memory)``.

    For every base whose local step is the plain one. With ``memory="server"`` it is the Global Acceleration Framework, which sends and
    averages the memory; else the Local one.

    Attributes:
        base: the algorithm inside.
        transforms: in the order in which they act.
        memory: where their memory lives: ``"round"``, ``"client"`` or ``"server"``.

    Raises:
        CompositionError: the base takes steps of another form, or is accelerated already.
    """

    transforms: tuple[Transform, ...] = field(default=())
    memory: str = "round"
    citation: ClassVar[str] = (
        "Advancements in Federated Learning: Models, Methods, and Privacy (survey), Algorithms 4 and 5."
    )
    card: ClassVar[Card] = Card(
        family="wrapper",
        note="Its replies have the properties of its base's. With memory='server', it also sends and averages the transforms' memory.",
        example={"transforms": (Momentum(),), "memory": "server"},
    )
    step = Algorithm.step

    def __post_init__(self) -> None:
        super().__post_init__()
        _require_plain(self.base)

    def chain(self) -> tuple[Transform, ...]:
        """As given."""
        return tuple(self.transforms)


def _require_plain(base: Algorithm) -> None:
    name = type(base).__name__
    if isinstance(base, Transformed):
        raise CompositionError(
            f"{name} has transforms already", where="Accelerated", remedy="give all transforms to one Accelerated"
        )
    if type(base).step is Algorithm.step:
        return
    if isinstance(base, Wrapped) and type(base).step is Wrapped.step:
        _require_plain(base.base)
        return
    raise CompositionError(
        f"the local step of {name} is not y <- y - lr * direction",
        where="Accelerated",
        remedy=f"use a base that overrides direction instead of step, such as FedAvg, or {name} without transforms",
    )
