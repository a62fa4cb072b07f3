"""Orchestra: clients cluster their embeddings and send centroids; the server clusters those, and clients predict its clusters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch

from atoll.core.algebra import tree as T
from atoll.core.algebra.aggregate import Aggregate, Parts
from atoll.core.algebra.rng import Rng
from atoll.core.algebra.tree import Tree
from atoll.core.errors import ConfigError
from atoll.learn.algorithm import Gradient, LocalWork, RoundInfo
from atoll.learn.card import Card
from atoll.learn.local.own_loss import OwnLoss

from ..heads import embedding_of, parts_of, seen_by
from ..losses import mean_of, seen
from ..objectives.contrastive import (
    assignment_loss,
    balanced_centroids,
    enqueue,
    predict_rotation,
    quarter_turns,
    refined_centroids,
)
from ..streams import Stream, Trailing
from ..views.base import View
from ..views.draws import below, child_keys_of_rows
from .selfsupervised import SelfSupervised

__all__ = ["Orchestra", "OrchestraAims", "OrchestraLoss"]


@dataclass(frozen=True)
class OrchestraAims(OwnLoss):
    """Reads the target network's projections of the first views, and which rows are real."""

    view: View | None

    def __call__(self, *, model: Any, x: Any, keys: Any, real: Any, broadcast: Any) -> Any:
        """Return the projections, ``(rows, width)``, and ``real``."""
        params, rows = broadcast["params"], seen(self.view, x, keys, 0, real)
        made = seen_by(model, rows, real, "Orchestra", params, broadcast["target"])
        return {"aims": parts_of(made, params, "Orchestra").projection, "real": real}


@dataclass(frozen=True)
class OrchestraLoss(OwnLoss):
    """``CE(softmax(t_1 C / T), softmax(z_2 C / T)) + CE(turns, r)`` for the projections ``t`` of the target network and the global centroids ``C``.

    The second term predicts by how many quarter turns the second view was turned; it keeps clusters from collapsing into one.
    """

    view: View | None
    temperature: float
    memory: int

    @property
    def fewest(self) -> int:
        """As many as the memory has: centroids of fewer would show single rows."""
        return self.memory

    def __call__(self, *, model: Any, x: Any, keys: Any, real: Any, broadcast: Any) -> Any:
        """Return the mean over the mini-batch's rows."""
        near = seen(self.view, x, keys, 1, real)
        turns = below(child_keys_of_rows(keys, 2), 0, 1, 4)[:, 0]
        params, both = broadcast["params"], torch.cat([near, quarter_turns(near, turns)])
        made = seen_by(model, both, torch.cat([real, real]), "Orchestra", params)
        straight, turned = parts_of(made, params, "Orchestra", ["turns"]).halves()
        z, aims = straight.projection, broadcast["aims"]
        rows = assignment_loss(z, aims, broadcast["centroids"], self.temperature)
        return mean_of(rows + predict_rotation(turned.turns, turns), real)


