"""Python imports this file when it starts, if its folder is in PYTHONPATH: so every process of a project can lie, the coordinator's of a job and those of its parties.

The folder named by `FOLDER` says how. ``lies.json`` is a list of names: before the coordinator asks honestly it tries each, and writes what came of it into ``found.json``. ``now`` is the lie of the moment, for the processes of the parties.
Names of parties are `CHEAT`, which lies, and ``north``.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

FOLDER = "ATOLL_JOB_LIES"
CHEAT = "south"


def _now() -> str:
    file = Path(os.environ[FOLDER]) / "now"
    return file.read_text(encoding="utf-8") if file.exists() else ""


# ---------------------------------------------------------------- the coordinator asks for something else


def _said(request: Any, **message: Any) -> Any:
    return {**request, "message": {**request["message"], **message}}


def _without(request: Any) -> Any:
    return {**request, "sizes": {name: own for name, own in request["sizes"].items() if name != CHEAT}}


ASKS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "another statement": (CHEAT, lambda one: _said(one, sql=one["message"]["sql"] + " LIMIT 9")),
    "another policy": (CHEAT, lambda one: _said(one, policy={**one["message"]["policy"], "min_count": 2})),
    "another order of owners": (CHEAT, lambda one: {**one, "sizes": dict(reversed(one["sizes"].items()))}),
    "another length of texts": (CHEAT, lambda one: {**one, "widths": {**one["widths"], "w0.0": 9}}),
    "another division": (CHEAT, lambda one: {**one, "division": [2, 1]}),
    "another statement to the enclave": ("enclave", lambda one: _said(one, sql=one["message"]["sql"] + " LIMIT 9")),
    "fewer rows": ("", lambda one: {**one, "sizes": {**one["sizes"], CHEAT: [1 for _ in one["sizes"][CHEAT]]}}),
    "an owner left out": ("", _without),
    "a second set of owners": ("", _without),
}
"""Name of a lie -> whom it is told, all if empty, and what becomes of the request."""


def _change_asked(lie: str, roles: Any) -> Any:
    if lie not in ASKS:
        return roles
    who, change = ASKS[lie]
    told = {name: (at, job.with_args(request=change(job.args["request"])) if who in ("", name) else job) for name, (at, job) in roles.items()}  # fmt: skip
    if lie == "a second set of owners":
        parties = [name for name in told if name != CHEAT]
        told = {name: (at, job.with_args(parties=parties) if "parties" in job.args else job) for name, (at, job) in told.items() if name != CHEAT}  # fmt: skip
    return told


# ---------------------------------------------------------------- the coordinator changes what it carries

_carried: dict[str, list[Any]] = {}


def _carry_lies(plain: Any) -> Any:
    """What the coordinator makes of a sealed message on its way from `CHEAT`: the second on a channel is altered, dropped, or the first one again."""

    def carry(switch: Any, source: str, target: str, message: Any, sent: float, channel: str = "") -> float:
        lie, seen = _now(), _carried.setdefault(f"{source} {target} {channel}", [])
        seen.append(message)
        if lie.startswith("a message is ") and source == CHEAT and len(seen) == 2:
            how = lie.removeprefix("a message is ")
            message = {"altered": _flip(message), "replayed": seen[0]}.get(how, message)
            if how == "dropped":
                return 0.0
        return float(plain(switch, source, target, message, sent, channel))

    return carry


def _flip(message: Any) -> Any:
    """A sealed message with one bit changed."""
    import numpy as np

    if isinstance(message, bytes):
        return message[:-1] + bytes([message[-1] ^ 1])
    if isinstance(message, np.ndarray):
        made = message.copy()
        made.reshape(-1)[-1:].view(np.uint8)[-1] ^= np.uint8(1)
        return made
    last = list(message)[-1] if isinstance(message, dict) else len(message) - 1
    return {**message, last: _flip(message[last])} if isinstance(message, dict) else [*message[:last], _flip(message[last])]  # fmt: skip


# ---------------------------------------------------------------- an owner, and the host of an enclave


def _lie_as_owner() -> None:
    from atoll.query.circuits import owner_rows
    from atoll.query.strategies import garbled
    from atoll.secure.garbled.garbling import Evaluator
    from atoll.secure.shares import AuthenticatedBits

    mine, plain_rows, plain_sort = list[bool](), garbled.own_rows, owner_rows.sort_own

    def own_rows(island: Any, *given: Any, **said: Any) -> Any:
        mine.append(island.name == CHEAT)
        return plain_rows(island, *given, **said)

    def sort_own(*given: Any) -> Any:
        made = plain_sort(*given)
        turned = _now() == "rows out of order" and any(mine)
        return {name: values[::-1] for name, values in made.items()} if turned else made

    changes: Any = [(AuthenticatedBits, "conjoin", _alter_share(AuthenticatedBits.conjoin)), (AuthenticatedBits, "_fix", _change_input(AuthenticatedBits._fix)), (garbled, "own_rows", own_rows), (owner_rows, "sort_own", sort_own)]  # fmt: skip
    for kind in (AuthenticatedBits, Evaluator):  # it is `CHEAT` that evaluates
        changes.append((kind, "hand_out", _alter_part(kind.hand_out)))
    _try_lies(garbled.GarbledSmcql)
    for where, name, change in changes:
        setattr(where, name, change)


def _alter_share(plain: Any) -> Any:
    async def conjoin(self: Any, x: Any, y: Any) -> Any:
        made = await plain(self, x, y)
        if _now() == "an altered share" and self.me == CHEAT:
            made.data[..., -1] ^= made.data.dtype.type(1)
        return made

    return conjoin


def _alter_part(plain: Any) -> Any:
    async def hand_out(self: Any, x: Any) -> Any:
        made = await plain(self, x)
        if _now() == "an altered part" and self.me == CHEAT:
            made[-1:] ^= made.dtype.type(1)
        return made

    return hand_out


class _ChangingPeers:
    """Shows another input than was committed."""

    def __init__(self, honest: Any) -> None:
        self._honest, self.recv = honest, honest.recv

    async def send(self, role: str, message: Any) -> None:
        await self._honest.send(role, [message[0], message[1] ^ message[1].dtype.type(1)] if isinstance(message, list) else message)  # fmt: skip


def _change_input(plain: Any) -> Any:
    async def fix(self: Any, owner: str, difference: Any, shape: Any) -> Any:
        honest = self.peers
        if _now() == "another input than the committed one" and owner == self.me == CHEAT:
            self.peers = _ChangingPeers(honest)
        try:
            return await plain(self, owner, difference, shape)
        finally:
            self.peers = honest

    return fix


class _LyingHost(dict[tuple[int, int], bytes]):
    """The host of an enclave: it keeps all that it was given, and once it has had 30 blocks gives back what the lie says."""

    def __init__(self) -> None:
        super().__init__()
        self.past: list[tuple[tuple[int, int], bytes]] = []

    def __setitem__(self, place: tuple[int, int], block: bytes) -> None:
        self.past.append((place, block))
        super().__setitem__(place, block)

    def get(self, place: Any, default: Any = None) -> Any:
        found, lie = super().get(place, default), _now()
        if len(self.past) < 30 or not lie.startswith("a block is "):
            return found
        if lie == "a block is replayed":
            return next(block for where, block in self.past if where == place)
        if lie == "a block is swapped":
            return next((block for where, block in self.past if where[0] != place[0] and len(block) == len(found)), found)  # fmt: skip
        return None


def _lie_as_host() -> None:
    import hashlib

    from atoll.query.secure.host_memory import SealedMemory
    from atoll.query.strategies import opaque
    from atoll.secure import attestation

    _try_lies(opaque.Opaque)
    plain_quote, plain_seal, letters = attestation.SignedAttestation.quote, attestation.seal_blocks, list[Any]()

    def quote(self: Any, challenge: bytes) -> bytes:
        return plain_quote(self, hashlib.sha256(b"yesterday").digest() if _now() == "an old quote" else challenge)

    def seal_blocks(secret: Any, key: bytes, about: bytes, owner: str, tables: Any) -> Any:
        letters.append(plain_seal(secret, key, about, owner, tables))
        return letters[0] if owner == CHEAT and _now() == "rows of an earlier letter" else letters[-1]

    for where, name, change in ((attestation.SignedAttestation, "quote", quote), (attestation, "seal_blocks", seal_blocks), (opaque, "SealedMemory", lambda key: SealedMemory(key, _LyingHost()))):  # fmt: skip
        setattr(where, name, change)


# ---------------------------------------------------------------- all of it


def _lie_as_coordinator() -> None:
    from atoll.core.execution.session import LocalPeers, Switch
    from atoll.core.federation.replies import ReplyVerbs

    plain, plain_send, sent = ReplyVerbs.session, LocalPeers.send, list[str]()

    async def session(fed: Any, roles: Any, **more: Any) -> Any:
        return await plain(fed, _change_asked(_now(), roles), **more)

    async def send(self: Any, role: str, message: Any, channel: str = "") -> None:
        if _now() == "killed" and self.me == CHEAT:
            sent.append(role)
            if len(sent) > 1:
                os.kill(os.getpid(), signal.SIGKILL)
        await plain_send(self, role, message, channel)

    for where, name, change in ((ReplyVerbs, "session", session), (LocalPeers, "send", send), (Switch, "carry", _carry_lies(Switch.carry))):  # fmt: skip
        setattr(where, name, change)


def _try_lies(kind: Any) -> None:
    """Have a strategy's coordinator try all lies before it asks honestly."""
    from atoll.core.errors import AtollError

    plain, folder = kind.run, Path(os.environ[FOLDER])

    async def run(self: Any, fed: Any, plan: Any, message: Any) -> Any:
        found, answer = dict[str, Any](), None
        for lie in [*json.loads((folder / "lies.json").read_text(encoding="utf-8")), ""]:
            _carried.clear()
            (folder / "now").write_text(lie, encoding="utf-8")
            try:
                answer = await plain(self, fed, plan, message)
                found[lie] = [list(row) for row in answer.rows]
            except AtollError as error:
                found[lie] = f"{type(error).__name__}: {error}"
                if lie in ("", "killed"):
                    raise
            finally:
                (folder / "found.json").write_text(json.dumps(found), encoding="utf-8")
        return answer

    kind.run = run


_HOOKS = {"atoll.query.job": _lie_as_coordinator, "atoll.query.strategies.garbled": _lie_as_owner, "atoll.query.strategies.opaque": _lie_as_host}  # fmt: skip
"""Module -> what is changed once it is there."""


class _Begin:
    """Finds these modules as they are found otherwise, and lets them lie once they are there."""

    def __init__(self) -> None:
        self._finding = False

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if name not in _HOOKS or self._finding:
            return None
        self._finding = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._finding = False
        assert spec is not None
        assert spec.loader is not None
        run = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            run(module)
            _HOOKS[name]()

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


if os.environ.get(FOLDER):
    sys.meta_path.insert(0, _Begin())  # type: ignore[arg-type]
