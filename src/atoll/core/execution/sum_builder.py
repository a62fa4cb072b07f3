"""What a reply adds to a sum: admitted, encoded by the uplink's stages, and added up; by one way for single replies and for blocks.

A reply passes these steps in this order, whoever made it, and none of them twice:

1. the policy of its party and the task's schema have passed it (``Executor``), so an error or a refusal arrives here in its place;
2. values that are not finite are kept out *before* they are encoded: a stage might turn them into finite numbers;
3. the stages encode it, with the memory that they have of this party; what is not finite or too large now is kept out;
4. what the stages release is written into the ledger, and only then may a sum leave (`SumBuilder.finish`);
5. it is added in cohort order; its party promises these very words.

A reply that is kept out leaves nothing: no state, no memory of a stage, no promise. A server checks every reply of a site again
(`atoll.runtime.network.validation`), because the site may run another program.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import message as M
from ..algebra import tree as T
from ..algebra.aggregate import Aggregate, Mean, Total, Totals, kept_apart, merge_totals, rejoin_parts
from ..algebra.rng import Rng, child_keys
from ..algebra.tree import Tree
from ..errors import MessageError, PolicyError
from ..event import Event
from ..persistence.state_table import States, StateTable
from ..requests.chain import SentBlock
from ..requests.cohort import Cohort
from ..requests.party import among
from ..requests.request import PartialSum, Request, RunningSum
from ..requests.stage import seeds_for
from ..requests.task import Batch
from ..sealing import Record

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..requests.party import Roster
    from ..requests.policy import Policy
    from ..requests.request import TaskResult
    from ..sealing import Row

__all__ = [
    "ReplyBlock",
    "Spend",
    "StageMemory",
    "SumBuilder",
    "UplinkEvents",
    "aggregates_of",
    "defined_metric",
    "describe_refusal",
    "encode_reply",
    "not_finite",
    "not_finite_total",
    "oversize",
    "refusal",
    "singly",
    "unfit",
    "unfit_total",
]

# ---------------------------------------------------------------------- whether a reply may be in a sum

_ARRAYS = (np.ndarray, np.generic)


def refusal(policy: Policy, request: Request) -> str:
    """Why a policy refuses a request; ``""`` if it does not."""
    try:
        policy.admit(request)
    except PolicyError as error:
        return describe_refusal(error)
    return ""


def describe_refusal(error: PolicyError) -> str:
    """The words for a policy's refusal, the same for single replies and blocks."""
    return f"refused by its policy: {type(error)(error.what, remedy=error.remedy)}"


def oversize(nbytes: int, largest: int | None) -> PolicyError | None:
    """The refusal of a reply of this size, or ``None``. ``largest=None`` sets no limit."""
    if largest is None or nbytes <= largest:
        return None
    what = f"a reply of {nbytes} bytes is larger than {largest}"
    return PolicyError(what, remedy="ask for less, or compress it")


def unfit(name: str, aggregate: Aggregate, *, encoded: bool = False) -> str:
    """Why an aggregate cannot be added up; ``""`` if it can.

    Args:
        name: its name.
        aggregate: the aggregate of one client.
        encoded: whether stages have encoded it.
    """
    return _describe_leaf(name, not_finite(aggregate.value, aggregate.weight), encoded)


def unfit_total(name: str, total: Total) -> str:
    """Why an encoded total cannot be added up; ``""`` if it can."""
    return _describe_leaf(name, not_finite_total(total), True)


def _describe_leaf(name: str, leaf: str, encoded: bool) -> str:
    if not leaf:
        return ""
    return f"{_name_leaf(name, leaf)} is not finite{' once encoded' if encoded else ''}"


def _name_leaf(name: str, leaf: str) -> str:
    """A leaf of an aggregate in words: its name and path."""
    return name if leaf == "." else f"{name}/{leaf}"


