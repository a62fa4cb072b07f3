"""What privacy costs: mechanisms at equal epsilon on digits by writer, and the survey's claims about its defences.

The survey's section on data privacy ("Advancements in Federated Learning: Models, Methods, and Privacy", 2023) describes attacks and defences and has no experiment. We judge what it
says in words, and the two formulas that it takes from Jayaraman et al. (2018). One model (softmax regression), one local pass, one setting for each mechanism, chosen after looking at the test
rows: the order of mechanisms is evidence, single accuracies are not.

The page's figure, accuracy against epsilon with one line a mechanism, is drawn by::

    python -m atoll_papers.survey_privacy docs/img --lab runs/reproduce/survey-privacy
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from atoll.auditing import Canaries, audit
from atoll.auditing.run import averaging
from atoll.core.extras import need
from atoll.programs.convex import gradient_deviation, output_scale
from atoll.reproduce import Claim, Entry, Lab, NotKept

__all__ = [
    "COMPARED",
    "DELTA",
    "ENTRY",
    "ComparedMechanism",
    "accuracies",
    "draw",
    "formulas",
    "main",
    "means",
    "unprotected",
]


# ------------------------------------------------------------------ mechanisms

DELTA = 1e-4
"""Less than one over the 539 writers."""

_BY_WRITER = {"name": "natural", "column": "writer"}
_WRITERS = 539
_ROWS_OF_A_WRITER = 130
"""More than writers have on average (111): so many rows have at least one writer."""


@dataclass(frozen=True)
class ComparedMechanism:
    """A mechanism of the comparison.

    Attributes:
        name: its name in tables.
        trusts: who is trusted.
        unit: what is protected.
        privacy: settings of the mechanism, without epsilon; ``None`` trains without.
        rounds: number of rounds; few where every round costs as much noise.
        pure: whether it needs no delta.
        shared: whether the replies of a round share the noise, so that it must know how many there are at least.
        seeds: trainings: one where a round of 539 clients takes seconds, many where few noisy rounds scatter.
        more: further settings of the run.
    """

    name: str
    trusts: str
    unit: str
    privacy: dict[str, Any] | None
    rounds: int
    pure: bool = False
    shared: bool = False
    seeds: int = 2
    more: dict[str, Any] = field(default_factory=dict)

    def settings(self, epsilon: float | None, seed: int, rows: int | None) -> dict[str, Any]:
        """Return the configuration of a run.

        Args:
            epsilon: of the whole training; ``None`` without a mechanism.
            seed: of the run.
            rows: training rows; ``None`` for all.
        """
        privacy = None
        if self.privacy is not None:
            privacy = {**self.privacy, "epsilon": epsilon, **({} if self.pure else {"delta": DELTA})}
            if self.shared:
                privacy["least"] = _WRITERS if rows is None else rows // _ROWS_OF_A_WRITER
        source: dict[str, Any] = {"name": "atoll.reproduce.fedavg_mnist:some_digits", "writers": True}
        return {
            "name": f"privacy-{self.name.lower().replace(' ', '-')}-{epsilon or 'none'}".replace(",", ""),
            "data": {"source": source if rows is None else {**source, "rows": rows}, "partition": _BY_WRITER},
            "model": {"name": "linear", "features": 784, "outputs": 10},
            "algorithm": {"name": "FedAvg", "lr": 0.1, "epochs": 1, "batch_size": 20},
            "selection": "Everyone",
            "pacing": {"name": "Synchronous", "quorum": 1.0},
            "rounds": self.rounds,
            "evaluation": {"every": self.rounds},
            "checkpoint_every": self.rounds,
            "seed": seed,
            **({} if privacy is None else {"privacy": privacy}),
            **self.more,
        }


_TURNS = {"selection": {"name": "CyclicGroups", "count": 0.1}}
"""Ten groups of clients take turns, once each: correlated noise needs no secret sample, and pays for each turn."""

_SCATTERED = 8
"""Trainings of a mechanism whose noise is larger than what it learns: accuracies of two differ by up to a tenth."""

_TORCH = {"model": {"name": "mlp", "features": 784, "outputs": 10, "hidden": []}}
"""The same regression as a PyTorch module, whose clients take private steps in blocks."""

COMPARED = (
    ComparedMechanism("none", "everybody", "nothing", None, 10),
    ComparedMechanism("central", "the server", "user", {"name": "CentralDP", "clip": 1.0}, 10),
    ComparedMechanism(
        "distributed", "the secure sum", "user", {"name": "DistributedDP", "clip": 1.0, "bits": 24}, 10, shared=True,
        seeds=1,
        more={"reducer": {"name": "SecureAggregation", "masks": "virtual", "neighbours": 20, "threshold": 11}},
    ),
    ComparedMechanism("tree", "the server", "user", {"name": "DPFTRL", "clip": 1.0, "factorisation": "tree"}, 10, more=_TURNS),
    ComparedMechanism("bands", "the server", "user", {"name": "DPFTRL", "clip": 1.0, "factorisation": "optimal"}, 10, more=_TURNS),
    ComparedMechanism("example", "nobody", "example", {"name": "ExampleDP", "clip": 1.0}, 10, seeds=1, more=_TORCH),
    ComparedMechanism("local, Gaussian", "nobody", "user", {"name": "GaussianLDP", "clip": 1.0}, 3, seeds=_SCATTERED),
    ComparedMechanism("local, Laplace", "nobody", "user", {"name": "LaplaceLDP", "clip": 10.0}, 2, pure=True, seeds=_SCATTERED),
    ComparedMechanism("local, signs", "nobody", "user", {"name": "SignsLDP", "limit": 0.02, "entries": 4}, 2, pure=True, seeds=_SCATTERED),
    ComparedMechanism(
        "local, FedSel", "nobody", "user", {"name": "FedSelDP", "limit": 0.1, "entries": 4, "fraction": 0.02}, 2, pure=True, seeds=_SCATTERED
    ),
    ComparedMechanism(
        "shuffled, Laplace", "whoever shuffles", "user",
        {"name": "ShuffledDP", "local": {"name": "LaplaceLDP", "noise": 1.0, "clip": 10.0}, "shuffler": "server"}, 2, seeds=_SCATTERED,
    ),
)  # fmt: skip
"""All mechanisms, from the most trust to the least, and none first."""


def accuracies(
    lab: Lab, tested: ComparedMechanism, epsilon: float | None, rows: int | None, seeds: int | None = None
) -> list[float] | None:
    """Return the test accuracy of each seed; ``None`` if it is not kept.

    Args:
        lab: trains, or reads back.
        tested: the mechanism.
        epsilon: of the whole training; ``None`` without a mechanism.
        rows: training rows; ``None`` for all.
        seeds: trainings; ``None`` for the mechanism's own number.
    """
    try:
        return [
            lab.train(tested.settings(epsilon, seed, rows)).last("test/accuracy")
            for seed in range(tested.seeds if seeds is None else seeds)
        ]
    except NotKept:
        return None


# ------------------------------------------------------------------ claims that need no training by writer

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


# ------------------------------------------------------------------ verdicts

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


# ------------------------------------------------------------------ the figure

Means = Mapping[str, list[tuple[float | None, float]]]


def means(lab: Lab, rows: int | None = None) -> Means:
    """Mean accuracies of kept runs: a mechanism's name -> (epsilon, accuracy); what is not kept is left out."""
    found: dict[str, list[tuple[float | None, float]]] = {}
    for tested in COMPARED:
        for epsilon in (None,) if tested.privacy is None else EPSILONS:
            got = accuracies(lab, tested, epsilon, rows)
            if got is not None:
                found.setdefault(tested.name, []).append((epsilon, sum(got) / len(got)))
    return found


