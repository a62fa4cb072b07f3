"""The contract of a topology: who talks to whom in a training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from atoll.core.capability import CENTRAL_SERVER, FIXED_COHORT, RELEASED_ONLY, SERVER, Capability, Need
from atoll.core.errors import CompositionError
from atoll.core.requests.task import Task
from atoll.core.validation import Checked

from ..capabilities import ONE_SUM

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.rounds.loop import Course

    from ..algorithm import Algorithm
    from ..context import Context

__all__ = ["Star", "Topology", "refuse"]


@dataclass(frozen=True)
class Topology(Checked):
    """Base of topologies: frozen dataclasses of settings. ``course`` says what happens in the rounds; everything else is checked before."""

    @property
    def needs(self) -> tuple[Need, ...]:
        """What the other parts of a training must offer; add rows of your own to ``super().needs``."""
        return ()

    @property
    def offers(self) -> frozenset[Capability]:
        """What it offers to the other parts of a training: that one server hears all clients and adds up their replies.

        A topology whose messages all follow from released replies adds ``RELEASED_ONLY``: else private algorithms are refused on it.
        """
        return frozenset({SERVER, FIXED_COHORT, ONE_SUM})

    def check(self, context: Context) -> None:
        """Refuse what makes no sense here, before anyone is contacted.

        Raises:
            CompositionError: with the reason and the remedy.
        """

    def algorithm(self, base: Algorithm) -> Algorithm:
        """What clients run: the base, or the base with other replies."""
        return base

    def groups_of(self, n: int) -> list[NDArray[np.int64]]:
        """Positions of those of ``n`` clients among whom each server invites; by default one among all."""
        return [np.arange(n)]

    def servers(self, n: int) -> dict[str, str]:
        """Parties that it needs beside ``n`` clients: name -> role."""
        del n
        return {}

    def tasks(self, context: Context) -> tuple[Task, ...]:
        """Tasks of its own, which the world must know beforehand."""
        del context
        return ()

    def course(self, context: Context) -> Course:
        """What happens in the rounds."""
        raise NotImplementedError


@dataclass(frozen=True)
class Star(Topology):
    """One server, and every client linked to it: federated learning as it is usually meant."""

    @property
    def offers(self) -> frozenset[Capability]:
        """Its one server's rounds, and that clients send it nothing but their replies."""
        return super().offers | {CENTRAL_SERVER, RELEASED_ONLY}

    def course(self, context: Context) -> Course:
        """The rounds of the training's pacing."""
        return context.pacing.course(context)


def refuse(topology: Topology, what: str, where: str, remedy: str) -> None:
    """Raise the error of a composition that makes no sense."""
    raise CompositionError(f"{type(topology).__name__}: {what}", where=f"Training.{where}", remedy=remedy)
