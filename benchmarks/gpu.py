"""Models that people bring on one GPU: Atoll next to a bare PyTorch loop on the same device, in turn.

    python benchmarks/gpu.py                                     # every model, cohorts of 10 and 60, three runs
    python benchmarks/gpu.py --works mlp --cohorts 60 --runs 1

Every run is a process of its own, and all peers run once before any runs again. The table gives clients a second in a steady round
(medians), their ratio to the bare loop, and the first round in seconds. All peers must end with nearly the same loss.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any

from peers.real_works import WORKS

HERE = Path(__file__).resolve().parent
PEERS = {"bare": ("loop", "1"), "never": ("atoll", "never"), "auto": ("atoll", "auto"), "always": ("atoll", "always")}


def run(work: str, peer: str, cohort: int, rounds: int, limit: float) -> dict[str, Any] | None:
    """Run one peer once; return its line, or nothing if it did not end."""
    kind, how = PEERS[peer]
    command = [sys.executable, "-m", "peers.real_peer", kind, how, work, "--device", "cuda"]
    command += ["--rounds", str(rounds), "--cohort", str(cohort)]
    path = os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH", "")]))
    try:
        done = subprocess.run(
            command, env={**os.environ, "PYTHONPATH": path}, cwd=HERE, capture_output=True, text=True, timeout=limit
        )
    except subprocess.TimeoutExpired:
        print(f"{work} {peer} {cohort}: no end within {limit:g} s", file=sys.stderr)
        return None
    if done.returncode:
        print(f"{work} {peer} {cohort} failed:\n{done.stderr[-1500:]}", file=sys.stderr)
        return None
    line: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return line


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--works", default=",".join(WORKS))
    parser.add_argument("--cohorts", default="10,60")
    parser.add_argument("--peers", default=",".join(PEERS))
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--limit", type=float, default=120, help="seconds for one run")
    parser.add_argument("--out", type=Path, help="a file for the raw lines")
    args = parser.parse_args()
    lines: list[dict[str, Any]] = []
    print(
        "| work | cohort | peer | clients/s | ratio | first round, s | loss |\n|---|--:|---|--:|--:|--:|--:|",
        flush=True,
    )
    for work in args.works.split(","):
        for cohort in map(int, args.cohorts.split(",")):
            found: dict[str, list[dict[str, Any]]] = {peer: [] for peer in args.peers.split(",")}
            for _ in range(args.runs):
                for peer, runs in found.items():
                    if (line := run(work, peer, cohort, args.rounds, args.limit)) is not None:
                        runs.append(line)
                        lines.append(line)
            rate = {p: median(line["clients_per_second"] for line in runs) for p, runs in found.items() if runs}
            for peer, each in rate.items():
                ratio = each / rate["bare"] if "bare" in rate else float("nan")
                first, loss = (median(line[key] for line in found[peer]) for key in ("first", "loss"))
                print(
                    f"| {work} | {cohort} | {peer} | {each:,.0f} | {ratio:.2f} | {first:.1f} | {loss:.3f} |", flush=True
                )
    if args.out:
        args.out.write_text(json.dumps(lines, indent=1, default=str))


if __name__ == "__main__":
    main()
