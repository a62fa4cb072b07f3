"""``python -m atoll.runtime.fronts.worker SOCKET ORDER``: the process of a job."""

from __future__ import annotations

import asyncio
import socket
import sys
from pathlib import Path
from typing import Any

from atoll.core.files import read_message, write_message
from atoll.core.wire import pack_error
from atoll.engines.link import LinkClosed
from atoll.runtime.identity import Peer
from atoll.runtime.jobs.modules import importing
from atoll.runtime.jobs.spec import load_job
from atoll.runtime.line import Channel, Settings, local_line
from atoll.runtime.transport import local_pipe


async def work(sock: socket.socket, order: dict[str, Any]) -> None:
    opened: asyncio.Queue[Channel] = asyncio.Queue()
    pipe = await local_pipe(sock, Peer("front", order["role"], "", 0, ""))
    line = await local_line(
        pipe, dialled=True, settings=Settings(spool=Path(order["spool"])), on_open=opened.put_nowait
    )
    try:
        with importing(None if order["source"] is None else Path(order["source"])):
            if order["role"] == "site":
                await _site(order, await opened.get())
            else:
                await _server(order, opened)
    except LinkClosed:
        sys.exit(75)
    except Exception as error:
        if line.lost.is_set():
            sys.exit(75)
        write_message(Path(order["error"]), pack_error(error))
        sys.exit(1)
    finally:
        await line.close(within=5.0)


async def _site(order: dict[str, Any], channel: Channel) -> None:
    from atoll.runtime.work import load_site_data
    from atoll.runtime.work.at_site import serve_job

    job = load_job(order["job"])
    await serve_job(channel, job, lambda: load_site_data(order["data"], order["name"]), Path(order["state"]))


async def _server(order: dict[str, Any], opened: asyncio.Queue[Channel]) -> None:
    from atoll.runtime.work.at_server import run_job

    job = load_job(order["job"])
    channels = {}
    while set(channels) != set(order["sites"]):
        channel = await opened.get()
        channels[channel.name] = channel
    source = None if order["source"] is None else Path(order["source"])
    state = Path(order["state"])
    await run_job(channels, job, state, resume=True, source=source)


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as sock:
        asyncio.run(work(sock, read_message(Path(sys.argv[2]))))
