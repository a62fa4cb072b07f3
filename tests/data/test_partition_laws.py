"""What holds for every partitioner: rows are conserved, and the seed decides everything."""

import time

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

import atoll.data
from atoll.core.algebra.rng import Rng
from atoll.core.errors import DataError
from atoll.data import Dataset

PARTITIONERS = {
    "iid": lambda d, n, s: atoll.data.iid(d, parties=n, seed=s, allow_empty=True),
    "dirichlet": lambda d, n, s: atoll.data.dirichlet(d, parties=n, alpha=0.3, seed=s, allow_empty=True),
    "dirichlet balanced": lambda d, n, s: atoll.data.dirichlet(
        d, parties=n, alpha=0.1, balanced=True, seed=s, allow_empty=True
    ),
    "shards": lambda d, n, s: atoll.data.shards(d, parties=n, seed=s, allow_empty=True),
    "classes": lambda d, n, s: atoll.data.classes_per_client(d, parties=n + 5, classes=2, seed=s, allow_empty=True),
    "classes cyclic": lambda d, n, s: atoll.data.classes_per_client(
        d, parties=n + 5, classes=2, cyclic=True, seed=s, allow_empty=True
    ),
    "quantity dirichlet": lambda d, n, s: atoll.data.quantity_skew(d, parties=n, alpha=0.5, seed=s, allow_empty=True),
    "quantity power": lambda d, n, s: atoll.data.quantity_skew(d, parties=n, power=1.2, seed=s, allow_empty=True),
    "gaussian": lambda d, n, s: atoll.data.gaussian_sizes(d, parties=n, seed=s, min_size=0),
    "gaussian contiguous": lambda d, n, s: atoll.data.gaussian_sizes(d, parties=n, seed=s, min_size=0, contiguous=True),
    "dominant": lambda d, n, s: atoll.data.dominant_class(d, parties=n + 5, seed=s, allow_empty=True),
    "dominant random": lambda d, n, s: atoll.data.dominant_class(
        d, parties=n + 5, random=True, seed=s, allow_empty=True
    ),
    "feature": lambda d, n, s: atoll.data.feature_skew(d, parties=n, seed=s, allow_empty=True),
    "feature mixed": lambda d, n, s: atoll.data.feature_skew(d, parties=n, by="y", mix=0.5, seed=s, allow_empty=True),
    "natural": lambda d, n, s: atoll.data.natural(d, "y"),
    "natural merged": lambda d, n, s: atoll.data.natural(d, "y", parties=2, seed=s),
}


def data(n, classes, seed=0):
    rng = np.random.Generator(np.random.PCG64(seed))
    y = np.concatenate([np.arange(classes), rng.integers(0, classes, n - classes)])
    return Dataset({"x": np.arange(n, dtype=np.float64)[:, None], "y": y}, classes=classes)


@pytest.mark.parametrize("name", PARTITIONERS)
@settings(max_examples=25, deadline=None)
@given(st.integers(10, 200), st.integers(2, 5), st.integers(1, 30), st.integers(0, 99))
def test_every_row_goes_to_exactly_one_client(name, n, classes, parties, seed):
    islands = PARTITIONERS[name](data(n, classes), parties, seed)
    assert sorted(islands.pooled().x.ravel()) == list(range(n))
    assert islands.sizes.sum() == n
    assert (islands.sizes >= 0).all()


@pytest.mark.parametrize("name", PARTITIONERS)
def test_the_seed_decides(name):
    def rows(seed):
        islands = PARTITIONERS[name](data(300, 5), 8, seed)
        return [islands.shard(i).x.ravel().tolist() for i in range(len(islands))]

    assert rows(3) == rows(3)
    assert rows(Rng.of(3)) == rows(3)
    if name != "natural":
        assert rows(3) != rows(4)


@pytest.mark.parametrize("name", PARTITIONERS)
def test_the_server_keeps_its_test_set_and_the_scheme_is_named(name):
    whole = data(300, 5)
    islands = PARTITIONERS[name](whole.with_test(whole.take([0])), 8, 0)
    assert len(islands.test) == 1
    assert islands.scheme
    assert islands.classes == 5


BY_CLASS = ["dirichlet", "dirichlet balanced", "shards", "classes", "dominant"]


@pytest.mark.parametrize("name", BY_CLASS)
def test_label_skew_needs_classes(name):
    numbers = Dataset({"x": np.zeros((20, 1)), "y": np.linspace(0.0, 1.0, 20)})
    with pytest.raises(DataError, match="needs classes, but this is a regression"):
        PARTITIONERS[name](numbers, 2, 0)


@pytest.mark.parametrize("name", [n for n in PARTITIONERS if not n.startswith(("natural", "classes", "dominant"))])
@pytest.mark.parametrize("parties", [0, -1, 2.5, True])
def test_a_number_of_clients_is_a_whole_number(name, parties):
    with pytest.raises(DataError, match="parties="):
        PARTITIONERS[name](data(20, 2), parties, 0)


@pytest.mark.parametrize(
    "partition",
    [
        lambda d: atoll.data.iid(d, parties=20),
        lambda d: atoll.data.dirichlet(d, parties=20, alpha=1.0),
        lambda d: atoll.data.dirichlet(d, parties=20, alpha=1.0, balanced=True),
        lambda d: atoll.data.shards(d, parties=20, per_client=1),
        lambda d: atoll.data.classes_per_client(d, parties=20, classes=1),
        lambda d: atoll.data.quantity_skew(d, parties=20, alpha=1.0),
        lambda d: atoll.data.gaussian_sizes(d, parties=20),
        lambda d: atoll.data.dominant_class(d, parties=20),
        lambda d: atoll.data.feature_skew(d, parties=20),
    ],
)
def test_clients_without_rows_are_refused_by_name(partition):
    with pytest.raises(DataError, match=r"of 20 clients get fewer than min_size=1 rows: client-\d+ \(0\)") as caught:
        partition(data(10, 2))
    assert "fewer parties" in caught.value.remedy


def test_empty_clients_may_be_allowed_but_small_ones_not():
    islands = atoll.data.iid(data(10, 2), parties=20, allow_empty=True)
    assert (islands.sizes == 0).sum() == 10
    assert islands.shard(19).x.shape == (0, 1)
    with pytest.raises(DataError, match="10 of 20 clients get fewer than min_size=2"):
        atoll.data.iid(data(10, 2), parties=20, min_size=2, allow_empty=True)


def test_binary_labels_are_classes_too():
    signs = Dataset({"x": np.arange(40.0)[:, None], "y": np.repeat([-1, 1], 20)})
    islands = atoll.data.shards(signs, parties=4, per_client=1)
    assert all(len(np.unique(shard.y)) == 1 for shard in islands)


@pytest.mark.parametrize("name", ["iid", "dirichlet", "shards", "quantity power", "gaussian", "feature", "classes"])
@pytest.mark.quick("classes")
def test_a_million_clients_take_seconds(name):
    n = 2_000_000
    big = Dataset({"x": np.arange(n, dtype=np.float32)[:, None], "y": np.arange(n) % 10})
    start = time.process_time()
    islands = PARTITIONERS[name](big, 1_000_000, 0)
    assert islands.sizes.sum() == n
    assert time.process_time() - start < 30.0  # about 1 s to 4 s on a laptop core
