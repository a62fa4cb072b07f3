"""Running tasks on islands: the part of a host without memory.

An executor turns (request, party, state) into (reply, new state). It can run in a worker process or at the other end of a network, while the
state, the journal and the ledger stay with their owner.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import secrets
import sysconfig
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import message as M
from ..algebra.aggregate import Totals
from ..algebra.rng import Rng
from ..algebra.tree import Tree
from ..errors import AtollError, LetterError, PolicyError, SessionError, TaskError
from ..event import unpack_event
from ..persistence.named_results import NamedResults
from ..persistence.state_table import StateTable
from ..requests.cohort import Cohort, Population
from ..requests.island import Island
from ..requests.party import Parties, Party, Roster
from ..requests.policy import AllowAll, Policies, Policy, policy_of
from ..requests.request import PartialSum, Reply, Request, TaskResult, sketch, wire_form
from ..sealing import Letterbox, Record, Sealing, VirtualSealing, hash_parts
from .cohorts import HalfCohort, InnerRequest, IslandCohort, Stepper, UnfitReply, WrappedCohort
from .session import GuardedPeers, LocalPeers
from .sum_builder import RecordingSpend, Spend, SumBuilder, UplinkEvents, oversize, refusal

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterable
    from types import FrameType, TracebackType

    from numpy.typing import NDArray

    from ..requests.task import Batch

__all__ = ["Executor", "Tables"]

_log = logging.getLogger("atoll")
_ATTEMPTS = 3

Tables = Mapping[str, StateTable]
"""The parties' private states, for each slot that a request may read; see ``Request.slots``."""
Replay = Callable[[int], "TaskResult | None"]


