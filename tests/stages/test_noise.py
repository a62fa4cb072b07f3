"""Stages that draw on the parties' secrets: noise for differential privacy, what it spends, and that it is never drawn twice."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

import atoll
from atoll.core.algebra.aggregate import Mean, Sum
from atoll.core.errors import CompositionError, ConfigError, PolicyError
from atoll.core.event import Ledger
from atoll.core.execution.host import Journal
from atoll.core.facets import facet
from atoll.core.requests.chain import Chain
from atoll.core.requests.cohort import Community
from atoll.core.requests.request import Request
from atoll.core.requests.stage import SEED_BYTES, Guarding, StageContext
from atoll.core.requests.task import Batch, Task, task
from atoll.core.world import World
from atoll.engines import Batched, Inline, Processes
from atoll.pacing import SAFA, FedAsync, FedBuff, PaceSteering, PartialBarrier, Tiered
from atoll.privacy import Demand, PrivacyLoss, exact_epsilon, spent
from atoll.stages import Clip, ErrorFeedback, GaussianNoise, Threshold
from atoll.testing import check_stage, killed_and_resumed, live
from atoll.testing.crash import Killed
from atoll.testing.lying.sites import Rehearsal

SIZE = 400
NOISE = [Clip(2.0), GaussianNoise(0.5)]


def zero(island, message):
    return {"u": Sum({"w": np.zeros(SIZE)}), "n": Sum(np.float64(1.0), role="metric")}


def zeros(cohort, message):
    for places in np.array_split(np.arange(len(cohort)), 2):
        yield Batch(
            places,
            {"u": Sum({"w": np.zeros((len(places), SIZE))}), "n": Sum(np.ones(len(places)), role="metric")},
        )


ZERO = Task("tests.stages.test_noise:ZERO", zero, many=zeros)


@task
def bad(island, message):
    """One client's reply is not finite, so it is never released."""
    x = np.full(3, np.nan if island.party.position == 1 else 1.0)
    return {"u": Sum(x), "v": Mean(x, examples=1.0)}


def asking(stages, *, rounds=1, work=ZERO, **terms):
    async def program(fed):
        state = await fed.restore({"round": np.int64(0), "seen": [], "names": [np.zeros(0)]})
        for number in range(int(state["round"]), rounds):
            got = await fed.sum(fed.parties, work, uplink=stages, **terms)
            seen = [*state["seen"], got["u"]["w"] if isinstance(got["u"], dict) else got["u"]]
            state = {"round": np.int64(number + 1), "seen": seen, "names": [np.array(sorted(got.value))]}
            await fed.checkpoint(state)
        return state["seen"], state["names"][0].tolist()

    return program


def world(engine, parties=4, **more):
    return World(Community([None] * parties), engine, **more)


ENGINES = [
    Inline,
    lambda: Batched(1),
    lambda: Batched(2),
    pytest.param(lambda: Processes(2), id="processes"),
    pytest.param(lambda: Rehearsal(2), id="network"),
]


def test_it_keeps_what_a_stage_declares():
    check_stage(GaussianNoise(0.3))


@pytest.mark.parametrize("engine", ENGINES)
def test_the_sum_has_the_noise_that_it_should_and_the_ledger_says_so(engine):
    """Four replies with noise of deviation 0.5 * 2 each: chi-square with 400 degrees within six deviations, the mean likewise."""
    ran = world(engine())
    (seen,), names = live(ran, asking(NOISE)).result
    z = seen / (1.0 * np.sqrt(4))
    assert abs((z**2).sum() - SIZE) < 6 * np.sqrt(2 * SIZE)
    assert abs(z.mean()) < 6 / np.sqrt(SIZE)
    assert names == ["u"]  # measurements beside it stay at the parties
    entries = list(ran.ledger)
    assert sorted(e["party"] for e in entries) == [f"client-{i}" for i in range(4)]
    assert {(e["kind"], e["noise_multiplier"], e["unit"], e["scope"], e["count"]) for e in entries} == {
        ("gaussian", 0.5, "user", "*", 1)
    }
    assert spent(ran.ledger, 1e-5)["client-0"] == pytest.approx(
        exact_epsilon(1 / 0.25**2, 1e-5)
    )  # the server sees who takes part


