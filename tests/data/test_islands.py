"""Islands: sizes, shards, gathering, subsets, holdout, generation, and memory."""

import pickle
import tracemalloc

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

import atoll.data
from atoll.core.errors import DataError
from atoll.data import Dataset, Islands


def pool(n=60, classes=3):
    return Dataset({"x": np.arange(n, dtype=np.float32)[:, None], "y": np.arange(n) % classes}, name="pool")


def make_rows(client, rng):
    return {"x": rng.random((client % 3 + 1, 2)), "y": rng.integers(0, 2, client % 3 + 1)}


def kinds():
    """One population of each kind of supply."""
    base = atoll.data.iid(pool(), parties=12, seed=1)
    generated = Islands.generate(12, make_rows, seed=1, about=atoll.data.About("made", "classification", 2))
    noisy = atoll.data.corrupt(base, {"noise": 0.5}, seed=1)
    return {
        "pooled": base,
        "slices": atoll.data.gaussian_sizes(pool(), parties=12, contiguous=True),
        "generated": generated,
        "corrupted": noisy,
        "held out": noisy.holdout(0.3, 1)[0],
        "held out of pooled": base.holdout(0.3, 1)[1],
        "subset": noisy.subset([3, 4, 5, 0]),
    }


@pytest.mark.parametrize("kind", list(kinds()))
def test_gathering_is_looking_at_each_shard(kind):
    islands = kinds()[kind]
    clients = [2, 0, 2, len(islands) - 1]
    x, y, offsets = islands.gather(clients, "x", "y")
    assert offsets.dtype == np.int64
    assert len(x) == len(y) == offsets[-1]
    for j, client in enumerate(clients):
        shard = islands.shard(client)
        part = slice(offsets[j], offsets[j + 1])
        assert np.array_equal(x[part], shard.x)
        assert np.array_equal(y[part], shard.y)
        assert len(shard) == len(shard.x) == islands.sizes[client]
        assert np.array_equal(shard.source["x"][shard.rows], shard.x)
        assert np.array_equal(shard.dataset().x, shard.x)
    x[:] = 0  # fresh and writable
    assert [a.shape[1:] for a in islands.gather([], "x", "y")[:2]] == [x.shape[1:], ()]


@pytest.mark.parametrize("kind", list(kinds()))
def test_any_population_travels_to_another_process(kind):
    islands = kinds()[kind]
    again = pickle.loads(pickle.dumps(islands))
    assert np.array_equal(islands.gather([1, 3], "x")[0], again.gather([1, 3], "x")[0])
    assert again.names[1] == islands.names[1]


def test_shards_of_one_partition_share_their_source():
    islands = kinds()["pooled"]
    assert islands.shard(0).source is islands.shard(5).source
    assert islands.shard(0).rows.dtype == np.int64


def test_a_slice_costs_no_copy():
    islands = kinds()["slices"]
    assert np.shares_memory(islands.shard(3).x, islands.shard(3).source.x)


def test_a_shard_shows_itself():
    shard = kinds()["subset"].shard(0)
    assert shard.name == "client-3"
    assert repr(shard).startswith("Shard('client-3': 5 rows")
    assert shard.columns == ("x", "y")
    assert "x" in shard
    assert "z" not in shard
    with pytest.raises(TypeError, match="not iterable"):
        iter(shard)


def test_a_population_shows_itself():
    islands = atoll.data.iid(pool().with_test(pool(6)), parties=12)
    assert repr(islands) == "Islands('pool' by iid: 12 clients, classification of 3 classes, test 6 rows)"
    assert [len(shard) for shard in islands] == [5] * 12


def test_names_are_made_when_asked_for():
    names = kinds()["subset"].names
    assert list(names) == ["client-3", "client-4", "client-5", "client-0"]
    assert names[1:3] == ["client-4", "client-5"]
    assert names.index("client-0") == 3
    assert "client-1" not in names
    assert "3" not in names
    assert kinds()["subset"].shard("client-5").client == 5
    with pytest.raises(DataError, match=r"no client named 'client-44'. Did you mean 'client-4'"):
        names.index("client-44")


