"""``shrinkwrap``: smcql's plan, whose tables are cut on the way to sizes with noise (after Bater et al. 2018, "Shrinkwrap").

Under shares a table has a row for each row that could be. Here a table of ``c`` rows that count, and of ``n`` in all, is cut to ``min(n, c + noise)`` rows: what follows is computed on fewer. The rows that count
stay, so answers are those of `smcql`. Sizes tell the parties how many rows count, up to the noise.

* Each site draws ``max(0, eta)``, with ``Pr[eta = x]`` proportional to ``exp(-epsilon |x - shift| / moves)`` (`padding_shift`), and shares it: nobody sees one site's noise or their sum. So the size is
  (``epsilon``, ``delta``)-private for the units of a site, also before another site that knows its own noise: each site's suffices alone, and that of others comes on top. As always under shares, one of the three
  parties may be curious.
* ``moves`` is by how many rows a unit of one site moves the table at most (`atoll.query.secure.limits.sensitivity`).
* The parties keep the rows that count and so many others, in an order that nobody knows (`atoll.secure.tables.compact_rows`): no party learns ``c``.
* ``epsilon`` and ``delta`` are divided over the tables: ``uniform``, ``eager`` (all for the first) or ``optimal``: as the expected work is least.

A site charges its budget, and writes down its noise and the rows that the statement reads there, before it shares one. Both belong to the statement, its settings and the sites: the same again costs nothing, and is
computed on the same rows with the same noise, whatever has become of the tables. If noise were drawn anew, or charged, only when rows have changed, that would tell of a single unit. Who wants the answer of today's rows names
another ``edition``, which is charged.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from atoll.core import message as M
from atoll.core.errors import CompositionError, ConfigError, DataError, PolicyError
from atoll.core.event import Laplace
from atoll.core.exposure import Exposure
from atoll.core.requests.task import task
from atoll.core.sealing.record import hash_parts
from atoll.secure.tables import SharedTable, compact_rows, send_table, share_table
from atoll.statistics.disclosure import discrete_laplace, noise_std, rate_of

from ..events import write_event
from ..local import plan_of, silo_of
from ..secure.extents import Extents, expect_rows, measure_work
from ..secure.limits.sensitivity import SizeCut, count_moves, find_size_cuts
from ..secure.near import refuse_near
from ..secure.operators import GroupedRows, LeafRows, Operator, SecurePlan
from ..secure.plan import make_row_plan
from ..secure.tables import Resize, SecureTables
from .releases import find_release, release_once, require_budget
from .shared_rows import LocalRows, compute_answer, plain_terms, promised_of, require_size, send_leaves
from .smcql import Smcql
from .strategy import PlanStep, QueryAnswer, promise_min_count, promise_privacy, read_strategy

if TYPE_CHECKING:
    from atoll.core.execution.session import Peers
    from atoll.core.federation.federation import Federation
    from atoll.core.requests.island import Island
    from atoll.secure.shares import Trio

    from ..policy import QueryPolicy
    from ..statement import Catalog, SqlStatement

__all__ = ["Shrinkwrap", "charge_sizes", "choose_split", "compute_cut_rows", "draw_padding", "measure_states", "padding_shift", "share_cut_rows"]  # fmt: skip

SPLITS = ("optimal", "uniform", "eager")
_ROWS = "query-rows"
"""Begins the names of the snapshots that sites keep for repeated statements."""
_NOISE = {"n": None}
_GUESSED_SITES = 3
_CHARGE = 240.0
_LEAST, _PARTS = 0.001, 1024
"""The smallest epsilon, and most parts of it: noise has a law above ``2^-40``."""


# ---------------------------------------------------------------- noise


def padding_shift(epsilon: float, delta: float, moves: int) -> int:
    """The most likely padding: ``-(moves / epsilon) ln((e^(epsilon / moves) + 1) delta) + moves``, rounded up, so that the noise is of whole numbers and is below ``moves`` with probability ``delta`` at most.

    Args:
        epsilon: of this size.
        delta: of this size.
        moves: by how many rows one unit moves it.
    """
    rate = float(rate_of(epsilon, moves))
    return max(0, math.ceil(moves - (math.log(delta) + rate + math.log1p(math.exp(-rate))) / rate))


def draw_padding(epsilon: float, delta: float, moves: int, secret: Any, count: int) -> Any:
    """Independent paddings, 0 or above, ``(count,)``.

    Args:
        epsilon: of each.
        delta: of each.
        moves: by how many rows one unit moves the size.
        secret: the site's entropy.
        count: how many.
    """
    return np.maximum(0, padding_shift(epsilon, delta, moves) + discrete_laplace(rate_of(epsilon, moves), secret, count))  # fmt: skip


def choose_split(split: str, plan: SecurePlan, cuts: Sequence[SizeCut], totals: Sequence[int], sites: int, epsilon: float, delta: float) -> tuple[int, ...]:  # fmt: skip
    """What part of epsilon and delta each size gets, as whole numbers; 0 leaves the table as it is.

    Args:
        split: ``uniform``, ``eager`` or ``optimal``.
        plan: the plan.
        cuts: the tables whose sizes may be told.
        totals: rows of each leaf, of all sites together.
        sites: how many add noise.
        epsilon: of all sizes together.
        delta: of all sizes together.
    """
    if split != "optimal":
        return tuple(int(split == "uniform" or k == 0) for k in range(len(cuts)))
    grid = 8 if len(cuts) <= 4 else 4 if len(cuts) <= 8 else 2
    rows = expect_rows(plan, totals)

    def work(parts: Sequence[int]) -> float:
        after = _Expected(cuts, [epsilon * part / grid for part in parts], [delta * part / grid for part in parts], rows, sites)  # fmt: skip
        return measure_work(plan, totals, after.left)

    tried = [tuple(int(np.sum(np.equal(bars, k))) for k in range(len(cuts))) for bars in itertools.combinations_with_replacement(range(len(cuts)), grid)]  # fmt: skip
    return min([tuple(0 for _ in cuts), *tried], key=work)


class _Expected:
    """How many rows are left of tables that are cut, as far as anybody can tell beforehand."""

    def __init__(self, cuts: Sequence[SizeCut], epsilons: Sequence[float], deltas: Sequence[float], rows: Mapping[int, float], sites: int) -> None:  # fmt: skip
        self._left = {id(cut.operator): rows[id(cut.operator)] + sites * padding_shift(epsilon, delta, cut.moves) for cut, epsilon, delta in zip(cuts, epsilons, deltas, strict=True) if epsilon > 0}  # fmt: skip

    def left(self, op: Operator) -> float | None:
        """Rows of an operator's table that are left; ``None`` if it stays whole."""
        return self._left.get(id(op))


