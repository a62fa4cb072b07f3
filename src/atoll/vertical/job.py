"""`Vertical`: one model over columns that lie at several parties."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from atoll.core.errors import CompositionError, ConfigError, DataError
from atoll.core.exposure import Explanation, Exposure
from atoll.core.job import Job, Prepared
from atoll.core.message import StringArray
from atoll.core.persistence.named_results import NamedResults
from atoll.core.redaction import private
from atoll.core.requests.task import Task
from atoll.core.rooms import part_names
from atoll.core.validation import Checked, require_parts
from atoll.secure.psi import AlignmentPlan, Ecdh, Opprf, PsiProtocol, RowKeys, order_keys
from atoll.secure.psi.keys import name_rows_without_key
from atoll.secure.psi.protocol import intersect_keys
from atoll.trees.objectives import POISSON, SQUARED, TreeLoss
from atoll.trees.tree import score

from .model import GuestRows, VerticalModel, require
from .tables import PartyTable, read_class_names, read_labels, read_new_rows
from .transcript import Role, keep_heard
from .trees.secure_boost import SecureBoost

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.core.execution.session import Peers
    from atoll.core.federation.federation import Federation
    from atoll.core.requests.island import Island

__all__ = [
    "MODEL", "SharedRows", "Vertical", "VerticalResult", "find_shared_rows", "read_token", "require_no_labels", "train_pooled",
]  # fmt: skip

MODEL = "vertical-model"
"""The name under which each party keeps its part of the model."""
OUTCOME = "vertical-outcome"
"""The name under which the guest keeps the predictions of the shared rows, and how good they are."""
_KEY_SECONDS = 2e-4
"""Seconds that the alignment takes for a key: two points of a curve, at one party or the other."""


@dataclass(frozen=True, kw_only=True)
class Vertical(Checked, Job):
    """Train one model over columns that lie at several parties, for rows that they share. One party, the guest, has the labels.

    Each party's table has a column of keys. The parties match their keys (``align``), put the shared rows in the order of
    ``u = BLAKE2b-64("order:key")``, hold out those with ``u / 2^64 < test``, and train. Each keeps its own part of the model; to predict, all have to answer.

    Attributes:
        align: how the parties find the rows that they share, see `atoll.secure.psi`; by default `Ecdh` for two parties and `Opprf` for more.
        model: the model.
        guest: the party with the labels; by default the first.
        hosts: the other parties, in the order of their columns, which decides between equal gains; by default by name.
        id: the column of the keys.
        label: the column of the labels at the guest.
        task: ``auto``, ``binary``, ``multiclass`` or ``regression``; see `read_labels`.
        test: share of the shared rows held out.
        order: the seed of the order of rows.
        key: how two texts of one number among the keys count: as two keys (``"text"``) or as one (``"number"``); refused by default.
        repeats: ``"first"`` takes the first row of a key that stands in several rows; refused by default.
        categories: columns, of any party, whose numbers are codes of categories. Text is categories anyway, with models that read them: an input for each, in the order of their names.
        min_aligned: least number of shared rows to train on.
        transcript: let each party keep all messages that it receives, for an audit; see `write_transcript`.
    """

    kind: ClassVar[str] = "vertical"
    reads: ClassVar[str] = "table"
    missing_features: ClassVar[bool] = True
    method: ClassVar[str] = "model"

    align: PsiProtocol | None = None
    model: VerticalModel = field(default_factory=SecureBoost)
    guest: str | None = None
    hosts: Sequence[str] = ()
    id: str = "id"
    label: str = "y"
    task: Literal["auto", "binary", "multiclass", "regression"] = "auto"
    test: float = 0.25
    order: int = 0
    key: Literal["text", "number"] | None = None
    repeats: Literal["first"] | None = None
    categories: Sequence[str] = ()
    min_aligned: int = 10
    transcript: bool = False

    def __post_init__(self) -> None:
        require_parts(
            self,
            {"model": (VerticalModel, "atoll.vertical.SecureBoost()")},
            optional={"align": (PsiProtocol, "atoll.secure.psi.Ecdh()")},
        )
        tasks = ("auto", "binary", "multiclass", "regression")
        bounds = (
            ("task", self.task in tasks, f"use {', '.join(tasks)}"),
            ("test", 0 <= self.test < 1, "use a share of the rows, at least 0 and below 1"),
            ("key", self.key in (None, "text", "number"), "use 'text' or 'number', or leave it out"),
            ("repeats", self.repeats in (None, "first"), "use 'first', or leave it out"),
            ("min_aligned", self.min_aligned >= 2, "use at least 2 rows"),
        )
        for name in ("hosts", "categories"):
            given = getattr(self, name)
            object.__setattr__(self, name, (given,) if isinstance(given, str) else tuple(given))
        if self.categories and not self.model.categories:
            raise CompositionError(
                f"categories={list(self.categories)} with {type(self.model).__name__}",
                where="Vertical",
                remedy="use a model that reads categories, such as SecureBoost, or give columns of numbers",
            )
        for name, good, remedy in bounds:
            if not good:
                raise ConfigError(f"{name}={getattr(self, name)!r}", where="Vertical", remedy=remedy)

    def names(self) -> tuple[str, ...]:
        """The kind, the model and the alignment, which a site's policy can allow or refuse."""
        return (
            *super().names(),
            *self.model.names(),
            *([] if self.align is None else [type(self.align).__name__]),
        )

    @classmethod
    def known_names(cls) -> tuple[str, ...]:
        """The kind, and what models and alignment protocols say of themselves."""
        import atoll.vertical

        models = [getattr(atoll.vertical, name) for name in part_names("vertical model")]
        told = [name for model in models for name in model.known_names()]
        return (*super().known_names(), *told, *part_names("alignment protocol"))

    @property
    def key_columns(self) -> Sequence[str]:
        """The column of keys."""
        return (self.id,)

    def others(self, n: int) -> Mapping[str, str]:
        """The parties without columns that the model needs, such as a dealer: name -> role."""
        del n
        return dict(self.model.helpers)

    def read_table(self, data: Any, party: str, *, label: bool = False) -> PartyTable:
        """A party's table, with labels at the guest, and at a host of whose labels the model knows."""
        coded = self.categories if self.model.categories else None
        column = self.label if label else self.model.label_of(party)
        given: dict[str, Any] = {
            "key": self.id,
            "label": column,
            "coded": coded,
            "as_listed": self.model.as_listed or (self.model.reads_images and not label),
        }
        return PartyTable.of(data, party, precision=self.model.precision, **given)

    def roles(self, names: Sequence[str]) -> list[str]:
        """The parties with columns, the guest first.

        Raises:
            ConfigError: there are fewer than two, none is the guest, or one has the name of a helper.
        """
        parties = [str(name) for name in names]
        taken = next((name for name in parties if name in self.model.helpers), None)
        if taken is not None:
            raise ConfigError(
                f"a party with columns is named {taken!r}",
                where="Vertical",
                remedy=f"rename it: the {self.model.helpers[taken]} of this model is a party without columns",
            )
        chosen = self.guest or (parties[0] if parties else "")
        if len(parties) < 2 or chosen not in parties:
            raise ConfigError(
                f"guest={chosen!r} among {len(parties)} parties {parties[:10]}",
                where="Vertical",
                remedy="give at least two parties, and name the one with the labels",
            )
        others = sorted(name for name in parties if name != chosen)  # not as a table of parties happens to stand
        if self.hosts and sorted(self.hosts) != sorted(others):
            raise ConfigError(
                f"hosts={list(self.hosts)}, and the parties beside {chosen!r} are {others[:10]}",
                where="Vertical",
                remedy="name each other party once, or leave hosts out",
            )
        self.model.require_hosts(others)
        return [chosen, *(self.hosts or others)]

    def prepare(self, data: Any) -> Prepared:
        """Name the roles.

        Raises:
            ConfigError: there are fewer than two parties, or none is the guest.
            CompositionError: the alignment cannot carry so many parties.
        """
        roles = self.roles(data.names)
        self.plan(roles)
        return _PreparedVertical(self, roles, data)

    def explain(self, data: Any = None, clients: int = 0) -> Explanation:
        """Who learns what."""
        parties = self.roles(data.names) if data is not None else [self.guest or "guest", *(self.hosts or ["host"])]
        told = self.learns(parties)
        exposures = tuple(Exposure(who, what) for who, lines in told.items() for what in lines)
        return Explanation(self.title, len(parties), exposures)

    def plan(self, parties: Sequence[str]) -> AlignmentPlan:
        """The settings of the alignment.

        Raises:
            CompositionError: the protocol cannot align so many parties.
        """
        made = AlignmentPlan((self.id,), tuple(parties), seed=self.order, key=self.key, label=MODEL)
        self.protocol(len(parties)).require_plan(made)
        return made

    def protocol(self, parties: int) -> PsiProtocol:
        """How so many parties find the rows that they share."""
        return self.align or (Ecdh() if parties == 2 else Opprf())

    def predict_cost(self, keys: Mapping[str, int], columns: Sequence[int], outputs: int = 1) -> dict[str, float]:
        """Seconds of all parties' processors and bytes between them, before anyone is contacted: those of the protocol's frames, and of a training on all rows that could be shared.

        Args:
            keys: party -> its number of keys, the guest first.
            columns: how many columns each has, in the same order.
            outputs: trees a round: the number of classes, 1 for two classes or numbers.
        """
        aligned = self.predict_alignment(keys)
        rows = max(1, round(min(keys.values()) * (1 - self.test)))
        found = self.model.predict_cost(rows, columns, outputs)
        return {name: found[name] + aligned[name] for name in ("seconds", "bytes")}

    def predict_alignment(self, keys: Mapping[str, int]) -> dict[str, float]:
        """The part of `predict_cost` that finds the shared rows."""
        aligned = self.protocol(len(keys)).contract(self.plan(list(keys)), keys)
        return {"seconds": _KEY_SECONDS * sum(keys.values()), "bytes": aligned.nbytes}

    def read_result(self, folders: Mapping[str, Path], cost: Mapping[str, float] | None = None) -> VerticalResult:
        """The result of parties whose folders of named results are all at hand; see `VerticalResult.read`."""
        return VerticalResult.read(self, folders, cost)

    def learns(self, parties: Sequence[str]) -> dict[str, list[str]]:
        """What each party learns of the others, helpers too: party -> sentences."""
        contract, told = (
            self.protocol(len(parties)).contract(self.plan(parties), dict.fromkeys(parties, 0)),
            self.model.learns(),
        )
        aligned = {name: [one.sees for one in contract.learns if one.who == name] for name in parties}
        made = {name: [*aligned[name], *told["host" if i else "guest"]] for i, name in enumerate(parties)}
        return made | {name: list(told[name]) for name in self.model.helpers}


