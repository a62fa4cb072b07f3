"""The results of `run.py` as Markdown.

python benchmarks/table.py benchmarks/results/NAME.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

HEAD = (
    "| Peer | Clients/s | Range | vs fastest peer | First round, s | Compile, s | Start to end, s "
    "| Peak PSS, MB | Weights differ by (after rounds) | Loss | Accuracy | Gate |\n"
    "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|:-:|"
)


def _row(peer: dict[str, Any], best: float) -> str:
    rate = peer["clients_per_second"]
    cells = [
        peer["title"],
        f"{rate:,.1f}",
        f"{peer['slowest']:,.1f} - {peer['fastest']:,.1f}",
        f"{rate / best:.2f} x",
        f"{peer['seconds_first_round']:.2f}",
        f"{peer['compile_seconds']:.1f}",
        f"{peer['wall_start_to_end']:.1f}",
        f"{peer['peak_pss_bytes'] / 1e6:,.0f}",
        f"{peer['weights_distance']:.1e} ({peer['gate_rounds']})",
        f"{peer['loss']:.3f}",
        f"{peer['accuracy']:.3f}",
        "pass" if peer["correct"] else "**fail**",
    ]
    return f"| {' | '.join(cells)} |"


def markdown(result: dict[str, Any]) -> str:
    """Return the whole result as Markdown tables, one for each workload.

    "vs fastest peer" divides by the fastest framework or hand-written PyTorch loop, that is, by the
    fastest row that is neither Atoll nor the XLA program.
    """
    machine = result["machine"]
    lines = [
        f"{machine['cpu']}, {machine['cores']} cores, Python {machine['python']}.",
        f"Medians of {result['runs']} run(s); load average before: {machine['load_before']:.1f}.",
    ]
    versions = set()
    for part in result["workloads"].values():
        lines += ["", f"### {part['title']}", "", HEAD]
        peers = part["peers"]
        others = [peer["clients_per_second"] for name, peer in peers.items() if not name.startswith(("atoll", "xla"))]
        best = max(others, default=float("nan"))
        rows = sorted(peers.values(), key=lambda peer: -peer["clients_per_second"])
        lines += [_row(peer, best) for peer in rows]
        versions |= {f"{peer['title'].split(',')[0]}: {peer['version']}" for peer in rows}
        lines += [f"\n{name} failed: {why}" for name, why in part["failures"].items()]
    lines += ["", "Versions. " + "; ".join(sorted(versions)) + "."]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(markdown(json.loads(Path(sys.argv[1]).read_text())))
