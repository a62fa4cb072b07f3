"""What a model of devices foresees of a session: how long the roles' work and messages take, and which parties it loses, when.

A session's messages are not known beforehand, so a fate is no moment alone: a party is lost when its role has done a share of the work that its task
declares, has said and taken a number of messages, or when its clock passes a moment, whichever comes first. Every role keeps its own clock
(`atoll.core.execution.session`), so the same session ends the same way wherever its roles run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from typing import Any, Literal

__all__ = ["Ending", "Prospect", "Prospects"]

Ending = Literal["", "lost", "late", "told"]
"""How a role ended: well; its party was lost; the session's deadline passed; or it gave up, as a rule because another role had ended in one of these ways."""


@dataclass(frozen=True)
class Prospect:
    """What awaits one role.

    Attributes:
        work: seconds that all the work takes which its task declares.
        share: of that work, after which its party is lost; the whole is 1, and a party with 0 is lost before the role begins.
        words: messages that it sends and takes before its party is lost.
        moment: seconds on the program's clock at which its party is lost.
        until: seconds on the program's clock after which the role is late: the session's deadline.
        notice: seconds after a loss until the others learn of it.
    """

    work: float = 0.0
    share: float = math.inf
    words: float = math.inf
    moment: float = math.inf
    until: float = math.inf
    notice: float = 0.0

    def packed(self) -> list[float]:
        """As plain numbers, for a frame."""
        return [float(value) for value in astuple(self)]

    @staticmethod
    def unpack(packed: Any) -> Prospect:
        """The inverse of ``packed``."""
        return Prospect(*(float(value) for value in packed))

    def reached(self, time: float, worked: float, words: int, moment: float, share: float) -> tuple[float, Ending]:
        """How far a role gets that has something to do or to wait for until a moment.

        Args:
            time: seconds on its clock.
            worked: share of its work that it has done.
            words: messages that it has sent and taken.
            moment: seconds on its clock when it is through, if nothing goes wrong.
            share: of its work that it does meanwhile.

        Returns:
            Seconds on its clock then, and how it has ended: ``""`` where it goes on. A role that is lost and late at one moment is lost.
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
    """What awaits the roles of a session.

    Attributes:
        roles: one for each, in their order; their ``until`` is not looked at.
        carry: seconds of a message: ``(speaker, hearer, bytes)``, by the roles' places.
    """

    roles: Sequence[Prospect]
    carry: Callable[[int, int, int], float]
