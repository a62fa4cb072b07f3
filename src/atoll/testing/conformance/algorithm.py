"""What every learning algorithm must do, whatever it computes, and every learner with requests for other amounts of work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core import message as M
from atoll.core.algebra import tree as T
from atoll.core.algebra.aggregate import Aggregate, Totals, merge_totals
from atoll.core.algebra.rng import Rng
from atoll.core.algebra.tree import Tree
from atoll.core.facets import facet
from atoll.core.requests.results import Combined
from atoll.learn.algorithm import Phased
from atoll.learn.round.evaluation import held_model

from .laws import close, require, same

if TYPE_CHECKING:
    from atoll.core.federation.federation import Federation
    from atoll.learn.algorithm import Algorithm
    from atoll.learn.training import Training

__all__ = ["check_algorithm", "check_learner"]

_CLIENTS = 5


def check_algorithm(algorithm: Algorithm, *, rounds: int = 3, descends: bool = True, seed: int = 0) -> None:
    """Require an algorithm to keep the contract of ``Algorithm``, on a small least-squares problem over five clients.

    * Its state holds ``"params"``, and every broadcast does; both are messages.
    * A reply is a dict of aggregates; shapes and dtypes of parameters stay what they are, for float32 and float64.
    * It is pure: it changes none of its inputs, and the same input gives the same output.
    * It is resumable: from its encoded and decoded state it reaches the same next state to the bit.
    * It continues when only some of the clients reply, unless its card says that it needs everyone.
    * ``descends``: the loss is smaller after ``rounds`` than before.

    Args:
        algorithm: the algorithm, with settings that suit losses of curvature about 1.
        rounds: how many rounds to run.
        descends: whether the loss must fall.
        seed: of the problem and the mini-batches.

    Raises:
        AssertionError: it breaks the contract.
    """
    for dtype in (np.float32, np.float64):
        problem = _Problem(algorithm, seed, dtype)
        first = last = problem.start()
        for number in range(1, rounds + 1):
            some = number == 2 and not algorithm.card.everyone
            last = problem.round(last, number, 3 if some else _CLIENTS)
        before, after = problem.loss(first["params"]), problem.loss(last["params"])
        require(not descends or after < before, f"{problem.name}: the loss went from {before:g} to {after:g}")


class _Problem:
    """Least squares over a few clients of different sizes."""

    def __init__(self, algorithm: Algorithm, seed: int, dtype: Any) -> None:
        self.algorithm = algorithm
        self.name = f"{type(algorithm).__name__} with {np.dtype(dtype).name}"
        self.dtype = dtype
        self.rng = Rng.of(seed)
        draw = self.rng.child("data").generator()
        truth = draw.normal(size=(3, 2))
        self.data = []
        for i in range(_CLIENTS):
            x = draw.normal(size=(6 + 3 * i, 3))
            self.data.append((x.astype(dtype), (x @ truth + 0.1 * draw.normal(size=(len(x), 2))).astype(dtype)))
        self.clients: dict[int, Tree] = {}

    def start(self) -> Tree:
        params = {"weight": np.zeros((3, 2), self.dtype), "bias": np.zeros(2, self.dtype)}
        state = self.algorithm.init(params)
        require(isinstance(state, dict) and "params" in state, f"{self.name}: init gives no state with 'params'")
        self._fits(state["params"], "init")
        self.clients = dict.fromkeys(range(_CLIENTS))
        return state

    def _fits(self, params: Tree, where: str) -> None:
        wanted = {"weight": (3, 2), "bias": (2,)}
        require(set(params) == set(wanted), f"{self.name}: {where} leaves parameters {sorted(params)}")
        for name, shape in wanted.items():
            leaf = params[name]
            require(np.shape(leaf) == shape, f"{self.name}: {where} gives {name} the shape {np.shape(leaf)}")
            require(leaf.dtype == self.dtype, f"{self.name}: {where} makes {name} {leaf.dtype}")
            require(np.isfinite(leaf).all(), f"{self.name}: {where} makes {name} not finite")

    def gradient(self, params: Tree, x: Any, y: Any) -> tuple[float, Tree]:
        off = x @ params["weight"] + params["bias"] - y
        scale = self.dtype(1.0 / len(x))
        return float((off**2).sum() / (2 * len(x))), {"weight": x.T @ off * scale, "bias": off.sum(axis=0) * scale}

    def curvature(self, params: Tree, x: Any, y: Any, vector: Tree) -> Tree:
        del params, y
        turn, scale = x @ vector["weight"] + vector["bias"], self.dtype(1.0 / len(x))
        return {"weight": x.T @ turn * scale, "bias": turn.sum(axis=0) * scale}

    def loss(self, params: Tree) -> float:
        rows = [(self.gradient(params, x, y)[0], len(x)) for x, y in self.data]
        return sum(loss * n for loss, n in rows) / sum(n for _, n in rows)

    def round(self, state: Tree, number: int, replied: int) -> Tree:
        """Run one round twice: from the state, and from what a checkpoint would restore."""
        kept = M.encode({"state": state, "clients": {str(i): c for i, c in self.clients.items()}})
        again = M.decode(kept, copy=True)
        other = {int(i): c for i, c in again["clients"].items()}
        ours, clients = self._once(state, dict(self.clients), number, replied)
        theirs, others = self._once(again["state"], other, number, replied)
        same(ours, theirs, f"{self.name}: round {number} from a checkpoint")
        for i, client in clients.items():
            same(client, others[i], f"{self.name}: state of client {i} after round {number} from a checkpoint")
        unchanged = M.encode({"state": state, "clients": {str(i): c for i, c in self.clients.items()}})
        require(unchanged == kept, f"{self.name}: round {number} changes what it was given")
        self.clients = clients
        return ours

    def _once(self, state: Tree, clients: dict[int, Tree], number: int, replied: int) -> tuple[Tree, dict[int, Tree]]:
        from atoll.learn.algorithm import RoundInfo
        from atoll.learn.local.update import local_contact

        for phase in self.algorithm.plan(state):
            if not facet(self.algorithm, Phased).wanted(state, phase):
                continue
            broadcast = self.algorithm.broadcast(state, phase)
            require("params" in broadcast, f"{self.name}: the broadcast of phase {phase!r} holds no 'params'")
            M.encode(broadcast)
            totals: list[Totals] = []
            for i, (x, y) in list(enumerate(self.data))[:replied]:
                key = self.rng.child(number, phase, i).key
                reply, kept, _ = local_contact(
                    self.algorithm, phase, self.gradient, broadcast, clients[i], x, y, key, self.curvature
                )
                clients[i] = clients[i] if kept is None else kept
                self._is_reply(reply, phase)
                totals.append({name: aggregate.total() for name, aggregate in reply.items()})
            sums = {name: total.result() for name, total in merge_totals(totals).items()}
            info = RoundInfo(number, _CLIENTS, replied, _CLIENTS, rng=self.rng.child("server", number))
            state = self.algorithm.fold(state, sums, info, phase)
            self._fits(state["params"], f"the fold of phase {phase!r}")
        info = RoundInfo(number, _CLIENTS, replied, _CLIENTS, rng=self.rng.child("server", number))
        return facet(self.algorithm, Phased).advance(state, info), clients

    def _is_reply(self, reply: Any, phase: str) -> None:
        right = isinstance(reply, dict) and reply and all(isinstance(v, Aggregate) for v in reply.values())
        if not right:
            raise AssertionError(f"{self.name}: the reply of phase {phase!r} is not a dict of aggregates: {reply!r}")
        for name, aggregate in reply.items():
            for path, leaf in T.items(aggregate.value):
                kept = (
                    not hasattr(leaf, "dtype")
                    or leaf.dtype.kind != "f"
                    or leaf.dtype == self.dtype
                    or np.ndim(leaf) == 0
                )
                require(kept, f"{self.name}: {name}/{path} of the reply is {getattr(leaf, 'dtype', None)}")


# ---------------------------------------------------------------- what every learner must do with requests for other amounts of work and for reports

_ENGINES = ("inline", "batched", "processes")


def check_learner(
    job: Training,
    islands: Any,
    *,
    epochs: int = 3,
    reports: Mapping[str, Any] | None = None,
    engines: Sequence[Any] = _ENGINES,
    seed: int = 0,
    tolerance: float = 1e-4,
    by_examples: bool = True,
) -> None:
    """Require a job's learner to keep the protocol of partial work and reports.

    * A request for the algorithm's own number of epochs gives the same as no request, to the bit.
    * Reports change nothing else in a reply, to the bit; each has the client's rows as its weight.
    * The metric ``loss`` is the mean, by examples, of the reported losses.
    * A survey returns for every client what ``report_of`` returns for its data.
    * Partial work and reports are the same on all engines, over two rounds (so that private state is used), in values
      and in bytes.

    Args:
        job: model and algorithm; only the last phase of a round runs, twice from the same broadcast.
        islands: a few clients of different sizes.
        epochs: how many to ask for, different from the algorithm's own number.
        reports: the reports to ask for; ``None`` is ``{"loss": None}``.
        engines: the engines to compare with the first of them.
        seed: of the run.
        tolerance: between engines, relative to ``1 + |x|``.
        by_examples: whether the metric ``loss`` is a mean by examples, so that reported losses must have the same mean.

    Raises:
        AssertionError: it breaks the protocol.
    """
    asked = {"loss": None} if reports is None else dict(reports)
    name = type(job.model).__name__
    runs = [_Run(job, islands, engine, seed) for engine in engines]
    first = runs[0]
    own = job.algorithm.epochs if job.algorithm.steps is None else job.algorithm.steps
    same(
        first.train_twice(epochs=own),
        first.train_twice(),
        f"{name}: the algorithm's own number of epochs, asked for or not",
    )
    partial, survey = first.train_twice(epochs=epochs, reports=asked), first.run_survey(asked)
    without = {key: value for key, value in partial["value"].items() if not key.startswith("report/")}
    same(without, first.train_twice(epochs=epochs)["value"], f"{name}: a reply with reports and one without")
    require(not M.equal(without, first.train_twice()["value"]), f"{name}: {epochs} epochs give what {own} give")
    _check_reports(first, partial["value"], survey["value"], asked, by_examples)
    for other in runs[1:]:
        close(
            other.train_twice(epochs=epochs, reports=asked), partial, f"{name}: training on {other.engine}", tolerance
        )
        close(other.run_survey(asked), survey, f"{name}: a survey on {other.engine}", tolerance)


class _Run:
    """Requests to a learner on an engine, each in its own world, so that all have the same keys."""

    def __init__(self, job: Training, islands: Any, engine: Any, seed: int) -> None:
        self.job, self.islands, self.engine, self.seed = job, islands, engine, seed
        self.learner = job.learner(islands)
        self.params = self.learner.init(Rng.of(seed))

    def train_twice(self, **more: Any) -> Tree:
        """Return the second of two contacts."""
        algorithm, buffers = self.job.algorithm, self.learner.buffers()
        phase = algorithm.phases[-1]
        sent = {**algorithm.broadcast(algorithm.init(self.params), phase), **({"buffers": buffers} if buffers else {})}

        async def program(fed: Federation) -> Tree:
            for number in range(2):
                message = {"broadcast": sent, "phase": phase, **more}
                got = await fed.sum(fed.parties, self.learner.train, message, at=number)
            return _plain(got)

        return self._simulate(program)

    def run_survey(self, reports: Mapping[str, Any]) -> Tree:
        """Return a survey."""
        message = {"params": self.model, "reports": dict(reports)}

        async def program(fed: Federation) -> Tree:
            return _plain(await fed.sum(fed.parties, self.learner.report, message))

        return self._simulate(program)

    @property
    def model(self) -> Tree:
        """Return the parameters and what travels with them, as a client has them that has not trained."""
        return held_model(self.learner, {**self.params, **self.learner.buffers()}, None)[0]

    def _simulate(self, program: Any) -> Tree:
        from atoll.simulation import simulate

        tasks = [self.learner.train, self.learner.report]
        return simulate(program, self.islands, tasks=tasks, engine=self.engine, seed=self.seed)


def _check_reports(run: _Run, partial: Tree, survey: Tree, asked: Mapping[str, Any], by_examples: bool) -> None:
    name = type(run.job.model).__name__
    shards = [run.islands.shard(i) for i in range(len(run.islands))]
    for report in asked:
        for found in (partial, survey):
            weights = [part["weight"] for part in found[f"report/{report}"]]
            same(weights, [float(len(shard)) for shard in shards], f"{name}: weights of {report!r}")
        for i, shard in enumerate(shards):
            told = survey[f"report/{report}"][i]["value"]
            again = run.learner.report_of(run.model, shard, {report: asked[report]})[report]
            close(told, again, f"{name}: {report!r} of client {i} in a survey", 1e-5)
    if "loss" in asked:
        told = partial["report/loss"]
        mean = sum(part["value"] * part["weight"] for part in told) / sum(part["weight"] for part in told)
        require(any(part["value"] != 0 for part in told), f"{name}: no client reports a loss")
        if by_examples:
            close(float(mean), float(partial["loss"]), f"{name}: the mean of reported losses", 1e-5)


def _plain(got: Combined) -> Tree:
    """Return a request's results as a tree."""

    def plain(value: Any) -> Any:
        return [{"value": p.value, "weight": p.weight} for p in value] if isinstance(value, list) else value

    value = {name: plain(value) for name, value in got.value.items()}
    return {"value": value, "weight": got.weight, "bytes": got.bytes_up, "who": got.senders.names}
