"""A user's own training loop, per client."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import nn

from atoll.core.algebra.aggregate import Aggregate
from atoll.core.algebra.rng import Rng
from atoll.core.algebra.tree import Tree
from atoll.core.capability import Capability
from atoll.core.errors import CompositionError, ConfigError, DataError
from atoll.core.facets import facet
from atoll.core.requests.task import Task, Workload
from atoll.learn.algorithm import LocalWork, Stateful
from atoll.learn.capabilities import TRAINING
from atoll.learn.learner import factory_for, require_fit
from atoll.learn.local.opaque import epochs_done
from atoll.learn.local.own_loss import LossSignature
from atoll.learn.local.reports import BUFFERS, Reporting, as_metrics, as_reports, buffer_replies, training_passes
from atoll.learn.local.update import asked_epochs, coming_epochs, finish_update, start_update, whole_times
from atoll.learn.round.evaluation import as_parts, held_sums

from .backend import device_of
from .buffers import BufferRules, Holding, fixed_tensors, require_known
from .evaluate import evaluate, layer_of, profile
from .learner import example_of, loss_of_task
from .models import array_of, copy_owned, init, load, params_of, precision_of, shape_module
from .network import FunctionalModule
from .own_state import OwnState, seed_generators
from .shared_state import SharedState

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.core.requests.island import Island
    from atoll.learn.learner import Learner, LearnerSettings

__all__ = ["CustomLoop", "body_of", "untold_of"]

Loop = Callable[[nn.Module, Any, dict[str, Any], np.random.Generator], Any]


@dataclass
class CustomLoop:
    """Trains with the user's own function instead of an algorithm's steps.

    The algorithm's ``start`` and ``finish`` run as usual: it decides what is sent and how replies combine. Atoll
    refuses an algorithm that changes the local step itself (FedProx, Scaffold, Mime) before it contacts a client,
    because nothing would apply the change.

    Args:
        model: a module, or a callable that makes one; each client gets a fresh copy with the global parameters.
        fn: ``(model, shard, config, rng) -> metrics or None``: trains the module in place. ``shard`` is the client's
            data, ``config`` a copy of the plain settings below, ``rng`` a NumPy generator keyed by client and round.
            During the call PyTorch's global generator is seeded from the same key, and restored afterwards, so an
            ordinary loop with shuffling and dropout is reproducible. Returned numbers become metrics; selection rules
            see a ``"loss"`` among them, otherwise the trained module's loss. If a client is asked for twice the
            algorithm's epochs, it calls the function twice. An object, or a method of one, is copied, and begins with
            its first values for every client: what must last belongs into the module.
        config: plain settings for ``fn``.
        loss: for evaluation.
    """

    model: nn.Module | Callable[[], nn.Module]
    fn: Loop
    config: dict[str, Any] = field(default_factory=dict)
    loss: Any = "cross_entropy"

    def learner(self, settings: LearnerSettings, data: Any) -> _CustomLearner:
        """Return a learner for a training; the algorithm's server side folds the updates."""
        return _CustomLearner(self, settings, data)

    def run(
        self, module: nn.Module, shard: Any, key: int, changed: list[str] | None = None
    ) -> tuple[nn.Module, dict[str, float]]:
        """Train a copy of a module on one client's data, and add to ``changed`` which of its attributes the loop leaves with other values."""
        rng = Rng(key).child("custom-loop")
        made, owned = copy_owned(module)
        own = None if changed is None else OwnState(made, owned)
        made.train()
        with seed_generators(rng.key), _keep_switches():
            metrics = self.fn(made, shard, dict(self.config), rng.generator())
        if changed is not None and own is not None:
            changed += own.list_changes()
        if metrics is not None and not isinstance(metrics, dict):
            raise DataError(
                f"the training loop returned {type(metrics).__name__}",
                where=getattr(self.fn, "__name__", "custom loop"),
                remedy="return a dict of numbers, or nothing",
            )
        return made, {str(name): _number(str(name), value) for name, value in (metrics or {}).items()}


@contextmanager
def _keep_switches() -> Iterator[None]:
    """Put PyTorch's global switches back after a loop, so that the next client begins as this one did."""
    dtype, threads = torch.get_default_dtype(), torch.get_num_threads()
    try:
        with torch.set_grad_enabled(torch.is_grad_enabled()):
            yield
    finally:
        torch.set_default_dtype(dtype)
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)


