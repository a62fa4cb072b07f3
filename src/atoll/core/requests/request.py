"""Requests, replies and sums: what a federation, its engine and its hosts exchange."""

from __future__ import annotations

import functools
import inspect
import itertools
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import message as M
from ..algebra import tree as T
from ..algebra.aggregate import Aggregate, Totals, merge_totals, reorder_parts, sign_parts
from ..algebra.rng import Rng
from ..algebra.tree import Tree
from ..errors import ConfigError, MessageError, SessionError
from ..persistence.state_table import States
from ..sealing import Letter, Row, hash_letters, hash_parts
from ..time.deadline import Ending
from ..time.meter import Said
from .chain import Chain
from .task import Task, Workload

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from ..message import Schema
    from .island import Island
    from .stage import Seeds

__all__ = [
    "Expects",
    "Mailboxes",
    "PASSING",
    "PartialSum",
    "Reduced",
    "Reply",
    "ReplyForm",
    "Request",
    "RunningSum",
    "TaskResult",
    "cut_off",
    "expecting",
    "sketch",
    "weight_bound",
    "wire_form",
]


# ---------------------------------------------------------------------- what is known of replies before they are there


@dataclass(frozen=True, eq=False)
class ReplyForm:
    """The form of one party's reply to a sum: names, kinds, shapes, metrics and weights.

    A task that can say this of all its replies has a `TaskSchema`. This is for a task whose replies follow from the request, such as the update of a model.

    Attributes:
        reply: an example of a reply; only its form matters.
        optional: aggregates that a reply may also have; ``None`` for a value of any form.
        metrics: names of the numbers that a reply may also have as metrics; ``None`` for any short name.
        weights: maps a name to the weights of a party with one row and with three rows: that of a party lies between 0 and the line through both.
            A weight without a bound need only be finite and at least 0.
    """

    reply: Mapping[str, Aggregate]
    optional: Mapping[str, Aggregate | None] = field(default_factory=dict)
    metrics: frozenset[str] | None = frozenset()
    weights: Mapping[str, tuple[float, float]] = field(default_factory=dict)

    def totals(self, uplink: Chain, public: Sequence[Tree]) -> tuple[Totals, dict[str, Totals | None]]:
        """Return what an example adds to the sum after the stages, and what each optional aggregate would add."""

        def rehearse_reply(reply: Mapping[str, Aggregate]) -> Totals:
            leaving = uplink.leaving(reply)
            return {name: uplink.rehearse_send(name, one, public, Rng(0)).total for name, one in leaving.items()}

        more = {name: None if one is None else rehearse_reply({name: one}) for name, one in self.optional.items()}
        return rehearse_reply(self.reply), more


Expects = Callable[[], ReplyForm]
"""Gives the form of the replies; it is called only where replies come from other machines."""


def weight_bound(weights: tuple[float, float], rows: int) -> float:
    """Return the largest weight of a party with this many rows, given those of one row and of three.

    That of the line through both, which is above every concave weight, and a little more: weights are sums of floating-point numbers.
    """
    one, three = weights
    line = max(one, one + (three - one) / 2 * (max(rows, 1) - 1))
    most = line * 1.05 if rows == 2 else line  # between the two, a square root is above the line
    return float(np.nextafter(most, np.inf)) * (1 + 1e-9)


# ---------------------------------------------------------------------- requests and replies


PASSING = "//~"
"""The end of a slot whose states last as long as their sum."""


