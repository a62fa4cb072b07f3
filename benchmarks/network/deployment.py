"""A peer's deployment on loopback: its processes, their peak memory, and its result line.

Every process of a run carries a mark in its environment. Memory is summed over the marked processes,
and processes still alive at the end are stopped by that mark, so a run leaves nothing behind.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import ssl
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import envs  # noqa: E402
from sampler import PeakMemory, marked, reap  # noqa: E402

MARK = "ATOLL_JOB_BENCH_RUN"  # with this name it also reaches the processes of Atoll's jobs
NUMBERS = 4_500_000  # float32, 18 MB
SAMPLE_SECONDS = 1.0  # between two samples of the memory of all processes


class PeerError(RuntimeError):
    """A peer did not do what it should."""


def arguments(description: str, variants: Sequence[str]) -> argparse.Namespace:
    """Parse the command line that both peers share."""
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=8, help="the first is left out of the median")
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--layers", type=int, default=1, help="arrays that the model is split into")
    parser.add_argument("--variant", choices=variants, default=variants[0])
    parser.add_argument("--timeout", type=float, default=600, help="seconds for the whole run")
    parser.add_argument("--keep", action="store_true", help="leave the folder with logs and certificates")
    args = parser.parse_args()
    if args.rounds < 3 or args.clients < 1 or NUMBERS % args.layers:
        parser.error(f"needs at least 3 rounds, 1 client, and layers that divide {NUMBERS:,}")
    return args


def free_ports(count: int) -> list[int]:
    """Return loopback ports that nothing listens on now."""
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def busy_seconds() -> float:
    """Return the seconds that all cores of the machine together have worked since it started."""
    fields = [int(x) for x in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    return (sum(fields) - fields[3] - fields[4]) / os.sysconf("SC_CLK_TCK")


def cpu_seconds(mark: str) -> float:
    """Return the seconds that the marked processes have worked, including their children that have ended."""
    ticks = 0
    for pid in marked(mark):
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        except OSError:  # gone
            continue
        ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def _greet(port: int, identity: tuple[Path, Path] | None) -> tuple[str, bool]:
    """Speak TLS with a server; return the version, and whether it accepted data after the handshake.

    With TLS 1.3 a client learns that it was refused only when it reads.
    """
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
    client.set_alpn_protocols(["h2", "http/1.1"])
    if identity:
        client.load_cert_chain(*identity)
    version = "TLS"
    try:
        with (
            socket.create_connection(("127.0.0.1", port), timeout=3) as plain,
            client.wrap_socket(plain, server_hostname="localhost") as secured,
        ):
            version = str(secured.version())
            secured.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            return version, bool(secured.recv(1))
    except TimeoutError:
        return version, True  # it waits for more
    except (ssl.SSLError, ConnectionError):
        return version, False


def transport_security(port: int, identity: tuple[Path, Path] | None = None) -> str:
    """Return the TLS version that a server speaks, and whether it refuses clients without a certificate.

    `identity` is the certificate and the key of a client that it must accept, if it asks for one.
    """
    version, listens = _greet(port, None)
    if listens:
        return f"{version}, server certificate only"
    if identity is None or not _greet(port, identity)[1]:
        raise PeerError(f"the server on port {port} accepts no client")
    return f"{version}, mutual: refuses a client without a certificate"


class Deployment:
    """A folder, an environment and the processes started in them.

    Use as a context; leaving it stops every process and removes the folder.
    """

    def __init__(self, peer: str, extra: Mapping[str, str], keep: bool) -> None:
        self.python = Path(sys.executable) if peer == "atoll" else envs.ensure(peer)
        self.folder = Path(tempfile.mkdtemp(prefix=f"{peer}-"))
        self.keep = keep
        self.token = f"{MARK}={uuid.uuid4().hex}"
        self.env = {
            **{k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "VIRTUAL_ENV"))},
            "PATH": f"{self.python.parent}{os.pathsep}{os.environ['PATH']}",
            "OMP_NUM_THREADS": "1",
            MARK: self.token.split("=")[1],
            **extra,
        }
        self.started: list[tuple[str, subprocess.Popen[bytes]]] = []
        self.begun = 0.0  # when the first process was started
        self._memory = PeakMemory(self.token, SAMPLE_SECONDS)
        self._work: list[tuple[float, float, float]] = []  # time, seconds of work by all cores and by this run
        self.security = ""

    def __enter__(self) -> Deployment:
        self.load_before = os.getloadavg()[0]
        self._memory.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._memory.stop()
        for _ in range(3):  # a daemon may restart what was stopped first
            if not reap(self.token):
                break
        for _, process in self.started:
            process.wait()
        if self.keep:
            print(f"kept {self.folder}", file=sys.stderr)
        else:
            shutil.rmtree(self.folder, ignore_errors=True)

    def start(self, name: str, command: Sequence[str], **more: str) -> None:
        """Start a long-lived process; its output goes to `name`.log in the folder."""
        self.begun = self.begun or time.perf_counter()
        log = (self.folder / f"{name}.log").open("wb")
        with log:
            process = subprocess.Popen(
                command, cwd=self.folder, env={**self.env, **more}, stdout=log, stderr=subprocess.STDOUT
            )
        self.started.append((name, process))

    def call(self, command: Sequence[str], timeout: float = 120) -> str:
        """Run a command to its end and return its standard output."""
        done = subprocess.run(command, cwd=self.folder, env=self.env, capture_output=True, text=True, timeout=timeout)
        if done.returncode:
            raise PeerError(f"{command[:4]} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
        return done.stdout

    def log(self, name: str, lines: int = 30) -> str:
        """Return the end of a process's output."""
        file = self.folder / f"{name}.log"
        return "\n".join(file.read_text(errors="replace").splitlines()[-lines:]) if file.is_file() else ""

    def await_port(self, port: int, seconds: float = 60) -> None:
        """Wait until something listens on `port`."""
        until = time.perf_counter() + seconds
        while time.perf_counter() < until:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    return
            time.sleep(0.1)
        raise PeerError(f"nothing listens on port {port} after {seconds} s")

    def await_file(self, file: Path, server: str, seconds: float) -> dict[str, Any]:
        """Wait for the server's record of the run, which is moved into place once complete."""
        return self._await(lambda: dict(json.loads(file.read_text())) if file.is_file() else None, server, seconds)

    def await_result(self, folder: Path, server: str, seconds: float) -> dict[str, Any]:
        """Wait for what the one job of an Atoll server's folder returns: its program may write nowhere else."""

        def found() -> dict[str, Any] | None:
            for file in folder.glob("jobs/*/state/manifest.json"):
                told = json.loads(file.read_text())
                if told["error"]:
                    raise PeerError(told["error"])
                return told.get("result")
            return None

        return self._await(found, server, seconds)

    def _await(self, find: Callable[[], dict[str, Any] | None], server: str, seconds: float) -> dict[str, Any]:
        until = time.perf_counter() + seconds
        while (found := find()) is None:
            if time.perf_counter() > until:
                raise PeerError(f"no result after {seconds} s; the server said:\n{self.log(server)}")
            if gone := [name for name, p in self.started if p.poll() is not None]:
                raise PeerError(f"{gone[0]} ended early:\n{self.log(gone[0])}")
            self._work.append((time.perf_counter(), busy_seconds(), cpu_seconds(self.token)))
            time.sleep(0.5)
        return found

    def cores(self, begin: float, end: float) -> tuple[float, float]:
        """Return the cores that worked between two times: for the whole machine, and for this run."""
        (t0, all0, own0), *_, (t1, all1, own1) = [w for w in self._work if begin - 0.6 <= w[0] <= end + 0.6]
        return (all1 - all0) / (t1 - t0), (own1 - own0) / (t1 - t0)

    def line(self, framework: str, version: str, record: Mapping[str, Any], args: argparse.Namespace) -> str:
        """Return the run as one line of JSON; refuse a run whose final model is wrong."""
        end = time.perf_counter()
        if not record["worst_error"] <= 1e-4:
            raise PeerError(f"the final model is off by {record['worst_error']}")
        stamps = record["averaged_at"]
        if len(stamps) != args.rounds:
            raise PeerError(f"{len(stamps)} rounds were averaged, not {args.rounds}")
        laps = [after - before for before, after in pairwise(stamps)]
        everybody, own = self.cores(stamps[0], stamps[-1])
        return json.dumps(
            {
                "framework": framework,
                "version": version,
                "variant": args.variant,
                "layers": args.layers,
                "clients": args.clients,
                "rounds": args.rounds,
                "seconds_per_round": round(median(laps), 3),
                "fastest": round(min(laps), 3),
                "slowest": round(max(laps), 3),
                "start_to_end": round(end - self.begun, 1),
                "peak_pss_mb": round(self._memory.peak / 1e6),
                "processes": self._memory.processes,
                "worst_error": record["worst_error"],
                "load_before": self.load_before,
                "cores_busy": round(everybody, 2),
                "cores_busy_for_this_run": round(own, 2),
                "cpu_seconds_per_round": round(own * (stamps[-1] - stamps[0]) / (args.rounds - 1), 2),
                "transport": self.security,
            }
        )
