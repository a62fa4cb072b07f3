"""Bar charts of `run.py`'s results and scaling curves of `scale.py`'s, as SVG.

python benchmarks/plot.py benchmarks/results/NAME.json [--out FOLDER]
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("svg")
from matplotlib import pyplot as plt

# A fixed salt keeps the files the same from run to run.
mpl.rcParams["svg.hashsalt"] = "atoll"
COLOURS = {"atoll": "#0b6e8a", "xla": "#c9a227"}
OTHER = "#9aa5ab"


def _colour(name: str) -> str:
    return next((c for start, c in COLOURS.items() if name.startswith(start)), OTHER)


def _save(figure: Any, target: Path) -> Path:
    figure.savefig(target, metadata={"Date": None}, bbox_inches="tight")
    plt.close(figure)
    return target


def bars(workload: dict[str, Any], key: str, label: str, scale: float, target: Path) -> Path:
    """Draw one horizontal bar for each peer, on a logarithmic axis, best on top."""
    peers = sorted(workload["peers"].items(), key=lambda item: item[1][key])
    if key != "clients_per_second":
        peers.reverse()
    values = [peer[key] * scale for _, peer in peers]
    figure, axes = plt.subplots(figsize=(7, 0.4 * len(peers) + 0.9))
    drawn = axes.barh([peer["title"] for _, peer in peers], values, color=[_colour(name) for name, _ in peers])
    axes.bar_label(drawn, labels=[f" {value:,.4g}" for value in values])
    axes.set_xscale("log")
    axes.set_xlim(min(values) / 2, max(values) * 3)
    axes.set_xlabel(label)
    axes.set_title(workload["title"], loc="left", fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    return _save(figure, target)


def lines(result: dict[str, Any], target: Path) -> Path:
    """Draw a panel for each quantity that grows, with the line of exact proportion to the last point."""
    panels = result["growth"]
    figure, grid = plt.subplots(1, len(panels), figsize=(4 * len(panels), 3), squeeze=False)
    for axes, (quantity, points) in zip(grid[0], panels.items(), strict=True):
        sizes = [point["size"] for point in points]
        seconds = [point["seconds_per_round"] for point in points]
        axes.loglog(sizes, seconds, "o-", color=COLOURS["atoll"], label="measured")
        exact = [seconds[-1] * size / sizes[-1] for size in sizes]
        axes.loglog(sizes, exact, "--", color=OTHER, label="proportional")
        axes.set_xlabel(quantity)
        axes.set_ylabel("seconds a round")
        axes.legend(frameon=False)
        axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    return _save(figure, target)


def draw(result: dict[str, Any], folder: Path, name: str) -> list[Path]:
    """Draw every chart that the result has data for."""
    made = []
    for workload, part in result.get("workloads", {}).items():
        speed, memory = (folder / f"{name}-{workload}-{kind}.svg" for kind in ("speed", "memory"))
        made.append(bars(part, "clients_per_second", "clients per second (steady)", 1.0, speed))
        made.append(bars(part, "peak_pss_bytes", "peak memory of all processes, MB", 1e-6, memory))
    if "growth" in result:
        made.append(lines(result, folder / f"{name}-growth.svg"))
    return made


def main() -> None:
    """Draw the charts of one result file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("result", type=Path)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    folder = args.out or args.result.parent
    folder.mkdir(parents=True, exist_ok=True)
    for made in draw(json.loads(args.result.read_text()), folder, args.result.stem):
        print(made)


if __name__ == "__main__":
    main()
