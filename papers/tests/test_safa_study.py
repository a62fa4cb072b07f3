"""The study beyond the thesis: tasks, methods, what a run comes to, verdicts."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.core.requests.party import Roster
from atoll.core.requests.results import Plan as Request
from atoll.core.requests.task import Workload
from atoll.reproduce import Lab, NotKept, find_entry
from atoll.rounds.history import History
from atoll.runs import parse_config
from atoll_papers.safa import study as beyond
from atoll_papers.safa.study import SafaCell, StudyPlan, compared, judge_study, study, target_of
from atoll_papers.safa.study_trainings import (
    COMPAT_TIME,
    DIGITS,
    FIFTH,
    METHODS,
    PUBLISHED,
    SAME,
    STUDIED,
    WINDOW,
    Run,
    Settled,
    devices,
    islands,
    measured,
    members,
    pace,
    settings,
    settled,
    trained,
)
from atoll_papers.safa.tasks import KDD, train_sizes


def run_of(losses, seconds=None, clients=10) -> Run:
    """A run whose every round merges 2 of 3 replies, sends 4 copies and throws half an update of 5 begun away."""
    n = len(losses)
    at = np.arange(1, n + 1) * 100.0 if seconds is None else np.asarray(seconds, dtype=float)
    each = [np.full(n, v) for v in (2.0, 4.0, 3.0, 0.5, 5.0, 0.25, 1.0)]
    return Run(clients, at, np.asarray(losses, dtype=float), *each, 0.0)


def test_tasks() -> None:
    assert (FIFTH.rows, FIFTH.clients) == (math.ceil(KDD.rows / 5), KDD.clients // 5)
    assert {FIFTH.limit, DIGITS.limit} == {KDD.limit}
    made = islands("digits", 1)
    assert len(made) == 20
    # The objective: what the server evaluates on are the clients' own rows.
    assert len(made.test) == int(made.sizes.sum()) == int(1_797 * 0.7)
    whole = np.concatenate([np.asarray(made.shard(k).x) for k in range(20)])
    assert (np.asarray(made.test.x) == whole).all()


@pytest.mark.parametrize("task", list(STUDIED))
def test_devices_take_the_seconds_of_table_3_2(task) -> None:
    of, drawn = STUDIED[task], members(task, 3)
    everyone = Roster(of.clients).all()
    train = train_sizes(drawn.sizes, int(of.rows * of.train))
    epochs = np.full(of.clients, of.epochs)
    work = Workload(train, -(-train // of.batch_size) * epochs, epochs)
    request = Request("train", 40_000, 0, 0.0, 0, lambda: work, 123_456)  # turns without end
    made = devices(task, 0.3, 3)
    assert made.forecast(everyone, request) == pytest.approx(drawn.seconds)
    outcomes, wait = made.plan(everyone, request), 0.008 * of.clients
    assert outcomes.seconds[outcomes.done] == pytest.approx(drawn.seconds[outcomes.done] + wait)
    # Whoever crashes is back before its reply would have come.
    assert (outcomes.seconds[~outcomes.done] < drawn.seconds[~outcomes.done] + wait).all()


@pytest.mark.every(4)  # each task, with eight of eleven methods
@pytest.mark.parametrize("method", [m for m in METHODS if m not in SAME])
@pytest.mark.parametrize("task", list(STUDIED))
def test_every_method_is_a_configuration(task, method) -> None:
    made = settings(task, method, 0.3, 0.1, 2, 7, target=0.5)
    config = parse_config(made)
    assert (config.rounds, config.seed) == (7, 2)
    assert made["algorithm"]["lr"] == STUDIED[task].lr
    assert config.stop[0].build("stop") == Settled(0.5)


def test_another_rate_is_another_run() -> None:
    slow, fast = (settings("boston", "SAFA", 0.3, 0.1, 2, 7, rate=rate) for rate in (1.0, 10.0))
    assert fast["algorithm"]["lr"] == pytest.approx(10 * slow["algorithm"]["lr"])
    assert fast["name"] == slow["name"] + "-rate-10"
    assert [str(cell) for cell in StudyPlan("boston", 5, (0.3,), (0.1,), rate=10.0).cells] == [
        "boston cr 0.3 C 0.1 rate x 10"
    ]
    assert str(SafaCell("boston", 0.3, 0.1)) == "boston cr 0.3 C 0.1"


def test_a_note_to_go_on_is_no_download_but_as_published() -> None:
    note = Request("train", 67, 448, 0.0, 0, lambda: Workload(np.ones(5), np.ones(5), np.ones(5)), 1)
    for method in ("SAFA", "SAFA, bounded", PUBLISHED, "FedBuff"):
        told = settings("boston", method, 0.3, 0.1, 0, 5)["devices"]
        times = devices(**{name: value for name, value in told.items() if name != "name"}).times(Roster(5).all(), note)
        assert (times.down[0] > 57) == (method in (PUBLISHED, "FedBuff"))
        assert times.up[0] > 57  # the smallest reply is a model


def test_methods_differ_in_what_they_say() -> None:
    paces = {m: pace(FIFTH, m, 0.1) for m in METHODS if m not in SAME}
    assert len({str(made) for made in paces.values()}) == len(paces)
    assert paces["FedAvg, absent keep global"] == {**paces["FedAvg"], "aggregation": "KeepGlobal"}
    assert paces["FedBuff"]["pacing"]["buffer"] == paces["FedAsync"]["pacing"]["arrivals"] == 10
    assert paces["SAFA"]["pacing"] == {"name": "SAFA", "lag_tolerance": 5, "deadline": 1620.0}


@given(st.lists(st.floats(0.0, 10.0), max_size=30))
def test_a_settled_loss_is_a_mean_of_five(losses) -> None:
    found = settled(np.array(losses))
    assert len(found) == len(losses)
    assert np.isinf(found[: WINDOW - 1]).all()
    for end in range(WINDOW, len(losses) + 1):
        assert found[end - 1] == pytest.approx(np.mean(losses[end - WINDOW : end]))


def test_a_run_stops_where_its_loss_has_settled() -> None:
    losses = [1.0, 0.1, 0.9, 0.8, 0.7, 0.6, 0.5]
    rows = [{"round": i + 1, "test/loss": v} for i, v in enumerate(losses)]
    rule = Settled(0.63)
    met = [rule.reason(History(rows[:n])) is not None for n in range(1, 8)]
    assert met == [False, False, False, False, False, True, False]  # one lucky round does not count
    assert rule.reason(History([*rows[:6], {"round": 7}])) is None
    assert run_of(losses).until(0.63)["rounds"] == 6


def test_what_a_run_comes_to() -> None:
    run = run_of([1, 1, 1, 1, 0.5, 0.1, 0.1, 0.1])
    assert run.costs() == pytest.approx(
        {"length": 100, "EUR": 0.2, "SR": 0.4, "up": 0.3, "VV": 0.25, "waste": 0.5 / 5, "work": 0.35}
    )
    assert run.until(0.75) == {"rounds": 6, "seconds": 600, "down": 24, "up": 18, "work": 21}
    assert set(run.until(0.01).values()) == {np.inf}
    assert run.after(500) == pytest.approx(0.9)
    assert run.after(300) == np.inf


def test_a_target_can_be_reached() -> None:
    for values in ([0.1234567] * 6, [0.9, 0.5, 0.4, 0.3, 0.35, 0.31, 0.3049999]):
        run = run_of(values)
        target = target_of(run, len(values))
        assert run.until(target)["rounds"] <= len(values)
        assert target - settled(run.losses).min() < 1.1e-6


def test_columns_of_records() -> None:
    rows = [
        {"t_end": 5.0, "test/loss": 1.0, "replied": 5, "picked": 2, "undrafted": 3, "synchronised": 4, "wasted": 0.5, "begun": 6.5, "selected": 9, "late": 1, "version_variance": 0.1},
        {"t_end": 9.0, "test/loss": 0.5, "replied": 0, "picked": 0, "undrafted": 0, "synchronised": None, "wasted": 0.0},
    ]  # fmt: skip
    run = measured(rows, 10, 1.5)
    assert (run.merged.tolist(), run.replies.tolist(), run.copies.tolist()) == ([2, 0], [5, 0], [4, 0])
    assert run.begun.tolist() == [6.5, 0.0]
    assert (run.seconds[-1], run.spread[0], run.late[0], run.computing) == (9, 0.1, 1, 1.5)
    plain = measured([{"t_end": 5.0, "test/loss": 1.0, "selected": 6, "replied": 5, "synchronised": 6}], 10)
    assert (plain.merged.tolist(), plain.replies.tolist(), plain.begun.tolist()) == ([5], [5], [6])


def test_verdicts() -> None:
    """One cell where everyone is faster, one where seeds differ, one where one never comes, one where neither does."""
    slow, fast, never = [1] * 9 + [0] * 11, [1] * 3 + [0] * 7, [1] * 9
    cells = [SafaCell("boston", cr, 0.5) for cr in (0.1, 0.3, 0.5, 0.7)]
    pairs = [([fast, fast], [slow, slow]), ([fast, slow], [slow, fast]), ([never, slow], [fast, fast]), ([never] * 2, [never] * 2)]  # fmt: skip
    found = {}
    for cell, (mine, theirs) in zip(cells, pairs, strict=True):
        found[cell, "SAFA"] = [(run_of(v), 0.0) for v in mine]
        found[cell, PUBLISHED] = [(run_of(v), 0.0) for v in theirs]
    verdict = compared(found, "SAFA", PUBLISHED)
    assert (verdict.better, verdict.worse, verdict.open) == ((cells[0],), (cells[2],), (cells[1], cells[3]))
    assert verdict.ratios[cells[0]] == pytest.approx(8 / 14)
    assert verdict.ratios[cells[2]] == np.inf
    assert math.isnan(verdict.ratios[cells[3]])
    assert verdict.holds() is False
    alone = compared({key: runs for key, runs in found.items() if key[0] == cells[0]}, "SAFA", PUBLISHED)
    assert [alone.holds(missing) for missing in (0, 1, 3)] == [True, None, None]  # more cells could turn out worse
    both = compared({key: runs for key, runs in found.items() if key[0] in cells[1:2]}, "SAFA", PUBLISHED)
    assert [both.holds(missing) for missing in (0, 1, 2)] == [False, False, None]
    assert "boston cr 0.5 C 0.5: never" in verdict.where()
    assert "boston cr 0.7 C 0.5: neither" in verdict.where()
    assert verdict.told() == "better in 1, worse in 1, undecided in 2 of 4 cells"


def test_the_tables_time_is_another_clock_of_the_same_rounds(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    strict = trained(lab, "digits", PUBLISHED, 0.3, 1.0, 0, 6)
    tables = trained(lab, "digits", COMPAT_TIME, 0.3, 1.0, 0, 6)
    assert (tables.losses == strict.losses).all()
    assert (tables.merged == strict.merged).all()
    assert tables.seconds[-1] < strict.seconds[-1]
    assert len(list((tmp_path).iterdir())) == 1


def test_cells_that_are_not_kept_are_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beyond, "PLANS", (StudyPlan("digits", 6, (0.1, 0.3), (0.3,), 1),))

    def kept(lab: Lab, task: str, method: str, crash: float, *rest: object, rate: float = 1.0) -> Run:
        if crash == 0.1:
            raise NotKept(task)
        return run_of([1] * 9 + [0] * 11)

    monkeypatch.setattr("atoll_papers.safa.study.trained", kept)
    made = judge_study(Lab(tmp_path, kept=True), False)
    assert [c.claim for c in made if c.verdict == "not run"] == ["digits cr 0.1 C 0.3: all methods"]
    assert sum(c.claim.startswith("digits cr 0.3") for c in made) == len(METHODS)
    told = [c for c in made if "1 cells are not run" in c.note]
    assert len(told) == len(METHODS) - 1 + 14
    assert {c.verdict for c in told} == {"does not hold"}  # neither is better: one more cell could not be most of two


@pytest.mark.slow
def test_a_study_is_kept_and_judged(tmp_path: Path) -> None:
    plan = StudyPlan("digits", 6, (0.3,), (0.3,), 1)
    found = study(Lab(tmp_path), [plan])
    assert set(found) == {(SafaCell("digits", 0.3, 0.3), method) for method in METHODS}
    folders = sorted(tmp_path.iterdir())
    again = study(Lab(tmp_path), [plan])
    assert sorted(tmp_path.iterdir()) == folders
    for key in found:
        assert (found[key][0][0].losses == again[key][0][0].losses).all()
    # FedAvg set the target, and meets it.
    run, target = found[SafaCell("digits", 0.3, 0.3), "FedAvg"][0]
    assert run.until(target)["rounds"] <= 6


@pytest.mark.slow
def test_the_entry_runs_without_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ATOLL_DATA", raising=False)
    assert find_entry("safa-study").run is judge_study
    made = judge_study(Lab(tmp_path), True)
    assert len(made) == 12 + 11 + 14
    assert all(claim.note for claim in made)