def _number(name: str, value: Any) -> float:
    """Return a metric of a loop as a number.

    Raises:
        DataError: it is none.
    """
    try:
        return float(value)
    except (TypeError, ValueError) as error:
        raise DataError(
            f"the training loop returned metric {name!r} as a {type(value).__name__}",
            where="CustomLoop",
            remedy="return one number for each metric, such as loss.item(), or leave the metric out",
        ) from error


class _Findings:
    """What a loop turns out to change, in whichever process it runs.

    Attributes:
        loop: of its own, which is put back for every client.
        shared: of what nobody owns.
        loose: attributes of the model that are no buffers.
    """

    def __init__(self) -> None:
        self.loop, self.shared, self.loose = list[str](), list[str](), list[str]()

    def pack(self) -> dict[str, list[str]]:
        """Return what was found, by kind."""
        return {kind: list(names) for kind, names in vars(self).items() if names}

    def add(self, found: Mapping[str, Sequence[str]]) -> None:
        """Add what was found, here or in another process."""
        for kind, names in found.items():
            known = vars(self)[kind]
            known += [name for name in names if name not in known]


def _equal_arrays(one: np.ndarray, other: np.ndarray) -> bool:
    return bool(np.array_equal(one, other, equal_nan=one.dtype.kind in "fc"))


