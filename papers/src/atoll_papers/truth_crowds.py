"""Truth discovery on labels of real crowds: seven data sets by every model and protocol, beside crowd-kit's numbers.

Sources: Dawid and Skene 1979, Whitehill et al. 2009 (GLAD), Zhang et al. 2016 (one coin), FedTruthFinder (SUM and LOGISTIC), Li et al. 2014 (CRH), Jung et al. 2019 (claims with a hierarchy). The numbers beside ours are those of crowd-kit 1.4.2
(``n_iter=100``; GLAD ``n_iter=20``) for votes, `DawidSkene` and `GLAD`, and those of an earlier sketch (10 iterations, trust .9, delta 1e-3; one coin 100) for the others. Of repeated reports the first counts, and labels that tie share a task.

A cell holds if ours is within one task of the number beside it. A protocol holds on a set if every model finds the truth of the same steps in one place, on all tasks.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from atoll.data.folder import locate
from atoll.reproduce import Claim, Entry, keeping_nothing
from atoll.simulation import simulate
from atoll.truth import (  # fmt: skip
    CRH,
    GLAD,
    TDH,
    Additive,
    DawidSkene,
    Logistic,
    MajorityVote,
    Masks,
    MeanReport,
    OneCoin,
    PlainReplies,
    Reports,
    Shamir,
    Truth,
    TruthModel,
    Virtual,
    WeightedSum,
    read_hierarchy,
    read_reports,
    read_truth,
    score_labels,
    split_by_worker,
)

__all__ = ["ENTRY", "MODELS", "PUBLISHED", "read_crowd"]

MODELS: dict[str, TruthModel] = {
    "vote": MajorityVote(),
    "D&S": DawidSkene(),
    "Logistic": Logistic(tolerance=0),
    "Sum": WeightedSum(tolerance=0),
    "OneCoin": OneCoin(),
    "GLAD": GLAD(),
}
PUBLISHED: dict[str, dict[str, float]] = {
    "bluebirds": {"vote": 75.9, "D&S": 88.9, "Logistic": 77.8, "Sum": 75.0, "OneCoin": 58.3, "GLAD": 72.2},
    "dog": {"vote": 82.2, "D&S": 84.3, "Logistic": 83.0, "Sum": 83.0, "OneCoin": 83.0},
    "weather_sentiment": {"vote": 85.3, "D&S": 84.0, "Logistic": 85.7, "Sum": 85.7, "OneCoin": 86.0, "GLAD": 85.3},
    "snow_rte": {"vote": 89.7, "D&S": 92.8, "Logistic": 92.5, "Sum": 92.1, "OneCoin": 92.5, "GLAD": 92.5},
    "snow_temp": {"vote": 93.6, "D&S": 94.2, "Logistic": 94.4, "Sum": 94.6, "OneCoin": 93.9},
    "ducks": {"vote": 68.8, "D&S": 60.0, "Logistic": 60.4, "Sum": 67.1, "OneCoin": 58.8, "GLAD": 59.6},
}
"""Per cent of the tasks, by set and model."""

_CLASSES, _NUMBERS, _CLAIMS, _DUCKS = "Classes", "Numbers", "Claims with a hierarchy", "Why models lose on ducks"
_PROTOCOLS = "Every worker a party: a set by each protocol"

_SMALL = ("bluebirds", "ducks")
"""Sets of so few workers that all of them may hold shares of all others, or mask for all others."""


def read_crowd(name: str) -> tuple[Reports, dict[str, str]]:
    """Return the reports and the truth of a set of ``ATOLL_DATA``."""
    labels, truth = (locate(None, "crowd_truth", f"{name}_{part}.csv.gz") for part in ("labels", "truth"))
    return _read_quietly(labels), read_truth(truth)


def _read_quietly(path: Path) -> Reports:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*left out: their worker had reported", UserWarning)  # the claims count them
        return read_reports(path)


def _classes(sets: tuple[str, ...]) -> list[Claim]:
    made = []
    for name in sets:
        reports, truth = read_crowd(name)
        tasks = len(truth)
        for word, beside in PUBLISHED[name].items():
            model = MODELS[word].fit(reports)
            ours = 100 * score_labels(model.fitted.by_task(), truth)
            left = f"; {reports.repeated} repeated reports left out" if reports.repeated else ""
            made.append(Claim(f"{name}, {word}: accuracy in %", beside, f"{ours:.1f}", abs(ours - beside) <= 100 / tasks + 0.051, f"within one task of {tasks:,}; {model.n_iter_} iterations{left}", _CLASSES))  # fmt: skip
    return made


def _protocols(sets: tuple[str, ...], words: tuple[str, ...]) -> list[Claim]:
    """Campaigns in which one worker in ten is lost in an iteration: what each protocol finds beside the same steps in one place."""
    made = []
    for name in sets:
        reports, truth = read_crowd(name)
        parties, layout = split_by_worker(reports), reports.layout()
        size = min(8, len(parties))
        shares = Shamir(committee=size, threshold=max(2, size // 2))
        everywhere = {"plain": (PlainReplies(), 0.1), f"Shamir, a committee of {size}": (shares, 0.1), "Shamir by arithmetic": (Virtual(of=shares), 0.1)}  # fmt: skip
        of_all = {
            "Shamir, all hold": (Shamir(), 0.1),
            "additive": (Additive(), 0.0),
            "masks": (Masks(threshold=0.3), 0.1),
        }
        for title, (protocol, loss) in {**everywhere, **(of_all if name in _SMALL else {})}.items():
            least, far, notes = 1.0, 0.0, []
            for word in words[:1] if title in of_all else words:
                model = replace(MODELS[word], iterations=2)
                job = Truth(model=model, protocol=protocol, loss=loss, tasks=layout.tasks, classes=layout.classes, label="")  # fmt: skip
                result = simulate(job, parties, engine="inline", seed=1, progress=False).outcome
                compared = result.compare_plain()
                least, far = min(least, compared.agreement), max(far, compared.max_difference)
                notes.append(f"{word} {100 * score_labels(result.fit.by_task(), truth):.1f} % with {result.bytes_up / 1000:,.0f} kB up and {result.bytes_down / 1000:,.0f} down")  # fmt: skip
            made.append(Claim(f"{name}, {title}: part of the tasks with the truth of one place", 1.0, f"{least:.4g}, probabilities within {far:.0e}", least == 1.0 and far < 1e-5, f"{len(parties)} workers, {100 * loss:.0f} % lost; {'; '.join(notes)}", _PROTOCOLS))  # fmt: skip
    return made


def _trust(name: str) -> tuple[float, float, float]:
    """How far D&S's trust in workers agrees with their accuracy (correlation), and the part of right reports on tasks of the first and of the last class."""
    reports, truth = read_crowd(name)
    layout = reports.layout()
    coded = layout.code(reports)
    true = np.array([layout.classes.index(truth[task]) for task in layout.tasks])[coded.task]
    right = (coded.label == true).astype(np.float64)
    fit = MODELS["D&S"].fit(reports).fitted
    trust = fit.model.skills(layout, fit.state)
    accuracy = coded.mean_by_worker(right, np.zeros(1))
    last = len(layout.classes) - 1
    return float(np.corrcoef(trust, accuracy)[0, 1]), float(right[true == 0].mean()), float(right[true == last].mean())


