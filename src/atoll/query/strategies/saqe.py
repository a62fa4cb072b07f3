"""``saqe``: aggregates with differential privacy. Sites bound what each unit contributes, add noise to their own sums, and give them to a masked sum.

A *unit* is a row, or what the policy names (``unit: patient``). Neighbouring databases differ in one unit. Of a unit, ``groups`` groups count at most and ``rows`` rows in each (the policy's
``privacy``, 1 and 1 by default); which ones depends on the unit's own rows alone. A number is clamped to the range that the policies declare for its columns. So a unit moves

* a count by at most ``groups * rows``, and
* a sum by at most ``groups * rows * max(|low|, |high|)``,

and a site adds discrete Laplace noise for ``epsilon`` divided evenly over the numbers of a group. Each site's noise alone hides its units from everybody, whatever the coordinator says about
how many sites there are: the answer has the noise of all sites. Groups of public columns are all listed, also those without a row. Other groups are listed by a site if its noised number of
units is above ``1 + ln(groups / delta) / rate`` (Korolova et al. 2009; Wilson et al. 2020, section 3.4): a group of one unit is listed with probability ``delta`` at most.

A site writes an answer down, with its noise, before it leaves. The policy has a budget for each analyst, and a site refuses what exceeds it.

**Noise in parts** (``noise=shares``): a site adds a part of the noise, of which those of all sites but any one add up to the wanted law (`atoll.secure.noise.draw_laplace_part`). So no site knows the noise of an answer, and
it is ``n / (n - 1)`` times one site's in place of n times. The price is trust: at most one site puts together what it knows with the coordinator or the analyst. Sites meet in a session of their own, where each shares a
secret with every other one: so each knows among how many the noise is divided, whatever the coordinator says, and nobody sees a sum of fewer.

**A repeated statement** gets the answer that it got, at no cost, whatever has become of the rows; so does one that a crash or a coordinator interrupted. A free answer that were computed anew
when rows have changed would tell that they have, or have not: a fact about a single unit, with no noise. A budget that were charged only then would tell the same. So an answer belongs to the
statement, its terms and the sites, never to rows. Who wants one of today's rows names another ``edition``: it is charged like any other statement, also if nothing has changed. The record of each
site, which outlives jobs, says for which sites, groups and rates an answer left: for others it does not leave, and no coordinator gets a second one.

**Sampling.** Noise can be on a sample of units that only the site knows; see `atoll.query.sampling`. With ``error`` a tenth of epsilon goes to a pilot, noised numbers of all rows; the smallest sample that
meets the error is drawn for the rest.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from atoll.core import message as M
from atoll.core.algebra.aggregate import Sum
from atoll.core.errors import CompositionError, ConfigError, DataError, PolicyError
from atoll.core.event import Covered, Laplace
from atoll.core.exposure import Exposure
from atoll.core.requests.task import task
from atoll.privacy import PrivateRelease
from atoll.secure.masking import SecureAggregation
from atoll.secure.owners import FIELD, OwnerCircle
from atoll.statistics.disclosure import discrete_laplace, rate_of

from ..events import write_event
from ..local import digest_request, names_of, plan_once, prefix_of, silo_of
from ..noised_plan import (
    NoisedPlan,
    estimate_aggregate,
    finish_estimates,
    make_noised_plan,
    make_sampled_plan,
    noise_spreads,
    shared_noise,
    show_number,
    shown_places,
)
from ..policy import QueryPolicy
from ..sampling import SAMPLERS, Estimate, find_rate, stratify_rates
from ..statement import Catalog, SqlStatement
from .releases import (
    PILOT,
    asks_of,
    count_exactly,
    digest_terms,
    list_answers,
    noise_words,
    part_of,
    plan_here,
    rates_of,
    read_cells,
    release_answer,
    require_budget,
    sites_of,
    terms_of,
    unit_of,
)
from .secret_sample import guess_session, open_sample, require_open
from .strategy import PlanStep, QueryAnswer, Strategy, promise_privacy

if TYPE_CHECKING:
    from atoll.core.execution.session import Peers
    from atoll.core.federation.federation import Federation
    from atoll.core.requests.island import Island

__all__ = ["Saqe", "add_noised", "count_strata", "list_noised", "require_room", "share_noised"]

_SUM, _NEIGHBOUR = 721.0, 1657.0


# ---------------------------------------------------------------- what a site does


@task(discloses=promise_privacy)
def require_room(island: Any, message: Any) -> Any:
    """Refuse an answer that exceeds this site's budget, or that it has given among other sites, before any site reads a row or is charged. What of it was charged already costs nothing."""
    plan = plan_here(island, message)
    epsilon, delta, analyst = terms_of(island, message)
    terms, sites = digest_terms(message, plan), sites_of(message)
    given = [one for one in list_answers(island) if one.get("terms") == terms]
    if any(one["sites"] != sites for one in given):
        raise PolicyError(f"this statement was answered among other sites than {', '.join(sites)}", where=island.name, remedy="name another edition, strategy=saqe:edition=monday, which is charged")  # fmt: skip
    require_budget(island, analyst, {"epsilon": epsilon, "delta": delta if plan.hidden_keys else 0.0}, given=given)
    island.spend(Covered(what="whether there is room in a budget: nothing of a row"))
    return {}


