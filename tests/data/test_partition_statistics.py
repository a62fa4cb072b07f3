"""What each partitioner promises about the clients."""

import itertools

import numpy as np
import pytest

import atoll.data
from atoll.core.errors import DataError
from atoll.data import Dataset
from atoll.data.partition._rows import apportion
from atoll.data.partition.label_skew import draw


def balanced(n=6000, classes=10):
    return Dataset({"x": np.arange(n, dtype=np.float32)[:, None], "y": np.arange(n) % classes}, classes=classes)


def label_counts(islands):
    return islands.describe().counts


def test_uniform_sizes_differ_by_at_most_one():
    sizes = atoll.data.iid(balanced(103), parties=10).sizes
    assert set(sizes.tolist()) == {10, 11}


# ---------------------------------------------------------------- Dirichlet


def test_a_dirichlet_draw_has_its_mean_and_variance():
    # Dir(a * 1) over K: mean 1/K, variance (1/K)(1 - 1/K)/(K a + 1).
    alpha, k = 0.3, 5
    sample = draw(alpha, (20_000, k), 1, np.random.Generator(np.random.PCG64(0)))
    assert np.allclose(sample.sum(axis=1), 1.0)
    assert np.allclose(sample.mean(axis=0), 1 / k, atol=0.01)
    assert np.allclose(sample.var(axis=0), (1 / k) * (1 - 1 / k) / (k * alpha + 1), rtol=0.05)


def test_a_tiny_concentration_does_not_underflow():
    sample = draw(1e-4, (1000, 10), 1, np.random.Generator(np.random.PCG64(0)))
    assert np.isfinite(sample).all()
    assert (sample.max(axis=1) > 0.999).mean() > 0.98


@pytest.mark.parametrize("equal", [False, True])
def test_small_alpha_gives_few_classes_and_large_alpha_the_whole(equal):
    def skew(alpha):
        return atoll.data.dirichlet(
            balanced(), parties=20, alpha=alpha, seed=1, balanced=equal, allow_empty=True
        ).describe()

    assert skew(0.02).classes_per_client < 3.5
    assert skew(0.02).label_skew > 0.7
    assert skew(1000.0).classes_per_client == 10
    assert skew(1000.0).label_skew < 0.05
    skews = [skew(alpha).label_skew for alpha in (0.02, 0.1, 0.5, 2.0, 10.0)]
    assert skews == sorted(skews, reverse=True)


def test_class_shares_have_the_dirichlets_variance():
    # Var of one client's share of one class is (1/N)(1 - 1/N)/(N a + 1) for N clients.
    parties, alpha = 10, 0.5
    shares = []
    for seed in range(40):
        islands = atoll.data.dirichlet(balanced(), parties=parties, alpha=alpha, seed=seed, allow_empty=True)
        shares.append(label_counts(islands) / 600)
    expected = (1 / parties) * (1 - 1 / parties) / (parties * alpha + 1)
    assert np.var(shares) == pytest.approx(expected, rel=0.1)


def test_balanced_clients_have_equal_sizes():
    sizes = atoll.data.dirichlet(balanced(1003), parties=20, alpha=0.1, balanced=True).sizes
    assert set(sizes.tolist()) == {50, 51}


def test_a_balanced_class_mix_has_the_dirichlets_variance():
    # With equal class sizes the fit hardly moves the mixes: Var = (1/C)(1 - 1/C)/(C a + 1).
    islands = atoll.data.dirichlet(balanced(40_000), parties=400, alpha=1.0, balanced=True)
    mix = label_counts(islands) / 100
    assert mix.var() == pytest.approx(0.1 * 0.9 / 11, rel=0.1)


def test_a_bad_alpha_is_refused():
    for alpha in (0.0, -1.0, np.inf, np.nan):
        with pytest.raises(DataError, match="alpha="):
            atoll.data.dirichlet(balanced(), parties=2, alpha=alpha)


# ---------------------------------------------------------------- shards and classes


def test_two_shards_show_at_most_a_few_classes():
    # McMahan et al. 2017: 100 clients, 200 shards of 300 digits: "most clients will only have examples of two digits".
    data = balanced(60_000)
    islands = atoll.data.shards(data, parties=100, per_client=2)
    assert set(islands.sizes.tolist()) == {600}
    held = (label_counts(islands) > 0).sum(axis=1)
    assert held.max() <= 2
    assert (held == 2).mean() > 0.8


