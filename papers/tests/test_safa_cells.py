"""SAFA's trainings: the tasks' rows and devices, every cell's configuration, fully local training, and the judge of accuracies."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from atoll.devices.accounting import CORRECTED, RoundAccount
from atoll.reproduce import Lab
from atoll.runs import parse_config
from atoll_papers.safa import tasks
from atoll_papers.safa.grid import ALGORITHMS, simulate
from atoll_papers.safa.scores import (
    METRICS,
    PLANS,
    Learnt,
    ScorePlan,
    accuracy_claims,
    alone,
    efforts,
    pace,
    score,
    settings,
    train,
)
from atoll_papers.safa.tasks import (
    BOSTON,
    COPY_SECONDS,
    CRASHES,
    FRACTIONS,
    KDD,
    LAG,
    MNIST,
    TASKS,
    TRANSFER_SECONDS,
    ScaledAccuracy,
    cnn,
    devices,
    drawn,
    islands,
    svm,
    train_sizes,
)

INPUTS = "CRIM,ZN,INDUS,CHAS,NOX,RM,AGE,DIS,RAD,TAX,PTRATIO,B,LSTAT"


@pytest.fixture
def houses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A made table in the place of Boston's: a linear target and noise."""
    rng = np.random.default_rng(0)
    x = rng.random((506, 13)) * np.arange(1, 14)
    y = 10 + x[:, :12] @ (1 / np.arange(1, 13)) + 0.1 * rng.normal(size=506)
    lines = [INPUTS + ",MEDV", *(",".join(f"{v:.6f}" for v in (*a, b)) for a, b in zip(x, y, strict=True))]
    folder = tmp_path / "data" / "boston_housing"
    folder.mkdir(parents=True)
    with gzip.open(folder / "boston_housing.csv.gz", "wt") as file:
        file.write("\n".join(lines))
    monkeypatch.setenv("ATOLL_DATA", str(tmp_path / "data"))
    tasks._rows.cache_clear()
    yield
    tasks._rows.cache_clear()


def test_accuracy_of_scaled_targets() -> None:
    metric = ScaledAccuracy()
    by_hand = {(0.5, 0.5): 0, (0.25, 0.5): 0.5, (0.5, 0.25): 0.5, (0.3, 0.0): 1, (0.0, 0.0): 1, (-0.1, 0.0): 1}
    for (guess, target), error in by_hand.items():
        assert metric.result(metric.of([guess], [target])) == {"scaled_accuracy": pytest.approx(1 - error)}
    assert metric.result(metric.of([-0.5], [0.5]))["scaled_accuracy"] == pytest.approx(-1)
    both = metric.merge(metric.of([0.25], [0.5]), metric.of([0.5, 0.5], [0.5, 0.5]))
    assert metric.result(both)["scaled_accuracy"] == pytest.approx(1 - 0.5 / 3)


@pytest.mark.usefixtures("houses")
def test_rows_of_task_1() -> None:
    made = islands("boston", 3)
    assert (len(made), int(made.sizes.sum()), len(made.test)) == (5, 354, 152)
    x = np.concatenate([np.asarray(made.shard(k).x) for k in range(5)] + [np.asarray(made.test.x)])
    y = np.concatenate([np.asarray(made.shard(k).y) for k in range(5)] + [np.asarray(made.test.y)])
    assert x.shape == (506, 12)
    assert (x.min(axis=0), x.max(axis=0)) == (pytest.approx(0), pytest.approx(1))
    assert (y.min(), y.max()) == (0, 1)
    # In the order of the table, and as large as the fleet says.
    assert (made.sizes == train_sizes(drawn(BOSTON, 0.0, 3)[0].sizes, 354)).all()


def test_training_rows_are_a_share() -> None:
    sizes = drawn(KDD, 0.0, 1)[0].sizes
    made = train_sizes(sizes, int(KDD.rows * 0.7))
    assert made.sum() == int(KDD.rows * 0.7)
    assert np.abs(made - 0.7 * sizes).max() < 1.01


