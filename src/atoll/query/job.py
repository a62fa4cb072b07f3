"""`Query`: the job that answers one statement."""

from __future__ import annotations

import datetime
import decimal
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from atoll.core import message as M
from atoll.core.errors import ConfigError, DataError
from atoll.core.event import Covered, Event, Laplace, NonPrivate
from atoll.core.exposure import Explanation, Exposure
from atoll.core.job import Job, Prepared
from atoll.core.persistence.files import as_json
from atoll.core.requests.task import task
from atoll.core.validation import Checked, is_real

from .events import write_event
from .local import digest_rows, message_of, plan_of, silo_of
from .policy import strictest
from .statement import describe_catalog, parse_statement, unite_schemas, with_declared
from .strategies.kept_shares import KEPT_AS, KEPT_ID, choose_kept, drop_relations, require_kept_strategy
from .strategies.strategy import (
    HELPER,
    Choice,
    PlanStep,
    QueryAnswer,
    choose_strategy,
    known_strategies,
    predict_seconds,
    read_strategy,
    strategy_of,
    takes_epsilon,
    wants_helper,
)

if TYPE_CHECKING:
    from atoll.core.federation.federation import Federation

__all__ = ["Query", "QueryResult", "describe_tables", "plain_value"]


_TIME = Exposure(
    "coordinator, analyst",
    "how long each site takes for its own SQL, and whether that is longer than its limits: a condition that takes long for some rows only tells of them",
)
_CONTACT = 6
"""Bytes of the request for a site's tables."""


@task
def describe_tables(island: Any, message: Any) -> Any:
    """The tables of one site, the types of their columns, and what its policy says of them; nothing of a row."""
    del message
    silo = silo_of(island.data)
    schema = silo.read_schema()
    island.spend(Covered(what="the tables, the types of their columns, and the policy: nothing of a row"))
    return {"tables": schema, "policy": silo.policy.told({t.lower(): [c.lower() for c in columns] for t, columns in schema.items()})}  # fmt: skip


@task
def digest_replicated(island: Any, message: Any) -> Any:
    """Keyed digests of the rows of tables that every site is said to have, in the columns that are not private; of those that the statement reads, by the site's own plan."""
    silo, strategy = silo_of(island.data), read_strategy(message)
    plan = plan_of(silo, message, strategy.plan, strategy.name)
    compared = compared_columns(plan)
    write_event(
        island,
        message,
        plan,
        f"a digest of {', '.join(compared)} under a key of the statement, and the number of rows",
        {},
    )
    return digest_rows(silo, compared, f"{int(message['key']):x}")


def compared_columns(plan: Any) -> dict[str, dict[str, str]]:
    """The columns of replicated tables that a plan reads and that are not private, with their types."""
    found = {}
    for table, columns in plan.sources.items():
        types = {name: plan.catalog.tables[table][name] for name in columns if plan.policy.table(table).column(name).level != "private"}  # fmt: skip
        if plan.policy.table(table).mode == "replicated" and types:
            found[table] = types
    return found


def claims_of(plan: Any) -> list[Exposure]:
    """What an answer rests on that policies claim: ``mode: replicated``, which digests compare, and ``join: local``, which nobody can check without showing values."""
    compared, found = compared_columns(plan), []
    if compared:
        columns = ", ".join(f"{table}.{name}" for table, types in compared.items() for name in types)
        found.append(Exposure("coordinator", f"whether all sites have the same {columns}: a digest under a key of this statement", "these columns are not private"))  # fmt: skip
    for table, columns in plan.sources.items():
        policy = plan.policy.table(table)
        kept = [name for name in columns if policy.mode == "replicated" and name not in compared.get(table, {})]
        local = [name for name in columns if policy.mode != "replicated" and policy.column(name).local]
        found += [Exposure("analyst", "the answer", f"all sites have the same {table}.{name}, as the policies claim (mode: replicated): it is private, and nobody compares it") for name in kept]  # fmt: skip
        found += [Exposure("analyst", "the answer", f"all rows with one {table}.{name} lie at one site, as the policies claim (join: local): nobody can check it without showing values") for name in local]  # fmt: skip
    return found


