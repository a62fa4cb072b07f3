"""PATE: students of votes, answers in the ledger, noise at the server or under secure sums, and forged votes."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

import atoll
from atoll.algorithms import FedAvg, OutputPerturbation
from atoll.core.algebra.aggregate import Parts
from atoll.core.errors import AtollError, CompositionError, ConfigError, PolicyError
from atoll.core.event import Gaussian, Ledger
from atoll.core.requests.party import Roster
from atoll.core.requests.policy import SitePolicy
from atoll.core.world import World
from atoll.data import Dataset, Islands
from atoll.engines import ENGINES
from atoll.labels import PATE
from atoll.labels.methods import pate as course
from atoll.labels.methods.pate import NOBODY, VoteNoise, VoteRule, check_votes, votes_of
from atoll.models import Linear
from atoll.privacy import Budget, Demand, exact_epsilon, spent
from atoll.privacy.renyi import NoisyVote
from atoll.reducers import SecureAggregation
from atoll.stages import Clip
from atoll.testing import killed_and_resumed

CENTRES = np.random.default_rng(0).normal(size=(3, 6)) * 2.0
TEACHERS = 8


def rows(n: int, seed: int, y: Any = None) -> Dataset:
    rng = np.random.default_rng(seed)
    truth = rng.integers(0, 3, n)
    x = (CENTRES[truth] + rng.normal(size=(n, 6))).astype(np.float32)
    return Dataset({"x": x, "y": truth if y is None else np.full(n, y)}, task="classification", classes=3)


def clinics(public: int = 90, y: Any = None) -> Islands:
    """Eight clients with all classes, and public rows whose labels nobody reads."""
    made = Islands.from_datasets([rows(40, 1 + i) for i in range(TEACHERS)], test=rows(300, 99))
    return made.with_others({"public": rows(public, 98, y)} if public else {})


def job(rounds: int = 2, **settings: Any) -> atoll.Training:
    given = {"rows": 30, "sigma": 1e-6, "epochs": 20, "batch_size": 10, **settings}
    parts = {name: given.pop(name) for name in ("reducer", "uplink", "algorithm", "topology") if name in given}
    return atoll.Training(
        model=Linear(6, 3),
        selection=atoll.Everyone(),
        rounds=rounds,
        evaluation=atoll.Evaluation(every=rounds),
        **{"algorithm": FedAvg(lr=0.1, epochs=5, batch_size=10), "topology": PATE(**given), **parts},
    )


def run(training: atoll.Training, data: Islands | None = None, **settings: Any) -> Any:
    return atoll.simulate(
        training,
        clinics() if data is None else data,
        **{"engine": "inline", "seed": 0, "secret_seed": 1, "progress": False, **settings},
    )


def ran(training: atoll.Training, path: Any, **settings: Any) -> tuple[Any, list[dict[str, Any]]]:
    """The result, and the lines of the ledger."""
    made = run(training, ledger=path / "ledger.jsonl", **settings)
    return made, [
        line
        for line in Ledger(path / "ledger.jsonl", readable=True)
        if line["kind"] in ("gaussian", "noisy-vote", "skellam")
    ]


def test_a_student_learns_from_votes_alone() -> None:
    taught = run(job())
    assert taught.metrics[-1]["test/accuracy"] > 0.85
    assert [row["answered"] for row in taught.metrics] == [30, 30]
    noise = run(job(sigma=1e6)).metrics[-1]["test/accuracy"]
    assert noise < 0.6, "winners of noise teach nothing"


@pytest.mark.network
def test_labels_of_the_public_rows_are_out_of_reach_and_so_is_the_engine() -> None:
    one, two, three = (
        run(job(), clinics(y=y), engine=engine).params for y, engine in ((0, "inline"), (1, "inline"), (0, "processes"))
    )
    assert all(np.array_equal(one[name], two[name]) for name in one)
    assert all(np.array_equal(one[name], three[name]) for name in one)


def test_each_row_is_asked_once_and_without_rows_nobody_is_asked() -> None:
    made = run(job(rounds=3, rows=60))
    assert [row["asked"] for row in made.metrics] == [60, 30, 0]
    assert [row["replied"] for row in made.metrics] == [TEACHERS, TEACHERS, 0]
    costs = [row["epsilon"] for row in made.metrics]
    assert costs[0] < costs[1] == costs[2]


def test_the_winners_are_those_of_the_teachers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The slow reference: count the votes of single replies by hand."""
    seen: list[Any] = []
    told: list[Any] = []
    count, outcome = course.VotingRounds._count_votes, VoteRule.outcome

    def counted(self: Any, fed: Any, made: Any, shape: Any, row: Any) -> Any:
        seen.append([np.asarray(part.value) for part in made["votes"]])
        return count(self, fed, made, shape, row)

    def decided(self: Any, counts: Any, secret: Any) -> Any:
        found = outcome(self, counts, secret)
        told.append((counts, found.labels))
        return found

    monkeypatch.setattr(course.VotingRounds, "_count_votes", counted)
    monkeypatch.setattr(VoteRule, "outcome", decided)
    run(job(rounds=1))
    (single,), ((counts, labels),) = seen, told
    assert len(single) == TEACHERS
    by_hand = [[sum(int(vote[row][c]) for vote in single) for c in range(3)] for row in range(30)]
    assert counts.tolist() == by_hand
    for row, label in enumerate(labels):
        assert by_hand[row][label] == max(by_hand[row])


