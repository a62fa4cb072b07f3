"""Corruptions: what they do, to whom, and that they are lazy."""

import numpy as np
import pytest

import atoll.data
from atoll.core.errors import DataError
from atoll.data import Blur, Corruption, Dataset, Fake, GradedNoise, Irrelevant, Mislabel, Noise, Rotate, SaltAndPepper
from atoll.data.corruption import gaussian_blur


def images(n=400, side=8, dtype=np.float32):
    rng = np.random.Generator(np.random.PCG64(0))
    x = rng.random((n, 1, side, side))
    x[:, :, 2:5, 2:5] = 1.0
    x = (x * 255).astype(np.uint8) if dtype == np.uint8 else x.astype(dtype)
    return Dataset({"x": x, "y": np.arange(n) % 10}, name="squares")


def table(n=400):
    rng = np.random.Generator(np.random.PCG64(0))
    x = np.stack([rng.normal(0, 1, n), rng.normal(50, 10, n)], axis=1).astype(np.float32)
    return Dataset({"x": x, "y": rng.normal(5, 2, n)}, name="table")


def spoil(data, kind, parties=4, **options):
    """All clients spoiled, beside the clean ones."""
    clean = atoll.data.iid(data, parties=parties)
    return clean, atoll.data.corrupt(clean, {kind: 1.0}, **options)


# ---------------------------------------------------------------- who


def test_fedprofs_groups_are_disjoint_and_have_their_sizes():
    # FedProf's large task (Table 5.2): 15 % irrelevant, 20 % blurred, 25 % salt and pepper.
    clean = atoll.data.iid(images(2000), parties=100)
    mixed = atoll.data.corrupt(clean, {"irrelevant": 0.15, "blur": 0.20, "salt_and_pepper": 0.25}, seed=0)
    assert mixed.tags.counts() == {"irrelevant": 15, "blur": 20, "salt_and_pepper": 25}
    groups = [mixed.tags.where(label) for label in ("", "irrelevant", "blur", "salt_and_pepper")]
    assert sorted(np.concatenate(groups)) == list(range(100))
    for i in groups[0]:
        assert np.array_equal(mixed.shard(i).x, clean.shard(i).x)
    for group in groups[1:]:
        for i in group:
            assert not np.array_equal(mixed.shard(i).x, clean.shard(i).x)
            assert np.array_equal(mixed.shard(i).y, clean.shard(i).y)
            assert mixed.shard(i).tag == mixed.tags[i]
    assert [g.tolist() for g in groups] == [
        atoll.data.corrupt(clean, {"irrelevant": 0.15, "blur": 0.20, "salt_and_pepper": 0.25}, seed=0)
        .tags.where(label)
        .tolist()
        for label in ("", "irrelevant", "blur", "salt_and_pepper")
    ]
    other = atoll.data.corrupt(clean, {"irrelevant": 0.15, "blur": 0.20, "salt_and_pepper": 0.25}, seed=1)
    assert other.tags.where("blur").tolist() != groups[2].tolist()


@pytest.mark.parametrize("clients", [1, 3, 7, 10])
def test_the_groups_never_outgrow_the_population(clients):
    mixed = atoll.data.corrupt(atoll.data.iid(images(), parties=clients), {"noise": 0.5, "fake": 0.5})
    assert sum(mixed.tags.counts().values()) == clients


def test_the_server_stays_clean():
    data = images().with_test(images(20))
    assert spoil(data, "noise")[1].test is data.test


def test_two_corruptions_on_one_client_are_both_named_and_done():
    clean = atoll.data.iid(images(), parties=4)
    once = atoll.data.corrupt(clean, {"rotate": 0.5}, seed=0)
    twice = atoll.data.corrupt(once, {"mislabelled": 1.0}, seed=0)
    assert twice.tags.counts() == {"mislabelled": 2, "rotate+mislabelled": 2}
    i = int(twice.tags.where("rotate+mislabelled")[0])
    assert np.array_equal(twice.shard(i).x, once.shard(i).x)
    assert not np.array_equal(twice.shard(i).x, clean.shard(i).x)
    assert not np.array_equal(twice.shard(i).y, clean.shard(i).y)


