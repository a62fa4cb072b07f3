"""A training is killed at its steps and resumed: what the tests of methods, pacings and topologies share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from atoll.core.job import Job
from atoll.core.requests.party import Roster
from atoll.core.requests.results import Cost, Free
from atoll.core.world import World
from atoll.engines import ENGINES
from atoll.testing import killed_and_resumed
from atoll.testing.crash import Life


def killed_training(
    job: Job, data: Any, folder: Path, *, points: int, cost: Callable[[], Cost] = Free, **world: Any
) -> Life:
    """Return the undisturbed life of a training, after lives that were killed and resumed left the same model, to the bit.

    ``cost`` makes the devices of each life anew, since some remember whom they were asked about.
    """

    def lives(where: Path, resume: bool) -> World:
        roster = Roster(data.names, others=job.others(len(data)))
        return World(data, ENGINES["inline"](1), roster, folder=where, resume=resume, cost=cost(), **world)

    return killed_and_resumed(lives, job, folder, points=points)