def test_answers_are_in_the_ledger_as_the_paper_counts_them(tmp_path: Any) -> None:
    """GNMax: ``2 / sigma^2`` of squared sensitivity over variance for each answer; with a threshold also ``1 / threshold_sigma^2`` for each check."""
    plain, lines = ran(job(sigma=4.0), tmp_path)
    row = plain.metrics[-1]
    assert row["epsilon"] == pytest.approx(exact_epsilon(2 * 60 / 16, 1e-5))
    assert row["epsilon"] == pytest.approx(PATE(rows=30, sigma=4.0).epsilon(2))
    assert set(spent(lines, 1e-5)) == set(clinics().names)
    assert spent(lines, 1e-5)["client-0"] == pytest.approx(row["epsilon"])
    sure = run(job(sigma=4.0, threshold=5.0, threshold_sigma=6.0))
    answered = sum(row["answered"] for row in sure.metrics)
    assert 0 < answered < 60
    assert sure.metrics[-1]["epsilon"] == pytest.approx(exact_epsilon(60 / 36 + 2 * answered / 16, 1e-5))
    once = run(job(sigma=4.0, neighbours="add-remove")).metrics[-1]["epsilon"]
    assert once == pytest.approx(exact_epsilon(60 / 16, 1e-5))


def test_where_teachers_agree_the_ledger_says_that_answers_are_cheap(tmp_path: Any) -> None:
    made, lines = ran(job(sigma=1.0, bound="dependent"), tmp_path)
    assert {line["kind"] for line in lines} == {"noisy-vote"}
    assert {line["party"] for line in lines} == set(clinics().names)
    assert sum(line["count"] for line in lines if line["party"] == "client-0") == 60
    independent = made.metrics[-1]["epsilon"]
    assert independent == pytest.approx(exact_epsilon(120.0, 1e-5)), "the row shows what no vote changes"
    assert max(spent(lines, 1e-5, "rdp", "model", "replace-one").values()) < 0.7 * independent


def test_a_rule_without_noise_to_speak_of_is_the_plurality() -> None:
    from atoll.core.requests.island import Secret

    counts = np.array([[5, 3, 0], [2, 2, 4], [3, 3, 2]])
    rule = VoteRule(1e-9, 4.5, 1e-9)
    assert rule.outcome(counts, Secret(1)).labels.tolist() == [0, NOBODY, NOBODY]
    assert rule.find_winners(counts).tolist() == [0, NOBODY, NOBODY]
    assert [(type(e), e.count) for e in rule.outcome(counts, Secret(1)).events] == [(Gaussian, 3), (Gaussian, 1)]
    sure = VoteRule(1.0, None, 1.0, dependent=True).outcome(counts, Secret(1))
    assert all(isinstance(e, NoisyVote) and e.log_other < 0 for e in sure.events)
    assert votes_of([[0.1, 0.9], [0.5, 0.5]]).tolist() == [[0, 1], [1, 0]]


