"""A party takes nobody's word for how many replies share its noise: a plain request hides no reply, and a wrapped one as many as its half's own agreement says."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from atoll.core.algebra.aggregate import Mean
from atoll.core.errors import CompositionError, PolicyError, QuorumError
from atoll.core.requests.cohort import Community
from atoll.core.requests.policy import SitePolicy
from atoll.core.requests.task import Batch, Task
from atoll.core.world import World
from atoll.engines import Batched, Inline
from atoll.reducers import (
    BoundedSum,
    Enclave,
    Encrypted,
    MultiRound,
    OneShot,
    SecureAggregation,
    SecureTree,
    TwoServers,
)
from atoll.secure.noise import SkellamNoise
from atoll.secure.seed_holders import SimulatedAttestation
from atoll.stages import Clip, GaussianNoise
from atoll.testing import live
from atoll.testing.lying.sites import Rehearsal

TOLD = 10_000
PARTIES = 4
SEEN: list[tuple[int, bool]] = []


def one(island, message):
    return {"u": Mean({"w": np.full(40, 0.1)}, examples=1.0)}


def many(cohort, message):
    count = len(cohort)
    yield Batch(np.arange(count), {"u": Mean({"w": np.full((count, 40), 0.1)}, examples=np.ones(count))})


WORK = Task("tests.core.test_promised_replies:WORK", one, many=many)


class Watched(GaussianNoise):
    """Notes how many replies it believes to share its noise."""

    def scale(self, context):
        SEEN.append((context.replies, context.hidden))
        return super().scale(context)


def told(request):
    """The request as a lying server sends it: the program's replies are hidden among many others."""
    if request.wraps is not None:
        return replace(request, wraps=told(request.wraps))
    chain = request.uplink
    return replace(request, uplink=chain.within(TOLD, hidden=True)) if chain.stages else request


class Lying(Inline):
    async def run(self, request, positions):
        return await super().run(told(request), positions)

    async def fold(self, request, positions):
        return await super().fold(told(request), positions)


class LyingInBlocks(Batched):
    async def run(self, request, positions):
        return await super().run(told(request), positions)

    async def fold(self, request, positions):
        return await super().fold(told(request), positions)


class LyingToSites(Rehearsal):
    def launch(self, request, positions, push):
        return super().launch(told(request), positions, push)

    async def run(self, request, positions):
        return await super().run(told(request), positions)

    async def fold(self, request, positions):
        return await super().fold(told(request), positions)


@pytest.fixture(autouse=True)
def _forgotten():
    SEEN.clear()
    yield
    SEEN.clear()


def ask(engine, stages, reducer=None, policy=None, quorum=1):
    async def program(fed):
        got = await fed.sum(fed.parties, WORK, uplink=stages, reducer=reducer, quorum=quorum)
        return got["u"]["w"], got.rejected

    others = {} if reducer is None else dict(reducer.others)
    more = {} if policy is None else {"policy": policy}
    return live(World(Community([None] * PARTIES, others=others), engine, **more), program).result


@pytest.mark.parametrize("engine", [Lying, lambda: LyingInBlocks(1)], ids=["inline", "batched"])
def test_a_plain_request_hides_no_reply_whatever_it_says(engine):
    ask(engine(), [Clip(1.0), Watched(8.0)])
    assert SEEN
    assert not any(hidden for _, hidden in SEEN)


@pytest.mark.network
def test_a_site_adds_all_of_its_noise_to_a_plain_reply():
    mean, _ = ask(LyingToSites(2), [Clip(1.0), GaussianNoise(8.0)])
    assert np.std(mean) > 2.0  # 8 / sqrt(4) = 4; 0.04 if 10,000 replies shared the noise


REDUCERS = {
    "masks": SecureAggregation(least=3),
    "virtual": SecureAggregation(least=3, masks="virtual"),
    "active": SecureAggregation(least=3, server="active"),
    "rounds": MultiRound(least=3),
    "shot": OneShot(least=3),
    "tree": SecureTree(SecureAggregation(least=3), size=4),
    "bound": BoundedSum(norm=1e4, max_weight=1024.0, least=3),
    "enclave": Enclave(least=3, attestation=SimulatedAttestation()),
    "servers": TwoServers(least=3),
    "ciphertexts": Encrypted(scheme="paillier", least=3),
}


@pytest.mark.parametrize("engine", [Lying, lambda: LyingInBlocks(1)], ids=["inline", "batched"])
@pytest.mark.parametrize("name", REDUCERS)
def test_a_wrapped_reply_is_hidden_among_as_many_as_its_half_has_agreed_to(name, engine):
    try:
        ask(engine(), [Clip(1.0), Watched(8.0)], REDUCERS[name])
        assert SEEN
    except (PolicyError, QuorumError) as refused:  # some masks refuse such a request altogether
        assert "stages that rely on 10000" in str(refused)  # noqa: PT017
    assert {replies for replies, _ in SEEN} <= {3, 4}


def test_noise_that_more_replies_share_than_agreed_is_refused():
    noise = SkellamNoise(multiplier=1.0, clip=1.0, step=0.05, least=50)
    with pytest.raises(CompositionError, match="a sum of 3 replies of equal weight may be used"):
        ask(Lying(), [Clip(1.0), noise], OneShot(least=3))


@pytest.mark.parametrize("engine", [Lying, lambda: LyingInBlocks(1)], ids=["inline", "batched"])
def test_the_smallest_cohort_of_a_policy_holds_for_what_a_half_has_agreed_to(engine):
    with pytest.raises(
        (PolicyError, QuorumError), match="a sum may have 3 replies, but this site requires at least 50"
    ):
        ask(
            engine(),
            [Clip(1.0), GaussianNoise(8.0)],
            OneShot(least=3),
            SitePolicy(smallest_cohort=50, free=["atoll.secure.*"]),
        )


def test_a_half_that_says_nothing_of_its_sum_hides_nobody():
    from tests.support.double_masked import DoubleMasked

    with pytest.raises((QuorumError, CompositionError), match="noise that 3 replies share"):
        ask(Inline(), [Clip(1.0), SkellamNoise(multiplier=1.0, clip=1.0, step=0.05, least=3)], DoubleMasked(), quorum=3)
