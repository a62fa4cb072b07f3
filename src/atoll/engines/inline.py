"""The inline engine: one task after another, in this process. Slow, plain, and the reference for all others."""

from __future__ import annotations

import asyncio
import functools
from typing import TYPE_CHECKING, Any, ClassVar

from atoll.core.requests.request import cut_off
from atoll.core.time.clock import watching

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from atoll.core.execution.engine import RunContext
    from atoll.core.execution.host import Host
    from atoll.core.execution.session import Switch
    from atoll.core.requests.request import PartialSum, Reply, Request, TaskResult

__all__ = ["Inline", "Memory", "converse_here"]


class Memory:
    """What every engine does with private state and the journal."""

    _host: Host | None = None

    @property
    def host(self) -> Host:
        """State, journal and ledger of all islands."""
        if self._host is None:
            raise RuntimeError("the engine is not open")
        return self._host

    async def conclude(self, path: str, asked: NDArray[np.int64], kept: NDArray[np.int64]) -> None:
        """End a sum: the states of the parties that are kept take effect."""
        del asked
        self.host.drafts.conclude(path, kept)

    async def commit(self, slot: str, generation: int, *, full: bool = False) -> list[str]:
        """Write the private state of a slot."""
        return self.host.store.commit(slot, generation, full=full)

    async def settle(self, slot: str) -> None:
        """Clear the journal, and mark the store as clean."""
        self.host.store.settle(slot)
        self.host.journal.forget(slot)

    async def load(self, slot: str, segments: list[str]) -> None:
        """Restore the private state of a generation."""
        self.host.store.load(slot, segments)

    async def drop(self, slot: str) -> None:
        """Remove a slot that ended, and every slot inside it."""
        self.host.store.drop(slot)

    async def publish(self) -> None:
        """Publish named results for people and later jobs, after the program ended well."""
        self.host.publish()


async def converse_here(
    host: Host, roles: dict[str, tuple[Request, int]], switch: Switch, start: float
) -> dict[str, TaskResult]:
    """Run the roles of a session concurrently in this process; if one fails, all end."""
    known = host.replay_session(roles, switch)
    if known is not None:
        return known
    start, steps = host.resume_session(roles, switch, start)
    peers = {
        role: switch.peers(role, start, steps[role], functools.partial(host.keep_step, *roles[role])) for role in roles
    }

    async def play(role: str) -> TaskResult:
        try:
            ran = await host.role(*roles[role], peers[role])
        except asyncio.CancelledError:
            # Only the session's own deadline makes a role late. A cancellation from outside ends the session, and is no outcome of a role.
            if not switch.expired:
                raise
            ran = cut_off(roles[role][1], "late", peers[role].time)
        switch.ended(role, ran.ending, ran.time)
        return ran

    async def expire() -> None:
        await switch.expiry.wait()
        for task in tasks.values():
            task.cancel()

    def idle() -> bool:
        return any(switch.waiting(role, peers[role].waits()) for role in roles)

    tasks = {role: asyncio.create_task(play(role)) for role in roles}
    clock = asyncio.create_task(expire())
    try:
        with watching(idle):
            rans, _ = await asyncio.gather(asyncio.gather(*tasks.values()), switch.verdict())
    except BaseException:
        for task in tasks.values():
            task.cancel()
        # Without this wait, a role could still write to its island after the session has failed.
        await asyncio.gather(*tasks.values(), return_exceptions=True)
        raise
    finally:
        clock.cancel()
    return host.absorb_session(roles, dict(zip(roles, rans, strict=True)), switch)


class Inline(Memory):
    """Run every task in this process, party by party, so that a debugger can stop anywhere."""

    name: ClassVar[str] = "inline"
    vectorised: ClassVar[bool] = False

    def __init__(self) -> None:
        self.choices: dict[str, Any] = {}

    async def open(self, world: RunContext) -> None:
        """Create the host."""
        self._host = world.host(vectorised=self.vectorised)

    async def run(self, request: Request, positions: NDArray[np.int64]) -> list[Reply]:
        """Run the task at each party."""
        return await self.host.run(request, positions)

    async def fold(self, request: Request, positions: NDArray[np.int64]) -> PartialSum:
        """Run the task at each party, and add up the replies."""
        return await self.host.fold(request, positions)

    async def converse(
        self, roles: dict[str, tuple[Request, int]], switch: Switch, start: float
    ) -> dict[str, TaskResult]:
        """Run the roles of a session concurrently."""
        return await converse_here(self.host, roles, switch, start)

    async def close(self) -> None:
        """Do nothing: there is nothing to release."""