class _CustomLearner(Holding, Reporting):
    """A custom loop as a learner."""

    reports = ("loss", "profile")
    cast = "sent and measured"
    metrics = None  # the loop names them
    compiles = False
    offers: ClassVar[frozenset[Capability]] = frozenset({TRAINING})

    def __init__(self, loop: CustomLoop, settings: LearnerSettings, data: Any = None) -> None:
        require_fit(settings.algorithm, type(loop).__name__, self.offers)
        fn, self._own = OwnState.of_loss(loop.fn)
        self.loop = replace(loop, fn=fn)
        self._shared = SharedState([fn], self._own)
        self._findings = _Findings()
        self.example = example_of(data)
        self.model = (
            shape_module(loop.model, self.example, 0)
            if isinstance(loop.model, nn.Module)
            else init(loop.model, Rng.of(0), self.example)
        )
        self.factory = None if isinstance(loop.model, nn.Module) else factory_for(loop.model, data)
        self.device = device_of(settings.device)
        loss = loop.loss if settings.loss == "auto" else settings.loss
        LossSignature.of(loss).refuse_training("CustomLoop", "take it in the loop, and give a loss to evaluate")
        double = precision_of(self.model) == "float64" and self.device.type != "mps"
        self.network = FunctionalModule(self.model, loss, self.device, torch.float64 if double else torch.float32)
        self.rules, self.singly = BufferRules(settings.buffers), settings.singly
        steps = self.example if loop.fn is not _never else None
        self.plan = self.rules.all_of(self.network, steps)
        self.algorithm = settings.algorithm
        self.train = Task("atoll.torch:custom", self._train, load=self._load, findings=self._findings)
        self.measure = Task("atoll.torch:measure", self._measure)
        self.report = self.survey("atoll.torch:report")

    def init(self, rng: Rng) -> Tree:
        """Return the initial parameters."""
        return params_of(self.model if self.factory is None else init(self.factory, rng, self.example))

    def buffers(self) -> Tree:
        """Return the buffers that travel: all that the loop may write; see `atoll.torch.buffers`."""
        return self._buffers_of(self.model, self.plan.sent)

    @staticmethod
    def _buffers_of(module: nn.Module, names: Collection[str]) -> dict[str, np.ndarray]:
        tensors = (*module.named_parameters(), *module.named_buffers())  # a loop may have thawed what was frozen
        return {name: array_of(value) for name, value in tensors if name in names}

    @property
    def notices(self) -> Sequence[str]:
        """Return how buffers travel, and what of the loop and of the model lasts no longer than a client."""
        self.rules.note_loose(self._findings.loose)
        names = ", ".join(self._findings.loop)
        lost = f"The training loop changes {names}, and every client begins with its first value."
        found = [lost] if names else []
        if self._findings.shared:
            found.append(
                f"The training loop changes what clients and rounds share, so that a result can depend on their order: {', '.join(self._findings.shared)}. "
                "Keep what must last in the module, and what must not in an object whose method is the loop."
            )
        return [*super().notices, *found]

    def check(self, data: Any) -> None:
        """Do nothing: the loop decides what it reads."""

    def evaluate(self, params: Tree, data: Any) -> dict[str, float]:
        """Return sums over a data set."""
        self.require_held(params)
        return evaluate(self.network, params, data)

    def export(self, params: Tree) -> nn.Module:
        """Return a copy of the module with these parameters, in evaluation mode; see `Holding.export_module`."""
        return self.export_module(load(self.model, params).eval(), params)

    def _train(self, island: Island, message: Tree) -> dict[str, Aggregate]:
        broadcast, client = message["broadcast"], island.state
        buffers = dict(broadcast.get(BUFFERS, {}))
        if client is not None and self.plan.local:
            buffers, client = {**buffers, **client["buffers"]}, client["algorithm"]
        client = facet(self.algorithm, Stateful).client_init(broadcast["params"]) if client is None else client
        local = start_update(self.algorithm, broadcast, client)
        given = {**local["params"], **buffers}
        asked, n = self._list_requested(message), float(len(island.data))
        received, _ = self.held({**broadcast["params"], **buffers}, island.state)
        told = {
            name: self._make_report(name, options, received, island.data)
            for name, options in asked.items()
            if name != "loss"
        }
        known = {name for name, _ in fixed_tensors(self.model)}
        trained, metrics = load(self.model, given).to(self.device), dict[str, float]()
        epochs = asked_epochs(self.algorithm, message)
        self._own.restore()
        versions = {name: value._version for name, value in self.model.named_parameters()}
        changed = list[str]()
        with self.network.restoring():  # attributes of classes, which no copy has for itself
            for time in range(whole_times(self.algorithm, epochs)):
                stream = island.rng.child("again", time) if time else island.rng
                trained, metrics = self.loop.run(trained, island.data, stream.key, changed)
        self._require_unchanged(versions)
        params = self._read_params(trained)
        if not self._findings.loop:
            self._findings.add({"loop": self._own.list_changes()})
        if not self._findings.shared:
            self._findings.add({"shared": self._shared.list_changes()})
        self._findings.add({"loose": changed})
        self._own.restore()
        if "loss" in asked:
            ends = {**params, **self._buffers_of(trained, self.plan.names)}
            own = metrics.get("loss")
            kept = (np.float64(own), n) if own is not None and math.isfinite(own) else (np.float64(0.0), 0.0)
            told["loss"] = self._make_report("loss", {}, ends, island.data) if own is None else kept
        work = LocalWork(n, epochs_done(self.algorithm, epochs))
        reply, state = finish_update(self.algorithm, {**local, "params": params}, broadcast, client, work)
        before = {**self._buffers_of(self.model, known), **buffers}
        after = self._buffers_of(trained, known)
        self._require_sent(before, after)
        if self.plan.local:
            state = {"algorithm": state, "buffers": {name: after[name] for name in self.plan.local}}
        if state is not None:
            island.state = state
        if BUFFERS in broadcast:
            came, goes = ({name: some[name] for name in self.plan.sent} for some in (before, after))
            reply |= buffer_replies(came, goes, n, singly=self.singly)
        taken = sorted(metrics.keys() & reply.keys())
        if taken:
            raise ConfigError(
                f"the training loop returned a metric named {taken[0]!r}, which {type(self.algorithm).__name__} replies with",
                where="CustomLoop",
                remedy="give the metric another name",
            )
        reply.update(as_metrics(metrics, n))
        return {**reply, **as_reports({name: told[name] for name in asked})}

    def _require_unchanged(self, versions: Mapping[str, int]) -> None:
        """Refuse a loop that trains the model object that `CustomLoop` was given, as a notebook's global: clients would return what they were sent.

        Raises:
            CompositionError: a parameter of the object has been written.
        """
        written = [name for name, value in self.model.named_parameters() if value._version != versions[name]]
        if written:
            raise CompositionError(
                f"the training loop changes {written[0]!r} of the model object that CustomLoop was given, so that clients return the model that they were sent",
                where="CustomLoop",
                remedy="train the copy that the loop gets as its first argument",
            )

    def _require_sent(self, before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
        """Refuse a loop that changes what no rule lets travel.

        Raises:
            CompositionError: it trains what is frozen, or writes a buffer that training does not know.
        """
        # A buffer that a loop gives another form is made anew for every client.
        moved = [m for m in after if after[m].shape == before[m].shape and not _equal_arrays(after[m], before[m])]
        thawed = next((m for m in moved if m in self.network.still and m not in self.plan.names), None)
        if thawed is not None:
            raise CompositionError(
                f"the training loop trains {thawed!r}, which the model has frozen, so it is not sent",
                where="CustomLoop",
                remedy="give CustomLoop a model in which it requires a gradient, and freeze it in the loop while it is not to train",
            )
        require_known(self.plan, moved, self.network.title)

    def _read_params(self, trained: nn.Module) -> Tree:
        """Return what a loop leaves of the parameters that the model trains, frozen or not.

        Raises:
            CompositionError: the loop has made a model of another form.
        """
        ours, made = (
            {name: tuple(value.shape) for name, value in (*module.named_parameters(), *module.named_buffers())}
            for module in (self.model, trained)
        )
        sent = {*self.network.names, *self.plan.names}
        wrong = next((name for name in ours if name in sent and made.get(name) != ours[name]), None)
        more = next((name for name, _ in trained.named_parameters() if name not in ours), None)
        if wrong is not None or more is not None:
            form = (
                f"the parameter {more!r}, which the model does not have"
                if wrong is None
                else f"no {wrong!r}"
                if wrong not in made
                else f"{wrong!r} of shape {made[wrong]}, and the model has {ours[wrong]}"
            )
            raise CompositionError(
                f"the training loop leaves {form}, so that models of clients could not be averaged",
                where="CustomLoop",
                remedy="give CustomLoop a model of the form that the loop ends with, and remove in the loop what it adds for a while, such as prune.remove",
            )
        values = dict(trained.named_parameters())
        return {name: array_of(values[name]) for name in self.network.names}

    def _check_report(self, name: str, options: dict[str, Any]) -> None:
        if name == "profile":
            layer_of(self.model, options.get("layer", "auto"))

    def _make_report(self, name: str, options: dict[str, Any], params: Tree, data: Any) -> tuple[Tree, float]:
        if name != "profile":
            return super()._make_report(name, options, params, data)
        self.require_held(params)
        return profile(self.network, params, data, **options), float(len(data))

    def _load(self, sizes: NDArray[np.int64], args: Any, message: Tree) -> Workload:
        """Return the workload: one call of the loop is one pass over the data."""
        del args
        times = whole_times(self.algorithm, coming_epochs(self.algorithm, message))
        return Workload(
            sizes.astype(np.float64), np.zeros(len(sizes)), np.full(len(sizes), float(times + training_passes(message)))
        )

    def _measure(self, island: Island, message: Tree) -> Any:
        return as_parts(held_sums(self, message["params"], island.state, island.data))

    def _report(self, island: Island, message: Tree) -> dict[str, Aggregate]:
        return super()._report(island, {**message, "params": self.held(message["params"], island.state)[0]})


# A PyTorch module that a script trains: `CustomLoop` makes, measures and exports it, and its loop is never called.


def body_of(
    given: nn.Module | Callable[[], nn.Module], module: nn.Module, settings: LearnerSettings, data: Any
) -> tuple[Learner, Mapping[str, np.ndarray], Mapping[str, str]]:
    """Return a learner of a module, and what `untold_of` says of it.

    Args:
        given: the module, or the function that makes it.
        module: the module.
        settings: the training's settings.
        data: the federated data set.
    """
    loop = CustomLoop(given, _never, loss=loss_of_task(module, getattr(data, "task", "")))
    learner = loop.learner(replace(settings, factory=None), data)
    if learner.plan.local:
        raise CompositionError(
            f"buffers of the model ({', '.join(learner.plan.local)}) would stay at the clients, and a script is sent whole models",
            where="Training.buffers",
            remedy="leave out buffers='local' and rules 'local', and let the script keep what is its own",
        )
    return learner, *untold_of(learner.model, {**params_of(learner.model), **learner.buffers()})


def untold_of(module: nn.Module, names: Collection[str]) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Return what a complete state dict has besides the entries that travel; frozen parameters stay with the model.

    Args:
        module: the module.
        names: the entries that travel.

    Returns:
        Further buffers, such as counters, by name; and further names of tied parameters -> the name that travels.
    """
    kept = module.state_dict(keep_vars=True)
    first = {id(kept[name]): name for name in names}
    aliases = {name: first[id(value)] for name, value in kept.items() if name not in names and id(value) in first}
    known = {*names, *aliases}
    fixed = {
        name: array_of(value)
        for name, value in kept.items()
        if name not in known and not isinstance(value, nn.Parameter)
    }
    return fixed, aliases


def _never(*given: Any) -> None:
    del given