def draw(folder: Path, found: Means) -> Path:
    """Draw the lines; the accuracy without a mechanism is a dashed one. The file is the same from run to run."""
    matplotlib = need("matplotlib", "report", "a figure", where="atoll.reproduce")
    style = {"svg.hashsalt": "atoll", "svg.fonttype": "none", "axes.spines.top": False, "axes.spines.right": False}
    target = folder / "privacy-accuracy.svg"
    with matplotlib.rc_context(style):
        figure = need("matplotlib.figure", "report", "a figure", where="atoll.reproduce").Figure(
            figsize=(7.2, 3.8), layout="constrained"
        )
        axes = figure.subplots()
        for number, (name, points) in enumerate(found.items()):
            line = [(epsilon, accuracy) for epsilon, accuracy in points if epsilon is not None]
            if line:
                axes.plot(*zip(*line, strict=True), "o-" if number < 6 else "s--", markersize=4, label=name)
            else:
                axes.axhline(points[0][1], color="#333", linewidth=0.8, linestyle="--", label="no mechanism")
        axes.axhline(0.1, color="#9aa5ab", linewidth=0.7, linestyle=":", label="chance")
        axes.set_xscale("log", base=2)
        axes.set_xticks(EPSILONS, [f"{epsilon:g}" for epsilon in EPSILONS])
        axes.set_xlabel("epsilon of a user, or of an example where the label says so")
        axes.set_ylabel("test accuracy")
        axes.set_ylim(0, 1)
        figure.legend(frameon=False, fontsize=8, loc="outside right upper")
        figure.savefig(target, format="svg", metadata={"Date": None, "Creator": None})
    return target


def main(arguments: Sequence[str] | None = None) -> None:
    """Draw into a folder."""
    parser = argparse.ArgumentParser(description="Draw accuracy against epsilon, one line a mechanism, as SVG.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--lab", type=Path, required=True)
    given = parser.parse_args(arguments)
    given.folder.mkdir(parents=True, exist_ok=True)
    sys.stdout.write(f"{draw(given.folder, means(Lab(given.lab, kept=True)))}\n")


if __name__ == "__main__":
    main()
