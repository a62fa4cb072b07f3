"""Measures what the real runtime adds to a job: the digits between 3 sites, simulated and deployed, broken down.

python benchmarks/network/overhead.py

* ``simulated``: the inline engine, one process: the arithmetic alone.
* ``processes``: the network engine with its sites as processes on local sockets: + messages, + decoding, + one process
  for each site.
* ``deployed``: daemons, mutual TLS, checkpoints and records in files: + relays, + encryption, + the disk.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from statistics import median

import atoll
from atoll.cli.commands.poc import poc_job
from atoll.runs import RunFolder, yaml
from atoll.runtime.admin import Admin
from atoll.runtime.job_spec import parse_job
from atoll.runtime.poc import Poc, digits_at, site_names, write_parts
from atoll.testing.lying.sites import Rehearsal


def simulated(settings, islands, engine, folder=None):
    """Return the seconds of each round after the first."""
    config = parse_job(settings)
    moments = []
    training = config.made()
    data = islands.with_test(config.test_set())
    begin = time.perf_counter()
    atoll.simulate(
        training, data, engine=engine, seed=settings["seed"], folder=folder,
        on_record=lambda row: moments.append(time.perf_counter()),
    )  # fmt: skip
    return {"first_round": moments[0] - begin, "round": median(b - a for a, b in pairwise(moments))}


async def deployed(settings, islands, folder):
    """Return the same, and the time before the first round."""
    files = write_parts(islands, folder / "data")
    job = folder / "job.yaml"
    job.write_text(yaml.dump(settings))
    begin = time.perf_counter()
    poc = Poc(folder, {name: [str(file)] for name, file in files.items()})
    provisioned = time.perf_counter()
    async with poc, Admin(poc.kit("admin"), poc.address) as admin:
        started = time.perf_counter()
        found = await admin.submit(job)
        await admin.wait(found["job"])
        ended = time.perf_counter()
        rows = RunFolder(folder / "run" / "server" / "jobs" / found["job"] / "state").metrics()
    clocks = [row["clock"] for row in rows]
    return {
        "provision": provisioned - begin,
        "start_daemons": started - provisioned,
        "submit_to_first_round": ended - started - (clocks[-1] - clocks[0]),
        "round": median(b - a for a, b in pairwise(clocks)),
    }


def main() -> None:
    """Measure in turns; print a line of JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    names = site_names(3)
    settings = {**poc_job(names, seed=0), "rounds": args.rounds}
    islands = digits_at(names)
    found: dict[str, list[dict[str, float]]] = {"simulated": [], "on_disk": [], "processes": [], "deployed": []}
    for _ in range(args.repeats):
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder)
            found["simulated"].append(simulated(settings, islands, "inline"))
            found["on_disk"].append(simulated(settings, islands, "inline", place / "checkpoints"))
            found["processes"].append(simulated(settings, islands, Rehearsal(3), place / "rehearsal"))
            found["deployed"].append(asyncio.run(deployed(settings, islands, place / "deployed")))
    line = {way: {name: round(median(one[name] for one in runs), 4) for name in runs[0]} for way, runs in found.items()}
    print(json.dumps({"rounds": args.rounds, "repeats": args.repeats, "seconds": line}), flush=True)


if __name__ == "__main__":
    main()
