"""Two processes that stay up while engines come and go: one dials the other over mutual TLS, and both pass on the blocks of local channels.

``python bridge.py server FOLDER TRANSPORT`` listens, prints its address and waits; ``python bridge.py sites FOLDER TRANSPORT ADDRESS`` dials once a
site. Engines connect to the socket ``engines`` in the folder, residents to ``residents``; a channel's name says ``engine/site``, or ``engine/site/other`` for
what goes from one site to another directly.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
import subprocess
import sys
from collections import Counter
from functools import partial
from pathlib import Path

from atoll.runtime.daemon.child import ORPHANED, die_with_parent
from atoll.runtime.daemon.control import relay
from atoll.runtime.identity import Credentials, Peer
from atoll.runtime.line import Switchboard, dial_line, local_line
from atoll.runtime.site.neighbours import Neighbours
from atoll.runtime.transport import TRANSPORTS, local_pipe
from atoll.testing.lying.sites import Rehearsal

LOCAL = Peer("job", "site", "here", 0, "")
SITES = ("site-1", "site-2", "site-3")


# ---------------------------------------------------------------------- the two processes


def kept(folder, name):
    return Credentials(*((folder / f"{name}.{part}").read_bytes() for part in ("ca", "certificate", "key")))


async def locals_at(path, on_channel):
    """Accept local lines; each of their channels is handed on."""
    loop, relays = asyncio.get_running_loop(), set()
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(path))
    listening.listen(64)
    listening.setblocking(False)

    def opened(channel):
        task = asyncio.ensure_future(on_channel(channel))
        relays.add(task)
        task.add_done_callback(relays.discard)

    async def accept():
        while True:
            sock, _ = await loop.sock_accept(listening)
            relays.add(asyncio.ensure_future(joined(sock)))

    async def joined(sock):
        await local_line(await local_pipe(sock, LOCAL), dialled=False, on_open=opened)

    return asyncio.ensure_future(accept())


async def server(folder, transport):
    lines = {}
    there = asyncio.Condition()

    def on_line(line):
        lines[line.peer.name] = line

        async def tell():
            async with there:
                there.notify_all()

        relays.add(asyncio.ensure_future(tell()))

    relays = set()

    async def on_channel(channel):
        site = channel.name.rpartition("/")[2]
        async with there:
            await there.wait_for(lambda: site in lines)
        await relay(channel, lines[site].open(channel.name))

    board = Switchboard(on_line)
    made = TRANSPORTS[transport]()
    listener = await made.listen("127.0.0.1:0", kept(folder, "server"), board.accept)
    accepting = await locals_at(folder / "engines", on_channel)
    print(listener.address, flush=True)
    await accepting


async def sites(folder, transport, address):
    waiting = {}

    def arrival(name):
        return waiting.setdefault(name, asyncio.get_running_loop().create_future())

    async def pair(channel):
        other = await arrival(channel.name)
        await relay(channel, other)

    relays = set()

    def from_network(channel):
        relays.add(asyncio.ensure_future(pair(channel)))

    async def from_resident(channel):
        run, me, *other = channel.name.split("/")
        if not other:
            arrival(channel.name).set_result(channel)
        elif me < other[0]:
            await relay(channel, await neighbours[me].open(other[0], neighbours[other[0]].address, f"direct/{run}"))
        else:
            await relay(channel, await arrival((run, me, other[0])))

    def between(me, channel):
        arrival((channel.name.partition("/")[2], me, channel.peer.name)).set_result(channel)

    neighbours = {site: Neighbours(kept(folder, site), transport, "127.0.0.1:0") for site in SITES}
    for site, made in neighbours.items():
        made.on_open = partial(between, site)
        made.learn((folder / "revoked.crl").read_bytes())
        await made.listen()

    made = TRANSPORTS[transport]()
    accepting = await locals_at(folder / "residents", from_resident)
    dialled = [await dial_line(partial(made.dial, address, kept(folder, site)), on_open=from_network) for site in SITES]
    print("dialled", len(dialled), flush=True)
    await accepting


# ---------------------------------------------------------------------- the test's side


class Bridge:
    """The two processes, with certificates of their own."""

    def __init__(self, folder: Path, transport: str, authority) -> None:
        self.folder, self.transport = folder, transport
        self._numbers = itertools.count()
        for name in ("server", *SITES):
            role, usage = ("server", None) if name == "server" else ("site", "both")
            made = authority.issue(role, name, usage=usage)
            for part in ("ca", "certificate", "key"):
                (folder / f"{name}.{part}").write_bytes(getattr(made, part))
        (folder / "revoked.crl").write_bytes(authority.revocation_list())
        self._processes = []
        address = self._started("server")
        self._started("sites", address)

    def _started(self, *args: str) -> str:
        command = [sys.executable, __file__, args[0], str(self.folder), self.transport, *args[1:]]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONWARNINGS": "default"}
        )
        self._processes.append(process)
        return process.stdout.readline().strip()

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()
            process.stdout.close()

    def engine(self, workers=None, **terms) -> Bridged:
        """An engine whose three sites are behind the bridge."""
        return Bridged(self, f"engine-{os.getpid()}-{next(self._numbers)}", **terms)


class Bridged(Rehearsal):
    """A rehearsal whose links cross the bridge."""

    def __init__(self, bridge: Bridge, run: str, sites: int = len(SITES), neighbours=None, **terms) -> None:
        super().__init__(sites, **terms)
        self._bridge, self._run = bridge, run
        self._lines = []
        everyone = SITES[:sites] if self.direct else ()
        self._neighbours = dict.fromkeys(SITES, everyone) if neighbours is None else neighbours
        self.frames = Counter()

    def _take_frame(self, site_link, frame):
        self.frames[frame["op"]] += 1
        super()._take_frame(site_link, frame)

    async def link(self, name, make):
        others = [other for other in self._neighbours.get(name, ()) if other != name]
        self.start(serve_behind, self._bridge.folder / "residents", f"{self._run}/{name}", others, make)
        line = await line_to(self._bridge.folder / "engines")
        self._lines.append(line)
        return line.open(f"{self._run}/{name}")

    async def close(self):
        await super().close()
        for line in self._lines:
            line.lose(ConnectionError("the engine is closed"))
            await line.detach()


async def line_to(path):
    sock = socket.socket(socket.AF_UNIX)
    sock.connect(str(path))
    return await local_line(await local_pipe(sock, LOCAL), dialled=True)


def serve_behind(sock, path, name, others, make):
    """The body of a site's process; its socket only tells it when the engine is gone."""

    async def main():
        line = await line_to(path)
        neighbours = {other: line.open(f"{name}/{other}") for other in others}
        serving = asyncio.ensure_future(make(line.open(name), neighbours=neighbours).serve())
        sock.setblocking(False)
        gone = asyncio.ensure_future(asyncio.get_running_loop().sock_recv(sock, 1))
        await asyncio.wait([serving, gone], return_when=asyncio.FIRST_COMPLETED)
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)

    asyncio.run(main())


if __name__ == "__main__":
    if not die_with_parent(os.getppid()):
        sys.exit(ORPHANED)
    role, folder, *rest = sys.argv[1:]
    asyncio.run({"server": server, "sites": sites}[role](Path(folder), *rest))
