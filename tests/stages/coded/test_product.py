"""Product quantisation: blocks, codebooks, indices that add up as counts."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import atoll
from atoll.core.algebra import tree as T
from atoll.core.algebra.aggregate import Mean, merge_totals
from atoll.core.algebra.rng import Rng
from atoll.core.errors import CompositionError, ConfigError, MessageError
from atoll.core.facets import facet
from atoll.core.requests.chain import Chain
from atoll.core.requests.stage import Fitting, StageContext, WithMemory, Worded
from atoll.stages import ErrorFeedback, ProductQuantizer, ScalarQuantizer
from atoll.stages.coded.product import codebook, nearest
from atoll.testing import check_stage


def value(seed, dtype=np.float32, size=(30, 7)):
    rng = np.random.default_rng(seed)
    return {"w": rng.normal(size=size).astype(dtype), "b": rng.normal(size=5).astype(dtype)}


@pytest.mark.parametrize(
    "stage",
    [ProductQuantizer(4, 16), ProductQuantizer(1, 64), ProductQuantizer(8, 4), ProductQuantizer(8, 4, layers="all")],
    ids=repr,
)
def test_it_keeps_what_it_declares(stage):
    check_stage(stage, values=[value(i) for i in range(4)])


def fitted(stage, example):
    return {**facet(stage, Fitting).fit(example, Rng(0)), "version": 1}


@given(st.integers(1, 12), st.integers(2, 40), st.integers(1, 9), st.integers(0, 99))
@settings(deadline=None)
def test_counts_add_up_whatever_the_order_of_clients_and_decode_to_the_sum_of_codewords(block, codewords, n, seed):
    stage = ProductQuantizer(block, codewords, layers="all", iterations=3)
    rng = np.random.default_rng(seed)
    rows = [{"w": rng.normal(size=(9, 17))} for _ in range(n)]
    weights = rng.integers(1, 50, size=n).astype(float)
    public = fitted(stage, rows[0])
    sent = [stage.encode(row, StageContext.of(Rng(1), public)) for row in rows]
    hot = [
        T.map(lambda leaf, w=w: leaf * np.float32(w), facet(stage, Worded).addends(one))
        for one, w in zip(sent, weights, strict=True)
    ]
    total, backwards = hot[0], hot[-1]
    for one, other in zip(hot[1:], hot[-2::-1], strict=True):
        total, backwards = T.add(total, one), T.add(backwards, other)
    for counts, reversed_counts in zip(total["v1"]["counts"], backwards["v1"]["counts"], strict=True):
        assert np.array_equal(counts, reversed_counts)
        assert (counts.sum(axis=-1) == weights.sum()).all()
    expected = sum(
        w * facet(stage, WithMemory).decode_one(one, public, None)["w"] for one, w in zip(sent, weights, strict=True)
    )
    assert np.allclose(stage.decode(total, public, n)["w"], expected, atol=1e-3)


def test_one_entry_a_block_and_a_uniform_codebook_is_scalar_quantisation():
    rng = np.random.default_rng(0)
    x = {"w": rng.normal(size=(40, 50))}
    scalar = ScalarQuantizer(6, 14, spread=1.0)
    known = fitted(scalar, x)
    levels = float(known["scale"]["w"]) * (np.arange(64) - int(known["zero"]["w"]))
    product = ProductQuantizer(1, 64)
    book = {"books": [levels[:, None].astype(np.float32)], "version": 1}
    one, other = (
        facet(stage, WithMemory).decode_one(stage.encode(x, StageContext.of(Rng(0), public)), public, None)["w"]
        for stage, public in ((scalar, known), (product, book))
    )
    assert np.abs(one - other).max() < 1e-6 * np.abs(levels).max()


@pytest.mark.parametrize(
    ("block", "codewords", "rate"),
    [(8, 32, 51.2), (8, 64, 32 * 8 / 6), (8, 256, 32.0), (9, 64, 48.0), (4, 16, 32.0), (16, 256, 64.0)],
)
def test_the_rates_of_the_source(block, codewords, rate):
    # Digest of Prasad et al. 2022, section A0, weights only: 32 d / ceil(log2 k).
    x = {"w": np.zeros((1440, 16), np.float32)}
    stage = ProductQuantizer(block, codewords)
    assert 32 * 1440 * 16 / stage.wire_bits(x) == pytest.approx(rate, rel=1e-9)


def test_layers_are_padded_and_small_ones_stay_numbers():
    stage = ProductQuantizer(8, 256)
    x = {"w": np.arange(35.0 * 5).reshape(35, 5), "s": np.ones((3, 5)), "b": np.ones(40)}
    public = fitted(ProductQuantizer(8, 256, spread=1.0), x)
    assert [book.shape for book in public["books"]] == [(4, 8)]  # 22 blocks: at most 5 codewords, a power of two
    sent = stage.encode(x, StageContext.of(Rng(0), public))
    assert [leaf.shape for leaf in sent["v1"]["index"]] == [(22,)]
    assert [leaf.shape for leaf in sent["v1"]["rest"]] == [(3, 5), (40,)]
    back = facet(stage, WithMemory).decode_one(sent, public, None)
    assert back["w"].shape == (35, 5)
    assert np.array_equal(back["b"], x["b"])


def test_of_several_nearest_codewords_the_first_counts():
    words = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [0.0, -1.0]])
    assert nearest(np.array([[2.0, 0.0], [0.0, 0.0], [0.0, -3.0]]), words).tolist() == [0, 0, 3]


def test_codebooks_are_as_good_as_those_of_scikit_learn():
    cluster = pytest.importorskip("sklearn.cluster")
    rng = np.random.default_rng(0)
    points = np.concatenate([rng.normal(size=(300, 4)), 3 + rng.normal(size=(200, 4))])
    books = [codebook(points, 16, np.random.default_rng(i), iterations=100) for i in range(8)]
    errors = [((points - words[nearest(points, words)]) ** 2).sum() for words in books]
    theirs = [cluster.KMeans(16, init="random", n_init=1, random_state=i).fit(points).inertia_ for i in range(8)]
    assert np.mean(errors) < 1.05 * np.mean(theirs)
    # A fixed point of Lloyd's algorithm: scikit-learn cannot go on from it.
    further = cluster.KMeans(16, init=books[1], n_init=1).fit(points)
    assert further.inertia_ == pytest.approx(errors[1], rel=1e-9)
    ours = books[1]
    again = codebook(points, 16, np.random.default_rng(1), iterations=100)
    assert np.array_equal(ours, again)


def test_an_empty_cell_gets_the_farthest_point():
    points = np.array([[0.0]] * 20 + [[1.0]] * 20 + [[50.0]])
    words = codebook(points, 3, np.random.default_rng(3))
    assert sorted(words[:, 0].tolist()) == [0.0, 1.0, 50.0]


def test_masks_refuse_indices_before_anyone_is_contacted():
    with pytest.raises(CompositionError, match="sends indices, and SecureAggregation adds up numbers"):
        Chain([ProductQuantizer()]).require_summable("SecureAggregation")
    with pytest.raises(CompositionError, match="which sends indices"):
        Chain([ProductQuantizer(), ScalarQuantizer()])
    with pytest.raises(ConfigError, match="block=0"):
        ProductQuantizer(0)
    with pytest.raises(ConfigError, match="2 to 65536"):
        ProductQuantizer(8, 1)


@pytest.mark.parametrize(
    "make",
    [
        lambda: ErrorFeedback(ProductQuantizer()),
        lambda: atoll.Training(model=atoll.models.linear(64, 10), downlink=ProductQuantizer()),
        lambda: atoll.Training(model=atoll.models.linear(64, 10), downlink=ScalarQuantizer(limit=1.0)),
    ],
)
def test_where_no_sum_is_seen_nothing_is_fitted(make):
    with pytest.raises(CompositionError, match=r"ProductQuantizer|ScalarQuantizer"):
        make()


def test_gossip_refuses_it():
    islands = atoll.data.iid(atoll.data.digits(), parties=4, seed=0)
    topology = atoll.topology.Gossip(compress=ProductQuantizer(), gamma=0.5)
    job = atoll.Training(model=atoll.models.linear(64, 10), topology=topology, selection=atoll.Everyone(), rounds=1)
    with pytest.raises(CompositionError, match="ProductQuantizer has parameters that follow sums"):
        atoll.simulate(job, islands, engine="inline")


def test_indices_under_one_codebook_are_not_decoded_by_another():
    stage = ProductQuantizer(4, 8)
    public = fitted(stage, value(0))
    sent = stage.encode(value(1), StageContext.of(Rng(0), public))
    for other in (sent, facet(stage, Worded).addends(sent)):
        with pytest.raises(MessageError, match="under v1, but the round parameters are v2"):
            (stage.decode if other is not sent else lambda s, p, _: facet(stage, WithMemory).decode_one(s, p, None))(
                other, {**public, "version": 2}, 1
            )


def test_counts_and_decoding_on_arrival_give_the_same_mean():
    stage = ProductQuantizer(4, 16)
    chain = Chain([stage]).knowing({"u": {"0": fitted(stage, value(9))}})
    replies = [Mean(value(i), examples=float(w)) for i, w in enumerate((3, 1, 5))]
    means = []
    for one in (chain, chain.within(3, hidden=True, indexing=True)):
        public = one.public(Rng(0))
        total = merge_totals(
            {"u": one.send(reply, public, Rng(i), {}, name="u").total} for i, reply in enumerate(replies)
        )
        means.append(one.decode(total["u"], public, "u").result())
    assert np.allclose(means[0]["w"], means[1]["w"], atol=1e-6)
    assert np.allclose(means[0]["b"], means[1]["b"], atol=1e-6)


@pytest.mark.parametrize("engine", ["inline", "batched"])
def test_a_training_with_a_codebook_from_public_rows(engine):
    islands = atoll.data.dirichlet(atoll.data.digits(), parties=10, alpha=1.0, seed=0)
    job = atoll.Training(
        model=atoll.models.linear(64, 10), algorithm=atoll.FedAvg(lr=0.3), rounds=10, uplink=[ProductQuantizer(4, 32, spread=1.0)]
    )  # fmt: skip
    result = atoll.simulate(job, islands.with_public(islands.shard(9).dataset()), engine=engine)
    assert result.metrics[0]["bits_declared"] == 10 * (160 * 5 + 10 * 64)
    assert result.metrics.last("test/accuracy") > 0.75
