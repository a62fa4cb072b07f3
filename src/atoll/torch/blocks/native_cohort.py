"""The native code of a runner: made when a cohort first needs it, cached, and used for every client that fits."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from atoll.core.facets import facet
from atoll.learn.algorithm import Stateful

from ..client import without_buffers
from ..leaves import flatten
from ..native import MemoryLayout, NativeColumn, compile, enabled, simple_graph, small_enough  # noqa: A004
from ..native.orders import Draws, readable
from .course import fit
from .schedule import LabelledRows
from .sums import hand_over, summands
from .update import StepForm, Update, sent_leaves
from .update import place as placed

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.core.algebra.tree import Tree
    from atoll.learn.algorithm import Algorithm

    from ..native.code import NativeCode
    from ..network import FunctionalModule
    from .choices import Choices
    from .pool import CohortSums, Form, Pool, PoolPlace, Privates

__all__ = ["NativeCohort", "NativeSteps", "Natives", "make_cohort", "make_native"]

# A whole cohort in one call of native code: every client's start, steps and finish, added up in place.
#
# One client's local state stays in the cache from its first step to the sum; only sums, a few numbers and the new private
# state of each client are written to memory.


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
_PARTS = 16  # the most parts that clients are cut into: enough to share among the cores of a desktop, and each has sums of its own to add up
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

    layout = MemoryLayout(
        [column for some in columns.values() for column in some],
        {
            "start": of("sent", "private"),
            "step": of("local", "sent", "frozen", "pool", "weights", "seeds"),
            "finish": of(*ends),
        },
        {
            "start": [(i, "=") for i in of("local")],
            "step": [*((i, "=") for i in of("local")), *((i, "+=") for i in of("loss"))],
            "finish": [*((i, "+=") for i in of("sums")), *((i, "=") for i in of("out"))],
        },
    )
    code = compile({"start": start, "step": step, "finish": finish}, layout)
    return None if code is None else NativeCohort(update, weighted, code.time_from(began), columns)


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


class Natives:
    """Native code for cohorts, by form.

    Args:
        network: the model and its loss.
        algorithm: the local update.

    Attributes:
        seconds: spent on tracing and compiling.
    """

    def __init__(self, network: FunctionalModule, algorithm: Algorithm) -> None:
        self._network = network
        self._algorithm = algorithm
        self._made: dict[Any, NativeCohort | None] = {}
        # Comparing structures is cheaper than writing them out.
        self._last: tuple[Any, NativeCohort | None] | None = None
        self.seconds = {"trace": 0.0, "compile": 0.0}

    @property
    def ready(self) -> bool:
        """Tell whether cohorts so far ran in native code."""
        return any(made is not None for made in self._made.values())

    def possible(self, chosen: Choices) -> bool:
        """Tell whether native code is wanted, and the loss and device support it."""
        if not enabled():
            return False
        network = self._network
        here = network.device.type == "cpu" and network.dtype == torch.float32
        return "steps" in chosen.code and here and network.padded

    def add_up(
        self,
        made: CohortSums,
        chosen: Choices,
        positions: NDArray[np.int64],
        pool: Pool,
        broadcast: Tree,
        states: Privates,
        keys: NDArray[np.uint64],
    ) -> NDArray[np.int64] | None:
        """Train clients and add them to the sums; return the clients left for other programs, ``None`` for all."""
        if not self.possible(chosen) or LabelledRows.of(pool, self._algorithm) is not None:
            return None  # it draws plain mini-batches
        algorithm, place = self._algorithm, pool.place
        draws = Draws.of(pool.work(algorithm), place, pool.sizes, keys)
        sent, sent_layout = flatten(without_buffers(broadcast))
        sent = self._place_leaves(sent)
        left: list[NDArray[np.int64]] = []
        whole = algorithm.batch_size is None
        for width, members in _by_width(draws.batches, chosen, whole):
            some = draws.part(members)
            own = states if some is draws else states[members]
            private, layout = own.leaves(lambda: facet(algorithm, Stateful).client_init(broadcast["params"]))
            stacked = self._place_leaves(private)
            kind = (width, chosen.shapes.uneven or some.partial(width))
            code = self._code(kind, pool.form, (sent, sent_layout), (stacked, layout)) if width else None
            if code is None:
                left.append(members)
            else:
                code.add(made, positions[members], place, some, (sent, stacked), chosen.threads)
        if not left:
            return np.zeros(0, np.int64)
        rest = np.sort(np.concatenate(left))
        return None if len(rest) == len(positions) else rest

    def warm(self, chosen: Choices, pool: Pool, broadcast: Tree, states: Privates) -> None:
        """Make the code of all widths that unequal clients can need."""
        if not self.possible(chosen):
            return
        sent = sent_leaves(self._network, broadcast)
        private = states.leaves(lambda: facet(self._algorithm, Stateful).client_init(broadcast["params"]))
        for width in chosen.shapes.widths or ():
            self._code((width, True), pool.form, sent, private)

    def _place_leaves(self, leaves: list[Any]) -> list[Any]:
        """Return leaves as native code reads them; suitable leaves stay as they are."""
        return [leaf if readable(leaf) else _contiguous(self._network, leaf) for leaf in leaves]

    def _code(self, kind: tuple[int, bool], form: Form, sent: Any, private: Any) -> NativeCohort | None:
        """Return the code for a width and form of state, made on first use."""
        wanted = (kind, form, sent[1], private[1])
        if self._last is not None and self._last[0] == wanted:
            return self._last[1]
        key = (kind, form, sent[1].key, private[1].key)
        if key not in self._made:
            self._made[key] = self._make(kind, form, sent, private)
        self._last = (wanted, self._made[key])
        return self._made[key]

    def _make(self, kind: tuple[int, bool], form: Form, sent: Any, private: Any) -> NativeCohort | None:
        network, (width, weighted) = self._network, kind
        names = tuple(name for name, _, _ in form)
        update = Update(network, self._algorithm, sent[1], private[1], 0, names)
        given, own = ([placed(network, leaf) for leaf in leaves] for leaves in (sent[0], private[0]))
        found = make_cohort(update, given, [leaf[0] for leaf in own], form, width, weighted)
        for what, seconds in (found.seconds if found else {}).items():
            self.seconds[what] += seconds
        return found


def _contiguous(network: FunctionalModule, leaf: Any) -> Any:
    """Return a leaf as an array or a tensor that native code reads."""
    return np.array(leaf, np.float32) if type(leaf) is float else placed(network, leaf).contiguous()


def _by_width(natural: NDArray[np.int64], chosen: Choices, whole: bool) -> list[tuple[int, NDArray[np.int64]]]:
    """Return clients by the width of the code that they fit into, 0 for none; ``whole`` if a batch is all of a client's rows."""
    kinds = np.unique(natural[natural > 0]) if len(natural) and natural.min() < natural.max() else natural[:1]
    if len(kinds) == 1 and kinds[0] and (chosen.shapes.widths is None or int(kinds[0]) in chosen.shapes.widths):
        return [(int(kinds[0]), np.arange(len(natural)))]
    known = {int(n): fit(max(1, int(n)), chosen) or whole * _wider(int(n)) for n in np.unique(natural)}
    widths = np.array([known[n] for n in natural.tolist()])
    return [(int(w), np.flatnonzero(widths == w)) for w in np.unique(widths)]


