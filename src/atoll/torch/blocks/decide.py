"""Decides how to run a cohort: check the model, count one step, try what counting cannot settle, verify."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn
from torch.fx import GraphModule
from torch.utils.flop_counter import flop_registry

from atoll.core.algebra import tree as T
from atoll.core.algebra.tree import Tree
from atoll.core.errors import CompositionError
from atoll.learn.local.update import count_many

from ..native import count_layers, enabled
from ..tracing.compiler import can_compile, notice, refuse_loops
from ..tracing.fuse import halves_of
from .choices import Choices, Shapes
from .cohort import Runner
from .course import is_uneven, program_widths, rungs
from .pool import CohortSums, Pool, Privates

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.learn.local.update import Counted


__all__ = [
    "StepCost",
    "best_of",
    "block_size",
    "decide",
    "favour_mode",
    "recurrent_flops",
    "step_cost",
    "unroll_of",
    "whole_layers",
]

_CALL = 6e-6  # seconds of one uncompiled operation on a CPU
_FEED = 8  # operations that equal the cost of handing a step its mini-batch
_RATE = 6e10  # floating-point operations a second of one core
_COMPILE = 15.0  # seconds to compile a set of programs for a GPU
_PATIENCE = 20.0  # seconds that compile="always" may take; beyond, it makes no native code, and says why
_TRANSLATE = (0.9, 0.007)  # seconds to translate and compile native code, and for each operation of a step
_SHARED = (150, 0.003)  # operations beyond which statements share functions, and seconds for each of those
_LAYERS = 2.0  # seconds to compile native layers of images
_RECURRENT_RATE = 3e10  # floating-point operations a second of PyTorch's recurrent kernels
_RECURRENT_CALLS = 500  # as many operations as translating a model with recurrent layers takes time for
_RECURRENT = 4e6  # floating-point operations of a step from which PyTorch's recurrent kernels beat a traced loop
_BATCHES = 8  # mini-batches of a client in a trial
_ROWS = 256  # examples, if a mini-batch is all of them
_HEAVY = 4e8  # floating-point operations of a step from which half a mini-batch of padding costs more than a step without a program, 3 ms
_UNROLL = 4  # steps in one call of a compiled program, if clients take different numbers of steps
_STRETCH = 1024  # how far to pad batches if a step costs calls rather than arithmetic


class _UnsoundError(Exception):
    """What clients also raise alone, by place: it does not reject a way to train."""

    def __init__(self, errors: dict[int, Exception]) -> None:
        super().__init__(f"{len(errors)} clients raise alone")
        self.errors = errors


def decide(runner: Runner, pool: Pool, broadcast: Tree, states: Privates, keys: NDArray[np.uint64]) -> Choices:
    """Choose mode, block, unrolling and compilation for cohorts like this one.

    Raises:
        Exception: an exception that all clients raise, in every way of training.
    """
    try:
        return _decide(runner, pool, broadcast, states, keys)
    except _UnsoundError as found:
        errors = found.errors
    first = next(iter(errors))
    others = np.delete(np.arange(len(keys)), list(errors))
    if not len(others):
        raise errors[first]
    chosen = _decide(runner, pool.part(others), broadcast, states[others], keys[others])
    if chosen.mode == "each":
        return chosen
    # The others run like this. If this way raises too, a block hides a client's exception: a model may depend on the
    # size of its batches.
    try:
        batches = _run(runner, chosen, _clip_pool(pool, runner.algorithm), broadcast, states, keys, np.array([first]))
    except Exception:
        return chosen
    hidden = not any(batch.rejected for batch in batches)
    return (
        _each(runner, f"alone a client raises what it does not in a block ({_short(errors[first])})")
        if hidden
        else chosen
    )


def _decide(runner: Runner, pool: Pool, broadcast: Tree, states: Privates, keys: NDArray[np.uint64]) -> Choices:
    if not len(pool.sizes) or not pool.sizes.any():
        return Choices("each", reason="no examples")
    stateful = runner.training.stateful(pool.x)
    if stateful:
        return _each(runner, stateful)
    algorithm, sizes = pool.work(runner.algorithm), pool.sizes
    cells = recurrent_flops(
        runner.network.training, pool.x, int(np.minimum(sizes, algorithm.batch_size or _ROWS).max())
    )
    steps, uneven = count_many(algorithm, sizes, keys), is_uneven(algorithm, sizes, keys)
    if cells > _RECURRENT and runner.network.device.type == "cpu" and runner.algorithm.example_steps is None:
        return _recurrent(runner, cells, _clip_pool(pool, algorithm), broadcast, states, keys, (steps, uneven))
    # Trials use the first few mini-batches of each client: one with thousands costs no more than the others.
    pool = _clip_pool(pool, algorithm)
    biggest = int(np.argmax(pool.sizes))
    try:
        cost = _look(runner, pool, broadcast, states, keys, biggest)
    except Exception as error:
        _blame(runner, pool, broadcast, states, keys, np.array([biggest]))
        return _each(runner, f"it cannot be traced ({_short(error)})")
    device, calls = runner.network.device, cost.calls
    mode = favour_mode(cost, device)
    reason = f"{cost.flops / 1e6:.2f} MFLOP a step"
    exact = not runner.network.padded and runner.algorithm.example_steps is None
    if exact:
        mode, reason = "single", "the loss gives means only, so batches cannot be padded"
    block = block_size(cost, len(pool.sizes), device)
    if mode != "single":
        mode, reason = _vectorise(runner, pool, broadcast, states, keys, mode, block, reason)
    block = 1 if mode == "single" else block
    widths = program_widths(algorithm, sizes, steps, mode, exact)
    runner.seconds_a_client = _estimate_steps(steps, block) * ((calls + _FEED) * _CALL / block + cost.flops / _RATE)
    programs = len(widths) * (len(rungs(block)) if mode == "vector" else 2) if uneven else 1
    drawn = runner.algorithm.example_steps is not None
    native = not exact and _native(runner, cost, calls, 2 if drawn else len(widths))
    compiled = not drawn and _compile(runner, programs)
    code = {"steps": native, "compiled": compiled, **_beside(runner, cost, len(widths) * (2 if uneven else 1))}
    shapes = Shapes(
        widths=widths,
        stretch=_STRETCH if (mode == "vector" and cost.flops < 4e6) or code["layers"] else 2,
        uneven=uneven,
        trimmed=mode == "single" and cost.flops > _HEAVY and not (exact or drawn or any(code.values())),
        unroll=unroll_of(cost, mode, block, _UNROLL if uneven else int(steps.max()), compiled),
        channels_last=mode == "single" and cost.convolves and device.type == "cpu" and not code["layers"],
    )
    chosen = Choices(mode, block, tuple(sorted(name for name, wanted in code.items() if wanted)), shapes, reason=reason)
    try:
        verified = _verify_choices(runner, chosen, pool, broadcast, states, keys)
    except Exception:
        _blame(runner, pool, broadcast, states, keys, np.arange(len(keys)))
        raise
    if chosen.code == ("steps",) and runner.training.compile == "always" and not runner.runs_natively:
        title = runner.network.title
        notice(f"native:{title}", f"{title} gets no native code although compile='always': it cannot be translated")
    return verified


def _estimate_steps(steps: NDArray[np.int64], block: int) -> float:
    """Return the steps that a client takes on average if clients of similar length share a block, which ends with its longest."""
    longest = np.sort(steps)[::-1][::block]
    return float(np.repeat(longest, block)[: len(steps)].mean())


def _blame(
    runner: Runner,
    pool: Pool,
    broadcast: Tree,
    states: Privates,
    keys: NDArray[np.uint64],
    members: NDArray[np.int64],
) -> None:
    """Find out whether one of these clients also raises alone; all clients of the pool that do are then left out."""

    def among(places: Iterable[int]) -> dict[int, Exception]:
        found = {at: runner.error_of(at, pool, broadcast, states, keys) for at in places}
        return {at: error for at, error in found.items() if error is not None}

    errors = among(members.tolist())
    if errors:
        raise _UnsoundError(errors | among(at for at in range(len(keys)) if at not in errors))


def _clip_pool(pool: Pool, algorithm: Counted) -> Pool:
    """Return the pool with a few mini-batches of each client; a partial one stays partial."""
    sizes, batch = pool.sizes, algorithm.batch_size
    kept = np.minimum(sizes, _ROWS if batch is None else _BATCHES * batch + sizes % batch)
    if (kept == sizes).all():
        return pool
    rows = np.concatenate([np.arange(o, o + k) for o, k in zip(pool.offsets[:-1], kept, strict=True)])
    return pool.take(rows, kept)


def _each(runner: Runner, why: str) -> Choices:
    notice(f"each:{runner.network.title}:{why}", f"{runner.network.title} is trained client by client: {why}")
    return Choices("each", reason=why)


def _short(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}"[:200]


def _look(runner: Runner, pool: Pool, broadcast: Tree, states: Privates, keys: NDArray[np.uint64], at: int) -> StepCost:
    """Trace one client's step and count it."""
    chosen = Choices("single")
    _run(runner, chosen, pool, broadcast, states, keys, np.array([at]))
    programs = [
        (block.update, program)
        for block in runner._blocks.values()
        for name, program in block.programs.items()
        if not isinstance(name, str) and name[0] != "sum"
    ]
    update, program = programs[-1]
    assert update.local is not None  # noqa: S101 - set by tracing
    return step_cost(program.graph, update.local.count + update.first_column)