# ---------------------------------------------------------------- what is asked


class _Terms:
    """What a request says of noise, and what follows from the plan.

    Args:
        plan: the party's own plan.
        request: the request.

    Raises:
        PolicyError: it does not say, or the parts are no parts.
    """

    def __init__(self, plan: SecurePlan, request: Mapping[str, Any]) -> None:
        given = request.get("cut")
        self.cuts, self.claims, _ = find_size_cuts(plan)
        if not isinstance(given, Mapping) or len(given.get("parts", ())) != len(self.cuts) or any(int(one) < 0 for one in given["parts"]):  # fmt: skip
            raise PolicyError("the request does not say how epsilon is divided over the sizes of this plan", where="shrinkwrap", remedy="look at the coordinator: it does not follow the protocol")  # fmt: skip
        self.given = given
        self.parts = [int(one) for one in given["parts"]]
        asks: Any = read_strategy(request["message"])  # which checks its own values
        self.epsilon, self.delta, self.analyst = asks.epsilon, asks.delta, asks.analyst
        self.counts = len(plan.outputs) if asks.answer == "noisy" else 0
        if not self.epsilon:
            raise PolicyError("sizes are asked for, and the statement has no epsilon", where="shrinkwrap", remedy="look at the coordinator: it does not follow the protocol")  # fmt: skip
        if sum(self.parts) > _PARTS or not asks.divides(self.parts):
            raise PolicyError(f"epsilon is divided into parts {self.parts}, and the statement asks for split={asks.split}", where="shrinkwrap", remedy="look at the coordinator: it does not follow the protocol")  # fmt: skip
        self._plan, whole = plan, max(1, sum(self.parts))
        sizes = self.epsilon / 2 if self.counts else self.epsilon
        self.epsilons = [sizes * part / whole for part in self.parts]
        self.deltas = [self.delta * part / whole for part in self.parts]
        self.count_epsilon = self.epsilon / 2 / self.counts if self.counts else 0.0
        self.bound = hash_parts("cut for", json.dumps(plain_terms([list(request["sizes"].items()), request["widths"], given]), sort_keys=True)).hex()  # fmt: skip

    @property
    def used(self) -> list[int]:
        """Places of the sizes that are told."""
        return [k for k, part in enumerate(self.parts) if part]

    @property
    def charged(self) -> dict[str, float]:
        """What it costs."""
        return {"epsilon": sum(self.epsilons) + self.counts * self.count_epsilon, "delta": sum(self.deltas)}

    def draw(self, secret: Any) -> Any:
        """The noise of one site: of each size, and then of each count."""
        made = np.zeros(len(self.cuts) + self.counts, np.int64)
        for k in self.used:
            made[k] = draw_padding(self.epsilons[k], self.deltas[k], self.cuts[k].moves, secret, 1)[0]
        if self.counts:
            made[len(self.cuts) :] = discrete_laplace(self.count_rate(), secret, self.counts)
        return made

    def count_rate(self) -> Fraction:
        """The rate of the noise on a count that is opened."""
        root = self._plan.root
        moves = count_moves(self._plan, root.source)[0] if isinstance(root, GroupedRows) else 1
        return rate_of(self.count_epsilon, max(1, moves))

    def events(self, unit: str) -> list[Laplace]:
        """The same for a ledger."""
        kind: Any = "user" if unit else "example"
        return [Laplace(unit=kind, epsilon=one) for one in [*self.epsilons, *[self.count_epsilon] * self.counts] if one]


