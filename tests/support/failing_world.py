"""A project whose processes can be killed, stopped, starved and cut off: real fronts and real job processes, on one machine."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import atoll
from atoll.core.algebra import tree as T
from atoll.core.persistence.files import read_message
from atoll.data import Dataset, Islands
from atoll.runs import yaml
from atoll.runtime.admin import Admin
from atoll.runtime.job_spec import parse_job
from atoll.runtime.provision import Kit, ProjectConfig, provision
from atoll.runtime.provision.project import AdminConfig, PartyConfig, ServerConfig

DEADLINE = 300.0
"""Seconds after which whatever a test waits for is said not to come."""
SITES = ("site-1", "site-2")
ENDED = ("finished", "failed", "aborted")
QUICK = Path(__file__).parent / "quick_front.py"


# ---------------------------------------------------------------------- waiting


async def until(what: str, condition: Callable[[], Any], within: float = DEADLINE) -> Any:
    """Look at a condition again and again until it holds; its value."""
    try:
        async with asyncio.timeout(within):
            while not (found := condition()):
                await asyncio.sleep(0.005)  # other tasks of this loop go on
            return found
    except TimeoutError:
        raise AssertionError(f"for {within:g} s there was no {what}") from None


# ---------------------------------------------------------------------- the system's view of a process


def children(pid: int) -> list[int]:
    """The processes that a process has started and that have not ended."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, IndexError, ValueError):
            state, parent = path.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[:2]
            if int(parent) == pid and state != "Z":
                found.append(int(path.parent.name))
    return found


def worked(pid: int) -> float:
    """Milliseconds that the threads of a process have run; infinite once it has ended."""
    total, seen = 0, False
    for path in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        with contextlib.suppress(OSError, IndexError, ValueError):
            total, seen = total + int(path.read_text().split()[0]), True
    return total / 1e6 if seen else float("inf")


def memory(pid: int) -> int:
    """Bytes of memory that are no part of a file; a share of mapped libraries (PSS) would change with what else runs on the machine."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith("Anonymous:"))


def handles(pid: int) -> tuple[int, int]:
    """How many files a process has open, and how many threads it has."""
    return len(list(Path(f"/proc/{pid}/fd").iterdir())), len(list(Path(f"/proc/{pid}/task").iterdir()))


# ---------------------------------------------------------------------- fronts


class Front:
    """A front's process; it dies with the test.

    Args:
        name: of the node.
        command: what runs it.
        folder: its working folder.
    """

    def __init__(self, name: str, command: Sequence[str], folder: Path) -> None:
        self.name = name
        self.said: list[str] = []
        self._command = list(command)
        self._folder = folder
        self._reading: asyncio.Task[None] | None = None
        self.process: asyncio.subprocess.Process | None = None
        self.answer: dict[str, Any] | None = None

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    async def start(self, wait: bool = True) -> None:
        """Start it; unless told otherwise, until it serves."""
        self.answer = None
        self._folder.mkdir(parents=True, exist_ok=True)
        self.process = await asyncio.create_subprocess_exec(
            *self._command, cwd=self._folder, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        self._reading = asyncio.create_task(self._read(self.process))
        if wait:
            await until(f"start of {self.name}", lambda: self.answer or self.process.returncode is not None)
            assert self.answer, "\n".join((f"{self.name} ended as it began", *self.said[-20:]))

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        async for line in process.stdout:
            text = line.decode(errors="replace").rstrip()
            self.said.append(text)
            if self.answer is None and text.startswith("{"):
                self.answer = json.loads(text)

    def jobs(self) -> list[int]:
        """The job processes that it runs, each the first child of its guardian."""
        if self.process is None or self.process.returncode is not None:
            return []
        return [min(children(guardian), default=guardian) for guardian in children(self.pid)]

    def send(self, number: int) -> None:
        """Send a signal to the front alone."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    async def end(self, number: int = signal.SIGKILL) -> int:
        """End it and wait for that."""
        assert self.process is not None
        if self.process.returncode is None:
            self.send(number)
        code = await self.process.wait()
        if self._reading is not None:
            # Its job processes die with it, yet may hold its output for a moment longer.
            await asyncio.wait({self._reading}, timeout=5.0)
        return code


