"""Programs for blocks of one shape, made when first needed and kept."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

import torch

from .compiler import Program, make_program
from .keyed import key_halves
from .update import StepForm, Update

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

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
        unroll: steps in one call of a program.
        compiled: whether programs are compiled.
        channels_last: whether images and their filters keep the channel as the innermost axis.
        programs: what was made so far.
    """

    update: Update
    unroll: int
    compiled: bool
    channels_last: bool = False
    programs: dict[Any, Program] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=lambda: {"trace": 0.0, "compile": 0.0})
    _own: dict[int, Tensor] = field(default_factory=dict)

    def train(
        self,
        pool: Pool,
        plan: Schedule,
        keys: NDArray[np.uint64],
        sent: Sequence[Tensor],
        private: Sequence[Tensor],
        sizes: NDArray[np.int64],
    ) -> Trained:
        """Run ``start`` and all steps.

        Args:
            pool: the rows.
            plan: mini-batches, one slot a client of the block.
            keys: one key a slot.
            sent: leaves of the broadcast.
            private: leaves of the private states, stacked.
            sizes: examples, one a slot.
        """
        device, dtype = self.update.network.device, self.update.network.dtype
        clients = self.update.clients
        local = list(self.program("start", self.update.start, [*sent, *private])([*sent, *private]))
        frozen = list(self.update.network.frozen.values())
        halves = key_halves(keys if clients else keys[0], device)
        losses = torch.zeros(clients or (), dtype=dtype, device=device)
        first = True
        for begin, form, data in self._windows(pool, plan):
            rest = [*sent, *frozen, *data, halves, torch.tensor(begin, device=device)]
            program = self._step_program(form, local, rest)
            if first:
                local, first = self._take(program, local), False
            *local, loss = program([*local, *rest])
            losses = losses + loss
        counts = torch.from_numpy(plan.steps).to(device=device, dtype=dtype)
        examples = torch.from_numpy(sizes).to(device=device, dtype=dtype)
        if not clients:
            counts, examples = counts[0], examples[0]
        return Trained(local, examples, counts, losses / counts.clamp(min=1.0))

    def program(
        self, name: Any, fn: Callable[..., Sequence[Tensor]], inputs: list[Tensor], owned: set[int] | None = None
    ) -> Program:
        """The program of a name, made for these inputs when it is first asked for."""
        found = self.programs.get(name)
        if found is None:
            small = name == "start"
            found = make_program(fn, inputs, compiled=self.compiled and not small, owned=owned)
            self.programs[name] = found
            for what, seconds in found.seconds.items():
                self.seconds[what] += seconds
        return found

    def _step_program(self, form: StepForm, local: list[Tensor], rest: list[Tensor]) -> Program:
        width = rest[self.update.broadcast.count + len(self.update.frozen_names)].shape
        name = (form, tuple(width))
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
            own = self._own.get(i)
            if own is None or own.shape != leaf.shape:
                own = self._own[i] = torch.empty_like(_settled(leaf))
            taken.append(own.copy_(leaf))
        return taken

    def _windows(self, pool: Pool, plan: Schedule) -> Any:
        """Yield ``(first step, form, [x, y, weights, active])`` for runs of steps."""
        total = plan.rows.shape[1]
        weighted, masked = plan.weights is not None, plan.active is not None
        device = self.update.network.device
        rows = torch.from_numpy(plan.rows).to(device)
        extra = []
        if plan.weights is not None:
            extra.append(torch.from_numpy(plan.weights).to(device=device, dtype=self.update.network.dtype))
        if plan.active is not None:
            extra.append(torch.from_numpy(plan.active).to(device))
        cut = weighted and self.update.network.loss.each is None
        begin = 0
        while begin < total:
            size = self.unroll if total - begin >= self.unroll and not cut else 1
            window = slice(begin, begin + size)
            taken = rows[:, window]
            if cut and plan.weights is not None:  # a loss without rows: the real rows only, one step a call
                taken = taken[:, :, : int(plan.weights[0, begin].sum())]
            data = [_rows(column, taken) for column in (pool.x, pool.y)]
            data += [] if cut else [column[:, window] for column in extra]
            data = [_dense(column) for column in data] if self.update.clients else [column[0] for column in data]
            yield begin, StepForm(size, weighted and not cut, masked), data
            begin += size


def _rows(column: Tensor, rows: Tensor) -> Tensor:
    """``column[rows]``, keeping images in their memory order."""
    flat = rows.reshape(-1)
    if column.dim() == 4 and not column.is_contiguous():
        picked = column.permute(0, 2, 3, 1).index_select(0, flat)
        return picked.view(*rows.shape, *picked.shape[1:]).permute(0, 1, 2, 5, 3, 4)
    picked = column.index_select(0, flat)
    return picked.view(*rows.shape, *picked.shape[1:])


def _dense(tensor: Tensor) -> Tensor:
    return tensor if tensor.is_contiguous() else tensor.contiguous()


def _settled(tensor: Tensor) -> Tensor:
    """The tensor in a dense layout of its own: a broadcast axis is written out, image filters keep channels last."""
    if tensor.is_contiguous() or (tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last)):
        return tensor
    return tensor.contiguous()
