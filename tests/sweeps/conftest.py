"""The small run of these tests."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "runs"))

from small_run import config, settings, typed

__all__ = ["config", "settings", "typed"]
