"""Laws that every part of a kind must keep. Third parties check theirs with the functions that check ours."""

from __future__ import annotations

from .engine import ENGINE_CHECKS, check_engine

__all__ = ["ENGINE_CHECKS", "check_engine"]
