"""Processes of Atoll that begin as forks of one process: its modules, and PyTorch, are loaded once for each worker of the tests, not by each process anew.

A test that starts ``python -m atoll ...`` gets a process that has loaded what a fresh one would load in its first second; so does a daemon that starts
a job. All else is as after a start: its own process, the files, folder, variables and arguments that were asked for, and the process that asked for it as
its parent (prctl(2), PR_SET_CHILD_SUBREAPER). Large packages are out of sight until they are imported.

Loading is most of what such a process costs. ``make thorough`` starts every process anew; ``make test-network`` does so for tests that are marked ``anew``
because they look at what a process has from its start, for sandboxes, jobs with limits, and variables that are read while an interpreter starts.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import gc
import importlib
import importlib.util
import inspect
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).parents[2]
COMMANDS = {"atoll", "atoll.cli", "atoll.runtime.daemon.child"}
"""What is run with ``-m`` in a fork."""
LOADED = (
    "atoll.cli.app",
    "atoll.simulation",
    "atoll.runtime.server.server",
    "atoll.runtime.site.site",
    "atoll.runtime.worker.process",
    "atoll.runtime.worker.at_server",
    "atoll.runtime.worker.at_site",
    "atoll.runtime.network.session_server",
    "atoll.runtime.network.session_site",
    "atoll.learn.training",
    "atoll.query.job",
)
"""What most processes load. Whoever asks whether one of them is loaded is answered yes."""
ASIDE = ("torch", "duckdb", "sqlglot", "matplotlib", "cryptography", "rich", "typer")
"""Packages that some processes load: out of sight until somebody imports them."""
OPEN = "0,0,0,0"
"""The word of a job without limits; limits count what a fork has from its parent."""
DAEMONS = {"server", "site"}
"""Commands that start processes themselves."""
_AT_START = ("PYTHON", "LC_", "LANG", "LD_", "MALLOC_", "OMP_", "OPENBLAS_", "MKL_", "TORCH")
"""Variables that are read while an interpreter starts, or a library of numbers is loaded."""
_MOST = 1 << 17
_WORDS = 1 << 13
"""Bytes for the words of a fork, where the system shows those that a process was called with."""
allowed = True
"""Whether processes that start now may be forks."""
_SUBREAPER, _DEATH = 36, 1  # linux/prctl.h


class Forker:
    """The process that others are forked from; they become children of this one.

    Args:
        sock: the connection to it.
        variables: those at its start.
    """

    def __init__(self, sock: socket.socket, variables: Mapping[str, str]) -> None:
        self._sock = sock
        self._at_start = _pick_start(variables)
        self._lock = threading.Lock()
        self._prctl = ctypes.CDLL(None, use_errno=True).prctl

    @classmethod
    def start(cls) -> Forker:
        """Start it."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        code = (
            f"import sys; sys.path[0] = {str(ROOT)!r}; from tests.support import forks; forks.serve({theirs.fileno()})"
        )
        subprocess.Popen(
            [sys.executable, "-c", code, " " * _WORDS],
            pass_fds=(theirs.fileno(),),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        ).returncode = 0  # it ends with this process, and nobody waits for it
        theirs.close()
        return cls(ours, os.environ)

    def fits(self, variables: Mapping[str, str]) -> bool:
        """Tell whether an interpreter with these variables starts as this one has."""
        return _pick_start(variables) == self._at_start

    def fork(self, order: Mapping[str, Any], files: Sequence[int]) -> int | None:
        """Fork a process with some open files: its id; None if that cannot be."""
        content = json.dumps(order).encode()
        if len(content) > _MOST:
            return None
        with self._lock:
            self._prctl(_SUBREAPER, 1, 0, 0, 0)  # the process between is gone at once, and we are the next
            try:
                socket.send_fds(self._sock, [content], files)
                answer = self._sock.recv(64)
            except OSError:
                return None
            finally:
                self._prctl(_SUBREAPER, 0, 0, 0, 0)
        return int(answer or 0) or None

    def close(self) -> None:
        """End it."""
        self._sock.close()


def _pick_start(variables: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in variables.items() if name.startswith(_AT_START)}


