"""What withstands a lying server, guard by guard: how to switch one off, and which moves then succeed.

A move counts only if it succeeds without its guard: a test switches each off, and requires that the server learns something by every move that the table names.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from atoll.core.errors import ConfigError
from atoll.core.requests.request import Request, TaskResult
from atoll.core.sealing import Letterbox, Row, hash_parts

__all__ = ["GUARDS", "LieGuard", "without_guard"]


@dataclass(frozen=True)
class LieGuard:
    """One reason why a lying server learns nothing.

    Attributes:
        says: what it holds to.
        off: what holds it, ``module:name`` or ``module:Class.name``, and what stands there once it is switched off.
        moves: protocol -> moves by which the server learns something once the guard is off, and those behind it.
        behind: guards of which one alone stops these moves too, so that all are switched off together.
    """

    says: str
    off: Mapping[str, Any]
    moves: Mapping[str, tuple[str, ...]]
    behind: tuple[str, ...] = ()


def _pass(*args: Any, **more: Any) -> None:
    """Refuse nothing."""
    del args, more


def _no_bytes(*args: Any, **more: Any) -> bytes:
    """Bind to nothing."""
    del args, more
    return b""


def _requests_without(kind: str) -> Callable[..., tuple[Row, ...]]:
    """`Request.promises` without the rows of one kind."""
    honest = Request.promises

    def promises(self: Request, party: str, ran: TaskResult, form: str, content: bytes) -> tuple[Row, ...]:
        rows = honest(self, party, ran, form, content)
        gone = {hash_parts("letter", party, *tag) for tag in ran.opened} if kind == "letter" else set()
        if kind == "inner" and self.wraps is not None:
            gone = {hash_parts("request", self.wraps.id, party)}
        return tuple(row for row in rows if row[0] not in gone)

    return promises


def _bind_nothing(self: Letterbox, agreed: bytes, written_in: str = "") -> None:
    """`Letterbox.bind` without the agreement."""
    self._agreed, self._step = b"", f"/{written_in}/" if written_in else ""


def _bind_no_step(self: Letterbox, agreed: bytes, written_in: str = "") -> None:
    """`Letterbox.bind` without the step."""
    del written_in
    self._agreed, self._step = agreed, ""


def _believe(self: Request, replies: int) -> Request:
    """`Request.among` that takes the request's word."""
    del replies
    return self


_REQUEST = "atoll.core.requests.request"
_BOX = "atoll.core.sealing.letterbox:Letterbox"

GUARDS: dict[str, LieGuard] = {
    "requests": LieGuard(
        "an id is bound to the whole request, letters included",
        {f"{_REQUEST}:Request.binding": property(_no_bytes), f"{_REQUEST}:Mailboxes.digest": _no_bytes},
        {},
    ),
    "replies": LieGuard(
        "a request answered again gives the same bytes",
        {"atoll.core.sealing.record:Record.hash_reply": _no_bytes},
        {},
    ),
    "inner": LieGuard(
        "one program's request is answered in one sum", {f"{_REQUEST}:Request.promises": _requests_without("inner")}, {}
    ),
    "letters": LieGuard(
        "a letter is opened in one request", {f"{_REQUEST}:Request.promises": _requests_without("letter")}, {}
    ),
    "here": LieGuard("a letter opens in its own sum", {f"{_BOX}._require_here": _pass}, {}),
    "step": LieGuard("a letter opens where one of its step is read", {f"{_BOX}.bind": _bind_no_step}, {}),
    "agreement": LieGuard("what was agreed is authenticated with a letter", {f"{_BOX}.bind": _bind_nothing}, {}),
    "sets": LieGuard("a party opens one set a sum", {"atoll.core.requests.island:Island.promise": _pass}, {}),
    "votes": LieGuard(
        "a majority has voted for the set",
        {
            f"atoll.secure.{room}:{name}": _pass
            for room, name in (
                ("holders.halves", "require_majority"),
                ("bounded.halves", "require_majority"),
                ("indexing.halves", "require_majority"),
                ("encrypted.halves", "require_majority"),
                ("masking.coded", "require_majority"),
                ("masking.halves", "require_votes"),
                ("standing.halves", "require_votes"),
            )
        },
        {},
    ),
    "least": LieGuard(
        "a set has the least number of parties",
        {
            "atoll.secure.masking.agreement:Agreement.require_set": _pass,
            "atoll.secure.encrypted.agreement:EncryptedAgreement.require_set": _pass,
            "atoll.secure.ballot:Electorate.require_set": _pass,
        },
        {},
    ),
    "second": LieGuard(
        "a site refuses a second sum", {"atoll.core.execution.executor:Executor._sums_once": lambda *_: False}, {}
    ),
    "noise": LieGuard(
        "a sum has the noise that its stages rely on",
        {
            "atoll.secure.masking.party:require_noise": _pass,
            "atoll.secure.standing.halves:require_noise": _pass,
            f"{_REQUEST}:Request.among": _believe,
        },
        {},
    ),
    "trust": LieGuard(
        "parties trust no server of another organisation",
        {"atoll.secure.masking.agreement:Agreement.require_active": _pass},
        {},
    ),
    "refusal": LieGuard(
        "a refusal tells nothing",
        {"atoll.core.execution.executor:Executor.refuse": lambda s, e, r, p: s.explain(e, r, p)},
        {},
    ),
}
"""Name -> guard."""


@contextmanager
def without_guard(name: str) -> Iterator[LieGuard]:
    """Switch a guard off.

    Args:
        name: of `GUARDS`.

    Raises:
        ConfigError: there is no such guard, or what held it has another name now.
    """
    if name not in GUARDS:
        raise ConfigError(f"guard {name!r}", where="without_guard", remedy=f"use one of {', '.join(GUARDS)}")
    guard, undo = GUARDS[name], list[tuple[Any, str, Any]]()
    off = {
        part: stand_in
        for one in (guard, *(GUARDS[other] for other in guard.behind))
        for part, stand_in in one.off.items()
    }
    try:
        for part, stand_in in off.items():
            owner, attribute = _owner_of(part)
            undo.append((owner, attribute, owner.__dict__[attribute]))
            setattr(owner, attribute, stand_in)
        yield guard
    finally:
        for owner, attribute, was in reversed(undo):
            setattr(owner, attribute, was)


def _owner_of(part: str) -> tuple[Any, str]:
    """The module or class that has a function, and the function's name there.

    Raises:
        ConfigError: nothing of this name is there.
    """
    module, _, path = part.partition(":")
    *outer, attribute = path.split(".")
    owner: Any = importlib.import_module(module)
    for each in outer:
        owner = getattr(owner, each, None)
    if owner is None or attribute not in vars(owner):
        raise ConfigError(f"no {path} in {module}", where="GUARDS", remedy="name the function that holds the guard now")
    return owner, attribute