def test_noise_of_clients_adds_up_to_sigma_and_moves_no_vote() -> None:
    """Four clients, 400 rows: the sum of what they send is the counts with whole noise of deviation sigma."""
    from atoll.core.requests.stage import StageContext

    stage = VoteNoise.among(400, 3.0, 4, replaced=True)
    assert stage.apart == pytest.approx(math.sqrt(800))
    assert stage.variance == pytest.approx(9.0)
    votes = votes_of(np.random.default_rng(0).normal(size=(400, 5)))
    seeds = np.random.default_rng(1).integers(0, 256, (4, 1, 32)).astype(np.uint8)
    sent = [stage.encode({"v": votes}, StageContext(seeds=seed, hidden=True, replies=4)) for seed in seeds]
    total = {"v": sum(one["codes"]["v"].astype(np.int64) for one in sent)}
    found = stage.decode({"codes": total, "like": {"v": np.zeros((0, 400, 5))}}, None, 4)["v"]
    noise = found - 4 * votes
    assert np.array_equal(noise, np.rint(noise))
    assert noise.std() == pytest.approx(3.0, rel=0.05)
    assert abs(noise.mean()) < 0.3


def test_with_secure_sums_the_server_need_not_be_trusted(tmp_path: Any) -> None:
    training = job(sigma=4.0, noise_at="clients", least=6, reducer=SecureAggregation(least=6))
    made, lines = ran(training, tmp_path)
    assert made.metrics[-1]["test/accuracy"] > 0.6
    assert {line["kind"] for line in lines} == {"skellam"}
    cost = made.metrics[-1]["epsilon"]
    assert cost == pytest.approx(training.topology.epsilon(2))
    assert exact_epsilon(2 * 60 / 16, 1e-5) < cost < 1.3 * exact_epsilon(2 * 60 / 16, 1e-5), "nearly the Gaussian's"


@pytest.mark.parametrize(
    ("settings", "adversary", "said"),
    [
        ({}, "model", "replies that reach the server without noise"),
        ({"noise_at": "clients", "least": 6, "reducer": SecureAggregation(least=6)}, "server", ""),
    ],
)
def test_a_client_that_demands_privacy_admits_votes_within_its_budget(
    settings: dict[str, Any], adversary: Any, said: str
) -> None:
    training = job(sigma=20.0, **settings)
    most = 1.2 * training.topology.epsilon(2)

    def within(epsilon: float) -> Any:
        budget = Budget(epsilon, 1e-5, method="rdp", adversary=adversary, neighbours="replace-one")
        return run(training, policy={"client-1": SitePolicy(privacy=Demand(budget=budget))}).metrics[-1]

    if said:
        with pytest.raises(PolicyError, match=said):
            within(most)
        return
    row = within(most)
    assert row["replied"] == TEACHERS, row
    with pytest.raises(PolicyError, match="client-1"):
        within(0.5 * most)


def test_secure_sums_hide_votes_from_a_server_that_adds_the_noise() -> None:
    one = run(job(reducer=SecureAggregation(least=6)))
    two = run(job())
    assert all(np.array_equal(one.params[name], two.params[name]) for name in one.params)


def test_a_client_without_labels_does_not_vote() -> None:
    data = clinics()
    parts = {name: data.shard(i).dataset() for i, name in enumerate(data.names)}
    parts["client-3"] = parts["client-3"].with_columns({"labelled": np.zeros(40, bool)})
    parts = {
        name: part if "labelled" in part else part.with_columns({"labelled": np.ones(40, bool)})
        for name, part in parts.items()
    }
    some = Islands.from_datasets(parts, test=data.test).with_others(data.others)
    made = run(job(rounds=1, threshold=TEACHERS - 0.5, threshold_sigma=1e-6), some)
    assert made.metrics[-1]["answered"] == 0, "seven votes at most"


