"""``saqe``: aggregates with differential privacy. Sites bound what each unit contributes, add noise to their own sums, and give them to a masked sum.

A *unit* is a row, or what the policy names (``unit: patient``). Neighbouring databases differ in one unit. Of a unit, ``groups`` groups count at most and ``rows`` rows in each (the policy's
``privacy``, 1 and 1 by default); which ones depends on the unit's own rows alone. A number is clamped to the range that the policies declare for its columns. So a unit moves

* a count by at most ``groups * rows``, and
* a sum by at most ``groups * rows * max(|low|, |high|)``,

and a site adds discrete Laplace noise for ``epsilon`` divided evenly over the numbers of a group. Each site's noise alone hides its units from everybody, whatever the coordinator says about
how many sites there are: the answer has the noise of all sites. Groups of public columns are all listed, also those without a row. Other groups are listed by a site if its noised number of
units is above ``1 + ln(groups / delta) / rate`` (Korolova et al. 2009; Wilson et al. 2020, section 3.4): a group of one unit is listed with probability ``delta`` at most.

A site writes an answer down, with its noise, before it leaves. A statement that is asked again over the same rows gets the same answer, at no cost; so does one that a crash or a coordinator
interrupted. The policy has a budget for each analyst, and a site refuses what exceeds it.

**Sampling.** Of a uniform sample at rate q, noise for ``epsilon_s = ln(1 + (e^epsilon - 1) / q)`` costs ``epsilon`` (`sample_epsilon`; Bater et al. 2020, "SAQE", section 5), and a count of N rows
errs by the standard deviation `count_error`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from atoll.core import message as M
from atoll.core.algebra.aggregate import Sum
from atoll.core.errors import CompositionError, ConfigError, DataError, PolicyError
from atoll.core.event import Event, Laplace
from atoll.core.exposure import Exposure
from atoll.core.requests.task import task
from atoll.core.sealing.record import hash_parts
from atoll.secure.masking import SecureAggregation
from atoll.statistics.disclosure import discrete_laplace, noise_std, rate_of

from ..aggregates import QueryAggregate
from ..databases.silo import quote
from ..events import NOISED, write_event
from ..local import names_of, plan_of, plan_once, prefix_of, silo_of
from ..plan import Key, QueryPlanner, Released, read_aggregate
from ..policy import QueryPolicy
from ..statement import Catalog, SqlStatement, shadow
from .strategy import PlanStep, QueryAnswer, Strategy, promise_privacy, read_strategy
from .sums import finish_cells

if TYPE_CHECKING:
    from atoll.core.federation.federation import Federation

__all__ = [
    "RECORD",
    "Saqe",
    "add_noised",
    "count_error",
    "find_release",
    "list_noised",
    "require_room",
    "release_once",
    "sample_epsilon",
]

RECORD = NOISED
"""Name of the record of answers with noise, among the results that stay at a site."""
_FINE = 20
"""Bits of a double's fraction of the largest value of its range."""
_SUM, _NEIGHBOUR = 721.0, 1657.0


def sample_epsilon(epsilon: float, rate: float) -> float:
    """The epsilon of an answer over a uniform sample that costs ``epsilon``: ``ln(1 + (e^epsilon - 1) / q)``.

    Args:
        epsilon: what the answer costs.
        rate: q, the probability of a unit to be in the sample.
    """
    return math.log1p(math.expm1(epsilon) / rate)


def count_error(rows: int, rate: float, epsilon: float) -> float:
    """The standard deviation of a count from a uniform sample with noise, scaled up: ``sqrt(N (1 - q) / q + v / q^2)`` with the variance v of discrete Laplace noise for `sample_epsilon`."""
    noise = noise_std(rate_of(sample_epsilon(epsilon, rate), 1))
    return math.sqrt(rows * (1 - rate) / rate + (noise / rate) ** 2)


# ---------------------------------------------------------------- the plan


@dataclass(frozen=True)
class NoisedNumber:
    """A number that is added up over the rows of a group.

    Attributes:
        local: local SQL of a row's whole number.
        most: its largest magnitude.
        step: what 1 stands for.
    """

    local: str
    most: int
    step: Fraction = Fraction(1)


