"""Sites that train nothing and hold nothing: they throw a model away as it comes and make their reply piece by piece.

python stub_sites.py KITS ADDRESS COUNT LAYERS NUMBERS
"""

from __future__ import annotations

import asyncio
import sys
from functools import partial
from pathlib import Path

import numpy as np
from atoll.core.algebra.aggregate import Total
from atoll.core.requests.request import PartialSum
from atoll.core.requests.wire import pack_folded
from atoll.engines.link import LinkClosed
from atoll.runtime.daemon.control import CONTROL, Control
from atoll.runtime.line import Settings, dial_line
from atoll.runtime.line.frames import END
from atoll.runtime.provision import Kit
from atoll.runtime.transport import transport


def reply(request: str, position: int, site: int, layers: int, numbers: int) -> dict:
    """Return the summand of one site: every number is the site's; no array takes memory before its turn."""
    value = {f"layer-{i:03d}": np.broadcast_to(np.float32(site), numbers // layers) for i in range(layers)}
    one = np.array([position])
    folded = PartialSum({"model": Total("mean", value, 1.0, 1)}, one, np.array([4 * numbers]))
    return {"op": "folded", "id": request, "party": position, "events": [], "folded": pack_folded(folded)}


async def play(channel, name: str, site: int, layers: int, numbers: int) -> None:
    """Act as a job's process, reduced to its traffic."""
    await channel.send({"hello": {"parties": [name], "sizes": np.array([1]), "card": None}})
    await channel.recv()
    await channel.send({"ready": True})
    try:
        while True:
            frame = await channel.recv()
            if frame.get("body"):
                while not (await channel.recv_block()).flags & END:
                    pass
            if frame["op"] == "launch":
                position = int(frame["positions"][0])
                await channel.send(reply(frame["request"]["id"], position, site, layers, numbers))
            elif "number" in frame:
                await channel.send({"op": "answer", "number": frame["number"], "names": []})
    except LinkClosed:
        return


async def site(kits: Path, address: str, number: int, layers: int, numbers: int) -> None:
    """Run one daemon, which accepts every offer."""
    name = f"site-{number}"
    kit = Kit.read(kits / name)
    tasks = set()

    def opened(channel) -> None:
        tasks.add(asyncio.ensure_future(play(channel, name, number, layers, numbers)))

    made = transport(kit.transport)
    dial = partial(made.dial, address, kit.credentials())
    line = await dial_line(dial, settings=Settings(patience=None), on_open=opened)
    channel = line.open(CONTROL)
    await channel.send({"op": "hello", "holding": [], "kept": []})

    def heard(frame) -> None:
        job = frame["job"]
        if frame["op"] == "offer":
            control.tell("offered", job=job, ticket=frame["ticket"], ok=True, why="", never=False)
        elif frame["op"] == "deploy":
            control.tell("deployed", job=job, attempt=frame["attempt"])

    control = Control(channel, heard)
    await control.run()


async def main() -> None:
    """Run all sites in one process."""
    kits, address, count, layers, numbers = sys.argv[1:]
    await asyncio.gather(*(site(Path(kits), address, i + 1, int(layers), int(numbers)) for i in range(int(count))))


asyncio.run(main())
