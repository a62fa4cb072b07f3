"""Signs of life follow the processor time, not the clock."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest

from atoll.core.time.meter import Effort, started_seconds
from atoll.runtime.worker.letters import pulsing


def test_work_in_a_thread_is_heard_and_waiting_is_not() -> None:
    moved = iter([0.0, 0.5, 0.5, 0.5, 0.9])
    last = [0.0]

    def cpu() -> float:
        last[0] = next(moved, last[0])
        return last[0]

    told: list[float] = []

    async def main() -> None:
        second = asyncio.Event()

        async def send() -> None:
            told.append(last[0])
            if len(told) == 2:
                second.set()

        async with pulsing(send, every=0.001, spent=cpu):
            await asyncio.wait_for(second.wait(), 10)

    asyncio.run(main())
    assert told[:2] == [0.5, 0.9]


def test_work_of_what_a_process_has_started_is_heard() -> None:
    """Steps of the system's clock count, but not those that an idle child makes now and then."""
    own, started = iter([0.0, 0.0]), iter([0.0, 0.01, 0.01, *[0.02] * 9, 0.03, 0.0, 0.05])
    last = [0.0, 0.0]

    def read(k: int, values: object) -> float:
        last[k] = next(values, last[k])  # type: ignore[call-overload]
        return last[k]

    effort = Effort(lambda: read(0, own), lambda: read(1, started))
    assert [effort.moved() for _ in range(4)] == [False, True, False, True]
    assert [effort.moved() for _ in range(8)] == [False] * 8
    assert [effort.moved() for _ in range(3)] == [
        True,
        False,
        True,
    ]  # a child that ends unheard of takes its time along
    idle = iter(range(1, 1000))
    effort = Effort(lambda: 0.0, lambda: next(idle) // 100 / 100)  # a ten-thousandth of a core
    assert not any(effort.moved() for _ in range(900))


@pytest.mark.network
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says what processes have used")
def test_the_time_of_a_child_counts_before_and_after_its_end() -> None:
    before = started_seconds()
    busy = "import time\nwhile time.process_time() < 0.1: pass\nprint(flush=True)\ninput()"
    with subprocess.Popen([sys.executable, "-c", busy], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        during = started_seconds()
        child.communicate(b"\n")
    assert during - before >= 0.08  # in steps of 10 ms
    assert started_seconds() >= during
