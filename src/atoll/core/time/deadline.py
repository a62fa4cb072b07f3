"""When work ends and when it counts: deadlines, quotas, and what a party expects of its own work."""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ..errors import ConfigError

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Deadline", "Ending", "Prospect", "Prospects", "Quota", "Risk", "Share", "WHOLE"]


# ------------------------------------------------------------------ what a model of devices predicts for a session
#
# What a model of devices predicts for a session: the duration of the roles' work and messages, and which parties are lost, and when.
# A session's messages are not known beforehand, so a loss is not given by a time alone. A party is lost when its role has done a share of the work that
# its task declares, has sent and received a number of messages, or when its clock passes a moment, whichever comes first. Each role keeps its own clock
# (`atoll.core.execution.session`), so the same session ends the same way wherever its roles run.


Ending = Literal["", "lost", "late", "told"]
"""How a role ended: well; its party was lost; the session's deadline passed; or it gave up, usually because another role had ended in one of these ways."""


@dataclass(frozen=True)
class Prospect:
    """The prospect of one role.

    Attributes:
        work: seconds of all the work that its task declares.
        share: share of that work after which its party is lost; the whole is 1, and with 0 the party is lost before the role begins.
        words: number of messages that it sends and receives before its party is lost.
        moment: seconds on the program's clock at which its party is lost.
        until: seconds on the program's clock after which the role is late: the session's deadline.
        notice: seconds after a loss until the other roles learn of it.
        step: seconds of each step of the role: from its begin or a checkpoint to the next, or to its end.
    """

    work: float = 0.0
    share: float = math.inf
    words: float = math.inf
    moment: float = math.inf
    until: float = math.inf
    notice: float = 0.0
    step: float = 0.0

    def pack(self) -> list[float]:
        """The prospect as plain numbers, for a frame."""
        return [float(value) for value in astuple(self)]

    @staticmethod
    def unpack(packed: Any) -> Prospect:
        """The inverse of ``pack``."""
        return Prospect(*(float(value) for value in packed))

    def find_reach(self, time: float, worked: float, words: int, moment: float, share: float) -> tuple[float, Ending]:
        """How far a role gets that is to work or wait until a moment.

        Args:
            time: seconds on its clock.
            worked: share of its work that it has done.
            words: number of messages that it has sent and received.
            moment: seconds on its clock at the end of the step, without a failure.
            share: share of its work that it does in the step.

        Returns:
            Seconds on its clock then, and how it has ended: ``""`` if it continues. A role that is lost and late at the same moment counts as lost.
        """
        lost = time if words >= self.words else math.inf
        if worked + share >= self.share:
            lost = min(lost, time + max(0.0, self.share - worked) * self.work)
        if moment > self.moment:
            lost = min(lost, max(time, self.moment))
        if lost <= min(moment, self.until):
            return lost, "lost"
        return (moment, "") if moment <= self.until else (max(time, self.until), "late")


@dataclass(frozen=True)
class Prospects:
    """The prospects of the roles of a session.

    Attributes:
        roles: one for each, in their order; their ``until`` is ignored.
        carry: seconds of a message: ``(sender, receiver, bytes)``, by the roles' places.
    """

    roles: Sequence[Prospect]
    carry: Callable[[int, int, int], float]


# ------------------------------------------------------------------ deadlines that several supersteps share, and how the crashes of a turn are divided among the supersteps
#
# A quota that requests of several hubs fill together: the first replies count, wherever they were requested, and all requests close at once.


Risk = tuple[float, float]
"""The part of a turn that a request stands for, from its beginning (0) to its end (1): crashes between the two hit it."""

WHOLE: Risk = (0.0, 1.0)
"""The whole turn."""


class Deadline:
    """A deadline that several requests share. ``Federation.deadline`` makes one; every verb takes it as ``deadline=``.

    A device that crashes in a turn does so once, at a point that its trace draws between 0 and 1. Each superstep stands for a part of the turn, and
    crashes with a point in that part hit it: with ``supersteps=(1, 8, 1)`` eight of ten hit the second. The chance of a crash in the turn
    stays that of the trace. A device that has crashed does not reply to later supersteps either.

    Args:
        until: the time, in seconds on the program's clock; ``math.inf`` sets no limit.
        seconds: its distance from the start, for messages.
        supersteps: the number of requests that share a turn, or a weight for each, in proportion to its time or work. ``None``: each request stands for
            the whole turn, so that all crashes of the turn hit the first.

    Attributes:
        begun: number of requests made under it.

    Raises:
        ConfigError: seconds or weights are not positive.
    """

    def __init__(self, until: float, seconds: float | None, supersteps: int | Sequence[float] | None = None) -> None:
        if seconds is not None and not seconds > 0:
            raise ConfigError(f"deadline={seconds} seconds", remedy="use a positive number, or None")
        weights = [1.0] * supersteps if isinstance(supersteps, int) else supersteps
        if weights is not None and (not weights or not all(0 <= w < math.inf for w in weights) or not sum(weights)):
            raise ConfigError(
                f"supersteps={supersteps!r}",
                where="deadline",
                remedy="use a number of at least 1, or a weight for each",
            )
        self.until, self.seconds = until, seconds
        self.begun = 0
        ends = [] if weights is None else list(itertools.accumulate(weights))
        self._ends = [end / ends[-1] for end in ends]

    def begin(self) -> Risk:
        """Count the next request; return the part of the turn that it stands for.

        Raises:
            ConfigError: there are more requests than supersteps.
        """
        number, self.begun = self.begun, self.begun + 1
        if not self._ends:
            return WHOLE
        if number >= len(self._ends):
            raise ConfigError(
                f"superstep {number + 1} under a deadline for {len(self._ends)}",
                where="deadline",
                remedy="set the number of requests that share it at the start: fed.deadline(seconds, supersteps=...)",
            )
        return (self._ends[number - 1] if number else 0.0), self._ends[number]

    def __repr__(self) -> str:
        return f"Deadline(until={self.until:g})"


