"""Flower's quickstart apps (NumPy, PyTorch) between real processes: by Flower's own SuperLink and SuperNodes, and by Atoll's server and sites, in turn.

    python benchmarks/network/flower_apps.py --flower PYTHON [--runs 3] [--rounds 10] [--nodes 3]

``--flower`` names the Python of an environment with ``flwr`` and what Atoll needs (``pip install -e ".[flower,torch,net,sklearn]"``). Both sides run the folders of ``tests/bridges/apps`` as they
are. Daemons stand and are connected before the clock starts; seconds run from handing the app in to its end, so they hold the processes of the run, too. Flower's runs over TLS with
registered keys of nodes, Atoll's over mutual TLS.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from deployment import Deployment, free_ports
from flwr_roundtrip import QUIET, certify, connection, start_superlink, start_supernode

ROOT = Path(__file__).resolve().parents[2]
APPS = ROOT / "tests" / "bridges" / "apps"
NAMES = ("quickstart_numpy", "quickstart_pytorch")
OURS = """
import asyncio, json, sys, time
from pathlib import Path
from atoll.runtime.admin import Admin
from atoll.runtime.poc import Poc, digits_at, site_names, write_parts

async def main(place, job, sites):
    files = write_parts(digits_at(site_names(sites)), place / "data")
    async with Poc(place, {name: [str(file)] for name, file in files.items()}) as poc:
        async with Admin(poc.kit("admin"), poc.address) as admin:
            begin = time.perf_counter()
            found = await admin.submit(job)
            at = await admin.wait(found["job"])
            print(json.dumps({"seconds": time.perf_counter() - begin, "status": at["state"], "why": str(at.get("why", ""))}))

asyncio.run(main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])))
"""


def of_flower(python: str, name: str, nodes: int, rounds: int, limit: float) -> float:
    """Seconds of one run by SuperLink and SuperNodes."""
    ports = free_ports(nodes + 1)
    with Deployment("atoll", QUIET, False) as run:
        run.python = Path(python)
        run.env["PATH"] = f"{run.python.parent}{os.pathsep}{run.env['PATH']}"
        run.env["FLWR_HOME"] = str(run.folder / "home")
        certify(run.folder)
        connection(run.folder, ports[0])
        start_superlink(run, ports[0])
        for i in range(nodes):
            start_supernode(run, i, ports[0], ports[i + 1], f" num-partitions={nodes}")
        time.sleep(5)  # until all nodes have said that they are there
        app = shutil.copytree(APPS / name, run.folder / name)  # `flwr` writes into it
        arrays, begin = run.folder / "arrays.npz", time.perf_counter()
        run.call(["flwr", "run", str(app), "bench", "--run-config", f'num-server-rounds={rounds} out="{arrays}"'])
        until = begin + limit
        while not arrays.is_file():
            if time.perf_counter() > until:
                raise SystemExit(f"Flower: no arrays after {limit:g} s\n{run.log('superlink')}")
            time.sleep(0.05)
        return time.perf_counter() - begin


def of_atoll(python: str, name: str, nodes: int, rounds: int) -> float:
    """Seconds of one run by a server and sites."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src")}
    with tempfile.TemporaryDirectory() as folder:
        job = f"{folder}/job.yaml"
        words = ["-m", "atoll.cli", "flower", "job", str(APPS / name), "--out", job]
        subprocess.run(
            [python, *words, "--run-config", f"num-server-rounds={rounds}"],
            check=True,
            capture_output=True,
            env=environment,
        )
        done = subprocess.run(
            [python, "-c", OURS, f"{folder}/trial", job, str(nodes)], capture_output=True, text=True, env=environment
        )
        if done.returncode:
            raise SystemExit(f"Atoll:\n{done.stderr[-2000:]}")
        said = json.loads(done.stdout.splitlines()[-1])
        if said["status"] != "finished":
            raise SystemExit(f"Atoll: the job ended as {said}")
        return float(said["seconds"])


def main() -> None:
    """Print a row an app."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--flower", required=True)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--limit", type=float, default=300.0, help="seconds after which a run of Flower's is given up")
    parser.add_argument("--only", nargs="+", default=NAMES)
    args = parser.parse_args()
    for name in args.only:
        load, seconds = os.getloadavg()[0], {"flower": [], "atoll": []}
        for _ in range(args.runs):
            seconds["atoll"].append(of_atoll(args.flower, name, args.nodes, args.rounds))
            print(json.dumps(seconds), file=sys.stderr, flush=True)
            seconds["flower"].append(of_flower(args.flower, name, args.nodes, args.rounds, args.limit))
            print(json.dumps(seconds), file=sys.stderr, flush=True)
        medians = {side: statistics.median(values) for side, values in seconds.items()}
        row = {
            "app": name,
            "rounds": args.rounds,
            "nodes": args.nodes,
            "runs": args.runs,
            "load_before": round(load, 1),
        }
        shown = {side: round(value, 2) for side, value in medians.items()}
        print(json.dumps({**row, **shown, "ratio": round(medians["flower"] / medians["atoll"], 1)}), flush=True)


if __name__ == "__main__":
    main()
