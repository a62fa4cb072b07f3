"""Descriptions and pictures of populations."""

import sys

import numpy as np
import pytest

import atoll.data
from atoll.core.errors import MissingExtraError
from atoll.data import Dataset, Islands


def two_clients():
    """One client with class 0 alone, one with classes 1 and 2 half and half."""
    parts = {
        "a": Dataset({"x": np.zeros((4, 1)), "y": [0, 0, 0, 0]}, classes=3),
        "b": Dataset({"x": np.zeros((4, 1)), "y": [1, 2, 1, 2]}, classes=3),
    }
    return Islands.from_datasets(parts)


def test_the_numbers_by_hand():
    d = two_clients().describe()
    assert d.counts.tolist() == [[4, 0, 0], [0, 2, 2]]
    assert d.classes_per_client == 1.5
    # The whole is (1/2, 1/4, 1/4); both clients are at distance 1/2 from it.
    assert d.label_skew == 0.5
    assert (d.size_mean, d.size_std, d.rows, d.clients) == (4.0, 0.0, 8, 2)
    assert d.size_quantiles[0.5] == 4.0


def test_clients_without_rows_do_not_count_for_the_labels():
    islands = atoll.data.iid(two_clients().pooled(), parties=20, allow_empty=True)
    assert islands.describe().classes_per_client == 1.0


def test_the_table_has_a_line_for_each_number():
    islands = atoll.data.corrupt(two_clients(), {"noise": 0.5})
    table = islands.describe().table()
    for part in ("clients", "rows per client", "4.0 ± 0.0", "1.50 of 3", "0.500", "noise 1"):
        assert part in table
    assert str(islands.describe()) == table


def test_a_regression_is_counted_in_deciles():
    data = Dataset({"x": np.arange(1000.0)[:, None], "y": np.arange(1000.0)})
    d = atoll.data.feature_skew(data, parties=10, by="y").describe()
    assert d.counts.shape == (10, 10)
    assert d.label_skew == pytest.approx(0.9)
    assert "deciles of y per client" in d.table()
    assert atoll.data.iid(data, parties=10).describe().label_skew < 0.2


def test_without_single_labels_there_is_no_skew():
    for columns in ({"x": np.zeros((6, 1))}, {"x": np.zeros((6, 1)), "y": np.zeros((6, 2))}):
        d = atoll.data.iid(Dataset(columns), parties=2).describe()
        assert d.label_skew is None
        assert d.classes_per_client is None
        assert "label skew" not in d.table()
        assert len(d.plot().axes) == 1


def test_a_sample_stands_for_the_rest_and_is_said_to():
    islands = atoll.data.linear(2000, examples=10, dims=4, classes=4)
    d = islands.describe(sample=50)
    assert len(d.looked_at) == 50
    assert d.rows == 20_000
    assert "50 clients sampled" in d.table()
    assert np.array_equal(d.looked_at, islands.describe(sample=50).looked_at)
    assert d.label_skew == pytest.approx(islands.describe().label_skew, abs=0.06)


def test_the_picture_shows_labels_and_sizes():
    islands = atoll.data.dirichlet(atoll.data.linear(1, examples=2000).pooled(), parties=200, alpha=1.0)
    figure = islands.describe().plot(clients=40)
    bubbles, sizes = figure.axes
    assert bubbles.get_xlabel() == "client (40 shown)"
    counts = islands.describe().counts
    shown = np.unique(np.linspace(0, 199, 40).astype(int))
    assert len(bubbles.collections[0].get_offsets()) == (counts[shown] > 0).sum()
    assert sum(patch.get_height() for patch in sizes.patches) == 200
    figure.canvas.draw()


def test_the_picture_works_for_a_million_clients():
    d = atoll.data.linear(1_000_000, examples=3, dims=2, test=0).describe(sample=300)
    d.plot().canvas.draw()
    assert d.rows == 3_000_000


def test_a_picture_without_matplotlib_says_what_to_install(monkeypatch):
    for name in [m for m in sys.modules if m.partition(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtraError, match=r'pip install "atoll\[report\]"'):
        two_clients().describe().plot()


def divided(y, owner, **about):
    rows = Dataset({"x": np.zeros((len(y), 1)), "y": np.array(y)}, task="classification", **about)
    return Islands.from_owner(rows, np.array(owner), max(owner) + 1)


def test_labels_that_begin_at_one_are_noted():
    seen = divided([1, 2, 3, 1, 2, 3], [0, 0, 0, 1, 1, 1]).describe()
    assert seen.notes == ["no row has class 0; if your labels begin at 1, use y - 1"]
    assert "look out" in seen.table()
    assert divided([0, 1, 0, 1], [0, 0, 1, 1]).describe().notes == []


def test_a_class_that_one_client_alone_has_is_noted():
    seen = divided([0, 1, 0, 1, 2, 2], [0, 0, 1, 1, 1, 1], labels=["cat", "dog", "owl"]).describe()
    assert seen.notes == ["class owl: at client 1 alone, so no other client learns or tests it"]
    several = divided([0, 1, 2, 3, 4, 5], [0, 0, 1, 1, 2, 2], classes=7).describe()
    assert several.notes == [
        "no row has class 6",
        "classes 0, 1, 2, 3, 4, ...: at one client each (0, 1, 2) alone, so no other client learns or tests it",
    ]
    assert divided([0, 1], [0, 0]).describe().notes == []  # one client alone has everything
