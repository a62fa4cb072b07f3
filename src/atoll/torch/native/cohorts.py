"""The native code of a runner: made when a cohort first needs it, cached, and used for every client that fits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from atoll.core.facets import facet
from atoll.learn.algorithm import Stateful

from ..blocks.course import fit
from ..blocks.labelled import LabelledRows
from ..blocks.placing import place as placed
from ..blocks.placing import sent_leaves
from ..blocks.update import Update
from ..client import without_buffers
from ..leaves import flatten
from .cohort import NativeCohort, make_cohort
from .orders import Draws, readable
from .switch import enabled

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.core.algebra.tree import Tree
    from atoll.learn.algorithm import Algorithm

    from ..blocks.choose import Choices
    from ..blocks.pool import Form, Pool
    from ..blocks.private import Privates
    from ..blocks.results import CohortSums
    from ..network import FunctionalModule

__all__ = ["Natives"]

Tensor = torch.Tensor


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
        return (chosen.native or chosen.compiled) and here and network.padded

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
        sent = self._placed(sent)
        left: list[NDArray[np.int64]] = []
        whole = algorithm.batch_size is None
        for width, members in _by_width(draws.batches, chosen, whole):
            some = draws.part(members)
            own = states if some is draws else states[members]
            private, layout = own.leaves(lambda: facet(algorithm, Stateful).client_init(broadcast["params"]))
            stacked = self._placed(private)
            kind = (width, chosen.uneven or some.partial(width))
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
        for width in chosen.widths or ():
            self._code((width, True), pool.form, sent, private)

    def _placed(self, leaves: list[Any]) -> list[Any]:
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
    if len(kinds) == 1 and kinds[0] and (chosen.widths is None or int(kinds[0]) in chosen.widths):
        return [(int(kinds[0]), np.arange(len(natural)))]
    known = {int(n): fit(max(1, int(n)), chosen) or whole * _wider(int(n)) for n in np.unique(natural)}
    widths = np.array([known[n] for n in natural.tolist()])
    return [(int(w), np.flatnonzero(widths == w)) for w in np.unique(widths)]


def _wider(natural: int) -> int:
    """Return the next of 256, 1024 and 4096, 0 beyond: clients run one by one, so a wide batch takes little room."""
    return next((width for width in (256, 1024, 4096) if natural <= width), 0)
