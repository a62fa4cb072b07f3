"""Mini-batches as tensors: rows of the pool gathered into reused buffers, cut into windows of a few steps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from .update import StepForm

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..network import FunctionalModule
    from .course import BlockCourse
    from .pool import Pool
    from .schedule import BatchSchedule

__all__ = ["Feed"]

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
