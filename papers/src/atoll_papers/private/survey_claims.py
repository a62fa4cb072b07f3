"""The survey's claims that need no training by writer: two formulas, and that federated learning protects nothing by itself."""

from __future__ import annotations

from typing import Any

from atoll.auditing import Canaries, audit
from atoll.auditing.central import averaging
from atoll.learn.convex import gradient_deviation, output_scale
from atoll.reproduce import Claim, Lab, NotKept

__all__ = ["formulas", "unprotected"]

_PART = "Claims of the survey"


def formulas() -> list[Claim]:
    """Judge the two formulas of perturbation inside secure computation."""
    found = gradient_deviation(10, 1000, 100, 1.0, 1e-5)
    ratio = output_scale(1, 1000, 0.1, 1.0) / output_scale(10, 1000, 0.1, 1.0)
    return [
        Claim(
            "gradient perturbation inside a secure sum: deviation of the noise for 10 parties of 1,000 rows, 100 rounds, epsilon 1, delta 1e-5",
            0.0096, round(found, 4), abs(found - 0.0096) < 5e-5, "Jayaraman et al. 2018, theorem 3.2", _PART, "derived",
        ),
        Claim(
            "output perturbation inside a secure sum: noise m times smaller than at a party alone, for m = 10",
            10, round(ratio, 6), abs(ratio - 10) < 1e-9, "Jayaraman et al. 2018, theorem 3.1", _PART, "derived",
        ),
    ]  # fmt: skip


def unprotected(lab: Lab, canaries: int) -> Claim:
    """Judge that federated averaging alone gives no guarantee: canaries are told apart."""
    name, note = "federated learning alone gives no privacy guarantee", "an audit of plain federated averaging"
    try:
        found = lab.scores(f"unprotected-{canaries}", lambda: _audited(canaries))
    except NotKept:
        return Claim(name, None, None, None, note, _PART)
    return Claim(
        name,
        None,
        f"{found['right']} of {found['guesses']} canaries are told from the model: epsilon at least {found['lower']:.2f}",
        found["right"] == found["guesses"],
        f"{note}; the bound is the largest that so many guesses can prove",
        _PART,
    )


def _audited(canaries: int) -> dict[str, Any]:
    import atoll

    users = atoll.data.iid(atoll.data.digits(), parties=100, seed=0)
    found = audit(lambda planted: averaging(planted, None, 1), users, Canaries(count=canaries), delta=0.0, claimed=0.0)
    return {"right": found.right, "guesses": found.guesses, "lower": found.lower}