@dataclass(frozen=True)
class QueryResult:
    """What a statement gave, and how.

    Attributes:
        answer: columns, rows and what was withheld; without rows if only the plan was asked for.
        choice: the strategy, its plan, and why others lost; ``None`` if only the tables were asked for.
        bytes: bytes that all sites sent and received.
        predicted: bytes that the strategy expects, for the groups that the sites were asked for; as long as only the plan is known, for one group.
        links: bytes between the coordinator and each site, both ways.
        explain: ``"explain"`` or ``"analyze"`` if the plan was asked for.
    """

    answer: QueryAnswer
    choice: Choice | None
    bytes: int = 0
    predicted: int = 0
    links: Mapping[str, int] = field(default_factory=dict)
    explain: str = ""

    @property
    def plan(self) -> list[dict[str, str]]:
        """The steps, in order: where each runs, in which form its numbers are, and what it does."""
        if self.choice is None:
            return []
        written = [PlanStep("coordinator", "plain", f"{call} stands for {text}") for call, text in self.choice.plan.statement.calls]  # fmt: skip
        steps = [*written, *self.choice.strategy.steps(self.choice.plan)]
        return [{"place": one.place, "form": one.form, "what": one.what} for one in steps]

    @property
    def leakage(self) -> list[dict[str, str]]:
        """Who learns what, assuming what."""
        if self.choice is None:
            return []
        plan = self.choice.plan
        return [one.facts() for one in (*self.choice.strategy.exposures(plan), *claims_of(plan), _TIME)]

    def facts(self) -> dict[str, Any]:
        """The result as plain values: decimals and dates as text, NULL as None."""
        return {
            "columns": list(self.answer.columns),
            "types": list(self.answer.types),
            "rows": [[plain_value(value) for value in row] for row in self.answer.rows],
            "explain": self.explain,
            "strategy": "" if self.choice is None else self.choice.strategy.name,
            "rejected": {} if self.choice is None else dict(self.choice.rejected),
            "plan": self.plan,
            "leakage": self.leakage,
            "rounds": self.answer.rounds,
            "expected": {"rounds": self.answer.rounds, "seconds": predict_seconds(self.predicted, self.answer.rounds)},
            "comparisons": self.answer.comparisons,
            "bytes": {"total": self.bytes, "predicted": self.predicted, "links": dict(self.links)},
            "privacy": None if self.answer.privacy is None else dict(self.answer.privacy),
            "approximate": None if self.answer.approximate is None else dict(self.answer.approximate),
            "withheld_groups": self.answer.withheld_groups,
            "withheld_values": self.answer.withheld_values,
            **({} if self.answer.kept is None else {"kept": dict(self.answer.kept)}),
        }


_SHOWN = 100
"""Most rows of an answer that a report shows."""


def _shown(value: Any) -> str:
    value = plain_value(value)
    return "-" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)


