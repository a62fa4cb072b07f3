"""`VerticalPrediction`: a trained model's answers for the guest's rows, in one round trip."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from atoll.core.errors import ConfigError, DataError, PolicyError
from atoll.core.exposure import Explanation, Exposure
from atoll.core.job import Job, Prepared
from atoll.core.message import Bits, StringArray
from atoll.core.persistence.named_results import NamedResults
from atoll.core.redaction import private
from atoll.core.requests.task import Task
from atoll.core.validation import Checked
from atoll.secure.psi import RowKeys
from atoll.trees.objectives import OBJECTIVES, TreeLoss

from .job import MODEL, Vertical, read_token
from .model import VerticalModel, model_named, require
from .tables import read_new_rows

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.core.execution.session import Peers
    from atoll.core.federation.federation import Federation
    from atoll.core.requests.island import Island

__all__ = ["VerticalPrediction", "VerticalPredictions", "keep_rows", "take_answers"]

PREDICTIONS = "vertical-predictions"
"""The name under which the guest, or a host that predicts its own rows, keeps the answers."""
ANSWERED = "vertical-answered"
"""The name under which a host whose policy limits predictions keeps when it was asked for how many rows."""
ROWS = "vertical-rows-"
"""Begins the name under which the guest keeps rows to predict."""
_HOUR, _DAY = 3600.0, 86400.0


@dataclass(frozen=True, kw_only=True)
class VerticalPrediction(Checked, Job):
    """Predict all rows of the guest's table with the model that an earlier `Vertical` left at the parties, in the order of the guest's rows.

    The guest sends the keys of its rows to the hosts. Each host answers for all of its part of the model: of boosted trees, where each row goes at all of its own splits. The guest puts the answers together and keeps
    ``ids`` and ``predictions`` under the name ``vertical-predictions``: of two classes the probability of the second, of more the probability of each, or numbers.

    Attributes:
        guest: the party with the labels; by default the first.
        id: the column of the keys.
        unknown: what to do with rows that a host does not have: refuse them, or predict them with the guest's own model.
        key: how two texts of one number among the keys count, see `Vertical`.
        repeats: ``"first"`` takes the first row of a key that stands in several rows of a host; refused by default.
        target: predict all rows of this host's table instead, which the guest need not have, for a model of transfer. The host learns the answers and keeps them; the guest learns how many rows there are.
        rows: predict the rows that the guest keeps as a result of this name, ``vertical-rows-…``, in place of those of its table; see `keep_rows`. The answers stay there too, see `take_answers`.
    """

    kind: ClassVar[str] = "vertical-prediction"
    reads: ClassVar[str] = "table"
    missing_features: ClassVar[bool] = True

    guest: str | None = None
    id: str = "id"
    unknown: Literal["refuse", "guest"] = "refuse"
    key: Literal["text", "number"] | None = None
    repeats: Literal["first"] | None = None
    target: str | None = None
    rows: str | None = None

    def __post_init__(self) -> None:
        if self.rows is not None and (not self.rows.startswith(ROWS) or self.target is not None):
            raise ConfigError(f"rows={self.rows!r}", where="VerticalPrediction", remedy=f"name a result of the guest that begins with {ROWS!r}, without target=")  # fmt: skip
        Vertical(id=self.id, key=self.key, repeats=self.repeats)  # refuses what a training would

    @property
    def key_columns(self) -> Sequence[str]:
        """The column of keys."""
        return (self.id,)

    def roles(self, names: Sequence[str]) -> list[str]:
        """The parties, the guest first.

        Raises:
            ConfigError: there are fewer than two, or none is the guest.
        """
        parties = Vertical(guest=self.guest).roles(names)
        if self.target is not None and self.target not in parties[1:]:
            raise ConfigError(f"target={self.target!r}", where="VerticalPrediction", remedy=f"name a host: {', '.join(parties[1:])}")  # fmt: skip
        return parties

    def explain(self, data: Any = None, clients: int = 0) -> Explanation:
        """Who learns what."""
        parties = self.roles(data.names) if data is not None else ["guest", self.target or "host"]
        if self.target is not None:
            asked = Exposure(parties[0], f"how many rows {self.target} predicts")
            return Explanation(self.title, 2, (asked, Exposure(self.target, "what the model says of its own rows")))
        told = [Exposure(name, "the keys that the guest asks for") for name in parties[1:]]
        told.append(
            Exposure(parties[0], "which of its keys each host has, and what its part of the model says of their rows")
        )
        return Explanation(self.title, len(parties), tuple(told))

    def prepare(self, data: Any) -> Prepared:
        """Name the roles.

        Raises:
            ConfigError: there are fewer than two parties, or none is the guest.
        """
        return _PreparedPrediction(self, self.roles(data.names))


@dataclass(frozen=True)
class VerticalPredictions:
    """The outcome of `VerticalPrediction`.

    Attributes:
        rows: how many rows were asked for.
        unknown: how many of them a host did not have, which got the guest's own model.
        ids: their keys, in the order of the guest's rows; empty between organisations, where the answers stay at the guest.
        predictions: the answers.
    """

    rows: int
    unknown: int
    ids: tuple[str, ...] = ()
    predictions: NDArray[np.float32] = field(default_factory=lambda: np.zeros(0, np.float32))


class _PreparedPrediction(Prepared):
    def __init__(self, job: VerticalPrediction, parties: list[str]) -> None:
        self.job, self.parties = job, parties
        self.guest = Task("atoll.vertical.prediction:guest", self._guest)
        self.host = Task("atoll.vertical.prediction:host", self._host)
        self.server = Task("atoll.vertical.prediction:serve", self._serve)
        self.asker = Task("atoll.vertical.prediction:ask", self._ask)
        self.tasks = (self.guest, self.host) if job.target is None else (self.server, self.asker)

    async def program(self, fed: Federation) -> Any:
        """One session of all parties, or of the guest and the host whose rows are predicted."""
        await fed.restore(None)
        guest, target = self.parties[0], self.job.target
        if target is not None:
            return (await fed.session({guest: (guest, self.server), target: (target, self.asker)}))[target]
        roles = {name: (name, self.host if i else self.guest) for i, name in enumerate(self.parties)}
        return (await fed.session(roles))[self.parties[0]]

    def outcome(self, value: Any) -> VerticalPredictions:
        """The result."""
        rows, unknown = int(value["rows"]), int(value["unknown"])
        if "ids" not in value:
            return VerticalPredictions(rows, unknown)
        return VerticalPredictions(rows, unknown, tuple(value["ids"].tolist()), np.asarray(value["predictions"]))

    def facts(self, outcome: VerticalPredictions) -> Mapping[str, Any]:
        """How many rows were asked for, and how many a host did not have."""
        return {"result": {"rows": outcome.rows, "unknown": outcome.unknown}}

    # The roles.

    def _rows(
        self, island: Island, half: Mapping[str, Any], data: Any = None
    ) -> tuple[type[VerticalModel], NDArray[Any], RowKeys]:
        model = model_named(half["method"])
        given = island.data if data is None else data
        # `keep_rows` has warned of rows that were given; a site's log has no reader who asked.
        warn = data is None and not island.remote
        table = read_new_rows(given, island.name, half, key=self.job.id, precision=model.precision, warn=warn)
        return model, table.x, table.keys(self.job.id, 0, self.job.repeats, self.job.key)

    async def _guest(self, island: Island, peers: Peers) -> Any:
        half = _half_of(island, guest=True)
        hosts = list(half["hosts"])
        if sorted(hosts) != sorted(self.parties[1:]):
            raise DataError(
                f"the hosts are {', '.join(self.parties[1:])}, and those of the training were {', '.join(hosts)}",
                where="VerticalPrediction",
                remedy="ask the parties of the training",
            )
        given = None if self.job.rows is None else _unpack_rows(island.left(self.job.rows))
        model, x, keys = self._rows(island, half, given)
        ids = [keys.names[i] if i >= 0 else "" for i in keys.rows.tolist()]
        asked = StringArray.from_values(ids)
        await peers.broadcast({"model": half["model"], "ids": asked}, hosts)
        known = np.ones(len(ids), np.bool_)
        for name in hosts:
            told = await peers.recv(name)
            there = told.get("known") if isinstance(told, Mapping) else None
            require(isinstance(there, Bits) and there.shape == (len(ids),), f"no answer of {name!r}")
            here = there.unpack()  # type: ignore[union-attr]
            if not here.all() and self.job.unknown == "refuse":
                absent = [ids[i] for i in np.flatnonzero(~here)[:3]]
                if self.job.rows is not None:  # for the person who asked: an error leaves the site without names
                    lacking = {
                        "host": name,
                        "rows": len(ids),
                        "ids": StringArray.from_values([ids[i] for i in np.flatnonzero(~here)]),
                    }
                    island.leave(f"{self.job.rows}-absent", lacking, at_once=True)
                raise DataError(
                    f"{int((~here).sum())} of {len(ids)} rows are not at {name!r}, such as {', '.join(map(private, absent))}",
                    where="VerticalPrediction",
                    remedy="ask for rows that all parties have, or use unknown='guest' for the guest's own model",
                )
            known &= here
        objective = TreeLoss(half["objective"], int(half["outputs"]))
        joint = await model().predict_guest(half["part"], x, peers, hosts, secret=island.secret)
        own = model.margins(half["alone"], x, [])
        made = objective.predict(np.where(known[:, None], joint, own))
        found = {"ids": asked, "predictions": made[:, 0] if objective.outputs == 1 else made}
        island.leave(PREDICTIONS if self.job.rows is None else f"{self.job.rows}-answers", found)
        told = {"rows": len(ids), "unknown": int((~known).sum())}
        return told if island.remote else {**told, **found}

    async def _host(self, island: Island, peers: Peers) -> Any:
        guest, half = self.parties[0], _half_of(island, guest=False)
        asked = await peers.recv(guest)
        _require_same(read_token(asked), half, guest, island.name)
        ids = asked.get("ids")
        require(isinstance(ids, StringArray) and len(ids.shape) == 1, "no keys were asked for", "Vertical")
        _count_rows(island, len(ids), time.time())
        model, x, keys = self._rows(island, half)
        places = dict(zip(keys.names, keys.places.tolist(), strict=True))
        at = np.array([places.get(key, -1) for key in ids.tolist()], np.int64)
        rows = x[at] if len(x) else np.zeros((len(at), x.shape[1]), x.dtype)
        rows[at < 0] = 0  # nobody's row: what the host says of it does not count
        for event in model.answer_releases(half["part"], len(at)):
            island.spend(event)
        await peers.send(guest, {"known": Bits.pack(at >= 0)})
        await model().predict_host(half["part"], rows, peers, guest, secret=island.secret)
        return {}

    # The roles of a host that predicts its own rows.

    async def _serve(self, island: Island, peers: Peers) -> Any:
        half, target = _half_of(island, guest=True), str(self.job.target)
        asked = await peers.recv(target)
        _require_same(read_token(asked), half, target, island.name)
        rows = asked.get("rows")
        require(type(rows) is int and 1 <= rows <= 1 << 31, f"{rows!r} rows to predict", "VerticalPrediction")
        _count_rows(island, rows, time.time())
        await peers.send(target, {"objective": half["objective"], "outputs": int(half["outputs"])})
        model = model_named(half["method"])
        await model().serve_guest(half["part"], peers, target, rows, secret=island.secret)
        return {}

    async def _ask(self, island: Island, peers: Peers) -> Any:
        half, guest = _half_of(island, guest=False), self.parties[0]
        model, x, keys = self._rows(island, half)
        await peers.send(guest, {"model": half["model"], "rows": len(x)})
        told = await peers.recv(guest)
        good = isinstance(told, Mapping) and told.get("objective") in OBJECTIVES and type(told.get("outputs")) is int
        require(good, f"{guest!r} does not say what it predicts", "VerticalPrediction")
        objective = TreeLoss(told["objective"], told["outputs"])
        margins = await model().serve_host(half["part"], x, peers, guest, secret=island.secret)
        made = objective.predict(margins)
        ids = StringArray.from_values([keys.names[i] if i >= 0 else "" for i in keys.rows.tolist()])
        found = {"ids": ids, "predictions": made[:, 0] if objective.outputs == 1 else made}
        island.leave(PREDICTIONS, found)
        counts = {"rows": len(x), "unknown": 0}
        return counts if island.remote else {**counts, **found}


def keep_rows(
    results: NamedResults, guest: str, table: Any, token: str, unknown: Literal["refuse", "guest"] = "refuse"
) -> VerticalPrediction:
    """Keep rows to predict among the named results of the guest, and return the job that predicts them with the model that is there.

    Args:
        results: those of the guest's site.
        guest: its name.
        table: the rows: a table with the columns of the training; its labels are not read.
        token: ends their name; new each time.
        unknown: see `VerticalPrediction`.

    Raises:
        ConfigError: there is no model.
        DataError: the part is a host's, or the table lacks a column, or a row has no key, or two have one.
    """
    half = results.get(guest, MODEL)
    _require_role(half, guest, guest=True)
    model, keys = model_named(half["method"]), half.get("keys", {})
    told = {name: keys[name] for name in ("id", "key", "repeats") if keys.get(name)}
    job = VerticalPrediction(guest=guest, unknown=unknown, rows=f"{ROWS}{token}", **told)
    read = read_new_rows(table, guest, half, key=job.id, precision=model.precision)
    asked = RowKeys.of(read.columns, job.id, key=job.key, row_offset=read.row_offset, where=f"table of {guest!r}")
    if (asked.rows < 0).any():
        line = int(np.flatnonzero(asked.rows < 0)[0]) + read.row_offset
        raise DataError(f"row {line} has no key", where=f"table of {guest!r}", remedy=f"fill the column {job.id!r}")  # fmt: skip
    try:
        asked.require_distinct(job.repeats, where=f"table of {guest!r}")
    except DataError as error:
        raise DataError(error.what, where=error.where, remedy="leave one row of each key") from None
    columns = {name: np.asarray(read.columns[name]) for name in (job.id, *half["features"])}
    packed = {name: StringArray.from_values([str(one) for one in each.tolist()]) if each.dtype.kind in "UO" else each for name, each in columns.items()}  # fmt: skip
    results.put(guest, str(job.rows), packed)
    return job


def take_answers(results: NamedResults, job: VerticalPrediction) -> dict[str, Any]:
    """The answers for rows of `keep_rows`, which are removed with the rows: ``ids``, ``predictions``, ``objective`` and ``classes``.

    Raises:
        DataError: a host lacks rows; names them.
        ConfigError: there are no answers.
    """
    guest, name = str(job.guest), str(job.rows)
    try:
        try:
            lacking = results.get(guest, f"{name}-absent")
        except ConfigError:
            found, half = results.get(guest, f"{name}-answers"), results.get(guest, MODEL)
            return {
                "ids": found["ids"].tolist(), "predictions": np.asarray(found["predictions"]),
                "objective": half["objective"], "classes": list(half["classes"]),
            }  # fmt: skip
        absent = lacking["ids"].tolist()
        raise DataError(
            f"{len(absent)} of {lacking['rows']} rows are not at {lacking['host']!r}: {', '.join(map(private, absent[:10]))}{', …' if len(absent) > 10 else ''}",
            where="predict",
            remedy="ask for rows that all parties have, or use unknown='guest' for the guest's own model",
        )
    finally:
        for end in ("", "-answers", "-absent"):
            results.remove(guest, f"{name}{end}")


def _unpack_rows(packed: Mapping[str, Any]) -> dict[str, Any]:
    """The columns that `keep_rows` has kept."""
    return {name: np.array(each.tolist(), np.str_) if isinstance(each, StringArray) else each for name, each in packed.items()}  # fmt: skip


def _require_same(token: NDArray[np.uint8], half: Mapping[str, Any], other: str, me: str) -> None:
    """Refuse a party whose part is of another training.

    Raises:
        DataError: it is.
    """
    if token.tobytes() != np.asarray(half["model"]).tobytes():
        raise DataError(
            f"its part belongs to another model than that of {other!r}",
            where=f"model of {me!r}",
            remedy="train again: each party keeps the part of its last training",
        )


def _count_rows(island: Island, rows: int, now: float) -> None:
    """Take note of how many rows a host is asked for, before it answers.

    Raises:
        PolicyError: with them it would answer for more within an hour than its policy allows.
    """
    most = island.rules.predictions_per_hour
    if most is None:
        return
    # A record may only grow, so each day has its own; one without a day is of earlier versions.
    today = int(now // _DAY)
    told = {name: _list_answered(island, name) for name in (ANSWERED, *(f"{ANSWERED}-{day}" for day in (today - 1, today)))}  # fmt: skip
    kept = [(when, count) for one in told.values() for when, count in one if when > now - _HOUR]
    recent = sum(count for _, count in kept)
    if recent + rows > most:
        raise PolicyError(
            f"predictions_per_hour={most}: {recent} rows within the last hour, and {rows} more are asked for",
            where=f"policy of {island.name!r}",
            remedy="ask for fewer rows, or later; a person at the site can raise predictions_per_hour in its policy",
        )
    mine = [*told[f"{ANSWERED}-{today}"], (float(now), int(rows))]
    island.leave(f"{ANSWERED}-{today}", {"times": [one[0] for one in mine], "rows": [one[1] for one in mine]}, at_once=True)  # fmt: skip


def _list_answered(island: Island, name: str) -> list[tuple[float, int]]:
    """Times and rows of a record of what a host has answered for."""
    try:
        left = island.left(name)
    except ConfigError:
        return []
    return list(zip(left["times"], left["rows"], strict=True))


def _half_of(island: Island, *, guest: bool) -> Mapping[str, Any]:
    """A party's part of the model.

    Raises:
        ConfigError: it has none.
        DataError: it has that of another role.
    """
    half: Mapping[str, Any] = island.left(MODEL)
    _require_role(half, island.name, guest=guest)
    return half


def _require_role(half: Mapping[str, Any], party: str, *, guest: bool) -> None:
    """Refuse a part of a model that is of the other role.

    Raises:
        DataError: it is.
    """
    if ("hosts" in half) != guest or "model" not in half:
        raise DataError(
            f"the part of a model at {party!r} is not of this role",
            where="VerticalPrediction",
            remedy="name the guest of the training: guest=",
        )
