"""Noise of whole numbers underneath secure sums: what one client can change, unbiased sums, their error, wrap-around, and refusals."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.core.algebra.aggregate import Mean, Sum
from atoll.core.algebra.rng import Rng
from atoll.core.errors import CompositionError, ConfigError, DataError, QuorumError
from atoll.core.event import Gaussian
from atoll.core.facets import facet
from atoll.core.message.words import Words
from atoll.core.requests.chain import Chain
from atoll.core.requests.cohort import Community
from atoll.core.requests.stage import SEED_BYTES, StageContext, Worded
from atoll.core.requests.task import Batch, Task
from atoll.core.world import World
from atoll.engines import Batched, Inline, Processes
from atoll.privacy import epsilon_of, spent
from atoll.reducers import OneShot, SecureAggregation, TwoServers
from atoll.secure.keystream import Keystream
from atoll.secure.noise import (
    DiscreteGaussianNoise,
    SkellamMixtureNoise,
    SkellamNoise,
    conditional,
    in_steps,
    mean_square,
    rounded_bound,
    unconditional,
)
from atoll.stages import Rotation
from atoll.stages.coded.rotation import bound_entry
from atoll.testing import Timetable, check_stage, live

KINDS = (DiscreteGaussianNoise, SkellamNoise, SkellamMixtureNoise)
SIZE = 2000


def secret(i=0, **more):
    seeds = np.frombuffer(np.random.default_rng(i).bytes(SEED_BYTES), dtype=np.uint8).reshape(1, -1)
    return StageContext(None, np.array([Rng(i).key], dtype=np.uint64), seeds, **more)


@pytest.mark.every(4)  # each value of both axes once
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("settings", [{}, {"bits": 16, "step": 0.01}, {"replaced": True}], ids=str)
def test_it_keeps_what_a_stage_declares(kind, settings):
    settings = {"step": 0.001, "inflation": 1.02, **settings}
    check_stage(kind(multiplier=0.1, clip=20.0, **settings))


# ---------------------------------------------------------------------- what one client can change


def adversarial(shape, size, scale):
    """Vectors that would pass a careless clip: spikes, halves, huge and tiny ones, and values whose squares overflow."""
    half = np.full(size, 0.5)
    return {
        "spike": np.eye(1, size)[0] * scale,
        "halves": half * scale,
        "dense": np.sin(np.arange(size) * 1.7) * scale,
        "overflow": np.full(size, 1e300),
        "tiny": np.full(size, 1e-300),
        "negative": -half * scale - 1e-9,
    }[shape]


@given(
    st.sampled_from(["spike", "halves", "dense", "overflow", "tiny", "negative"]),
    st.integers(1, 200),
    st.floats(1e-3, 1e6),
    st.floats(0.01, 0.4),
    st.sampled_from(KINDS[:2]),
    st.integers(0, 1000),
)
def test_no_update_moves_the_sum_further_than_declared(shape, size, scale, step, kind, key):
    """Search over vectors and secrets, through clip and rounding, in whole numbers: ``||round(x / g)||^2 <= D^2`` exactly."""
    stage = kind(multiplier=1.0, clip=1.0, step=step, inflation=max(1.0, rounded_bound(1.0, step, size)))
    made = stage._round_vector(adversarial(shape, size, scale), Keystream(secret(key).secret.bytes(32)))
    moved = sum(int(v) ** 2 for v in made.tolist())
    assert moved <= stage.released().sensitivity ** 2 * (1 + 1e-12)
    assert moved <= (stage.inflation * stage.clip / stage.step) ** 2


@given(
    st.sampled_from(["spike", "halves", "dense", "overflow", "negative"]),
    st.integers(1, 200),
    st.floats(1e-3, 1e6),
    st.floats(0.01, 0.9),
)
@pytest.mark.slow
def test_no_update_exceeds_the_mean_square_of_a_mixture(shape, size, scale, step):
    stage = SkellamMixtureNoise(multiplier=1.0, clip=1.0, step=step, inflation=1.1)
    source = Keystream(secret(1).secret.bytes(32))
    vector = adversarial(shape, size, scale)
    draws = np.array([stage._round_vector(vector, source) for _ in range(30)])
    event = stage.released()
    assert np.abs(draws).max() <= event.largest
    # Each entry takes two neighbouring values, so their shares give the mean square; five standard errors of slack.
    squares = np.square(draws).sum(axis=1)
    assert squares.mean() <= event.sensitivity**2 + 5 * squares.std() / math.sqrt(30) + 1e-9


def test_the_mean_square_of_rounding_is_its_formula():
    rng = np.random.default_rng(0)
    x = rng.normal(size=50) * 3
    exact = in_steps(x, 1e9, 1.0)
    share = x - np.floor(x)
    assert mean_square(exact) == pytest.approx((x * x + share * (1 - share)).sum(), rel=1e-8)


def test_neighbours_by_replacement_double_what_moves():
    for kind in KINDS:
        one, two = (kind(multiplier=1.0, clip=1.0, step=0.01, replaced=r).released() for r in (False, True))
        assert two.sensitivity == pytest.approx(2 * one.sensitivity)
        assert two.variance == pytest.approx(4 * one.variance)


@pytest.mark.parametrize("kind", KINDS)
def test_a_release_costs_about_what_gaussian_noise_of_the_multiplier_does(kind):
    """On a fine grid the three are within 2 % of the Gaussian's ``a / (2 z^2)``, whatever the number of parties."""
    gauss = epsilon_of(((Gaussian(noise_multiplier=2.0), 10),), 1e-6, "rdp")
    for least in (1, 50):
        event = kind(multiplier=2.0, clip=1.0, step=1e-3, least=least).released()
        assert gauss <= epsilon_of(((event, 10),), 1e-6, "rdp", "model") <= 1.02 * gauss
        replaced = kind(multiplier=2.0, clip=1.0, step=1e-3, least=least, replaced=True).released()
        wide = 1.4 if kind is SkellamMixtureNoise else 1.02  # two vectors that were both rounded
        assert gauss <= epsilon_of(((replaced, 10),), 1e-6, "rdp") <= wide * gauss


