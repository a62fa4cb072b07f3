"""A user's training script as a model: run as a process of its own at each client, and asked in `atoll.client`'s words."""

from __future__ import annotations

import logging
import math
import multiprocessing
import multiprocessing.util
import os
import sys
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np

from atoll.client.connection import MOST_EXAMPLES
from atoll.core import message as M
from atoll.core.addresses import load_object
from atoll.core.algebra import tree as T
from atoll.core.algebra.aggregate import Aggregate, Parts
from atoll.core.algebra.rng import Rng
from atoll.core.algebra.tree import Tree, items
from atoll.core.calls import checked_call
from atoll.core.capability import Capability
from atoll.core.errors import AtollError, ConfigError, TaskError
from atoll.core.facets import facet
from atoll.core.requests.task import Task, Workload
from atoll.core.rooms import Named
from atoll.learn.algorithm import LocalWork, Stateful
from atoll.learn.capabilities import TRAINING
from atoll.learn.learner import LearnerSettings, SupportsNotices, SupportsScores, adapt, require_fit
from atoll.learn.local.opaque import epochs_done
from atoll.learn.local.reports import BUFFERS, Reporting, as_metrics, as_reports, buffer_replies
from atoll.learn.local.update import asked_epochs, coming_epochs, finish_update, start_update, whole_times
from atoll.learn.round.evaluation import as_parts, rows_measured

from .script_process import RunningScript, ScriptOrder, ended_by_signal

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.core.requests.island import Island

__all__ = ["Script", "ScriptBody", "ScriptCrowd", "ScriptLearner", "body_of", "script"]

# A training script as a model: what to run, and what is trained.


@dataclass(frozen=True, kw_only=True)
class Script:
    """A training script as a client; see `atoll.client` for what it adds.

    Every client has a process of its own. It begins when the client is first asked, lives through the rounds, and ends with the job. Between
    Atoll and the script, messages cross a pair of sockets: arrays and plain values, never pickle. In ``arguments``, ``folder``, ``environment`` and
    ``log``, ``{client}`` is the client's name and ``{source}`` the script's folder on its machine: a job's files are beside the script.

    Attributes:
        script: a Python file, relative to the source folder of a job, or to the working folder.
        model: what is trained: a PyTorch module or estimator, a dict of arrays, or a function that makes one (in a file: a part, as in
            ``{name: "nets:net", hidden: 16}``). Its trainable parameters travel. Atoll measures PyTorch modules and estimators on the server's rows.
        speaks: how it talks: ``atoll`` (`atoll.client`), or ``nvflare``: a script of NVFlare's client API, unchanged.
        arguments: the script's command line.
        command: what runs the script instead of this Python, such as ``["python3.12"]``. It must hand down open files.
        folder: its working folder; by default that of the job's process.
        environment: environment variables, besides those of the job's process.
        log: a file that its output is added to, instead of the job's log.
        settings: plain values for the script, ``task.settings``.
        evaluates: whether it also answers tasks of the kind ``evaluate``, for ``Evaluation(clients=...)``; then Atoll measures nothing itself.
        between: between rounds ``keep`` the process as it is, ``release`` the unused memory of accelerators, or ``restart`` it.
        patience: seconds without progress (a message, output or processor time) after which it counts as hung.
        alive: most processes that one worker keeps at once; the one that was idle longest ends, and begins again when its client is asked.
    """

    part: ClassVar[str] = "script"
    """Its name in a configuration."""

    script: str
    model: Annotated[Any, Named("model")]
    speaks: Literal["atoll", "nvflare"] = "atoll"
    arguments: Sequence[str] = ()
    command: Sequence[str] = ()
    folder: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    log: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    evaluates: bool = False
    between: Literal["keep", "release", "restart"] = "keep"
    patience: float = 600.0
    alive: int = 8

    def __post_init__(self) -> None:
        if self.between not in ("keep", "release", "restart"):
            raise ConfigError(f"between={self.between!r}", where="Script", remedy="use keep, release or restart")
        if self.speaks not in ("atoll", "nvflare"):
            raise ConfigError(f"speaks={self.speaks!r}", where="Script", remedy="use 'atoll' or 'nvflare'")
        if not 0 < self.patience < math.inf:
            raise ConfigError(f"patience={self.patience}", where="Script", remedy="use seconds above 0, such as 600.0")
        if self.alive < 1:
            raise ConfigError(f"alive={self.alive}", where="Script", remedy="use at least 1 process")
        if self.script.startswith("-"):
            raise ConfigError(
                f"script={self.script!r}", where="Script", remedy="name a Python file, such as 'train.py'"
            )

    def learner(self, settings: LearnerSettings, data: Any) -> Any:
        """Return a learner for a training.

        Raises:
            ConfigError: there is no such script.
            CompositionError: the algorithm changes the local step, which is the script's own.
        """
        return ScriptLearner(self, settings, data)

    def words(self, file: Path) -> list[str]:
        """Return the command line that runs the script."""
        speaking = () if self.speaks == "atoll" else ("-m", "atoll.bridges.nvflare")
        return [*(self.command or (sys.executable, "-u")), *speaking, str(file), *self.arguments]

    def file(self) -> Path:
        """Return where the script is: in the folder of a job's modules, or in the working folder.

        Raises:
            ConfigError: it is not there.
        """
        if Path(self.script).is_absolute():
            places = [Path(self.script)]
        else:
            places = [Path(folder or ".") / self.script for folder in dict.fromkeys(["", *sys.path])]
        found = next((place for place in places if place.is_file()), None)
        if found is None:
            raise ConfigError(
                f"there is no script {self.script!r}",
                where="Script.script",
                remedy="name a file of the job's source folder, or of the working folder",
            )
        return found.resolve()