def _unit_of(plan: SecurePlan) -> str:
    """The column of units, if a table that is not replicated names one."""
    units = {plan.policy.table(table).unit for table in plan.sources if plan.policy.table(table).mode != "replicated"}
    return next((one for one in sorted(units) if one), "")


# ---------------------------------------------------------------- at a site


def _tag_of(island: Any, message: Mapping[str, Any], plan: SecurePlan) -> str:
    """Names what noise and rows belong to: the statement with its settings, as this site plans it."""
    leaves = [[leaf.text, leaf.size, list(leaf.claims)] for leaf in plan.leaves]
    told = [plan.statement.sql, read_strategy(message).told(), leaves, plan.policy.told(plan.catalog.tables), island.name == message["first"]]  # fmt: skip
    return hash_parts("cut sizes", json.dumps(plain_terms(told), sort_keys=True)).hex()


def _kept_rows(island: Any, message: Mapping[str, Any], *, fresh: bool = False) -> tuple[LocalRows, str, Any]:
    """The rows of a statement at a site, its tag, and what was released for it: the rows that its noise belongs to, or those of this moment if there is none yet."""
    silo = silo_of(island.data)
    plan = plan_of(silo, message, make_row_plan, "shrinkwrap")
    tag = _tag_of(island, message, plan)
    known = find_release(island, tag)[1]
    kept: Any = silo.kept
    which = (tag, "" if known is None else str(known["rows"]))
    if fresh or not isinstance(kept, LocalRows) or kept.plan is not plan or kept.which != which:
        stored = None if known is None else [bytes(one) for one in island.left(known["rows"])["tables"]]
        kept = LocalRows(island, message, plan, find_size_cuts(plan)[1], stored)
        kept.which, silo.kept = which, kept
    return kept, tag, known