def test_two_settings_of_one_kind_are_told_apart():
    mixed = atoll.data.corrupt(atoll.data.iid(images(), parties=4), {Rotate(turns=1): 0.5, Rotate(turns=2): 0.25})
    assert mixed.tags.counts() == {"Rotate(shape=None, turns=1)": 2, "Rotate(shape=None, turns=2)": 1}
    assert repr(mixed.tags).startswith("Tags(4 clients; Rotate(shape=None, turns=1): 2")
    with pytest.raises(DataError, match="no tag 'rotat'"):
        mixed.tags.where("rotat")


def test_a_client_is_spoiled_alike_in_any_order_and_in_any_company():
    clean = atoll.data.iid(images(), parties=10)
    mixed = atoll.data.corrupt(clean, {"noise": 1.0}, seed=5)
    forwards = [mixed.shard(i).x for i in range(10)]
    again = atoll.data.corrupt(clean, {"noise": 1.0}, seed=5, cache_bytes=0)
    for i in reversed(range(10)):
        assert np.array_equal(again.shard(i).x, forwards[i])
    assert np.array_equal(again.subset([7]).shard(0).x, forwards[7])


def test_nothing_is_spoiled_before_it_is_looked_at():
    class Count(Corruption):
        name = "count"
        calls = 0

        def apply(self, columns, client, rng, scope):
            Count.calls += 1
            return {"x": columns["x"] + 1}

    clean, mixed = spoil(images(), Count(), parties=20)
    assert mixed.sizes.sum() == 400
    assert len(mixed.shard(3)) == 20
    assert Count.calls == 0
    mixed.gather([3, 5], "x", "y")
    assert Count.calls == 2
    assert np.allclose(mixed.shard(3).x, clean.shard(3).x + 1)
    assert Count.calls == 2  # kept


def test_generated_clients_can_be_spoiled():
    clean = atoll.data.linear(1000, dims=3, examples=5)
    mixed = atoll.data.corrupt(clean, {"noise": 0.5, "mislabelled": 0.2})
    i = int(mixed.tags.where("mislabelled")[0])
    assert (mixed.shard(i).y != clean.shard(i).y).sum() == round(0.5 * 5)


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ({Noise(sigma=1.0 + k): 0.001 for k in range(256)}, "256 groups"),
        ({"blurr": 0.1}, "unknown corruption 'blurr'. Did you mean 'blur'"),
        ({"noise": 0.6, "fake": 0.6}, "add up to 1.2"),
        ({"noise": -0.1}, "add up to"),
        ({Noise(sigma=-1.0): 0.1}, "sigma=-1.0"),
        ({Blur(sigma=0.0): 0.1}, "sigma=0.0"),
        ({SaltAndPepper(density=2.0): 0.1}, "density=2.0"),
        ({Blur(shape=(3, 3)): 0.1}, "does not fit rows of shape"),
        ({Irrelevant(source=table()): 0.1}, "cannot replace rows of shape"),
    ],
)
def test_bad_requests_are_refused_at_once(groups, message):
    with pytest.raises(DataError, match=message):
        atoll.data.corrupt(atoll.data.iid(images(), parties=4), groups)


def test_what_a_corruption_cannot_spoil_is_refused_at_once():
    flat = Dataset({"x": np.zeros((4, 64)), "y": [0, 1, 0, 1]})
    with pytest.raises(DataError, match=r"Blur\(shape=\(8, 8\)\)"):
        spoil(flat, "blur", parties=2)
    with pytest.raises(DataError, match=r"Rotate\(shape=\(height, width\)\)"):
        spoil(table(), "rotate")
    with pytest.raises(DataError, match="no other class to flip to in a regression"):
        spoil(table(), "mislabelled")
    with pytest.raises(DataError, match="numeric column 'x'"):
        spoil(Dataset({"text": ["a", "b"], "y": [0, 1]}), "noise", parties=1)
    with pytest.raises(DataError, match="quarter turn of images of 2 by 4"):
        spoil(Dataset({"x": np.zeros((4, 2, 4)), "y": [0, 1, 0, 1]}), "rotate", parties=1)


