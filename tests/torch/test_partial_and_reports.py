"""Partial work and reports of PyTorch models: the same alone, in blocks, as sums, in native and compiled code, and on all engines."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import atoll
from atoll.algorithms import FedAvg, LocalSVRG, Mime, OutputPerturbation, Scaffold
from atoll.core.algebra import tree as T
from atoll.core.algebra.rng import Rng
from atoll.core.errors import CompositionError, ConfigError
from atoll.core.requests.chain import Chain
from atoll.core.requests.task import Work
from atoll.data import Dataset, Islands
from atoll.learn.algorithm import Stragglers
from atoll.learn.learner import LearnerSettings, adapt
from atoll.native import cpp_compiler
from atoll.stages import Clip
from atoll.testing import check_learner, check_task_many
from atoll.torch import CustomLoop, LocalTraining, params_of
from tests.support.torch_toys import Cumulated, Dropped, Images, broadcast_of, keys_of, seeded, shards_of, worst

SIZES = [13, 4, 9, 1, 6]
BOTH = {"loss": None, "profile": {"layer": "auto"}}


def islands_of(shape: tuple[int, ...], sizes: list[int] = SIZES) -> Islands:
    made = [Dataset({"x": x, "y": y}, task="classification", classes=4) for x, y in shards_of(sizes, shape)]
    return Islands.from_datasets(made, test=made[0])


def job(make: Any, algorithm: Any = None, **more: Any) -> atoll.Training:
    plan = algorithm or FedAvg(lr=0.1, epochs=2, batch_size=4)
    settings = {"selection": atoll.Everyone(), "compile": "never", **more}
    return atoll.Training(model=seeded(make), algorithm=plan, **settings)


@pytest.mark.network
@pytest.mark.quick("private state")
@pytest.mark.parametrize(
    "algorithm",
    [
        FedAvg(lr=0.1, epochs=2, batch_size=4),
        FedAvg(lr=0.1, steps=5, batch_size=4),
        FedAvg(lr=0.1, epochs=4, batch_size=4, stragglers=Stragglers(0.5)),
        LocalSVRG(lr=0.1, epochs=2, batch_size=4),
        Mime(lr=0.1, epochs=2, batch_size=4),
        Scaffold(lr=0.1, epochs=2, batch_size=4),
    ],
    ids=["epochs", "steps", "stragglers", "anchored", "phases", "private state"],
)
def test_they_are_the_same_on_all_engines(algorithm: Any) -> None:
    check_learner(job(lambda: nn.Linear(6, 4), algorithm), islands_of((6,)), reports=BOTH)


@pytest.mark.network
@pytest.mark.quick("dropout")
@pytest.mark.parametrize(
    ("make", "shape", "layer"),
    [(Dropped, (6,), "last"), (lambda: Images(nn.GroupNorm(2, 4)), (1, 8, 8), "conv")],
    ids=["dropout", "images"],
)
def test_so_they_are_for_other_models(make: Any, shape: tuple[int, ...], layer: str) -> None:
    check_learner(
        job(make), islands_of(shape), reports={"profile": {"layer": layer}, "loss": None}, engines=("inline", "batched")
    )


@pytest.mark.network
@pytest.mark.quick("local")
@pytest.mark.parametrize("buffers", ["averaged", "local"])
def test_so_they_are_where_statistics_of_batches_are_kept(buffers: str) -> None:
    plan = job(lambda: Images(nn.BatchNorm2d(4)), FedAvg(lr=0.1, batch_size=4), buffers=buffers)
    with pytest.warns(RuntimeWarning, match="trained client by client"):
        check_learner(plan, islands_of((1, 8, 8)), reports=BOTH, engines=("inline", "batched"))


@pytest.mark.network
def test_so_they_are_for_a_loop_of_the_users_own() -> None:
    def loop(model: nn.Module, shard: Any, config: Any, rng: Any) -> dict[str, float]:
        optimiser = torch.optim.SGD(model.parameters(), lr=0.05)
        x, y = torch.tensor(np.asarray(shard.x)), torch.tensor(np.asarray(shard.y))
        optimiser.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimiser.step()
        return {"loss": float(loss.detach())}

    plan = atoll.Training(model=CustomLoop(seeded(lambda: nn.Linear(6, 4)), loop), algorithm=FedAvg())
    check_learner(plan, islands_of((6,)), reports=BOTH, engines=("inline", "processes"))
    learner = plan.learner(islands_of((6,)))
    shard = islands_of((6,)).shard(0)
    assert learner.train.declared(shard, {"phase": "train", "epochs": 3, "reports": BOTH}) == Work(13, 0, 4)
    with pytest.raises(CompositionError, match="runs its own training, 2 at a time"):
        atoll.Training(model=CustomLoop(seeded(lambda: nn.Linear(6, 4)), loop), algorithm=FedAvg(epochs=2)).learner(
            islands_of((6,))
        ).train.declared(shard, {"phase": "train", "epochs": 3})


@pytest.mark.slow
@pytest.mark.quick("*both")
@pytest.mark.parametrize("more", [{}, {"epochs": 3}, {"epochs": 3, "reports": BOTH}], ids=["plain", "partial", "both"])
@pytest.mark.parametrize("uplink", [None, Chain((Clip(0.5),))], ids=["sums", "single replies"])
def test_a_block_of_clients_gives_what_each_gives(more: dict[str, Any], uplink: Any) -> None:
    data = islands_of((6,), [13, 4, 0, 9, 1])
    learner = job(Dropped).learner(data)
    message = {"broadcast": broadcast_of(learner.model), "phase": "train", **more}
    check_task_many(learner.train, data, message, uplink=uplink, tolerance=1e-4)


def test_a_survey_of_a_block_is_that_of_each() -> None:
    data = islands_of((6,), [13, 4, 0, 9, 1])
    learner = job(Dropped).learner(data)
    for asked in (BOTH, {**BOTH, "loss": {"rows": 5}}):
        check_task_many(learner.report, data, {"params": params_of(learner.model), "reports": asked}, tolerance=1e-5)


def test_a_client_whose_numbers_overflow_is_kept_out_alike() -> None:
    data = islands_of((6,))
    broken = [
        Dataset(
            {"x": np.asarray(data.shard(i).x) * (1e38 if i == 1 else 1.0), "y": data.shard(i).y},
            task="classification",
            classes=4,
        )
        for i in range(5)
    ]
    learner = job(lambda: nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4))).learner(data)
    message = {"broadcast": broadcast_of(learner.model), "phase": "train", "reports": {"profile": {"layer": "0"}}}
    check_task_many(learner.train, Islands.from_datasets(broken), message, tolerance=1e-4)


def test_more_work_in_blocks_is_the_reference() -> None:
    model, shards, keys = seeded(lambda: nn.Linear(6, 4)), shards_of(SIZES, (6,)), keys_of(5)
    few, many = (LocalTraining(model, FedAvg(lr=0.1, epochs=e, batch_size=4), compile="never") for e in (2, 5))
    for other in (5, 1):
        want = {
            i: many.one(shards[i], broadcast_of(model), None, int(keys[i]), epochs=other)[0]["update"].value
            for i in range(5)
        }
        for batch in few.many(shards, broadcast_of(model), None, keys, other):
            for place, i in enumerate(batch.positions.tolist()):
                got = T.map(lambda leaf, place=place: leaf[place], batch.reply["update"].value)
                assert worst(want[i], got) < 1e-5
                assert batch.steps[place] == other * -(-SIZES[i] // 4)


def programs_of(training: LocalTraining) -> int:
    assert training._runner is not None
    runner = training._runner
    blocks = runner._blocks.values()
    return len(runner.natives._made) + sum(len(b._native) + len(b.programs) for b in blocks)


def sums(training: LocalTraining, shards: Any, epochs: int | None) -> Any:
    model = training.network.evaluation
    return training.many_sum(shards, broadcast_of(model), None, keys_of(len(shards)), epochs).totals["update"].value


@pytest.mark.quick("unlike")
@pytest.mark.skipif(cpp_compiler() is None, reason="no C++ compiler")
@pytest.mark.parametrize("sizes", [[10, 10, 10], [13, 4, 9]], ids=["alike", "unlike"])
def test_native_code_does_not_depend_on_how_often_it_runs(sizes: list[int]) -> None:
    model, shards = seeded(lambda: nn.Linear(6, 4)), shards_of(sizes, (6,))
    form = {"mode": "vector", "block": 3, "native": True, "widths": [5], "stretch": 1024, "uneven": len(set(sizes)) > 1}
    training = LocalTraining(model, FedAvg(epochs=2, batch_size=5), choices=form)
    plain = LocalTraining(model, FedAvg(epochs=2, batch_size=5), compile="never", choices={"mode": "each"})
    sums(training, shards, None)
    made = programs_of(training)
    for epochs in (1, 3, 7, None):
        assert worst(sums(plain, shards, epochs), sums(training, shards, epochs)) < 1e-5
    assert programs_of(training) == made
    assert training._runner is not None
    assert training._runner.natives.ready


def test_programs_are_made_once_for_all_numbers_of_epochs() -> None:
    """A block's program runs four steps, another one for what is left: that one is made when a number first leaves some."""
    model, shards = seeded(Cumulated), shards_of([8, 8, 8], (6,))
    how = {"mode": "vector", "block": 3, "unroll": 4}
    training = LocalTraining(model, FedAvg(epochs=2, batch_size=4), choices=how)
    plain = LocalTraining(model, FedAvg(epochs=2, batch_size=4), choices={"mode": "each"})
    counts = []
    for epochs in (None, 1, 3, 5, 7):
        assert worst(sums(plain, shards, epochs), sums(training, shards, epochs)) < 1e-4
        counts.append(programs_of(training))
    assert counts == [counts[0], *[counts[0] + 1] * 4]


