"""The small run of these tests."""

from __future__ import annotations

from tests.support.small_run import config, settings, typed

__all__ = ["config", "settings", "typed"]