@pytest.mark.network
def test_blocks_and_single_replies_write_the_same_ledger_and_the_same_noise_from_one_seed():
    made = []
    for engine in (Inline, lambda: Batched(1), lambda: Processes(2)):
        ran = world(engine(), secret_seed=7)
        made.append((live(ran, asking(NOISE)).result[0][0], list(ran.ledger)))
    for result, ledger in made[1:]:
        np.testing.assert_allclose(result, made[0][0], rtol=1e-12)
        assert ledger == made[0][1]
    assert made[0][1][0]["kind"] == "seeded-secret"


@pytest.mark.parametrize("engine", [Inline, lambda: Batched(1)])
def test_the_run_seed_does_not_determine_the_noise(engine):
    first, second = (live(world(engine(), seed=3), asking(NOISE)).result[0][0] for _ in range(2))
    assert not np.isclose(first, second).any()


def test_a_block_writes_one_line_for_all_its_clients():
    ran = world(Batched(1), parties=50)
    live(ran, asking(NOISE, rounds=2))
    assert len(ran.ledger.lines()) == 2
    assert len(ran.ledger) == 100


@pytest.mark.parametrize(
    "engine",
    [
        Inline,
        lambda: Batched(1),
        pytest.param(lambda: Processes(2), id="processes"),
        pytest.param(lambda: Rehearsal(2), id="network"),
    ],
)
@pytest.mark.quick("Inline")
def test_killed_and_resumed_it_draws_the_same_noise(engine, tmp_path):
    """A sum that was seen before the kill is seen again: another draw would be a second release of the same values."""
    again = 0
    for step in range(0, 60, 4):
        seen, folder = {}, tmp_path / f"killed-{step}"

        async def program(fed, seen=seen):
            state = await fed.restore({"round": np.int64(0)})
            for number in range(int(state["round"]), 3):
                got = (await fed.sum(fed.parties, ZERO, uplink=NOISE))["u"]["w"]
                seen.setdefault(number, []).append(np.array(got))
                await fed.checkpoint({"round": np.int64(number + 1)})

        try:
            live(world(engine(), folder=folder), program, kill_at=step)
        except Killed:
            live(world(engine(), folder=folder, resume=True), program)
        for sums in seen.values():
            again += len(sums) - 1
            for other in sums[1:]:
                np.testing.assert_array_equal(sums[0], other)
        assert len({sums[0][0] for sums in seen.values()}) == 3
    assert again > 0


@pytest.mark.quick("Inline", "<lambda>")
@pytest.mark.parametrize("engine", [Inline, lambda: Batched(1), pytest.param(lambda: Processes(2), id="processes")])
def test_every_step_at_which_it_may_die_spends_once(engine, tmp_path):
    def make(folder, resume):
        return world(engine(), folder=folder, resume=resume, secret_seed=1)

    killed_and_resumed(make, asking(NOISE, rounds=2), tmp_path, points=5)


def request(stages, **more):
    return Request("main/t/0", ZERO, None, "main", 1, Chain(stages), (None,) * len(stages), **more)


def test_seeds_survive_a_crash_and_are_refused_to_other_stages(tmp_path):
    places = np.arange(3)
    journal = Journal(tmp_path / "journal.log")
    drawn = journal.draw(request(NOISE), places)
    again = Journal(tmp_path / "journal.log")
    np.testing.assert_array_equal(again.draw(request(NOISE), places).rows, drawn.rows)
    more = again.draw(request(NOISE), np.arange(5))
    np.testing.assert_array_equal(more.rows[:3], drawn.rows)
    assert len(np.unique(more.rows, axis=0)) == 5
    with pytest.raises(PolicyError, match="the same request has other stages"):
        again.draw(request([Clip(2.0), GaussianNoise(0.25)]), places)
    again.forget("main")
    again.forget("main")
    assert not (Journal(tmp_path / "journal.log").draw(request(NOISE), places).rows == drawn.rows).all(axis=1).any()