# ---------------------------------------------------------------------- whoever starts a process


def install(forker: Forker | None = None) -> None:
    """Have this process start those of `COMMANDS` as forks.

    Args:
        forker: of which; one that is started when it is first needed without.
    """
    execute = subprocess.Popen._execute_child  # type: ignore[attr-defined]
    parameters = inspect.signature(execute)
    kept = [forker]

    @functools.wraps(execute)
    def execute_or_fork(self: Any, *args: Any, **kwargs: Any) -> None:
        asked = parameters.bind(self, *args, **kwargs).arguments
        if not allowed or not _can_fork(asked):
            execute(self, *args, **kwargs)
            return
        used = kept[0] = kept[0] or Forker.start()
        variables = dict(os.environ if asked["env"] is None else asked["env"])
        pid = _fork(used, asked, variables) if used.fits(variables) else None
        if pid is None:
            execute(self, *args, **kwargs)
            return
        self.pid = pid
        self._child_created = True
        pipes = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
        self._close_pipe_fds(*(asked[name] for name in pipes))

    subprocess.Popen._execute_child = execute_or_fork  # type: ignore[attr-defined]


def installed() -> bool:
    """Tell whether this process starts some as forks."""
    return hasattr(subprocess.Popen._execute_child, "__wrapped__")  # type: ignore[attr-defined]


def _can_fork(asked: Mapping[str, Any]) -> bool:
    words = asked["args"]
    if isinstance(words, str | bytes | os.PathLike) or list(words[:2]) != [sys.executable, "-m"] or len(words) < 3:
        return False
    texts = [*words, *(part for pair in (asked["env"] or {}).items() for part in pair)]
    if not all(isinstance(text, str) for text in texts) or not Path(asked["cwd"] or ".").is_dir():
        return False
    special = ("preexec_fn", "executable", "shell", "gid", "gids", "uid", "startupinfo", "creationflags")
    if any(asked.get(name) not in (None, False, 0) for name in special) or asked.get("umask", -1) != -1:
        return False
    if asked.get("process_group", -1) not in (None, -1) or not asked["close_fds"]:
        return False
    return words[2] in COMMANDS and (words[2] != "atoll.runtime.daemon.child" or words[4] == OPEN)


def _fork(forker: Forker, asked: Mapping[str, Any], variables: dict[str, str]) -> int | None:
    standard = [asked["p2cread"], asked["c2pwrite"], asked["errwrite"]]
    files = [own if given == -1 else given for own, given in enumerate(standard)]
    passed = [int(fd) for fd in asked["pass_fds"]]
    order = {
        "words": list(asked["args"]),
        "folder": os.fspath(asked["cwd"] or Path.cwd()),
        "variables": variables,
        "files": [0, 1, 2, *passed],
        "leads": bool(asked["start_new_session"]),
        "parent": os.getpid(),
    }
    return forker.fork(order, [*files, *passed])


# ---------------------------------------------------------------------- the process that forks


class Aside(MetaPathFinder, Loader):
    """Modules that are loaded and out of sight: the first import of the package brings them back."""

    def __init__(self, package: str) -> None:
        self._package = package
        below = f"{package}."
        self._modules = {name: sys.modules.pop(name) for name in list(sys.modules) if f"{name}.".startswith(below)}
        self._spec = self._modules[package].__spec__

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        return importlib.util.spec_from_loader(name, self) if name == self._package else None

    def create_module(self, spec: Any) -> ModuleType:
        sys.meta_path.remove(self)
        return self._modules[spec.name]

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec
        sys.modules.update(self._modules)


def serve(number: int) -> None:
    """Load, and fork for each order; in a fork, be what was ordered."""
    for name in (*ASIDE, *LOADED):
        importlib.import_module(name)
    for name in ASIDE:
        sys.meta_path.insert(0, Aside(name))
    for name in ("tests.support.forks", "tests.support", "tests", "atoll.runtime.daemon.child"):
        sys.modules.pop(name, None)  # a fork has none of ours, and runs the last
    tasks = list(Path("/proc/self/task").iterdir())
    if len(tasks) != 1:
        raise RuntimeError("only the thread that forks would live on")
    gc.collect()
    gc.freeze()  # forks share what nobody writes to
    _serve(socket.socket(fileno=number))


