"""Parts of one model for weak devices: each client trains as many hidden units of every layer as it can, and the server averages each entry over the clients that have it.

A client's part is the model whose other hidden units are cut out: their weights are 0 in every local step. With an activation that is 0 at 0, such as ReLU, this is the
narrow model itself. A reply has the update of the part and, for each entry, whether the client has it. Both are means, so that they add up under masks, and their ratio is the
mean over those who have the entry. Entries that nobody of a round has stay as they are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from atoll.core.algebra import tree as T
from atoll.core.algebra.aggregate import Aggregate, Mean, Sum
from atoll.core.algebra.rng import Rng
from atoll.core.algebra.tree import Tree
from atoll.core.errors import CompositionError, ConfigError
from atoll.core.requests.task import Task, task
from atoll.learn.algorithm import Algorithm, Gradient, LocalWork, RoundInfo, Stateful
from atoll.learn.card import Card
from atoll.learn.topology.base import Star, refuse
from atoll.learn.wrapped import Wrapped, dry_reply, overrides
from atoll.rounds.loop import Course, WrappedCourse

if TYPE_CHECKING:
    from atoll.core.federation.federation import Federation
    from atoll.core.requests.island import Island
    from atoll.learn.context import Context

__all__ = ["DeviceWidths", "FederatedDropout", "FjORD", "HeteroFL", "SubModels", "tell_width"]

_HELD = "held"


@dataclass(frozen=True)
class _Cut:
    """Which hidden layer decides the rows of a parameter, and which its columns, each column of that layer ``repeat`` times."""

    rows: int | None
    columns: int | None
    repeat: int = 1


def _cuts(params: Mapping[str, Any]) -> tuple[dict[str, _Cut], list[int]]:
    """Return how each parameter is cut, and the width of each hidden layer.

    Raises:
        CompositionError: the model is no chain of linear or convolutional layers.
    """
    weights = [name for name, leaf in params.items() if len(leaf.shape) >= 2]
    widths = [int(params[name].shape[0]) for name in weights[:-1]]
    if not widths:
        raise _not_a_chain(weights[0] if weights else "", (), "it has no hidden layer")
    owner = {name.rpartition(".")[0]: layer for layer, name in enumerate(weights)}
    found: dict[str, _Cut] = {}
    layer = -1
    for name, leaf in params.items():
        shape = tuple(int(n) for n in leaf.shape)
        if len(shape) >= 2:
            layer += 1
            before = widths[layer - 1] if layer else shape[1]
            if shape[1] % before:
                raise _not_a_chain(name, shape, f"the layer before has {before} units")
            found[name] = _Cut(layer if layer < len(widths) else None, layer - 1 if layer else None, shape[1] // before)
            continue
        mine = owner.get(name.rpartition(".")[0], layer)  # of its own layer, or of a normalisation after one
        if len(shape) != 1 or mine < 0 or shape[0] != int(params[weights[mine]].shape[0]):
            raise _not_a_chain(name, shape, "no layer before has as many units")
        found[name] = _Cut(mine if mine < len(widths) else None, None)
    return found, widths


def _not_a_chain(name: str, shape: tuple[int, ...], why: str) -> CompositionError:
    return CompositionError(
        f"the model is no chain of layers that can be cut: parameter {name!r} of shape {shape}, and {why}",
        where="SubModels",
        remedy="use linear or convolutional layers one after another, as atoll.models.mlp and atoll.models.cnn have",
    )


@dataclass(frozen=True, kw_only=True)
class SubModels(Wrapped, Stateful):
    """Base class: clients train parts of the base's model, each a share of the hidden units of every layer.

    Which client has which width, `DeviceWidths` tells; without it all have the widest.

    Attributes:
        base: the algorithm inside: one that sends one update in a round and keeps nothing at clients, such as ``FedAvg``.
        widths: the shares that occur, ascending, each above 0 and at most 1; a layer of ``n`` units keeps ``ceil(share n)``.
        untold: the width of a client that was told none; ``None`` is the widest.
    """

    widths: Sequence[float] = (0.25, 0.5, 1.0)
    untold: float | None = None
    any_width: ClassVar[bool] = False
    """Whether a client draws one of the widths that it can train in every round, instead of the widest."""
    any_units: ClassVar[bool] = False
    """Whether a client draws its units in every round, instead of taking the first."""
    card: ClassVar[Card] = Card(
        family="wrapper", note="Weak clients train a part of the model; tell widths with DeviceWidths."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "citation", type(self).citation)
        object.__setattr__(self, "card", type(self).card)
        name, base = type(self).__name__, type(self.base).__name__
        given = tuple(self.widths)
        if not given or list(given) != sorted(set(given)) or not 0 < given[0] <= given[-1] <= 1:
            raise ConfigError(
                f"widths={self.widths!r}",
                where=name,
                remedy="give shares above 0 and at most 1, ascending, such as (0.25, 1.0)",
            )
        object.__setattr__(self, "widths", given)
        if self.untold is not None and self.untold not in given:
            raise ConfigError(f"untold={self.untold}", where=name, remedy=f"use one of {', '.join(map(str, given))}")
        if len(self.base.phases) != 1 or self.base.card.everyone or self.base.card.family in ("admm", "second order"):
            raise CompositionError(
                f"{base} takes several phases, or balances what all clients keep, and no client has the whole model",
                where=f"{name}.base",
                remedy="use a base such as FedAvg() or FedProx()",
            )
        if overrides(self.base, "draw") or overrides(self.base, "client_init") or overrides(self.base, "passes"):
            raise CompositionError(
                f"clients of {base} keep or draw something of the whole model",
                where=f"{name}.base",
                remedy="use a base such as FedAvg() or FedProx()",
            )

    def init(self, params: Tree) -> Tree:
        """Start with the base's state.

        Raises:
            CompositionError: the model is no chain of layers, or the base sends something else than updates of it.
        """
        _cuts(params)
        for name, aggregate in dry_reply(self.base, params).items():
            same = isinstance(aggregate.value, Mapping) and aggregate.value.keys() == params.keys()
            if not isinstance(aggregate, Mean) or not same:
                raise CompositionError(
                    f"{type(self.base).__name__} sends {name!r}, which is no mean of updates of the model",
                    where=f"{type(self).__name__}.base",
                    remedy="use a base such as FedAvg() or FedProx()",
                )
        return self.base.init(params)

    def level(self, width: float) -> int:
        """Return how many of ``widths`` a client with this width can train; at least the first.

        Args:
            width: the share of the hidden units that it has room for.
        """
        return max(1, sum(own <= width + 1e-9 for own in self.widths))

    def client_init(self, params: Tree) -> Tree:
        """Start with the width of a client that was told none."""
        del params
        return {"allowed": np.float32(self.level(self.widths[-1] if self.untold is None else self.untold))}

    def draw(self, rng: Rng, params: Tree) -> Tree:
        """Draw where in the client's widths the round is, and the units of each width: ``(widths, units)`` zeros and ones for each hidden layer."""
        _, widths = _cuts(params)
        generator = rng.generator()
        at = generator.random() if self.any_width else 1.0
        units = {}
        for place, count in enumerate(widths):
            rank = generator.permutation(count) if self.any_units else np.arange(count)
            kept = np.array([math.ceil(share * count - 1e-9) for share in self.widths])
            units[str(place)] = (rank[None] < kept[:, None]).astype(np.float32)
        return {"at": np.float32(min(at, 1 - 2**-20)), "units": units}

    def _mask(self, local: Tree) -> Tree:
        """Return ones for what the client has of the model, and zeros."""
        params, drawn = local["params"], local["drawn"]
        cuts, _ = _cuts(params)
        place = drawn["at"] * local["allowed"]
        chosen: dict[str, Any] = {}
        for name, levels in drawn["units"].items():
            chosen[name] = sum(((place >= k) & (place < k + 1)) * levels[k] for k in range(len(self.widths)))

        def mask_of(leaf: Any, cut: _Cut) -> Any:
            ones = T.zeros_like(leaf) + 1
            tail = (1,) * (len(leaf.shape) - 2)
            if cut.rows is not None:
                ones = ones * chosen[str(cut.rows)].reshape(-1, *(1,) * (len(leaf.shape) - 1))
            if cut.columns is not None:
                own = chosen[str(cut.columns)].reshape(-1, 1)
                each = own * (T.zeros_like(leaf).reshape(-1)[: cut.repeat] + 1).reshape(1, -1)
                ones = ones * each.reshape(1, -1, *tail)
            return ones

        return {name: mask_of(leaf, cuts[name]) for name, leaf in params.items()}

    def start(self, broadcast: Tree, client: Tree) -> Tree:
        """Start with the base's local state, and the client's width."""
        return {**self.base.start(broadcast, None), "allowed": client["allowed"]}

    def _part(self, local: Tree, broadcast: Tree) -> tuple[Tree, Tree, Tree]:
        """Return ones for what the client has, and the base's local state and broadcast of it."""
        mask = self._mask(local)
        inside = {name: value for name, value in local.items() if name not in ("allowed", "drawn")}
        part = {**inside, "params": T.mul(local["params"], mask)}
        return mask, part, {**broadcast, "params": T.mul(broadcast["params"], mask)}

    def step(self, local: Tree, grad: Gradient, broadcast: Tree) -> Tree:
        """Take the base's step on the client's part."""
        mask, part, sent = self._part(local, broadcast)
        made = self.base.step(part, grad, sent)
        return {**made, "params": T.mul(made["params"], mask), "allowed": local["allowed"]}

    def finish(self, local: Tree, broadcast: Tree, client: Tree, work: LocalWork) -> tuple[dict[str, Aggregate], Tree]:
        """Return the base's reply of the part, and which entries the client has."""
        mask, part, sent = self._part(local, broadcast)
        reply, _ = self.base.finish(part, sent, None, work)
        first = next(iter(reply.values()))
        made = {name: one.with_value(T.mul(one.value, mask)) for name, one in reply.items()}
        made[_HELD] = Mean(mask, examples=first.weight, role="side")
        return made, {"allowed": client["allowed"]}

    def fold(self, state: Tree, sums: Mapping[str, Any], info: RoundInfo, phase: str) -> Tree:
        """Fold the means over the clients that have each entry."""
        held = sums[_HELD]

        def over_holders(total: Any, share: Any) -> Any:
            there = share > 1e-6
            return T.where(there, total / T.where(there, share, share * 0 + 1), total * 0)

        means = {name: T.map(over_holders, value, held) for name, value in sums.items() if name != _HELD}
        return self.base.fold(state, means, info, phase)