def _run(
    runner: Runner,
    chosen: Choices,
    pool: Pool,
    broadcast: Tree,
    states: Privates,
    keys: NDArray[np.uint64],
    members: NDArray[np.int64],
) -> Any:
    """Train some clients of the pool in a given way and return their batches."""
    part = pool.part(members)
    with _trying(runner):
        return list(runner.blocks(chosen, members, part, broadcast, states[members], keys[members]))


def _vectorise(
    runner: Runner,
    pool: Pool,
    broadcast: Tree,
    states: Privates,
    keys: NDArray[np.uint64],
    mode: str,
    block: int,
    reason: str,
) -> tuple[str, str]:
    """Check that a block of clients can be run at once; if counting does not settle it, time it against single clients."""
    order = np.argsort(-pool.sizes, kind="stable")[:block]
    vector, single = Choices("vector", block), Choices("single")

    def run(chosen: Choices) -> Any:
        return _run(runner, chosen, pool, broadcast, states, keys, order)

    try:
        with refuse_loops():
            run(vector)
    except Exception as error:
        _blame(runner, pool, broadcast, states, keys, order)
        why = f"it cannot be run on several clients at once ({_short(error)})"
        notice(f"single:{runner.network.title}:{why}", f"{runner.network.title} is run one client at a time: {why}")
        return "single", why
    if mode:
        return mode, reason
    best, times = best_of({"vector": lambda: run(vector), "single": lambda: run(single)})
    timings = ", ".join(f"{name} {1e3 * seconds / len(order):.3g} ms" for name, seconds in times.items())
    return best, f"measured a client: {timings}"


