"""Signs of life follow the processor time, not the clock."""

from __future__ import annotations

import asyncio

from atoll.runtime.work.pulses import pulsing


def test_work_in_a_thread_is_heard_and_waiting_is_not() -> None:
    moved = iter([0.0, 0.5, 0.5, 0.5, 0.9])
    last = [0.0]

    def cpu() -> float:
        last[0] = next(moved, last[0])
        return last[0]

    told: list[float] = []

    async def main() -> None:
        second = asyncio.Event()

        async def send(seconds: float) -> None:
            told.append(seconds)
            if len(told) == 2:
                second.set()

        async with pulsing(send, every=0.001, spent=cpu):
            await asyncio.wait_for(second.wait(), 10)

    asyncio.run(main())
    assert told[:2] == [0.5, 0.9]
