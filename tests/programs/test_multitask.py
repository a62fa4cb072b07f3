"""ADMM for multi-task learning: three server cases against centralised proximal gradient, maps, secure sums, and MOCHA."""

from __future__ import annotations

import numpy as np
import pytest

import atoll
from atoll.core.errors import AtollError, CompositionError, ConfigError
from atoll.core.requests.task import task
from atoll.data import Dataset, Islands
from atoll.learn.proximal import nuclear_norm, prox, svt
from atoll.programs.consensus import gradient, solve, value
from atoll.programs.factorisation import SumsOnly
from atoll.programs.multitask import Mocha, MultiTaskADMM

MANY = [0] * 5 + [1] * 3 + [2] * 2 + [3] * 2


def problem(of):
    """Specification of the survey, section 14: default_rng(0), W = normal(6, 2) @ normal(2, m), 30 rows a client, noise 0.1."""
    draw = np.random.default_rng(0)
    truth = draw.normal(size=(6, 2)) @ draw.normal(size=(2, max(of) + 1))
    parts = {}
    for i, j in enumerate(of):
        x = draw.normal(size=(30, 6))
        parts[f"client-{i}"] = Dataset({"x": x, "y": x @ truth[:, j] + 0.1 * draw.normal(size=30)}, task="regression")
    return Islands.from_datasets(parts), {f"client-{i}": j for i, j in enumerate(of)}, truth


def centralised(data, of, regulariser, weight, rounds=1000):
    """Accelerated proximal gradient on all rows."""
    m = max(of) + 1
    gram, target = np.zeros((m, 6, 6)), np.zeros((m, 6))
    for i, j in enumerate(of):
        x, y = np.asarray(data.shard(i).x), np.asarray(data.shard(i).y)
        gram[j], target[j] = gram[j] + x.T @ x, target[j] + x.T @ y
    lr = 1 / max(np.linalg.eigvalsh(g)[-1] for g in gram)
    z = ahead = np.zeros((6, m))
    t = 1.0
    for _ in range(rounds):
        slope = np.stack([gram[j] @ ahead[:, j] - target[j] for j in range(m)], axis=1)
        fresh = prox(regulariser, ahead - lr * slope, weight * lr)
        after = (1 + np.sqrt(1 + 4 * t * t)) / 2
        if ((ahead - fresh) * (fresh - z)).sum() > 0:  # O'Donoghue, Candès 2015: restart where momentum points uphill
            after = 1.0
        ahead, z, t = fresh + (t - 1) / after * (fresh - z), fresh, after
    return z


def run(program, data, engine="inline"):
    return atoll.simulate(program, data, engine=engine, seed=0)


CASES = [(list(range(12)), "nuclear"), (MANY, "nuclear"), (MANY, "ridge"), ([0, 0, 1, 1, 2, 2], "nuclear")]


@pytest.mark.every(2)
@pytest.mark.parametrize("cohort", [None, 4], ids=["everyone", "4"])
@pytest.mark.parametrize(("of", "regulariser"), CASES, ids=["case1", "case2", "case3", "equal"])
def test_it_is_the_centralised_optimum(of, regulariser, cohort):
    # Specification of the survey, section 5: max errors 2e-15, 5e-14, 9e-16 after 600 rounds with alpha = 0.5, rho = 1 and a mean over 30 rows: with sums, 15 and 30.
    data, tasks, _ = problem(of)
    best = centralised(data, of, regulariser, 15.0)
    rounds = 60 if cohort is None else 200
    job = MultiTaskADMM(
        dim=6, tasks=tasks, regulariser=regulariser, weight=15.0, rho=30.0, rounds=rounds, cohort=cohort
    )
    found = run(job.program, data)
    assert np.abs(found - best).max() < (1e-10 if cohort is None else 1e-8)
    if of == list(range(12)):
        assert np.linalg.matrix_rank(found, 1e-8) == 2  # planted 2, exact at the server