def test_natural_keys_name_the_clients():
    data = pool(6).with_columns({"writer": ["bo", "al", "bo", "al", "cy", "al"]})
    islands = atoll.data.natural(data, "writer")
    assert list(islands.names) == ["al", "bo", "cy"]
    assert islands.shard("al")["writer"].tolist() == ["al"] * 3
    assert list(islands.subset([2, 0]).names) == ["cy", "al"]


@pytest.mark.parametrize("wrong", [-1, 12, [12], [0.5]])
def test_clients_that_do_not_exist_are_refused(wrong):
    islands = kinds()["pooled"]
    look = islands.subset if isinstance(wrong, list) else islands.shard
    with pytest.raises(DataError, match="not positions in a population of 12"):
        look(wrong)


def test_names_compare_and_show_themselves():
    names = kinds()["pooled"].names
    assert names == [f"client-{i}" for i in range(12)]
    assert names != ["client-0"]
    assert repr(names) == "['client-0', 'client-1', 'client-2', ... 12 names]"
    assert repr(names[:2]) == "['client-0', 'client-1']"


def test_a_corruption_of_held_out_rows_knows_the_ranges():
    held = kinds()["held out"]
    clipped = atoll.data.corrupt(held, {atoll.data.Noise(sigma=9.0, clip=True): 1.0})
    assert clipped.pooled().x.max() == 59.0


def test_sizes_are_a_constant():
    sizes = kinds()["corrupted"].sizes
    with pytest.raises(ValueError, match="read-only"):
        sizes[0] = 1


def test_a_subset_keeps_rows_names_and_tags():
    noisy = kinds()["corrupted"]
    part = noisy.subset(np.arange(12) % 2 == 1).subset([2, 0])
    assert part.clients.tolist() == [5, 1]
    assert [part.tags[0], part.tags[1]] == [noisy.tags[5], noisy.tags[1]]
    assert np.array_equal(part.shard(0).x, noisy.shard(5).x)


def test_pooling_gives_every_row_and_refuses_what_is_too_big():
    islands = kinds()["pooled"]
    whole = islands.pooled()
    assert sorted(whole.x.ravel()) == list(range(60))
    assert whole.task == "classification"
    with pytest.raises(DataError, match="needs 720 bytes, more than max_bytes=100"):
        islands.pooled(max_bytes=100)
    with pytest.raises(DataError, match="pooling 1,000,000 clients"):
        atoll.data.linear(1_000_000, examples=100).pooled()


def test_islands_of_given_datasets():
    parts = {"north": pool(4), "south": pool(6)}
    islands = Islands.from_datasets(parts, test=pool(3))
    assert list(islands.names) == ["north", "south"]
    assert islands.sizes.tolist() == [4, 6]
    assert len(islands.test) == 3
    assert np.array_equal(islands.shard("south").x, parts["south"].x)
    assert Islands.from_datasets([pool(4), pool(5, 5)]).classes == 5
    with pytest.raises(DataError, match="no data sets"):
        Islands.from_datasets([])


def test_owners_must_fit():
    for owner in ([0] * 59, [3] * 60, [0.0] * 60):
        with pytest.raises(DataError, match="owners of shape"):
            Islands.from_owner(pool(), np.array(owner), 3)


# ---------------------------------------------------------------- holdout


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 20), st.floats(0.01, 0.99), st.integers(0, 3))
def test_a_holdout_divides_every_client(parties, fraction, seed):
    islands = atoll.data.iid(pool(), parties=parties)
    train, test = islands.holdout(fraction, seed)
    for i in range(parties):
        rows = np.concatenate([train.shard(i).x, test.shard(i).x]).ravel()
        assert sorted(rows) == sorted(islands.shard(i).x.ravel())
        n = int(islands.sizes[i])
        assert len(train.shard(i)) == max(int((1 - fraction) * n + 1e-9), 1)
    assert (train.sizes + test.sizes == islands.sizes).all()


def test_holding_out_of_a_pool_or_of_anything_else_is_the_same():
    base = kinds()["pooled"]
    lazy = atoll.data.corrupt(base, {}, seed=0)  # nothing spoiled, but no longer one pool
    for one, other in zip(base.holdout(0.3, 7), lazy.holdout(0.3, 7), strict=True):
        assert type(one._supply) is not type(other._supply)
        assert np.array_equal(one.sizes, other.sizes)
        for i in range(len(base)):
            assert np.array_equal(one.shard(i).x, other.shard(i).x)


