"""A script as a learner: its processes train, and everything else of a training stays as it is."""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from atoll.core import message as M
from atoll.core.algebra.aggregate import Aggregate, Mean, Parts
from atoll.core.algebra.rng import Rng
from atoll.core.algebra.tree import Tree, items
from atoll.core.capability import Capability
from atoll.core.errors import AtollError, ConfigError, TaskError
from atoll.core.facets import facet
from atoll.core.requests.task import Task, Workload
from atoll.learn.algorithm import LocalWork, Stateful
from atoll.learn.capabilities import TRAINING
from atoll.learn.learner import LearnerSettings
from atoll.learn.local.opaque import epochs_done
from atoll.learn.local.partial import asked_epochs, coming_epochs, whole_times
from atoll.learn.local.reports import Reporting, as_reports
from atoll.learn.local.update import finished, started
from atoll.learn.offered import SupportsScores, require_fit
from atoll.learn.round.scoring import as_parts

from .body import body_of
from .crowd import ScriptCrowd
from .running import RunningScript, ScriptOrder, ended_by_signal

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.core.requests.island import Island

    from .script import Script

__all__ = ["ScriptLearner"]

_LOG = logging.getLogger("atoll.models")


class ScriptLearner(Reporting):
    """A script as a learner. The algorithm's ``start`` and ``finish`` run as usual, with the script instead of its steps.

    A script that a signal ends in the middle of a round is started once more and asked the same. Any other failure is a `TaskError` of its
    client. If a request asks for twice the algorithm's epochs, the script is asked twice, each time from the last result.

    Args:
        script: the script.
        settings: the training's settings.
        data: the federated data set.
    """

    offers: ClassVar[frozenset[Capability]] = frozenset({TRAINING})
    metrics = None  # the script names them
    wants_round = True
    reports = ("loss",)

    def __init__(self, script: Script, settings: LearnerSettings, data: Any) -> None:
        require_fit(settings.algorithm, "Script", self.offers)
        self.script, self.algorithm = script, settings.algorithm
        self.body = body_of(script.model, settings, data)
        file = script.file()
        self.order = ScriptOrder(
            tuple(script.words(file)),
            script.script,
            script.folder,
            dict(script.environment),
            script.log,
            script.patience,
            str(file.parent),
        )
        self.crowd = ScriptCrowd(script.alive)
        self.train = Task("atoll.models.script:train", self._train, load=self._load)
        self.measure = Task("atoll.models.script:measure", self._measure)
        self.report = self.survey("atoll.models.script:report")
        if not script.evaluates and isinstance(self.body.learner, SupportsScores):
            self.scores = self.body.learner.scores

    def init(self, rng: Rng) -> Tree:
        """Return the model's first parameters."""
        return self.body.init(rng)

    def buffers(self) -> Tree:
        """Return the running statistics, averaged like the parameters."""
        return self.body.buffers()

    def check(self, data: Any) -> None:
        """Accept all data: the script decides what it reads."""

    def evaluate(self, params: Tree, data: Any) -> dict[str, float]:
        """Return sums over a data set, of a model that Atoll can measure; else the number of rows."""
        if self.body.learner is None or self.script.evaluates:
            return {"n": float(len(data))}
        found: dict[str, float] = self.body.learner.evaluate(params, data)
        return found

    def export(self, params: Tree) -> Any:
        """Return a model of the user's kind."""
        return params if self.body.learner is None else self.body.learner.export(params)

    def close(self) -> None:
        """Let the scripts of this process end."""
        self.crowd.close()

    # ------------------------------------------------------------------ tasks

    def _load(self, sizes: NDArray[np.int64], args: Any, message: Tree) -> Workload:
        del args
        times = whole_times(self.algorithm, coming_epochs(self.algorithm, message))
        return Workload(sizes.astype(np.float64), np.zeros(len(sizes)), np.full(len(sizes), float(times)))

    def _train(self, island: Island, message: Tree) -> dict[str, Aggregate]:
        asked, epochs, broadcast = self._asked(message), asked_epochs(self.algorithm, message), message["broadcast"]
        client = (
            facet(self.algorithm, Stateful).client_init(broadcast["params"]) if island.state is None else island.state
        )
        local = started(self.algorithm, broadcast, client)
        given = {**local["params"], **broadcast.get("buffers", {})}
        answer: Tree = {}
        for time in range(whole_times(self.algorithm, epochs)):
            stream = island.rng.child("again", time) if time else island.rng
            answer = self._answer(island, "train", given, broadcast, stream)
            given = answer["model"]
        buffers = {name: given[name] for name in broadcast.get("buffers", {})}
        trained = {name: value for name, value in given.items() if name not in buffers}
        rows = _rows(island) if answer["examples"] is None else answer["examples"]
        work = LocalWork(rows, epochs_done(self.algorithm, epochs))
        reply, state = finished(self.algorithm, {**local, "params": trained}, broadcast, client, work)
        if state is not None:
            island.state = state
        if buffers:
            reply["buffers"] = Mean(buffers, examples=rows, role="buffer")
        taken = sorted(answer["metrics"].keys() & reply.keys())
        if taken:
            raise ConfigError(
                f"the script replied with a metric {taken[0]!r}, which {type(self.algorithm).__name__} replies with",
                where=f"{self.script.script} at {island.name}",
                remedy="give the metric another name",
            )
        told = {
            name: Mean(np.float64(value), examples=rows, role="metric") for name, value in answer["metrics"].items()
        }
        loss = {"n": rows, **({"loss_sum": answer["metrics"]["loss"] * rows} if "loss" in answer["metrics"] else {})}
        return {**reply, **told, **as_reports({name: self._loss_of(loss, int(rows), name) for name in asked})}

    def _measure(self, island: Island, message: Tree) -> dict[str, Parts]:
        params = message["params"]
        if not self.script.evaluates:
            return as_parts(self.evaluate(params, island.data))
        answer = self._answer(island, "evaluate", params, {}, island.rng)
        rows = _rows(island) if answer["examples"] is None else answer["examples"]
        return as_parts({"n": rows, **{name: value * rows for name, value in answer["metrics"].items()}})

    # ------------------------------------------------------------------ the conversation

    def _answer(self, island: Island, kind: str, model: Tree, broadcast: Tree, rng: Rng) -> Tree:
        """Ask a client's script, once more if a signal has ended it; return its checked reply."""
        own = {"lr": broadcast["lr"]} if "lr" in broadcast else {}
        task = {
            "id": island.request, "round": int(broadcast.get("round", 0)), "kind": kind, "model": model, "seed": rng.key >> 1,
            "settings": {"epochs": self.algorithm.epochs, **own, **self.script.settings},
        }  # fmt: skip
        try:
            reply = self._once(island, task)
        except TaskError as error:
            if not ended_by_signal(error):
                raise
            _LOG.warning("%s It begins once more", error)
            reply = self._once(island, task)
        if self.script.between == "restart":
            self.crowd.end(island.name)
        return self._checked(reply, model if kind == "train" else {}, f"{self.script.script} at {island.name}")

    def _once(self, island: Island, task: Tree) -> Tree:
        running = self.crowd.at(island.name, lambda: self._start(island.name, task))
        try:
            return running.ask(task, lambda: _told_rows(island))
        except BaseException:
            self.crowd.drop(island.name)
            raise

    def _start(self, client: str, task: Tree) -> RunningScript:
        hello = {
            "settings": dict(self.script.settings), "form": self.body.form, "fixed": dict(self.body.fixed),
            "aliases": dict(self.body.aliases), "release": self.script.between == "release",
        }  # fmt: skip
        return RunningScript(self.order.at(client), client, hello, 2 * M.nbytes(task))

    def _checked(self, reply: Tree, like: Tree, where: str) -> Tree:
        """Refuse a reply of another form: it comes from a process that may say anything."""
        wrong = ""
        model, examples, metrics = (reply.get(name) for name in ("model", "examples", "metrics"))
        if examples is not None and not (isinstance(examples, float) and 0 <= examples < math.inf):
            wrong = f"examples={examples!r}"
        elif not isinstance(metrics, dict) or not all(isinstance(value, float) for value in metrics.values()):
            wrong = f"metrics={metrics!r}"
        elif like and (not isinstance(model, dict) or _form(model) != _form(like)):
            wrong = "parameters of other names, shapes or kinds"
        if wrong:
            raise TaskError(
                f"the script replied with {wrong}",
                where=where,
                remedy="reply with task.reply, which checks what it sends",
            )
        return reply


def _form(tree: Tree) -> dict[str, tuple[Any, ...]]:
    return {path: (np.shape(leaf), getattr(leaf, "dtype", None)) for path, leaf in items(tree)}


def _rows(island: Island) -> float:
    """Return how many rows a client has."""
    try:
        return float(len(island.data))
    except TypeError as error:
        raise TaskError(
            "the script did not say how many examples its reply stands for, and the client's data has no length",
            where=island.name,
            remedy="say it: task.reply(model, examples=n)",
        ) from error


def _told_rows(island: Island) -> Tree:
    """Return a client's rows as a message, or why there are none."""
    data = island.data
    try:
        columns = {name: np.asarray(data[name]) for name in data.columns}
    except (AtollError, AttributeError, TypeError):
        return {"lacks": f"the data of {island.name} are a {type(data).__name__}, which has no columns"}
    about = getattr(data, "about", None)
    return {
        "columns": columns, "task": getattr(about, "task", None), "classes": getattr(about, "classes", None),
        "labels": list(getattr(about, "labels", ())),
    }  # fmt: skip