@dataclass(frozen=True)
class NoisedPlan:
    """How a statement is answered with noise. See `atoll.query.plan.QueryPlan` for what is not named here.

    Attributes:
        numbers: what is added up for each group.
        aggregates: the aggregates; ``addends`` are places of numbers: of the count, then of the sum.
        released: the table whose units are hidden.
        hidden_keys: whether groups are listed by a noised number of units.
    """

    statement: SqlStatement
    catalog: Catalog
    policy: QueryPolicy
    keys: tuple[Key, ...]
    numbers: tuple[NoisedNumber, ...]
    aggregates: tuple[QueryAggregate, ...]
    released: Released
    hidden_keys: bool
    sources: dict[str, tuple[str, ...]] = field(compare=False)
    common: str = ""
    body: str = ""
    key_body: str = ""
    finish: str = ""

    @property
    def bounds(self) -> tuple[int, int]:
        """Groups of a unit, and rows of it in a group, that count."""
        privacy = self.policy.privacy
        return (privacy.groups, privacy.rows) if self.released.unit and privacy is not None else (1, 1)

    @property
    def parts(self) -> int:
        """Into how many parts epsilon is divided."""
        return len(self.numbers) + self.hidden_keys


def make_noised_plan(statement: SqlStatement, catalog: Catalog, policy: QueryPolicy) -> NoisedPlan:
    """Plan a statement of aggregates with noise.

    Raises:
        PolicyError: no policy allows it.
        CompositionError: what a unit contributes cannot be bounded.
    """
    if policy.privacy is None:
        raise PolicyError("not all sites have a budget for answers with noise", where="policies of the sites", remedy="let each site declare policy: {privacy: {people: {anna: {epsilon: 4, delta: 1.0e-6}}}}")  # fmt: skip
    # A minimum count above 1 makes the planner guard expressions: an error would tell of a row.
    named = QueryPolicy(max(2, policy.min_count), policy.seconds, policy.memory, {t: policy.table(t) for t in catalog.tables}, policy.privacy)  # fmt: skip
    return _NoisedPlanner(statement, catalog, named).noised_plan()