def test_noise_is_shared_where_only_sums_are_seen_and_not_under_weights():
    context = StageContext(seeds=np.zeros((1, SEED_BYTES), np.uint8), sensitivity=2.0, replies=16)
    assert GaussianNoise(0.5).scale(context) == 1.0  # single replies can be seen
    assert GaussianNoise(0.5).scale(replace(context, hidden=True)) == 0.25
    assert GaussianNoise(0.5, trusted=True).scale(context) == 0.25


@pytest.mark.parametrize(("quorum", "weight", "deviation"), [(1, 1.0, 1.0), (4, 1.0, 0.5), (4, 3.0, 1.0)])
def test_the_quorum_says_how_many_share_the_noise(quorum, weight, deviation):
    def run(island, message):
        return {"u": Mean({"w": np.zeros(4 * SIZE)}, examples=weight)}

    work = Task("t:weighted", run)
    ran = world(Inline(), registry={work.name: work})
    (seen,), _ = live(ran, asking([Clip(2.0), GaussianNoise(0.5, trusted=True)], work=work, quorum=quorum)).result
    assert seen.std() == pytest.approx(deviation / np.sqrt(4), rel=0.1)


@pytest.mark.parametrize("engine", [Inline, pytest.param(lambda: Processes(2), id="processes")])
def test_a_reply_that_is_rejected_releases_nothing(engine):
    ran = world(engine(), parties=3)
    live(ran, asking(NOISE, work=bad))
    assert sorted((e["party"], e["count"]) for e in ran.ledger) == [("client-0", 2), ("client-2", 2)]


def test_noise_without_a_bound_is_refused():
    for stages in ([GaussianNoise()], [Clip(), ErrorFeedback(Threshold(0.1)), GaussianNoise()]):
        with pytest.raises(CompositionError, match=r"nothing bounds what one client can change|binary form"):
            Chain(stages)
    with pytest.raises(CompositionError, match="no memory, secrets or fitted parameters"):
        ErrorFeedback(GaussianNoise())
    with pytest.raises(ConfigError, match="multiplier=0"):
        GaussianNoise(0.0)
    with pytest.raises(ConfigError, match="does not declare it"):
        Clip().encode({"w": np.ones(2)}, StageContext()) and StageContext().secret
    assert "GaussianNoise" in atoll.stages.__all__


def training(algorithm=None, **more):
    options = {"rounds": 3, "selection": atoll.Uniform(5), "uplink": [Clip(1.0), GaussianNoise(2.0)], **more}
    return atoll.Training(
        model=atoll.models.linear(4, 3), algorithm=algorithm or atoll.FedAvg(lr=0.3, batch_size=8), **options
    )


FLOWERS = atoll.data.iid(atoll.data.iris(), parties=10, seed=0)


@pytest.mark.parametrize("engine", ["inline", "batched", "processes"])
def test_a_training_shows_its_epsilon_and_sends_no_measurements(engine):
    result = atoll.simulate(training(selection=atoll.Everyone()), FLOWERS, engine=engine)
    assert result.metrics.column("epsilon") == pytest.approx([exact_epsilon(n, 1e-5) for n in (1, 2, 3)])
    assert "loss" not in result.metrics.names


PACES = {
    "FedAsync": FedAsync(),
    "FedBuff": FedBuff(buffer=3),
    "PaceSteering": PaceSteering(),
    "PartialBarrier": PartialBarrier(),
    "SAFA": SAFA(lag_tolerance=2, deadline=300.0),
    "Tiered": Tiered(),
}


