"""Decides how to run a cohort: check the model, count one step, try what counting cannot settle, verify."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core.algebra import tree as T
from atoll.core.algebra.tree import Tree
from atoll.core.errors import CompositionError
from atoll.learn.local.update import count_many

from ..native import enabled
from ..tracing.compiler import can_compile, notice
from .choose import (
    Choices,
    StepCost,
    best_of,
    block_size,
    favoured,
    recurrent_flops,
    step_cost,
    unroll_of,
    whole_layers,
)
from .cohort import Runner
from .course import is_uneven, program_widths, rungs
from .pool import CohortSums, Pool, Privates

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.learn.local.partial import Counted


__all__ = ["decide"]

_CALL = 6e-6  # seconds of one uncompiled operation on a CPU
_FEED = 8  # operations that equal the cost of handing a step its mini-batch
_RATE = 6e10  # floating-point operations a second of one core
_COMPILE = 15.0  # seconds to compile a set of programs
_COMPILED_OPERATION = 0.06  # seconds of PyTorch's code generator for each operation of a program, besides 5 for itself
_PATIENCE = 20.0  # seconds that compile="always" may take; beyond, it says that it does not compile, and why
_TRANSLATE = (0.9, 0.007)  # seconds to translate and compile native code, and for each operation of a step
_SHARED = (150, 0.003)  # operations beyond which statements share functions, and seconds for each of those
_LAYERS = 2.0  # seconds to compile native layers of images
_RECURRENT_RATE = 3e10  # floating-point operations a second of PyTorch's recurrent kernels
_RECURRENT_CALLS = 500  # as many operations as translating a model with recurrent layers takes time for
_RECURRENT = 4e6  # floating-point operations of a step from which PyTorch's recurrent kernels beat a traced loop
_BATCHES = 8  # mini-batches of a client in a trial
_ROWS = 256  # examples, if a mini-batch is all of them
_HEAVY = 4e8  # floating-point operations of a step from which half a mini-batch of padding costs more than a step without a program, 3 ms
_UNROLL = 4  # steps in one call, if clients take different numbers of steps
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
        batches = _run(runner, chosen, _clipped(pool, runner.algorithm), broadcast, states, keys, np.array([first]))
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
        return _recurrent(runner, cells, _clipped(pool, algorithm), broadcast, states, keys, (steps, uneven))
    # Trials use the first few mini-batches of each client: one with thousands costs no more than the others.
    pool = _clipped(pool, algorithm)
    biggest = int(np.argmax(pool.sizes))
    try:
        cost = _look(runner, pool, broadcast, states, keys, biggest)
    except Exception as error:
        _blame(runner, pool, broadcast, states, keys, np.array([biggest]))
        return _each(runner, f"it cannot be traced ({_short(error)})")
    device, calls = runner.network.device, cost.calls
    mode = favoured(cost, device)
    reason = f"{cost.flops / 1e6:.2f} MFLOP a step"
    exact = not runner.network.padded and runner.algorithm.example_steps is None
    if exact:
        mode, reason = "single", "the loss gives means only, so batches cannot be padded"
    block = block_size(cost, len(pool.sizes), device)
    if mode != "single":
        mode, reason = _vectorise(runner, pool, broadcast, states, keys, mode, block, reason)
    block = 1 if mode == "single" else block
    widths = program_widths(algorithm, sizes, steps, mode, exact)
    runner.seconds_a_client = _taken(steps, block) * ((calls + _FEED) * _CALL / block + cost.flops / _RATE)
    programs = len(widths) * (len(rungs(block)) if mode == "vector" else 2) if uneven else 1
    drawn = runner.algorithm.example_steps is not None
    native = not exact and _native(runner, cost, calls, 2 if drawn else len(widths))
    compiled = not drawn and _compile(runner, programs, calls, quiet=native)
    beside = _beside(runner, cost, mode, len(widths) * (2 if uneven else 1))
    chosen = Choices(
        mode,
        block,
        unroll_of(cost, mode, block, _UNROLL if uneven else int(steps.max()), compiled),
        compiled,
        native,
        **beside,
        widths=widths,
        stretch=_STRETCH if (mode == "vector" and cost.flops < 4e6) or beside["layers"] else 2,
        uneven=uneven,
        reason=reason,
    )
    try:
        chosen = chosen if exact or drawn else _trimmed(chosen, cost)
        verified = _verified(runner, chosen, pool, broadcast, states, keys)
        if native and not compiled and not runner.natives.ready:
            _compile(
                runner, programs, calls, quiet=False
            )  # it could not be translated: say why it is not compiled either
        return verified
    except Exception:
        _blame(runner, pool, broadcast, states, keys, np.arange(len(keys)))
        raise


def _taken(steps: NDArray[np.int64], block: int) -> float:
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


def _clipped(pool: Pool, algorithm: Counted) -> Pool:
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
        with warnings.catch_warnings():
            # vmap warns about operations without a batching rule: those loop over the clients, slowly.
            warnings.filterwarnings("error", message=".*batching rule.*")
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
    if (
        wish == "never"
        or device.type != "cpu"
        or (cost is not None and cost.convolves)
        or not enabled()
        or not can_compile(device)
    ):
        return False
    more = max(0, calls - _SHARED[0])
    seconds = (_TRANSLATE[0] + _TRANSLATE[1] * (calls - more) + _SHARED[1] * more) * widths
    plain = runner.training.volume * runner.seconds_a_client
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


def _trimmed(chosen: Choices, cost: StepCost) -> Choices:
    """Leave out the rows that pad a mini-batch, where a step is heavy and nothing is made for full ones alone."""
    made = chosen.native or chosen.compiled or chosen.ahead or chosen.layers
    return chosen if chosen.mode != "single" or cost.flops <= _HEAVY or made else replace(chosen, trimmed=True)


def _beside(runner: Runner, cost: StepCost, mode: str, programs: int) -> dict[str, bool]:
    """Decide what native code does of steps that PyTorch takes, and the memory order of images.

    What the rows and keys alone decide pays if the calls saved take twice as long as a compiler run; layers of images have two or three small libraries for all models.
    """
    wish, device = runner.training.compile, runner.network.device
    on_cpu = device.type == "cpu"
    able = on_cpu and wish != "never" and enabled() and can_compile(device)
    seconds, plain = (
        (_TRANSLATE[0] + _TRANSLATE[1] * cost.ahead) * programs,
        runner.training.volume * runner.seconds_a_client,
    )
    pays = plain * cost.ahead / max(1, cost.calls) > 2 * seconds or (wish == "always" and seconds <= _PATIENCE)
    layers = able and cost.layers > 0 and (plain > 2 * _LAYERS or wish == "always")
    channels_last = mode == "single" and cost.convolves and on_cpu and not layers
    return {"ahead": able and cost.ahead > 0 and pays, "layers": layers, "channels_last": channels_last}


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
    chosen = Choices("single", native=True, widths=widths, uneven=uneven, reason=reason)
    try:
        verified = _verified(runner, chosen, pool, broadcast, states, keys)
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


def _compile(runner: Runner, programs: int, calls: int, *, quiet: bool) -> bool:
    """Decide whether to compile ``programs`` programs of ``calls`` operations, given the seconds of one client's uncompiled update.

    ``quiet`` if native code does the work where it can: compiled programs would run only where it cannot.
    """
    wish, device = runner.training.compile, runner.network.device
    if wish == "never":
        return False
    if wish == "auto" and runner.training.volume * runner.seconds_a_client < 2 * _COMPILE * max(1.0, programs / 2):
        return False
    if not can_compile(device):
        need = "C++ compiler (g++ or clang++)" if device.type == "cpu" else "triton"
        notice("compiler", f"no {need} was found, so the local update runs uncompiled and slower")
        return False
    seconds = programs * (5.0 + _COMPILED_OPERATION * calls)
    if device.type == "cpu" and seconds > _PATIENCE:
        if wish == "always" and not quiet:
            title = runner.network.title
            notice(
                f"patience:{title}",
                f"{title} is not compiled although compile='always': {programs} programs of about {calls} operations would take "
                f"some {seconds:.0f} s, more than {_PATIENCE:.0f}",
            )
        return False
    return True


def _verified(
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
    for at, got, summed in _found(runner, chosen, pool, broadcast, states, keys, members):

        def reference(sent: Tree, at: int = at, summed: bool = summed) -> dict[str, Tree]:
            reply = runner.training._train_one(pool, at, sent, states[at], int(keys[at])).reply
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


def _found(
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
