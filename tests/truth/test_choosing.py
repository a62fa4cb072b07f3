"""Campaigns choose among models by reports that they went without, and choose what all reports in one place would."""

from __future__ import annotations

import numpy as np
import pytest

import atoll
from atoll.core.errors import ConfigError
from atoll.study import choose_model
from atoll.study.truth_models import list_candidates, score_model
from atoll.truth import CRH, DawidSkene, Logistic, MajorityVote, MeanReport, OneCoin, PlainReplies, Shamir, Truth
from atoll.truth.choosing import BOUND, hold_out, score_held_out


def drawn(workers=8, tasks=20, seed=0, habit=0.0):
    """Workers of all qualities; with a habit, half of them say the first class too often."""
    rng = np.random.default_rng(seed)
    truth, skill = rng.integers(0, 2, tasks), rng.uniform(0.55, 0.95, workers)
    rows = []
    for w in range(workers):
        for t in range(tasks):
            said = truth[t] if rng.random() < skill[w] else 1 - truth[t]
            said = 0 if w % 2 and rng.random() < habit else said
            rows.append((f"t{t}", f"w{w}", f"c{said}"))
    return rows


ROWS = drawn()
PARTS = atoll.truth.split_by_worker(ROWS)


def simulated(job, parts=PARTS, **more):
    return atoll.simulate(job, parts, **{"engine": "inline", "progress": False, "seed": 2, **more})


def test_about_a_part_is_held_out_whatever_the_order_and_the_sites():
    reports = atoll.truth.reports_of(drawn(20, 60))
    layout = reports.layout()
    known, held = hold_out(layout.code(reports), 0.25)
    assert len(known.task) + len(held.task) == 1200
    assert abs(len(held.task) / 1200 - 0.25) < 5 * (0.25 * 0.75 / 1200) ** 0.5
    pairs = {(layout.tasks[t], held.workers[w]) for t, w in zip(held.task, held.worker, strict=True)}
    parts = [layout.code(part) for part in atoll.truth.split_by_worker(drawn(20, 60)[::-1]).values()]
    apart = [hold_out(part, 0.25)[1] for part in parts]
    assert pairs == {(layout.tasks[t], one.workers[w]) for one in apart for t, w in zip(one.task, one.worker, strict=True)}  # fmt: skip


def test_the_score_is_the_mean_of_the_logarithms_of_single_reports():
    """Slowly, by the text: of a model with a confusion, of one without, and of numbers."""
    reports = atoll.truth.reports_of(ROWS)
    layout = reports.layout()
    known, held = hold_out(layout.code(reports), 0.2)
    for model in (DawidSkene(iterations=3), Logistic(iterations=3)):
        fit = atoll.truth.fit_reports(model, known)
        rows, slow = fit.by_task(), []
        agreed: dict[int, list[float]] = {}
        for task, worker, label in zip(known.task, known.worker, known.label, strict=True):
            agreed.setdefault(int(worker), []).append(rows[layout.tasks[task]][layout.classes[label]])
        for task, worker, label in zip(held.task, held.worker, held.label, strict=True):
            row, said = rows[layout.tasks[task]], layout.classes[label]
            if isinstance(model, DawidSkene):
                errors = model.confusions(layout, fit.state)[worker]
                chance = sum(row[name] * errors[label, c] for c, name in enumerate(layout.classes))
            else:
                right = (sum(agreed[int(worker)]) + 1) / (len(agreed[int(worker)]) + 2)
                chance = right * row[said] + (1 - right) * (1 - row[said])
            slow.append(max(np.log(max(chance, 1e-300)), -BOUND))
        sums = score_held_out(model, fit.state, known, held, fit.broadcast)
        assert sums["score"][0] == pytest.approx(sum(slow))
        assert sums["held"][0] == len(slow)


@pytest.mark.parametrize("protocol", [PlainReplies(), Shamir(), Shamir(min_reporters=2)], ids=str)
def test_a_campaign_scores_a_model_as_all_reports_in_one_place_do(protocol):
    whole, model = atoll.truth.reports_of(ROWS), OneCoin(iterations=3)
    result = simulated(Truth(model=model, protocol=protocol, held_out=0.2, label=""))
    assert result.score == pytest.approx(score_model(model, whole, whole.layout(), 0.2), abs=1e-5)
    assert result.compare_plain().max_difference < 2e-5
    assert result.plain()["held"] == result.held > 20
    assert simulated(Truth(model=model, protocol=protocol, label="")).score is None


@pytest.mark.parametrize("habit", [0.0, 0.8])
def test_the_choice_is_the_plain_one(habit):
    """Whoever knows how reliable workers are foretells them better than a vote; workers with a habit are foretold by a matrix."""
    parts = atoll.truth.split_by_worker(drawn(8, 150, habit=habit))
    models = {"vote": MajorityVote(), "coin": OneCoin(iterations=6), "matrix": DawidSkene(iterations=6)}
    found = choose_model(models, Truth(model=MajorityVote(), protocol=Shamir(committee=3), label=""), parts)
    assert found.chosen == max(found.plain, key=found.plain.__getitem__)
    assert found.scores["vote"] < min(found.scores["coin"], found.scores["matrix"])
    assert not habit or found.chosen == "matrix"
    for name, score in found.scores.items():
        assert score == pytest.approx(found.plain[name], abs=1e-4)


def test_numbers_are_foretold_by_the_model_that_knows_who_errs():
    rng = np.random.default_rng(0)
    spread = [0.1, 0.1, 0.2, 8.0, 9.0]
    rows = [(f"t{t}", f"w{w}", str(1e9 + 5 * t + spread[w] * rng.normal())) for t in range(15) for w in range(5)]
    models = {"mean": MeanReport(), "crh": CRH(iterations=4)}
    found = choose_model(models, Truth(model=CRH(), label=""), atoll.truth.split_by_worker(rows))
    assert found.chosen == "crh"
    assert found.scores["crh"] == pytest.approx(found.plain["crh"], abs=1e-2)


def test_candidates_begin_with_the_baseline():
    assert next(iter(list_candidates("numbers"))) == "mean-report"
    assert list_candidates("claims", 3)["tdh"].iterations == 3


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Truth(model=OneCoin(), held_out=1.0), "use a part of the reports below 1"),
        (lambda: choose_model({}, Truth(model=OneCoin()), PARTS), "no models to choose among"),
        (lambda: choose_model({"crh": CRH()}, Truth(model=OneCoin()), PARTS), "none of crh reads these|not numbers|no number"),
        (lambda: choose_model({"vote": MajorityVote()}, Truth(model=OneCoin(), label=""), atoll.truth.split_by_worker(ROWS[:2] + ROWS[20:22]), part=1e-9), "hold out more of them"),
    ],
)  # fmt: skip
def test_what_cannot_be_chosen_is_refused_with_a_remedy(make, said):
    with pytest.raises(atoll.core.errors.AtollError, match=said):
        make()


def test_a_part_that_is_none_is_refused():
    with pytest.raises(ConfigError, match="use a part between 0 and 1"):
        hold_out(atoll.truth.reports_of(ROWS).layout().code(atoll.truth.reports_of(ROWS)), 0.0)
