"""Tasks: what a party is asked to do, by name.

A task is a function ``(island, message) -> reply`` that sees only its island. It is sent as its name and plain arguments, never as code.
A task may also offer ``many``: the same work for a whole cohort at once, in blocks that it chooses, which is how the batched engine runs
a cohort as a few large array operations.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol, overload

import numpy as np

from .. import message as M
from ..addresses import declared_name, load_object
from ..algebra import tree as T
from ..algebra.aggregate import Aggregate, Totals
from ..algebra.tree import Tree
from ..errors import ConfigError, TaskError, nearest
from .disclosure import Disclosure
from .task_schema import TaskSchema

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .cohort import Cohort
    from .island import Island

__all__ = ["Batch", "Summed", "Task", "TaskSchema", "Tuning", "Work", "Workload", "done_before", "resolve", "task"]


@dataclass(frozen=True)
class Work:
    """The cost of a task, declared before it runs, so that simulated time never depends on results.

    Attributes:
        examples: examples in one epoch; if a request runs several updates in sequence, in one epoch of each.
        batches: mini-batch steps in all epochs together.
        epochs: passes over the data; a fraction if an update stops within one.
    """

    examples: float = 0.0
    batches: float = 0.0
    epochs: float = 0.0


@dataclass(frozen=True)
class Workload:
    """The declared work of many parties, as columns; see ``Work``.

    Attributes:
        examples: one entry a party.
        batches: as ``examples``.
        epochs: as ``examples``.
    """

    examples: NDArray[np.float64]
    batches: NDArray[np.float64]
    epochs: NDArray[np.float64]

    @staticmethod
    def of(works: Sequence[Work]) -> Workload:
        """Columns of these works."""
        rows = np.array([(w.examples, w.batches, w.epochs) for w in works], dtype=np.float64).reshape(-1, 3)
        return Workload(rows[:, 0], rows[:, 1], rows[:, 2])

    def row(self, i: int) -> Work:
        """The work of one party."""
        return Work(float(self.examples[i]), float(self.batches[i]), float(self.epochs[i]))

    def __add__(self, other: Workload) -> Workload:
        return Workload(self.examples + other.examples, self.batches + other.batches, self.epochs + other.epochs)


@dataclass
class Batch:
    """The replies of a block of clients, stacked.

    Attributes:
        positions: the clients' places in the cohort, shape ``(clients,)``.
        reply: named aggregates whose leaves have a leading client axis.
        states: the clients' new private states, stacked in the same way, or ``None`` if the task keeps none.
        rejected: maps a position to a reason, for clients whose reply must not be aggregated.
        singles: maps a position to a new private state, instead of ``states``, if a task makes them one by one.
        errors: maps a position to the error of a client that is in no batch.
    """

    positions: NDArray[np.int64]
    reply: dict[str, Aggregate]
    states: Tree = None
    rejected: dict[int, str] = field(default_factory=dict)
    singles: dict[int, Tree] = field(default_factory=dict)
    errors: dict[int, Exception] = field(default_factory=dict)

    def part(self, keep: NDArray[np.bool_]) -> Batch:
        """Some of its clients, and the errors of clients that are in no batch."""
        at = self.positions[keep]
        rejected = {place: why for place, why in self.rejected.items() if place in at}
        singles = {place: state for place, state in self.singles.items() if place in at}
        if not len(at):
            return Batch(at, {}, errors=self.errors)
        reply = {name: aggregate.part(keep) for name, aggregate in self.reply.items()}
        states = T.map(lambda leaf: None if leaf is None else leaf[keep], self.states)
        return Batch(at, reply, states, rejected, singles, self.errors)

    def state(self, i: int) -> Tree:
        """The new private state of its ``i``-th client, ``None`` if it has none."""
        alone = self.singles.get(int(self.positions[i]))
        if alone is not None or self.states is None:
            return alone
        return T.map(lambda leaf: None if leaf is None else leaf[i], self.states)


@dataclass
class Summed:
    """A cohort's replies as sums, for a task that can add up without making single replies.

    Attributes:
        totals: named sums over the clients that were kept.
        kept: places in the cohort of the clients in the sums, in order.
        rejected: maps a place to why its client was kept out.
        states: ``(places, stacked new states)`` of blocks; empty if the task keeps none.
        reply_bytes: encoded size of one client's reply.
    """

    totals: Totals
    kept: NDArray[np.int64]
    rejected: dict[int, str] = field(default_factory=dict)
    states: list[tuple[NDArray[np.int64], Tree]] = field(default_factory=list)
    reply_bytes: int = 0


class Tuning(Protocol):
    """How a task's fast path decides how to run (blocks, compilation), so that the decision can be recorded and repeated."""

    @property
    def choices(self) -> dict[str, Any]:
        """The decision as a plain dict; empty before the first cohort."""
        ...

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds spent so far on deciding, by kind: ``trace``, ``compile``."""
        ...

    def recall(self, choices: dict[str, Any]) -> None:
        """Repeat an earlier decision."""
        ...

    def prepare(self, cohort: Cohort, message: Tree, cores: int = 1) -> float:
        """Decide and compile for cohorts like this one, before workers start.

        Args:
            cohort: the part of a cohort that one worker would get.
            message: its message.
            cores: cores that a cohort may use; a task that prefers to use them itself, in threads, leaves nothing for workers.

        Returns:
            The expected seconds of ``cohort`` on one core, for processes to share; 0 if threads do the work.
        """
        ...


def _no_work(_data: Any, _args: Mapping[str, Any], _message: Tree) -> Work:
    return Work()


@dataclass(frozen=True)
class Task:
    """A named piece of work at a party.

    Attributes:
        name: ``"module:function"``, or a name that the program registered. Random keys, ledgers and checkpoints follow it, so it never
            changes: a task that moves gets a line in `atoll.core.addresses.MOVED`.
        run: ``(island, message) -> reply``, plain or ``async``.
        many: ``(cohort, message) -> Iterator[Batch]``, optional.
        work: ``(data, args, message) -> Work``, declared before the task runs; the message is that of the request.
        load: ``(sizes, args, message) -> Workload``, instead of ``work``, if it follows from the parties' numbers of examples, ``(parties,)``: then it
            needs no data, and one call for a cohort.
        reply_bytes: size of the encoded reply, if known beforehand.
        args: plain arguments, passed to ``run`` as keywords.
        sums: ``(cohort, message) -> Summed``, optional: like ``many`` if no stage needs single replies; ``None`` falls back to ``many``.
        tuning: records and repeats how ``many`` and ``sums`` run.
        schema: the forms of its message and reply; see `TaskSchema`. A message that does not fit is refused before any party is contacted. A reply that
            does not fit is not sent, and a server that receives one anyway rejects it.
        summands: ``(cohort, message) -> Summed``, optional: like ``sums``, but totals have a leading axis of the clients that were kept, since a reducer
            masks or encrypts what each client adds; ``None`` falls back to ``many``.
        islands: whether ``many`` uses the cohort's islands (``cohort.island(i)``), for secrets and ledgers: its replies are then added up one by one, and
            under a reducer that wraps the task it runs party by party.
        promise: for a step of a secure reducer: ``message -> least``, the smallest number of parties whose sum a server that lies can see, 0 if it can see less
            than a sum, ``None`` if another step has promised it. See ``SitePolicy.sums_only``.
        discloses: for a task that describes rows: ``message -> Disclosure``, what its reply promises. See ``SitePolicy.min_count``.
        adds_excess: whether it is a half that adds the excess noise of the wrapped request; see ``Stage.excess``.
    """

    name: str
    run: Callable[..., Any]
    many: Callable[..., Iterator[Batch]] | None = None
    work: Callable[[Any, Mapping[str, Any], Tree], Work] = _no_work
    reply_bytes: int | None = None
    args: Mapping[str, Any] = field(default_factory=dict)
    sums: Callable[..., Summed | None] | None = None
    tuning: Tuning | None = None
    load: Callable[[NDArray[np.int64], Mapping[str, Any], Tree], Workload] | None = None
    summands: Callable[..., Summed | None] | None = None
    islands: bool = False
    schema: TaskSchema | None = None
    promise: Callable[[Tree], int | None] | None = None
    discloses: Callable[[Tree], Disclosure] | None = None
    adds_excess: bool = False

    def with_args(self, **args: Any) -> Task:
        """The same task with plain keyword arguments bound."""
        return replace(self, args={**self.args, **args}) if args else self

    @functools.cached_property
    def argument_bytes(self) -> int:
        """Encoded size of the arguments that are sent with each request; 0 if there are none."""
        return M.nbytes(dict(self.args)) if self.args else 0

    def declared(self, data: Any, message: Tree = None) -> Work:
        """The declared work at a party with this data for this message."""
        if self.load is not None:
            return self.load(np.array([len(data)], dtype=np.int64), self.args, message).row(0)
        return self.work(data, self.args, message)

    def workload(
        self,
        population: Any,
        positions: NDArray[np.int64],
        message: Tree = None,
        look: Callable[[int], Any] | None = None,
    ) -> Workload:
        """The declared work of many parties.

        Args:
            population: the population; if it has ``sizes``, work that follows from them is computed without data.
            positions: positions of the parties.
            message: the message of the request.
            look: finds a party's data, by default in the population.
        """
        sizes = getattr(population, "sizes", None)
        if sizes is not None and self.sized and (positions < len(population)).all():
            return self.of_sizes(np.asarray(sizes)[positions], message)
        if self.load is None and self.work is _no_work:  # no data are looked at: a helper may have none, and no size
            return self.of_sizes(positions, message)
        look = look or population.shard
        return Workload.of([self.declared(look(p), message) for p in positions.tolist()])

    @property
    def sized(self) -> bool:
        """Whether the declared work follows from the number of examples alone."""
        return self.load is not None or self.work is _no_work

    def of_sizes(self, sizes: NDArray[np.int64], message: Tree = None) -> Workload:
        """The declared work of parties with these numbers of examples, for a task that is ``sized``."""
        none = np.zeros(len(sizes))
        return Workload(none, none, none) if self.load is None else self.load(sizes, self.args, message)

    def spec(self) -> dict[str, Any]:
        """The task as a message has it: names and plain arguments."""
        return {"name": self.name, "args": dict(self.args)}

    @staticmethod
    def of(spec: Mapping[str, Any], find: Callable[[str], Task]) -> Task:
        """The inverse of ``spec``; ``find`` looks names up."""
        return replace(find(spec["name"]), args=dict(spec["args"]))

    def __call__(self, island: Island, message: Tree) -> Any:
        """Run the task at one party."""
        return self.run(island, message, **self.args)

    def batches(self, cohort: Cohort, message: Tree) -> Iterator[Batch]:
        """Run the task for a whole cohort; only for tasks that offer ``many``."""
        if self.many is None:
            raise TaskError(f"task {self.name!r} offers no `many`", remedy="run it party by party")
        return self.many(cohort, message, **self.args)


@overload
def task(fn: Callable[..., Any]) -> Task: ...
@overload
def task(
    *,
    name: str | None = None,
    many: Callable[..., Iterator[Batch]] | None = None,
    work: Callable[[Any, Mapping[str, Any], Tree], Work] = _no_work,
    reply_bytes: int | None = None,
    schema: TaskSchema | None = None,
    promise: Callable[[Tree], int | None] | None = None,
    discloses: Callable[[Tree], Disclosure] | None = None,
    adds_excess: bool = False,
) -> Callable[[Callable[..., Any]], Task]: ...
def task(
    fn: Callable[..., Any] | None = None,
    *,
    name: str | None = None,
    many: Callable[..., Iterator[Batch]] | None = None,
    work: Callable[[Any, Mapping[str, Any], Tree], Work] = _no_work,
    reply_bytes: int | None = None,
    schema: TaskSchema | None = None,
    promise: Callable[[Tree], int | None] | None = None,
    discloses: Callable[[Tree], Disclosure] | None = None,
    adds_excess: bool = False,
) -> Task | Callable[[Callable[..., Any]], Task]:
    """Make a task of a module-level function, as a decorator.

    Example:
        >>> @task
        ... def count(island, message):
        ...     return {"rows": len(island.data)}
        >>> count.name.endswith(":count")
        True
    """

    def wrap(function: Callable[..., Any]) -> Task:
        full = name or declared_name(function)
        more: dict[str, Any] = {"promise": promise, "discloses": discloses, "adds_excess": adds_excess}
        return Task(full, function, many, work, reply_bytes, schema=schema, **more)

    return wrap if fn is None else wrap(fn)


def done_before(task: Task) -> Task:
    """The same task, with its work already charged: a model of devices sees none."""
    return replace(task, work=_no_work, load=None)


def resolve(name: str, registry: Mapping[str, Any], kind: type | tuple[type, ...] = Task) -> Any:
    """Find a named object: first in the program's registry, then as ``module:name``, wherever that lies today.

    Only objects of the expected kind are returned, so that a peer cannot name an arbitrary function of an installed module.

    Raises:
        ConfigError: no object of that kind has this name.
    """
    if name in registry:
        return registry[name]
    module, _, attribute = name.partition(":")
    found: Any = None
    if module and attribute and "<locals>" not in attribute:
        with contextlib.suppress(ImportError, AttributeError):
            found = load_object(name)
    expected = kind if isinstance(kind, tuple) else (kind,)
    if isinstance(found, expected) or (isinstance(found, type) and issubclass(found, expected)):
        return found
    raise ConfigError(
        f"no {expected[0].__name__.lower()} named {name!r} can be found here.{nearest(name, registry)}",
        remedy="define it at the top level of a module that every party can import, or register it with the program",
    )
