"""The base of all methods: losses on views, streams, and a cosine rate, around any algorithm."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from atoll.core.algebra.aggregate import Aggregate
from atoll.core.algebra.tree import Tree
from atoll.core.capability import CENTRAL_SERVER, Capability, Need
from atoll.core.errors import ConfigError
from atoll.core.facets import facet
from atoll.learn.algorithm import Algorithm, Gradient, Helped, Labelled, LocalWork, Movable, Phased, RoundInfo, Stateful
from atoll.learn.algorithms.accelerated import Accelerated
from atoll.learn.algorithms.fedavg import FedAvg
from atoll.learn.capabilities import OWN_LOSSES, OWN_MODELS
from atoll.learn.local.own_loss import any_takes_target
from atoll.learn.transforms import ClipNorm, Momentum
from atoll.learn.wrapped import Wrapped

from ..pre_pass import split_pre_pass
from ..streams import Joined, Stream, Streams
from ..views.base import View

__all__ = ["Method", "local_sgd"]

_SETTINGS = ("lr", "epochs", "batch_size", "steps")


def require_views(part: Any) -> None:
    """Refuse settings ``view``, ``weak`` and ``strong`` that are neither a view nor ``None``.

    Raises:
        ConfigError: names the setting.
    """
    for name in ("view", "weak", "strong"):
        value = getattr(part, name, None)
        if value is not None and not isinstance(value, View):
            kind = value if isinstance(value, str) else "images"
            raise ConfigError(
                f"{name}={value!r} is no view",
                where=type(part).__name__,
                remedy=f"use for example atoll.labels.views.{'weak' if name == 'weak' else 'strong'}({kind!r}), or None for rows as they are",
            )


def local_sgd(lr: float = 0.03, steps: int = 12, batch_size: int = 48, memory: str = "round") -> Algorithm:
    """Return the local steps of a method by default: FedAvg with Nesterov's momentum .9 and gradients clipped to norm 5.

    Args:
        lr: learning rate.
        steps: local steps of a round.
        batch_size: rows of a step.
        memory: where the momentum stays between rounds, see `Accelerated`. With ``"round"`` it starts anew: of 12 steps with momentum .9 that takes half.
    """
    steps_of_sgd = FedAvg(lr=lr, steps=steps, batch_size=batch_size)
    return Accelerated(steps_of_sgd, transforms=(ClipNorm(5.0), Momentum(0.9, nesterov=True)), memory=memory)


@dataclass(frozen=True, kw_only=True)
class Method(Wrapped, Labelled, Stateful, Movable):
    """A method for rows of which few have labels, around an algorithm that takes its local steps and folds its replies.

    A subclass declares `losses`, and `streams` for parts of the model that are not averaged. Everything else is the base's: with ``base=FedProx(mu=0.1)``
    the method's loss has a proximal term, with ``Scaffold()`` its steps are corrected.

    Attributes:
        base: the algorithm inside; by default `local_sgd`.
        lr: learning rate in place of the base's.
        epochs: local passes in place of the base's.
        batch_size: rows of a mini-batch in place of the base's.
        steps: local steps in place of the base's.
        horizon: rounds of a cosine schedule: in round ``t`` the rate is ``lr (1 + cos(pi t / horizon)) / 2``, with ``t = 0`` for the first and at
            most ``horizon - 1``. ``None`` leaves the rate as the base has it.
        labelled_share: labelled rows that a mini-batch holds at least, as a share, if the client has as many: at .125, 6 of 48. Others of its rows stay
            out for them. 0 leaves the mini-batches as the base has them. Those of DP-SGD and LocalSAGA always stay.
    """

    base: Algorithm = field(default_factory=lambda: local_sgd())
    lr: float | None = None  # type: ignore[assignment]
    epochs: int | None = None  # type: ignore[assignment]
    batch_size: int | None = None
    steps: int | None = None
    horizon: int | None = None
    labelled_share: float = 0.0
    _streams: Streams = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        given = {name: getattr(self, name) for name in _SETTINGS if getattr(self, name) is not None}
        object.__setattr__(self, "base", _with(self.base, given))
        super().__post_init__()
        if self.horizon is not None and self.horizon < 1:
            raise ConfigError(
                f"horizon={self.horizon}", where=type(self).__name__, remedy="use the number of rounds, or None"
            )
        if not 0.0 <= self.labelled_share <= 1.0:
            raise ConfigError(
                f"labelled_share={self.labelled_share}", where=type(self).__name__, remedy="use a share from 0 to 1"
            )
        require_views(self)
        object.__setattr__(self, "_streams", Streams(self.streams))

    @property
    def streams(self) -> tuple[Stream, ...]:
        """Parts of the model with rules of their own; see `atoll.labels.streams`. All others are averaged by the base."""
        return ()

    @property
    def label_holders(self) -> tuple[str, ...]:
        """The clients, if one of the method's losses asks for the target."""
        return ("clients",) if any_takes_target(self.losses) else ()

    @property
    def needs_every_class(self) -> bool:
        """Yes: what no label names, nothing teaches."""
        return True

    @property
    def needs(self) -> tuple[Need, ...]:
        """The base's needs, and a model that takes the method's losses."""
        made = [Need(OWN_LOSSES, "trains on a loss of its own")]
        if facet(self, Helped).helpers:
            made.append(Need(CENTRAL_SERVER, f"asks {', '.join(facet(self, Helped).helpers)} in every round"))
        return (*super().needs, *made)

    @property
    def offers(self) -> frozenset[Capability]:
        """The base's capabilities; models of single clients only if a part of the model stays there."""
        own = super().offers
        return own if self._streams.local or OWN_MODELS in self.base.offers else own - {OWN_MODELS}

    def passes(self, phase: str) -> tuple[Algorithm, ...]:
        """Run the base's passes; a pass of the base's own kind has the method around it."""
        made = facet(self.base, Phased).passes(phase)
        plain: dict[str, Any] = dict.fromkeys(_SETTINGS)
        return tuple(
            self if part is self.base else replace(self, base=part, **plain) if type(part) is type(self.base) else part
            for part in made
        )

    # ---------------------------------------------------------------- the server

    def init(self, params: Tree) -> Tree:
        """Start with the base's state, the whole model, and the number of rounds so far."""
        made = self.base.init(self._streams.shared(params) if self._streams else params)
        return {**made, "params": {**params, **made["params"]}, "turn": 0}

    def broadcast(self, state: Tree, phase: str) -> Tree:
        """Send the base's broadcast with the whole model, at this round's rate."""
        sent = self.base.broadcast(self._inner(state), phase)
        sent = {**sent, "params": {**state["params"], **sent["params"]}} if self._streams else sent
        return (
            sent if self.horizon is None or "lr" not in sent else {**sent, "lr": sent["lr"] * self.rate(state["turn"])}
        )

    def rate(self, turn: int) -> float:
        """Return the factor on the learning rate after ``turn`` rounds."""
        if self.horizon is None:
            return 1.0
        return (1.0 + math.cos(math.pi * min(turn, self.horizon - 1) / self.horizon)) / 2.0

    def fold(self, state: Tree, sums: Mapping[str, Any], info: RoundInfo, phase: str) -> Tree:
        """Fold as the base does; parts that are not averaged stay as they were."""
        made = self.base.fold(self._inner(state), sums, info, phase)
        return self._outer(state, made)

    def advance(self, state: Tree, info: RoundInfo) -> Tree:
        """Advance as the base does, and count the round."""
        made = self._outer(state, facet(self.base, Phased).advance(self._inner(state), info))
        return {**made, "turn": state["turn"] + 1}

    def moved(self, state: Tree) -> Tree:
        """Bring the state up to date as the base does."""
        return self._outer(state, facet(self.base, Movable).moved(self._inner(state)))

    def _inner(self, state: Tree) -> Tree:
        """Return a tree with the part of its ``params`` that is averaged."""
        return {**state, "params": self._streams.shared(state["params"])} if self._streams else state

    def _outer(self, state: Tree, made: Tree) -> Tree:
        params = {**state["params"], **made["params"]} if self._streams else made["params"]
        return {**made, "params": params, "turn": state["turn"]}

    # ---------------------------------------------------------------- the clients

    def client_init(self, params: Tree) -> Tree:
        """Start with the base's private state; with private streams, also with the parts that stay, and copies of the others."""
        own = self._streams
        inner = facet(self.base, Stateful).client_init(own.shared(params) if own else params)
        if not own.private:
            return inner
        return {"base": inner, "own": own.own(params), "copies": own.copies(params, "client")}

    def start(self, broadcast: Tree, client: Tree) -> Tree:
        """Start with the base's local state; with streams, with the whole model and the copies. What a pre-pass found is not part of it."""
        own, (client, _) = self._streams, split_pre_pass(client)
        if not own:
            return self.base.start(broadcast, client)
        inner = self.base.start(self._inner(broadcast), client["base"] if own.private else client)
        kept = {**client["own"]} if own.private else {}
        copies = {**own.copies(broadcast["params"], "round"), **(client["copies"] if own.private else {})}
        return {**inner, "params": {**broadcast["params"], **inner["params"], **kept}, "copies": copies}

    def step(self, local: Tree, grad: Gradient, broadcast: Tree) -> Tree:
        """Take the base's step on the averaged part; then the other streams follow their rules."""
        own = self._streams
        if not own:
            return self.base.step(local, grad, broadcast)
        copies = local["copies"]
        oracle: Any = grad
        joined: Any = Joined(oracle.on(None, **copies) if copies else oracle, local["params"])
        inner = {name: value for name, value in self._inner(local).items() if name != "copies"}
        made = self.base.step(inner, joined, self._inner(broadcast))
        kept = own.own(local["params"])
        if kept:
            rate = broadcast["lr"]
            kept = {name: leaf - joined.slope[name] * rate for name, leaf in kept.items()}
        params = {**local["params"], **made["params"], **kept}
        moved = {stream.name: stream.move_copy(copies[stream.name], params) for stream in own.moving}
        return {**made, "params": params, "copies": moved}

    def finish(self, local: Tree, broadcast: Tree, client: Tree, work: LocalWork) -> tuple[dict[str, Aggregate], Tree]:
        """Return the base's reply, about the averaged part, and the private state, without what a pre-pass found."""
        own, (client, _) = self._streams, split_pre_pass(client)
        if not own:
            return self.base.finish(local, broadcast, client, work)
        inner = {name: value for name, value in self._inner(local).items() if name != "copies"}
        reply, kept = self.base.finish(inner, self._inner(broadcast), client["base"] if own.private else client, work)
        if not own.private:
            return reply, kept
        stays = {s.name: local["copies"][s.name] for s in own.moving if s.memory == "client"}
        return reply, {"base": kept, "own": own.own(local["params"]), "copies": stays}

    def personal(self, params: Tree, client: Tree) -> Tree:
        """Return the base's model for this client, with the parts that stay there."""
        if client is None or not self._streams.private:
            return facet(self.base, Stateful).personal(params, client)
        return {**facet(self.base, Stateful).personal(params, client["base"]), **client["own"]}


def _with(base: Algorithm, given: Mapping[str, Any]) -> Algorithm:
    """Return an algorithm with other settings; those of the innermost, if wrappers go around it."""
    if not isinstance(base, Algorithm) or not given:
        return base
    if isinstance(base, Wrapped) and not isinstance(base, Method):
        inner = _with(base.base, given)
        return base if inner == base.base else replace(base, base=inner)
    changed = {name: value for name, value in given.items() if getattr(base, name) != value}
    if "epochs" in changed and "steps" not in given:
        changed["steps"] = None
    return replace(base, **changed) if changed else base
