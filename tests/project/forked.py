"""Scripts that begin as forks of one process: PyTorch is read from the disk once, not by every script anew.

``python -W error forked.py SOCKET`` waits for requests. A script finds what a fresh interpreter would have loaded, and its own ``__main__``: PyTorch is
out of sight until the script, or what it imports, asks for it.
"""

from __future__ import annotations

import builtins
import contextlib
import gc
import importlib
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType

HEAVY = "torch"
_STATUS = struct.Struct("<i")


class Parent:
    """The process that scripts are forked from."""

    def __init__(self) -> None:
        self._sock, theirs = socket.socketpair()
        command = [sys.executable, "-W", "error", __file__, str(theirs.fileno())]
        env = {**os.environ, "PYTHONFAULTHANDLER": "1"}
        self._process = subprocess.Popen(command, pass_fds=(theirs.fileno(),), env=env, stdin=subprocess.DEVNULL)
        theirs.close()

    def run(self, file: Path, patience: float) -> tuple[int, str]:
        """Run a script in its folder: its exit code, negative for a signal, and what it and all that it started have said.

        Raises:
            TimeoutError: it took too long and was aborted; where it was.
        """
        reading, writing = os.pipe()
        socket.send_fds(self._sock, [str(file).encode()], [writing])
        os.close(writing)
        pid = self._number()
        try:
            said, whole = _read(reading, time.monotonic() + patience)
            if not whole:
                os.killpg(pid, signal.SIGABRT)
                said += _read(reading, time.monotonic() + 10)[0]
                with contextlib.suppress(ProcessLookupError):  # all of it may be gone by now
                    os.killpg(pid, signal.SIGKILL)
        finally:
            os.close(reading)
        code, text = self._number(), said.decode(errors="replace")
        if not whole:
            raise TimeoutError(f"not done after {patience:g} s\n{text}")
        return code, text

    def _number(self) -> int:
        return int(_STATUS.unpack(self._sock.recv(_STATUS.size, socket.MSG_WAITALL))[0])

    def close(self) -> None:
        """End it."""
        self._sock.close()
        self._process.wait()


def _read(reading: int, deadline: float) -> tuple[bytes, bool]:
    """What is said until nobody holds the other end, and whether that came before the deadline."""
    said = b""
    while select.select([reading], [], [], max(0.0, deadline - time.monotonic()))[0]:
        chunk = os.read(reading, 1 << 16)
        if not chunk:
            return said, True
        said += chunk
    return said, False


# ---------------------------------------------------------------------- the process that forks


def _serve(sock: socket.socket) -> Path | None:
    """Fork for each request; in a fork, the script that it is to run, and None once nobody asks any more."""
    while True:
        asked, fds, _, _ = socket.recv_fds(sock, 1 << 16, 1)
        if not asked:
            sock.close()
            return None
        pid = os.fork()
        if pid == 0:
            os.setsid()
            sock.sendall(_STATUS.pack(os.getpid()))  # by now the leader of a group, which can be stopped whole
            os.dup2(fds[0], 1)
            os.dup2(fds[0], 2)
            os.close(fds[0])
            sock.close()
            return Path(asked.decode())
        os.close(fds[0])
        sock.sendall(_STATUS.pack(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])))


def _become(file: Path) -> None:
    """Be what ``python file`` is, in the file's folder."""
    os.chdir(file.parent)
    sys.argv, sys.path[0] = [file.name], str(file.parent)
    module = ModuleType("__main__")
    vars(module).update(__file__=file.name, __builtins__=builtins)
    sys.modules["__main__"] = module
    exec(compile(file.read_bytes(), file.name, "exec", dont_inherit=True), vars(module))


if __name__ == "__main__":
    importlib.import_module(HEAVY)
    tasks = Path("/proc/self/task")
    assert not tasks.exists() or len(list(tasks.iterdir())) == 1, "only the thread that forks would live on"
    sys.path.insert(1, str(Path(__file__).parents[2]))
    from tests.support.forks import Aside, leave

    sys.path.pop(1)
    for name in ("tests.support.forks", "tests.support", "tests"):
        sys.modules.pop(name, None)
    sys.meta_path.insert(0, Aside(HEAVY))
    gc.freeze()  # forks share what nobody writes to
    script = _serve(socket.socket(fileno=int(sys.argv[1])))
    if script is not None:
        leave(_become, script)
