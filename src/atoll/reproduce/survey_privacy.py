"""What privacy costs: mechanisms at equal epsilon on digits by writer, and the survey's claims about its defences.

The survey's section on data privacy ("Advancements in Federated Learning: Models, Methods, and Privacy", 2023) describes attacks and defences and has no experiment. We judge what it
says in words, and the two formulas that it takes from Jayaraman et al. (2018). One model (softmax regression), one local pass, one setting for each mechanism, chosen after looking at the test
rows: the order of mechanisms is evidence, single accuracies are not.
"""

from __future__ import annotations

from itertools import pairwise

from .entry import Claim, Entry, Lab
from .private.mechanisms import COMPARED, DELTA, ComparedMechanism, accuracies
from .private.survey_claims import formulas, unprotected

__all__ = ["ENTRY"]

EPSILONS = (1.0, 4.0, 16.0)
_QUICK_ROWS = 4_000
_LEARNS = 0.2
"""Twice chance: below, an accuracy says nothing about epsilon."""


def _run(lab: Lab, quick: bool) -> list[Claim]:
    epsilons, seeds, rows = ((4.0,), 1, _QUICK_ROWS) if quick else (EPSILONS, 2, None)
    found: dict[tuple[str, float | None], list[float] | None] = {}
    claims: list[Claim] = []
    for tested in COMPARED:
        if quick and tested.name not in ("none", "central", "local, Gaussian", "shuffled, Laplace"):
            continue
        for epsilon in (None,) if tested.privacy is None else epsilons:
            found[tested.name, epsilon] = accuracies(lab, tested, epsilon, seeds, rows)
            claims.append(_shown(tested, epsilon, found[tested.name, epsilon]))
    claims += _orders(found, epsilons) + formulas()
    return claims if lab.kept else [*claims, unprotected(300 if quick else 1000)]


def _mean(values: list[float] | None) -> float | None:
    return None if values is None else sum(values) / len(values)


def _shown(tested: ComparedMechanism, epsilon: float | None, values: list[float] | None) -> Claim:
    """Show one accuracy; there is nothing to judge."""
    mean = _mean(values)
    at = "" if epsilon is None else f" at epsilon {epsilon:g}"
    note = f"{tested.rounds} rounds; trusted: {tested.trusts}; unit: {tested.unit}"
    spread = "" if values is None or len(values) < 2 else f" ({min(values):.3f} to {max(values):.3f})"
    return Claim(
        f"{tested.name}{at}: test accuracy", None, None if mean is None else f"{mean:.3f}{spread}", None,
        f"{note}; delta {DELTA:g}" if not tested.pure and epsilon else note, part="Accuracy",
    )  # fmt: skip


def _orders(found: dict[tuple[str, float | None], list[float] | None], epsilons: tuple[float, ...]) -> list[Claim]:
    """Judge that a mechanism loses accuracy with less epsilon, and with less trust."""
    claims = []
    means = {key: _mean(values) for key, values in found.items()}
    plain = means.get(("none", None))
    for tested in COMPARED:
        got = [means.get((tested.name, epsilon)) for epsilon in epsilons]
        if tested.privacy is None or (tested.name, epsilons[0]) not in found:
            continue
        have = [value for value in (*got, plain) if value is not None]
        ours = " <= ".join(f"{value:.3f}" for value in have) if len(have) == len(epsilons) + 1 else None
        grows = None if ours is None else all(a <= b + 0.02 for a, b in pairwise(have))
        if ours is not None and max(have[:-1]) < _LEARNS:
            grows = None
        claims.append(
            Claim(
                f"{tested.name}: perturbation costs accuracy, and more with less epsilon",
                None,
                ours,
                grows,
                "epsilons in order, last without a mechanism; 2 points of tolerance; undecided if it learns nothing at any",
                part="Claims of the survey",
            )
        )
    for epsilon in epsilons:
        central, local = means.get(("central", epsilon)), means.get(("local, Gaussian", epsilon))
        both = None if central is None or local is None else f"{central:.3f} > {local:.3f}"
        claims.append(
            Claim(
                f"noise inside the aggregation costs less than noise at every party, at epsilon {epsilon:g}",
                None,
                both,
                None if central is None or local is None else central > local,
                "central against local Gaussian noise; the survey says it of secure computation, whose noise is that of the centre",
                part="Claims of the survey",
            )
        )
    return claims


ENTRY = Entry(
    name="survey-privacy",
    title="What privacy costs: mechanisms at equal epsilon on digits by writer, and the survey's claims",
    source="Advancements in Federated Learning: Models, Methods, and Privacy (survey), section on data privacy",
    run=_run,
    needs="MNIST and the writers of QMNIST in ATOLL_DATA",
    data=("mnist", "qmnist_writers"),
)
