"""Programs for blocks of one shape, made on first use and kept."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from atoll.heap import keep_freed_memory

from ..native import Beside, compile  # noqa: A004
from ..tracing.compiler import Program, make_program
from .native_cohort import NativeSteps, make_native
from .update import StepForm, Update

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from ..network import FunctionalModule
    from .course import BlockCourse
    from .pool import Pool
    from .schedule import BatchSchedule

__all__ = ["Block", "Feed", "TrainedBlock"]

# Mini-batches as tensors: rows of the pool gathered into reused buffers, cut into windows of a few steps.


Tensor = torch.Tensor
_FETCH = 8 << 20  # bytes of rows laid out at once


class Feed:
    """Gathers mini-batches for blocks.

    Args:
        network: model and loss.
        clients: clients in a block; 0 is one client without a client axis.
        unroll: steps in one call of a program.
        draws: how often a step draws noise.
        trimmed: whether rows that only pad a mini-batch are left out.
    """

    def __init__(
        self, network: FunctionalModule, clients: int, unroll: int, draws: int = 0, *, trimmed: bool = False
    ) -> None:
        self.network = network
        self.clients = clients
        self.unroll = unroll
        self.draws = draws
        self.trimmed = trimmed and not clients
        self._drawn: NDArray[np.float32] | None = None
        self._rows: dict[str, Tensor] = {}

    def cut(self, plan: BatchSchedule) -> bool:
        """Tell whether padded rows are cut off: because the loss only gives means, or to save their work."""
        return plan.weights is not None and (self.trimmed or not self.network.padded) and not plan.secrets

    def chunks(self, pool: Pool, plan: BatchSchedule, unroll: int) -> Iterator[tuple[int, int]]:
        """Yield ``(begin, end)`` of runs of steps whose rows are few enough to gather at once; all but the last are whole windows."""
        slots, total, width = plan.rows.shape
        size = pool.x[:1].numel() * pool.x.element_size() * slots * width * unroll
        chunk = max(1, _FETCH // max(1, size)) * unroll
        for begin in range(0, total, chunk):
            yield begin, min(begin + chunk, total)

    def windows(self, pool: Pool, course: BlockCourse, plan: BatchSchedule) -> Iterator[tuple[StepForm, list[Tensor]]]:
        """Yield ``(form, [columns, weights, active, noise, seeds])`` for runs of steps, each laid out densely."""
        unroll = 1 if self.cut(plan) else self.unroll
        for begin, end in self.chunks(pool, plan, unroll):
            whole = begin + (end - begin) // unroll * unroll
            for at, until, size in ((begin, whole, unroll), (whole, end, 1)):
                if at < until:
                    yield from self._stretch(pool, course, plan, (at, until), size)

    def _stretch(
        self, pool: Pool, course: BlockCourse, plan: BatchSchedule, steps: tuple[int, int], unroll: int
    ) -> Iterator[tuple[StepForm, list[Tensor]]]:
        """Yield the windows of some steps, gathered at once."""
        begin, end = steps
        count, cut = (end - begin) // unroll, self.cut(plan)

        def lay(array: Any) -> Any:
            shape = (len(array), count, unroll, *array.shape[2:])
            return np.ascontiguousarray(array[:, begin:end].reshape(shape).swapaxes(0, 1))

        weights, active = (None if mask is None else lay(mask) for mask in (plan.weights, plan.active))
        columns = self._gather(pool, lay(plan.rows), weights, active, lay(plan.seeds), cut)
        columns = [column for column in columns if column is not None]
        if not self.clients:
            columns = [column[:, 0] for column in columns]
        form = StepForm(unroll, weights is not None and not cut, active is not None, bool(plan.secrets))
        bare = np.zeros(count, dtype=bool)
        if course.bare and unroll == self.unroll and not cut:
            bare = _all(weights, count) & _all(active, count)
        for k in range(count):
            window = [column[k] for column in columns]
            if bare[k]:
                window = [*window[: len(pool.columns)], window[-1]]
            if cut and weights is not None:  # the real rows only, one step per call
                real = int(weights[k].sum())
                own = len(pool.columns)
                window[:own] = [column[:, :real] for column in window[:own]]
            if plan.secrets:
                noise = self.noise(plan, begin + k * unroll, unroll)
                window.insert(-1, noise if self.clients else noise[0])
            yield StepForm(unroll) if bare[k] else form, window

    def _gather(self, pool: Pool, rows: Any, weights: Any, active: Any, seeds: Any, cut: bool) -> list[Any]:
        device = self.network.device
        index = torch.from_numpy(rows).to(device)
        data: list[Any] = [self._fetch(name, column, index) for name, column in pool.columns.items()]
        if weights is not None and not cut:
            data.append(torch.from_numpy(weights).to(device=device, dtype=self.network.dtype))
        awake = None if active is None else torch.from_numpy(active).to(device)
        return [*data, awake, torch.from_numpy(seeds).to(device)]

    def noise(self, plan: BatchSchedule, begin: int, unroll: int) -> Tensor:
        """Return the noise of a window, ``(clients, unroll, draws, parameters)``, in a reused buffer: zeros where a client takes no step."""
        shape = (len(plan.secrets), unroll, self.draws, self.network.size)
        if self._drawn is None or self._drawn.shape != shape:
            self._drawn = np.zeros(shape, dtype=np.float32)
        for i, own in enumerate(plan.secrets):
            for u in range(unroll):
                awake = own is not None and (plan.active is None or plan.active[i, begin + u])
                for d in range(self.draws):
                    if own is None or not awake:
                        self._drawn[i, u, d] = 0.0
                    else:
                        own.normal(self.network.size, self._drawn[i, u, d])
        return torch.from_numpy(self._drawn).to(device=self.network.device, dtype=self.network.dtype)

    def _fetch(self, name: str, column: Tensor, rows: Tensor) -> Tensor:
        """Return ``column[rows]`` in a reused buffer; images keep their memory order."""
        flat = rows.reshape(-1)
        images = column.dim() == 4 and not column.is_contiguous()
        source = column.permute(0, 2, 3, 1) if images else column
        kept = self._rows.get(name)
        if kept is None or len(kept) < len(flat) or kept.shape[1:] != source.shape[1:] or kept.dtype != column.dtype:
            kept = self._rows[name] = source.new_empty((len(flat), *source.shape[1:]))
        kept = kept[: len(flat)]
        torch.index_select(source, 0, flat, out=kept)
        made = kept.view(*rows.shape, *source.shape[1:])
        return made.movedim(-1, -3) if images else made


def _all(mask: Any, count: int) -> Any:
    """Tell for each window whether nothing is masked."""
    return np.ones(count, dtype=bool) if mask is None else np.asarray(mask, dtype=bool).reshape(count, -1).all(axis=1)


@dataclass
class TrainedBlock:
    """A block after its last step.

    Attributes:
        local: leaves of the local state, with a client axis, unless the block is one client without it.
        examples: number of examples of each client.
        steps: number of steps of each client.
        losses: mean loss of each client over its steps.
    """

    local: list[Tensor]
    examples: Tensor
    steps: Tensor
    losses: Tensor


@dataclass
class Block:
    """Everything needed to train blocks of one size.

    Attributes:
        update: the functions.
        code: what runs as machine code; see `Choices`.
        unroll: steps in one call of a program.
        trimmed: whether rows that only pad a mini-batch are left out.
        programs: the programs made so far.
    """

    update: Update
    code: tuple[str, ...]
    unroll: int
    trimmed: bool = False
    programs: dict[Any, Program] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=lambda: {"trace": 0.0, "compile": 0.0})
    templates: list[Tensor] | None = None
    valid: dict[int, Tensor] = field(default_factory=dict)
    _own: dict[tuple[int, int], Tensor] = field(default_factory=dict)
    _borrowed: set[int] = field(default_factory=set)
    _native: dict[Any, NativeSteps | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        plan = self.update.algorithm.example_steps
        draws = 0 if plan is None else plan.draws
        if not self.update.clients and self.update.network.device.type == "cpu":
            # A step frees what the next one takes, and the system would clear its pages each time: 1,300 of a ResNet's step, some 4 of 23 ms.
            keep_freed_memory()
        self.feed = Feed(self.update.network, self.update.clients, self.unroll, draws, trimmed=self.trimmed)

    @property
    def runs_natively(self) -> bool:
        """Tell whether native code takes all steps of a width."""
        return any(found is not None for found in self._native.values())

    @torch.no_grad()
    def train(
        self,
        pool: Pool,
        course: BlockCourse,
        sent: Sequence[Tensor],
        private: Sequence[Tensor],
    ) -> TrainedBlock:
        """Run ``start`` and all steps.

        Args:
            pool: the rows.
            course: mini-batches, one slot for each client of the block.
            sent: leaves of the broadcast.
            private: leaves of the private states, stacked.
        """
        device, dtype = self.update.network.device, self.update.network.dtype
        clients = self.update.clients
        local = list(self.program("start", self.update.start, [*sent, *private])([*sent, *private]))
        losses = torch.zeros(clients or (), dtype=dtype, device=device)
        left: list[list[Tensor]] = []
        self._borrowed = set(range(len(local)))
        for plan in course.pieces:
            slots = plan.rows.shape[0]
            if clients and slots < len(local[0]):
                # The clients after the last slot are done.
                left.append([leaf[slots:] for leaf in local])
                local = [leaf[:slots] for leaf in local]
            local = self._steps(pool, course, plan, local, sent, losses[:slots] if clients else losses)
        local = [_settle_tensor(leaf) for leaf in local]  # a block of clients without examples takes no step
        if left:
            local = [torch.cat([leaf, *(part[i] for part in left[::-1])]) for i, leaf in enumerate(local)]
        counts = torch.from_numpy(course.steps).to(device=device, dtype=dtype)
        examples = torch.from_numpy(course.sizes).to(device=device, dtype=dtype)
        if not clients:
            counts, examples = counts[0], examples[0]
        return TrainedBlock(local, examples, counts, losses / counts.clamp(min=1.0))

    def _steps(
        self,
        pool: Pool,
        course: BlockCourse,
        plan: BatchSchedule,
        local: list[Tensor],
        sent: Sequence[Tensor],
        losses: Tensor,
    ) -> list[Tensor]:
        """Run the steps of one rectangle and add up the losses."""
        if course.widths is not None and plan.rows.shape[2] not in course.widths:
            return self._without_program(pool, course, plan, local, sent, losses)
        made = self._all_steps(pool, plan, local, sent, losses)
        return self._step_by_step(pool, course, plan, local, sent, losses) if made is None else made

    def _all_steps(
        self, pool: Pool, plan: BatchSchedule, local: list[Tensor], sent: Sequence[Tensor], losses: Tensor
    ) -> list[Tensor] | None:
        """Run all steps in one call of native code, if there is any for them."""
        if "steps" not in self.code or self.update.network.device.type != "cpu" or self.feed.cut(plan):
            return None
        rows, network = torch.from_numpy(plan.rows), self.update.network
        data = [] if plan.weights is None else [torch.from_numpy(plan.weights).to(dtype=network.dtype)]
        if plan.secrets:
            data.append(torch.zeros(1, 1, self.feed.draws, network.size, dtype=network.dtype))
        data.append(torch.from_numpy(plan.seeds))
        shared = [*sent, *network.frozen.values()]
        native = self._native_steps(pool, plan, local, shared, data)
        if native is None:
            return None
        if plan.secrets:  # drawn once it is known that this code uses it
            data[-2] = self.feed.noise(plan, 0, plan.rows.shape[1])
        own = [self._buffer(i, leaf, dense=True).copy_(leaf) for i, leaf in enumerate(local)]
        active = None if plan.active is None else torch.from_numpy(plan.active)
        sums = native(own, shared, list(pool.columns.values()), rows, data, active)
        losses += sums if self.update.clients else sums[0]
        return own

    def _native_steps(
        self, pool: Pool, plan: BatchSchedule, local: list[Tensor], shared: list[Tensor], data: list[Tensor]
    ) -> NativeSteps | None:
        """Return the native code for this width, made on first use."""
        width = plan.rows.shape[2]
        form = (plan.weights is not None, width, pool.form, bool(plan.secrets))
        if form not in self._native:
            batch = [column.new_empty(1, width, *column.shape[1:]) for column in pool.columns.values()]
            examples = [leaf[0] for leaf in local] if self.update.clients else local
            step = self.update.alone().steps(StepForm(1, plan.weights is not None, noisy=bool(plan.secrets)))
            self._native[form] = found = make_native(step, examples, shared, batch, [c[0, :1] for c in data])
            for what, seconds in (found.seconds if found else {}).items():
                self.seconds[what] += seconds
        return self._native[form]

    def _without_program(
        self,
        pool: Pool,
        course: BlockCourse,
        plan: BatchSchedule,
        local: list[Tensor],
        sent: Sequence[Tensor],
        losses: Tensor,
    ) -> list[Tensor]:
        """Run the operations one by one: for a width that is too rare for a program."""
        frozen = list(self.update.network.frozen.values())
        for form, data in self.feed.windows(pool, course, plan):
            *local, loss = self.update.steps(form)(*local, *sent, *frozen, *data)
            losses += loss
        return local

    def _step_by_step(
        self,
        pool: Pool,
        course: BlockCourse,
        plan: BatchSchedule,
        local: list[Tensor],
        sent: Sequence[Tensor],
        losses: Tensor,
    ) -> list[Tensor]:
        """Run a few steps at a time."""
        frozen = list(self.update.network.frozen.values())
        program: Program | None = None
        for form, data in self.feed.windows(pool, course, plan):
            rest = [*sent, *frozen, *data]
            if self.feed.cut(plan) and course.widths is not None and data[0].shape[1] not in course.widths:
                *local, loss = self.update.steps(form)(*local, *rest)
                losses += loss
                continue
            before, program = program, self._step_program(form, local, rest)
            if program is not before:
                local = self._take(program, local)
            strides = [leaf.stride() for leaf in local] if program.compiled else None
            self._tell(program, form, data)
            given = local
            *local, loss = program([*local, *rest])
            if strides is not None:
                local = [_restride_tensor(leaf, stride) for leaf, stride in zip(local, strides, strict=True)]
            if program is not before:
                self._borrowed &= {i for i, leaf in enumerate(local) if leaf.data_ptr() == given[i].data_ptr()}
            losses += loss
        return local

    def _tell(self, program: Program, form: StepForm, data: list[Tensor]) -> None:
        """Tell native layers which rows of a step's mini-batch are real."""
        live = None if program.native is None else program.native.live
        if live is None:
            return
        width = data[0].shape[1]
        padded = form.weighted and form.unroll == 1 and not self.update.clients
        live.width = width if padded else -1
        live.rows = int(data[len(self.update.columns)].sum()) if padded else -1

    def program(
        self, name: Any, fn: Callable[..., Sequence[Tensor]], inputs: list[Tensor], owned: set[int] | None = None
    ) -> Program:
        """Return the program of a name, made for these inputs on first use."""
        found = self.programs.get(name)
        if found is None:
            # Start and finish are a few operations per block: not worth a compilation.
            compiled = "compiled" in self.code and name not in ("start", "finish")
            found = make_program(fn, inputs, compiled=compiled, owned=owned)
            self.programs[name] = found
            for what, seconds in found.seconds.items():
                self.seconds[what] += seconds
        return found

    def _step_program(self, form: StepForm, local: list[Tensor], rest: list[Tensor]) -> Program:
        x = rest[self.update.first_column]
        name = (form, tuple(x.shape), x.stride())
        if name in self.programs:
            return self.programs[name]
        # Contiguous stand-ins: what the program will get from its own buffers.
        examples = [_settle_tensor(leaf) for leaf in local]
        made = self.program(name, self.update.steps(form), [*examples, *rest], owned=set(range(len(local))))
        ahead, layers = "ahead" in self.code, "layers" in self.code
        if (ahead or layers) and not made.compiled:
            native = compile(made.graph, Beside(len(local) + self.update.first_column, ahead, layers))
            made.native = native
            for what, seconds in (native.seconds if native else {}).items():
                self.seconds[what] += seconds
        return made

    def _take(self, program: Program, local: list[Tensor]) -> list[Tensor]:
        """Copy tensors that the program overwrites, and that others may hold, into our own buffers; lay out the rest densely."""
        taken: list[Tensor] = []
        for i, leaf in enumerate(local):
            if i not in program.overwrites or i not in self._borrowed:
                taken.append(_settle_tensor(leaf))
                continue
            self._borrowed.remove(i)
            taken.append(self._buffer(i, leaf).copy_(leaf))
        return taken

    def _buffer(self, i: int, leaf: Tensor, *, dense: bool = False) -> Tensor:
        """Return our own memory for a leaf of the local state, one for each number of slots."""
        place = (i, len(leaf) if self.update.clients else 0)
        own = self._own.get(place)
        if own is None or own.shape != leaf.shape or (dense and not own.is_contiguous()):
            own = self._own[place] = torch.empty_like(
                leaf if dense else _settle_tensor(leaf),
                memory_format=torch.contiguous_format if dense else torch.preserve_format,
            )
        return own


def _restride_tensor(tensor: Tensor, stride: tuple[int, ...]) -> Tensor:
    """Return the tensor with the strides that the next call expects: generated code does not check them."""
    if tensor.stride() == stride:
        return tensor
    made = torch.empty_strided(tensor.size(), stride, dtype=tensor.dtype, device=tensor.device)
    return made.copy_(tensor)


def _settle_tensor(tensor: Tensor) -> Tensor:
    """Return the tensor in a dense layout of its own: a broadcast axis is written out, image filters keep channels last."""
    if tensor.is_contiguous() or (tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last)):
        return tensor
    return tensor.contiguous()
