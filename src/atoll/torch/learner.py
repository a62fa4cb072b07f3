"""A PyTorch model as a learner: what a training needs of a model, provided by this room's parts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from atoll.core import message as M
from atoll.core.algebra import tree as T
from atoll.core.algebra.aggregate import Aggregate, Parts, Totals
from atoll.core.algebra.form import kinds_of_block
from atoll.core.algebra.rng import Rng
from atoll.core.algebra.tree import Tree
from atoll.core.capability import Capability
from atoll.core.errors import AtollError, CompositionError
from atoll.core.extras import one_thread
from atoll.core.facets import facet
from atoll.core.persistence.state_table import StateBlock
from atoll.core.requests.task import Batch, Summed, Task
from atoll.learn.algorithm import Labelled, Phased, Private, Stateful
from atoll.learn.capabilities import EXAMPLES
from atoll.learn.local.reports import (
    TRAINED,
    Reporting,
    as_reports,
    begin_release,
    is_private,
    key_of,
    rows_for,
    sketches,
    update_of,
)
from atoll.learn.local.update import asked_epochs, epochs_of_pass, load_of, pass_key
from atoll.learn.round.evaluation import held_sums, measure_client, own_model, rows_measured
from atoll.learn.wrapped import PerClientBroadcast, shown_name

from .blocks.pool import Privates, TrainedBatch, columns_of
from .blocks.source import rows_of
from .buffers import BufferRules, Holding
from .evaluate import (
    LINKS,
    doubts_of_scale,
    evaluate,
    evaluate_many,
    layer_of,
    profile,
    profile_many,
    pullback,
    scale_of_outputs,
    score,
)
from .local import LocalTraining
from .models import array_of, init, is_lazy, load, params_of, precision_of, shape_module

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.core.requests.cohort import Cohort
    from atoll.core.requests.island import Island
    from atoll.learn.algorithm import Algorithm
    from atoll.learn.learner import LearnerSettings

    from .blocks.pool import CohortSums
    from .network import FunctionalModule

__all__ = [
    "Apart",
    "PassError",
    "TorchLearner",
    "adapt",
    "add_reports",
    "sent_reports",
    "states_after",
    "survey_cohort",
    "with_reports",
]

# Reports of whole cohorts: those that `atoll.learn.local.reports` asks of clients, made for many at once.


Asked = Mapping[str, Mapping[str, Any]]


def survey_cohort(network: FunctionalModule, params: Any, cohort: Cohort, rows: Any, asked: Asked) -> dict[str, Parts]:
    """Return reports of one model on each of many clients' rows, with a leading client axis.

    Args:
        network: model and loss.
        params: parameters, and travelling buffers, by name.
        cohort: the clients.
        rows: all of their rows, as `profile_many` takes them.
        asked: reports by name.
    """
    count = len(cohort)
    told: dict[str, Parts] = {}
    for name, options in asked.items():
        value: Any
        sizes: NDArray[Any]
        if name == "profile":
            value, sizes = profile_many(network, params, rows, count, **options)
        else:
            few = (
                [rows_for(options, cohort.shard(i), int(key)) for i, key in enumerate(cohort.keys)] if options else rows
            )
            sums = evaluate_many(network, params, few, count)
            value, sizes = sums["loss_sum"] / np.maximum(sums["n"], 1.0), sums["n"]
        told[key_of(name)] = Parts(value, examples=np.asarray(sizes, dtype=np.float64), role="report")
    return told


def with_reports(
    batch: TrainedBatch, asked: Asked, told: Mapping[str, Parts], sizes: NDArray[Any], algorithm: Algorithm
) -> TrainedBatch:
    """Add the requested reports to a trained block's replies.

    Args:
        batch: the block.
        asked: reports by name.
        told: reports that do not come from training, of the whole cohort.
        sizes: rows of each client of the block.
        algorithm: the algorithm that they ran.
    """
    own = {name: _rows(parts, batch.positions) for name, parts in told.items()}
    if "loss" in asked:
        own[key_of("loss")] = Parts(batch.losses, examples=sizes, role="report")
    if "sketch" in asked:
        found = sketches(update_of(dict(batch.reply), algorithm), asked["sketch"]["size"])
        found[np.asarray(sizes) == 0] = 0.0
        own[key_of("sketch")] = Parts(found, examples=sizes, role="report")
    return replace(batch, reply={**batch.reply, **{name: own[name] for name in _order(asked)}})


def add_reports(made: CohortSums, asked: Asked, told: Mapping[str, Parts]) -> bool:
    """Add reports to the sums of a trained cohort; return ``False`` if one is not finite, which sums cannot show.

    Args:
        made: the sums.
        asked: reports by name.
        told: reports that do not come from training, of the whole cohort.
    """
    found = {**told, key_of("loss"): Parts(made.losses, examples=made.sizes.astype(np.float64), role="report")}
    totals: Totals = {}
    for name in _order(asked):
        own = _rows(found[name], made.kept)
        if not all(bool(np.isfinite(leaf).all()) for leaf in T.leaves(own.value)):
            return False
        totals[name] = own.block_sum()
    made.totals.update(totals)
    return True


def sent_reports(totals: Totals) -> dict[str, Any]:
    """Return one client's reports as they are sent, to measure their size."""
    parts = {name: total.value for name, total in totals.items() if total.kind == "parts" and total.value}
    return {name: {"kind": "parts", "value": some[0].value, "weight": 1.0} for name, some in parts.items()}


