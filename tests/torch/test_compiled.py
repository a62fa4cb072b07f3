"""Compiled programs give what the reference gives; artefacts are kept between runs; workers can be forked."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch_toys import Dropped, Images, broadcast_of, compare, keys_of, seeded, shards_of

from atoll.core.algebra import tree as T
from atoll.learn.algorithms import FedAvg
from atoll.native import cpp_compiler
from atoll.torch import LocalTraining, prepare_worker
from atoll.torch.blocks import decide
from atoll.torch.blocks.update import StepForm

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
    training = LocalTraining(model, FedAvg(batch_size=5), choices={**how, "compiled": True})
    assert compare(training, shards_of(sizes, shape), broadcast_of(model)) < 1e-4
    assert training.seconds["compile"] > 0.0
    assert any((one_cache / "torch").rglob("*.so"))
    blocks = training._runner._blocks.values()  # type: ignore[union-attr]
    steps = {key[0]: p for block in blocks for key, p in block.programs.items() if isinstance(key[0], StepForm)}
    assert all(program.compiled for program in steps.values())
    assert any(form.weighted for form in steps)
    assert case != "block" or any(form.masked for form in steps)


def test_always_compiles_and_never_does_not() -> None:
    model = seeded(lambda: nn.Linear(6, 4))
    shards, keys = shards_of([8, 8, 8], (6,)), keys_of(3)
    made = {}
    for wish in ("always", "never"):
        training = LocalTraining(model, FedAvg(batch_size=4), compile=wish)
        made[wish] = training.many_sum(shards, broadcast_of(model), None, keys).totals["update"].value
        assert training.choices["compiled"] is (wish == "always")
    assert all(np.allclose(a, made["never"][n], rtol=1e-5, atol=1e-7) for n, a in made["always"].items())


def _in_worker(pipe: Any, training: LocalTraining, shards: list[Any], broadcast: Any, keys: np.ndarray) -> None:
    prepare_worker()
    made = training.many_sum(shards, broadcast, None, keys)
    total = made.totals["update"]
    pipe.send((torch.get_num_threads(), total.weight, {n: v.tolist() for n, v in total.value.items()}))
    pipe.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_forked_workers_run_what_the_parent_prepared() -> None:
    model = seeded(lambda: nn.Linear(6, 4))
    shards, keys = shards_of([8] * 6, (6,)), keys_of(6)
    choices = {"mode": "vector", "block": 3, "unroll": 2, "compiled": True}
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


def test_auto_weighs_the_work_against_the_compilation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("atoll.torch.blocks.decide.can_compile", lambda device: True)
    monkeypatch.setattr("atoll.torch.tracing.compiler._compile", lambda gm, inputs: lambda given: gm(*given))
    model = seeded(lambda: nn.Linear(6, 4))
    shards, keys = shards_of([8, 8], (6,)), keys_of(2)
    for volume, compiled in ((10, False), (10**7, True)):
        training = LocalTraining(model, FedAvg(batch_size=4), volume=volume)
        training.many_sum(shards, broadcast_of(model), None, keys)
        assert training.choices["compiled"] is compiled


def test_native_code_pays_earlier_than_compiling() -> None:
    model = seeded(lambda: nn.Linear(6, 4))
    shards, keys = shards_of([8, 8], (6,)), keys_of(2)
    found = []
    for volume in (10, 60_000, 10**7):
        training = LocalTraining(model, FedAvg(batch_size=4), volume=volume)
        training.many_sum(shards, broadcast_of(model), None, keys)
        found.append((training.choices["native"], training.choices["compiled"]))
    assert found == [(False, False), (True, False), (True, True)]


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


@pytest.mark.slow
def test_always_says_beforehand_what_would_take_too_long() -> None:
    """Cumulated sums have no native code; forty layers of them would keep the code generator busy for minutes."""
    model = seeded(lambda: nn.Sequential(*[nn.Sequential(Cumulated(), nn.Linear(4, 6)) for _ in range(40)]))
    training = LocalTraining(model, FedAvg(batch_size=5), compile="always")
    with pytest.warns(RuntimeWarning, match=r"Sequential is not compiled although compile='always'.*more than 20"):
        training.many_sum(shards_of([5, 5], (6,)), broadcast_of(model), None, keys_of(2))
    assert not training.choices["compiled"]


def test_always_says_beforehand_that_native_code_would_take_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    model = seeded(lambda: nn.Linear(6, 4))
    monkeypatch.setattr(decide, "_PATIENCE", 0.5)
    training = LocalTraining(model, FedAvg(batch_size=4), compile="always")
    with pytest.warns(
        RuntimeWarning, match="compile"
    ) as told:  # it says of native code and of the other compiler why not
        training.many_sum(shards_of([8, 8], (6,)), broadcast_of(model), None, keys_of(2))
    said = str(told[0].message)
    assert said.startswith("Linear gets no native code although compile='always': 1 functions of about ")
    assert "some 1 s, more than 0, and the run without them some 0 s" in said
    assert not training.choices["native"]
    assert training.seconds["expected_native"] > 0.5 > training.seconds["expected_plain"] > 0.0
