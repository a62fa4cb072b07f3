"""What the roles at a site need so that nobody between them and the other roles can read their messages: see `atoll.core.sealing.conversation`."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from atoll.core.algebra.tree import Tree
from atoll.core.execution.session import Deliver, LocalPeers
from atoll.core.sealing import RealSealing, RoleSealing, Sealing, Speaker
from atoll.core.sealing.hpke import KEY, public_of
from atoll.core.time.prospect import Prospect
from atoll.engines.actors import Key

from .frames import wrong

__all__ = ["SealedPeers", "SessionKeys", "keys_in"]


class SealedPeers(LocalPeers):
    """Peers whose messages are sealed before they leave and opened when they are taken.

    Args:
        sealing: seals and opens.
        me, others, carry, start, took, prospect: see `LocalPeers`.
    """

    def __init__(
        self,
        sealing: RoleSealing,
        me: str,
        others: list[str],
        carry: Deliver,
        start: float,
        took: Callable[[str], None],
        prospect: Prospect,
    ) -> None:
        super().__init__(me, others, carry, start, took, prospect)
        self._sealing = sealing

    async def send(self, role: str, message: Tree) -> None:
        """Seal a message for another role and send it."""
        self._known(role)
        self.go_on()
        await super().send(role, self._sealing.seal(role, message))

    async def recv(self, role: str) -> Any:
        """Wait for the next message of another role and open it."""
        return self._sealing.open(role, await super().recv(role))


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

    def peers(self, frame: Any, party: str, carry: Deliver, took: Callable[[str], None]) -> LocalPeers:
        """Return the peers of a role that begins.

        Args:
            frame: the order; what it says of the role itself is ignored.
            party: the party that plays it here.
            carry: sends sealed messages.
            took: see `LocalPeers`.
        """
        me, others, prospect = frame["role"], list(frame["others"]), Prospect.unpack(frame["prospect"])
        if self._sealing is None:
            return LocalPeers(me, others, carry, frame["start"], took, prospect)
        drawn = self._drawn.pop((frame["session"], me), {})
        cast = {
            r: Speaker(str(frame["cast"][r][0]), str(frame["cast"][r][1]), dict(frame["cast"][r][2])) for r in others
        }
        cast[me] = Speaker(party, frame["request"]["id"], {other: public_of(key) for other, key in drawn.items()})
        sealing = RoleSealing(self._sealing, me, cast, drawn)
        return SealedPeers(sealing, me, others, carry, frame["start"], took, prospect)

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
