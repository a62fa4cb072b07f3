"""Measures garbled circuits of two owners: ANDs a second, with base transfers, inputs, the link and the results.

    python benchmarks/garbled.py                       # two processes
    python benchmarks/garbled.py --engine inline       # in one process: what both compute, with nothing of the link

`merge` merges two tables that their owners sorted, a key of 40 bits and 24 bits more, and shows a digest of one bit a row; `less` compares two columns of 64 bits, one AND for each bit that the
evaluator gives. Seconds go from the first message to the result. Processor seconds are of both parties together, and `relay` those of the engine's own process.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import time
from typing import Any

import numpy as np
from atoll.core.requests.task import task

OWNERS = ("garbler", "evaluator")


async def merge(gates: Any, me: str, n: int) -> Any:
    from atoll.secure.garbled import merge_rows

    rng, half = np.random.default_rng(OWNERS.index(me)), n // 2
    rows = np.sort(rng.integers(0, 2**40, half)) | rng.integers(0, 2**24, half) << 40
    tables = [await gates.share(rows if owner == me else None, owner=owner, bits=64, rows=half) for owner in OWNERS]
    return (await merge_rows(*tables, 40))[:1]


async def less(gates: Any, me: str, n: int) -> Any:
    from atoll.secure.garbled import join_wires, less_wires

    rng, made = np.random.default_rng(OWNERS.index(me)), []
    for start in range(0, n, 1 << 14):  # labels take 16 bytes a bit, so blocks bound the memory
        rows = min(1 << 14, n - start)
        values = rng.integers(0, 2**63, rows)
        both = [await gates.share(values if owner == me else None, owner=owner, bits=64, rows=rows) for owner in OWNERS]
        made.append((await less_wires(*both)).reshape(1, -1))
    return join_wires(made, axis=1)


GOAL = 1_000_000
"""ANDs a second by the clock, at least."""
WORKS = {"merge": merge, "less": less}


@task
async def play(island: Any, peers: Any, me: str, work: str, n: int) -> dict[str, float]:
    from atoll.secure.garbled import begin_garbling

    began, clock = time.perf_counter(), time.process_time()
    async with await begin_garbling(island.secret, peers, me, garbler=OWNERS[0], evaluator=OWNERS[1]) as gates:
        await gates.reveal(await WORKS[work](gates, me, n))
    return {
        "wall": time.perf_counter() - began,
        "processor": time.process_time() - clock,
        "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "process": os.getpid(),
    }


def measure(work: str, n: int, engine: str) -> dict[str, float]:
    """One run of both parties."""
    import atoll
    from atoll.core.requests.cohort import Community

    async def talk(fed: Any) -> Any:
        return await fed.session({me: (me, play.with_args(me=me, work=work, n=n)) for me in OWNERS})

    workers = {} if engine == "inline" else {"workers": 2}
    clock = time.process_time()
    found = atoll.simulate(talk, Community(dict.fromkeys(OWNERS)), engine=engine, progress=False, **workers)
    relay = 0.0 if engine == "inline" else time.process_time() - clock
    rows = [found[me] for me in OWNERS]
    spent: dict[int, float] = {}
    for row in rows:  # parties in one process share its clock
        spent[row["process"]] = max(spent.get(row["process"], 0.0), row["processor"])
    return {
        "wall": max(row["wall"] for row in rows),
        "processor": sum(spent.values()),
        "relay": relay,
        "memory": max(row["memory"] for row in rows),
    }


def count(work: str, n: int) -> tuple[int, int]:
    """ANDs, and bytes of all messages by the contract."""
    import asyncio

    from atoll.secure.garbled import GateCounter, garbling_contract

    async def program(gates: Any) -> None:
        await gates.reveal(await WORKS[work](gates, OWNERS[0], n))

    counted = asyncio.run(GateCounter.measure(program, OWNERS))
    return counted.ands, garbling_contract(counted).nbytes


def main() -> None:
    """Measure; print a line of JSON for each work."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--works", default=",".join(WORKS))
    parser.add_argument("--engine", default="socket", choices=("socket", "processes", "inline"))
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    for work in args.works.split(","):
        ands, nbytes = count(work, args.rows)
        best = min((measure(work, args.rows, args.engine) for _ in range(args.repeats)), key=lambda one: one["processor"])  # fmt: skip
        row: dict[str, Any] = {"work": work, "rows": args.rows, "engine": args.engine, "ands": ands}
        row |= {name: round(best[name], 3) for name in ("wall", "processor", "relay")}
        row |= {"MB": round(nbytes / 1e6, 1), "memory_MB": round(best["memory"] / 1e6)}
        row["ands_a_second"] = round(ands / best["wall"])
        row["ands_a_processor_second"] = round(ands / (best["processor"] + best["relay"]))
        print(json.dumps(row | {"goal": {"ands_a_second": GOAL}}), flush=True)


if __name__ == "__main__":
    main()
