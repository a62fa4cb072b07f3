"""Tasks: what a party is asked to do, by name.

A task is a function ``(island, message) -> reply`` that sees only its island. It is sent as its name and plain arguments, never as code.
A task may also offer ``many``: the same work for a whole cohort at once, in blocks that it chooses, which is how the batched engine runs
a cohort as a few large array operations.

A task's declaration of its messages and replies, so that both ends refuse values that do not fit before they use them.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol, overload

import numpy as np

from .. import message as M
from ..addresses import declared_name, load_object
from ..algebra import tree as T
from ..algebra.aggregate import Aggregate, Part, Total, Totals
from ..algebra.rng import Rng
from ..algebra.tree import Tree
from ..errors import ConfigError, MessageError, TaskError, nearest
from ..message import ArraySpec, Each, ScalarSpec, Schema
from ..message.wire import ROOT
from .disclosure import Disclosure

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..exposure import Contract
    from .chain import Chain
    from .cohort import Cohort
    from .island import Island

__all__ = [
    "Batch", "Summed", "Task", "TaskFindings", "TaskSchema", "TaskTuning", "Work", "Workload", "done_before", "register_tasks", "resolve", "task",
    "tasks_of",
]  # fmt: skip


_DTYPES = {float: "float64", int: "int64", bool: "bool", complex: "complex128"}


@dataclass(frozen=True)
class TaskSchema:
    """The forms of a task's message and reply.

    A form is a tree whose leaves are `ArraySpec`, `ScalarSpec` or `Each`; ``Schema.of(example)`` makes one. A dimension ``None`` has any size. The reply to a
    sum is a dict of aggregates, and its form is the same dict with forms as the aggregates' values: ``{"w": Mean({"a": ArraySpec("float32", (3,))})}``.

    Attributes:
        message: form of the message; ``None`` declares nothing.
        reply: form of the reply, or aggregates of forms; ``None`` declares nothing.

    Raises:
        ConfigError: a form is not valid.

    Example:
        >>> form = TaskSchema(message={"w": ArraySpec("float64", (3,))}, reply=ScalarSpec(float))
        >>> form.require_message({"w": np.zeros(3)})
        >>> form.require_message({"w": np.zeros(4)})
        Traceback (most recent call last):
        ...
        atoll.core.errors.MessageError: found shape (4), expected shape (3) (in message/w). Remedy: send what the task's schema describes
    """

    message: Any = None
    reply: Any = None

    def __post_init__(self) -> None:
        _ = self._message, self._plain, self._values, self._blocks, self._totals  # these refuse invalid forms
        values = self.reply.values() if isinstance(self.reply, Mapping) else ()
        if any(isinstance(value, Aggregate) for value in values) and not self._aggregates:
            raise ConfigError(
                "some values of the reply's form are aggregates, but others are not",
                where="TaskSchema",
                remedy="use only aggregates in the reply to a sum: Mean(form), Sum(form), Vote(form) or Parts(form)",
            )

    # ------------------------------------------------------------------ forms

    @cached_property
    def _message(self) -> Schema | None:
        return _schema(self.message)

    @cached_property
    def _aggregates(self) -> Mapping[str, Aggregate]:
        reply = self.reply
        found = isinstance(reply, Mapping) and bool(reply) and all(isinstance(v, Aggregate) for v in reply.values())
        return dict(reply) if found else {}

    @cached_property
    def _plain(self) -> Schema | None:
        """The form of a reply to a request other than a sum."""
        return None if self._aggregates or self._mixed else _schema(self.reply)

    @property
    def _mixed(self) -> bool:
        return isinstance(self.reply, Mapping) and any(isinstance(v, Aggregate) for v in self.reply.values())

    @cached_property
    def _values(self) -> dict[str, Schema]:
        """The form of each aggregate's value; the fold rejects numbers that are not finite."""
        return {name: Schema(_map_specs(_lax, _form(a.value))) for name, a in self._aggregates.items()}

    @cached_property
    def _blocks(self) -> dict[str, Schema]:
        """The same with a leading client axis; single replies that arrays cannot store are not checked in blocks."""
        found = {}
        for name, schema in self._values.items():
            if self._aggregates[name].summable or _is_stackable(schema.form):
                found[name] = Schema(_map_specs(_stack_spec, schema.form))
        return found

    @cached_property
    def _totals(self) -> dict[str, Schema]:
        """The form of what each aggregate adds to the sum."""
        return {
            name: Schema(_map_specs(lambda leaf, kind=self._aggregates[name].kind: _summand(leaf, kind), schema.form))
            for name, schema in self._values.items()
        }

    # ------------------------------------------------------------------ the program's end, and the party's

    def require_message(self, message: Tree) -> None:
        """Refuse a message of another form.

        Raises:
            MessageError: names the place.
        """
        schema = self._message
        if schema is not None:
            _within("message", lambda: schema.check(message))

    def require_reply(self, reply: Any) -> None:
        """Refuse one party's reply of another form.

        Raises:
            MessageError: names the place.
        """
        schema = self._plain
        if schema is not None:
            _within("reply", lambda: schema.check(reply))
        elif self._aggregates:
            if not isinstance(reply, Mapping) or not all(isinstance(a, Aggregate) for a in reply.values()):
                raise _wrong(f"a {type(reply).__name__}", f"a dict of aggregates {sorted(self._aggregates)}", "reply")
            self._require(reply, self._values)

    def require_block(self, reply: Mapping[str, Aggregate]) -> None:
        """Refuse replies of a block of clients of another form.

        Raises:
            MessageError: names the place.
        """
        if self._aggregates:
            self._require(reply, self._blocks)
        elif self._plain is not None:
            raise _wrong("a dict of aggregates", "the reply that the task declares, which is no sum's", "reply")

    def _require(self, reply: Mapping[str, Aggregate], schemas: Mapping[str, Schema]) -> None:
        _same_names(reply, self._aggregates)
        for name, aggregate in reply.items():
            _same_kind(name, aggregate, self._aggregates[name])
            schema = schemas.get(name)
            if schema is not None:
                _within(f"reply/{name}", lambda schema=schema, value=aggregate.value: schema.check(value))

    # ------------------------------------------------------------------ where replies are added up

    def find_sent_forms(self, uplink: Chain, public: Sequence[Tree]) -> dict[str, Schema | None]:
        """The form of what each aggregate adds to the sum, after encoding by the stages; compute it once for a request.

        It is the form that stages give to a value of the declared form, or ``None`` if the schema leaves a size of that open.

        Args:
            uplink: the stages.
            public: parameters of the stages.
        """
        return {
            name: self._encoded(name, uplink, public) if uplink.stages and declared.encoded else self._totals[name]
            for name, declared in uplink.leaving(self._aggregates).items()
        }

    def require_totals(
        self, totals: Totals, forms: Mapping[str, Schema | None] | None = None, *, apart: bool = False
    ) -> None:
        """Refuse totals of another form. Without a form, only names and kinds are checked.

        Args:
            totals: totals of a party, or of a cohort.
            forms: the result of ``find_sent_forms``; by default no stage has encoded the totals.
            apart: whether they have a leading client axis.

        Raises:
            MessageError: names the place.
        """
        if not self._aggregates:
            return
        forms = self._totals if forms is None else forms
        _same_names(totals, forms)
        for name, total in totals.items():
            declared, schema = self._aggregates[name], forms[name]
            if schema is not None and apart:
                schema = Schema(_map_specs(_stack_spec, schema.form))
            if total.kind != "parts":
                _same_kind(name, total, declared)
                _require_form(name, declared, schema, total.value)
                continue
            kinds = {part.of for part in total.value if isinstance(part, Part)} or {declared.kind}
            if kinds != {declared.kind} or total.role != declared.role:
                raise _wrong(f"parts of kind {sorted(kinds)}", f"{declared.kind!r}", f"reply/{name}")
            for part in total.value:
                _require_form(name, declared, schema, part.value)

    def _encoded(self, name: str, uplink: Chain, public: Sequence[Tree]) -> Schema | None:
        """The form of a value after the stages, found by sending a value of the declared form through them."""
        try:
            example = _map_specs(_example, self._values[name].form)
        except _OpenSizeError:
            return None
        declared = self._aggregates[name]
        total = uplink.rehearse_send(name, declared.with_value(example, 1.0), public, Rng(0)).total
        if total.kind == "parts":
            return Schema.of(total.value[0].value)
        return Schema.of(T.map(_array, total.value))


