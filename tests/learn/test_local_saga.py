"""Local SVRG and SAGA: less variance from mini-batches; a table that follows the client and its mini-batches."""

from dataclasses import replace

import numpy as np
import pytest

import atoll
from atoll.algorithms import LocalSAGA, LocalSVRG
from atoll.core.algebra import tree as T
from atoll.core.algebra.aggregate import merge_totals
from atoll.core.algebra.rng import Rng
from atoll.core.errors import ConfigError
from atoll.learn.algorithm import RoundInfo
from atoll.learn.local.update import batch_rows, count_many, count_steps, local_contact
from atoll.models.quadratic import Quadratic, quadratics
from atoll.testing import check_algorithm
from tests.support.learn_toys import islands


def rows_of(n, seed):
    draw = np.random.default_rng(seed)
    x = draw.normal(size=(n, 3))
    return x, x @ np.array([1.0, -2.0, 0.5]) + draw.normal(size=n)


def least_squares(params, x, y):
    off = x @ params["w"] - y
    return float((off**2).mean() / 2), {"w": x.T @ off / len(x)}


def train(algorithm, data, rounds):
    state = algorithm.init({"w": np.zeros(3)})
    clients = [None] * len(data)
    for number in range(1, rounds + 1):
        totals = []
        for k, (x, y) in enumerate(data):
            key = Rng(number).child(k).key
            reply, kept, _ = local_contact(
                algorithm, "train", least_squares, algorithm.broadcast(state, "train"), clients[k], x, y, key
            )
            clients[k] = clients[k] if kept is None else kept
            totals.append({name: aggregate.total() for name, aggregate in reply.items()})
        sums = {name: total.result() for name, total in merge_totals(totals).items()}
        state = algorithm.fold(state, sums, RoundInfo(number, len(data), len(data), len(data)), "train")
    return state["params"]["w"], clients


def test_the_contract_holds():
    check_algorithm(LocalSAGA(lr=0.05, parts=4, epochs=2))


def test_mini_batches_are_the_same_in_every_epoch_and_round():
    algorithm = LocalSAGA(parts=3, epochs=2)
    for n, sizes in ((7, [3, 3, 1]), (9, [3, 3, 3]), (2, [1, 1]), (1, [1])):
        first, second = (batch_rows(algorithm, n, key) for key in (1, 2))
        assert [len(rows) for rows in first] == sizes * 2
        np.testing.assert_array_equal(np.concatenate(first), np.tile(np.arange(n), 2))
        np.testing.assert_array_equal(np.concatenate(first), np.concatenate(second))
        assert count_steps(algorithm, n) == 2 * len(sizes)
    many = count_many(algorithm, np.array([7, 9, 2, 1, 0]), np.zeros(5, np.uint64))
    assert many.tolist() == [6, 6, 4, 2, 0]


def test_by_hand_on_one_client():
    x, y = rows_of(7, 3)
    found, clients = train(LocalSAGA(lr=0.1, parts=3, epochs=2), [(x, y)], rounds=3)
    w, table = np.zeros(3), {}
    for _ in range(6):
        for j, rows in enumerate((slice(0, 3), slice(3, 6), slice(6, 7))):
            g = least_squares({"w": w}, x[rows], y[rows])[1]["w"]
            known = sum(table.values()) / 3 if table else 0.0
            w, table[j] = w - 0.1 * (g - (table[j] - known if j in table else 0.0)), g
    np.testing.assert_allclose(found, w, rtol=1e-10)
    np.testing.assert_allclose(clients[0]["table"]["w"], [table[j] for j in range(3)], rtol=1e-10)
    assert clients[0]["seen"].tolist() == [1, 1, 1]


def test_on_one_client_both_reach_the_optimum_with_mini_batches_and_sgd_does_not():
    x, y = rows_of(24, 0)
    best = np.linalg.lstsq(x, y, rcond=None)[0]
    off = {
        a: np.linalg.norm(train(a, [(x, y)], rounds=300)[0] - best)
        for a in (
            LocalSAGA(lr=0.05, parts=6),
            LocalSVRG(lr=0.05, batch_size=4),
            atoll.FedAvg(lr=0.05, batch_size=4),
        )
    }
    saga, svrg, sgd = off.values()
    assert saga < 1e-10
    assert svrg < 1e-10
    assert sgd > 1e-3


@pytest.mark.slow
def test_clients_that_differ_keep_fedavgs_drift_but_not_its_noise():
    data = [rows_of(24, seed) for seed in (1, 2)]
    data[1] = (data[1][0] * [3.0, 1.0, 1.0], data[1][1] + 2.0)
    full = train(atoll.FedAvg(lr=0.02, batch_size=None, epochs=6), data, rounds=400)[0]
    saga, svrg = (
        train(a, data, rounds=400)[0] for a in (LocalSAGA(lr=0.02, parts=6), LocalSVRG(lr=0.02, batch_size=4))
    )
    for found in (saga, svrg):
        np.testing.assert_allclose(found, full, atol=0.02)


def test_one_part_is_fedavg_on_full_batches():
    data = islands([4, 7, 12])
    model = atoll.models.linear(4, 3)

    def run(algorithm):
        job = atoll.Training(model=model, algorithm=algorithm, selection=atoll.Everyone(), rounds=3)
        return atoll.simulate(job, data, engine="inline").params

    one, full = run(LocalSAGA(lr=0.1, parts=1, epochs=3)), run(atoll.FedAvg(lr=0.1, batch_size=None, epochs=3))
    for name in one:
        np.testing.assert_allclose(one[name], full[name], rtol=1e-10, atol=1e-12)


@pytest.mark.network
@pytest.mark.quick("saga")
@pytest.mark.parametrize("algorithm", [LocalSAGA(lr=0.1, parts=4, epochs=2), LocalSVRG(lr=0.1)], ids=["saga", "svrg"])
def test_torch_gives_the_same_one_by_one_and_in_blocks(algorithm):
    torch = pytest.importorskip("torch")
    data = atoll.data.dirichlet(atoll.data.digits(), parties=6, alpha=0.5, seed=1)

    def run(engine):
        model = lambda: torch.nn.Sequential(torch.nn.Linear(64, 4), torch.nn.Tanh(), torch.nn.Linear(4, 10))  # noqa: E731
        job = atoll.Training(model=model, algorithm=algorithm, selection=atoll.Uniform(4), rounds=3)
        return atoll.simulate(job, data, engine=engine, seed=3).params

    one, many = run("inline"), run("batched")
    for name, leaf in one.items():
        np.testing.assert_allclose(many[name], leaf, rtol=2e-4, atol=2e-5)


def test_what_does_not_go_together_is_refused():
    for bad, match in (
        ({"parts": 0}, "parts=0"),
        ({"batch_size": 8}, "set parts= and epochs="),
        ({"steps": 3}, "whole epochs visit all"),
    ):
        with pytest.raises(ConfigError, match=match):
            LocalSAGA(**bad)
    job = atoll.Training(model=Quadratic(3), algorithm=LocalSAGA(parts=2), selection=atoll.Everyone())
    with pytest.raises(atoll.AtollError, match="mini-batches of 2 take only some rows of a quadratic"):
        atoll.simulate(job, quadratics(2, 3), engine="inline")
    assert T.size(LocalSAGA(parts=5).client_init({"w": np.zeros(7)})["table"]) == 35
    assert replace(LocalSAGA(), parts=2).parts == 2
