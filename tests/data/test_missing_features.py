"""Features may be missing where it is declared, in every reader of tables, and nowhere else."""

from __future__ import annotations

import numpy as np
import pytest

import atoll
from atoll.core.errors import DataError
from atoll.data import Dataset, concatenate, from_csv_files, from_pandas, read_csv, read_npz, scaled

X = np.array([[1.0, np.nan], [2.0, 0.5], [np.nan, 0.25]], np.float32)
Y = [0, 1, 1]


def test_they_must_be_declared_and_infinity_stays_refused():
    with pytest.raises(DataError, match=r"'x' has nan at row 0, feature 1 \(2 such") as error:
        Dataset({"x": X, "y": Y})
    assert "missing_features=True" in str(error.value)
    data = Dataset({"x": X, "y": Y}, missing_features=True)
    np.testing.assert_array_equal(data.x, X)
    with pytest.raises(DataError, match="'x' has inf at row 2"):
        Dataset({"x": np.where(np.isnan(X), [[1.0], [1.0], [np.inf]], X), "y": Y}, missing_features=True)
    with pytest.raises(DataError, match="'age' has nan"):
        Dataset({"x": X, "y": Y, "age": [1.0, np.nan, 2.0]}, missing_features=True)


def test_the_declaration_stays_with_the_rows():
    data, whole = Dataset({"x": X, "y": Y}, missing_features=True), Dataset({"x": np.nan_to_num(X), "y": Y})
    assert not whole.about.missing_features
    for made in (
        data.take([0]),
        data.with_columns({"z": [1, 2, 3]}),
        concatenate([whole, data]),
        data.split(0.5, 0)[1],
    ):
        assert made.about.missing_features
    islands = atoll.data.Islands.from_datasets([whole, data])
    assert islands.about.missing_features
    assert islands.pooled().about.missing_features
    np.testing.assert_array_equal(islands.shard(1).x, X)


def test_known_values_are_scaled_and_missing_ones_stay():
    data = Dataset({"x": np.column_stack([X, [np.nan] * 3]), "y": Y}, missing_features=True)
    np.testing.assert_allclose(scaled(data).x, [[-1, np.nan, np.nan], [1, 1, np.nan], [np.nan, -1, np.nan]], atol=1e-6)
    np.testing.assert_allclose(scaled(data, "minmax").x[:, 0], [0, 1, np.nan])


ROWS = "age,ward,empty,y\n61,east,,0\n,west,,1\n50,,NA,1\n"


def test_readers_turn_empty_cells_and_words_into_nan(tmp_path):
    (tmp_path / "a.csv").write_text(ROWS)
    with pytest.raises(DataError, match="5 missing value") as error:
        read_csv(tmp_path / "a.csv", target="y")
    assert "missing_features=True" in str(error.value)
    read = read_csv(tmp_path / "a.csv", target="y", missing_features=True)
    wanted = [[61, 0, np.nan], [np.nan, 1, np.nan], [50, np.nan, np.nan]]
    np.testing.assert_array_equal(read.x, wanted)
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"age": [61, None, 50], "ward": ["east", "west", None], "empty": [np.nan] * 3, "y": Y})
    np.testing.assert_array_equal(from_pandas(frame, target="y", missing_features=True).x, wanted)
    np.savez(tmp_path / "a.npz", x=X, y=Y)
    np.testing.assert_array_equal(read_npz(tmp_path / "a.npz", missing_features=True).x, X)


def test_files_agree_on_codes_although_cells_are_empty(tmp_path):
    # One file has no ward at all, and the other no age: neither is text there because of that.
    (tmp_path / "a.csv").write_text("age,ward,y\n61,,0\n40,,1\n")
    (tmp_path / "b.csv").write_text("age,ward,y\n,west,0\n,east,1\n,NA,1\n")
    read = from_csv_files([tmp_path / "a.csv", tmp_path / "b.csv"], target="y", missing_features=True)
    np.testing.assert_array_equal(
        read.pooled().x, [[61, np.nan], [40, np.nan], [np.nan, 1], [np.nan, 0], [np.nan, np.nan]]
    )
    with pytest.raises(DataError, match="is not a category of column 'ward'"):
        read_csv(tmp_path / "b.csv", target="y", categories={"ward": ["west"]}, missing_features=True)