def _order(asked: Asked) -> list[str]:
    return [key_of(name) for name in asked]


def _rows(parts: Parts, which: NDArray[np.int64]) -> Parts:
    """Return the reports of some clients of a cohort."""
    value = T.map(lambda leaf: leaf[which], parts.value)
    return replace(parts, value=value, examples=np.asarray(parts.examples)[which])


# What clients keep between the passes of a round: only their new private states are needed, not their replies.


class PassError(Exception):
    """Some clients raised in a pass before the last.

    Attributes:
        errors: place in the cohort -> exception.
    """

    def __init__(self, errors: dict[int, Exception]) -> None:
        super().__init__(f"{len(errors)} clients raised in a pass")
        self.errors = errors


def states_after(
    training: LocalTraining,
    shards: Any,
    broadcast: Tree,
    clients: Sequence[Tree] | Privates | None,
    keys: NDArray[np.uint64],
    epochs: int | None = None,
) -> Privates:
    """Train a cohort for its new private states alone: with its sums, which run in native code if possible.

    Args:
        training: the pass.
        shards: the clients' rows; see `LocalTraining.many`, as for the others.
        broadcast: what the server sent.
        clients: the private states at the start of the pass.
        keys: one for each client.
        epochs: epochs (or steps) in place of the algorithm's own.

    Raises:
        PassError: some clients raised.
    """
    try:
        parts = training.many_sum(shards, broadcast, clients, keys, epochs).states
    except Exception:  # replies that cannot be added up; or an error, and this shows whose
        batches = list(training.many(shards, broadcast, clients, keys, epochs))
        errors = {place: error for batch in batches for place, error in batch.errors.items()}
        if errors:
            raise PassError(errors) from None
        parts = [(batch.positions, batch.states) for batch in batches]
    return _join_states([part for part in parts if part[1] is not None], len(keys))


def _join_states(parts: list[tuple[NDArray[np.int64], Tree]], count: int) -> Privates:
    """Return stacked states of parts of a cohort, ``(positions, states)`` each, in its order; none if there is no part."""
    if not parts:
        return Privates(None, count)
    order = np.argsort(np.concatenate([positions for positions, _ in parts]), kind="stable")

    def join(*leaves: Any) -> Any:
        return None if leaves[0] is None else np.concatenate(leaves)[order]

    return Privates(None, count, T.map(join, *[states for _, states in parts]))


# Clients that each got their own broadcast, trained in blocks: the nodes of a round of gossip.


