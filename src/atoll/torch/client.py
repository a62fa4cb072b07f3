"""Local training of one client by the reference, and what is known of the model that it trains."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from atoll.core.algebra.aggregate import Mean
from atoll.core.algebra.rng import Rng
from atoll.core.algebra.tree import Tree
from atoll.core.errors import CompositionError
from atoll.core.facets import facet
from atoll.learn.algorithm import Stateful
from atoll.learn.local.release import is_private
from atoll.learn.wrapped import Drawing, overrides

from .network import FunctionalModule
from .reference import ReferenceUpdate, train_one

if TYPE_CHECKING:
    from atoll.learn.algorithm import Algorithm

    from .blocks.pool import Pool

__all__ = ["ClientTraining", "without_buffers"]


class ClientTraining:
    """Trains one client; training many must agree with it.

    Args:
        network: the model and its loss.
        algorithm: the local update.
        compile: see `LocalTraining`.
        buffers: see `LocalTraining`.
        volume: client updates expected in the whole run.
        loss_metric: name of the metric that carries each client's mean training loss; ``""`` for none.
        protected: whether something makes replies private, so that buffers may not leave.
    """

    def __init__(
        self,
        network: FunctionalModule,
        algorithm: Algorithm,
        *,
        compile: str,  # noqa: A002 - the word that PyTorch uses
        buffers: str,
        volume: int,
        loss_metric: str,
        protected: bool = False,
    ) -> None:
        self.network = network
        self.algorithm = Drawing(base=algorithm) if overrides(algorithm, "draw") else algorithm
        self.compile = compile
        self.buffers = buffers
        self.volume = volume
        self.loss_metric = loss_metric
        self.protected = protected or is_private(algorithm)
        self._stateful: str | None = None

    def _train_one(
        self, pool: Pool, at: int, broadcast: Tree, client: Tree, key: int, noise: Rng | None = None
    ) -> ReferenceUpdate:
        rows = slice(int(pool.offsets[at]), int(pool.offsets[at + 1]))
        columns = {name: column[rows] for name, column in pool.columns.items()}
        x = columns["x"]
        sent, given, private, own = self._open(x, broadcast, client, key, noise)
        buffers = own or given
        made = train_one(self.network, self.algorithm, columns, sent, private, key, buffers, pool.epochs, noise)
        n = float(rows.stop - rows.start)
        if self.loss_metric:
            mean = float(np.mean(made.losses)) if made.losses else 0.0
            made.reply[self.loss_metric] = Mean(np.float64(mean), examples=n, role="metric")
        if self.keeps_buffers(x):
            self.refuse_leak(x)
            kept = {name: value.cpu().numpy() for name, value in made.buffers.items()}
            if self.buffers == "local":
                made.state = {"algorithm": made.state, "buffers": kept}
            else:
                made.reply["buffers"] = Mean(kept, examples=n, role="buffer")
        return made

    def _open(
        self, x: torch.Tensor, broadcast: Tree, client: Tree, key: int, noise: Rng | None
    ) -> tuple[Tree, Any, Tree, Any]:
        """Take buffers out of the broadcast and the private state."""
        given = broadcast.get("buffers") if isinstance(broadcast, dict) else None
        sent = without_buffers(broadcast)
        own = None
        if self.buffers == "local" and client is not None and self.keeps_buffers(x):
            own, client = client["buffers"], client["algorithm"]
        if isinstance(self.algorithm, Drawing):
            client = self.algorithm.handed(sent["params"], client, key, noise)
        elif client is None:
            client = facet(self.algorithm, Stateful).client_init(sent["params"])
        return sent, self._tensors(given), client, self._tensors(own)

    def _tensors(self, buffers: Any) -> dict[str, torch.Tensor] | None:
        if buffers is None:
            return None
        device, dtype = self.network.device, self.network.dtype
        return {name: torch.as_tensor(np.array(value)).to(device, dtype) for name, value in buffers.items()}

    def keeps_buffers(self, x: torch.Tensor) -> bool:
        """Tell whether training changes buffers, which then travel or stay in the private state."""
        return bool(self.stateful(x) and self.network.buffer_names)

    def refuse_leak(self, x: torch.Tensor) -> None:
        """Refuse whatever makes replies private around a model whose buffers follow the data, if they would leave the client: no clip and no noise is made for them.

        Raises:
            CompositionError: the buffers would leave the client.
        """
        moves = self.keeps_buffers(x)  # remembered: what travels is known from then on
        if self.algorithm.example_steps is not None and self.network.mixes_rows():
            return  # refused when the parts are put together, with the better reason
        if self.buffers != "local" and self.protected and moves:
            names = ", ".join(self.network.buffer_names)
            raise CompositionError(
                f"training changes buffers of the model ({names}), and they would leave the clients without noise",
                where="Training.buffers",
                remedy="use buffers='local', or a model whose buffers do not depend on the data",
            )

    @property
    def moves_buffers(self) -> bool:
        """Tell whether a training pass on data that were looked at changes buffers."""
        return bool(self._stateful and self.network.buffer_names)

    def stateful(self, x: torch.Tensor) -> str:
        """Return why clients must be trained one by one in full batches of their own, or ``""``."""
        if self._stateful is None:
            found = self.network.keeps_statistics(x[:2])
            if not found and not len(x):  # without a row there is nothing to check, and other clients may have some
                return ""
            self._stateful = found
        return self._stateful


def without_buffers(broadcast: Tree) -> Tree:
    """Return what the server sent, without the buffers."""
    return {name: value for name, value in broadcast.items() if name != "buffers"}