def test_a_holdout_does_not_depend_on_who_else_is_there():
    base = kinds()["corrupted"]
    a = base.holdout(0.4, 1)[1].subset([5]).shard(0).x
    b = base.subset([9, 5]).holdout(0.4, 1)[1].shard(1).x
    assert np.array_equal(a, b)
    assert not np.array_equal(a, base.holdout(0.4, 2)[1].shard(5).x)


@pytest.mark.parametrize("fraction", [0.0, 1.0, -0.5])
def test_a_holdout_needs_a_fraction(fraction):
    with pytest.raises(DataError, match="holdout fraction"):
        kinds()["pooled"].holdout(fraction)


# ---------------------------------------------------------------- generation


def test_a_client_is_the_same_in_whatever_order_it_is_asked_for():
    one = Islands.generate(50, make_rows, seed=3)
    other = Islands.generate(50, make_rows, seed=3, cache_bytes=0)
    backwards = {i: other.shard(i).x for i in reversed(range(50))}
    for i in range(50):
        assert np.array_equal(one.shard(i).x, backwards[i])
    assert not np.array_equal(one.shard(4).x, Islands.generate(50, make_rows, seed=4).shard(4).x)
    assert len({one.shard(i).x.tobytes() for i in range(50)}) == 50


def test_sizes_are_counted_when_not_announced():
    assert Islands.generate(6, make_rows).sizes.tolist() == [1, 2, 3, 1, 2, 3]
    sized = Islands.generate(6, make_rows, sizes=np.array([1, 2, 3, 1, 2, 3]))
    assert sized.sizes.tolist() == [1, 2, 3, 1, 2, 3]


def test_announced_sizes_do_not_make_clients():
    made = []

    def make(client, rng):
        made.append(client)
        return {"x": rng.random((4, 1))}

    islands = Islands.generate(1000, make, sizes=4, about=atoll.data.About())
    assert islands.sizes.sum() == 4000
    assert len(islands.shard(7)) == 4
    assert made == []
    islands.gather([7, 3], "x")
    assert made == [7, 3]


@pytest.mark.parametrize(
    ("make", "sizes", "message"),
    [
        (lambda c, r: {"x": np.zeros((2, 1))}, 3, "made 2 rows, but sizes= says 3"),
        (lambda c, r: np.zeros(3), None, "returned ndarray"),
        (lambda c, r: {"x": np.full((2, 1), np.nan)}, None, "has nan at row 0"),
    ],
)
def test_a_bad_generator_is_named(make, sizes, message):
    with pytest.raises(DataError, match=message):
        Islands.generate(5, make, sizes=sizes, about=atoll.data.About()).shard(2).x


def test_sizes_that_do_not_fit_are_refused():
    for sizes in (-1, np.array([1, 2]), np.array([1.0] * 5), np.array([1, 1, 1, 1, -1])):
        with pytest.raises(DataError, match="sizes"):
            Islands.generate(5, make_rows, sizes=sizes)
    with pytest.raises(DataError, match="parties=0"):
        Islands.generate(0, make_rows)


def test_the_cache_is_bounded_in_bytes():
    islands = Islands.generate(100, lambda c, r: {"x": np.zeros((10, 10))}, sizes=10, cache_bytes=8000)
    for i in range(100):
        assert islands.shard(i).x.shape == (10, 10)
        assert islands._supply._cache.nbytes <= 8000
    assert islands.shard(99).source is islands.shard(99).source
    tiny = Islands.generate(2, lambda c, r: {"x": np.zeros((10, 10))}, sizes=10, cache_bytes=10)
    assert tiny.shard(0).source is not tiny.shard(0).source


# ---------------------------------------------------------------- scale


def measured(work):
    tracemalloc.start()
    try:
        kept = work()
        return kept, tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()


