"""Adaptation to a domain without labels: what the survey says of FADA, FADE and EfficientFDA, judged on small digits.

The survey ("Federated Learning without Full Labels", 2023) has no experiment of its own. Its sentences are the claims; the numbers are ours.
"""

from __future__ import annotations

from statistics import mean

from atoll.reproduce import Claim, Entry, keeping_nothing

from .adaptation.sealed import sealed_costs
from .adaptation.trained import VARIANTS, apart, scores
from .adaptation.turbines import turbine_scores

__all__ = ["ENTRY"]

_CLOSE = 1e-5
_WITHIN = 0.02


@keeping_nothing("labels-adapt")
def _run(quick: bool) -> list[Claim]:
    seeds, rounds = (2, 12) if quick else (10, 30)
    found = {name: scores(name, seeds, rounds) for name in VARIANTS}
    claims = [_shown(name, got) for name, got in found.items()]
    claims += [_same_optimum(), _as_good(found, "one discriminator"), _as_good(found, "FADA"), _worse(found)]
    claims += [
        _better("squaring the adversarial loss helps", found["squared"], found["local discriminators"]),
        _better("conditioning on classes (CDAN) helps", found["CDAN"], found["local discriminators"]),
        _better("FADE gains over the sources alone", found["FADE"], found["sources alone"]),
    ]
    claims.append(_cheaper(8 if quick else 48, 16 if quick else 64))
    if not quick:
        claims.append(_turbines())
    return claims


def _shown(name: str, got: list[float]) -> Claim:
    spread = f"{mean(got):.3f} ({min(got):.3f} to {max(got):.3f})"
    return Claim.figure(f"{name}: accuracy at the target", spread, f"{len(got)} seeds", part="Accuracy")


def _same_optimum() -> Claim:
    away = apart()
    return Claim(
        "local, averaged discriminators take the steps of one that sees all rows, and so reach its optimum", None, f"{away:.1e}", away < _CLOSE,
        f"largest difference of a parameter after 5 rounds of one step on all rows; below {_CLOSE:g}", part="Claims of the survey",
    )  # fmt: skip


def _as_good(found: dict[str, list[float]], against: str) -> Claim:
    ours, other = mean(found["FADE"]), mean(found[against])
    what = {"FADA": "FADA, which exchanges them"}.get(against, "one discriminator of all features")
    return Claim(
        f"FADE, without sharing features, is as good as {what}", None, f"{ours:.3f}, {other:.3f}",
        ours > other - _WITHIN, f"with several local steps; within {_WITHIN}", part="Claims of the survey",
    )  # fmt: skip


def _worse(found: dict[str, list[float]]) -> Claim:
    return _better(
        "without its tricks, FADE's design costs accuracy", found["one discriminator"], found["local discriminators"]
    )


def _better(claim: str, ours: list[float], other: list[float]) -> Claim:
    from atoll.labels.evaluators.intervals import paired_gain

    gain = paired_gain(ours, other)
    low, high = gain.interval or (float("-inf"), float("inf"))
    holds = True if low > 0 else False if high < 0 else None
    shown = f"{gain.mean:+.3f} ({low:+.3f} to {high:+.3f})"
    return Claim(claim, None, shown, holds, "95 % interval of the paired difference; undecided if it contains 0", part="Claims of the survey")  # fmt: skip


def _cheaper(rows: int, features: int) -> Claim:
    naive, packed = sealed_costs(rows, features)
    ratio = naive.seconds / packed.seconds
    exact = max(naive.error, packed.error) < 1e-6
    return Claim(
        "EfficientFDA is 10 to 100 times faster than encrypting every feature", "10 to 100", f"{ratio:.0f} times, {naive.bytes / packed.bytes:.0f} times fewer bytes",
        ratio >= 10 and exact, f"{rows} rows of {features} features, Paillier of 2048 bits; 10 or more, and both gaps exact to 1e-6", part="Claims of the survey",
    )  # fmt: skip


def _turbines() -> Claim:
    got = turbine_scores()
    shown = ", ".join(f"{name} {value:.2f}" for name, value in got.items())
    return Claim(
        "aligned inputs do not mend a change of p(y|x): NOx of gas turbines in 2015", None, shown, got["aligned"] < got["same year"] - 0.5,
        "R^2 on half of 2015; ours, not the survey's: holds if alignment stays .5 below the same year", part="Limits",
    )  # fmt: skip


ENTRY = Entry(
    name="labels-adapt",
    title="Adaptation without labels: local discriminators, FADE's tricks, and the price of encryption",
    source="Federated Learning without Full Labels: A Survey (2023), section 5.1",
    run=_run,
    needs="gas turbines in ATOLL_DATA, for the last statement",
    data=("gas_turbine",),
    quick_data=(),
)