def _require_form(name: str, declared: Aggregate, schema: Schema | None, value: Any) -> None:
    if schema is not None:
        found = value if declared.kind == "parts" else T.map(_array, value)
        _within(f"reply/{name}", lambda: schema.check(found))


class _OpenSizeError(Exception):
    """A form leaves a size open, so it has no single example."""


def _schema(form: Any) -> Schema | None:
    return None if form is None else Schema(_form(form))


def _form(form: Any) -> Any:
    return form.form if isinstance(form, Schema) else form


def _map_specs(rule: Any, form: Any) -> Any:
    """A form with each spec replaced."""
    if isinstance(form, Each):
        if rule is not _lax:
            raise ConfigError("a list of any length cannot be added up", where="TaskSchema", remedy="name every item")
        return Each(_map_specs(rule, form.form), form.least, form.most)
    if isinstance(form, dict):
        return {key: _map_specs(rule, part) for key, part in form.items()}
    if isinstance(form, list | tuple):
        return type(form)(_map_specs(rule, part) for part in form)
    if not isinstance(form, ArraySpec | ScalarSpec):
        Schema(form)  # raises an error that says what is wrong
    return rule(form)


def _is_stackable(form: Any) -> bool:
    """Whether values of a form are numbers and arrays, which a block of clients stores as columns."""
    try:
        _map_specs(_stack_spec, form)
    except ConfigError:
        return False
    return True


