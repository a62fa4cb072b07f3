"""Observes what a server receives: an engine that records it, with secrets that can be drawn again one at a time."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core import message as M
from atoll.core.algebra.rng import Rng
from atoll.core.errors import QuorumError
from atoll.core.execution.engine import RunContext
from atoll.core.execution.executor import Executor
from atoll.core.federation.federation import run_program
from atoll.core.requests.cohort import Community
from atoll.core.requests.island import Secret
from atoll.core.requests.request import PartialSum, wire_form
from atoll.core.time.clock import run
from atoll.core.world import World
from atoll.engines import Inline
from atoll.testing.timetable import Timetable

from .sight import SecretDraw, Sight
from .sums import NAMES, totals

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.core.algebra.tree import Tree
    from atoll.core.execution.session import Switch
    from atoll.core.federation.federation import Federation
    from atoll.core.federation.reducer import Reducer
    from atoll.core.requests.island import Island
    from atoll.core.requests.request import Reply, Request, TaskResult

__all__ = ["Looks", "Onlooker"]

AGAIN = "~again"
"""How the id of a request ends that the server sends a second time, with another message."""


class _Redrawn(Secret):
    """Secrets from a seed, each call of a method from its own stream, so that one can be redrawn without the others."""

    __slots__ = ("_anew", "_number", "_place", "_sight")

    def __init__(self, place: tuple[str, str], sight: Sight, anew: Mapping[SecretDraw, int]) -> None:
        super().__init__(0)
        self._place, self._sight, self._anew = place, sight, anew
        self._number = 0

    def _next(self) -> Secret:
        draw = SecretDraw(*self._place, self._number)
        self._number += 1
        self._sight.draws.append(draw)
        self.drawn = True
        return Secret(Rng.of(self._anew.get(draw, 0)).child(*draw).key)

    def bytes(self, n: int) -> bytes:
        return self._next().bytes(n)

    def uint64(self, shape: int | tuple[int, ...]) -> NDArray[np.uint64]:
        return self._next().uint64(shape)

    def uniform(self, shape: int | tuple[int, ...]) -> NDArray[np.float64]:
        return self._next().uniform(shape)

    def generator(self) -> np.random.Generator:
        return self._next().generator()

    def integer(self, below: int) -> int:
        return self._next().integer(below)


@dataclass
class _Watched(Executor):
    """An executor whose islands' secrets can be drawn again."""

    sight: Sight = field(default_factory=Sight)
    anew: Mapping[SecretDraw, int] = field(default_factory=dict)

    def island(self, request: Request, position: int, *args: Any, **more: Any) -> Island:
        made = super().island(request, position, *args, **more)
        made._secret = _Redrawn((request.id, made.name), self.sight, self.anew)
        return made


