"""Every miniature runs on every engine, and is killed and resumed at its steps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from atoll.core.requests.results import Free
from atoll.core.world import World
from atoll.testing import Life, killed_and_resumed
from tests.support.worlds import WORLDS, on_every_engine

# Engines that start processes are killed at fewer steps: the journal, the store and the checkpoints are the same code for all, and what carries the
# bytes differs in nothing of it. One step is the one in the middle.
POINTS = {"inline": 6, "batched": 2, "processes": 2, "socket": 1, "ray": 1, "network": 1, "network over TLS": 1}
MORE = max(1, settings.default.max_examples // 50)
"""``make thorough``, which draws ten times as many examples of a law, kills at ten times as many steps."""


@pytest.fixture(params=on_every_engine(()))
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def survive(engine: str, tmp_path: Path) -> Callable[..., Life]:
    """``survive(program, population, cost=, ...)``: the undisturbed life, after all the killed ones gave the same."""

    def check(
        program: Any, population: Any, *, cost: Any = None, exact_spending: bool = True, points: int = 1000, **more: Any
    ) -> Life:
        def make_world(folder: Path, resume: bool) -> World:
            made = WORLDS[engine](2)
            return World(population, made, cost=cost or Free(), folder=folder, resume=resume, **more)

        most = min(points, POINTS[engine]) * MORE
        deaths = 2 if engine == "batched" else 1
        return killed_and_resumed(
            make_world, program, tmp_path, points=most, deaths=deaths, exact_spending=exact_spending
        )

    return check