def not_finite(value: Tree, weight: Any) -> str:
    """The path of the first non-finite leaf, ``"."`` for a bare leaf or the weight, ``""`` if all are finite."""
    if not (math.isfinite(weight) if type(weight) is float else np.isfinite(np.asarray(weight, np.float64)).all()):
        return "."
    for path, leaf in T.items(value):
        if isinstance(leaf, _ARRAYS):
            if leaf.dtype.kind in "fc" and not np.isfinite(leaf).all():
                return path or "."
        elif isinstance(leaf, float):
            if not math.isfinite(leaf):
                return path or "."
        # Asked by name, because core never imports PyTorch.
        elif type(leaf).__module__ == "torch" and leaf.is_floating_point() and not bool(leaf.isfinite().all()):
            return path or "."
    return ""


def not_finite_total(total: Total) -> str:
    """The path of the first non-finite leaf of a total, as ``not_finite`` gives it."""
    if total.kind == "parts":
        return next((bad for part in total.value if (bad := not_finite(part.value, part.weight))), "")
    return not_finite(total.value, total.weight)


# ---------------------------------------------------------------------- what stages remember and release


@dataclass
class StageMemory:
    """The memory of one party for one kind of request: maps an aggregate to memories by stage index.

    Attributes:
        table: where it is stored; ``None`` starts without memory.
        position: position of the party.
        before: the memory before the reply.
        now: the memory to keep once the reply is in.
    """

    table: StateTable | None = None
    position: int = 0
    before: dict[str, dict[str, Tree]] = field(default_factory=dict)
    now: dict[str, dict[str, Tree]] = field(default_factory=dict)

    def begin(self, request: Request, reply: Mapping[str, Aggregate]) -> None:
        """Look up the memory; an aggregate that is new starts with a fresh one."""
        if request.uplink.remembers:
            kept = None if self.table is None else self.table.get(self.position)
            self.before = {**request.uplink.fresh(reply), **(kept or {})}
            self.now = {name: memory for name, memory in (kept or {}).items() if name not in reply}

    def of(self, name: str) -> Mapping[str, Tree]:
        """The memory of an aggregate."""
        return self.before.get(name, {})

    def keep(self, name: str, memory: dict[str, Tree]) -> None:
        """Set the new memory of an aggregate."""
        if memory:
            self.now[name] = memory


Spend = Callable[[Event, "str | Sequence[str]", str], None]
"""Records an event of one or several parties in a ledger; it is durable when the call returns."""


@dataclass
class RecordingSpend:
    """Spends, and remembers what was spent: a policy may look at it before a reply leaves.

    Attributes:
        spend: records events; ``None`` without a ledger.
        events: what was recorded.
    """

    spend: Spend | None
    events: list[Event] = field(default_factory=list)

    @property
    def noting(self) -> Spend | None:
        """What the task spends with."""
        return None if self.spend is None else self._note

    def _note(self, event: Event, party: str | Sequence[str], request: str) -> None:
        if self.spend is not None:
            self.spend(event, party, request)
        self.events.append(event)


@dataclass
class UplinkEvents:
    """Collect what the replies of a cohort release, and record it as one column for all parties with the same releases.

    Attributes:
        request: the request with the uplink.
        roster: all parties, for names.
        spend: records events.
    """

    request: Request
    roster: Roster
    spend: Spend | None
    _released: dict[int, list[int]] = field(default_factory=dict)

    def add(self, positions: Sequence[int], values: int) -> None:
        """Count this many named values of these parties that go through the stages."""
        if values and self.request.uplink.events:
            self._released.setdefault(values, []).extend(positions)

    def write(self) -> None:
        """Record the events. They are durable when this returns; only then may the replies leave.

        Raises:
            PolicyError: there is no ledger.
        """
        # One line a kind of release: a cohort of thousands would otherwise write a line each.
        for values, positions in self._released.items():
            if self.spend is None:
                raise PolicyError(
                    "the uplink releases under privacy, but there is no ledger",
                    where=self.request.id,
                    remedy="run the task through a federation",
                )
            names = [self.roster.name(p) for p in dict.fromkeys(positions)]
            for i, event in enumerate(self.request.uplink.events):
                label = f"{self.request.id}#uplink/{i}"
                self.spend(replace(event, count=event.count * values), names, label)
        self._released = {}


# ---------------------------------------------------------------------- one reply