@task(discloses=promise_min_count)
def measure_states(island: Any, message: Any) -> Any:
    """What `measure_rows` tells, of the rows that the statement was first asked over. It is refused if there is no room for it, before any site is charged."""
    kept, _, known = _kept_rows(island, message, fresh=True)
    asks: Any = read_strategy(message)
    if known is None:
        require_budget(island, asks.analyst, {"epsilon": asks.epsilon, "delta": asks.delta})
    elif list(known["sites"]) != sorted(map(str, message["sites"])):
        raise PolicyError(f"this statement was answered among other sites than {', '.join(sorted(map(str, message['sites'])))}", where=island.name, remedy="name another edition, strategy=shrinkwrap:edition=monday, which is charged")  # fmt: skip
    kept.tell_sizes(island, message)
    return {"rows": kept.sizes, "words": kept.widths()}


@task(discloses=promise_privacy)
def charge_sizes(island: Any, message: Any) -> Any:
    """Charge the analyst for sizes with noise, and write the noise and the rows down; the same again costs nothing."""
    kept, tag, known = _kept_rows(island, message["message"])
    terms = _Terms(kept.plan, message)
    if terms.used or terms.counts:
        unit, rows = _unit_of(kept.plan), f"{_ROWS}-{island.secret.bytes(8).hex()}"

        def make() -> Any:
            island.leave(rows, {"tables": kept.keep()}, at_once=True)
            return terms.draw(island.secret)

        about = {"kind": "noise", "rows": rows, "sites": sorted(map(str, message["sizes"]))}
        release_once(island, tag, kept.plan.statement.text, terms.analyst, terms.charged, terms.events(unit), make, terms.bound, about)  # fmt: skip
        if known is None:
            kept.which = tag, rows
        write_event(island, message["message"], kept.plan, f"nothing yet: noise for {len(terms.used)} sizes and {terms.counts} counts is drawn", kept.behind)  # fmt: skip
    return {}


def _own_noise(island: Any, request: Mapping[str, Any]) -> tuple[_Terms, Any]:
    """The terms of a request, and this site's noise, which has been charged, for the rows that it belongs to.

    Raises:
        PolicyError: it has not been charged.
    """
    kept, _, known = _kept_rows(island, request["message"])
    terms = _Terms(kept.plan, request)
    made = np.zeros(len(terms.cuts) + terms.counts, np.int64)
    if terms.used or terms.counts:
        if known is None or known["bound"] != terms.bound:
            raise PolicyError("sizes are asked for that nobody has paid for", where=island.name, remedy="look at the coordinator: it does not follow the protocol")  # fmt: skip
        made = np.asarray(known["value"], np.int64)
    return terms, made


@task(discloses=promised_of)
async def share_cut_rows(island: Island, peers: Peers, *, request: Any, parties: Any) -> Any:
    """Share a site's rows with three other parties, and its noise."""
    _, noise = _own_noise(island, request)
    await send_leaves(island, peers, request, parties, make_row_plan, by="shrinkwrap")
    if len(noise):
        await send_table(peers, list(parties), island.secret, {"n": noise}, layout=_NOISE, capacity=len(noise))
    return {}


@task(discloses=promised_of)
async def compute_cut_rows(island: Island, peers: Peers, *, request: Any, parties: Any, me: str) -> Any:
    """Take part in the computation; return this party's part of the answer's rows, and the sizes that all saw."""
    own = None if island.data is None else _own_noise(island, request)[1]
    seen: list[Any] = []

    async def begin(plan: SecurePlan, trio: Trio) -> Resize:
        terms, total = _Terms(plan, request), None
        count = len(terms.cuts) + terms.counts
        for owner in request["sizes"] if count else ():
            rows = None if owner != me else {"n": own}
            table = await share_table(trio, owner, layout=_NOISE, capacity=count, rows=rows)
            total = table.numbers("n") if total is None else total + table.numbers("n")
        return _Cutter(plan, terms, total, seen).resize

    found = await compute_answer(island, peers, request, parties, me, begin, make_row_plan, by="shrinkwrap")
    return {**found, "cuts": seen}


