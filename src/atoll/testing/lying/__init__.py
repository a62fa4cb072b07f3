"""A server that lies to secure sums, in every way that Atoll promises to withstand: ``atoll secure attack`` and ``check_reducer`` run it."""

from __future__ import annotations

from .attack import TARGETS, AttackTarget, Findings, attack, attack_all, require_refusals
from .moves import MOVES, WAIST_MOVES

__all__ = ["MOVES", "TARGETS", "WAIST_MOVES", "AttackTarget", "Findings", "attack", "attack_all", "require_refusals"]
