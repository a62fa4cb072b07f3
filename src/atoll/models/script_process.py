"""A script's process at one client, and the conversation with it."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

from atoll.client.connection import VARIABLE, FrameSocket
from atoll.core.algebra.tree import Tree
from atoll.core.errors import MessageError, TaskError
from atoll.core.redaction import private
from atoll.core.time.meter import Effort, cpu_seconds

__all__ = ["MOST", "RunningScript", "ScriptOrder", "ScriptOutput", "ended_by_signal"]

# What a script prints: passed on line by line to the job's log or a file, and no more of it than a person could read.


MOST = 1 << 20
"""Bytes that are passed on in one round; what is beyond is counted and left out."""
_LINE = 8192
_CHUNK = 1 << 16
_LAST_WORDS = 2.0
"""Seconds to read what is left after the end."""


class ScriptOutput:
    """Reads a script's output in a thread of its own, so that the script never waits for it.

    Args:
        reading: the end of a pipe; this owns it.
        client: the client's name, which begins each line of the log.
        file: where lines are added instead.

    Attributes:
        bytes: bytes so far.
        last: the last line that is not empty.
    """

    def __init__(self, reading: int, client: str, file: Path | None) -> None:
        self.bytes = 0
        self.last = ""
        self._client, self._file = client, file
        self._budget = MOST
        self._left_out = 0
        self._thread = threading.Thread(target=self._read, args=(reading,), name=f"atoll-script-{client}", daemon=True)
        self._thread.start()

    def begin(self) -> None:
        """Begin a round: what was left out is said, and as much may be written again."""
        self._budget, left = MOST, self._left_out
        self._left_out = 0
        if left:
            self._write(f"[{left} more bytes of output in the round before, left out]")

    def finish(self) -> None:
        """Wait until everything is passed on; a program that the script has started may hold the other end for longer."""
        self._thread.join(_LAST_WORDS)
        self.begin()

    def _read(self, reading: int) -> None:
        lines, rest = deque[bytes](), b""
        with os.fdopen(reading, "rb", 0) as pipe:
            while chunk := pipe.read(_CHUNK):
                self.bytes += len(chunk)
                *lines, rest = (rest + chunk).split(b"\n")  # type: ignore[assignment]
                for line in lines:
                    self._take(line)
                if len(rest) > _LINE:
                    self._take(rest)
                    rest = b""
        self._take(rest)

    def _take(self, line: bytes) -> None:
        text = line[:_LINE].rstrip(b"\r").decode("utf-8", "replace")
        if not text.strip():
            return
        self.last = text.strip()
        if self._budget < len(line):
            self._budget = 0
            self._left_out += len(line) + 1
            return
        self._budget -= len(line) + 1
        self._write(text)

    def _write(self, text: str) -> None:
        if self._file is None:
            sys.stdout.write(f"{self._client}: {text}\n")
            sys.stdout.flush()
            return
        file: IO[str]
        with self._file.open("a", encoding="utf-8") as file:
            file.write(f"{text}\n")


_LOOK = 1.0
"""Seconds between two looks at whether a silent script makes progress."""
_GRACE = 3.0
"""Seconds for a script to end by itself once its rounds are over."""
_SPARE = 64 << 20
"""Bytes of a reply besides the model."""


class _Killed(TaskError):  # noqa: N818  a signal did it
    """A signal ended a script before it answered."""


def ended_by_signal(error: BaseException) -> bool:
    """Return whether a script was ended by a signal before it answered: then it may be asked once more."""
    return isinstance(error, _Killed)


@dataclass(frozen=True)
class ScriptOrder:
    """How a script is started.

    Attributes:
        words: its command line.
        title: the script's name, for errors.
        folder: its working folder, or ``None``.
        environment: added to this process's.
        log: a file for its output, or ``None``.
        patience: seconds without progress.
        source: the folder that the script is in.
    """

    words: tuple[str, ...]
    title: str
    folder: str | None
    environment: Mapping[str, str]
    log: str | None
    patience: float
    source: str

    def at(self, client: str) -> ScriptOrder:
        """Return the order for a client: its name stands for ``{client}``, and the script's folder for ``{source}``, in words, folder, environment and log."""

        def own(text: str) -> str:
            return text.replace("{client}", client).replace("{source}", self.source)

        return replace(
            self, words=tuple(map(own, self.words)), folder=None if self.folder is None else own(self.folder),
            environment={key: own(value) for key, value in self.environment.items()}, log=None if self.log is None else own(self.log),
        )  # fmt: skip


def _threads() -> dict[str, str]:
    """Return one thread for each script where several workers share the cores: as many as a worker itself has."""
    return {} if multiprocessing.parent_process() is None else {"OMP_NUM_THREADS": "1"}


