"""Jobs in a sandbox: real fronts as a plain user, and a job that tries every way out."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
from pathlib import Path

import pytest

from atoll.runs import yaml
from atoll.runtime.admin import Admin
from tests.support.walls import SANDBOX, Walled, open_folder, played, told, write_job

pytestmark = pytest.mark.network

CONFINED = {name: ["--confine", "always"] for name in ("server", "north")}

PRISONER = """
import json
import os
import socket
from pathlib import Path

import atoll


def tried(what):
    try:
        return what()
    except Exception as error:
        return type(error).__name__


def everything(secrets, data, port):
    me = Path.cwd()
    return {
        "read": {path: tried(lambda: len(Path(path).read_bytes())) for path in secrets},
        "listed": {path: tried(lambda: sorted(os.listdir(path))) for path in ("/home", "/root", "/srv", str(Path(secrets[0]).parents[1]))},
        "data": tried(lambda: len(Path(data).read_bytes()) > 0),
        "overwritten": tried(lambda: Path(data).write_bytes(b"gone")),
        "planted": tried(lambda: (Path(data).parent / "more.npz").write_bytes(b"more")),
        "scratch": tried(lambda: (me / "mine").write_bytes(b"mine")),
        "network": tried(lambda: socket.create_connection(("127.0.0.1", port), 2).close()),
        "interfaces": [line.split(":")[0].strip() for line in Path("/proc/net/dev").read_text().splitlines()[2:]],
        "processes": len([path for path in Path("/proc").glob("[0-9]*")]) < 10,
        "user namespace": tried(lambda: os.spawnlp(os.P_WAIT, "unshare", "unshare", "-U", "true")) != 0,
        "environment": sorted(name for name in os.environ if "PASS" in name or "KIT" in name),
        "rights": [line.split()[1] for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(("CapEff", "NoNewPrivs"))],
        "atoll": os.access(atoll.__file__, os.W_OK),
        "order": tried(lambda: os.open(me.parent / "order.msg", os.O_WRONLY)),
    }


@atoll.task
def escape(island, message):
    print("prisoner", json.dumps(everything(message["secrets"], message["data"], message["port"])), flush=True)
    return {"n": atoll.Sum(1.0)}


async def run(fed, secrets, data, port):
    await fed.sum(fed.parties, escape, {"secrets": secrets, "data": data, "port": port})
    print("prisoner", json.dumps(everything(secrets, data, port)), flush=True)
"""


@SANDBOX
@pytest.mark.parametrize("transport", ["tcp", pytest.param("grpc", marks=pytest.mark.slow)])
def test_a_job_sees_its_data_its_scratch_and_nothing_else(tmp_path: Path, transport: str) -> None:
    with open_folder() as folder, socket.create_server(("127.0.0.1", 0)) as other:
        walled = Walled(folder, transport=transport, options=CONFINED)
        rows = folder / "data" / "north" / "rows.npz"
        before = rows.read_bytes()
        kits = folder / "kits"
        secrets = [str(kits / "north" / "key.pem"), str(kits / "server" / "key.pem"), str(kits / "anna" / "key.pem"), str(folder / "run" / "server" / "jobs.sqlite"), "/etc/shadow"]  # fmt: skip
        settings = {"arguments": {"secrets": secrets, "data": str(rows), "port": other.getsockname()[1]}}
        job = write_job(tmp_path / "escape", PRISONER, **settings)

        async def body(admin: Admin) -> None:
            said = await walled.run(admin, job)
            for node in ("north", "server"):
                got = told(said[node], "prisoner")
                assert got["read"] == dict.fromkeys(secrets, "FileNotFoundError"), node
                assert set(got["listed"].values()) == {"FileNotFoundError"}, node
                assert got["data"] == (True if node == "north" else "FileNotFoundError")
                refused = ("OSError", "FileNotFoundError")  # read-only, or not there
                assert got["overwritten"] in refused
                assert got["scratch"] == 4
                assert (got["network"], got["interfaces"]) == ("ConnectionRefusedError", ["lo"])
                assert got["processes"], "it sees other processes"
                assert got["user namespace"]
                assert (got["environment"], got["atoll"]) == ([], False)
                assert got["rights"] == ["0000000000000000", "1"]
                assert got["order"] == "OSError"
            assert all("confined by bubblewrap, without a network" in walled.fronts[name].said[0] for name in CONFINED)

        played(walled, body)
        assert rows.read_bytes() == before
        assert not list(folder.rglob("more.npz"))  # it wrote to a folder of the sandbox's own


BREEDER = """
import os
import subprocess
import sys

import atoll

# A grandchild in a session of its own, whose parent has ended; it ignores what asks it to end.
ESCAPE = "import os, signal, sys; os.fork() and os._exit(0); os.setsid(); os.fork() and os._exit(0); signal.signal(15, 1); signal.signal(1, 1); print('bred', flush=True); signal.pause()"


def breed(mark):
    child = subprocess.Popen([sys.executable, "-c", ESCAPE, mark], stdout=subprocess.PIPE)
    child.stdout.readline()
    child.wait()


@atoll.task
def spawn(island, message):
    breed(message["mark"])
    print("spawned", flush=True)
    while message["stay"]:
        import time
        time.sleep(0.05)
    return {"n": atoll.Sum(1.0)}


