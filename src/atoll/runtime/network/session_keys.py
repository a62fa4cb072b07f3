"""What the roles at a site need so that nobody between them and the other roles can read their messages: see `atoll.core.sealing.letterbox`."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from atoll.core.execution.session import Deliver, LocalPeers, Reach, Step
from atoll.core.sealing import RealSealing, RoleSealing, Sealing, Speaker
from atoll.core.sealing.hpke import KEY, public_of
from atoll.core.time.deadline import Prospect
from atoll.engines.worker import Key

from .validation import wrong

__all__ = ["SessionKeys", "keys_in"]


class SessionKeys:
    """The keys that the roles here draw before a session begins, one for each other role, and what follows from them once it begins.

    Args:
        sealing: of the parties here; if it is only virtual, nothing is drawn.
    """

    def __init__(self, sealing: Sealing) -> None:
        self._sealing = sealing if isinstance(sealing, RealSealing) else None
        self._drawn: dict[Key, dict[str, bytes]] = {}

    def draw(self, session: int, here: Iterable[str], roles: Iterable[str]) -> dict[str, dict[str, bytes]]:
        """Draw keys for these roles of a session; return the public parts: role -> other role -> key."""
        if self._sealing is None:
            return {}
        told, everyone = {}, list(roles)
        for role in here:
            drawn = self._drawn[session, role] = {r: secrets.token_bytes(KEY) for r in everyone if r != role}
            told[role] = {other: public_of(key) for other, key in drawn.items()}
        return told

    def peers(
        self,
        frame: Any,
        party: str,
        carry: Deliver,
        took: Callable[[str], None],
        reach: Reach,
        resumed: Step | None,
    ) -> LocalPeers:
        """Return the peers of a role that begins, or goes on at a step.

        Args:
            frame: the order; what it says of the role itself is ignored.
            party: the party that plays it here.
            carry: sends sealed messages.
            took: see `LocalPeers`.
            reach: see `LocalPeers`.
            resumed: see `LocalPeers`.
        """
        me, others, prospect = frame["role"], list(frame["others"]), Prospect.unpack(frame["prospect"])
        sealing = None if self._sealing is None else self._role_sealing(self._sealing, frame, party)
        return LocalPeers(
            me,
            others,
            carry,
            frame["start"],
            took,
            prospect,
            sealing=sealing,
            resumed=resumed,
            reach=reach,
        )

    def _role_sealing(self, sealing: RealSealing, frame: Any, party: str) -> RoleSealing:
        me = frame["role"]
        drawn = self._drawn.pop((frame["session"], me), {})
        cast = {
            r: Speaker(str(frame["cast"][r][0]), str(frame["cast"][r][1]), dict(frame["cast"][r][2]))
            for r in frame["others"]
        }
        cast[me] = Speaker(party, frame["request"]["id"], {other: public_of(key) for other, key in drawn.items()})
        return RoleSealing(sealing, me, cast, drawn)

    def forget(self, session: int) -> None:
        """End a session: roles of it that did not begin never will."""
        for key in [key for key in self._drawn if key[0] == session]:
            del self._drawn[key]


def keys_in(answer: Any, here: Iterable[str], roles: Iterable[str]) -> dict[str, dict[str, bytes]]:
    """Return the keys that a site sent for its roles; none if its sealing is only virtual.

    Raises:
        MessageError: they are not keys, or not of these roles.
    """
    told = answer.get("keys") if isinstance(answer, Mapping) else None
    if told == {}:
        return {}
    everyone, mine = set(roles), set(here)
    if not isinstance(told, dict) or set(told) != mine:
        raise wrong("'keys' must hold the keys of its own roles")
    for role, keys in told.items():
        if not isinstance(keys, dict) or set(keys) != everyone - {role}:
            raise wrong(f"the keys of role {role!r} must be one for each other role")
        if not all(isinstance(key, bytes) and len(key) == KEY for key in keys.values()):
            raise wrong(f"a key of role {role!r} is not a key")
    return told