class Mailboxes:
    """Sealed letters that a relay holds. The program sees senders, recipients and sizes; only recipients see contents.

    Args:
        letters: maps a recipient to letters by sender, or the result of ``sealed``.
    """

    def __init__(self, letters: Mapping[str, Mapping[str, Any]] | None = None) -> None:
        self._letters: dict[str, dict[str, Letter]] = {
            to: {sender: Letter.unpack(letter) for sender, letter in box.items()} for to, box in (letters or {}).items()
        }

    def put(self, sender: str, outbox: Mapping[str, Letter]) -> None:
        """Store the letters that one sender posted."""
        for to, letter in outbox.items():
            self._letters.setdefault(to, {})[sender] = letter

    def box(self, to: str) -> dict[str, Letter]:
        """The letters to one party, by sender in order of name."""
        return dict(sorted(self._letters.get(to, {}).items()))

    def only_from(self, senders: set[str]) -> Mailboxes:
        """The letters of a fixed set of senders."""
        return Mailboxes({to: {s: p for s, p in box.items() if s in senders} for to, box in self._letters.items()})

    def __or__(self, other: Mailboxes) -> Mailboxes:
        """The letters of both, for a superstep that builds on two earlier ones.

        Raises:
            ConfigError: both have a letter from one sender to one recipient, who can open only one letter of each sender in a superstep.
        """
        twice = {*self.routes} & {*other.routes}
        if twice:
            sender, to = min(twice)
            first, second = self._letters[to][sender], other._letters[to][sender]
            raise ConfigError(
                f"two letters of {sender} to {to}, of {first.request} and {second.request}",
                where="mail | mail",
                remedy="deliver one of them in each of two supersteps, or post everything in one payload",
            )
        both = {*self._letters, *other._letters}
        return Mailboxes({to: {**self._letters.get(to, {}), **other._letters.get(to, {})} for to in both})

    def nbytes(self, to: str) -> int:
        """Encoded size of the letters to one party."""
        return sum(letter.nbytes for letter in self._letters.get(to, {}).values())

    @property
    def encrypted(self) -> bool:
        """Whether all letters are encrypted."""
        return all(letter.real for box in self._letters.values() for letter in box.values())

    def count(self, to: str) -> int:
        """Number of letters to one party."""
        return len(self._letters.get(to, {}))

    def digest(self, to: str) -> bytes:
        """A hash of the letters to one party."""
        return hash_letters(self._letters.get(to, {}))

    @property
    def routes(self) -> list[tuple[str, str]]:
        """``(sender, recipient)`` pairs, sorted."""
        return sorted((sender, to) for to, box in self._letters.items() for sender in box)

    def sealed(self) -> dict[str, dict[str, Tree]]:
        """The letters as messages, for a checkpoint."""
        return {to: {sender: letter.pack() for sender, letter in box.items()} for to, box in self._letters.items()}


