"""Measures how many device events per second the simulation handles when nothing is trained.

    python benchmarks/events.py                 # 100,000 devices, cohorts of 1,000
    python benchmarks/events.py --profile       # where the time goes

An event is a dispatch to one device, or its outcome: the arrival of its reply, or its crash. Both ways through the
waist are measured on one core: rounds (``fed.sum``) and replies in flight (``fed.send``, ``fed.arrivals``,
``fed.combine``).
"""

from __future__ import annotations

import argparse
import cProfile
import json
import os
import pstats
import time
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import atoll
import numpy as np
from atoll.core.algebra.aggregate import Sum
from atoll.core.requests.task import Batch, Task, Workload
from atoll.devices import Exponential, Fleet, GeneratedTrace, Throughput
from atoll.devices.rules import BatchRate


class Registered:
    """A population of which only names and sizes are known.

    Args:
        count: how many.
    """

    def __init__(self, count: int) -> None:
        from atoll.core.requests.party import Names

        self.names = Names(count)
        self.sizes = np.random.default_rng(0).integers(50, 150, count)

    def __len__(self) -> int:
        return len(self.names)

    def shard(self, i: int) -> Any:
        """Return as many rows as the client has."""
        return range(int(self.sizes[i]))


def _many(cohort: Any, message: Any) -> Any:
    n = len(cohort)
    yield Batch(np.arange(n), {"count": Sum(np.ones((n, 1)))})


def _one(island: Any, message: Any) -> Any:
    return {"count": Sum(np.ones(1))}


def _load(sizes: Any, args: Any, message: Any) -> Workload:
    return Workload(sizes * 1.0, -(-sizes // 10), np.ones(len(sizes)))


TASK = Task("bench:count", _one, _many, load=_load)
MESSAGE = {"params": np.zeros(250)}


def fleet(seed: int = 0) -> Fleet:
    """Return a fleet with exponential speeds, thin links and crashes."""
    trace = GeneratedTrace(0.2, seed=seed)
    return Fleet(BatchRate(Exponential(1.0, 0.05)), Throughput(175_000.0), trace, egress=1.25e9, model_bytes=1e7)


async def _rounds(fed: Any, rounds: int, cohort: int) -> int:
    """Run synchronous rounds, with a deadline."""
    rng, events = np.random.default_rng(1), 0
    for number in range(rounds):
        asked = fed.parties[np.sort(rng.choice(len(fed.parties), cohort, replace=False))]
        result = await fed.sum(asked, TASK, MESSAGE, at=(number,), deadline=1000.0)
        events += 2 * cohort
        assert result.n > 0
    return events


async def _flights(fed: Any, rounds: int, cohort: int) -> int:
    """Run work in flight: for every reply, one new request goes out."""
    rng, events, waiting = np.random.default_rng(1), 0, cohort
    for number in range(rounds):
        asked = fed.parties[np.sort(rng.choice(len(fed.parties), waiting, replace=False))]
        flight = await fed.send(asked, TASK, MESSAGE, version=number, at=(number,))
        crashed = int((~np.isfinite(flight.arrives)).sum())
        arrived = await fed.arrivals(count=cohort // 2)
        result = await fed.combine(arrived)
        assert result.n == len(arrived)
        events += waiting + crashed + len(arrived)
        waiting = cohort
    return events


PATHS = {"rounds": _rounds, "flights": _flights}


def measure(path: str, population: int, cohort: int, rounds: int, *, free: bool = False) -> dict[str, Any]:
    """Run one path; return its events and seconds, without the first tenth of its rounds."""
    people, clock = Registered(population), dict[str, float]()

    async def program(fed: Any) -> int:
        await PATHS[path](fed.scope("warm"), max(1, rounds // 10), cohort)
        begin, busy = time.perf_counter(), time.process_time()
        events = await PATHS[path](fed, rounds, cohort)
        clock["seconds"], clock["cpu_seconds"] = time.perf_counter() - begin, time.process_time() - busy
        return events

    program.tasks = (TASK,)  # type: ignore[attr-defined]
    events = atoll.simulate(program, people, engine="batched", workers=1, devices=None if free else fleet())
    return {"path": path, "events": events, **clock, "events_per_second": events / clock["seconds"]}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--population", type=int, default=100_000)
    parser.add_argument("--cohort", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--profile", action="store_true")
    asked = parser.parse_args()
    for path in PATHS:
        if asked.profile:
            profile = cProfile.Profile()
            profile.enable()
            measure(path, asked.population, asked.cohort, asked.rounds)
            profile.disable()
            pstats.Stats(profile).sort_stats("tottime").print_stats(18)
            continue
        runs = [measure(path, asked.population, asked.cohort, asked.rounds) for _ in range(asked.runs)]
        best = max(runs, key=lambda run: run["events_per_second"])
        print(json.dumps({**best, "events_per_second": round(best["events_per_second"])}))


if __name__ == "__main__":
    main()
