"""Measures private set intersection: processor seconds of both parties together, bytes, and the most memory, half of the keys shared.

    python benchmarks/alignment.py                                    # 100,000 keys at each of two parties
    python benchmarks/alignment.py --keys 1000000 --openmined PYTHON  # next to openmined-psi, in the environment of that Python
    python benchmarks/alignment.py --protocols Oprf,Ecdh,Circuit
    python benchmarks/alignment.py --kept 1000 --keys 1000000         # a small set against a large one whose pass is kept (Unbalanced)

All parties are in one process, so the memory is that of both, with both tables. Processor time changes little with other work on the machine. openmined-psi
runs ECDH on its raw data structure, which is exact, client and server in one process; it is given the same keys.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time

from atoll.core.requests.task import task

OPENMINED = """
import json, sys, time, resource
import private_set_intersection.python as psi
count = int(sys.argv[1])
mine, theirs = ([f"customer-{i}" for i in range(first, first + count)] for first in (0, count // 2))
began, wall = time.process_time(), time.perf_counter()
client, server = psi.client.CreateWithNewKey(True), psi.server.CreateWithNewKey(True)
setup = server.CreateSetupMessage(1e-9, count, theirs, psi.DataStructure.RAW)
request = client.CreateRequest(mine)
response = server.ProcessRequest(request)
found = client.GetIntersection(setup, response)
assert len(found) == count - count // 2, len(found)
nbytes = sum(len(one.SerializeToString()) for one in (setup, request, response))
print(json.dumps({"processor": time.process_time() - began, "wall": time.perf_counter() - wall, "bytes": nbytes,
                  "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}))
"""


@task
def shared_rows(island, result):
    """How many rows the party keeps as shared, or has counted."""
    kept = island.state["aligned"]
    return kept["count"] if result == "count" else len(kept["rows"])


def measure(protocol: str, count: int) -> dict[str, float]:
    """One alignment of two parties in this process."""
    import atoll
    from atoll.secure import psi

    result = "count" if protocol == "Circuit" else "ids"
    plan = psi.AlignmentPlan(columns=("id",), roles=("bank", "shop"), result=result)
    made = getattr(psi, protocol)()
    args = {"protocol": made.spec(), "plan": plan.spec()}
    sets = {"bank": 0, "shop": count // 2}
    tables = {name: {"id": [f"customer-{i}" for i in range(first, first + count)]} for name, first in sets.items()}

    async def program(fed):
        from atoll.secure.psi.protocol import intersect_keys

        await fed.session({name: (name, intersect_keys.with_args(me=name, **args)) for name in sets})
        return (await fed.ask_all(fed.parties, shared_rows, result)).by_name()

    began, wall = time.process_time(), time.perf_counter()
    found = dict(atoll.simulate(program, tables, engine="inline", progress=False))
    spent = {"processor": time.process_time() - began, "wall": time.perf_counter() - wall}
    assert found["bank"] == found["shop"] == count - count // 2
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {**spent, "bytes": made.contract(plan, dict.fromkeys(sets, count)).nbytes, "memory": memory}


def measure_kept(count: int, asked: int) -> dict[str, dict[str, float]]:
    """Two alignments in one job, of which the second finds the large side's pass kept; and what reading the keys takes of each."""
    import atoll
    from atoll.secure import psi
    from atoll.secure.psi.protocol import intersect_keys

    plan = psi.AlignmentPlan(columns=("id",), roles=("bank", "shop"))
    args = {"protocol": psi.Unbalanced().spec(), "plan": plan.spec()}
    tables = {
        "bank": {"id": [f"customer-{i}" for i in range(count - asked // 2, count - asked // 2 + asked)]},
        "shop": {"id": [f"customer-{i}" for i in range(count)]},
    }
    began, wall = time.process_time(), time.perf_counter()
    for table in tables.values():
        psi.RowKeys.of(table, "id")
    rows = {"reading the keys": {"processor": time.process_time() - began, "wall": time.perf_counter() - wall}}

    async def program(fed):
        for name in ("first", "kept"):
            began, wall = time.process_time(), time.perf_counter()
            await fed.session({me: (me, intersect_keys.with_args(me=me, **args)) for me in tables})
            rows[name] = {"processor": time.process_time() - began, "wall": time.perf_counter() - wall}
        return (await fed.ask_all(fed.parties, shared_rows, "ids")).by_name()

    found = dict(atoll.simulate(program, tables, engine="inline", progress=False))
    assert found["bank"] == found["shop"] == asked // 2
    return rows


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--protocols", default="Oprf")
    parser.add_argument("--openmined", metavar="PYTHON")
    parser.add_argument("--kept", type=int, help="keys of the small set, against --keys that are kept")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(measure(args.one, args.keys)))
        return
    if args.kept:
        print(f"{args.kept:,} keys against {args.keys:,}, Unbalanced")
        for name, row in measure_kept(args.keys, args.kept).items():
            print(f"{name:16} {row['processor']:12.2f} processor s {row['wall']:8.2f} wall s")
        return
    rows = {}
    for name in args.protocols.split(","):
        command = [sys.executable, __file__, "--one", name, "--keys", str(args.keys)]
        rows[name] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    if args.openmined:
        command = [args.openmined, "-c", OPENMINED, str(args.keys)]
        rows["openmined-psi"] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    print(f"{args.keys:,} keys at each party, half of them shared")
    print(f"{'protocol':16} {'processor s':>12} {'wall s':>8} {'MB':>8} {'memory MB':>10}")
    for name, row in rows.items():
        print(
            f"{name:16} {row['processor']:12.2f} {row['wall']:8.2f} {row['bytes'] / 1e6:8.1f} {row['memory'] / 1e6:10.0f}"
        )


if __name__ == "__main__":
    main()