@task(discloses=promise_privacy)
def list_noised(island: Any, message: Any) -> Any:
    """The groups of one site: all that public columns have, or those with many units after noise."""
    silo, plan = silo_of(island.data), plan_here(island, message)
    if not plan.hidden_keys:
        keys = ", ".join(f"CAST({key.local} AS VARCHAR)" for key in plan.keys)
        text = f"{prefix_of(silo, plan, names_of(silo, plan))} SELECT DISTINCT {keys} {plan.key_body}"

        def read() -> list[list[Any]]:
            island.spend(Covered(what="keys of groups, of public columns"))
            return [list(row) for row in silo.run_all([text], list(names_of(silo, plan).values()), stable={text})[0]]

        # The same groups for a repeated statement, so that it gets its answer also after a group was added.
        keys_told: list[Any] = release_answer(island, message, plan, "groups", [], 0, [], read)
        write_event(island, message, plan, f"{len(keys_told)} keys of groups, of public columns", {})
        return {"keys": keys_told}
    _, delta, _ = terms_of(island, message)
    behind: dict[str, int] = {}
    groups, share = plan.bounds[0], part_of(island, message, plan)

    def choose() -> list[list[Any]]:
        found = count_exactly(island, plan)
        behind[plan.released.table] = sum(row[0] for row in found.values())
        ordered = sorted(found, key=repr)
        rate = rate_of(share, 1) / groups
        least = 1 + math.log(groups / delta) / float(rate)
        noise = discrete_laplace(rate, island.secret, len(ordered))
        return [list(key) for key, extra in zip(ordered, noise.tolist(), strict=True) if found[key][0] + extra > least]

    spent = PrivateRelease(unit=unit_of(plan), epsilon=share, delta=delta)
    listed = release_answer(island, message, plan, "groups", [], 1, [spent], choose)
    write_event(island, message, plan, f"{len(listed)} keys of groups, by numbers of units with noise", behind)
    return {"keys": listed}


@task(discloses=promise_privacy)
def count_strata(island: Any, message: Any) -> Any:
    """The number of units of each group, with this site's noise: what a stratified sample has its rates from."""
    plan, cells = plan_here(island, message), read_cells(island, message)
    share = terms_of(island, message)[0] / plan.parts("stratified")

    def add() -> Any:
        found = count_exactly(island, plan)
        noise = discrete_laplace(rate_of(share, 1) / plan.bounds[0], island.secret, len(cells))
        return np.array([found.get(cell, (0,))[0] for cell in cells], np.int64) + noise

    bound = [list(cell) for cell in cells]
    words = release_answer(island, message, plan, "strata", bound, 1, [Laplace(unit=unit_of(plan), epsilon=share)], add)
    write_event(island, message, plan, f"the units of {len(cells)} groups, with noise and masked", {})
    return {"words": Sum(np.asarray(words, dtype=np.int64), role="side")}


