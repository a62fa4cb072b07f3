"""A model that learns nothing, and data that are only sizes: for the time, traffic and energy of rounds, without training."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from atoll.core.algebra import tree as T
from atoll.core.algebra.aggregate import Aggregate, Mean, stack_replies
from atoll.core.algebra.rng import Rng
from atoll.core.algebra.tree import Tree
from atoll.core.capability import Capability
from atoll.core.errors import ConfigError
from atoll.core.facets import facet
from atoll.core.message import fingerprint
from atoll.core.requests.task import Batch, Task
from atoll.learn.algorithm import LocalWork, Phased, Stateful
from atoll.learn.capabilities import RELEASES, Placed, require_composed
from atoll.learn.learner import LearnerSettings, placed_model
from atoll.learn.local.reports import Reporting
from atoll.learn.local.update import declare_workload, finish_update, load_of
from atoll.learn.round.evaluation import measure_client, own_model
from atoll.learn.wrapped import overrides

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.core.requests.cohort import Cohort
    from atoll.core.requests.island import Island
    from atoll.learn.algorithm import Algorithm

__all__ = ["IdleIslands", "IdleLearner", "IdleModel"]

_SMALL = 100  # largest number of parameters of a model with cached replies
_ROWS = 10_000  # largest number of different sizes with cached replies to one message
_MESSAGES = 16  # largest number of cached messages


class IdleIslands:
    """Clients with a number of examples each, and no content.

    Args:
        sizes: examples of each client.

    Attributes:
        sizes: examples of each client, ``(clients,)``.
        names: ``client-0``, ``client-1``, ...
    """

    def __init__(self, sizes: Sequence[int] | NDArray[Any]) -> None:
        self.sizes = np.asarray(sizes, dtype=np.int64)
        if self.sizes.ndim != 1 or not (self.sizes >= 0).all():
            raise ConfigError(
                f"sizes={sizes!r}", where="IdleIslands", remedy="give one number of examples per client, none below 0"
            )
        self.names: Sequence[str] = [f"client-{i}" for i in range(len(self.sizes))]

    def __len__(self) -> int:
        return len(self.sizes)

    def shard(self, i: int) -> range:
        """Return a range of the client's size."""
        return range(int(self.sizes[i]))


@dataclass(frozen=True)
class IdleModel:
    """A model of zeros that clients train in no time: they declare the work of their algorithm, and reply as after no step.

    Use it to study devices and pacings: the clock, the traffic and the energy are those of a real training of this size, and a round costs
    microseconds per client. Any data set works; `IdleIslands` has only sizes.

    Attributes:
        parameters: number of parameters, 8 bytes each; device models with a fixed message size ignore it.
    """

    parameters: int = 1

    def __post_init__(self) -> None:
        if self.parameters < 1:
            raise ConfigError(f"parameters={self.parameters}", where="IdleModel", remedy="use at least 1")

    def learner(self, settings: LearnerSettings, data: Any) -> IdleLearner:
        """Return a learner for a data set.

        Raises:
            CompositionError: the algorithm promises privacy, which publicly known zeros do not need.
        """
        del data
        made = IdleLearner(self, settings.algorithm)
        require_composed((Placed.of("algorithm", settings.algorithm), placed_model(made)))
        return made


