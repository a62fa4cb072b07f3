"""First-order methods made of transforms: base cases to the bit, closed forms, rates, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import atoll
from atoll.algorithms import (
    MFL,
    Accelerated,
    FedAC,
    FedAdagrad,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedMirror,
    FedProx,
    FedSGD,
    FedYogi,
    LocalAdaGrad,
    LocalAdam,
    LocalMomentum,
    LocalRMSProp,
    LocalSVRG,
    Scaffold,
    ServerOptimised,
    SignSGD,
    Signum,
)
from atoll.core.algebra import tree as T
from atoll.core.errors import AtollError, CompositionError, ConfigError
from atoll.learn.algorithm import Algorithm
from atoll.learn.algorithms.accelerated import Transformed
from atoll.learn.catalogue import example, facts, kinds
from atoll.learn.transforms import Adam, ClipNorm, Momentum, Proximal
from atoll.learn.wrapped import Wrapped
from atoll.models.quadratic import Quadratic, minimiser, quadratics
from atoll.testing import check_algorithm
from atoll_papers.survey.row import gap_to_optimum

SETTING: dict[str, Any] = {"lr": 0.02, "steps": 4, "batch_size": None}
ONE: dict[str, Any] = {"lr": 0.02, "steps": 1, "batch_size": None}


def train(algorithm: Algorithm, data: Any = None, rounds: int = 6, cohort: int | None = 4, noise: float = 0.0) -> Any:
    data = quadratics() if data is None else data
    dim = np.shape(data.shard(0).x)[1]
    selection = atoll.Everyone() if cohort is None else atoll.Uniform(cohort)
    last = atoll.Evaluation(every=rounds)
    job = atoll.Training(
        model=Quadratic(dim, noise), algorithm=algorithm, selection=selection, rounds=rounds, evaluation=last
    )
    return atoll.simulate(job, data, engine="inline", seed=1).params["w"]


# ------------------------------------------------------------------------------------------------------------ base cases


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (FedProx(mu=0.0, **SETTING), FedAvg(**SETTING)),
        (LocalMomentum(gamma=0.0, **SETTING), FedAvg(**SETTING)),
        (LocalMomentum(gamma=0.0, memory="client", **SETTING), FedAvg(**SETTING)),
        (MFL(gamma=0.0, **SETTING), FedAvg(**SETTING)),
        (FedAvgM(momentum=0.0, **SETTING), FedAvg(**SETTING)),
        (FedAvgM(momentum=0.0, nesterov=False, server_lr=0.5, **SETTING), FedAvg(server_lr=0.5, **SETTING)),
        (FedMirror(**SETTING), FedAvg(**SETTING)),
        (FedAC(alpha=1.0, beta=1.0, gamma=0.02, **SETTING), FedAvg(**SETTING)),
        (FedAC(alpha=1.0, beta=1.0, gamma=0.02, eval_point="w", **SETTING), FedAvg(**SETTING)),
        (Accelerated(base=FedAvg(**SETTING)), FedAvg(**SETTING)),
        (Accelerated(base=Scaffold(**SETTING)), Scaffold(**SETTING)),
        (Accelerated(base=FedAvg(**SETTING), transforms=(Proximal(0.7),)), FedProx(mu=0.7, **SETTING)),
        (Accelerated(base=FedAvg(**SETTING), transforms=(Momentum(0.5),), memory="server"), MFL(gamma=0.5, **SETTING)),
        (
            Accelerated(base=FedAvg(**SETTING), transforms=(Momentum(0.5),), memory="client"),
            LocalMomentum(gamma=0.5, memory="client", **SETTING),
        ),
        (Accelerated(base=FedAvg(**SETTING), transforms=(ClipNorm(1e9),)), FedAvg(**SETTING)),
        (FedAdagrad(beta1=0.0, **SETTING), FedAdagrad(**SETTING)),
    ],
    ids=lambda a: type(a).__name__,
)
def test_where_the_parameter_vanishes_it_is_its_base_to_the_bit(one: Algorithm, other: Algorithm) -> None:
    np.testing.assert_array_equal(train(one), train(other))


def test_what_is_not_its_base_differs() -> None:
    base = train(FedAvg(**SETTING))
    for other in (
        FedProx(mu=0.5, **SETTING),
        LocalMomentum(gamma=0.5, **SETTING),
        MFL(gamma=0.5, **SETTING),
        FedAvgM(momentum=0.5, **SETTING),
        FedAC(mu=0.5, **SETTING),
        FedMirror(l1=0.5, **SETTING),
    ):
        assert np.abs(train(other) - base).max() > 1e-3, type(other).__name__


def test_signum_without_memory_is_signsgd() -> None:
    setting: dict[str, Any] = {"lr": 0.1}
    np.testing.assert_array_equal(train(Signum(beta=0.0, **setting)), train(SignSGD(**setting)))


def test_a_server_optimiser_around_fedavg_is_the_method() -> None:
    around = ServerOptimised(base=FedAvg(**SETTING), transforms=(Adam(0.9, 0.99, 1e-3, debias=False),), server_lr=0.1)
    np.testing.assert_allclose(train(around), train(FedAdam(**SETTING)), rtol=1e-9)
    around = ServerOptimised(base=FedAvg(**SETTING), transforms=(Momentum(0.5, nesterov=True),))
    np.testing.assert_allclose(train(around), train(FedAvgM(momentum=0.5, **SETTING)), rtol=1e-9)


@pytest.mark.parametrize("kind", [FedAvg, FedProx, Scaffold, LocalSVRG])
def test_equal_clients_are_one_client(kind: Any) -> None:
    shard = quadratics(clients=1).shard(0)
    alike = atoll.data.Islands.from_datasets(
        {f"{k}": atoll.data.Dataset({"x": shard.x, "y": shard.y}, task="regression") for k in range(3)}
    )
    alone = atoll.data.Islands.from_datasets({"0": atoll.data.Dataset({"x": shard.x, "y": shard.y}, task="regression")})
    np.testing.assert_allclose(
        train(kind(**SETTING), alike, cohort=None), train(kind(**SETTING), alone, cohort=None), rtol=1e-12
    )


def test_one_client_of_fedavg_is_gradient_descent() -> None:
    data = quadratics(clients=1)
    h, b = np.asarray(data.shard(0).x), np.asarray(data.shard(0).y)
    w = np.zeros(20)
    for _ in range(6 * 4):
        w = w - 0.02 * (h @ w - b)
    np.testing.assert_allclose(train(FedAvg(**SETTING), data, cohort=None), w, rtol=1e-12)


# ------------------------------------------------------------------------------------------------------------ closed forms


def test_the_fixed_point_of_fedavg_is_the_one_of_theory() -> None:
    # sum_k (I - P_k)(x - H_k^-1 b_k) = 0 with P_k = (I - lr H_k)^T; Specification of the survey, section 7.4, "matched to 6e-15".
    data, lr, steps = quadratics(clients=4, dim=5), 0.1, 5
    shards = [data.shard(k) for k in range(4)]
    moves = [np.eye(5) - np.linalg.matrix_power(np.eye(5) - lr * s.x, steps) for s in shards]
    ends = [np.linalg.solve(s.x, s.y) for s in shards]
    fixed = np.linalg.solve(sum(moves), sum(m @ e for m, e in zip(moves, ends, strict=True)))
    found = train(FedAvg(lr=lr, steps=steps, batch_size=None), data, rounds=200, cohort=None)
    np.testing.assert_allclose(found, fixed, rtol=1e-9)
    assert np.abs(fixed - minimiser(data)[0]).max() > 0.01  # and that is not the optimum
    pulled = train(FedProx(lr=lr, steps=steps, mu=3.0, batch_size=None), data, rounds=400, cohort=None)
    # FedProx: the same with P_k = c I + ... of H_k + mu I; its fixed point is nearer the optimum.
    assert np.linalg.norm(pulled - minimiser(data)[0]) < np.linalg.norm(fixed - minimiser(data)[0])


def test_momentum_at_the_server_is_the_recursion_of_hsu_and_others() -> None:
    # Specification of Upcycled-FL, section 4: g = mean(w - w_k); v <- beta v + g; w <- w - (g + beta v).
    data = quadratics(clients=3, dim=4)
    h, b = (np.mean([np.asarray(getattr(data.shard(k), a)) for k in range(3)], axis=0) for a in "xy")
    w, v = np.zeros(4), np.zeros(4)
    for _ in range(5):
        g = 0.02 * (h @ w - b)
        v = 0.3 * v + g
        w = w - (g + 0.3 * v)
    np.testing.assert_allclose(train(FedAvgM(momentum=0.3, **ONE), data, 5, None), w, rtol=1e-12)


def test_the_averaged_momentum_is_the_mean_of_the_clients() -> None:
    algorithm = MFL(gamma=0.5, **ONE)
    data = quadratics(clients=3, dim=4)
    h, b = (np.mean([np.asarray(getattr(data.shard(k), a)) for k in range(3)], axis=0) for a in "xy")
    w, m = np.zeros(4), np.zeros(4)
    for _ in range(7):  # with one step it is centralised heavy-ball momentum
        m = 0.5 * m + (h @ w - b)
        w = w - 0.02 * m
    np.testing.assert_allclose(train(algorithm, data, 7, None), w, rtol=1e-12)
    kept = LocalMomentum(gamma=0.5, memory="client", **ONE)
    np.testing.assert_allclose(train(kept, data, 7, None), w, rtol=1e-12)


def test_the_vote_is_the_sign_of_the_majority() -> None:
    signs = [[1.0, -1.0, 1.0], [1.0, 1.0, -1.0], [-1.0, -1.0, 0.0]]
    data = atoll.data.Islands.from_datasets(
        {
            f"{k}": atoll.data.Dataset({"x": np.eye(3), "y": -np.array(g)}, task="regression")
            for k, g in enumerate(signs)
        }
    )
    np.testing.assert_allclose(train(SignSGD(lr=0.25), data, 1, None), [-0.25, 0.25, 0.0])


# ------------------------------------------------------------------------------------------------------------ FedAC


@pytest.mark.parametrize(
    ("eta", "mu", "steps", "gamma", "first", "second"),
    [
        # Specification of FedAQ, A4: values of the paper's settings for both sets of coefficients.
        (0.002, 0.1, 20, 0.03162, (316.23, 317.23), (473.84, 949.69)),
        (0.1, 0.01, 100, 0.31623, (316.23, 317.23), (473.84, 949.69)),
        (0.01, 0.2, 100, 0.02236, (223.61, 224.61), (334.91, 671.82)),
    ],
)
def test_fedac_derives_its_coefficients(
    eta: float, mu: float, steps: int, gamma: float, first: tuple[float, float], second: tuple[float, float]
) -> None:
    one = FedAC(lr=eta, mu=mu, steps=steps).coefficients()
    two = FedAC(lr=eta, mu=mu, steps=steps, variant="II").coefficients()
    assert one == pytest.approx((*first, gamma), rel=2e-4)
    assert two == pytest.approx((*second, gamma), rel=2e-4)
    assert eta <= one[2] <= (eta / mu) ** 0.5
    # Specification of FedAQ, A11, 5: 1/(2 alpha) = (gamma mu / 3)(1 + 1/(2 alpha)) for the second set.
    assert 0.5 / two[0] == pytest.approx(two[2] * mu / 3 * (1 + 0.5 / two[0]))


@pytest.mark.parametrize("variant", ["I", "II"])
def test_fedac_is_faster_on_clients_that_are_alike(variant: str) -> None:
    values, rng = np.linspace(0.02, 1.0, 10), np.random.default_rng(0)
    target = values * rng.normal(size=10)
    data = atoll.data.Islands.from_datasets(
        {f"{k}": atoll.data.Dataset({"x": np.diag(values), "y": target}, task="regression") for k in range(3)}
    )
    setting: dict[str, Any] = {"lr": 0.5, "steps": 5, "batch_size": None}
    plain = gap_to_optimum(data, {"w": train(FedAvg(**setting), data, 30, None)})
    fast = FedAC(mu=0.02, variant=variant, **setting)
    for point in ("ag", "w"):
        found = train(FedAC(mu=0.02, variant=variant, eval_point=point, **setting), data, 30, None)
        assert gap_to_optimum(data, {"w": found}) < plain / 10
    assert fast.coefficients()[0] > 1


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"mu": 0.0}, r"mu=0\.0"),
        ({"variant": "III"}, "variant='III'"),
        ({"eval_point": "md"}, "eval_point='md'"),
        ({"steps": None}, "steps=None"),
        ({"mu": 20.0, "lr": 0.1}, "both must be at least 1"),
        ({"mu": 12.0, "lr": 0.1, "variant": "II", "steps": 1}, "at most 3/4|alpha must exceed 1"),
        ({"smoothness": 5.0, "lr": 0.1, "mu": 0.1}, "at most 1/L = 0.2"),
        ({"gamma": -1.0}, r"gamma=-1\.0"),
    ],
)
def test_fedac_refuses_what_its_theorems_do(settings: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        FedAC(**settings)


# ------------------------------------------------------------------------------------------------------------ rates


def _slope(algorithm: Algorithm, data: Any, first: int, last: int) -> float:
    """Mean decrease of the logarithm of the gap a round."""
    gaps = [gap_to_optimum(data, {"w": train(algorithm, data, rounds, None)}) for rounds in (first, last)]
    return float(np.log(gaps[1] / gaps[0]) / (last - first))


def test_gradient_descent_contracts_at_the_rate_of_theory() -> None:
    data, lr = quadratics(clients=5, dim=6), 0.05
    values = np.linalg.eigvalsh(np.mean([np.asarray(data.shard(k).x) for k in range(5)], axis=0))
    rate = max(abs(1 - lr * values[0]), abs(1 - lr * values[-1]))
    found = _slope(FedAvg(lr=lr, steps=1, batch_size=None), data, 100, 200)
    assert found == pytest.approx(2 * np.log(rate), rel=0.01)


@pytest.mark.parametrize("beta", [0.3, 0.6])
def test_heavy_ball_contracts_at_the_rate_of_theory(beta: float) -> None:
    data, lr = quadratics(clients=5, dim=6), 0.05
    values = np.linalg.eigvalsh(np.mean([np.asarray(data.shard(k).x) for k in range(5)], axis=0))
    roots = [np.roots([1, -(1 + beta - lr * value), beta]) for value in values]
    rate = max(np.abs(r).max() for r in roots)
    found = _slope(MFL(gamma=beta, lr=lr, steps=1, batch_size=None), data, 60, 120)
    assert found == pytest.approx(2 * np.log(rate), rel=0.05)
    plain = max(abs(1 - lr * values[0]), abs(1 - lr * values[-1]))
    assert rate < plain


@pytest.mark.slow
def test_signs_circle_the_optimum_within_a_step() -> None:
    data = quadratics(clients=1, dim=5)
    best = minimiser(data)[0]
    for lr in (0.1, 0.01):
        off = np.abs(train(SignSGD(lr=lr), data, int(12 / lr), None) - best).max()
        assert off < 40 * lr  # the curvature, at most 100 here, bounds how far a coordinate may be thrown


# ------------------------------------------------------------------------------------------------------------ composition


@pytest.mark.every(3)
@pytest.mark.parametrize("memory", ["round", "client", "server"])
@pytest.mark.parametrize("name", kinds())
def test_transforms_go_around_every_plain_step_and_are_refused_elsewhere(name: str, memory: str) -> None:
    try:
        base = example(kinds()[name], lr=0.05)
    except (AtollError, TypeError) as error:
        pytest.skip(f"needs settings of its own: {error}")
    if _takes_transforms(base):
        check_algorithm(
            Accelerated(base=base, transforms=(Proximal(0.1), Momentum(0.5)), memory=memory), descends=False
        )
    else:
        with pytest.raises(CompositionError, match=r"local step of|transforms already"):
            Accelerated(base=base, transforms=(Momentum(0.5),), memory=memory)


def _takes_transforms(base: Algorithm) -> bool:
    if isinstance(base, Transformed):
        return False
    if isinstance(base, Wrapped) and type(base).step is Wrapped.step:
        return _takes_transforms(base.base)
    return type(base).step is Algorithm.step


def test_most_algorithms_take_transforms() -> None:
    taken = ("FedAvg", "FedProx", "Scaffold", "LocalSVRG", "FedAdam", "ServerOptimised", "MimeSVRG")
    assert all(_takes_transforms(example(kinds()[name])) for name in taken)


def test_private_memory_lies_beside_the_state_of_the_base() -> None:
    for base in (Scaffold(option=1, **SETTING), LocalSVRG(**SETTING)):
        made = Accelerated(base=base, transforms=(Momentum(0.0),), memory="client")
        np.testing.assert_array_equal(train(made), train(base))


@pytest.mark.parametrize("base", [FedSGD(), SignSGD(), FedAC(), LocalMomentum(), Accelerated(base=FedAvg())])
def test_a_step_of_another_form_is_refused(base: Algorithm) -> None:
    with pytest.raises(CompositionError, match=r"local step of|transforms already"):
        Accelerated(base=base)


@pytest.mark.every(4)  # two thirds of a second each
@pytest.mark.parametrize(
    "algorithm",
    [
        FedAC(lr=0.1),
        FedAC(lr=0.1, variant="II", eval_point="w"),
        FedAvgM(lr=0.1, momentum=0.5),
        FedYogi(lr=0.1),
        FedAdagrad(lr=0.1, beta1=0.9),
        LocalAdaGrad(lr=0.1),
        LocalRMSProp(lr=0.02),
        LocalAdam(lr=0.02, memory="server"),
        LocalMomentum(lr=0.1, memory="client", nesterov=True),
        Signum(lr=0.05),
        SignSGD(lr=0.05),
        ServerOptimised(base=Scaffold(lr=0.1), transforms=(Momentum(0.5),)),
        Accelerated(base=FedAvg(lr=0.1), transforms=(ClipNorm(1.0), Adam()), memory="client"),
    ],
    ids=lambda a: type(a).__name__,
)
def test_the_contract_holds_and_engines_agree(algorithm: Algorithm) -> None:
    torch = pytest.importorskip("torch")
    check_algorithm(algorithm)
    data = atoll.data.dirichlet(atoll.data.digits(), parties=4, alpha=0.5, seed=1)

    def run(engine: str, model: Any) -> Any:
        job = atoll.Training(model=model, algorithm=algorithm, selection=atoll.Uniform(3), rounds=2)
        return atoll.simulate(job, data, engine=engine, seed=3).params

    def mlp() -> Any:
        return torch.nn.Sequential(torch.nn.Linear(64, 3), torch.nn.Tanh(), torch.nn.Linear(3, 10))

    one, many = run("inline", mlp), run("batched", mlp)
    for name, leaf in one.items():
        off = np.abs(many[name] - leaf)
        # A sign, or a division by a root near zero, turns the rounding of a gradient into a step.
        jumps = isinstance(
            algorithm, SignSGD | LocalAdaGrad | LocalRMSProp | LocalAdam | FedAdagrad | FedYogi | Accelerated
        )
        assert np.quantile(off, 0.98 if jumps else 1.0) < 5e-5, name


@pytest.mark.parametrize("name", ["FedAvg", "MFL", "FedAC", "FedAdam", "Signum", "Scaffold"])
def test_the_meter_sees_the_floats_that_the_catalogue_states(name: str) -> None:
    algorithm, d, clients = example(kinds()[name]), 64 * 10 + 10, 4
    down, up = (int((getattr(facts((name,))[0].exchanges[0], way)).split("d")[0] or 1) for way in ("down", "up"))
    data = atoll.data.dirichlet(atoll.data.digits(), parties=clients, alpha=0.5, seed=1)
    job = atoll.Training(model=atoll.models.linear(64, 10), algorithm=algorithm, selection=atoll.Everyone(), rounds=1)
    result = atoll.simulate(job, data, engine="inline")
    row, width = result.metrics[0], result.params["weight"].dtype.itemsize
    for way, floats in (("bytes_down", down), ("bytes_up", up)):
        beside = row[way] / clients - floats * d * width
        assert 0 < beside < 1500, f"{way}: {beside} bytes beside the arrays"  # names, shapes, the training loss


@pytest.mark.network
def test_worker_processes_agree() -> None:
    for algorithm in (FedAC(**SETTING), LocalAdam(**SETTING), MFL(**SETTING)):
        job = atoll.Training(model=Quadratic(20), algorithm=algorithm, selection=atoll.Uniform(4), rounds=3)
        here = atoll.simulate(job, quadratics(), engine="inline", seed=1).params["w"]
        there = atoll.simulate(job, quadratics(), engine="processes", seed=1).params["w"]
        np.testing.assert_allclose(there, here, rtol=1e-12)  # sums are added up in another order


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: FedProx(mu=-1.0), r"mu=-1\.0"),
        (lambda: FedAvgM(momentum=1.0), r"momentum=1\.0 \(in FedAvgM\)"),
        (lambda: FedAvgM(server_lr=0.0), r"server_lr=0\.0"),
        (lambda: FedAdam(tau=0.0), r"tau=0\.0"),
        (lambda: FedYogi(beta2=1.0), r"beta2=1\.0"),
        (lambda: FedAdagrad(beta1=1.0), r"beta1=1\.0"),
        (lambda: MFL(gamma=1.0), r"gamma=1\.0 \(in MFL\)"),
        (lambda: LocalMomentum(memory="cloud"), "memory='cloud'"),
        (lambda: LocalAdam(beta1=-0.5), r"beta1=-0\.5"),
        (lambda: Signum(beta=2.0), r"beta=2\.0"),
        (lambda: SignSGD(steps=3), "steps=3"),
        (lambda: Accelerated(base=FedAvg(), memory="nowhere"), "memory='nowhere'"),
        (lambda: ServerOptimised(base=FedAvg(), server_lr=-1.0), r"server_lr=-1\.0"),
    ],
)
def test_bad_settings_are_refused(make: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        make()


def test_a_configuration_names_transforms() -> None:
    from atoll.runs import parse_config, to_job

    algorithm = {
        "name": "Accelerated",
        "base": {"name": "FedAvg", "lr": 0.2},
        "transforms": [{"name": "Proximal", "mu": 0.3}, "Momentum"],
        "memory": "client",
    }
    settings = {
        "data": {"source": "iris", "partition": {"name": "iid", "parties": 5}},
        "model": {"name": "linear", "features": 4, "outputs": 3},
        "algorithm": algorithm,
    }
    wanted = Accelerated(base=FedAvg(lr=0.2), transforms=(Proximal(0.3), Momentum()), memory="client")
    assert to_job(parse_config(settings))[0].algorithm == wanted
    algorithm["transforms"] = [{"name": "Momentum", "beta": 1.5}]
    with pytest.raises(ConfigError, match=r"transforms\[0\]\.beta=1\.5"):
        parse_config(settings)


def test_memory_keeps_the_shape_of_a_message() -> None:
    state = Accelerated(base=FedAvg(), transforms=(Adam(), Proximal(0.1)), memory="server").init({"w": np.zeros(2)})
    assert [sorted(part) for part in state["memory"]] == [["count1", "count2", "m", "s"], []]
    assert T.size(state["memory"]) == 6