class Apart:
    """The local updates of an algorithm at clients whose broadcasts differ, equal to training one by one, as `LocalTraining.many` is.

    Args:
        make: gives the training of one pass.
        algorithm: the algorithm.
        rows: how to fetch a cohort's rows, as `LocalTraining.many` takes them.
    """

    def __init__(
        self, make: Callable[[Algorithm], LocalTraining], algorithm: Algorithm, rows: Callable[[Cohort], Any]
    ) -> None:
        self._make = make
        self._rows = rows
        self._given = PerClientBroadcast.of(algorithm)
        self._plans: dict[str, list[tuple[PerClientBroadcast, LocalTraining]]] = {}

    def train(self, cohort: Cohort, phase: str, sent: Sequence[Tree], clients: Sequence[Tree]) -> Iterator[Batch]:
        """Train a cohort in blocks.

        Args:
            cohort: the clients, with the keys of this phase; its private states are not used.
            phase: of the algorithm.
            sent: one broadcast for each client, all of one form.
            clients: the algorithm's private states, ``None`` before a client's first.

        Yields:
            Replies and new private states, with a leading client axis. Non-finite replies are included, and may belong
            to clients whose error was in an earlier batch.
        """
        plan = self._plan(phase)
        template = {"params": sent[0]["params"]}
        states, rows = list(clients), self._rows(cohort)
        for at, (given, training) in enumerate(plan):
            own = np.array([pass_key(int(key), at, len(plan)) for key in cohort.keys], dtype=np.uint64)
            pairs = zip(sent, states, own.tolist(), strict=True)
            handed = Privates([given.hand_state(*pair) for pair in pairs], len(states))
            for batch in training.many(rows, template, handed, own):
                if at == len(plan) - 1:
                    yield batch
                    continue
                if batch.errors:
                    yield Batch(np.zeros(0, np.int64), {}, errors=batch.errors)
                if batch.states is not None:
                    block = StateBlock(batch.positions, batch.states, kinds_of_block(batch.states))
                    for place, state in block.rows():
                        states[place] = state

    @property
    def choices(self) -> dict[str, Any]:
        """Return how blocks run, by phase: the decisions as plain data."""
        return {phase: [training.choices for _, training in plan] for phase, plan in self._plans.items()}

    def recall(self, choices: dict[str, Any]) -> None:
        """Repeat an earlier decision."""
        for phase, records in choices.items():
            for (_, training), record in zip(self._plan(phase), records, strict=True):
                training.choices = record

    @property
    def seconds(self) -> dict[str, float]:
        """Return the seconds spent on tracing and compiling so far."""
        made = [training.seconds for plan in self._plans.values() for _, training in plan]
        return {what: sum(m[what] for m in made) for what in ("trace", "compile")}

    def expected_seconds(self, clients: int) -> float:
        """Return the seconds of one core for a round of ``clients`` clients, by arithmetic alone."""
        return sum(training.expected_seconds(clients) for plan in self._plans.values() for _, training in plan)

    def _plan(self, phase: str) -> list[tuple[PerClientBroadcast, LocalTraining]]:
        if phase not in self._plans:
            passes = [part for part in self._given.passes(phase) if isinstance(part, PerClientBroadcast)]
            self._plans[phase] = [(part, self._make(part)) for part in passes]
        return self._plans[phase]


def example_of(data: Any) -> torch.Tensor | None:
    """Return two rows of a federated data set, or made-up ones of their form; ``None`` if there is no column ``x``."""
    samples = [getattr(data, "test", None), data.shard(0) if hasattr(data, "shard") and len(data) else None]
    for sample in samples:
        try:
            x = None if sample is None else np.asarray(columns_of(sample)["x"])
        except (AtollError, KeyError, TypeError, AttributeError):
            continue
        if x is not None and x.ndim:
            rows = x[:2] if len(x) > 1 else np.zeros((2, *x.shape[1:]), x.dtype)
            return torch.as_tensor(rows.astype(np.float32 if rows.dtype.kind == "f" else np.int64))
    return None


_LOOKED = 20  # clients whose rows are looked at before a training
_ROWS = 10_000


def _flat_columns(x: Any, dtype: torch.dtype) -> list[int]:
    """Return the columns of double precision whose deviation is lost to the spacing of single precision: below 20 of its steps."""
    if dtype != torch.float32 or not isinstance(x, np.ndarray) or x.dtype != np.float64 or x.ndim != 2 or len(x) < 2:
        return []
    rows = x[:_ROWS]
    with np.errstate(over="ignore", invalid="ignore"):
        step = np.spacing(np.abs(rows).max(0).astype(np.float32)).astype(np.float64)
        deviation = rows.std(0)
        return np.flatnonzero((deviation > 0) & (deviation < 20 * step)).tolist()


_LOSSES = {"regression": "mse", "multilabel": "bce"}


def adapt(model: nn.Module, settings: LearnerSettings, data: Any) -> TorchLearner:
    """Make a learner of a ``torch.nn.Module``.

    Raises:
        DataError: the model does not fit the data.
    """
    example = example_of(data) if is_lazy(model) else None
    made = TorchLearner(shape_module(model, example, 0), settings, getattr(data, "task", ""), example)
    made.check(data)
    return made