@pytest.mark.parametrize("task", list(TASKS.values()), ids=list(TASKS))
def test_devices_are_those_of_the_grid(task) -> None:
    from atoll.core.requests.party import Roster
    from atoll.core.requests.results import Plan as Request
    from atoll.core.requests.task import Workload

    members, crashes = drawn(task, 0.3, 2)
    made = devices(task.name, 0.3, 2)
    everyone = Roster(task.clients).all()
    train = train_sizes(members.sizes, tasks._train_rows(task))
    epochs = np.full(task.clients, task.epochs)
    work = Workload(train, -(-train // task.batch_size) * epochs, epochs)
    request = Request("train", 40_000, 0, 0.0, 0, lambda: work, 7)
    assert made.forecast(everyone, request) == pytest.approx(members.seconds)
    outcomes = made.plan(everyone, request)
    assert (outcomes.done == ~crashes.crashed[6]).all()  # turn 7 is the seventh round
    sent = 0.008 * task.clients
    assert outcomes.seconds[outcomes.done] == pytest.approx(members.seconds[outcomes.done] + sent)


def test_models() -> None:
    pytest.importorskip("torch")
    assert sum(p.numel() for p in cnn().parameters()) == 431_080
    assert [float(p.detach().abs().sum()) for p in svm().parameters()] == [0, 0]


@pytest.mark.parametrize("task", list(TASKS.values()), ids=list(TASKS))
def test_settings_are_those_of_table_3_2(task) -> None:
    made = settings(task, "SAFA", 0.3, 0.5, 4)
    assert made["algorithm"] == {"name": "FedAvg", "lr": task.lr, "epochs": task.epochs, "batch_size": task.batch_size}
    assert (made["rounds"], made["seed"]) == (task.rounds, 4)
    assert made["devices"] | {"seed": 4, "crash": 0.3} == made["devices"]
    assert made["selection"] == {"name": "CFCFM", "count": 0.5}
    assert made["pacing"]["lag_tolerance"] == LAG
    assert made["pacing"]["deadline"] == task.limit
    assert "aggregation" not in made
    plain, filtered = pace(task, "FedAvg", 1.0), pace(task, "FedCS", 1.0)
    assert plain["aggregation"] == filtered["aggregation"] == "KeepGlobal"
    assert plain["selection"] == {"name": "Uniform", "count": 1.0}
    assert filtered["selection"]["deadline"] == pytest.approx(task.limit + TRANSFER_SECONDS)
    assert {n: (t.lr, t.epochs, t.batch_size, t.rounds, t.clients) for n, t in TASKS.items()} == {
        "boston": (1e-4, 3, 5, 100, 5),
        "mnist": (1e-3, 5, 40, 50, 100),
        "kdd": (1e-2, 5, 100, 100, 500),
    }


@pytest.mark.usefixtures("houses")
def test_fedavg_cells_run(tmp_path: Path) -> None:
    config = settings(BOSTON, "FedAvg", 0.3, 0.5, 1, rounds=12)
    assert parse_config(config).rounds == 12
    made = score(Lab(tmp_path), config)
    assert len(made.rows) == 12
    assert len(made.losses) == 3
    assert list(made.losses) == sorted(made.losses, reverse=True)
    assert made.best == max(row[METRICS["boston"]] for row in made.rows)
    _, crashes = drawn(BOSTON, 0.3, 1)
    # The trace is the grid's: nobody who crashes there answers here.
    assert all(row["replied"] <= (~crashes.crashed[row["round"] - 1]).sum() for row in made.rows)


@pytest.mark.every(2)  # 40 rounds each; three crash rates with three fractions
@pytest.mark.usefixtures("houses")
@pytest.mark.parametrize(
    ("crash", "fraction"), [(0.1, 0.5), (0.3, 0.1), (0.3, 0.3), (0.5, 0.7), (0.7, 0.1), (0.7, 1.0)]
)
def test_the_pacing_does_what_the_reference_says(tmp_path: Path, crash, fraction) -> None:
    made = score(Lab(tmp_path), settings(BOSTON, "SAFA", crash, fraction, 1, rounds=40))
    members, crashes = drawn(BOSTON, crash, 1)
    wanted = simulate(BOSTON, "SAFA", fraction, members, crashes, 1, compat=False)
    log, own = wanted.log(literal=True), RoundAccount.of_rows(made.rows, 5, wanted.quota)
    column = lambda name: [row[name] for row in made.rows]  # noqa: E731
    assert column("picked") == wanted.picked.sum(axis=1)[:40].tolist()
    assert column("undrafted") == wanted.undrafted.sum(axis=1)[:40].tolist()
    assert column("deprecated") == wanted.deprecated.sum(axis=1)[:40].tolist()
    assert own.copies.tolist() == log.copies[:40].tolist()
    assert own.variance == pytest.approx(log.variance[:40])
    lengths = np.array(column("t_end")) - np.array(column("t_start"))
    # The real clock has those who go on with their own model wait for no copy.
    assert lengths == pytest.approx(CORRECTED.lengths(log, COPY_SECONDS, BOSTON.limit)[:40], abs=5 * COPY_SECONDS)


@pytest.mark.usefixtures("houses")
def test_fully_local_training_is_one_average_of_separate_models(tmp_path: Path) -> None:
    done = efforts(BOSTON, 0.5, 0.5, 0, rounds=4)
    assert len(set(done.tolist())) > 1
    made = alone(Lab(tmp_path), BOSTON, 0.5, 0.5, rounds=4)
    # By hand: each client's own descent, with whole-client batches nowhere, so only its size and epochs count.
    import atoll

    population = islands("boston", 0)
    total = {"weight": np.zeros((12, 1)), "bias": np.zeros(1)}
    for client, count in enumerate(done):
        if count:
            job = atoll.Training(
                model=atoll.models.linear(12, 1),
                algorithm=atoll.FedAvg(lr=1e-4, epochs=3 * int(count), batch_size=5),
                selection=atoll.Everyone(),
                rounds=1,
            )
            found = atoll.simulate(job, population.subset(np.array([client])), engine="inline", seed=0).params
            share = population.sizes[client] / population.sizes.sum()
            total = {name: total[name] + share * found[name] for name in total}
    z = np.asarray(population.test.x, float) @ total["weight"] + total["bias"]
    wanted = float(np.mean((z[:, 0] - np.asarray(population.test.y)) ** 2))
    assert made.losses[0] == pytest.approx(wanted, rel=2e-3)  # batches are drawn in another order
    assert made.rows == []


@pytest.mark.usefixtures("houses")
def test_planned_cells(tmp_path: Path) -> None:
    found = train(Lab(tmp_path), BOSTON, ScorePlan(("Fully local",), (0.7,), (0.1,), seeds=2))
    assert set(found) == {("Fully local", 0.7, 0.1)}
    assert len(found["Fully local", 0.7, 0.1].best) == 2


def test_cells_that_were_not_trained_say_so() -> None:
    for task in TASKS.values():
        claims = accuracy_claims(task, {})
        assert not any(claim.holds for claim in claims)
        assert all(claim.ours is None for claim in claims)
        assert sum("5 not trained" in claim.note for claim in claims) == 16


def test_accuracies_are_judged() -> None:
    good = {("SAFA", 0.3, c): Learnt((v,), (0.9, 0.5, 0.4, 0.3), 1.0) for c, v in zip(FRACTIONS, (0.9960, 0.9961, 0.9962, 0.9991, 0.9991), strict=True)}  # fmt: skip
    row = lambda found: next(c for c in accuracy_claims(KDD, found) if c.claim == "kdd: best accuracy, SAFA, cr = 0.3")  # noqa: E731
    assert row(good).holds
    assert not row({**good, ("SAFA", 0.3, 0.5): Learnt((0.985,), (0.9, 0.5, 0.4, 0.3), 1.0)}).holds
    assert row({**good, ("SAFA", 0.3, 0.5): Learnt((0.97, 1.0), (0.9, 0.5, 0.4, 0.3), 1.0)}).holds  # it varies so much
    part = row({("SAFA", 0.3, 0.1): good["SAFA", 0.3, 0.1]})
    assert part.holds is None  # four of its cells are not trained
    assert "4 not trained" in part.note
    traces = {
        **{(n, 0.1, 0.3): Learnt((0.996,), (0.9, 0.6, 0.4, 0.3), 1.0) for n in ("FedAvg", "FedCS")},
        ("SAFA", 0.1, 0.3): Learnt((0.996,), (0.9, 0.5, 0.4, 0.3), 1.0),
    }
    found = {claim.claim: claim for claim in accuracy_claims(KDD, traces)}
    assert found["kdd: SAFA's loss falls fastest at C = 0.3, cr = 0.1"].holds
    assert not found["kdd: SAFA's loss falls fastest at C = 0.3, cr = 0.3"].holds
    assert found["task 3: above 99 % with FedAvg, FedCS and SAFA"].holds is None


def test_statements_on_task_2() -> None:
    made = {(a, cr, c): Learnt((0.90 if a == "Fully local" else 0.975,), (1.0, 0.2), 1.0) for a in ALGORITHMS for cr in CRASHES for c in FRACTIONS}  # fmt: skip
    made["FedAvg", 0.1, 1.0] = Learnt((0.978,), (1.0, 0.2), 1.0)
    held = {claim.claim: claim.holds for claim in accuracy_claims(MNIST, made)}
    assert held["task 2: fully local about 90 %, the others 96.0 to 98.0 %"]
    assert held["FedAvg can win slightly at C = 1.0"]
    made["SAFA", 0.1, 1.0] = Learnt((0.99,), (1.0, 0.2), 1.0)
    held = {claim.claim: claim.holds for claim in accuracy_claims(MNIST, made)}
    assert not held["FedAvg can win slightly at C = 1.0"]
    assert set(PLANS) == set(TASKS)


def test_a_device_needs_as_long_for_its_training_rows_as_the_thesis_says_for_all_of_its_rows() -> None:
    from atoll.core.requests.party import Roster
    from atoll.core.requests.results import Plan as Request
    from atoll.core.requests.task import Workload

    train = train_sizes(drawn(MNIST, 0.3, 2)[0].sizes, 60_000)
    epochs = np.full(100, 5)
    request = Request("train", 40_000, 0, 0.0, 0, lambda: Workload(train, -(-train // 40) * epochs, epochs), 7)
    seconds = devices("mnist", 0.3, 2).forecast(Roster(100).all(), request)
    assert seconds == pytest.approx(drawn(MNIST, 0.3, 2)[0].seconds)


def test_a_part_of_task_2_decides_no_statement_about_all_of_it() -> None:
    one = Learnt((0.97,), (1.0, 0.5, 0.4), 1.0)
    found = {(a, 0.7, c): one for a in ALGORITHMS for c in PLANS["mnist"].fractions}
    held = {claim.claim: claim.holds for claim in accuracy_claims(MNIST, found)}
    assert held["task 2: fully local about 90 %, the others 96.0 to 98.0 %"] is None