def test_each_client_has_its_number_of_classes():
    for cyclic in (False, True):
        islands = atoll.data.classes_per_client(balanced(), parties=30, classes=3, cyclic=cyclic)
        counts = label_counts(islands)
        assert ((counts > 0).sum(axis=1) == 3).all()
        # A class is divided evenly among the clients that have it.
        for column in counts.T:
            held = column[column > 0]
            assert held.max() - held.min() <= 1


def test_cyclic_classes_follow_the_client():
    # (k + j) mod 10, j = 0..4: the FEMNIST split of FedProx's public generator.
    islands = atoll.data.classes_per_client(balanced(), parties=50, classes=5, cyclic=True)
    assert np.unique(islands.shard(8).y).tolist() == [0, 1, 2, 8, 9]


def test_a_class_that_nobody_would_have_is_refused():
    with pytest.raises(DataError, match=r"no client would have class .* at least 5 parties"):
        atoll.data.classes_per_client(balanced(), parties=3, classes=2, cyclic=False)
    with pytest.raises(DataError, match="classes=11 of 10"):
        atoll.data.classes_per_client(balanced(), parties=3, classes=11)
    with pytest.raises(DataError, match="per_client=0"):
        atoll.data.shards(balanced(), parties=3, per_client=0)


# ---------------------------------------------------------------- sizes


def test_a_power_law_gives_its_sizes():
    islands = atoll.data.quantity_skew(balanced(), parties=10, power=1.0, min_size=0)
    weights = 1 / np.arange(1, 11)
    expected = 6000 * weights / weights.sum()
    assert np.allclose(np.sort(islands.sizes)[::-1], expected, atol=1)
    assert islands.describe().label_skew < 0.1  # sizes only, not labels
    assert set(atoll.data.quantity_skew(balanced(), parties=10, power=0.0).sizes.tolist()) == {600}


def test_dirichlet_sizes_have_their_variance_and_their_floor():
    sizes = [atoll.data.quantity_skew(balanced(), parties=10, alpha=0.5, seed=s, min_size=0).sizes for s in range(100)]
    assert np.var(sizes) / 6000**2 == pytest.approx(0.1 * 0.9 / 6, rel=0.15)
    floored = atoll.data.quantity_skew(balanced(), parties=10, alpha=0.01, min_size=7).sizes
    assert floored.min() == 7


@pytest.mark.parametrize("options", [{}, {"alpha": 1.0, "power": 1.0}, {"alpha": -1.0}, {"power": -1.0}])
def test_quantity_skew_takes_exactly_one_law(options):
    with pytest.raises(DataError, match=r"alpha=|power="):
        atoll.data.quantity_skew(balanced(), parties=10, **options)


def test_apportioning_is_exact_and_within_one():
    rng = np.random.Generator(np.random.PCG64(0))
    for _ in range(50):
        shares = rng.random(17)
        total = int(rng.integers(0, 10_000))
        parts = apportion(total, shares)
        assert parts.sum() == total
        assert np.abs(parts - shares / shares.sum() * total).max() < 1


# SAFA's training rows, clients and printed means: Table 3.2 of the thesis (Boston 0.7 * 506, MNIST, KDD 0.7 * 186,480).
@pytest.mark.parametrize(("rows", "parties", "mean"), [(354, 5, 71), (60_000, 100, 600), (130_536, 500, 260)])
def test_gaussian_sizes_are_those_of_the_safa_experiments(rows, parties, mean):
    sizes = np.concatenate(
        [
            atoll.data.gaussian_sizes(balanced(rows), parties=parties, min_size=20, contiguous=True, seed=s).sizes
            for s in range(30)
        ]
    )
    assert sizes.min() >= 20
    assert sizes.mean() == pytest.approx(mean, rel=0.01)
    # Scaling to the total takes away one degree of freedom: the deviation shrinks by sqrt(1 - 1/N).
    assert sizes.std() / sizes.mean() == pytest.approx(0.3 * np.sqrt(1 - 1 / parties), rel=0.1)


def test_fedprofs_gas_turbine_sizes():
    # Table 5.2: 50 clients, N(514, 154^2) of 25.7 thousand rows.
    sizes = np.concatenate([atoll.data.gaussian_sizes(balanced(25_700), parties=50, seed=s).sizes for s in range(20)])
    assert sizes.mean() == 514
    assert sizes.std() == pytest.approx(154, rel=0.06)


