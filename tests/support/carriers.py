"""Tests over both real transports: what is marked ``both_carriers`` runs over TCP, and again over gRPC, which is slow."""

from __future__ import annotations

import pytest

CARRIERS = ["tcp", pytest.param("grpc", marks=pytest.mark.slow)]
_chosen = ["tcp"]


def carrier() -> str:
    """The transport of the test that runs."""
    return _chosen[0]


def choose(name: str) -> None:
    """Set it, for the fixture of that name."""
    _chosen[0] = name
