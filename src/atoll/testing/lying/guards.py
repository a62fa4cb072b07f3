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

__all__ = ["GUARDS", "LieGuard", "without_guard"]


@dataclass(frozen=True)
class LieGuard:
    """One reason why a lying server learns nothing.

    Attributes:
        says: what it holds to.
        parts: the functions that hold it, ``module:name`` or ``module:Class.name``.
        moves: protocol -> moves by which the server learns something once the guard is off.
        instead: what stands in for each function.
    """

    says: str
    parts: tuple[str, ...]
    moves: Mapping[str, tuple[str, ...]]
    instead: Callable[..., Any] = lambda *args, **more: None


_SECOND_SETS = ("other-set", "withheld-orders", "doubled-orders", "kill")

GUARDS: dict[str, LieGuard] = {
    "once": LieGuard(
        "a party opens one set a sum: it binds itself, and a letter opens in one request",
        ("atoll.core.event:Ledger._require_kept", "atoll.core.sealing.receipts:Receipts.require_fresh"),
        {
            **dict.fromkeys(("secagg", "secagg-active", "multi-round"), _SECOND_SETS),
            **dict.fromkeys(("one-shot", "bfv", "ckks", "paillier", "batchcrypt"), (*_SECOND_SETS, "settle-twice")),
        },
    ),
    "sets": LieGuard(
        "a set has the least number of parties, and is one piece",
        (
            "atoll.secure.masking.agreement:Agreement.require_set",
            "atoll.secure.encrypted.agreement:EncryptedAgreement.require_set",
        ),
        dict.fromkeys(("secagg", "bfv", "ckks", "paillier", "batchcrypt"), ("below-least", "two-halves")),
    ),
    "noise": LieGuard(
        "a sum has the noise that its stages rely on",
        ("atoll.secure.masking.party:require_noise", "atoll.secure.standing.halves:require_noise"),
        {
            **dict.fromkeys(("secagg", "secagg-active", "multi-round"), ("edited-sizes", "edited-replies")),
            "tree": ("edited-replies",),
        },
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
    try:
        for part in guard.parts:
            owner, attribute = _owner_of(part)
            undo.append((owner, attribute, owner.__dict__[attribute]))
            setattr(owner, attribute, guard.instead)
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
