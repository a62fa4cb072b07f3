"""`FedGKT`: clients with small networks teach a large one at a server by features and logits, and it teaches them back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from atoll.core.algebra.rng import Rng
from atoll.core.errors import CompositionError, ConfigError, DataError
from atoll.core.exposure import Explanation, Exposure
from atoll.core.job import Job, Prepared, name_of
from atoll.core.requests.task import Task
from atoll.core.validation import Checked, require_parts
from atoll.trees.objectives import SQUARED, TreeLoss
from atoll.trees.tree import score

from .cut import read_frame
from .networks import Batches, Layers, Segment, apply_layers, few_threads, load_torch, loss_of
from .split_fed import TOP, ClientRows, read_client, read_form, require_client_net, targets_of
from .split_net import SplitNet

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.core.execution.session import Peers
    from atoll.core.federation.federation import Federation
    from atoll.core.requests.island import Island

__all__ = ["CLIENT_MODEL", "FedGKT", "FedGKTResult", "distil"]

CLIENT_MODEL = "gkt-model"
"""The name under which each client keeps its small network."""


@dataclass(frozen=True, kw_only=True)
class FedGKT(Checked, Job):
    """Group knowledge transfer: each client has a small network, and a server a large one that reads the small ones' features.

    A client's network is a bottom and a classifier of its own. In a round every client trains it for ``net.epochs`` passes over its rows, then sends the features ``h = bottom(x)`` and the logits ``z`` of all its rows;
    the server trains its network, ``net.top``, on all clients' features for ``server_epochs`` passes, client by client, and sends each client its logits ``z'`` of the client's rows. With labels ``y`` and
    ``p = softmax(z / T)``,

    * a client's loss is ``CE(z, y) + weight T^2 KL(p' || p)``, without the second term in the first round,
    * the server's is ``CE(z', y) + weight T^2 KL(p || p')``.

    Nothing is averaged: no network leaves its place, and clients may differ. To predict, a client's bottom and the server's network work together; each client's small network also predicts alone. With ``weight=0`` the server's
    training is a plain one on features. He, Annavaram, Avestimehr 2020, "Group Knowledge Transfer: Federated Learning of Large CNNs at the Edge", algorithm 1 and equations 5-8.

    The party ``top`` has the server's network, see `SplitFed`. It sees features, logits and labels of all rows.

    Attributes:
        net: the networks and their steps, as `SplitNet` has them: ``hidden`` and ``width`` of a client's bottom, ``top`` of the server's network. ``epochs`` counts a client's passes in a round.
        rounds: rounds.
        server_epochs: passes of the server in a round.
        temperature: ``T``.
        weight: of the divergences.
    """

    kind: ClassVar[str] = "fed-gkt"
    one_form: ClassVar[bool] = True

    net: SplitNet = field(default_factory=lambda: SplitNet(epochs=1, top=(64, 64)))
    rounds: int = 10
    server_epochs: int = 1
    temperature: float = 3.0
    weight: float = 1.0

    def __post_init__(self) -> None:
        require_parts(self, {"net": (SplitNet, "atoll.vertical.SplitNet(epochs=1, top=(64, 64))")})
        for name, good, remedy in (
            ("rounds", self.rounds >= 1, "use at least 1 round"),
            ("server_epochs", self.server_epochs >= 1, "use at least 1 epoch"),
            ("temperature", 0 < self.temperature < np.inf, "use a finite number above 0"),
            ("weight", 0 <= self.weight < np.inf, "use a finite number of at least 0"),
        ):
            if not good:
                raise ConfigError(f"{name}={getattr(self, name)!r}", where="FedGKT", remedy=remedy)
        require_client_net(self.net, "FedGKT")
        foreign = [name for name in ("uplink", "downlink", "defence") if getattr(self.net, name)]
        if foreign or self.net.shape != "label":
            raise CompositionError(
                f"{foreign[0] if foreign else 'shape'}= of its network",
                where="FedGKT",
                remedy="leave it out: nothing passes a cut step by step here; SplitFed has stages, defences and shape='u'",
            )

    def names(self) -> tuple[str, ...]:
        """The kind and the network, which a site's policy can allow or refuse."""
        return (*super().names(), name_of(type(self.net)))

    def others(self, n: int) -> Mapping[str, str]:
        """The party with the large network."""
        del n
        return {TOP: TOP}

    def prepare(self, data: Any) -> Prepared:
        """Read columns and labels from the form of the data.

        Raises:
            DataError: rows are not numbers, or labels are no classes.
        """
        order, objective = read_form(data, "FedGKT")
        if objective.name == SQUARED:
            raise DataError("labels that are numbers", where="FedGKT", remedy="use classes as labels, or SplitFed")
        return _PreparedGKT(self, sorted(data.names), order, objective, getattr(data, "test", None))

    def explain(self, data: Any = None, clients: int = 0) -> Explanation:
        """Who sees what."""
        parties = clients or (len(data) if data is not None else 0)
        told = (
            Exposure(TOP, f"{self.net.width} features, the logits of the client's network, and the label of each row, once a round"),
            Exposure("client", "the server's logits of its own rows"),
        )  # fmt: skip
        return Explanation(
            self.title, parties, told, notes=("no differential privacy: features and logits travel as they are",)
        )


def distil(objective: TreeLoss, z: Any, y: Any, teacher: Any, temperature: float, weight: float) -> Any:
    """The loss of logits ``z`` under labels and a teacher's logits: ``CE(z, y) + weight T^2 KL(softmax(teacher / T) || softmax(z / T))``; without the second term for no teacher.

    A single logit is that of the second of two classes.
    """
    functional, found = load_torch().nn.functional, loss_of(objective, z, y)
    if teacher is None or not weight:
        return found
    own, other = (
        functional.log_softmax((functional.pad(one, (1, 0)) if one.shape[1] == 1 else one) / temperature, 1)
        for one in (z, teacher)
    )
    return found + weight * temperature**2 * functional.kl_div(own, other, reduction="batchmean", log_target=True)


class _PreparedGKT(Prepared):
    def __init__(
        self, job: FedGKT, clients: list[str], order: NDArray[np.int64], objective: TreeLoss, test: Any
    ) -> None:
        self.job, self.clients, self.objective, self.test = job, clients, objective, test
        self.columns, self.order = len(order), order
        self.client = Task("atoll.vertical.split.fed_gkt:client", self._client)
        self.top = Task("atoll.vertical.split.fed_gkt:top", self._top)
        self.tasks = (self.client, self.top)

    async def program(self, fed: Federation) -> Any:
        """One session of all rounds."""
        found = await fed.restore(None)
        if found is None:
            roles = {name: (name, self.client) for name in self.clients}
            found = await fed.session({**roles, TOP: (TOP, self.top)})
            for turn, loss in enumerate(found[TOP]["losses"]):
                fed.record({"round": turn + 1, "loss": loss})
            await fed.checkpoint(found)
        return found

    def outcome(self, value: Any) -> FedGKTResult:
        """The result."""
        return FedGKTResult(self.objective, value)

    def facts(self, outcome: FedGKTResult) -> Mapping[str, Any]:
        """The measure of the test rows: the mean of the clients', each with the server's network, and each alone."""
        if self.test is None or not outcome.at_hand:
            return {}
        made: dict[str, float] = {}
        for name, alone in (("test", False), ("test/alone", True)):
            several = [score(self.objective, self.test["y"], outcome.predict(one, self.test["x"], alone=alone)) for one in self.clients]  # fmt: skip
            made[f"{name}/{several[0][0]}"] = float(np.mean([value for _, value in several]))
        return {"result": made}

    def small(self) -> dict[str, Segment]:
        """A client's network with its initial weights."""
        net = self.job.net
        classifier = Layers(net.width, (self.objective.outputs,))
        return {"bottom": net.segment(net.bottom(self.columns, 1), "bottom", 0, order=self.order), "head": net.segment(classifier, "classifier")}  # fmt: skip

    def large(self) -> dict[str, Segment]:
        """The server's network with its initial weights."""
        net = self.job.net
        return {name: net.segment(one, name) for name, one in zip(("trunk", "head"), net.tops(1, self.objective.outputs), strict=True)}  # fmt: skip

    async def _client(self, island: Island, peers: Peers) -> dict[str, Any]:
        """A client's role."""
        torch, job, net = load_torch(), self.job, self.job.net
        state = await peers.restore(None)
        rows = ClientRows.of(island.data, net, self.objective)
        own = self.small()
        teacher = None
        if state is None:
            await peers.send(TOP, {"rows": len(rows), "y": np.asarray(rows.y.numpy())})
            state = {"turn": 0}
        else:
            teacher = torch.from_numpy(np.array(state["teacher"]))
            for name, one in own.items():
                one.restore(state[name])
        batches = replace(net.batches(len(rows)), epochs=job.rounds * net.epochs)
        many = net.epochs * batches.an_epoch
        work = float(sum(one.layers.multiplications for one in own.values())) * net.batch
        for turn in range(int(state["turn"]), job.rounds):
            with few_threads(work):
                for step, at in batches.from_step(turn * many):
                    if step == (turn + 1) * many:
                        break
                    z, known = own["head"](own["bottom"](rows.x[at])), None if teacher is None else teacher[at]
                    distil(self.objective, z, rows.y[at], known, job.temperature, job.weight).backward()
                    for one in own.values():
                        one.step()
                features = apply_layers(own["bottom"].packed(), rows.x.numpy())
                logits = apply_layers(own["head"].packed(), features)
            for told in (features, logits):
                await peers.send(TOP, {"cut": told})
            shape = (len(rows), self.objective.outputs)
            found = read_frame(await peers.recv(TOP), shape, np.dtype(net.precision), "logits", TOP)
            teacher = torch.from_numpy(found)
            await peers.checkpoint({"turn": turn + 1, "teacher": found, **{name: one.state() for name, one in own.items()}})  # fmt: skip
        part = {name: one.packed() for name, one in own.items()}
        island.leave(CLIENT_MODEL, part)
        return {} if island.remote else part

    async def _top(self, island: Island, peers: Peers) -> dict[str, Any]:
        """The server's role.

        Raises:
            MessageError: a client sent something of another form.
        """
        job, net, objective = self.job, self.job.net, self.objective
        state, own = await peers.restore(None), self.large()
        if state is None:
            labels = {}
            for name in self.clients:
                labels[name] = read_client(await peers.recv(name), name, objective, labels=True)[1]
            state = {"turn": 0, "labels": labels, "losses": []}
        else:
            for name, one in own.items():
                one.restore(state[name])
        targets = {name: targets_of(np.asarray(y), net, objective) for name, y in state["labels"].items()}
        epochs, losses = job.rounds * job.server_epochs, list(state["losses"])
        rngs = {name: Rng.of(net.seed).child("server", name) for name in self.clients}
        batches = {name: Batches(len(y), net.batch, epochs, rngs[name]) for name, y in targets.items()}
        work = float(sum(one.layers.multiplications for one in own.values())) * net.batch
        for turn in range(int(state["turn"]), job.rounds):
            heard = {name: await self._hear(peers, name, len(y)) for name, y in targets.items()}
            with few_threads(work):
                found = [
                    self._step(own, targets[name][at], *(one[at] for one in heard[name]))
                    for epoch in range(turn * job.server_epochs, (turn + 1) * job.server_epochs)
                    for name in heard
                    for at in batches[name].of_epoch(epoch)
                ]
                losses.append(sum(found) / len(found))
                for name, (features, _) in heard.items():
                    made = apply_layers(own["trunk"].packed(), features.numpy())
                    await peers.send(name, {"cut": apply_layers(own["head"].packed(), made)})
            kept = {"labels": state["labels"], "losses": losses, **{name: one.state() for name, one in own.items()}}
            await peers.checkpoint({**kept, "turn": turn + 1})
        part = {name: one.packed() for name, one in own.items()}
        island.leave(CLIENT_MODEL, part)
        return {"losses": losses, **({} if island.remote else part)}

    async def _hear(self, peers: Peers, name: str, rows: int) -> list[Any]:
        """A client's features and logits of its rows."""
        torch, net = load_torch(), self.job.net
        widths, dtype = {"features": net.width, "logits": self.objective.outputs}, np.dtype(net.precision)
        return [
            torch.from_numpy(read_frame(await peers.recv(name), (rows, width), dtype, what, name))
            for what, width in widths.items()
        ]

    def _step(self, own: Mapping[str, Segment], y: Any, features: Any, logits: Any) -> float:
        """Take a step of the server's network; return its loss."""
        z = own["head"](own["trunk"](features))
        loss = distil(self.objective, z, y, logits, self.job.temperature, self.job.weight)
        loss.backward()
        for one in own.values():
            one.step()
        return float(loss.detach())


@dataclass(frozen=True)
class FedGKTResult:
    """The trained networks.

    Attributes:
        objective: the loss.
        replies: what the roles returned. Networks are among them in a simulation alone; between organisations each stays where it is, as the named result ``gkt-model``.
    """

    objective: TreeLoss
    replies: Mapping[str, Any]

    @property
    def at_hand(self) -> bool:
        """Whether all networks are here."""
        return "trunk" in self.replies[TOP]

    def predict(self, client: str, x: NDArray[Any], *, alone: bool = False) -> NDArray[Any]:
        """Predictions of rows by a client's features and the server's network, or by the client's network alone: of two classes the probability of the second, of more those of all.

        Raises:
            ConfigError: there is no such client, or its network is not here.
        """
        if not self.at_hand or client not in self.replies or client == TOP:
            raise ConfigError(f"the network of {client!r}", where="FedGKT", remedy=f"between organisations read {CLIENT_MODEL!r} at each party; else name a client")  # fmt: skip
        small, large = self.replies[client], self.replies[TOP]
        found = apply_layers(small["bottom"], np.asarray(x).reshape(len(x), -1))
        for part in (small["head"],) if alone else (large["trunk"], large["head"]):
            found = apply_layers(part, found)
        return self.objective.predict(found)
