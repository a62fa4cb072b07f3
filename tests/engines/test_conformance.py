"""Our engines keep the laws that third parties' engines are held to."""

from __future__ import annotations

import pytest

from atoll.engines import ENGINES
from atoll.engines.recording import RecordingEngine
from atoll.testing.conformance import ENGINE_CHECKS

# Of two engines that start processes for every death: the journal and the store are the same code as those of the others, which die at every step.
POINTS = {"survives": 4, "never_twice": 4, "halves_never_twice": 3, "sealed_mail": 3}
COSTLY = {"processes": POINTS, "socket": POINTS, "ray": dict.fromkeys(POINTS, 1)}


def slow(engine: str, law: str) -> bool:
    """Whether the default run leaves it out: workers behind sockets die as those behind pipes do.

    Ray starts a cluster for each law; `test_ray.py` shows sooner that it gives what the other engines give.
    """
    return engine == "ray" or (engine == "socket" and law in {*POINTS, "repeats"})


CASES = [
    pytest.param(engine, law, marks=[pytest.mark.slow] if slow(engine, law) else [])
    for engine in sorted(ENGINES)
    for law in sorted(ENGINE_CHECKS)
]


@pytest.mark.every(4)
@pytest.mark.parametrize(("engine", "law"), CASES)
def test_an_engine_keeps_the_law(engine, law):
    more = {"points": COSTLY[engine][law]} if law in COSTLY.get(engine, {}) else {}
    ENGINE_CHECKS[law](lambda: ENGINES[engine](2), 1e-12, **more)


@pytest.mark.parametrize(
    "law", ["verbs", pytest.param("halves", marks=pytest.mark.slow), pytest.param("states", marks=pytest.mark.slow)]
)
def test_the_recording_engine_keeps_the_law(law):
    ENGINE_CHECKS[law](RecordingEngine, 1e-12)
