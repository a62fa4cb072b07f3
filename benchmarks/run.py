"""Run peers on workloads side by side and write a table.

    python benchmarks/run.py                                             # everything, 5 runs each
    python benchmarks/run.py --workloads lr --peers raw1,raw2 --runs 1   # a quick look
    python benchmarks/run.py --peers atoll,other --other ../old/.venv/bin/python   # this version next to another one

Runs are interleaved (every peer once, then every peer again), so that a busy period of the machine does not hit one
peer alone. Each run is a fresh process, whose memory is sampled from outside. Its final weights are compared with the
bare PyTorch loop's after the same number of rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
import uuid
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import envs
import table
from sampler import PeakMemory, reap
from workloads import WORKLOADS, Workload, prepare

HERE = Path(__file__).resolve().parent
SCRATCH = HERE / ".runs"
RESULTS = HERE / "results"
MARK = "ATOLL_BENCH_RUN"
OTHER = "ATOLL_BENCH_OTHER"
# Largest difference of a weight over the largest weight. Where a model has ReLU or max-pooling, a
# rounding difference can flip a unit within a few steps, so that two correct loops part by 1e-4.
TOLERANCE = {"lr": 1e-5, "mlp": 1e-3, "cnn": 1e-3}
# Relative difference of the test loss after all rounds.
LOSS_TOLERANCE = 0.02


@dataclass(frozen=True)
class Peer:
    """A way to run a workload: a module in `peers/`, its environment, a process count, and a package that Atoll's environment must have."""

    title: str
    module: str
    env: str
    processes: int
    models: tuple[str, ...] = ("lr", "mlp", "cnn")
    only: tuple[str, ...] = ()
    pace: str = ""
    options: tuple[str, ...] = field(default=())
    needs: str = ""

    def runs(self, w: Workload) -> bool:
        """Tell whether this peer can run workload `w`."""
        return w.model in self.models and (not self.only or w.name in self.only)

    def rounds(self, w: Workload) -> int:
        """Return the rounds that this peer is timed over."""
        return {"slow": w.rounds_slow, "fast": w.rounds_fast}.get(self.pace, w.rounds)


PEERS = {
    "atoll": Peer("Atoll", "atoll_bench", "atoll", 2, pace="fast"),
    "atoll1": Peer("Atoll, 1 core", "atoll_bench", "atoll", 1, pace="fast"),
    "atollray": Peer(
        "Atoll on Ray, 2 actors",
        "atoll_bench",
        "atoll",
        2,
        ("lr", "mlp"),
        pace="fast",
        options=("engine=ray",),
        needs="ray",
    ),
    "other": Peer("Atoll, another version", "atoll_bench", "other", 2, pace="fast"),
    "raw1": Peer("PyTorch loop", "raw_torch", "raw", 1),
    "raw2": Peer("PyTorch loop, 2 processes", "raw_torch", "raw", 2),
    "pfl1": Peer("pfl-research", "pfl_bench", "pfl", 1),
    "pfl2": Peer("pfl-research, 2 processes", "pfl_bench", "pfl", 2),
    "flower": Peer("Flower, 2 actors", "flower_bench", "flower", 2, pace="slow"),
    "nvflare": Peer("NVFlare simulator", "nvflare_bench", "nvflare", 2, only=("silos",)),
    "xla1": Peer("XLA program, 1 device", "xla_bench", "xla", 1, ("lr", "mlp"), pace="fast"),
    "xla2": Peer("XLA program, 2 devices", "xla_bench", "xla", 2, ("lr", "mlp"), pace="fast"),
}


def interpreter(env: str) -> Path:
    """Return the peer's Python: Atoll's is the environment that runs this script, another version's the one that `--other` names."""
    if env == "other":
        return Path(os.environ[OTHER])
    return Path(sys.executable) if env == "atoll" else envs.ensure(env)


