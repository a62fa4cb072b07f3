"""`SplitFed`: clients with rows and labels of their own train the bottom of a network, and a server its top; bottoms are averaged."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from atoll.core import message
from atoll.core.algebra.aggregate import Mean
from atoll.core.algebra.rng import Rng, name_order
from atoll.core.errors import CompositionError, ConfigError, DataError, MessageError
from atoll.core.exposure import Explanation, Exposure
from atoll.core.federation.reducer import Plain, Reducer
from atoll.core.job import Job, Prepared, name_of
from atoll.core.requests.task import Task
from atoll.core.validation import Checked, require_parts
from atoll.trees.objectives import SOFTMAX, SQUARED, TreeLoss, objective_of
from atoll.trees.tree import score

from ..model import require
from .defences import HostModules, SunModules
from .networks import Segment, apply_layers, few_threads, load_torch, loss_of
from .split_net import SplitNet

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.core.execution.session import Peers
    from atoll.core.federation.federation import Federation
    from atoll.core.requests.island import Island

__all__ = ["TOP", "ClientRows", "SplitFed", "SplitFedResult", "read_client", "read_form", "require_client_net"]

TOP = "top"
"""The party without rows that has the top, and its role."""
_FILE = "network.msg"
"""The trained network in a run folder."""


@dataclass(frozen=True, kw_only=True)
class SplitFed(Checked, Job):
    """Train one network whose bottom is at clients, each with rows and labels of its own, and whose top is at a server.

    In a round every client takes ``net.epochs`` passes over its rows. At each step it sends the embeddings of a batch to the server, which computes the loss, sends back the gradients by
    them and moves the top. Then the bottoms are averaged, weighted by rows.

    * ``version=1``: the server has a top for each client, and averages the tops too. With the same batches this is FedAvg of the whole network.
    * ``version=2``: the server has one top, and at each step takes the clients' batches in turn, in the order of their names.

    With one client both are split learning: the network that is not split, trained on its rows. Optimisers keep their memory between rounds where they are.
    Thapa, Arachchige, Camtepe, Sun 2022, "SplitFed: When Federated Learning Meets Split Learning", algorithms 1 and 2; there the order of version 2 is drawn anew.

    The party ``top`` has the top: in a simulation Atoll plays it, between organisations it is a helper of the role ``top``. The program that averages bottoms sees no embedding; with a secure ``reducer`` it sees no
    client's bottom either. With ``net.shape="u"`` the last layer stays at the clients too, and labels do not leave them; otherwise the clients send their labels to ``top``.

    Attributes:
        net: the network and its steps, as `SplitNet` has them; ``epochs`` counts passes in a round. Features are read as they are. Of ``defence``, `SunModules` hides the clients' features, and with ``shape="u"``
            `MaxNorm` and `IsotropicNoise` hide their labels.
        version: 1 or 2.
        rounds: how often the bottoms are averaged.
        reducer: how they are added up.
    """

    kind: ClassVar[str] = "split-fed"
    one_form: ClassVar[bool] = True

    net: SplitNet = field(default_factory=lambda: SplitNet(epochs=1))
    version: Literal[1, 2] = 1
    rounds: int = 10
    reducer: Reducer = field(default_factory=Plain)

    def __post_init__(self) -> None:
        require_parts(
            self,
            {
                "net": (SplitNet, "atoll.vertical.SplitNet(epochs=1)"),
                "reducer": (Reducer, "atoll.reducers.SecureAggregation()"),
            },
        )
        if self.version not in (1, 2) or self.rounds < 1:
            raise ConfigError(
                f"version={self.version!r}, rounds={self.rounds}",
                where="SplitFed",
                remedy="use version 1 or 2, and at least 1 round",
            )
        require_client_net(self.net, "SplitFed")

    @property
    def most_rounds(self) -> int:
        """Rounds."""
        return self.rounds

    def names(self) -> tuple[str, ...]:
        """The kind and the network, which a site's policy can allow or refuse."""
        return (*super().names(), name_of(type(self.net)))

    def others(self, n: int) -> Mapping[str, str]:
        """The party with the top."""
        del n
        return {TOP: TOP}

    def prepare(self, data: Any) -> Prepared:
        """Read columns and labels from the form of the data.

        Raises:
            DataError: rows are not numbers, or labels do not fit a loss.
        """
        order, objective = read_form(data, "SplitFed")
        return _PreparedSplitFed(self, sorted(data.names), order, objective, getattr(data, "test", None))

    def explain(self, data: Any = None, clients: int = 0) -> Explanation:
        """Who sees what."""
        parties = clients or (len(data) if data is not None else 0)
        rows = f"each client's embedding of each row in every epoch, {self.net.width} numbers"
        told = [Exposure(TOP, rows), Exposure("client", "the gradient of the loss by its embeddings, and the average of the bottoms")]  # fmt: skip
        if self.net.shape == "label":
            told.append(Exposure(TOP, "the label of each row"))
        else:
            told.append(Exposure(TOP, "the gradient of the loss by what the top makes of each row, which tells much of its label"))  # fmt: skip
        seen = self.reducer.exposures(parties) if parties else ()
        return Explanation(
            self.title, parties, (*told, *seen), notes=("no differential privacy: embeddings travel as they are",)
        )