def test_contiguous_slices_lie_in_file_order():
    islands = atoll.data.gaussian_sizes(balanced(500), parties=5, contiguous=True)
    assert islands.pooled().x.ravel().tolist() == list(range(500))
    assert isinstance(islands.shard(2).rows, slice)


def test_no_spread_gives_equal_sizes():
    assert set(atoll.data.gaussian_sizes(balanced(500), parties=5, ratio=0.0).sizes.tolist()) == {100}
    with pytest.raises(DataError, match="ratio=-1"):
        atoll.data.gaussian_sizes(balanced(500), parties=5, ratio=-1)
    with pytest.raises(DataError, match="fewer than min_size=101"):
        atoll.data.gaussian_sizes(balanced(500), parties=5, min_size=101)


# ---------------------------------------------------------------- dominant class


@pytest.mark.parametrize("share", [0.0, 0.6, 0.75, 1.0])
@pytest.mark.parametrize("random", [False, True])
def test_the_dominant_class_has_its_share(share, random):
    islands = atoll.data.dominant_class(balanced(24_000), parties=100, share=share, random=random)
    counts = label_counts(islands)
    own = counts[np.arange(100), np.arange(100) % 10] / counts.sum(axis=1)
    assert own.mean() == pytest.approx(share, abs=0.02)
    if not random:
        assert own.std() < 0.02
        assert islands.sizes.max() - islands.sizes.min() <= 10


def test_fedprofs_digits_have_240_rows_each():
    # Table 5.2: 240 thousand rows on 1,000 clients, dominant class about 60 %.
    islands = atoll.data.dominant_class(balanced(24_000), parties=100, share=0.6)
    assert islands.sizes.mean() == 240


def test_a_dominant_class_needs_a_client_for_each():
    with pytest.raises(DataError, match="parties=9 for 10 classes"):
        atoll.data.dominant_class(balanced(), parties=9)
    with pytest.raises(DataError, match=r"share=1.5"):
        atoll.data.dominant_class(balanced(), parties=10, share=1.5)


# ---------------------------------------------------------------- features and keys


def test_each_client_sees_one_range_of_the_feature():
    islands = atoll.data.feature_skew(balanced(600), parties=6, by=0)
    ends = sorted((float(s.x.min()), float(s.x.max())) for s in islands)
    assert all(a[1] < b[0] for a, b in itertools.pairwise(ends))
    mixed = atoll.data.feature_skew(balanced(600), parties=6, by=0, mix=1.0)
    assert all(s.x.max() - s.x.min() > 400 for s in mixed)


def test_the_feature_may_be_named():
    data = Dataset({"x": np.eye(6), "y": np.arange(6.0)}, features=list("abcdef"))
    for by in ("c", 2):
        one_hot = [s for s in atoll.data.feature_skew(data, parties=6, by=by) if s.x[0, 2] == 1]
        assert len(one_hot) == 1
    skewed = atoll.data.feature_skew(data, parties=3, by="y")
    assert sorted(np.ptp(s.y) for s in skewed) == [1.0, 1.0, 1.0]
    for by in ("z", 6, -1):
        with pytest.raises(DataError, match="no feature or column"):
            atoll.data.feature_skew(data, parties=2, by=by)
    with pytest.raises(DataError, match="no single number"):
        atoll.data.feature_skew(data.with_columns({"w": ["a"] * 6}), parties=2, by="w")


def test_natural_values_can_be_merged():
    data = balanced(100).with_columns({"writer": np.arange(100) % 7})
    islands = atoll.data.natural(data, "writer", parties=3, seed=0)
    assert list(islands.names) == ["client-0", "client-1", "client-2"]
    held = [set(np.unique(s["writer"]).tolist()) for s in islands]
    assert sorted(map(len, held)) == [2, 2, 3]
    assert set.union(*held) == set(range(7))
    with pytest.raises(DataError, match="parties=8 of 7 values"):
        atoll.data.natural(data, "writer", parties=8)
    with pytest.raises(DataError, match="7 of 7 clients get fewer than min_size=50"):
        atoll.data.natural(data, "writer", min_size=50)
    with pytest.raises(DataError, match="has 2 dimensions"):
        atoll.data.natural(data, "x")
