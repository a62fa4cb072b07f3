"""How to run a cohort: one client at a time or a block at once, how many, how far unrolled, compiled or not.

A decision is a plain dict, so that a run can record it and repeat it when it resumes.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn
from torch.fx import GraphModule
from torch.utils.flop_counter import flop_registry

from atoll.core.errors import ConfigError

from ..native import count_layers
from ..tracing.fuse import halves_of

__all__ = ["Choices", "best_of", "block_size", "recurrent_flops", "step_cost", "unroll_of", "whole_layers"]

_MODES = ("vector", "single", "each")
_CACHE = 1 << 20  # bytes of a core's cache that a block may fill: half of a common 2 MiB L2
_LARGEST = 128
_PLAIN = {torch.ops.aten.addmm_: torch.ops.aten.addmm, torch.ops.aten.baddbmm_: torch.ops.aten.baddbmm}


@dataclass(frozen=True)
class Choices:
    """How a cohort runs.

    Attributes:
        mode: "vector" (a block of clients in one program), "single" (one client after another through one
            program), "each" (the plain loop, for models that cannot be traced).
        block: clients in a block; 1 unless vector.
        unroll: local steps in one call of a program.
        compiled: whether programs are compiled.
        native: whether clients run in native code if possible; then ``compiled`` is set too.
        ahead: whether what follows from a step's rows and keys alone, such as views of them, runs in native code where the rest does not.
        layers: whether convolutions, group normalisation and maximum pooling do, where it has them.
        threads: threads that share a cohort in native code; results do not depend on it.
        channels_last: memory order of images.
        trimmed: whether rows that only pad a client's last mini-batch are left out; that step then runs without a program.
        widths: mini-batch sizes that programs are made for, others run without; ``None`` for all.
        stretch: how many times its own size a client's mini-batch may be padded to, to fit a program.
        uneven: whether clients differ in their numbers of examples or steps.
        reason: why, for the record.
    """

    mode: str
    block: int = 1
    unroll: int = 1
    compiled: bool = False
    native: bool = False
    ahead: bool = False
    layers: bool = False
    threads: int = 1
    channels_last: bool = False
    trimmed: bool = False
    widths: tuple[int, ...] | None = None
    stretch: int = 2
    uneven: bool = False
    reason: str = ""

    def record(self) -> dict[str, Any]:
        """Return a plain dict."""
        return {**asdict(self), "widths": None if self.widths is None else list(self.widths)}

    @classmethod
    def of(cls, record: dict[str, Any]) -> Choices:
        """Make choices from a plain dict.

        Raises:
            ConfigError: an unknown mode or field.
        """
        known = set(cls.__dataclass_fields__)
        if not set(record) <= known or record.get("mode") not in _MODES or int(record.get("block", 1)) < 1:
            raise ConfigError(
                f"choices {record} are not of this version",
                where="local training",
                remedy="leave them out, and they are made again",
            )
        widths = record.get("widths")
        return cls(**{**record, "widths": None if widths is None else tuple(int(w) for w in widths)})


@dataclass(frozen=True)
class StepCost:
    """What one local step of one client costs.

    Attributes:
        flops: floating-point operations in products and convolutions.
        bytes: memory that the step's tensors take.
        convolves: whether there is a convolution.
        calls: operations.
        ahead: those of them that need the rows and random keys alone.
        layers: those of them that native code can take over: layers of images.
    """

    flops: float
    bytes: float
    convolves: bool
    calls: int = 0
    ahead: int = 0
    layers: int = 0


def step_cost(gm: GraphModule, first: int) -> StepCost:
    """Count a traced step of one client, whose mini-batch begins at the input number ``first``."""
    flops = 0.0
    touched = 0.0
    convolves = False
    for node in gm.graph.nodes:
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor):
            touched += value.numel() * value.element_size()
        if node.op != "call_function":
            continue
        packet: Any = getattr(node.target, "overloadpacket", None)
        convolves = convolves or "convolution" in str(packet)
        count = flop_registry.get(_PLAIN.get(packet, packet))
        if count is not None:
            args = [_value(a) for a in node.args]
            kwargs = {k: _value(v) for k, v in node.kwargs.items()}
            flops += float(count(*args, **kwargs, out_val=value))
    calls = sum(1 for node in gm.graph.nodes if node.op == "call_function")
    halves = halves_of(gm, first)
    ahead = 0 if halves is None else sum(1 for node in halves[0].graph.nodes if node.op == "call_function")
    return StepCost(flops, touched, convolves, calls, ahead, count_layers(gm))


def recurrent_flops(model: nn.Module, x: torch.Tensor, rows: int) -> float:
    """Return the floating-point operations of a step of ``rows`` rows in recurrent layers, forward and back; 0 without such layers.

    Layers take sequences of ``x.shape[1]`` entries; an input gate has as many products as a hidden one.
    """
    length = x.shape[1] if x.dim() > 1 else 1
    weights = [
        p for m in model.modules() if isinstance(m, nn.RNNBase) for n, p in m.named_parameters() if "weight" in n
    ]
    return 6.0 * rows * length * sum(p.numel() for p in weights)


def whole_layers(model: nn.Module) -> bool:
    """Return whether native code has all recurrent layers of a model: LSTM and GRU without a projection."""
    layers = [module for module in model.modules() if isinstance(module, nn.RNNBase)]
    return all(isinstance(m, nn.LSTM | nn.GRU) and not m.proj_size for m in layers)


def _value(arg: Any) -> Any:
    return arg.meta["val"] if isinstance(arg, torch.fx.Node) else arg


def block_size(cost: StepCost, clients: int, device: torch.device) -> int:
    """Return the clients in a block: as many as fit the cache, shared out evenly.

    A single client's step on small tensors costs mostly calls, which a block shares; beyond the cache, memory decides. On a GPU a block may take
    a quarter of the device's memory: all of it and not the part that is free, so that the same job always has the same blocks.
    """
    if device.type == "cuda":
        fit = torch.cuda.get_device_properties(device).total_memory // 4 // max(int(cost.bytes), 1)
        return max(1, min(clients, 1024, fit))
    if device.type != "cpu":
        return max(1, min(clients, 1024))
    fit = int(_CACHE // max(cost.bytes, 1.0))
    most = max(1, min(_LARGEST, max(fit, 8), clients))
    blocks = -(-clients // most)
    return -(-clients // blocks)


def favoured(cost: StepCost, device: torch.device) -> str:
    """Return the mode that arithmetic alone settles, or ``""`` if a trial must decide."""
    if device.type != "cpu":
        return "vector"
    if cost.convolves or cost.flops > 4e6:
        return "single"
    return "vector" if cost.flops < 1e6 else ""


def unroll_of(cost: StepCost, mode: str, block: int, steps: int, compiled: bool) -> int:
    """Return the local steps in one call: many if a step is short, since a call costs some 20 microseconds; else one."""
    if not compiled or steps < 2:
        return 1
    work = cost.flops * (block if mode == "vector" else 1)
    if work > 2e7:
        return 1
    sizes = [u for u in range(2, 9) if steps % u == 0]
    return max(sizes) if sizes else min(4, steps)


def best_of(trials: dict[str, Callable[[], Any]], repeats: int = 3) -> tuple[str, dict[str, float]]:
    """Time each trial a few times and return the name of the fastest, and the times in seconds."""
    times: dict[str, float] = {}
    for name, run in trials.items():
        run()
        best = float("inf")
        for _ in range(repeats):
            began = time.perf_counter()
            run()
            best = min(best, time.perf_counter() - began)
        times[name] = best
    return min(times, key=lambda name: times[name]), times
