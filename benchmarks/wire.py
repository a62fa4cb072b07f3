"""Measures how fast lines are compared with their transports, on loopback with mutual TLS.

    python benchmarks/wire.py                    # all, results/wire.json
    python benchmarks/wire.py --quick            # fewer rounds, fewer sites
    python benchmarks/wire.py stream             # one part: stream, sites, memory

stream   a server sends 18 MB to 10 clients, each sends 18 MB back; Line over gRPC next to a raw gRPC stream with the
same options and blocks, Line over TCP next to bare TLS sockets. Clients are in one process, the server in another.
Variants take turns, in
         alternating order; the medians of each turn's rounds are compared, by seconds and by the processor time of both
         processes, which is more reliable on a shared machine; medians and quartiles of the turns.
sites    1,000 sites, one TLS connection each, in a few processes: 100 rounds of small messages; medians, and whether a
reply was lost. memory   1 GiB to one client through a spool file: the memory of either process beyond the tensor.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import json
import multiprocessing as mp
import os
import ssl
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from atoll.heap import keep_freed_memory  # noqa: E402
from atoll.runtime.identity import Credentials  # noqa: E402
from atoll.runtime.line import Channel, Line, PackedMessage, Settings, Switchboard, dial_line  # noqa: E402
from atoll.runtime.transport import transport  # noqa: E402
from atoll.runtime.transport.base import BLOCK  # noqa: E402
from atoll.runtime.transport.sockets import client_context, server_context  # noqa: E402

from tests.support.certificates import Authority  # noqa: E402

SIZE = 18_000_000
THREADS = ThreadPoolExecutor(64)
Round = Callable[[], Awaitable[None]]


def model(size: int) -> dict[str, np.ndarray]:
    return {"weights": np.random.default_rng(0).standard_normal(size // 8)}


# Clients: the endless loop of each, once connected to an address


async def line_client(kind: str, address: str, me: Credentials, settings: Settings | None = None) -> None:
    async def echo(channel: Channel) -> None:
        while True:
            await channel.send(await channel.recv())

    tasks = set()
    line = await dial_line(functools.partial(transport(kind).dial, address, me), settings=settings)
    line.on_open = lambda channel: tasks.add(asyncio.create_task(echo(channel)))
    await line.lost.wait()
    for task in tasks:
        task.cancel()


async def grpc_client(address: str, me: Credentials) -> None:
    from atoll.runtime.transport import rpc

    proof = rpc.grpc.ssl_channel_credentials(me.ca, me.key, me.certificate)
    options = [*rpc.OPTIONS, ("grpc.use_local_subchannel_pool", 1)]
    async with rpc.aio.secure_channel(address, proof, options=options) as channel:
        call = channel.stream_stream("/raw/echo")()
        while True:
            blocks, size = [], 0
            while size < SIZE:
                block = await call.read()
                if block is rpc.aio.EOF:
                    return
                blocks.append(block)
                size += len(block)
            for block in blocks:
                await call.write(block)


async def tls_client(address: str, me: Credentials) -> None:
    """Run a bare socket in its own thread."""
    host, _, port = address.rpartition(":")

    def run() -> None:
        import socket

        with socket.create_connection((host, int(port))) as plain:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with client_context(me).wrap_socket(plain, server_hostname=host) as sock:
                while (data := exactly(sock, SIZE)) is not None:
                    send(sock, data)

    await asyncio.get_running_loop().run_in_executor(THREADS, run)


def exactly(sock: ssl.SSLSocket, size: int) -> bytearray | None:
    data = bytearray(size)
    view = memoryview(data)
    done = 0
    while done < size:
        count = sock.recv_into(view[done:])
        if count == 0:
            return None
        done += count
    return data


def send(sock: ssl.SSLSocket, data: bytearray) -> None:
    view = memoryview(data)
    for start in range(0, len(data), BLOCK):
        sock.sendall(view[start : start + BLOCK])


def clients(kind: str, address: str, parties: list[Credentials]) -> None:
    """Run a process of clients."""
    one = {"grpc raw": grpc_client, "tcp raw": tls_client}.get(kind) or functools.partial(line_client, kind.split()[0])

    keep_freed_memory()

    async def run() -> None:
        await asyncio.gather(*(one(address, me) for me in parties))

    asyncio.run(run())


# Servers: each yields its address and, once that many clients are connected, one round


async def line_server(
    kind: str, me: Credentials, settings: Settings | None = None
) -> tuple[str, asyncio.Queue[Line], Any]:
    lines: asyncio.Queue[Line] = asyncio.Queue()
    board = Switchboard(lines.put_nowait, settings)
    listener = await transport(kind).listen("127.0.0.1:0", me, board.accept)

    async def stop() -> None:
        await board.close()
        await listener.close()

    return listener.address, lines, stop


async def line_round(channels: list[Channel], tree: Any) -> None:
    packed = PackedMessage(tree)  # serialised once per round

    async def one(channel: Channel) -> None:
        sending = asyncio.create_task(channel.send(packed))
        came = await channel.recv()
        await sending
        assert came["weights"].nbytes == tree["weights"].nbytes

    await asyncio.gather(*(one(channel) for channel in channels))


async def line_variant(kind: str, me: Credentials, parties: list[Credentials], rounds: int) -> list[Cost]:
    address, lines, stop = await line_server(kind, me)
    process = mp.get_context("spawn").Process(target=clients, args=(f"{kind} line", address, parties))
    process.start()
    channels = [(await lines.get()).open("job") for _ in parties]
    tree = model(SIZE)
    times = await timed(functools.partial(line_round, channels, tree), rounds, process)
    await stop()
    process.join(10)
    process.kill()
    return times


class Cost(NamedTuple):
    """The cost of one round: seconds, and processor time of server and clients."""

    wall: float
    cpu: float


def cpu(pid: int) -> float:
    """Return the seconds of processor time that a process has used so far (proc(5))."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def timed(once: Round, rounds: int, process: Any) -> list[Cost]:
    await once()
    costs = []
    for _ in range(rounds):
        spent, began = cpu(process.pid) + cpu(os.getpid()), time.perf_counter()
        await once()
        costs.append(Cost(time.perf_counter() - began, cpu(process.pid) + cpu(os.getpid()) - spent))
    return costs


