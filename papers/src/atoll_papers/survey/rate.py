"""One claimed rate, and the exponent fitted to a run of the method."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["Rate"]


@dataclass(frozen=True, kw_only=True)
class Rate:
    """A rate that a source claims, and a number fitted to a run.

    Attributes:
        name: the method, and the variable of the fit if it is not rounds.
        methods: names of its methods in the catalogue.
        claim: as the source writes it.
        source: its place.
        fit: runs the method and returns the fitted number.
        expected: the number that the claim implies.
        tol: how far the fit may be from it.
        bound: the claim is an upper bound that our problem does not attain: the fit may be smaller by any amount (a
            faster decrease).
        but: why the claim does not hold in this setting; empty if it does.
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
        """Tell whether a fitted number agrees with the claim."""
        return found <= self.expected + self.tol and (self.bound or found >= self.expected - self.tol)

    def stated(self) -> str:
        """Return the claim and its number, in words."""
        near = "at most " if self.bound else ""
        return f"{self.claim}: {near}{self.expected:g} ± {self.tol:g}"