def require_client_net(net: SplitNet, where: str) -> None:
    """Refuse settings of a network that make no sense where clients have the labels.

    Raises:
        CompositionError: it has an audit, or a defence that hides from clients what they have.
    """
    if net.audit:
        raise CompositionError(f"audit={list(net.audit)}", where=where, remedy="leave it out: Vertical measures attacks, on columns that lie apart")  # fmt: skip
    vain = next((one for one in net.defence if one.hides == "labels" and net.shape == "label"), None)
    if vain is not None:
        raise CompositionError(
            f"{type(vain).__name__} hides labels from clients, which have them, and the server gets them",
            where=where,
            remedy="use shape='u', where labels stay at the clients, or leave the defence out",
        )


def read_form(data: Any, where: str) -> tuple[NDArray[np.int64], TreeLoss]:
    """The positions of the numbers of a row in the order of their columns' names, and the loss of the labels.

    Raises:
        DataError: rows are not numbers, or labels do not fit a loss.
    """
    seen = data.outline() if hasattr(data, "outline") else data
    x = np.asarray(seen.shard(0)["x"])
    if x.dtype.kind not in "biuf" or x.ndim < 2:
        raise DataError(f"features of type {x.dtype} and shape {x.shape[1:]}", where=where, remedy="give rows of numbers")  # fmt: skip
    width, names = int(np.prod(x.shape[1:])), seen.about.features
    return name_order(names) if len(names) == width else np.arange(width), objective_of("auto", seen.about)


@dataclass(frozen=True)
class ClientRows:
    """A client's rows.

    Attributes:
        x: tensor ``(rows, numbers)``.
        y: tensor of the labels, as the loss takes them.
    """

    x: Any
    y: Any

    @classmethod
    def of(cls, data: Any, net: SplitNet, objective: TreeLoss) -> ClientRows:
        """The rows of a data set."""
        x = np.array(data["x"], net.precision).reshape(len(data), -1)
        return cls(load_torch().from_numpy(x), targets_of(np.asarray(data["y"]), net, objective))

    def __len__(self) -> int:
        return len(self.x)


def targets_of(y: NDArray[Any], net: SplitNet, objective: TreeLoss) -> Any:
    """Labels as a tensor that the loss takes."""
    kind: Any = np.int64 if objective.name == SOFTMAX else net.precision
    return load_torch().from_numpy(objective.targets(y).astype(kind))


def read_client(message: Any, name: str, objective: TreeLoss, *, labels: bool) -> tuple[int, NDArray[Any] | None]:
    """What a client says at the beginning: its number of rows, and their labels.

    Raises:
        MessageError: it says something else.
    """
    told: Any = message if isinstance(message, Mapping) else {}
    rows, y = told.get("rows"), told.get("y")
    require(type(rows) is int and 1 <= rows <= 1 << 40, f"{name!r} does not say how many rows it has", "SplitFed")
    if not labels:
        return rows, None
    good = isinstance(y, np.ndarray) and y.shape == (rows,) and y.dtype.kind in "iuf" and bool(np.isfinite(y).all())
    if good and objective.name != SQUARED:
        good = bool(np.isin(y, np.arange(max(2, objective.outputs))).all())
    require(good, f"no labels of {rows} rows of {name!r}", "SplitFed")
    return rows, y


Weights = Mapping[str, "NDArray[Any]"]
"""Segment -> its weights and biases, in one vector."""