@dataclass(frozen=True, kw_only=True)
class HeteroFL(SubModels):
    """Every client trains the first units of each layer, as many as its width says, in every round.

    With width 1 for all, it is the base. Without the paper's scaling of narrow layers and its normalisation, so that any model of layers can be cut.
    """

    citation: ClassVar[str] = (
        "Diao, Ding, Tarokh. HeteroFL: Computation and Communication Efficient Federated Learning for Heterogeneous Clients. ICLR 2021."
    )


@dataclass(frozen=True, kw_only=True)
class FjORD(SubModels):
    """Ordered dropout: in every round a client draws one of the widths that it can train, and trains the first units of each layer.

    So the first units learn to do without the others, and the model can be cut to any of the widths afterwards. The paper draws a width for every mini-batch.
    """

    any_width: ClassVar[bool] = True
    citation: ClassVar[str] = (
        "Horvath, Laskaridis, Almeida, Leontiadis, Venieris, Lane. FjORD: Fair and Accurate Federated Learning under heterogeneous targets with Ordered Dropout. NeurIPS 2021."
    )


@dataclass(frozen=True, kw_only=True)
class FederatedDropout(SubModels):
    """In every round a client draws as many units of each layer as its width says, and trains the part that these make.

    Every entry is then trained by some client, whatever the widths. The paper draws one part a round for all clients, at the server.
    """

    any_units: ClassVar[bool] = True
    citation: ClassVar[str] = (
        "Caldas, Konecny, McMahan, Talwalkar. Expanding the Reach of Federated Learning by Reducing Client Resource Requirements. 2018."
    )