@task(discloses=promise_privacy)
def add_noised(island: Any, message: Any) -> Any:
    """The numbers of each group, of all units or of a sample, with this site's noise."""
    plan, cells = plan_here(island, message), read_cells(island, message)
    rates = rates_of(island, message, len(cells))
    words = noise_words(island, message, plan, cells, rates, ())
    return {"words": Sum(np.asarray(words, dtype=np.int64), role="side")}


# ---------------------------------------------------------------- of a sample that nobody knows


@task(discloses=promise_privacy)
async def share_noised(island: Island, peers: Peers, *, request: Any, parties: Any, me: str) -> Any:
    """The numbers of each group with this site's part of the noise, under masks that cancel in the sum over all sites."""
    message, names = request["message"], [str(name) for name in parties]
    if asks_of(message).noise != "shares":
        raise PolicyError("noise in parts, and the statement asks for noise that suffices alone", where=island.name, remedy="look at the coordinator: it asks for something else than the job says")  # fmt: skip
    plan, cells = plan_here(island, message), read_cells(island, message)
    rates = rates_of(island, message, len(cells))
    circle = await OwnerCircle.begin(island.secret, peers, names, me, digest_request(request, names))
    words = np.asarray(noise_words(island, message, plan, cells, rates, sorted(names)), np.int64)
    if abs(words).max(initial=0) >= 1 << 59:
        raise DataError("a sum leaves the range of 2^59", where=island.name, remedy="scale the values down in the statement: SUM(x / 1e6), or use noise=own")  # fmt: skip
    return {"part": circle.mask(FIELD.of(words))}


# ---------------------------------------------------------------- the strategy


