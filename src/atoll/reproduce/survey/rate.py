"""One claimed rate, and the exponent that is fitted to what a method does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["Rate"]


@dataclass(frozen=True, kw_only=True)
class Rate:
    """A rate that a source claims, and a number fitted to a run that shows it.

    Attributes:
        name: the method, and over what is fitted where that is not rounds.
        methods: names in the catalogue that it speaks of.
        claim: as the source writes it.
        source: where.
        fit: runs the method and gives the fitted number.
        expected: the number that the claim means.
        tol: how far the fit may be from it.
        bound: the claim is an upper bound that our problem does not attain: the fit may be any amount smaller (a faster decrease).
        but: why the claim does not hold in this setting; empty where it does.
        note: what was fitted, and where.
    """

    name: str
    methods: tuple[str, ...]
    claim: str
    source: str
    fit: Callable[[], float]
    expected: float
    tol: float = 0.1
    bound: bool = False
    but: str = ""
    note: str = ""

    def holds(self, found: float) -> bool:
        """Whether a fitted number is what the claim means."""
        return found <= self.expected + self.tol and (self.bound or found >= self.expected - self.tol)

    def stated(self) -> str:
        """The claim and its number, in words."""
        near = "at most " if self.bound else ""
        return f"{self.claim}: {near}{self.expected:g} ± {self.tol:g}"