class _ClaimedCuts:
    """Cuts, and what the parties check before each."""

    def __init__(self, cuts: Sequence[SizeCut]) -> None:
        self.cuts = {id(cut.operator): (k, cut) for k, cut in enumerate(cuts)}
        self._seen: tuple[Any, set[Any]] = (None, set())

    async def require_claims(self, tables: SecureTables, cut: SizeCut) -> None:
        """Check what the bound of a cut rests on, once for the tables of a plan."""
        if self._seen[0] is not tables:
            self._seen = tables, set()
        for claim in cut.claims:
            key = (id(claim.operator), claim.values, claim.most, claim.missing)
            if key not in self._seen[1]:
                self._seen[1].add(key)
                await tables.notice_repeats(claim.operator, claim.values, claim.most, missing=claim.missing)
        await tables.require_claims()


class _Cutter(_ClaimedCuts):
    """What a party does to the tables of a plan."""

    def __init__(self, plan: SecurePlan, terms: _Terms, noise: Any, seen: list[Any]) -> None:
        super().__init__([cut for k, cut in enumerate(terms.cuts) if terms.parts[k]])
        self._plan, self._terms, self._noise, self._seen_sizes = plan, terms, noise, seen

    async def resize(self, tables: SecureTables, op: Operator, table: SharedTable) -> SharedTable:
        """The table with as many rows as its noise says; counts that are opened get theirs."""
        if op is self._plan.root and self._terms.counts:
            first, names = len(self._terms.cuts), [one.parts[0].name for one in self._plan.outputs]
            table = table.with_columns({name: table.numbers(name) + self._noise[first + k : first + k + 1] for k, name in enumerate(names)})  # fmt: skip
        if id(op) not in self.cuts:
            return table
        place, cut = self._terms.used[self.cuts[id(op)][0]], self.cuts[id(op)][1]
        await self.require_claims(tables, cut)
        made = await compact_rows(table, self._noise[place : place + 1])
        self._seen_sizes.append([cut.number, len(table), len(made)])
        return made


class _RehearsedCutter(_ClaimedCuts):
    """The same in a rehearsal, in which a known part of each table is left."""

    def __init__(self, cuts: Sequence[SizeCut], parts: Mapping[int, float]) -> None:
        super().__init__([cut for cut in cuts if cut.number in parts])
        self._parts = parts

    def shrink(self, op: Operator, rows: int) -> int:
        """How many of an operator's rows are left."""
        return max(1, math.ceil(rows * self._parts[self.cuts[id(op)][1].number])) if id(op) in self.cuts else rows

    async def resize(self, tables: SecureTables, op: Operator, table: SharedTable) -> SharedTable:
        """The first rows, for the price of cutting."""
        if id(op) not in self.cuts:
            return table
        await self.require_claims(tables, self.cuts[id(op)][1])
        await compact_rows(table, tables.trio.numbers.constant(np.zeros(1, np.int64)))
        return table.take_rows(slice(self.shrink(op, len(table))))


# ---------------------------------------------------------------- the strategy


