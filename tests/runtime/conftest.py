"""Tests that run over each transport."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.carriers import CARRIERS, choose


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "both_carriers: runs over TCP, and over gRPC as a slow test")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run what is marked over each transport."""
    if metafunc.definition.get_closest_marker("both_carriers"):
        metafunc.fixturenames.append("chosen_carrier")
        metafunc.parametrize("chosen_carrier", CARRIERS, indirect=True)


@pytest.fixture
def chosen_carrier(request: pytest.FixtureRequest) -> Iterator[str]:
    """The transport of this test; what the tests share asks `carriers.carrier`."""
    choose(request.param)
    yield request.param
    choose("tcp")