def execute(peer: Peer, w: Workload, rounds: int, out: Path, interval: float) -> dict[str, Any]:
    """Run one peer once, from process start to process end; return its line and the peak memory."""
    token = uuid.uuid4().hex
    env = {
        **os.environ,
        MARK: token,
        "PYTHONPATH": str(HERE),
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
    }
    command = [str(interpreter(peer.env)), "-m", f"peers.{peer.module}"]
    command += ["--workload", w.name, "--rounds", str(rounds)]
    command += ["--processes", str(peer.processes), "--out", str(out)]
    command += [f"--set={option}" for option in peer.options]
    memory = PeakMemory(f"{MARK}={token}", interval)
    memory.start()
    begun = time.perf_counter()
    log = out.with_suffix(".log")
    with log.open("w") as stderr:
        done = subprocess.run(command, env=env, stdout=subprocess.PIPE, stderr=stderr, text=True)
    wall = time.perf_counter() - begun
    memory.stop()
    left = reap(f"{MARK}={token}")
    if done.returncode:
        raise RuntimeError(f"{peer.title} on {w.name} ended with {done.returncode}; see {log}")
    line = json.loads(done.stdout.strip().splitlines()[-1])
    line |= {
        "wall_start_to_end": wall,
        "peak_pss_bytes": memory.peak,
        "processes_seen": memory.processes,
        "processes_left": left,
    }
    return line


def plan(w: Workload) -> Path:
    """Write the workload's files, with the batch orders that Atoll's seed gives; return the folder."""
    folder = prepare(w.name)
    if not (folder / "order_by_atoll").is_file():
        command = [sys.executable, "-m", "peers.atoll_order", w.name]
        subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": str(HERE)})
    return folder


def reference(w: Workload, rounds: int, raw: list[dict[str, Any]]) -> Path:
    """Return the weights of the bare one-process loop after `rounds` rounds, made once for each workload.

    `raw` are that loop's runs in this session; their weights are used if they have enough rounds.
    """
    file = plan(w) / f"reference_{rounds}.npz"
    if raw and raw[-1]["rounds"] == rounds:
        return Path(raw[-1]["final_weights"])
    if not file.is_file():
        made = file.with_name(f"making_{rounds}.npz")
        execute(PEERS["raw1"], w, rounds, made, interval=1.0)
        made.rename(file)
    return file


def distance(ours: Path, theirs: Path) -> float:
    """Return the largest absolute difference between two sets of weights over the largest absolute weight."""
    with np.load(ours) as a, np.load(theirs) as b:
        if len(a.files) != len(b.files):
            return float("inf")
        gap = max(float(np.abs(a[key] - b[key]).max()) for key in b.files)
        return gap / max(float(np.abs(b[key]).max()) for key in b.files)


def evaluate(w: Workload, files: list[Path]) -> dict[str, list[float]]:
    """Return test loss and accuracy of every file, from one process of the bare PyTorch environment."""
    command = [str(interpreter("raw")), "-m", "peers.evaluate", w.name, *map(str, files)]
    env = {**os.environ, "PYTHONPATH": str(HERE)}
    output = subprocess.run(command, env=env, check=True, capture_output=True, text=True).stdout
    return json.loads(output)


def gate(peer: Peer, w: Workload, last: dict[str, Any], raw: list[dict[str, Any]]) -> dict[str, Any]:
    """Apply the correctness gate: weights after `gate_rounds` rounds, test loss after all of them."""
    ours, theirs = Path(last["final_weights"]), reference(w, last["rounds"], raw)
    scores = evaluate(w, [ours, theirs])
    (loss, accuracy), (wanted, _) = scores[str(ours)], scores[str(theirs)]
    early = ours
    if last["rounds"] != w.gate_rounds:
        early = ours.with_name(f"gate-{ours.name}")
        execute(peer, w, w.gate_rounds, early, interval=1.0)
    gap = distance(early, reference(w, w.gate_rounds, raw))
    return {
        "gate_rounds": w.gate_rounds,
        "weights_distance": gap,
        "loss": loss,
        "loss_reference": wanted,
        "accuracy": accuracy,
        "correct": bool(gap <= TOLERANCE[w.model] and abs(loss - wanted) <= LOSS_TOLERANCE * wanted),
    }


def summary(lines: list[dict[str, Any]]) -> dict[str, Any]:
    """Return medians over a peer's runs."""
    middle = {
        key: median(line[key] for line in lines)
        for key in (
            "seconds_first_round",
            "seconds_steady",
            "clients_per_second",
            "compile_seconds",
            "wall_start_to_end",
            "peak_pss_bytes",
        )
    }
    rates = [line["clients_per_second"] for line in lines]
    fixed = ("version", "processes", "rounds", "notes", "processes_seen")
    return {
        **{key: lines[-1][key] for key in fixed},
        **middle,
        "fastest": max(rates),
        "slowest": min(rates),
        "runs": lines,
    }