@dataclass(frozen=True)
class Saqe(Strategy):
    """Aggregates with differential privacy.

    Attributes:
        epsilon: what the answer costs each site's units; 0 for none.
        delta: the probability that a group of one unit is listed.
        analyst: who asks, as the sites' policies name people.
        sample: which part of the units counts; 1 for all.
        sampler: how they are drawn: ``"uniform"``, ``"stratified"`` or ``"distinct"``; see `atoll.query.sampling`.
        error: the largest error that is wanted, as a part of each number, by which the sample is chosen; 0 for none.
        confidence: with which probability numbers lie in their intervals.
        edition: what tells this answer from an earlier one to the same statement: an answer of another edition is made of the rows of its moment, and charged.
        noise: ``"own"``: each site's suffices alone; or ``"shares"``: that of all sites but one does.
        sampled_by: ``"owners"``: each site draws its own sample, and knows it; or ``"shares"``: three parties draw one that nobody knows, see `atoll.query.strategies.secret_sample`.
        reducer: how sums are masked.
    """

    name: ClassVar[str] = "saqe"
    needs_terms: ClassVar[bool] = True
    answers_with_noise: ClassVar[bool] = True
    takes_error: ClassVar[bool] = True

    epsilon: float = 0.0
    delta: float = 1e-6
    analyst: str = ""
    sample: float = 1.0
    sampler: str = "uniform"
    error: float = 0.0
    confidence: float = 0.95
    edition: str = ""
    noise: str = "own"
    sampled_by: str = "owners"
    reducer: SecureAggregation = field(default_factory=SecureAggregation)

    def __post_init__(self) -> None:
        if self.sampler not in SAMPLERS or not 0 < self.sample <= 1:
            raise ConfigError(f"sample={self.sample}, sampler={self.sampler}", where="saqe", remedy=f"use a part of the rows above 0 and at most 1, and {', '.join(SAMPLERS)}")  # fmt: skip
        if self.noise not in ("own", "shares"):
            raise ConfigError(f"noise={self.noise!r}", where="saqe", remedy="use own or shares")
        if self.sampled_by not in ("owners", "shares") or (self.sampled_by == "shares" and (not self.drawn or self.noise == "shares")):  # fmt: skip
            raise ConfigError(f"sampled_by={self.sampled_by!r}, sample={self.sample:g}, noise={self.noise!r}", where="saqe", remedy="use owners; or shares, with a sample below 1 or an error, and noise=own")  # fmt: skip
        if self.error and self.sample < 1:
            raise ConfigError(f"sample={self.sample:g} with error={self.error:g}", where="saqe", remedy="leave sample out: the error says how many rows count")  # fmt: skip

    @property
    def drawn(self) -> str:
        """The sampler, if there is a sample."""
        return self.sampler if self.sample < 1 or self.error else ""

    def wants_helper(self, sites: int) -> bool:
        """Whether three parties draw, and there are two sites."""
        return self.sampled_by == "shares" and sites == 2

    def require_parties(self, sites: int, *, helper: bool) -> None:
        """Refuse noise in parts of one site, and a sample that too few parties draw."""
        if self.sampled_by == "shares" and (sites < 2 or (sites == 2 and not helper)):
            raise CompositionError(f"{sites} site{'s' * (sites > 1)}, and three parties draw a sample that nobody knows", where=self.name, remedy="let a helper take part beside two sites: helper: true; or leave sampled_by out")  # fmt: skip
        if sites < 2 and self.noise == "shares":
            raise CompositionError("one site, which would know all noise", where=self.name, remedy="use noise=own")

    def plan(self, statement: SqlStatement, catalog: Catalog, policy: QueryPolicy) -> NoisedPlan:
        """A plan; see `make_noised_plan`."""
        if not self.epsilon:
            raise CompositionError("no epsilon is given, and it adds noise", where=self.name, remedy="say how much noise: epsilon, such as 0.5")  # fmt: skip
        tables = {table: dict(columns) for table, columns in catalog.tables.items()}
        told = policy.told({table: [c.lower() for c in columns] for table, columns in tables.items()})
        made: NoisedPlan = plan_once(make_sampled_plan if self.drawn else make_noised_plan, statement.sql, tables, [told])  # fmt: skip
        if self.drawn:
            made.require_sampler(self.drawn)
        if self.error:
            unknown = [one.alias_or_name for one, place in zip(*shown_places(made), strict=True) if place is None]
            if unknown:
                raise CompositionError(f"the error of {', '.join(unknown)}: it is computed from several numbers", where=self.name, remedy="ask for COUNT, SUM and AVG by themselves")  # fmt: skip
        if self.sampled_by == "shares":
            require_open(made)
        if self.noise == "shares":  # noise that has no law is refused before groups or a pilot are paid for
            known = not self.error and self.drawn != "stratified"
            shared_noise(made, self._part(made, pilot=bool(self.error)), self.sample if known else 1.0, self.drawn)
        return replace(made, statement=statement)

    def steps(self, plan: NoisedPlan) -> Sequence[PlanStep]:
        """The steps of a plan."""
        keys = ", ".join(one.text for one in plan.keys)
        found = [PlanStep("each site", "plain", f"look whether the budget of {self.analyst or 'the analyst'} has room")]
        if keys:
            found.append(PlanStep("each site", "noised" if plan.hidden_keys else "plain", f"name the values of {keys}"))
        shown = ", ".join(one.text for one in plan.aggregates) or "the groups"
        if self.error:
            found.append(PlanStep("each site, added up masked", "noised", f"{shown}, for {PILOT:.0%} of epsilon"))
            found.append(PlanStep("coordinator", "plain", f"the smallest sample with an error of {self.error:g} at confidence {self.confidence:g}"))  # fmt: skip
        if self.drawn == "stratified":
            found.append(PlanStep("each site, added up masked", "noised", "units of each group, for the rates"))
        groups, rows = plan.bounds
        of = ""
        if self.drawn:
            who = "nobody knows" if self.sampled_by == "shares" else "the site alone knows"
            of = f", of a {self.drawn} sample{'' if self.error else f' of {self.sample:g}'} that {who}"
        if self.sampled_by == "shares":
            found.append(PlanStep("each site", "shared", "share what each unit contributes, its noise, and random words, among three parties"))  # fmt: skip
            found.append(PlanStep("three parties", "shared", "draw the sample by the words of all sites, and add up what is in it, and the noise"))  # fmt: skip
        found.append(PlanStep("three parties" if self.sampled_by == "shares" else "each site, added up masked", "noised", f"{shown}: {groups} group{'s' * (groups > 1)} of a unit, {rows} row{'s' * (rows > 1)} in each{of}"))  # fmt: skip
        return [*found, PlanStep("coordinator", "plain", plan.finish)]

    def exposures(self, plan: NoisedPlan) -> Sequence[Exposure]:
        """What a plan gives away."""
        found = []
        if plan.keys and not plan.hidden_keys:
            found.append(Exposure("coordinator", f"the values of {', '.join(one.text for one in plan.keys)} at each site", "these columns are public", "keys"))  # fmt: skip
        if self.sampled_by == "shares":
            curious = "at most one of the three parties is curious, and none departs from the protocol"
            found.append(Exposure("coordinator, three parties", f"how many units of {plan.released.table} in groups each site has, up to the next power of two", "policies say sizes: open", "sizes"))  # fmt: skip
            found.append(Exposure("three parties, every site", "nothing else: nobody knows who is in the sample", f"{curious}; not all other sites put together what they know"))  # fmt: skip
        trust = "all sites but one do not put together what they know with the analyst or the coordinator" if self.noise == "shares" else ""  # fmt: skip
        where = "of all sites but any one" if self.noise == "shares" else "at each site"
        return [*found, Exposure("analyst", f"the answer, with noise for epsilon={self.epsilon:g} {where}", trust, "sum")]  # fmt: skip

    def predict_cost(self, plan: NoisedPlan, sites: int, groups: Sequence[Sequence[str | None]] = ((),)) -> float:
        """Bytes of all sites, for a coordinator that is honest."""
        if self.sampled_by == "shares":
            return self._asked_cost(plan, sites, groups) + guess_session(plan, sites, len(groups) * len(plan.numbers))
        return self._asked_cost(plan, sites, groups)

    def predict_answer(self, plan: NoisedPlan, sites: int, answer: QueryAnswer) -> float:
        """The same, with the sizes that the sites told."""
        if answer.expected is None:
            return self.predict_cost(plan, sites, answer.groups)
        return self._asked_cost(plan, sites, answer.groups) + answer.expected

    def _asked_cost(self, plan: NoisedPlan, sites: int, groups: Sequence[Sequence[str | None]]) -> float:
        """Bytes of requests and masked sums."""
        asked = M.nbytes(plan.statement.sql) + 64.0
        sums = (self.sampled_by == "owners") + bool(self.error) + (self.drawn == "stratified")
        return sites * (2 * asked + sums * (asked + _SUM + _NEIGHBOUR * sites + 8.0 * len(groups) * len(plan.numbers)))

    async def run(self, fed: Federation, plan: NoisedPlan, message: Mapping[str, Any]) -> QueryAnswer:
        """Carry a plan out."""
        asked: dict[str, Any] = {**message, "cells": [[]], "sites": list(fed.parties.names)}
        await _ask_all(fed, require_room, asked)
        asked["pilot"] = False
        rounds, sites = 1, len(fed.parties)
        if plan.keys:
            told = await _ask_all(fed, list_noised, asked)
            seen = {tuple(key) for one in told.values for key in one["keys"]}
            asked["cells"] = [list(key) for key in sorted(seen, key=lambda key: [(part is None, part or "") for part in key])]  # fmt: skip
            rounds += 1
        cells: list[tuple[Any, ...]] = [tuple(key) for key in asked["cells"]]
        rates: list[float] = [self.sample] * len(cells)
        words: Any = np.zeros((len(cells), 0), np.int64)
        expected = None
        if cells and plan.numbers:
            rates, more = await self._choose_rates(fed, plan, asked)
            if self.sampled_by == "shares":
                words, expected = await open_sample(fed, plan, {**asked, "rates": rates})
            else:
                words = await self._add_noised(fed, plan, {**asked, "rates": rates})
            rounds += 1 + more
        part = self._part(plan)
        spreads = {rate: self._spreads(plan, part, rate, sites) for rate in set(rates)}
        table = [[estimate_aggregate(plan, one, row, rate, spreads[rate]) for one in plan.aggregates] for row, rate in zip(words, rates, strict=True)]  # fmt: skip
        if self.error:
            self._require_error(plan, cells, table)
        shown = [(*key, *(show_number(plan, one, row, rate) for one in plan.aggregates)) for key, row, rate in zip(cells, words, rates, strict=True)]  # fmt: skip
        rows, intervals = finish_estimates(plan, shown, table, self.confidence)
        statement = plan.statement
        approximate = {"confidence": self.confidence, "sampler": self.drawn, "rate": min(rates, default=1.0), "intervals": intervals}  # fmt: skip
        return QueryAnswer(statement.columns, statement.types, rows, 0, 0, rounds, asked["cells"], privacy=self.privacy(plan, sites, part, min(rates, default=1.0)), approximate=approximate, expected=expected)  # fmt: skip

    async def _add(self, fed: Federation, plan: NoisedPlan, what: Any, message: Mapping[str, Any]) -> Any:
        found = await fed.sum(fed.parties, what, message, reducer=self.reducer, quorum=len(fed.parties))
        return np.asarray(found.value["words"], np.int64).reshape(len(message["cells"]), -1)

    def _part(self, plan: NoisedPlan, *, pilot: bool = False) -> float:
        """Epsilon of one number."""
        share = 1.0 if not self.error else PILOT if pilot else 1 - PILOT
        return self.epsilon * share / plan.parts(self.drawn)

    def _spreads(self, plan: NoisedPlan, part: float, rate: float, sites: int) -> list[tuple[float, float]]:
        return noise_spreads(plan, part, rate, self.drawn, sites, shared=self.noise == "shares")

    async def _add_noised(self, fed: Federation, plan: NoisedPlan, message: Mapping[str, Any]) -> Any:
        """The noised numbers of each group, of all sites together."""
        if self.noise == "own":
            return await self._add(fed, plan, add_noised, message)
        names = list(fed.parties.names)
        request = {"message": dict(message)}
        got = await fed.session({name: (name, share_noised.with_args(request=request, parties=names, me=name)) for name in names})  # fmt: skip
        total = np.asarray(got[names[0]]["part"], np.uint64)
        for name in names[1:]:
            total = FIELD.add(total, np.asarray(got[name]["part"], np.uint64))
        part = self._part(plan, pilot=bool(message["pilot"]))
        coarse = [[one.coarse for one in shared_noise(plan, part, rate, self.drawn)] for rate in message["rates"]]
        return FIELD.signed(total).reshape(len(message["cells"]), -1) * np.array(coarse, np.int64)

    async def _choose_rates(self, fed: Federation, plan: NoisedPlan, asked: Mapping[str, Any]) -> tuple[list[float], int]:  # fmt: skip
        """The rate of each group, and how many sums it took."""
        count, more = len(asked["cells"]), 0
        pilot: Any = None
        if self.error:  # before anything is paid for rates: with all units the error does not depend on them
            pilot = await self._add_noised(fed, plan, {**asked, "pilot": True, "rates": [1.0] * count})
            self._require_reach(plan, pilot, len(fed.parties))
            more += 1
        units: Any = None
        if self.drawn == "stratified":
            units = (await self._add(fed, plan, count_strata, asked)).reshape(-1)
            more += 1

        def spread(rate: float) -> list[float]:
            return [rate] * count if units is None else stratify_rates(units, rate).tolist()

        if not self.error:
            return spread(self.sample), more
        found = find_rate(lambda rate: self._expect_error(plan, pilot, spread(rate), len(fed.parties)), self.error)
        return spread(1.0 if found is None else found), more

    def _expect_error(self, plan: NoisedPlan, pilot: Any, rates: Sequence[float], sites: int) -> float:
        """The largest error of all numbers at these rates, if the pilot is too high and the sample turns out low: by as much as they are together with probability `_FAILS`, of all numbers together."""
        part, worst, made = self._part(plan), 0.0, dict[float, Any]()
        each = 1 - 2 * _FAILS * (1 - self.confidence) / max(1, len(pilot) * len(plan.numbers))
        before = self._spreads(plan, self._part(plan, pilot=True), 1.0, sites)
        for row, rate in zip(pilot, rates, strict=True):
            if rate not in made:
                made[rate] = self._spreads(plan, part, rate, sites)
            after = made[rate]
            low = [self._lowest(plan, k, float(row[k]), rate, before[k], after[k], each) for k in range(len(row))]
            for one in plan.aggregates:
                # Of an average the sum may be low while the count is not.
                for count in {low[one.addends[0]], float(row[one.addends[0]]) * rate}:
                    tried = [count if k == one.addends[0] and one.name != "count" else low[k] for k in range(len(row))]
                    worst = max(worst, estimate_aggregate(plan, one, tried, rate, after).relative(self.confidence))
        return worst

    @staticmethod
    def _lowest(plan: NoisedPlan, place: int, told: float, rate: float, before: tuple[float, float], after: tuple[float, float], confidence: float) -> float:  # fmt: skip
        """The number of the sample, in steps, that it is hardly below, of what the pilot told."""
        number, rows = plan.numbers[place], plan.bounds[1]
        drawn = rows * number.most * abs(told) * rate * (1 - rate)
        variance = before[0] * rate**2 + after[0] + drawn
        reach = Estimate(0.0, variance, before[1] * rate**4 + after[1]).half_width(confidence)
        return told * rate - reach if told >= 0 else told * rate + reach

    def _require_reach(self, plan: NoisedPlan, pilot: Any, sites: int) -> None:
        """Refuse an error that all units together do not meet surely, before more is spent."""
        error = self._expect_error(plan, pilot, [1.0] * len(pilot), sites)
        if error > self.error:
            numbers, parts = len(plan.numbers), plan.parts(self.drawn)
            cost = self.epsilon / parts * (PILOT * numbers + (1 - PILOT) * plan.hidden_keys)
            what = "The groups and the pilot have" if plan.hidden_keys else "The pilot has"
            raise DataError(f"an error of {self.error:g} at confidence {self.confidence:g}: with all rows it may be {error:.2g} for epsilon={self.epsilon:g}. {what} cost {cost:g} of it", where=self.name, remedy="ask with a larger error or epsilon, or for larger groups")  # fmt: skip

    def _require_error(self, plan: NoisedPlan, cells: Sequence[tuple[Any, ...]], table: Sequence[Sequence[Estimate]]) -> None:  # fmt: skip
        """Refuse an answer that errs by more than what is wanted: pilot and sample have misled, which is rare; see `_expect_error`."""
        for key, row in zip(cells, table, strict=True):
            for one, found in zip(plan.aggregates, row, strict=True):
                if found.relative(self.confidence) > self.error:
                    raise DataError(f"{one.text}{f' of {key}' if key else ''} is {found.value:g}, which errs by up to {found.relative(self.confidence):.2g} of itself, and {self.error:g} is wanted", where=self.name, remedy="ask with a larger error or epsilon, or for larger groups")  # fmt: skip

    def privacy(self, plan: NoisedPlan, sites: int, part: float, rate: float) -> dict[str, Any]:
        """What the answer costs, and how much noise it has."""
        groups, rows = plan.bounds
        spreads, stds = self._spreads(plan, part, rate, sites), {}
        for one in plan.aggregates:
            place = one.addends[-1]
            stds[one.text] = math.sqrt(spreads[place][0]) * float(plan.numbers[place].step) / rate
        return {
            "epsilon": self.epsilon, "delta": self.delta if plan.hidden_keys else 0.0, "analyst": self.analyst, "unit": plan.released.unit or "row", "neighbours": "add-remove", "mechanism": "discrete Laplace",
            "groups": groups, "rows": rows, "noise_std": stds,
        }  # fmt: skip


_FAILS = 0.02
"""How often a sample that a pilot has chosen may miss the error, as a part of ``1 - confidence``."""


async def _ask_all(fed: Federation, what: Any, message: Mapping[str, Any]) -> Any:
    told = await fed.ask_all(fed.parties, what, message)
    if len(told.values) < len(fed.parties):
        raise DataError(next(iter(told.rejected.values()), "a site did not answer"), where="saqe", remedy="start all sites, and ask within their budgets")  # fmt: skip
    return told
