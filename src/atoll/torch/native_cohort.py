"""A whole cohort in one call of native code: every client's start, steps and finish, added up where they are made.

One client's local state stays in the cache from its first step to the sum; nothing but sums, and a few numbers and the new private state of
each client, is written to memory.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from .native import Column, NativeCode, Phase, make_code, simple_graph, small_enough
from .sums import hand_over, summands
from .update import StepForm, Update

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from .local import Summed
    from .pool import Pool
    from .schedule import Line

__all__ = ["NativeCohort", "make_cohort"]

Tensor = torch.Tensor


class NativeCohort:
    """The native code of one width of mini-batches.

    Attributes:
        update: the functions, of one client.
        weighted: whether rows carry weights.
        seconds: time to trace and to compile.
    """

    def __init__(self, update: Update, weighted: bool, code: NativeCode, columns: dict[str, list[Column]]) -> None:
        self.update = update
        self.weighted = weighted
        self.seconds = code.seconds
        self._code = code
        self._columns = columns
        self._local = [torch.empty(c.example.shape, dtype=c.example.dtype) for c in columns["local"]]

    def add(
        self,
        made: Summed,
        at: NDArray[np.int64],
        pool: Pool,
        line: Line,
        tensors: tuple[list[Tensor], list[Tensor]],
        keys: NDArray[np.uint64],
    ) -> None:
        """Train clients and add them to the sums.

        Args:
            made: the cohort's sums.
            at: the clients' positions in the cohort.
            pool: the rows.
            line: the clients' mini-batches.
            tensors: leaves of the broadcast, and of the private states, stacked.
            keys: one a client.
        """
        count, dtype = len(at), self.update.network.dtype
        sent, private = tensors
        steps, examples = (torch.from_numpy(n).to(dtype) for n in (line.steps, line.sizes))
        data = [] if line.weights is None else [torch.from_numpy(line.weights)]
        draws = self._code.used[self._number("seeds")]
        seeds = torch.from_numpy(line.seeds(keys)) if draws else torch.zeros(2, dtype=torch.int64)
        sums = [torch.zeros(c.example.shape, dtype=c.example.dtype) for c in self._columns["sums"]]
        out = [torch.zeros((count, *c.example.shape), dtype=c.example.dtype) for c in self._columns["out"]]
        held = [
            *sent, *self.update.network.frozen.values(), *private, pool.x, pool.y, *data, seeds,
            *self._local, examples, steps, torch.zeros(count), *sums, *out,
        ]  # fmt: skip
        held = [tensor.contiguous() for tensor in held]
        self._code(held, torch.from_numpy(line.rows), torch.from_numpy(line.begins))
        flags = torch.stack(out[: 1 + len(self.update.kinds)], 1)
        columns = [line.steps, *(tensor.numpy() for tensor in (flags, *out[1 + len(self.update.kinds) :]))]
        hand_over(made, self.update, at, columns, sums)

    def _number(self, name: str) -> int:
        before = 0
        for known, columns in self._columns.items():
            if known == name:
                break
            before += len(columns)
        return before


def make_cohort(
    update: Update, sent: Sequence[Tensor], private: Sequence[Tensor], pool: Pool, width: int, weighted: bool
) -> NativeCohort | None:
    """Translate and compile an update for mini-batches of one width, or return ``None`` where that cannot be done or would not pay.

    Args:
        update: the functions, of one client.
        sent: leaves of the broadcast.
        private: leaves of one client's private state.
        pool: rows like those to come.
        width: examples of a mini-batch.
        weighted: whether rows carry weights.

    Raises:
        CompositionError: the reply cannot be added up.
    """
    began = time.perf_counter()
    network = update.network
    batch = [column.new_empty(1, width, *column.shape[1:]) for column in (pool.x, pool.y)]
    start = simple_graph(update.start, [*sent, *private])
    local = _results(start)
    scalar = torch.zeros((), dtype=network.dtype)
    columns: dict[str, list[Column]] = {
        "sent": _columns(sent, "job"),
        "frozen": _columns(network.frozen.values(), "job"),
        "private": _columns(private, "client"),
        "pool": _columns(batch, "row"),
        "weights": _columns([torch.zeros(1, width)] if weighted else [], "step"),
        "seeds": _columns([torch.zeros(1, 2, dtype=torch.int64)], "step"),
        "local": _columns(local, "job"),
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
    columns["sums"], columns["out"] = _columns(results[:count], "job"), _columns(results[count:], "client")
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


def _columns(examples: Any, per: str) -> list[Column]:
    return [Column(example, per) for example in examples]


def _results(graph: torch.fx.GraphModule) -> list[Tensor]:
    """Examples of what a graph gives."""
    outputs: Any = graph.graph.find_nodes(op="output")[0].args[0]
    return [torch.empty(node.meta["val"].shape, dtype=node.meta["val"].dtype) for node in outputs]


def _after(update: Update) -> int:
    """Results of `_ending` that follow the sums: flags, the loss, weights, the state."""
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