def plain_value(value: Any) -> Any:
    """A value as JSON has it: decimals, dates, times and numbers that are not finite as text."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if value - value == 0 else str(value)
    if isinstance(value, datetime.datetime):
        return value.isoformat(sep=" ")
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, decimal.Decimal):
        return f"{value:f}"
    return str(value)


@dataclass(frozen=True, kw_only=True)
class Query(Checked, Job):
    """Answer one statement over the tables of all sites; every site's data are a `Silo`.

    Attributes:
        sql: the statement: one SELECT, EXPLAIN of one, ``SHOW TABLES`` or ``DESCRIBE table``.
        strategy: how it is answered: ``"auto"``, or the name of a strategy, with options after a colon: ``"hufu:radii=3"``.
        params: values of ``?`` in the statement, in order.
        epsilon: what noise costs each site's units, in the answer or in what parties see on the way; ``None`` for none.
        delta: the probability that such an answer lists a group of one unit.
        analyst: who asks for noise, by the name that the sites' policies have budgets for.
        error: how far an answer may be from exact, as a part of each number: 0.05 for 5 %. The cheapest plan that meets it answers; ``None`` for no limit. With an epsilon that is noise on the smallest
            sample.
        confidence: with which probability numbers are within it, and in the intervals that an answer with noise tells.
        kept: relations that parties keep between statements, each with the id that names it; the statement says by ``WITH … AS MATERIALIZED`` what they are (`atoll.query.kept_relations` writes both).
        creates: the one of these that the statement makes; empty where it reads them.
        drops: whether all parties forget them, in place of an answer.
        helper: between organisations, whether a helper's site without rows takes part: two sites need it to compute on shares. In a simulation it is there by itself for a strategy that always shares rows.
    """

    kind: ClassVar[str] = "query"
    missing_features: ClassVar[bool] = True
    method: ClassVar[str] = "strategy"

    sql: str
    strategy: str = "auto"
    params: Sequence[Any] | Mapping[str, Any] = ()
    epsilon: float | None = None
    delta: float = 1e-6
    analyst: str = ""
    error: float | None = None
    confidence: float = 0.95
    helper: bool = False
    kept: Mapping[str, str] = field(default_factory=dict)
    creates: str = ""
    drops: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        limits = (self.confidence, *(() if self.error is None else (self.error,)))
        if not all(is_real(one) and 0 < one < 1 for one in limits):
            raise ConfigError(f"error={self.error!r}, confidence={self.confidence!r}", where="query", remedy="use parts of 1, such as error 0.05 and confidence 0.95")  # fmt: skip
        self._require_kept()
        if self.epsilon is None:
            return
        if not is_real(self.epsilon) or not 0 < self.epsilon < math.inf or not is_real(self.delta) or not 0 < self.delta < 1:  # fmt: skip
            raise ConfigError(f"epsilon={self.epsilon!r}, delta={self.delta!r}", where="query", remedy="use an epsilon above 0, such as 0.5, and a delta in (0, 1)")  # fmt: skip
        if self.strategy != "auto" and not takes_epsilon(self.strategy):
            raise ConfigError(f"strategy={self.strategy!r} with epsilon={self.epsilon:g}", where="query", remedy="use auto or saqe, which adds noise, or shrinkwrap")  # fmt: skip

    def _require_kept(self) -> None:
        """Refuse ids that are none, and what has no meaning beside kept relations."""
        if not isinstance(self.kept, Mapping) or not all(isinstance(one, str) and KEPT_ID.fullmatch(one) for one in self.kept.values()):  # fmt: skip
            raise ConfigError(f"kept={self.kept!r:.200}", where="query", remedy="leave it out: CREATE TEMP TABLE draws the id of a relation, 32 digits in hex")  # fmt: skip
        if (self.creates and self.creates not in self.kept) or (self.drops and not self.kept):
            raise ConfigError(f"creates={self.creates!r}, drops={self.drops!r}, kept={dict(self.kept)!r:.200}", where="query", remedy="leave them out: CREATE TEMP TABLE and DROP TABLE say them")  # fmt: skip
        if not self.kept:
            return
        require_kept_strategy(self.strategy)
        if self.epsilon is not None:
            raise ConfigError(f"epsilon={self.epsilon!r} of a statement that reads {', '.join(self.kept)}", where="query", remedy="leave epsilon out, or write the relation into the statement: WITH … AS (SELECT …)")  # fmt: skip

    def asks(self) -> tuple[str, dict[str, Any] | None]:
        """The strategy that answers, with its options, and its further terms: an epsilon with its delta and analyst, or ``None``."""
        if self.kept:
            return KEPT_AS, None
        if self.epsilon is None:
            return self.strategy, None
        return "saqe" if self.strategy == "auto" else self.strategy, {"epsilon": self.epsilon, "delta": self.delta, "analyst": self.analyst}  # fmt: skip

    def wants(self) -> dict[str, Any]:
        """The error and the confidence that are wanted, for the strategies that take them."""
        return {"confidence": self.confidence, **({} if self.error is None else {"error": self.error})}

    def names(self) -> tuple[str, ...]:
        """The kind and the strategy, which a site's policy can allow or refuse."""
        return (*super().names(), self.strategy.partition(":")[0])

    @classmethod
    def known_names(cls) -> tuple[str, ...]:
        """The kind and all strategies."""
        return (*super().known_names(), *known_strategies())

    def others(self, n: int) -> Mapping[str, str]:
        """The third party beside two sites, where rows are shared or the setting asks for it, or the one that a strategy always has: name -> role."""
        asked = strategy_of(self.strategy)
        if asked is not None and asked.party:
            return {asked.party: asked.party}
        return {HELPER: "shares"} if self.helper or wants_helper(self.asks()[0], n, always=True) else {}

    def helpers(self) -> Mapping[str, str]:
        """The helper that the setting or the strategy asks for: nobody knows yet whether there will be a third site."""
        asked = strategy_of(self.strategy)
        if asked is not None and asked.party:
            return {asked.party: asked.party}
        return {HELPER: "shares"} if self.helper else {}

    def explain(self, data: Any = None, clients: int = 0) -> Explanation:
        """What leaves follows from the sites' tables and policies: the statement ``EXPLAIN SELECT …`` asks them, and reads no row."""
        note = (
            "who learns what follows from the tables and policies of the sites: run the job with EXPLAIN before SELECT"
        )
        return Explanation(self.title, clients if data is None else len(data), notes=(note,))

    def prepare(self, data: Any) -> Prepared:
        """Nothing needs to be known of the data."""
        del data
        return _PreparedQuery(self)


