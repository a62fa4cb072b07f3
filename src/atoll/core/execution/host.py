"""The party side of a federation: an executor with a memory.

A host owns the islands' private state, answers a repeated request from its journal instead of running it twice, and records privacy events
in the ledger before anything is released. Every engine and transport ends here.

The journal of a host: replies that must never be made twice.

A task that drew on its island's secret or spent privacy budget would reply differently if it ran again, so its reply (and the state it left)
is recorded durably before it is released. Everything else is a function of its request and simply runs again after a crash.

For a stage that draws on secrets the journal keeps the parties' seeds, which give the same noise again.

A checkpoint makes earlier replies unnecessary. They are kept for one more, because a resume may have to fall back one generation.
"""

from __future__ import annotations

import hashlib
import os
import struct
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import message as M
from ..algebra.tree import Tree
from ..errors import CheckpointError, LetterError, MessageError, PolicyError
from ..event import Event, Ledger, NonPrivate
from ..persistence.files import append_bytes, write_bytes
from ..persistence.named_results import MARK
from ..persistence.state_table import States, StateStore, StateTable
from ..requests.party import among
from ..requests.request import PASSING, PartialSum, Reply, Request, TaskResult, wire_form
from ..requests.stage import SEED_BYTES, Seeds, derive_seeds
from ..requests.wire import pack_ran, unpack_ran
from ..sealing import hash_parts
from .executor import Executor
from .session import Step
from .sum_builder import describe_refusal

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..sealing import Record
    from .session import LocalPeers, Switch
    from .sum_builder import Spend

__all__ = ["Draft", "Drafts", "Host", "Journal"]


_LENGTH = struct.Struct("<Q")


@dataclass
class _Entry:
    slot: str
    ran: TaskResult
    old: bool = False

    def pack(self, request: str) -> dict[str, Any]:
        return {"request": request, "slot": self.slot, "ran": pack_ran(self.ran)}


@dataclass
class _Draw:
    """Seeds drawn for some parties of a request, and a digest of the stages that they were drawn for."""

    slot: str
    seeds: Seeds
    stages: bytes
    old: bool = False

    def pack(self, request: str) -> dict[str, Any]:
        return {"request": request, "slot": self.slot, "stages": self.stages, "seeds": self.seeds.pack()}


