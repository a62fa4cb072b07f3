"""What a saved model knows of its rows: columns by name, codes of text, missing values, classes."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.core.errors import CompositionError, DataError
from atoll.data import Dataset, Islands
from atoll.data.model_columns import ModelColumns, RowPredictions, TableModel, type_classes

COLUMNS = ModelColumns(
    ("age", "ward", "sex"), {"ward": ("icu", "east=1"), "sex": ("1", "2")}, task="classification", classes=("no", "yes")
)
ROWS = {"age": [61.5, 40.0], "ward": ["east=1", "icu"], "sex": [2, 1]}
X = [[61.5, 1.0, 1.0], [40.0, 0.0, 0.0]]


@given(order=st.permutations(["age", "ward", "sex", "more"]), frame=st.booleans())
def test_no_order_of_columns_counts(order: list[str], frame: bool) -> None:
    table = {name: {**ROWS, "more": ["a", "b"]}[name] for name in order}
    made = COLUMNS.matrix(pd.DataFrame(table) if frame else table)
    assert (made.dtype, made.tolist()) == (np.float32, X)


def test_a_file_has_them_in_any_order(tmp_path) -> None:
    (tmp_path / "new.csv").write_text("sex,ward,age\n2,east=1,61.5\n1,icu,40\n")
    assert COLUMNS.matrix(tmp_path / "new.csv").tolist() == X
    assert COLUMNS.matrix(np.array(X)).tolist() == X
    with_holes = ModelColumns(COLUMNS.features, COLUMNS.categories, missing=True)
    (tmp_path / "new.csv").write_text("sex,ward,age\n,east=1,61.5\n1,NA,\n")
    np.testing.assert_array_equal(
        with_holes.matrix(str(tmp_path / "new.csv")), [[61.5, 1, np.nan], [np.nan, np.nan, 0]]
    )


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"age": None, "agee": [1.0, 2.0]}, r"no column 'age'. Did you mean 'agee'\? .*new"),
        ({"ward": ["east=1", "ICU"]}, r"column 'ward' has .*'ICU'.* in row 1"),
        ({"ward": ["east=1", "icuu"]}, r"Did you mean 'icu'\?"),
        ({"sex": [1, 3]}, "column 'sex' has .*'3'.* in row 1"),
        ({"age": ["61.5", "forty"]}, "column 'age' has the text .*'forty'.* in row 1"),
        ({"age": [1.0, np.nan]}, "1 values of column 'age' are missing, the first in row 1"),
        ({"ward": ["", "icu"]}, "1 values of column 'ward' are missing, the first in row 0"),
        ({"age": [1.0, 1e60]}, "too large for float32"),
    ],
)
def test_what_a_model_does_not_know_is_refused(change, match) -> None:
    table = {name: values for name, values in {**ROWS, **change}.items() if values is not None}
    with pytest.raises(DataError, match=match):
        COLUMNS.matrix(table, "new")


@pytest.mark.parametrize("bad", [[[1.0, 2.0]], [["a", "b", "c"]], [[1.0, 0.0, np.nan]]])
def test_arrays_of_another_form_are_refused(bad) -> None:
    with pytest.raises(DataError, match=r"shape|missing"):
        COLUMNS.matrix(np.array(bad))


def test_they_are_one_line_of_text() -> None:
    assert "=" not in COLUMNS.packed()
    assert "\n" not in COLUMNS.packed()
    assert ModelColumns.unpacked(COLUMNS.packed(), "file") == COLUMNS
    bare = ModelColumns.of(Islands.from_datasets([Dataset({"x": np.zeros((2, 3, 4)), "y": [0, 1]})]))
    assert bare is not None
    assert (bare.features[:2], bare.shape, bare.classes, bare.dtype) == (("x0", "x1"), (3, 4), ("0", "1"), "float64")
    assert ModelColumns.unpacked(bare.packed(), "file") == bare
    assert bare.matrix(np.zeros((5, 12))).shape == (5, 3, 4)
    with pytest.raises(DataError, match=r"cannot be read.*file"):
        ModelColumns.unpacked("{}", "file")


@pytest.mark.parametrize(("labels", "classes"), [([1, -1], ("-1", "1")), ([1, 0], ("0", "1")), ([1, 1], ("-1", "1"))])
def test_the_other_class_of_two_is_found(labels, classes) -> None:
    parts = [Dataset({"x": np.ones((1, 1)), "y": [label]}, task="binary") for label in labels]
    found = ModelColumns.of(Islands.from_datasets(parts))
    assert found is not None
    assert found.classes == classes


def test_names_of_classes_are_numbers_if_they_are_written_so() -> None:
    assert type_classes(["0", "10", "2"]).tolist() == [0, 10, 2]
    assert type_classes(["0.5", "1"]).tolist() == [0.5, 1.0]
    assert type_classes(["007", "7"]).tolist() == ["007", "7"]
    assert type_classes(["1", "one"]).tolist() == ["1", "one"]


def test_an_estimator_is_one_of_scikit_learn() -> None:
    base = pytest.importorskip("sklearn.base")
    model_selection = pytest.importorskip("sklearn.model_selection")
    frozen = pytest.importorskip("sklearn.frozen")

    def answer(rows, where):
        share = COLUMNS.matrix(rows, where)[:, :1] / 100
        return COLUMNS.decide(np.concatenate([1 - share, share], axis=1))

    made = TableModel("a test", COLUMNS, answer, probable=True).to_sklearn()
    assert base.is_classifier(made)
    assert not base.is_regressor(made)
    assert made.predict(ROWS).tolist() == ["yes", "no"]
    assert made.predict_proba(ROWS)[:, 1] == pytest.approx([0.615, 0.4])
    assert (made.classes_.tolist(), made.n_features_in_, made.score(ROWS, ["yes", "yes"])) == (["no", "yes"], 3, 0.5)
    again = base.clone(made)
    assert again.predict(ROWS).tolist() == ["yes", "no"]
    frame = pd.DataFrame({name: values * 4 for name, values in ROWS.items()})
    found = model_selection.cross_val_score(frozen.FrozenEstimator(made), frame, ["yes", "no"] * 4, cv=2)
    assert found.tolist() == [1.0, 1.0]
    with pytest.raises(CompositionError, match="not fitted again"):
        made.fit(ROWS)
    numbers = TableModel("a test", ModelColumns(("age",)), lambda rows, where: RowPredictions(np.array([1.0, 2.0])))
    assert base.is_regressor(numbers.to_sklearn())
    assert not hasattr(numbers.to_sklearn(), "predict_proba")
    assert numbers.to_sklearn().score(None, [1.0, 3.0]) == pytest.approx(0.5)
    with pytest.raises(CompositionError, match="no probabilities"):
        numbers.predict_proba(None)
