"""What a model of devices predicts for a session: the duration of the roles' work and messages, and which parties are lost, and when.

A session's messages are not known beforehand, so a loss is not given by a time alone. A party is lost when its role has done a share of the work that
its task declares, has sent and received a number of messages, or when its clock passes a moment, whichever comes first. Each role keeps its own clock
(`atoll.core.execution.session`), so the same session ends the same way wherever its roles run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from typing import Any, Literal

__all__ = ["Ending", "Prospect", "Prospects"]

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
