"""The contract of a topology: who talks to whom in a training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from atoll.core.errors import CompositionError
from atoll.core.kinds import Checked
from atoll.core.reducer import Plain
from atoll.core.rng import Rng
from atoll.core.task import Task

from ..aggregation import Renormalised
from ..algorithm import RoundInfo
from ..pacing import Synchronous
from ..wrapped import dry_reply, innermost

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.core.federation import Federation

    from ..algorithm import Algorithm
    from ..learner import Learner
    from ..pacing import Pacing
    from ..training import Trained, Training

__all__ = ["Star", "Topology", "refuse", "require_alone", "require_mixable", "require_plain"]


@dataclass(frozen=True)
class Topology(Checked):
    """Base of topologies: frozen dataclasses of settings. ``run`` is the training's program; everything else is checked or made before it."""

    private: ClassVar[bool] = False
    """A privacy mechanism at the clients is sound here: whatever a client sends, to whomever, follows from the replies that the mechanism
    released and from what others sent. Training refuses private algorithms on a topology that does not say so."""
    paced: ClassVar[bool] = False
    """It leaves its rounds to ``Training.pacing``; another one takes ``Synchronous`` settings only."""

    def check(self, job: Training, learner: Learner, data: Any) -> None:
        """Refuse what makes no sense here, before anyone is contacted.

        Raises:
            CompositionError: with the reason and the remedy.
        """

    def keeps(self, pacing: Pacing) -> bool:
        """Whether its rounds can go at a pace."""
        return type(pacing) is Synchronous or (self.paced and not pacing.layered)

    def algorithm(self, base: Algorithm) -> Algorithm:
        """What clients run: the base, or the base with other replies."""
        return base

    def needs_everyone(self, algorithm: Algorithm) -> bool:
        """Whether this algorithm wants every client in every round here."""
        return algorithm.card.everyone

    def groups_of(self, n: int) -> list[NDArray[np.int64]]:
        """Positions of those of ``n`` clients among whom each server invites; by default one among all."""
        return [np.arange(n)]

    def servers(self, n: int) -> dict[str, str]:
        """Parties that it needs beside ``n`` clients: name -> role."""
        del n
        return {}

    def tasks(self, job: Training, learner: Learner, data: Any) -> tuple[Task, ...]:
        """Tasks of its own, which the world must know beforehand."""
        del job, learner, data
        return ()

    async def run(self, fed: Federation, job: Training, learner: Learner, data: Any) -> Trained:
        """The program of the training."""
        raise NotImplementedError


@dataclass(frozen=True)
class Star(Topology):
    """One server, and every client linked to it: federated learning as it is usually meant."""

    private: ClassVar[bool] = True
    paced: ClassVar[bool] = True

    async def run(self, fed: Federation, job: Training, learner: Learner, data: Any) -> Trained:
        """The rounds of the training's pacing."""
        from ..course import run_course

        return await run_course(fed, job, learner, data, job.pacing.course(job, learner, data))


def refuse(topology: Topology, what: str, where: str, remedy: str) -> None:
    """Raise the error of a composition that makes no sense."""
    raise CompositionError(f"{type(topology).__name__}: {what}", where=f"Training.{where}", remedy=remedy)


def require_plain(topology: Topology, job: Training, *, uplink: bool) -> None:
    """Refuse the parts of a training that belong to a central server.

    Args:
        topology: which one refuses.
        job: the training.
        uplink: whether there is a server whose clients' replies stages may act on.
    """
    if not uplink:
        _require_no_server(topology, job)
    if job.budget is not None:
        refuse(
            topology,
            "a budget is kept by the server that invites",
            "budget",
            "leave it out; what every node spends is in the ledger",
        )
    if job.evaluation.personal:
        refuse(topology, "clients' personal models are measured in a star", "evaluation", "use personal=False")


def require_mixable(topology: Topology, algorithm: Algorithm, whose: str) -> None:
    """Refuse algorithms of whose rounds the parts make no whole.

    A node that takes its own gradient for that of all goes to its own optimum; a multiplier that follows its own mean never moves.

    Args:
        topology: which one refuses.
        algorithm: that of the training; what it declares is ``pooled``.
        whose: whose replies a sum is made of here.
    """
    pooled = innermost(algorithm).pooled
    if pooled:
        why = f"rests on {pooled} in every round, and here a round knows that of {whose} alone"
        refuse(topology, f"{type(algorithm).__name__} {why}", "algorithm", "use Star(), or Scaffold() or FedADMM()")


def require_alone(topology: Topology, algorithm: Algorithm, learner: Learner) -> None:
    """Refuse algorithms whose server cannot run at a single client: a round without steps is held once, and its reply folded."""
    name, params = type(algorithm).__name__, learner.init(Rng(0))
    if innermost(algorithm).card.family == "statistics":
        why = "adds up what all clients sent and forgets what it had; alone it would forget what its neighbours said"
        refuse(topology, f"{name} {why}", "algorithm", "use Star()")
    require_mixable(topology, algorithm, "one node")
    state = algorithm.init(params)
    info = RoundInfo(1, 1, 1, 1, 1.0)
    try:
        for phase in algorithm.plan(state):
            reply = dry_reply(algorithm, params, phase)
            state = algorithm.fold(state, {key: a.total().result() for key, a in reply.items()}, info, phase)
        algorithm.advance(state, info)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        why = f"cannot be a server to itself: a single reply does not fold ({type(error).__name__}: {error})"
        refuse(topology, f"{name} {why}", "algorithm", "use Star(), or an algorithm that folds sums of replies")


def _require_no_server(topology: Topology, job: Training) -> None:
    """Refuse what acts between clients and a server, where there is none."""
    if type(job.reducer) is not Plain:
        why = "and there is no server whose sum it could protect: neighbours send each other their models"
        refuse(
            topology, f"{type(job.reducer).__name__} combines many replies, {why}", "reducer", "use Plain(), or Star()"
        )
    if type(job.aggregation) is not Renormalised:
        refuse(
            topology,
            f"{type(job.aggregation).__name__} says how a cohort stands for a population, and here the graph's weights do",
            "aggregation",
            "use Renormalised()",
        )
    if job.selection.listens:
        refuse(
            topology,
            f"{type(job.selection).__name__} compares what clients report, and there is no server to hear them",
            "selection",
            "use Uniform(), or Star()",
        )
    stages = [stage for phase in job.algorithm.phases for stage in job.up(phase).stages]
    if any(not stage.lossless for stage in stages) or job.down() is not None:
        refuse(
            topology,
            "stages act between clients and a server, and there is none",
            "uplink",
            "use Gossip(compress=...) with an algorithm that sends what it has, such as FedAvg()",
        )
