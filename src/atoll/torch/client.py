"""Local training of one client by the reference, and what is known of the model that it trains."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from atoll.core.algebra.aggregate import Mean
from atoll.core.algebra.rng import Rng
from atoll.core.algebra.tree import Tree
from atoll.core.errors import CompositionError
from atoll.core.facets import facet
from atoll.learn.algorithm import Stateful
from atoll.learn.local.reports import BUFFERS, buffer_replies, is_private
from atoll.learn.wrapped import Drawing, overrides

from .buffers import find_parameter_writes, require_known, require_unwritten
from .models import array_of
from .network import FunctionalModule
from .reference import ReferenceUpdate, train_one

if TYPE_CHECKING:
    from atoll.learn.algorithm import Algorithm

    from .blocks.pool import Pool
    from .buffers import BufferRules

__all__ = ["ClientTraining", "without_buffers"]


class ClientTraining:
    """Trains one client; training many must agree with it.

    Args:
        network: the model and its loss.
        algorithm: the local update.
        compile: see `LocalTraining`.
        buffers: how the model's buffers travel, shared by all local updates of one model.
        volume: client updates expected in the whole run.
        loss_metric: name of the metric that carries each client's mean training loss; ``""`` for none.
        protected: whether something makes replies private, so that buffers may not leave.
        singly: whether the server sees single replies.
    """

    def __init__(
        self,
        network: FunctionalModule,
        algorithm: Algorithm,
        *,
        compile: str,  # noqa: A002 - the word that PyTorch uses
        buffers: BufferRules,
        volume: int,
        loss_metric: str,
        protected: bool = False,
        singly: bool = True,
    ) -> None:
        self.network = network
        self.algorithm = Drawing(base=algorithm) if overrides(algorithm, "draw") else algorithm
        self.compile = compile
        self.buffers = buffers
        self.volume = volume
        self.loss_metric = loss_metric
        self.protected = protected or is_private(algorithm)
        self._releases = is_private(algorithm)
        self._unwritten = False
        self.singly = singly

    def _train_one(
        self,
        pool: Pool,
        at: int,
        broadcast: Tree,
        client: Tree,
        key: int,
        noise: Rng | None = None,
        *,
        drawn: bool = False,
    ) -> ReferenceUpdate:
        """Train one client; ``drawn`` says that its state came through `Drawing.hand_state`, as those of a block do. The same numbers are drawn again here."""
        client = client.get("client") if drawn and isinstance(self.algorithm, Drawing) else client
        rows = slice(int(pool.offsets[at]), int(pool.offsets[at + 1]))
        columns = {name: column[rows] for name, column in pool.columns.items()}
        x = columns["x"]
        sent, given, private = self._open(x, broadcast, client, key, noise)
        plan = self.buffers.look(self.network, x)
        with self.network.restoring():
            made = train_one(self.network, self.algorithm, columns, sent, private, key, given, pool.epochs, noise)
        n = float(rows.stop - rows.start)
        if self.loss_metric:
            mean = float(np.mean(made.losses)) if made.losses else 0.0
            made.reply[self.loss_metric] = Mean(np.float64(mean), examples=n, role="metric")
        require_known(plan, made.written, self.network.title)
        if plan.sent:
            self.refuse_leak(x)
            before, after = {**self.network.frozen, **(given or {})}, made.buffers
            came, goes = ({name: array_of(some[name]) for name in plan.sent} for some in (before, after))
            made.reply |= buffer_replies(came, goes, n, singly=self.singly)
        if plan.local:
            own = {name: array_of(made.buffers[name]) for name in plan.local}
            made.state = {"algorithm": made.state, "buffers": own}
        return made

    def _open(
        self, x: torch.Tensor, broadcast: Tree, client: Tree, key: int, noise: Rng | None
    ) -> tuple[Tree, dict[str, torch.Tensor], Tree]:
        """Take buffers out of the broadcast and the private state."""
        given: Tree = (broadcast.get(BUFFERS) if isinstance(broadcast, dict) else None) or {}
        sent = without_buffers(broadcast)
        if client is not None and self.buffers.look(self.network, x).local:
            given, client = {**given, **client["buffers"]}, client["algorithm"]
        if isinstance(self.algorithm, Drawing):
            client = self.algorithm.hand_state(sent["params"], client, key, noise)
        elif client is None:
            client = facet(self.algorithm, Stateful).client_init(sent["params"])
        tensors = self.network.tensors({**given, **sent["params"]} if self.network.spectral else given)
        return sent, {name: tensors[name] for name in given}, client

    def refuse_leak(self, x: torch.Tensor) -> None:
        """Refuse whatever makes replies private around a model whose buffers follow the data, if they would leave the client: no clip and no noise is made for them.

        A mechanism inside the local update noises gradients, or what follows from them: parameters that a pass writes itself are refused alike.

        Raises:
            CompositionError: the buffers, or such parameters, would leave the client.
        """
        plan = self.buffers.look(self.network, x)
        sent = plan.sent
        if self.algorithm.example_steps is not None:
            if self.network.mixes_rows():
                return  # refused when the parts are put together, with the better reason
            if sent or plan.local:
                raise CompositionError(
                    f"training changes buffers of the model ({', '.join((*sent, *plan.local))}), and the gradient of each example is clipped alone: "
                    "the buffers would follow single examples, or none",
                    where="Training.model",
                    remedy="use a model whose passes write no buffer, such as one that normalises each example alone, or GaussianLDP or CentralDP with buffers='local', "
                    "which clip and noise the whole update",
                )
            if self.network.looks_back:
                raise CompositionError(
                    f"a backward pass of {self.network.title} reads weights from the model, as a hook may, and the gradient of each example is taken apart from it",
                    where="Training.model",
                    remedy="write what the hook does into forward, or use GaussianLDP or CentralDP, which clip and noise the whole update",
                )
        if sent and self.protected:
            names = ", ".join(sent)
            raise CompositionError(
                f"training changes buffers of the model ({names}), and they would leave the clients without noise",
                where="Training.buffers",
                remedy="use buffers='local', or a model whose buffers do not depend on the data",
            )
        if self._releases and not self._unwritten:
            require_unwritten(find_parameter_writes(self.network, x), self.network.title)
            self._unwritten = len(x) > 0

    def stateful(self, x: torch.Tensor) -> str:
        """Return why clients must be trained one by one in full batches of their own, or ``""``."""
        mixing = self.network.mixes_rows()
        if mixing:
            return f"{mixing} takes statistics over the batch"
        why = self.buffers.look(self.network, x).why
        if self.network.looks_back:
            why = why or "a backward pass reads weights from the model"
        changes = [*self.network.loss_changes, *self.network.loss_shared]
        return why or (f"the loss changes {changes[0]}" if changes else "")


def without_buffers(broadcast: Tree) -> Tree:
    """Return what the server sent, without the buffers."""
    return {name: value for name, value in broadcast.items() if name != "buffers"}
