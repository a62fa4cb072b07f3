"""Sums whose seeds an enclave or a second server holds: exact whoever drops out, and nothing but the sum for the server, seeds for the holder."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import atoll
from atoll.core.algebra.aggregate import Mean, Sum, Vote
from atoll.core.errors import CompositionError, ConfigError, MessageError, PolicyError, QuorumError
from atoll.core.federation.federation import run_program
from atoll.core.requests.cohort import Community
from atoll.core.requests.task import task
from atoll.core.time.clock import run
from atoll.core.world import World
from atoll.engines import Batched, Inline
from atoll.reducers import Enclave, TwoServers
from atoll.secure import FixedPoint, SimulatedAttestation, WordLayout
from atoll.secure.masking.agreement import Agreement
from atoll.secure.seed_holders import attest, describe, entrust, open_masks, register_attestation
from atoll.testing import Timetable, check_reducer

NAMES = [f"client-{i}" for i in range(5)]
CODEC = FixedPoint(value_bits=12, weight_bits=6, max_weight=64.0, value_range=4.0)
HOLDERS = {"enclave": Enclave(codec=CODEC), "second-server": TwoServers(codec=CODEC)}


def reply_of(row):
    return {
        "w": Mean({"a": row[:3].astype(np.float32), "b": row[3]}, examples=float(abs(row[0]) * 8 + 1)),
        "v": Vote(row[:2]),
        "n": Sum(np.int64(row[1] * 100), role="side"),
    }


@task
def numbers(island, message):
    return reply_of(island.data + message)


def expected(data, who, message):
    """The oracle: each survivor's whole numbers, added up as Python integers."""
    rows = [{name: a.total() for name, a in reply_of(data[i] + message).items()} for i in who]
    layout = WordLayout.of(rows[0], CODEC, len(data))
    lanes = [layout.encode(row) for row in rows]
    sums = {
        k: np.array([sum(int(one[k][j]) for one in lanes) % 2 ** int(k) for j in range(len(lanes[0][k]))], np.uint64)
        for k in lanes[0]
    }
    return {name: total.result() for name, total in layout.decode(sums, len(who)).totals.items()}


def summed(reducer, data, lost=None, engine=None, **terms):
    people = Community(dict(zip(NAMES, data, strict=True)), others={reducer.holder: None})
    world = World(people, engine or Inline(), cost=Timetable(lost=lost or {}))
    who = list(NAMES)
    return run(
        run_program(world, lambda fed: fed.sum(fed.parties.named(*who), numbers, 0.25, reducer=reducer, **terms))
    )[0], world


@pytest.mark.parametrize("holder", HOLDERS)
@given(
    lost=st.dictionaries(
        st.sampled_from(["entrust", "masked", "describe"]), st.sets(st.integers(0, 4), max_size=3), max_size=3
    ),
    engine=st.sampled_from([Inline, Batched]),
    seed=st.integers(0, 3),
)
@settings(deadline=None, max_examples=20)
def test_the_sum_is_the_fixed_point_sum_to_the_bit_or_none_at_all(holder, lost, engine, seed):
    data = np.random.default_rng(seed).normal(size=(5, 4)) * 2
    gone, alive = {}, set(range(5))
    for step in ("entrust", "masked", "describe"):
        gone[step] = lost.get(step, set()) & alive
        alive -= gone[step]
    kept = sorted(set(range(5)) - gone["entrust"] - gone["masked"])
    paths = {f":{step}/": [NAMES[i] for i in who] for step, who in gone.items()}
    if len(kept) < 2 or not alive:
        with pytest.raises(QuorumError, match=r"fewer than|answered"):
            summed(HOLDERS[holder], data, paths, engine())
        return
    found, _ = summed(HOLDERS[holder], data, paths, engine())
    assert found.senders.names == [NAMES[i] for i in kept]
    want = expected(data, kept, 0.25)
    np.testing.assert_array_equal(found["w"]["a"], want["w"]["a"])
    np.testing.assert_array_equal(found["v"], want["v"])
    assert found["n"] == want["n"]


@pytest.mark.slow
@pytest.mark.parametrize("holder", HOLDERS)
def test_it_keeps_the_laws_of_reducers(holder):
    """A challenge and a form tell nothing; the sum of the masks is what the sum itself tells of the masked sum."""
    proved = [attest, describe, open_masks]
    check_reducer(dataclasses.replace(HOLDERS[holder], codec=FixedPoint()), others={holder: None}, proved=proved)


@pytest.mark.parametrize("holder", HOLDERS)
def test_without_the_holder_there_is_no_sum(holder):
    with pytest.raises(QuorumError, match=rf"{holder}|0 of 1|quorum"):
        summed(HOLDERS[holder], np.ones((5, 4)), {":open_masks/": [holder]})


