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
from atoll.core.errors import ConfigError, DataError
from atoll.data import Dataset, Islands
from atoll.ensemble import Distillation, FedBE, FedDF, Federated, FedMD, IndividualClusters, average_models, distil
from atoll.ensemble.joining import JoinedLeaves
from tests.ensemble.test_federated import leaf, nets, population, quiet, rows_of

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


def test_a_round_of_feddf_is_an_average_that_imitates_the_clients() -> None:
    islands = population(users=4, rows=8)
    how = Distillation(steps=5)
    job = leaf(model=nets(1)[0])
    made: Any = atoll.simulate(FedDF(training=job, rows=ROWS, rounds=1, distillation=how), islands, seed=2)
    once = Federated(clusters=IndividualClusters(), leaf=job.replace(rounds=1), aggregate="logits", smallest=1)

    async def by_hand(fed: Any) -> Any:
        return await fed.run(once, scope="round-1")

    found: Any = atoll.simulate(by_hand, islands, seed=2)
    wanted = distil(JoinedLeaves(found.leaves, "logits"), ROWS, average_models(found.leaves, [8.0] * 4), how)
    assert all(torch.allclose(a, b) for a, b in zip(made.parameters(), wanted.parameters(), strict=True))


def test_feddf_draws_clients_and_learns() -> None:
    islands = population(users=6, rows=12)
    job = leaf(algorithm=atoll.FedAvg(lr=0.3, batch_size=4, epochs=3))
    made: Any = atoll.simulate(FedDF(training=job, rows=rows_of(islands).x, rounds=2, clients=3), islands)
    right = (made(torch.tensor(rows_of(islands).x)).argmax(-1).numpy() == rows_of(islands).y).mean()
    assert right > 0.5


def test_a_bayesian_teacher_has_the_clients_their_mean_and_what_is_drawn_around_them() -> None:
    models, sizes = nets(3), [1.0, 2.0, 5.0]
    mean, rng = average_models(models, sizes), Rng.of(4)
    rows, shares = torch.tensor(ROWS), np.array(sizes) / 8
    many = FedBE(training=leaf(), rows=ROWS, samples=400).join_models(models, mean, sizes, rng)
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
    convex = FedBE(training=leaf(), rows=ROWS, samples=50, law="dirichlet").join_models(models, mean, sizes, rng)
    inside = torch.stack([next(one.parameters()) for one in convex.members]).numpy()
    assert (inside >= values.min(0) - 1e-6).all()
    assert (inside <= values.max(0) + 1e-6).all()
    same = [FedBE(training=leaf(), rows=ROWS, samples=2).join_models(models, mean, sizes, rng)(rows) for _ in range(2)]
    assert torch.equal(*same)


def test_fedbe_is_feddf_with_another_teacher() -> None:
    islands = population(users=4, rows=8)
    job, how = leaf(model=nets(1)[0]), Distillation(steps=5)
    made: Any = atoll.simulate(FedBE(training=job, rows=ROWS, rounds=1, distillation=how, samples=3), islands, seed=2)
    plain: Any = atoll.simulate(FedDF(training=job, rows=ROWS, rounds=1, distillation=how), islands, seed=2)
    gaps = [(a - b).abs().max() for a, b in zip(made.parameters(), plain.parameters(), strict=True)]
    assert 0 < max(gaps) < 0.06  # five steps of Adam from the same mean
    for name, value in (("samples", 0), ("concentration", 0.0)):
        with pytest.raises(ConfigError, match=f"{name}={value}"):
            FedBE(training=job, rows=ROWS, **{name: value})  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="law='normal'"):
        FedBE(training=job, rows=ROWS, law="normal")  # type: ignore[arg-type]


def test_what_teaches_nothing_is_refused() -> None:
    teacher, student = nets(2)
    with pytest.raises(DataError, match="no row to learn from"):
        distil(teacher, ROWS[:0], student)
    with pytest.raises(DataError, match="a student of 3 classes for a teacher of 2"):
        distil(teacher, ROWS, nets(outputs=3)[0])
    for name, value in (("steps", 0), ("lr", 0.0), ("batch", 0), ("temperature", 0.0)):
        with pytest.raises(ConfigError, match=f"{name}={value}"):
            Distillation(**{name: value})  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="rounds=0"):
        FedDF(training=leaf(), rows=ROWS, rounds=0)


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
        "digest": short,
        "revisit": Distillation(steps=3),
    }
    job = FedMD(**{**given, **more})

    async def measured(fed: Any) -> dict[str, Any]:
        models = await job(fed)
        return {
            "models": models,
            "up": fed.bytes()["bytes_up"] - fed.scope("observer").bytes()["bytes_up"],
            "last": fed.records[-1],
        }

    measured.tasks = job.tasks  # type: ignore[attr-defined]
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
        "digest": Distillation(steps=3, lr=1e-5, batch=None),
    }
    one = nets(1)[0]
    job = FedMD(models=one, rows=PUBLIC, rounds=1, **how)
    data = halves().subset([0])
    found: Any = atoll.simulate(job, data, engine="inline", seed=2, progress=False)["c0"]
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


def test_clients_without_a_model_and_rows_without_classes_are_named() -> None:
    with pytest.raises(ConfigError, match="client 'c1' has no model"):
        fedmd(models={"c0": FORMS["c0"]})
    with pytest.raises(DataError, match="3 labels of 30 public rows"):
        fedmd(labels=np.zeros(3))
    with pytest.raises(DataError, match="no public row"):
        fedmd(rows=PUBLIC[:0])
    with pytest.raises(ConfigError, match="rounds=0"):
        fedmd(rounds=0)
