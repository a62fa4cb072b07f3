"""FedBoost: clients learn how much each predictor of an ensemble counts, and see only a few of the predictors in a round.

The predictors were trained before, anywhere, and may be of different forms. An ensemble may be too large for a client. So each round draws a few of its members; only these travel down, and
one number for each of them travels up. Traffic follows the draw, not the size of the ensemble.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from atoll.core.algebra.aggregate import Aggregate, Mean
from atoll.core.errors import CompositionError, ConfigError, DataError
from atoll.core.event import Event, NonPrivate
from atoll.core.exposure import Explanation, Exposure
from atoll.core.federation.reducer import Plain, Reducer
from atoll.core.job import Job, Prepared
from atoll.core.requests.request import ReplyForm
from atoll.core.requests.task import Task
from atoll.core.rooms import Own
from atoll.core.validation import Checked, require_parts
from atoll.data.missing import labelled_rows
from atoll.learn.checks import require_count, require_positive, require_share
from atoll.torch.own_state import seed_generators

from .accounting import EnsembleRelease
from .joining import JoinedLeaves, log_probabilities
from .model import FederatedEnsemble, score_population

if TYPE_CHECKING:
    from atoll.core.algebra.rng import Rng
    from atoll.core.algebra.tree import Tree
    from atoll.core.federation.federation import Federation
    from atoll.core.requests.island import Island

__all__ = ["BoostedEnsemble", "FedBoost", "WeightedMembers", "draw_members", "slopes_of"]

Loss = Literal["log", "density", "squared"]
_MEMBERS = "give at least two PyTorch models in a list, or what Federated.of(...) returns"
_REACH = 500.0  # logs above it leave no room in a double for what is multiplied with them
_FLOOR = 0.5
"""Share of a weighted draw that does not look at weights: a member of small weight is still drawn now and then."""


class WeightedMembers(nn.Module):
    """``sum_k w_k h_k(x)`` of members that answer a number, ``(rows,)``, or the log of a density: then ``log sum_k w_k exp h_k(x)``.

    Args:
        members: the predictors.
        weights: one each, ``(members,)``.
        loss: ``density`` or ``squared``.
    """

    def __init__(self, members: Sequence[nn.Module], weights: torch.Tensor, loss: Loss) -> None:
        super().__init__()
        self.members, self.loss = nn.ModuleList(members), loss
        self.weights: torch.Tensor
        self.register_buffer("weights", weights)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the answer to each row, ``(rows,)``."""
        members: Any = self.members
        told = torch.stack([member(x).reshape(len(x)) for member in members])
        if self.loss == "density":
            return (told + self.weights.to(told.dtype).log()[:, None]).logsumexp(0)
        return self.weights.to(told.dtype) @ told


@dataclass(frozen=True)
class BoostedEnsemble:
    """Predictors with their learnt weights.

    Attributes:
        names: the members.
        weights: one each, 0 or more, of sum 1.
        model: the ensemble as a PyTorch model of rows: a `JoinedLeaves` of classifiers, or `WeightedMembers`.
        ensemble: the leaves joined with these weights, if they came from `Federated.of`; ``None`` of other members.
    """

    names: tuple[str, ...]
    weights: NDArray[np.float64]
    model: nn.Module = field(repr=False)
    ensemble: FederatedEnsemble | None = field(default=None, repr=False)