@dataclass(frozen=True)
class VerticalResult:
    """The outcome of `Vertical`.

    Attributes:
        job: the job.
        parties: the parties, the guest first.
        replies: what the parties' roles returned. Parts of the model are among them in a simulation alone; between organisations each stays at its party.
        cost: ``seconds`` of the session, and the ``bytes`` that went between parties; empty if a run was resumed after it.
    """

    job: Vertical
    parties: tuple[str, ...]
    replies: Mapping[str, Any]
    cost: Mapping[str, float] = field(default_factory=dict)

    def __repr__(self) -> str:
        scores = ", ".join(f"{name} {value:.4f}" for name, value in self.scores.items())
        return (
            f"VerticalResult({self.task}, {self.rows['aligned']:,} shared rows of {', '.join(self.parties)}; {scores})"
        )

    @classmethod
    def read(
        cls, job: Vertical, folders: Mapping[str, Path], cost: Mapping[str, float] | None = None
    ) -> VerticalResult:
        """The result of parties whose folders of named results are all at hand: those of a simulation's run folder, or of sites on one machine.

        Args:
            job: the job.
            folders: party -> its folder.
            cost: what the session cost, if it is known.

        Raises:
            ConfigError: a party has no part of a model there.
        """
        parties = job.roles(list(folders))
        replies: dict[str, Any] = {name: {"half": NamedResults(folders[name]).get(name, MODEL)} for name in parties}
        replies[parties[0]] |= NamedResults(folders[parties[0]]).get(parties[0], OUTCOME)
        return cls(job, tuple(parties), replies, dict(cost or {}))

    @property
    def task(self) -> str:
        """``binary``, ``multiclass`` or ``regression``."""
        return str(self._guest["task"])

    @property
    def rows(self) -> dict[str, int]:
        """How many rows are shared (``aligned``), trained on (``train``) and held out (``test``)."""
        return dict(self._guest["rows"])

    @property
    def scores(self) -> dict[str, float]:
        """The measure of the held-out rows, of the guest's own model and of the joint one, by name."""
        return dict(self._guest["scores"])

    @property
    def learns(self) -> dict[str, list[str]]:
        """What each party learns of the others: party -> sentences."""
        return self.job.learns(self.parties)

    @property
    def predictions(self) -> dict[str, Any]:
        """The shared rows in the common order: ``id``, ``test``, ``y`` and the predictions ``alone`` and ``federated``, ``(rows, outputs)`` with one output for two classes and for numbers."""
        found = dict(self._at_hand("predictions"))
        return {**found, "id": np.array(found["id"].tolist(), dtype=np.str_)}

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes, in the order of the codes; empty for a regression."""
        return tuple(self._at_hand("half")["classes"])

    def compare(self, pooled: NDArray[Any]) -> dict[str, Any]:
        """Compare the joint model with the guest's own and with the pooled one.

        The result has the measure (``metric``) of the held-out rows of ``alone``, ``federated`` and ``pooled``, ``None`` without such rows, and the largest ``difference`` of the
        last two's predictions of all shared rows, of a regression in deviations of y.

        Args:
            pooled: predictions of `train_pooled`.
        """
        told, objective = self.predictions, self.objective
        y = told["y"]
        held = told["test"] & ~np.isnan(y)
        made: dict[str, Any] = {"metric": score(objective, y[:1], told["federated"][:1])[0]}
        for name, values in (("alone", told["alone"]), ("federated", told["federated"]), ("pooled", pooled)):
            made[name] = score(objective, y[held], values[held])[1] if held.any() else None
        scale = float(np.std(y)) if objective.name in (SQUARED, POISSON) else 1.0
        return {**made, "difference": float(np.abs(told["federated"] - pooled).max()) / scale}

    @property
    def objective(self) -> TreeLoss:
        """The loss."""
        half = self._at_hand("half")
        return TreeLoss(half["objective"], int(half["outputs"]))

    def predict(self, tables: Mapping[str, Any], *, unknown: Literal["refuse", "guest"] = "refuse") -> NDArray[Any]:
        """Predict rows by their keys, in the order of the guest's table: probabilities of the second class or of all classes, or numbers.

        Each host answers for all of its part of the model, in one round trip.

        Args:
            tables: party -> its table of rows, in any order.
            unknown: what to do with rows that a host does not have: refuse them, or predict them with the guest's own model.

        Raises:
            DataError: a party's table is missing, a column is, or a host does not have a row; names its key.
        """
        model = self.job.model
        halves = [self._at_hand("half", name) for name in self.parties]
        missing = [name for name in self.parties if name not in tables]
        if missing:
            raise DataError(
                f"no table of {missing[0]!r}",
                where="predict",
                remedy=f"give one table for each of {', '.join(self.parties)}",
            )
        x, keys = zip(
            *(self._rows(tables[name], name, half) for name, half in zip(self.parties, halves, strict=True)),
            strict=True,
        )
        asked = [keys[0].names[i] if i >= 0 else "" for i in keys[0].rows.tolist()]
        known = np.ones(len(asked), np.bool_)
        answers = []
        for k, (name, mine, own, half) in enumerate(zip(self.parties[1:], x[1:], keys[1:], halves[1:], strict=True), 1):
            places = dict(zip(own.names, own.places.tolist(), strict=True))
            at = np.array([places.get(key, -1) for key in asked], np.int64)
            if (at < 0).any() and unknown == "refuse":
                absent = [asked[i] for i in np.flatnonzero(at < 0)[:3]]
                raise DataError(
                    f"{int((at < 0).sum())} of {len(asked)} rows are not at {name!r}, such as {', '.join(map(private, absent))}",
                    where="predict",
                    remedy="ask for rows that all parties have, or use unknown='guest' for the guest's own model",
                )
            known &= at >= 0
            rows = mine[np.maximum(at, 0)] if len(mine) else np.zeros((len(at), mine.shape[1]), mine.dtype)
            answer = model.answer(half["part"], rows)
            answers.append(model.read_answer(halves[0]["part"], answer, len(at), k, name))
        objective = self.objective
        joint = model.margins(halves[0]["part"], x[0], answers)
        made = objective.predict(np.where(known[:, None], joint, model.margins(halves[0]["alone"], x[0], [])))
        return made[:, 0] if objective.outputs == 1 else made

    def predict_own(self, party: str, table: Any) -> NDArray[Any]:
        """Predict all rows of a host's table, shared or not, in their order: see `VerticalPrediction.target`.

        Args:
            party: the host.
            table: its rows; their keys do not count.

        Raises:
            ConfigError: the model answers for the guest's rows alone, or the party is no host.
        """
        if party not in self.parties[1:]:
            raise ConfigError(f"predict_own({party!r})", where="VerticalResult", remedy=f"name a host: {', '.join(self.parties[1:])}")  # fmt: skip
        model, (guest, host) = self.job.model, (self._at_hand("half", name) for name in (self.parties[0], party))
        read = read_new_rows(table, party, host, key=self.job.id, precision=model.precision)
        made = self.objective.predict(model.own_margins(host["part"], guest["part"], read.x))
        return made[:, 0] if self.objective.outputs == 1 else made

    def _rows(self, data: Any, party: str, half: Any) -> tuple[NDArray[Any], RowKeys]:
        table = read_new_rows(data, party, half, key=self.job.id, precision=self.job.model.precision)
        return table.x, table.keys(self.job.id, self.job.order, self.job.repeats, self.job.key)

    @property
    def _guest(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.replies[self.parties[0]]
        return found

    def _at_hand(self, what: str, party: str | None = None) -> Any:
        found = self.replies[party or self.parties[0]]
        if what not in found:
            raise DataError(
                f"the {what} of {party or self.parties[0]!r} stayed there",
                where="VerticalResult",
                remedy="ask the party's site: it keeps its part of the model under the name 'vertical-model'",
            )
        return found[what]


def train_pooled(job: Vertical, tables: Mapping[str, Any], result: VerticalResult) -> NDArray[Any]:
    """What the same learner predicts that has all columns in one place, in the order of ``result.predictions``: for comparisons, as no party could.

    Args:
        job: the job.
        tables: party -> its table.
        result: what the job gave on these tables.
    """
    told, guest = result.predictions, result.parties[0]
    parts: list[NDArray[Any]] = []
    taught: list[NDArray[np.str_] | None] = []
    groups: list[int] = []
    for name in result.parties:
        table = job.read_table(tables[name], name, label=name == guest)
        keys = table.keys(job.id, job.order, job.repeats, job.key)
        place = dict(zip(keys.names, keys.places.tolist(), strict=True))
        at = np.array([place[key] for key in told["id"].tolist()], np.int64)
        parts.append(table.x[at])
        before = max(groups, default=-1) + 1
        groups += [before + one if one >= 0 else -1 for one in table.groups or (-1,) * table.x.shape[1]]
        column = None if name == guest else job.model.label_of(name)
        taught.append(None if column is None else read_class_names(table, column)[at[~told["test"]]])
    x, train, objective = np.concatenate(parts, axis=1), ~told["test"], result.objective
    sizes = tuple(part.shape[1] for part in parts)
    rows = GuestRows(x[train], told["y"][train], objective, sizes, result.classes, tuple(taught[1:]), tuple(groups))
    part = job.model.train_pooled(rows)
    return objective.predict(job.model.margins(part, x, []))


class _PreparedVertical(Prepared):
    def __init__(self, job: Vertical, parties: list[str], data: Any) -> None:
        self.job, self.parties, self._data = job, parties, data
        self._cost: dict[str, float] = {}
        self.align = intersect_keys
        guest: Role = self._guest
        host: Role = self._host
        helper: Role = self._helper
        if job.transcript:
            guest, host = keep_heard(guest, "training"), keep_heard(host, "training")
            helper = keep_heard(helper, "training")
            listening = keep_heard(intersect_keys.run, "alignment")
            self.align = Task("atoll.vertical.job:align", listening, contract=intersect_keys.contract)
        self.guest = Task("atoll.vertical.job:guest", guest)
        self.host = Task("atoll.vertical.job:host", host)
        self.helper = Task("atoll.vertical.job:helper", helper)
        self.tasks = (self.guest, self.host, self.helper, *([self.align] if job.transcript else []))

    async def program(self, fed: Federation) -> Any:
        """One session of all parties."""
        found = await fed.restore(None)
        begin = time.perf_counter()
        if found is None:
            await self._align(fed)
            found = {}
            await fed.checkpoint(found)
        if not found:
            roles = {name: (name, self.host if i else self.guest) for i, name in enumerate(self.parties)}
            roles |= {name: (name, self.helper) for name in self.job.model.helpers}
            found = await fed.session(roles)
            moved = fed.bytes()
            carried = moved["bytes_relayed"] + moved["bytes_between"]
            self._cost = {"seconds": time.perf_counter() - begin, "bytes": carried}
            fed.record(dict(found[self.parties[0]]["scores"]))
            await fed.checkpoint(found)
        return found

    def outcome(self, value: Any) -> VerticalResult:
        """The result."""
        return VerticalResult(self.job, tuple(self.parties), value, self._cost)

    def facts(self, outcome: VerticalResult) -> Mapping[str, Any]:
        """The task, the rows, the measures and what each party learns."""
        told = {"task": outcome.task, "rows": outcome.rows, **outcome.scores, "learns": outcome.learns}
        return {"result": {**told, **({"cost": dict(outcome.cost)} if outcome.cost else {})}}

    def sections(self, outcome: VerticalResult) -> Sequence[Mapping[str, Any]]:
        """Return the measure of the guest's own model beside that of the joint one, and what each party learns."""
        scores, rows = outcome.scores, outcome.rows
        arms = {name.split("/")[1]: value for name, value in scores.items()}
        measure = next((name.rsplit("/", 1)[1] for name in scores), "")
        text = f"{rows['aligned']:,} shared rows: {rows['train']:,} to train on, and {rows['test']:,} held out, on which both models are measured."
        shown = [[name, f"{value:.4f}"] for name, value in arms.items()]
        series = [{"name": measure, "values": list(arms.values())}]
        picture = {
            "name": f"held-out rows: {measure}",
            "kind": "bars",
            "flat": True,
            "labels": list(arms),
            "series": series,
        }
        learns = [[party, line] for party, lines in outcome.learns.items() for line in lines]
        found: dict[str, Any] = {"title": "How well the joint model predicts", "text": text, "tables": []}
        if arms:
            tile = [f"test {measure}", f"{arms['federated']:.4f}", f"{outcome.parties[0]} alone: {arms['alone']:.4f}"]
            found |= {"tables": [{"head": ["model", measure], "rows": shown}], "figures": [picture], "tiles": [tile]}
        return [
            found,
            {"title": "What each party learns of the others", "tables": [{"head": ["party", ""], "rows": learns}]},
        ]

    def notices(self, rows: Sequence[Mapping[str, Any]]) -> Sequence[str]:
        """Return what holds for any job, and how many rows had no key."""
        return [*super().notices(rows), *name_rows_without_key(self._data, self.job.key_columns)]

    # The roles.

    async def _align(self, fed: Federation) -> None:
        """Let the parties find the rows that they share; each keeps its own as private state."""
        job = self.job
        args = {"protocol": job.protocol(len(self.parties)).spec(), "plan": job.plan(self.parties).spec()}
        await fed.session({name: (name, self.align.with_args(me=name, **args)) for name in self.parties})

    def _other_rows(self, table: PartyTable, rows: SharedRows) -> NDArray[np.int64]:
        """The rows of a party's table whose keys are not shared, or that have none."""
        keys = table.keys(self.job.id, self.job.order, self.job.repeats, self.job.key)
        return np.flatnonzero(~np.isin(keys.rows, np.flatnonzero(np.isin(keys.places, rows.places))))

    async def _guest(self, island: Island, peers: Peers) -> Any:
        job, me, hosts = self.job, self.parties[0], self.parties[1:]
        state = await peers.restore(None)
        table = job.read_table(island.data, me, label=True)
        task = job.model.implied_task if job.task == "auto" else job.task
        labels = read_labels(table, job.label, task, job.model.precision)
        objective = job.model.fit_objective(labels.objective)
        rows = find_shared_rows(job, table, island)
        given: dict[str, Any] = {"objective": objective, "classes": labels.classes, "groups": table.groups}
        training = own = GuestRows(table.x[rows.train], labels.values[rows.train], **given)
        more: dict[str, Any] = {"secret": island.secret, "state": state, "save": peers.checkpoint}
        if job.model.releases:
            more["spend"] = island.spend
        if job.model.reads_others:
            others = self._other_rows(table, rows)
            more["others"] = GuestRows(table.x[others], labels.values[others], **given)
            every = np.concatenate([rows.train, others])
            own = GuestRows(table.x[every], labels.values[every], **given)
            labels.require_varied(every)
        else:
            labels.require_all(rows.places)
            labels.require_varied(rows.train)
        part = await job.model.train_guest(training, peers, hosts, **more)
        alone = job.model.train_pooled(own)
        asking = peers.channel("predictions")
        token = island.secret.bytes(16)
        await asking.broadcast({"rows": np.arange(len(rows)), "model": np.frombuffer(token, np.uint8)}, hosts)
        x = table.x[rows.places]
        margins = {
            "alone": job.model.margins(alone, x, []),
            "federated": await job.model.predict_guest(part, x, peers, hosts, secret=island.secret),
        }
        half = {
            "part": part, "alone": alone, **_shape_of(table), "objective": objective.name,
            "outputs": objective.outputs, "classes": list(labels.classes), "method": type(job.model).__name__,
        }  # fmt: skip
        keys = {"id": job.id, "key": job.key or "", "repeats": job.repeats or ""}
        named = {"model": np.frombuffer(token, np.uint8), "hosts": list(hosts), "keys": keys}
        island.leave(MODEL, {**half, **named})
        predicted = {name: objective.predict(each) for name, each in margins.items()}
        y = labels.values[rows.places]
        scores = _scores(objective, y, predicted, rows.is_test)
        told = {"task": labels.task, "scores": scores, "rows": rows.counts}
        table_of_rows = {"id": StringArray.from_values(rows.ids), "test": rows.is_test, "y": y, **predicted}
        island.leave(OUTCOME, {**told, "predictions": table_of_rows})
        return told if island.remote else {**told, "half": half, "predictions": table_of_rows}

    async def _host(self, island: Island, peers: Peers) -> Any:
        job, me = self.job, island.name
        state = await peers.restore(None)
        table, own = job.read_table(island.data, me), job.model.label_of(me)
        if own != job.label:
            require_no_labels(table, job.label)
        rows = find_shared_rows(job, table, island)
        guest = self.parties[0]
        more: dict[str, Any] = {"secret": island.secret, "state": state, "save": peers.checkpoint}
        if job.model.reads_groups and table.groups:
            more["groups"] = table.groups
        if own is not None:
            more["labels"] = read_class_names(table, own)[rows.train]
        if job.model.reads_others:
            more["others"] = table.x[self._other_rows(table, rows)]
        for event in job.model.training_releases(len(rows.train)) if state is None else ():
            island.spend(event)
        part = await job.model.train_host(table.x[rows.train], peers, guest, **more)
        asked = await peers.channel("predictions").recv(guest)
        for event in job.model.answer_releases(part, len(rows)):
            island.spend(event)
        await job.model.predict_host(part, table.x[rows.places], peers, guest, secret=island.secret)
        half = {"part": part, **_shape_of(table), "method": type(job.model).__name__}
        island.leave(MODEL, {**half, "model": read_token(asked)})
        return {} if island.remote else {"half": half}

    async def _helper(self, island: Island, peers: Peers) -> Any:
        """A party without columns: it takes part in the training alone."""
        state = await peers.restore(None)
        more: dict[str, Any] = {"secret": island.secret, "state": state, "save": peers.checkpoint}
        await self.job.model.assist(island.name, peers, self.parties, **more)
        return {}


