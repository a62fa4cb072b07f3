"""A model that learns nothing, and data that are sizes alone: rounds whose time, traffic and energy are wanted, and no training."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core import tree as T
from atoll.core.aggregate import Aggregate, Mean, Parts
from atoll.core.errors import CompositionError, ConfigError
from atoll.core.rng import Rng
from atoll.core.task import Batch, Task, Work
from atoll.core.tree import Tree

from .algorithm import LocalWork
from .contact import declared
from .learner import LearnerSettings
from .personal import measured, own_model
from .release import is_private
from .reports import Reporting
from .wrapped import overrides

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.core.cohort import Cohort
    from atoll.core.island import Island

    from .algorithm import Algorithm

__all__ = ["IdleIslands", "IdleLearner", "IdleModel"]


class IdleIslands:
    """Clients whose data are so many examples, and nothing in them.

    Args:
        sizes: examples of each client.

    Attributes:
        sizes: the same, ``(clients,)``.
        names: ``client-0``, ``client-1``, ...
    """

    def __init__(self, sizes: Sequence[int] | NDArray[Any]) -> None:
        self.sizes = np.asarray(sizes, dtype=np.int64)
        if self.sizes.ndim != 1 or not (self.sizes >= 0).all():
            raise ConfigError(
                f"sizes={sizes!r}", where="IdleIslands", remedy="give one number of examples a client, none below 0"
            )
        self.names: Sequence[str] = [f"client-{i}" for i in range(len(self.sizes))]

    def __len__(self) -> int:
        return len(self.sizes)

    def shard(self, i: int) -> range:
        """So many examples."""
        return range(int(self.sizes[i]))


@dataclass(frozen=True)
class IdleModel:
    """A model of some zeros that clients train in no time: they declare the work of their algorithm, and reply as after no step at all.

    For studies of devices and pacings: the clock, the traffic and the energy are those of a real training of this size, and a round costs
    microseconds a client. Any data set will do; `IdleIslands` has nothing but sizes.

    Attributes:
        parameters: how many, 8 bytes each; models of devices that charge a size by decree do not mind.
    """

    parameters: int = 1

    def __post_init__(self) -> None:
        if self.parameters < 1:
            raise ConfigError(f"parameters={self.parameters}", where="IdleModel", remedy="use at least 1")

    def learner(self, settings: LearnerSettings, data: Any) -> IdleLearner:
        """Ready for a data set.

        Raises:
            CompositionError: the algorithm promises privacy, which zeros that anyone knows cannot need.
        """
        del data
        if is_private(settings.algorithm):
            raise CompositionError(
                f"{type(settings.algorithm).__name__} hides data, and IdleModel sees none",
                where="Training.model",
                remedy="use the same algorithm without privacy: its rounds take the same time",
            )
        return IdleLearner(self, settings.algorithm)


class IdleLearner(Reporting):
    """The idle model as a learner; its parameters are ``{"w": (parameters,)}``, zero at the start."""

    def __init__(self, model: IdleModel, algorithm: Algorithm) -> None:
        self.model, self.algorithm = model, algorithm
        self._known: dict[tuple[Any, ...], Work] = {}
        # A block is like its members only where clients remember and draw nothing.
        alike = not overrides(algorithm, "client_init") and not overrides(algorithm, "draw")
        many = self._many if alike else None
        self.train = Task("atoll.learn.idle:train", self._train, many=many, work=self._work, by_size=True)
        self.measure = Task("atoll.learn.idle:measure", self._measure)
        self.report = self.survey("atoll.learn.idle:report")

    def init(self, rng: Rng) -> Tree:
        """Zeros."""
        del rng
        return {"w": np.zeros(self.model.parameters)}

    def buffers(self) -> Tree:
        """None."""
        return {}

    def check(self, data: Any) -> None:
        """Any data will do."""

    def evaluate(self, params: Tree, data: Any) -> dict[str, float]:
        """No loss."""
        del params
        return {"n": float(len(data)), "loss_sum": 0.0}

    def personal(self, params: Tree, state: Tree) -> Tree:
        """The model of a client with this private state."""
        return own_model(self.algorithm, params, state)

    def export(self, params: Tree) -> Any:
        """The parameters."""
        return params["w"]

    def _work(self, data: Any, args: Any, message: Tree) -> Work:
        del args
        return self._declared(len(data), message)

    def _declared(self, n: int, message: Tree) -> Work:
        """Declared work, worked out once for each size and kind of message: nothing else takes time here."""
        key = (n, *(message.get(name) for name in ("phase", "epochs", "done")), *(message.get("reports") or ()))
        if key not in self._known:
            self._known[key] = declared(self.algorithm, n, message)
        return self._known[key]

    def _train(self, island: Island, message: Tree) -> dict[str, Aggregate]:
        reply, state = self._reply(_Contact(self, message), len(island.data), island.state, island.rng)
        if state is not None:
            island.state = state
        return reply

    def _reply(self, contact: _Contact, n: int, state: Tree, rng: Rng) -> tuple[dict[str, Aggregate], Tree]:
        """Every pass of the phase, from its start to its finish without a step between."""
        broadcast, passes = contact.broadcast, contact.passes
        work = LocalWork(float(n), self._declared(n, contact.message).batches / len(passes))
        reply: dict[str, Aggregate] = {}
        for part in passes:
            state = part.client_init(broadcast["params"]) if state is None else state
            drawn = part.draw(rng.child("draw"), broadcast["params"])
            local = {**part.start(broadcast, state), **({} if drawn is None else {"drawn": drawn})}
            reply, state = part.finish(local, broadcast, state, work)
        reply = {**reply, "metric/loss": Mean(np.float64(0.0), examples=1.0, metric=True)}
        return self._with_reports(reply, contact.asked, n), state

    def _many(self, cohort: Cohort, message: Tree) -> Iterator[Batch]:
        """One reply for each different size, and as many rows of it as there are clients of that size."""
        known = getattr(cohort.population, "sizes", None)
        if known is None:
            sizes = np.array([len(cohort.shard(i)) for i in range(len(cohort))], dtype=np.int64)
        else:
            sizes = np.asarray(known)[cohort.positions]
        different, places = np.unique(sizes, return_inverse=True)
        contact, rng = _Contact(self, message), Rng(0)  # nothing is drawn from it
        replies = [self._reply(contact, int(n), None, rng)[0] for n in different]
        yield Batch(np.arange(len(cohort)), {name: _stacked([r[name] for r in replies], places) for name in replies[0]})

    def _measure(self, island: Island, message: Tree) -> dict[str, Aggregate]:
        return measured(self, island, message)


class _Contact:
    """What a message asks of everyone whom it goes to, worked out once."""

    def __init__(self, learner: IdleLearner, message: Tree) -> None:
        self.message, self.broadcast = message, message["broadcast"]
        self.passes = learner.algorithm.passes(message["phase"])
        self.asked = learner._asked(message)


def _stacked(rows: list[Aggregate], places: NDArray[np.int64]) -> Aggregate:
    """A block whose client ``i`` has the reply ``rows[places[i]]``."""
    stacks: list[Mapping[str, Any]] = [dict(T.items(row.value)) for row in rows]
    leaves = [np.stack([np.asarray(stack[path]) for stack in stacks])[places] for path in stacks[0]]
    value = T.rebuild(rows[0].value, leaves)
    weights = np.array([float(row.weight) for row in rows])[places]
    made = rows[0].with_value(value)
    return replace(made, examples=weights) if isinstance(made, Mean | Parts) else made
