"""The native code of a runner: made when a cohort first needs it, kept, and given every client that fits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from .course import fit, natural_widths
from .native_cohort import NativeCohort, make_cohort
from .schedule import Orders
from .update import Update

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.core.tree import Tree

    from .choose import Choices
    from .cohort import Runner
    from .local import Summed
    from .pool import Pool
    from .private import Privates

__all__ = ["Natives"]

Tensor = torch.Tensor
_AT_ONCE = 64 << 20  # bytes of mini-batch numbers that are laid out at once


class Natives:
    """Native code for cohorts, by form.

    Args:
        runner: whose cohorts.

    Attributes:
        seconds: spent on tracing and compiling.
    """

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._made: dict[Any, NativeCohort | None] = {}
        self.seconds = {"trace": 0.0, "compile": 0.0}

    @property
    def ready(self) -> bool:
        """Whether cohorts so far ran in native code."""
        return any(made is not None for made in self._made.values())

    def possible(self, chosen: Choices) -> bool:
        """Whether native code is wanted, and these are losses and a device for which it is made."""
        network = self._runner.network
        here = network.device.type == "cpu" and network.dtype == torch.float32
        return (chosen.native or chosen.compiled) and here and network.loss.each is not None

    def add_up(
        self,
        made: Summed,
        chosen: Choices,
        positions: NDArray[np.int64],
        pool: Pool,
        broadcast: Tree,
        states: Privates,
        keys: NDArray[np.uint64],
    ) -> NDArray[np.int64] | None:
        """Train clients and add them to the sums; return which are left for other programs, ``None`` for all."""
        if not self.possible(chosen):
            return None
        runner, sizes, work = self._runner, pool.sizes, pool.work(self._runner.algorithm)
        sent, sent_layout = runner.sent(broadcast, False)
        left: list[NDArray[np.int64]] = []
        whole = runner.algorithm.batch_size is None
        for width, members in _by_width(natural_widths(work, sizes), chosen, whole):
            if not width:
                left.append(members)
                continue
            orders = Orders(members, pool.offsets, keys, work)
            weighted = chosen.uneven or orders.partial(width)
            for part in _cut(members, orders.steps, width):
                own = states if len(part) == len(states) else states[part]
                private, layout = own.leaves(lambda: runner.algorithm.client_init(broadcast["params"]))
                stacked = [runner.place(leaf, False) for leaf in private]
                code = self._code((width, weighted), pool, (sent, sent_layout), (stacked, layout))
                if code is None:
                    left.append(part)
                    continue
                some = orders if len(part) == len(members) else Orders(part, pool.offsets, keys, work)
                line = some.line(width, weighted=weighted)
                code.add(made, positions[part], pool, line, (sent, stacked), keys[part], chosen.threads)
        if not left:
            return np.zeros(0, np.int64)
        rest = np.sort(np.concatenate(left))
        return None if len(rest) == len(positions) else rest

    def warm(self, chosen: Choices, pool: Pool, broadcast: Tree, states: Privates) -> None:
        """Make the code of all widths that unlike clients can come to need."""
        if not self.possible(chosen):
            return
        sent, sent_layout = self._runner.sent(broadcast, False)
        private, layout = states.leaves(lambda: self._runner.algorithm.client_init(broadcast["params"]))
        stacked = [self._runner.place(leaf, False) for leaf in private]
        for width in chosen.widths or ():
            self._code((width, True), pool, (sent, sent_layout), (stacked, layout))

    def _code(self, kind: tuple[int, bool], pool: Pool, sent: Any, private: Any) -> NativeCohort | None:
        """The code for a width and form of state, made when it is first asked for."""
        runner, (width, weighted) = self._runner, kind
        shape = (pool.x.shape[1:], pool.x.dtype, pool.y.shape[1:], pool.y.dtype)
        key = (kind, shape, sent[1].key, private[1].key)
        if key not in self._made:
            update = Update(runner.network, runner.algorithm, sent[1], private[1], 0)
            self._made[key] = found = make_cohort(
                update, sent[0], [leaf[0] for leaf in private[0]], pool, width, weighted
            )
            for what, seconds in (found.seconds if found else {}).items():
                self.seconds[what] += seconds
        return self._made[key]


def _by_width(natural: NDArray[np.int64], chosen: Choices, whole: bool) -> list[tuple[int, NDArray[np.int64]]]:
    """Clients by the width of the code that they fit into, 0 for none; ``whole`` where a batch is all that a client has."""
    kinds = np.unique(natural[natural > 0]) if len(natural) and natural.min() < natural.max() else natural[:1]
    if len(kinds) == 1 and kinds[0] and (chosen.widths is None or int(kinds[0]) in chosen.widths):
        return [(int(kinds[0]), np.arange(len(natural)))]
    known = {int(n): fit(max(1, int(n)), chosen) or whole * _wider(int(n)) for n in np.unique(natural)}
    widths = np.array([known[n] for n in natural.tolist()])
    return [(int(w), np.flatnonzero(widths == w)) for w in np.unique(widths)]


def _wider(natural: int) -> int:
    """The next of 256, 1024 and 4096, 0 behind: clients come one by one, so that a wide batch takes little room."""
    return next((width for width in (256, 1024, 4096) if natural <= width), 0)


def _cut(members: NDArray[np.int64], steps: NDArray[np.int64], width: int) -> list[NDArray[np.int64]]:
    """Cut clients into parts whose mini-batches are laid out at once."""
    if int(steps.sum()) * width * 12 < _AT_ONCE:
        return [members] if len(members) else []
    load = np.cumsum(steps * width * 12) // _AT_ONCE
    return [part for part in np.split(members, np.flatnonzero(np.diff(load)) + 1) if len(part)]