def find_shared_rows(job: Vertical, table: PartyTable, island: Island, name: str = MODEL) -> SharedRows:
    """The shared rows of a party, as its side of the alignment left them.

    Args:
        job: the job that aligned the rows, or the training that another job is like.
        table: the party's table.
        island: the party.
        name: what the alignment's plan calls them.

    Raises:
        DataError: they are fewer than ``min_aligned``, or a key stands in two rows.
    """
    kept = island.state[name]
    table.keys(job.id, job.order, job.repeats, job.key)
    names, places = list(kept["names"]), np.asarray(kept["rows"], np.int64)
    if len(names) < job.min_aligned:
        raise DataError(
            f"{len(names)} shared rows, fewer than min_aligned={job.min_aligned}",
            where=f"table of {table.party!r}",
            remedy=f"compare the forms of the keys at all parties; {_forms(job, table, island, name)}",
        )
    return SharedRows.of(names, places, job.order, job.test)


def _forms(job: Vertical, table: PartyTable, island: Island, name: str = MODEL) -> str:
    """The forms of a party's keys; between organisations an error goes to others, who are not to see them."""
    if island.remote:
        return f"this party's site keeps its own as the 'shape' of {name!r} if none is shared"
    return f"here they are {RowKeys.of(table.columns, job.id, key=job.key).shape()}"