class _PreparedQuery(Prepared):
    def __init__(self, job: Query) -> None:
        self.job = job

    async def program(self, fed: Federation) -> QueryResult:
        """Ask for the tables, plan, and carry the plan out."""
        await fed.restore(None)
        told = await fed.ask_all(fed.parties, describe_tables, {})
        sites = dict(zip(told.senders.names, told.values, strict=True))
        missing = [name for name in fed.parties.names if name not in sites]
        if missing or not sites:
            raise ConfigError(f"no reply of {', '.join(missing) or 'any site'}", where="query", remedy="start all sites: an answer needs the rows of each")  # fmt: skip
        apart = {str(table) for one in sites.values() for table, said in one["policy"]["tables"].items() if said.get("part")}  # fmt: skip
        catalog = unite_schemas({name: _schema(one["tables"]) for name, one in sites.items()}, apart)
        policies = [_policy(one["policy"], catalog.tables) for one in sites.values()]
        policy = strictest(policies)
        catalog = with_declared(catalog, policy)
        described = describe_catalog(self.job.sql, catalog, policy)
        if described is not None:
            return QueryResult(QueryAnswer(*described), None)
        job, helper = self.job, HELPER in self.job.others(len(sites))
        if job.drops:
            await drop_relations(fed, {"policy": {"min_count": policy.min_count}}, [*sites, *([HELPER] if helper else [])], job.kept)  # fmt: skip
            return QueryResult(QueryAnswer(("dropped",), ("VARCHAR",), [(name,) for name in job.kept]), None)
        statement = parse_statement(job.sql, catalog, job.params)
        asked_for, terms = job.asks()
        if job.kept:
            choice = choose_kept(asked_for, job.kept, job.creates, statement, catalog, policy, list(sites), helper=helper)  # fmt: skip
        else:
            choice = choose_strategy(asked_for, statement, catalog, policy, list(sites), terms, wanted=job.wants(), helper=helper)  # fmt: skip
        learned = sum(M.nbytes(one) + _CONTACT for one in sites.values())
        compared = compared_columns(choice.plan)
        message = message_of(statement, catalog, policy, fed.parties.names[0], choice.strategy)
        if compared and len(sites) > 1:
            asked = {**message, "key": int(fed.rng.child("replicated").generator().integers(1 << 62))}
            learned += len(sites) * (M.nbytes(asked) + M.nbytes(dict.fromkeys(compared, "0" * 48)) + _CONTACT)
            if statement.explain != "explain":
                await _require_replicas(fed, asked, compared)
        if statement.explain == "explain":
            nbytes, rounds = choice.strategy.predict_plan(choice.plan, len(sites))
            return QueryResult(QueryAnswer(statement.columns, statement.types, [], rounds=rounds), choice, 0, round(learned + nbytes), {}, "explain")  # fmt: skip
        answer = await choice.strategy.run(fed, choice.plan, message)
        fed.record({"rows": len(answer.rows), "rounds": answer.rounds, "withheld_groups": answer.withheld_groups})
        spent = fed.bytes()
        predicted = round(learned + choice.strategy.predict_answer(choice.plan, len(sites), answer))
        total = sum(spent[name] for name in ("bytes_down", "bytes_up", "bytes_between"))
        return QueryResult(answer, choice, int(total), predicted, _links(fed), statement.explain)

    def most(self, rows: int) -> Sequence[Event]:
        """Return one release without noise."""
        del rows
        asked = strategy_of(self.job.strategy)  # of auto, the one with noise answers
        if self.job.epsilon is not None and (asked is None or asked.answers_with_noise):
            return (Laplace(unit="user", epsilon=self.job.epsilon),)
        return (NonPrivate(what="the answer to a query"),)

    def facts(self, outcome: QueryResult) -> Mapping[str, Any]:
        """Return the answer."""
        return {"result": {"columns": list(outcome.answer.columns), "rows": len(outcome.answer.rows)}}

    def sections(self, outcome: QueryResult) -> Sequence[Mapping[str, Any]]:
        """Return the first rows of the answer, what was withheld, and who learned what."""
        answer, choice = outcome.answer, outcome.choice
        rows = [[_shown(value) for value in row] for row in answer.rows[:_SHOWN]]
        said = [f"Answered by {choice.strategy.name}." if choice else ""]
        withheld = answer.withheld_groups or 0
        many = "1 group is" if withheld == 1 else f"{withheld:,} groups are"
        said.append(f"{many} withheld: too few units stand behind." if withheld else "")
        said.append(f"The first {_SHOWN} rows; query.json has all." if len(answer.rows) > _SHOWN else "")
        tile = ["rows", f"{len(answer.rows):,}", f"{len(answer.columns):,} columns"]
        found = {"title": "Answer", "text": " ".join(filter(None, said)), "tiles": [tile], "tables": [{"head": list(answer.columns), "rows": rows}]}  # fmt: skip
        learns = [[one["who"], one["sees"], one["assuming"]] for one in outcome.leakage]
        steps = [[one["place"], one["form"], one["what"]] for one in outcome.plan] if outcome.explain else []
        more = [("Plan", ["where", "form", "what"], steps), ("Who learns what", ["who", "what", "assuming"], learns)]
        sections = [{"title": title, "tables": [{"head": head, "rows": rows}]} for title, head, rows in more if rows]
        return [*([] if outcome.explain == "explain" else [found]), *sections]

    def files(self, outcome: QueryResult) -> Mapping[str, bytes]:
        """Return the answer as JSON."""
        return {"query.json": as_json(outcome.facts(), indent=1).encode()}