def _ducks() -> list[Claim]:
    """Many workers take every water bird for a duck. They agree with each other, so a model that has no other source of truth trusts them."""
    found = {name: _trust(name) for name in ("ducks", "snow_rte", "snow_temp")}
    trust, none, ducks = found["ducks"]
    others = {name: one[0] for name, one in found.items() if name != "ducks"}
    return [
        Claim.figure("part of the reports that are right, where there is no duck and where there is one", f"{none:.2f}, {ducks:.2f}", "most errors are geese and grebes that are taken for ducks by many workers", _DUCKS),
        Claim("D&S trusts workers who agree, not those who are right: correlation of trust with accuracy below 0.2", None, f"{trust:.2f}", trust < 0.2, ", ".join(f"{name}: {one:.2f}" for name, one in others.items()), _DUCKS),
    ]  # fmt: skip


def _numbers() -> list[Claim]:
    reports, truth = read_crowd("emotion_numeric")
    errors = {
        name: _mean_error(model.fit_predict(reports), truth)
        for name, model in (("CRH", CRH(tolerance=0)), ("mean", MeanReport()))
    }
    beside = {"CRH": 11.88, "mean": 12.02}
    return [
        Claim(f"emotions, {name}: mean absolute error", beside[name], f"{error:.2f}", abs(error - beside[name]) < 0.01, "numbers from -100 to 100", _NUMBERS)
        for name, error in errors.items()
    ]  # fmt: skip


def _mean_error(found: Mapping[str, float], truth: Mapping[str, str]) -> float:
    return float(np.mean([abs(found[task] - float(value)) for task, value in truth.items()]))


def _claims() -> list[Claim]:
    """Birthplaces: a claim is exact if it is the place itself, and correct in general if it contains it."""
    place = [locate(None, "crowd_truth", f"birthplaces_{part}.csv.gz") for part in ("claims", "groundtruths", "hierarchy")]  # fmt: skip
    reports, truth, contains = _read_quietly(place[0]), read_truth(place[1]), read_hierarchy(place[2])
    models = {"vote": MajorityVote(), "Sum": WeightedSum(), "OneCoin": OneCoin(), "TDH without hierarchy": TDH(), "TDH": TDH(contains=contains)}  # fmt: skip
    made, exact = [], {}
    for name, model in models.items():
        found = model.fit_predict(reports)
        exact[name] = float(np.mean([found[one] == path.split(",")[0] for one, path in truth.items()]))
        general = float(np.mean([found[one] in path.split(",") for one, path in truth.items()]))
        made.append(Claim.figure(f"birthplaces, {name}: exact, and correct in general", f"{exact[name]:.3f}, {general:.3f}", f"{len(truth):,} people, {len(reports.workers)} sources", _CLAIMS))  # fmt: skip
    best = max(value for name, value in exact.items() if name != "TDH")
    made.append(Claim("a hierarchy finds more exact places than any model without one", "TDH is best", f"{exact['TDH']:.3f} against {best:.3f}", exact["TDH"] > best, "Jung et al. 2019, in words", _CLAIMS))  # fmt: skip
    return made


@keeping_nothing("truth-crowds")
def _run(quick: bool) -> list[Claim]:
    if quick:
        return [*_classes(("bluebirds", "snow_temp")), *_numbers(), *_protocols(("bluebirds",), ("Logistic",))]
    sums = ("D&S", "Logistic", "Sum", "OneCoin")
    return [*_classes(tuple(PUBLISHED)), *_ducks(), *_numbers(), *_claims(), *_protocols(tuple(PUBLISHED), sums)]


ENTRY = Entry(
    name="truth-crowds",
    title="Truth discovery on labels of real crowds: seven sets by every model and protocol",
    source="crowd-kit 1.4.2; FedTruthFinder; Dawid and Skene 1979; Whitehill et al. 2009; Li et al. 2014; Jung et al. 2019",
    run=_run,
    needs="labels of crowds below ATOLL_DATA",
    data=("crowd_labels",),
)