def require_no_labels(table: PartyTable, label: str | None) -> None:
    """Refuse a host's table that has a column with the name of the guest's labels.

    Raises:
        DataError: it has.
    """
    if label in table.columns:
        raise DataError(
            f"a column {label!r}, which is the name of the guest's labels",
            where=f"table of {table.party!r}",
            remedy="rename the column at the host, or leave it out if it holds the labels",
        )


@dataclass(frozen=True)
class SharedRows:
    """The shared rows of one party, in the common order.

    Attributes:
        ids: their keys.
        places: their rows in the party's table.
        is_test: which are held out.
    """

    ids: tuple[str, ...] = field(repr=False)
    places: NDArray[np.int64]
    is_test: NDArray[np.bool_]

    @classmethod
    def of(cls, names: Sequence[str], places: NDArray[np.int64], seed: int, test: float) -> SharedRows:
        """Shared keys and where their rows lie; those with ``u / 2^64 < test`` are held out."""
        u = order_keys(names, seed)
        return cls(tuple(names), places, u.astype(np.float64) / 2.0**64 < test)

    def __len__(self) -> int:
        return len(self.places)

    @property
    def train(self) -> NDArray[np.int64]:
        """The rows to train on, in the party's table."""
        return self.places[~self.is_test]

    @property
    def counts(self) -> dict[str, int]:
        """How many rows are shared, trained on and held out."""
        test = int(self.is_test.sum())
        return {"aligned": len(self), "train": len(self) - test, "test": test}