class _NoisedPlanner(QueryPlanner):
    where = "saqe"

    def noised_plan(self) -> NoisedPlan:
        """All of it."""
        self._require_aggregates()
        self.scopes.require_readable()
        self.scopes.require_local()
        released = self._require_one_table()
        keys = self._keys()
        nodes = list(dict.fromkeys(self._aggregate_nodes()))
        self.numbers: list[NoisedNumber] = []
        with shadow(self.catalog) as connection:
            self.connection = connection
            self.sources = self._sources()
            self.body, _ = self._body(keys)
            key_types = self._types([text for text, _ in keys])
            for node in nodes:
                self._add_noised(node)
        hidden = any(self._level(node) != "public" for _, node in keys)
        made = tuple(Key(text, kind, self._guarded(node)) for (text, node), kind in zip(keys, key_types, strict=True))
        return NoisedPlan(
            self.statement, self.catalog, self.policy, made, tuple(self.numbers), tuple(a for _, a in self.aggregates), released, hidden, self.sources,
            self.with_text, self.body, "" if hidden else self._key_body(keys), self._finish(keys),
        )  # fmt: skip

    def _require_one_table(self) -> Released:
        """The table of divided rows; every unit's rows at one site, and no condition on other units' rows."""
        if not self.scopes.is_divided(self.root):
            raise CompositionError("all sites have all of its rows", where=self.where, remedy="ask without epsilon")
        if any(scope is not self.root and self.scopes.is_divided(scope) for scope in self.scopes.all):
            raise CompositionError("a subquery reads rows of other units, so that one unit could move many rows", where=self.where, remedy="write it without a subquery, or over replicated tables")  # fmt: skip
        found = self._released()
        if len(found) != 1:
            raise CompositionError(f"it joins {' and '.join(one.table for one in found)}, whose units differ", where=self.where, remedy="read one divided table, with replicated ones beside it")  # fmt: skip
        if not found[0].local:
            raise CompositionError(f"a unit of {found[0].table} may have rows at several sites, each of which bounds its own", where=self.where, remedy=f"let the policy declare {found[0].unit}: {{join: local}}")  # fmt: skip
        return found[0]

    def _require_key(self, node: Any) -> None:
        """Nothing: groups of columns that are not public are listed by noised numbers of units."""

    def _add_noised(self, node: Any) -> None:
        exp = self.exp
        inner, condition = (node.this, node.expression.this) if isinstance(node, exp.Filter) else (node, None)
        name, args = read_aggregate(exp, inner)
        text = inner.sql("duckdb")
        if name not in ("count", "sum", "avg"):
            raise CompositionError(f"{text} with noise", where=self.where, remedy="use COUNT, SUM or AVG")
        if any(one is not None and one.find(exp.Query) is not None for one in (inner, condition)):
            raise CompositionError(f"a subquery inside {text}", where=self.where, remedy="put it into WHERE")
        texts = [self._guarded(arg) for arg in args]
        there = [f"({self._guarded(condition)})"] if condition is not None else []
        there += [f"({one}) IS NOT NULL" for one in texts]
        when = " AND ".join(there)
        places = [self._number(NoisedNumber(f"CASE WHEN {when} THEN 1 ELSE 0 END" if when else "1", 1))] if name != "sum" else []  # fmt: skip
        (kind,) = self._types([text])
        if name != "count":
            places.append(self._sum(texts[0], args[0], when, text))
        self.aggregates.append((node, QueryAggregate(name, text, kind, tuple(places))))

    def _sum(self, text: str, arg: Any, when: str, what: str) -> int:
        self.scopes.require_released(self.scopes.bases(arg, self.root), what, ("aggregate", "noise"))
        low, high = self._range(arg, what)
        (kind,) = self._types([f"sum({text})"])
        digits = int(kind.rpartition(",")[2].rstrip(")")) if kind.startswith("DECIMAL") else 0
        largest = max(abs(low), abs(high), 1e-300)
        step = Fraction(largest) / (1 << _FINE) if kind == "DOUBLE" else Fraction(1, 10**digits)
        most = math.ceil(Fraction(largest) / step)
        if most >= 1 << 40:
            raise CompositionError(f"{what}: its range reaches {largest:g}, in steps of {float(step):g}", where=self.where, remedy="cast to DOUBLE, or declare a narrower range")  # fmt: skip
        value = f"greatest({low!r}, least({high!r}, CAST({text} AS DOUBLE)))"
        whole = f"greatest({-most}, least({most}, CAST(round({value} / {float(step)!r}) AS BIGINT)))"
        return self._number(NoisedNumber(f"CASE WHEN {when} AND isfinite(CAST({text} AS DOUBLE)) THEN {whole} ELSE 0 END", most, step))  # fmt: skip

    def _number(self, made: NoisedNumber) -> int:
        if made not in self.numbers:
            self.numbers.append(made)
        return self.numbers.index(made)

    def _range(self, node: Any, what: str) -> tuple[float, float]:
        """The least and the largest value of an expression, by interval arithmetic."""
        exp = self.exp
        if isinstance(node, exp.Column):
            ends = {(one.low, one.high) for one in map(self.scopes.column_policy, self.scopes.bases(node, self.root))}
            low, high = ends.pop() if len(ends) == 1 else (None, None)
            if low is None or high is None:
                raise CompositionError(f"{what}: nothing bounds {node.name}", where=self.where, remedy=f"let each site declare its range: {node.name}: {{range: [0, 100]}}")  # fmt: skip
            return low, high
        if isinstance(node, exp.Literal) and not node.is_string:
            return float(node.this), float(node.this)
        if isinstance(node, exp.Paren | exp.Cast):
            return self._range(node.this, what)
        if isinstance(node, exp.Neg):
            low, high = self._range(node.this, what)
            return -high, -low
        if isinstance(node, exp.Add | exp.Sub | exp.Mul):
            (a, b), (c, d) = self._range(node.left, what), self._range(node.right, what)
            if isinstance(node, exp.Mul):
                corners = [a * c, a * d, b * c, b * d]
                return min(corners), max(corners)
            return (a + c, b + d) if isinstance(node, exp.Add) else (a - d, b - c)
        raise CompositionError(f"{what}: the range of {node.sql('duckdb')} is not known", where=self.where, remedy="use + - * of columns with a range, and numbers")  # fmt: skip