@dataclass(frozen=True)
class Shrinkwrap(Smcql):
    """Smcql's plan with tables that are cut to sizes with noise.

    Attributes:
        epsilon: what the sizes cost each site's units; 0 cuts nothing, and costs nothing.
        delta: the probability that a size shows more.
        analyst: who asks, as the sites' policies name people.
        split: how epsilon is divided over the sizes: ``optimal``, ``uniform`` or ``eager``.
        answer: ``exact``, or ``noisy``: then half of epsilon is for noise on counts that are opened.
        edition: what tells this answer from an earlier one to the same statement: another edition is of the rows of its moment, and charged.
    """

    name: ClassVar[str] = "shrinkwrap"
    offers: ClassVar[frozenset[str]] = frozenset()
    no_options: ClassVar[frozenset[str]] = frozenset({"mode", "slices", "joins"})
    contacts: ClassVar[int] = 3
    needs_terms: ClassVar[bool] = True

    epsilon: float = 0.0
    delta: float = 1e-6
    analyst: str = ""
    split: str = "optimal"
    answer: str = "exact"
    edition: str = ""

    def __post_init__(self) -> None:
        if self.split not in SPLITS or self.answer not in ("exact", "noisy"):
            raise ConfigError(f"split={self.split}, answer={self.answer}", where="shrinkwrap", remedy=f"use split={', '.join(SPLITS)}, and answer=exact or noisy")  # fmt: skip
        if not ((self.epsilon == 0 or _LEAST <= self.epsilon < math.inf) and 0 < self.delta < 1):
            raise ConfigError(f"epsilon={self.epsilon}, delta={self.delta}", where="shrinkwrap", remedy=f"use an epsilon of {_LEAST} or more, such as 0.5, or 0 to cut nothing, and a delta in (0, 1)")  # fmt: skip

    def plan(self, statement: SqlStatement, catalog: Catalog, policy: QueryPolicy) -> SecurePlan:
        """A plan under shares of which a table can be cut.

        Raises:
            ConfigError: noise is asked for without epsilon.
            PolicyError: a site has no budget, or does not allow the statement.
            CompositionError: the parties cannot answer it, or nothing bounds by how much one unit moves the sizes.
        """
        if self.answer == "noisy" and not self.epsilon:
            raise ConfigError("answer=noisy without epsilon", where="shrinkwrap", remedy="say how much noise: shrinkwrap:answer=noisy,epsilon=0.5")  # fmt: skip
        if not self.epsilon:
            return refuse_near(super().plan(statement, catalog, policy), "shrinkwrap")
        # Noise hides by how many rows of a join one unit moves the answer: so there are rows.
        made = refuse_near(make_row_plan(statement, catalog, policy), "shrinkwrap")
        if policy.privacy is None:
            raise PolicyError("not all sites have a budget for sizes with noise", where="policies of the sites", remedy="let each site declare policy: {privacy: {people: {anna: {epsilon: 4, delta: 1.0e-6}}}}")  # fmt: skip
        cuts, _, reasons = find_size_cuts(made)
        if not cuts:
            why = f": {'; '.join(dict.fromkeys(reasons))}" if reasons else ": none is made of another that could be smaller"  # fmt: skip
            raise CompositionError(f"no size can be told with noise{why}", where=self.name, remedy="let the policies declare key: true or at_most: 9 of the columns that join and of unit:, or use smcql")  # fmt: skip
        if self.answer == "noisy":
            self._require_counts(made)
        return made

    def _require_counts(self, plan: SecurePlan) -> None:
        """Refuse noise on what is no count of one group."""
        root = plan.root
        if not isinstance(root, GroupedRows) or root.keys or any(one.aggregate.name != "count" for one in plan.outputs):
            raise CompositionError("noise on more than counts of one group", where=self.name, remedy="ask for COUNT without GROUP BY, or leave answer=noisy out")  # fmt: skip
        if isinstance(root.source, LeafRows) and not plan.leaves[root.source.place].size:
            raise CompositionError("each site counts its own rows", where=self.name, remedy="use the strategy saqe, which adds noise to sums")  # fmt: skip
        count_moves(plan, root.source)

    # ------------------------------------------------------------------ what it says

    def _parts(self, plan: SecurePlan, cuts: Sequence[SizeCut], totals: Sequence[int], sites: int) -> tuple[int, ...]:
        if not self.epsilon:
            return tuple(0 for _ in cuts)
        return choose_split(self.split, plan, cuts, totals, sites, self._size_epsilon, self.delta)

    def divides(self, parts: Sequence[int]) -> bool:
        """Whether these may be the parts of epsilon of each size. Any may be optimal, and costs as much."""
        return self.split == "optimal" or list(parts) == [int(self.split == "uniform" or k == 0) for k in range(len(parts))]  # fmt: skip

    def carrier(self, plan: Any) -> str:
        """``smcql`` where no table is cut."""
        del plan
        return self.name if self.epsilon else Smcql.name

    @property
    def _size_epsilon(self) -> float:
        return self.epsilon / 2 if self.answer == "noisy" else self.epsilon

    def _expected(self, plan: SecurePlan, totals: Sequence[int], sites: int) -> list[tuple[SizeCut, float, float, int, float]]:  # fmt: skip
        """Of each size that is told: the cut, its epsilon and delta, its rows, and those that are left as far as anybody can tell beforehand."""
        cuts, _, _ = find_size_cuts(plan)
        parts = self._parts(plan, cuts, totals, sites)
        whole = max(1, sum(parts))
        shares = [(self._size_epsilon * part / whole, self.delta * part / whole) for part in parts]
        after = _Expected(cuts, [one for one, _ in shares], [one for _, one in shares], expect_rows(plan, totals), sites)  # fmt: skip
        before: dict[int, int] = {}

        def shrink(op: Operator, rows: int) -> int:
            before[id(op)] = rows
            left = after.left(op)
            return rows if left is None else max(1, min(rows, math.ceil(left)))

        Extents(totals, shrink).rows(plan.root)
        return [(cut, *share, before[id(cut.operator)], min(1.0, (after.left(cut.operator) or 1.0) / before[id(cut.operator)])) for cut, share, part in zip(cuts, shares, parts, strict=True) if part]  # fmt: skip

    def steps(self, plan: SecurePlan) -> Sequence[PlanStep]:
        """The steps of a plan, with each size that is told; numbers are for 256 rows of each table at each of three sites."""
        found = list(super().steps(plan))
        expected = self._expected(plan, self._guessed_totals(plan), _GUESSED_SITES)
        last = len(plan.leaves)
        for cut, epsilon, delta, rows, part in expected:
            what = cut.operator.what or "the rows of the sites"
            text = f"cut {what}: {rows:,} rows become about {math.ceil(rows * part):,}, with 256 rows at each of three sites; epsilon {epsilon:.3g}, delta {delta:.2g}, a unit moves {cut.moves}"  # fmt: skip
            # A leaf has no step of its own: its rows are there when they are shared.
            place = next((k for k, one in enumerate(found) if (one.place, one.what) == ("three parties", what)), last)
            last += place == last
            found.insert(place + 1, PlanStep("three parties", "noised", text))
        if plan.statement.explain and expected:
            whole, cut_down = (strategy.predict_cost(plan, _GUESSED_SITES) for strategy in (Smcql(), self))
            found.append(PlanStep("in all", "shared", f"about {cut_down:,.0f} bytes, and {whole:,.0f} without cuts"))  # fmt: skip
        if not expected:
            why = "no epsilon is given" if not self.epsilon else "it would cost more than it saves"
            found.insert(len(plan.leaves) + 1, PlanStep("three parties", "shared", f"cut no table: {why}"))
        return found

    def outline(self, plan: SecurePlan) -> Sequence[str]:
        """The steps without the cuts: which of these are made depends on sizes."""
        return Smcql().outline(plan)

    def exposures(self, plan: SecurePlan) -> Sequence[Exposure]:
        """What a plan gives away."""
        found = list(super().exposures(plan))
        if not self.epsilon:
            return found
        unit = f"all rows of one {_unit_of(plan)}" if _unit_of(plan) else "a row"
        names = ", ".join(dict.fromkeys(cut.operator.what or "rows of the sites" for cut in find_size_cuts(plan)[0]))
        text = f"how many rows these tables have, with noise for epsilon={self._size_epsilon:g}, delta={self.delta:g} of {unit} at one site: {names}"  # fmt: skip
        about = "at most one of the three parties is curious, none departs from the protocol, and the policies are right about at_most and key, which the sites and the parties check"
        return [
            Exposure("coordinator, three parties", text, about, "sizes"),
            *found,
        ]

    @staticmethod
    def _guessed_totals(plan: SecurePlan, sites: int = _GUESSED_SITES) -> list[int]:
        sizes = Smcql.guess_sizes(plan, sites)
        return [max(1, sum(own)) for own in zip(*sizes.values(), strict=True)]

    def cuts_before(self, plan: SecurePlan, sizes: Mapping[str, Sequence[int]]) -> _RehearsedCutter | None:
        """The cuts that are expected."""
        totals = [max(1, sum(own)) for own in zip(*sizes.values(), strict=True)]
        parts = {cut.number: part for cut, _, _, _, part in self._expected(plan, totals, len(sizes))}
        return _RehearsedCutter(find_size_cuts(plan)[0], parts) if parts else None

    def cuts_after(self, plan: SecurePlan, answer: QueryAnswer) -> _RehearsedCutter | None:
        """The cuts that were made."""
        told = () if answer.privacy is None else answer.privacy["sizes"]
        parts = {int(one["number"]): int(one["after"]) / int(one["before"]) for one in told}
        return _RehearsedCutter(find_size_cuts(plan)[0], parts) if parts else None

    def further_bytes(self, plan: SecurePlan, sizes: Mapping[str, Sequence[int]], asked: float) -> float:
        """Bytes of the charge, and of the noise."""
        if not self.epsilon:
            return 0.0
        request = float(M.nbytes({"sizes": {name: list(own) for name, own in sizes.items()}, "cut": {"parts": [0] * len(sizes)}}))  # fmt: skip
        return len(sizes) * (asked + 2 * request + 3 * _CHARGE)

    # ------------------------------------------------------------------ what it does

    async def run(self, fed: Federation, plan: SecurePlan, message: Mapping[str, Any]) -> QueryAnswer:
        """Carry a plan out."""
        if not self.epsilon:
            return await super().run(fed, plan, message)
        sizes, widths, _ = await self.measure(fed, {**message, "sites": list(fed.parties.names)}, measure_states)
        totals = [max(1, sum(own)) for own in zip(*sizes.values(), strict=True)]
        cuts, _, _ = find_size_cuts(plan)
        expected = _RehearsedCutter(cuts, {cut.number: part for cut, _, _, _, part in self._expected(plan, totals, len(sizes))})  # fmt: skip
        require_size(plan, sizes, expected.shrink)
        parts = list(self._parts(plan, cuts, totals, len(sizes)))
        request = {"message": dict(message), "sizes": sizes, "widths": widths, "cut": {"parts": parts}}  # fmt: skip
        charged = await fed.ask_all(fed.parties, charge_sizes, request)
        if len(charged.values) < len(fed.parties):
            raise DataError(next(iter(charged.rejected.values()), "a site did not answer"), where="shrinkwrap", remedy="start all sites, and ask within their budgets")  # fmt: skip
        made, first = await self.open_rows(fed, plan, request, compute_cut_rows, share_cut_rows)
        privacy = self._privacy(plan, request, [[int(x) for x in one] for one in first["cuts"]])
        return self.with_cost(plan, replace(made, privacy=privacy))

    def _privacy(self, plan: SecurePlan, request: Mapping[str, Any], seen: Sequence[Sequence[int]]) -> dict[str, Any]:
        """What the sizes cost, and what they were."""
        terms = _Terms(plan, request)
        place = {cut.number: k for k, cut in enumerate(terms.cuts)}
        sizes = [
            {"number": number, "what": terms.cuts[place[number]].operator.what or "the rows of the sites", "moves": terms.cuts[place[number]].moves,
             "epsilon": terms.epsilons[place[number]], "delta": terms.deltas[place[number]], "before": before, "after": after}
            for number, before, after in seen
        ]  # fmt: skip
        std = noise_std(terms.count_rate()) * math.sqrt(len(request["sizes"])) if terms.counts else 0.0
        return {
            **terms.charged, "analyst": self.analyst, "unit": _unit_of(plan) or "row", "neighbours": "add-remove at one site", "mechanism": "truncated discrete Laplace",
            "split": self.split, "noise_std": {one.aggregate.text: std for one in plan.outputs} if terms.counts else {}, "sizes": sizes,
        }  # fmt: skip
