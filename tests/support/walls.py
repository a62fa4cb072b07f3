"""A project whose fronts run as a plain user, as an operator's do, and jobs that try to reach beyond their walls."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atoll.runs import yaml
from atoll.runtime.admin import Admin
from atoll.runtime.confinement.sandbox import program, why_not
from atoll.runtime.provision import Kit, ProjectConfig, provision
from tests.support.carriers import carrier

SANDBOX = pytest.mark.skipif(
    program() is None or bool(why_not(program() or "")),
    reason="needs bubblewrap, which is not installed or not allowed here",
)
DEADLINE = 240.0
PLAIN = 65534
"""The user that fronts run as where the tests run as root; elsewhere they run as whoever runs the tests."""


@contextlib.contextmanager
def open_folder() -> Iterator[Path]:
    """A folder that a plain user may enter; pytest's own are closed to others."""
    made = Path(tempfile.mkdtemp(prefix="atoll-walls-"))
    made.chmod(0o755)
    try:
        yield made
    finally:
        subprocess.run(["rm", "-rf", str(made)], check=True)  # jobs of some tests make folders without end


def _as_plain_user() -> list[str]:
    if os.geteuid() != 0:
        return []
    return [shutil.which("setpriv") or "setpriv", f"--reuid={PLAIN}", f"--regid={PLAIN}", "--clear-groups", "--"]


def _owned(folder: Path) -> None:
    if os.geteuid() == 0:
        for path in (folder, *folder.rglob("*")):
            os.chown(path, PLAIN, PLAIN)