# ---------------------------------------------------------------- what a site does


def _bounded_text(silo: Any, plan: NoisedPlan) -> str:
    """Local SQL: keys, units and numbers of each group, of the rows that count."""
    keys = [f"k{k}" for k in range(len(plan.keys))]
    groups, rows = plan.bounds
    shown = [f"{plan.released.entity} AS u", *(f"CAST({key.local} AS VARCHAR) AS {name}" for key, name in zip(plan.keys, keys, strict=True))]  # fmt: skip
    shown += [f"{one.local} AS v{k}" for k, one in enumerate(plan.numbers)]
    order = "md5(concat_ws('|,', u, " + ", ".join(f"coalesce(replace({name}, '|', '||'), '|n')" for name in keys or ["'x'"]) + "))"  # fmt: skip
    values = ", ".join(f"v{k}" for k in range(len(plan.numbers))) or "u"
    ranks = f"dense_rank() OVER (PARTITION BY u ORDER BY {order}) AS g, row_number() OVER (PARTITION BY {', '.join(['u', *keys])} ORDER BY {values}) AS r"  # fmt: skip
    prefix = prefix_of(silo, plan, names_of(silo, plan))
    sums = ", ".join([*keys, "count(DISTINCT u)", *(f"CAST(coalesce(sum(v{k}), 0) AS HUGEINT)" for k in range(len(plan.numbers)))])  # fmt: skip
    by = f" GROUP BY {', '.join(keys)}" if keys else ""
    return (
        f"{prefix}, {quote('@rows')} AS (SELECT {', '.join(shown)} {plan.body}), {quote('@counted')} AS (SELECT *, {ranks} FROM {quote('@rows')} WHERE u IS NOT NULL)"
        f" SELECT {sums} FROM {quote('@counted')} WHERE g <= {groups} AND r <= {rows}{by}"
    )


def _exact(island: Any, message: Any) -> tuple[NoisedPlan, dict[tuple[Any, ...], tuple[int, ...]]]:
    """The plan, and key -> units and numbers."""
    silo = silo_of(island.data)
    plan: NoisedPlan = plan_of(silo, message, make_noised_plan, "saqe")
    (found,) = silo.run_all([_bounded_text(silo, plan)], list(names_of(silo, plan).values()))
    keys = len(plan.keys)
    return plan, {tuple(row[:keys]): tuple(int(one) for one in row[keys:]) for row in found}


def _release(island: Any, message: Any, plan: NoisedPlan, parts: int, exact: Any, make: Callable[[Fraction], Any]) -> Any:  # fmt: skip
    """Noise once for the same statement and rows, charged and written down before it leaves.

    Args:
        island: the site.
        message: the request.
        plan: its plan.
        parts: parts of epsilon that this release takes.
        exact: what noise is added to, as plain values.
        make: makes the release, at the rate of noise for 1.

    Raises:
        PolicyError: the analyst's budget is spent, or the analyst has none.
    """
    epsilon, delta, analyst = _terms(island, message)
    matter = json.dumps([plan.statement.sql, repr(plan.numbers), parts, plan.bounds, epsilon, delta, exact])
    share = epsilon / plan.parts
    charged = {"epsilon": share * parts, "delta": delta if plan.hidden_keys and parts == 1 else 0.0}
    spent = [Laplace(unit="user" if plan.released.unit else "example", epsilon=share, count=parts)]
    tag = hash_parts("noised answer", matter).hex()
    return release_once(island, tag, plan.statement.text, analyst, charged, spent, lambda: make(rate_of(share, 1)))


def find_release(island: Any, tag: str) -> tuple[list[Any], Any]:
    """The record of a site's releases with noise, and of it the one of a tag; ``None`` if there is none."""
    answers = _answers(island)
    return answers, next((one for one in answers if one["tag"] == tag), None)