class Quota:
    """A number of replies to several requests together; ties in time are broken by position.

    Hand out one `Share` a request before the first request, and pass each as ``accept=``. Counting begins when every share is with its request (or was
    given up), so that the outcome does not depend on which hub sends first. A quota that is not met closes nothing: each request then ends as it would
    without one, at its deadline or when no party is left to reply. One quota serves one round.

    Args:
        count: number of replies after which all requests close.

    Example:
        >>> quota = Quota(10)
        >>> shares = [quota.share() for _ in range(3)]
        >>> # in the program of hub i:  await fed.sum(cohort, task, message, accept=shares[i], quorum=0)
    """

    def __init__(self, count: int) -> None:
        if count < 1 or count != int(count):
            raise ConfigError(f"Quota({count})", remedy="use a whole number of at least 1")
        self.count = count
        self._shares: list[Share] = []
        self._open: asyncio.Future[None] | None = None
        self.closed = False

    def share(self, most: int | None = None) -> Share:
        """Hand out one request's share.

        Args:
            most: maximum number of replies that it contributes; ``None`` for no limit.

        Raises:
            ConfigError: counting has begun.
        """
        if self._open is not None:
            raise ConfigError("a share of a quota that is being counted", remedy="hand out all shares first")
        self._shares.append(Share(self, most))
        return self._shares[-1]

    async def join_shares(self) -> None:
        """Wait until each share is with its request or was given up; the last one counts."""
        if self._open is None:
            self._open = asyncio.get_running_loop().create_future()
        if all(share.over for share in self._shares) and not self._open.done():
            self._count()
            self._open.set_result(None)
        await asyncio.shield(self._open)

    def recount(self) -> bool:
        """Count the replies so far, on a real clock; return whether the quota is met, or never will be."""
        if self.closed or not all(share.over or share.reported for share in self._shares):
            return self.closed
        offered = sum(len(times) for times, _ in (share.offer for share in self._shares))
        if offered >= self.count or all(share.over or share.ended for share in self._shares):
            self._count()
            self.closed = True
            if self._open is not None and not self._open.done():  # a request that gave up waits for the count
                self._open.set_result(None)
        return self.closed

    def _count(self) -> None:
        offers = [share.offer for share in self._shares]
        times = np.concatenate([times for times, _ in offers])
        order = np.lexsort((np.concatenate([positions for _, positions in offers]), times))[: self.count]
        owner = np.repeat(np.arange(len(offers)), [len(times) for times, _ in offers])
        met = len(times) >= self.count
        for share, taken in zip(self._shares, np.bincount(owner[order], minlength=len(offers)), strict=True):
            share.taken, share.moment = int(taken), float(times[order[-1]]) if met else None


class Share:
    """One request's share of a quota.

    Attributes:
        most: maximum number of replies that it contributes.
        taken: number of replies that it contributed, once it has closed.
        completed: number of replies that arrive by its deadline, late ones included, once it has closed. The traffic knows whose they are.
        late: positions of the parties whose replies arrive after it has closed, for the meters.
        moment: clock time at which the quota was met; ``None`` if it was not.
    """

    def __init__(self, quota: Quota, most: int | None) -> None:
        if most is not None and most < 0:
            raise ConfigError(f"most={most} replies", remedy="use a whole number of at least 0")
        self.quota, self.most = quota, most
        self.taken, self.completed = 0, 0
        self.late = np.zeros(0, dtype=np.int64)
        self.moment: float | None = None
        self.over = self.reported = self.ended = False
        self.offer = (np.zeros(0), np.zeros(0, dtype=np.int64))

    async def close(self, times: NDArray[np.float64], positions: NDArray[np.int64]) -> int:
        """Offer a request's replies, and wait until the quota is counted.

        Args:
            times: times of the replies that arrive by the request's deadline, in order of arrival, ties by position.
            positions: positions of their parties.

        Returns:
            How many of them are accepted.

        Raises:
            ConfigError: the share was used or given up before.
        """
        if self.over:
            raise ConfigError("a share of a quota is for one request", remedy="hand out one a request, anew each round")
        self.offer, self.over = (times[: self.most], positions[: self.most]), True
        await self.quota.join_shares()
        self.completed, self.late = len(times), positions[self.taken :]
        return self.taken

    def report(self, times: NDArray[np.float64], positions: NDArray[np.int64], *, ended: bool) -> bool:
        """Offer the replies so far, if later ones cannot be predicted.

        Args:
            times: times of the replies that have arrived in time, in order of arrival, ties by position.
            positions: positions of their parties.
            ended: whether no more can arrive.

        Returns:
            Whether the quota is closed; `taken` of these replies are in it.
        """
        self.reported, self.ended = True, ended
        if not self.quota.closed:
            self.offer = (times[: self.most], positions[: self.most])
        if not self.quota.recount():
            return False
        self.over = True
        self.completed, self.late = len(times), positions[self.taken :]
        return True

    async def give_up(self) -> None:
        """Give up the share if no party is asked; does nothing if the share was used."""
        if not self.over:
            self.over = True
            if not self.quota.recount():
                await self.quota.join_shares()
