"""Our engines keep the laws that third parties' engines are held to."""

from __future__ import annotations

import pytest

from atoll.engines import ENGINES
from atoll.testing.conformance import ENGINE_CHECKS


@pytest.mark.parametrize("law", sorted(ENGINE_CHECKS))
@pytest.mark.parametrize("engine", sorted(ENGINES))
def test_an_engine_keeps_the_law(engine, law):
    ENGINE_CHECKS[law](lambda: ENGINES[engine](2), 1e-12)
