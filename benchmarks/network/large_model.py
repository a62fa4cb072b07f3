"""A model of 1 GiB to 10 stub sites and back through a deployed server: what its processes need of memory.

python benchmarks/network/large_model.py
"""

from __future__ import annotations

import json
import shutil
import sys
from itertools import pairwise
from pathlib import Path
from statistics import median

from atoll import __version__
from atoll_roundtrip import ATOLL, project
from deployment import HERE, Deployment, arguments, free_ports

LAYERS = 64


def resident(run: Deployment) -> dict[str, int]:
    """Peak memory of the server's front, as the system knows it."""
    process = next(p for name, p in run.started if name == "server")
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    return {k: int(v.split()[0]) * 1024 for k, v in (line.split(":", 1) for line in lines) if k == "VmHWM"}


def main() -> None:
    """Provision, start the server and the stubs, submit the job, print the line."""
    args = arguments(__doc__ or "", ("grpc", "tcp"))
    numbers = 1 << 28  # float32: 1 GiB
    (port,) = free_ports(1)
    with Deployment("atoll", {}, args.keep) as run:
        project(run, args.variant, port, args.clients)
        kits = run.folder / "kits"
        run.start("server", [*ATOLL, "server", str(kits / "server"), "--folder", str(run.folder / "server")])
        run.await_port(port)
        stubs = [sys.executable, str(HERE / "stub_sites.py"), str(kits), f"127.0.0.1:{port}"]
        run.start("stubs", [*stubs, str(args.clients), str(LAYERS), str(numbers)])
        record = run.folder / "record.json"
        shutil.copytree(HERE / "atoll_app", run.folder / "job" / "code")
        told = {"rounds": args.rounds, "layers": LAYERS, "numbers": numbers, "record": str(record)}
        job = {"name": "large", "sites": "all", "min_sites": args.clients, "program": "large:program"}
        (run.folder / "job" / "job.yaml").write_text(json.dumps({**job, "source": "code", "arguments": told}))
        run.call([*ATOLL, "submit", "job", "--kit", str(kits / "admin")])
        result = run.await_file(record, "server", args.timeout)
        laps = [b - a for a, b in pairwise(result["averaged_at"])]
        line = {
            "framework": "atoll",
            "version": __version__,
            "variant": args.variant,
            "model_gib": 4 * numbers / 2**30,
            "clients": args.clients,
            "rounds": args.rounds,
            "seconds_per_round": round(median(laps), 1),
            "peak_gib_of_the_process_that_adds": round(result["VmHWM"] / 2**30, 3),
            "of_it_before_the_model": round(result["before"]["VmHWM"] / 2**30, 3),
            "peak_gib_of_the_front": round(resident(run)["VmHWM"] / 2**30, 3),
            "worst_error": result["worst_error"],
        }
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