class Journal:
    """Replies by request and party, secret seeds, and steps of sessions.

    Args:
        path: the file that they are appended to; ``None`` keeps them in memory.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self._kept: dict[tuple[str, int], _Entry] = {}
        self._draws: dict[str, list[_Draw]] = {}
        self._steps: dict[tuple[str, int], list[_Step]] = {}
        self._lock = threading.RLock()  # a site's roles run in another thread than its tasks
        self._dropped = 0
        if path is not None and path.exists():
            self._read(path)

    def _read(self, path: Path) -> None:
        content = path.read_bytes()
        at = 0
        while at + _LENGTH.size <= len(content):
            (length,) = _LENGTH.unpack_from(content, at)
            frame = content[at + _LENGTH.size : at + _LENGTH.size + length]
            if len(frame) < length:
                break
            try:
                entry = M.decode(frame)
            except MessageError as error:
                raise CheckpointError(
                    f"the journal is damaged at byte {at}: {error.what}", where=str(path), remedy="start a new run"
                ) from error
            if "step" in entry:
                self._add_step(entry["request"], _Step(entry["slot"], entry["party"], entry["step"]))
            elif "seeds" in entry:
                draw = _Draw(entry["slot"], Seeds.unpack(entry["seeds"]), entry["stages"])
                self._draws.setdefault(entry["request"], []).append(draw)
            else:
                ran = unpack_ran(entry["ran"])
                self._kept[entry["request"], ran.reply.party] = _Entry(entry["slot"], ran)
            at += _LENGTH.size + length
        if at < len(content):  # incomplete after a crash: this reply was never released
            append_bytes(path, b"", at=at)

    def __bool__(self) -> bool:
        return bool(self._kept)

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, request: str, party: int) -> TaskResult | None:
        """The reply that was given before, if there is one."""
        entry = self._kept.get((request, party)) if self._kept else None
        return None if entry is None else entry.ran

    def put(self, rows: Iterable[tuple[Request, TaskResult]]) -> None:
        """Record replies; durable when this returns.

        Raises:
            CheckpointError: the file cannot be written; nothing may be released.
        """
        entries = {(request.id, ran.reply.party): _Entry(request.slot.partition("//")[0], ran) for request, ran in rows}
        with self._lock:
            if self.path is not None and entries:
                append_bytes(self.path, _frames(entry.pack(request) for (request, _), entry in entries.items()))
            self._kept.update(entries)

    def put_step(self, request: Request, party: int, step: dict[str, Any]) -> None:
        """Record the state of a role at a checkpoint; durable when this returns. In memory nothing survives, so nothing is kept.

        Raises:
            CheckpointError: the file cannot be written; the step is not agreed.
        """
        if self.path is None:
            return
        made = _Step(request.slot.partition("//")[0], party, step)
        with self._lock:
            append_bytes(self.path, _frames([made.pack(request.id)]))
            self._add_step(request.id, made)
            self._shrink()

    def _add_step(self, request: str, made: _Step) -> None:
        """Keep a step and the one before it; any other is of an earlier attempt, or settled."""
        number, before = made.step["number"], self._steps.get((request, made.party), [])
        kept = [one for one in before if one.step["number"] == number - 1]
        self._dropped += len(before) - len(kept)
        self._steps[request, made.party] = [*kept, made]

    def step(self, request: str, party: int, number: int) -> dict[str, Any] | None:
        """What a role has kept at a checkpoint, if it is still there."""
        found = [one.step for one in self._steps.get((request, party), ()) if one.step["number"] == number]
        return found[-1] if found else None

    def draw(self, request: Request, positions: NDArray[np.int64]) -> Seeds:
        """A secret seed of each party for the stages of a request: the one drawn before, or a new one, which is durable when this returns.

        Args:
            request: a request whose stages draw on secrets.
            positions: positions of the parties, sorted, each once.

        Raises:
            PolicyError: seeds were drawn for other stages: with the same noise, the two replies would reveal what it hides.
            CheckpointError: the file cannot be written.
        """
        with self._lock:
            return self._draw(request, positions)

    def _draw(self, request: Request, positions: NDArray[np.int64]) -> Seeds:
        stages, rows = _digest(request), np.zeros((len(positions), SEED_BYTES), dtype=np.uint8)
        fresh = np.ones(len(positions), dtype=bool)
        for known in self._draws.get(request.id, ()):
            met = np.isin(positions, known.seeds.positions)
            if met.any() and known.stages != stages:
                raise PolicyError(
                    "the same request has other stages or round parameters than before",
                    where=request.id,
                    remedy="ask again under another label (at=)",
                )
            rows[met] = known.seeds.of(positions[met])
            fresh &= ~met
        if fresh.any():
            count = int(fresh.sum())
            # From the system, never from the seed of the run: whoever knows that seed could subtract the noise.
            rows[fresh] = np.frombuffer(os.urandom(SEED_BYTES * count), dtype=np.uint8).reshape(count, SEED_BYTES)
            made = _Draw(request.slot.partition("//")[0], Seeds(positions[fresh], rows[fresh]), stages)
            if self.path is not None:
                append_bytes(self.path, _frames([made.pack(request.id)]))
            self._draws.setdefault(request.id, []).append(made)
        return Seeds(positions, rows)

    def forget(self, slot: str) -> None:
        """After a safe checkpoint of a slot, drop what was recorded before the previous checkpoint."""
        with self._lock:
            self._forget(slot)

    def _forget(self, slot: str) -> None:
        before = self._count()
        self._kept = {k: e for k, e in self._kept.items() if not (e.slot == slot and e.old)}
        drawn = {k: [e for e in rows if not (e.slot == slot and e.old)] for k, rows in self._draws.items()}
        self._draws = {k: rows for k, rows in drawn.items() if rows}
        stepped = {k: [e for e in rows if not (e.slot == slot and e.old)] for k, rows in self._steps.items()}
        self._steps = {k: steps for k, steps in stepped.items() if steps}
        remaining = self._count()
        self._dropped += before - remaining
        entries: list[_Entry | _Draw | _Step] = [*self._kept.values()]
        entries += [e for rows in self._draws.values() for e in rows]
        entries += [e for steps in self._steps.values() for e in steps]
        for entry in entries:
            entry.old = entry.old or entry.slot == slot
        self._shrink()

    def _shrink(self) -> None:
        """Rewrite the file when it has shrunk by half or more, so that removing costs as much as recording."""
        if self.path is None or not self._dropped or self._dropped < self._count():
            return
        replies = [entry.pack(request) for (request, _), entry in self._kept.items()]
        draws = [entry.pack(request) for request, rows in self._draws.items() for entry in rows]
        steps = [entry.pack(request) for (request, _), found in self._steps.items() for entry in found]
        write_bytes(self.path, _frames([*replies, *draws, *steps]))
        self._dropped = 0

    def _count(self) -> int:
        return sum(map(len, (self._kept, *self._draws.values(), *self._steps.values())))


def _digest(request: Request) -> bytes:
    """What a release depends on besides the reply: the stages, their round parameters, and the number of replies that share the noise."""
    uplink = request.uplink
    said = (
        [stage.spec() for stage in uplink.stages],
        list(request.public),
        uplink.replies,
        uplink.hidden,
        uplink.indexing,
    )
    return hashlib.blake2b(M.encode(list(said)), digest_size=16).digest()


def _frames(entries: Iterable[dict[str, Any]]) -> bytes:
    frames = [M.encode(entry) for entry in entries]
    return b"".join(_LENGTH.pack(len(frame)) + frame for frame in frames)


# ---------------------------------------------------------------------- drafts and the host


class Draft(StateTable):
    """States that were left in addition to those of another table.

    Args:
        under: the other table, read if this one has no state.
    """

    def __init__(self, under: StateTable) -> None:
        super().__init__()
        self._under = under
        self._left: list[States] = []

    def leave(self, states: States) -> None:
        """Add states; they are sorted into tables on the first read."""
        self._left.append(states)

    def commit(self, positions: NDArray[np.int64]) -> None:
        """Move the states of these parties to the table below."""
        for states in self._left:
            who = states.positions()
            mine = among(who, positions)
            self._under.put_all(states if mine.all() else StateTable.holding(states).pick(who[mine]))
        self._left = []
        own = self.positions()
        self._under.put_all(super().pick(own[among(own, positions)]))

    def _mine(self, positions: NDArray[np.int64]) -> NDArray[np.bool_]:
        for states in self._left:
            self.put_all(states)
        self._left = []
        return among(positions, self.positions())

    def get(self, position: int) -> Tree:
        """A party's state, ``None`` if it has none."""
        if self._left and len(self._left[-1].blocks) == 1:  # the newest states, unsorted: a block that may be read once
            found = self._left[-1].blocks[0].of(position)
            if found:
                return found[-1]
        mine = self._mine(np.array([position], dtype=np.int64))[0]
        return super().get(position) if mine else self._under.get(position)

    def knows(self, positions: NDArray[np.int64]) -> bool:
        """Whether any of these parties has a state."""
        return bool(self._mine(positions).any()) or self._under.knows(positions)

    def pick(self, positions: NDArray[np.int64]) -> States:
        """The states of some parties; parties without one are left out."""
        mine = self._mine(positions)
        found = self._under.pick(positions[~mine])
        found.update(super().pick(positions[mine]))
        return found

    def gather(self, positions: NDArray[np.int64], fresh: Tree = None) -> Tree:
        """The states of some parties, stacked; see ``StateTable.gather``. States from both tables cannot be stacked together."""
        mine = self._mine(positions)
        if mine.any() and not mine.all():
            return None
        return super().gather(positions, fresh) if len(mine) and mine.all() else self._under.gather(positions, fresh)