def encode_reply(
    request: Request,
    reply: Mapping[str, Aggregate],
    key: int,
    memory: StageMemory,
    *,
    largest: int | None = None,
    nbytes: int | None = None,
    spending: UplinkEvents | None = None,
) -> PartialSum:
    """Send one party's reply through the uplink of its request: a sum of this reply alone, or of nobody with the reason.

    Args:
        request: the request that it answers.
        reply: its aggregates.
        key: the party's random key for this request.
        memory: the memory of the party's stages, which is updated.
        largest: bytes that it may take; ``None`` for any number.
        nbytes: its size, where it is known; ``None`` measures what crosses the link.
        spending: notes what its stages release.
    """
    uplink, position = request.uplink, memory.position
    reply = uplink.leaving(reply)
    if request.task.many is None:  # in a block of clients, a task says itself which metrics are defined
        reply = {name: defined_metric(aggregate) for name, aggregate in reply.items()}
    memory.begin(request, reply)
    for name, aggregate in reply.items():
        if bad := unfit(name, aggregate):
            return _nobody(rejected={position: bad})
    if spending is not None:  # from here on the stages see it: what they release counts, even if it is kept out below
        spending.add([position], len(reply))
    totals: Totals = {}
    wires: dict[str, Any] = {}
    # Noise comes from the party's secret alone; `key` follows from the seed of the run, which the server knows.
    seeds = request.secrets(np.array([position])) if uplink.secret else None
    for name, aggregate in reply.items():
        stream = Rng(key).child(name) if uplink else Rng(key)  # not used without stages
        sent = uplink.send(aggregate, request.public, stream, memory.of(name), seeds_for(seeds, name), name)
        if uplink and (bad := unfit_total(name, sent.total)):
            return _nobody(rejected={position: bad})
        memory.keep(name, sent.memory)
        totals[name] = kept_apart(sent.total, position) if request.apart else sent.total
        if nbytes is None:
            wires[name] = {"kind": aggregate.kind, "value": sent.wire, "weight": float(aggregate.weight)}
    size = M.nbytes(wires) if nbytes is None else nbytes
    if error := oversize(size, largest):
        return _nobody(rejected={position: describe_refusal(error)})
    return PartialSum(totals, np.array([position], dtype=np.int64), np.array([size], dtype=np.int64))


def defined_metric(aggregate: Aggregate) -> Aggregate:
    """Return a metric without weight if it is NaN or infinite, such as the AUC of one class: the rest of the reply counts, in the form that masks need.

    Any other aggregate comes back as it is.
    """
    if not isinstance(aggregate, Mean) or aggregate.role != "metric" or not math.isfinite(aggregate.weight):
        return aggregate
    if not not_finite(aggregate.value, 0.0):
        return aggregate
    return replace(aggregate, value=T.map(lambda leaf: np.zeros_like(np.asarray(leaf)), aggregate.value), examples=0.0)


def _nobody(**why: Any) -> PartialSum:
    return PartialSum({}, np.zeros(0, dtype=np.int64), **why)


def aggregates_of(value: Any, task: str, party: str) -> dict[str, Aggregate]:
    """Return the reply to a sum after checking that it is a dict of aggregates.

    Raises:
        MessageError: it is not a dict of aggregates.
    """
    if isinstance(value, dict) and value and all(isinstance(v, Aggregate) for v in value.values()):
        for name, aggregate in value.items():
            _require_numbers(name, aggregate, f"task {task} at {party}")
        return value
    shown = {k: type(v).__name__ for k, v in value.items()} if isinstance(value, dict) else type(value).__name__
    raise MessageError(
        f"the reply to a sum must be a dict of aggregates, not {shown}",
        where=f"task {task} at {party}",
        remedy='return for example {"update": Mean(value, examples=n)}',
    )


def _require_numbers(name: str, aggregate: Aggregate, where: str) -> None:
    """Refuse text, ``None`` and a weight below zero.

    Raises:
        MessageError: names the value.
    """
    kind = type(aggregate).__name__
    for leaf in T.leaves(aggregate.value):
        if leaf is None or isinstance(leaf, str):
            raise MessageError(
                f"{name!r} is {kind}({leaf!r})", where=where, remedy="give numbers, arrays, or dicts and lists of them"
            )
    _require_weight(name, aggregate, where)


