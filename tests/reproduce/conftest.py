"""What tests of reproductions share."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture
def settings() -> dict[str, Any]:
    """A training of a blink."""
    return {
        "name": "blink",
        "data": {"source": "iris", "partition": {"name": "iid", "parties": 5}},
        "model": {"name": "linear", "features": 4, "outputs": 3},
        "selection": "Everyone",
        "rounds": 4,
        "engine": "inline",
    }
