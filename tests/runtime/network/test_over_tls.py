"""The laws of engines, over mutual TLS between processes."""

from __future__ import annotations

import pytest
from bridge import Bridge
from certificates import authority

from atoll.testing.conformance import ENGINE_CHECKS


@pytest.fixture(scope="module", params=["grpc", "tcp"])
def bridge(request, tmp_path_factory):
    made = Bridge(tmp_path_factory.mktemp("b"), request.param, authority())
    yield made
    made.close()


@pytest.mark.parametrize("law", sorted(ENGINE_CHECKS))
def test_the_network_keeps_the_law_over_tls(bridge, law):
    ENGINE_CHECKS[law](bridge.engine, 1e-12)