def _shape_of(table: PartyTable) -> dict[str, Any]:
    """What a saved part must know of a party's columns. It stays with the party."""
    categories = {name: list(each) for name, each in table.categories.items()}
    told: dict[str, Any] = {"categories": categories, "extents": table.extents}
    return {"features": list(table.features), **{name: each for name, each in told.items() if each}}


def read_token(message: Any) -> NDArray[np.uint8]:
    """The 16 random bytes by which the parties know that their parts are of one model.

    Raises:
        MessageError: there are none.
    """
    found = message.get("model") if isinstance(message, Mapping) else None
    good = isinstance(found, np.ndarray) and found.shape == (16,) and found.dtype == np.uint8
    require(good, "no name of a model", "Vertical")
    return np.asarray(found)


def _scores(
    objective: TreeLoss, y: NDArray[Any], predicted: Mapping[str, NDArray[Any]], is_test: NDArray[np.bool_]
) -> dict[str, float]:
    """The measure of the task, on the held-out rows, of the guest's own model and of the joint one."""
    made, is_test = {}, is_test & ~np.isnan(y)
    if is_test.any():
        for name, values in predicted.items():
            measure, made[f"test/{name}"] = score(objective, y[is_test], values[is_test])
            made[f"test/{name}/{measure}"] = made.pop(f"test/{name}")
    return made