class TorchLearner(Holding, Reporting):
    """A ``torch.nn.Module`` as a learner.

    Args:
        model: the module; it is copied, never changed.
        settings: the training's settings.
        task: the data's task; with ``loss="auto"`` it picks the loss.
        example: rows of the data's form, from which fresh models with lazy layers take their shapes.
    """

    reports = ("loss", "profile", "sketch")
    takes_losses = True
    takes_device = True

    def __init__(
        self, model: nn.Module, settings: LearnerSettings, task: str = "", example: torch.Tensor | None = None
    ) -> None:
        self.model = model
        self.example = example
        self.factory = settings.factory
        self.algorithm = settings.algorithm
        self._given_loss: Any = settings.loss
        self._options: dict[str, Any] = {
            "loss": loss_of_task(model, task)
            if isinstance(settings.loss, str) and settings.loss == "auto"
            else settings.loss,
            "device": settings.device,
            "dtype": precision_of(model),
            "compile": settings.compile,
            "buffers": BufferRules(settings.buffers),
            "protected": settings.protected,
            "singly": settings.singly,
            "volume": settings.volume,
            "measured": loss_of_task(model, task),
            "loss_metric": "" if facet(settings.algorithm, Private).alone else "loss",
        }
        self._plans: dict[str, list[LocalTraining]] = {}
        self.training = self.plan(settings.algorithm.phases[-1])[-1]
        self._single_replies: set[str] = set()
        self.flat: list[int] = []
        self.scale = ""
        self._doubts: list[str] = []
        blocks: dict[str, Any] = {
            "many": self._train_many,
            "sums": self._train_sums,
            "summands": self._train_summands,
            "tuning": _Tuning(self),
        }
        if is_private(self.algorithm):  # what is released is accounted and noised at each island
            steps = self.algorithm.example_steps is not None and len(self.plan(self.algorithm.phases[-1])) == 1
            blocks = {"many": self._release_many, "islands": True} if steps else {}
        self.train = Task("atoll.torch:train", self._train, load=load_of(self.algorithm), **blocks)
        self.measure = Task("atoll.torch:measure", self._measure, many=self._measure_many)
        self.report = replace(self.survey("atoll.torch:report"), many=self._report_many)

    @property
    def choices(self) -> dict[str, Any]:
        """Return how cohorts run; assign an earlier record to repeat it."""
        return self.training.choices

    @choices.setter
    def choices(self, record: dict[str, Any]) -> None:
        self.training.choices = record

    def plan(self, phase: str) -> list[LocalTraining]:
        """Return the local updates of a phase, in order; a pass that phases share is made once."""
        if phase not in self._plans:
            made = [training for plan in self._plans.values() for training in plan]
            plan = []
            for part in facet(self.algorithm, Phased).passes(phase):
                known = next((t for t in made if t.asked is part), None)
                plan.append(known or self._local(part))
            self._plans[phase] = plan
        return self._plans[phase]

    def _local(self, part: Algorithm) -> LocalTraining:
        """Return a pass's local update, on the losses that it brings with it, or the training's."""
        own = facet(part, Labelled).losses
        if not own:
            return LocalTraining(self.model, part, **self._options)
        if self._given_loss != "auto":
            raise CompositionError(
                f"loss={self._given_loss!r}, and {shown_name(part)} trains on a loss of its own",
                where="Training.loss",
                remedy="leave out loss=",
            )
        return LocalTraining(self.model, part, **{**self._options, "loss": own[0], "others": own[1:]})

    def apart(self) -> Apart | None:
        """Return what trains a cohort in blocks when every client has its own broadcast; ``None`` if clients are trained one by one anyway."""
        network = self.training.network
        if (
            is_private(self.algorithm)
            or next(network.training.buffers(), None) is not None
            or {"broadcast", "round"} & set(network.signature.names)
        ):
            return None
        return Apart(self._local, self.algorithm, rows_of)

    def init(self, rng: Rng) -> Tree:
        """Return the initial parameters: the given module's, or those of a fresh one from the factory under ``rng``."""
        return params_of(self.model if self.factory is None else init(self.factory, rng, self.example))

    @property
    def releases(self) -> bool:
        """Return true: it may run private algorithms."""
        return True

    @property
    def wants_round(self) -> bool:
        """Tell whether the loss needs the number of the round."""
        return "round" in self.training.network.signature.names

    @property
    def per_example(self) -> bool:
        """Tell whether each example has a gradient of its own: no layer takes statistics over the rows of a mini-batch."""
        return not self.training.network.mixes_rows()

    @property
    def lacks(self) -> Mapping[Capability, str]:
        """Reasons for capabilities that the model does not offer."""
        mixing = self.training.network.mixes_rows()
        return {EXAMPLES: f"has {mixing}, which takes statistics over the examples of a mini-batch"} if mixing else {}

    @property
    def margins(self) -> bool:
        """Tell whether the loss is the log-loss of one margin: a single linear layer with two outputs."""
        made = [part for part in self.model.modules() if not isinstance(part, nn.Sequential | nn.Flatten)]
        linear = len(made) == 1 and isinstance(made[0], nn.Linear) and made[0].out_features == 2
        return linear and self.training.network.loss.name == "cross_entropy"

    @property
    def curved(self) -> bool:
        """Tell whether the loss has a curvature; a piecewise linear loss has none."""
        return self.training.network.loss.name not in ("hinge", "multiclass_hinge", "l1")

    def buffers(self) -> Tree:
        """Return the buffers that travel with the parameters: those that a training step writes; empty if they stay local or there are none. See `atoll.torch.buffers`."""
        network = self.training.network
        sent, own = self.training.buffers.find_rules(network).sent, dict(self.training.network.frozen)
        return {name: array_of(own[name]) for name in sent}

    @property
    def network(self) -> FunctionalModule:  # type: ignore[override]
        """Return the model as pure functions."""
        return self.training.network

    @property
    def rules(self) -> BufferRules:  # type: ignore[override]
        """Return how its buffers travel."""
        return self.training.buffers

    def check(self, data: Any) -> None:
        """Refuse data that does not fit the model, before any client is contacted."""
        test = getattr(data, "test", None)
        samples = [test] if test is not None and len(test) else []
        samples += [data.shard(0)] if hasattr(data, "shard") and len(data) else []
        for sample in samples:
            self.training.check_shard(sample, trains=sample is not test)
        if samples and getattr(data, "task", "") in ("classification", "binary", "multilabel"):
            self.scale = scale_of_outputs(self.network, columns_of(samples[0])["x"])
            self._doubts = doubts_of_scale(self.network, self.scale)
        stored = [data.shard(i) for i in range(min(len(data), _LOOKED))] if getattr(data, "stored", False) else samples
        self.flat = sorted({i for sample in stored for i in _flat_columns(columns_of(sample)["x"], self.network.dtype)})

    @property
    def notices(self) -> Sequence[str]:
        """Return how buffers travel, of which type the numbers are, and which columns lose their digits in it."""
        names = ", ".join(map(str, self.flat[:10])) + (" and others" if len(self.flat) > 10 else "")
        flat = f"Columns {names} of x differ by less than single precision shows beside their size: subtract an offset from them, or train a float64 model (model.double())."
        return [*super().notices, *self._doubts, *([flat] if self.flat else [])]

    def evaluate(self, params: Tree, data: Any) -> dict[str, float]:
        """Return sums over a data set; see `atoll.torch.evaluate`."""
        self.require_held(params)
        return evaluate(self.training.network, params, data)

    @property
    def link(self) -> str:
        """What the scores are, by the loss; see `atoll.learn.learner.SupportsLink`."""
        loss = self.training.network.measured
        # A method's own loss of classes is one of logits: its scores are compared by their softmax.
        link = LINKS.get(loss.name, "softmax" if loss.task == "classes" else "")
        if link == "log" and self.scale not in ("log", ""):
            return ""
        return link or {"probabilities": "probability", "log": "log"}.get(self.scale, "")

    def scores(self, params: Tree, x: Any) -> NDArray[Any]:
        """Return the model's outputs for some inputs, one row each."""
        self.require_held(params)
        if not self.scale and len(x):  # between organisations, the first rows may be those that it predicts
            self.scale = scale_of_outputs(self.network, x)
        return score(self.training.network, params, x)

    def pullback(self, params: Tree, x: Any, slope: Any) -> Tree:
        """Return the gradient of ``sum(slope * scores)`` by the parameters, for a derivative by the scores ``(n, outputs)``."""
        return pullback(self.training.network, params, x, slope)

    def personal(self, params: Tree, state: Tree) -> Tree:
        """Return the model of a client with this private state; with ``buffers="local"``, including its own running statistics."""
        own, known = self.held({}, state)
        if own and known:
            state = state.get("client", state)["algorithm"]
        return {**own_model(self.algorithm, params, state), **own}

    def export(self, params: Tree) -> nn.Module:
        """Return a copy of the module with these parameters, in evaluation mode; see `Holding.export_module`."""
        return self.export_module(load(self.model, params).eval(), params)

    def _train(self, island: Island, message: Tree) -> dict[str, Aggregate]:
        plan, state = self.plan(message["phase"]), island.state
        asked, epochs = self._list_requested(message), asked_epochs(self.algorithm, message)
        told = {
            name: self._make_report(name, options, self.held(_model_of(message), state)[0], island.data)
            for name, options in asked.items()
            if name not in TRAINED
        }
        reply: dict[str, Aggregate] = {}
        noise = begin_release(self.algorithm, island)
        with one_thread(torch):
            for at, training in enumerate(plan):
                key = pass_key(island.rng.key, at, len(plan))
                many = epochs_of_pass(self.algorithm, training.asked, epochs)
                train = training.one if noise is None else training.one_of_many
                reply, state = train(island.data, message["broadcast"], state, key, noise, many)
        if noise is not None:
            reply = {name: value for name, value in reply.items() if name != training.loss_metric}
        if state is not None:
            island.state = state
        told |= self._report_training(reply, asked, len(island.data))
        return {**reply, **as_reports({name: told[name] for name in asked})}

    def _train_many(self, cohort: Cohort, message: Tree) -> Iterator[Batch]:
        asked = self._list_requested(message)
        with one_thread(torch):
            try:
                training, states, epochs = self._before_last(cohort, message)
            except PassError as found:
                yield TrainedBatch.make_failed(found.errors)
                yield from self._train_others(cohort, message, found.errors)
                return
            told = self._told_many(cohort, message, asked)
            for batch in training.many(rows_of(cohort), message["broadcast"], states, cohort.keys, epochs):
                if not len(batch.positions) or not asked:
                    yield batch
                    continue
                sizes = batch.reply[training.loss_metric].weight
                yield with_reports(batch, asked, told, sizes, self.algorithm)

    def _release_many(self, cohort: Cohort, message: Tree) -> Iterator[Batch]:
        """Train a cohort whose steps draw on the clients' secrets, in blocks: each client's ledger first, then its noise; nothing leaves beside the reply."""
        training, secrets, errors = self.plan(message["phase"])[-1], dict[int, Rng](), dict[int, Exception]()
        for i in range(len(cohort)):
            try:
                secret = begin_release(self.algorithm, cohort.island(i))
                if secret is not None:
                    secrets[i] = secret
            except Exception as error:
                errors[i] = error
        if errors:
            yield TrainedBatch.make_failed(errors)
        places = np.array(list(secrets), dtype=np.int64)
        if not len(places):
            return
        part, epochs = cohort.part(places), asked_epochs(self.algorithm, message)
        states = _states_of(part, lambda: facet(training.asked, Stateful).client_init(message["broadcast"]["params"]))
        many = epochs_of_pass(self.algorithm, training.asked, epochs)
        drawn = [secrets[i] for i in places.tolist()]
        with one_thread(torch):
            for batch in training.many(rows_of(part), message["broadcast"], states, part.keys, many, drawn):
                yield replace(
                    batch,
                    positions=places[batch.positions],
                    reply={name: value for name, value in batch.reply.items() if name != training.loss_metric},
                    rejected={int(places[place]): why for place, why in batch.rejected.items()},
                    errors={int(places[place]): error for place, error in batch.errors.items()},
                )

    def _train_others(self, cohort: Cohort, message: Tree, errors: dict[int, Exception]) -> Iterator[Batch]:
        """Train a cohort without the clients that raised."""
        places = np.delete(np.arange(len(cohort)), list(errors))
        for batch in self._train_many(cohort.part(places), message) if len(places) else ():
            yield replace(
                batch,
                positions=places[batch.positions],
                rejected={int(places[place]): why for place, why in batch.rejected.items()},
                errors={int(places[place]): error for place, error in batch.errors.items()},
            )

    def _train_sums(self, cohort: Cohort, message: Tree) -> Summed | None:
        asked = self._list_requested(message)
        if message["phase"] in self._single_replies or "sketch" in asked:  # a sketch is of a single update
            return None
        with one_thread(torch):
            try:
                training, states, epochs = self._before_last(cohort, message)
                made = training.many_sum(rows_of(cohort), message["broadcast"], states, cohort.keys, epochs)
            except CompositionError:  # a phase that was not prepared; `many` raises anything else again
                self._single_replies.add(message["phase"])
                return None
            except Exception:  # a client's exception: `many` finds out whose
                return None
            told = self._told_many(cohort, message, asked)
        if asked and not add_reports(made, asked, told):
            return None
        return Summed(made.totals, made.kept, made.rejected, made.states, _reply_bytes(made.totals))

    def _train_summands(self, cohort: Cohort, message: Tree) -> Summed | None:
        if message["phase"] in self._single_replies or self._list_requested(message):  # reports are of single clients
            return None
        with one_thread(torch):
            try:
                training, states, epochs = self._before_last(cohort, message)
                made = training.many_summands(rows_of(cohort), message["broadcast"], states, cohort.keys, epochs)
            except Exception:  # a client's exception: `many` finds out whose
                return None
        return None if made is None else Summed(made.totals, made.kept, made.rejected, made.states)

    def _told_many(self, cohort: Cohort, message: Tree, asked: dict[str, Any]) -> dict[str, Parts]:
        """Return the reports that do not come from training."""
        others = {name: options for name, options in asked.items() if name not in TRAINED}
        return self._survey_rows(_model_of(message), cohort, others) if others else {}

    def _survey_rows(self, params: Tree, cohort: Cohort, asked: Asked) -> dict[str, Parts]:
        """Return reports of a model on each client's rows, with its own buffers where clients keep some."""
        if not self.withheld:
            return survey_cohort(self.network, params, cohort, rows_of(cohort), asked)
        made = [
            survey_cohort(self.network, self.held(params, cohort.state(i))[0], one, rows_of(one), asked)
            for i, one in enumerate(cohort.part(np.array([i])) for i in range(len(cohort)))
        ]
        return {
            name: replace(
                parts,
                value=T.map(lambda *each: np.concatenate(each), *[one[name].value for one in made]),
                examples=np.concatenate([one[name].examples for one in made]),
            )
            for name, parts in (made[0] if made else {}).items()
        }

    def _report(self, island: Island, message: Tree) -> dict[str, Aggregate]:
        return super()._report(island, {**message, "params": self.held(message["params"], island.state)[0]})

    def _check_report(self, name: str, options: dict[str, Any]) -> None:
        if name == "profile":
            layer_of(self.model, options.get("layer", "auto"))

    def _make_report(self, name: str, options: dict[str, Any], params: Tree, data: Any) -> tuple[Tree, float]:
        if name != "profile":
            return super()._make_report(name, options, params, data)
        self.require_held(params)
        with one_thread(torch):
            return profile(self.training.network, params, data, **options), float(len(data))

    def _report_many(self, cohort: Cohort, message: Tree) -> Iterator[Batch]:
        asked = self._asked_for_survey(message)
        with one_thread(torch):
            told = self._survey_rows(message["params"], cohort, asked)
        yield Batch(np.arange(len(cohort)), dict(told))

    def _before_last(self, cohort: Cohort, message: Tree) -> tuple[LocalTraining, Privates | None, int | None]:
        """Run all passes but the last; return the last pass, its initial states and its epochs."""
        plan, asked = self.plan(message["phase"]), asked_epochs(self.algorithm, message)
        epochs = [epochs_of_pass(self.algorithm, training.asked, asked) for training in plan]
        states = _states_of(cohort, lambda: facet(plan[0].asked, Stateful).client_init(message["broadcast"]["params"]))
        for at, training in enumerate(plan[:-1]):
            keys = np.array([pass_key(int(k), at, len(plan)) for k in cohort.keys], dtype=np.uint64)
            states = states_after(training, rows_of(cohort), message["broadcast"], states, keys, epochs[at])
        return plan[-1], states, epochs[-1]

    def _measure(self, island: Island, message: Tree) -> dict[str, Aggregate]:
        return measure_client(self, island, message)

    def _measure_many(self, cohort: Cohort, message: Tree) -> Iterator[Batch]:
        try:
            sums = self._sums_of(cohort, message["params"])
        except Exception:  # a client's rows: find out whose
            errors = self._measure_errors(cohort, message)
            if not errors:
                raise
            yield Batch(np.zeros(0, np.int64), {}, errors=errors)
            places = np.delete(np.arange(len(cohort)), list(errors))
            for batch in self._measure_many(cohort.part(places), message) if len(places) else ():
                yield replace(batch, positions=places[batch.positions])
            return
        reply: dict[str, Aggregate] = {"measure": Parts(sums, examples=sums["n"], role="metric")}
        if message.get("personal"):
            # One by one: every client has its own model.
            each = [
                self.evaluate(self.personal(message["params"], cohort.state(i)), rows_measured(cohort.shard(i)))
                for i in range(len(cohort))
            ]
            own = _columns_of(each)
            reply["personal"] = Parts(own, examples=own["n"], role="metric")
        yield Batch(np.arange(len(cohort)), reply)

    def _sums_of(self, cohort: Cohort, params: Tree) -> dict[str, NDArray[np.float64]]:
        """Return the sums of one model on the rows on which each client measures; with clients' own buffers, or rows that they hold out, one by one."""
        if not self.withheld and getattr(cohort.population, "held_out", None) is None:
            return evaluate_many(self.network, params, rows_of(cohort), len(cohort))
        return _columns_of([held_sums(self, params, cohort.state(i), cohort.shard(i)) for i in range(len(cohort))])

    def _measure_errors(self, cohort: Cohort, message: Tree) -> dict[int, Exception]:
        """Return the clients whose rows cannot be evaluated, and why."""
        errors: dict[int, Exception] = {}
        for i in range(len(cohort)):
            try:
                held_sums(self, message["params"], cohort.state(i), cohort.shard(i))
            except Exception as error:
                errors[i] = error
        return errors


