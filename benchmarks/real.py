"""Models that people bring: Atoll next to a bare PyTorch loop with all cores, to one in as many processes, and to pfl-research in as many.

    python benchmarks/real.py                              # every model, three interleaved runs
    python benchmarks/real.py --works mlp,lstm --runs 1    # a quick look

pfl-research takes part if its environment is there (`python benchmarks/envs.py pfl`).

Every run is a process of its own, and all peers run once before any runs again. Clients are of unequal sizes (log-normal, sigma 0.6). The
table gives clients a second in a steady round (medians, with the lowest and highest), the ratio to the better of the two bare loops, and the
first round. "cold" is Atoll's first round with an empty cache of compiled code. All peers must end with nearly the same loss: each draws its own
order of rows.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

import envs
from peers.real_works import WORKS

HERE = Path(__file__).resolve().parent
CORES = str(os.cpu_count() or 1)
PEERS = {
    "one process": ("loop", CORES),
    "processes": ("loops", CORES),
    "auto": ("atoll", "auto"),
    "always": ("atoll", "always"),
} | ({"pfl": ("processes", CORES)} if envs.is_ready("pfl") else {})
LOSS_TOLERANCE = 0.15  # relative; losses below 0.05 are learnt and count as equal


def run(work: str, peer: str, cache: Path, rounds: int) -> dict[str, Any]:
    """Run one peer once; return its line."""
    kind, how = PEERS[peer]
    python, module = (
        (str(envs.python("pfl")), "peers.real_pfl") if peer == "pfl" else (sys.executable, "peers.real_peer")
    )
    command = [python, "-m", module, kind, how, work, "--rounds", str(rounds)]
    env = {**os.environ, "PYTHONPATH": str(HERE), "ATOLL_CACHE": str(cache)}
    done = subprocess.run(command, env=env, cwd=HERE, capture_output=True, text=True)
    crashed_at_its_end = peer == "pfl" and done.stdout.strip().endswith("}")  # after its last line: gloo's teardown
    if done.returncode and not crashed_at_its_end:
        raise SystemExit(f"{peer} on {work} failed:\n{done.stderr[-2000:]}")
    line: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return line


def measured(work: str, runs: int, rounds: int) -> dict[str, list[dict[str, Any]]]:
    """Return all runs of a work, by peer."""
    found: dict[str, list[dict[str, Any]]] = {peer: [] for peer in PEERS}
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(runs):
            for peer in PEERS:
                line = run(work, peer, Path(folder) / peer, rounds or WORKS[work].rounds)
                found[peer].append(line)
                rate, first = line["clients_per_second"], line["first"]
                print(
                    f"{work:12} {peer:12} run {turn + 1}: {rate:9.1f} clients/s, first round {first:.2f} s",
                    file=sys.stderr,
                )
    return found


def row(work: str, found: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Summarise a work."""
    rates = {peer: [line["clients_per_second"] for line in lines] for peer, lines in found.items()}
    steady = {peer: median(line["steady"] for line in lines) for peer, lines in found.items()}
    bare = max(median(rates["one process"]), median(rates["processes"]))
    losses = [median(line["loss"] for line in lines) for lines in found.values()]
    alike = max(losses) - min(losses) <= LOSS_TOLERANCE * max(losses) or max(losses) < 0.05
    notes = found["auto"][0]["notes"]["tasks"]
    return {
        "work": work,
        "title": WORKS[work].title,
        "rates": {peer: (median(some), min(some), max(some)) for peer, some in rates.items()},
        "ratio": {peer: median(rates[peer]) / bare for peer in ("auto", "always")},
        "wanted": WORKS[work].target,
        "first": {peer: [line["first"] for line in lines] for peer, lines in found.items()},
        "first_allowed": 3 * min(steady["one process"], steady["processes"]) + 3.0,
        "same_loss": alike,
        "how": {peer: _how(found[peer][0]["notes"]["tasks"]) for peer in ("auto", "always")} if notes else {},
    }


def _how(tasks: dict[str, Any]) -> str:
    tuning = next(iter(tasks.values()))["tuning"]
    return "native code" if "steps" in tuning["code"] else f"{tuning['mode']}, {', '.join(tuning['code']) or 'PyTorch'}"


def table(rows: list[dict[str, Any]]) -> str:
    """Return the rows as Markdown."""
    columns = [
        "bare, one process",
        "bare, processes",
        "Atoll `auto`",
        "Atoll `always`",
        *["pfl-research, processes"] * ("pfl" in PEERS),
    ]
    head = f"| Work | {' | '.join(columns)} | ratio `auto` / `always` | wanted | first round `auto`, cold (at most) | first round `always`, cold | how |"
    lines = [head, f"|---|{'--:|' * len(columns)}--:|--:|--:|--:|---|"]
    for one in rows:
        rates = [f"{a:,.1f} ({b:,.1f}–{c:,.1f})" for a, b, c in one["rates"].values()]
        ratio = f"{one['ratio']['auto']:.2f} / {one['ratio']['always']:.2f}"
        first = f"{one['first']['auto'][0]:.1f} s ({one['first_allowed']:.1f})"
        always = f"{one['first']['always'][0]:.1f} s"
        how = f"{one['how'].get('auto')}; {one['how'].get('always')}" + (
            "" if one["same_loss"] else "; **losses differ**"
        )
        lines.append(
            f"| {' | '.join([one['title'], *rates, ratio, format(one['wanted'], '.1f'), first, always, how])} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Measure and print the table; the runs go to a file."""
    parser = argparse.ArgumentParser(description="models that people bring")
    parser.add_argument("--works", default=",".join(WORKS))
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=0)
    parser.add_argument("--out", type=Path, default=HERE / "results" / "real.json")
    args = parser.parse_args()
    rows = [row(work, measured(work, args.runs, args.rounds)) for work in args.works.split(",")]
    args.out.parent.mkdir(exist_ok=True)
    args.out.write_text(json.dumps({"runs": args.runs, "cores": os.cpu_count(), "rows": rows}, indent=1) + "\n")
    print(table(rows))


if __name__ == "__main__":
    main()