# ---------------------------------------------------------------- who has which width


@task
def tell_width(island: Island, message: Tree) -> dict[str, Aggregate]:
    """Tell a client how many of the widths it can train."""
    island.state = {"allowed": np.float32(message["allowed"][island.party.name])}
    return {"told": Sum(np.int64(1))}


@dataclass(frozen=True)
class DeviceWidths(Star):
    """One server, which tells each client before the first round how much of the model it trains.

    A client's width is the largest of the algorithm's that is not above what is given here. Without ``clients``, the simulation's devices decide: a device that needs ``t`` times
    as long as the fastest for the whole model gets the width ``1 / t``, so that all are ready at about the same time. A client that is lost while it is told has the smallest.

    Attributes:
        clients: name -> the share of the hidden units that it has room for; clients without an entry have all.
    """

    clients: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, width in self.clients.items():
            if not 0 < width <= 1:
                raise ConfigError(
                    f"the width {width} of {name!r}", where="DeviceWidths", remedy="use a share above 0 and at most 1"
                )

    def algorithm(self, base: Algorithm) -> Algorithm:
        """Return the algorithm whose clients have the smallest width until they are told."""
        if isinstance(base, SubModels):
            return replace(base, untold=base.widths[0])
        inner = getattr(base, "base", None)
        return replace(base, base=self.algorithm(inner)) if isinstance(inner, Algorithm) else base  # type: ignore[call-arg]

    def check(self, context: Context) -> None:
        """Refuse an algorithm without widths, and states that are not the algorithm's alone."""
        super().check(context)
        if self._find(context) is None:
            what = f"{type(context.algorithm).__name__} trains the whole model everywhere"
            refuse(self, what, "algorithm", "use HeteroFL(FedAvg()), FjORD(...) or FederatedDropout(...)")
        strangers = [name for name in self.clients if name not in {str(one) for one in context.clients.names}]
        if strangers:
            refuse(self, f"there is no client {strangers[0]!r}", "topology", "name clients of the data set")

    @staticmethod
    def _find(context: Context) -> SubModels | None:
        found: Any = context.algorithm
        while found is not None and not isinstance(found, SubModels):
            found = getattr(found, "base", None)
        return found

    def tasks(self, context: Context) -> tuple[Task, ...]:
        """The task that tells clients."""
        return (*super().tasks(context), tell_width)

    def course(self, context: Context) -> Course:
        """Return the rounds of the training's pacing, after clients were told."""
        parts = self._find(context)
        if parts is None:
            raise CompositionError("no sub-models", where="DeviceWidths", remedy="use HeteroFL(FedAvg())")
        return _ToldCourse(super().course(context), context, self.clients, parts)


