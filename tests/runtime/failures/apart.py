"""``apart.py FOLDER``: server and sites in network namespaces of their own, and what a real network does to them.

To be run by ``unshare --user --map-root-user --net``: this process is in the server's namespace and may lay cables. Each site gets a namespace
and a cable: 10.77.N.1 at the server's end, 10.77.N.2 at the site's.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

from tests.support.bulk_job import BULK
from tests.support.failing_world import SITES, World, ended, outcome, until, write_job

QUICK = {"heartbeat": 0.3, "silence": 1.5}


def system(*command: str) -> None:
    """Run a command of the system."""
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=30)


class Cable:
    """The way between the server and one site.

    Args:
        number: of the site, from 0.
        holder: a process in the site's namespace.
    """

    def __init__(self, number: int, holder: int) -> None:
        self.here, self.there, self.net = f"atoll{number}", f"site{number}", f"10.77.{number}"
        self._inside = ("nsenter", f"--net=/proc/{holder}/ns/net")
        system("ip", "link", "add", self.here, "type", "veth", "peer", "name", self.there)
        system("ip", "link", "set", self.there, "netns", str(holder))
        system("ip", "address", "add", f"{self.net}.1/24", "dev", self.here)
        system("ip", "link", "set", self.here, "up")
        self.inside("ip", "link", "set", "lo", "up")
        self.inside("ip", "address", "add", f"{self.net}.2/24", "dev", self.there)
        self.inside("ip", "link", "set", self.there, "up")

    def inside(self, *command: str) -> None:
        """Run a command in the site's namespace."""
        system(*self._inside, *command)

    def pull(self) -> None:
        """Pull the cable out."""
        system("ip", "link", "set", self.here, "down")

    def plug(self) -> None:
        """Plug it in again."""
        system("ip", "link", "set", self.here, "up")

    def swallow(self) -> None:
        """From now on frames of the server go to a card that is not there: nothing arrives, and nobody is told."""
        system("ip", "neighbour", "replace", f"{self.net}.2", "lladdr", "02:00:00:00:00:01", "dev", self.here, "nud", "permanent")  # fmt: skip

    def deliver(self) -> None:
        """Frames arrive again."""
        system("ip", "neighbour", "delete", f"{self.net}.2", "dev", self.here)

    def throttle(self, rate: str, queue: str) -> None:
        """Let so much pass a second in each direction; what the queue does not hold is lost."""
        limit = ("root", "tbf", "rate", rate, "burst", "16kb", "limit", queue)
        system("tc", "qdisc", "replace", "dev", self.here, *limit)
        self.inside("tc", "qdisc", "replace", "dev", self.there, *limit)

    def free(self) -> None:
        """As fast as it goes."""
        system("tc", "qdisc", "delete", "dev", self.here, "root")
        self.inside("tc", "qdisc", "delete", "dev", self.there, "root")

    def dropped(self) -> int:
        """Packets that the queue at the server's end has lost so far."""
        shown = subprocess.run(
            ["tc", "-s", "qdisc", "show", "dev", self.here], check=True, capture_output=True, text=True, timeout=30
        )
        return int(shown.stdout.partition("dropped ")[2].split(",")[0])


async def play(folder: Path) -> None:
    """All that a network does, one after another."""
    system("ip", "link", "set", "lo", "up")
    holders = [await asyncio.create_subprocess_exec("unshare", "--net", "sleep", "600") for _ in SITES]
    own = Path("/proc/self/ns/net").readlink()
    try:
        for holder in holders:
            net = Path(f"/proc/{holder.pid}/ns/net")
            await until("namespace", lambda net=net: net.readlink() != own)
        cables = [Cable(number, holder.pid) for number, holder in enumerate(holders)]
        enter = {site: ["nsenter", f"--net=/proc/{h.pid}/ns/net"] for site, h in zip(SITES, holders, strict=True)}
        here = World(folder / "project", transport="grpc", quick=QUICK, before=enter, host="0.0.0.0")
        try:
            await _faults(here, cables, folder)
        except BaseException:
            for front in here.fronts.values():
                print(f"--- {front.name}", *front.said[-60:], sep="\n")
            raise
        finally:
            await here.__aexit__()
    finally:
        for holder in holders:
            holder.kill()
            await holder.wait()


async def _faults(here: World, cables: list[Cable], folder: Path) -> None:
    await here.start("server")
    port = here.address.rpartition(":")[2]
    here.ways = {site: f"{cable.net}.1:{port}" for site, cable in zip(SITES, cables, strict=True)}
    here.ways["admin"] = f"127.0.0.1:{port}"
    await here.start(*SITES)
    admin, cable, site = await here.admin(), cables[1], here.fronts["site-2"]

    def said(word: str) -> int:
        return sum(word in line for line in site.said)

    async def run(name: str, fault: object = None, **settings: object) -> bytes:
        job = (await admin.submit(write_job(folder / name, BULK, **settings)))["job"]
        if fault is not None:
            async for _, node, text in admin.logs(job, follow=True):
                if node == "server" and text.startswith("round 2"):
                    break
            await fault()  # type: ignore[operator]
        found = await ended(admin, job)
        assert (found["state"], found["attempts"]) == ("finished", 1), found
        return await outcome(admin, job, folder / "out" / name)

    async def resumes() -> int:
        return int({s["site"]: s for s in (await admin.one("sites"))["sites"]}["site-2"]["resumes"])

    async def pulled() -> None:
        before = said("the connection is cut"), said("cannot be reached")
        cable.pull()
        await until("cut", lambda: said("the connection is cut") > before[0])
        cable.plug()

    async def swallowed() -> None:
        before = said("nothing was heard for")
        cable.swallow()
        await until("silence", lambda: said("nothing was heard for") > before)
        cable.deliver()

    whole = await run("plain")
    assert await run("pulled", pulled) == whole
    assert await resumes() >= 1
    assert await run("half-open", swallowed) == whole
    assert await resumes() >= 2
    # Slow, and with a queue so short that packets are lost all the time.
    cable.throttle("8mbit", "24kb")
    assert await run("slow", patience=20.0) == whole
    lost = cable.dropped()
    assert lost > 0, "no packet was lost"
    cable.free()
    print(f"resumed {await resumes()} times, {lost} packets lost")


if __name__ == "__main__":
    asyncio.run(asyncio.wait_for(play(Path(sys.argv[1])), 120))