class Front:
    """A front's process as a plain user.

    Args:
        words: its command line after ``atoll``.
        folder: its working folder.
        environment: added to this process's own.
    """

    def __init__(self, words: Sequence[str], folder: Path, environment: Mapping[str, str]) -> None:
        self.said: list[str] = []
        self._words, self._folder, self._environment = list(words), folder, dict(environment)
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None
        self._answer: asyncio.Future[dict[str, Any]] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    async def start(self) -> dict[str, Any]:
        """Start it; what it says once it serves, or as it fails."""
        self._answer = asyncio.get_running_loop().create_future()
        python, environment = plain_python() or pytest.skip("no Python here that a plain user can run")
        self._process = await asyncio.create_subprocess_exec(
            *_as_plain_user(), python, "-m", "atoll.cli", *self._words, "--json", cwd=self._folder,
            env={**os.environ, **environment, **self._environment}, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT, start_new_session=True, limit=1 << 20,
        )  # fmt: skip
        self._reading = asyncio.create_task(self._read())
        async with asyncio.timeout(DEADLINE):
            return await self._answer

    async def _read(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        assert self._answer is not None
        async for line in self._process.stdout:
            text = line.decode(errors="replace").rstrip("\n")
            self.said.append(text)
            if text.startswith("{") and not self._answer.done():
                self._answer.set_result(json.loads(text))
        if not self._answer.done():
            self._answer.set_result({})

    async def end(self, number: int = signal.SIGTERM) -> int:
        """End it and wait for that; with 0, wait only."""
        assert self._process is not None
        if self._process.returncode is None:
            self._process.send_signal(number)
        code = await self._process.wait()
        if self._reading is not None:
            await asyncio.wait({self._reading}, timeout=5.0)
        return code


class Walled:
    """A provisioned project whose fronts run as a plain user.

    Args:
        folder: a folder that such a user may enter.
        sites: their names.
        transport: how bytes travel.
        passphrase: of all keys.
        options: front -> further words of its command line.
    """

    def __init__(
        self,
        folder: Path,
        sites: Sequence[str] = ("north",),
        *,
        transport: str | None = None,
        passphrase: str | None = None,
        options: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        self.folder = folder
        self.sites = tuple(sites)
        self.passphrase = passphrase
        self.address = ""
        self.fronts: dict[str, Front] = {}
        self.environment: dict[str, str] = {}
        self.options = {name: list(words) for name, words in (options or {}).items()}
        tree = {
            "project": "walls",
            "servers": [{"name": "server", "hosts": ["127.0.0.1"], "listen": "127.0.0.1"}],
            "sites": [{"name": name, "org": name} for name in sites],
            "admins": [{"name": "anna", "org": "lab"}],
            "transport": transport or carrier(),
        }
        secret = None if passphrase is None else passphrase.encode()
        provision(
            ProjectConfig.model_validate(tree), folder / "kits", passphrase=None if secret is None else lambda _: secret
        )
        for number, name in enumerate(sites):
            rows = folder / "data" / name / "rows.npz"
            rows.parent.mkdir(parents=True)
            np.savez(rows, x=np.random.default_rng(number).normal(size=(5, 4)), y=np.arange(5) % 2)
        _owned(folder)

    def kit(self, name: str) -> Kit:
        """The kit of a party."""
        return Kit.read(self.folder / "kits" / name, self.passphrase)

    def place(self, name: str) -> Path:
        """The folder of a front."""
        return self.folder / "run" / name

    async def start(self, name: str) -> dict[str, Any]:
        """Start a front; what it says first."""
        words = [
            "server" if name == "server" else "site",
            str(self.folder / "kits" / name),
            "--folder",
            str(self.place(name)),
        ]
        if name == "server":
            words += ["--listen", self.address or "127.0.0.1:0"]
        else:
            words += [
                "--data",
                str(self.folder / "data" / name / "rows.npz"),
                "--cpus",
                "64",
                "--memory",
                "1TiB",
                "--gpus",
                "0",
            ]
            words += ["--server", self.address]
        environment = {**self.environment, **({} if self.passphrase is None else {"ATOLL_PASSPHRASE": self.passphrase})}
        front = self.fronts[name] = Front([*words, *self.options.get(name, ())], self.folder, environment)
        said = await front.start()
        if name == "server":
            self.address = str(said.get("listening", ""))
        return said

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Admin]:
        """All fronts, and an admin's connection."""
        try:
            for said in (await self.start("server"), *await asyncio.gather(*map(self.start, self.sites))):
                assert said, "a front ended as it began"
                assert "error" not in said, said
            async with Admin(self.kit("anna"), self.address, patience=DEADLINE) as admin:
                yield admin
        except BaseException:
            for name, front in self.fronts.items():
                print(f"--- {name}", *front.said[-60:], sep="\n")
            raise
        finally:
            order = sorted(self.fronts, key="server".__eq__)
            for name in order:
                await self.fronts[name].end()

    def typed(self, *words: str) -> list[str]:
        """The command line of a command that the admin types, which answers in JSON."""
        kit = ["--kit", str(self.folder / "kits" / "anna"), "--server", self.address, "--json"]
        return [sys.executable, "-m", "atoll.cli", *words, *kit]

    async def run(self, admin: Admin, job: Path, state: str = "finished") -> dict[str, list[str]]:
        """Run a job to its end; what each node has said in its log."""
        started = await admin.submit(job)
        async with asyncio.timeout(DEADLINE):
            ended = await admin.wait(started["job"])
        said: dict[str, list[str]] = {}
        async for _, node, line in admin.logs(started["job"]):
            said.setdefault(node, []).append(line)
        if ended["state"] != state:
            print(said)
        assert ended["state"] == state, ended["error"]
        return said


def told(lines: Sequence[str], word: str) -> Any:
    """What stands as JSON behind a word in a log."""
    found = next((line for line in lines if line.startswith(f"{word} ")), None)
    assert found is not None, lines
    return json.loads(found.removeprefix(f"{word} "))


def write_job(folder: Path, code: str, **settings: Any) -> Path:
    """A job's folder; ``code`` is the module ``thief``, with the program ``run``."""
    (folder / "code").mkdir(parents=True)
    (folder / "code" / "thief.py").write_text(code, encoding="utf-8")
    tree = {
        "name": folder.name,
        "source": "code",
        "job": "program",
        "program": "thief:run",
        "sites": "all",
        "patience": 20.0,
    }
    (folder / "job.yaml").write_text(yaml.dump({**tree, **settings}), encoding="utf-8")
    return folder


def played(walled: Walled, body: Callable[[Admin], Awaitable[None]]) -> None:
    """Run a test's body with all fronts."""

    async def main() -> None:
        async with walled.running() as admin:
            await body(admin)

    asyncio.run(main())


@functools.cache
def plain_python() -> tuple[str, dict[str, str]] | None:
    """A Python of this version that a plain user can run, and its environment; None if there is none.

    Where tests run as root, their own Python may lie in a folder that is closed to others.
    """
    paths = os.pathsep.join(
        path for path in sys.path if path and Path(path).is_dir() and not path.startswith(sys.base_prefix)
    )
    number = f"python3.{sys.version_info.minor}"
    for python, environment in (
        (sys.executable, {}),
        (f"/usr/bin/{number}", {"PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1"}),
    ):
        words = [
            *_as_plain_user(),
            python,
            "-c",
            f"import subprocess, sys; sys.exit(subprocess.run([{python!r}, '-c', 'import atoll, cryptography, pydantic']).returncode)",
        ]
        if (
            Path(python).exists()
            and subprocess.run(
                words, capture_output=True, check=False, cwd="/", env={**os.environ, **environment}
            ).returncode
            == 0
        ):
            return python, environment
    return None
