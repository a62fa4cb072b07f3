"""The base of topologies without a server: every node runs the algorithm by itself, and the round loop is the shared one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from atoll.core.task import Task

from ..course import Course, run_course
from .base import Topology, require_alone, require_plain

if TYPE_CHECKING:
    from atoll.core.federation import Federation

    from ..algorithm import Algorithm
    from ..learner import Learner
    from ..training import Trained, Training

__all__ = ["Decentralised", "NodeCourse"]


class NodeCourse(Course):
    """A course over nodes: what it asks of them, and what it wants of their graph.

    Every request of a round has the round's number first in its label: who crashes in a round is down for all of it.
    """

    def turns(self, rounds: int) -> int | None:
        """A turn is a round."""
        return rounds

    @property
    def tasks(self) -> tuple[Task, ...]:
        """Tasks that the world must know beforehand."""
        raise NotImplementedError

    def check(self, fed: Federation) -> None:
        """Refuse a graph in parts."""


@dataclass(frozen=True)
class Decentralised(Topology):
    """A topology whose ``course`` says everything."""

    def course(self, job: Training, learner: Learner, data: Any) -> NodeCourse:
        """What happens in a round."""
        raise NotImplementedError

    def needs_everyone(self, algorithm: Algorithm) -> bool:
        """No: a node is the only client of its own server, and always there."""
        del algorithm
        return False

    def check(self, job: Training, learner: Learner, data: Any) -> None:
        """Refuse what acts between clients and a server, and algorithms that cannot be a server to themselves."""
        require_plain(self, job, uplink=False)
        require_alone(self, job.algorithm, learner)

    def tasks(self, job: Training, learner: Learner, data: Any) -> tuple[Task, ...]:
        """The course's."""
        return self.course(job, learner, data).tasks

    async def run(self, fed: Federation, job: Training, learner: Learner, data: Any) -> Trained:
        """The course, from a graph that is in one piece."""
        course = self.course(job, learner, data)
        course.check(fed)
        return await run_course(fed, job, learner, data, course)
