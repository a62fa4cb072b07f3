"""Flower's quickstart apps (NumPy, PyTorch) by ``atoll flower run`` and by Flower's own simulation, in turn.

    python benchmarks/flower_apps.py --flower PYTHON [--runs 3] [--rounds 10]

``--flower`` names the Python of an environment with ``flwr[simulation]`` and what Atoll needs (``pip install -e ".[flower,torch]" "flwr[simulation]"``). Both sides run the folders of
``tests/bridges/apps`` as they are, on two processes, and must give the same arrays. Seconds are of the run itself, without the start of Python.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import tempfile
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
APPS = {"quickstart_numpy": 4, "quickstart_pytorch": 3}


def timed(words: list[str]) -> float:
    """Seconds that a run says it took."""
    given = [str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(given)}
    done = subprocess.run(words, capture_output=True, text=True, check=True, env=environment)
    return json.loads(done.stdout.strip().splitlines()[-1])["seconds"]


def main() -> None:
    """Print a row an app."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--flower", required=True)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=10)
    args = parser.parse_args()
    for name, nodes in APPS.items():
        app = str(ROOT / "tests" / "bridges" / "apps" / name)
        with tempfile.TemporaryDirectory() as folder:
            theirs, ours = f"{folder}/theirs.npz", f"{folder}/ours.npz"
            own = [args.flower, str(ROOT / "tests" / "bridges" / "flowers_own.py"), app, str(nodes)]
            own += [f"out={json.dumps(theirs)}", f"num-server-rounds={args.rounds}"]
            atoll = [args.flower, "-m", "atoll.cli", "flower", "run", app, "--workers", "2", "--json"]
            atoll += ["--run-config", f"num-server-rounds={args.rounds} out={json.dumps(ours)}"]
            seconds = {"flower": [], "atoll": []}
            for _ in range(args.runs):
                seconds["flower"].append(timed(own))
                seconds["atoll"].append(timed(atoll))
            apart = max(
                float(np.abs(a.astype(float) - b.astype(float)).max())
                for a, b in zip(np.load(theirs).values(), np.load(ours).values(), strict=True)
            )
        medians = {side: statistics.median(values) for side, values in seconds.items()}
        row = {"app": name, "rounds": args.rounds, **{k: round(v, 3) for k, v in medians.items()}}
        print(json.dumps({**row, "ratio": round(medians["flower"] / medians["atoll"], 1), "apart": apart}), flush=True)


if __name__ == "__main__":
    main()