def _require_weight(name: str, aggregate: Aggregate, where: str) -> None:
    """Refuse a weight below zero, of a party or of one in a block: a mean of such weights may lie anywhere.

    Raises:
        MessageError: names the value and the weight.
    """
    weight = aggregate.weight if type(aggregate.weight) is float else np.min(np.asarray(aggregate.weight), initial=0.0)
    if weight < 0:
        raise MessageError(
            f"{name!r} is {type(aggregate).__name__}(..., examples={float(weight)!r})",
            where=where,
            remedy="count the examples behind the value: 0 or more, and 0 lets it count for nothing",
        )


# ---------------------------------------------------------------------- the sum


@dataclass
class SumBuilder:
    """Adds up the replies of a cohort, as single replies, as blocks of a task's ``many``, or both.

    Attributes:
        request: the request that they answer.
        roster: all parties, for names.
        positions: positions of the cohort, which give the order.
        tables: the parties' private states, by slot.
        spending: collects what the stages release.
        explain: adds request and party to an error.
        limits: maps a position to the maximum number of bytes of its reply; ``None`` if no policy was asked.
        barred: maps a position to why its policy refuses the request.
        record: the parties' record, which hashes what leaves.
    """

    request: Request
    roster: Roster
    positions: NDArray[np.int64]
    tables: Mapping[str, StateTable]
    spending: UplinkEvents
    explain: Callable[[Exception | SystemExit, Request, int | None], Exception]
    limits: Mapping[int, int] | None = None
    barred: dict[int, str] = field(default_factory=dict)
    record: Record = field(default_factory=Record)
    _blocks: RunningSum = field(default_factory=RunningSum)
    _singles: RunningSum = field(default_factory=RunningSum)
    _encoded: dict[int, list[NDArray[np.int64]]] = field(default_factory=dict)

    def add_reply(self, ran: TaskResult, key: int, fresh: bool = True) -> None:
        """Add one reply.

        Args:
            ran: the reply, and what it leaves at the party.
            key: the party's random key for the request.
            fresh: whether it was just made, and must be in the journal if it must not be made twice.
        """
        part = self._encode(ran, key)
        if fresh:  # also if it is kept out: asked again, the party must say the same
            part.keep(ran)
        self._singles.add(part)

    def _encode(self, ran: TaskResult, key: int) -> PartialSum:
        request, reply, position = self.request, ran.reply, ran.reply.party
        if isinstance(reply.error, PolicyError):
            return _nobody(rejected={position: describe_refusal(reply.error)})
        if reply.error is not None:
            return _nobody(errors={position: reply.error})
        if reply.rejected:
            return _nobody(rejected={position: reply.rejected})
        try:
            aggregates = aggregates_of(reply.value, request.task.name, self.roster.name(position))
        except MessageError as error:
            return _nobody(errors={position: error})
        # Without an encoding, the size is the one that the party computed.
        plain = not (request.uplink or reply.mail or reply.notes)
        plain = plain and bool(reply.nbytes) and all(type(a.weight) is float for a in aggregates.values())
        memory = StageMemory(self.tables.get(request.memory), position)
        largest = None if self.limits is None else self.limits.get(position)
        size = reply.nbytes if plain else None
        part = encode_reply(request, aggregates, key, memory, largest=largest, nbytes=size, spending=self.spending)
        if part.rejected:
            return part
        for slot, state in {**ran.left, **({request.memory: memory.now} if memory.now else {})}.items():
            part.leave(slot, States({position: state}))
        if request.recorded or ran.sealed or ran.opened:
            part.promised[position] = self._list_promises(ran, part.totals)
        return part

    def _list_promises(self, ran: TaskResult, totals: Totals) -> tuple[Row, ...]:
        """What the party promises with what it adds: these very words, and all that they follow from."""
        words = {
            name: [
                [[part.value, part.weight] for part in total.value] if total.kind == "parts" else total.value,
                total.weight,
            ]
            for name, total in totals.items()
        }
        content = self.record.hash_reply(words, ran.reply.mail, masked=self.request.wraps is not None)
        return self.request.promises(self.roster.name(ran.reply.party), ran, "fold", content)

    def add_sums(self, cohort: Cohort) -> bool:
        """Let a task that adds up by itself do so, where nothing acts on single replies; return whether it did."""
        request = self.request
        alone = type(cohort) is Cohort and self.limits is None and not request.uplink and not request.apart
        if request.task.sums is None or not alone:
            return False
        made = request.task.sums(cohort, request.message, **request.task.args)
        if made is None:
            return False
        if request.task.schema is not None:
            request.task.schema.require_totals(made.totals)
        positions = cohort.positions
        senders = positions[made.kept]
        rejected = {int(positions[place]): why for place, why in made.rejected.items()}
        states, out = States(), np.array(list(made.rejected), dtype=np.int64)
        for places, stacked in made.states:
            _keep_states(states, positions[places], stacked, ~np.isin(places, out))
        nbytes = np.full(len(senders), made.reply_bytes, dtype=np.int64)
        left = {request.slot: states} if states else {}
        self._blocks.add(PartialSum(made.totals, senders, nbytes, rejected=rejected, left=left))
        return True

    def add_block(self, cohort: Cohort, batch: Batch) -> None:
        """Add a block of a task's ``many``; blocks may arrive in any order.

        Args:
            cohort: the cohort that the ``many`` got, whose places the block names.
            batch: the replies.
        """
        request, positions = self.request, cohort.positions
        here = positions[batch.positions]
        limits = None
        if self.limits is not None:
            limits = np.array([self.limits.get(p, np.iinfo(np.int64).max) for p in here.tolist()], dtype=np.int64)
        block = ReplyBlock(request, batch, here, cohort.keys[batch.positions], limits)
        part = _nobody()
        for place, error in batch.errors.items():
            self._fail(part, int(positions[place]), error)
        block.leave_out(batch, positions, part.rejected)
        part.totals = block.fold(self.tables.get(request.memory) or StateTable(), part.rejected)
        part.senders, part.nbytes = here[block.keep], block.nbytes[block.keep]
        self._encoded.setdefault(len(block.reply), []).append(here[block.encoded])
        states, memories = States(), States()
        if batch.states is not None:
            _keep_states(states, here, batch.states, block.keep)
        if batch.singles:
            states.singles.update({int(positions[p]): batch.singles[p] for p in batch.positions[block.keep].tolist()})
        block.leave(memories)
        part.left = {slot: left for slot, left in ((request.slot, states), (request.memory, memories)) if left}
        self._blocks.add(part)

    def _fail(self, part: PartialSum, position: int, error: Exception | SystemExit) -> None:
        """Note the error of one party; a policy's refusal is none, as with single replies."""
        explained = self.explain(error, self.request, position)
        if isinstance(explained, PolicyError):
            part.rejected[position] = describe_refusal(explained)
        else:
            part.errors[position] = explained

    def write_blocks(self) -> None:
        """Write what the blocks' stages release, in cohort order whatever the order of the blocks: so a ledger does not depend on it."""
        for values, blocks in sorted(self._encoded.items()):
            self.spending.add(self.positions[among(self.positions, np.concatenate(blocks))].tolist(), values)
        self._encoded = {}
        self.spending.write()

    def fail_blocks(self, positions: NDArray[np.int64], error: Exception | SystemExit) -> None:
        """Drop what the blocks have added: their task, or a stage, failed for these parties."""
        explained = self.explain(error, self.request, None)
        self._blocks, self._encoded = RunningSum(), {}
        who = positions.tolist()
        if isinstance(explained, PolicyError):
            self._blocks.add(_nobody(rejected=dict.fromkeys(who, describe_refusal(explained))))
        else:
            self._blocks.add(_nobody(errors=dict.fromkeys(who, explained)))

    def add_part(self, part: PartialSum) -> None:
        """Add what is known of a cohort in blocks besides its replies."""
        self._blocks.add(part)

    @property
    def senders(self) -> NDArray[np.int64]:
        """Who is in the blocks so far."""
        return self._blocks.result().senders

    def finish(self) -> PartialSum:
        """The sum, in cohort order, after recording what the stages release."""
        self.spending.write()  # before the sum is in anybody's hands: an event that cannot be recorded keeps it here
        if self.barred:
            self._blocks.add(_nobody(rejected=self.barred))
        return self._blocks.result(self._singles).arrange(self.positions)