async def run(fed, mark, stay=False):
    breed(mark)
    await fed.sum(fed.parties, spawn, {"mark": mark, "stay": stay})
"""


def marked(mark: str) -> list[int]:
    """The processes with a word in their command line."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if mark.encode() in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
    return found


async def gone(mark: str) -> None:
    async with asyncio.timeout(60):
        while marked(mark):
            await asyncio.sleep(0.02)


async def spawned(admin: Admin, job: str) -> None:
    async with asyncio.timeout(60):
        async for _, _, line in admin.logs(job, follow=True):
            if line == "spawned":
                return


@pytest.mark.both_carriers
@pytest.mark.skipif(sys.platform != "linux", reason="namespaces and subreapers are Linux's own")
@pytest.mark.parametrize("mode", [pytest.param("always", marks=SANDBOX), "never"])
@pytest.mark.quick("tcp-always")
def test_whatever_a_job_has_started_ends_with_its_attempt(tmp_path: Path, mode: str) -> None:
    """Also in a session of its own, with its parent gone: at the end of the job, when it is aborted, and when its front is killed."""
    with open_folder() as folder:
        walled = Walled(folder, options={name: ["--confine", mode] for name in ("server", "north")})

        async def body(admin: Admin) -> None:
            mark = f"bred-{os.getpid()}-{mode}"
            await walled.run(admin, write_job(tmp_path / "ends", BREEDER, arguments={"mark": f"{mark}-1"}))
            await gone(f"{mark}-1")
            staying = write_job(tmp_path / "stays", BREEDER, arguments={"mark": f"{mark}-2", "stay": True})
            job = (await admin.submit(staying))["job"]
            await spawned(admin, job)
            assert len(marked(f"{mark}-2")) == 2, "the breeder has bred nothing, so it proves nothing"
            await admin.abort(job)
            await gone(f"{mark}-2")
            staying = write_job(tmp_path / "killed", BREEDER, arguments={"mark": f"{mark}-3", "stay": True})
            job = (await admin.submit(staying))["job"]
            await spawned(admin, job)
            await walled.fronts["north"].end(signal.SIGKILL)
            await walled.fronts["server"].end(signal.SIGKILL)
            await gone(f"{mark}-3")

        played(walled, body)


GREEDY = """
import json
import mmap
import os
import signal


def tried(what):
    try:
        return what()
    except (OSError, MemoryError) as error:
        return type(error).__name__


def forks():
    children = []
    try:
        while len(children) < 3000:
            pid = os.fork()
            if pid == 0:
                signal.pause()
            children.append(pid)
        return "all"
    except OSError as error:
        return type(error).__name__
    finally:
        for pid in children:
            os.kill(pid, 9)
            os.waitpid(pid, 0)


def long_file():
    with open("long", "wb"):
        os.truncate("long", (64 << 30) + 1)  # of nothing


def much_memory():
    return len(mmap.mmap(-1,  # MAP_NORESERVE of mman.h: nothing but a limit refuses it
        1 << 40, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000))


def many_files():
    opened = []
    try:
        while len(opened) < 1 << 17:
            opened.append(os.open("/dev/null", os.O_RDONLY))
    finally:
        for one in opened:
            os.close(one)


async def run(fed):
    print("greedy", json.dumps({"forks": forks(), "memory": tried(much_memory), "file": tried(long_file), "files": tried(many_files)}), flush=True)
"""


@pytest.mark.both_carriers
@SANDBOX
@pytest.mark.slow
def test_a_job_takes_no_more_than_its_share(tmp_path: Path) -> None:
    """Processes, memory and files: the system refuses more. As root the system counts no processes, so the front is a plain user's."""
    with open_folder() as folder:
        walled = Walled(folder, options=CONFINED)

        async def body(admin: Admin) -> None:
            said = await walled.run(admin, write_job(tmp_path / "greedy", GREEDY))
            assert told(said["server"], "greedy") == {
                "forks": "BlockingIOError",
                "memory": "OSError",
                "file": "OSError",
                "files": "OSError",
            }

        played(walled, body)


@pytest.mark.slow
@pytest.mark.both_carriers
@SANDBOX
def test_a_model_that_was_trained_in_the_sandbox_is_the_one_that_is_trained_outside(tmp_path: Path) -> None:
    training = {
        "model": {"name": "mlp", "features": 4, "outputs": 2}, "algorithm": {"name": "Scaffold", "lr": 0.1, "epochs": 2},
        "rounds": 3, "sites": "all", "patience": 20.0,
    }  # fmt: skip
    models = []
    for mode in ("always", "never"):
        with open_folder() as folder:
            walled = Walled(folder, options={name: ["--confine", mode] for name in ("server", "north")})
            job = tmp_path / mode
            job.mkdir()
            (job / "job.yaml").write_text(yaml.dump(training), encoding="utf-8")

            async def body(admin: Admin, walled: Walled = walled, job: Path = job) -> None:
                await walled.run(admin, job)
                name = (await admin.jobs())[-1]["job"]
                files = {path.name: path for path in await admin.result(name, job / "result")}
                models.append(files["model.safetensors"].read_bytes())

            played(walled, body)
    assert len(models[0]) > 500
    assert models[0] == models[1]