class RunningScript:
    """A script at one client.

    Args:
        order: how it is started.
        client: the client's name.
        hello: what it is told first.
        most: bytes of the longest reply.

    Raises:
        TaskError: the system cannot start it.
    """

    def __init__(self, order: ScriptOrder, client: str, hello: Tree, most: int) -> None:
        self.client, self._order = client, order
        self._round = 0
        ours, theirs = socket.socketpair()
        reading, writing = os.pipe()
        own = {VARIABLE: str(theirs.fileno()), "PYTHONUNBUFFERED": "1"}
        variables = {**_threads(), **os.environ, **order.environment, **own}
        try:
            # A session of its own: what the script starts ends with it.
            self._process = subprocess.Popen(
                order.words, cwd=order.folder, env=variables, stdin=subprocess.DEVNULL, stdout=writing,
                stderr=subprocess.STDOUT, pass_fds=(theirs.fileno(),), start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            ours.close()
            os.close(reading)
            raise TaskError(
                f"the script cannot be started: {error.strerror or error}",
                where=f"{order.title} at {client}",
                remedy=f"correct command and folder; it is run as {' '.join(order.words)}",
            ) from error
        finally:
            theirs.close()
            os.close(writing)
        self.output = ScriptOutput(reading, client, None if order.log is None else Path(order.log))
        self._frames = FrameSocket(ours, most + _SPARE)
        self._effort = Effort(lambda: 0.0, lambda: cpu_seconds(self._process.pid))
        try:
            self._say({"op": "hello", "name": client, **hello})
        except TaskError:  # it ended before it was told anything, and nobody else knows of it yet
            self.kill()
            raise

    @property
    def ended(self) -> bool:
        """Whether the process has ended."""
        return self._process.poll() is not None

    def ask(self, task: Tree, rows: Callable[[], Tree]) -> Tree:
        """Send a task and wait for the reply.

        Args:
            task: the task.
            rows: returns the client's rows as a message, when the script asks for them.

        Raises:
            TaskError: it failed, hung, ended, or answered something else.
        """
        self._round = int(task["round"])
        self.output.begin()
        self._say({"op": "task", **task})
        while True:
            frame = self._next()
            op = frame.get("op") if isinstance(frame, dict) else None
            if op == "data":
                self._say({"op": "data", **rows()})
            elif op == "failed":
                raise self._make_failure(str(frame["error"]), str(frame["place"]))
            elif op == "reply" and frame["id"] == task["id"]:
                return frame
            elif op == "reply":
                raise self._wrong("it answered a round twice", "call task.reply once in each turn of the loop")
            elif op != "here":
                raise self._wrong(f"it sent a message {op!r}", "speak to Atoll by atoll.client alone")

    def _say(self, frame: Tree) -> None:
        try:
            self._frames.send(frame)
        except OSError as error:
            raise self._make_end_error() from error

    def _next(self) -> Any:
        """Wait for a message, as long as the script makes progress."""
        quiet, written = time.monotonic(), self.output.bytes
        look = min(_LOOK, self._order.patience / 4)
        while not select.select([self._frames.socket], [], [], look)[0]:
            if self._process.poll() is not None and not select.select([self._frames.socket], [], [], 0)[0]:
                raise self._make_end_error()
            if self._effort.moved() or self.output.bytes != written:
                quiet, written = time.monotonic(), self.output.bytes
            if time.monotonic() - quiet > self._order.patience:
                raise self._hung()
        try:
            return self._frames.recv(self._order.patience)
        except (EOFError, ConnectionError) as error:
            raise self._make_end_error() from error
        except TimeoutError as error:
            raise self._hung() from error
        except MessageError as error:
            raise self._wrong(
                f"it sent what is no message: {error.what}", "speak to Atoll by atoll.client alone"
            ) from error

    def _make_end_error(self) -> TaskError:
        """Return the error for a script that has ended, or has closed the conversation."""
        try:
            code = self._process.wait(_GRACE)
        except subprocess.TimeoutExpired:
            return self._wrong(
                "it left `atoll.client.connect` before it answered", "answer with task.reply in the loop"
            )
        self.output.finish()
        if code < 0:
            name = signal.Signals(-code).name if -code in list(signal.Signals) else str(-code)
            return _Killed(
                f"the script was ended by {name} before it answered",
                where=self._where,
                remedy="check for lack of memory or a crash in native code; see its output in the log",
            )
        last = self.output.last
        said = f": {private(last)}" if last else ""
        return TaskError(
            f"the script ended with exit code {code} before it answered{said}",
            where=self._where,
            remedy="see its output in the log; the loop over fed.rounds() must run until it ends by itself",
        )

    def _make_failure(self, error: str, place: str) -> TaskError:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_GRACE)
        self.output.finish()
        return TaskError(
            f"the script failed: {private(error)}",
            where=f"{self._where}, {place}",
            remedy="correct the script; its output is in the log",
        )

    def _hung(self) -> TaskError:
        self.kill()
        return TaskError(
            f"the script made no progress for {self._order.patience:g} s and was ended",
            where=self._where,
            remedy="look where it waits; if it waits for good reason, give Script a larger patience",
        )

    def _wrong(self, what: str, remedy: str) -> TaskError:
        self.kill()
        return TaskError(what, where=self._where, remedy=remedy)

    @property
    def _where(self) -> str:
        return f"{self._order.title} at {self.client}, round {self._round}"

    def finish(self) -> None:
        """Say that the rounds are over."""
        with contextlib.suppress(OSError):
            self._frames.send({"op": "end"})

    def ended_by(self, until: float) -> str:
        """Wait for its end, until a time of the monotonic clock; return what was wrong with that end, or nothing."""
        try:
            code = self._process.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            self.kill()
            return f"{self._where}: it went on after its last round, and was ended"
        self.kill()
        last = self.output.last
        return "" if code == 0 else f"{self._where}: it ended with exit code {code} after its last reply: {last}"

    def kill(self) -> None:
        """End it now, and everything that it has started."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._frames.close()
        self.output.finish()