# ---------------------------------------------------------------------- a block of replies


def _keep_states(states: States, positions: NDArray[np.int64], stacked: Tree, keep: NDArray[np.bool_]) -> None:
    """Keep a block's states, without those of clients that were kept out."""
    if keep.all():
        states.add_block(positions, stacked)
    else:
        states.add_block(positions[keep], T.map(lambda leaf: None if leaf is None else leaf[keep], stacked))


@dataclass
class ReplyBlock:
    """A block of clients while it is added to the sums.

    Attributes:
        request: the request that they answer.
        batch: their replies.
        positions: positions of the clients.
        keys: their random keys.
        limits: maximum size of each reply.
        keep: which replies are in.
        reply: the part of the replies that may leave.
        encoded: which replies went through the stages.
        nbytes: encoded size of each reply.
        memory: memory of the uplink's stages, stacked.
        others: their memory of aggregates that are not in these replies, client by client, if it is not stacked.
        singles: maps a place to all memory of its client, for replies that go through one by one.
    """

    request: Request
    batch: Batch
    positions: NDArray[np.int64]
    keys: NDArray[np.uint64]
    limits: NDArray[np.int64] | None
    keep: NDArray[np.bool_] = field(init=False)
    reply: dict[str, Aggregate] = field(init=False)
    encoded: NDArray[np.bool_] = field(init=False)
    nbytes: NDArray[np.int64] = field(init=False)
    memory: dict[str, Tree] = field(default_factory=dict)
    others: list[dict[str, Tree]] = field(default_factory=list)
    singles: dict[int, Tree] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.request.task.schema is not None and len(self.positions):
            self.request.task.schema.require_block(self.batch.reply)
        for name, aggregate in self.batch.reply.items():
            _require_weight(name, aggregate, f"task {self.request.task.name}")
        self.keep = np.ones(len(self.positions), dtype=bool)
        self.reply = dict(self.request.uplink.leaving(self.batch.reply))
        self.encoded = self.keep

    def leave_out(self, batch: Batch, cohort: NDArray[np.int64], rejected: dict[int, str]) -> None:
        """Keep out the clients that the task rejects."""
        for place, why in batch.rejected.items():
            self.keep[batch.positions == place] = False
            rejected[int(cohort[place])] = why

    def totals(self, remembered: StateTable, rejected: dict[int, str]) -> Totals:
        """What each client that is kept adds to the sums: totals with a leading axis of these clients."""
        self._keep_finite(rejected)
        chain = self.request.uplink
        if chain and chain.summand_stages:
            return _stack_totals(self._encode_each(remembered, rejected))
        coded = {name: block.aggregate for name, block in self._encode_block(remembered).items()}
        totals = {name: aggregate.block_totals() for name, aggregate in coded.items()}
        if not all(_is_finite(total.value) and np.isfinite(total.weight).all() for total in totals.values()):
            self._reject(coded, rejected, encoded=bool(chain))
        return totals if self.keep.all() else {name: _pick_rows(total, self.keep) for name, total in totals.items()}

    def _keep_finite(self, rejected: dict[int, str]) -> None:
        """Keep out non-finite replies before they are encoded: a stage might turn them into finite numbers."""
        if self.request.uplink and not all(_is_finite(a.value) for a in self.reply.values()):
            self._reject(self.reply, rejected)
        self.encoded = self.keep.copy()

    def fold(self, remembered: StateTable, rejected: dict[int, str]) -> Totals:
        """The sums of the clients that are kept. A sum is finite only if all terms are, so single clients are checked only if it is not."""
        chain = self.request.uplink
        self._keep_finite(rejected)
        if not chain or not chain.summand_stages:
            blocks = self._encode_block(remembered)
            self.nbytes = self._measure({name: b.aggregate.with_value(b.wire) for name, b in blocks.items()})
            self._keep_small(rejected)
            coded = {name: block.aggregate for name, block in blocks.items()}
            totals = self._add_up(coded)
            if any(self._is_unfit(coded[name], total) for name, total in totals.items()):
                self._reject(coded, rejected, encoded=bool(chain))
                totals = self._add_up(coded)
            return totals
        return merge_totals(self._encode_each(remembered, rejected))

    def _encode_block(self, remembered: StateTable) -> dict[str, SentBlock]:
        """Send the replies through the uplink's value stages."""
        chain, found = self.request.uplink, {}
        before = self._gather_memory(remembered) if chain.remembers else {}
        seeds = self.request.secrets(self.positions) if chain.secret else None
        for name, aggregate in self.reply.items():
            if chain and aggregate.encoded:
                streams = child_keys(self.keys, name)
                whole = aggregate if self.keep.all() else aggregate.with_value(_blank_rows(aggregate.value, ~self.keep))
                own = seeds_for(seeds, name)
                found[name] = chain.send_block(whole, self.request.public, streams, before.get(name, {}), own, name)
                if found[name].memory:
                    self.memory[name] = found[name].memory
            else:
                found[name] = SentBlock(aggregate, aggregate.value, {})
        self.memory.update({name: kept for name, kept in before.items() if name not in self.reply})
        return found

    def _gather_memory(self, table: StateTable) -> dict[str, dict[str, Tree]]:
        """The stages' memory of these clients, stacked."""
        fresh = self.request.uplink.fresh({name: a.row(0) for name, a in self.reply.items()})
        if not fresh:
            return {}
        stacked = table.gather(self.positions, fresh)
        if stacked is None:  # the forms differ: stack only the memory of these aggregates
            known = [table.get(p) or {} for p in self.positions.tolist()]
            self.others = [{k: v for k, v in row.items() if k not in self.reply} for row in known]
            rows = [{**fresh, **{k: v for k, v in row.items() if k in fresh}} for row in known]
            return T.map(lambda *leaves: np.stack(leaves), *rows)  # type: ignore[no-any-return]
        first = {name: value for name, value in fresh.items() if name not in stacked}
        count = len(self.positions)
        return {**T.map(lambda leaf: None if leaf is None else np.stack([leaf] * count), first), **stacked}

    def leave(self, memories: States) -> None:
        """Pass on the new memory of the clients that are kept."""
        if self.memory and not any(self.others):
            _keep_states(memories, self.positions, self.memory, self.keep)
            return
        rows = T.unstack_trees(self.memory, len(self.positions))
        for i in np.flatnonzero(self.keep).tolist():
            now = {**self.others[i], **rows[i]} if self.memory else dict(self.singles.get(i, {}))
            if now:
                memories.singles[int(self.positions[i])] = now

    def _keep_small(self, rejected: dict[int, str]) -> None:
        """Keep out replies that are larger than their party allows."""
        if self.limits is None:
            return
        for i in np.flatnonzero(self.keep & (self.nbytes > self.limits)).tolist():
            error = oversize(int(self.nbytes[i]), int(self.limits[i]))
            if error is not None:
                self.keep[i] = False
                rejected[int(self.positions[i])] = describe_refusal(error)

    def _add_up(self, reply: dict[str, Aggregate]) -> Totals:
        if not self.keep.any():
            return {}
        if self.request.apart:
            return {name: self._keep_apart(aggregate) for name, aggregate in reply.items()}
        mask = None if self.keep.all() else self.keep.astype(np.float64)
        return {name: aggregate.block_sum(mask, self.positions) for name, aggregate in reply.items()}

    def _is_unfit(self, aggregate: Aggregate, total: Total) -> bool:
        """Whether a sum, or one of the single replies instead, is not finite."""
        if total.kind == "parts" and not self.request.apart:  # the block itself has the replies, and is checked as one
            return bool(not_finite(aggregate.value, aggregate.weight))
        return bool(not_finite_total(total))

    def _keep_apart(self, aggregate: Aggregate) -> Total:
        """The replies, kept separate."""
        rows = [
            kept_apart(aggregate.row(i).total(), int(self.positions[i])) for i in np.flatnonzero(self.keep).tolist()
        ]
        weight = float(sum(row.weight for row in rows))
        return Total("parts", [row.value[0] for row in rows], weight, len(rows), aggregate.role)

    def _reject(self, reply: dict[str, Aggregate], rejected: dict[int, str], *, encoded: bool = False) -> None:
        """Keep out the clients whose replies have a non-finite value."""
        for i in np.flatnonzero(self.keep).tolist():
            for name, aggregate in reply.items():
                why = unfit(name, aggregate.row(i), encoded=encoded)
                if why:
                    self.keep[i] = False
                    rejected[int(self.positions[i])] = why
                    break

    def _encode_each(self, remembered: StateTable, rejected: dict[int, str]) -> list[Totals]:
        """The totals of one client after another, as stages that act on summands see them."""
        request, parts = self.request, list[Totals]()
        self.nbytes = np.zeros(len(self.positions), dtype=np.int64)
        for i in np.flatnonzero(self.keep).tolist():
            position = int(self.positions[i])
            reply = {name: aggregate.row(i) for name, aggregate in self.reply.items()}
            memory = StageMemory(remembered, position)
            most = None if self.limits is None else int(self.limits[i])
            made = encode_reply(request, reply, int(self.keys[i]), memory, largest=most)
            if made.rejected:
                self.keep[i] = False
                rejected.update(made.rejected)
                continue
            self.nbytes[i] = made.nbytes[0]
            self.singles[i] = memory.now
            parts.append(made.totals)
        return parts

    def _measure(self, sent: dict[str, Aggregate]) -> NDArray[np.int64]:
        """Encoded size of each reply: equal shapes give equal sizes in a block, except for stages with encodings of any length."""
        count = len(self.positions)
        ragged = any(isinstance(leaf, T.Ragged) for a in sent.values() for leaf in T.leaves(a.value))
        rows = [
            M.nbytes({name: _wire_form(aggregate, aggregate.row(i).value) for name, aggregate in sent.items()})
            for i in range(count if ragged else min(count, 1))
        ]
        return np.array(rows, dtype=np.int64) if ragged else np.full(count, rows[0] if rows else 0, dtype=np.int64)


