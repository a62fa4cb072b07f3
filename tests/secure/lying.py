"""A server that lies, in one process: it sends parties other requests than the protocol's, and keeps what they answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atoll.core.algebra.aggregate import Sum
from atoll.core.errors import AtollError
from atoll.core.federation.federation import run_program
from atoll.core.requests.cohort import Community
from atoll.core.requests.request import Mailboxes, PartialSum, Reply, Request
from atoll.core.requests.task import task
from atoll.core.time.clock import run
from atoll.core.world import World
from atoll.engines import Inline
from atoll.secure.masking.party_steps import label_of

VALUES = [float(7 * i + 3) for i in range(6)]
"""What the parties add up, times 0 to 3."""

Lie = Callable[["LyingServer", Request, NDArray[np.int64]], Awaitable[Any]]


@task
def value(island: Any, message: Any) -> Any:
    return {"x": Sum(np.arange(4) * island.data)}


def step_of(request: Request) -> str:
    """The name of a request's task without its module."""
    return request.task.name.rpartition(":")[2]


class LyingServer(Inline):
    """The inline engine; at some steps of a protocol it does what a test says instead.

    Args:
        losing: ``(step, number of the sum) -> places`` of parties whose replies the server leaves out of what it adds up.
        **lies: the name of a step -> what the server does there, given the honest request; it returns what the protocol goes on with. `ask` sends a request.

    Attributes:
        answers: what parties replied to requests that are no part of the protocol.
        seen: the honest requests by step, one a sum.
    """

    def __init__(self, losing: Mapping[tuple[str, int], Collection[int]] | None = None, **lies: Lie) -> None:
        super().__init__()
        self.lies, self.losing = lies, losing or {}
        self.answers: list[Reply] = []
        self.seen: dict[str, list[Request]] = {}

    async def run(self, request: Request, positions: NDArray[np.int64]) -> list[Reply]:
        step = step_of(request)
        self.seen.setdefault(step, []).append(request)
        if step not in self.lies:
            return await super().run(request, positions)
        said: list[Reply] = await self.lies[step](self, request, positions)
        return said

    async def fold(self, request: Request, positions: NDArray[np.int64]) -> PartialSum:
        step = step_of(request)
        self.seen.setdefault(step, []).append(request)
        gone = self.losing.get((step, len(self.seen[step]) - 1), ())
        return await super().fold(request, np.array([p for p in positions.tolist() if p not in gone], dtype=np.int64))

    async def ask(self, request: Request, positions: NDArray[np.int64]) -> list[Reply]:
        """Send a request, whatever it says."""
        return await super().run(request, positions)

    async def also_ask(self, request: Request, positions: NDArray[np.int64]) -> list[Reply]:
        """Send a request that is no part of the protocol, and keep the answers."""
        said = await self.ask(request, positions)
        self.answers += said
        return said


def asking_first(*changes: Callable[[Request], Request]) -> Lie:
    """Send changed requests to the same parties, and then the honest one."""

    async def lie(server: LyingServer, request: Request, positions: NDArray[np.int64]) -> list[Reply]:
        for change in changes:
            await server.also_ask(change(request), positions)
        return await server.ask(request, positions)

    return lie


def asking_afterwards(*changes: Callable[[Request], Request]) -> Lie:
    """Send the honest request, and then changed ones to the same parties."""

    async def lie(server: LyingServer, request: Request, positions: NDArray[np.int64]) -> list[Reply]:
        said = await server.ask(request, positions)
        for change in changes:
            await server.also_ask(change(request), positions)
        return said

    return lie


def of_set(kept: Collection[int], lost: Collection[int] = (), *, named: bool = True) -> Callable[[Request], Request]:
    """The same step for another set of parties, whose letters alone are handed over.

    Args:
        kept: places of the parties in the sum.
        lost: places of those that are not.
        named: whether the request's label is that of the set; without it, the id stays.
    """

    def change(request: Request) -> Request:
        label = label_of(sorted(kept), sorted(lost))
        name = f"{request.id.rpartition('@')[0]}@{label}" if named else request.id
        mail = None if request.mail is None else request.mail.only_from({f"client-{i}" for i in kept})
        return replace(request, id=name, message={"kept": sorted(kept), "lost": sorted(lost)}, mail=mail)

    return change


def with_letters_of(*senders: int) -> Callable[[Request], Request]:
    """The same request with the letters of these parties alone."""
    names = {f"client-{i}" for i in senders}
    return lambda request: replace(request, mail=request.mail and request.mail.only_from(names))


def letters_of(replies: Collection[Reply]) -> Mailboxes:
    """What parties posted with their replies, as the server relays it."""
    made = Mailboxes()
    for reply in replies:
        made.put(f"client-{reply.party}", reply.mail)
    return made


def with_letters(own: Mailboxes, more: Mailboxes, senders: Collection[str]) -> Mailboxes:
    """Letters, of which those of some senders are replaced by others."""
    taken = [(sender, to) for sender, to in more.routes if sender in senders]
    boxes = {to: own.box(to) for _, to in [*own.routes, *taken]}
    for sender, to in taken:
        boxes[to][sender] = more.box(to)[sender]
    return Mailboxes(boxes)


def summed(
    reducer: Any,
    engine: Inline,
    *,
    sums: int = 1,
    sealing: str = "real",
) -> list[Any]:
    """Sums of some parties, one after another: what each gave, or its error."""
    people = Community(VALUES, others=dict.fromkeys(reducer.others))

    async def program(fed: Any) -> list[Any]:
        found: list[Any] = []
        for number in range(sums):
            try:
                who = fed.where("client")
                found.append(await fed.sum(who, value, float(number), reducer=reducer, at=number))
            except AtollError as error:
                found.append(error)
        return found

    world = World(people, engine, sealing=sealing)
    return list(run(run_program(world, program))[0])


def is_honest(found: Any, who: Collection[int] = range(len(VALUES))) -> bool:
    """Whether a sum is that of these parties."""
    total = np.arange(4) * sum(VALUES[i] for i in who)
    return found.n == len(who) and np.allclose(found["x"], total, atol=1e-4)


def are_refused(replies: Collection[Reply]) -> bool:
    """Whether every party refused, and there was one to ask."""
    return len(replies) > 0 and all(isinstance(reply.error, AtollError) for reply in replies)