@pytest.mark.parametrize("pace", PACES.values(), ids=PACES)
def test_every_pace_shows_its_epsilon(pace, tmp_path):
    """The last row says what the ledger does; clients that were not used yet have spent all the same."""
    selection = atoll.selection.CFCFM(0.4) if isinstance(pace, SAFA) else atoll.Uniform(5)
    devices = atoll.devices.exponential(crash=0.2, seed=1)
    result = atoll.simulate(training(pacing=pace, selection=selection), FLOWERS, devices=devices, folder=tmp_path)
    shown = result.metrics.column("epsilon")
    assert shown == sorted(shown)
    assert 0 < shown[0] <= shown[-1]
    (ledger,) = tmp_path.rglob("ledger.jsonl")
    assert shown[-1] == pytest.approx(max(spent(Ledger(ledger), 1e-5).values()))


@pytest.mark.parametrize("algorithm", [atoll.FedAvg(lr=0.3), atoll.algorithms.Scaffold(lr=0.3)])
def test_a_budget_stops_a_training_whose_stages_spend(algorithm):
    """Scaffold sends two values a round, so that it affords half as many rounds."""
    values = 2 if isinstance(algorithm, atoll.algorithms.Scaffold) else 1
    limit = exact_epsilon(2 * values, 1e-5)
    budget = atoll.privacy.Budget(limit * 1.0001, on_excess="stop")
    job = training(algorithm, rounds=9, selection=atoll.Everyone(), budget=budget)
    result = atoll.simulate(job, FLOWERS)
    assert len(result.metrics) == 2
    assert result.metrics.last("epsilon") == pytest.approx(limit)
    with pytest.raises(PolicyError, match="9 rounds exceed the privacy budget, and 2 fit"):
        atoll.simulate(job.replace(budget=atoll.privacy.Budget(limit * 1.0001)), FLOWERS)


def test_what_would_leave_beside_the_noise_is_refused():
    with pytest.raises(CompositionError, match="FedNova sends measurements"):
        atoll.simulate(training(atoll.algorithms.FedNova(lr=0.1)), FLOWERS)
    with pytest.raises(CompositionError, match="measures of clients"):
        atoll.simulate(training(evaluation=atoll.Evaluation(clients=3)), FLOWERS)
    with pytest.raises(
        CompositionError, match="Budget counts what is released under privacy, and FedAvg promises no privacy"
    ):
        atoll.simulate(training(uplink=[Clip(1.0)], budget=atoll.privacy.Budget(1.0)), FLOWERS)


def test_a_server_sees_who_takes_part_and_counts_by_replacing_one():
    """Noise of 2 times the bound: epsilon 4.38 at delta 1e-5 for a client whose update is replaced, 1.99 for those who do not see that it is missing."""
    (event,) = facet(GaussianNoise(2.0), Guarding).events(1.0)
    budget = atoll.privacy.Budget(9.0, method="pld")
    loss = PrivacyLoss.of(event)
    for method in ("exact", "pld"):
        assert loss.epsilon(1e-5, method) == pytest.approx(4.377, abs=1e-3)
        assert loss.epsilon(1e-5, method, "model") == pytest.approx(1.993, abs=1e-3)
        assert loss.epsilon(1e-5, method, "model", "replace-one") == pytest.approx(4.377, abs=1e-3)
    assert "neighbours replace-one, adversary server" in budget.terms(loss)
    assert Demand(budget=budget).measure_epsilon(loss) == pytest.approx(4.377, abs=1e-3)


def test_a_trusted_server_is_none_that_a_party_is_protected_from():
    """A request for trusted noise says nothing of whom the party trusts: one that demands protection from the server keeps its reply."""
    events = facet(GaussianNoise(8.0, trusted=True), Guarding).events(1.0)
    with pytest.raises(PolicyError, match="only the others' trust protects without noise"):
        Demand().settle("work", events)
    model = Demand(budget=atoll.privacy.Budget(9.0, method="pld", adversary="model"))
    model.settle("work", events)
    assert sum((PrivacyLoss.of(event) for event in events), PrivacyLoss()).epsilon(1e-5, "pld") == math.inf
