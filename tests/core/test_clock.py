"""Virtual time is asyncio's own time: sleeps, timeouts and gathers run unchanged, without waiting."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from atoll.core.errors import AtollError
from atoll.core.time.clock import Clock, VirtualLoop, run


def test_sleeping_takes_no_time_and_moves_the_clock():
    async def main():
        clock = Clock()
        await asyncio.sleep(1e6)
        await clock.sleep_until(2e6)
        await clock.sleep_until(1.0)  # long ago
        return clock.now()

    begin = time.perf_counter()
    assert run(main()) == 2e6
    assert time.perf_counter() - begin < 5


@pytest.mark.parametrize("start", [0.0, 1e4 + 0.1, 1e9 + 0.3, 1e15])
def test_time_goes_on_however_late_it_is(start):
    async def main():
        clock = Clock()
        clock.set(start)
        for _ in range(100):
            await asyncio.sleep(0.7)
        return clock.now()

    assert run(main()) == pytest.approx(start + 70.0, rel=1e-14)


def test_a_timeout_cancels_in_virtual_time():
    async def main():
        loop = asyncio.get_running_loop()
        with pytest.raises(TimeoutError, match=r"^$"):
            async with asyncio.timeout(5):
                await asyncio.sleep(7)
        return loop.time()

    assert run(main()) == 5.0


def test_gathered_programs_share_one_time():
    async def sleeper(order, seconds, name):
        await asyncio.sleep(seconds)
        order.append((name, asyncio.get_running_loop().time()))

    async def main():
        order = []
        await asyncio.gather(sleeper(order, 3, "c"), sleeper(order, 1, "a"), sleeper(order, 2, "b"))
        return order

    assert run(main()) == [("a", 1.0), ("b", 2.0), ("c", 3.0)]


def test_timers_of_one_moment_fire_in_the_order_they_were_set():
    async def main():
        order = []

        async def at(moment, name):
            await asyncio.sleep(moment - asyncio.get_running_loop().time())
            order.append(name)

        await asyncio.gather(*(at(1.0, i) for i in range(50)))
        return order

    assert run(main()) == list(range(50))


def test_it_runs_inside_a_running_loop():
    async def inner():
        await asyncio.sleep(100)
        return asyncio.get_running_loop().time(), threading.current_thread().name

    async def notebook():
        return run(inner()), asyncio.get_running_loop().time()

    (virtual, thread), _ = asyncio.run(notebook())
    assert (virtual, thread) == (100.0, "atoll")


def test_an_error_inside_a_running_loop_comes_out():
    async def inner():
        raise ValueError("inside")

    async def notebook():
        return run(inner())

    with pytest.raises(ValueError, match="inside"):
        asyncio.run(notebook())


def test_time_stands_still_while_engine_work_is_pending():
    async def main():
        loop, clock = asyncio.get_running_loop(), Clock()
        assert isinstance(loop, VirtualLoop)
        alarm = asyncio.create_task(asyncio.sleep(3600))
        done = asyncio.Event()
        gate = threading.Event()

        def work():
            gate.wait()
            loop.call_soon_threadsafe(done.set)

        threading.Thread(target=work).start()
        with clock.busy():
            gate.set()
            await done.wait()
            assert clock.now() == 0.0
        await alarm
        return clock.now()

    assert run(main()) == 3600.0


def test_real_time_goes_on_across_a_resume():
    async def main():
        clock = Clock(virtual=False)
        clock.set(100.0)
        first = clock.now()
        while clock.now() == first:
            await asyncio.sleep(0)
        return first, clock.now()

    first, second = run(main(), virtual=False)
    assert 100.0 <= first < 100.1
    assert second > first


def test_a_program_that_can_never_go_on_says_so():
    async def main():
        await asyncio.get_running_loop().create_future()

    with pytest.raises(AtollError, match="waits for something that cannot happen"):
        run(main())


@pytest.mark.parametrize("virtual", [True, False])
def test_nobody_writes_out_the_result(virtual):
    """The standard library looks for the signal handler among an enumeration's members, and its error holds the task with all that it returned."""

    written = []

    class Result:
        def __repr__(self) -> str:
            written.append(self)
            return "Result()"

    async def main():
        return Result()

    assert type(run(main(), virtual=virtual)) is Result
    assert not written