@pytest.mark.parametrize("holder", HOLDERS)
def test_a_training_behind_a_holder_is_the_plain_one(holder):
    islands = atoll.data.dirichlet(atoll.data.digits(), parties=6, alpha=0.5, seed=0)

    def trained(**more):
        job = atoll.Training(model=atoll.models.linear(64, 10), selection=atoll.Uniform(4), rounds=3, **more)
        return atoll.simulate(job, islands, engine="batched", seed=1, progress=False)

    plain, hidden = trained(), trained(reducer=type(HOLDERS[holder])())
    assert np.abs(np.asarray(hidden.params["weight"]) - plain.params["weight"]).max() < 1e-6
    assert hidden.metrics.last("test/accuracy") == plain.metrics.last("test/accuracy")


def test_the_ledger_says_that_an_attestation_was_simulated():
    kinds = {entry["kind"] for entry in summed(HOLDERS["enclave"], np.ones((5, 4)))[1].ledger}
    assert "attestation-simulated" in kinds
    assert "attestation-simulated" not in {
        e["kind"] for e in summed(HOLDERS["second-server"], np.ones((5, 4)))[1].ledger
    }


@register_attestation
@dataclasses.dataclass(frozen=True)
class Forged(SimulatedAttestation):
    """An enclave that runs other code than the parties expect."""

    def verify(self, quote, challenge):
        SimulatedAttestation(self.measurement).verify(quote, challenge)

    def quote(self, challenge):
        return SimulatedAttestation("other code").quote(challenge)


@register_attestation
@dataclasses.dataclass(frozen=True)
class Replayed(SimulatedAttestation):
    """An enclave that repeats an old statement."""

    def verify(self, quote, challenge):
        SimulatedAttestation(self.measurement).verify(quote, challenge)

    def quote(self, challenge):
        return SimulatedAttestation(self.measurement).quote(b"an old challenge")


@pytest.mark.parametrize("attestation", [Replayed(), Forged()])
def test_no_seed_goes_to_an_enclave_that_is_not_vouched_for(attestation):
    with pytest.raises(PolicyError, match="quote does not vouch"):
        summed(Enclave(attestation=attestation), np.ones((5, 4)))


def test_the_holder_opens_no_sum_of_a_few_and_none_twice():
    """A server that leaves out letters, or asks again, gets nothing more."""

    class Greedy(TwoServers):
        few = 1

        async def reduce(self, reduction):
            agreed = self.agreement(reduction)
            message = {"agreed": agreed.message(), "holder": self.holder, "quote": None, "attestation": None}
            first = await reduction.exchange(reduction.parties, entrust, message)
            holder, names = reduction.parties.named(self.holder), list(reduction.parties.names)
            asked = {"context": bytes(32), "lanes": {"64": 3}, "agreed": agreed.message(), "votes": {}}
            for kept in (names[: self.few], names):
                mail = first.mail.only_from(set(kept))
                last = await reduction.exchange(holder, open_masks, {**asked, "kept": kept}, mail=mail)
            return last

    with pytest.raises(PolicyError, match="a sum of 1 parties of 1 organisations, with at least 3"):
        summed(Greedy(least=3), np.ones((5, 4)))
    Greedy.few = 4
    with pytest.raises(PolicyError, match="bound itself to something else in 'set of "):
        summed(Greedy(least=3), np.ones((5, 4)))


def test_settings_and_cohorts_that_make_no_sense_are_refused():
    with pytest.raises(ConfigError, match=r"least=1.*a sum of one is its reply"):
        TwoServers(least=1)
    with pytest.raises(QuorumError, match="5 parties, fewer than 6"):
        summed(TwoServers(least=6), np.ones((5, 4)))
    with pytest.raises(CompositionError, match="accept=2, below the least sum of 3"):
        summed(TwoServers(least=3), np.ones((5, 4)), accept=2)


@pytest.mark.parametrize(
    "letter",
    [None, {}, {"seed": b"short", "agreed": b"a", "least": 2}, {"seed": b"s" * 32, "agreed": b"a", "least": "2"}],
)
def test_a_letter_that_is_none_names_its_sender(letter):
    agreed = Agreement(("one", "two"), 1, 0, 2, 2, False, FixedPoint())
    sound = {"seed": b"s" * 32, "agreed": agreed.fingerprint, "least": 2}
    island = SimpleNamespace(inbox={"one": sound, "two": letter}, bind_letters=lambda *how: None)
    with pytest.raises(MessageError, match="two sealed a letter without a seed"):
        open_masks.run(island, {"context": bytes(32), "agreed": agreed.message(), "kept": ["one", "two"]})