class Follower:
    """What a job's log has said so far, read in the background."""

    def __init__(self, admin: Admin, job: str) -> None:
        self.lines: list[tuple[str, str]] = []
        self._task = asyncio.create_task(self._read(admin, job))

    async def _read(self, admin: Admin, job: str) -> None:
        async for _, node, text in admin.logs(job, follow=True):
            self.lines.append((node, text))

    @property
    def ended(self) -> bool:
        """Whether the log has ended, as it does with its job."""
        return self._task.done()

    def of(self, node: str, word: str = "") -> list[str]:
        """The lines of a node that begin with a word."""
        return [text for who, text in self.lines if who == node and text.startswith(word)]

    async def end(self) -> list[tuple[str, str]]:
        """All that was said, once the job has ended."""
        async with asyncio.timeout(DEADLINE):
            await self._task
        return self.lines


class World:
    """A provisioned project and its processes.

    Args:
        folder: for everything.
        sites: their names.
        transport: how bytes travel.
        quick: settings of the lines and of the scheduler, which makes fronts run from ``quick_front.py``; the ``atoll`` command otherwise.
        before: node -> a command that the node's own command is given to, such as one that enters a namespace.
        host: where the server listens.
        port: which port; by default the system chooses, and kits do not know it.
        spare: the port of a standby, which kits know; none by default.
    """

    def __init__(
        self,
        folder: Path,
        sites: Sequence[str] = SITES,
        *,
        transport: str = "tcp",
        quick: Mapping[str, float] | None = None,
        before: Mapping[str, Sequence[str]] | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
        spare: int = 0,
    ) -> None:
        self.folder = folder.absolute()
        self.sites = tuple(sites)
        self.address = f"{host}:{port}"
        self.spare = spare
        self.fronts: dict[str, Front] = {}
        self.ways: dict[str, str] = {}
        self.quick: dict[str, dict[str, float]] = {name: dict(quick) for name in ("server", *sites)} if quick else {}
        self.before = dict(before or {})
        self._admins: list[Admin] = []
        provision(
            ProjectConfig.model_validate(
                {
                    "project": "failures",
                    "servers": [
                        ServerConfig(name="server", hosts=[host], listen=host, **({"port": port} if port else {})),
                        *([ServerConfig(name="spare", hosts=[host], listen=host, port=spare)] if spare else []),
                    ],
                    "sites": [PartyConfig(name=name, org=name) for name in sites],
                    "admins": [AdminConfig(name="admin", org="lab")],
                    "transport": transport,
                }
            ),
            self.folder / "kits",
        )
        self._data = {name: self._rows(number, name) for number, name in enumerate(sites)}

    def _rows(self, number: int, name: str) -> Path:
        file = self.folder / "data" / name / "rows.npz"
        file.parent.mkdir(parents=True)
        x, y = blobs(number)
        np.savez(file, x=x, y=y)
        return file

    def kit(self, name: str) -> Kit:
        """The kit of a party."""
        return Kit.read(self.folder / "kits" / name)

    def place(self, name: str) -> Path:
        """The folder of a front."""
        return self.folder / "run" / name

    async def start(self, *names: str, wait: bool = True) -> None:
        """Start fronts, for the first time or again."""
        if "server" in names:
            await self._front("server").start(wait)
            self.address = str((self.fronts["server"].answer or {}).get("listening", self.address))
        await asyncio.gather(*(self._front(name).start(wait) for name in names if name != "server"))

    def _front(self, name: str) -> Front:
        kit, place = str(self.folder / "kits" / name), str(self.place(name))
        words = ["server", kit, "--folder", place, "--listen", self.address]
        if name == "spare":
            words = ["server", kit, "--folder", str(self.place("server")), "--standby"]
        elif name != "server":
            # Jobs of a trial share the machine: no site keeps another from running by asking for all cores.
            words = ["site", kit, "--data", str(self._data[name]), "--folder", place, "--cpus", "64", "--memory", "0"]
            words += ["--gpus", "0", *([] if self.spare else ["--server", self.ways.get(name, self.address)])]
        runs = [str(QUICK), json.dumps(self.quick[name])] if name in self.quick else ["-m", *_CHILD, "atoll.cli"]
        command = [*self.before.get(name, ()), sys.executable, *runs, *words, "--json"]
        front, old = Front(name, command, self.folder), self.fronts.get(name)
        front.said = [] if old is None else old.said
        self.fronts[name] = front
        return front

    async def admin(self) -> Admin:
        """A connection of the admin; it outlives the server's deaths."""
        way = None if self.spare else self.ways.get("admin", self.address)
        made = Admin(self.kit("admin"), way, patience=DEADLINE)
        await made.__aenter__()
        self._admins.append(made)
        return made

    async def __aenter__(self) -> World:
        try:
            await self.start("server", *self.sites)
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        for admin in self._admins:
            await admin.__aexit__(None, None, None)
        order = [name for name in self.fronts if name != "server"] + ["server"]
        running = [self.fronts[name] for name in order if name in self.fronts and self.fronts[name].process]
        for front in running:
            front.send(signal.SIGCONT)
        await asyncio.gather(*(front.end(signal.SIGKILL) for front in running))

    def job_process(self, name: str) -> int | None:
        """The process of the one job at a front, once there is one."""
        found = self.fronts[name].jobs()
        return found[0] if found else None


