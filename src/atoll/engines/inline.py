"""The inline engine: one task after another, in this process. Slow, plain, and the reference for all others."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from atoll.core.host import Host
    from atoll.core.request import Folded, Ran, Reply, Request
    from atoll.core.session import Switch
    from atoll.core.world import World

__all__ = ["Inline", "converse_here"]


async def converse_here(
    host: Host, roles: dict[str, tuple[Request, int]], switch: Switch, start: float
) -> dict[str, tuple[Any, float]]:
    """Run the roles of a session side by side in this process; one that fails ends them all."""
    known = host.replay_session(roles, switch)
    if known is not None:
        return known
    peers = {role: switch.peers(role, start) for role in roles}

    async def play(role: str) -> Ran:
        ran = await host.role(*roles[role], peers[role])
        switch.ended(role)
        return ran

    tasks = {role: asyncio.create_task(play(role)) for role in roles}
    try:
        rans = await asyncio.gather(*tasks.values())
    except BaseException:
        for task in tasks.values():
            task.cancel()
        await asyncio.gather(*tasks.values(), return_exceptions=True)
        raise
    return host.absorb_session(roles, dict(zip(roles, rans, strict=True)), switch)


class Inline:
    """Runs every task in this process, party by party; a debugger can stop anywhere."""

    name: ClassVar[str] = "inline"
    vectorised: ClassVar[bool] = False

    def __init__(self) -> None:
        self.choices: dict[str, Any] = {}
        self._host: Host | None = None

    @property
    def host(self) -> Host:
        """The one host of all islands."""
        if self._host is None:
            raise RuntimeError("the engine is not open")
        return self._host

    async def open(self, world: World) -> None:
        """Make the host."""
        self._host = world.host(vectorised=self.vectorised)

    async def run(self, request: Request, positions: NDArray[np.int64]) -> list[Reply]:
        """Run the task at each party."""
        return await self.host.run(request, positions)

    async def fold(self, request: Request, positions: NDArray[np.int64]) -> Folded:
        """Run the task at each party and add up."""
        return await self.host.fold(request, positions)

    async def converse(
        self, roles: dict[str, tuple[Request, int]], switch: Switch, start: float
    ) -> dict[str, tuple[Any, float]]:
        """Run the roles of a session side by side."""
        return await converse_here(self.host, roles, switch, start)

    async def commit(self, slot: str, generation: int, *, full: bool = False) -> list[str]:
        """Write the private state of a slot."""
        return self.host.store.commit(slot, generation, full=full)

    async def settle(self, slot: str) -> None:
        """Let the journal forget, and the store count as clean."""
        self.host.store.settle(slot)
        self.host.journal.forget(slot)

    async def load(self, slot: str, segments: list[str]) -> None:
        """Take private state back to a generation."""
        self.host.store.load(slot, segments)

    async def drop(self, slot: str) -> None:
        """Forget a slot."""
        self.host.store.drop(slot)

    async def close(self) -> None:
        """Nothing to release."""