@dataclass(frozen=True, eq=False)
class Request:
    """One task for some parties.

    Attributes:
        id: the path of the request; with a party it identifies one execution, which never runs twice.
        task: the task to run.
        message: the message, the same for all parties.
        slot: where the parties keep their private state for this program.
        key: the random key of the request; each party's key is derived from it and the party's name.
        uplink: stages for the replies of a sum.
        public: round parameters of the stages.
        mail: letters to deliver.
        turn: the number of the round of the request, for models of devices; see ``Plan``.
        apart: whether the replies of a sum stay separate, so that each can be used when it arrives; see ``Part.of``.
        sum: path of the sum that it belongs to. What it leaves at the parties takes effect when that sum succeeds; see ``Engine.conclude``.
        wraps: the request whose reply the task gets from its island; see ``Island.totals``. It keeps its own random key, private state and stages.
        expects: gives the form of the replies to a sum, where the program knows it; it stays with the program.
        seeds: the parties' secret seeds for stages that draw on secrets. A party's own host adds them; they never cross a trust boundary.
    """

    id: str
    task: Task
    message: Tree
    slot: str
    key: int
    uplink: Chain = field(default_factory=Chain)
    public: tuple[Tree, ...] = ()
    mail: Mailboxes | None = None
    turn: int = 0
    apart: bool = False
    sum: str = ""
    wraps: Request | None = None
    seeds: Seeds | None = None
    expects: Expects | None = None

    def secrets(self, positions: NDArray[np.int64]) -> NDArray[np.uint8] | None:
        """The secret seeds of some parties for the stages, one row each."""
        return None if self.seeds is None else self.seeds.of(positions)

    @functools.cached_property
    def misfit(self) -> MessageError | None:
        """Why its message, or that of the wrapped request, does not match the task's declaration; checked once."""
        try:
            if self.task.schema is not None:
                self.task.schema.require_message(self.message)
        except MessageError as error:
            return MessageError(error.what, where=f"{error.where} of {self.task.name}", remedy=error.remedy)
        return None if self.wraps is None else self.wraps.misfit

    async def answer(self, island: Island) -> Any:
        """The task's reply at one party; its message and reply are checked against the task's schema."""
        if self.misfit is not None:
            raise self.misfit
        value = self.task(island, self.message)
        if inspect.isawaitable(value):
            value = await value
        if self.task.schema is not None:
            self.task.schema.require_reply(value)
        return value

    @functools.cached_property
    def inner(self) -> Request | None:
        """The wrapped request as it runs here: if the task adds excess noise, the stages leave it to the task."""
        if self.wraps is None or not self.task.adds_excess or self.wraps.uplink.excess is None:
            return self.wraps
        return replace(self.wraps, uplink=self.wraps.uplink.without_excess())

    @property
    def alone(self) -> Request:
        """The request as a party runs it that no half of a reducer wraps: its reply can be seen, whatever the request says."""
        chain = self.uplink
        if not chain.hidden:
            return self
        return replace(self, uplink=chain.within(chain.replies, hidden=False, indexing=chain.indexing))

    def among(self, replies: int) -> Request:
        """The wrapped request, in a sum that has at least so many replies by what the half knows: a request that promises more is not believed.

        Args:
            replies: the least number of replies; 1 if nobody knows.
        """
        chain = self.uplink
        if chain.replies <= replies:
            return self
        return replace(self, uplink=chain.within(replies, hidden=chain.hidden, indexing=chain.indexing))

    @functools.cached_property
    def fingerprint(self) -> str:
        """A hash of what every party is asked: task, message, stages and their round parameters; 64 hexadecimal digits."""
        stages = [stage.spec() for stage in self.uplink.stages]
        return M.fingerprint([self.id, self.task.spec(), self.message, stages, list(self.public)])

    @functools.cached_property
    def binding(self) -> bytes:
        """A hash of the whole request without its letters: whatever a reply depends on. A party answers one request under an id, see `atoll.core.sealing.Record`."""
        uplink, inner = self.uplink, self.wraps
        own = (self.fingerprint, self.key, self.slot, self.sum)
        sent = (uplink.place, uplink.replies, uplink.hidden, uplink.indexing)
        return hash_parts(*own, *sent, b"" if inner is None else inner.binding)

    @functools.cached_property
    def matter(self) -> bytes:
        """A hash of what is asked whatever its id: task, message, stages and round parameters."""
        stages = [stage.spec() for stage in self.uplink.stages]
        return bytes.fromhex(M.fingerprint([self.task.spec(), self.message, stages, list(self.public)]))

    @property
    def recorded(self) -> bool:
        """Whether a reply to it is in the party's record, whatever the task does: what protects the reply, or others, holds for one answer."""
        return self.wraps is not None or self.mail is not None or self.uplink.secret

    def promises(self, party: str, ran: TaskResult, form: str, content: bytes) -> tuple[Row, ...]:
        """What a party promises with its reply: this request under this id, these bytes, and where it has opened its letters.

        Args:
            party: the party's name.
            ran: what its task gave.
            form: how the reply leaves: ``"run"``, ``"fold"`` or ``"role"``.
            content: a hash of the bytes that leave; empty for a role of a session, whose messages depend on others.
        """
        asked = hash_parts(self.binding, b"" if self.mail is None else self.mail.digest(party))
        rows = [(hash_parts("request", self.id, party), asked)]
        if content:
            rows.append((hash_parts("reply", form, self.id, party), content))
        if self.wraps is not None:
            rows.append((hash_parts("request", self.wraps.id, party), hash_parts("wrapped", asked)))
        here = hash_parts(self.id)
        rows += [(hash_parts("letter", party, *tag), here) for tag in ran.opened]
        return (*rows, *ran.promised)

    @functools.cached_property
    def sent_forms(self) -> dict[str, Schema | None] | None:
        """The form of each total of a reply, as the task declares it and the stages encode it; computed once. See ``TaskSchema.find_sent_forms``."""
        return None if self.task.schema is None else self.task.schema.find_sent_forms(self.uplink, self.public)

    @functools.cached_property
    def form(self) -> ReplyForm | None:
        """The form of the replies, if the program knows it; computed once."""
        return None if self.expects is None else self.expects()

    @functools.cached_property
    def example(self) -> tuple[Totals, dict[str, Totals | None]]:
        """What a reply of the expected form adds to the sum, and what each optional aggregate would; see `ReplyForm.totals`."""
        return ({}, {}) if self.form is None else self.form.totals(self.uplink, self.public)

    @property
    def argument_bytes(self) -> int:
        """Encoded size of what is sent besides the message: arguments, round parameters of the stages, and a half's own message."""
        own = self.task.argument_bytes + sum(M.nbytes(value) for value in self.public if value is not None)
        return own if self.wraps is None else own + M.nbytes(self.message) + self.wraps.argument_bytes

    @property
    def memory(self) -> str:
        """Where the parties keep what the uplink's stages remember: a slot inside the program's, with a name that no scope can have."""
        return f"{self.slot}//{self.task.name}/{self.uplink.place}"

    def workload(
        self, population: Any, positions: NDArray[np.int64], look: Callable[[int], Any] | None = None
    ) -> Workload:
        """The declared work of its parties, including that of the wrapped request; see ``Task.workload``."""
        own = self.task.workload(population, positions, self.message, look)
        return own if self.wraps is None else own + self.wraps.workload(population, positions, look)

    @property
    def slots(self) -> list[str]:
        """Every slot that the task, its stages and the wrapped request may read and write."""
        own = [self.slot, self.memory] if self.uplink.remembers else [self.slot]
        return own if self.wraps is None else [*own, *self.wraps.slots]


