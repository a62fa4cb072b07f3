"""Atoll, deployed: an 18 MB model to 10 sites over mutual TLS and back.

python benchmarks/network/atoll_roundtrip.py
python benchmarks/network/atoll_roundtrip.py --variant tcp
"""

from __future__ import annotations

import json
import shutil
import sys

import numpy as np
import yaml
from atoll import __version__
from deployment import HERE, NUMBERS, Deployment, arguments, free_ports, transport_security

VARIANTS = ("grpc", "tcp")


def project(run: Deployment, transport: str, port: int, clients: int) -> None:
    """Provision a server, sites and an admin."""
    names = [f"site-{i + 1}" for i in range(clients)]
    wanted = {
        "project": "bench",
        "servers": [{"name": "server", "hosts": ["127.0.0.1"], "port": port}],
        "sites": [{"name": name, "org": name} for name in names],
        "admins": [{"name": "admin", "org": "bench"}],
        "transport": transport,
    }
    (run.folder / "project.yaml").write_text(yaml.safe_dump(wanted))
    run.call([*ATOLL, "provision", "project.yaml"])


ATOLL = [sys.executable, "-m", "atoll.cli"]


def main() -> None:
    """Provision, start, submit the job, print the line."""
    args = arguments(__doc__ or "", VARIANTS)
    (port,) = free_ports(1)
    with Deployment("atoll", {}, args.keep) as run:
        project(run, args.variant, port, args.clients)
        kits = run.folder / "kits"
        np.savez(run.folder / "none.npz", x=np.zeros((1, 1)), y=np.zeros(1))
        run.start("server", [*ATOLL, "server", str(kits / "server"), "--folder", str(run.folder / "server")])
        run.await_port(port)
        site = kits / "site-1"
        identity = (site / "certificate.pem", site / "key.pem")
        run.security = f"{args.variant}, {transport_security(port, identity)}"
        for i in range(args.clients):
            name = f"site-{i + 1}"
            command = [*ATOLL, "site", str(kits / name), "--data", "none.npz", "--folder", str(run.folder / name)]
            run.start(name, [*command, "--cpus", "64", "--memory", "0", "--gpus", "0"])
        shutil.copytree(HERE / "atoll_app", run.folder / "job" / "code")
        job = {
            "name": "echo",
            "sites": "all",
            "min_sites": args.clients,
            "job": "program",
            "program": "echo:program",
            "source": "code",
            "arguments": {"rounds": args.rounds, "layers": args.layers, "numbers": NUMBERS},
        }
        (run.folder / "job" / "job.yaml").write_text(json.dumps(job))
        print(run.call([*ATOLL, "submit", "job", "--kit", str(kits / "admin")]), file=sys.stderr)
        result = run.await_result(run.folder / "server", "server", args.timeout)
        print(run.line("atoll", __version__, result, args), flush=True)


if __name__ == "__main__":
    main()
