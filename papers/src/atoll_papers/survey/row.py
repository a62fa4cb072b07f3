"""One line of a convergence table: a method, its setting, and the gap that an independent implementation left. And one claimed rate, fitted to a run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.models.quadratic import Quadratic, minimiser, quadratics

if TYPE_CHECKING:
    from atoll.learn.algorithm import Algorithm

__all__ = ["Rate", "SurveyRow", "gap_to_optimum"]


@dataclass(frozen=True, kw_only=True)
class SurveyRow:
    """A method on a problem with a known optimum, with a reference value.

    The problem, unless ``problem`` says otherwise, is ``atoll.models.quadratic.quadratics()``: ten clients, 20
    dimensions, full local gradients, start at zero. The measure, unless ``measure`` says otherwise, is ``f(w) - f(w*)``
    after the last round.

    Attributes:
        name: the method and its special settings, for example ``"FedAvg T=5, 3 of 10"``.
        algorithm: the method with its settings.
        reference: the reference value; ``None`` if only ``below`` is known.
        rtol: relative tolerance around the reference; the default is the rounding of a number given with three digits.
        factor: instead of ``rtol``, how many times larger or smaller than the reference ours may be: for a reference
            from a single draw of cohorts, which cannot be repeated.
        below: ours must be at most this.
        diverges: the method must diverge: the training stops with a non-finite model, or ends above 1e3.
        rounds: communication rounds.
        cohort: clients drawn in each round; ``None`` for all.
        seeds: seeds whose runs are averaged (geometric mean); useful if the cohort or the method is random.
        noise: standard deviation of the gradient noise, in the Euclidean norm.
        uplink: stages between the clients and the server.
        origin: where the reference comes from.
        quick: also run under ``--quick``.
        descends: the loss falls within three rounds of the conformance problem (``atoll.testing.check_algorithm``).
        problem: makes the islands.
        measure: ``(islands, params) -> float``.
        more: further arguments of ``Training``.
    """

    name: str
    algorithm: Algorithm
    reference: float | None = None
    rtol: float = 5e-3
    factor: float | None = None
    below: float | None = None
    diverges: bool = False
    rounds: int = 400
    cohort: int | None = None
    seeds: tuple[int, ...] = (0,)
    noise: float = 0.0
    uplink: tuple[Any, ...] = ()
    origin: str = "an independent NumPy loop over the same problems"
    quick: bool = True
    descends: bool = True
    problem: Callable[[], Any] = quadratics
    measure: Callable[[Any, Any], float] | None = None
    more: dict[str, Any] = field(default_factory=dict)

    def run(self, engine: str = "inline") -> float:
        """Train and measure: the geometric mean over the seeds; infinite if a training became non-finite."""
        values = [self._once(seed, engine) for seed in self.seeds]
        if len(values) == 1:
            return values[0]
        return float(np.exp(np.mean(np.log(np.maximum(values, 1e-300)))))

    def holds(self, value: float) -> bool:
        """Tell whether a measured value agrees with the row."""
        if self.diverges:
            return value > 1e3
        return self._near(value) and (self.below is None or value <= self.below)

    def _near(self, value: float) -> bool:
        if self.reference is None:
            return True
        if self.factor is not None:
            return self.reference / self.factor <= value <= self.reference * self.factor
        return abs(value - self.reference) <= self.rtol * self.reference

    def stated(self) -> str:
        """Describe what the row states."""
        if self.diverges:
            return "diverges"
        near = "" if self.reference is None else f"{self.reference:.3g}"
        near += "" if self.factor is None else f" within a factor of {self.factor:g}"
        return ", ".join(part for part in (near, "" if self.below is None else f"at most {self.below:g}") if part)

    def training(self, islands: Any) -> Any:
        """Return the row's training."""
        import atoll

        dim = int(np.shape(islands.shard(0).x)[1])
        settings: dict[str, Any] = {
            "model": Quadratic(dim, self.noise),
            "selection": atoll.Everyone() if self.cohort is None else atoll.Uniform(self.cohort),
            "uplink": self.uplink,
            **self.more,
        }
        return atoll.Training(algorithm=self.algorithm, rounds=self.rounds, **settings)

    def _once(self, seed: int, engine: str) -> float:
        import atoll
        from atoll.core.errors import AtollError

        islands = self.problem()
        try:
            with np.errstate(all="ignore"):
                params = atoll.simulate(self.training(islands), islands, engine=engine, seed=seed).params
        except AtollError as error:
            if "not finite" in str(error):
                return float("inf")
            raise
        return (self.measure or gap_to_optimum)(islands, params)


def gap_to_optimum(islands: Any, params: Any) -> float:
    """Return ``f(w) - f(w*) = 1/2 (w - w*)^T H (w - w*)`` with the mean Hessian ``H``: no cancellation near the optimum."""
    best, _ = minimiser(islands)
    matrix = np.mean([np.asarray(islands.shard(k).x) for k in range(len(islands))], axis=0)
    off = params["w"] - best
    return float(0.5 * off @ matrix @ off)


# ------------------------------------------------------------------ claimed rates


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