@dataclass(frozen=True, kw_only=True)
class FedBoost(Checked, Job):
    """Weights of an ensemble of pretrained predictors, learnt by the clients (Hamer, Mohri, Suresh, ICML 2020); its outcome is a `BoostedEnsemble`.

    Minimises over weights ``w`` of sum 1 the mean over all clients' rows of ``-log sum_k w_k p_k(y | x)`` (``log``), ``-log sum_k w_k p_k(x)`` (``density``) or ``(sum_k w_k h_k(x) - y)^2`` (``squared``).
    In each round member k is drawn with chance ``q_k``, apart from the others, and a step of mirror descent follows the estimate

        ``g_k = 1[k drawn] / q_k * 2 mean (w_k h_k + sum_(j drawn, j != k) w_j / q_j h_j - y) h_k``.

    Of the squared loss its expectation is the gradient of all members. The two others divide by the mixture of a row, ``sum_j w_j p_j``; a few members estimate it badly where densities
    hardly overlap. So each client keeps a running mean of the estimates of its rows, ``z <- memory z + (1 - memory) sum_(j drawn) w_j / q_j p_j``, and ``g_k = -1[k drawn] / q_k * mean p_k / z``
    (Wang, Fang, Liu 2017, "Stochastic compositional gradient descent"). Without memory this is the source. A round that draws nobody changes nothing. Replies are means
    of the clients' rows, so a secure reducer can add them up. A row to which no drawn member gives a chance tells nothing, and weights are refused if all rows are such.

    Example::

        joined = Federated.of(runs, islands, aggregate="mean")
        found = simulate(FedBoost(members=joined, sampled=2, rounds=50), islands)
        found.ensemble.predict_proba(rows)

    Attributes:
        members: what `Federated.of` returns, a list of models, or models by name; or a function that makes these, which a job file names as ``module:name``. They answer classes, the log of a density
            ``(rows,)``, or a number ``(rows,)``.
        saved: a folder where the program runs, with the numbers of each member as ``NAME.safetensors``; members of a list are ``0``, ``1``, ... Only the server reads it. ``None`` for the numbers that members have.
        sampled: members of a round, as drawn on average; 0 for all.
        sampling: ``"weighted"``: chances follow the weights, and half of each is equal for all; ``"uniform"``: chances are equal.
        loss: see above.
        geometry: ``"entropy"``: ``w_k`` is multiplied by ``exp(-lr g_k)`` and scaled to sum 1; ``"euclidean"``: ``w - lr g`` is projected on weights of sum 1.
        rounds: how many.
        lr: rate of a step.
        memory: share of the running mean that stays in a round, from 0 to less than 1; of ``log`` and ``density``, where not all members are drawn.
        averaged: whether the weights are the mean over all rounds, for which the source has its bounds, or the last ones.
        clients: clients of a round, drawn; 0 for all.
        reducer: how replies are added up; ``None`` for plainly.
    """

    kind: ClassVar[str] = "fedboost"
    one_form: ClassVar[bool] = True

    members: Annotated[Any, Own("members", always=True)] = field(repr=False)
    saved: str | None = None
    sampled: int = 0
    sampling: Literal["weighted", "uniform"] = "weighted"
    loss: Loss = "log"
    geometry: Literal["entropy", "euclidean"] = "entropy"
    rounds: int = 50
    lr: float = 0.1
    memory: float = 0.9
    averaged: bool = True
    clients: int = 0
    reducer: Reducer | None = None

    def __post_init__(self) -> None:
        require_count("FedBoost", rounds=self.rounds)
        require_positive("FedBoost", lr=self.lr)
        require_share("FedBoost", memory=self.memory)
        require_parts(self, {}, optional={"reducer": (Reducer, "atoll.reducers.SecureAggregation()")})
        given = self.given
        listed = isinstance(given, FederatedEnsemble | Mapping | Sequence | nn.ModuleList) and not isinstance(
            given, str
        )
        if not listed:  # many a model is itself a list, of layers
            raise ConfigError(f"members is a {type(given).__name__}", where="FedBoost.members", remedy=_MEMBERS)
        named = self.named
        odd = next((name for name, one in named.items() if not isinstance(one, nn.Module)), None)
        if odd is not None or len(named) < 2:
            what = f"{len(named)} members" if odd is None else f"the member {odd!r} is a {type(named[odd]).__name__}"
            raise ConfigError(what, where="FedBoost.members", remedy=_MEMBERS)
        if not 0 <= self.sampled <= len(named) or self.clients < 0:
            raise ConfigError(
                f"sampled={self.sampled}, clients={self.clients}",
                where="FedBoost",
                remedy=f"use 1 to {len(named)} members, and 0 or more clients; 0 takes all",
            )
        if isinstance(given, FederatedEnsemble) and self.loss != "log":
            raise CompositionError(
                f"loss={self.loss!r} of leaves that answer classes",
                where="FedBoost.loss",
                remedy="use loss='log'",
            )

    @functools.cached_property
    def given(self) -> Any:
        """The members, made if ``members`` is what makes them."""
        if not inspect.isfunction(self.members):
            return self.members
        with seed_generators(0):  # numbers that it draws are those of every process
            return self.members()

    @functools.cached_property
    def named(self) -> dict[str, Any]:
        """The members by name."""
        if isinstance(self.given, FederatedEnsemble):
            return dict(zip(self.given.clusters.names, self.given.leaves, strict=True))
        if isinstance(self.given, Mapping):
            return {str(name): one for name, one in self.given.items()}
        return {str(place): one for place, one in enumerate(self.given)}

    @property
    def most_rounds(self) -> int:
        """The number of rounds."""
        return self.rounds

    def explain(self, data: Any = None, clients: int = 0) -> Explanation:
        """Return who sees members, weights and slopes."""
        count = clients if data is None else len(data)
        seen = [
            *(self.reducer or Plain()).exposures(count or 2),
            Exposure("every client", "the members that a round draws, and their weights"),
            Exposure("whoever gets the result", "the weight of each member"),
        ]
        notes = [
            "a reply is one number for each drawn member: how the loss of a client's rows changes with its weight",
            "no noise is added to it",
        ]
        costs = {"rounds": self.rounds, "members": len(self.named), "members of a round": self.sampled or len(self.named)}  # fmt: skip
        return Explanation(self.title, count, tuple(seen), costs, tuple(notes))

    def prepare(self, data: Any) -> PreparedBoosting:
        """Make the task for these clients."""
        return PreparedBoosting(self, data)


