"""What privacy costs: mechanisms at equal epsilon on digits by writer, and the survey's claims about its defences.

The survey's section on data privacy ("Advancements in Federated Learning: Models, Methods, and Privacy", 2023) describes attacks and defences and has no experiment. We judge what it
says in words, and the two formulas that it takes from Jayaraman et al. (2018). One model (softmax regression), one local pass, one setting for each mechanism, chosen after looking at the test
rows: the order of mechanisms is evidence, single accuracies are not.
"""

from __future__ import annotations

from itertools import pairwise

from atoll.reproduce import Claim, Entry, Lab

from .private.mechanisms import COMPARED, DELTA, ComparedMechanism, accuracies
from .private.survey_claims import formulas, unprotected

__all__ = ["ENTRY"]

EPSILONS = (1.0, 4.0, 16.0)
_QUICK_ROWS = 4_000
_QUICK = ("none", "central", "distributed", "tree", "example", "local, Gaussian", "shuffled, Laplace")
_JUDGED = ("central", "distributed", "tree", "bands", "example", "local, Gaussian")
_CLOSE = 0.02
_SURVEY, _OURS = "Claims of the survey", "Statements of ours"
_LEARNS = 0.2
"""Twice chance: below, an accuracy says nothing about epsilon."""


def _run(lab: Lab, quick: bool) -> list[Claim]:
    epsilons, seeds, rows = ((4.0,), 1, _QUICK_ROWS) if quick else (EPSILONS, None, None)
    found: dict[tuple[str, float | None], list[float] | None] = {}
    claims: list[Claim] = []
    for tested in COMPARED:
        if quick and tested.name not in _QUICK:
            continue
        for epsilon in (None,) if tested.privacy is None else epsilons:
            found[tested.name, epsilon] = accuracies(lab, tested, epsilon, rows, seeds)
            claims.append(_shown(tested, epsilon, found[tested.name, epsilon]))
    claims += _orders(found, epsilons) + formulas()
    claims.append(unprotected(lab, 300 if quick else 1000))
    return sorted(claims, key=lambda claim: claim.part == _OURS)  # each part in one piece


def _mean(values: list[float] | None) -> float | None:
    return None if values is None else sum(values) / len(values)


def _shown(tested: ComparedMechanism, epsilon: float | None, values: list[float] | None) -> Claim:
    """Show one accuracy; there is nothing to judge."""
    mean = _mean(values)
    at = "" if epsilon is None else f" at epsilon {epsilon:g}"
    note = f"{tested.rounds} rounds; trusted: {tested.trusts}; unit: {tested.unit}"
    spread = "" if values is None or len(values) < 2 else f" ({min(values):.3f} to {max(values):.3f})"
    note += "" if values is None else f"; {len(values)} trainings" if len(values) > 1 else "; one training"
    return Claim.figure(
        f"{tested.name}{at}: test accuracy",
        None if mean is None else f"{mean:.3f}{spread}",
        f"{note}; delta {DELTA:g}" if not tested.pure and epsilon else note,
        part="Accuracy",
    )


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
                part=_SURVEY,
            )
        )
    for epsilon in epsilons:
        at = {name: means.get((name, epsilon)) for name in _JUDGED}
        claims += [
            _ordered(
                f"noise inside the aggregation costs less than noise at every party, at epsilon {epsilon:g}",
                at["central"], at["local, Gaussian"], "a trusted server's noise against local Gaussian noise", _SURVEY,
            ),
            _ordered(
                f"perturbation inside a secure sum costs less than noise at every party, at epsilon {epsilon:g}",
                at["distributed"], at["local, Gaussian"],
                "shares of Skellam noise in a secure sum against local Gaussian noise; masks are simulated, which changes no sum", _SURVEY,
            ),
            _ordered(
                f"a secure sum replaces a trusted server without a loss of accuracy, at epsilon {epsilon:g}",
                at["distributed"], at["central"], "2 points of tolerance; the clients' noise has whole numbers and is counted by rdp", _OURS, _CLOSE,
            ),
            _ordered(
                f"where nobody is trusted, protecting examples costs less than protecting users, at epsilon {epsilon:g}",
                at["example"], at["local, Gaussian"], "DP-SGD at clients against local Gaussian noise; the two epsilons do not promise the same", _OURS,
            ),
            _ordered(
                f"bands of least error cost no more than a tree, at epsilon {epsilon:g}",
                at["bands"], at["tree"], "2 points of tolerance; groups of clients take turns, once each", _OURS, _CLOSE,
            ),
        ]  # fmt: skip
    return claims


def _ordered(claim: str, more: float | None, less: float | None, note: str, part: str, slack: float = 0.0) -> Claim:
    """Judge that one accuracy is above another, or at most ``slack`` below it."""
    if more is None or less is None:
        return Claim(claim, None, None, None, note, part=part)
    return Claim(claim, None, f"{more:.3f} and {less:.3f}", more > less - slack, note, part=part)


ENTRY = Entry(
    name="survey-privacy",
    title="What privacy costs: mechanisms at equal epsilon on digits by writer, and the survey's claims",
    source="Advancements in Federated Learning: Models, Methods, and Privacy (survey), section on data privacy",
    run=_run,
    needs="MNIST and the writers of QMNIST in ATOLL_DATA",
    data=("mnist", "qmnist_writers"),
)
