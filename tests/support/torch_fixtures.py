"""Fixtures of the rooms whose tests run PyTorch; their ``conftest.py`` imports them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

__all__ = ["fresh_notices", "global_generator_untouched"]


@pytest.fixture(autouse=True)
def fresh_notices(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Every test may see a notice for the first time; compiled kernels go to a folder of the test run."""
    from atoll.torch.tracing import compiler

    monkeypatch.setattr(compiler, "_NOTICED", set())
    monkeypatch.setenv("ATOLL_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)


@pytest.fixture(autouse=True)
def global_generator_untouched() -> Iterator[None]:
    """No test of this room may move PyTorch's global generator."""
    before = torch.get_rng_state()
    yield
    assert torch.equal(before, torch.get_rng_state())
