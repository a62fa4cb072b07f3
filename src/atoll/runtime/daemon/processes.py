"""Job processes: started with a socket to their daemon, watched, stopped, and never left running."""

from __future__ import annotations

import asyncio
import contextlib
import enum
import os
import signal
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

from atoll.core.errors import TaskError
from atoll.core.time.meter import cpu_seconds

from ..confinement.sandbox import Confinement, JobGroup
from ..confinement.walls import OPEN, JobLimits, Walls, why_open
from .child import END, SHUT

__all__ = ["LINE", "KeptBy", "Process", "keeper_signal"]

LINE = 8192
"""Bytes kept of a line of output; the rest is cut off, and the line says so."""
_CHUNK = 1 << 16
_GUARDIAN = 5.0
"""Seconds for a guardian to end everything."""
_SIGNALLED = 128
_LAST_WORDS = 2.0
"""Seconds to read remaining output after the end of the process."""
_NAMES = frozenset(
    [
        "PATH",
        "HOME",
        "USER",
        "LOGNAME",
        "SHELL",
        "LANG",
        "LANGUAGE",
        "TZ",
        "TMPDIR",
        "TEMP",
        "TMP",
        "VIRTUAL_ENV",
        "SYSTEMROOT",
        "XDG_CACHE_HOME",
    ]
)
_BEGIN = (
    "LC_", "PYTHON", "LD_LIBRARY_", "DYLD_", "ATOLL_JOB_",
    # Where libraries look for devices, and how many threads they use.
    "OMP_", "MKL_", "OPENBLAS_", "NUMEXPR_", "KMP_", "MALLOC_", "CUDA_", "CUBLAS_", "NVIDIA_", "NCCL_", "TORCH", "HIP_", "ROCR_",
)  # fmt: skip
"""The only environment variables that a job's process gets from its daemon, which may hold passphrases and tokens.

To pass a variable to jobs, begin its name with ``ATOLL_JOB_``.
"""


class KeptBy(enum.Enum):
    """Who sees to it that everything that a process has started ends with it."""

    NOBODY = "nobody"
    GUARDIAN = "guardian"
    SANDBOX = "sandbox"

    @classmethod
    def of(cls, confinement: Confinement | None) -> KeptBy:
        """Return who keeps a process of this confinement."""
        if confinement is None or sys.platform != "linux":
            return cls.NOBODY
        return cls.SANDBOX if confinement.confined else cls.GUARDIAN


def keeper_signal(keeper: KeptBy) -> signal.Signals:
    """Return the signal on which everything that a job has started ends."""
    return END if keeper is KeptBy.GUARDIAN else signal.SIGKILL


