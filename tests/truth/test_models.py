"""What all models promise: a federation adds up to what one place finds, sums are of fixed shapes and bounded, and names and orders change nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.core.errors import CompositionError, ConfigError
from atoll.truth import (
    CRH,
    GLAD,
    MACE,
    TDH,
    DawidSkene,
    Logistic,
    MajorityVote,
    MeanReport,
    MedianReport,
    OneCoin,
    TaskLayout,
    WeightedSum,
    blend_broadcast,
    fit_reports,
    reports_of,
    split_by_worker,
)

OF_CLASSES = [MajorityVote(), WeightedSum(), Logistic(), OneCoin(), DawidSkene(), GLAD(), MACE(), TDH()]
OF_CLAIMS = [MajorityVote(), WeightedSum(), Logistic(), OneCoin(), TDH(contains={"l1": ("l0",), "l2": ("l0", "l1")})]
OF_NUMBERS = [MeanReport(), MedianReport(iterations=12), CRH()]
EVERY = [("classes", m) for m in OF_CLASSES] + [("claims", m) for m in OF_CLAIMS] + [("numbers", m) for m in OF_NUMBERS]
cases = pytest.mark.parametrize(("kind", "model"), EVERY, ids=[f"{kind}-{type(m).__name__}" for kind, m in EVERY])


def drawn(kind: str, seed: int, tasks: int = 9, workers: int = 6, classes: int = 3) -> list[tuple[str, str, str]]:
    """Rows of workers of unequal skill, each on some tasks."""
    rng = np.random.default_rng(seed)
    skill = rng.uniform(0.3, 0.95, workers)
    rows = []
    for t in range(tasks):
        for w in np.flatnonzero(rng.random(workers) < 0.7).tolist() or [0]:
            said = t % classes if rng.random() < skill[w] else int(rng.integers(classes))
            label = f"{100 * t + rng.normal() / skill[w]:.6f}" if kind == "numbers" else f"l{said}"
            rows.append((f"t{t}", f"w{w}", label))
    return rows


def layout_of(kind: str, rows: Any) -> TaskLayout:
    return reports_of(rows, claims=kind == "claims").layout(kind)  # type: ignore[arg-type]


def federate(model: Any, kind: str, rows: Any, bits: int = 34) -> Any:
    """Each worker alone, sums as integers: yields the broadcast after each step."""
    layout = layout_of(kind, rows)
    parts = [layout.code(part) for part in split_by_worker(reports_of(rows, claims=kind == "claims")).values()]
    states, broadcast = [model.start_workers(layout, 1) for _ in parts], model.start(layout)
    for _, step in model.step_names():
        given = [model.contribute(step, state, part, broadcast) for state, part in zip(states, parts, strict=True)]
        terms = model.terms(step, layout)
        for one in given:
            assert {name: value.shape for name, value in one.items()} == {n: t.shape for n, t in terms.items()}
            assert all(np.abs(one[n]).max() <= t.bound * (1 + 1e-12) for n, t in terms.items())
        whole = {n: sum(np.rint(one[n] * 2.0**bits).astype(np.int64) for one in given) / 2.0**bits for n in terms}
        broadcast = model.combine(step, layout, whole, broadcast)
        pairs = zip(states, parts, strict=True)
        states = [model.learn(step, state, part, broadcast) for state, part in pairs]
        yield step, broadcast, states


@cases
@pytest.mark.parametrize("classes", [2, 3])
def test_a_federation_finds_what_one_place_finds_after_each_step(kind: str, model: Any, classes: int) -> None:
    rows = drawn(kind, seed=classes, classes=classes)
    model = replace(model, iterations=min(model.iterations, 8), tolerance=0.0)
    layout = layout_of(kind, rows)
    coded = layout.code(reports_of(rows, claims=kind == "claims"))
    state, broadcast = model.start_workers(layout, len(coded.workers)), model.start(layout)
    for step, found, states in federate(model, kind, rows):
        broadcast = model.combine(step, layout, model.contribute(step, state, coded, broadcast), broadcast)
        state = model.learn(step, state, coded, broadcast)
        for name in broadcast:
            np.testing.assert_allclose(found[name], broadcast[name], atol=1e-6, err_msg=f"{step} {name}")
        for name, value in state.items():
            own = np.concatenate([one[name] for one in states])
            np.testing.assert_allclose(own, value, atol=1e-5, err_msg=f"{step} {name}")
    assert np.isfinite(broadcast["truth"]).all()


@cases
def test_order_of_rows_and_names_of_workers_change_nothing(kind: str, model: Any) -> None:
    rows = drawn(kind, seed=5)
    rng = np.random.default_rng(0)
    first = fit_reports(model, reports_of(rows, claims=kind == "claims"))
    mixed = [rows[i] for i in rng.permutation(len(rows))]
    again = fit_reports(model, reports_of(mixed, claims=kind == "claims"))
    np.testing.assert_array_equal(again.shares, first.shares)
    renamed = [(t, f"z{9 - int(w[1:])}", label) for t, w, label in rows]
    other = fit_reports(model, reports_of(renamed, claims=kind == "claims"))
    np.testing.assert_allclose(other.shares, first.shares, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("model", OF_CLASSES, ids=lambda m: type(m).__name__)
def test_names_of_classes_change_nothing(model: Any) -> None:
    rows = drawn("classes", seed=6)
    names = {"l0": "z", "l1": "x", "l2": "y"}
    first = fit_reports(model, reports_of(rows)).by_task()
    other = fit_reports(model, reports_of([(t, w, names[label]) for t, w, label in rows])).by_task()
    for task, row in first.items():
        for label, share in row.items():
            assert other[task][names[label]] == pytest.approx(share, abs=1e-7)


@cases
def test_tasks_and_workers_without_reports_keep_what_they_have(kind: str, model: Any) -> None:
    """Edge cases that the paper leaves open: 0/0 in SUM, one half in LOGISTIC, a mean of nothing."""
    rows = drawn(kind, seed=7)
    whole = layout_of(kind, rows)
    reports = reports_of(rows, claims=kind == "claims")
    layout = replace(whole, tasks=(*whole.tasks, "silent"), candidates=(*whole.candidates, ("a", "b")) if whole.candidates else ())  # fmt: skip
    coded = replace(layout.code(reports), workers=(*reports.workers, "silent"))
    state, broadcast = model.start_workers(layout, len(coded.workers)), model.start(layout)
    begun, before = {k: v[-1].copy() for k, v in state.items()}, broadcast["truth"][-1]
    for _, step in model.step_names():
        given = model.contribute(step, state, coded, broadcast)
        alone = model.contribute(step, {k: v[-1:] for k, v in state.items()}, replace(coded, workers=("silent",), task=coded.task[:0], worker=coded.worker[:0], cell=coded.cell[:0], number=coded.number[:0]), broadcast)  # fmt: skip
        assert all(not value.any() for value in alone.values())  # nobody can tell what it reported on
        broadcast = model.combine(step, layout, given, broadcast)
        state = model.learn(step, state, coded, broadcast)
    assert broadcast["truth"][-1] == pytest.approx(before, abs=1e-12)
    for name, value in state.items():
        if (type(model), name) != (GLAD, "ability"):  # an ability of mean 1 stays there: 1
            np.testing.assert_allclose(value[-1], begun[name], atol=1e-12)
    assert np.isfinite(broadcast["truth"]).all()


@cases
def test_all_workers_lost_in_a_step_change_no_truth(kind: str, model: Any) -> None:
    rows = drawn(kind, seed=8)
    fit = fit_reports(model, reports_of(rows, claims=kind == "claims"))
    step = model.steps[-1]
    nothing = {name: np.zeros(term.shape) for name, term in model.terms(step, fit.layout).items()}
    after = model.combine(step, fit.layout, nothing, fit.broadcast)
    np.testing.assert_array_equal(after["truth"], fit.broadcast["truth"])


@cases
@pytest.mark.parametrize("rows", [[("t", "a", "1"), ("u", "a", "2")], [("t", "a", "1"), ("t", "b", "2")]])
def test_one_worker_and_one_task(kind: str, model: Any, rows: Any) -> None:
    fit = fit_reports(model, reports_of(rows, claims=kind == "claims"))
    assert np.isfinite(fit.shares).all()
    if len(fit.layout.tasks) == 2 and kind != "claims":
        wanted = {"t": 1.0, "u": 2.0} if kind == "numbers" else {"t": "1", "u": "2"}
        assert fit.truth == (pytest.approx(wanted, abs=1e-3) if kind == "numbers" else wanted)


@settings(max_examples=15)
@given(st.integers(0, 10**6), st.integers(2, 4), st.integers(1, 6))
def test_entries_are_bounded_however_sure_workers_are(seed: int, classes: int, workers: int) -> None:
    """Tables where one worker is always right and another always wrong; `federate` compares shapes and bounds."""
    rng = np.random.default_rng(seed)
    truth = rng.integers(classes, size=8)
    said = [truth, (truth + 1) % classes, *rng.integers(classes, size=(workers, 8)), np.zeros(8, int)]
    rows = [(f"t{t}", f"w{w}", f"l{row[t]}") for w, row in enumerate(said) for t in range(8) if rng.random() < 0.8]
    rows += [(f"t{t}", "sure", f"l{t % classes}") for t in range(8)]
    for model in (Logistic(iterations=3), DawidSkene(iterations=3), GLAD(iterations=3), MACE(iterations=3), OneCoin(iterations=3), WeightedSum(iterations=3)):  # fmt: skip
        for _, broadcast, _ in federate(model, "classes", rows):
            assert np.isfinite(broadcast["truth"]).all()


@settings(max_examples=25)
@given(st.integers(0, 10**6))
def test_trust_is_a_mean_and_is_blind_to_a_flip(seed: int) -> None:
    """Property 13 of the specification: flipping all labels together with rho to 1 - rho changes no trust."""
    rows = drawn("classes", seed, classes=2)
    if len({label for _, _, label in rows}) < 2:
        return
    flipped = [(t, w, {"l0": "l1", "l1": "l0"}[label]) for t, w, label in rows]
    for model in (WeightedSum(), Logistic()):
        one, other = (fit_reports(model, reports_of(said)) for said in (rows, flipped))
        np.testing.assert_allclose(one.broadcast["truth"], 1 - other.broadcast["truth"], atol=1e-9)
        np.testing.assert_allclose(one.state["trust"], other.state["trust"], atol=1e-9)
        assert ((one.state["trust"] >= model.delta) & (one.state["trust"] <= 1 - model.delta)).all()


@given(st.floats(0, 1), st.integers(0, 10**6))
def test_a_blend_lies_between(weight: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    new, old = {"truth": rng.random(4), "more": np.ones(2)}, {"truth": rng.random(4)}
    found = blend_broadcast(new, old, weight)["truth"]
    low, high = np.minimum(new["truth"], old["truth"]), np.maximum(new["truth"], old["truth"])
    assert ((found >= low - 1e-15) & (found <= high + 1e-15)).all()
    np.testing.assert_array_equal(blend_broadcast(new, old, 1.0)["truth"], new["truth"])


def test_a_blend_needs_a_weight() -> None:
    with pytest.raises(ConfigError, match=r"weight=1.5.*from 0 to 1"):
        blend_broadcast({}, {}, 1.5)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Logistic(delta=0.7), "delta=0.7"),
        (lambda: WeightedSum(trust=1.0), "trust=1.0"),
        (lambda: OneCoin(delta=0.0), "delta=0.0"),
        (lambda: DawidSkene(floor=0.0), "floor=0.0"),
        (lambda: DawidSkene(iterations=-1), "iterations=-1"),
        (lambda: GLAD(tolerance=1.0), "tolerance=1.0"),
        (lambda: MACE(habit_prior=0.0), "habit_prior=0.0"),
        (lambda: CRH(delta=2.0), "delta=2.0"),
        (lambda: DawidSkene(n_iter=3), "n_iter"),  # type: ignore[call-arg]
    ],
)
def test_settings_out_of_range_are_refused(make: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        make()


def test_models_refuse_reports_of_another_kind() -> None:
    rows = [("t", "a", "x"), ("t", "b", "y")]
    with pytest.raises(CompositionError, match=r"GLAD reads classes, and these reports are claims.*TDH"):
        GLAD().fit(reports_of(rows, claims=True))
    with pytest.raises(CompositionError, match=r"these reports are numbers.*CRH"):
        fit_reports(DawidSkene(), reports_of([("t", "a", "1"), ("t", "b", "2")]), layout=TaskLayout(("t",), low=0, high=3))  # fmt: skip


def test_a_draw_of_logistic_is_one_in_any_order_of_the_workers() -> None:
    """Sums of equal weights of both signs are zero up to rounding, which depends on the order; the confidence stays at its beginning."""
    layout = TaskLayout(("t",), classes=("a", "b", "c"), workers=6)
    model, start = Logistic(), {"truth": np.full(3, 1 / 3)}
    for said in (np.zeros(3), np.full(3, 4e-16), np.full(3, -(2.0**-40))):
        np.testing.assert_array_equal(model.combine("votes", layout, {"said": said}, start)["truth"], start["truth"])
    assert model.combine("votes", layout, {"said": np.full(3, 1e-3)}, start)["truth"].min() > 0.5