class _PreparedSplitFed(Prepared):
    def __init__(
        self, job: SplitFed, clients: list[str], order: NDArray[np.int64], objective: TreeLoss, test: Any
    ) -> None:
        self.job, self.clients, self.objective, self.test = job, clients, objective, test
        self.columns, self.order = len(order), order
        self.client = Task("atoll.vertical.split.split_fed:client", self._client)
        self.top = Task("atoll.vertical.split.split_fed:top", self._top)
        self.give = Task("atoll.vertical.split.split_fed:give", self._give)
        self.tasks = (self.client, self.top, self.give)

    # What lies where.

    def segments(self, names: Iterable[str], weights: Weights | None = None) -> dict[str, Segment]:
        """Segments with their initial weights, or with these."""
        net = self.job.net
        trunk, head = net.tops(1, self.objective.outputs)
        layers = {"bottom": net.bottom(self.columns, 1), "trunk": trunk, "head": head}
        made = {
            name: net.segment(
                layers[name], name, *([0] if name == "bottom" else []), order=self.order if name == "bottom" else None
            )
            for name in names
        }
        for name, one in made.items() if weights is not None else ():
            one.restore({"weights": weights[name], "memory": {}})  # type: ignore[index]
        return made

    @property
    def of_clients(self) -> tuple[str, ...]:
        """The segments at clients, which are averaged."""
        return ("bottom", "head") if self.job.net.shape == "u" else ("bottom",)

    @property
    def of_top(self) -> tuple[str, ...]:
        """The segments at the server."""
        return ("trunk",) if self.job.net.shape == "u" else ("trunk", "head")

    def steps(self, rows: int, turn: int) -> Sequence[tuple[int, NDArray[np.int64]]]:
        """The steps of a round at a client with so many rows, and the rows of each."""
        net = self.job.net
        batches = replace(net.batches(rows), epochs=self.job.rounds * net.epochs)
        many = net.epochs * batches.an_epoch
        return list(itertools.islice(batches.from_step(turn * many), many))

    def _work(self) -> float:
        net = self.job.net
        layers = [net.bottom(self.columns, 1), *net.tops(1, self.objective.outputs)]
        return float(sum(one.multiplications for one in layers)) * net.batch

    # The program.

    async def program(self, fed: Federation) -> SplitFedResult:
        """A session a round, then the average."""
        job = self.job
        state = await fed.restore({"round": 0, "shared": None, "top": None})
        for turn in range(int(state["round"]), job.rounds):
            begin = {"turn": turn, "shared": state["shared"]}
            roles = {name: (name, self.client.with_args(**begin)) for name in self.clients}
            found = await fed.session({**roles, TOP: (TOP, self.top.with_args(turn=turn))}, at=turn)
            shared = await fed.sum(fed.parties, self.give, reducer=job.reducer, quorum=len(self.clients), at=turn)
            state = {"round": turn + 1, "shared": shared["shared"], "top": found[TOP]["top"]}
            losses = [(one["loss"], one["steps"]) for one in found.values() if one.get("steps")]
            many = sum(count for _, count in losses)
            row = {"round": turn + 1, "loss": sum(loss for loss, _ in losses) / many}
            fed.record({**row, **self._score(self._result(state))})
            await fed.checkpoint(state)
        return self._result(state)

    def _result(self, state: Mapping[str, Any]) -> SplitFedResult:
        weights = {**state["shared"], **state["top"]}
        made = self.segments(("bottom", "trunk", "head"), weights)
        return SplitFedResult(self.job, self.objective, {name: one.packed() for name, one in made.items()})

    def _score(self, result: SplitFedResult) -> dict[str, float]:
        if self.test is None:
            return {}
        name, value = score(self.objective, self.test["y"], result.predict(self.test["x"]))
        return {f"test/{name}": value}

    def facts(self, outcome: SplitFedResult) -> Mapping[str, Any]:
        """The measure of the test rows."""
        return {"result": self._score(outcome)}

    def files(self, outcome: SplitFedResult) -> Mapping[str, bytes]:
        """The network, which `SplitFedResult.load` reads."""
        objective = {"name": outcome.objective.name, "outputs": outcome.objective.outputs}
        return {_FILE: message.encode({"objective": objective, "parts": dict(outcome.parts)})}

    # The tasks.

    async def _client(self, island: Island, peers: Peers, *, turn: int, shared: Any) -> dict[str, Any]:
        """A client's role in a round: send embeddings, take gradients; the rest follows from its place in the network."""
        torch, net, objective = load_torch(), self.job.net, self.objective
        rows = ClientRows.of(island.data, net, objective)
        at_top = net.shape == "label"
        opening = {"rows": len(rows), **({"y": np.asarray(rows.y.numpy())} if at_top else {})}
        await peers.send(TOP, opening)
        own, kept = self.segments(self.of_clients), island.state or {}
        for name, one in own.items():
            if kept:
                one.restore({**kept[name], "weights": shared[name]})
        made = Rng.of(net.seed).child("modules", island.name)
        modules = [
            HostModules(one, net.width, self.columns, made.child(k), island.secret, net.precision, kept.get(f"module-{k}"))
            for k, one in enumerate(one for one in net.defence if isinstance(one, SunModules))
        ]  # fmt: skip
        cut, loss, steps = net.cut(peers), 0.0, self.steps(len(rows), turn)
        with few_threads(self._work()):
            for step, at in steps:
                embedding = own["bottom"](rows.x[at])
                sent = await cut.send(TOP, step, embedding, "up")
                if not at_top:
                    shape = (len(at), net.top[-1])
                    found = torch.from_numpy(await cut.recv(TOP, step, shape, "features")).requires_grad_()
                    error = loss_of(objective, own["head"](found), rows.y[at])
                    error.backward()
                    loss += float(error.detach())
                    await cut.send(TOP, step, net.hide_labels(found.grad, island.secret), "down")
                gradients = await cut.recv(TOP, step, (len(at), net.width), "gradients")
                if net.correction:
                    gradients += net.correction / len(at) * (embedding.detach().numpy() - sent)
                for module in modules:
                    module.penalty(rows.x[at], embedding).backward(retain_graph=True)
                embedding.backward(torch.from_numpy(gradients))
                for segment in own.values():
                    segment.step()
        state = {name: one.state() for name, one in own.items()}
        island.state = {**state, **{f"module-{k}": one.state() for k, one in enumerate(modules)}, "rows": len(rows)}
        return {} if at_top else {"loss": loss, "steps": len(steps)}

    def _give(self, island: Island, message: Any) -> dict[str, Mean]:
        """A client's part of the average."""
        del message
        kept = island.state
        return {"shared": Mean({name: kept[name]["weights"] for name in self.of_clients}, float(kept["rows"]))}

    async def _top(self, island: Island, peers: Peers, *, turn: int) -> dict[str, Any]:
        """The server's role in a round: one top for all clients, or one for each, which are averaged.

        Raises:
            MessageError: a client sent something of another form.
        """
        torch, net, job, objective = load_torch(), self.job.net, self.job, self.objective
        at_top = net.shape == "label"
        labels: dict[str, Any] = {}
        steps, rows = {}, {}
        for name in self.clients:
            rows[name], y = read_client(await peers.recv(name), name, objective, labels=at_top)
            labels[name] = None if y is None else targets_of(y, net, objective)
            steps[name] = self.steps(rows[name], turn)
        kept, tops = island.state or {}, {}
        places = self.clients if job.version == 1 else ["all"]
        for place in places:
            tops[place] = self.segments(self.of_top)
            for name, one in tops[place].items() if kept else ():
                one.restore(kept[place][name])
        cut, loss = net.cut(peers), 0.0
        turns = ((name, one) for k in range(max(map(len, steps.values()))) for name in self.clients for one in steps[name][k : k + 1])  # fmt: skip
        with few_threads(self._work()):
            for name, (step, at) in turns:
                top = tops[name if job.version == 1 else "all"]
                got = await cut.recv(name, step, (len(at), net.width), "embeddings")
                embedding = torch.from_numpy(got).requires_grad_()
                found = top["trunk"](embedding)
                if at_top:
                    error = loss_of(objective, top["head"](found), labels[name][at])
                    error.backward()
                    loss += float(error.detach())
                else:
                    await cut.send(name, step, found, "up")
                    found.backward(torch.from_numpy(await cut.recv(name, step, tuple(found.shape), "gradients")))
                await cut.send(name, step, embedding.grad, "down")
                for segment in top.values():
                    segment.step()
        states = {place: {name: one.state() for name, one in top.items()} for place, top in tops.items()}
        share = {place: rows.get(place, 1) / sum(rows.get(each, 1) for each in places) for place in places}
        average = {
            name: sum(share[place] * states[place][name]["weights"] for place in places).astype(net.precision)
            for name in self.of_top
        }
        island.state = {
            place: {name: {**one, "weights": average[name]} for name, one in each.items()}
            for place, each in states.items()
        }
        return {"top": average, **({"loss": loss, "steps": sum(map(len, steps.values()))} if at_top else {})}