def test_a_module_says_beforehand_what_it_cannot_report() -> None:
    data = islands_of((6,))
    learner = job(lambda: nn.Linear(6, 4)).learner(data)
    assert learner.check_reports(BOTH) == {"loss": {}, "profile": {"layer": "auto"}}
    with pytest.raises(ConfigError, match="no layer 'fc'"):
        learner.check_reports({"profile": {"layer": "fc"}})
    with pytest.raises(ConfigError, match="options are: layer"):
        learner.check_reports({"profile": {"name": "fc"}})
    private = adapt(
        seeded(lambda: nn.Linear(6, 4)),
        LearnerSettings(algorithm=OutputPerturbation(base=FedAvg(), tau=1.0, sigma=1.0)),
        data,
    )
    with pytest.raises(CompositionError, match="would leave the clients without noise"):
        private.check_reports(BOTH)


def test_a_survey_of_running_statistics_uses_those_that_are_sent() -> None:
    data = islands_of((1, 8, 8))
    learner = job(lambda: Images(nn.BatchNorm2d(4))).learner(data)
    params = {**learner.init(Rng(0)), **learner.buffers()}
    moved = {**params, "norm.running_mean": params["norm.running_mean"] + 1.0}
    losses = [learner.report_of(p, data.test, {"loss": None})["loss"] for p in (params, moved)]
    assert losses[0] != losses[1]
    sums_of = learner.evaluate(params, data.test)
    assert losses[0] == pytest.approx(sums_of["loss_sum"] / sums_of["n"])
