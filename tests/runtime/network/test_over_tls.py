"""The laws of engines, over mutual TLS between processes."""

from __future__ import annotations

import pytest

from atoll.testing.conformance import ENGINE_CHECKS
from tests.support.bridge import Bridge
from tests.support.certificates import authority

pytestmark = pytest.mark.network

# Deaths, journals, errors and mail are the same code whatever carries the bytes: they are tried over one transport, and steps to die at elsewhere.
POINTS = {"survives": 3, "never_twice": 3}
CARRIED = ("deadlocks", "session_outcomes", "large_messages", "sessions", "states", "verbs")
CASES = [("grpc", law) for law in sorted(ENGINE_CHECKS)] + [("tcp", law) for law in CARRIED]


@pytest.fixture(scope="module")
def bridges(tmp_path_factory):
    """``bridges(transport)``: one for all tests of this process."""
    made = {}

    def bridge(transport):
        if transport not in made:
            made[transport] = Bridge(tmp_path_factory.mktemp("b"), transport, authority())
        return made[transport]

    yield bridge
    for one in made.values():
        one.close()


@pytest.mark.parametrize(("transport", "law"), CASES)
@pytest.mark.quick("tcp-*")
def test_the_network_keeps_the_law_over_tls(bridges, transport, law):
    more = {"points": POINTS[law]} if law in POINTS else {}
    ENGINE_CHECKS[law](bridges(transport).engine, 1e-12, **more)