@checked_call
def script(
    script: str,
    model: Annotated[Any, Named("model")],
    speaks: Literal["atoll", "nvflare"] = "atoll",
    arguments: Sequence[str] = (),
    command: Sequence[str] = (),
    folder: str | None = None,
    environment: Mapping[str, str] | None = None,
    log: str | None = None,
    settings: Mapping[str, str | int | float | bool] | None = None,
    evaluates: bool = False,
    between: Literal["keep", "release", "restart"] = "keep",
    patience: float = 600.0,
    alive: int = 8,
) -> Script:
    """A training script that runs as a process of its own at each client; see `Script` for the settings."""
    return Script(
        script=script, model=model, speaks=speaks, arguments=tuple(arguments), command=tuple(command), folder=folder,
        environment=environment or {}, log=log, settings=settings or {}, evaluates=evaluates, between=between,
        patience=patience, alive=alive,
    )  # fmt: skip


# What a script trains: its first parameters, what else it must be told of them, and how Atoll itself measures the model.


_MODULES = "atoll.torch.custom:body_of"
"""What makes the body of a PyTorch module."""


@dataclass(frozen=True)
class ScriptBody:
    """A model that a script trains.

    Attributes:
        learner: makes, measures and exports the model; ``None`` for plain arrays.
        arrays: plain arrays to begin with.
        form: ``torch``: a script gets a state dict of tensors.
        fixed: entries of a state dict that do not travel.
        aliases: further names of tied parameters -> the name that travels.
    """

    learner: Any = None
    arrays: Tree = None
    form: str = "arrays"
    fixed: Mapping[str, Any] = field(default_factory=dict)
    aliases: Mapping[str, str] = field(default_factory=dict)

    def init(self, rng: Rng) -> Tree:
        """Return the first parameters."""
        return T.map(np.array, self.arrays) if self.learner is None else self.learner.init(rng)

    def buffers(self) -> Tree:
        """Return the buffers that travel."""
        return {} if self.learner is None else self.learner.buffers()


