"""Mutated messages and frames over each transport: no crash, no hang, no exception but the named ones.

Messages of every kind that a site sends are changed, in a few bytes or in one of their values, and sent by a real line, each on a channel of its own. Now and then a frame of
the line is changed too, header included: that ends its connection, and the line makes another one. What is still a message is read as a server reads it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from atoll.core import message as M
from atoll.core.algebra.aggregate import Mean, Parts, Sum
from atoll.core.errors import AtollError, MessageError
from atoll.core.message import Limits
from atoll.core.requests.request import PartialSum, Reply, TaskResult
from atoll.core.requests.wire import pack_error, pack_folded, pack_ran
from atoll.data.units import ColumnExtent
from atoll.engines.link import LinkClosed
from atoll.runtime.line import Backoff, Line, LineLost, Settings, dial_line
from atoll.runtime.line.channel import ChannelBlock
from atoll.runtime.line.frames import END, Kind
from atoll.runtime.network.validation import require_events, require_reply
from atoll.runtime.transport import Pipe, transport
from atoll.runtime.worker.cards import Column, DataCard
from atoll.runtime.worker.frames import Hello, Rendezvous, raise_if_error
from tests.support.line_toys import Hub, hub

BOUNDS = Settings(heartbeat=None, patience=20.0, limits=Limits(max_bytes=1 << 20, max_header_bytes=1 << 18))
BATCH = 100
FRAMES = 400
"""One frame of so many is changed."""
STILL = 1.0
"""Seconds without progress after which a connection is cut."""


def messages() -> list[Any]:
    """What sites and servers say to each other."""
    one = np.array([0])
    totals = {
        "update": Mean({"w": np.ones((3, 2)), "b": np.zeros(2, np.float32)}, examples=5.0).total(),
        "n": Sum(np.float64(1.0), role="side").total(),
        "report/loss": Parts(np.float64(1.0), examples=5.0, role="report").total(),
    }
    card = DataCard(
        "classification", {"x": Column("float32", (4,)), "y": Column("int64")}, 2, ("no", "yes"), tuple("abcd")
    )
    hello = Hello(
        ("north",), (30,), card, None, {"a": ColumnExtent(0), "b": ColumnExtent(1, -2.0, 30.0, 5.0, True)}, (5,)
    ).packed()
    ledger = [{"event": {"kind": "laplace", "epsilon": 1.0}, "party": "north", "request": "r"}]
    frames: list[Any] = [
        {"op": "folded", "id": "main/t/1", "party": 0, "events": ledger, "folded": pack_folded(PartialSum(totals, one, one * 80))},
        {"op": "ran", "id": "main/t/1", "party": 0, "events": [], "ran": pack_ran(TaskResult(Reply(0, {"x": 5.0}, nbytes=8)))},
        {"op": "failed", "id": "main/t/1", "party": 0, "events": [], "error": pack_error(ValueError("no"))},
        {"op": "answer", "number": 3, "names": ["a", "b"]}, {"op": "pulse"}, {"hello": hello}, {"error": pack_error(OSError("x"))},
        Rendezvous(("north", "south"), (3, 4), card, 7, {"k": "key holder"}).packed(),
        {"x": [b"bytes", "text" * 99, None, True, 2**70, 1.5, (1, 2)], "s": np.array(["ab", "c"]), "d": np.zeros(3, "M8[s]")},
    ]  # fmt: skip
    return frames


def mutated(content: bytes, rng: np.random.Generator) -> bytes:
    """A message with a few bytes changed, cut out, doubled or put in."""
    made = bytearray(content)
    for _ in range(int(rng.integers(1, 4))):
        at, how = int(rng.integers(len(made) or 1)), int(rng.integers(6))
        if how <= 2 and made:
            made[at] = int(rng.integers(256))
        elif how == 3:
            del made[at : at + int(rng.integers(1, 9))]
        elif how == 4:
            made[at:at] = made[at : at + int(rng.integers(1, 40))]
        elif made:
            made[at : at + 8] = int(rng.choice(EDGES)).to_bytes(8, "little")
    return bytes(made)


ODD: list[Any] = [
    None, True, -1, 2**70, 1.5, float("nan"), float("inf"), "", "x" * 3000, "\x1b[2J", b"", [], {}, [[[[[]]]]], {"op": 1}, np.zeros((1 << 40, 0)), np.zeros(0),
    np.array(["a"]), np.array([np.nan]), np.zeros(3, "M8[s]"), np.array(5), np.array([-(2**63)]), np.ones(2) * 1j, (1, 2), list(range(300)),
]  # fmt: skip


def twisted(tree: Any, rng: np.random.Generator) -> Any:
    """A tree with one value replaced, left out or moved."""
    if isinstance(tree, dict) and tree and rng.integers(8):
        key = list(tree)[int(rng.integers(len(tree)))]
        if not rng.integers(12):
            return {name: value for name, value in tree.items() if name != key}
        return {**tree, key: twisted(tree[key], rng)}
    if isinstance(tree, list) and tree and rng.integers(8):
        at = int(rng.integers(len(tree)))
        return [*tree[:at], twisted(tree[at], rng), *tree[at + 1 :]]
    return ODD[int(rng.integers(len(ODD)))]


EDGES = np.array([0, 1, 255, 2**31, 2**32 - 1, 2**40, 2**62, 2**63 - 1], dtype=np.int64)


def read(tree: Any) -> None:
    """Read a frame as a server's job process does, whatever it is."""
    raise_if_error(tree, "site 'north'")
    if "hello" in tree:
        Hello.unpack(tree["hello"], "site 'north'")
    elif "roster" in tree:
        Rendezvous.unpack(tree)
    else:
        require_events(tree.get("events"), "north")
        require_reply(tree, 0, str(tree.get("op")))