async def grpc_variant(me: Credentials, parties: list[Credentials], rounds: int) -> list[Cost]:
    from atoll.runtime.transport import rpc

    calls: asyncio.Queue[Any] = asyncio.Queue()
    over = asyncio.Event()

    class Handler(rpc.grpc.GenericRpcHandler):
        def service(self, details: Any) -> Any:
            return rpc.grpc.stream_stream_rpc_method_handler(self.run)

        async def run(self, requests: Any, context: Any) -> None:
            await calls.put(context)
            await over.wait()

    server = rpc.aio.server(handlers=(Handler(),), options=rpc.OPTIONS)
    proof = rpc.grpc.ssl_server_credentials([(me.key, me.certificate)], me.ca, True)
    port = server.add_secure_port("127.0.0.1:0", proof)
    await server.start()
    process = mp.get_context("spawn").Process(target=clients, args=("grpc raw", f"127.0.0.1:{port}", parties))
    process.start()
    contexts = [await calls.get() for _ in parties]
    data = os.urandom(SIZE)
    blocks = [data[start : start + BLOCK] for start in range(0, SIZE, BLOCK)]

    async def one(context: Any) -> None:
        async def write() -> None:
            for block in blocks:
                await context.write(block)

        writing = asyncio.create_task(write())
        size = 0
        while size < SIZE:
            size += len(await context.read())
        await writing

    async def once() -> None:
        await asyncio.gather(*(one(context) for context in contexts))

    times = await timed(once, rounds, process)
    over.set()
    await server.stop(1)
    process.join(10)
    process.kill()
    return times


async def tls_variant(me: Credentials, parties: list[Credentials], rounds: int) -> list[Cost]:
    """Run a thread for each connection, which sends all and then reads all."""
    import socket

    place = socket.create_server(("127.0.0.1", 0))
    process = mp.get_context("spawn").Process(
        target=clients, args=("tcp raw", f"127.0.0.1:{place.getsockname()[1]}", parties)
    )
    process.start()
    context = server_context(me)
    pool = ThreadPoolExecutor(len(parties))

    def accepted() -> ssl.SSLSocket:
        plain, _ = place.accept()
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return context.wrap_socket(plain, server_side=True)

    socks = [await asyncio.to_thread(accepted) for _ in parties]
    data = bytearray(os.urandom(SIZE))

    def one(sock: ssl.SSLSocket) -> None:
        send(sock, data)
        assert exactly(sock, SIZE) is not None

    async def once() -> None:
        loop = asyncio.get_running_loop()
        await asyncio.gather(*(loop.run_in_executor(pool, one, sock) for sock in socks))

    times = await timed(once, rounds, process)
    for sock in socks:
        sock.close()
    process.join(10)
    process.kill()
    return times