def body_of(model: Any, settings: LearnerSettings, data: Any) -> ScriptBody:
    """Return what is trained.

    Args:
        model: a PyTorch module, an estimator, a model of Atoll, a dict of arrays, a function that makes one, or ``module:name``.
        settings: the training's.
        data: the federated data set.

    Raises:
        ConfigError: it is none of these.
    """
    factory = None
    if isinstance(model, str):
        model = load_object(model)
    if callable(model) and not hasattr(model, "learner") and not _is_module(model):
        factory, model = model, _make_template(model)
    if _is_module(model):
        made = load_object(_MODULES)(model if factory is None else factory, model, settings, data)
        return ScriptBody(made[0], None, "torch", *made[1:])
    if isinstance(model, Mapping):
        return _of_arrays(model)
    made = adapt(model, settings, data) if factory is None else adapt(factory, settings, data)
    return ScriptBody(made)


def _is_module(model: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(model, torch.nn.Module)


def _make_template(factory: Any) -> Any:
    torch = sys.modules.get("torch")
    if torch is None:
        return factory()
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)  # what does not travel is the same in every process
        return factory()


def _of_arrays(model: Mapping[str, Any]) -> ScriptBody:
    torch = sys.modules.get("torch")
    tensors = [isinstance(value, torch.Tensor) for _, value in items(dict(model))] if torch is not None else [False]
    arrays = T.map(lambda value: np.array(value.detach().cpu() if hasattr(value, "detach") else value), dict(model))
    wrong = next((path for path, value in items(arrays) if value.dtype.kind != "f"), None)
    if wrong is not None or not items(arrays):
        raise ConfigError(
            "the model has no parameters" if wrong is None else f"parameter {wrong!r} is not of floating-point numbers",
            where="Script.model",
            remedy="give a dict of floating-point arrays",
        )
    return ScriptBody(None, arrays, "torch" if all(tensors) else "arrays")


# The scripts of all clients that one worker serves: started when they are needed, and no more of them at once than allowed.


_GRACE, _IN_WORKER = 10.0, 3.0
"""Seconds for scripts to end by themselves once their rounds are over; an engine waits less for its workers."""

_LOG = logging.getLogger("atoll.models")


class ScriptCrowd:
    """Running scripts by client, those used last at the end.

    Args:
        most: how many run at once.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._running: OrderedDict[str, RunningScript] = OrderedDict()
        self._owner = os.getpid()
        self._watched = False

    def at(self, client: str, start: Callable[[], RunningScript]) -> RunningScript:
        """Return a client's script, which begins now if it does not run."""
        self._claim()
        found = self._running.pop(client, None)
        if found is None:
            while len(self._running) >= self._most:
                self._end(next(iter(self._running)))
            found = start()
        self._running[client] = found
        return found

    def drop(self, client: str) -> None:
        """Kill a client's script."""
        found = self._running.pop(client, None)
        if found is not None:
            found.kill()

    def end(self, client: str) -> None:
        """Let a client's script end by itself."""
        if client in self._running:
            self._end(client)

    def close(self) -> None:
        """Let all scripts end."""
        if self._owner == os.getpid():
            _end_all(self._running, _GRACE)

    def _end(self, client: str) -> None:
        _end_all({client: self._running.pop(client)}, _GRACE)

    def _claim(self) -> None:
        """Own this crowd: a forked worker has a copy of its parent's, whose scripts are not its own."""
        if self._owner != os.getpid():
            self._owner, self._running, self._watched = os.getpid(), OrderedDict(), False
        if not self._watched:
            self._watched = True
            weakref.finalize(self, _end_all, self._running, _GRACE)
            if multiprocessing.parent_process() is not None:  # its exit runs no other finalizers
                multiprocessing.util.Finalize(self, _end_all, (self._running, _IN_WORKER), exitpriority=10)


