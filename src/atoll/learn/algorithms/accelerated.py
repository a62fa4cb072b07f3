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
from atoll.core.facets import facet
from atoll.learn.algorithm import Algorithm, Gradient, LocalWork, Phased, RoundInfo, Stateful
from atoll.learn.card import Card
from atoll.learn.transforms import Momentum, Transform, apply_all, init_all
from atoll.learn.wrapped import Wrapped

if TYPE_CHECKING:

    class Cooperative(Algorithm, Phased, Stateful):
        """What comes after it in the order of base classes."""
else:

    class Cooperative(Phased, Stateful):  # a mix-in without fields of its own
        pass


__all__ = ["Accelerated", "Transformed"]

_MEMORIES = ("round", "client", "server")


class Transformed(Cooperative):
    """Mix-in: transforms of the local direction, over the next algorithm in the order of base classes.

    ``memory`` says where the memory is kept: ``"round"`` resets it in every round, ``"client"`` is private state (local acceleration),
    ``"server"`` sends it with the model, returns it with the update and averages it in the same way (global acceleration).
    """

    memory: str = "round"

    def chain(self) -> tuple[Transform, ...]:
        """Use the transforms, in order."""
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
        """Start with the base's state, and the shared memory."""
        own = {"memory": init_all(self.chain(), params)} if self._lives("server") else {}
        return {**super().init(params), **own}

    def broadcast(self, state: Tree, phase: str) -> Tree:
        """Send the base's broadcast, with the shared memory."""
        own = {"memory": state["memory"]} if self._lives("server") else {}
        return {**super().broadcast(state, phase), **own}

    def client_init(self, params: Tree) -> Tree:
        """Start with the base's private state, and the private memory."""
        inner = super().client_init(params)
        return {"base": inner, "memory": init_all(self.chain(), params)} if self._lives("client") else inner

    def passes(self, phase: str) -> tuple[Algorithm, ...]:
        """Run the base's passes; other passes leave the private memory unchanged."""
        made = super().passes(phase)
        if not self._lives("client"):
            return made
        return tuple(part if isinstance(part, Transformed) else _Through(base=part, owner=self) for part in made)

    def start(self, broadcast: Tree, client: Tree) -> Tree:
        """Start with the base's local state and the memory."""
        if self._lives("client"):
            return {**super().start(broadcast, client["base"]), "memory": client["memory"]}
        shared = self._lives("server")
        memory = broadcast["memory"] if shared else init_all(self.chain(), broadcast["params"])
        return {**super().start(broadcast, client), "memory": memory}

    def direction(self, local: Tree, grad: Gradient, broadcast: Tree) -> tuple[Tree, Tree]:
        """Return the base's direction through all transforms."""
        v, local = super().direction(local, grad, broadcast)
        v, memory = apply_all(self.chain(), v, local["memory"], local["params"], broadcast["params"])
        return v, {**local, "memory": memory}

    def finish(self, local: Tree, broadcast: Tree, client: Tree, work: LocalWork) -> tuple[dict[str, Aggregate], Tree]:
        """Return the base's reply and client state, with the memory in its place."""
        private = self._lives("client")
        reply, kept = super().finish(local, broadcast, client["base"] if private else client, work)
        if self._lives("server"):
            reply = {**reply, "memory": Mean(local["memory"], examples=work.examples)}
        if private:
            kept = super().client_init(broadcast["params"]) if kept is None else kept
            return reply, {"base": kept, "memory": local["memory"]}
        return reply, kept

    def fold(self, state: Tree, sums: Mapping[str, Any], info: RoundInfo, phase: str) -> Tree:
        """Fold as the base does, with the mean memory."""
        after = super().fold(state, sums, info, phase)
        return {**after, "memory": sums.get("memory", state["memory"])} if self._lives("server") else after

    def advance(self, state: Tree, info: RoundInfo) -> Tree:
        """Advance as the base does; the memory is unchanged."""
        after = super().advance(state, info)
        return {**after, "memory": state["memory"]} if self._lives("server") else after

    def personal(self, params: Tree, client: Tree) -> Tree:
        """Return the base's personal model."""
        return super().personal(params, client["base"] if self._lives("client") and client is not None else client)


@dataclass(frozen=True, kw_only=True)
class _Through(Wrapped, Stateful):
    """A pass of the base that does not train: it leaves the memory in the client state unchanged."""

    owner: Algorithm

    def client_init(self, params: Tree) -> Tree:
        """Start with the whole algorithm's client state."""
        return facet(self.owner, Stateful).client_init(params)

    def start(self, broadcast: Tree, client: Tree) -> Tree:
        """Start with the base's local state."""
        return self.base.start(broadcast, client["base"])

    def finish(self, local: Tree, broadcast: Tree, client: Tree, work: LocalWork) -> tuple[dict[str, Aggregate], Tree]:
        """Return the base's reply, with the memory unchanged."""
        reply, kept = self.base.finish(local, broadcast, client["base"], work)
        return reply, {"base": client["base"] if kept is None else kept, "memory": client["memory"]}


@dataclass(frozen=True, kw_only=True)
class Accelerated(Transformed, Wrapped):
    """Any algorithm with transforms of its local direction: ``y <- y - lr * V(v, memory)``.

    It works for every base with the plain local step. With ``memory="server"``, it is the Global Acceleration Framework, which sends and
    averages the memory; otherwise the Local one.

    Attributes:
        base: the algorithm inside.
        transforms: the transforms, in the order in which they act.
        memory: where to keep their memory: ``"round"``, ``"client"`` or ``"server"``.

    Raises:
        CompositionError: the base takes steps of another form, or already has transforms.
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
        """Return the transforms as given."""
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
