"""A whole cohort in one call of native code: every client's start, steps and finish, added up in place.

One client's local state stays in the cache from its first step to the sum; only sums, a few numbers and the new private
state of each client are written to memory.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ..blocks.sums import hand_over, summands
from ..blocks.update import StepForm, Update
from .program import NativeColumn
from .steps import NativeCode, Phase, make_code, simple_graph, small_enough

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..blocks.pool import Form, PoolPlace
    from ..blocks.results import CohortSums
    from .orders import Draws

__all__ = ["NativeCohort", "make_cohort"]

Tensor = torch.Tensor


class NativeCohort:
    """The native code of one width of mini-batches.

    Attributes:
        update: the functions, of one client.
        weighted: whether rows carry weights.
        seconds: time to trace and to compile.
    """

    def __init__(
        self, update: Update, weighted: bool, code: NativeCode, columns: dict[str, list[NativeColumn]]
    ) -> None:
        self.update = update
        self.weighted = weighted
        self.seconds = code.seconds
        self._code = code
        self._columns = columns
        self._local = [None] * len(columns["local"])
        self._draws = code.used[self._number("seeds")]
        self._drawn = [None] * weighted
        self._frozen = [tensor.contiguous() for tensor in update.network.frozen.values()]
        self._room: _Room | None = None
        self._pace = _PACE

    def add(
        self,
        made: CohortSums,
        at: NDArray[np.int64],
        place: PoolPlace,
        draws: Draws,
        leaves: tuple[list[Any], list[Any]],
        threads: int = 1,
    ) -> None:
        """Train clients and add them to the sums, or keep what each adds if ``made`` is of single clients.

        Args:
            made: the cohort's sums.
            at: the clients' positions in the cohort.
            place: where their rows are.
            draws: the clients' mini-batches.
            leaves: of the broadcast, and of the private states, stacked; contiguous tensors or arrays.
            threads: threads that share the clients; sums do not depend on it.
        """
        sent, private = leaves
        begins = draws.begins
        parts = _cut(begins) if made.rows is None else np.arange(len(at) + 1)
        room = self._room_for(len(at), len(parts) - 1, apart=made.rows is not None)
        room.arrays["loss"][0].fill(0.0)
        for name, numbers in (("examples", draws.sizes), ("steps", draws.steps)):
            room.arrays[name][0][:] = numbers
        seeds = draws.seeds() if self._draws else None
        held = [*sent, *self._frozen, *private, *place.columns, *self._drawn, seeds, *self._local, *room.addresses]
        steps = int(begins[-1])
        threads = min(threads, 1 + int(steps * self._pace / _WORTH))
        began = time.perf_counter()
        self._code(held, begins, draws, parts=parts, threads=threads)
        self._pace = (time.perf_counter() - began) * threads / max(1, steps)
        out, after = room.arrays["out"], 1 + len(self.update.kinds)
        # New states outlive this call; the scratch memory does not.
        rest = [*out[after : after + after], *(leaf.copy() for leaf in out[after + after :])]
        sums = room.arrays["sums"]
        if made.rows is None:
            sums = [np.asarray(parted.sum(axis=0, dtype=parted.dtype)) for parted in sums]
        hand_over(made, self.update, at, [draws.steps, np.stack(out[:after], 1), *rest], sums)

    def _room_for(self, count: int, parts: int, *, apart: bool) -> _Room:
        """Return memory for the output of ``count`` clients, reused between cohorts unless it is handed out."""
        columns = {name: self._columns[name] for name in _WRITTEN}
        if apart:
            return _Room(columns, count, parts)
        if self._room is None or self._room.count != count:
            self._room = _Room(columns, count, parts)
        return self._room

    def _number(self, name: str) -> int:
        before = 0
        for known, columns in self._columns.items():
            if known == name:
                break
            before += len(columns)
        return before


_WRITTEN = ("examples", "steps", "loss", "sums", "out")
_PARTS = 16  # the most parts that clients are cut into
_WORTH = 1e-4  # seconds of work that repay a thread
_PACE = 1e-6  # seconds of a local step, until one is measured: of the smallest models


def _parts(clients: int) -> int:
    """Return the number of parts for ``clients`` clients; it never depends on cores, since sums are added up part by part."""
    return min(_PARTS, clients)


def _cut(begins: NDArray[np.int64]) -> NDArray[np.int64]:
    """Cut clients into parts of nearly equal numbers of steps, ``(parts + 1,)``."""
    clients = len(begins) - 1
    parts = _parts(clients)
    cut = np.searchsorted(begins, np.arange(parts + 1) * int(begins[-1]) // parts)
    cut[0], cut[-1] = 0, clients
    return cut


class _Room:
    """Columns of one piece of memory, as tensors and as arrays."""

    def __init__(self, columns: dict[str, list[NativeColumn]], count: int, parts: int) -> None:
        many = {"client": count, "part": parts}
        shapes = {name: [(many[c.per], *c.example.shape) for c in some] for name, some in columns.items()}
        kinds = [c.example.dtype for some in columns.values() for c in some]
        flat = [shape for some in shapes.values() for shape in some]
        sizes = [-(-math.prod(shape) * kind.itemsize // 64) * 64 for shape, kind in zip(flat, kinds, strict=True)]
        self.count = count
        self._all = torch.empty(max(1, sum(sizes)), dtype=torch.uint8)
        pieces = zip(torch.split(self._all[: sum(sizes)], sizes), flat, kinds, strict=True)
        self.tensors = [p[: math.prod(s) * k.itemsize].view(k).view(s) for p, s, k in pieces]
        self.addresses = [t.data_ptr() for t in self.tensors]
        self._names = [name for name, some in shapes.items() for _ in some]
        self.arrays = {name: [t.numpy() for t in self.tensors_of(name)] for name in columns}

    def tensors_of(self, name: str) -> list[Tensor]:
        """Return the columns of a name."""
        return [t for known, t in zip(self._names, self.tensors, strict=True) if known == name]


def make_cohort(
    update: Update, sent: Sequence[Tensor], private: Sequence[Tensor], form: Form, width: int, weighted: bool
) -> NativeCohort | None:
    """Translate and compile an update for mini-batches of one width, or return ``None`` if that is impossible or would not pay.

    Args:
        update: the functions, of one client.
        sent: leaves of the broadcast.
        private: leaves of one client's private state.
        form: of the rows.
        width: examples of a mini-batch.
        weighted: whether rows carry weights.

    Raises:
        CompositionError: the reply cannot be added up.
    """
    began = time.perf_counter()
    network = update.network
    batch = [torch.empty(1, width, *shape, dtype=dtype) for _, shape, dtype in form]
    start = simple_graph(update.start, [*sent, *private])
    local = _results(start)
    scalar = torch.zeros((), dtype=network.dtype)
    columns: dict[str, list[NativeColumn]] = {
        "sent": _columns(sent, "job"),
        "frozen": _columns(network.frozen.values(), "job"),
        "private": _columns(private, "client"),
        "pool": _columns(batch, "row"),
        "weights": _columns([torch.zeros(1, width)] if weighted else [], "drawn"),
        "seeds": _columns([torch.zeros(1, 2, dtype=torch.int64)], "step"),
        "local": _columns(local, "thread"),
        "examples": _columns([scalar], "client"),
        "steps": _columns([scalar], "client"),
        "loss": _columns([scalar], "client"),
    }
    known = [column for some in columns.values() for column in some]
    if not small_enough(known) or any(leaf.dtype != torch.float32 for leaf in (*local, scalar)):
        return None
    step = simple_graph(
        update.steps(StepForm(1, weighted)),
        [c.example for name in ("local", "sent", "frozen", "pool", "weights", "seeds") for c in columns[name]],
        len(local),
    )
    ends = ("local", "sent", "private", "examples", "steps", "loss")
    finish = simple_graph(_ending(update), [c.example for name in ends for c in columns[name]])
    results = _results(finish)
    count = len(results) - _after(update)
    columns["sums"], columns["out"] = _columns(results[:count], "part"), _columns(results[count:], "client")
    numbers, place = {}, 0
    for name, some in columns.items():
        numbers[name] = list(range(place, place + len(some)))
        place += len(some)

    def of(*names: str) -> list[int]:
        return [i for name in names for i in numbers[name]]

    phases = {
        "start": Phase(start, of("sent", "private"), [(i, "=") for i in of("local")]),
        "step": Phase(
            step,
            of("local", "sent", "frozen", "pool", "weights", "seeds"),
            [*((i, "=") for i in of("local")), *((i, "+=") for i in of("loss"))],
        ),
        "finish": Phase(finish, of(*ends), [*((i, "+=") for i in of("sums")), *((i, "=") for i in of("out"))]),
    }
    code = make_code([column for some in columns.values() for column in some], phases, began)
    return None if code is None else NativeCohort(update, weighted, code, columns)


def _columns(examples: Any, per: str) -> list[NativeColumn]:
    return [NativeColumn(example, per) for example in examples]


def _results(graph: torch.fx.GraphModule) -> list[Tensor]:
    """Return examples of a graph's results."""
    outputs: Any = graph.graph.find_nodes(op="output")[0].args[0]
    return [torch.empty(node.meta["val"].shape, dtype=node.meta["val"].dtype) for node in outputs]


def _after(update: Update) -> int:
    """Return the number of results of `_ending` after the sums: flags, the loss, weights, the state."""
    assert update.state is not None  # noqa: S101 - set by tracing
    return 2 + 2 * len(update.kinds) + update.state.count


def _ending(update: Update) -> Any:
    """``local, broadcast, client, examples, steps, sum of losses -> terms of the sums, flags, mean loss, weights, state``."""

    def call(*flat: Tensor) -> list[Tensor]:
        *inputs, steps, loss = flat
        made = update.finish(*inputs, steps)
        assert update.reply is not None  # noqa: S101 - set by tracing
        mean = loss / steps.clamp(min=1.0)
        flags = [torch.isfinite(mean), *update.finite(made[: update.reply.count])]
        keep = flags[0]
        for flag in flags[1:]:
            keep = torch.logical_and(keep, flag)
        terms, weights = summands(update, made, mean)
        terms = [torch.where(keep, term, torch.zeros_like(term)) for term in terms]
        return [*terms, *flags, mean, *weights, *made[update.reply.count :]]

    return call
