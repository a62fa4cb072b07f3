"""How Atoll scales: a million registered clients, and the cost of a round as its parts grow.

    python benchmarks/scale.py                    # both, results/scale.json
    python benchmarks/scale.py --quick            # small sizes, to check that it runs

Each point is measured in a fresh process. Memory is the peak PSS of the process tree, less that of
a process that has only imported Atoll and PyTorch.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

from sampler import PeakMemory

HERE = Path(__file__).resolve().parent
MARK = "ATOLL_BENCH_RUN"
# features, classes, examples per client, cohort, rounds
BASE = {"features": 60, "examples": 50, "cohort": 1000, "population": 10_000, "rounds": 20}
GROWTH = {
    "clients a round": ("cohort", (125, 250, 500, 1000, 2000, 4000)),
    "parameters": ("features", (60, 240, 960, 3840, 15_360)),
    "examples a client": ("examples", (50, 100, 200, 400, 800)),
}
# With a small cohort, growth with size would be lost in the fixed cost of a round.
GROWTH_BASE = {**BASE, "cohort": 200, "rounds": 10}


def point(settings: dict[str, int], *, import_only: bool = False) -> dict[str, Any]:
    """Measure one setting in a fresh process."""
    token = uuid.uuid4().hex
    env = {**os.environ, MARK: token, "PYTHONPATH": str(HERE), "OMP_NUM_THREADS": "1"}
    asked = json.dumps({**settings, "import_only": import_only})
    memory = PeakMemory(f"{MARK}={token}", interval=0.1)
    memory.start()
    command = [sys.executable, "-m", "peers.atoll_scale", asked]
    done = subprocess.run(command, env=env, check=True, stdout=subprocess.PIPE, text=True)
    memory.stop()
    line = json.loads(done.stdout.strip().splitlines()[-1])
    return {**settings, **line, "peak_pss_bytes": memory.peak}


def population(sizes: tuple[int, ...], runs: int) -> dict[str, Any]:
    """Measure speed and memory by the number of registered clients, interleaved; keep the best of each."""
    floor = point(BASE, import_only=True)["peak_pss_bytes"]
    best: dict[int, dict[str, Any]] = {}
    for _ in range(runs):
        for size in sizes:
            made = point({**BASE, "population": size})
            made["above_import_bytes"] = made["peak_pss_bytes"] - floor
            print(
                f"{size:>9,} clients: {made['rounds_per_second']:.2f} rounds/s, "
                f"{made['above_import_bytes'] / 2**20:.0f} MiB above the import"
            )
            known = best.get(size)
            if known is None or made["rounds_per_second"] > known["rounds_per_second"]:
                best[size] = made
    return {"import_pss_bytes": floor, "points": list(best.values())}


def growth(runs: int, most: int | None) -> dict[str, list[dict[str, Any]]]:
    """Measure the seconds per round as one quantity grows and the others stay; keep the best of several runs."""
    panels: dict[str, list[dict[str, Any]]] = {}
    for title, (key, sizes) in GROWTH.items():
        panels[title] = []
        for size in sizes[:most]:
            settings = {**GROWTH_BASE, key: size}
            settings["population"] = max(settings["population"], settings["cohort"])
            rate = max(point(settings)["rounds_per_second"] for _ in range(runs))
            panels[title].append({"size": size, "seconds_per_round": 1.0 / rate})
            print(f"{title} {size:,}: {1e3 / rate:.1f} ms a round")
    return panels


def main() -> None:
    """Measure and save."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--runs", type=int, default=3)
    args = parser.parse_args()
    runs = 1 if args.quick else args.runs
    sizes = (1000, 10_000) if args.quick else (10_000, 100_000, 1_000_000)
    result = {"population": population(sizes, runs), "growth": growth(runs, 2 if args.quick else None)}
    target = HERE / "results" / ("scale-quick.json" if args.quick else "scale.json")
    target.parent.mkdir(exist_ok=True)
    target.write_text(json.dumps(result, indent=1))
    print(target)


if __name__ == "__main__":
    main()