class PreparedBoosting(Prepared):
    """A `FedBoost` for one population."""

    def __init__(self, job: FedBoost, data: Any) -> None:
        self.job, self.data = job, data
        self.tasks = (self.slope,)

    async def program(self, fed: Federation) -> BoostedEnsemble:
        """Run the rounds; each is recorded with the members that were drawn, and with the ensemble's loss on the test rows."""
        job, named = self.job, self._load_members()
        names = tuple(named)
        members = [deepcopy(one).eval().requires_grad_(False) for one in named.values()]
        test = getattr(self.data, "test", None)
        look = _TestLoss(dict(zip(names, members, strict=True)), job.loss, test)
        start = np.full(len(names), 1 / len(names))
        state = await fed.restore(
            {"weights": start, "total": np.zeros(len(names)), "done": 0, "asked": [], "told": job.loss == "squared"}
        )
        while state["done"] < job.rounds and fed.ending is None:
            number, weights = state["done"] + 1, np.asarray(state["weights"])
            chance = draw_chances(weights, job.sampled or len(names), job.sampling)
            drawn = draw_members(chance, fed.rng.child("members", number))
            parties = self._draw_clients(fed, number)
            row: dict[str, Any] = {"round": number, "members": len(drawn)}
            asked, told = set(state["asked"]), bool(state.get("told", True))
            if len(drawn):
                asked |= {str(name) for name in parties.names}
                message = _show_members(names, members, drawn, weights, chance)
                form = functools.partial(_form_slopes, len(drawn))
                reply = await fed.sum(parties, self.slope, message, at=("slope", number), reducer=job.reducer, expects=form)  # fmt: skip
                weights = self._step(weights, drawn, np.asarray(reply["slope"], np.float64))
                told = told or bool(np.any(reply["slope"]))
                row["replied"] = reply.n
            total = np.asarray(state["total"]) + weights
            fed.record(row | look.of(total / number if job.averaged else weights))
            state = {"weights": weights, "total": total, "done": number, "asked": sorted(asked), "told": told}
            await fed.checkpoint(state)
        if state["asked"] and not state.get("told", True):
            raise DataError(
                "no member expects any row of the clients: each says that it cannot be, so that nothing tells their weights apart",
                where="FedBoost.members",
                remedy="give members whose densities, or chances of classes, are above 0 where clients have rows",
            )
        found = state["total"] / max(1, state["done"]) if job.averaged else state["weights"]
        return self._join(names, members, found / found.sum(), tuple(map(str, state["asked"])))

    def _load_members(self) -> dict[str, Any]:
        """Return the members with the numbers of their files, if there are some.

        Raises:
            DataError: a file is missing, or is of another model.
        """
        if self.job.saved is None:
            return self.job.named
        return {
            name: load_member(one, Path(self.job.saved) / f"{name}.safetensors") for name, one in self.job.named.items()
        }

    def _draw_clients(self, fed: Federation, number: int) -> Any:
        if not 0 < self.job.clients < len(fed.parties):
            return fed.parties
        drawn = fed.rng.child("clients", number).generator().choice(len(fed.parties), self.job.clients, replace=False)
        return fed.parties[np.sort(drawn)]

    def _step(
        self, weights: NDArray[np.float64], drawn: NDArray[np.int64], slope: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Return the weights after a step of mirror descent."""
        if slope.shape != drawn.shape or not np.isfinite(slope).all():
            raise DataError(
                f"the clients' mean has {slope.size} numbers for {len(drawn)} members, or some that are not finite",
                where="FedBoost",
                remedy="leave out members that answer no finite numbers to some client's rows",
            )
        full = np.zeros_like(weights)
        full[drawn] = slope
        if self.job.geometry == "euclidean":
            return project_on_simplex(weights - self.job.lr * full)
        with np.errstate(divide="ignore"):
            logs = np.log(weights) - self.job.lr * full
        made = np.exp(logs - logs.max())
        return np.asarray(made / made.sum())

    def _join(
        self, names: tuple[str, ...], members: list[nn.Module], weights: NDArray[np.float64], asked: tuple[str, ...]
    ) -> BoostedEnsemble:
        table, given = torch.from_numpy(np.asarray(weights)), self.job.given
        if self.job.loss != "log":
            return BoostedEnsemble(names, weights, WeightedMembers(members, table, self.job.loss).eval())
        model = JoinedLeaves(members, "weights", table.float()).eval()
        if not isinstance(given, FederatedEnsemble):
            return BoostedEnsemble(names, weights, model)
        scores = {**given.scores, **score_population({"weights": model}, self.data, given.clusters)}
        loss = given.loss
        if loss is not None and asked:  # the slopes of their rows are released as they are
            more = EnsembleRelease.of("weights of the ensemble", asked, None)
            loss = replace(loss, aggregator=math.inf, total=math.inf, releases=(*loss.releases, more))
        joined = {**given.joined, "weights": model}
        return BoostedEnsemble(
            names, weights, model, replace(given, aggregate="weights", joined=joined, scores=scores, loss=loss)
        )

    @property
    def slope(self) -> Task:
        """Answer how the loss of the client's rows changes with the weight of each drawn member."""
        return Task("atoll.ensemble.boosting:slope", self._slope)

    def _slope(self, island: Island, message: Tree) -> dict[str, Aggregate]:
        job, told = self.job, []
        x, y = np.asarray(island.data["x"]), None
        if job.loss != "density":
            known = labelled_rows(island.data)
            x, y = x[known], np.asarray(island.data["y"])[known]
        for name, state in message["members"].items():
            member = deepcopy(job.named[name]).eval()  # its numbers are those of the message
            member.load_state_dict({key: torch.tensor(np.asarray(value)) for key, value in state.items()})
            told.append(answers_of(member, x, y, job.loss, name))
        chances = np.asarray(message["chances"], np.float64)
        weights, table = np.asarray(message["weights"], np.float64), np.stack(told)
        mixture = None
        if job.loss != "squared" and job.memory and 0 < job.sampled < len(job.named):
            mixture = mix_logs(table, weights / chances)
            if island.state is not None:
                before = np.asarray(island.state["mixture"])
                mixture = np.logaddexp(np.log(job.memory) + before, np.log1p(-job.memory) + mixture)
            island.state = {"mixture": mixture}
        found = slopes_of(table, y, weights, chances, job.loss, mixture)
        return {"slope": Mean(found, examples=float(len(x)))}

    def most(self, rows: int) -> Sequence[Event]:
        """Return that slopes leave without noise."""
        del rows
        return (NonPrivate(what="slopes of the loss by the weight of each member"),)

    def reason(self, value: Any, fed: Any) -> str:
        """Return why the rounds ended."""
        del value
        return str(fed.ending or f"all {self.job.rounds} rounds are done")

    def facts(self, outcome: BoostedEnsemble) -> Mapping[str, Any]:
        """Return the weights."""
        return {"result": {"weights": dict(zip(outcome.names, outcome.weights.tolist(), strict=True))}}


def _show_members(
    names: Sequence[str],
    members: Sequence[nn.Module],
    drawn: NDArray[np.int64],
    weights: NDArray[np.float64],
    chance: NDArray[np.float64],
) -> Tree:
    """Return what clients are sent: the numbers of the drawn members, with their weights and chances."""
    states = {names[k]: {name: value.numpy() for name, value in members[k].state_dict().items()} for k in drawn}
    return {"members": states, "weights": weights[drawn], "chances": chance[drawn]}


def _form_slopes(drawn: int) -> ReplyForm:
    """Return the form of a client's reply."""
    return ReplyForm({"slope": Mean(np.zeros(drawn))}, weights={"slope": (1.0, 3.0)})


def load_member(member: nn.Module, file: Path) -> nn.Module:
    """Return a copy of a member with the numbers of a file.

    Raises:
        DataError: the file cannot be read, or is of another model.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load as load_tensors

    made = deepcopy(member)
    try:
        made.load_state_dict(load_tensors(file.read_bytes()))
    except (OSError, SafetensorError, RuntimeError, KeyError) as error:
        why = str(error).splitlines()[0]
        raise DataError(
            f"{file.name} is no file of this member's numbers: {why}",
            where="FedBoost.saved",
            remedy="write each member with safetensors.torch.save_file(model.state_dict(), 'NAME.safetensors')",
        ) from error
    return made


def answers_of(
    member: nn.Module, x: NDArray[Any], y: NDArray[Any] | None, loss: Loss, name: str
) -> NDArray[np.float64]:
    """Return what a member says of each row, ``(rows,)``: the log of the label's probability or of the row's density, or its number.

    Raises:
        DataError: it answers something that is no number, another shape, or no such class.
    """
    with torch.no_grad():
        made = member(torch.tensor(x))
    if loss == "log":
        logs = log_probabilities(made)
        places = torch.as_tensor(np.maximum(np.asarray(y), 0).astype(np.int64))  # of two classes also -1 and 1
        if len(places) and int(places.max()) >= logs.shape[-1]:
            raise DataError(
                f"the member {name!r} knows {logs.shape[-1]} classes, and a label is another",
                where="FedBoost.members",
                remedy="give members that know all classes",
            )
        made = logs[torch.arange(len(places)), places]
    told = np.asarray(made.double().numpy())
    if (
        told.size != len(x)
        or np.isnan(told).any()
        or (told == np.inf).any()
        or (loss == "squared" and np.isinf(told).any())
    ):
        raise DataError(
            f"the member {name!r} answers {len(x)} rows with {told.size} numbers, or with some that are not finite",
            where="FedBoost.members",
            remedy="give members that answer one finite number a row, or leave this one out",
        )
    return told.reshape(-1)


def slopes_of(
    told: NDArray[np.float64],
    y: NDArray[Any] | None,
    weights: NDArray[np.float64],
    chances: NDArray[np.float64],
    loss: Loss,
    mixture: NDArray[np.float64] | None = None,
) -> NDArray[np.float64]:
    """Return the estimates ``g_k`` of the drawn members, ``(drawn,)``, see `FedBoost`; zeros without rows.

    Args:
        told: what the drawn members say of the rows, ``(drawn, rows)``.
        y: the labels; of the squared loss alone.
        weights: of the drawn members.
        chances: of being drawn.
        loss: see `FedBoost`.
        mixture: the log of what the whole ensemble expects of each row, ``(rows,)``; ``None`` to estimate it from the drawn members.
    """
    if not told.shape[1]:
        return np.zeros(len(told))
    scaled = weights / chances
    if loss == "squared":
        gaps = scaled @ told - (scaled - weights)[:, None] * told - np.asarray(y, np.float64).reshape(-1)
        return np.asarray((2 * gaps * told).mean(1) / chances)
    mixed = mix_logs(told, scaled) if mixture is None else mixture
    seen = np.isfinite(mixed)  # a row that no member expects tells nothing
    share = np.exp(np.minimum(told - np.where(seen, mixed, 0.0), _REACH)) * seen
    return np.asarray(-share.mean(1) / chances)


def mix_logs(told: NDArray[np.float64], weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return ``log sum_k w_k exp told_k`` of each row, ``(rows,)``; minus infinity where no member expects a row."""
    with np.errstate(divide="ignore"):
        return np.asarray(np.logaddexp.reduce(told + np.log(weights)[:, None], axis=0))


def draw_chances(weights: NDArray[np.float64], expected: int, sampling: str) -> NDArray[np.float64]:
    """Return each member's chance of being drawn, at most 1 and of sum ``expected``."""
    count = len(weights)
    if expected >= count:
        return np.ones(count)
    wanted = np.full(count, 1 / count)
    if sampling == "weighted":
        wanted = (1 - _FLOOR) * weights + _FLOOR * wanted
    chances, sure = np.zeros(count), np.zeros(count, dtype=bool)
    while True:  # who would be above 1 is sure, and the others share what is left
        left = expected - sure.sum()
        chances = np.where(sure, 1.0, left * wanted / wanted[~sure].sum())
        over = (chances > 1) & ~sure
        if not over.any():
            return np.asarray(chances)
        sure |= over


def draw_members(chances: NDArray[np.float64], rng: Rng) -> NDArray[np.int64]:
    """Return the places of the members of a round, each drawn apart from the others; it may be nobody."""
    return np.flatnonzero(rng.generator().random(len(chances)) < chances)


def project_on_simplex(point: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the nearest weights of 0 or more and of sum 1 (Duchi et al. 2008)."""
    ordered = np.sort(point)[::-1]
    reach = (np.cumsum(ordered) - 1) / np.arange(1, len(point) + 1)
    last = int(np.flatnonzero(ordered > reach)[-1])
    return np.asarray(np.maximum(point - reach[last], 0.0))


class _TestLoss:
    """The loss of the weighted ensemble on the server's test rows; every member answers them once."""

    def __init__(self, members: Mapping[str, nn.Module], loss: Loss, test: Any) -> None:
        self._told: Any = None
        self._y: Any = None
        self._loss = loss
        if test is not None and len(test):
            x = np.asarray(test["x"])
            self._y = np.asarray(test["y"]) if loss != "density" else None
            self._told = np.stack([answers_of(one, x, self._y, loss, name) for name, one in members.items()])

    def of(self, weights: NDArray[np.float64]) -> dict[str, float]:
        """Return the loss by name; nothing without test rows."""
        if self._told is None:
            return {}
        if self._loss == "squared":
            return {"test/loss": float(((weights @ self._told - np.asarray(self._y).reshape(-1)) ** 2).mean())}
        return {"test/loss": float(-mix_logs(self._told, weights).mean())}
