"""Runs Atoll, NVFlare and Flower in turn: the same round trips, several times, and the ratios of their medians.

python benchmarks/network/compare.py
python benchmarks/network/compare.py --runs 5 --only atoll nvflare:tuned
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).resolve().parent
PEERS = ("atoll", "nvflare", "nvflare:tuned", "flwr")


def once(peer: str, rounds: int, timeout: float) -> dict[str, Any]:
    """Run one deployment; return the line that its script prints."""
    name, _, variant = peer.partition(":")
    command = [sys.executable, str(HERE / f"{name}_roundtrip.py"), "--rounds", str(rounds), "--timeout", str(timeout)]
    done = subprocess.run([*command, *(["--variant", variant] if variant else [])], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{peer}:\n{done.stderr}")
    return dict(json.loads(done.stdout.splitlines()[-1]))


def row(peer: str, lines: list[dict[str, Any]], best: float) -> str:
    """Return a peer's runs as a row of Markdown: medians over the runs, with the range of the medians."""
    seconds = [line["seconds_per_round"] for line in lines]
    cells = [
        f"{peer} {lines[0]['version']}",
        f"{median(seconds):.2f}",
        f"{min(seconds):.2f}-{max(seconds):.2f}",
        f"{median(seconds) / best:.1f} x",
        f"{median(line['cpu_seconds_per_round'] for line in lines):.2f}",
        f"{median(line['start_to_end'] for line in lines):.0f}",
        f"{median(line['peak_pss_mb'] for line in lines):,.0f}",
        f"{max(line['load_before'] for line in lines):.1f}",
    ]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Run all peers in turn; print each line as it arrives, then the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=8, help="Flower does five, as its round takes longest")
    parser.add_argument("--only", nargs="+", default=PEERS, metavar="PEER[:VARIANT]")
    parser.add_argument("--timeout", type=float, default=600)
    args = parser.parse_args()
    found: dict[str, list[dict[str, Any]]] = {peer: [] for peer in args.only}
    for _ in range(args.runs):
        for peer, lines in found.items():
            lines.append(once(peer, min(args.rounds, 5) if peer.startswith("flwr") else args.rounds, args.timeout))
            print(json.dumps(lines[-1]), file=sys.stderr, flush=True)
    first = found.get("atoll") or next(iter(found.values()))
    best = median(line["seconds_per_round"] for line in first)
    print(
        "| Peer | s per round | Range of medians | Against the first | CPU s per round | Start to end, s | Peak PSS, MB | Load before |"
    )
    print("|---|--:|--:|--:|--:|--:|--:|--:|")
    for peer, lines in found.items():
        print(row(peer, lines, best))


if __name__ == "__main__":
    main()