@pytest.mark.slow
def test_the_printed_constant_of_case_three_is_another_problem():
    # Z_j = S_j / (1 + rho n_j) solves it for half the regulariser: weight 0.5 of ours.
    data, tasks, _ = problem(MANY)
    half, whole = (
        run(MultiTaskADMM(dim=6, tasks=tasks, regulariser="ridge", weight=w, rho=25.0, rounds=80).program, data)
        for w in (0.5, 1.0)
    )
    assert np.abs(half - centralised(data, MANY, "ridge", 1.0)).max() > 1e-3
    assert np.abs(whole - centralised(data, MANY, "ridge", 1.0)).max() < 1e-10


@task
def peek(island, message):
    """For tests alone: a client's model and multiplier."""
    return dict(island.state)


@pytest.mark.parametrize("regulariser", ["nuclear", "ridge"])
def test_the_fixed_point_is_the_optimality_condition(regulariser):
    # Specification of the survey, section 5: x_i = z_psi(i), l_i = -grad f_i(x_i), and the sums of l_i over a task are the columns of a subgradient of R at Z.
    data, tasks, _ = problem(MANY)
    job = MultiTaskADMM(dim=6, tasks=tasks, regulariser=regulariser, weight=15.0, rho=30.0, rounds=80)

    async def program(fed):
        return await job.program(fed), await fed.ask_all(fed.parties, peek)

    z, clients = run(program, data)
    total = np.zeros((6, 4))
    for i, (j, client) in enumerate(zip(MANY, clients, strict=True)):
        x, y = (np.asarray(getattr(data.shard(i), field)) for field in "xy")
        np.testing.assert_allclose(client["x"], z[:, j], atol=1e-9)
        np.testing.assert_allclose(client["dual"], -x.T @ (x @ z[:, j] - y), atol=1e-7)
        total[:, j] += client["dual"]
    if regulariser == "ridge":
        np.testing.assert_allclose(total, 2 * 15.0 * z, atol=1e-7)
        return
    left, values, right = np.linalg.svd(z)
    rank = int((values > 1e-8).sum())
    np.testing.assert_allclose(left[:, :rank].T @ total @ right[:rank].T, 15.0 * np.eye(rank), atol=1e-6)
    assert np.linalg.norm(total, 2) <= 15.0 + 1e-6


def test_server_steps_contract_by_the_spread_of_the_counts():
    # Specification of the survey, section 5, case 2: a proximal step brings Z nearer by 1 - min n_j / max n_j at least.
    _, tasks, _ = problem(MANY)
    total, zero, counts = np.random.default_rng(0).normal(size=(6, 4)), np.zeros((6, 4)), np.bincount(MANY)
    after = [
        MultiTaskADMM(dim=6, tasks=tasks, inner=k)._minimise_shared(zero, total, counts) for k in (1, 2, 3, 4, 300)
    ]
    off = np.array([np.linalg.norm(z - after[-1]) for z in after[:-1]])
    assert off[-1] > 1e-6
    assert (off[1:] <= (1 - counts.min() / counts.max()) * off[:-1]).all()


@pytest.mark.slow
def test_each_task_may_be_summed_in_secret():
    data, tasks, _ = problem(MANY)
    job = {"dim": 6, "tasks": tasks, "rounds": 5}
    open_, hidden = run(MultiTaskADMM(**job).program, data), run(MultiTaskADMM(reducer=SumsOnly(), **job).program, data)
    np.testing.assert_array_equal(open_, hidden)
    found = run(MultiTaskADMM(dim=6, tasks=tasks, rounds=250, cohort=6, rho=25.0, reducer=SumsOnly()).program, data)
    assert np.abs(found - centralised(data, MANY, "nuclear", 0.5)).max() < 1e-6
    other = run(MultiTaskADMM(**job).program, data, engine="processes")
    np.testing.assert_allclose(other, open_, rtol=1e-10)


