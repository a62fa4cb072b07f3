"""One session in progress, as the server sees it: its messages, and whose clock they move."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from atoll.core.errors import MessageError
from atoll.core.execution.session import LONGEST_NAME
from atoll.core.requests.request import Request

from ..frames import text_in, whole_in

if TYPE_CHECKING:
    from atoll.core.execution.session import Switch

__all__ = ["Cast", "Talk", "reached"]

Cast = dict[str, tuple[Request, int]]
"""Role -> what it is asked to do, and the position of its party."""


@dataclass
class Talk:
    """A session in progress.

    Attributes:
        switch: relays and counts.
        roles: the cast.
        direct: role -> the roles that it reaches directly -> their site; None if nobody has a link.
        keys: role -> other role -> the key that it has drawn for its messages to that role.
        cut: roles that the server ended: their sites keep nothing of them.
    """

    switch: Switch
    roles: Cast
    direct: dict[str, dict[str, str]] | None = None
    keys: dict[str, dict[str, bytes]] = field(default_factory=dict)
    cut: set[str] = field(default_factory=set)

    def require(self, role: str) -> str:
        """Return a role of the session.

        Raises:
            MessageError: the session has no such role.
        """
        if role not in self.roles:
            raise MessageError(f"the session has no role {role[:80]!r}")
        return role

    def heard(self, speaker: str, frame: Any) -> None:
        """Handle a role's frame: a message, a report that it waits, or a report of direct messages.

        Raises:
            MessageError: the frame has the wrong form.
        """
        if frame["op"] == "waits":
            for role, had in frame["for"]:
                text_in({"for": role}, "for")
                whole_in({"had": had}, "had")
            self.switch.heard(frame)
        elif frame["op"] == "words":
            self._note(speaker, frame["words"])
        elif frame["op"] == "reached":
            self._reach(speaker, frame)
        else:
            self._carry(speaker, frame)

    def _reach(self, role: str, frame: Any) -> None:
        """Take the report that a role has made its state of a checkpoint durable."""
        _moment_in(frame)
        received = frame["received"] if isinstance(frame.get("received"), dict) else {"": None}
        for other in received:
            self.require(other)
            if whole_in(received, other) < 0:
                raise MessageError(f"{received[other]} messages of {other!r}")
        whole_in(frame, "number")
        self.switch.heard(frame)

    def _carry(self, source: str, frame: Any) -> None:
        """Pass a message on."""
        target = self.require(text_in(frame, "target"))
        _moment_in(frame)
        if len(text_in(frame, "channel") if "channel" in frame else "") > LONGEST_NAME:
            raise MessageError(f"a channel's name of {len(frame['channel'])} characters")
        seconds = self.switch.heard(frame)
        if self.switch.chains is not None:
            self.switch.chains.sent(source, target, seconds)

    def _note(self, role: str, words: Any) -> None:
        """Count a role's direct messages, and follow its clock."""
        chains = self.switch.chains
        if chains is None or not isinstance(words, list):
            raise MessageError("words of a role that talks to nobody directly")
        for word, told, *size in words:
            other = self.require(text_in({"role": told}, "role"))
            if word == "took":
                chains.received(role, other)
                continue
            nbytes = whole_in({"bytes": size[0] if size else None}, "bytes")
            if nbytes < 0 or other == role:
                raise MessageError(f"{nbytes} bytes from {role!r} to {other!r}")
            chains.sent(role, other, self.switch.count(role, other, nbytes, direct=True))


def _moment_in(frame: Any) -> None:
    """Refuse a time that is none."""
    if type(frame["time"]) not in (int, float) or not 0 <= frame["time"] < math.inf:
        raise MessageError(f"a frame of time {frame['time']!r:.80}")


def reached(role: str, places: Mapping[str, str], linked: Mapping[str, set[str]]) -> dict[str, str]:
    """Return the roles that a role reaches directly and their sites: both sites must have the link."""
    mine = places[role]
    return {r: there for r, there in places.items() if there in linked[mine] and mine in linked[there]}
