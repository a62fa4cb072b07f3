"""Compiled programs give what the reference gives; artefacts are kept between runs; workers can be forked."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from atoll.algorithms import FedAvg
from atoll.core.algebra import tree as T
from atoll.core.errors import ConfigError
from atoll.native import cpp_compiler
from atoll.torch import LocalTraining, prepare_worker
from atoll.torch.blocks import decide
from atoll.torch.blocks.choices import Choices, Shapes
from atoll.torch.blocks.update import StepForm
from tests.support.torch_toys import Dropped, Images, broadcast_of, compare, keys_of, seeded, shards_of

pytestmark = pytest.mark.skipif(cpp_compiler() is None, reason="no C++ compiler")


@pytest.fixture(autouse=True)
def one_cache(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.getbasetemp() / "compiled"
    monkeypatch.setenv("ATOLL_CACHE", str(folder))
    return folder


@pytest.fixture(autouse=True)
def one_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch compiles and loads a probe for every vector instruction set of the processor, seconds each: one will do."""
    from torch._inductor import cpu_vec_isa

    monkeypatch.setattr(cpu_vec_isa, "supported_vec_isa_list", [cpu_vec_isa.VecAVX2()])


class Cumulated(nn.Module):
    """One layer, for few kernels, with an operation that native steps do not know."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(6, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cumsum(torch.tanh(self.last(x)), dim=1)


CASES: dict[str, tuple[Any, tuple[int, ...], list[int], dict[str, Any]]] = {
    "block": (Cumulated, (6,), [12, 17, 6], {"mode": "vector", "block": 3, "unroll": 2}),
    "single-images": (lambda: Images(nn.GroupNorm(2, 4)), (1, 8, 8), [7, 6], {"mode": "single", "channels_last": True}),
}


# PyTorch's code generator takes half a minute for one of these; the tests below compile smaller steps.
@pytest.mark.parametrize("case", [pytest.param(case, marks=pytest.mark.slow) for case in ("block", "single-images")])
def test_compiled_equals_the_reference_on_unequal_clients(case: str, one_cache: Path) -> None:
    """Clients with other numbers of examples and of steps, in programs that weigh examples and, in blocks, leave out clients that are done."""
    make, shape, sizes, how = CASES[case]
    model = seeded(make)
    training = LocalTraining(model, FedAvg(batch_size=5), choices={**how, "code": ["compiled"]})
    assert compare(training, shards_of(sizes, shape), broadcast_of(model)) < 1e-4
    assert training.seconds["compile"] > 0.0
    assert any((one_cache / "torch").rglob("*.so"))
    blocks = training._runner._blocks.values()  # type: ignore[union-attr]
    steps = {key[0]: p for block in blocks for key, p in block.programs.items() if isinstance(key[0], StepForm)}
    assert all(program.compiled for program in steps.values())
    assert any(form.weighted for form in steps)
    assert case != "block" or any(form.masked for form in steps)


def test_always_makes_native_code_and_never_does_not() -> None:
    model = seeded(lambda: nn.Linear(6, 4))
    shards, keys = shards_of([8, 8, 8], (6,)), keys_of(3)
    made = {}
    for wish in ("always", "never"):
        training = LocalTraining(model, FedAvg(batch_size=4), compile=wish)
        made[wish] = training.many_sum(shards, broadcast_of(model), None, keys).totals["update"].value
        assert training.choices["code"] == (["steps"] if wish == "always" else [])
    assert all(np.allclose(a, made["never"][n], rtol=1e-5, atol=1e-7) for n, a in made["always"].items())


def _in_worker(pipe: Any, training: LocalTraining, shards: list[Any], broadcast: Any, keys: np.ndarray) -> None:
    prepare_worker()
    made = training.many_sum(shards, broadcast, None, keys)
    total = made.totals["update"]
    pipe.send((torch.get_num_threads(), total.weight, {n: v.tolist() for n, v in total.value.items()}))
    pipe.close()


@pytest.mark.network
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_forked_workers_run_what_the_parent_prepared() -> None:
    model = seeded(lambda: nn.Linear(6, 4))
    shards, keys = shards_of([8] * 6, (6,)), keys_of(6)
    choices = {"mode": "vector", "block": 3, "code": ["steps"]}
    training = LocalTraining(model, FedAvg(batch_size=4), choices=choices)
    training.prepare(shards[:3], broadcast_of(model), None, keys[:3])
    before = training.seconds
    whole = training.many_sum(shards, broadcast_of(model), None, keys).totals["update"]
    assert training.seconds == before
    parts = []
    context = multiprocessing.get_context("fork")
    for half in (slice(0, 3), slice(3, 6)):
        ours, theirs = context.Pipe(duplex=False)
        arguments = (theirs, training, shards[half], broadcast_of(model), keys[half])
        worker = context.Process(target=_in_worker, args=arguments)
        worker.start()
        assert ours.poll(60)
        parts.append(ours.recv())
        worker.join(10)
        assert worker.exitcode == 0
    assert [p[0] for p in parts] == [1, 1]
    assert sum(p[1] for p in parts) == whole.weight
    for name, value in whole.value.items():
        np.testing.assert_allclose(np.sum([p[2][name] for p in parts], axis=0), value, rtol=1e-5, atol=1e-6)


def _decision(device: str, wish: str, volume: int) -> bool:
    runner: Any = SimpleNamespace(
        training=SimpleNamespace(compile=wish, volume=volume),
        network=SimpleNamespace(device=torch.device(device)),
        seconds_a_client=0.01,
    )
    return decide._compile(runner, 1)


def test_pytorchs_code_generator_is_for_gpus_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decide, "can_compile", lambda device: True)
    assert [_decision("cuda", "auto", volume) for volume in (10, 10**7)] == [False, True]
    assert _decision("cuda", "always", 10)
    assert not _decision("cuda", "never", 10**7)
    assert not any(_decision("cpu", wish, 10**7) for wish in ("auto", "always", "never"))


def test_auto_weighs_the_work_against_native_code() -> None:
    model = seeded(lambda: nn.Linear(6, 4))
    shards, keys = shards_of([8, 8], (6,)), keys_of(2)
    found = []
    for volume in (10, 60_000, 10**7):
        training = LocalTraining(model, FedAvg(batch_size=4), volume=volume)
        training.many_sum(shards, broadcast_of(model), None, keys)
        found.append(training.choices["code"])
    assert found == [[], ["steps"], ["steps"]]


@pytest.mark.slow
def test_always_decides_for_images_as_auto_does_in_a_long_run() -> None:
    """It took PyTorch's code generator for them, which trained slower than what it replaced."""
    model = seeded(lambda: Images(nn.GroupNorm(2, 4)))
    made = []
    for wish, volume in (("auto", 10**7), ("always", 10)):
        training = LocalTraining(model, FedAvg(batch_size=5), compile=wish, volume=volume)
        training.many_sum(shards_of([7, 7], (1, 8, 8)), broadcast_of(model), None, keys_of(2))
        made.append({**training.choices, "reason": ""})
    assert made[0]["code"] == ["layers"]
    assert made[0] == made[1]


