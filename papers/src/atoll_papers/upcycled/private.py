"""Private Upcycled-FL: loss at equal budgets and iterations, with noise in the output and in the objective.

Source: Yin, Zhang, Zhang and Liu, "Federated Learning with Reduced Information Leakage and Computation", section 7 and
appendix F, figures 3 and 4 (their data are lost in our copy: the claims are those of the text). No stragglers, every
client in every round, T = 80 for both.

Our choices: the noise follows from the budget by the always-valid sensitivity (2 tau with tau = 1; the theorem for a
bias and two outputs, whose features have norm up to 2), so budgets are large; clients have at most 150 rows, of norm at
most 1, and two local epochs, so that local solves are not exact: for objective perturbation the guarantee is that of
the exact minimisers. Learning rates: the best of three on validation rows, for both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from atoll.core.errors import DataError
from atoll.privacy import moments_sigma, objective_alpha
from atoll.reproduce import Claim, Entry, Lab, NotKept

from .table import SOURCE
from .trainings import decided

__all__ = ["ENTRY", "Trial", "losses", "private"]


# ------------------------------------------------------------------ trainings at a given privacy budget

_DATA = "atoll.reproduce.upcycled.data"
_DELTA = 1e-5
_TAU = 1.0
_MU = 1.0
_RADIUS = 2.0
_U = 0.3
_RATES = (0.01, 0.05, 0.2)


@dataclass(frozen=True)
class Trial:
    """A private training.

    Attributes:
        mechanism: ``"output"`` or ``"objective"``.
        kind: population.
        epsilon: budget of every client.
        upcycled: twice as many rounds for the budget's releases.
        lr: local learning rate.
        iterations: ``T``, of both.
        epochs: local epochs.
        rows: most rows per client.
    """

    mechanism: str
    kind: str
    epsilon: float
    upcycled: bool
    lr: float = 0.05
    iterations: int = 80
    epochs: int = 2
    rows: int = 150

    @property
    def releases(self) -> int:
        """Return the releases of one client, which takes part in every round with data."""
        return self.iterations // 2 if self.upcycled else self.iterations

    def algorithm(self, smallest: int) -> dict[str, Any]:
        """Return the configuration: the noise that the budget requires by Theorem 6.2 or 6.3.

        Args:
            smallest: examples of the smallest client, whose objective perturbation costs most.
        """
        local = {"lr": self.lr, "epochs": self.epochs, "batch_size": 32}
        if self.mechanism == "output":
            sigma = moments_sigma(self.epsilon, _DELTA, self.releases, 2 * _TAU)
            inner: dict[str, Any] = {"name": "FedAvg", **local}
            made = {"name": "OutputPerturbation", "base": inner, "tau": _TAU, "sigma": sigma}
        else:
            alpha = objective_alpha(self.epsilon, smallest, _MU, releases=self.releases, radius=_RADIUS)
            inner = {"name": "FedProx", **local, "mu": _MU}
            made = {"name": "ObjectivePerturbation", "base": inner, "alpha": alpha}
        return {"name": "Upcycled", "base": made, "coefficient": _U} if self.upcycled else made

    def settings(self, *, tuning: bool, seed: int) -> dict[str, Any]:
        """Return a run's configuration; the training has the same budget, and refuses what exceeds it."""
        from .data import divided

        where = {"kind": self.kind, "tuning": tuning, "rows": self.rows, "unit": True}
        smallest = int(np.min(np.asarray(divided(**where)[0].sizes)))
        return {
            "name": f"private-{self.mechanism}-{self.kind}".replace(",", "-"),
            "data": {"source": {"name": f"{_DATA}:islands", **where}},
            "model": {"name": "linear", "features": 20, "outputs": 2},
            "algorithm": self.algorithm(smallest),
            "budget": {"epsilon": self.epsilon * (1 + 1e-9), "delta": _DELTA, "method": "moments"},
            "selection": "Everyone",
            "engine": "inline",
            "rounds": self.iterations,
            "evaluation": {"every": self.iterations},
            "checkpoint_every": self.iterations,
            "seed": seed,
        }