class Drafts:
    """The drafts of a host's sums, by sum and slot.

    Args:
        store: the parties' private states.
    """

    def __init__(self, store: StateStore) -> None:
        self._store = store
        self._open: dict[str, dict[str, Draft]] = {}

    def table(self, request: Request, slot: str) -> StateTable:
        """The states that a request finds in a slot: those that its own sum left there, then the parties' states."""
        draft = self._open.get(request.sum, {}).get(slot) if request.sum else None
        return self._below(slot) if draft is None else draft

    def _below(self, slot: str) -> StateTable:
        return StateTable() if slot.endswith(PASSING) else self._store.table(slot)

    def leave(self, request: Request, left: Mapping[str, States]) -> None:
        """Keep what a request left: at once, or until its sum ends."""
        for slot, states in left.items():
            if not request.sum:
                self._store.table(slot).put_all(states)
                continue
            drafts = self._open.setdefault(request.sum, {})
            if slot not in drafts:
                drafts[slot] = Draft(self._below(slot))
            drafts[slot].leave(states)

    def conclude(self, path: str, kept: NDArray[np.int64]) -> None:
        """End a sum: these parties keep what its steps left, and the others stay unchanged."""
        for slot, draft in self._open.pop(path, {}).items():
            # What a step passes to the next one of its sum ends with the sum, whoever is in it.
            if not slot.endswith(PASSING):
                draft.commit(kept)


