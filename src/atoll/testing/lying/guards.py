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
from atoll.core.sealing import Row, hash_parts
from atoll.secure.ballot import hash_set

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


def _believe(self: Request, replies: int) -> Request:
    """`Request.among` that takes the request's word."""
    del replies
    return self


_REQUEST = "atoll.core.requests.request"

_ALL = ("secagg", "secagg-active", "multi-round", "one-shot", "two-servers", "enclave", "bounded", "indexing-enclave", "indexing-shares", "indexing-keys",
        "bfv", "ckks", "paillier", "batchcrypt")  # fmt: skip
_HELPED = tuple(name for name in _ALL[4:])
_KEYS = ("bfv", "ckks", "paillier", "batchcrypt")
_SECOND_SETS = ("withheld-orders", "doubled-orders", "kill")

GUARDS: dict[str, LieGuard] = {
    "requests": LieGuard(
        "an id is bound to the whole request, letters included",
        {f"{_REQUEST}:Request.binding": property(_no_bytes), f"{_REQUEST}:Mailboxes.digest": _no_bytes},
        {"secagg": ("other-letters", "other-key"), "enclave": ("other-key",), "two-servers": ("other-key",)},
        ("replies",),
    ),
    "replies": LieGuard(
        "a request that is answered again gives the same bytes",
        {"atoll.core.sealing.record:Record.hash_reply": _no_bytes},
        {"secagg-active": ("other-letters", "other-key"), "enclave": ("settle-twice",)},
        ("requests", "sets"),
    ),
    "inner": LieGuard(
        "one request of the program is answered in one sum",
        {f"{_REQUEST}:Request.promises": _requests_without("inner")},
        dict.fromkeys(("secagg", "one-shot", "enclave", "bfv"), ("other-label",)),
        ("second",),
    ),
    "letters": LieGuard(
        "a letter is opened in one request",
        {f"{_REQUEST}:Request.promises": _requests_without("letter")},
        dict.fromkeys(("one-shot", *_KEYS), _SECOND_SETS),
        ("sets",),
    ),
    "here": LieGuard(
        "a letter opens in the sum in which it was written",
        {"atoll.core.sealing.letterbox:Letterbox._require_here": _pass},
        dict.fromkeys(("secagg", "secagg-active"), ("old-letters",)),
    ),
    "sets": LieGuard(
        "a party opens one set a sum",
        {"atoll.core.requests.island:Island.promise": _pass},
        dict.fromkeys(("secagg", "secagg-active", "one-shot"), ("other-set", *_SECOND_SETS)),
        ("letters",),
    ),
    "holders": LieGuard(
        "a helper opens one set a sum",
        {"atoll.secure.ballot:bind_set": lambda island, kept, matter=b"": hash_set(kept)},
        dict.fromkeys(("enclave", "two-servers"), ("settle-twice", *_SECOND_SETS)),
        ("requests", "replies"),
    ),
    "votes": LieGuard(
        "a majority of the parties has voted for a set before anybody opens it",
        {
            **{
                f"atoll.secure.{room}:require_majority": _pass
                for room in (
                    "seed_holders",
                    "bounded",
                    "indexing.party_steps",
                    "encrypted.party_steps",
                    "masking.one_shot",
                )
            },
            **{f"atoll.secure.{room}:require_votes": _pass for room in ("masking.party_steps", "multi_round")},
        },
        dict.fromkeys(_HELPED, ("smaller-sum",)),
    ),
    "least": LieGuard(
        "a set has the least number of parties, and is one piece",
        {
            "atoll.secure.masking.agreement:Agreement.require_set": _pass,
            "atoll.secure.encrypted.agreement:EncryptedAgreement.require_set": _pass,
            "atoll.secure.ballot:Electorate.require_set": _pass,
        },
        {
            **dict.fromkeys(("secagg", "secagg-active", "multi-round"), ("below-least",)),
            **dict.fromkeys(_KEYS, ("two-halves",)),
        },
        ("votes",),
    ),
    "second": LieGuard(
        "a site refuses a second sum of the same over another set",
        {"atoll.core.execution.executor:Executor._sums_once": lambda executor, position: False},
        dict.fromkeys(_ALL, ("smaller-sum",)),
    ),
    "noise": LieGuard(
        "a sum has the noise that its stages rely on, and as many parties as were agreed",
        {
            "atoll.secure.masking.party_steps:require_noise": _pass,
            "atoll.secure.multi_round:require_noise": _pass,
            f"{_REQUEST}:Request.among": _believe,
        },
        dict.fromkeys(("secagg", "multi-round", "one-shot", "enclave", *_KEYS), ("edited-sizes", "edited-replies")),
    ),
    "trust": LieGuard(
        "parties trust no server of another organisation on its word",
        {"atoll.secure.masking.agreement:Agreement.require_active": _pass},
        dict.fromkeys(("secagg", "secagg-active"), ("edited-terms",)),
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
