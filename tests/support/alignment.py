"""Alignments for tests: a world of parties with tables, their intersection, and a recorder of what they say."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import atoll
from atoll.core.execution.session import LocalPeers
from atoll.core.requests.cohort import Community
from atoll.core.world import World
from atoll.engines import ENGINES
from atoll.secure.oblivious import extension
from atoll.secure.psi import AlignmentPlan, PsiProtocol, RowKeys
from atoll.secure.psi.protocol import intersect_keys
from atoll.testing.crash import Killed, live


def tables(sets: Mapping[str, Sequence[Any]]) -> dict[str, dict[str, Any]]:
    """A table with the column ``id`` for each party."""
    return {name: {"id": list(keys)} for name, keys in sets.items()}


def program_of(protocol: PsiProtocol, names: Sequence[str], *, show: bool = True, **settings: Any) -> Any:
    """A program that aligns parties; ``settings`` are those of the plan."""
    plan = AlignmentPlan(columns=settings.pop("columns", ("id",)), roles=tuple(names), **settings)
    args = {"protocol": protocol.spec(), "plan": plan.spec(), "show": show}

    async def program(fed: Any) -> Any:
        state = await fed.restore(None)
        if state is None:
            state = await fed.session({name: (name, intersect_keys.with_args(me=name, **args)) for name in names})
            await fed.checkpoint(state)
        return state

    program.args = args
    return program


def align(protocol: PsiProtocol, data: Mapping[str, Any], *, policy: Any = None, secrets: int | None = None, **settings: Any) -> dict[str, Any]:  # fmt: skip
    """What each party replies."""
    program = program_of(protocol, list(data), **settings)
    return dict(
        atoll.simulate(program, dict(data), engine="inline", policy=policy, secret_seed=secrets, progress=False)
    )


def shared_keys(data: Mapping[str, Any], seed: int = 0) -> list[str]:
    """The plain intersection in the order of u."""
    sets = [RowKeys.of(table, "id", seed=seed) for table in data.values()]
    return [name for name in sets[0].names if all(name in other.names for other in sets[1:])]


@contextmanager
def recorded(monkeypatch: pytest.MonkeyPatch, change: Any = None) -> Iterator[list[tuple[str, str, str, Any]]]:
    """All messages of the roles: source, target, channel and message.

    Args:
        monkeypatch: the fixture.
        change: ``(source, channel, message) -> message``, for a party that does not follow the protocol.
    """
    said: list[tuple[str, str, str, Any]] = []
    send = LocalPeers.send

    async def heard(self: LocalPeers, role: str, message: Any, channel: str = "") -> None:
        if change is not None:
            message = change(self.me, channel, message)
        said.append((self.me, role, channel, np.array(message)))
        await send(self, role, message, channel)

    with monkeypatch.context() as patch:
        patch.setattr(LocalPeers, "send", heard)
        yield said


def send_seeds_openly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both seeds of each column are sent openly, in place of the base transfers, which take most of the time."""

    async def send(secret: Any, channel: Any, peer: str, count: int) -> Any:
        seeds = np.frombuffer(secret.bytes(64 * count), dtype=np.uint8).reshape(count, 2, 32)
        await channel.send(peer, seeds)
        return seeds

    async def receive(secret: Any, channel: Any, peer: str, choices: Any) -> Any:
        return (await channel.recv(peer))[np.arange(len(choices)), choices.astype(int)]

    monkeypatch.setattr(extension, "send_seeds", send)
    monkeypatch.setattr(extension, "receive_seeds", receive)


def die_and_resume(monkeypatch: pytest.MonkeyPatch, folder: Path, program: Any, data: Mapping[str, Any], at: tuple[str, str], change: Any = None) -> tuple[list[Any], list[Any], Any]:  # fmt: skip
    """What is said until all die in place of a message, what after a resume, and the result then.

    Args:
        monkeypatch: the fixture.
        folder: of the run.
        program: the program.
        data: maps a party to its table.
        at: source and channel of the message.
        change: as in `recorded`, in the second life.
    """

    def die(source: str, channel: str, message: Any) -> Any:
        if (source, channel) == at:
            raise Killed(f"before {channel} of {source}")
        return message

    with recorded(monkeypatch, die) as first, pytest.raises(Killed, match=r"before|after"):
        live(World(Community(dict(data)), ENGINES["inline"](1), folder=folder), program)
    with recorded(monkeypatch, change) as second:
        found = live(World(Community(dict(data)), ENGINES["inline"](1), folder=folder, resume=True), program)
    return first, second, found.result
