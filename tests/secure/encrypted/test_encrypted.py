"""Encrypted sums: the fixed-point sum to the bit whichever parties drop out, and a refusal of what would tell more than the sum."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import atoll
from atoll.core.algebra.aggregate import Mean, Parts, Sum, Vote
from atoll.core.errors import CompositionError, ConfigError, DataError, PolicyError, QuorumError
from atoll.core.federation.federation import run_program
from atoll.core.requests.cohort import Community
from atoll.core.requests.island import Secret
from atoll.core.requests.party import Roster
from atoll.core.requests.policy import SitePolicy
from atoll.core.requests.task import task
from atoll.core.time.clock import Clock, run
from atoll.core.world import World
from atoll.engines import Batched, Inline
from atoll.reducers import Encrypted
from atoll.secure import FixedPoint, WordLayout
from atoll.secure.encrypted import BFV, BatchCrypt, Paillier, ThresholdPaillier
from atoll.secure.encrypted import reducer as module
from atoll.secure.encrypted.agreement import EncryptedAgreement
from atoll.secure.encrypted.party_steps import answer_sum, deal_keys, make_keys
from atoll.stages import Clip
from atoll.testing import Timetable, check_reducer
from atoll.testing.lying.sites import Rehearsal

pytest.importorskip("gmpy2")
pytest.importorskip("tenseal")

PARTIES = 5
NAMES = [f"client-{i}" for i in range(PARTIES)]
CODEC = FixedPoint(value_bits=12, weight_bits=6, max_weight=64.0, value_range=4.0)
WEAK = Paillier(key_bits=128, insecure=True)
HELD = Encrypted(WEAK, codec=CODEC)
SHARED = Encrypted(WEAK, keys="threshold", threshold=3, codec=CODEC)


def reply_of(row):
    return {
        "w": Mean({"a": row[:3].astype(np.float32), "b": row[3]}, examples=float(abs(row[0]) * 8 + 1)),
        "v": Vote(row[:2]),
        "n": Sum(np.int64(row[1] * 100), role="side"),
        "loss": Mean(np.float64(row[2]), examples=2.0, role="metric"),
    }


@task
def numbers(island, message):
    return reply_of(island.data + message)


@task
def single(island, message):
    return {"x": Parts({"x": np.float64(1.0)})}


@task
def odd(island, message):
    made = reply_of(island.data + message)
    return {**made, "more": Sum(np.zeros(2))} if island.name == "client-1" else made


@task
def long(island, message):
    return {"w": Mean({"a": np.ones(200)}, examples=1.0)}


def fixed_point_sum(data, who, message=0.25):
    """The oracle: each survivor's whole numbers, added up as Python integers."""
    rows = {i: {name: a.total() for name, a in reply_of(data[i] + message).items()} for i in who}
    layout = WordLayout.of(rows[who[0]], CODEC, len(data))
    lanes = [layout.encode(row) for row in rows.values()]
    sums = {
        k: np.array([sum(int(one[k][j]) for one in lanes) % 2 ** int(k) for j in range(len(lanes[0][k]))], np.uint64)
        for k in lanes[0]
    }
    return {name: (total.result(), total.weight) for name, total in layout.decode(sums, len(who)).totals.items()}


def summed(reducer, data, lost=None, engine=None, do=numbers, **terms):
    people = Community(list(data), others=dict.fromkeys(reducer.others))
    given = {"policy": terms.pop("policy")} if "policy" in terms else {}
    world = World(people, engine or Inline(), cost=Timetable(lost=lost or {}), **given)
    return run(run_program(world, lambda fed: fed.sum(fed.parties, do, 0.25, reducer=reducer, **terms)))[0]


def data_of(seed, parties=PARTIES):
    return np.random.default_rng(seed).normal(size=(parties, 4)) * 2


def require_exact(found, data, kept):
    assert found.senders.names == [NAMES[i] for i in kept]
    for name, (value, weight) in fixed_point_sum(data, kept).items():
        pairs = (
            zip(value.values(), found[name].values(), strict=True)
            if isinstance(value, dict)
            else [(value, found[name])]
        )
        assert all(np.array_equal(a, b) for a, b in pairs), name
        assert found.weight[name] == weight


# ---------------------------------------------------------------------- the sum