@pytest.mark.parametrize("kind", KINDS)
def test_a_server_that_sees_who_takes_part_counts_by_replacing_one(kind):
    """Noise for a client that is left out is half the noise for one that is replaced, whatever neighbours one asks for."""
    twice = epsilon_of(((Gaussian(noise_multiplier=1.0), 10),), 1e-6, "rdp")
    event = kind(multiplier=2.0, clip=1.0, step=1e-3, least=4).released()
    for neighbours in ("add-remove", "replace-one"):
        assert twice <= epsilon_of(((event, 10),), 1e-6, "rdp", "server", neighbours)
    assert twice <= epsilon_of(((event, 10),), 1e-6, "rdp", "model", "replace-one")
    assert epsilon_of(((event, 10),), 1e-6, "rdp", "model") < 0.6 * twice


# ---------------------------------------------------------------------- sums


def value_of(position):
    rng = np.random.default_rng(position)
    x = rng.normal(size=SIZE) * np.where(np.arange(SIZE) < 40, 20.0, 0.3)
    return x / np.linalg.norm(x) * 0.98


def reply(island, message):
    return {"u": Sum({"w": value_of(island.party.position)}), "n": Sum(np.float64(1.0), role="metric")}


def replies(cohort, message):
    for places in np.array_split(np.arange(len(cohort)), 3):
        values = np.stack([value_of(i) for i in places.tolist()])
        yield Batch(places, {"u": Sum({"w": values}), "n": Sum(np.ones(len(places)), role="metric")})


REPLY = Task("tests.secure.noise.test_stages:REPLY", reply, many=replies)


def weighted(island, message):
    return {"u": Mean({"w": value_of(island.party.position)}, examples=3.0)}


WEIGHTED = Task("tests.secure.noise.test_stages:WEIGHTED", weighted)


def asking(stages, work=REPLY, **terms):
    async def program(fed):
        got = await fed.sum(fed.parties, work, uplink=stages, **terms)
        return got["u"]["w"], sorted(got.value)

    return program


def world(engine=None, parties=10, **more):
    others = dict.fromkeys(TwoServers().others)
    return World(Community([None] * parties, others=others), engine or Batched(1), **more)


def stages_of(kind, **more):
    settings = {"multiplier": 0.2, "clip": 1.0, "step": 2e-4, "least": 8, **more}
    return [Rotation(), kind(**settings)]


