"""Distillation: a student imitates what it is shown, models are averaged by their rows, and FedDF is one-shot learning, an average and a student in every round."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import atoll
from atoll.core.algebra.rng import Rng
from atoll.core.errors import CompositionError, ConfigError, DataError
from atoll.core.job import as_job
from atoll.data import Dataset, Islands
from atoll.ensemble import Distillation, FedBE, FedDF, Federated, FedMD, IndividualClusters, average_models, distil
from atoll.ensemble.fedmd import PreparedAnswers
from atoll.ensemble.joining import JoinedLeaves
from tests.ensemble.test_federated import leaf, nets, population, quiet, rows_of
from tests.support.killed_trainings import killed_training

ROWS = np.random.default_rng(3).normal(size=(40, 4)).astype(np.float32)


def test_the_mean_of_logits_follows_its_formula() -> None:
    members, x = nets(outputs=3), torch.tensor(ROWS)
    mean = torch.stack([one(x) for one in members]).mean(0).log_softmax(-1)
    assert torch.allclose(JoinedLeaves(members, "logits")(x), mean, atol=1e-6)


def test_a_student_of_the_teachers_form_becomes_the_teacher_where_it_looks() -> None:
    teacher, student = nets(2)
    before = {name: value.clone() for name, value in student.state_dict().items()}
    made = distil(teacher, ROWS, student, Distillation(steps=250, lr=0.05, batch=None))
    gap = (made(torch.tensor(ROWS)).softmax(-1) - teacher(torch.tensor(ROWS)).softmax(-1)).abs().max()
    assert gap < 0.03
    assert all(torch.equal(before[name], value) for name, value in student.state_dict().items())
    again = distil(teacher, ROWS, student, Distillation(steps=250, lr=0.05, batch=None))
    assert all(torch.equal(a, b) for a, b in zip(made.parameters(), again.parameters(), strict=True))


def test_one_step_is_the_gradient_of_the_divergence() -> None:
    """Adam's first step has the sign of the gradient and the length of the rate."""
    teacher, student = nets(2)
    made = distil(teacher, ROWS, student, Distillation(steps=1, lr=0.01, batch=None, temperature=2.0))
    x = torch.tensor(ROWS)
    told = (teacher(x).detach() / 2).softmax(-1)
    loss = 4 * (told * (told.log() - (student(x) / 2).log_softmax(-1))).sum(-1).mean()
    slopes = torch.autograd.grad(loss, list(student.parameters()))
    for one, before, slope in zip(made.parameters(), student.parameters(), slopes, strict=True):
        sure = slope.abs() > 1e-5
        assert torch.allclose((one - before)[sure], -0.01 * slope.sign()[sure], atol=1e-5)


def test_the_mean_of_models_is_weighted_and_keeps_counters() -> None:
    models = [nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)) for _ in range(2)]
    mean = average_models(models, [1.0, 3.0])
    both = [one.state_dict() for one in models]
    assert torch.allclose(mean.state_dict()["0.weight"], 0.25 * both[0]["0.weight"] + 0.75 * both[1]["0.weight"])
    assert mean.state_dict()["1.num_batches_tracked"].dtype == torch.int64


def test_everybody_alone_once_is_training_by_oneself() -> None:
    islands, job = population(users=4, rows=8), leaf(rounds=1)
    found = atoll.simulate(Federated(clusters=IndividualClusters(), leaf=job, aggregate="logits", smallest=1), islands)
    assert found.outcome.clusters.names == ("u0", "u1", "u2", "u3")
    alone = atoll.simulate(quiet(job), islands.subset([2])).params
    for name, value in found.outcome.leaves[2].state_dict().items():
        assert np.allclose(value, alone[name], atol=1e-6)


def fused(rule: FedDF, rounds: int = 1, users: int = 4, **settings: Any) -> Any:
    """The result of a training whose server's model imitates those of the clients."""
    job = leaf(**{"rounds": rounds, "topology": rule, "selection": atoll.Everyone(), **settings})
    return atoll.simulate(job, population(users=users, rows=8), seed=2, engine="inline", progress=False)


