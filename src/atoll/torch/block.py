"""Programs for blocks of one shape, made when first needed and kept."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from .compiler import Program, make_program
from .native import NativeSteps, make_native
from .update import StepForm, Update

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from .pool import Pool
    from .schedule import Schedule

__all__ = ["Block", "Trained"]

Tensor = torch.Tensor


@dataclass
class Trained:
    """A block after its last step.

    Attributes:
        local: leaves of the local state, with a client axis unless the block is one client without axis.
        examples: number of examples, one a client.
        steps: number of steps, one a client.
        losses: mean loss over the steps, one a client.
    """

    local: list[Tensor]
    examples: Tensor
    steps: Tensor
    losses: Tensor


@dataclass
class Block:
    """Everything needed to train blocks of one shape.

    Attributes:
        update: the functions.
        width: examples in a mini-batch.
        unroll: steps in one call of a program.
        compiled: whether programs are compiled.
        channels_last: whether images and their filters keep the channel as the innermost axis.
        programs: what was made so far.
    """

    update: Update
    width: int
    unroll: int
    compiled: bool
    channels_last: bool = False
    programs: dict[Any, Program] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=lambda: {"trace": 0.0, "compile": 0.0})
    templates: list[Tensor] | None = None
    valid: dict[int, Tensor] = field(default_factory=dict)
    _rows: dict[str, Tensor] = field(default_factory=dict)
    _own: dict[int, Tensor] = field(default_factory=dict)
    _native: dict[Any, NativeSteps | None] = field(default_factory=dict)

    @torch.no_grad()
    def train(
        self,
        pool: Pool,
        plan: Schedule,
        sent: Sequence[Tensor],
        private: Sequence[Tensor],
    ) -> Trained:
        """Run ``start`` and all steps.

        Args:
            pool: the rows.
            plan: mini-batches, one slot a client of the block.
            sent: leaves of the broadcast.
            private: leaves of the private states, stacked.
        """
        device, dtype = self.update.network.device, self.update.network.dtype
        clients = self.update.clients
        local = list(self.program("start", self.update.start, [*sent, *private])([*sent, *private]))
        made = self._all_steps(pool, plan, local, sent) or self._step_by_step(pool, plan, local, sent)
        local, losses = made
        counts = torch.from_numpy(plan.steps).to(device=device, dtype=dtype)
        examples = torch.from_numpy(plan.sizes).to(device=device, dtype=dtype)
        if not clients:
            counts, examples = counts[0], examples[0]
        return Trained(local, examples, counts, losses / counts.clamp(min=1.0))

    def _all_steps(
        self, pool: Pool, plan: Schedule, local: list[Tensor], sent: Sequence[Tensor]
    ) -> tuple[list[Tensor], Tensor] | None:
        """Run all steps in one call of native code, if there is such for them."""
        if not self.compiled or self.update.network.device.type != "cpu" or self._cut(plan):
            return None
        device, dtype = self.update.network.device, self.update.network.dtype
        rows = torch.from_numpy(plan.rows)
        data = [] if plan.weights is None else [torch.from_numpy(plan.weights).to(device=device, dtype=dtype)]
        data.append(torch.from_numpy(plan.seeds))
        shared = [*sent, *self.update.network.frozen.values()]
        clients = self.update.clients
        form = (plan.weights is not None, rows.shape[2], pool.x.shape[1:], pool.y.shape[1:])
        if form not in self._native:
            batch = [column.new_empty(1, rows.shape[2], *column.shape[1:]) for column in (pool.x, pool.y)]
            examples = [leaf[0] for leaf in local] if clients else local
            step = self._alone().steps(StepForm(1, plan.weights is not None))
            self._native[form] = found = make_native(step, examples, shared, batch, [c[0, :1] for c in data])
            for what, seconds in (found.seconds if found else {}).items():
                self.seconds[what] += seconds
        native = self._native[form]
        if native is None:
            return None
        own = [self._buffer(i, leaf, dense=True).copy_(leaf) for i, leaf in enumerate(local)]
        active = None if plan.active is None else torch.from_numpy(plan.active)
        losses = native(own, shared, [pool.x, pool.y], rows, data, active)
        return own, losses if clients else losses[0]

    def _alone(self) -> Update:
        """The update of one client without a client axis."""
        update = self.update
        if not update.clients:
            return update
        alone = Update(update.network, update.algorithm, update.broadcast, update.client, 0)
        alone.local = update.local
        return alone

    def _step_by_step(
        self, pool: Pool, plan: Schedule, local: list[Tensor], sent: Sequence[Tensor]
    ) -> tuple[list[Tensor], Tensor]:
        """Run a few steps at a time."""
        network = self.update.network
        frozen = list(network.frozen.values())
        losses = torch.zeros(self.update.clients or (), dtype=network.dtype, device=network.device)
        first = True
        for form, data in self._windows(pool, plan):
            rest = [*sent, *frozen, *data]
            program = self._step_program(form, local, rest)
            if first:
                local, first = self._take(program, local), False
            strides = [leaf.stride() for leaf in local] if program.compiled else None
            *local, loss = program([*local, *rest])
            if strides is not None:
                local = [_restrided(leaf, stride) for leaf, stride in zip(local, strides, strict=True)]
            losses = losses + loss
        return local, losses

    def program(
        self, name: Any, fn: Callable[..., Sequence[Tensor]], inputs: list[Tensor], owned: set[int] | None = None
    ) -> Program:
        """The program of a name, made for these inputs when it is first asked for."""
        found = self.programs.get(name)
        if found is None:
            # Starting and finishing are a few operations a block: not worth a compilation.
            compiled = self.compiled and name not in ("start", "finish")
            found = make_program(fn, inputs, compiled=compiled, owned=owned)
            self.programs[name] = found
            for what, seconds in found.seconds.items():
                self.seconds[what] += seconds
        return found

    def _step_program(self, form: StepForm, local: list[Tensor], rest: list[Tensor]) -> Program:
        x = rest[self.update.broadcast.count + len(self.update.frozen_names)]
        name = (form, tuple(x.shape), x.stride())
        if name in self.programs:
            return self.programs[name]
        # Contiguous stand-ins: what the program will get from its own buffers.
        examples = [_settled(leaf) for leaf in local]
        return self.program(name, self.update.steps(form), [*examples, *rest], owned=set(range(len(local))))

    def _take(self, program: Program, local: list[Tensor]) -> list[Tensor]:
        """Copy what the program will overwrite into buffers of our own; lay out the rest densely."""
        taken: list[Tensor] = []
        for i, leaf in enumerate(local):
            if i not in program.overwrites:
                taken.append(_settled(leaf))
                continue
            taken.append(self._buffer(i, leaf).copy_(leaf))
        return taken

    def _buffer(self, i: int, leaf: Tensor, *, dense: bool = False) -> Tensor:
        """Memory of our own for a leaf of the local state."""
        own = self._own.get(i)
        if own is None or own.shape != leaf.shape or (dense and not own.is_contiguous()):
            own = self._own[i] = torch.empty_like(
                leaf if dense else _settled(leaf),
                memory_format=torch.contiguous_format if dense else torch.preserve_format,
            )
        return own

    def _cut(self, plan: Schedule) -> bool:
        """Whether padded rows must be cut off, because the loss gives means only."""
        return plan.weights is not None and self.update.network.loss.each is None

    def _columns(self, pool: Pool, plan: Schedule) -> list[Any]:
        """``[x, y, (weights), active or None, seeds]`` with a client axis and an axis of steps."""
        device, dtype = self.update.network.device, self.update.network.dtype
        rows = torch.from_numpy(plan.rows).to(device)
        data: list[Any] = [self._fetch("x", pool.x, rows), self._fetch("y", pool.y, rows)]
        if plan.weights is not None and not self._cut(plan):
            data.append(torch.from_numpy(plan.weights).to(device=device, dtype=dtype))
        active = None if plan.active is None else torch.from_numpy(plan.active).to(device)
        return [*data, active, torch.from_numpy(plan.seeds).to(device)]

    def _windows(self, pool: Pool, plan: Schedule) -> Iterator[tuple[StepForm, list[Tensor]]]:
        """Yield ``(form, [x, y, weights, active, seeds])`` for runs of steps."""
        cut = self._cut(plan)
        data = [column for column in self._columns(pool, plan) if column is not None]
        if not self.update.clients:
            data = [column[0] for column in data]
        axis = 1 if self.update.clients else 0
        total, begin = plan.rows.shape[1], 0
        while begin < total:
            size = self.unroll if total - begin >= self.unroll and not cut else 1
            window = [column.narrow(axis, begin, size) for column in data]
            if cut and plan.weights is not None:  # a loss of means: the real rows only, one step a call
                real = int(plan.weights[0, begin].sum())
                window = [*(column[:, :real] for column in window[:2]), *window[2:]]
            yield StepForm(size, plan.weights is not None and not cut, plan.active is not None), window
            begin += size

    def _fetch(self, name: str, column: Tensor, rows: Tensor) -> Tensor:
        """``column[rows]`` in a buffer that is used again; images keep their memory order."""
        flat = rows.reshape(-1)
        images = column.dim() == 4 and not column.is_contiguous()
        source = column.permute(0, 2, 3, 1) if images else column
        shape = (len(flat), *source.shape[1:])
        kept = self._rows.get(name)
        if kept is None or kept.shape != shape or kept.dtype != column.dtype:
            kept = self._rows[name] = source.new_empty(shape)
        torch.index_select(source, 0, flat, out=kept)
        made = kept.view(*rows.shape, *shape[1:])
        return made.permute(0, 1, 2, 5, 3, 4) if images else made


def _restrided(tensor: Tensor, stride: tuple[int, ...]) -> Tensor:
    """The tensor with the strides that the next call expects: generated code does not look at them."""
    if tensor.stride() == stride:
        return tensor
    made = torch.empty_strided(tensor.size(), stride, dtype=tensor.dtype, device=tensor.device)
    return made.copy_(tensor)


def _settled(tensor: Tensor) -> Tensor:
    """The tensor in a dense layout of its own: a broadcast axis is written out, image filters keep channels last."""
    if tensor.is_contiguous() or (tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last)):
        return tensor
    return tensor.contiguous()
