"""DS-FL (Itahara et al. 2021): clients exchange predictions on public rows, and no parameters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch

from atoll.core.algebra import tree as T
from atoll.core.algebra.aggregate import Aggregate, Parts, Sum
from atoll.core.algebra.rng import Rng
from atoll.core.algebra.tree import Tree
from atoll.core.capability import NO_BUFFERS, RELEASED_ONLY, SINGLE_REPLIES, Capability, Need
from atoll.core.errors import ConfigError, DataError, QuorumError
from atoll.core.requests.task import Task, Work
from atoll.learn.capabilities import CLASS_SCORES
from atoll.learn.checks import require_finite
from atoll.learn.selection.base import Seen, candidates_of
from atoll.learn.topology.base import Decentralised, NodeCourse, refuse
from atoll.learn.topology.node import Node

from ..objectives.consistency import check_predictions, mean_prediction

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.core.federation.federation import Federation
    from atoll.core.requests.island import Island
    from atoll.core.requests.party import Parties
    from atoll.core.requests.results import Combined
    from atoll.learn.context import Context

__all__ = ["DSFL", "SoftTargets", "softmax"]

# Training on soft targets, at the server or at a client: distributions over classes in place of labels.


@dataclass(frozen=True)
class SoftTargets:
    """Mini-batch descent of cross-entropy to given distributions: ``w <- w - lr grad CE(target, f_w(x))``.

    Attributes:
        lr: learning rate.
        epochs: passes over the rows.
        batch_size: rows of a mini-batch.
    """

    lr: float
    epochs: int
    batch_size: int

    def taught(self, learner: Any, params: Tree, x: NDArray[Any], target: NDArray[Any], rng: Rng) -> Tree:
        """Return a model after ``epochs`` passes over rows ``(n, ...)`` with targets ``(n, classes)``."""
        for epoch in range(self.epochs):
            order = rng.child("distil", epoch).generator().permutation(len(x))
            for start in range(0, len(x), self.batch_size):
                rows = order[start : start + self.batch_size]
                slope = (softmax(learner.scores(params, x[rows])) - target[rows]) / len(rows)
                made = learner.pullback(params, x[rows], slope)
                params = T.map(
                    lambda leaf, by: leaf - (self.lr * by).astype(leaf.dtype),
                    params,
                    {name: made[name] for name in params},
                )
        return params


def softmax(scores: Any) -> NDArray[Any]:
    """Return the distributions of scores ``(n, classes)``."""
    raised = np.exp(scores - scores.max(axis=1, keepdims=True))
    return np.asarray(raised / raised.sum(axis=1, keepdims=True))


@dataclass(frozen=True, kw_only=True)
class DSFL(Decentralised):
    """Clients keep their models and exchange predictions of ``rows`` public rows a round.

    Each client trains on its own labelled rows and sends what it predicts. The server averages, and everybody, the server too, trains on the average.

    ``G = ERA(mean_c P_c)`` with ``ERA(p) = softmax(p / T)``, then ``w <- w - lr grad CE(G, f_w)`` on the same public rows. The pool is
    ``islands.public``, which every client has beforehand. Per round and client ``4 rows classes`` bytes and a header go up, whatever the model's size;
    the same numbers come back. Clients keep their model as private state. The server sees each client's predictions, and checks that they are
    distributions: it leaves out a client whose predictions are not, and the round's row names it.

    The survey sharpens each client's prediction before the mean, the paper the mean itself: ``order`` has both. It also says that the server owns the
    unlabelled rows; clients predict them, so they must be public.

    Use it as a topology, with the algorithm that clients train by on their own rows:
    ``Training(model=net, algorithm=FedAvg(lr=0.1), topology=DSFL(rows=200))``.

    Attributes:
        rows: public rows of a round; fewer if the pool is smaller.
        temperature: ``T`` of ERA.
        order: ``"after"`` or ``"before"`` the mean, or ``"never"``: the plain mean.
        lr: learning rate on the public rows; ``None`` is the algorithm's.
        epochs: passes over the round's public rows; 0 only measures agreement and leaves clients alone.
        batch_size: public rows of a mini-batch.

    Raises:
        ConfigError: a setting makes no sense.
    """

    citation: ClassVar[str] = (
        "Itahara, Nishio, Koda, Morikura, Yamamoto. Distillation-Based Semi-Supervised Federated Learning for Communication-Efficient Collaborative "
        "Training with Non-IID Private Data. IEEE Transactions on Mobile Computing 2021."
    )

    rows: int = 200
    temperature: float = 0.1
    order: str = "after"
    lr: float | None = None
    epochs: int = 2
    batch_size: int = 50

    def __post_init__(self) -> None:
        counts = self.rows >= 1 and self.epochs >= 0 and self.batch_size >= 1
        if not counts or not (self.lr is None or self.lr > 0):
            raise ConfigError(
                f"rows={self.rows}, epochs={self.epochs}, batch_size={self.batch_size}, lr={self.lr}",
                where="DSFL",
                remedy="use at least 1 row and a batch of 1, epochs of 0 or more, and a positive rate",
            )
        mean_prediction(torch.full((1, 1, 2), 0.5), self.temperature, self.order)  # refuses what makes no sense

    @property
    def needs(self) -> tuple[Need, ...]:
        """The base's needs, single replies, and a model with class scores."""
        scores = "distils class probabilities"
        return (
            *super().needs,
            Need(SINGLE_REPLIES, "checks each client's predictions", "FixMatch()"),
            Need(CLASS_SCORES, scores, "FixMatch()"),
            Need(NO_BUFFERS, scores, "FixMatch()"),
        )

    @property
    def lacks(self) -> Mapping[Capability, str]:
        """Reasons for capabilities that the topology does not offer."""
        return {**super().lacks, RELEASED_ONLY: "lets clients send predictions of models without noise"}

    def check(self, context: Context) -> None:
        """Refuse data without classes, and data without public rows."""
        if context.clients.task != "classification":
            why = "distils class probabilities, but these data have no classes"
            refuse(self, why, "model", "use a classifier: a PyTorch module or atoll.models.linear")
        if context.public is None or not len(context.public):
            raise DataError(
                "DS-FL has no public pool: clients exchange predictions on rows that everybody may see",
                where="islands.public",
                remedy="give some: islands.with_public(rows); FixMatch() needs none",
            )

    def course(self, context: Context) -> _Exchange:
        """Return the rounds of predictions."""
        return _Exchange(self, context)