def test_a_round_of_feddf_is_an_average_that_imitates_the_clients() -> None:
    islands, how = population(users=4, rows=8), Distillation(steps=5)
    job = leaf(model=nets(1)[0], rounds=1, selection=atoll.Everyone(), algorithm=atoll.FedAvg(lr=0.3, batch_size=None))
    made = atoll.simulate(job.replace(topology=FedDF(rows=ROWS, distillation=how)), islands, seed=2, progress=False)
    alone = [atoll.simulate(quiet(job), islands.subset([i]), progress=False).model for i in range(4)]
    wanted = distil(JoinedLeaves(alone, "logits"), ROWS, average_models(alone, [8.0] * 4), how)
    for a, b in zip(made.model.parameters(), wanted.parameters(), strict=True):
        assert torch.allclose(a, b, atol=1e-5)
    assert made.metrics[-1]["test/accuracy"] == pytest.approx(right(made.model, islands))
    same = atoll.simulate(job.replace(topology=FedDF(distillation=how)), islands.with_public(public(ROWS)), seed=2, progress=False)  # fmt: skip
    assert all(np.array_equal(same.params[name], value) for name, value in made.params.items())


def right(model: Any, islands: Islands) -> float:
    test = rows_of(islands)
    with torch.no_grad():
        return float((model(torch.tensor(test.x)).argmax(-1).numpy() == test.y).mean())


def public(rows: np.ndarray) -> Dataset:
    """Rows of the clients' form without labels."""
    return Dataset({"x": rows}, features=["a", "b", "c", "d"])


def test_feddf_draws_clients_and_learns() -> None:
    islands = population(users=6, rows=12)
    job = leaf(algorithm=atoll.FedAvg(lr=0.3, batch_size=4, epochs=3), rounds=2, selection=atoll.Uniform(3))
    made = atoll.simulate(job.replace(topology=FedDF(rows=rows_of(islands).x)), islands, progress=False)
    assert [row["selected"] for row in made.metrics] == [3, 3]
    assert right(made.model, islands) > 0.5


def test_traffic_is_that_of_the_training_alone() -> None:
    """One model each way, whatever the number of clients."""
    plain, rows = fused(atoll.topology.Star()).metrics[-1], fused(FedDF(rows=ROWS)).metrics[-1]  # type: ignore[arg-type]
    assert rows["bytes_down"] == plain["bytes_down"]
    assert abs(rows["bytes_up"] - plain["bytes_up"]) < 4 * 8


def test_what_clients_do_not_train_is_not_distilled() -> None:
    """Frozen parameters stay, running statistics move, and dropout follows the seed."""
    made = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Dropout(0.5), nn.Linear(3, 2))
    made[0].requires_grad_(False)
    first, again = (fused(FedDF(rows=ROWS, distillation=Distillation(steps=3)), model=made) for _ in range(2))
    assert torch.equal(first.model[0].weight, made[0].weight)
    assert "0.weight" not in first.params
    plain = fused(atoll.topology.Star(), model=made)  # type: ignore[arg-type]
    for name in ("3.weight", "1.running_mean"):
        assert np.array_equal(first.params[name], again.params[name])
        assert not np.array_equal(first.params[name], plain.params[name])


def test_a_killed_feddf_resumes_to_the_bit(tmp_path: Any) -> None:
    rule = FedDF(rows=ROWS, distillation=Distillation(steps=2))
    job = leaf(rounds=2, topology=rule, selection=atoll.Everyone())
    killed_training(job, population(users=2, rows=8), tmp_path, points=3)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"reducer": atoll.SecureAggregation()}, "reveals sums only"),
        ({"pacing": atoll.pacing.FedAsync()}, "FedAsync"),
        ({"aggregation": atoll.aggregation.Valued()}, "Valued"),
        ({"uplink": [atoll.stages.ScalarQuantizer()]}, "ScalarQuantizer acts on sums.*QSGD"),
        ({"model": atoll.models.Linear(4, 2)}, "is no PyTorch model"),
        ({"topology": FedDF()}, "no rows without labels.*islands.with_public"),
        ({"topology": FedDF(rows=ROWS[:, :3])}, r"cannot answer rows of shape \(3,\)"),
    ],
)
def test_what_feddf_cannot_do_is_refused_before_anyone_trains(change: Any, words: str) -> None:
    with pytest.raises((CompositionError, DataError), match=words):
        fused(
            **{"rule": FedDF(rows=ROWS), **({"rule": change.pop("topology")} if "topology" in change else {}), **change}
        )