def _columns_of(each: list[dict[str, float]]) -> dict[str, NDArray[np.float64]]:
    """Return sums of clients as arrays of all of them."""
    names = max(each, key=len, default={"n": 0.0})
    return {name: np.array([row.get(name, 0.0) for row in each], dtype=np.float64) for name in names}


class _Tuning:
    """Records and repeats how cohorts run."""

    def __init__(self, learner: TorchLearner) -> None:
        self._learner = learner
        self._training = learner.training

    @property
    def choices(self) -> dict[str, Any]:
        """Return the decisions."""
        return self._training.choices

    @property
    def seconds(self) -> dict[str, float]:
        """Return the seconds spent on tracing and compiling so far."""
        return self._training.seconds

    def recall(self, choices: dict[str, Any]) -> None:
        """Repeat an earlier decision."""
        self._training.choices = choices

    def prepare(self, cohort: Cohort, message: Tree, cores: int = 1) -> float:
        """Decide and compile; return the expected seconds of this cohort on one core that processes could share."""
        cores = cores if getattr(cohort.population, "stored", False) else 1  # making rows justifies processes
        with one_thread(torch):
            rows = rows_of(cohort)
            training = self._training
            try:
                training, states, epochs = self._learner._before_last(cohort, message)
                training.prepare(rows, message["broadcast"], states, cohort.keys, epochs, cores)
            except CompositionError:  # the algorithm needs single replies (`Parts`), which cannot be added up
                self._learner._single_replies.add(message["phase"])
                for _ in training.many(rows, message["broadcast"], states, cohort.keys, epochs):
                    pass
            except Exception:  # a client's exception: reported when the cohort runs
                if not training.choices:
                    raise
        return training.expected_seconds(len(cohort))


