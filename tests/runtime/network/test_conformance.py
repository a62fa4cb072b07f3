"""The network engine keeps the laws of every engine, with its sites as processes. All of them run by default over TLS (``test_over_tls``)."""

from __future__ import annotations

import pytest

from atoll.testing.conformance import ENGINE_CHECKS
from atoll.testing.lying.sites import Rehearsal

pytestmark = pytest.mark.network

POINTS = {"survives": 4, "never_twice": 4}  # steps to die at


@pytest.mark.quick("results", "repeats")
@pytest.mark.parametrize("law", sorted(ENGINE_CHECKS))
def test_the_network_keeps_the_law(law):
    more = {"points": POINTS[law]} if law in POINTS else {}
    ENGINE_CHECKS[law](lambda: Rehearsal(3), 1e-12, **more)