def test_a_corruption_must_keep_the_shape():
    class Drop(Corruption):
        name = "drop"

        def apply(self, columns, client, rng, scope):
            return {"x": columns["x"][1:]}

    with pytest.raises(DataError, match="'drop' made a column 'x' of shape"):
        spoil(images(), Drop())[1].shard(0).x


# ---------------------------------------------------------------- what


def test_noise_has_its_deviation():
    clean, mixed = spoil(table(20_000), Noise(sigma=0.5), parties=1)
    difference = mixed.shard(0).x - clean.shard(0).x
    assert np.allclose(difference.mean(axis=0), 0.0, atol=0.1)
    assert np.allclose(difference.std(axis=0), 0.5 * table(20_000).x.std(axis=0), rtol=0.03)
    absolute = spoil(table(20_000), Noise(sigma=0.5, relative=False), parties=1)[1].shard(0).x - clean.shard(0).x
    assert np.allclose(absolute.std(axis=0), 0.5, rtol=0.03)
    kept = spoil(images(), Noise(sigma=3.0, clip=True))[1].pooled().x
    assert kept.min() >= 0.0
    assert kept.max() <= 1.0


def test_integer_images_stay_integers():
    for kind in ("noise", "blur", "salt_and_pepper", "irrelevant", "fake", "rotate"):
        clean, mixed = spoil(images(dtype=np.uint8), kind)
        assert mixed.shard(0).x.dtype == np.uint8
        assert mixed.shard(0).x.shape == clean.shard(0).x.shape
        assert mixed.gather([0, 1], "x")[0].dtype == np.uint8


def test_graded_noise_grows_with_the_client():
    clean, mixed = spoil(table(20_000), GradedNoise(sigma=1.0, relative=False), parties=4)
    levels = [float((mixed.shard(i).x - clean.shard(i).x)[:, 0].std()) for i in range(4)]
    assert np.allclose(levels, [0.25, 0.5, 0.75, 1.0], rtol=0.05)


def test_salt_and_pepper_hit_their_share():
    # FedProf's density: 0.3.
    clean, mixed = spoil(images(), SaltAndPepper(density=0.3), parties=1)
    before, after = clean.shard(0).x, mixed.shard(0).x
    outside = np.ones(before.shape, bool)
    outside[:, :, 2:5, 2:5] = False  # the square is at the highest value already
    assert (after != before)[outside].mean() == pytest.approx(0.3, abs=0.01)
    hit = after[outside & (after != before)]
    assert set(np.unique(hit)) == {before.min(), before.max()}
    assert (hit == before.max()).mean() == pytest.approx(0.5, abs=0.02)


def test_salt_and_pepper_on_a_table_use_each_features_range():
    after = spoil(table(), SaltAndPepper(density=1.0), parties=1)[1].shard(0).x
    assert set(np.unique(after[:, 1])) == {table().x[:, 1].min(), table().x[:, 1].max()}


@pytest.mark.parametrize("sigma", [0.4, 1.0, 2.5])
@pytest.mark.parametrize("shape", [(3, 2, 9, 7), (2, 5, 6)])
def test_the_blur_is_scipys(sigma, shape):
    ndimage = pytest.importorskip("scipy.ndimage", reason="the oracle is SciPy's gaussian_filter")
    x = np.random.Generator(np.random.PCG64(0)).random(shape).astype(np.float32)
    axes = (len(shape) - 2, len(shape) - 1)
    expected = ndimage.gaussian_filter(x, sigma, mode="reflect", radius=int(np.ceil(3 * sigma)), axes=axes)
    assert np.allclose(gaussian_blur(x, sigma), expected, atol=1e-5)


