"""Excess noise (XNoise): whoever drops out, a sum has the noise of its target, exactly; and no server gets more of it back."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cached_property
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.core.algebra.aggregate import Mean
from atoll.core.errors import ConfigError, PolicyError, QuorumError
from atoll.core.facets import facet
from atoll.core.federation.federation import run_program
from atoll.core.requests.cohort import Community
from atoll.core.requests.stage import Guarding
from atoll.core.requests.task import task
from atoll.core.time.clock import run
from atoll.core.world import World
from atoll.engines import Batched, Inline
from atoll.privacy.discrete import SkellamLaw
from atoll.reducers import OneShot, SecureAggregation
from atoll.secure.masking import party_steps
from atoll.secure.noise import DiscreteGaussianNoise, ExcessNoise, SkellamNoise
from atoll.testing import Timetable

PARTIES, LEAST = 6, 3
STAGE = {"multiplier": 2.0, "clip": 1.0, "step": 0.02, "inflation": 3.0, "least": LEAST, "bits": 20}


@task
def zeros(island, message):
    return {"x": Mean(np.zeros(message), examples=1)}


def summed(stage, *, entries=40, reducer=None, lost=None, engine=None, parties=PARTIES):
    world = World(Community(list(range(parties))), engine or Inline(), cost=Timetable(lost=lost or {}))
    reducer = reducer or SecureAggregation(threshold=LEAST)

    async def program(fed):
        return await fed.sum(fed.parties, zeros, entries, uplink=[stage], reducer=reducer, quorum=LEAST)

    found = run(run_program(world, program))[0]
    return found, np.rint(found["x"] * found.n / stage.step), world


# ---------------------------------------------------------------------- the parts


@given(
    variance=st.floats(1e-3, 6e7),
    least=st.integers(1, 60),
    parts=st.integers(1, 40),
    corrupt=st.integers(0, 20),
    more=st.integers(0, 5),
)
def test_what_remains_is_the_target_for_every_number_of_survivors_and_never_less(variance, least, parts, corrupt, more):
    """Base and needed parts of the clients that keep their noise to themselves, added up; above ``most`` nothing more is taken back."""
    stage = SkellamNoise(
        **{**STAGE, "multiplier": math.sqrt(variance), "step": 0.5, "inflation": 1.0, "clip": 0.6, "least": least},
        most=least + parts,
        corrupt=min(corrupt, least - 1),
    )  # D = 1, so the target is `variance`
    noise = facet(stage, Guarding).excess
    assert stage.variance == pytest.approx(variance)
    for replies in range(least, least + parts + 1):
        each = math.fsum(noise.variance_of(k) for k in range(noise.first(replies)))
        assert stage.variance <= (replies - noise.corrupt) * each <= stage.variance * (1 + 1e-10)
    above = least + parts + more
    assert noise.first(above) == 1
    assert (above - noise.corrupt) * noise.variance_of(0) >= stage.variance
    assert math.fsum(noise.variance_of(k) for k in range(noise.anchor)) == pytest.approx(variance / stage.sharing)


def test_parts_follow_from_the_seed_of_an_earlier_one_and_have_their_variance():
    noise, seed = ExcessNoise(400.0, 6, 3), bytes(range(32))
    chain = noise.chain(seed)
    whole = noise.drawn(seed, 4000)
    for first in range(1, noise.anchor):
        rest = noise.drawn(chain[first - 1], 4000, first)
        kept = whole - rest
        for drawn, parts in ((rest, range(first, noise.anchor)), (kept, range(1, first))):
            expected = sum(SkellamLaw(noise.variance_of(k)).variance_of_law for k in parts)
            assert abs(float((drawn**2).mean()) - expected) <= 6 * expected * math.sqrt(2 / 4000) + 1e-9
    assert len({*chain, noise.link(chain[-1])}) == noise.anchor


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"most": LEAST}, "most=3 for least=3"),
        ({"most": LEAST + 101}, "at most least \\+ 100"),
    ],
)
def test_parts_that_make_no_sense_are_refused(settings, said):
    with pytest.raises(ConfigError, match=said):
        SkellamNoise(**STAGE, **settings)


def test_noise_that_does_not_add_up_has_no_parts():
    with pytest.raises(ConfigError, match="other noise has another law when parts are missing"):
        DiscreteGaussianNoise(**STAGE, most=PARTIES)


# ---------------------------------------------------------------------- the sum


class Recorded(ExcessNoise):
    """Notes the seeds from which parties draw all of their parts."""

    seeds: ClassVar[list[bytes]] = []

    def drawn(self, seed, count, first=1):
        if first == 1 and seed not in self.seeds:
            self.seeds.append(seed)
        return super().drawn(seed, count, first)


class _Silent:
    def draw(self, source, count):
        return np.zeros(count, dtype=np.int64)


class BareNoise(SkellamNoise):
    """Its noise is the parts alone, so that a sum is theirs to the last step."""

    @cached_property
    def excess(self):
        return Recorded(self.variance, self.most, self.least, self.corrupt)

    def _sampler(self, context):
        assert context.excess_added
        return _Silent()


STEPS = ("deal", "masked", "vote", "reveal")


@given(
    lost=st.dictionaries(st.sampled_from(STEPS), st.sets(st.integers(0, 5), max_size=2), max_size=3),
    server=st.sampled_from(["honest", "active"]),
    most=st.integers(LEAST + 1, PARTIES + 2),
    engine=st.sampled_from([Inline, Batched]),
)
@settings(max_examples=settings.default.max_examples // 3, deadline=None)
def test_exactly_the_parts_that_the_sum_does_not_need_are_taken_back(lost, server, most, engine):
    """Whoever is lost at whichever step, also after its words are in the sum: to the last step of the grid."""
    threshold, steps = (5 if server == "active" else 3), [s for s in STEPS if s != "vote" or server == "active"]
    gone, alive = {}, set(range(PARTIES))
    for step in steps:
        gone[f":{step}/"] = [f"client-{i}" for i in sorted(lost.get(step, set()) & alive)]
        alive -= lost.get(step, set())
    Recorded.seeds.clear()
    stage, reducer = BareNoise(**STAGE, most=most), SecureAggregation(threshold=threshold, server=server)
    try:
        found, steps_of_sum, _ = summed(stage, reducer=reducer, lost=gone, engine=engine())
    except QuorumError:
        assert len(alive) < threshold
        return
    noise, first = facet(stage, Guarding).excess, facet(stage, Guarding).excess.first(found.n)
    seeds = list(Recorded.seeds)
    assert len(seeds) == found.n
    kept = sum(noise.drawn(s, 40) - noise.drawn(noise.link(s, first - 1), 40, first) for s in seeds)
    assert np.array_equal(steps_of_sum, kept)
    assert found.counts.get("excess_left", 0) == 0


@pytest.mark.parametrize("gone", [0, 1, 3])
def test_the_sum_has_the_variance_of_the_target(gone):
    """4000 entries within six deviations; without taking back, six replies have twice the variance of the three that share it."""
    lost = {":masked/": [f"client-{i}" for i in range(gone)]}
    stage = SkellamNoise(**STAGE, most=PARTIES)
    found, noise, _ = summed(stage, entries=4000, lost=lost)
    assert found.n == PARTIES - gone
    for drawn, expected in ((noise, stage.variance), (noise * stage.step, stage.deviation(found.n) ** 2)):
        assert abs(float((drawn**2).mean()) / expected - 1) < 6 * math.sqrt(2 / 4000)


@pytest.mark.parametrize("reducer", [OneShot(least=LEAST)], ids=["code"])
def test_under_a_reducer_that_takes_nothing_back_the_stage_adds_all_noise(reducer):
    stage = SkellamNoise(**STAGE, most=PARTIES)
    _, noise, _ = summed(stage, entries=4000, reducer=reducer)
    assert abs(float((noise**2).mean()) / (2 * stage.variance) - 1) < 6 * math.sqrt(2 / 4000)


@pytest.mark.parametrize("gone", [0, 1, 3])
def test_virtual_masks_take_the_same_steps_and_bytes_and_leave_the_same_noise(gone):
    lost, stage, rows = {":masked/": [f"client-{i}" for i in range(gone)]}, SkellamNoise(**STAGE, most=PARTIES), []
    for masks in ("real", "virtual"):
        for engine in (Inline, Batched):
            reducer = SecureAggregation(threshold=3, masks=masks)
            found, noise, world = summed(stage, entries=4000, reducer=reducer, lost=lost, engine=engine())
            assert abs(float((noise**2).mean()) / stage.variance - 1) < 6 * math.sqrt(2 / 4000)
            traffic = world.traffics["main"].meter.totals()
            rows.append((found.bytes_up, found.bytes_down, found.counts, traffic["bytes_relayed"]))
    assert all(row == rows[0] for row in rows)


# ---------------------------------------------------------------------- a server, or parties, that lie


class Lying(SecureAggregation):
    """It lets the parties agree on something else than its stages rely on."""

    change: ClassVar[dict[str, int]] = {}

    def agreement(self, reduction):
        return replace(super().agreement(reduction), **self.change)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"most": PARTIES - 1, "parts": 3}, "3 parts up to 5 replies, and stages with 3 parts up to 6"),
        ({"most": PARTIES, "parts": 2}, "it would take back noise that the sum needs"),
        ({"most": 0, "parts": 0}, "0 parts up to 0 replies, and stages with 3 parts up to 6"),
        ({"least": 2}, "a masked sum of 2 replies or more, and stages that rely on 3"),
    ],
    ids=["part", "parts", "none", "least"],
)
def test_a_server_that_agrees_on_less_noise_than_the_stages_rely_on_gets_no_words(change, said):
    reducer = type("Lying", (Lying,), {"change": change})(threshold=LEAST)
    with pytest.raises(QuorumError, match=f"6 were rejected: refused by its policy: .*{said}"):
        summed(SkellamNoise(**STAGE, most=PARTIES), reducer=reducer)


def test_a_server_that_would_open_smaller_sums_than_share_the_noise_gets_no_words():
    """Also where no noise is taken back."""
    reducer = type("Lying", (Lying,), {"change": {"least": 2}})(threshold=2)
    with pytest.raises(QuorumError, match="a masked sum of 2 replies or more, and stages that rely on 3"):
        summed(SkellamNoise(**STAGE), reducer=reducer)


class Larger(SecureAggregation):
    """It says that lost parties are in the sum, for which fewer parts are needed."""

    async def _reveal_shares(self, reduction, agreed, kept, asked):
        asked = {"kept": sorted([*asked["kept"], *asked["lost"]]), "lost": []}
        return await super()._reveal_shares(reduction, agreed, kept, asked)


@pytest.mark.parametrize("server", ["honest", "active"])
def test_a_server_that_names_more_survivors_cannot_open_the_sum(server):
    """It learns seeds of more parts, and no longer the key of the lost party, whose masks stay in the sum."""
    with pytest.raises(QuorumError, match="0 right shares of the key of client-2"):
        summed(
            SkellamNoise(**STAGE, most=PARTIES),
            reducer=Larger(threshold=5, server=server),
            lost={":masked/": ["client-2"]},
        )


def test_seeds_are_revealed_for_one_set_which_is_written_down_before():
    class Asking(Inline):
        second = None

        async def run(self, request, positions):
            replies = await super().run(request, positions)
            if request.task.name == party_steps.reveal.name and self.second is None:
                assert all(len(reply.value["excess"]) == 6 for reply in replies)
                fewer = {"kept": request.message["kept"][1:], "lost": request.message["kept"][:1]}
                name = request.id.rpartition("@")[0] + "@" + party_steps.label_of(fewer["kept"], fewer["lost"])
                self.second = await super().run(replace(request, id=name, message=fewer), positions)
            return replies

    engine = Asking()
    summed(SkellamNoise(**STAGE, most=PARTIES), reducer=SecureAggregation(threshold=5, server="active"), engine=engine)
    assert all(isinstance(reply.error, PolicyError) for reply in engine.second)


@pytest.mark.parametrize(("liars", "left"), [([1], 0), ([0, 1, 2, 3], PARTIES)])
def test_wrong_shares_leave_noise_in_the_sum_and_never_take_too_much(liars, left):
    class Lying(Inline):
        async def run(self, request, positions):
            replies = await super().run(request, positions)
            for reply in replies:
                if request.task.name == party_steps.reveal.name and reply.party in liars:
                    shares = reply.value["excess"]
                    shares.update({name: bytes([share[0] ^ 1]) + share[1:] for name, share in shares.items()})
            return replies

    stage = SkellamNoise(**STAGE, most=PARTIES)
    found, noise, _ = summed(stage, entries=4000, engine=Lying())
    expected = stage.variance * (2 if left else 1)
    assert found.counts["excess_left"] == left
    assert found.counts["wrong_shares"] == len(liars)
    assert abs(float((noise**2).mean()) / expected - 1) < 6 * math.sqrt(2 / 4000)


def test_a_dealer_whose_shares_are_not_of_its_parts_keeps_its_noise():
    """The anchor that it has sent does not follow from the seed that its holders open."""

    class Odd(Inline):
        async def run(self, request, positions):
            replies = await super().run(request, positions)
            odd = [request.task.name == party_steps.deal.name and reply.party == 1 for reply in replies]
            return [
                replace(r, value={**r.value, "anchor": bytes(32)}) if o else r
                for r, o in zip(replies, odd, strict=True)
            ]

    found, _, _ = summed(SkellamNoise(**STAGE, most=PARTIES), engine=Odd())
    assert found.counts["excess_left"] == 1