class Mutating:
    """A pipe that changes one of many blocks."""

    post = None  # every block is sent by ``send``

    def __init__(self, pipe: Pipe, siege: Siege) -> None:
        self._pipe, self._rng, self._count, self.peer = pipe, siege.rng, siege.count, pipe.peer
        self._confuse = siege.confuse

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pipe, name)

    async def send(self, *parts: Any) -> None:
        if not self._rng.integers(FRAMES):
            self._count["frames"] += 1
            parts = (mutated(b"".join(bytes(part) for part in parts), self._rng),)
        elif self._confuse and parts and (said := self._confuse.pop(Kind(bytes(parts[0])[0]), None)):
            self._count["frames"] += 1
            parts = (bytes([said]) + b"".join(bytes(part) for part in parts)[1:],)
        await self._pipe.send(*parts)


class Siege:
    """A server that hears what mutated lines say."""

    def __init__(self, server: Hub, seed: int) -> None:
        self.server, self.rng, self.texts = server, np.random.default_rng(seed), messages()
        self.count, self.faults = Counter[str](), list[BaseException]()
        self.confuse: dict[Kind, Kind] = {}  # kinds of frames that become others, once
        self._hearing: set[asyncio.Task[None]] = set()
        self._line: Line | None = None

    async def _dial(self) -> Pipe:
        return Mutating(await self.server.dial()(), self)  # type: ignore[return-value]

    async def _heard(self, line: Line) -> None:
        """Wait until all is heard. Cut a connection on which a changed frame, valid and with another meaning, left something unsaid."""
        clock = asyncio.get_running_loop().time
        last, since = (0, 0), clock()
        while self._hearing or len(line.table):
            if line.lost.is_set():
                raise LineLost("the line is lost")
            left = len(self._hearing), len(line.table)
            if left != last:
                last, since = left, clock()
            elif clock() - since > STILL and line.loop is not None and self.count["frames"]:
                line.loop.cancel()
                self.count["cuts"] += 1
                since = clock()
            await asyncio.sleep(0.001)

    async def _hear(self, channel: Any) -> None:
        try:
            told = await channel.recv()
            if channel.name == "honest":
                assert told == "hello"
                self.count["honest"] += 1
            read(told)
            self.count["read"] += 1
        except AtollError as error:
            self.count[type(error).__name__] += 1
        except LinkClosed:
            self.count["cut off"] += 1
        except Exception as error:
            self.faults.append(error)
        finally:
            channel.close()

    async def accept(self) -> None:
        """Hear each channel."""
        while True:
            task = asyncio.create_task(self._hear(await self.server.channels.get()))
            self._hearing.add(task)
            task.add_done_callback(self._hearing.discard)

    def _next(self) -> bytes:
        tree = self.texts[int(self.rng.integers(len(self.texts)))]
        return mutated(M.encode(tree), self.rng) if self.rng.integers(2) else M.encode(twisted(tree, self.rng))

    async def batch(self) -> None:
        """Say some messages, and wait until they are heard."""
        try:
            if self._line is None:
                self._line = await dial_line(self._dial, settings=BOUNDS, backoff=Backoff(first=1e-4, longest=1e-3))
            for _ in range(BATCH):
                await _say(self._line, self._next())
                self.count["messages"] += 1
            await self._heard(self._line)
        except (LineLost, LinkClosed, OSError, AtollError):
            self.count["lines"] += 1
            self._line = None

    async def end(self) -> None:
        """Close the line, and see that an honest one is served."""
        if self._line is not None:
            with contextlib.suppress(LinkClosed):
                await self._line.close(within=0.2)
        honest = await self.server.line(settings=BOUNDS)
        await honest.open("honest").send("hello")
        while "honest" not in self.count:
            await asyncio.sleep(0.001)
        await honest.close()