@dataclass
class Executor:
    """Runs tasks for the parties of one place.

    Attributes:
        roster: all parties, for names.
        population: the islands' data.
        policy: the rule for what may leave the islands: one for all, or a dict of policies by party name.
        vectorised: whether to use a task's ``many``.
        secret_seed: seed of the islands' secrets in a reproducible simulation; ``None`` uses the system's entropy.
        sealing: seals and opens the letters of the parties here.
        named: results that stay at the parties here.
        near: whether tasks run in the program's own process.
        leaving: turns a task's error into the one that may leave this place; ``None`` where nobody else reads it.
        record: what the parties here have promised. Workers have an empty one: their owner compares what they promise.
        remote: whether a server of another organisation asks here. Then a step of a sum that refuses tells it one thing, whatever the cause.
    """

    roster: Roster
    population: Population
    policy: Policies = field(default_factory=AllowAll)
    vectorised: bool = False
    secret_seed: int | None = None
    sealing: Sealing = field(default_factory=VirtualSealing)
    named: NamedResults = field(default_factory=NamedResults)
    near: bool = False
    leaving: Callable[[Exception], Exception] | None = None
    record: Record = field(default_factory=Record)
    remote: bool = False

    def data(self, position: int) -> Any:
        """The data of a party."""
        if position < len(self.population):
            return self.population.shard(position)
        return getattr(self.population, "others", {}).get(self.roster.name(position))

    @property
    def single(self) -> bool:
        """Whether a policy looks at single replies, which blocks do not have."""
        rows = self.policy.values() if isinstance(self.policy, Mapping) else [self.policy]
        return any(row.single for row in rows)

    def policy_at(self, position: int) -> Policy:
        """The policy of a party."""
        return policy_of(self.policy, self.roster.name(position)) if isinstance(self.policy, Mapping) else self.policy

    def _admit(
        self, request: Request, positions: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], dict[int, str], dict[int, int] | None]:
        """The parties of a cohort that accept a request, why the others refuse it, and the maximum size of each reply (``None``: no policy to ask)."""
        # The fast way of simulations. With a policy to ask, a task's own `sums` are not used: they have no single reply to bound.
        if type(self.policy) is AllowAll and (request.wraps or request).task.discloses is None:
            return positions, {}, None
        found: dict[int, str] = {}  # by policy, since most parties share one
        barred: dict[int, str] = {}
        limits: dict[int, int] = {}
        for position in positions.tolist():
            policy = self.policy_at(position)
            if id(policy) not in found:
                found[id(policy)] = refusal(policy, request)
            if found[id(policy)]:
                barred[position] = found[id(policy)]
            if policy.largest is not None:
                limits[position] = policy.largest
        return positions[~np.isin(positions, list(barred))] if barred else positions, barred, limits

    def keys(self, request: Request, positions: NDArray[np.int64]) -> NDArray[np.uint64]:
        """The random key of each party for this request."""
        return Rng(request.key).children(self.roster.keys(positions))

    def island(
        self,
        request: Request,
        position: int,
        key: int,
        table: StateTable,
        spend: Spend | None,
        totals: Callable[[int | None], Awaitable[Totals]] | None = None,
    ) -> Island:
        """The view that a task receives."""
        party = self.roster.party(position)
        return Island(
            party,
            lambda: self.data(position),
            key,
            request=request.id,
            state=lambda: table.get(position),
            ledger=spend,
            letters=self._make_letterbox(request, party),
            secret_seed=self.secret_seed,
            totals=totals,
            asked=lambda: "" if request.wraps is None else request.wraps.fingerprint,
            uplink=lambda: None if request.wraps is None else request.wraps.uplink,
            named=functools.partial(self.named.get, party.name),
            keep=functools.partial(self.policy_at(position).stay, party, request.task.name),
            put=functools.partial(self.named.put, party.name, at_once=True),
            record=self.record.get,
            matter=lambda: b"" if request.wraps is None or request.wraps.uplink.events else request.wraps.matter,
            remote=self.remote,
            once=self._sums_once(position),
            rules=self.policy_at(position).rules,
        )

    def _sums_once(self, position: int) -> bool:
        """Whether a party refuses a second sum of the same over another set: as its policy says, and without a word between organisations."""
        said = getattr(self.policy_at(position), "second_sums", None)
        return getattr(getattr(self.sealing, "keys", None), "certified", False) if said is None else not said

    def _make_letterbox(self, request: Request, party: Party) -> Letterbox:
        def release(content: Tree) -> None:
            policy_of(self.policy, party.name).release(party, request.task.name, content)

        arrived = request.mail.box(party.name) if request.mail else None
        return Letterbox(party.name, request.id, self.sealing, arrived, self.roster.position, release, request.sum)

    async def one(
        self,
        request: Request,
        position: int,
        key: int,
        tables: Tables,
        spend: Spend | None = None,
        turns: Stepper | None = None,
    ) -> TaskResult:
        """Run the task at one party; in ``turns`` with others, if the wrapped task runs for all of them at once."""
        booked = RecordingSpend(spend)
        asked = request.inner
        inner = None if asked is None else InnerRequest(self, request, asked, position, tables, booked.noting, turns)
        island = self.island(
            request, position, key, tables[request.slot], booked.noting, None if inner is None else inner.totals
        )
        policy = self.policy_at(position)
        told: Callable[[Exception | SystemExit, Request, int], Exception] = self.explain
        try:
            policy.admit(request)  # what a policy refuses must not see the data
            told = self.refuse  # from here on the task decides
            value = await request.answer(island)
            told = self.explain
            # Now the party knows what was spent: a policy may demand that before anything leaves, the stages' part included.
            policy.settle(request, (*booked.events, *request.uplink.events))
            for leaving in (value, *island.notes):  # letters passed the policy when they were sealed
                policy.release(island.party, request.task.name, leaving)
            nbytes = M.nbytes(wire_form(value)) + sum(letter.nbytes for letter in island.outbox.values())
            nbytes += sum(map(M.nbytes, island.notes))
            if not request.uplink and (excess := oversize(nbytes, policy.largest)):
                raise excess
            reply = Reply(position, value, island.outbox, island.notes, nbytes)
        except UnfitReply:
            reply = Reply(position)
        except (Exception, SystemExit) as error:
            reply = Reply(position, error=told(error, request, position))
        sealed = island.sealed or request.uplink.secret or (inner is not None and inner.sealed)
        opened, promised = tuple(island.opened), island.promised
        if inner is not None and inner.rejected:
            reply = Reply(position, rejected=inner.rejected)
        if reply.error is not None:  # a task that failed leaves the party as it was, and has opened no letter
            return TaskResult(reply, sealed=sealed)
        if reply.rejected:  # its letters were opened, though, and must not be opened in another request
            return TaskResult(reply, sealed=sealed, opened=opened)
        left = island.behind(request.slot)
        whole = left if inner is None else {**left, **inner.left}
        return TaskResult(reply, whole, sealed, opened=opened, promised=promised)

    async def fold(
        self,
        request: Request,
        positions: NDArray[np.int64],
        tables: Tables,
        replay: Replay | None = None,
        spend: Spend | None = None,
    ) -> PartialSum:
        """Run the task at each party and add up the replies, in cohort order or in the blocks of the task's ``many``.

        Args:
            request: the request.
            positions: positions of the cohort.
            tables: the parties' private states.
            replay: returns replies that must not be made twice.
            spend: records privacy events.
        """
        # Nothing wraps this request here, whatever it says: its reply can be seen, so stages must protect it as one.
        request = request.alone
        positions, barred, limits = self._admit(request, positions)
        keys, spending = self.keys(request, positions), UplinkEvents(request, self.roster, spend)
        builder = SumBuilder(
            request, self.roster, positions, tables, spending, self.explain, limits, barred, self.record
        )
        cohort = self._make_cohort(request, positions, keys, tables, spend)
        # Replies of plain blocks draw on no secret, so none is in the journal, and a large cohort need not be looked up.
        once = replay is not None and (cohort is None or isinstance(cohort, IslandCohort))
        known = _find_known(replay, positions) if once and replay is not None else {}

        def take(i: int, ran: TaskResult) -> None:
            builder.add_reply(ran, int(keys[i]), i not in known)

        if cohort is None:
            await self._run_each(request, positions, keys, tables, spend, known, take)
        else:
            self._run_blocks(builder, cohort, known, take)
        return builder.finish()

    def _make_cohort(
        self,
        request: Request,
        positions: NDArray[np.int64],
        keys: NDArray[np.uint64],
        tables: Tables,
        spend: Spend | None,
    ) -> Cohort | None:
        """What the task's ``many`` gets; ``None`` if the task runs at one party after another."""
        task, table = request.task, tables[request.slot]
        if task.many is None or not self.vectorised or self.single:
            return None

        def island(i: int) -> Island:
            return self.island(request, int(positions[i]), int(keys[i]), table, spend)

        if request.wraps is not None:
            inner = self._wrap_cohort(request, positions, tables, spend) if self.wraps_blocks(request) else None
            return None if inner is None else HalfCohort(inner, keys, table, island)
        # Letters are opened, and a policy asks, for one party at a time: a block would do both for parties that are left out later.
        if request.mail is not None or (task.islands and type(self.policy) is not AllowAll):
            return None
        parties = Parties(self.roster, positions)
        if task.islands:
            return IslandCohort(parties, keys, self.population, table, island)
        return Cohort(parties, keys, self.population, table)

    def _run_blocks(
        self,
        builder: SumBuilder,
        cohort: Cohort,
        known: dict[int, TaskResult],
        take: Callable[[int, TaskResult], None],
    ) -> None:
        """Run the task's ``many``. Replies that may depend on an island's letters or secrets are taken one by one, so that they are never made twice."""
        request, singly = builder.request, dict(known)
        if known and isinstance(cohort, IslandCohort):
            cohort = cohort.part(np.array([i for i in range(len(cohort)) if i not in known], dtype=np.int64))
        try:
            if request.misfit is not None:
                raise request.misfit
            if not builder.add_sums(cohort):
                for batch in _batches_of(request, cohort, singly):
                    builder.add_block(cohort, batch)
        except (Exception, SystemExit) as error:
            # What was taken from single islands stays: their secrets are drawn, and the journal must have it.
            alone = builder.positions[sorted(singly)]
            builder.fail_blocks(cohort.positions[~np.isin(cohort.positions, alone)], error)
        builder.write_blocks()
        if isinstance(cohort, IslandCohort):
            fresh = {i: ran for i, ran in singly.items() if i not in known}
            part = cohort.wrapped_part(builder.senders, fresh)
            singly |= fresh
            if part is not None:
                part.errors = {p: self.explain(error, request, p) for p, error in part.errors.items()}
                builder.add_part(part)
        for i in sorted(singly):
            take(i, singly[i])

    async def _run_each(
        self,
        request: Request,
        positions: NDArray[np.int64],
        keys: NDArray[np.uint64],
        tables: Tables,
        spend: Spend | None,
        known: Mapping[int, TaskResult],
        take: Callable[[int, TaskResult], None],
    ) -> None:
        """Run the task at one party after another, and a task that it wraps in blocks.

        Args:
            request: the request.
            positions: positions of the parties.
            keys: one random key each.
            tables: the parties' private states.
            spend: records privacy events.
            known: maps a place to a reply that must not be made twice.
            take: called with each place and its result, in order.
        """
        if not self.wraps_blocks(request):
            for i, (position, key) in enumerate(zip(positions.tolist(), keys.tolist(), strict=True)):
                ran = known.get(i)
                take(i, await self.one(request, position, key, tables, spend) if ran is None else ran)
            return
        stepper = Stepper(take, dict(known))
        halves: dict[int, Coroutine[Any, Any, TaskResult]] = {
            i: self.one(request, int(positions[i]), int(keys[i]), tables, spend, stepper)
            for i in range(len(positions))
            if i not in known
        }
        await stepper.run(halves, self._wrap_cohort(request, positions, tables, spend))

    def wraps_blocks(self, request: Request) -> bool:
        """Whether a task wraps another, which then runs for many parties at once."""
        inner = request.wraps
        fits = inner is not None and inner.task.many is not None and not inner.task.islands
        return fits and self.vectorised and not self.single

    def _wrap_cohort(
        self, request: Request, positions: NDArray[np.int64], tables: Tables, spend: Spend | None
    ) -> WrappedCohort:
        inner = request.inner or request
        parties = Parties(self.roster, positions)
        cohort = Cohort(parties, self.keys(inner, positions), self.population, tables[inner.slot])
        return WrappedCohort(
            inner,
            cohort,
            tables,
            UplinkEvents(inner, self.roster, spend),
            self.explain,
            functools.partial(self._find_refusal, request),
        )

    def _find_refusal(self, request: Request, position: int, wrapped: Request) -> str:
        """Why a party refuses a sum of fewer replies than the request promises; empty if it does not."""
        policy = self.policy_at(position)
        if wrapped is request.inner or isinstance(policy, AllowAll):
            return ""
        return refusal(policy, replace(request, wraps=wrapped))

    async def run(
        self,
        request: Request,
        positions: NDArray[np.int64],
        tables: Tables,
        spend: Spend | None = None,
        known: Mapping[int, TaskResult] | None = None,
    ) -> list[TaskResult]:
        """Run the task at each party, and a wrapped task in blocks; return results in the order of the positions.

        Args:
            request: the request.
            positions: positions of the parties.
            tables: the parties' private states.
            spend: records privacy events.
            known: maps a place to a reply that must not be made twice.
        """
        request, found = request.alone, dict[int, TaskResult]()
        keys = self.keys(request, positions)
        await self._run_each(request, positions, keys, tables, spend, known or {}, found.__setitem__)
        return [found[i] for i in range(len(positions))]

    async def role(
        self,
        request: Request,
        position: int,
        peers: LocalPeers,
        table: StateTable,
        spend: Spend | None = None,
        leaves: Callable[[], None] = lambda: None,
    ) -> TaskResult:
        """Run one role of a session: ``async (island, peers) -> result``; a role that is lost, is late or gives up leaves nothing.

        Args:
            request: the request.
            position: the position of the role's party.
            peers: its way to the other roles.
            table: the parties' private states.
            spend: records privacy events.
            leaves: called before each message leaves.
        """
        key = int(self.keys(request, np.array([position], dtype=np.int64))[0])
        # A session that a crash interrupted has sent messages already: running it again is another release, with new secrets.
        attempt = "" if self.secret_seed is not None else "~" + secrets.token_hex(8)
        booked = RecordingSpend(spend)
        island = self.island(replace(request, id=request.id + attempt), position, key, table, booked.noting)
        policy = self.policy_at(position)
        self._begin_session(request, position)
        peers.capture = lambda: {"island": island.capture(), "events": [event.pack() for event in booked.events]}
        peers.on_step = island.begin_step
        if peers.resumed is not None:
            place: Any = peers.resumed.place
            island.resume(place["island"])
            island.begin_step(peers.resumed.number)
            booked.events.extend(unpack_event(dict(event)) for event in place["events"])

        def release(message: Tree) -> None:
            policy.settle(request, booked.events)
            leaves()
            policy.release(island.party, request.task.name, message)

        guarded = GuardedPeers(peers, release)
        try:
            policy.admit(request)
            peers.go_on()
            value = await request.task.run(island, guarded, **request.task.args)
            if request.task.schema is not None:
                request.task.schema.require_reply(value)
            release(value)
            nbytes = M.nbytes(wire_form(value))
            peers.finish()
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            ending = peers.ending or ("told" if isinstance(error, SessionError) else "")
            if not ending and not isinstance(error, Exception | SystemExit):
                raise
            cause = error if isinstance(error, Exception | SystemExit) else SessionError(f"the role was {ending}")
            explained = self.explain(cause, request, position)
            if not ending:
                raise explained from error
            return TaskResult(Reply(position, error=explained), sealed=island.sealed, time=peers.time, ending=ending)
        finally:
            peers.close()
        left = island.behind(request.slot)
        reply = Reply(position, value, nbytes=nbytes)
        opened = tuple(island.opened)
        return TaskResult(reply, left, island.sealed, peers.time, opened=opened, promised=island.promised)

    def _begin_session(self, request: Request, position: int) -> None:
        """Count the attempts at a session of a sum: each draws secrets anew and may tell something more, so a server gets three, enough for honest crashes.

        Raises:
            PolicyError: it asks for a fourth.
        """
        if not request.sum:
            return
        for attempt in range(_ATTEMPTS):
            matter = hash_parts("attempt", request.id, self.roster.name(position), attempt)
            if self.record.get(matter) is None:
                self.record.note([(matter, hash_parts(secrets.token_bytes(16)))])
                return
        raise PolicyError(
            f"attempt {_ATTEMPTS + 1} at a session of one sum",
            where=request.id,
            remedy="let the job begin a new sum; if it does not crash, look at the server",
        )

    def refuse(self, error: Exception | SystemExit, request: Request, position: int) -> Exception:
        """The error of a step: a server of another organisation is told one thing whatever made a step of a sum refuse.

        Why a party refuses, such as which votes it has, may tell of others. The party's own log has the words.
        """
        explained = self.explain(error, request, position)
        own = "//" in request.id  # a reducer's own step
        if not (self.remote and own and isinstance(error, PolicyError | LetterError)):
            return explained
        _log.error("%s", explained)
        return PolicyError("this party does not answer", remedy="look at the log of its site")

    def explain(self, error: Exception | SystemExit, request: Request, position: int | None) -> Exception:
        """Add to an error its request, party, task and arguments; Atoll's own errors keep their class."""
        explained = self._add_place(error, request, position)
        return self.leaving(explained) if self.leaving is not None else explained

    def redact_error(self, error: Exception | SystemExit) -> Exception | SystemExit:
        """The error as it may leave this place."""
        return error if self.leaving is None or not isinstance(error, Exception) else self.leaving(error)

    def _add_place(self, error: Exception | SystemExit, request: Request, position: int | None) -> Exception:
        at = "the cohort" if position is None else self.roster.name(position)
        where = f"{request.id} at {at}"
        if isinstance(error, AtollError):
            inner = where if error.where is None else f"{error.where}; {where}"
            placed = type(error)(error.what, where=inner, remedy=error.remedy)
            placed.__cause__ = error.__cause__ or error.__context__
            return placed
        shown = ", ".join(f"{k}={v!r}" for k, v in request.task.args.items())
        line = _line_of(error)
        what, remedy = _find_reason(error, line, at, request.message, inline=self.near and not self.vectorised)
        wrapped = TaskError(
            what,
            where=f"{'' if line is None else f'{_name_line(line)}, '}task {request.task.name}({shown}), request {where}, message {sketch(request.message)}",
            remedy=remedy,
        )
        wrapped.__cause__ = error
        return wrapped


