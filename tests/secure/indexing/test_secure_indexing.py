"""Secure indexing: counts of codewords by an enclave, by two servers on shares, and by keys of point functions."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

import atoll
from atoll.core.algebra.aggregate import Total
from atoll.core.errors import CompositionError, ConfigError, DataError, MessageError, PolicyError, QuorumError
from atoll.core.requests.island import Secret
from atoll.core.time.clock import run
from atoll.pacing import FedBuff
from atoll.reducers import SecureAggregation, SecureIndexing
from atoll.secure.indexing import party_steps
from atoll.secure.indexing.counts import by_layer, count_indices, layers_of, part_totals, runs_of
from atoll.stages import Clip, ProductQuantizer, ScalarQuantizer
from atoll.testing import check_reducer

WAYS = ["enclave", "shares", "keys"]


@pytest.fixture(scope="module")
def islands():
    made = atoll.data.dirichlet(atoll.data.digits(), parties=10, alpha=0.5, seed=0)
    return made.with_public(made.shard(9).dataset())


def trained(islands, *uplink, engine="inline", rounds=3, **parts):
    parts = {"algorithm": atoll.FedAvg(lr=0.2), "selection": atoll.Uniform(5), **parts}
    uplink = uplink or (ProductQuantizer(4, 16, spread=1.0),)
    return atoll.simulate(
        atoll.Training(model=atoll.models.linear(64, 10), rounds=rounds, uplink=uplink, **parts), islands, engine=engine
    )


@pytest.mark.parametrize("by", ["enclave", pytest.param("shares", marks=pytest.mark.slow), "keys"])
@pytest.mark.quick("enclave")
def test_it_keeps_the_laws_of_a_reducer(by):
    reducer = SecureIndexing(by)
    check_reducer(reducer, others=dict.fromkeys(reducer.others))


@pytest.mark.parametrize("engine", ["inline", "batched"])
@pytest.mark.parametrize("by", WAYS)
def test_a_weighted_training_is_the_one_that_decodes_each_reply(islands, by, engine):
    uplink = Clip(100.0), ProductQuantizer(4, 16, spread=1.0)
    plain = trained(islands, *uplink)
    found = trained(islands, *uplink, reducer=SecureIndexing(by), engine=engine)
    assert np.abs(found.params["weight"] - plain.params["weight"]).max() < 1e-5
    assert np.abs(found.params["bias"] - plain.params["bias"]).max() < 1e-5


def test_groups_of_several_versions_are_counted_apart(islands):
    pacing = FedBuff(buffer=4, group=2, concurrency=6)
    plain, found = (
        trained(islands, pacing=pacing, rounds=4, **more) for more in ({}, {"reducer": SecureIndexing("enclave")})
    )
    assert np.abs(found.params["weight"] - plain.params["weight"]).max() < 1e-5


def test_values_go_as_numbers_until_the_first_fit(islands):
    result = trained(islands.with_public(None), ProductQuantizer(4, 16, refresh=2), reducer=SecureIndexing("shares"))
    sizes = [row["bytes_up"] for row in result.metrics]
    assert "bits_declared" not in result.metrics[0]
    assert result.metrics[1]["bits_declared"] == 5 * (160 * 4 + 10 * 64)
    assert sizes[1] != sizes[0]


@pytest.mark.parametrize(("by", "most", "bits"), [("shares", 1, 3), ("shares", 4096, 15), ("enclave", 1, 3)])
def test_the_bytes_of_shares_are_codewords_times_the_bits_of_a_count(islands, by, most, bits):
    """With equal weights, ``k ceil(log2(n + 1))`` bits a block from each party to the second server; the first gets a seed."""
    reducer = SecureIndexing(by, max_weight=most)
    assert reducer.bits(5) == bits
    row = trained(islands, reducer=reducer, rounds=1, aggregation=atoll.aggregation.EqualWeights()).metrics[0]
    numbers = (10 + 2) * 8  # the bias, a weight and the count of what was clamped, 64 bits each
    helpers = 160 * 16 * bits / 8 + numbers
    parties = 160 * (16 * bits if by == "shares" else 4) / 8 + numbers
    total = 5 * parties + (2 if by == "shares" else 1) * helpers
    assert total < row["bytes_up"] < total + 5 * 2500


# ---------------------------------------------------------------------- refused, before anyone is contacted


@pytest.mark.parametrize(
    ("parts", "error", "match"),
    [
        ({"reducer": SecureAggregation()}, CompositionError, "sends indices, which add up only as counts"),
        ({"reducer": SecureIndexing(least=6)}, QuorumError, "5 parties, fewer than 6"),
    ],
    ids=["masks", "small cohort"],
)  # fmt: skip
def test_what_does_not_go_together_is_refused(islands, parts, error, match):
    with pytest.raises(error, match=match):
        trained(islands, **parts)


@pytest.mark.parametrize(
    ("settings", "match"),
    [({"by": "magic"}, "by='magic'"), ({"least": 1}, "least=1"), ({"unit": 2.0, "max_weight": 1.0}, "unit=2.0"), ({"max_weight": float("inf")}, "max_weight=inf")],
    ids=str,
)  # fmt: skip
def test_settings_without_a_meaning_are_refused(settings, match):
    with pytest.raises(ConfigError, match=match):
        SecureIndexing(**settings)


# ---------------------------------------------------------------------- what parties send


def total(index, k, weight=1.0, kind="mean"):
    counts = np.zeros((len(index), k), np.float32)
    counts[np.arange(len(index)), index] = weight
    value = {"v1": {"like": {"w": np.zeros((0, len(index)))}, "of": [np.zeros((0, k))], "rest": [], "counts": [counts]}}
    return Total(kind, value, weight, 1)


def test_weights_must_be_whole_numbers_of_the_unit_within_the_largest():
    for weight in (1.5, 0.0, 11.0):
        with pytest.raises(DataError, match=r"whole numbers of 1 up to 10"):
            part_totals({"u": total([0, 3], 4, weight)}, 1.0, 10, "a")
    numbers, found = part_totals({"u": total([0, 3], 4, 2.5)}, 0.5, 10, "a")
    assert found["u"].weight == 5
    assert found["u"].rows[0].tolist() == [0, 3]
    assert numbers["u"].value["v1"]["counts"] == []
    bad = total([0, 3], 4)
    bad.value["v1"]["counts"][0][0, 1] = 1
    with pytest.raises(DataError, match="without one index"):
        part_totals({"u": bad}, 1.0, 10, "a")


def test_counts_that_do_not_add_up_to_the_parties_are_not_used():
    words = np.array([[1, 2, 0], [3, 1, 0]], np.uint8)
    sizes = {"u": [[2, 3]]}
    with pytest.raises(MessageError, match=r"1 of 2 blocks of 'u' are wrong: those of block 1 add up to 4, not 3"):
        count_indices(sizes, [words.ravel()], 4, 1.0, {"u": 3.0})
    words[1, 1] = 0
    assert count_indices(sizes, [words.ravel()], 4, 1.0, {"u": 3.0})["u"][0].sum(axis=1).tolist() == [3, 3]


@pytest.mark.parametrize("by", WAYS)
def test_a_party_that_counts_twice_is_found_by_the_sum(islands, by, monkeypatch):
    honest = party_steps.part_totals

    def twice(totals, unit, most, party=""):
        numbers, found = honest(totals, unit, most, party)
        return numbers, {name: replace(one, weight=one.weight + (party == "client-3")) for name, one in found.items()}

    monkeypatch.setattr(party_steps, "part_totals", twice)
    with pytest.raises(MessageError, match="are wrong: those of block 0 add up to"):
        trained(islands, reducer=SecureIndexing(by), selection=atoll.Everyone())


def test_layers_of_one_number_of_codewords_are_one_run():
    sizes = {"b": [[2, 4], [3, 8], [1, 4]], "a": [[5, 8]]}
    assert list(runs_of(sizes)) == [("a", 8, [0]), ("b", 4, [0, 2]), ("b", 8, [1])]
    runs = [np.arange(40).reshape(5, 8), np.arange(12).reshape(3, 4), np.arange(24).reshape(3, 8)]
    found = by_layer(sizes, runs)
    assert [one.shape for one in found] == [(blocks, k) for _, _, blocks, k in layers_of(sizes)]
    assert found[1].tolist() == runs[1][:2].tolist()
    assert found[3].tolist() == runs[1][2:].tolist()


def helper_of(name, inbox):
    """A helper with these letters, in a simulation."""
    return SimpleNamespace(
        name=name, inbox=inbox, sum="sum", remote=False, once=False, organisation=str, bind_letters=lambda *how: None,
        promise=lambda what, bound: None,
    )  # fmt: skip


def test_helpers_refuse_letters_of_too_few():
    box = helper_of("enclave", {"a": {}})
    plan = party_steps.IndexPlan("enclave", tuple("abcde"), 2, 4, 1.0, 1, SecureIndexing().codec)
    with pytest.raises(PolicyError, match="a sum of 1 parties of 1 organisations, with at least 2"):
        party_steps.add.run(box, {"plan": plan.message(), "lengths": {}, "sizes": {}, "votes": {}})
    with pytest.raises(PolicyError, match="of at least 1 parties"):
        party_steps.IndexPlan.of({**plan.message(), "least": 1})


def test_a_share_of_the_second_server_is_uniform_whatever_the_index():
    seeds = (b"a" * 32, b"b" * 32)
    for index in (0, 5):
        found = part_totals({"u": total([index] * 20_000, 8)}, 1.0, 1)[1]
        share = np.asarray(party_steps._share_indices(found, 8, seeds)[0])
        seen = np.bincount(share.reshape(-1, 8)[:, index], minlength=256)
        chi = ((seen - seen.mean()) ** 2 / seen.mean()).sum()
        assert chi < 255 + 6 * np.sqrt(2 * 255)


def test_words_under_secure_indexing_are_words_still(islands):
    """A stage without indices goes through it too, as through masks: ``ScalarQuantizer`` keeps its words."""
    plain = trained(islands, ScalarQuantizer(8, 12))
    found = trained(islands, ScalarQuantizer(8, 12), reducer=SecureIndexing("shares"))
    assert np.array_equal(found.params["weight"], plain.params["weight"])


# ---------------------------------------------------------------------- attacks on the protocol


def asked(by, change, least=3):
    """What a helper answers to the letters of three parties, which ``change(number, plan, request)`` may tell another plan or request."""
    reducer = SecureIndexing(by, least=least)
    names = tuple(f"party-{number}" for number in range(3))
    plan = party_steps.IndexPlan(by, names, least, reducer.bits(3), 1.0, reducer._most, reducer.codec)
    boxes: dict[str, dict[str, object]] = {name: {} for name in reducer.others}
    for number in range(3):
        told, request, letters = change(number, plan, "ab" * 32)
        totals = {"u": total([0, 3], 4)}
        island = SimpleNamespace(
            name=f"party-{number}", secret=Secret(b"s" * 32), asked=request, matter=b"", bind_letters=lambda *how: None,
            post=lambda to, letter, letters=letters, number=number: boxes[to].update({f"party-{number}": letters(letter)}),
        )  # fmt: skip

        async def found(among=None, totals=totals):
            return totals

        island.totals = found
        said = run(party_steps.send.run(island, told.message()))
    helper = list(reducer.others)[-1]
    lengths = plan.layout(said["form"]).lengths
    message = {"plan": plan.message(), "lengths": lengths, "sizes": said["sizes"], "votes": {}}
    return party_steps.add.run(helper_of(helper, boxes[helper]), message)


@pytest.mark.parametrize("by", WAYS)
def test_a_helper_adds_up_only_what_was_asked_alike(by):
    """A server that tells the helper of a smaller least sum, or sends parties different models, gets nothing."""

    def same(number, plan, request):
        return plan, request, lambda letter: letter

    assert set(asked(by, same)) == {"lanes", "counts"}
    with pytest.raises(PolicyError, match="party-1 was asked something else than the others"):
        asked(by, lambda number, plan, request: (plan, "cd" * 32 if number == 1 else request, lambda letter: letter))
    with pytest.raises(PolicyError, match="party-0 agreed on another sum"):
        asked(by, lambda number, plan, request: (replace(plan, least=4), request, lambda letter: letter))
    for broken in (
        lambda letter: None,
        lambda letter: {**letter, "sizes": {}},
        lambda letter: {**letter, "lanes": {}, "seed": b""},
    ):
        with pytest.raises(MessageError, match="party-2 sealed a letter that is none of this sum"):
            asked(
                by,
                lambda number, plan, request, broken=broken: (
                    plan,
                    request,
                    broken if number == 2 else lambda letter: letter,
                ),
            )