def machine() -> dict[str, Any]:
    """Describe the machine of the measurements."""
    cpu = [x for x in Path("/proc/cpuinfo").read_text().splitlines() if x.startswith("model name")]
    return {
        "cpu": cpu[0].split(":", 1)[1].strip() if cpu else platform.processor(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "system": platform.system(),
        "load_before": os.getloadavg()[0],
    }


def options(argv: list[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--workloads", default=",".join(WORKLOADS), help="comma-separated names")
    here = [name for name, p in PEERS.items() if p.env != "other" and (not p.needs or find_spec(p.needs))]
    parser.add_argument("--peers", default=",".join(here), help="comma-separated names")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--rounds", type=int, help="instead of the workload's own number")
    parser.add_argument(
        "--other", type=Path, help="the Python of an environment with another version of Atoll, for the peer `other`"
    )
    parser.add_argument("--interval", type=float, default=0.2, help="seconds between samples")
    parser.add_argument("--name", default=datetime.now(UTC).strftime("%Y-%m-%d"))
    args = parser.parse_args(argv)
    args.workloads, args.peers = args.workloads.split(","), args.peers.split(",")
    for chosen, known in ((args.workloads, WORKLOADS), (args.peers, PEERS)):
        if unknown := [name for name in chosen if name not in known]:
            parser.error(f"unknown: {', '.join(unknown)}; choose from {', '.join(known)}")
    if args.other is not None:
        os.environ[OTHER] = str(args.other.absolute())
    elif "other" in args.peers:
        parser.error("the peer `other` needs --other PYTHON")
    return args


def measure(args: argparse.Namespace, w: Workload) -> dict[str, Any]:
    """Run all chosen peers on one workload, interleaved."""
    plan(w)
    chosen = [name for name in args.peers if PEERS[name].runs(w)]
    for name in chosen:
        interpreter(PEERS[name].env)
    lines: dict[str, list[dict[str, Any]]] = {}
    failures: dict[str, str] = {}
    for run in range(args.runs):
        for name in [n for n in chosen if n not in failures]:
            rounds = args.rounds or PEERS[name].rounds(w)
            out = SCRATCH / f"{w.name}-{name}-{run}.npz"
            try:
                line = execute(PEERS[name], w, rounds, out, args.interval)
            except (RuntimeError, ValueError, IndexError) as error:
                failures[name] = str(error)
                print(f"{w.name:6} {name:8} FAILED: {error}", file=sys.stderr)
                continue
            lines.setdefault(name, []).append(line)
            rate, wall = line["clients_per_second"], line["wall_start_to_end"]
            print(f"{w.name:6} {name:8} run {run + 1}: {rate:10.1f} clients/s, {wall:6.1f} s in all")
    raw = lines.get("raw1", [])
    done = {
        name: {"title": PEERS[name].title, **summary(runs), **gate(PEERS[name], w, runs[-1], raw)}
        for name, runs in lines.items()
    }
    return {"title": w.title, "peers": done, "failures": failures}


def _shareable(value: Any) -> Any:
    """Return the results without paths of this machine."""
    if isinstance(value, dict):
        return {k: _shareable(v) for k, v in value.items() if k != "final_weights"}
    return [_shareable(v) for v in value] if isinstance(value, list) else value


def main() -> int:
    """Run, save, print; return 1 if a peer failed or missed the gate."""
    args = options()
    SCRATCH.mkdir(exist_ok=True)
    RESULTS.mkdir(exist_ok=True)
    result = {"machine": machine(), "runs": args.runs, "workloads": {}}
    target = RESULTS / f"{args.name}.json"
    for name in args.workloads:
        result["workloads"][name] = measure(args, WORKLOADS[name])
        target.write_text(json.dumps(_shareable(result), indent=1))
    text = table.markdown(result)
    target.with_suffix(".md").write_text(text)
    print(text)
    good = all(
        not part["failures"] and all(peer["correct"] for peer in part["peers"].values())
        for part in result["workloads"].values()
    )
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())