@dataclass
class Reply:
    """The reply of one party.

    Attributes:
        party: position of the party.
        value: the value of the reply.
        mail: letters that it posted, by recipient.
        notes: progress reports.
        nbytes: encoded size of the value and letters.
        error: the error that the task raised, else ``None``.
        rejected: why the reply of a wrapped task must not be in a sum; then there is no value.
    """

    party: int
    value: Any = None
    mail: dict[str, Letter] = field(default_factory=dict)
    notes: list[Tree] = field(default_factory=list)
    nbytes: int = 0
    error: Exception | None = None
    rejected: str = ""

    @property
    def usable(self) -> bool:
        """Whether the task returned a value."""
        return self.error is None and not self.rejected


@dataclass(frozen=True)
class TaskResult:
    """The result of a task: its reply, and what it left at the party.

    Attributes:
        reply: the reply.
        left: what the party keeps from now on, by slot: its private state, and what stages remember.
        sealed: whether it drew on secrets or spent privacy budget, so that running it again would not give the same.
        time: clock time at which it ended, for a role of a session.
        said: messages to other roles, for a role of a session.
        opened: request, sender and number of each letter that it opened.
        ending: how a role of a session was ended; if it is not ``""``, the reply has an error.
        promised: what the task has promised (`Island.promise`), for the party's record.
    """

    reply: Reply
    left: dict[str, Tree] = field(default_factory=dict)
    sealed: bool = False
    time: float = 0.0
    said: Mapping[str, Said] = field(default_factory=dict)
    opened: tuple[tuple[str, str, int], ...] = ()
    ending: Ending = ""
    promised: tuple[Row, ...] = ()


def expecting(request: Request, expects: Expects | None) -> Request:
    """Return the request with what is known of its replies."""
    return request if expects is None else replace(request, expects=expects)


def cut_off(position: int, ending: Ending, time: float) -> TaskResult:
    """The result of a role that others ended: how far it came is not known."""
    return TaskResult(Reply(position, error=SessionError(f"the role was {ending}")), time=time, ending=ending)


# How a field of a sum merges: each rule gets the field's value of each part, in cohort order. Every sum of a round passes here, so they are plain loops.


def _join_maps(parts: list[dict[Any, Any]]) -> dict[Any, Any]:
    joined: dict[Any, Any] = {}
    for part in parts:
        joined.update(part)
    return joined


def _join_lists(parts: list[list[Any]]) -> list[Any]:
    return list(itertools.chain.from_iterable(parts))


def _join_states(parts: list[dict[str, States]]) -> dict[str, States]:
    joined: dict[str, States] = {}
    for part in parts:
        for slot, states in part.items():
            joined.setdefault(slot, States()).update(states)
    return joined