def _lax(spec: Any) -> Any:
    """The same spec without the check that numbers are finite."""
    if isinstance(spec, ScalarSpec):
        return ScalarSpec(spec.type)
    return ArraySpec(spec.dtype, spec.shape)


def _numbers(spec: Any) -> ArraySpec:
    """A number as an array without axes."""
    if isinstance(spec, ArraySpec):
        return spec
    if spec.type not in _DTYPES:
        raise ConfigError(
            f"a {spec.type.__name__} cannot be added up", where="TaskSchema", remedy="use numbers or arrays"
        )
    return ArraySpec(_DTYPES[spec.type], ())


def _stack_spec(spec: Any) -> ArraySpec:
    """The spec of a block's leaf, with a client axis."""
    one = _numbers(spec)
    return ArraySpec(one.dtype, None if one.shape is None else (None, *one.shape))


def _summand(spec: Any, kind: str) -> Any:
    """The spec of a client's summand."""
    if kind == "parts":
        return spec
    one = _numbers(spec)
    dtype = np.dtype(one.dtype)
    return one if kind != "mean" or dtype.kind in "fc" else ArraySpec("float64", one.shape)


def _example(spec: Any) -> Any:
    one = _numbers(spec)
    if one.shape is None or None in one.shape:
        raise _OpenSizeError
    return np.ones([size or 0 for size in one.shape], dtype=np.dtype(one.dtype))


def _array(leaf: Any) -> Any:
    """A plain number as an array without axes."""
    return np.asarray(leaf)[()] if type(leaf) in _DTYPES else leaf


def _same_names(found: Mapping[str, Any], declared: Mapping[str, Any]) -> None:
    for name in found:
        if name not in declared:
            raise _wrong(f"an unexpected {name!r}", f"only {sorted(declared)}.{nearest(str(name), declared)}", "reply")
    for name in declared:
        if name not in found:
            raise _wrong(f"no {name!r}", f"{sorted(declared)}", "reply")


def _same_kind(name: str, found: Aggregate | Total, declared: Aggregate) -> None:
    ours, theirs = (found.kind, found.role), (declared.kind, declared.role)
    if ours != theirs:
        raise _wrong(f"a {ours[0]} of role {ours[1]!r}", f"a {theirs[0]} of role {theirs[1]!r}", f"reply/{name}")


def _wrong(found: str, expected: str, where: str) -> MessageError:
    return MessageError(
        f"found {found}, expected {expected}", where=where, remedy="send what the task's schema describes"
    )


def _within(place: str, check: Any) -> None:
    """Add the place to the error of a value that does not fit."""
    try:
        check()
    except MessageError as error:
        where = place if error.where in (None, ROOT) else f"{place}/{error.where}"
        raise MessageError(error.what, where=where, remedy=error.remedy) from None


# ---------------------------------------------------------------------- tasks


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


class TaskTuning(Protocol):
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


