"""A server's front on a real socket in this process, with one good admin and one good site, and hands to write to it with."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from atoll.runtime.admin import Admin
from atoll.runtime.line import Backoff, Channel, Line, Settings, dial_line
from atoll.runtime.provision import Kit
from atoll.runtime.resources import Resources
from atoll.runtime.server.server import Server
from atoll.runtime.site.site import Site
from atoll.runtime.transport import Pipe, transport
from atoll.runtime.worker.sitedata import site_spec
from tests.support.carriers import carrier

QUICK = Settings(heartbeat=None, patience=10.0)
Kits = Callable[[str], Kit]


class Besieged:
    """A server under attack.

    Attributes:
        address: where it listens.
        server: itself.
        folder: its own.
    """

    def __init__(self, kits: Kits, server: Server, address: str) -> None:
        self.kits, self.server, self.address = kits, server, address
        self.folder = server.folder
        self.lines: list[Line] = []

    def kit(self, name: str) -> Kit:
        return self.kits(f"ours/{name}")

    async def pipe(self, name: str) -> Pipe:
        """A connection that has said nothing yet, with a good certificate."""
        kit = self.kit(name)
        return await transport(self.server.kit.transport).dial(self.address, kit.credentials(), kit.server.name)

    async def line(self, name: str, on_open: Callable[[Channel], None] | None = None, *, asks: bool = False) -> Line:
        """A line that has said nothing yet."""
        made = await dial_line(
            partial(self.pipe, name),
            settings=QUICK,
            on_open=on_open,
            backoff=Backoff(first=0.01, longest=0.1),
            asks=asks,
        )
        self.lines.append(made)
        return made

    @contextlib.asynccontextmanager
    async def admin(self, name: str = "anna") -> AsyncIterator[Admin]:
        """Somebody good."""
        async with Admin(self.kit(name), self.address) as made:
            yield made

    async def serves(self) -> list[dict[str, Any]]:
        """Ask as a good admin; the jobs."""
        async with self.admin() as admin, asyncio.timeout(60):
            return await admin.jobs()

    async def ask(self, name: str, frame: Any) -> Any:
        """Send one request as it is; what comes back, or None if the channel is closed."""
        line = await self.line(name)
        try:
            channel = line.open("request")
            await channel.send(frame)
            async with asyncio.timeout(60):
                return await channel.recv()
        finally:
            await line.close(within=0.2)


@contextlib.asynccontextmanager
async def besieged(kits: Kits, folder: Path, over: str | None = None, **options: Any) -> AsyncIterator[Besieged]:
    """A server's front that listens."""
    name, kit = over or carrier(), kits("ours/server")
    made = Server(kit_over(kit, name), folder / "server", address="127.0.0.1:0", **options)
    listening: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    serving = asyncio.create_task(made.serve(listening.set_result))
    await asyncio.wait({serving, listening}, return_when=asyncio.FIRST_COMPLETED)
    try:
        siege = Besieged(lambda path: kit_over(kits(path), name), made, await listening)
        yield siege
        assert not serving.done(), serving
        for line in siege.lines:  # one that was cut off may not know it yet, and still has its socket
            await line.close(within=1.0)
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)


def kit_over(kit: Kit, name: str) -> Kit:
    """The same kit over another transport."""
    return Kit(kit.folder, kit.config.model_copy(update={"transport": name}))


@contextlib.asynccontextmanager
async def good_site(kit: Kit, address: str, folder: Path, policy: str = "", **options: Any) -> AsyncIterator[Site]:
    """A site's front; ``policy`` is what stands in its settings."""
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(folder / "rows.npz", x=np.ones((5, 4)), y=np.arange(5) % 2)
    (folder / "site.yaml").write_text(f"path: rows.npz\n{policy}", encoding="utf-8")
    spec = site_spec(str(folder / "site.yaml"))
    made = Site(kit, spec, folder / "site", Resources(cpus=8.0, memory=1 << 40), server=address, **options)
    connected = asyncio.Event()
    serving = asyncio.create_task(made.serve(lambda server: connected.set()))
    try:
        async with asyncio.timeout(60):
            await connected.wait()
        yield made
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)


def played(body: Callable[[], Awaitable[None]], seconds: float = 120.0) -> None:
    """Run a test's body; what hangs fails."""

    async def main() -> None:
        async with asyncio.timeout(seconds):
            await body()

    asyncio.run(main())