def _add_counts(parts: list[dict[str, int]]) -> dict[str, int]:
    added: dict[str, int] = {}
    for part in parts:
        for name, count in part.items():
            added[name] = added.get(name, 0) + count
    return added


def _take_latest(parts: list[dict[str, Any]]) -> dict[str, Any]:
    # Rules that fit a stage's parameters go on from the newest ones, and parts of several requests may have different ones.
    for part in reversed(parts):
        if part:
            return dict(part)
    return {}


_Rule = dict[str, Callable[[list[Any]], Any]]
_ADD_TOTALS: _Rule = {"merge": merge_totals}
_JOIN_ARRAYS: _Rule = {"merge": np.concatenate}
_JOIN_MAPS: _Rule = {"merge": _join_maps}
_JOIN_LISTS: _Rule = {"merge": _join_lists}
_JOIN_STATES: _Rule = {"merge": _join_states}
_ADD_COUNTS: _Rule = {"merge": _add_counts}
_TAKE_LATEST: _Rule = {"merge": _take_latest}
_HOLD_FOR_ALL: _Rule = {"merge": all}


@dataclass
class PartialSum:
    """The replies of some parties of a cohort, added up: the monoid behind every sum.

    ``PartialSum.zero()`` has nobody in it, and `merge` adds the replies of other parties. Engines, reducers and nodes that add up differ only in which parts they
    merge; each field says beside it how it merges, and a field without a rule cannot be declared.

    Attributes:
        totals: named sums, before the stages are undone.
        senders: positions whose replies are in the sums, in cohort order.
        nbytes: encoded reply size of each sender; by default 0, where a reducer has received no single reply.
        rejected: maps a position to why its reply was kept out.
        errors: maps a position to the error that its task raised.
        counts: entries that the reducer counted for the round's row: ``words``, ``clamped``, ``overflowed``, ``wrong_shares``; see ``Combined.counts``.
        inputs: what stages that fit got on average, if the stages are undone; see ``Combined.inputs``. Of the latest part that has any.
        told: what the last stage counted, if the stages are undone; see ``Combined.told``. Of the latest part that has any.
        exact: whether words in the totals were added up without a modulus, as without masks.
        outliers: maps a position to how its reply, which is in the sums, stands far outside the cohort.
        left: what the parties keep, by slot.
        kept: sealed replies, for the journal.
        promised: maps a position to what the party promises with its reply, for its record.
    """

    totals: Totals = field(metadata=_ADD_TOTALS)
    senders: NDArray[np.int64] = field(metadata=_JOIN_ARRAYS)
    nbytes: NDArray[np.int64] = field(default=None, metadata=_JOIN_ARRAYS)  # type: ignore[arg-type]
    rejected: dict[int, str] = field(default_factory=dict, kw_only=True, metadata=_JOIN_MAPS)
    errors: dict[int, Exception] = field(default_factory=dict, kw_only=True, metadata=_JOIN_MAPS)
    counts: dict[str, int] = field(default_factory=dict, kw_only=True, metadata=_ADD_COUNTS)
    inputs: dict[str, dict[str, Tree]] = field(default_factory=dict, kw_only=True, metadata=_TAKE_LATEST)
    told: dict[str, dict[str, int]] = field(default_factory=dict, kw_only=True, metadata=_TAKE_LATEST)
    exact: bool = field(default=False, kw_only=True, metadata=_HOLD_FOR_ALL)
    outliers: dict[int, str] = field(default_factory=dict, kw_only=True, metadata=_JOIN_MAPS)
    left: dict[str, States] = field(default_factory=dict, kw_only=True, metadata=_JOIN_STATES)
    kept: list[TaskResult] = field(default_factory=list, kw_only=True, metadata=_JOIN_LISTS)
    promised: dict[int, tuple[Row, ...]] = field(default_factory=dict, kw_only=True, metadata=_JOIN_MAPS)

    def __post_init__(self) -> None:
        if self.nbytes is None:
            self.nbytes = np.zeros(len(self.senders), dtype=np.int64)

    @staticmethod
    def zero() -> PartialSum:
        """The sum of nobody's replies."""
        return PartialSum({}, np.zeros(0, dtype=np.int64), exact=True)

    @property
    def single(self) -> bool:
        """Whether it has single replies, which stay apart."""
        return any(total.kind == "parts" for total in self.totals.values())

    def merge(self, *others: PartialSum) -> PartialSum:
        """Add the replies of other parties, in the order given; the parts stay as they are.

        Floats are added from left to right, so the order decides on their last bits. Hand over many parts at once: each merge copies what all of them have.

        Raises:
            CompositionError: totals of one name have different kinds.
            MessageError: totals of one name have different shapes.
        """
        parts = [self, *others]
        merged: dict[str, Any] = {}
        # Each field carries its rule, so a new field cannot be left out of a merge.
        for name, (values_of, rule) in _RULES.items():
            merged[name] = rule(list(map(values_of, parts)))
        return PartialSum(**merged)

    def arrange(self, positions: NDArray[np.int64]) -> PartialSum:
        """Put the senders, and single replies, into the order of a cohort, whichever part each was in."""
        if np.array_equal(self.senders, positions):
            return self
        places: dict[int, list[int]] = {}
        for place, position in enumerate(positions.tolist()):
            places.setdefault(position, []).append(place)
        # A party that was asked twice has two places: its replies take them one after the other.
        taken = {position: iter(found) for position, found in places.items()}
        last = len(positions)
        order = np.argsort([next(taken.get(p, iter(())), last) for p in self.senders.tolist()], kind="stable")
        if (order == np.arange(len(order))).all():
            return self
        totals = {name: reorder_parts(total, order.tolist()) for name, total in self.totals.items()}
        return replace(self, totals=totals, senders=self.senders[order], nbytes=self.nbytes[order])

    def sign(self) -> PartialSum:
        """Say of each single reply who sent it."""
        return replace(self, totals=sign_parts(self.totals, self.senders.tolist())) if self.single else self

    @property
    def rows(self) -> tuple[Row, ...]:
        """What all its parties promise."""
        return tuple(row for rows in self.promised.values() for row in rows)

    def keep(self, ran: TaskResult) -> None:
        """Add a sealed reply."""
        if ran.sealed and ran.reply.error is None:
            self.kept.append(ran)

    def leave(self, slot: str, states: States) -> None:
        """Add what some parties keep in a slot."""
        self.left.setdefault(slot, States()).update(states)


