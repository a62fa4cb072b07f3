"""Tables of reports: what is read, what is refused, and how parties' tables fit together."""

from __future__ import annotations

import gzip
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from atoll.core.errors import DataError
from atoll.truth import (
    CRH,
    DawidSkene,
    MajorityVote,
    MeanReport,
    TaskLayout,
    pool_sites,
    read_reports,
    read_sites,
    read_truth,
    reports_of,
    score_labels,
    split_by_worker,
)

ROWS = [("t10", "bob", "007"), ("t2", "ann", "7"), ("t2", "bob", "7"), ("t10", "ann", "7")]
TEXT = "task,worker,label\n" + "".join(",".join(row) + "\n" for row in ROWS)


def test_labels_are_words_and_rows_have_no_order(tmp_path: Path) -> None:
    (tmp_path / "r.csv").write_text(TEXT)
    (tmp_path / "r.csv.gz").write_bytes(gzip.compress(TEXT.encode()))
    columns = dict(zip(("task", "worker", "label"), map(list, zip(*ROWS, strict=True)), strict=True))
    for table in (ROWS, ROWS[::-1], columns, pd.DataFrame(columns), read_reports(tmp_path / "r.csv"), read_reports(tmp_path / "r.csv.gz")):  # fmt: skip
        found = reports_of(table)
        assert sorted(found.rows()) == sorted(ROWS)
        assert set(found.labels) == {"007", "7"}
        assert found.workers == ("ann", "bob")
        assert not found.repeated


def test_the_reports_of_each_worker_are_split_at_once() -> None:
    whole = reports_of(ROWS)
    for values in ("classes", "numbers"):
        coded = whole.layout(values).code(whole)
        coded = replace(coded, workers=(*coded.workers, "cem"))  # who reports on nothing
        parts = coded.split_workers()
        assert [part.workers for part in parts] == [("ann",), ("bob",), ("cem",)]
        for at, part in enumerate(parts):
            alone = coded.of_workers(np.arange(3) == at)
            for name in ("task", "worker", "cell", "number"):
                np.testing.assert_array_equal(getattr(part, name), getattr(alone, name))


def test_spellings_of_one_number_have_one_order_in_every_process() -> None:
    spellings = ["7.0", "7", "007", "07", "7.00", "0007", "+7", "00007"]
    found = reports_of([("t", f"w{at}", word) for at, word in enumerate([*spellings, "6"])])
    assert found.labels == ("6", *sorted(spellings))


@pytest.mark.parametrize("word", ["NA", "None", "null", "?", "nan", "true", " 1 "])
def test_any_word_is_a_label(tmp_path: Path, word: str) -> None:
    (tmp_path / "r.csv").write_text(f"task,worker,label\nt,a,{word}\nt,b,other\n")
    assert set(read_reports(tmp_path / "r.csv").labels) == {word.strip(), "other"}


def test_the_first_of_repeated_reports_counts_with_a_warning() -> None:
    with pytest.warns(UserWarning, match="2 reports left out.*first report counts"):
        found = reports_of([("t", "a", "x"), ("t", "b", "y"), ("t", "a", "y"), ("t", "a", "x")])
    assert (found.repeated, found.rows()) == (2, [("t", "a", "x"), ("t", "b", "y")])


def test_a_series_has_the_tables_own_values_and_order() -> None:
    frame = pd.DataFrame({"task": [12, 3, 12, 3, 7], "worker": [1, 1, 2, 2, 1], "label": [True, False, True, False, True]})  # fmt: skip
    model = DawidSkene()
    found = model.fit_predict(frame)
    assert found.to_dict() == {12: True, 3: False, 7: True}
    assert found.index.tolist() == [12, 3, 7]
    assert model.probas_.columns.tolist() == [False, True]
    assert model.skills_.index.tolist() == [1, 2]
    assert model.n_iter_ >= 1
    numbers = pd.DataFrame({"task": ["b", "b", "a"], "worker": [1, 2, 1], "label": [1.5, 2.5, 4.0]})
    assert MeanReport().fit_predict(numbers).to_dict() == pytest.approx({"b": 2.0, "a": 4.0})


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"task": ["t"], "worker": ["a"], "lable": ["x"]}, r"no column 'label'.*Did you mean 'lable'"),
        ({"task": ["t"], "worker": ["a"], "label": [None]}, r"label of row 1 is missing.*leave the row out"),
        ({"task": ["t"], "worker": ["a"], "label": [float("nan")]}, r"label of row 1 is missing"),
        ({"task": ["t", "u"], "worker": ["a", " "], "label": ["x", "y"]}, r"worker of row 2 is missing"),
        ({"task": ["t", "u"], "worker": ["a", "a"], "label": ["1", 1]}, r"«1» as int and as str.*in one way"),
        ({"task": ["t", "u"], "worker": ["a"], "label": ["x", "y"]}, r"differ in length"),
        ([], r"there are no reports"),
        ([("t", "a")], r"not three values"),
        (5, r"int is not a table of reports"),
    ],
)
def test_tables_that_are_none_are_refused(table: Any, said: str) -> None:
    with pytest.raises(DataError, match=said):
        reports_of(table)


def test_files_without_a_column_are_refused(tmp_path: Path) -> None:
    (tmp_path / "r.csv").write_text("task,annotator,label\nt,a,x\n")
    with pytest.raises(DataError, match=r"no column 'worker'.*r.csv.*task, worker, label"):
        read_reports(tmp_path / "r.csv")
    (tmp_path / "t.csv").write_text("task,label\nt,x\n")
    with pytest.raises(DataError, match=r"no column 'truth'"):
        read_truth(tmp_path / "t.csv")


