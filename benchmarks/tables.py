"""Measures operators over tables that three parties share: seconds, bytes and messages, next to the bare link and to NumPy on the rows themselves.

    python benchmarks/tables.py                             # 100,000 rows sorted, a million comparisons, three processes
    python benchmarks/tables.py --engine inline             # in one process: what the parties compute, with nothing of the link
    python benchmarks/tables.py --rows 1000000 --works sort

`sort` sorts rows of a key of 40 bits and four more columns of 64 bits, of which all are moved; `compare` compares two columns of 64 bits whose words differ; `less` is
`atoll.secure.shares.less` on numbers; `group` sums and counts by a key of 8 bits; `join` finds for each row the one that has its key in a table of a tenth of the rows.
Seconds are of the slowest party, from the first message on; processor seconds are of all three parties, and `relay` those of the
engine's own process, which starts the parties and passes their messages on. `link` is a bare exchange of as many bytes in as many messages
between two processes over TCP: what no protocol with these messages can beat. `goal` is the most that the figures of those names may be.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import resource
import socket
import time
from typing import Any

import numpy as np
from atoll.core.requests.task import task

PARTIES = ("p0", "p1", "p2")


class Counted:
    """Peers that count what a party sends."""

    def __init__(self, peers: Any) -> None:
        self._peers, self.names = peers, peers.names
        self.messages = self.nbytes = 0

    async def send(self, role: str, message: Any) -> None:
        self.messages += 1
        self.nbytes += getattr(message, "packed_nbytes", None) or getattr(message, "nbytes", 0)
        await self._peers.send(role, message)

    async def recv(self, role: str) -> Any:
        return await self._peers.recv(role)


async def compare(trio: Any, n: int, rng: Any) -> Any:
    from atoll.secure.shares import compare_limbs, interleave

    values = rng.permutation(2 * n).astype(np.uint64) << np.uint64(30)
    x, y = (trio.constant(part, 64) for part in (values[:n], values[n:]))
    return lambda: compare_limbs([interleave(x)], [interleave(y)], distinct=True)


async def less(trio: Any, n: int, rng: Any) -> Any:
    from atoll.secure import shares

    x, y = (trio.numbers.constant(rng.integers(-(2**60), 2**60, n)) for _ in range(2))
    return lambda: shares.less(x, y)


def _table(trio: Any, columns: dict[str, tuple[Any, int | None]]) -> Any:
    from atoll.secure.tables import SharedTable

    made = {
        name: trio.numbers.constant(x) if bits is None else trio.constant(x, bits)
        for name, (x, bits) in columns.items()
    }
    n = len(next(iter(columns.values()))[0])
    return SharedTable(made, trio.constant(np.ones(n, dtype=np.uint8), 1))


async def sort(trio: Any, n: int, rng: Any) -> Any:
    from atoll.secure.tables import SortKey, find_order

    columns = {"key": (rng.integers(0, 2**40, n), 40)} | {f"x{i}": (rng.integers(0, 2**60, n), 64) for i in range(4)}
    table = _table(trio, columns)

    async def work() -> Any:
        order = await find_order([SortKey(table.words("key"))])
        return await order.move(list(table.columns.values()))

    return work


async def group(trio: Any, n: int, rng: Any) -> Any:
    from atoll.secure.tables import RowAggregate, group_rows

    table = _table(trio, {"key": (rng.integers(0, 200, n), 8), "x": (rng.integers(0, 2**30, n), None)})
    return lambda: group_rows(table, ["key"], {"n": RowAggregate("count"), "total": RowAggregate("sum", "x")})


async def join(trio: Any, n: int, rng: Any) -> Any:
    from atoll.secure.tables import join_unique

    few = max(1, n // 10)
    one = _table(trio, {"id": (rng.permutation(few), 32), "a": (rng.integers(0, 2**30, few), 64)})
    other = _table(trio, {"of": (rng.integers(0, few, n), 32), "b": (rng.integers(0, 2**30, n), 64)})
    return lambda: join_unique(one, other, [("id", "of")], ["a"])


GOALS: dict[tuple[str, int], dict[str, float]] = {
    ("compare", 1_000_000): {"wall": 1, "processor": 1, "bytes_a_row": 26},
    ("less", 1_000_000): {"wall": 3, "bytes_a_row": 56},
    ("sort", 100_000): {"wall": 2.5},
    ("sort", 1_000_000): {"wall": 15, "memory_MB": 805},
}
"""The most that a work of so many rows may take at three processes on idle cores. `less` took 6 s and 112 bytes before its words were narrow."""
WORKS = {"compare": compare, "less": less, "sort": sort, "group": group, "join": join}


@task
async def play(island: Any, peers: Any, me: str, work: str, n: int) -> dict[str, float]:
    from atoll.secure.shares import ReplicatedComputation, ReplicatedSharing, WordRing

    counted = Counted(peers)
    async with ReplicatedComputation(island, counted, PARTIES, me, ReplicatedSharing(WordRing(64))) as it:
        trio = await it.trio()
        run = await WORKS[work](trio, n, np.random.default_rng(0))
        await trio.open(trio.constant(np.zeros(1, dtype=np.uint8), 8))  # all are ready
        counted.messages = counted.nbytes = 0
        began, clock = time.perf_counter(), time.process_time()
        await run()
        return {
            "wall": time.perf_counter() - began,
            "processor": time.process_time() - clock,
            "messages": counted.messages,
            "bytes": counted.nbytes,
            "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            "process": os.getpid(),
        }


def measure(work: str, n: int, engine: str) -> dict[str, float]:
    """One run of three parties."""
    import atoll
    from atoll.core.requests.cohort import Community

    async def talk(fed: Any) -> Any:
        return await fed.session({me: (me, play.with_args(me=me, work=work, n=n)) for me in PARTIES})

    workers = {} if engine == "inline" else {"workers": 3}
    clock = time.process_time()
    found = atoll.simulate(talk, Community(dict.fromkeys(PARTIES)), engine=engine, progress=False, **workers)
    relay = 0.0 if engine == "inline" else time.process_time() - clock
    rows = [found[me] for me in PARTIES]
    # Parties in one process share its clock: the longest covers the others.
    spent: dict[int, float] = {}
    for row in rows:
        spent[row["process"]] = max(spent.get(row["process"], 0.0), row["processor"])
    return {
        "wall": max(row["wall"] for row in rows),
        "processor": sum(spent.values()),
        "relay": relay,
        "bytes": max(row["bytes"] for row in rows),
        "messages": max(row["messages"] for row in rows),
        "memory": max(row["memory"] for row in rows),
    }


def _answer(sock: socket.socket, size: int, times: int) -> None:
    data = bytearray(size)
    for _ in range(times):
        _read(sock, memoryview(data))
        sock.sendall(data)


def _read(sock: socket.socket, view: memoryview) -> None:
    while view:
        view = view[sock.recv_into(view) :]


def link(nbytes: int, messages: int) -> float:
    """Seconds of a bare exchange: each side sends as many bytes in as many messages, one after the other."""
    size = max(1, nbytes // messages)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        here = socket.create_connection(listening.getsockname())
        there, _ = listening.accept()
    for sock in (here, there):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    process = multiprocessing.get_context("fork").Process(target=_answer, args=(there, size, messages))
    process.start()
    data, began = bytearray(size), time.perf_counter()
    for _ in range(messages):
        here.sendall(data)
        _read(here, memoryview(data))
    seconds = time.perf_counter() - began
    process.join()
    return seconds


def plain(work: str, n: int) -> float:
    """Seconds of NumPy on the rows themselves."""
    rng = np.random.default_rng(0)
    key, more = rng.integers(0, 2**40, n), rng.integers(0, 2**60, (4, n))
    began = time.perf_counter()
    if work in ("compare", "less"):
        _ = key < more[0]
    elif work == "sort":
        order = np.argsort(key, kind="stable")
        _ = key[order], more[:, order]
    elif work == "group":
        _ = np.bincount(key & 255), np.bincount(key & 255, weights=more[0])
    else:
        ids = key[: max(1, n // 10)]
        order = np.argsort(ids)
        _ = more[0, order[np.searchsorted(ids, key % len(ids), sorter=order) % len(ids)]]
    return time.perf_counter() - began


def main() -> None:
    """Measure; print a line of JSON for each work."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rows", type=int, help="by default 1,000,000 to compare, 100,000 for the rest")
    parser.add_argument("--works", default=",".join(WORKS))
    parser.add_argument("--engine", default="socket", choices=("socket", "processes", "inline"))
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    for work in args.works.split(","):
        n = args.rows or (1_000_000 if work in ("compare", "less") else 100_000)
        best = min((measure(work, n, args.engine) for _ in range(args.repeats)), key=lambda one: one["processor"])
        row: dict[str, Any] = {"work": work, "rows": n, "engine": args.engine}
        row |= {name: round(best[name], 3) for name in ("wall", "processor", "relay")}
        row |= {"MB_a_party": round(best["bytes"] / 1e6, 2), "bytes_a_row": round(best["bytes"] / n, 1)}
        row |= {"messages": int(best["messages"]), "memory_MB": round(best["memory"] / 1e6)}
        row["wall_by_link"] = round(best["wall"] / link(int(best["bytes"]), int(best["messages"])), 1)
        row["wall_by_numpy"] = round(best["wall"] / min(plain(work, n) for _ in range(3)), 1)
        print(json.dumps(row | {"goal": GOALS.get((work, n), {})}), flush=True)


if __name__ == "__main__":
    main()