_CHILD = ("atoll.runtime.daemon.child", str(os.getpid()), "0")


def blobs(number: int) -> tuple[Any, Any]:
    """Forty rows of three classes."""
    rng = np.random.default_rng(number)
    y = rng.integers(0, 3, 40)
    return rng.normal(size=(40, 6)) + y[:, None], y


@contextlib.asynccontextmanager
async def world(folder: Path, *sites: str, **options: Any) -> AsyncIterator[World]:
    """A running project; what its fronts have said is shown where a test fails."""
    made = World(folder, sites or SITES, **options)
    try:
        async with made:
            yield made
    except BaseException:
        for front in made.fronts.values():
            print(f"--- {front.name}", *front.said[-60:], sep="\n")
        raise


# ---------------------------------------------------------------------- jobs


def write_job(folder: Path, code: str | None = None, **settings: Any) -> Path:
    """A job's folder."""
    folder.mkdir(parents=True, exist_ok=True)
    tree = {"name": folder.name, "patience": 60.0, "resources": {"cpus": 1.0}, "sites": list(SITES), **settings}
    if code is not None:
        (folder / "code").mkdir(exist_ok=True)
        (folder / "code" / "failing_job.py").write_text(code, encoding="utf-8")
        tree = {"source": "code", "job": "program", "program": "failing_job:walk", **tree}
    (folder / "job.yaml").write_text(yaml.dump(tree), encoding="utf-8")
    return folder


async def ended(admin: Admin, job: str, within: float = DEADLINE) -> dict[str, Any]:
    """A job at its end."""
    async with asyncio.timeout(within):
        return await admin.wait(job)


async def outcome(admin: Admin, job: str, folder: Path) -> bytes:
    """The bits of what a job made: its model, or what its program returned."""
    files = {path.name: path for path in await admin.result(job, folder)}
    if "model.safetensors" in files:
        return files["model.safetensors"].read_bytes()
    return np.asarray(read_message(files["result.msg"])["x"]).tobytes()


def error_of(found: Mapping[str, Any]) -> str:
    """The error of a job as a person reads it."""
    error = found["error"] or {}
    return " | ".join(str(error.get(name)) for name in ("what", "where", "remedy"))


ROUNDS = 24


# SCAFFOLD keeps a control variate at each site: what a kill loses or does twice there shows in the model.
SCAFFOLD = {
    "rounds": ROUNDS, "seed": 5, "model": {"name": "linear", "features": 6, "outputs": 3},
    "algorithm": {"name": "Scaffold", "lr": 0.1, "epochs": 1, "batch_size": 10}, "selection": "Everyone",
}  # fmt: skip


def rows() -> Islands:
    """What the sites of the project hold."""
    return Islands.from_datasets(
        {site: Dataset(dict(zip("xy", blobs(number), strict=True))) for number, site in enumerate(SITES)}
    )


def trained() -> dict[str, Any]:
    """The model of the training where nothing disturbs it."""
    config = parse_job({"name": "scaffold", "sites": list(SITES), **SCAFFOLD})
    training = config.made()
    found = atoll.simulate(training, rows(), engine="inline", seed=SCAFFOLD["seed"])
    return {name: np.asarray(value) for name, value in T.items(found.params)}


WALK = """
import threading
from pathlib import Path

import numpy as np

import atoll


@atoll.task
def step(island, message):
    while message["gate"] and Path(message["gate"]).exists():
        threading.Event().wait(0.005)  # which is work enough to be alive
    state = island.state if island.state is not None else {"speed": np.zeros(4)}
    island.state = {"speed": 0.9 * state["speed"] + island.rng.generator().normal(size=4)}
    return {"sum": atoll.Sum(message["x"] * 0.5 + island.state["speed"])}


async def walk(fed, rounds=8, gate="", at=3):
    state = await fed.restore({"x": np.zeros(4), "round": 0})
    while state["round"] < rounds:
        number = state["round"] + 1
        message = {"x": state["x"], "gate": gate if number == at else ""}
        total = await fed.sum(fed.parties, step, message, at=number, quorum=1)
        state = {"x": total["sum"], "round": number}
        fed.record({"round": number})
        await fed.checkpoint(state)
    return {"x": state["x"]}
"""