@dataclass(frozen=True, kw_only=True)
class Orchestra(SelfSupervised):
    """Orchestra: bi-level clustering for clients that keep nothing and need never return.

    A client gets the model and ``clusters`` global centroids. Its target network begins as the model and follows it. After its steps, the client
    clusters the last ``memory`` projections of its target network into ``sent`` clusters of equal size and sends their centroids, ``32 sent width``
    bits (262,144 for 16 of width 512), never a row's features: see `atoll.labels.objectives.balanced_centroids`. A mini-batch shows each row
    once, and so does an epoch, so that no row is in the memory more than twice. The server clusters all centroids of the round into the new global ones.

    The model is ``Siamese(encoder, features, predictor=False, turns=True)``; rows are square images.

    Attributes:
        clusters: global centroids.
        sent: centroids that a client sends.
        memory: projections that it clusters, at least twice ``sent``; a client needs as many rows.
        temperature: of the assignment.
        keep: share of the target network that a step keeps, in [0, 1].
        server_steps: gradient steps of the server's clustering in a round.
    """

    clusters: int = 32
    sent: int = 16
    memory: int = 128
    temperature: float = 0.1
    keep: float = 0.996
    server_steps: int = 500
    partial: ClassVar[bool] = False
    citation: ClassVar[str] = (
        "Lubana, Tang, Kawsar, Dick, Mathur. Orchestra: Unsupervised Federated Learning via Globally Consistent Clustering. ICML 2022."
    )
    card: ClassVar[Card] = Card(
        family="wrapper", note="No client keeps anything; the server sees centroids of each client."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (self.clusters >= 2 and self.sent >= 1 and self.memory >= 2 * self.sent):
            raise ConfigError(
                f"clusters={self.clusters}, sent={self.sent}, memory={self.memory}",
                where="Orchestra",
                remedy="use 2 global clusters or more, and a memory of at least two rows for each centroid that is sent",
            )
        if self.steps is not None and self.batch_size is not None and self.steps * self.batch_size < self.memory:
            raise ConfigError(
                f"memory={self.memory} with {self.steps} steps of {self.batch_size} rows",
                where="Orchestra",
                remedy=f"use at most {self.steps * self.batch_size}, or more steps: a memory that is not full would show single rows",
            )

    @property
    def streams(self) -> tuple[Stream, ...]:
        """The target network: a copy that follows, and begins anew in every round."""
        return (Trailing(name="target", keep=self.keep, memory="round"),)

    @property
    def objective(self) -> OwnLoss:
        """Orchestra's loss."""
        return OrchestraLoss(self.view, self.temperature, self.memory)

    @property
    def losses(self) -> tuple[Any, ...]:
        """Orchestra's loss, and what reads the aims."""
        return (*super().losses, OrchestraAims(self.view))

    def init(self, params: Tree) -> Tree:
        """Start with the method's state and random global centroids."""
        width = len(embedding_of(params, "Orchestra"))
        draws = Rng.of(0).child("centroids").generator().normal(size=(self.clusters, width))
        return {**super().init(params), "centroids": draws.astype(np.float32)}

    def broadcast(self, state: Tree, phase: str) -> Tree:
        """Send the method's broadcast and the global centroids."""
        return {**super().broadcast(state, phase), "centroids": state["centroids"]}

    def start(self, broadcast: Tree, client: Tree) -> Tree:
        """Start with the method's local state and an empty memory."""
        empty = embedding_of(broadcast["params"], "Orchestra") * 0.0
        return {**super().start(broadcast, client), "aims": T.stack([empty] * self.memory)}

    def step(self, local: Tree, grad: Gradient, broadcast: Tree) -> Tree:
        """Predict the target network's clusters, and remember its projections."""
        inner = {name: value for name, value in local.items() if name != "aims"}
        oracle: Any = grad
        read = oracle.on(None, **local["copies"]).read(OrchestraAims(self.view), local["params"])
        made = super().step(inner, oracle.on(None, aims=read["aims"]), broadcast)
        return {**made, "aims": enqueue(local["aims"], read["aims"], read["real"])}

    def finish(self, local: Tree, broadcast: Tree, client: Tree, work: LocalWork) -> tuple[dict[str, Aggregate], Tree]:
        """Return the method's reply and the centroids of the memory."""
        inner = {name: value for name, value in local.items() if name != "aims"}
        reply, kept = super().finish(inner, broadcast, client, work)
        memory = torch.as_tensor(local["aims"])
        made: Any = balanced_centroids(memory, memory[:: self.memory // self.sent][: self.sent], iterations=10)
        made = made if T.namespace(local["aims"]) is torch else made.numpy()
        return {**reply, "centroids": Parts(made, examples=work.examples, role="side")}, kept

    def fold(self, state: Tree, sums: Mapping[str, Any], info: RoundInfo, phase: str) -> Tree:
        """Fold as the method does, and cluster the clients' centroids."""
        made = super().fold(state, {name: value for name, value in sums.items() if name != "centroids"}, info, phase)
        local = torch.from_numpy(np.concatenate([np.asarray(part.value) for part in sums["centroids"]]))
        start = torch.from_numpy(np.array(state["centroids"]))
        refined = refined_centroids(local, start, temperature=self.temperature, steps=self.server_steps)
        return {**made, "centroids": refined.numpy()}