def _wire_form(aggregate: Aggregate, wire: Tree) -> dict[str, Any]:
    return {"kind": aggregate.kind, "value": wire, "weight": 1.0}


def _stack_totals(rows: list[Totals]) -> Totals:
    """Stack totals of single clients with a leading client axis."""
    if not rows:
        return {}
    made = {}
    for name, first in rows[0].items():
        value = T.map(lambda *leaves: T.stack(leaves), *(row[name].value for row in rows))
        made[name] = replace(first, value=value, weight=np.array([row[name].weight for row in rows]))
    return made


def _pick_rows(total: Total, keep: NDArray[np.bool_]) -> Total:
    """Some clients of a total with a leading client axis."""
    return replace(total, value=T.map(lambda leaf: leaf[keep], total.value), weight=np.asarray(total.weight)[keep])


def _is_finite(value: Tree) -> bool:
    """Whether the sum of each leaf is finite: then all entries are. A sum may also overflow, so a non-finite one is checked again."""
    with np.errstate(all="ignore"):
        return all(np.isfinite(float(leaf.sum())) for leaf in T.leaves(value) if getattr(leaf, "ndim", 0))


def _blank_rows(value: Tree, out: NDArray[np.bool_]) -> Tree:
    """The same block, with zeros for some clients."""

    def blank(leaf: Any) -> Any:
        if isinstance(leaf, np.ndarray):
            return np.where(out.reshape(-1, *[1] * (leaf.ndim - 1)), np.zeros((), leaf.dtype), leaf)
        copied = leaf.clone()
        copied[T.namespace(leaf).as_tensor(np.flatnonzero(out), device=leaf.device)] = 0
        return copied

    return T.map(blank, value)


# ---------------------------------------------------------------------- work that ran ahead of its arrival


def singly(block: PartialSum, positions: NDArray[np.int64]) -> list[PartialSum]:
    """The replies of each of these parties, from a block whose request kept replies ``apart``."""
    bytes_of = dict(zip(block.senders.tolist(), block.nbytes.tolist(), strict=True))
    replies: dict[int, PartialSum] = {}
    for p in positions.tolist():
        there = [p] if p in bytes_of else []
        sizes = [bytes_of[p]] if there else []
        replies[p] = PartialSum({}, np.array(there, dtype=np.int64), np.array(sizes, dtype=np.int64))
        if p in block.rejected:
            replies[p].rejected[p] = block.rejected[p]
        if p in block.errors:
            replies[p].errors[p] = block.errors[p]
    for name, total in block.totals.items():
        for part in total.value:
            replies[part.sender].totals[name] = rejoin_parts(replace(total, value=[part], weight=part.weight, n=1))
    return [replies[p] for p in positions.tolist()]
