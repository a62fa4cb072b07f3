"""Time kept for roles from afar, from what each says that it sent and received.

Where messages pass through one place, each carries its time (see `atoll.core.execution.session`). Where they do not, one place can still tell the time: a role's
clock moves only by what it receives, so the order of its own sends and receipts is all that must be known (Lamport, "Time, clocks, and the
ordering of events in a distributed system", 1978; here a message takes time as well).
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator

__all__ = ["Chains"]


class Chains:
    """The clocks of the roles of a session.

    What a role says must come in its own order; how the words of different roles mix does not matter.

    Args:
        roles: the roles.
        start: seconds at which the session began.

    Attributes:
        times: seconds of each role's clock, as far as is known.
    """

    def __init__(self, roles: Iterable[str], start: float) -> None:
        self.times = dict.fromkeys(roles, start)
        self._words: dict[str, deque[tuple[str, float | None]]] = {role: deque() for role in self.times}
        self._arrivals: defaultdict[tuple[str, str], deque[float]] = defaultdict(deque)

    def sent(self, role: str, target: str, seconds: float) -> None:
        """A role has sent a message that takes so many seconds."""
        self._words[role].append((target, seconds))
        self._follow(role)

    def received(self, role: str, source: str) -> None:
        """A role has taken the next message of another: its clock is the later of its own and the message's."""
        self._words[role].append((source, None))
        self._follow(role)

    def _follow(self, role: str) -> None:
        """Place every word that can be placed, this role's and then those of roles that waited for it."""
        waiting = [role]
        while waiting:
            waiting += self._placed(waiting.pop())

    def _placed(self, role: str) -> Iterator[str]:
        """Place words of one role; the roles that there is something for."""
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