def _native(runner: Runner, cost: StepCost | None, calls: int, widths: int) -> bool:
    """Decide whether to make native code, which costs a compiler run for each width; it pays if the work saved is twice that.

    ``compile="always"`` has it made in short runs too, within its patience.
    """
    wish, device = runner.training.compile, runner.network.device
    if wish == "never" or device.type != "cpu" or not enabled():
        return False
    plain = runner.training.volume * runner.seconds_a_client
    if not can_compile(device):
        if wish == "always" or plain > 2 * _TRANSLATE[0]:
            need = "no C++ compiler (g++ or clang++) was found"
            notice("compiler", f"{need}, so the local update runs in PyTorch's own operations, and slower")
        return False
    if cost is not None and cost.convolves:
        return False
    more = max(0, calls - _SHARED[0])
    seconds = (_TRANSLATE[0] + _TRANSLATE[1] * (calls - more) + _SHARED[1] * more) * widths
    runner.expected = {"expected_plain": round(plain, 3), "expected_native": round(seconds, 3)}
    if plain > 2 * seconds or wish == "auto":
        return plain > 2 * seconds
    if seconds > _PATIENCE:
        title = runner.network.title
        notice(
            f"patience:native:{title}",
            f"{title} gets no native code although compile='always': {widths} functions of about {calls} operations would take some {seconds:.0f} s, "
            f"more than {_PATIENCE:.0f}, and the run without them some {plain:.0f} s",
        )
    return seconds <= _PATIENCE