OLD = {
    "mode": "vector", "block": 3, "unroll": 2, "compiled": True, "native": False, "ahead": True, "layers": False, "threads": 2,
    "channels_last": False, "trimmed": False, "widths": [5], "stretch": 1024, "uneven": True, "reason": "0.01 MFLOP a step",
}  # fmt: skip
"""A record as runs of earlier versions have it."""


def test_records_of_earlier_versions_still_open() -> None:
    on_cpu, on_gpu = Choices.of(OLD), Choices.of(OLD, "cuda")
    assert on_cpu.code == ("ahead", "steps")
    assert on_gpu.code == ("ahead", "compiled", "steps")
    assert on_cpu.shapes == Shapes((5,), 1024, uneven=True, unroll=2)
    assert (on_cpu.block, on_cpu.threads, on_cpu.reason) == (3, 2, "0.01 MFLOP a step")
    assert Choices.of(on_cpu.record()) == on_cpu
    model = seeded(lambda: nn.Linear(6, 4))
    training = LocalTraining(model, FedAvg(batch_size=5), choices=OLD)
    assert compare(training, shards_of([12, 17, 6], (6,)), broadcast_of(model)) < 1e-5


@pytest.mark.parametrize(
    "record",
    [{"mode": "vector", "warp": 9}, {"mode": "single", "shapes": {"depth": 1}}, {"mode": "single", "code": ["x"]}],
)
def test_records_of_later_versions_are_refused(record: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="are not of this version"):
        Choices.of(record)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("compiled", ["never", "always"])
