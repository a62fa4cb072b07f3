"""A crowd that connects at once is not kept waiting by the watch over who is refused."""

from __future__ import annotations

import asyncio
import logging

import pytest

from atoll.runtime.transport import handshakes
from atoll.runtime.transport.handshakes import Handshakes


class Table:
    """A table of connections that takes 5 ms to read, and a clock that only reading moves."""

    def __init__(self) -> None:
        self.rows: dict[tuple[str, int], int] = {}
        self.readings = 0
        self.now = 0.0

    def read(self, port: int) -> dict[tuple[str, int], int]:
        assert port == 4711
        self.readings += 1
        self.now += 0.005
        return dict(self.rows)

    def monotonic(self) -> float:
        return self.now


def test_the_table_is_read_for_some_of_a_crowd_and_the_next_look_finds_the_others(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    table = Table()
    monkeypatch.setattr(handshakes, "connections_to", table.read)
    monkeypatch.setattr(handshakes, "time", table)

    async def play() -> None:
        watch = Handshakes()
        watch._table = True
        watch.port = 4711
        for number in range(1000):
            table.rows["10.0.0.1", number] = 1  # established
            watch.begun()
        # 0.1 s of reading at once, and a twentieth of the time since: 21 or 22 readings of 5 ms
        assert 20 <= table.readings <= 23
        await asyncio.sleep(0)  # what threads of gRPC's have said is heard
        for number in range(999):
            watch.called(f"ipv4:10.0.0.1:{number}")
        watch._look()
        assert caplog.messages == []
        table.rows["10.0.0.1", 999] = 6  # TIME_WAIT: it left without a word
        watch._look()
        watch.close()

    with caplog.at_level(logging.WARNING, "atoll.runtime"):
        asyncio.run(play())
    (line,) = caplog.messages
    assert line.startswith("a connection from 10.0.0.1:999 is refused")