async def besieged(name: str, wanted: int, seed: int) -> Counter[str]:
    """Send so many mutated messages; what became of them."""
    async with hub(BOUNDS, transport(name)) as server:
        siege = Siege(server, seed)
        accepting = asyncio.create_task(siege.accept())
        try:
            while siege.count["messages"] < wanted and not siege.faults:
                async with asyncio.timeout(60):
                    await siege.batch()
            async with asyncio.timeout(60):
                await siege.end()
        finally:
            accepting.cancel()
            await asyncio.gather(accepting, return_exceptions=True)
    if siege.faults:
        raise siege.faults[0]
    return siege.count


async def _say(line: Line, content: bytes) -> None:
    channel = line.open("job")
    await channel.send_block(ChannelBlock(content, END))
    channel.close()


@pytest.fixture(autouse=True)
def unrecorded() -> Iterator[None]:
    """Keep warnings out of the records that pytest makes of a test: a million of them take gigabytes, and then each full collection seconds."""
    log = logging.getLogger("atoll.runtime")
    log.disabled = True
    yield
    log.disabled = False


@pytest.mark.quick("tcp")
@pytest.mark.parametrize("name", ["tcp", "grpc"])
def test_three_thousand_mutations(name: str) -> None:
    found = asyncio.run(besieged(name, 3_000, seed=1))
    assert found["messages"] >= 3_000
    assert min(found["MessageError"], found["read"]) > 100, found


@pytest.mark.parametrize("name", ["tcp", "grpc"])
@pytest.mark.parametrize("meant", [Kind.OPEN, Kind.DATA, Kind.CLOSE], ids=lambda kind: kind.name)
@pytest.mark.parametrize("said", [Kind.ACK, Kind.ASK, Kind.PING], ids=lambda kind: kind.name)
@pytest.mark.quick("ASK-CLOSE-grpc", "ACK-DATA-tcp")
def test_a_frame_with_another_meaning_is_sent_again_over_the_next_connection(
    name: str, meant: Kind, said: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some of these end the connection at once. A CLOSE that became an ASK is valid: its channel stays open until the connection ends."""
    monkeypatch.setitem(globals(), "BATCH", 10)
    monkeypatch.setitem(globals(), "STILL", 0.2)

    async def run() -> Counter[str]:
        async with hub(BOUNDS, transport(name)) as server:
            siege = Siege(server, 1)
            siege.confuse = {meant: said}
            accepting = asyncio.create_task(siege.accept())
            async with asyncio.timeout(30):
                await siege.batch()
                await siege.end()
            accepting.cancel()
            await asyncio.gather(accepting, return_exceptions=True)
            return siege.count

    found = asyncio.run(run())
    assert (found["messages"], found["frames"], found["honest"]) == (10, 1, 1)


@pytest.mark.skipif(not os.environ.get("ATOLL_FAULTS"), reason="takes minutes of processor time: make faults")
@pytest.mark.parametrize("name", ["tcp", "grpc"])
def test_a_million_mutations(name: str) -> None:
    found = asyncio.run(besieged(name, 1_000_000, seed=2))
    assert found["messages"] + found["frames"] >= 1_000_000


def test_what_is_malformed_in_any_way_is_a_message_error() -> None:
    """Without a line: whatever was changed, reading it raises nothing else. A frame with an error raises that error."""
    rng, frames, refused = np.random.default_rng(7), messages(), 0
    for number in range(6_000):
        tree = frames[number % len(frames)]
        content = mutated(M.encode(tree), rng) if number % 2 else M.encode(twisted(tree, rng))
        try:
            told = M.decode(content, limits=BOUNDS.limits)
            if isinstance(told, dict) and "error" in told:
                continue
            read(told)
        except MessageError:
            refused += 1
    assert refused > 3_000