def stream(quick: bool) -> dict[str, Any]:
    authority = Authority("bench")
    me = authority.issue("server", "hub")
    parties = [authority.issue("site", f"s{number}") for number in range(10)]
    turns, rounds = (2, 3) if quick else (12, 3)
    variants: dict[str, Callable[[], Awaitable[list[Cost]]]] = {
        "grpc line": lambda: line_variant("grpc", me, parties, rounds),
        "grpc raw": lambda: grpc_variant(me, parties, rounds),
        "tcp line": lambda: line_variant("tcp", me, parties, rounds),
        "tcp raw": lambda: tls_variant(me, parties, rounds),
    }
    costs: dict[str, list[Cost]] = {name: [] for name in variants}  # medians of each turn
    for turn in range(turns):  # in alternating order, so that all meet the same machine
        for name in sorted(variants, reverse=bool(turn % 2)):
            found = asyncio.run(variants[name]())
            costs[name].append(Cost(*map(statistics.median, zip(*found, strict=True))))
    median = {name: Cost(*map(statistics.median, zip(*values, strict=True))) for name, values in costs.items()}
    moved = 2 * SIZE * len(parties) / 1e6
    return {
        "seconds a round": {name: one.wall for name, one in median.items()},
        "processor seconds a round": {name: one.cpu for name, one in median.items()},
        "MB/s": {name: moved / one.wall for name, one in median.items()},
        **{
            f"line / raw over {kind}{by}": spread(
                [r[i] / x[i] for r, x in zip(costs[f"{kind} raw"], costs[f"{kind} line"], strict=True)]
            )
            for i, by in enumerate(("", ", by processor time"))
            for kind in ("grpc", "tcp")
        },
    }


def spread(values: list[float]) -> dict[str, float]:
    """Return median and quartiles of the turns."""
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return {"median": middle, "lower quartile": low, "upper quartile": high}


async def sites_over(kind: str, count: int, processes: int, rounds: int) -> dict[str, Any]:
    authority = Authority("bench")
    parties = [authority.issue("site", f"s{number}") for number in range(count)]
    settings = Settings(greeting=120, patience=None)
    address, lines, stop = await line_server(kind, authority.issue("server", "hub"), settings)
    context = mp.get_context("spawn")
    crew = [
        context.Process(target=clients, args=(f"{kind} line", address, parties[number::processes]))
        for number in range(processes)
    ]
    began = time.perf_counter()
    for process in crew:
        process.start()
    channels = [(await lines.get()).open("job") for _ in parties]
    connected = time.perf_counter() - began
    latencies: list[float] = []
    lost = 0

    async def ask(channel: Channel, number: int) -> None:
        nonlocal lost
        sent = time.perf_counter()
        await channel.send({"round": number, "weights": np.zeros(250)})
        came = await channel.recv()
        latencies.append(time.perf_counter() - sent)
        lost += came["round"] != number

    walls = []
    for number in range(rounds):
        start = time.perf_counter()
        await asyncio.gather(*(ask(channel, number) for channel in channels))
        walls.append(time.perf_counter() - start)
    resumes = sum(channel.line.stats().resumes for channel in channels)
    alone = []
    for number in range(100):
        start = time.perf_counter()
        await ask(channels[number % count], number)
        alone.append(time.perf_counter() - start)
    await stop()
    for process in crew:
        process.join(20)
        process.kill()
    return {
        "sites": count,
        "rounds": rounds,
        "seconds to connect": connected,
        "replies lost": lost + count * rounds - (len(latencies) - 100),
        "resumes": resumes,
        "median seconds a round": statistics.median(walls),
        "median latency in a round": statistics.median(latencies[: count * rounds]),
        "median latency of one site alone": statistics.median(alone),
    }


