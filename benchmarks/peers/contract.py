"""What every peer program shares: its arguments, a stopwatch for rounds, and its one line of JSON.

A peer is started as `python -m peers.<module> --workload NAME --rounds N --processes P --out FILE`
with `benchmarks/` on the path. It writes its final weights to FILE (an `.npz`, PyTorch's order and
layout) and prints one JSON object as its last line.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from workloads import WORKLOADS, Workload


def arguments(description: str) -> argparse.Namespace:
    """Parse the contract's command line; `--set a=b` carries a peer's own switches."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--workload", required=True, choices=sorted(WORKLOADS))
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    args = parser.parse_args()
    args.options = dict(item.split("=", 1) for item in args.set)
    return args


class Stopwatch:
    """The seconds of each round: call `lap()` at the end of every round; the first one begins at `start()`."""

    def __init__(self) -> None:
        self.laps: list[float] = []
        self._last = time.perf_counter()

    def start(self) -> None:
        """Begin the first round now."""
        self._last = time.perf_counter()

    def lap(self) -> None:
        """End a round and begin the next."""
        now = time.perf_counter()
        self.laps.append(now - self._last)
        self._last = now


def report(
    *,
    peer: str,
    version: str,
    workload: Workload,
    processes: int,
    laps: list[float],
    weights: Iterable[NDArray[np.float32]],
    out: Path,
    rounds: int = 0,
    compile_seconds: float = 0.0,
    notes: str = "",
) -> None:
    """Save the final weights and print the peer's JSON line (`rounds`: if not every one has a lap)."""
    np.savez(out, *weights)
    steady = float(np.mean(laps[1:])) if len(laps) > 1 else float("nan")
    line = {
        "peer": peer,
        "version": version,
        "workload": workload.name,
        "processes": processes,
        "rounds": rounds or len(laps),
        "seconds_first_round": laps[0],
        "seconds_steady": steady,
        "seconds_best_round": min(laps),
        "clients_per_second": workload.cohort / steady,
        "compile_seconds": compile_seconds,
        "final_weights": str(out),
        "notes": notes,
    }
    print(json.dumps(line), flush=True)