class IdleLearner(Reporting):
    """The idle model as a learner; its parameters are ``{"w": (parameters,)}``, zero at the start."""

    takes_device = False
    lacks: ClassVar[Mapping[Capability, str]] = {RELEASES: "sees no data that it could protect"}

    def __init__(self, model: IdleModel, algorithm: Algorithm) -> None:
        self.model, self.algorithm = model, algorithm
        self._answers: dict[str, _Answers] = {}
        # A block equals its members only if clients keep no state and draw nothing.
        alike = not overrides(algorithm, "client_init") and not overrides(algorithm, "draw")
        many = self._many if alike else None
        self.train = Task("atoll.learn.idle:train", self._train, many=many, load=load_of(self.algorithm))
        self.measure = Task("atoll.learn.idle:measure", self._measure)
        self.report = self.survey("atoll.learn.idle:report")

    def init(self, rng: Rng) -> Tree:
        """Start with zeros."""
        del rng
        return {"w": np.zeros(self.model.parameters)}

    def buffers(self) -> Tree:
        """Return no buffers."""
        return {}

    def check(self, data: Any) -> None:
        """Accept all data."""

    def evaluate(self, params: Tree, data: Any) -> dict[str, float]:
        """Return no loss."""
        del params
        return {"n": float(len(data)), "loss_sum": 0.0}

    def personal(self, params: Tree, state: Tree) -> Tree:
        """Return the model of a client with this private state."""
        return own_model(self.algorithm, params, state)

    def export(self, params: Tree) -> Any:
        """Return the parameters."""
        return params["w"]

    def _train(self, island: Island, message: Tree) -> dict[str, Aggregate]:
        contact, n = _Contact(self, message), len(island.data)
        reply, state = self._reply(contact, n, float(contact.batches(np.array([n]))[0]), island.state, island.rng)
        if state is not None:
            island.state = state
        return reply

    def _reply(
        self, contact: _Contact, n: int, batches: float, state: Tree, rng: Rng
    ) -> tuple[dict[str, Aggregate], Tree]:
        """Run every pass of the phase, from start to finish without steps."""
        broadcast, passes = contact.broadcast, contact.passes
        work = LocalWork(float(n), batches)
        reply: dict[str, Aggregate] = {}
        for part in passes:
            state = facet(part, Stateful).client_init(broadcast["params"]) if state is None else state
            drawn = facet(part, Stateful).draw(rng.child("draw"), broadcast["params"])
            local = {**part.start(broadcast, state), **({} if drawn is None else {"drawn": drawn})}
            reply, state = finish_update(part, local, broadcast, state, work)
        reply = {**reply, "loss": Mean(np.float64(0.0), examples=1.0, role="metric")}
        return self._with_reports(reply, contact.asked, n), state

    def _many(self, cohort: Cohort, message: Tree) -> Iterator[Batch]:
        """Return one reply for each different size, and as many rows of it as there are clients of that size."""
        known = getattr(cohort.population, "sizes", None)
        if known is None:
            sizes = np.array([len(cohort.shard(i)) for i in range(len(cohort))], dtype=np.int64)
        else:
            sizes = np.asarray(known)[cohort.positions]
        yield Batch(np.arange(len(cohort)), self._answer_message(message).rows(sizes))

    def _answer_message(self, message: Tree) -> _Answers:
        """Return the answers to a message, cached per message if they are small enough."""
        if self.model.parameters > _SMALL:
            return _Answers(self, message)
        key = fingerprint(message)
        if key not in self._answers:
            if len(self._answers) == _MESSAGES:
                self._answers.clear()
            self._answers[key] = _Answers(self, message)
        return self._answers[key]

    def _measure(self, island: Island, message: Tree) -> dict[str, Aggregate]:
        return measure_client(self, island, message)


class _Contact:
    """What a message asks of its receivers, computed once."""

    def __init__(self, learner: IdleLearner, message: Tree) -> None:
        self.broadcast, self.passes = message["broadcast"], facet(learner.algorithm, Phased).passes(message["phase"])
        self.asked = learner._list_requested(message)
        self._load = functools.partial(declare_workload, learner.algorithm, message=message)

    def batches(self, sizes: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the number of mini-batches of one pass for clients of these sizes."""
        return self._load(sizes).batches / len(self.passes)


class _Answers:
    """Replies of clients without state and random draws to one message: a table with one row per different size."""

    def __init__(self, learner: IdleLearner, message: Tree) -> None:
        self._learner, self._contact = learner, _Contact(learner, message)
        self._forget()

    def _forget(self) -> None:
        self._sizes = np.zeros(0, dtype=np.int64)  # size of each row
        self._order = self._sizes  # rows by size
        self._table: dict[str, Aggregate] = {}

    def rows(self, sizes: NDArray[np.int64]) -> dict[str, Aggregate]:
        """Return a block in which client ``i`` has ``sizes[i]`` examples."""
        places = self._places(sizes)
        missing = self._sizes[places] != sizes if len(self._sizes) else np.ones(len(sizes), dtype=bool)
        if missing.any():
            if len(self._sizes) > _ROWS:
                self._forget()
                missing[:] = True
            self._learn(np.unique(sizes[missing]))
            places = self._places(sizes)
        return {name: _take_rows(block, places) for name, block in self._table.items()}

    def _places(self, sizes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the row of each size, if there is one."""
        if not len(self._sizes):
            return sizes
        found = np.searchsorted(self._sizes, sizes, sorter=self._order)
        return self._order[np.minimum(found, len(self._order) - 1)]

    def _learn(self, sizes: NDArray[np.int64]) -> None:
        """Add rows for new sizes."""
        rng, batches = Rng(0), self._contact.batches(sizes)  # not used for draws
        pairs = zip(sizes.tolist(), batches.tolist(), strict=True)
        replies = [self._learner._reply(self._contact, n, steps, None, rng)[0] for n, steps in pairs]
        made = {name: stack_replies([reply[name] for reply in replies]) for name in replies[0]}
        self._table = {name: _join_blocks(self._table[name], made[name]) for name in self._table} or made
        self._sizes = np.concatenate([self._sizes, sizes])
        self._order = np.argsort(self._sizes)


def _join_blocks(above: Aggregate, below: Aggregate) -> Aggregate:
    """Return a block with the rows of both."""
    value = T.map(lambda *leaves: np.concatenate(leaves), above.value, below.value)
    return above.with_value(value, np.concatenate([np.atleast_1d(block.weight) for block in (above, below)]))


def _take_rows(block: Aggregate, places: NDArray[np.int64]) -> Aggregate:
    """Return a block in which client ``i`` has row ``places[i]`` of ``block``."""
    weight = block.weight[places] if np.ndim(block.weight) else block.weight
    return block.with_value(T.map(lambda leaf: leaf[places], block.value), weight)
