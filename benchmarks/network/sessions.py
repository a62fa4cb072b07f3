"""Measures a session between two sites: what a round trip of small messages costs, and how many bytes a second large ones carry.

python benchmarks/network/sessions.py

Real daemons, mutual TLS, job processes; two roles play ping-pong with an array. The ways alternate in one project, and
must give the same numbers and the same bytes. Processor time is that of all processes of the deployment between the
first question and the last answer, and the table says which process it went to.
The socket engine and a bare echo over mutual TLS between two processes stand beside them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import resource
import socket
import ssl
import sys
import tempfile
import threading
import time
import uuid
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

MARK = "ATOLL_JOB_BENCH_RUN"  # with this name it also reaches the processes of jobs
MB = 250_000  # float32

PINGPONG = """
import time

import numpy as np

import atoll


@atoll.task
async def asks(island, peers, times, numbers):
    x = np.zeros(numbers, dtype=np.float32)
    for _ in range(20):
        await peers.send("answers", x)
        x = await peers.recv("answers")
    begin, seconds = time.time(), time.perf_counter()
    for _ in range(times):
        await peers.send("answers", x)
        x = await peers.recv("answers")
    return {"begin": begin, "seconds": time.perf_counter() - seconds, "last": float(x[-1])}


@atoll.task
async def answers(island, peers, times, numbers):
    for _ in range(times + 20):
        await peers.send("asks", await peers.recv("asks") + 1)


async def play(fed, sites, times, numbers):
    plain = {"times": times, "numbers": numbers}
    roles = {"asks": (sites[0], asks.with_args(**plain)), "answers": (sites[1], answers.with_args(**plain))}
    found = (await fed.session(roles))["asks"]
    total = fed.bytes()
    return {**found, "bytes": total["bytes_relayed"] + total["bytes_between"]}