class _Exchange(NodeCourse):
    """Train, predict, average, distil."""

    def __init__(self, rule: DSFL, context: Context) -> None:
        self.rule = rule
        self.context = context
        self.node = Node(context.algorithm, context.learner)

    @property
    def tasks(self) -> tuple[Task, ...]:
        """Both tasks."""
        return (self.predict, self.distil)

    @property
    def predict(self) -> Task:
        """Train on the client's own rows, and predict the round's public rows."""
        return Task("atoll.labels:predict", self._predict, work=self.node.work)

    @property
    def distil(self) -> Task:
        """Train on what the clients agree on."""
        return Task("atoll.labels:distil", self._distil, work=self._distilling)

    def _distilling(self, data: Any, args: Any, message: Tree) -> Work:
        del data, args, message
        rows, epochs = self.count, self.rule.epochs
        return Work(rows, epochs * -(-rows // self.rule.batch_size), epochs)

    @property
    def count(self) -> int:
        """Return the number of public rows in a round."""
        return min(self.rule.rows, len(self.context.public))

    def draw_rows(self, key: int) -> NDArray[Any]:
        """Return the public rows of a round, which everybody draws from its key."""
        return np.sort(Rng(key).generator().choice(len(self.context.public), self.count, replace=False))

    # ---------------------------------------------------------------- at the clients

    async def _predict(self, island: Island, message: Tree) -> dict[str, Aggregate]:
        node = self.node.begin(message["init"]) if island.state is None else island.state
        island.state, metrics = await self.node.round(island, node, int(message["round"]))
        x = np.asarray(self.context.public.x)[self.draw_rows(int(message["rows"]))]
        told = softmax(self.context.learner.scores(island.state["server"]["params"], x))  # type: ignore[attr-defined]
        return {**metrics, "predictions": Parts(told.astype(np.float32), role="side")}

    def _distil(self, island: Island, message: Tree) -> dict[str, Aggregate]:
        node = island.state
        params = self._taught(node["server"]["params"], message, island.rng)
        require_finite(params, int(message["round"]), whose=island.name, rate="the learning rate")
        island.state = {**node, "server": {**node["server"], "params": params}}
        return {"taught": Sum(np.float64(1.0), role="side")}

    def _taught(self, params: Tree, message: Tree, rng: Rng) -> Tree:
        """Return a model after ``epochs`` passes over the round's public rows, with their common prediction as target."""
        x = np.asarray(self.context.public.x)[self.draw_rows(int(message["rows"]))]
        rule, lr = self.rule, self.rule.lr or self.context.algorithm.lr
        steps = SoftTargets(lr, rule.epochs, rule.batch_size)
        return steps.taught(self.context.learner, params, x, np.asarray(message["targets"]), rng)

    # ---------------------------------------------------------------- the server

    def initial(self, fed: Federation) -> Tree:
        """Start with the model that every client starts with."""
        key = fed.rng.child("init").key >> 1
        return {
            "params": self.node.begin(key)["server"]["params"],
            "init": key,
            "selection": self.context.selection.init(fed.parties),
        }

    async def round(self, fed: Federation, state: Tree, number: int) -> tuple[Tree, dict[str, Any]]:
        """Let clients train and predict, average, and let everybody distil."""
        key = fed.rng.child("public rows", number).key >> 1
        invited, size = self._invite_parties(fed, state, number)
        row: dict[str, Any] = {"selected": len(invited)}
        told = {"init": state["init"], "round": number, "rows": key}
        try:
            terms = self.context.pacing.terms(size)
            made = await fed.sum(invited, self.predict, told, at=(number, "predict"), **terms)
            kept, rejected = self._check_replies(fed, made, state["params"])
            row |= {name: float(value) for name, value in made.of("metric").items()}
            row |= {"silent": len(made.silent), "rejected": len(made.rejected) + len(rejected)}
            if rejected or made.rejected:
                row["rejected_clients"] = {**made.rejected, **rejected}
            if made.errors:
                row["errors"] = {name: str(error) for name, error in made.errors.items()}
            row["replied"] = len(kept)
            if not kept:
                return state, {**row, "failed": "no client sent predictions that are distributions"}
            stacked = torch.from_numpy(np.stack([np.asarray(part.value) for part in kept]))
            agreed = mean_prediction(stacked, self.rule.temperature, self.rule.order).numpy()
            message = {"round": number, "rows": key, "targets": agreed}
            who = fed.parties[np.array(sorted(part.sender for part in kept), dtype=np.int64)]
            await fed.sum(who, self.distil, message, at=(number, "distil"), quorum=0)
        except QuorumError as error:
            if self.context.pacing.on_failure == "stop":
                raise type(error)(error.what, where=f"round {number}, {error.where}", remedy=error.remedy) from error
            return state, {**row, "replied": 0, "failed": str(error.what)}
        params = self._taught(state["params"], message, fed.rng.child("server", number))
        require_finite(params, number)
        row["agreement"] = float(stacked.max(2).values.mean())
        seen = Seen(number, invited, who, np.zeros(len(who)), row={"round": number, **row})
        row.update(self.context.evaluation.list_participants(invited, who))
        return {**state, "params": params, "selection": self.context.selection.accept(seen, state["selection"])}, row

    def _check_replies(self, fed: Federation, made: Combined, params: Tree) -> tuple[list[Any], dict[str, str]]:
        """Return the replies that are predictions, and why others are not, by name."""
        kept, rejected = [], {}
        one = np.asarray(self.context.public.x)[:1]
        shape = (self.count, int(self.context.learner.scores(params, one).shape[1]))  # type: ignore[attr-defined]
        for part in made["predictions"]:
            name = fed.world.roster.name(part.sender)
            sent = torch.tensor(np.asarray(part.value))
            try:
                check_predictions(sent, name, shape)
            except DataError as error:
                rejected[name] = error.what
            else:
                kept.append(part)
        return kept, rejected

    def _invite_parties(self, fed: Federation, state: Tree, number: int) -> tuple[Parties, int]:
        selection, sizes = self.context.selection, self.context.clients.sizes
        count = selection.cohort_size(len(fed.parties))
        candidates = candidates_of(fed, fed.parties, number, sizes)
        chosen = selection.invite(candidates, self.context.pacing.invited(count), state["selection"])
        return candidates.parties[chosen], min(count, len(chosen))

    async def model(self, watch: Federation, state: Tree, number: int) -> tuple[Tree, dict[str, Any]]:
        """Return the server's model, which has seen no labelled row."""
        del watch, number
        return state["params"], {}
