"""Measures what private state costs: a round's time and the process's peak memory when every client keeps state between rounds.

    python benchmarks/state.py                          # 100,000 clients, 1,000 per round, 10 kB each, in memory
    python benchmarks/state.py --memory 100000000       # beyond 100 MB on disk
    python benchmarks/state.py --one-by-one             # the task reads each client's state separately

The task does no other work: it adds 1 to every number of the state. The first pass over the clients creates their
states, the second reads and replaces them; clients come in random order. Memory is the peak resident size of the
process, less that at the start.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
from atoll.core.algebra.aggregate import Sum
from atoll.core.requests.cohort import Community
from atoll.core.requests.party import Parties
from atoll.core.requests.task import Batch, Task
from atoll.core.world import World
from atoll.engines import Batched
from atoll.simulation import run_in

Clock = time.perf_counter


def peak_bytes() -> int:
    """Return the peak resident size so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def one(island: Any, message: Any, fresh: Any) -> Any:
    """Run party by party; the batched engine uses `stacked` or `one_by_one`."""
    island.state = {name: leaf + 1 for name, leaf in (island.state or fresh).items()}
    return {"n": Sum(1.0)}


def maker(numbers: int, *, one_by_one: bool) -> Task:
    """Return a task whose clients keep two arrays, together `numbers` numbers of 4 bytes."""
    fresh = {"control": np.zeros(numbers - 10, dtype=np.float32), "bias": np.zeros(10, dtype=np.float32)}

    def stacked(cohort: Any, message: Any) -> Any:
        states = cohort.states(fresh=fresh)
        yield from reply({name: leaf + 1 for name, leaf in states.items()})

    def each(cohort: Any, message: Any) -> Any:
        states = [cohort.state(i) or fresh for i in range(len(cohort))]
        yield from reply({name: np.stack([state[name] for state in states]) + 1 for name in fresh})

    def reply(states: Any) -> Any:
        count = len(states["bias"])
        yield Batch(np.arange(count), {"n": Sum(states["bias"][:, 0].astype(float))}, states)

    return Task("benchmark:state", one, many=each if one_by_one else stacked)


def main() -> None:
    """Run and print one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=100_000)
    parser.add_argument("--cohort", type=int, default=1000)
    parser.add_argument("--bytes", type=int, default=10_000)
    parser.add_argument("--passes", type=int, default=2)
    parser.add_argument("--memory", type=int, help="bytes of state in memory")
    parser.add_argument("--folder", type=Path, help="where a checkpoint is written after every round")
    parser.add_argument("--one-by-one", action="store_true")
    args = parser.parse_args()
    task = maker(args.bytes // 4, one_by_one=args.one_by_one)
    seconds: list[float] = []
    saving: list[float] = []

    async def program(fed: Any) -> float:
        total = 0.0
        for number in range(args.passes):
            order = np.random.default_rng(number).permutation(args.clients)
            for start in range(0, args.clients, args.cohort):
                begin = Clock()
                cohort = Parties(fed.world.roster, order[start : start + args.cohort])
                total += float((await fed.sum(cohort, task))["n"])
                seconds.append(Clock() - begin)
                if args.folder is not None:
                    await fed.checkpoint(len(seconds))
                    saving.append(Clock() - begin - seconds[-1])
        return total

    before = peak_bytes()
    limit = {} if args.memory is None else {"state_memory": args.memory}
    world = World(Community([0.0] * args.clients), Batched(1), folder=args.folder, registry={task.name: task}, **limit)
    total = run_in(world, program)[0]
    expected = args.clients * args.passes * (args.passes + 1) / 2
    if total != expected:
        raise SystemExit(f"states went wrong: {total}, not {expected}")
    rounds = args.clients // args.cohort
    print(
        json.dumps(
            {
                "ms_a_round_first_pass": round(1e3 * statistics.median(seconds[:rounds]), 2),
                "ms_a_round_last_pass": round(1e3 * statistics.median(seconds[-rounds:]), 2),
                "slowest_ms": round(1e3 * max(seconds), 1),
                "ms_a_checkpoint": round(1e3 * statistics.median(saving), 1) if saving else None,
                "states_mb": args.clients * args.bytes // 10**6,
                "peak_mb_above_start": (peak_bytes() - before) // 10**6,
            }
        )
    )


if __name__ == "__main__":
    main()