@pytest.mark.parametrize("make", [lambda: Dropped(), lambda: Images(nn.GroupNorm(2, 4))])
def test_on_a_gpu(make: Any, compiled: str) -> None:
    model = seeded(make)
    shape = (6,) if isinstance(model, Dropped) else (1, 8, 8)
    training = LocalTraining(model, FedAvg(batch_size=5), device="cuda", compile=compiled)
    shards = shards_of([10, 4, 7], shape)
    assert compare(training, shards, broadcast_of(model)) < 1e-3
    on_cpu = LocalTraining(model, FedAvg(batch_size=5), compile="never")
    want = on_cpu.many_sum(shards, broadcast_of(model), None, keys_of(3)).totals["update"].value
    got = training.many_sum(shards, broadcast_of(model), None, keys_of(3)).totals["update"].value
    assert all(T.leaves(T.map(lambda a, b: np.allclose(a, b, rtol=1e-3, atol=1e-4), want, got)))


class Sequences(nn.Module):
    def __init__(self, width: int, kind: Any = nn.LSTM) -> None:
        super().__init__()
        self.cells, self.last = kind(1, width, batch_first=True), nn.Linear(width, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.cells(x.unsqueeze(-1))[0][:, -1])


def test_recurrent_layers_run_in_pytorchs_kernels_unless_they_are_small() -> None:
    shards = shards_of([5, 6], (40,))
    small, large = (
        seeded(lambda: Sequences(3)),
        seeded(lambda: Sequences(192, nn.RNN)),
    )  # native code has no plain cells
    training = LocalTraining(small, FedAvg(batch_size=5), compile="never")
    training.many_sum(shards, broadcast_of(small), None, keys_of(2))
    assert training.choices["mode"] == "vector"
    training = LocalTraining(large, FedAvg(batch_size=5), compile="always")
    why = "Sequences is not compiled: its recurrent layers run in PyTorch's own kernels"
    with pytest.warns(RuntimeWarning, match=why):
        training.many_sum(shards, broadcast_of(large), None, keys_of(2))
    assert training.choices["mode"] == "each"
    assert training.choices["reason"].startswith("recurrent layers of ")
    assert compare(training, shards, broadcast_of(large)) < 1e-6


def test_always_says_what_cannot_be_translated() -> None:
    """Cumulated sums have no native code."""
    model = seeded(Cumulated)
    training = LocalTraining(model, FedAvg(batch_size=5), compile="always")
    with pytest.warns(RuntimeWarning, match="Cumulated gets no native code although compile='always': it cannot be"):
        training.many_sum(shards_of([5, 5], (6,)), broadcast_of(model), None, keys_of(2))
    assert not training._runner.runs_natively  # type: ignore[union-attr]


def test_always_says_beforehand_that_native_code_would_take_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    model = seeded(lambda: nn.Linear(6, 4))
    monkeypatch.setattr(decide, "_PATIENCE", 0.5)
    training = LocalTraining(model, FedAvg(batch_size=4), compile="always")
    with pytest.warns(RuntimeWarning, match="compile") as told:
        training.many_sum(shards_of([8, 8], (6,)), broadcast_of(model), None, keys_of(2))
    said = str(told[0].message)
    assert said.startswith("Linear gets no native code although compile='always': 1 functions of about ")
    assert "some 1 s, more than 0, and the run without them some 0 s" in said
    assert training.choices["code"] == []
    assert training.seconds["expected_native"] > 0.5 > training.seconds["expected_plain"] > 0.0
