"""What holds for every test: one thread, no network, repeatable property tests. Warnings are errors (pyproject.toml)."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import socket
import sys
from collections import Counter
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

# Before NumPy or PyTorch is loaded: tests run side by side, so each keeps to one thread. Children inherit it.
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS"):
    os.environ[_name] = "1"
os.environ.setdefault("MPLBACKEND", "Agg")
# Jobs of tests wait for files of the test, which a sandbox hides; tests of the sandbox ask for it.
os.environ["ATOLL_CONFINE"] = "never"
# A shell ignores Ctrl-C in what it starts in the background, and its children inherit that; tests press Ctrl-C.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# A worker of Ray imports what a test defined by its name, with the path of whoever started Ray; some tests work in another folder.
sys.path.append(str(Path(__file__).parent))

import pytest  # noqa: E402
from hypothesis import HealthCheck, settings  # noqa: E402
from hypothesis.internal.conjecture import providers  # noqa: E402

from atoll.heap import loading  # noqa: E402
from atoll.testing import crash  # noqa: E402
from tests.support import forks  # noqa: E402

# GNU readline, which debuggers load, writes the size of a terminal into the environment of its process, below `os.environ`, and whatever the process starts inherits it: the workers of
# this run do, and their children. Then tables are as wide as that. It is loaded here, so that no test does it later.
with contextlib.suppress(ImportError):
    import readline  # noqa: F401
for _name in ("COLUMNS", "LINES"):
    os.environ.pop(_name, None)
    os.unsetenv(_name)


pytest_plugins = ["tests.support.hangs", "tests.support.databases", "tests.support.tiers"]

# 25 examples for a law that does not say how many it needs, the same at every run, so that what passes here passes in every clone. `make thorough` draws 500, anew each time.
_COMMON: dict[str, Any] = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow], "max_examples": 25}
settings.register_profile("repeatable", **_COMMON, derandomize=True)
settings.register_profile("thorough", **{**_COMMON, "max_examples": 500}, derandomize=False)
settings.load_profile("repeatable")


MOST_KILLS = 5
"""At how many steps a program is killed, first and last among them, however many its test asks for; ``make thorough`` kills at all of those."""


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Keep PyTorch to one thread where something loaded it early; without ``make thorough``, kill at fewer steps and keep draws apart from the modules that are loaded.

    Hypothesis tries numbers that it reads in the source of every loaded module: seconds of every worker, and other draws in each.
    """
    del config
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
    if settings.default.derandomize:
        patch, spread = pytest.MonkeyPatch(), crash._spread
        patch.setattr(crash, "_spread", lambda steps, points: spread(steps, min(points or steps, MOST_KILLS)))
        patch.setattr(providers, "is_local_module_file", lambda path: False)
        if sys.platform == "linux":
            forks.install()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Keep what collecting thousands of tests makes out of the garbage collector's sight, and rewritten modules on the disk.

    Nothing of it is garbage before the end, and each full collection would look at all of it again. Every worker rewrites the assertions of
    every test module, which takes longer than all else of collecting; where the environment forbids bytecode, it would be for every run anew.
    """
    forbidden, sys.dont_write_bytecode = sys.dont_write_bytecode, False
    try:
        with loading():
            return (yield)
    finally:
        sys.dont_write_bytecode = forbidden


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Refuse names that differ from process to process: tests are shared out among workers by name. Of a test with ``quick`` cases, others are slow; of a table
    with ``every(n)``, each n-th case is quick."""
    moving = [item.nodeid for item in items if " at 0x" in item.nodeid]
    if moving:
        raise pytest.UsageError(f"the name of a test holds an address, give it an id: {moving[0]}")
    for item in items:
        quick = item.get_closest_marker("quick")
        case = getattr(getattr(item, "callspec", None), "id", None)
        if quick and case is not None and not any(fnmatchcase(case, pattern) for pattern in quick.args):
            item.add_marker(pytest.mark.slow)
    tables: Counter[str] = Counter()
    for item in items:
        every = item.get_closest_marker("every")
        if every:
            table = item.nodeid.partition("[")[0]
            if tables[table] % every.args[0]:
                item.add_marker(pytest.mark.slow)
            tables[table] += 1
    if importlib.util.find_spec("ray") is None:
        for item in items:
            params = getattr(getattr(item, "callspec", None), "params", {})
            if any(isinstance(value, str) and value == "ray" for value in params.values()):
                item.add_marker(pytest.mark.skip(reason="needs ray, which is not installed"))


class NetworkUsed(RuntimeError):
    """A test tried to leave this machine."""


def _stays_here(address: Any) -> bool:
    if not isinstance(address, tuple):  # a Unix socket's path
        return True
    host = address[0]
    return host in ("", "localhost", "::1") or str(host).startswith("127.")


@pytest.fixture(autouse=True, scope="session")
def no_network() -> Iterator[None]:
    """Refuse every connection that is not to this machine, and every look-up of another name."""
    refused = "tests run without a network; {} was asked for"
    connect, connect_ex, look_up = socket.socket.connect, socket.socket.connect_ex, socket.getaddrinfo

    def guarded_connect(self: socket.socket, address: Any) -> None:
        if not _stays_here(address):
            raise NetworkUsed(refused.format(address))
        connect(self, address)

    def guarded_connect_ex(self: socket.socket, address: Any) -> int:
        if not _stays_here(address):
            raise NetworkUsed(refused.format(address))
        return connect_ex(self, address)

    def guarded_look_up(host: Any, *args: Any, **kwargs: Any) -> Any:
        name = host.decode() if isinstance(host, bytes) else host
        if name is not None and not _stays_here((name,)) and name != socket.gethostname():
            raise NetworkUsed(refused.format(name))
        return look_up(host, *args, **kwargs)

    patch = pytest.MonkeyPatch()
    patch.setattr(socket.socket, "connect", guarded_connect)
    patch.setattr(socket.socket, "connect_ex", guarded_connect_ex)
    patch.setattr(socket, "getaddrinfo", guarded_look_up)
    yield
    patch.undo()


@pytest.fixture(autouse=True, scope="session")
def no_waiting_for_disks() -> Iterator[None]:
    """Files of tests need not outlive a power cut: a process that is killed leaves what it has written, and a `fsync` takes 10 ms on a busy disk."""
    patch = pytest.MonkeyPatch()
    patch.setattr(os, "fsync", lambda handle: os.fstat(handle) and None)
    yield
    patch.undo()