@dataclass
class Host:
    """An executor with private state, a journal and a ledger.

    Attributes:
        executor: runs the tasks.
        store: private state.
        ledger: the ledger of privacy events.
        journal: replies that must not be made twice.
    """

    executor: Executor
    store: StateStore = field(default_factory=StateStore)
    ledger: Ledger = field(default_factory=Ledger)
    journal: Journal = field(default_factory=Journal)

    def __post_init__(self) -> None:
        self.drafts = Drafts(self.store)

    @property
    def record(self) -> Record:
        """What the parties here have promised; it is written before anything leaves."""
        return self.executor.record

    def spend(self, event: Event, party: str | Sequence[str], request: str) -> None:
        """Record a privacy event of one or several parties; it is durable when this returns."""
        self.ledger.append(event, party, request)

    def declare(self, request: Request, positions: Iterable[int], spend: Spend | None = None) -> None:
        """Record what leaves a party without differential privacy, if the ledger is complete: once a job, party and task. Call this before it leaves.

        Args:
            request: the request.
            positions: positions of the parties whose replies leave.
            spend: records events; by default in this host's ledger.
        """
        # A ledger that records mechanisms alone has no line for what leaves without one.
        if not self.ledger.complete:
            return
        inner, roster = request.wraps or request, self.executor.roster
        names = [roster.name(p) for p in positions if self.executor.policy_at(p).reveals(request)]
        event = NonPrivate(what=f"replies of {inner.task.name}", seen_by=self.ledger.seen_by)
        bare = self.ledger.find_uncovered(inner.id, event.what, names)
        if bare:
            (spend or self.spend)(event, bare[0] if len(bare) == 1 else bare, f"{request.id}#open")

    def release(self, request: Request, ran: TaskResult, form: str = "run") -> TaskResult:
        """Write into the record what a party promises with its reply; the reply may leave when this returns.

        Returns:
            The result, or one with a refusal if the party has answered otherwise before: under this id, for these letters, or of a matter that is answered once.
        """
        reply = ran.reply
        # An error or a rejection tells nothing that a second answer could add to, so it binds nobody.
        if reply.error is not None or reply.rejected or not (request.recorded or ran.sealed or ran.opened):
            return ran
        content = b""
        if form != "role":  # what a role says depends on the others, so its id is bound and its words are not
            said = {"value": wire_form(reply.value), "notes": reply.notes}
            content = self.record.hash_reply(said, reply.mail, masked=request.wraps is not None)
        name = self.executor.roster.name(reply.party)
        try:
            self.record.note(request.promises(name, ran, form, content))
        except PolicyError as error:
            again = self._opened_before(request, name, ran) or error
            return TaskResult(Reply(reply.party, error=self.executor.refuse(again, request, reply.party)))
        return ran

    def _opened_before(self, request: Request, party: str, ran: TaskResult) -> LetterError | None:
        """The error that tells of a letter which was opened in another request, which a program may do by mistake."""
        here = hash_parts(request.id)
        for tag in ran.opened:
            if self.record.get(hash_parts("letter", party, *tag)) not in (None, here):
                return LetterError(
                    f"the letter of {tag[1]} to {party}, written in {tag[0]}, was opened before in another request",
                    where=request.id,
                    remedy="deliver each letter once; if the program does, check the relay",
                )
        return None

    def release_fold(self, request: Request, folded: PartialSum) -> PartialSum:
        """Write into the record what one party promises with its summand; return it, or an empty sum that refuses it."""
        try:
            self.record.note(folded.rows)
        except PolicyError as error:
            none, (position, *_) = folded.senders[:0], folded.promised
            found = self.executor.refuse(error, request, position)
            return PartialSum(
                {},
                none,
                none,
                rejected={position: describe_refusal(found if isinstance(found, PolicyError) else error)},
            )
        return folded

    def add_seeds(self, request: Request, positions: NDArray[np.int64]) -> Request:
        """Return the request with a secret seed of each party, if its stages draw on secrets.

        A seed is in the journal before it is used, so that a reply that is made again after a crash is the same: noise is never drawn twice for
        one release.

        Raises:
            PolicyError: the same request has other stages than before.
        """
        if request.wraps is not None:
            request = replace(request, wraps=self.add_seeds(request.wraps, positions))
        if not request.uplink.secret:
            return request
        seed = self.executor.secret_seed
        places = np.unique(positions)  # asked twice under one id, a party has one seed: equal replies are one release
        if seed is None:
            return replace(request, seeds=self.journal.draw(request, places))
        return replace(request, seeds=Seeds(places, derive_seeds(self.executor.keys(request, places), seed)))

    def absorb(self, request: Request, ran: TaskResult) -> Reply:
        """Keep what a task left at the party, then release its reply."""
        # In this order: after a crash between any two lines the same reply is found again, and no other is ever made.
        if ran.sealed and ran.reply.error is None and self.replay(request, ran.reply.party) is None:
            self.journal.put([(request, ran)])
        ran = self.release(request, ran)
        self.leave(request, ran.reply.party, ran.left)
        if ran.reply.error is None and not ran.reply.rejected and (ran.reply.value is not None or ran.reply.mail):
            self.declare(request, [ran.reply.party])
        return ran.reply

    def leave(self, request: Request, position: int, left: Mapping[str, Tree]) -> None:
        """Keep what one party's task left, by slot."""
        self.drafts.leave(request, {slot: States({position: state}) for slot, state in left.items()})

    def absorb_fold(self, request: Request, folded: PartialSum) -> PartialSum:
        """Keep what a cohort left, then release its sums.

        Raises:
            PolicyError: a party has answered otherwise before; nothing is released.
        """
        # As in `absorb`: the journal first, then the record, and states only once neither has refused.
        self.journal.put((request, ran) for ran in folded.kept)
        self.record.note(folded.rows)
        self.drafts.leave(request, folded.left)
        self.declare(request, folded.senders.tolist())
        return folded

    def table(self, request: Request, slot: str | None = None) -> StateTable:
        """The states that a request finds in a slot, by default its own."""
        return self.drafts.table(request, request.slot if slot is None else slot)

    def tables(self, request: Request) -> dict[str, StateTable]:
        """The states of every slot that a request may read."""
        return {slot: self.drafts.table(request, slot) for slot in request.slots}

    def replay(self, request: Request, position: int) -> TaskResult | None:
        """The journal's result of a request at a party, if there is one."""
        return self.journal.get(request.id, position)

    def publish(self) -> None:
        """Publish the named results for people and later jobs, after the job's program has ended well.

        Raises:
            CheckpointError: a result cannot be written.
        """
        for slot in sorted(slot for slot in self.store.tables if MARK in slot):
            home, _, name = slot.rpartition(MARK)
            scope = home.partition("/")[2]
            for position in self.store.list_touched(slot):
                party = self.executor.roster.name(position)
                value = self.store.get(slot, position)["value"]
                self.executor.named.put(party, f"{scope}/{name}" if scope else name, value)

    async def run(self, request: Request, positions: NDArray[np.int64]) -> list[Reply]:
        """Run the task at each party, one after another, in the given order; a party that occurs twice replies once."""
        request, replies = self.add_seeds(request, positions), dict[int, Reply]()
        if self.executor.wraps_blocks(request):
            return await self._run_blocks(request, positions)
        for position, key in zip(positions.tolist(), self.executor.keys(request, positions).tolist(), strict=True):
            if position not in replies:
                replies[position] = await self._one(request, position, key)
        return [replies[position] for position in positions.tolist()]

    async def _one(self, request: Request, position: int, key: int) -> Reply:
        ran = self.replay(request, position)
        if ran is None:
            ran = await self.executor.one(request, position, key, self.tables(request), self.spend)
        return self.absorb(request, ran)

    async def _run_blocks(self, request: Request, positions: NDArray[np.int64]) -> list[Reply]:
        """Run the wrapped task for all parties at once; what they leave is kept once all have replied."""
        places = np.array(list(dict.fromkeys(positions.tolist())), dtype=np.int64)
        known = {i: ran for i, p in enumerate(places.tolist()) if (ran := self.replay(request, p)) is not None}
        rans = await self.executor.run(request, places, self.tables(request), self.spend, known)
        replies = {ran.reply.party: self.absorb(request, ran) for ran in rans}
        return [replies[position] for position in positions.tolist()]

    async def fold(self, request: Request, positions: NDArray[np.int64]) -> PartialSum:
        """Run the task at each party and add up the replies."""
        request = self.add_seeds(request, positions)
        replay = (lambda position: self.replay(request, position)) if self.journal else None
        folded = await self.executor.fold(request, positions, self.tables(request), replay, self.spend)
        return self.absorb_fold(request, folded)

    async def role(self, request: Request, position: int, peers: LocalPeers) -> TaskResult:
        """Run one role of a session; what it left is kept once all roles have ended."""
        table, leaves = self.table(request), lambda: self.declare(request, [position])
        ran = await self.executor.role(request, position, peers, table, self.spend, leaves)
        if ran.reply.error is not None and not ran.ending:
            raise ran.reply.error
        return ran

    def keep_step(self, request: Request, position: int, step: Step) -> None:
        """Make a role's state of a checkpoint durable.

        Raises:
            CheckpointError: it cannot be written; the step is not agreed.
        """
        self.journal.put_step(request, position, step.pack())

    def step(self, request: Request, position: int, number: int) -> Step | None:
        """A role's state of a checkpoint, if it is still here."""
        found = self.journal.step(request.id, position, number) if number else None
        return None if found is None else Step(**found)

    def resume_session(
        self, roles: Mapping[str, tuple[Request, int]], switch: Switch, start: float
    ) -> tuple[float, dict[str, Step | None]]:
        """Go on at the last agreed step, if every role still has its state of it: when, and these states."""
        number = 0 if switch.agreed is None else int(switch.agreed["step"])
        steps = {role: self.step(*roles[role], number) for role in roles}
        start = switch.resume(start, found=all(step is not None for step in steps.values()))
        return start, steps if switch.step else dict.fromkeys(steps)

    def replay_session(self, roles: Mapping[str, tuple[Request, int]], switch: Switch) -> dict[str, TaskResult] | None:
        """The results of a session if the journal has all its roles; a session is never repeated in part."""
        known = {role: self.replay(request, position) for role, (request, position) in roles.items()}
        rans = {role: ran for role, ran in known.items() if ran is not None}
        if len(rans) < len(roles):
            return None
        for role, ran in rans.items():
            switch.repeat(role, ran.said, ran.ending, ran.time)
            self.absorb(roles[role][0], ran)
        return rans

    def absorb_session(
        self, roles: Mapping[str, tuple[Request, int]], rans: Mapping[str, TaskResult], switch: Switch
    ) -> dict[str, TaskResult]:
        """Keep what the roles that ended well left, then release the results of the session.

        Raises:
            SessionError: too few roles ended well; then nothing is kept.
        """
        switch.require_quorum()
        ended = {role: replace(ran, said=switch.said[role]) for role, ran in rans.items()}
        if any(
            ran.sealed or ran.ending for ran in ended.values()
        ):  # on a real clock, a role might end differently the next time
            self.journal.put((roles[role][0], ran) for role, ran in ended.items())
        for role, ran in ended.items():
            self.release(roles[role][0], ran, "role")
            self.leave(roles[role][0], ran.reply.party, ran.left)
        return ended


@dataclass
class _Step:
    """What a role of a session has kept at a checkpoint."""

    slot: str
    party: int
    step: dict[str, Any]
    old: bool = False

    def pack(self, request: str) -> dict[str, Any]:
        return {"request": request, "slot": self.slot, "party": self.party, "step": self.step}