def test_a_bayesian_teacher_has_the_clients_their_mean_and_what_is_drawn_around_them() -> None:
    models, sizes = nets(3), [1.0, 2.0, 5.0]
    mean, rng = average_models(models, sizes), Rng.of(4)
    rows, shares = torch.tensor(ROWS), np.array(sizes) / 8
    many = FedBE(rows=ROWS, samples=400).join_models(models, mean, sizes, rng)
    assert len(many.members) == 3 + 1 + 400
    assert torch.allclose(
        many(rows),
        torch.stack([one(rows).log_softmax(-1) for one in many.members]).logsumexp(0) - np.log(404),
        atol=1e-5,
    )
    drawn = torch.stack([next(one.parameters()) for one in many.members[4:]]).numpy()
    values = np.stack([next(one.parameters()).detach().numpy() for one in models])
    centre = (shares[:, None, None] * values).sum(0)
    spread = np.sqrt((shares[:, None, None] * (values - centre) ** 2).sum(0))
    assert np.abs(drawn.mean(0) - centre).max() < 5 * spread.max() / 20
    assert drawn.std(0) / spread == pytest.approx(np.ones_like(spread), abs=0.2)
    convex = FedBE(rows=ROWS, samples=50, law="dirichlet").join_models(models, mean, sizes, rng)
    inside = torch.stack([next(one.parameters()) for one in convex.members]).numpy()
    assert (inside >= values.min(0) - 1e-6).all()
    assert (inside <= values.max(0) + 1e-6).all()
    same = [FedBE(rows=ROWS, samples=2).join_models(models, mean, sizes, rng)(rows) for _ in range(2)]
    assert torch.equal(*same)


def test_fedbe_is_feddf_with_another_teacher() -> None:
    model, how = nets(1)[0], Distillation(steps=5)
    made = fused(FedBE(rows=ROWS, distillation=how, samples=3), model=model).model
    plain = fused(FedDF(rows=ROWS, distillation=how), model=model).model
    gaps = [(a - b).abs().max() for a, b in zip(made.parameters(), plain.parameters(), strict=True)]
    assert 0 < max(gaps) < 0.06  # five steps of Adam from the same mean
    for name, value in (("samples", 0), ("concentration", 0.0)):
        with pytest.raises(ConfigError, match=f"{name}={value}"):
            FedBE(rows=ROWS, **{name: value})  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="law='normal'"):
        FedBE(rows=ROWS, law="normal")  # type: ignore[arg-type]


def test_what_teaches_nothing_is_refused() -> None:
    teacher, student = nets(2)
    with pytest.raises(DataError, match="no row to learn from"):
        distil(teacher, ROWS[:0], student)
    with pytest.raises(DataError, match="a student of 3 classes for a teacher of 2"):
        distil(teacher, ROWS, nets(outputs=3)[0])
    for name, value in (("steps", 0), ("lr", 0.0), ("batch", 0), ("temperature", 0.0)):
        with pytest.raises(ConfigError, match=f"{name}={value}"):
            Distillation(**{name: value})  # type: ignore[arg-type]


def halves(rows: int = 40) -> Islands:
    """Two clients with one class each, and test rows of both."""
    draw = np.random.default_rng(5)
    x = {label: (draw.normal(size=(2 * rows, 4)) + (3 if label else -3)).astype(np.float32) for label in (0, 1)}
    parts = {
        f"c{label}": Dataset({"x": x[label][:rows], "y": np.full(rows, label)}, task="classification", classes=2)
        for label in (0, 1)
    }
    both = Dataset(
        {"x": np.concatenate([x[0][rows:], x[1][rows:]]), "y": np.repeat([0, 1], rows)},
        task="classification",
        classes=2,
    )
    return Islands.from_datasets(parts, test=both)


PUBLIC = (np.random.default_rng(8).normal(size=(30, 4)) * 4).astype(np.float32)
FORMS = {"c0": atoll.models.mlp(4, 2, (3,)), "c1": atoll.models.mlp(4, 2, (6, 5))}


def fedmd(**more: Any) -> Any:
    short = Distillation(steps=20, lr=0.02, batch=16)
    given = {
        "models": FORMS,
        "rows": PUBLIC,
        "rounds": 2,
        "begin": short,
        "imitation": short,
        "revisit": Distillation(steps=3),
    }
    job = FedMD(**{**given, **more})

    ready = job.prepare(halves())

    async def measured(fed: Any) -> dict[str, Any]:
        models = await ready.program(fed)
        return {
            "models": models,
            "up": fed.bytes()["bytes_up"] - fed.scope("observer").bytes()["bytes_up"],
            "last": fed.records[-1],
        }

    measured.tasks = ready.tasks  # type: ignore[attr-defined]
    return atoll.simulate(measured, halves(), engine="inline", seed=2, progress=False)