def release_once(island: Any, tag: str, text: str, analyst: str, charged: Mapping[str, float], events: Sequence[Event], make: Callable[[], Any]) -> Any:  # fmt: skip
    """A release that is made once for a tag: charged to an analyst's budget and the site's ledger, and written down before it leaves; later it is read.

    Args:
        island: the site.
        tag: names the statement, the rows and all settings that the release depends on.
        text: the statement.
        analyst: who asks.
        charged: ``epsilon`` and ``delta``.
        events: the same for the ledger.
        make: makes the release.

    Raises:
        PolicyError: the analyst's budget is spent, or the analyst has none.
    """
    answers, known = find_release(island, tag)
    silo_of(island.data).charged = {"epsilon": 0.0, "release": tag} if known is not None else {**charged, "analyst": analyst, "release": tag}  # fmt: skip
    if known is not None:
        return known["value"]
    _require_budget(island, answers, analyst, charged)
    value = make()
    for event in events:
        island.spend(event)
    entry = {"tag": tag, "analyst": analyst, "text": text, "value": value, **charged}
    island.leave(RECORD, {"answers": [*answers, entry]}, at_once=True)
    return value


def _terms(island: Any, message: Any) -> tuple[float, float, str]:
    """Epsilon, delta and the analyst of a request."""
    said: Any = read_strategy(message)
    epsilon, delta, analyst = said.epsilon, said.delta, said.analyst
    if not (math.isfinite(epsilon) and epsilon > 0 and 0 < delta < 1):
        raise ConfigError(f"epsilon={epsilon}, delta={delta}", where=island.name, remedy="use an epsilon above 0, and a delta in (0, 1)")  # fmt: skip
    return epsilon, delta, analyst


def _answers(island: Any) -> list[Any]:
    """What the site has answered with noise."""
    try:
        return list(island.left(RECORD)["answers"])
    except ConfigError:
        return []


def _require_budget(island: Any, answers: Sequence[Any], analyst: str, charged: Mapping[str, float]) -> None:
    privacy = silo_of(island.data).policy.privacy
    budget = None if privacy is None else privacy.people.get(analyst)
    if budget is None:
        raise PolicyError(f"{analyst or 'nobody by name'} has no budget for answers with noise", where=island.name, remedy="ask under the name of an analyst that the policy has in privacy: people")  # fmt: skip
    for name, limit in zip(("epsilon", "delta"), budget, strict=True):
        spent = sum(float(one[name]) for one in answers if one["analyst"] == analyst)
        if spent + charged[name] > limit * (1 + 1e-9):
            raise PolicyError(f"the {name} of {analyst} is {limit:g} here: {spent:.4g} is spent, and this answer takes {charged[name]:.4g}", where=island.name, remedy=f"ask again what was answered, which costs nothing, ask with a smaller {name}, or let the site raise the budget")  # fmt: skip


@task(discloses=promise_privacy)
def require_room(island: Any, message: Any) -> Any:
    """Refuse an answer that exceeds this site's budget, before any site reads a row or is charged; one that it has given already costs nothing."""
    plan: NoisedPlan = plan_of(silo_of(island.data), message, make_noised_plan, "saqe")
    epsilon, delta, analyst = _terms(island, message)
    answers = _answers(island)
    if not any((one["text"], one["analyst"]) == (plan.statement.text, analyst) for one in answers):
        _require_budget(island, answers, analyst, {"epsilon": epsilon, "delta": delta if plan.hidden_keys else 0.0})
    return {}


