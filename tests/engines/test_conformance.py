"""Our engines keep the laws that third parties' engines are held to."""

from __future__ import annotations

import pytest

from atoll.engines import ENGINES
from atoll.testing.conformance import ENGINE_CHECKS

# Of two engines that start processes for every death: the journal and the store are the same code as those of the others, which die at every step.
POINTS = {"survives": 4, "never_twice": 4, "halves_never_twice": 3, "sealed_mail": 3}
COSTLY = {"processes": POINTS, "socket": POINTS, "ray": dict.fromkeys(POINTS, 1)}


# Ray starts its actors anew after every death, and a cluster for each law; what dies and what is asked is the same as with the other engines.
QUICK_ON_RAY = {"sessions"}


def slow(engine: str, law: str) -> bool:
    """Whether the default run leaves it out: workers behind sockets die as those behind pipes do."""
    return (engine == "ray" and law not in QUICK_ON_RAY) or (engine == "socket" and law in {*POINTS, "repeats"})


CASES = [
    pytest.param(engine, law, marks=[pytest.mark.slow] if slow(engine, law) else [])
    for engine in sorted(ENGINES)
    for law in sorted(ENGINE_CHECKS)
]


@pytest.mark.parametrize(("engine", "law"), CASES)
def test_an_engine_keeps_the_law(engine, law):
    more = {"points": COSTLY[engine][law]} if law in COSTLY.get(engine, {}) else {}
    ENGINE_CHECKS[law](lambda: ENGINES[engine](2), 1e-12, **more)
