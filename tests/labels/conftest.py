"""Fixtures for the room of learning without full labels."""

import pytest

from tests.support.torch_fixtures import fresh_notices, global_generator_untouched

__all__ = ["fresh_notices", "global_generator_untouched"]


@pytest.fixture
def labels_unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let trainings begin on rows of which a class, or all, has no label: laws about mini-batches and messages want such rows, users do not."""
    monkeypatch.setattr("atoll.learn.training.require_held_labels", lambda job, data: None)