def _batches_of(request: Request, cohort: Cohort, singly: dict[int, TaskResult]) -> Iterable[Batch]:
    """The batches of the task's ``many``; replies of islands that were used go to ``singly``."""
    made = request.task.batches(cohort, request.message)
    return cohort.batches(made, singly, request.slot) if isinstance(cohort, IslandCohort) else made


def _find_known(replay: Replay, positions: NDArray[np.int64]) -> dict[int, TaskResult]:
    """Replies that must not be made twice, by place."""
    found = ((i, replay(position)) for i, position in enumerate(positions.tolist()))
    return {i: ran for i, ran in found if ran is not None}


_LIBRARY = tuple(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib"))
_PACKAGES = {"site-packages", "dist-packages"}
_ATOLL = str(Path(__file__).parents[2])


def _line_of(error: Exception | SystemExit) -> TracebackType | None:
    """Return the last line of the user's own code that the error came through."""
    found, trace = None, error.__traceback__
    while trace is not None:
        if _is_own(trace.tb_frame):
            found = trace
        trace = trace.tb_next
    return found


def _is_own(frame: FrameType) -> bool:
    name = frame.f_code.co_filename
    if name.startswith("<"):  # made by a library, or typed into an interpreter
        return frame.f_globals.get("__name__") == "__main__"
    return not name.startswith((_ATOLL, *_LIBRARY)) and not _PACKAGES & {*Path(name).parts}


def _name_line(line: TracebackType) -> str:
    code = line.tb_frame.f_code
    return f"{line.tb_frame.f_globals.get('__name__', '?')}:{line.tb_lineno} in {code.co_qualname}"


def _find_reason(
    error: Exception | SystemExit, line: TracebackType | None, at: str, message: Any, *, inline: bool
) -> tuple[str, str]:
    """The meaning of an error in a task, and the remedy."""
    if isinstance(error, SystemExit):
        code = "" if error.code is None else repr(error.code)
        return (
            f"the task called sys.exit({code})",
            "return from the task, or raise an error: a task must not end its process",
        )
    if isinstance(error, MemoryError):
        what = f"memory ran out: {error}" if str(error) else "memory ran out"
        return what, "use smaller batches or models; in a job ask for more (resources: {memory: ...})"
    if isinstance(error, ModuleNotFoundError) and error.name:
        module = error.name.partition(".")[0]
        mine = "to send modules of your own with a job, put them into the folder that `source` names"
        return (
            f"the task imports {error.name}, which is not installed",
            f"install {module!r} where {at} computes; {mine}",
        )
    if line is None:
        remedy = "look at what the task calls: no line of your own code is in the traceback"
    else:
        remedy = f"look at line {line.tb_lineno} of {line.tb_frame.f_globals.get('__name__', '?')}"
        held = any(value is message for value in line.tb_frame.f_locals.values())  # a loop looks keys up elsewhere
        if held and isinstance(error, KeyError) and isinstance(message, Mapping) and error.args:
            known = (
                "" if error.args[0] in message else f"; the message has {', '.join(map(str, message)) or 'no entries'}"
            )
            remedy += known
    if not inline:
        remedy += "; in a simulation engine='inline' runs it in your process, where a debugger can stop"
    return f"{type(error).__name__}: {error}", remedy