def test_a_million_generated_clients_cost_the_cohort():
    def work():
        islands = atoll.data.linear(1_000_000, examples=20, dims=32, test=0)
        cohort = np.arange(0, 1_000_000, 10_000)
        x, y, offsets = islands.gather(cohort, "x", "y")
        return islands, x, y, offsets

    (islands, x, _, offsets), (held, peak) = measured(work)
    assert len(islands) == 1_000_000
    assert x.shape == (2000, 32)
    assert offsets.tolist() == list(range(0, 2001, 20))
    # One int64 number and one tag byte per client, and the hundred clients looked at; the data of all would be
    # 2.7 GB.
    assert held < 12e6
    assert peak < 20e6
    assert islands.names[999_999] == "client-999999"


def test_a_million_clients_of_one_pool_cost_an_index():
    n = 2_000_000
    data = Dataset({"x": np.zeros((n, 1), np.float32), "y": np.arange(n) % 10})

    def work():
        islands = atoll.data.iid(data, parties=1_000_000, seed=0)
        return islands, islands.gather([5, 999_999], "x", "y")

    (islands, _), (held, _) = measured(work)
    # A 4-byte row number per row (8 MB), an offset and a number per client (16 MB), a tag byte (1 MB).
    assert held < 26e6
    assert islands.sizes.sum() == n
    description = islands.describe(sample=500)
    assert len(description.looked_at) == 500
    assert description.rows == n


def test_classes_that_were_numbered_apart_get_one_coding():
    def part(labels, y, **more):
        return Dataset({"x": np.arange(len(y)), "y": y}, labels=labels, **more)

    a, b = part(["2", "10"], [0, 1, 0]), part(["1", "10"], [1, 0])
    islands = Islands.from_datasets({"a": a, "b": b}, test=part(["10"], [0, 0]))
    assert islands.about.labels == ("1", "2", "10")  # by value, as rows read together
    assert islands.classes == 3
    assert [islands.about.labels[y] for y in islands.shard("a").y] == ["2", "10", "2"]
    assert [islands.about.labels[y] for y in islands.shard("b").y] == ["10", "1"]
    assert islands.test.y.tolist() == [2, 2]
    assert a.with_test(b.take([0])).test.y.tolist() == [1]
    held = Islands.from_datasets([a.with_test(a), b]).test
    assert [held.about.labels[y] for y in held.y] == ["2", "10", "2"]
    assert Islands.from_datasets([a, a]).about.labels == ("2", "10")
    with pytest.raises(DataError, match=r"the test rows have the class «1».*categories=\{target"):
        a.with_test(b)
    with pytest.raises(DataError, match="part 2 has labels without names"):
        Islands.from_datasets([a, b, part([], [0, 1])])


def test_test_rows_of_another_form_are_refused():
    rows, other = Dataset({"x": np.eye(3)}), Dataset({"x": np.eye(4)})
    for population in (rows, Islands.from_datasets([rows, rows])):
        with pytest.raises(DataError, match=r"column 'x' has rows of shape \(4,\) to test and \(3,\) to train on"):
            population.with_test(other)
        assert population.with_test(rows).with_test(None).test is None
    with pytest.raises(DataError, match="'x' has rows of shape"):
        Islands.from_datasets([rows], test=other)


def test_a_generator_that_raises_names_the_client():
    islands = Islands.generate(4, lambda client, rng: {"x": np.ones(3) / [1, 1, 1][client]}, name="mine")
    with pytest.raises(DataError, match=r"the generator raised IndexError: list index .* \(in client-3 of 'mine'\)"):
        islands.shard(3).x


def test_a_subset_is_taken_by_names() -> None:
    rows = {
        name: Dataset({"x": np.full((2, 1), k)}, task="unlabelled") for k, name in enumerate(("north", "east", "south"))
    }
    islands = Islands.from_datasets(rows)
    assert list(islands.subset(["south", "north"]).names) == ["south", "north"]
    assert islands.subset(["east"]).shard(0).x[0, 0] == 1
    with pytest.raises(DataError, match="west"):
        islands.subset(["west"])
    with pytest.raises(DataError, match="or the clients' names"):
        islands.subset([7])


def test_test_rows_of_another_kind_are_refused() -> None:
    data = atoll.data.Dataset({"x": np.zeros((4, 3)), "y": np.arange(4) % 2})
    with pytest.raises(DataError, match=r"test is a list.*a dict of client -> data set, or a share"):
        Islands.from_datasets({"a": data}, test=[data])  # type: ignore[arg-type]