def test_the_blur_keeps_flat_images_and_the_mean():
    assert np.allclose(gaussian_blur(np.full((1, 6, 6), 0.7, np.float32), 5.0), 0.7)
    x = images(5).x
    assert np.allclose(gaussian_blur(x, 1.5).mean(axis=(2, 3)), x.mean(axis=(2, 3)), atol=1e-4)


def test_flat_rows_are_blurred_and_turned_as_images():
    square = images()
    flat = square.with_columns({"x": square.x.reshape(400, 64)})
    for kind, wide in ((Blur(shape=(8, 8)), Blur()), (Rotate(shape=(1, 8, 8)), Rotate())):
        a = spoil(flat, kind)[1].shard(2).x
        b = spoil(square, wide)[1].shard(2).x
        assert np.allclose(a, b.reshape(len(b), 64))


def test_rotation_turns_counter_clockwise_and_four_turns_are_none():
    data = Dataset({"x": np.array([[[1.0, 2.0], [3.0, 4.0]]]), "y": [0]})
    assert spoil(data, "rotate", parties=1)[1].shard(0).x.tolist() == [[[2.0, 4.0], [1.0, 3.0]]]
    clean, mixed = spoil(images(), Rotate(turns=4))
    assert np.array_equal(clean.shard(0).x, mixed.shard(0).x)


def test_irrelevant_rows_are_uniform_or_another_data_sets():
    clean, mixed = spoil(images(), "irrelevant", parties=1)
    x = mixed.shard(0).x
    assert x.mean() == pytest.approx(0.5, abs=0.01)
    assert x.std() == pytest.approx(np.sqrt(1 / 12), abs=0.01)
    assert np.array_equal(mixed.shard(0).y, clean.shard(0).y)
    other = Dataset({"x": np.full((3, 1, 8, 8), 7.0)})
    assert (spoil(images(), Irrelevant(source=other))[1].shard(0).x == 7.0).all()


def test_fake_data_carry_no_information():
    clean, mixed = spoil(images(4000), Fake(), parties=1)
    assert mixed.shard(0).x.mean() == pytest.approx(0.5, abs=0.01)
    assert (mixed.shard(0).y == clean.shard(0).y).mean() == pytest.approx(0.1, abs=0.02)
    fake = spoil(table(), "fake", parties=1)[1].shard(0)
    assert table().y.min() <= fake.y.min()
    assert fake.y.max() <= table().y.max()
    assert abs(np.corrcoef(fake.x[:, 0], fake.y)[0, 1]) < 0.15
    signs = Dataset({"x": np.zeros((50, 1)), "y": np.repeat([-1, 1], 25)})
    assert set(np.unique(spoil(signs, "fake", parties=1)[1].shard(0).y)) == {-1, 1}


@pytest.mark.parametrize("fraction", [0.0, 0.3, 1.0])
def test_wrong_labels_are_exactly_so_many_and_uniform(fraction):
    clean, mixed = spoil(images(4000), Mislabel(fraction=fraction), parties=1)
    before, after = clean.shard(0).y, mixed.shard(0).y
    wrong = before != after
    assert wrong.sum() == round(fraction * 4000)
    assert np.array_equal(clean.shard(0).x, mixed.shard(0).x)
    if fraction == 1.0:
        steps = np.bincount((after - before) % 10, minlength=10)
        assert steps[0] == 0
        assert np.allclose(steps[1:] / 4000, 1 / 9, atol=0.02)


@pytest.mark.parametrize("labels", [(0, 1), (-1, 1)])
def test_wrong_binary_labels_are_the_other_one(labels):
    data = Dataset({"x": np.zeros((10, 1)), "y": np.repeat(labels, 5)}, task="binary")
    clean, mixed = spoil(data, Mislabel(fraction=1.0), parties=2)
    for i in range(2):
        assert (mixed.shard(i).y == sum(labels) - clean.shard(i).y).all()