def _serve(sock: socket.socket) -> None:
    while True:
        content, files, _, _ = socket.recv_fds(sock, _MOST + 1, 64)
        if not content:
            os._exit(0)
        between = os.fork()
        if between == 0:
            between = os.getpid()
            if os.fork():
                os._exit(0)
            _become(json.loads(content), files, sock, between)
            return
        os.waitpid(between, 0)
        for fd in files:
            os.close(fd)


def _become(order: Mapping[str, Any], files: Sequence[int], sock: socket.socket, between: int) -> None:
    """Be what a fresh interpreter would be."""
    while os.getppid() == between:
        os.sched_yield()
    if os.getppid() != order["parent"]:  # where no process may ask for orphans, whoever asked starts it anew
        sock.send(b"0")
        os._exit(0)
    if order["leads"]:
        os.setsid()
    sock.send(str(os.getpid()).encode())
    sock.close()
    _open_files(files, order["files"])
    os.chdir(order["folder"])
    os.environ.clear()
    os.environ.update(order["variables"])
    _open_streams()
    words = order["words"]
    if DAEMONS.intersection(words[3:8]):
        install(_fork_forker())
    sys.orig_argv[:] = words
    _show_words(words)
    sys.argv = ["-m", *words[3:]]
    sys.path[0] = str(Path.cwd())
    sys.modules["__main__"] = ModuleType("__main__")
    leave(runpy._run_module_as_main, words[2])  # type: ignore[attr-defined]


def leave(run: Callable[..., Any], *args: Any) -> None:
    """Run a program, and exit as an interpreter does; but leave the modules: to take them down would copy what forks share."""
    code: Any = 0
    try:
        run(*args)
    except SystemExit as end:
        code = end.code
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    if code is not None and not isinstance(code, int):
        print(code, file=sys.stderr)
        code = 1
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit((code or 0) & 0xFF)


def _fork_forker() -> Forker:
    """Return a process that a daemon's jobs are forked from: itself, as it is before it has begun."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    daemon = os.getpid()
    if os.fork() == 0:
        ctypes.CDLL(None, use_errno=True).prctl(_DEATH, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != daemon:
            os._exit(0)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        kept = theirs.fileno()
        nothing = os.open(os.devnull, os.O_RDWR)
        for fd in range(3):
            os.dup2(nothing, fd)
        os.closerange(3, kept)
        os.closerange(kept + 1, 4096)
        _serve(theirs)
    theirs.close()
    return Forker(ours, os.environ)


def _show_words(words: Sequence[str]) -> None:
    """Have the system show these as the words that this process was called with."""
    numbers = Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    begin, end = int(numbers[45]), int(numbers[46])  # arg_start and arg_end of proc(5)
    content = b"".join(os.fsencode(word) + b"\0" for word in words)[: end - begin]
    ctypes.memset(begin, 0, end - begin)
    ctypes.memmove(begin, content, len(content))


def _open_files(given: Sequence[int], wanted: Sequence[int]) -> None:
    """Move open files to their numbers, and close all others."""
    import fcntl

    above = max((*given, *wanted)) + 1
    moved = [fcntl.fcntl(fd, fcntl.F_DUPFD, above) for fd in given]
    for source, target in zip(moved, wanted, strict=True):
        os.dup2(source, target)
    kept = sorted({0, 1, 2, *wanted})
    for low, high in zip(kept, [*kept[1:], 4096], strict=True):
        os.closerange(low + 1, high)


def _open_streams() -> None:
    """Open the standard streams as an interpreter does: in the text that this one's have, which began with the same variables."""
    unbuffered = bool(os.environ.get("PYTHONUNBUFFERED"))
    for fd, name in enumerate(("stdin", "stdout", "stderr")):
        ours = getattr(sys, f"__{name}__")
        stream: Any = open(fd, "w" if fd else "r", encoding=ours.encoding, errors=ours.errors, closefd=False)  # noqa: SIM115
        stream.reconfigure(line_buffering=not unbuffered and (fd == 2 or os.isatty(fd)), write_through=unbuffered)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