class TaskFindings(Protocol):
    """What a task finds out about the code that it runs, so that a result can say it wherever the task ran."""

    def pack(self) -> dict[str, list[str]]:
        """What was found so far, as a message has it; empty if there is nothing."""
        ...

    def add(self, found: Mapping[str, Sequence[str]]) -> None:
        """Add what the task found in another process."""
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
        discloses: for a task that describes rows: ``message -> Disclosure``, what its reply promises; a role of a session, which has no message, gives its arguments. See ``SitePolicy.min_count``.
        contract: for a role of a protocol between parties: ``args -> Contract``, what it sends and what each role learns. See ``SitePolicy.learned``.
        findings: what it finds out while it runs; workers send it back with their replies.
        adds_excess: whether it is a half that adds the excess noise of the wrapped request; see ``Stage.excess``.
        owner: which of a program's objects it is bound to, where several have a task of this name; see `register_tasks`. The world sets it.
    """

    name: str
    run: Callable[..., Any]
    many: Callable[..., Iterator[Batch]] | None = None
    work: Callable[[Any, Mapping[str, Any], Tree], Work] = _no_work
    reply_bytes: int | None = None
    args: Mapping[str, Any] = field(default_factory=dict)
    sums: Callable[..., Summed | None] | None = None
    tuning: TaskTuning | None = None
    load: Callable[[NDArray[np.int64], Mapping[str, Any], Tree], Workload] | None = None
    summands: Callable[..., Summed | None] | None = None
    islands: bool = False
    schema: TaskSchema | None = None
    promise: Callable[[Tree], int | None] | None = None
    discloses: Callable[[Tree], Disclosure] | None = None
    contract: Callable[[Mapping[str, Any]], Contract] | None = None
    findings: TaskFindings | None = None
    adds_excess: bool = False
    owner: str = ""

    @property
    def address(self) -> str:
        """What other processes find it by: its name and its owner."""
        return _address(self.name, self.owner)

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
        own = {"owner": self.owner} if self.owner else {}
        return {"name": self.name, "args": dict(self.args), **own}

    @staticmethod
    def of(spec: Mapping[str, Any], find: Callable[[str], Task]) -> Task:
        """The inverse of ``spec``; ``find`` looks addresses up."""
        owner = str(spec.get("owner", ""))
        return replace(find(_address(spec["name"], owner)), args=dict(spec["args"]), owner=owner)

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
    contract: Callable[[Mapping[str, Any]], Contract] | None = None,
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
    contract: Callable[[Mapping[str, Any]], Contract] | None = None,
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
        more: dict[str, Any] = {
            "promise": promise,
            "discloses": discloses,
            "contract": contract,
            "adds_excess": adds_excess,
        }
        return Task(full, function, many, work, reply_bytes, schema=schema, **more)

    return wrap if fn is None else wrap(fn)


def done_before(task: Task) -> Task:
    """The same task, with its work already charged: a model of devices sees none."""
    return replace(task, work=_no_work, load=None)


def _address(name: str, owner: str) -> str:
    return f"{name}@{owner}" if owner else name


def register_tasks(registry: dict[str, Any], tasks: Iterable[Task], owner: str = "") -> None:
    """Make tasks known by address. Tasks of one name that are bound to different objects are told apart by a number, in the given order.

    Every place of a job registers the same tasks in the same order, so that an address means the same object's task everywhere.

    Args:
        registry: maps an address to a task, or to another object that a program registered by name.
        tasks: the tasks.
        owner: slot of the scope whose job has them; empty for the program's own.
    """
    for task in tasks:
        known = tasks_of(registry, task.name, owner)
        if not any(one.run == task.run for one in known):
            made = replace(task, owner=f"{owner}//{len(known) + 1}" if known else owner)
            registry[made.address] = made


def tasks_of(registry: Mapping[str, Any], name: str, owner: str = "") -> list[Task]:
    """The tasks of one name that an owner has registered, in order."""
    found: list[Task] = []
    at = _address(name, owner)
    while isinstance(registry.get(at), Task):
        found.append(registry[at])
        at = _address(name, f"{owner}//{len(found) + 1}")
    return found


def resolve(name: str, registry: Mapping[str, Any], kind: type | tuple[type, ...] = Task) -> Any:
    """Find a named object: first in the program's registry, then as ``module:name``, wherever that lies today.

    Only objects of the expected kind are returned, so that a peer cannot name an arbitrary function of an installed module.

    Raises:
        ConfigError: no object of that kind has this name.
    """
    if name in registry:
        return registry[name]
    bare, at, owner = name.partition("@")
    if at:
        raise ConfigError(
            f"the task {bare!r} of {owner!r} is not known here: no job that runs there has registered it",
            remedy='declare the job that runs in that scope with its program: program.jobs = {"a": job}',
        )
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
