"""Measures bits with codes, on which parties compute of whom all but one may cheat: seconds, memory and bytes, with inputs, checks and results.

    python benchmarks/authenticated.py                          # two parties and a dealer, three processes
    python benchmarks/authenticated.py --parties 3 --works sort
    python benchmarks/authenticated.py --works landed           # `less` of `AuthenticatedComputation`, on numbers modulo 2^32
    python benchmarks/authenticated.py --works divided --rows 8 # a statement of 16 owners: parts among few of them, and beside it all owners together

`less` compares 100,000 numbers of 64 bits in blocks of rows, `sort` sorts 1,024 of them by a bitonic network. Seconds are of the slowest party; processor seconds and megabytes are of all parties and the
dealer together; memory is that of the process that took most, and `dealer_MB` is what the dealer sends.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from atoll.core.requests.task import task

BLOCK = 1 << 12
"""Rows that are compared at once."""


class Counted:
    """Peers that count what a role sends."""

    def __init__(self, peers: Any) -> None:
        self._peers, self.names, self.nbytes = peers, peers.names, 0

    async def send(self, role: str, message: Any) -> None:
        self.nbytes += _nbytes(message)
        await self._peers.send(role, message)

    async def recv(self, role: str) -> Any:
        return await self._peers.recv(role)


def _nbytes(message: Any) -> int:
    if isinstance(message, dict):
        return sum(map(_nbytes, message.values()))
    if isinstance(message, list | tuple):
        return sum(map(_nbytes, message))
    return int(getattr(message, "packed_nbytes", None) or getattr(message, "nbytes", 0)) or len(str(message))


async def less(gates: Any, n: int) -> None:
    from atoll.secure.garbled import less_wires

    values = np.random.default_rng(0).integers(0, 2**63, n)
    for start in range(0, n, BLOCK):
        part = values[start : start + BLOCK]
        x, y = [await gates.share(part, owner=owner, bits=64, rows=len(part)) for owner in gates.parties[:2]]
        await less_wires(x, y)


async def sort(gates: Any, n: int) -> None:
    from atoll.secure.garbled import join_wires, sort_rows

    values = np.random.default_rng(0).integers(0, 2**63, n // 2)
    halves = [await gates.share(values, owner=owner, bits=64, rows=n // 2) for owner in gates.parties[:2]]
    await gates.reveal(await sort_rows(join_wires(halves, axis=1), 64))


async def landed(it: Any, n: int) -> None:
    from atoll.secure import shares

    values = np.random.default_rng(0).integers(0, 2**30, n)
    x, y = [await it.share(values, owner=owner, shape=(n,)) for owner in it.parties[:2]]
    await shares.less(x, y)


GOALS: dict[tuple[str, int], dict[str, float]] = {
    ("less", 100_000): {"memory_MB": 537},
    ("sort", 1024): {"wall": 4, "MB": 220},
}
"""The most that a work of so many rows may take on idle cores."""
WORKS = {"less": less, "sort": sort, "landed": landed}


def _usage(began: float, clock: float, nbytes: int) -> dict[str, float]:
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"wall": time.perf_counter() - began, "processor": time.process_time() - clock, "bytes": nbytes, "memory": memory, "process": os.getpid()}  # fmt: skip


@task
async def play(island: Any, peers: Any, parties: list[str], me: str, work: str, n: int) -> dict[str, float]:
    from atoll.secure.shares import (  # fmt: skip
        AuthenticatedBits,
        AuthenticatedComputation,
        AuthenticatedSharing,
        PartyDealer,
        WordRing,
    )

    began, clock, counted = time.perf_counter(), time.process_time(), Counted(peers)
    dealer = PartyDealer(counted, "dealer", first=me == parties[0])
    if work == "landed":
        made: Any = AuthenticatedComputation(island, counted, parties, me, AuthenticatedSharing(WordRing(32), len(parties)), dealer)  # fmt: skip
    else:
        made = AuthenticatedBits(island, counted, parties, me, dealer)
    async with made as it:
        await WORKS[work](it, n)
    return _usage(began, clock, counted.nbytes)


@task
async def serve(island: Any, peers: Any, parties: list[str], sharing: dict[str, Any]) -> dict[str, float]:
    from atoll.secure.shares import deal

    began, clock, counted = time.perf_counter(), time.process_time(), Counted(peers)
    await deal.run(island, counted, parties=parties, sharing=sharing)
    return _usage(began, clock, counted.nbytes)


def measure(work: str, n: int, count: int, engine: str) -> dict[str, float]:
    """One run."""
    import atoll
    from atoll.core.requests.cohort import Community
    from atoll.secure.shares import AuthenticatedSharing, Binary, BitSharing, WordRing

    parties = [f"p{i}" for i in range(count)]
    sharing = AuthenticatedSharing(WordRing(32), count) if work == "landed" else BitSharing(Binary(), count)

    async def talk(fed: Any) -> Any:
        roles = {me: (me, play.with_args(parties=parties, me=me, work=work, n=n)) for me in parties}
        return await fed.session(roles | {"dealer": ("dealer", serve.with_args(parties=parties, sharing=sharing.spec()))})  # fmt: skip

    workers = {} if engine == "inline" else {"workers": count + 1}
    found = atoll.simulate(talk, Community(dict.fromkeys([*parties, "dealer"])), engine=engine, progress=False, **workers)  # fmt: skip
    rows = [found[me] for me in (*parties, "dealer")]
    spent: dict[int, float] = {}
    for row in rows:  # parties in one process share its clock
        spent[row["process"]] = max(spent.get(row["process"], 0.0), row["processor"])
    return {
        "wall": max(row["wall"] for row in rows),
        "processor": sum(spent.values()),
        "MB": sum(row["bytes"] for row in rows) / 1e6,
        "dealer_MB": found["dealer"]["bytes"] / 1e6,
        "memory_MB": max(row["memory"] for row in rows) / 1e6,
    }


def measure_divided(rows: int, owners: int) -> dict[str, float]:
    """A statement of the strategy `senate` whose unions go up by groups of owners, and the same in which all compute all."""
    import atoll.query
    from atoll.query.circuits.subplans import Division
    from atoll.query.strategies import senate

    rng, usual, found = np.random.default_rng(0), senate._DIVISIONS, {}
    with tempfile.TemporaryDirectory() as folder:
        for k in range(owners):
            (site := Path(folder) / f"s{k}").mkdir()
            lines = [f"{ward},{pay}" for ward, pay in zip(rng.integers(0, 9, rows), rng.integers(1, 99, rows), strict=True)]  # fmt: skip
            (site / "pay.csv").write_text("\n".join(["ward,pay", *lines]) + "\n", encoding="utf-8")
        policy = {"policy": {"min_count": 1}, "tables": {"pay": {"columns": "protected"}}}
        for name, divisions in (("alone", (Division(),)), ("divided", usual)):
            senate._DIVISIONS = divisions
            with atoll.query.connect({f"s{k}": f"{folder}/s{k}" for k in range(owners)}, policy) as db:
                began, clock = time.perf_counter(), time.process_time()
                answer = db.sql("SELECT ward, sum(pay), count(*) FROM pay GROUP BY ward", strategy="senate")
                found |= {f"{name}_wall": time.perf_counter() - began, f"{name}_processor": time.process_time() - clock, f"{name}_MB": answer.bytes / 1e6, f"{name}_predicted_MB": answer.predicted / 1e6}  # fmt: skip
    senate._DIVISIONS = usual
    return found


def main() -> None:
    """Measure; print a line of JSON for each work."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rows", type=int, help="by default 1,024 to sort, 100,000 to compare")
    parser.add_argument("--parties", type=int, default=2)
    parser.add_argument("--works", default="less,sort")
    parser.add_argument("--engine", default="socket", choices=("socket", "processes", "inline"))
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    for work in args.works.split(","):
        if work == "divided":
            made = measure_divided(args.rows or 64, args.parties if args.parties > 2 else 16)
            print(json.dumps({"work": work, "rows": args.rows or 64, "parties": args.parties if args.parties > 2 else 16} | {name: round(value, 2) for name, value in made.items()}), flush=True)  # fmt: skip
            continue
        n = args.rows or (1024 if work == "sort" else 100_000)
        best = min((measure(work, n, args.parties, args.engine) for _ in range(args.repeats)), key=lambda one: one["processor"])  # fmt: skip
        row = {"work": work, "rows": n, "parties": args.parties, "engine": args.engine}
        row |= {name: round(value, 2) for name, value in best.items()}
        print(json.dumps(row | {"goal": GOALS.get((work, n), {})}), flush=True)


if __name__ == "__main__":
    main()
