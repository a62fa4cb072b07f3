"""Programs for blocks of one shape, made on first use and kept."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from atoll.heap import keep_freed_memory

from ..images.replace import replace_layers
from ..native import NativeSteps, make_function, make_native
from ..tracing.ahead import halves_of
from ..tracing.compiler import Program, make_program
from .feed import Feed
from .update import StepForm, Update

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .course import BlockCourse
    from .pool import Pool
    from .schedule import BatchSchedule

__all__ = ["Block", "TrainedBlock"]

Tensor = torch.Tensor


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
        unroll: steps in one call of a program.
        compiled: whether programs are compiled.
        native: whether steps run in native code if possible.
        ahead: whether what follows from a step's rows and keys alone does, if steps do not.
        layers: whether layers of images do, if steps do not.
        trimmed: whether rows that only pad a mini-batch are left out.
        channels_last: whether images and their filters keep the channel as the innermost axis.
        programs: the programs made so far.
    """

    update: Update
    unroll: int
    compiled: bool
    channels_last: bool = False
    native: bool = False
    ahead: bool = False
    layers: bool = False
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
            keep_freed_memory()  # a step frees what the next one takes: its pages would be cleared each time
        self.feed = Feed(self.update.network, self.update.clients, self.unroll, draws, trimmed=self.trimmed)

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
        local = [_settled(leaf) for leaf in local]  # a block of clients without examples takes no step
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
        if not self.native or self.update.network.device.type != "cpu" or self.feed.cut(plan):
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
                local = [_restrided(leaf, stride) for leaf, stride in zip(local, strides, strict=True)]
            if program is not before:
                self._borrowed &= {i for i, leaf in enumerate(local) if leaf.data_ptr() == given[i].data_ptr()}
            losses += loss
        return local

    def _tell(self, program: Program, form: StepForm, data: list[Tensor]) -> None:
        """Tell native layers which rows of a step's mini-batch are real."""
        if program.live is None:
            return
        width = data[0].shape[1]
        padded = form.weighted and form.unroll == 1 and not self.update.clients
        program.live.width = width if padded else -1
        program.live.rows = int(data[len(self.update.columns)].sum()) if padded else -1

    def program(
        self, name: Any, fn: Callable[..., Sequence[Tensor]], inputs: list[Tensor], owned: set[int] | None = None
    ) -> Program:
        """Return the program of a name, made for these inputs on first use."""
        found = self.programs.get(name)
        if found is None:
            # Start and finish are a few operations per block: not worth a compilation.
            compiled = self.compiled and name not in ("start", "finish")
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
        examples = [_settled(leaf) for leaf in local]
        made = self.program(name, self.update.steps(form), [*examples, *rest], owned=set(range(len(local))))
        if self.layers and not made.compiled:
            made.live = replace_layers(made.graph)
            made.rewritten()
        if self.ahead and not made.compiled:
            self._split(made, len(local) + self.update.first_column)
        return made

    def _split(self, program: Program, first: int) -> None:
        """Run what follows from the rows and keys alone, such as views, in native code, if there is enough of it."""
        halves = halves_of(program.graph, first)
        ahead = None if halves is None else make_function(halves[0])
        if halves is None or ahead is None:
            return
        program.split(ahead, first, halves[1])
        for what, seconds in ahead.seconds.items():
            self.seconds[what] += seconds

    def _take(self, program: Program, local: list[Tensor]) -> list[Tensor]:
        """Copy tensors that the program overwrites, and that others may hold, into our own buffers; lay out the rest densely."""
        taken: list[Tensor] = []
        for i, leaf in enumerate(local):
            if i not in program.overwrites or i not in self._borrowed:
                taken.append(_settled(leaf))
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
                leaf if dense else _settled(leaf),
                memory_format=torch.contiguous_format if dense else torch.preserve_format,
            )
        return own


def _restrided(tensor: Tensor, stride: tuple[int, ...]) -> Tensor:
    """Return the tensor with the strides that the next call expects: generated code does not check them."""
    if tensor.stride() == stride:
        return tensor
    made = torch.empty_strided(tensor.size(), stride, dtype=tensor.dtype, device=tensor.device)
    return made.copy_(tensor)


def _settled(tensor: Tensor) -> Tensor:
    """Return the tensor in a dense layout of its own: a broadcast axis is written out, image filters keep channels last."""
    if tensor.is_contiguous() or (tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last)):
        return tensor
    return tensor.contiguous()
