"""The clocks of roles, computed remotely from their reports of messages sent and received.

If messages pass through one place, each carries its time (see `atoll.core.execution.session`). If they do not, one place can still compute the times: a
role's clock moves only with what it receives, so the order of its own sends and receipts is enough (Lamport, "Time, clocks, and the
ordering of events in a distributed system", 1978; here a message takes time as well).
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator

__all__ = ["Chains"]


class Chains:
    """The clocks of the roles of a session.

    Reports of one role must arrive in order; reports of different roles may interleave in any way.

    Args:
        roles: the roles.
        start: seconds at which the session began.

    Attributes:
        times: seconds of each role's clock, as far as known.
    """

    def __init__(self, roles: Iterable[str], start: float) -> None:
        self.times = dict.fromkeys(roles, start)
        self._words: dict[str, deque[tuple[str, float | None]]] = {role: deque() for role in self.times}
        self._arrivals: defaultdict[tuple[str, str], deque[float]] = defaultdict(deque)

    def sent(self, role: str, target: str, seconds: float) -> None:
        """Report that a role has sent a message that takes this many seconds."""
        self._words[role].append((target, seconds))
        self._follow(role)

    def received(self, role: str, source: str) -> None:
        """Report that a role has received the next message of another: its clock becomes the later of its own and the message's."""
        self._words[role].append((source, None))
        self._follow(role)

    def _follow(self, role: str) -> None:
        """Process all reports that can be processed, of this role and then of roles that waited for it."""
        waiting = [role]
        while waiting:
            waiting += self._placed(waiting.pop())

    def _placed(self, role: str) -> Iterator[str]:
        """Process reports of one role; yield the roles that get something from it."""
        words = self._words[role]
        while words:
            other, seconds = words[0]
            if seconds is not None:
                self._arrivals[role, other].append(self.times[role] + seconds)
                yield other
            elif self._arrivals[other, role]:
                self.times[role] = max(self.times[role], self._arrivals[other, role].popleft())
            else:
                return
            words.popleft()
