"""Measures a conversation between two sites: round trips per second through the server, and from site to site.

python benchmarks/network/sessions.py

Real daemons, mutual TLS, job processes; two roles play ping-pong with an array. The two ways alternate in one project,
and must give the same numbers and the same bytes. Seconds are those of the role that asks, between its first question
and its last answer.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
from pathlib import Path
from statistics import median

import numpy as np
from atoll.runs import yaml
from atoll.runtime.client.admin import Admin
from atoll.runtime.client.poc import Poc, site_names

PINGPONG = """
import time

import numpy as np

import atoll


@atoll.task
async def asks(island, peers, times, numbers):
    x = np.zeros(numbers, dtype=np.float32)
    await peers.send("answers", x)
    x = await peers.recv("answers")
    begin = time.perf_counter()
    for _ in range(times):
        await peers.send("answers", x)
        x = await peers.recv("answers")
    return {"seconds": time.perf_counter() - begin, "last": float(x[-1])}


@atoll.task
async def answers(island, peers, times, numbers):
    for _ in range(times + 1):
        await peers.send("asks", await peers.recv("asks") + 1)


async def play(fed, sites, times, numbers):
    plain = {"times": times, "numbers": numbers}
    roles = {"asks": (sites[0], asks.with_args(**plain)), "answers": (sites[1], answers.with_args(**plain))}
    return {**(await fed.session(roles))["asks"], "bytes": sum(fed.bytes().values())}


play.tasks = [asks, answers]
"""


async def played(admin: Admin, folder: Path, times: int, numbers: int, *, direct: bool) -> dict[str, float]:
    """Run one job; return its seconds per round trip."""
    names = site_names(2)
    arguments = {"sites": names, "times": times, "numbers": numbers}
    settings = {"sites": names, "source": "code", "job": "program", "program": "pingpong:play", "arguments": arguments, "direct": direct}
    (folder / "job.yaml").write_text(yaml.dump(settings))
    found = await admin.submit(folder)
    ended = await admin.wait(found["job"])
    if ended["state"] != "finished":
        raise SystemExit(f"the job {ended['state']}: {ended['error']}")
    await admin.result(found["job"], folder / found["job"])
    told = json.loads((folder / found["job"] / "manifest.json").read_text())
    if bool(told["engine"].get("direct")) is not direct or told["result"]["last"] != times + 1:
        raise SystemExit(f"the sites did not talk as expected: {told['engine']}, {told['result']}")
    return {"round_trip": told["result"]["seconds"] / times, "bytes": told["result"]["bytes"]}


async def measured(transport: str, sizes: dict[int, int], repeats: int) -> dict[str, dict[str, float]]:
    """Return numbers in the array -> round trips per second both ways, and their ratio."""
    lines = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "code").mkdir()
        (folder / "code" / "pingpong.py").write_text(PINGPONG)
        np.savez(folder / "rows.npz", x=np.zeros((2, 1)), y=np.zeros(2))
        data = {site: [str(folder / "rows.npz")] for site in site_names(2)}
        async with (
            Poc(folder / "project", data, transport=transport, direct=True) as poc,
            Admin(poc.kit("admin"), poc.address) as admin,
        ):
            for numbers, times in sizes.items():
                ways: dict[bool, list[dict[str, float]]] = {False: [], True: []}
                for _ in range(repeats):
                    for direct, runs in ways.items():
                        runs.append(await played(admin, folder, times, numbers, direct=direct))
                if len({run["bytes"] for runs in ways.values() for run in runs}) != 1:
                    raise SystemExit("the meters differ")
                relayed, straight = (median(run["round_trip"] for run in ways[way]) for way in (False, True))
                lines[f"{4 * numbers} bytes"] = {
                    "relayed_per_second": round(1 / relayed, 1),
                    "direct_per_second": round(1 / straight, 1),
                    "ratio": round(relayed / straight, 2),
                }
    return lines


def main() -> None:
    """Measure; print a line of JSON for each transport."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--transports", default="grpc,tcp")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--times", type=int, default=1000)
    args = parser.parse_args()
    sizes = {16: args.times, 256 << 10: max(20, args.times // 20)}
    for transport in args.transports.split(","):
        found = asyncio.run(measured(transport, sizes, args.repeats))
        print(json.dumps({"transport": transport, "repeats": args.repeats, **found}), flush=True)


if __name__ == "__main__":
    main()