_RULES = {one.name: (operator.attrgetter(one.name), one.metadata["merge"]) for one in fields(PartialSum)}

Reduced = PartialSum
"""The name under which a reducer returns its sum."""


class RunningSum:
    """A sum that grows part by part, in time that is linear in the parts: totals are added as they come, and all else is joined once.

    Args:
        add: adds totals to totals, by default into new arrays.
    """

    def __init__(
        self, add: Callable[[Totals, Totals], Totals] = lambda totals, more: merge_totals([totals, more])
    ) -> None:
        self.totals: Totals = {}
        self._add = add
        self._parts: list[PartialSum] = []

    def add(self, part: PartialSum) -> None:
        """Add the next part, which belongs to the sum from now on."""
        self.totals = self._add(self.totals, part.totals)
        part.totals = {}  # it is in the sum: its memory goes now, which for a large model is most of what there is
        self._parts.append(part)

    def result(self, *later: RunningSum) -> PartialSum:
        """The sum of all parts, and then of those of later sums."""
        sums = (self, *later)
        parts = list(itertools.chain.from_iterable(one._parts for one in sums))
        return replace(PartialSum.zero().merge(*parts), totals=merge_totals([one.totals for one in sums]))


def wire_form(value: Any) -> Any:
    """A reply as a message tree: aggregates become plain dicts."""
    if isinstance(value, dict) and any(isinstance(v, Aggregate) for v in value.values()):
        return {
            k: {"kind": v.kind, "value": v.value, "weight": v.weight} if isinstance(v, Aggregate) else v
            for k, v in value.items()
        }
    return value


def sketch(message: Tree) -> str:
    """A short description of a message: paths, dtypes and shapes."""
    parts = (
        f"{path}:{getattr(leaf, 'dtype', type(leaf).__name__)}{list(np.shape(leaf)) or ''}"
        for path, leaf in T.items(message)
    )
    text = ", ".join(parts)
    return "{" + (text if len(text) < 300 else text[:297] + "...") + "}"
