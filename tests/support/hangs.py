"""A test that hangs ends its worker, is tried once more, and is told with its stacks.

A worker of pytest-xdist that is stuck ends itself (the timer of `faulthandler` needs neither the interpreter nor its lock). What it forked
must not keep its pipes open, or the controller would wait for ever for their end; so it is ended too.
"""

from __future__ import annotations

import faulthandler
import os
import shutil
import signal
import stat
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

SECONDS = (
    3600.0 if os.environ.get("ATOLL_FAULTS") else 300.0
)  # the slowest of `make test` takes a tenth on a slow machine
FOLDER = "ATOLL_TEST_HANGS"  # where workers leave their stacks, by name
_sink = 2  # where this process leaves them
INNERMOST = 12  # lines of a thread that are told in the summary


def pytest_configure(config: pytest.Config) -> None:
    """Prepare this process: a worker, or the one that all others report to."""
    global _sink
    if hasattr(config, "workerinput"):
        os.setpgid(0, 0)  # what it starts can be ended with it
        worker = os.environ["PYTEST_XDIST_WORKER"]
        _left(worker, "pid").write_text(str(os.getpid()))
        _sink = os.open(_left(worker, "stacks"), os.O_WRONLY | os.O_CREAT)
        _close_in_children([fd for entry in Path("/dev/fd").iterdir() if (fd := int(entry.name)) > 2 and _is_pipe(fd)])
    else:
        os.environ[FOLDER] = tempfile.mkdtemp(prefix="hangs-")
        config.pluginmanager.register(_Watch(), "hangs-watch")
        _sink = os.dup(2)  # a test's own is captured


def _is_pipe(fd: int) -> bool:
    try:
        return stat.S_ISFIFO(os.fstat(fd).st_mode)
    except OSError:  # the listing's own
        return False


def _close_in_children(pipes: list[int]) -> None:
    def close() -> None:
        for fd in pipes:
            os.close(fd)

    os.register_at_fork(after_in_child=close)


def _left(worker: str, what: str) -> Path:
    return Path(os.environ[FOLDER], f"{worker}.{what}")


def _end(pid: int) -> None:
    """End a process and all that it started."""
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """End this process, with the stacks of its threads, where the test takes too long."""
    del item
    faulthandler.dump_traceback_later(SECONDS, exit=True, file=_sink)
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


@pytest.hookimpl(tryfirst=True)
def pytest_enter_pdb() -> None:
    """A person takes the time that they need."""
    faulthandler.cancel_dump_traceback_later()


class Hang(str):
    """A report's text; its last lines are the summary."""

    @property
    def reprcrash(self) -> Any:
        """What pytest looks for to write a line of the summary."""
        return self

    @property
    def message(self) -> str:
        """The innermost lines of the main thread, which is the last one."""
        return "\n".join(self.split("most recent call first")[-1].splitlines()[1 : 1 + INNERMOST])


class _Watch:
    """In the process that all workers report to: what they run, and since when."""

    def __init__(self) -> None:
        self.running: dict[str, float] = {}
        self.hung: set[str] = set()
        signal.signal(signal.SIGTERM, self.tell)

    def tell(self, *_: Any) -> None:
        now = time.monotonic()
        lines = [f"  {name} since {now - since:.0f} s" for name, since in self.running.items()]
        print("\nTold to end. Tests that were running:", *lines, sep="\n", file=sys.__stderr__, flush=True)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.running[nodeid] = time.monotonic()

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self.running.pop(nodeid, None)

    @pytest.hookimpl(optionalhook=True)
    def pytest_handlecrashitem(self, crashitem: str, report: pytest.TestReport, sched: Any) -> None:
        worker = report.node.gateway.id  # type: ignore[attr-defined]
        _end(int(_left(worker, "pid").read_text()))
        stacks = _left(worker, "stacks").read_text(errors="replace")
        if not stacks:
            return  # it crashed
        report.longrepr = Hang(f"{report.longrepr}, which hung for {SECONDS:.0f} s\n{stacks}")  # type: ignore[assignment]
        if crashitem not in self.hung:
            self.hung.add(crashitem)
            report.outcome = "hung"  # type: ignore[assignment]
            sched.mark_test_pending(crashitem)

    def pytest_report_teststatus(self, report: Any) -> tuple[str, str, str] | None:
        return ("hung", "H", "HUNG") if report.outcome == "hung" else None

    def pytest_unconfigure(self) -> None:
        for file in Path(os.environ[FOLDER]).glob("*.pid"):
            _end(int(file.read_text()))
        shutil.rmtree(os.environ[FOLDER])

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        for report in terminalreporter.getreports("hung"):
            terminalreporter.section(f"hung, then tried again: {report.nodeid}", yellow=True)
            terminalreporter.line(str(report.longrepr))