class Onlooker(Inline):
    """The inline engine, one party at a time, which records what a server between organisations could read.

    That is the value and the notes of every reply, why one failed or was rejected, who wrote to whom and how many bytes,
    what the roles of a session return, and how many messages and bytes they sent each other. The contents of letters
    and of messages between roles are sealed.

    Args:
        anew: secret draws to replace -> the number of the replacement.
        asks: id of a request -> a message with which the server sends it a second time, if it is another.
    """

    def __init__(self, anew: Mapping[SecretDraw, int] | None = None, asks: Mapping[str, Tree] | None = None) -> None:
        super().__init__()
        self.sight = Sight()
        self._anew, self._asks = anew or {}, asks or {}

    async def open(self, world: RunContext) -> None:
        """Create the host."""
        await super().open(world)
        made = self.host.executor
        same = {each.name: getattr(made, each.name) for each in fields(made)}
        self.host.executor = _Watched(**same, sight=self.sight, anew=self._anew)

    def _begun(self, request: Request, positions: NDArray[np.int64]) -> None:
        self.sight.messages[request.id] = request.message
        names = [self.host.executor.roster.name(position) for position in positions.tolist()]
        self.sight.asked.setdefault(request.id, []).extend(names)
        if request.wraps is not None and request.id not in self.sight.wrapping:
            self.sight.wrapping.append(request.id)

    async def run(self, request: Request, positions: NDArray[np.int64]) -> list[Reply]:
        """Run the task at each party."""
        self._begun(request, positions)
        replies = await super().run(request, positions)
        self._saw(request.id, replies)
        if request.id in self._asks and not M.equal(self._asks[request.id], request.message):
            twice = replace(request, id=request.id + AGAIN, message=self._asks[request.id])
            self._saw(twice.id, await super().run(twice, positions))
        return replies

    def _saw(self, request: str, replies: list[Reply]) -> None:
        for reply in replies:
            letters = {to: letter.nbytes for to, letter in reply.mail.items()}
            sent = {"value": wire_form(reply.value), "notes": reply.notes, "letters": letters}
            refused = {"error": None if reply.error is None else str(reply.error), "rejected": reply.rejected}
            self.sight.note(request, self.host.executor.roster.name(reply.party), {**sent, **refused})

    async def fold(self, request: Request, positions: NDArray[np.int64]) -> PartialSum:
        """Run the task at each party and add up; a server of separate parties gets each total by itself."""
        self._begun(request, positions)
        parts = []
        for position in positions:
            part = await super().fold(request, np.array([position]))
            sent: dict[str, Any] = {
                name: {"kind": total.kind, "value": total.value, "weight": total.weight}
                for name, total in part.totals.items()
                if total.kind != "parts"
            }
            refused = {"errors": [str(e) for e in part.errors.values()], "rejected": list(part.rejected.values())}
            self.sight.note(request.id, self.host.executor.roster.name(int(position)), {"totals": sent, **refused})
            parts.append(part)
        return PartialSum.zero().merge(*parts)

    async def converse(
        self, roles: dict[str, tuple[Request, int]], switch: Switch, start: float
    ) -> dict[str, TaskResult]:
        """Run the roles of a session."""
        ended = await super().converse(roles, switch, start)
        for role, ran in ended.items():
            said = {to: [words.messages, words.nbytes] for to, words in ran.said.items()}
            sent = {"value": ran.reply.value, "said": said}
            self.sight.note(roles[role][0].id, self.host.executor.roster.name(ran.reply.party), sent)
        return ended


@dataclass
class Looks:
    """Sums of five parties, and what a server receives for them."""

    reducer: Reducer
    others: dict[str, Any]
    proved: tuple[str, ...]
    seed: int

    @property
    def law(self) -> str:
        """Return how complaints begin."""
        return f"{type(self.reducer).__name__} breaks the law of hiding"

    def sight(
        self,
        turned: int = 0,
        inside: Collection[str] = (),
        anew: Mapping[SecretDraw, int] | None = None,
        *,
        sums: int = 1,
        kinds: bool = False,
        pretend: Mapping[str, Collection[str]] | None = None,
        lost: Mapping[str, Collection[str]] | None = None,
        seconds: Mapping[str, float] | None = None,
        **terms: Any,
    ) -> Sight:
        """Run a program that adds up.

        Args:
            turned: by how many places to rotate the data of the parties in the sum, which keeps the sum; other parties
                get other data.
            inside: who is in the sum.
            anew: secret draws to replace.
            sums: how many sums.
            kinds: sums of all kinds, not only means.
            pretend: id of a request -> whose reply the server calls lost when it asks for the steps behind it a second
                time.
            lost: id of a request -> whose reply is lost.
            seconds: seconds of each party's replies.
            **terms: terms of the sums.
        """
        rows = {name: (np.arange(4) * 7 + i + 1) / 8 for i, name in enumerate(NAMES)}
        mine = [name for name in NAMES if name in inside]
        data = {name: row + turned for name, row in rows.items()}
        data.update({name: rows[mine[(i + turned) % len(mine)]] for i, name in enumerate(mine)})

        async def program(fed: Federation) -> list[list[str]]:
            found: list[list[str]] = []
            task = totals.with_args(kinds=kinds)
            for number in range(sums):
                try:
                    got = await fed.sum(fed.parties, task, float(number), reducer=self.reducer, at=number, **terms)
                    found.append(list(got.senders.names))
                except QuorumError:
                    found.append([])
            return found

        def look(gone: Mapping[str, Collection[str]], asks: Mapping[str, Any]) -> Sight:
            onlooker = Onlooker(anew or {}, asks)
            people = Community(list(data.values()), others=self.others)
            world = World(people, onlooker, cost=Timetable(seconds or {}, lost=gone), seed=self.seed)
            onlooker.sight.result = run(run_program(world, program))[0]
            onlooker.sight.leave_out(self.proved)
            return onlooker.sight

        return look(lost or {}, look(pretend, {}).messages if pretend else {})