@dataclass(frozen=True)
class SplitFedResult:
    """A trained network.

    Attributes:
        job: the job.
        objective: the loss.
        parts: ``bottom``, ``trunk`` and ``head``: layers and weights.
    """

    job: SplitFed
    objective: TreeLoss
    parts: Mapping[str, Any]

    @classmethod
    def load(cls, folder: Path | str, job: SplitFed) -> SplitFedResult:
        """The network in a run folder, also of a job between organisations.

        Args:
            folder: the run folder.
            job: the job that trained it.

        Raises:
            ConfigError: there is none.
        """
        try:
            found: Any = message.decode((Path(folder) / _FILE).read_bytes())
            objective = TreeLoss(str(found["objective"]["name"]), int(found["objective"]["outputs"]))
            return cls(job, objective, dict(found["parts"]))
        except (OSError, MessageError, KeyError, TypeError) as error:
            raise ConfigError(f"no trained network in {folder}", where="SplitFed", remedy="name the run folder of a job of SplitFed that has finished") from error  # fmt: skip

    def predict(self, x: NDArray[Any]) -> NDArray[Any]:
        """Predictions of rows, ``(rows, outputs)``: of two classes the probability of the second, of more those of all, or numbers."""
        found = np.asarray(x, self.job.net.precision).reshape(len(x), -1)
        for name in ("bottom", "trunk", "head"):
            found = apply_layers(self.parts[name], found)
        return self.objective.predict(found)