def test_models_of_numbers_refuse_words_and_one_class_is_none() -> None:
    with pytest.raises(DataError, match=r"«no» is no number.*DawidSkene"):
        CRH().fit([("t", "a", "no"), ("t", "b", "1")])
    for word in ("1_200", "nan", "inf"):
        with pytest.raises(DataError, match="is no number"):
            CRH().fit([("t", "a", word)])
    with pytest.raises(DataError, match=r"all labels are «x»: one class"):
        DawidSkene().fit([("t", "a", "x"), ("u", "b", "x")])


def test_sites_have_workers_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "r.csv").write_text("hospital,task,worker,label\nnorth,t,a,x\nsouth,t,b,y\nnorth,u,a,y\n")
    sites = read_sites(tmp_path / "r.csv", "hospital")
    assert {name: part.rows() for name, part in sites.items()} == {"north": [("t", "a", "x"), ("u", "a", "y")], "south": [("t", "b", "y")]}  # fmt: skip
    assert sorted(pool_sites(sites).rows()) == [("t", "a", "x"), ("t", "b", "y"), ("u", "a", "y")]
    with pytest.raises(DataError, match=r"'north' and 'south' both claim worker «a»"):
        pool_sites({"north": [("t", "a", "x")], "south": [("u", "a", "x")]})
    (tmp_path / "r.csv").write_text("hospital,task,worker,label\nnorth,t,a,x\nsouth,u,a,y\n")
    with pytest.raises(DataError, match="both claim worker"):
        read_sites(tmp_path / "r.csv", "hospital")
    with pytest.raises(DataError, match=r"no column 'ward'"):
        read_sites(tmp_path / "r.csv", "ward")


def test_parties_of_workers_share_a_layout() -> None:
    whole = reports_of([("t", "a", "x"), ("t", "b", "y"), ("u", "c", "z")])
    layout = whole.layout()
    parts = split_by_worker(whole)
    assert list(parts) == ["a", "b", "c"]
    cells = np.concatenate([layout.code(part).cell for part in parts.values()])
    np.testing.assert_array_equal(cells, layout.code(whole).cell)
    assert whole.of_workers(["c", "a"]).rows() == [("t", "a", "x"), ("u", "c", "z")]
    own = reports_of([("u", "d", "x")])  # a party that has seen one task and one label
    assert layout.code(own).cell.tolist() == [3]


@pytest.mark.parametrize(
    ("reports", "said"),
    [
        ([("v", "a", "x")], r"task «v» is not among the 2 tasks"),
        ([("t", "a", "q")], r"label «q» of task «t» is not one that it may have"),
    ],
)
def test_reports_that_do_not_fit_a_layout_are_refused(reports: Any, said: str) -> None:
    layout = TaskLayout(("t", "u"), classes=("x", "y"))
    with pytest.raises(DataError, match=said):
        layout.code(reports_of(reports))


def test_numbers_out_of_range_are_refused() -> None:
    layout = TaskLayout(("t",), low=0, high=10, workers=3)
    assert layout.code(reports_of([("t", "a", 2.5)])).number.tolist() == [0.25]
    with pytest.raises(DataError, match=r"«11.0» is not between 0 and 10"):
        layout.code(reports_of([("t", "a", 11)]))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: TaskLayout(()), "there are no tasks"),
        (lambda: TaskLayout(("t",), classes=("x",)), "one class"),
        (lambda: TaskLayout(("t", "t"), classes=("x", "y")), "a task is named twice"),
        (lambda: TaskLayout(("t",), candidates=((),)), "a task has no candidates"),
        (lambda: TaskLayout(("t",), low=2, high=1), "low=2, high=1"),
        (lambda: TaskLayout(("t",), workers=0), "workers=0"),
    ],
)
def test_layouts_that_are_none_are_refused(make: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        make()


def test_claims_have_candidates_of_their_own() -> None:
    reports = reports_of({"obj": ["o", "o", "p"], "src": ["a", "b", "a"], "value": ["Oslo", "Bergen", "Rome"]})
    layout = reports.layout()
    assert (layout.values, layout.candidates) == ("claims", (("Bergen", "Oslo"), ("Rome",)))
    assert layout.code(reports).cell.tolist() == [1, 0, 2]
    assert MajorityVote().fit_predict(reports)["p"] == "Rome"


def test_ties_are_shared_and_a_truth_needs_reports(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("task,truth\nt,x\nu,y\n")
    truth = read_truth(tmp_path / "t.csv")
    shares = MajorityVote().fit([("t", "a", "x"), ("t", "b", "y"), ("u", "a", "y")]).probas_
    assert score_labels(shares, truth) == 0.75
    with pytest.raises(DataError, match=r"nobody reported on task «v», one of 1 with a truth"):
        score_labels(shares, {**truth, "v": "x"})
    (tmp_path / "t.csv").write_text("task,truth\nt,x\nt,y\n")
    with pytest.raises(DataError, match=r"task «t» is «x» and «y»"):
        read_truth(tmp_path / "t.csv")


def test_a_model_that_was_not_fitted_says_so() -> None:
    with pytest.raises(ValueError, match=r"has not been fitted.*fit_predict"):
        DawidSkene().probas_
    model = MajorityVote().fit([("t", "a", "x"), ("t", "b", "y")])
    for name in ("errors_", "skills_"):
        with pytest.raises(ValueError, match=r"MajorityVote (has no|does not)"):
            getattr(model, name)
    assert model == MajorityVote()