@task(discloses=promise_privacy)
def list_noised(island: Any, message: Any) -> Any:
    """The groups of one site: all that public columns have, or those with many units after noise."""
    silo = silo_of(island.data)
    plan: NoisedPlan = plan_of(silo, message, make_noised_plan, "saqe")
    if not plan.hidden_keys:
        keys = ", ".join(f"CAST({key.local} AS VARCHAR)" for key in plan.keys)
        text = f"{prefix_of(silo, plan, names_of(silo, plan))} SELECT DISTINCT {keys} {plan.key_body}"
        keys_told = [list(row) for row in silo.run_all([text], list(names_of(silo, plan).values()), stable={text})[0]]
        write_event(island, message, plan, f"{len(keys_told)} keys of groups, of public columns", {})
        return {"keys": keys_told}
    plan, found = _exact(island, message)
    ordered = sorted(found, key=repr)
    groups = plan.bounds[0]

    def choose(rate: Fraction) -> list[list[Any]]:
        rate /= groups
        least = 1 + math.log(groups / _terms(island, message)[1]) / float(rate)
        noise = discrete_laplace(rate, island.secret, len(ordered))
        return [list(key) for key, extra in zip(ordered, noise.tolist(), strict=True) if found[key][0] + extra > least]

    listed = _release(island, message, plan, 1, [[list(key), found[key][0]] for key in ordered], choose)
    write_event(island, message, plan, f"{len(listed)} keys of groups, by numbers of units with noise", {plan.released.table: sum(row[0] for row in found.values())})  # fmt: skip
    return {"keys": listed}


@task(discloses=promise_privacy)
def add_noised(island: Any, message: Any) -> Any:
    """The numbers of each group, with this site's noise."""
    plan, found = _exact(island, message)
    cells = [tuple(key) for key in message["cells"]]
    if len(set(cells)) < len(cells):
        raise PolicyError("a group is asked twice in one request, and would get noise twice", where=island.name, remedy="look at the coordinator: it does not follow the protocol")  # fmt: skip
    exact = [list(found.get(key, (0,) * (1 + len(plan.numbers)))[1:]) for key in cells]
    groups, rows = plan.bounds

    def add(rate: Fraction) -> Any:
        made = np.zeros((len(cells), len(plan.numbers)), np.int64)
        for k, one in enumerate(plan.numbers):
            noise = discrete_laplace(rate / (groups * rows * one.most), island.secret, len(cells))
            made[:, k] = np.array([row[k] for row in exact], np.int64) + noise
        return made.reshape(-1)

    words = _release(island, message, plan, len(plan.numbers), [[list(key) for key in cells], exact], add)
    write_event(island, message, plan, f"the numbers of {len(cells)} groups, with noise and masked", {plan.released.table: sum(found[key][0] for key in cells if key in found)})  # fmt: skip
    return {"words": Sum(np.asarray(words, dtype=np.int64), role="side")}


# ---------------------------------------------------------------- the strategy