def test_a_killed_run_resumes_to_the_bit(tmp_path: Any) -> None:
    """Teachers are private state; a round that is repeated draws the same noise and is in the ledger once."""
    training, data = job(rounds=2, rows=20, sigma=2.0, threshold=4.0, threshold_sigma=3.0, epochs=2), clinics()
    learner = training.learner(data)

    def world(folder: Any, resume: bool) -> World:
        roster = Roster(data.names, others=training.others(len(data)))
        made = World(data, ENGINES["inline"](1), roster, folder=folder, resume=resume, secret_seed=1)
        made.registry.update({known.name: known for known in training.named_tasks(learner, data)})
        return made

    async def params(fed: Any) -> Any:
        found = await training.program(data, learner)(fed)
        return {"params": found.params, "spent": spent(fed.world.ledger, 1e-5)}

    killed_and_resumed(world, params, tmp_path, points=4)


@dataclass(frozen=True, kw_only=True)
class Forged(PATE):
    """The second client sends what it likes."""

    sent: Any = None

    def course(self, context: Any) -> Any:
        return _Forged(self, context)


class _Forged(course.VotingRounds):
    async def _vote(self, island: Any, message: Any) -> Any:
        made = await super()._vote(island, message)
        return {"votes": Parts(self.rule.sent)} if island.name == "client-1" else made


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        (np.full((30, 3), 100.0), r"the vote on row 0 is \[100"),
        (np.ones((30, 3)), r"\[1\.0, 1\.0, 1\.0\]"),
        (np.ones((1, 3)), r"shape \(1, 3\), not \(30, 3\)"),
    ],
)
def test_forged_votes_are_left_out_and_named(sent: Any, said: str) -> None:
    row = run(job(rounds=1, topology=Forged(rows=30, sent=sent))).metrics[0]
    assert (row["replied"], row["rejected"]) == (TEACHERS - 1, 1)
    ((name, why),) = row["rejected_clients"].items()
    assert name == "client-1"
    assert re.search(said, why)
    with pytest.raises(AtollError, match="shape"):
        check_votes(np.zeros((2, 3)), (3, 3))


@pytest.mark.parametrize(
    ("changes", "public", "error", "said"),
    [
        ({}, 0, ConfigError, r"PATE asks the party 'public', which has no rows"),
        ({"noise_at": "clients"}, 90, CompositionError, "shares the noise among 2 clients, and Plain shows"),
        ({"uplink": (Clip(1.0),)}, 90, CompositionError, "votes, not updates"),
        (
            {"algorithm": OutputPerturbation(base=FedAvg(), tau=1.0, sigma=1.0)},
            90,
            CompositionError,
            "noise of their own",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(
    changes: dict[str, Any], public: int, error: type[AtollError], said: str
) -> None:
    with pytest.raises(error, match=said):
        run(job(**changes), clinics(public))


@pytest.mark.parametrize(
    "settings",
    [
        {"rows": 0}, {"sigma": 0.0}, {"threshold": -1.0}, {"threshold_sigma": 0.0}, {"least": 0}, {"teaching": 0}, {"lr": 0.0}, {"delta": 1.0},
        {"noise_at": "nowhere"}, {"neighbours": "none"}, {"bound": "dependent", "noise_at": "clients"},
    ],
)  # fmt: skip
def test_settings_that_cannot_be_are_refused(settings: dict[str, Any]) -> None:
    name, value = next(iter(settings.items()))
    with pytest.raises(AtollError, match=f"{name}={value!r}"):
        PATE(**settings)


def test_a_job_names_it() -> None:
    from atoll.runs import parse_config

    said = {
        "data": {"source": "iris", "partition": {"name": "iid", "parties": 6}},
        "model": {"name": "linear", "features": 4, "outputs": 3},
        "topology": {"name": "PATE", "rows": 10, "sigma": 3.0},
    }
    assert parse_config(said).made().topology == replace(PATE(), rows=10, sigma=3.0)