def test_a_task_of_one_client_cannot():
    _, tasks, _ = problem(list(range(12)))
    with pytest.raises(CompositionError, match="task 0 has one client"):
        MultiTaskADMM(dim=6, tasks=tasks, reducer=SumsOnly())


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"tasks": {"client-0": 0, "client-1": 2}}, "task 1 has no client"),
        ({"tasks": {}}, "task 0 has no client"),
        ({"tasks": {"client-0": -1}}, "task -1"),
        ({"rho": 0.0}, "rho=0.0"),
        ({"regulariser": "l1"}, "regulariser='l1'"),
        ({"loss": "hinge"}, "loss='hinge'"),
        ({"weight": -0.5}, "weight=-0.5"),
    ],
)
def test_bad_settings_are_refused(settings, match):
    with pytest.raises(ConfigError, match=match):
        MultiTaskADMM(**{"dim": 6, "tasks": {"client-0": 0}, **settings})


def test_a_map_must_name_every_client_and_shapes_must_fit():
    data, tasks, _ = problem(MANY)
    for wrong, match in (({**tasks, "nobody": 0}, "'nobody' is not a client"), ({"client-0": 0}, "has no task")):
        with pytest.raises(ConfigError, match=match):
            run(MultiTaskADMM(dim=6, tasks=wrong, rounds=1).program, data)
    with pytest.raises(AtollError, match=r"x of shape \(30, 6\)"):
        run(MultiTaskADMM(dim=5, tasks=tasks, rounds=1).program, data)


@pytest.mark.parametrize("loss", ["least_squares", "quadratic", "logistic"])
def test_local_solutions_zero_the_gradient_and_gradients_are_slopes(loss):
    draw = np.random.default_rng(3)
    x = draw.normal(size=(9, 4))
    x, y = (x.T @ x, draw.normal(size=4)) if loss == "quadratic" else (x, np.sign(draw.normal(size=9)))
    linear, center = draw.normal(size=(2, 4))
    w = solve(loss, x, y, linear, 0.3, center)
    np.testing.assert_allclose(gradient(loss, x, y, w) + linear + 0.3 * (w - center), 0.0, atol=1e-9)
    slope = [(value(loss, x, y, center + 1e-6 * e) - value(loss, x, y, center - 1e-6 * e)) / 2e-6 for e in np.eye(4)]
    np.testing.assert_allclose(gradient(loss, x, y, center), slope, atol=1e-6)


def test_svt_is_the_proximal_operator():
    draw = np.random.default_rng(0)
    m = draw.normal(size=(5, 4))
    z = svt(m, 0.7)
    best = 0.7 * nuclear_norm(z) + 0.5 * ((z - m) ** 2).sum()
    for _ in range(50):
        other = z + 0.05 * draw.normal(size=z.shape)
        assert 0.7 * nuclear_norm(other) + 0.5 * ((other - m) ** 2).sum() >= best


def test_mocha_with_tasks_apart_is_ridge_regression():
    of = list(range(4))
    data, _, _ = problem(of)
    found = run(Mocha(dim=6, coupling=0.25, ridge=0.5, refresh=None, rounds=12, passes=8).program, data)
    weight = 2 * 0.25 * 4 + 2 * 0.5  # Omega = I / 4
    for i in of:
        x, y = np.asarray(data.shard(i).x), np.asarray(data.shard(i).y)
        np.testing.assert_allclose(found[:, i], np.linalg.solve(x.T @ x + weight * np.eye(6), x.T @ y), atol=1e-6)


def test_mocha_learns_how_tasks_relate():
    # Its fixed point: W (c Omega^-1 + r I) = -grad, and Omega is the normalised root of W^T W.
    data, _, truth = problem(list(range(4)))
    found = run(Mocha(dim=6, coupling=0.5, ridge=0.05, refresh=4, rounds=40, passes=6).program, data)
    assert np.linalg.norm(found - truth) < 0.1 * np.linalg.norm(truth)
    values = np.linalg.svd(found, compute_uv=False)
    assert values[2] < 0.05 * values[0]  # planted rank 2


def test_mocha_refuses_bad_settings():
    for settings, match in (
        ({"ridge": 0.0}, "ridge=0.0"),
        ({"passes": 0}, "passes=0"),
        ({"coupling": -1.0}, "coupling=-1"),
    ):
        with pytest.raises(ConfigError, match=match):
            Mocha(dim=3, **settings)
