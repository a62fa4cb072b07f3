"""A model of 1 GiB to 10 stub sites and back through a deployed server: how much memory its processes need.

python benchmarks/network/large_model.py

``peak_gib_of_the_...`` are the system's own records of each process (VmHWM), which count a shared page in each.
``peak_gib_of_both_...`` are sampled sums over the server's processes at one time: of PSS, which counts such a page
once, and of RSS.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
import threading
from itertools import pairwise
from pathlib import Path
from statistics import median

from atoll import __version__
from atoll_roundtrip import ATOLL, project
from deployment import HERE, Deployment, arguments, free_ports

LAYERS = 64
SAMPLE_SECONDS = 0.2


def field(pid: int, file: str, name: str) -> int:
    """Return a field in bytes from a process's system file; 0 once the process is gone."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/{file}").read_text().splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) * 1024
    return 0


def family(pid: int) -> list[int]:
    """Return a process and all its descendants."""
    found = [pid]
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found += [one for child in children.read_text().split() for one in family(int(child))]
    return found


class Peaks(threading.Thread):
    """The peak memory of a process and its descendants together, sampled every ``SAMPLE_SECONDS``."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.pid = pid
        self.most = {"Pss": 0, "Rss": 0}  # bytes
        self._over = threading.Event()

    def run(self) -> None:
        """Sample until stopped."""
        while not self._over.wait(SAMPLE_SECONDS):
            for name, most in self.most.items():
                together = sum(field(pid, "smaps_rollup", name) for pid in family(self.pid))
                self.most[name] = max(most, together)

    def stop(self) -> dict[str, float]:
        """Return the peaks, in GiB."""
        self._over.set()
        self.join()
        return {name: round(most / 2**30, 3) for name, most in self.most.items()}


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
        daemon = run.started[0][1].pid
        peaks = Peaks(daemon)
        peaks.start()
        stubs = [sys.executable, str(HERE / "stub_sites.py"), str(kits), f"127.0.0.1:{port}"]
        run.start("stubs", [*stubs, str(args.clients), str(LAYERS), str(numbers)])
        shutil.copytree(HERE / "atoll_app", run.folder / "job" / "code")
        told = {"rounds": args.rounds, "layers": LAYERS, "numbers": numbers}
        job = {"name": "large", "job": "program", "sites": "all", "min_sites": args.clients, "program": "large:program"}
        (run.folder / "job" / "job.yaml").write_text(json.dumps({**job, "source": "code", "arguments": told}))
        run.call([*ATOLL, "submit", "job", "--kit", str(kits / "admin")])
        result = run.await_result(run.folder / "server", "server", args.timeout)
        both = peaks.stop()
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
            "peak_gib_of_the_daemon": round(field(daemon, "status", "VmHWM") / 2**30, 3),
            "peak_gib_of_both_pss": both["Pss"],
            "peak_gib_of_both_rss": both["Rss"],
            "worst_error": result["worst_error"],
        }
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
