"""With epsilon, what a campaign tells of one worker is bounded: by clipped contributions, noise that nobody knows, and a ledger that counts every sum."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import atoll
from atoll.core.errors import ConfigError, PolicyError, QuorumError, TaskError
from atoll.core.event import Ledger
from atoll.engines import Inline
from atoll.privacy import LedgerAccount
from atoll.privacy.accountant import epsilon_of
from atoll.truth import (
    CRH,
    Additive,
    DawidSkene,
    MajorityVote,
    Masks,
    MeanReport,
    OneCoin,
    PlainReplies,
    Shamir,
    Truth,
    Virtual,
)
from atoll.truth.models.model import Term
from atoll.truth.noise import ContributionNoise
from atoll.truth.protocols import SumCodec

SHARE, GIVE = "atoll.truth.parties:share", "atoll.truth.parties:give"


def drawn(workers=6, tasks=8, seed=0):
    rng = np.random.default_rng(seed)
    truth, skill = rng.integers(0, 2, tasks), rng.uniform(0.6, 0.95, workers)
    return [
        (f"t{t}", f"w{w}", f"c{truth[t] if rng.random() < skill[w] else 1 - truth[t]}")
        for w in range(workers)
        for t in range(tasks)
        if rng.random() < 0.8
    ]


ROWS = drawn()
PARTS = atoll.truth.split_by_worker(ROWS)
LAYOUT = {"tasks": [f"t{t}" for t in range(8)], "classes": ["c0", "c1"]}


def campaign(epsilon=4.0, model=None, **more):
    return Truth(**{"model": model or MajorityVote(), "epsilon": epsilon, "clip": 2.5, "label": "", **LAYOUT, **more})


def simulated(job, parts=PARTS, **more):
    return atoll.simulate(job, parts, **{"engine": "inline", "progress": False, "seed": 2, **more})


# ---------------------------------------------------------------------- how much noise


@pytest.mark.parametrize(("parties", "honest"), [(10, 0.5), (7, 1.0), (3, 0.3)])
def test_the_noise_of_all_parties_has_the_variance_that_is_said(parties, honest):
    noise = ContributionNoise(2.0, 1e-5, 3.0, parties, 4, honest)
    draws = 40_000
    total = sum(noise.add_up([], draws, bytes([party]) * 32, 1) for party in range(parties))
    found = float(np.mean((total * noise.stage.step) ** 2))
    assert abs(found / noise.deviation() ** 2 - 1) < 5 * math.sqrt(2 / draws)
    assert noise.deviation(noise.least) == pytest.approx(noise.stage.multiplier * 2 * 1.01 * 3.0, rel=1e-3)
    assert np.abs(total).max() < noise.largest


@pytest.mark.parametrize(("epsilon", "releases"), [(0.5, 1), (4.0, 7), (20.0, 50)])
def test_all_steps_together_cost_epsilon_and_hardly_less(epsilon, releases):
    """By the accountant, and by the Renyi divergence of Gaussians in one line (Mironov 2017), which is larger."""
    noise = ContributionNoise(epsilon, 1e-5, 2.0, 20, releases)
    found = epsilon_of(((noise.released, releases),), 1e-5, "rdp", "server", "replace-one")
    assert 0.999 * epsilon < found <= epsilon
    ratio = noise.stage.apart**2 / noise.stage.variance
    orders = np.linspace(1.01, 500, 20_000)
    simple = float(np.min(releases * orders * ratio / 2 + math.log(1e5) / (orders - 1)))
    assert found <= simple <= 2 * found


@settings(max_examples=40, deadline=None)
@given(scale=st.sampled_from([1e-9, 1e-3, 1.0, 1e9]), workers=st.integers(1, 5), seed=st.integers(0, 99))
def test_a_worker_moves_a_sum_by_no_more_than_counts(scale, workers, seed):
    """Whatever a worker contributes: the whole numbers of a party with and without it differ by at most half of what exchanging a worker costs."""
    noise = ContributionNoise(8.0, 1e-5, 1.5, 4, 3)
    rows = list(np.random.default_rng(seed).normal(size=(workers, 12)) * scale)
    key = bytes(32)
    apart = noise.add_up(rows, 12, key, 1) - noise.add_up(rows[1:], 12, key, 1)
    assert 2 * math.sqrt(float(apart @ apart)) <= noise.stage.apart
    if scale >= 1:
        assert math.sqrt(float(apart @ apart)) > 0.97 * noise.stage.apart / 2.02
    else:  # short contributions stay as they are
        np.testing.assert_allclose(apart * noise.stage.step, rows[0], atol=noise.stage.step)


@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf])
def test_a_worker_without_a_finite_contribution_adds_nothing(odd):
    noise, row = ContributionNoise(8.0, 1e-5, 1.5, 4, 3), np.ones(12)
    found = noise.add_up([row, np.where(np.arange(12) == 4, odd, row)], 12, bytes(32), 1)
    np.testing.assert_array_equal(found, noise.add_up([row], 12, bytes(32), 1))


def test_sums_with_noise_are_brought_back_to_what_they_can_be():
    codec = SumCodec({"votes": Term((3,), 1.0, signed=False), "logs": Term((2,), 2.0)}, 4, 10, 5, noise=10_000)
    found = codec.decode(np.array([-900, 16, 900, -900, 90], dtype=np.int64))
    np.testing.assert_array_equal(found["logs"], [-20, 1])
    np.testing.assert_array_equal(found["votes"], [10, 0, 5.625])
    with pytest.raises(ConfigError, match="odd has no bound"):
        SumCodec({"odd": Term((3,), math.inf)}, 4, 10, 5)


# ---------------------------------------------------------------------- a campaign


@pytest.fixture
def silent(monkeypatch):
    """Noise whose draws are all zero."""

    class Zeros:
        def draw(self, source, count):
            return np.zeros(count, dtype=np.int64)

    monkeypatch.setattr("atoll.truth.noise.sampler_of", lambda law: Zeros())


@pytest.mark.parametrize(
    "protocol", [Shamir(threshold=2), Additive(), Masks(), Virtual(of=Shamir(committee=3))], ids=str
)
def test_if_all_draws_are_zero_every_protocol_finds_the_same_truth(protocol, silent):
    result = simulated(campaign(20.0, OneCoin(iterations=2), protocol=protocol, clip=100.0))
    compared = result.compare_plain()
    assert (compared.agreement, compared.max_difference < 0.05) == (1.0, True)
    assert (result.plain()["epsilon"], result.reports) == (20.0, 0)


def test_a_site_clips_each_of_its_workers(silent):
    sites = {"north": [row for row in ROWS if row[1] < "w3"], "south": [row for row in ROWS if row[1] >= "w3"]}
    alone, together = (simulated(campaign(20.0, clip=0.5), parts) for parts in (PARTS, sites))
    whole = simulated(campaign(20.0, clip=100.0))
    assert max(abs(together.confidence[task] - sure) for task, sure in alone.confidence.items()) < 0.01
    assert max(abs(whole.confidence[task] - sure) for task, sure in alone.confidence.items()) > 0.005


def test_numbers_of_many_workers_survive_noise():
    rng = np.random.default_rng(0)
    rows = [(f"t{t}", f"w{w}", str(10 * t + rng.normal())) for t in range(4) for w in range(200)]
    job = Truth(model=MeanReport(), protocol=Virtual(), tasks=[f"t{t}" for t in range(4)], low=-5.0, high=35.0, epsilon=8.0, clip=3.0, label="")  # fmt: skip
    found = simulated(job, atoll.truth.split_by_worker(rows)).truth
    assert max(abs(found[f"t{t}"] - 10 * t) for t in range(4)) < 12


def test_more_noise_loses_more_of_the_truth():
    rows = drawn(80, 10, seed=3)
    job = campaign(tasks=[f"t{t}" for t in range(10)], protocol=Virtual(of=Shamir(committee=5)))
    parts, exact = atoll.truth.split_by_worker(rows), MajorityVote().fit_predict(rows)
    right = {}
    for epsilon in (0.1, 16.0):
        found = [simulated(replace(job, epsilon=epsilon), parts, secret_seed=seed).truth for seed in range(2)]
        right[epsilon] = np.mean([one[task] == label for one in found for task, label in exact.items()])
    assert right[0.1] < 0.9 < right[16.0]


# ---------------------------------------------------------------------- what it costs


def test_the_ledger_has_every_sum_once_and_a_repeated_campaign_costs_again(tmp_path):
    job, file = campaign(model=OneCoin(iterations=3, tolerance=0), protocol=Shamir(threshold=2)), tmp_path / "l.jsonl"
    for times in (1, 2):
        simulated(job, ledger=file, secret_seed=times)
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        assert "non-private" not in {line.get("kind") for line in lines}
        account = LedgerAccount(Ledger(file, readable=True).lines()).update()
        spent = account.spent("w0").epsilon(1e-5, "rdp", "server", "replace-one")
        wanted = epsilon_of(((job.find_noise(6).released, 4 * times),), 1e-5, "rdp", "server", "replace-one")
        assert spent == pytest.approx(wanted, rel=1e-6)
        assert (spent <= 4.0) == (times == 1)
    prepared = simulated(job).prepared
    (most,) = prepared.most(10)
    assert (most.count, most.unit) == (4, "user")


class Asking(Inline):
    """A server that asks a second time, for something else."""

    def __init__(self, change):
        super().__init__()
        self.change, self.refused = change, []

    async def run(self, request, positions):
        first = await super().run(request, positions)
        if request.task.name == SHARE and request.message["number"] == 2:
            other = self.change(request.message)
            again = await super().run(replace(request, id=request.id + "-again", message=other), positions)
            self.refused += [str(reply.error or reply.rejected or "") for reply in again]
        return first


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda m: {**m, "broadcast": {**m["broadcast"], "truth": 1 - m["broadcast"]["truth"]}}, "bound itself"),
        (lambda m: {**m, "number": 9}, "step 9 likelihoods of a campaign of 3 steps"),
        (lambda m: {**m, "step": "votes"}, "step 2 votes of a campaign of 3 steps"),
    ],
)
def test_a_server_wins_no_sum_more_than_was_agreed_on(change, said):
    engine = Asking(change)
    job = campaign(1e3, OneCoin(iterations=2, tolerance=0), protocol=Shamir(threshold=2))
    simulated(job, engine=engine, sealing="real")
    assert len(engine.refused) == 6
    assert all(said in one for one in engine.refused)


def test_a_sum_of_too_few_parties_is_not_opened():
    """Half of the noise would be missing; a holder refuses too, whatever the server asks."""
    job = campaign(1e3, protocol=Shamir(threshold=2), honest=1.0, loss=0.5)
    with pytest.raises(QuorumError, match="fewer than the quorum of 6"):
        simulated(job)

    class Few(Inline):
        async def run(self, request, positions):
            if request.task.name.endswith(":add"):
                names = request.message["senders"][:5]
                request = replace(request, message={**request.message, "senders": names}, mail=request.mail.only_from(set(names)))  # fmt: skip
            return await super().run(request, positions)

    with pytest.raises((PolicyError, TaskError, QuorumError), match="a sum of 5 parties, fewer than 6"):
        simulated(replace(job, loss=0.0), engine=Few())


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"epsilon": 0.0}, "use a finite epsilon above 0"),
        ({"honest": 0.0}, "a part of the parties above 0"),
        ({"clip": None}, "say how much a worker may add"),
        ({"protocol": PlainReplies()}, r"use Shamir\(\)"),
        ({"protocol": Shamir(checks=True)}, "leave checks out, or epsilon"),
        ({"protocol": Shamir(min_reporters=2)}, "leave min_reporters out, or epsilon"),
        ({"model": DawidSkene(), "ranking": 1}, "leave ranking out, or epsilon"),
        ({"classes": ()}, "give classes in the job"),
        ({"model": CRH()}, "give low and high in the job"),
    ],
)
def test_settings_with_which_epsilon_would_not_hold_are_refused(more, said):
    with pytest.raises(ConfigError, match=said):
        campaign(**more)


def test_a_hopeless_epsilon_is_refused_before_anything_is_sent():
    with pytest.raises(ConfigError, match="use a larger epsilon or fewer iterations"):
        simulated(campaign(1e-6, DawidSkene(iterations=100)))
