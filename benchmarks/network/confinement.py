"""Measures what confinement adds to the start of a job's process: plain, with a guardian, and in a sandbox, in turns.

python benchmarks/network/confinement.py

Each process imports what a job's process imports, and ends. The ratios are medians of ratios within one turn.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from pathlib import Path
from statistics import median

from atoll.runtime.confinement.sandbox import UNCONFINED, confinement
from atoll.runtime.confinement.walls import Walls
from atoll.runtime.daemon.processes import Process


async def _once(folder, how):
    begin = time.perf_counter()
    walls = Walls(folder)
    process = await Process.start(
        "atoll.runtime.worker.at_site", lambda _: [], folder=folder, on_line=print, confinement=how, walls=walls
    )
    process.socket.close()
    code = await process.wait()
    if code:
        raise SystemExit(f"the process ended with {code}")
    return time.perf_counter() - begin


async def _measured(turns):
    ways = {"plain": None, "guardian": UNCONFINED, "sandbox": confinement("always")}
    found = {name: [] for name in ways}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(turns):
            for name, how in ways.items():
                found[name].append(await _once(Path(folder), how))
    return found


def main() -> None:
    """Measure; print a line of JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--turns", type=int, default=15)
    found = asyncio.run(_measured(parser.parse_args().turns))
    seconds = {name: median(times) for name, times in found.items()}
    more = {name: median(b - a for a, b in zip(found["plain"], times, strict=True)) for name, times in found.items()}
    ratios = {name: median(b / a for a, b in zip(found["plain"], times, strict=True)) for name, times in found.items()}
    print(json.dumps({"seconds": seconds, "more": more, "ratio_to_plain": ratios}))


if __name__ == "__main__":
    main()
