"""Two tiers of tests by what they cost: ``make test`` starts no process, ``make test-network`` has the tests that do.

A test that starts processes says so with ``@pytest.mark.network``, a file of such tests with ``pytestmark``. A case of a table that names an engine with
processes of its own (`ENGINES`) is marked here. A quick test without the mark that starts a process fails, and says what it would have started.
"""

from __future__ import annotations

import multiprocessing.util
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import forks

ENGINES = {"processes", "ray", "socket", "network", "network over TLS"}
"""Values of a case, or their ids, that make it start processes."""
COMPILERS = {"c++", "g++", "gcc", "clang", "clang++", "cc"}
"""Programs that a test of the first tier may start: kernels are compiled where they are first used, and kept."""
attempts: list[str] = []
"""What the running test would have started."""
_guarding = False


class ProcessStarted(RuntimeError):
    """A test that is not marked `network` would have started a process."""


def _guard(start: Callable[..., Any], describe: Callable[..., str]) -> Callable[..., Any]:
    """Return the function that refuses instead, while a test of the first tier runs."""

    def guarded(*args: Any, **kwargs: Any) -> Any:
        what = describe(*args, **kwargs) if _guarding else ""
        if what:
            attempts.append(what)
            raise ProcessStarted(f"{what}: mark the test with @pytest.mark.network (make test-network)")
        return start(*args, **kwargs)

    return guarded


def _describe_command(_: Any, args: Any, *__: Any, **___: Any) -> str:
    words = [os.fsdecode(args)] if isinstance(args, str | bytes | os.PathLike) else [os.fsdecode(word) for word in args]
    return "" if Path(words[0]).name in COMPILERS else f"it starts {' '.join(words)[:120]}"


def _describe_fork() -> str:
    """Workers of the batched engine may be there: it starts them when a cohort is worth it, which it measures, so no test knows."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename.endswith("atoll/engines/batched.py"):
            return ""
        frame = frame.f_back
    return "it forks"


def pytest_configure(config: pytest.Config) -> None:
    """Watch every way to start a process."""
    del config
    patch: Any = setattr
    patch(subprocess.Popen, "__init__", _guard(subprocess.Popen.__init__, _describe_command))
    patch(os, "fork", _guard(os.fork, _describe_fork))
    patch(os, "posix_spawn", _guard(os.posix_spawn, lambda path, *_, **__: f"it starts {path}"))
    patch(
        multiprocessing.util,
        "spawnv_passfds",
        _guard(multiprocessing.util.spawnv_passfds, lambda path, *_: f"it starts {path}"),
    )


_NETWORK = re.compile(
    r'mark\.network|ENGINES|WORLDS|worlds|survive|corpus|"(processes|ray|socket|network)|def test\w*\([^)]*engine'
)
"""What a file with tests of the second tier has somewhere."""


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not import, for the second tier alone, the two files of three that have none of it: collecting takes seconds of every worker."""
    alone = str(config.option.markexpr).startswith("network")
    if alone and collection_path.name.startswith("test_") and collection_path.suffix == ".py":
        return None if _NETWORK.search(collection_path.read_text(encoding="utf-8")) else True
    return None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Refuse a test of the second tier that `pytest_ignore_collect` would not find."""
    files = {item.path for item in items if item.get_closest_marker("network")}
    lost = [str(path) for path in sorted(files) if not _NETWORK.search(path.read_text(encoding="utf-8"))]
    if lost:
        raise pytest.UsageError(f"tests that start processes, in files that do not say so: {', '.join(lost)}")


@pytest.hookimpl(tryfirst=True)
def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark the cases that name an engine with processes."""
    case = getattr(item, "callspec", None)
    if case and ENGINES.intersection((*case.id.split("-"), *(v for v in case.params.values() if isinstance(v, str)))):
        item.add_marker(pytest.mark.network)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Guard a test of the first tier. Slow ones are in neither tier: only ``make thorough`` runs them. Processes of those marked ``anew`` are no forks."""
    global _guarding
    _guarding = not (item.get_closest_marker("network") or item.get_closest_marker("slow"))
    attempts.clear()
    forks.allowed = not item.get_closest_marker("anew")
    try:
        return (yield)
    finally:
        _guarding, forks.allowed = False, True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Fail a test that has caught the refusal."""
    del item
    result = yield
    if attempts:
        raise ProcessStarted(attempts[0])
    return result