def sites(quick: bool) -> dict[str, Any]:
    count, rounds = (200, 10) if quick else (1000, 100)
    return {kind: asyncio.run(sites_over(kind, count, 2, rounds)) for kind in ("grpc", "tcp")}


class Peak:
    """The peak memory of this process from now on, beyond what it holds now, sampled every 5 ms.

    Its own memory (RssAnon) and pages of mapped files (RssFile, RssShmem) are separate: the system may reclaim the
    latter at any time.
    """

    def __init__(self) -> None:
        self._before = self._now()
        self._most = self._before
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _now(self) -> tuple[int, int]:
        lines = Path("/proc/self/status").read_text().splitlines()
        kib = {k: int(v.split()[0]) for k, v in (line.split(":", 1) for line in lines) if k.startswith("Rss")}
        return kib["RssAnon"] << 10, (kib["RssFile"] + kib["RssShmem"]) << 10

    def _watch(self) -> None:
        while not self._over.wait(0.005):
            now = self._now()
            self._most = max(self._most[0], now[0]), max(self._most[1], now[1])

    def stop(self) -> tuple[float, float]:
        """Return the MiB of its own memory, and of mapped files."""
        self._over.set()
        self._thread.join()
        own, mapped = (most - before for most, before in zip(self._most, self._before, strict=True))
        return own / 2**20, mapped / 2**20


def memory_client(kind: str, address: str, me: Credentials, folder: str, said: Any) -> None:
    async def run() -> None:
        line = await dial_line(
            functools.partial(transport(kind).dial, address, me), settings=Settings(spool=Path(folder))
        )
        channel = await asyncio.wait_for(opened(line), 60)
        watched = Peak()
        tree = await channel.recv()
        said.put(watched.stop())
        await channel.send({"n": int(tree["weights"].nbytes)})
        await line.lost.wait()

    async def opened(line: Line) -> Channel:
        found: asyncio.Future[Channel] = asyncio.get_running_loop().create_future()
        line.on_open = found.set_result
        return await found

    asyncio.run(run())


async def memory_over(kind: str, size: int) -> dict[str, Any]:
    authority = Authority("bench")
    address, lines, stop = await line_server(kind, authority.issue("server", "hub"))
    context = mp.get_context("spawn")
    said = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        process = context.Process(
            target=memory_client, args=(kind, address, authority.issue("site", "s"), folder, said)
        )
        process.start()
        channel = (await lines.get()).open("job")
        tree = {"weights": np.ones(size // 8)}
        watched = Peak()
        began = time.perf_counter()
        await channel.send(tree)
        assert (await channel.recv())["n"] == size
        wall = time.perf_counter() - began
        own, mapped = said.get()
        result = {
            "MiB sent": size >> 20,
            "seconds": wall,
            "MiB beyond the tensor at the sender": watched.stop()[0],
            "MiB of its own at the receiver": own,
            "MiB of the mapped spool file in the receiver's memory": mapped,
        }
        await stop()
        process.join(10)
        process.kill()
    return result


def memory_alone(kind: str, size: int) -> dict[str, Any]:
    """Measure in a separate process: memory freed by another part would hide what this part takes."""
    keep_freed_memory()
    return asyncio.run(memory_over(kind, size))


def memory(quick: bool) -> dict[str, Any]:
    size = 384 << 20 if quick else 1 << 30  # more than long messages may hold in memory
    found = {}
    for kind in ("grpc", "tcp"):
        with ProcessPoolExecutor(1, mp.get_context("spawn")) as pool:
            found[kind] = pool.submit(memory_alone, kind, size).result()
    return found


PARTS: dict[str, Callable[[bool], dict[str, Any]]] = {"stream": stream, "sites": sites, "memory": memory}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help="which parts; all")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "wire.json")
    asked = parser.parse_args()
    keep_freed_memory()  # as Atoll's processes do; raw variants profit as well
    found = {name: PARTS[name](asked.quick) for name in asked.parts or PARTS}
    print(json.dumps(found, indent=2))
    if not asked.quick:
        kept = json.loads(asked.out.read_text()) if asked.out.exists() else {}
        asked.out.write_text(json.dumps({**kept, **found}, indent=2) + "\n")


if __name__ == "__main__":
    main()