EXACT = sum(value_of(i) for i in range(10))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("reducer", [SecureAggregation, OneShot, TwoServers])
def test_a_secure_sum_is_the_sum_and_the_noise_that_it_should_have(kind, reducer):
    """Ten replies, noise for eight: the sum errs by the variance of ten shares, by chi-square within six deviations."""
    stages = stages_of(kind)
    ran = world()
    found, names = live(ran, asking(stages, quorum=8, reducer=reducer())).result
    deviation = stages[-1].deviation(10)
    assert deviation == pytest.approx(0.2 * 1.01 * math.sqrt(10 / 8), rel=1e-3)
    z = (found - EXACT) / deviation
    assert abs((z**2).sum() - SIZE) < 6 * math.sqrt(2 * SIZE)
    assert abs(z.mean()) < 6 / math.sqrt(SIZE)
    assert names == ["u"]  # measurements stay
    assert len(ran.ledger) >= 10
    charged = spent(ran.ledger, 1e-6, "rdp")
    assert charged["client-0"] == pytest.approx(epsilon_of(((stages[-1].released(), 1),), 1e-6, "rdp"))


@pytest.mark.parametrize("lost", [2, 3])
def test_a_sum_of_the_quorum_has_the_noise_it_needs_and_one_of_fewer_is_not_opened(lost):
    """Of ten clients, eight share the noise. Those that drop out after their masks are dealt take their shares of the noise with them."""
    stages = stages_of(SkellamNoise)
    ran = world(cost=Timetable(lost={":masked/": [f"client-{i}" for i in range(lost)]}))
    asked = asking(stages, quorum=8, reducer=SecureAggregation())
    if lost == 3:
        with pytest.raises(QuorumError, match="8"):
            live(ran, asked)
        return
    found, _ = live(ran, asked).result
    deviation = stages[-1].deviation(8)
    assert deviation == pytest.approx(0.2 * 1.01, rel=1e-3)
    z = (found - sum(value_of(i) for i in range(2, 10))) / deviation
    assert abs((z**2).sum() - SIZE) < 6 * math.sqrt(2 * SIZE)


@pytest.mark.network
@pytest.mark.parametrize("kind", KINDS)
def test_engines_give_one_sum_from_one_secret_and_the_run_seed_gives_none(kind):
    stages = stages_of(kind)
    made = [live(world(engine(), secret_seed=3), asking(stages, quorum=8, reducer=SecureAggregation())).result[0] for engine in (Inline, lambda: Batched(1), lambda: Processes(2))]  # fmt: skip
    assert all(np.allclose(made[0], other, atol=1e-12) for other in made[1:])
    first, second = (
        live(world(seed=3), asking(stages, quorum=8, reducer=SecureAggregation())).result[0] for _ in range(2)
    )
    assert not np.isclose(first, second, atol=1e-6).mean() > 0.01


@pytest.mark.parametrize("kind", KINDS)
def test_sums_are_unbiased(kind):
    """The mean over many secrets of a coarse grid: within five standard errors of the value, entry by entry."""
    x = np.array([0.31, -0.07, 0.0, 0.52, 0.013, -0.25, 0.11, 0.02])
    stage = kind(multiplier=0.05, clip=1.0, step=0.02, inflation=rounded_bound(1.0, 0.02, 8))
    count = 2000
    total = np.zeros(8)
    for i in range(count):
        total += stage.decode(stage.encode({"x": x}, secret(i)), None, 1)["x"]
    error = stage.deviation(1) / math.sqrt(count)
    assert np.abs(total / count - x).max() < 5 * error


def test_conditional_rounding_shifts_the_mean_by_less_than_its_bound():
    """At the edge of the clip a bound without room refuses most roundings: the mean moves, by at most ``sqrt(d) (1 - p) / p`` steps."""
    from atoll.secure.keystream import Keystream

    x = np.full(64, 0.5)
    exact, source = in_steps(x, 1e9, 1.0), Keystream(secret(2).secret.bytes(32))
    most = 32
    share = np.mean([(unconditional(exact, source) ** 2).sum() <= most for _ in range(4000)])
    shifted = np.mean([conditional(exact, most, source) for _ in range(4000)], axis=0) - x
    assert 0.4 < share < 0.7
    assert 0.1 < np.linalg.norm(shifted) < math.sqrt(64) * (1 - share) / share