class Process:
    """A process of a job.

    It leads a process group of its own, so that what it starts ends with it; on Linux it is killed when its daemon
    dies. Of a job, everything that it has started ends with it, groups and sessions of its own included: the system sees
    to that in a sandbox, and a guardian elsewhere.

    Attributes:
        pid: its process id, and that of its group.
        socket: this end of the socket pair to it; the caller that takes it owns it.
        keeper: who ends what it has started.
    """

    def __init__(
        self,
        running: asyncio.subprocess.Process,
        sock: socket.socket,
        output: IO[bytes],
        on_line: Callable[[str], None],
        keeper: KeptBy = KeptBy.NOBODY,
    ):
        self.pid = running.pid
        self.socket = sock
        self.keeper = keeper
        self._running = running
        self._reading = asyncio.create_task(_read(output, on_line))
        self._ended = asyncio.create_task(self._wait())

    @classmethod
    async def start(
        cls,
        module: str,
        arguments: Callable[[int], Sequence[str]],
        *,
        folder: Path,
        on_line: Callable[[str], None],
        environment: Mapping[str, str] | None = None,
        confinement: Confinement | None = None,
        walls: Walls | None = None,
        limits: JobLimits = OPEN,
        group: JobGroup | None = None,
    ) -> Process:
        """Start ``python -m module`` in a folder.

        Args:
            module: a runnable module.
            arguments: its arguments, given the number of its end of the socket.
            folder: its working folder.
            on_line: called with every line that it writes to stdout or stderr.
            environment: added to the variables that it gets from this process.
            confinement: how it is confined; None for a process that is no job's.
            walls: what it may reach if it is confined.
            limits: what it may take.
            group: the control group that it enters first.

        Raises:
            TaskError: the system cannot start it.
        """
        ours, theirs = socket.socketpair()
        # A pipe of our own: with asyncio's, `wait` would wait for every process that holds the other end.
        reading, writing = os.pipe()
        keeper = KeptBy.of(confinement)
        # In a sandbox, its parent is the sandbox's first process.
        parent = {KeptBy.SANDBOX: "1", KeptBy.GUARDIAN: f"{os.getpid()}+"}.get(keeper, str(os.getpid()))
        words = [sys.executable, "-m", "atoll.runtime.daemon.child", parent, limits.word()]
        words += [*(() if keeper is KeptBy.NOBODY or why_open() else (SHUT,)), module, *arguments(theirs.fileno())]
        if confinement is not None and walls is not None:
            words = confinement.command(words, walls)
        if group is not None:
            words = group.entering(words)
        try:
            running = await asyncio.create_subprocess_exec(
                *words, cwd=folder, env={**_pick_environment(), **(environment or {})},
                stdin=asyncio.subprocess.DEVNULL, stdout=writing, stderr=asyncio.subprocess.STDOUT,
                pass_fds=(theirs.fileno(),), start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            ours.close()
            os.close(reading)
            raise TaskError(
                f"a job process could not be started: {error.strerror or error}",
                where=str(folder),
                remedy="free memory or processes on this machine, then submit again",
            ) from error
        finally:
            theirs.close()
            os.close(writing)
        return cls(running, ours, os.fdopen(reading, "rb", 0), on_line, keeper)

    def give(self, text: str) -> None:
        """Send it a short text before anything else goes over its socket."""
        content = text.encode()
        self.socket.sendall(len(content).to_bytes(4, "big") + content)

    async def wait(self) -> int:
        """Wait for its exit code, negative for the signal that ended it; by then its output is passed on and its group is gone."""
        return await asyncio.shield(self._ended)

    @property
    def alive(self) -> bool:
        """Tell whether it is still running."""
        return self._running.returncode is None

    async def stop(self, grace: float = 5.0) -> int:
        """Ask it to end; after ``grace`` seconds, kill it and everything it started."""
        if self.alive:
            self._signal(signal.SIGTERM)
            with contextlib.suppress(TimeoutError):
                return await asyncio.wait_for(self.wait(), grace)
            if self.keeper is KeptBy.GUARDIAN:  # it knows all that the job has started
                os.kill(self.pid, END)
                with contextlib.suppress(TimeoutError):
                    return await asyncio.wait_for(self.wait(), _GUARDIAN)
            self._signal(signal.SIGKILL)
        return await self.wait()

    def kill(self) -> None:
        """Kill it at once, with everything it started."""
        self._signal(keeper_signal(self.keeper))

    def cpu(self) -> float:
        """Return the seconds of processor time that its group has used, 0 if the system does not say."""
        return cpu_seconds(self.pid)

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    async def _wait(self) -> int:
        code = await self._running.wait()
        if self.keeper is KeptBy.SANDBOX and code > _SIGNALLED:
            code = _SIGNALLED - code  # bubblewrap tells a signal as shells do
        self._signal(signal.SIGKILL)  # processes that it started must not outlive it
        # A process of another group may still hold the other end of the output: do not wait for it.
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._reading, _LAST_WORDS)
        return code


async def _read(output: IO[bytes], on_line: Callable[[str], None]) -> None:
    """Pass on every line until no process holds the other end."""
    stream = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(stream), output
    )
    rest, cut = b"", False
    try:
        while chunk := await stream.read(_CHUNK):
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                if not cut:
                    on_line(_text(line))
                cut = False
            if len(rest) > LINE:
                if not cut:
                    on_line(_text(rest))
                rest, cut = b"", True
        if rest and not cut:
            on_line(_text(rest))
    finally:
        transport.close()


def _pick_environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name in _NAMES or name.startswith(_BEGIN)}


def _text(line: bytes) -> str:
    more = len(line) - LINE
    text = line[:LINE].rstrip(b"\r").decode("utf-8", "replace")
    return f"{text} [cut off]" if more > 0 else text