def _wider(natural: int) -> int:
    """Return the next of 256, 1024 and 4096, 0 beyond: clients run one by one, so a wide batch takes little room."""
    return next((width for width in (256, 1024, 4096) if natural <= width), 0)


# The steps of the clients of one block in one call, for algorithms whose start and finish PyTorch runs.


class NativeSteps:
    """All local steps of a block of clients."""

    def __init__(self, code: NativeCode) -> None:
        self._code = code
        self.seconds = code.seconds

    def __call__(
        self,
        local: list[Tensor],
        shared: list[Tensor],
        pool: list[Tensor],
        rows: Tensor,
        data: list[Tensor],
        active: Tensor | None,
    ) -> Tensor:
        """Train a block in place.

        Args:
            local: leaves of the local states with a leading client axis, contiguous; overwritten.
            shared: leaves that all clients share: the broadcast and frozen parameters.
            pool: columns of rows, of which mini-batches are made.
            rows: their numbers, ``(clients, steps, batch)``.
            data: further columns, ``(clients, steps, ...)``.
            active: whether a client takes a step, ``(clients, steps)``; ``None`` when all take all.

        Returns:
            The sum of the losses of each client.
        """
        clients, steps = rows.shape[:2]
        losses = torch.zeros(clients, dtype=torch.float32)
        held: list[Tensor | None] = [*local, *(t.contiguous() for t in (*shared, *pool, *data)), losses]
        begins = np.arange(clients + 1) * steps
        self._code(held, begins, rows.contiguous(), None if active is None else active.contiguous())
        return losses


def make_native(
    step: Callable[..., Sequence[Tensor]],
    local: list[Tensor],
    shared: list[Tensor],
    batch: list[Tensor],
    data: list[Tensor],
) -> NativeSteps | None:
    """Translate and compile one client's step, or return ``None`` if that is impossible or would not pay.

    Args:
        step: ``local, shared, batch, data -> local, loss`` of one client and one step.
        local: examples of one client's leaves.
        shared: examples of what all clients share.
        batch: examples of the columns that are taken from a pool of rows, with an axis of one step: ``(1, batch,
            ...)``.
        data: examples of one step's further columns, with an axis of one step.
    """
    kinds = ((local, "client"), (shared, "job"), (batch, "row"), (data, "step"), ([torch.zeros(())], "client"))
    columns = [NativeColumn(example, per) for examples, per in kinds for example in examples]
    if not enabled() or not small_enough(columns) or any(t.dtype != torch.float32 for t in local):
        return None
    began = time.perf_counter()
    inputs, last = [*range(len(columns) - 1)], len(columns) - 1
    graph = simple_graph(step, [columns[i].example for i in inputs], len(local))
    writes = [*((i, "=") for i in range(len(local))), (last, "+=")]
    code = compile({"step": graph}, MemoryLayout(columns, {"step": inputs}, {"step": writes}))
    return None if code is None else NativeSteps(code.time_from(began))