@dataclass(frozen=True)
class Saqe(Strategy):
    """Aggregates with differential privacy.

    Attributes:
        epsilon: what the answer costs each site's units; 0 for none.
        delta: the probability that a group of one unit is listed.
        analyst: who asks, as the sites' policies name people.
        reducer: how sums are masked.
    """

    name: ClassVar[str] = "saqe"
    needs_terms: ClassVar[bool] = True
    answers_with_noise: ClassVar[bool] = True

    epsilon: float = 0.0
    delta: float = 1e-6
    analyst: str = ""
    reducer: SecureAggregation = field(default_factory=SecureAggregation)

    def plan(self, statement: SqlStatement, catalog: Catalog, policy: QueryPolicy) -> NoisedPlan:
        """A plan; see `make_noised_plan`."""
        if not self.epsilon:
            raise CompositionError("no epsilon is given, and it adds noise", where=self.name, remedy="say how much noise: epsilon, such as 0.5")  # fmt: skip
        tables = {table: dict(columns) for table, columns in catalog.tables.items()}
        told = policy.told({table: [c.lower() for c in columns] for table, columns in tables.items()})
        made: NoisedPlan = plan_once(make_noised_plan, statement.sql, tables, [told])
        return replace(made, statement=statement)

    def steps(self, plan: NoisedPlan) -> Sequence[PlanStep]:
        """The steps of a plan."""
        keys = ", ".join(one.text for one in plan.keys)
        found = [PlanStep("each site", "plain", f"look whether the budget of {self.analyst or 'the analyst'} has room")]
        if keys:
            found.append(PlanStep("each site", "noised" if plan.hidden_keys else "plain", f"name the values of {keys}"))
        groups, rows = plan.bounds
        found.append(PlanStep("each site, added up masked", "noised", f"{', '.join(one.text for one in plan.aggregates) or 'the groups'}: {groups} group{'s' * (groups > 1)} of a unit, {rows} row{'s' * (rows > 1)} in each"))  # fmt: skip
        return [*found, PlanStep("coordinator", "plain", plan.finish)]

    def exposures(self, plan: NoisedPlan) -> Sequence[Exposure]:
        """What a plan gives away."""
        found = []
        if plan.keys and not plan.hidden_keys:
            found.append(Exposure("coordinator", f"the values of {', '.join(one.text for one in plan.keys)} at each site", "these columns are public", "keys"))  # fmt: skip
        return [
            *found,
            Exposure("analyst", f"the answer, with noise for epsilon={self.epsilon:g} at each site", "", "sum"),
        ]

    def predict_cost(self, plan: NoisedPlan, sites: int, groups: Sequence[Sequence[str | None]] = ((),)) -> float:
        """Bytes of all sites, for a coordinator that is honest."""
        asked = M.nbytes(plan.statement.sql) + 64.0
        return sites * (3 * asked + _SUM + _NEIGHBOUR * sites + 8.0 * len(groups) * len(plan.numbers))

    async def run(self, fed: Federation, plan: NoisedPlan, message: Mapping[str, Any]) -> QueryAnswer:
        """Carry a plan out."""
        asked: dict[str, Any] = {**message, "cells": [[]]}
        await _ask_all(fed, require_room, asked)
        rounds = 1
        if plan.keys:
            told = await _ask_all(fed, list_noised, asked)
            seen = {tuple(key) for one in told.values for key in one["keys"]}
            asked["cells"] = [list(key) for key in sorted(seen, key=lambda key: [(part is None, part or "") for part in key])]  # fmt: skip
            rounds += 1
        cells: list[tuple[Any, ...]] = [tuple(key) for key in asked["cells"]]
        if cells and plan.numbers:
            found = await fed.sum(fed.parties, add_noised, asked, reducer=self.reducer, quorum=len(fed.parties))
            words = np.asarray(found.value["words"], np.int64).reshape(len(cells), len(plan.numbers))
            cells = [(*key, *(_shown_number(plan, one, row) for one in plan.aggregates)) for key, row in zip(cells, words, strict=True)]  # fmt: skip
            rounds += 1
        statement = plan.statement
        return QueryAnswer(statement.columns, statement.types, finish_cells(plan, cells), 0, 0, rounds, asked["cells"], privacy=self.privacy(plan, len(fed.parties)))  # fmt: skip

    def privacy(self, plan: NoisedPlan, sites: int) -> dict[str, Any]:
        """What the answer costs, and how much noise it has."""
        groups, rows = plan.bounds
        stds = {}
        for one in plan.aggregates:
            number = plan.numbers[one.addends[-1]]
            rate = rate_of(self.epsilon / plan.parts, 1) / (groups * rows * number.most)
            stds[one.text] = noise_std(rate) * math.sqrt(sites) * float(number.step)
        return {
            "epsilon": self.epsilon, "delta": self.delta if plan.hidden_keys else 0.0, "analyst": self.analyst, "unit": plan.released.unit or "row", "neighbours": "add-remove", "mechanism": "discrete Laplace",
            "groups": groups, "rows": rows, "noise_std": stds,
        }  # fmt: skip


async def _ask_all(fed: Federation, what: Any, message: Mapping[str, Any]) -> Any:
    told = await fed.ask_all(fed.parties, what, message)
    if len(told.values) < len(fed.parties):
        raise DataError(next(iter(told.rejected.values()), "a site did not answer"), where="saqe", remedy="start all sites, and ask within their budgets")  # fmt: skip
    return told


def _shown_number(plan: NoisedPlan, one: QueryAggregate, row: Any) -> str | None:
    """One aggregate of a group, as text: of an average, the noised sum over the noised count."""
    first = plan.numbers[one.addends[0]]
    totals: list[Any] = [int(row[one.addends[0]]) * first.step]
    if len(one.addends) > 1:
        totals = [max(1, int(totals[0])), int(row[one.addends[1]]) * plan.numbers[one.addends[1]].step]
    elif one.name == "sum":
        totals = [1, totals[0]]
    else:
        totals = [int(totals[0])]
    return one.finish(totals)