async def _require_replicas(fed: Federation, asked: Mapping[str, Any], compared: Mapping[str, Mapping[str, str]]) -> None:  # fmt: skip
    """Refuse tables that the policies call replicated, and that differ between sites: an answer would depend on which site is asked.

    Raises:
        DataError: names the table and the sites.
    """
    told = await fed.ask_all(fed.parties, digest_replicated, asked)
    digests = dict(zip(told.senders.names, told.values, strict=True))
    for table, types in compared.items():
        alike: dict[str, list[str]] = {}
        for site, found in digests.items():
            alike.setdefault(str(found[table]), []).append(site)
        if len(alike) > 1:
            groups = " from that of ".join(", ".join(sites) for sites in sorted(alike.values(), key=len, reverse=True))
            raise DataError(f"table {table} of {groups} differs in {', '.join(types)}, and the policies say mode: replicated", where="query", remedy="give all sites the same rows, or declare the table horizontal")  # fmt: skip


def _links(fed: Federation) -> dict[str, int]:
    """Bytes on the link of each site, both ways."""
    positions, spent = fed.meter.parties()
    names = [fed.world.roster.name(int(position)) for position in positions]
    return {name: int(spent["bytes_down"][k] + spent["bytes_up"][k]) for k, name in enumerate(names)}


def _schema(tables: Any) -> dict[str, dict[str, str]]:
    return {str(table): {str(name): str(kind) for name, kind in columns.items()} for table, columns in tables.items()}


def _policy(told: Any, tables: Any) -> dict[str, Any]:
    """What a site tells of its policy, of the tables that all sites have, as plain values."""
    found = {}
    for name, table in told["tables"].items():
        if name in tables:
            columns = {str(column): list(row) for column, row in table["columns"].items()}
            points = {str(point): list(row) for point, row in table["points"].items()}
            found[str(name)] = {
                "mode": str(table["mode"]),
                "unit": str(table["unit"]),
                "columns": columns,
                "points": points,
                **({"sizes": str(table["sizes"])} if "sizes" in table else {}),
                **({"part": [str(one) for one in table["part"]]} if table.get("part") else {}),
            }
    noise = {"noise": [int(one) for one in told["noise"]]} if told.get("noise") else {}
    enclave = {"enclave": [bool(told["enclave"][0]), str(told["enclave"][1])]} if told.get("enclave") else {}
    kept = {"kept": [int(told["kept"][0]), float(told["kept"][1])]} if told.get("kept") else {}
    unrecorded = {"unrecorded": str(told["unrecorded"])} if "unrecorded" in told else {}
    return {"min_count": int(told["min_count"]), "tables": found, **noise, **enclave, **unrecorded, **kept}