class _ToldCourse(WrappedCourse):
    def __init__(self, course: Course, context: Context, widths: Mapping[str, float], parts: SubModels) -> None:
        super().__init__(course)
        self._context, self._widths, self._parts = context, widths, parts

    async def round(self, fed: Federation, state: Tree, number: int) -> tuple[Tree, dict[str, Any]]:
        if number == 1:
            widths = self._widths or self._of_devices(fed, state)
            allowed = {name: self._parts.level(widths.get(name, 1.0)) for name in map(str, fed.parties.names)}
            await fed.sum(fed.parties, tell_width, {"allowed": allowed}, quorum=0)
        return await super().round(fed, state, number)

    def _of_devices(self, fed: Federation, state: Tree) -> dict[str, float]:
        """Return the widths that the devices' speeds say."""
        context, server = self._context, state["server"]
        phase = context.algorithm.phases[0]
        message = {"broadcast": context.algorithm.broadcast(server, phase), "phase": phase}
        seconds: NDArray[np.float64] | None = fed.forecast(fed.parties, context.learner.train, message)
        if seconds is None or not np.isfinite(seconds).any() or not seconds.max() > 0:
            return {}
        fastest = seconds[seconds > 0].min()
        return {
            str(name): float(min(1.0, fastest / max(one, fastest)))
            for name, one in zip(fed.parties.names, seconds, strict=True)
        }