def _beside(runner: Runner, cost: StepCost, programs: int) -> dict[str, bool]:
    """Decide what native code does of steps that PyTorch takes.

    What the rows and keys alone decide pays if the calls saved take twice as long as a compiler run; layers of images have two or three small libraries for all models.
    """
    wish, device = runner.training.compile, runner.network.device
    able = device.type == "cpu" and wish != "never" and enabled() and can_compile(device)
    seconds, plain = (
        (_TRANSLATE[0] + _TRANSLATE[1] * cost.ahead) * programs,
        runner.training.volume * runner.seconds_a_client,
    )
    pays = plain * cost.ahead / max(1, cost.calls) > 2 * seconds or (wish == "always" and seconds <= _PATIENCE)
    layers = able and cost.layers > 0 and (plain > 2 * _LAYERS or wish == "always")
    return {"ahead": able and cost.ahead > 0 and pays, "layers": layers}


def _recurrent(
    runner: Runner,
    cells: float,
    pool: Pool,
    broadcast: Tree,
    states: Privates,
    keys: NDArray[np.uint64],
    work: tuple[NDArray[np.int64], bool],
) -> Choices:
    """Train long sequences in native code if that pays, else client by client with PyTorch's kernels."""
    (steps, uneven), exact = work, not runner.network.padded
    widths = program_widths(pool.work(runner.algorithm), pool.sizes, steps, "single", exact)
    runner.seconds_a_client = float(steps.mean()) * cells / _RECURRENT_RATE
    if exact or not whole_layers(runner.network.training) or not _native(runner, None, _RECURRENT_CALLS, len(widths)):
        return _by_kernels(runner, cells)
    reason = f"recurrent layers of {cells / 1e6:.0f} MFLOP a step"
    chosen = Choices("single", code=("steps",), shapes=Shapes(widths=widths, uneven=uneven), reason=reason)
    try:
        verified = _verify_choices(runner, chosen, pool, broadcast, states, keys)
    except Exception:
        _blame(runner, pool, broadcast, states, keys, np.arange(len(keys)))
        raise
    return verified if runner.natives.ready else _by_kernels(runner, cells)


def _by_kernels(runner: Runner, cells: float) -> Choices:
    """Train client by client: what PyTorch's fused recurrent kernels do in one call is thousands of operations in a traced step."""
    if runner.training.compile == "always":
        notice(
            f"recurrent:{runner.network.title}",
            f"{runner.network.title} is not compiled: its recurrent layers run in PyTorch's own kernels, client by client",
        )
    return Choices("each", reason=f"recurrent layers of {cells / 1e6:.0f} MFLOP a step run in PyTorch's own kernels")


def _compile(runner: Runner, programs: int) -> bool:
    """Decide whether PyTorch's code generator compiles ``programs`` programs: on a GPU, if the run is long enough.

    On a CPU native code does it all: of two small networks, the generator's code had .4 and .5 of its rate, after 5 and 12 times as long a first round.
    """
    wish, device = runner.training.compile, runner.network.device
    if wish == "never" or device.type != "cuda":
        return False
    if wish == "auto" and runner.training.volume * runner.seconds_a_client < 2 * _COMPILE * max(1.0, programs / 2):
        return False
    if not can_compile(device):
        notice("compiler", "no triton was found, so the local update runs uncompiled and slower")
    return can_compile(device)


def _verify_choices(
    runner: Runner, chosen: Choices, pool: Pool, broadcast: Tree, states: Privates, keys: NDArray[np.uint64]
) -> Choices:
    """Compare clients with the reference; a model whose examples depend on each other within a batch fails here."""
    sizes = pool.sizes
    # A client with a partial batch shows whether padding leaks, one of another size whether masking does.
    members = np.unique(np.concatenate([np.argsort(sizes, kind="stable")[[0, -1]], [0]]))
    members = members[sizes[members] > 0][:2]

    def apart(sent: Tree) -> str:
        return _apart(runner, chosen, pool, sent, states, keys, members)

    try:
        wrong = apart(broadcast)
        # Rounding flips a pseudo-label whose probability is at its threshold, and with it a share of the update. At other parameters that one is not there;
        # rows that depend on each other differ anywhere.
        if wrong and all(apart(_nudge(broadcast, by)) for by in _MOVES):
            return _each(runner, f"in a block its {wrong!r} differs from that of a single client")
    except _RaisesAloneError as found:
        return _each(runner, f"alone a client raises what it does not in a block ({_short(found.error)})")
    return chosen