play.tasks = [asks, answers]
"""
KINDS = (("cli site", "sites"), ("cli server", "server"))  # the daemons; all other marked processes are those of jobs


class Sampler:
    """Looks at the processor time of a deployment's processes all the time: those of a job see no others.

    Args:
        mark: in the environment of these processes.
    """

    def __init__(self, mark: str) -> None:
        self._mark = f"{MARK}={mark}".encode()
        self._seen: list[tuple[float, dict[str, float]]] = []
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        kinds: dict[int, str] = {os.getpid(): "none"}
        ticks = os.sysconf("SC_CLK_TCK")
        while not self._end.wait(0.02):
            found: dict[str, float] = {}
            for entry in Path("/proc").glob("[0-9]*"):
                pid = int(entry.name)
                try:
                    if pid not in kinds:
                        marked = self._mark in Path(f"/proc/{pid}/environ").read_bytes()
                        line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
                        kinds[pid] = next((kind for word, kind in KINDS if word in line), "jobs") if marked else "none"
                    if kinds[pid] != "none":
                        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
                        spent = (int(fields[11]) + int(fields[12])) / ticks
                        found[kinds[pid]] = found.get(kinds[pid], 0.0) + spent
                except OSError:
                    continue
            self._seen.append((time.time(), found))

    def between(self, begin: float, end: float) -> dict[str, float]:
        """Return the processor seconds of each kind of process between two times."""
        first = next(found for moment, found in self._seen if moment >= begin)
        last = [found for moment, found in self._seen if moment <= end][-1]
        return {kind: spent - first.get(kind, 0.0) for kind, spent in last.items()}

    def stop(self) -> None:
        """Stop looking."""
        self._end.set()
        self._thread.join()


async def played(
    admin: Any, folder: Path, times: int, numbers: int, sampler: Sampler, *, direct: bool
) -> dict[str, Any]:
    """Run one job; return what a round trip took."""
    from atoll.runs import yaml
    from atoll.runtime.poc import site_names

    names = site_names(2)
    arguments = {"sites": names, "times": times, "numbers": numbers}
    settings = {"sites": names, "source": "code", "job": "program", "program": "pingpong:play"}
    settings |= {"arguments": arguments, "direct": direct}
    (folder / "job.yaml").write_text(yaml.dump(settings))
    found = await admin.submit(folder)
    ended = await admin.wait(found["job"])
    if ended["state"] != "finished":
        raise SystemExit(f"the job {ended['state']}: {ended['error']}")
    await admin.result(found["job"], folder / found["job"])
    told = json.loads((folder / found["job"] / "manifest.json").read_text())
    if bool(told["engine"].get("direct")) is not direct or told["result"]["last"] != times + 20:
        raise SystemExit(f"the sites did not talk as expected: {told['engine']}, {told['result']}")
    result = dict(told["result"])
    result["cpu"] = sampler.between(result["begin"], result["begin"] + result["seconds"])
    return result


def row(name: str, size: str, times: int, found: list[dict[str, Any]], numbers: int) -> dict[str, Any]:
    """Return a line of the table: the best of the repeats, since other work on the machine only adds to what it costs."""
    best = min(found, key=lambda one: sum(one["cpu"].values()))
    seconds = min(one["seconds"] for one in found) / times
    line: dict[str, Any] = {"way": name, "message": size, "round_trips": times, "ms": round(1e3 * seconds, 3)}
    line["cpu_ms"] = round(1e3 * sum(best["cpu"].values()) / times, 3)
    line["cpu_ms_by_process"] = {
        kind: round(1e3 * spent / times, 3) for kind, spent in best["cpu"].items() if spent > 0
    }
    if numbers > 1000:
        line["MB_per_second_both_ways"] = round(8e-6 * numbers / seconds, 1)
        line["MB_per_cpu_second"] = round(8e-6 * numbers * times / max(1e-9, sum(best["cpu"].values())), 1)
    return line


async def deployed(transport: str, sizes: dict[int, int], repeats: int) -> list[dict[str, Any]]:
    """Measure both ways between two sites."""
    import numpy as np
    from atoll.runtime.admin import Admin
    from atoll.runtime.poc import Poc, site_names

    mark, lines = uuid.uuid4().hex, []
    os.environ[MARK] = mark
    sampler = Sampler(mark)
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
                ways: dict[bool, list[dict[str, Any]]] = {True: [], False: []}
                for _ in range(repeats):
                    for direct, runs in ways.items():
                        runs.append(await played(admin, folder, times, numbers, sampler, direct=direct))
                if len({run["bytes"] for runs in ways.values() for run in runs}) != 1:
                    raise SystemExit("the meters differ")
                size = "100 B" if numbers < 1000 else "1 MB"
                for direct, runs in ways.items():
                    way = f"{transport}, {'direct' if direct else 'relayed'}"
                    lines.append(row(way, size, times, runs, numbers))
                    print(json.dumps(lines[-1]), flush=True)
    sampler.stop()
    return lines


def simulated(times: int, repeats: int) -> dict[str, Any]:
    """Measure the socket engine: the program and one worker process."""
    import atoll
    from atoll.core import Community

    namespace: dict[str, Any] = {"__name__": "pingpong"}
    exec(compile(PINGPONG, "pingpong.py", "exec"), namespace)
    found = []
    for _ in range(repeats):
        clock = time.process_time(), resource.getrusage(resource.RUSAGE_CHILDREN)
        plain = {"sites": ["a", "b"], "times": times, "numbers": 25}

        async def program(fed: Any, plain: dict[str, Any] = plain) -> Any:
            return await namespace["play"](fed, **plain)

        program.tasks = namespace["play"].tasks  # type: ignore[attr-defined]
        told = atoll.simulate(program, Community({"a": 1, "b": 2}), engine="socket", progress=False)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        ended = after.ru_utime + after.ru_stime - clock[1].ru_utime - clock[1].ru_stime
        cpu = {"program": time.process_time() - clock[0], "worker": ended}
        found.append({**told, "cpu": cpu})
    return row("socket engine", "100 B", times, found, 25)


def _echo(sock: socket.socket, context: ssl.SSLContext, times: int) -> None:
    with context.wrap_socket(sock, server_side=True) as there:
        for _ in range(times):
            there.sendall(there.recv(4096))


def bare(times: int) -> dict[str, Any]:
    """Measure an echo of 100 bytes over mutual TLS between two processes: what nothing can be faster than."""
    sys.path.insert(0, str(HERE.parents[1]))
    from tests.support.certificates import authority

    made, contexts = authority(), []
    with tempfile.TemporaryDirectory() as name:
        for side, role in ((ssl.PROTOCOL_TLS_SERVER, "server"), (ssl.PROTOCOL_TLS_CLIENT, "site")):
            credentials = made.issue(role, role)
            for part in ("ca", "certificate", "key"):
                (Path(name) / part).write_bytes(getattr(credentials, part))
            context = ssl.SSLContext(side)
            context.check_hostname, context.verify_mode = False, ssl.CERT_REQUIRED
            context.load_verify_locations(Path(name) / "ca")
            context.load_cert_chain(Path(name) / "certificate", Path(name) / "key")
            contexts.append(context)
    listening = socket.create_server(("127.0.0.1", 0))
    here = socket.create_connection(listening.getsockname())
    there, _ = listening.accept()
    for sock in (here, there):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    process = multiprocessing.get_context("fork").Process(target=_echo, args=(there, contexts[0], times))
    process.start()
    with contexts[1].wrap_socket(here) as sock:
        begin, clock = time.process_time(), time.perf_counter()
        for _ in range(times):
            sock.sendall(bytes(100))
            sock.recv(4096)
        seconds, mine = time.perf_counter() - clock, time.process_time() - begin
    process.join()
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = {"one end": mine, "the other": children.ru_utime + children.ru_stime}
    return row("bare echo", "100 B", times, [{"seconds": seconds, "cpu": cpu}], 25)


def main() -> None:
    """Measure; print a line of JSON for each row."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--transports", default="tcp,grpc")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--times", type=int, default=2000)
    args = parser.parse_args()
    print(json.dumps(bare(args.times)), flush=True)
    print(json.dumps(simulated(args.times, 1)), flush=True)
    sizes = {25: args.times, MB: max(20, args.times // 20)}
    for transport in args.transports.split(","):
        asyncio.run(deployed(transport, sizes, args.repeats))


if __name__ == "__main__":
    main()