def test_clients_of_other_forms_learn_classes_that_they_do_not_have() -> None:
    found = fedmd(labels=(PUBLIC.sum(1) > 0).astype(np.int64))
    test = rows_of(halves())
    widths = {name: sum(p.numel() for p in one.parameters()) for name, one in found["models"].items()}
    assert widths == {"c0": 23, "c1": 77}
    for one in found["models"].values():
        right = (one(torch.tensor(test.x)).argmax(-1).numpy() == np.asarray(test.y)).mean()
        assert right > 0.9  # alone, each knows one class: .5
    assert found["last"]["test/accuracy"] > 0.9


def test_only_answers_travel_and_masks_hide_them() -> None:
    plain, masked = fedmd(), fedmd(reducer=atoll.SecureAggregation())
    for name, one in plain["models"].items():
        for a, b in zip(one.parameters(), masked["models"][name].parameters(), strict=True):
            assert torch.allclose(a, b, atol=0.02)
    wide = fedmd(models=atoll.models.mlp(4, 2, (400,)))
    assert wide["up"] == plain["up"]
    half = fedmd(answered=15)
    assert half["up"] < 0.7 * plain["up"]


def test_one_client_that_imitates_itself_trains_alone() -> None:
    """The mean of one client's answers is what it says itself: nothing but rounding is left to digest, of which Adam makes a step of the rate at most."""
    how = {
        "revisit": Distillation(steps=4, batch=None),
        "begin": Distillation(steps=4, batch=None),
        "imitation": Distillation(steps=3, lr=1e-5, batch=None),
    }
    one = nets(1)[0]
    job = FedMD(models=one, rows=PUBLIC, rounds=1, **how)
    data = halves().subset([0])
    found: Any = atoll.simulate(job, data, engine="inline", seed=2, progress=False).outcome["c0"]
    one = deepcopy(one)
    x = torch.tensor(np.asarray(data.shard(0)["x"]))
    for _ in range(2):
        optimiser = torch.optim.AdamW(one.parameters(), lr=0.005, weight_decay=0.0)
        for _ in range(4):
            optimiser.zero_grad()
            nn.functional.cross_entropy(one(x), torch.zeros(len(x), dtype=torch.int64)).backward()
            optimiser.step()
    for a, b in zip(found.parameters(), one.parameters(), strict=True):
        assert torch.allclose(a, b, atol=1e-4)


def test_a_client_that_was_away_at_the_start_joins_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """It begins with what it has: its own rows. Models that answer other numbers of classes are named before."""
    begin = PreparedAnswers._start

    def away(self: Any, island: Any, message: Any) -> Any:
        if island.name == "c1":
            raise RuntimeError("away")
        return begin(self, island, message)

    monkeypatch.setattr(PreparedAnswers, "_start", away)
    job = FedMD(models=FORMS, rows=PUBLIC, labels=np.ones(30), rounds=2, begin=Distillation(steps=20, lr=0.02))
    found = atoll.simulate(job, halves(), engine="inline", errors="drop", progress=False)
    assert [row["replied"] for row in found.metrics] == [2, 2]
    assert set(found.outcome) == {"c0", "c1"}
    assert found.reason == "all 2 rounds are done"
    other = {"c0": FORMS["c0"], "c1": atoll.models.mlp(4, 3, (3,))}
    with pytest.raises(DataError, match="the model of 'c1' answers 3 classes, and that of 'c0' 2"):
        atoll.simulate(FedMD(models=other, rows=PUBLIC), halves(), engine="inline", progress=False)


def test_a_killed_fedmd_resumes_to_the_bit(tmp_path: Any) -> None:
    short = Distillation(steps=2)
    ready = FedMD(models=FORMS, rows=PUBLIC, rounds=2, begin=short, imitation=short, revisit=short).prepare(halves())

    async def program(fed: Any) -> Any:
        found = await ready.program(fed)
        return {name: {key: value.numpy() for key, value in one.state_dict().items()} for name, one in found.items()}

    program.tasks = ready.tasks  # type: ignore[attr-defined]
    killed_training(as_job(program), halves(), tmp_path, points=3)


def test_clients_without_a_model_and_rows_without_classes_are_named() -> None:
    with pytest.raises(ConfigError, match="client 'c1' has no model"):
        fedmd(models={"c0": FORMS["c0"]})
    with pytest.raises(DataError, match="3 labels of 30 public rows"):
        fedmd(labels=np.zeros(3))
    with pytest.raises(DataError, match="no public row"):
        fedmd(rows=PUBLIC[:0])
    with pytest.raises(ConfigError, match="rounds=0"):
        fedmd(rounds=0)