class _RaisesAloneError(Exception):
    """The reference raises where the chosen way does not."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


def _apart(
    runner: Runner,
    chosen: Choices,
    pool: Pool,
    broadcast: Tree,
    states: Privates,
    keys: NDArray[np.uint64],
    members: NDArray[np.int64],
) -> str:
    """Return the first aggregate of a client that is further from the reference than rounding carries, or ``""``."""
    for at, got, summed in _run_alone(runner, chosen, pool, broadcast, states, keys, members):

        def reference(sent: Tree, at: int = at, summed: bool = summed) -> dict[str, Tree]:
            reply = runner.training._train_one(pool, at, sent, states[at], int(keys[at]), drawn=True).reply
            return {name: (a.total() if summed else a).value for name, a in reply.items()}

        try:
            want = reference(broadcast)
        except Exception as error:
            raise _RaisesAloneError(error) from error
        wrong = _differs(want, got, dict.fromkeys(got, _CLOSE))
        if wrong:
            # Rounding may flip a maximum or a ReLU, and training amplifies that: how far does a small change carry?
            nudged = reference(_nudge(broadcast))
            reach = {name: _CLOSE + 30.0 * _gap(want[name], nudged[name]) for name in want}
            wrong = _differs(want, got, reach)
        if wrong:
            return wrong
    return ""


def _run_alone(
    runner: Runner,
    chosen: Choices,
    pool: Pool,
    broadcast: Tree,
    states: Privates,
    keys: NDArray[np.uint64],
    members: NDArray[np.int64],
) -> Iterator[tuple[int, dict[str, Tree], bool]]:
    """Yield the results of single clients: ``(client, values, whether they are sums)``; sums if the reply has them, as those run most often."""
    try:
        sums = []
        for at in members.tolist():
            one = np.array([at])
            made = CohortSums({}, one[:0], {}, [], np.zeros(1, np.int64), np.zeros(1))
            with _trying(runner):
                runner.add_up(made, chosen, np.zeros(1, np.int64), pool.part(one), broadcast, states[one], keys[one])
            if not made.rejected:
                sums.append((at, {name: total.value for name, total in made.totals.items()}, True))
        yield from sums
    except CompositionError:
        for batch in _run(runner, chosen, pool, broadcast, states, keys, members):
            for place, at in enumerate(batch.positions.tolist()):
                values = {name: T.map(lambda leaf, i=place: leaf[i], a.value) for name, a in batch.reply.items()}
                yield int(at), values, False


@contextmanager
def _trying(runner: Runner) -> Iterator[None]:
    """Let exceptions reject the way of running on trial."""
    before, runner.trying = runner.trying, True
    try:
        yield
    finally:
        runner.trying = before


_CLOSE = 1e-3
_MOVES = (1e-2, -1e-2)  # shares by which parameters move to where no threshold is as close as before


def _nudge(broadcast: Tree, by: float = 1e-6) -> Tree:
    """Return the broadcast with every other parameter entry moved by a share of itself: by default a few units of float32 rounding."""

    def move(leaf: Any) -> Any:
        array = np.array(leaf)
        flat = array.reshape(-1)
        flat[::2] = flat[::2] * (1.0 + by)
        return array

    return {**broadcast, "params": T.map(move, broadcast["params"])}


def _differs(want: dict[str, Tree], got: dict[str, Tree], within: dict[str, float]) -> str:
    """Return the first aggregate further from the reference than allowed, or ``""``; non-finite ones are not compared."""
    for name, value in want.items():
        if _gap(value, got[name]) > within[name]:
            return name
    return ""


def _gap(want: Tree, got: Tree) -> float:
    """Return ``||got - want|| / ||want||`` over all leaves; 0 if the reference is not finite."""
    pairs = list(zip(T.leaves(want), T.leaves(got), strict=True))
    size = float(sum(np.square(np.asarray(a, dtype=np.float64)).sum() for a, _ in pairs))
    apart = float(sum(np.square(np.asarray(b, dtype=np.float64) - np.asarray(a)).sum() for a, b in pairs))
    return float(np.sqrt(apart)) / (float(np.sqrt(size)) + 1e-6) if np.isfinite(size) else 0.0


# What a step costs, and what follows from it by arithmetic.

_CACHE = 1 << 20  # bytes of a core's cache that a block may fill: half of a common 2 MiB L2
_LARGEST = 128
_PLAIN = {torch.ops.aten.addmm_: torch.ops.aten.addmm, torch.ops.aten.baddbmm_: torch.ops.aten.baddbmm}


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


def favour_mode(cost: StepCost, device: torch.device) -> str:
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