def _states_of(cohort: Cohort, fresh: Callable[[], Tree]) -> Privates | None:
    """Return the clients' private states, stacked if they are alike; ``None`` if no client has one yet."""
    if cohort.stateless:
        return None
    stacked = cohort.states(fresh=fresh())
    if stacked is not None:
        return Privates(None, len(cohort), stacked)
    return Privates([cohort.state(i) for i in range(len(cohort))], len(cohort))


def _reply_bytes(totals: Totals) -> int:
    """Return the encoded size of one client's reply: that of a sum, which has the same shapes."""
    sent = {n: {"kind": t.kind, "value": t.value, "weight": 1.0} for n, t in totals.items() if t.kind != "parts"}
    return M.nbytes({**sent, **sent_reports(totals)})


def _model_of(message: Tree) -> Tree:
    """Return the model in a train message, with the running statistics that travel with it."""
    broadcast = message["broadcast"]
    return {**broadcast["params"], **broadcast.get("buffers", {})}


def loss_of_task(model: nn.Module, task: str) -> str:
    """Return the loss for the data's task; a binary task with labels -1/+1 is a hinge unless the model has two outputs."""
    if task == "binary":
        last = [layer for layer in model.modules() if isinstance(layer, nn.Linear)]
        return "hinge" if not last or last[-1].out_features == 1 else "cross_entropy"
    return _LOSSES.get(task, "cross_entropy")


def seeded(factory: Callable[[], nn.Module], seed: int) -> nn.Module:
    """Return a model from a factory, with weights that follow a seed, for use outside a training."""
    with torch.random.fork_rng(devices=[]):
        return init(factory, Rng.of(seed))