def test_words_of_few_bits_wrap_as_seldom_as_stated():
    """The same secrets in words of 32 bits tell where 14 bits wrap around; without the rotation the spikes do."""

    def found(stages):
        return live(world(secret_seed=9), asking(stages, quorum=8, reducer=SecureAggregation())).result[0]

    wide, narrow = (stages_of(SkellamNoise, step=1e-3, bits=bits) for bits in (32, 14))
    bound = narrow[-1].wraps(10, SIZE, bound_entry(SIZE, 1e-9))
    assert bound < 1e-6
    assert np.allclose(found(wide), found(narrow), atol=1e-9)
    few = [Rotation(), replace(narrow[-1], bits=9)]
    assert few[-1].wraps(10, SIZE, bound_entry(SIZE, 1e-9)) == 1.0
    assert not np.allclose(found(wide), found(few), atol=0.1)


def test_masked_words_have_the_bits_of_the_stage():
    stage = SkellamNoise(multiplier=1.0, clip=1.0, step=1e-3, bits=18)
    sent = stage.encode({"x": np.zeros(10), "y": np.zeros((2, 2), dtype=np.float32)}, secret())
    assert facet(stage, Worded).word_bits(sent)["codes"] == {"x": 18, "y": 18}
    assert max(int(leaf.max()) for leaf in sent["codes"].values()) < 1 << 18
    total = Chain([stage], hidden=True).send(Sum({"x": np.zeros(10)}), [None], Rng(0), {}, secret().seeds)
    assert isinstance(total.total.value["codes"]["x"], Words)


# ---------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("terms", "work", "match"),
    [
        ({"quorum": 8}, REPLY, "single replies can be seen"),
        ({"quorum": 5, "reducer": SecureAggregation()}, REPLY, "a sum of 5 replies of equal weight may be used"),
        ({"quorum": 8, "reducer": SecureAggregation()}, WEIGHTED, "a sum of 1 replies of equal weight"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("engine", [Inline, lambda: Batched(1)])
def test_noise_that_replies_share_is_refused_where_it_would_be_too_little(engine, terms, work, match):
    """Nothing leaves: the party itself refuses, before it draws."""
    with pytest.raises((CompositionError, QuorumError), match=match):
        live(world(engine()), asking(stages_of(SkellamNoise), work, **terms))


def test_local_noise_may_be_seen():
    found, _ = live(world(), asking(stages_of(SkellamNoise, least=1), quorum=1)).result
    z = (found - EXACT) / stages_of(SkellamNoise, least=1)[-1].deviation(10)
    assert abs((z**2).sum() - SIZE) < 6 * math.sqrt(2 * SIZE)


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"multiplier": 0.0}, "multiplier=0.0"),
        ({"clip": math.inf}, "clip=inf"),
        ({"step": -1.0}, "step=-1.0"),
        ({"least": 0}, "least=0"),
        ({"least": 4, "corrupt": 4}, "corrupt=4 of least=4"),
        ({"bits": 40}, "bits=40"),
        ({"inflation": 0.9}, "inflation=0.9"),
        ({"unit": "row"}, "unit="),
        ({"step": 1e-6}, "use a coarser grid, step="),
        ({"step": 2.0}, "use a step below clip"),
    ],
)
def test_settings_without_sense_are_refused(settings, match):
    with pytest.raises(ConfigError, match=match):
        SkellamNoise(**{"multiplier": 1.0, "clip": 1.0, "step": 0.01, **settings})


def test_grids_that_do_not_fit_say_which_do():
    with pytest.raises(ConfigError, match="at least half a step"):
        DiscreteGaussianNoise(multiplier=0.1, clip=1.0, step=0.1, least=100)
    with pytest.raises(DataError, match="inflation=") as told:
        SkellamNoise(multiplier=1.0, clip=1.0, step=0.05).encode({"x": np.zeros(4000)}, secret())
    needed = float(str(told.value).split("inflation=")[1].split()[0].rstrip("."))
    SkellamNoise(multiplier=1.0, clip=1.0, step=0.05, inflation=needed).encode({"x": np.zeros(4000)}, secret())


def test_a_site_that_asks_for_noise_takes_more_of_it():
    asked = SkellamNoise(multiplier=1.0, clip=1.0, step=0.01, least=5)
    assert replace(asked, multiplier=2.0).covers(asked)
    assert replace(asked, replaced=True).covers(asked)
    for weaker in ({"multiplier": 0.5}, {"clip": 2.0}, {"least": 6}):
        assert not replace(asked, **weaker).covers(asked)
    assert not DiscreteGaussianNoise(multiplier=2.0, clip=1.0, step=0.01).covers(asked)