def losses(lab: Lab, trial: Trial, seeds: int, rates: tuple[float, ...] = _RATES) -> np.ndarray:
    """Return the test loss of each seed, with the best of some learning rates on validation rows."""
    if len(rates) > 1:
        tried = [
            (lab.train(replace(trial, lr=lr).settings(tuning=True, seed=100)).last("test/loss"), lr) for lr in rates
        ]
        trial = replace(trial, lr=min(tried)[1])
    else:
        trial = replace(trial, lr=rates[0])
    runs = [lab.train(trial.settings(tuning=False, seed=seed)) for seed in range(seeds)]
    short = [run for run in runs if len(run.rows) < trial.iterations]
    if short:
        raise DataError("the budget ended a run early", where=str(short[0].folder.path), remedy="report this")
    return np.array([run.last("test/loss") for run in runs])


def private(
    lab: Lab,
    trials: Mapping[str, tuple[float, ...]],
    kinds: tuple[str, ...],
    seeds: int,
    rates: tuple[float, ...] = _RATES,
    **size: Any,
) -> list[Claim]:
    """Compare at equal budgets and iterations.

    Args:
        lab: runs and keeps trainings.
        trials: mechanism -> budgets.
        kinds: populations.
        seeds: runs of each.
        rates: learning rates tried.
        size: further fields of `Trial`.
    """
    claims = [_noise()]
    for mechanism, budgets in trials.items():
        for kind in kinds:
            for epsilon in budgets:
                pair = [Trial(mechanism, kind, epsilon, twice, **size) for twice in (False, True)]
                claims.append(_compared(lab, pair, seeds, rates))
    return claims


def _compared(lab: Lab, trials: Sequence[Trial], seeds: int, rates: tuple[float, ...]) -> Claim:
    """Compare a base's trial with its Upcycled version's."""
    one = trials[0]
    claim = f"{one.mechanism} perturbation on Syn({one.kind}) at epsilon={one.epsilon:g}: Upcycled reaches a lower loss"
    try:
        base, up = (losses(lab, trial, seeds, rates) for trial in trials)
    except NotKept:
        return Claim(claim, None, None, None)
    gap = base - up
    error = float(gap.std(ddof=1) / len(gap) ** 0.5)
    return Claim(
        claim,
        None,
        f"{base.mean():.4f} ± {base.std(ddof=1):.4f} -> {up.mean():.4f} ± {up.std(ddof=1):.4f}",
        decided(gap, error),
        f"test loss of {seeds} seeds; the gap is {gap.mean():+.4f} ± {error:.4f}; the paper's figures are lost",
    )


def _noise() -> Claim:
    half, full = (moments_sigma(2.0, _DELTA, releases, 1.0) for releases in (40, 80))
    return Claim(
        "at equal iterations and budget the noise is smaller by 1/sqrt(2)",
        round(0.5**0.5, 4),
        round(half / full, 4),
        abs(half / full - 0.5**0.5) < 1e-9,
        "sigma for epsilon=2, delta=1e-5 by Theorem 6.2, 40 releases against 80",
        basis="derived",
    )


# ------------------------------------------------------------------ the entry


def _run(lab: Lab, quick: bool) -> list[Claim]:
    if quick:
        return private(lab, {"output": (300.0,)}, ("iid",), 2, (0.2,), iterations=10, rows=60)
    budgets = {"output": (30.0, 100.0, 300.0), "objective": (100.0, 300.0, 1000.0)}
    return private(lab, budgets, ("iid", "0.5,0.5"), 4)


ENTRY = Entry(
    name="upcycled-privacy",
    title="Private Upcycled-FL: loss at equal budgets, output and objective perturbation",
    source=f"{SOURCE}, section 7",
    run=_run,
)
