"""A server that lies: it sends what the engine never sends, and keeps every answer that it gets."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from atoll.core import message as M
from atoll.core.errors import AtollError, TaskError
from atoll.core.requests.request import Mailboxes, PartialSum, Reply, Request, wire_form
from atoll.engines import Inline

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.core.execution.engine import RunContext
    from atoll.core.execution.host import Host

__all__ = ["LyingInline", "LyingScript", "LyingServer", "PartyAnswer", "mail_of"]


@dataclass(eq=False)
class PartyAnswer:
    """What one party said to one request.

    Attributes:
        party: its name.
        request: the request as this party got it.
        value: the value of the reply, as it crossed the wire; ``None`` if it was refused.
        letters: the letters that came with it, by recipient.
        refused: why there is no value; ``""`` if there is one.
        extra: whether no honest server would have sent the request.
    """

    party: str
    request: Request
    value: Any
    letters: dict[str, Any] = field(default_factory=dict)
    refused: str = ""
    extra: bool = False

    @property
    def task(self) -> str:
        """The name of the task that answered."""
        return self.request.task.name

    def says_same(self, other: PartyAnswer) -> bool:
        """Whether two answers have the same bytes, letters included."""
        return self.refused == other.refused and self.digest == other.digest

    @property
    def digest(self) -> str:
        """A hash of every byte of the answer."""
        return M.fingerprint([self.value, {to: letter.pack() for to, letter in sorted(self.letters.items())}])


Alter = Callable[[Request, str], "Request | None"]
Hook = Callable[[Request, list[str]], Awaitable[None]]


async def _nothing(request: Request, names: list[str]) -> None:
    """Go on."""


def _honestly(request: Request, name: str) -> Request:
    """Send the request as it is."""
    del name
    return request


def _nobody(request: Request, name: str) -> bool:
    """Pass on every reply."""
    del request, name
    return False


@dataclass
class LyingScript:
    """What a server does beside its work, in one sum.

    Attributes:
        alter: ``(request, name) -> request`` as that party gets it; ``None`` leaves the party out, as if it had dropped out.
        hides: ``(request, name) -> bool``: whether the reducer is told that this party was lost, although its reply has come.
        after: called after a step has been answered, with its request and the parties asked.
        withholds: tasks of which the server never says what becomes of their replies; if there are any, it does not end the sum either.
        repeats: whether it gives such orders twice.
        lies: whether no honest server would make the sum at all.
    """

    alter: Alter = _honestly
    hides: Callable[[Request, str], bool] = _nobody
    after: Hook = _nothing
    withholds: tuple[str, ...] = ()
    repeats: bool = False
    lies: bool = False


class LyingServer:
    """Mixed into an engine, before it: follows a `LyingScript`, and keeps what parties say.

    Attributes:
        script: what it does now.
        answers: all that it was told so far.
        folding: the names of tasks whose replies are summands.
        fault: an error of a script's own, which no reducer may hide.
    """

    script: LyingScript
    answers: list[PartyAnswer]
    folding: set[str]
    fault: Exception | None
    _extra: list[Request]

    def begin(self) -> None:
        """Forget everything."""
        self.script, self.answers, self.folding, self._extra = LyingScript(), [], set(), []
        self.fault = None

    # ------------------------------------------------------------------ what the engines differ in

    @property
    def context(self) -> RunContext:
        """The world that the engine serves."""
        raise NotImplementedError

    async def plain_run(self, request: Request, positions: NDArray[np.int64]) -> list[Reply]:
        """Run as the engine does."""
        raise NotImplementedError

    async def plain_fold(self, request: Request, positions: NDArray[np.int64]) -> PartialSum:
        """Fold as the engine does."""
        raise NotImplementedError

    def rewrite_request(self, request: Request, position: int) -> Request | None:
        """A request as a party gets it."""
        if any(request is one for one in self._extra):
            return request
        try:
            return self.script.alter(request, self.name_of(position))
        except Exception as error:
            self.fault = error
            raise

    async def _after(self, request: Request, positions: NDArray[np.int64]) -> None:
        try:
            await self.script.after(request, [self.name_of(p) for p in positions.tolist()])
        except Exception as error:
            self.fault = error
            raise

    async def restart(self, names: Iterable[str]) -> None:
        """Kill the processes of these parties, and start them again from their folders."""
        raise NotImplementedError

    # ------------------------------------------------------------------ verbs of attacks

    def name_of(self, position: int) -> str:
        """The name of a party."""
        return self.context.roster.name(position)

    def positions_of(self, names: Iterable[str]) -> NDArray[np.int64]:
        """The positions of some parties."""
        return np.array([self.context.roster.position(name) for name in names], dtype=np.int64)

    async def ask(self, request: Request, names: Iterable[str]) -> list[PartyAnswer]:
        """Send a request that no honest server would send to each of these parties, and keep the answers."""
        found, folds = [], request.task.name in self.folding
        for name in names:
            request, where = replace(request), self.positions_of([name])
            self._extra.append(request)
            try:
                if folds:
                    found += self._note_summand(request, where, await self.plain_fold(request, where), extra=True)
                else:
                    found += [
                        self._note_reply(request, one, extra=True) for one in await self.plain_run(request, where)
                    ]
            except AtollError as error:
                found.append(self._note_answer(PartyAnswer(name, request, None, refused=str(error), extra=True)))
            finally:
                self._extra.remove(request)
        return found

    # ------------------------------------------------------------------ what it is told

    def _note_answer(self, answer: PartyAnswer) -> PartyAnswer:
        self.answers.append(answer)
        return answer

    def _note_reply(self, request: Request, reply: Reply, *, extra: bool = False) -> PartyAnswer:
        refused = "" if reply.error is None else str(reply.error)
        said = PartyAnswer(
            self.name_of(reply.party),
            request,
            wire_form(reply.value) if reply.usable else None,
            dict(reply.mail),
            refused or reply.rejected,
            extra,
        )
        return self._note_answer(said)

    def _note_summand(
        self, request: Request, positions: NDArray[np.int64], part: PartialSum, *, extra: bool = False
    ) -> list[PartyAnswer]:
        """Note the summand of one party."""
        (position,) = positions.tolist()
        why = str(part.errors.get(position, "")) or part.rejected.get(position, "")
        there = position in part.senders.tolist()
        value = {name: M.decode(M.encode(total.value)) for name, total in part.totals.items()} if there else None
        refused = "" if there else why or "no reply"
        return [self._note_answer(PartyAnswer(self.name_of(position), request, value, {}, refused, extra))]

    # ------------------------------------------------------------------ the engine's verbs

    async def run(self, request: Request, positions: NDArray[np.int64]) -> list[Reply]:
        """Run the task at each party, and keep what it says."""
        if any(request is one for one in self._extra):
            return await self.plain_run(request, positions)
        replies = []
        for position in positions.tolist():
            mine = self.rewrite_request(request, position)
            if mine is not None:
                (reply,) = await self._honest_run(request, mine, position)
                self._note_reply(mine, reply, extra=self.script.lies or mine is not request)
            if mine is None or self.script.hides(request, self.name_of(position)):
                reply = Reply(position, error=_make_loss_error())
            replies.append(reply)
        await self._after(request, positions)
        return replies

    async def fold(self, request: Request, positions: NDArray[np.int64]) -> PartialSum:
        """Add up the summands of the parties, and keep each."""
        self.folding.add(request.task.name)
        if any(request is one for one in self._extra):
            return await self.plain_fold(request, positions)
        parts = []
        for position in positions.tolist():
            where, mine = np.array([position], dtype=np.int64), self.rewrite_request(request, position)
            if mine is not None:
                part = await self._refusable(request, mine, where)
                self._note_summand(mine, where, part, extra=self.script.lies or mine is not request)
            if mine is None or self.script.hides(request, self.name_of(position)):
                part = PartialSum({}, where[:0], where[:0], errors={position: _make_loss_error()})
            parts.append(part)
        await self._after(request, positions)
        return PartialSum.zero().merge(*(_copy_part(part) for part in parts))

    async def _refusable(self, request: Request, mine: Request, where: NDArray[np.int64]) -> PartialSum:
        """A summand; the refusal of a whole cohort is that of its one party."""
        try:
            return await self._honest_fold(request, mine, where)
        except AtollError as error:
            return PartialSum({}, where[:0], where[:0], errors={int(where[0]): error})

    async def _honest_run(self, request: Request, mine: Request, position: int) -> list[Reply]:
        del request
        return await self.plain_run(mine, np.array([position], dtype=np.int64))

    async def _honest_fold(self, request: Request, mine: Request, where: NDArray[np.int64]) -> PartialSum:
        del request
        return await self.plain_fold(mine, where)


def _make_loss_error() -> TaskError:
    return TaskError("the party was lost", where="lying server", remedy="none: a server that lies says so")


def _copy_part(part: PartialSum) -> PartialSum:
    """The same summand, with arrays of its own: a sum may be made in place."""
    totals = {name: replace(total, value=M.decode(M.encode(total.value))) for name, total in part.totals.items()}
    return replace(part, totals=totals)


def mail_of(answers: Iterable[PartyAnswer]) -> Mailboxes:
    """The letters that came with some answers."""
    made = Mailboxes()
    for one in answers:
        made.put(one.party, one.letters)
    return made


class LyingInline(LyingServer, Inline):
    """A lying server whose parties are in its own process. They take it for a server of another organisation, so they vote, and tell it one thing when they refuse."""

    live: ClassVar[bool] = True

    def __init__(self) -> None:
        super().__init__()
        self.begin()
        self._context: RunContext | None = None

    @property
    def context(self) -> RunContext:
        """The world that the engine serves."""
        if self._context is None:
            raise RuntimeError("the engine is not open")
        return self._context

    async def open(self, world: RunContext) -> None:
        """Create the host."""
        self._context = world
        self._host = self._make_host(world)

    def _make_host(self, world: RunContext) -> Host:
        made = world.host(vectorised=False)
        return replace(made, executor=replace(made.executor, remote=True))

    async def plain_run(self, request: Request, positions: NDArray[np.int64]) -> list[Reply]:
        """Run as the engine does."""
        return await Inline.run(self, request, positions)

    async def plain_fold(self, request: Request, positions: NDArray[np.int64]) -> PartialSum:
        """Fold as the engine does."""
        return await Inline.fold(self, request, positions)

    async def conclude(self, path: str, asked: NDArray[np.int64], kept: NDArray[np.int64]) -> None:
        """End a sum, unless the server withholds that, or twice."""
        for _ in range(0 if self.script.withholds else 2 if self.script.repeats else 1):
            await super().conclude(path, asked, kept)

    async def restart(self, names: Iterable[str]) -> None:
        """Make the host again from its folder."""
        del names
        self._host = self._make_host(self.context)
