"""Generated populations against the published ones."""

import numpy as np
import pytest

import atoll.data
from atoll.core.errors import DataError

# Upcycled-FL, Table 2: set -> (samples, test samples, mean and deviation per device), 30 devices each.
PUBLISHED = {
    "Syn(iid)": (6726, 683, 224, 166),
    "Syn(0,0)": (13791, 1395, 460, 841),
    "Syn(0.5,0.5)": (8036, 818, 268, 410),
    "Syn(1,1)": (10493, 1063, 350, 586),
}


def make(name, seed=0, **options):
    if name == "Syn(iid)":
        return atoll.data.synthetic_iid(seed=seed, **options)
    a = float(name[4:-1].split(",")[0])
    return atoll.data.synthetic(a, a, seed=seed, **options)


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_published_sizes_lie_within_the_sampling_range(name):
    samples, test, mean, deviation = PUBLISHED[name]
    drawn = np.array([make(name, seed).sizes for seed in range(300)])
    assert drawn.shape[1] == 30
    assert drawn.min() >= 50  # every device has at least 50
    low, high = np.quantile(drawn.mean(axis=1), [0.005, 0.995])
    assert low < mean < high
    assert mean == round(samples / 30)
    low, high = np.quantile(drawn.std(axis=1), [0.005, 0.995])
    assert low < deviation < high
    # A tenth of each device is held out: 1/10 of the samples plus half a row per device for rounding down the rest.
    assert test == pytest.approx(samples / 10 + 30 * 0.45, abs=10)
    held = make(name).holdout(0.1)[1]
    assert int(held.sizes.sum()) == int((make(name).sizes - np.floor(0.9 * make(name).sizes + 1e-9)).sum())


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_name_and_the_form(name):
    islands = make(name)
    assert islands.name == name
    shard = islands.shard(3)
    assert shard.x.shape == (islands.sizes[3], 20)
    assert shard.x.dtype == np.float32
    assert set(np.unique(shard.y)) <= {0, 1}
    assert "FedProx" in atoll.data.synthetic.__doc__
    assert "MLSys 2020" in islands.about.citation


def test_fedproxs_own_form():
    islands = atoll.data.synthetic(1.0, 1.0, dims=60, classes=10)
    assert islands.classes == 10
    assert islands.shard(0).x.shape[1] == 60


def test_features_have_the_falling_variances():
    islands = atoll.data.synthetic_iid(parties=1, sizes=np.array([50_000]))
    x = islands.shard(0).x
    assert np.allclose(x.var(axis=0), np.arange(1, 21) ** -1.2, rtol=0.05)
    assert np.allclose(x.mean(axis=0), 0.0, atol=0.03)


@pytest.mark.parametrize(("spread", "deviation"), [("std", 4.0), ("variance", 2.0)])
def test_beta_is_a_deviation_or_a_variance(spread, deviation):
    islands = atoll.data.synthetic(0.0, 4.0, parties=2000, sizes=np.full(2000, 20), spread=spread)
    means = np.array([s.x.mean() for s in islands])
    # The mean of 20 entries N(B, 1), B ~ N(0, beta): deviation sqrt(beta^2 + 1/20 + sampling of x).
    assert means.std() == pytest.approx(np.hypot(deviation, 1 / np.sqrt(20)), rel=0.06)


def test_the_shared_model_labels_every_client_alike():
    """With one model for all, a linear rule learnt on some clients holds on the others; with alpha = 1 it does not."""

    def transfer(islands):
        train, rest = islands.subset(range(20)).pooled(), islands.subset(range(20, 40)).pooled()
        a = np.column_stack([train.x, np.ones(len(train))])
        w = np.linalg.lstsq(a, 2.0 * train.y - 1, rcond=None)[0]
        return float(((np.column_stack([rest.x, np.ones(len(rest))]) @ w > 0) == rest.y).mean())

    sizes = np.full(40, 200)
    assert transfer(atoll.data.synthetic_iid(parties=40, sizes=sizes, seed=1)) > 0.93
    assert transfer(atoll.data.synthetic(1.0, 1.0, parties=40, sizes=sizes, seed=1)) < 0.8


def test_alpha_skews_the_labels():
    def skew(a):
        return np.mean(
            [
                atoll.data.synthetic(a, a, parties=100, sizes=np.full(100, 100), classes=10, dims=60, seed=s)
                .describe()
                .label_skew
                for s in range(2)
            ]
        )

    iid = atoll.data.synthetic_iid(parties=100, sizes=np.full(100, 100), classes=10, dims=60).describe().label_skew
    assert iid < skew(0.0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"alpha": -1.0}, "alpha=-1"),
        ({"spread": "sigma"}, "spread='sigma'"),
        ({"parties": 0}, "parties=0"),
        ({"classes": 1}, "classes=1"),
        ({"sizes": np.array([1, 2])}, "sizes of shape"),
    ],
)
def test_bad_settings_are_refused(options, message):
    with pytest.raises(DataError, match=message):
        atoll.data.synthetic(**options)


def test_the_linear_population_has_one_model():
    islands = atoll.data.linear(50, examples=40, dims=8, classes=3, seed=2)
    x, y, _ = islands.gather(range(50), "x", "y")
    onehot = np.eye(3)[y]
    w = np.linalg.lstsq(x, onehot, rcond=None)[0]
    assert ((islands.test.x @ w).argmax(axis=1) == islands.test.y).mean() > 0.9
    assert len(islands.test) == 1000
    shifted = atoll.data.linear(200, examples=50, dims=8, shift=2.0)
    means = np.array([s.x.mean(axis=0) for s in shifted])
    assert means.std() == pytest.approx(np.hypot(2.0, 1 / np.sqrt(50)), rel=0.1)
    noisy = atoll.data.linear(50, examples=40, dims=8, classes=3, seed=2, noise=100.0)
    assert (noisy.shard(0).y != islands.shard(0).y).any()
    assert np.array_equal(noisy.shard(0).x, islands.shard(0).x)
    assert atoll.data.linear(3, test=0).test is None
    with pytest.raises(DataError, match="examples=0"):
        atoll.data.linear(3, examples=0)