@pytest.mark.parametrize("engine", [Inline, Batched])
@pytest.mark.parametrize(
    "reducer",
    [
        Encrypted(scheme, codec=CODEC)
        for scheme in ("bfv", "ckks", WEAK, replace(BatchCrypt(), key_bits=256, insecure=True))
    ]
    + [SHARED, replace(SHARED, server="active")],
    ids=["bfv", "ckks", "paillier", "batchcrypt", "threshold", "threshold, active"],
)
def test_every_scheme_gives_the_fixed_point_sum_to_the_bit(reducer, engine):
    data = data_of(0)
    found = summed(reducer, data, {":encrypt_totals/": ["client-2"]}, engine())
    require_exact(found, data, [0, 1, 3, 4])
    assert found.counts["coded"] == 4 * 4


@given(
    reducer=st.sampled_from([HELD, SHARED, replace(SHARED, server="active")]),
    replies=st.sets(st.integers(0, PARTIES - 1), max_size=4),
    answers=st.sets(st.integers(0, PARTIES - 1), max_size=4),
    helper=st.booleans(),
    seed=st.integers(0, 3),
)
@settings(deadline=None, max_examples=settings.default.max_examples // 4)
def test_every_pattern_of_losses_gives_the_sum_to_the_bit_or_an_error(reducer, replies, answers, helper, seed):
    threshold, data = (3 if reducer.keys == "threshold" else 2), data_of(seed)
    lost = {":encrypt_totals/": [NAMES[i] for i in replies], ":answer_sum/": [NAMES[i] for i in answers]}
    if helper:
        lost |= {f":{step}/": [*reducer.others] for step in ("open_sum", "deal_keys")}
    kept = [i for i in range(PARTIES) if i not in replies]
    alive = [i for i in kept if i not in answers] if reducer.keys == "threshold" else kept
    if helper or len(kept) < threshold or len(alive) < threshold:
        with pytest.raises(QuorumError, match=r"fewer|did not answer|of [0-9] parties"):
            summed(reducer, data, lost)
        return
    require_exact(summed(reducer, data, lost), data, kept)


@pytest.mark.slow
@pytest.mark.parametrize(
    "reducer", [HELD, SHARED, replace(SHARED, server="active")], ids=["holder", "threshold", "active"]
)
def test_the_laws_of_reducers_hold(reducer):
    """Public keys, and parts of a decryption with a proof in zero knowledge, tell nothing; ciphertexts of Paillier are read word by word."""
    check_reducer(
        replace(reducer, codec=FixedPoint()),
        others=dict.fromkeys(reducer.others),
        proved=[make_keys, deal_keys, answer_sum],
    )


def test_a_training_is_the_plain_one_to_rounding():
    islands = atoll.data.dirichlet(atoll.data.digits(), parties=6, alpha=0.5, seed=0)
    job = atoll.Training(
        model=atoll.models.linear(64, 10),
        algorithm=atoll.algorithms.Scaffold(lr=0.05, batch_size=32),
        selection=atoll.Uniform(4),
        rounds=2,
    )
    plain = atoll.simulate(job, islands, engine="inline")
    for reducer in (Encrypted(), Encrypted(WEAK, keys="threshold")):
        hidden = atoll.simulate(job.replace(reducer=reducer), islands, engine="inline")
        assert np.abs(hidden.params["weight"] - plain.params["weight"]).max() < 1e-6
        assert hidden.metrics.column("replied") == plain.metrics.column("replied")


@pytest.mark.parametrize("reducer", [Encrypted(), Encrypted(WEAK, keys="threshold")], ids=["holder", "threshold"])
def test_a_fleet_gives_the_helper_time_and_no_work(reducer):
    """Crashes, deadlines and over-selection: the rounds that succeed are those of the plain training."""
    islands = atoll.data.iid(atoll.data.digits(), parties=6, seed=0)
    job = atoll.Training(
        model=atoll.models.linear(64, 10),
        selection=atoll.Uniform(4),
        rounds=2,
        pacing=atoll.Synchronous(deadline=600, over_select=1.3, quorum=3, on_failure="skip"),
    )
    devices = atoll.devices.exponential(crash=0.1)
    hidden = atoll.simulate(job.replace(reducer=reducer), islands, engine="inline", devices=devices)
    assert set(hidden.metrics.column("replied")) <= {0, 3, 4}
    assert max(hidden.metrics.column("replied")) >= 3
    assert hidden.metrics[-1]["t_end"] > 0


def between_sites(job, islands, **terms):
    """The training between three processes, over sockets; the helper is at one of them."""
    learner = job.learner(islands)
    registry = {made.name: made for made in job.named_tasks(learner, islands)}
    roster = Roster(islands.names, others=job.others(len(islands)))
    world = World(islands, Rehearsal(3), roster=roster, clock=Clock(virtual=False), registry=registry, **terms)
    return run(run_program(world, job.program(islands, learner)), virtual=False)[0]


@pytest.mark.network
@pytest.mark.parametrize(
    ("reducer", "sealing"),
    [(Encrypted(), "real"), (Encrypted(WEAK, keys="threshold"), "virtual")],
    ids=["holder", "threshold"],
)
def test_a_training_between_real_sites_is_the_simulation(reducer, sealing):
    """Letters are sealed for real with the holder; with a threshold, keys are short, and the server is taken for active."""
    islands = atoll.data.dirichlet(atoll.data.digits(), parties=3, alpha=0.5, seed=0)
    job = atoll.Training(
        model=atoll.models.linear(64, 10), rounds=1, reducer=reducer, evaluation=atoll.Evaluation(server=False)
    )
    there, here = between_sites(job, islands, sealing=sealing), atoll.simulate(job, islands, engine="inline")
    np.testing.assert_array_equal(there.params["weight"], here.params["weight"])
    assert there.history.column("replied") == [3]


# ---------------------------------------------------------------------- who does not follow the protocol


def test_a_reply_that_is_not_finite_drops_out_by_name():
    data = data_of(1)
    data[3, 2] = np.nan
    for reducer in (HELD, SHARED):
        found = summed(reducer, data)
        require_exact(found, data, [0, 1, 2, 4])
        assert list(found.rejected) == ["client-3"]


@dataclass(frozen=True)
class Replaced(Encrypted):
    """A server, or a party, that changes ciphertexts."""

    change: Any = None

    async def _opened(self, reduction, agreed, replies, second):
        self.change(agreed, replies)
        return await super()._opened(reduction, agreed, replies, second)


def parts_of(replies):
    return [replies.parts[name] for name in replies.kept]


def alone(agreed, replies):
    replies.total = parts_of(replies)[0]


def twice(agreed, replies):
    first, _second, *rest = parts_of(replies)
    replies.total = agreed.scheme.add(replies.public, [first, first, *rest], replies.form)


def scaled(agreed, replies):
    replies.total = agreed.scheme.add(replies.public, [parts_of(replies)[0]] * PARTIES, replies.form)


def shifted(agreed, replies):
    one = [np.full(each.size, i == 0, dtype=np.uint64) for i, each in enumerate(replies.form)]
    extra = agreed.scheme.encrypt(replies.public, one, replies.form, Secret())
    replies.total = agreed.scheme.add(replies.public, [replies.total, extra], replies.form)


@pytest.mark.parametrize("change", [alone, twice, scaled, shifted])
@pytest.mark.parametrize("scheme", [WEAK, BFV()], ids=["paillier", "bfv"])
def test_the_holder_opens_nothing_but_the_sum_of_all_each_once(change, scheme):
    with pytest.raises(PolicyError, match="not the sum of 5 parties"):
        summed(Replaced(scheme, codec=CODEC, change=change), data_of(2))


def missing(agreed, replies):
    replies.kept = replies.kept[:-1]


def few(agreed, replies):
    replies.kept = replies.kept[:1]


def test_the_holder_opens_no_sum_of_one_and_none_of_others_than_it_was_told():
    with pytest.raises(PolicyError, match="not the sum of 4 parties"):
        summed(Replaced(WEAK, codec=CODEC, change=missing), data_of(2))
    with pytest.raises(PolicyError, match="a sum of 1 parties"):
        summed(Replaced(WEAK, codec=CODEC, change=few), data_of(2))


def test_a_server_that_asks_twice_gets_one_sum():
    class Twice(Encrypted):
        async def _opened(self, reduction, agreed, replies, second):
            await super()._opened(reduction, agreed, replies, second)
            replies.kept = replies.kept[:-1]
            replies.total = agreed.scheme.add(replies.public, parts_of(replies), replies.form)
            return await super()._opened(reduction, agreed, replies, second)

    with pytest.raises(PolicyError, match=r"a second one|opened before|bound itself"):
        summed(Twice(WEAK, codec=CODEC), data_of(2))
    with pytest.raises(PolicyError, match=r"asked twice|a second sum|opened before|bound itself"):
        summed(Twice(WEAK, keys="threshold", threshold=3, codec=CODEC), data_of(2))


@pytest.mark.parametrize("reducer", [HELD, SHARED], ids=["holder", "threshold"])
def test_a_server_that_sends_a_key_of_its_own_is_refused(reducer, monkeypatch):
    asked = module._asked

    async def swapped(reduction, helper, half, message, **how):
        found = await asked(reduction, helper, half, message, **how)
        if half in (make_keys, deal_keys):
            found.values[0] = {**found.values[0], **WEAK.make_keys(Secret())[0]}
        return found

    monkeypatch.setattr(module, "_asked", swapped)
    with pytest.raises(PolicyError, match="a public key that its maker has not announced"):
        summed(reducer, data_of(2))


@pytest.mark.parametrize("reducer", [HELD, replace(SHARED, server="active")], ids=["holder", "threshold"])
def test_a_server_that_tells_parties_other_terms_than_the_maker_of_the_keys_is_refused(reducer, monkeypatch):
    asked = module._asked

    async def smaller(reduction, helper, half, message, **how):
        told = {**message, "least": 2} if half in (make_keys, deal_keys) else message
        return await asked(reduction, helper, half, told, **how)

    monkeypatch.setattr(module, "_asked", smaller)
    with pytest.raises(PolicyError, match="terms of the sum that are not those which the keys were made for"):
        summed(replace(reducer, least=4), data_of(2))


def test_an_active_server_that_withholds_the_ciphertexts_gets_no_sum():
    class Withholding(Encrypted):
        async def _opened(self, reduction, agreed, replies, second):
            replies.parts = {}
            return await super()._opened(reduction, agreed, replies, second)

    with pytest.raises(PolicyError, match="a ciphertext that client-0 has not sent"):
        summed(Withholding(WEAK, keys="threshold", threshold=3, server="active", codec=CODEC), data_of(2))


@pytest.mark.parametrize(
    ("reducer", "why"),
    [
        (replace(HELD, least=4), ""),
        (replace(SHARED, server="active", least=4), ""),
        (replace(SHARED, server="honest", least=4), "a sum of 0 parties, but this site requires at least 4"),
        (HELD, "a sum of 2 parties, but this site requires at least 4"),
    ],
    ids=["holder", "active", "honest", "too few"],
)
def test_sites_that_insist_on_sums_take_part(reducer, why):
    policy = SitePolicy(sums_only=True, smallest_cohort=4)
    if not why:
        require_exact(summed(reducer, data_of(3), policy=policy, quorum=4), data_of(3), range(PARTIES))
        return
    with pytest.raises((PolicyError, QuorumError), match=why):
        summed(reducer, data_of(3), policy=policy)


def test_parties_open_what_they_added_up_themselves_against_an_active_server():
    def altered(agreed, replies):
        replies.parts["client-1"] = replies.parts["client-0"]

    changed = Replaced(WEAK, keys="threshold", threshold=3, server="active", codec=CODEC, change=altered)
    with pytest.raises(PolicyError, match="a ciphertext that client-1 has not sent"):
        summed(changed, data_of(2))
    with pytest.raises(QuorumError, match="0 right parts"):  # each adds up what it got, and answers for that sum only
        summed(replace(changed, change=alone), data_of(2))


def test_a_wrong_part_of_a_decryption_is_counted_and_worked_around(monkeypatch):
    answer = ThresholdPaillier.answer

    def wrong(self, public, share, *args):
        found = answer(self, public, share, *args)
        return {**found, "parts": [part ^ 1 for part in found["parts"]]} if share["index"] == 1 else found

    monkeypatch.setattr(ThresholdPaillier, "answer", wrong)
    data = data_of(2)
    found = summed(SHARED, data)
    require_exact(found, data, range(PARTIES))
    assert found.counts["wrong_shares"] == 1


def test_a_party_whose_ciphertext_is_none_drops_out_by_name(monkeypatch):
    adder = Paillier.adder

    def picky(self, public, form):
        made = adder(self, public, form)
        add, count = made.add, iter(range(9))
        made.add = lambda sealed: add(sealed[:-8] if next(count) == 2 else sealed)
        return made

    monkeypatch.setattr(Paillier, "adder", picky)
    data = data_of(2)
    found = summed(HELD, data)
    require_exact(found, data, [0, 1, 3, 4])
    assert "a ciphertext that is" in str(found.errors["client-2"])


def test_a_party_with_totals_of_another_form_drops_out_by_name():
    data = data_of(2)
    found = summed(HELD, data, do=odd)
    require_exact(found, data, [0, 2, 3, 4])
    assert "another form" in str(found.errors["client-1"])


@pytest.mark.parametrize(("reducer", "step"), [(HELD, "make_keys"), (HELD, "open_sum"), (SHARED, "deal_keys")])
def test_a_lost_helper_is_named(reducer, step):
    with pytest.raises(QuorumError, match=rf"the {next(iter(reducer.others))} did not answer"):
        summed(reducer, data_of(2), {f":{step}/": [*reducer.others]})


def test_keys_that_can_be_broken_are_for_simulations():
    message = EncryptedAgreement(tuple(NAMES), WEAK, 2, 0, CODEC).message()
    assert EncryptedAgreement.of(message, real=False).scheme == WEAK
    with pytest.raises(PolicyError, match="128 bits, which can be broken"):
        EncryptedAgreement.of(message, real=True)
    for wrong in (
        {**message, "least": 1},
        {**message, "names": NAMES[:1]},
        {**message, "names": [NAMES[0]] * 5},
        {},
        None,
    ):
        with pytest.raises(PolicyError, match=r"encrypted sum of|cannot be read"):
            EncryptedAgreement.of(wrong, real=False)


# ---------------------------------------------------------------------- what does not go together


def check(reducer, parties=PARTIES, **terms):
    return summed(reducer, data_of(0, parties), **terms)


def test_what_cannot_work_is_refused_before_anyone_is_contacted():
    with pytest.raises(QuorumError, match="fewer than 2"):
        check(HELD, 1)
    with pytest.raises(QuorumError, match="fewer than 3"):
        check(SHARED, 2)
    with pytest.raises(CompositionError, match="accept=2, below 3"):
        check(SHARED, accept=2)
    with pytest.raises(ConfigError, match="the noise allows"):
        check(Encrypted(BFV(plain_bits=44)), 12_000)
    with pytest.raises(ConfigError, match="rsa"):
        Encrypted("rsa")
    with pytest.raises(ConfigError, match="keys='server'"):
        Encrypted(keys="server")
    with pytest.raises(ConfigError, match="keys='threshold' with scheme='bfv'"):
        Encrypted(keys="threshold")
    with pytest.raises(ConfigError, match="threshold=3 with keys='holder'"):
        Encrypted(threshold=3)
    with pytest.raises(ConfigError, match="least=1"):
        Encrypted(least=1)
    with pytest.raises(ConfigError, match="server='good'"):
        Encrypted(server="good")


def test_replies_that_must_be_seen_one_by_one_are_refused():
    with pytest.raises(CompositionError, match="a single reply, which this reducer does not reveal"):
        check(HELD, do=single)


@pytest.mark.parametrize(
    "settings",
    [
        {"pacing": atoll.pacing.SAFA()},
        {"pacing": atoll.pacing.FedAsync()},
        {"topology": atoll.topology.Gossip()},
    ],
    ids=["SAFA", "FedAsync", "Gossip"],
)
def test_pacings_and_topologies_that_need_single_replies_are_refused(settings):
    with pytest.raises(CompositionError, match="Encrypted"):
        atoll.Training(model=atoll.models.linear(64, 10), rounds=1, reducer=Encrypted(), **settings)


def test_a_clipped_update_takes_narrow_words():
    """The codec takes the range from the uplink: 24 + 8 bits and 3 for five parties instead of 64."""
    clipped, whole = (summed(Encrypted(WEAK), data_of(4), do=long, uplink=uplink) for uplink in ([Clip(16.0)], []))
    assert clipped.bytes_up < 0.7 * whole.bytes_up


def test_a_number_that_does_not_fit_is_refused_at_the_party():
    with pytest.raises(DataError, match="max_weight"):
        summed(replace(HELD, codec=replace(CODEC, max_weight=0.5)), data_of(0))