def _end_all(running: MutableMapping[str, RunningScript], seconds: float) -> None:
    """Say to all scripts that the rounds are over, and wait for their ends together."""
    ending = []
    while running:
        ending.append(running.popitem()[1])
        ending[-1].finish()
    until = time.monotonic() + seconds
    for script in ending:
        wrong = script.ended_by(until)
        if wrong:
            _LOG.warning("%s", wrong)


# A script as a learner: its processes train, and everything else of a training stays as it is.


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
    takes_device = False
    metrics = None  # the script names them
    wants_round = True
    reports = ("loss",)

    def __init__(self, script: Script, settings: LearnerSettings, data: Any) -> None:
        require_fit(settings.algorithm, "Script", self.offers)
        self.script, self.algorithm, self.singly = script, settings.algorithm, settings.singly
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
        """Return the buffers that travel: all that the script may write."""
        return self.body.buffers()

    @property
    def notices(self) -> Sequence[str]:
        """Return how each of the model's buffers travels, as sentences."""
        learner = self.body.learner
        return learner.notices if isinstance(learner, SupportsNotices) else ()

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
        asked, epochs, broadcast = (
            self._list_requested(message),
            asked_epochs(self.algorithm, message),
            message["broadcast"],
        )
        client = (
            facet(self.algorithm, Stateful).client_init(broadcast["params"]) if island.state is None else island.state
        )
        local = start_update(self.algorithm, broadcast, client)
        given = {**local["params"], **broadcast.get("buffers", {})}
        answer: Tree = {}
        for again in range(whole_times(self.algorithm, epochs)):
            stream = island.rng.child("again", again) if again else island.rng
            answer = self._answer(island, "train", given, broadcast, stream)
            given = answer["model"]
        received = broadcast.get(BUFFERS, {})
        buffers = {name: given[name] for name in received}
        trained = {name: value for name, value in given.items() if name not in buffers}
        rows = _rows(island) if answer["examples"] is None else answer["examples"]
        work = LocalWork(rows, epochs_done(self.algorithm, epochs))
        reply, state = finish_update(self.algorithm, {**local, "params": trained}, broadcast, client, work)
        if state is not None:
            island.state = state
        if buffers:
            reply |= buffer_replies(received, buffers, rows, singly=self.singly)
        taken = sorted(answer["metrics"].keys() & reply.keys())
        if taken:
            raise ConfigError(
                f"the script replied with a metric {taken[0]!r}, which {type(self.algorithm).__name__} replies with",
                where=f"{self.script.script} at {island.name}",
                remedy="give the metric another name",
            )
        told = as_metrics(answer["metrics"], rows)
        loss = {"n": rows, **({"loss_sum": answer["metrics"]["loss"] * rows} if "loss" in answer["metrics"] else {})}
        return {**reply, **told, **as_reports({name: self._loss_of(loss, rows, name) for name in asked})}

    def _measure(self, island: Island, message: Tree) -> dict[str, Parts]:
        params = message["params"]
        if not self.script.evaluates:
            return as_parts(self.evaluate(params, rows_measured(island.data)))
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
        return self._check_reply(reply, model if kind == "train" else {}, f"{self.script.script} at {island.name}")

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

    def _check_reply(self, reply: Tree, like: Tree, where: str) -> Tree:
        """Refuse a reply of another form: it comes from a process that may say anything."""
        wrong = ""
        model, examples, metrics = (reply.get(name) for name in ("model", "examples", "metrics"))
        if examples is not None and not (isinstance(examples, float) and 0 <= examples <= MOST_EXAMPLES):
            wrong = f"examples={examples!r}"
        elif not isinstance(metrics, dict) or not all(isinstance(value, float) for value in metrics.values()):
            wrong = f"metrics={metrics!r}"
        elif like and (not isinstance(model, dict) or _form(model) != _form(like)):
            wrong = "parameters of other names, shapes or kinds"
        if wrong:
            raise TaskError(
                f"the script replied with {wrong}",
                where=where,
                remedy="count the rows that the model was trained on, and call task.reply(model, examples=n) with n from 0 to 2^53; metrics are single numbers by name",
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
