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

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from atoll.core import message as M
from atoll.core.algebra.aggregate import Sum
from atoll.core.errors import CompositionError, ConfigError, DataError, PolicyError
from atoll.core.event import Covered, Event, Laplace
from atoll.core.exposure import Exposure
from atoll.core.requests.task import task
from atoll.core.sealing.record import hash_parts
from atoll.privacy import PrivateRelease
from atoll.secure.masking import SecureAggregation
from atoll.secure.noise import draw_laplace_part
from atoll.secure.owners import FIELD, OwnerCircle
from atoll.statistics.disclosure import discrete_laplace, rate_of

from ..databases.silo import quote, quote_text
from ..events import NOISED, write_event
from ..local import digest_request, names_of, plan_of, plan_once, prefix_of, silo_of
from ..noised_plan import (
    NoisedPlan,
    SharedNoise,
    estimate_aggregate,
    finish_estimates,
    make_noised_plan,
    make_sampled_plan,
    noise_rates,
    noise_spreads,
    shared_noise,
    show_number,
    shown_places,
)
from ..policy import QueryPolicy
from ..sampling import SAMPLERS, Estimate, draw_condition, find_rate, rate_digits, stratify_rates
from ..statement import Catalog, SqlStatement
from .strategy import PlanStep, QueryAnswer, Strategy, promise_privacy, read_strategy

if TYPE_CHECKING:
    from atoll.core.execution.session import Peers
    from atoll.core.federation.federation import Federation
    from atoll.core.requests.island import Island

__all__ = [
    "RECORD",
    "Saqe",
    "add_noised",
    "count_strata",
    "find_release",
    "list_noised",
    "release_once",
    "require_budget",
    "require_room",
    "share_noised",
]

RECORD = NOISED
"""Name of the record of answers with noise, among the results that stay at a site."""
_SUM, _NEIGHBOUR = 721.0, 1657.0
_NOTHING: Mapping[str, Any] = {}


# ---------------------------------------------------------------- what a site does


def _bounded_text(silo: Any, plan: NoisedPlan, draw: _Draw | None = None) -> str:
    """Local SQL: keys, units and numbers of each group, of the rows that count and are in the sample."""
    keys = [f"k{k}" for k in range(len(plan.keys))]
    groups, rows = plan.bounds
    shown = [f"{plan.released.entity} AS u", *(f"CAST({key.local} AS VARCHAR) AS {name}" for key, name in zip(plan.keys, keys, strict=True))]  # fmt: skip
    shown += [f"{one.local} AS v{k}" for k, one in enumerate(plan.numbers)]
    order = "md5(concat_ws('|,', u, " + ", ".join(f"coalesce(replace({name}, '|', '||'), '|n')" for name in keys or ["'x'"]) + "))"  # fmt: skip
    values = ", ".join(f"v{k}" for k in range(len(plan.numbers))) or "u"
    ranks = f"dense_rank() OVER (PARTITION BY u ORDER BY {order}) AS g, row_number() OVER (PARTITION BY {', '.join(['u', *keys])} ORDER BY {values}) AS r"  # fmt: skip
    prefix = prefix_of(silo, plan, names_of(silo, plan))
    added = ("CAST(count(DISTINCT v{k}) AS HUGEINT)" if one.distinct else "CAST(coalesce(sum(v{k}), 0) AS HUGEINT)" for one in plan.numbers)  # fmt: skip
    sums = ", ".join([*keys, "count(DISTINCT u)", *(one.format(k=k) for k, one in enumerate(added))])
    by = f" GROUP BY {', '.join(keys)}" if keys else ""
    joined, drawn = ("", "") if draw is None else draw.text(keys)
    return (
        f"{prefix}, {quote('@rows')} AS (SELECT {', '.join(shown)} {plan.body}), {quote('@counted')} AS (SELECT *, {ranks} FROM {quote('@rows')} WHERE u IS NOT NULL)"
        f" SELECT {sums} FROM {quote('@counted')}{joined} WHERE g <= {groups} AND r <= {rows}{drawn}{by}"
    )


def _units_text(silo: Any, plan: NoisedPlan, *, values: bool) -> str:
    """Local SQL: keys and numbers of each unit in a group, or of each value, of the rows that count."""
    text, by = _bounded_text(silo, plan), _any_value(len(plan.numbers)) if values else "u"
    keys = [f"k{k}" for k in range(len(plan.keys))]
    grouped = f" GROUP BY {', '.join(keys)}" if keys else ""
    there = f" AND {by} IS NOT NULL"
    return f"{text.removesuffix(grouped) if grouped else text}{there} GROUP BY {', '.join([*keys, by])}"


def _any_value(count: int) -> str:
    """The value of a row of which numbers count different ones: a condition may leave it out of some."""
    return f"coalesce({', '.join(f'v{k}' for k in range(count))})"


@dataclass(frozen=True)
class DrawnNumbers:
    """What a site shares of a sample that is drawn under shares.

    Attributes:
        thresholds: of each unit or value in a group, ``(rows,)``: its rate times 2^32.
        numbers: what it contributes to each sum, ``(rows, sums)``: 0 to those of other groups.
        seed: the site's part of the draw.
        noise: the site's noise on each sum, ``(sums,)``.
    """

    thresholds: Any
    numbers: Any
    seed: bytes = b""
    noise: Any = None

    def columns(self) -> dict[str, Any]:
        """The columns of the table that is shared."""
        return {"threshold": self.thresholds, **{f"v{k}": x for k, x in enumerate(self.numbers.T)}}


@dataclass(frozen=True)
class _Draw:
    """A sample that a site draws.

    Attributes:
        key: fresh bytes of the site's secret.
        cells: the groups.
        rates: the rate of each.
        values: of how many numbers values are drawn, in place of units; 0 for units.
    """

    key: bytes
    cells: tuple[tuple[Any, ...], ...]
    rates: tuple[float, ...]
    values: int

    def text(self, keys: Sequence[str]) -> tuple[str, str]:
        """Local SQL: what is joined with the rows, and a condition on them."""
        parts = [f"CAST({_any_value(self.values)} AS VARCHAR)"] if self.values else ["CAST(u AS VARCHAR)", *keys]
        if len(set(self.rates)) == 1:
            return "", f" AND {draw_condition(self.key, parts, self.rates[0])}"
        rows = [f"({', '.join(['NULL' if one is None else quote_text(one) for one in cell] + [quote_text(rate_digits(rate))])})" for cell, rate in zip(self.cells, self.rates, strict=True)]  # fmt: skip
        names = [f"s{k}" for k in range(len(keys))]
        same = " AND ".join(f"CAST({name} AS VARCHAR) IS NOT DISTINCT FROM {key}" for name, key in zip(names, keys, strict=True))  # fmt: skip
        joined = f" JOIN (VALUES {', '.join(rows)}) AS drawn({', '.join([*names, 'q'])}) ON {same}"
        return joined, f" AND {draw_condition(self.key, parts, 'q')}"


def plan_here(island: Any, message: Any) -> NoisedPlan:
    """The plan that the site makes itself."""
    sampler = _asks(message).drawn
    plan: NoisedPlan = plan_of(silo_of(island.data), message, make_sampled_plan if sampler else make_noised_plan, "saqe")  # fmt: skip
    if sampler:
        plan.require_sampler(sampler)
    return plan


def _asks(message: Any) -> Any:
    """The strategy with its settings, as the signed job has them."""
    return read_strategy(message)


def _exact(island: Any, plan: NoisedPlan, draw: _Draw | None = None) -> dict[tuple[Any, ...], tuple[int, ...]]:
    """Key -> units and numbers."""
    silo = silo_of(island.data)
    (found,) = silo.run_all([_bounded_text(silo, plan, draw)], list(names_of(silo, plan).values()))
    keys = len(plan.keys)
    return {tuple(row[:keys]): tuple(int(one) for one in row[keys:]) for row in found}


def _release(island: Any, message: Any, plan: NoisedPlan, kind: str, bound: Any, parts: int, spent: Sequence[Event], make: Callable[[], Any]) -> Any:  # fmt: skip
    """Noise once for the same statement and terms, charged and written down before it leaves.

    Args:
        island: the site.
        message: the request.
        plan: its plan.
        kind: what is released: of the same statement and terms there is one of each kind.
        bound: what it is released for, as plain values: which sites, which groups, and at which rates. It cannot be released for others.
        parts: parts of epsilon that this release takes.
        spent: the same for the ledger.
        make: makes the release from the rows of this moment.

    Raises:
        PolicyError: the analyst's budget is spent, or the analyst has none; or it was released for something else.
    """
    epsilon, _, analyst = _terms(island, message)
    failing = sum(event.delta for event in spent if isinstance(event, PrivateRelease))
    charged = {"epsilon": epsilon / plan.parts(_asks(message).drawn) * parts, "delta": failing}
    terms, sites = _digest_terms(message, plan), _sites_of(message)
    tag, held = _name_release(terms, kind, sites, bound)
    about = {"kind": kind, "terms": terms, "sites": sites}
    return release_once(island, tag, plan.statement.text, analyst, charged, spent, make, held, about)


def _name_release(terms: str, kind: str, sites: Sequence[str], bound: Any) -> tuple[str, str]:
    """The tag of a release, and what it is released for."""
    return hash_parts("noised answer", terms, kind).hex(), hash_parts("released for", json.dumps([sites, bound])).hex()


def _sites_of(message: Any) -> list[str]:
    """The sites whose answer it is, as the request names them."""
    return sorted(str(name) for name in message["sites"])


def _digest_terms(message: Any, plan: NoisedPlan) -> str:
    """What an answer with noise belongs to: the statement, the plan, and all settings that change the noise."""
    said = _asks(message).told()
    if not said["error"]:  # then it is a matter of intervals alone
        del said["confidence"]
    if not plan.hidden_keys:
        del said["delta"]
    if said["sampled_by"] == "owners":  # as records of before say it
        del said["sampled_by"]
    return hash_parts("terms", json.dumps([plan.statement.sql, repr(plan.numbers), plan.bounds, said], sort_keys=True)).hex()  # fmt: skip


def find_release(island: Any, tag: str) -> tuple[list[Any], Any]:
    """The record of a site's releases with noise, and of it the one of a tag; ``None`` if there is none."""
    answers = _answers(island)
    return answers, next((one for one in answers if one["tag"] == tag), None)


def release_once(island: Any, tag: str, text: str, analyst: str, charged: Mapping[str, float], events: Sequence[Event], make: Callable[[], Any], bound: str = "", about: Mapping[str, Any] = _NOTHING) -> Any:  # fmt: skip
    """A release that is made once for a tag: charged to an analyst's budget and the site's ledger, and written down before it leaves; later it is read.

    Args:
        island: the site.
        tag: names the statement and all settings that the release depends on.
        text: the statement.
        analyst: who asks.
        charged: ``epsilon`` and ``delta``.
        events: the same for the ledger.
        make: makes the release.
        bound: what it is released for, such as groups and rates; the same tag is never released for anything else.
        about: what else the record says of it.

    Raises:
        PolicyError: the analyst's budget is spent, or the analyst has none; or it was released for something else.
    """
    answers, known = find_release(island, tag)
    if known is not None and known["bound"] != bound:
        raise PolicyError(f"the {known.get('kind', 'noise')} of this statement left for other groups, rates or sites, and leaves once", where=island.name, remedy="name another edition, strategy=saqe:edition=monday, which is charged; if neither the sites nor Atoll's version has changed, look at the coordinator")  # fmt: skip
    silo_of(island.data).charged = {"epsilon": 0.0, "release": tag} if known is not None else {**charged, "analyst": analyst, "release": tag}  # fmt: skip
    if known is not None:
        island.spend(Covered(what=f"the {known.get('kind', 'noise')} of an answer that was counted before"))
        return known["value"]
    require_budget(island, analyst, charged)
    value = make()
    for event in events:
        island.spend(event)
    entry = {"tag": tag, "analyst": analyst, "text": text, "bound": bound, "value": value, **about, **charged}
    island.leave(RECORD, {"answers": [*answers, entry]}, at_once=True)
    return value


def _terms(island: Any, message: Any) -> tuple[float, float, str]:
    """Epsilon, delta and the analyst of a request."""
    said = _asks(message)
    epsilon, delta, analyst = said.epsilon, said.delta, said.analyst
    if said.error and "pilot" in message:
        epsilon *= _PILOT if message["pilot"] else 1 - _PILOT
    if not (math.isfinite(epsilon) and epsilon > 0 and 0 < delta < 1):
        raise ConfigError(f"epsilon={epsilon}, delta={delta}", where=island.name, remedy="use an epsilon above 0, and a delta in (0, 1)")  # fmt: skip
    return epsilon, delta, analyst


def _answers(island: Any) -> list[Any]:
    """What the site has answered with noise."""
    try:
        return list(island.left(RECORD)["answers"])
    except ConfigError:
        return []


def require_budget(island: Any, analyst: str, charged: Mapping[str, float], *, given: Sequence[Any] = ()) -> None:
    """Refuse what an analyst's budget has no room for.

    Args:
        island: the site.
        analyst: who asks.
        charged: ``epsilon`` and ``delta`` of the answer.
        given: records of what of it was charged already.

    Raises:
        PolicyError: the budget is spent, or the analyst has none.
    """
    answers = _answers(island)
    privacy = silo_of(island.data).policy.privacy
    budget = None if privacy is None else privacy.people.get(analyst)
    if budget is None:
        raise PolicyError(f"{analyst or 'nobody by name'} has no budget for answers with noise", where=island.name, remedy="ask under the name of an analyst that the policy has in privacy: people")  # fmt: skip
    for name, limit in zip(("epsilon", "delta"), budget, strict=True):
        more = charged[name] - sum(float(one[name]) for one in given)
        if more <= 1e-9 * limit:  # a repeated answer is free, also after the budget was made smaller
            continue
        spent = sum(float(one[name]) for one in answers if one["analyst"] == analyst)
        if spent + more > limit * (1 + 1e-9):
            raise PolicyError(f"the {name} of {analyst} is {limit:g} here: {spent:.4g} is spent, and this answer takes {more:.4g}", where=island.name, remedy=f"ask again what was answered, which costs nothing, ask with a smaller {name}, or let the site raise the budget")  # fmt: skip


@task(discloses=promise_privacy)
def require_room(island: Any, message: Any) -> Any:
    """Refuse an answer that exceeds this site's budget, or that it has given among other sites, before any site reads a row or is charged. What of it was charged already costs nothing."""
    plan = plan_here(island, message)
    epsilon, delta, analyst = _terms(island, message)
    terms, sites = _digest_terms(message, plan), _sites_of(message)
    given = [one for one in _answers(island) if one.get("terms") == terms]
    if any(one["sites"] != sites for one in given):
        raise PolicyError(f"this statement was answered among other sites than {', '.join(sites)}", where=island.name, remedy="name another edition, strategy=saqe:edition=monday, which is charged")  # fmt: skip
    require_budget(island, analyst, {"epsilon": epsilon, "delta": delta if plan.hidden_keys else 0.0}, given=given)
    island.spend(Covered(what="whether there is room in a budget: nothing of a row"))
    return {}


def _unit_of(plan: NoisedPlan) -> str:
    return "user" if plan.released.unit else "example"


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
        keys_told: list[Any] = _release(island, message, plan, "groups", [], 0, [], read)
        write_event(island, message, plan, f"{len(keys_told)} keys of groups, of public columns", {})
        return {"keys": keys_told}
    epsilon, delta, _ = _terms(island, message)
    behind: dict[str, int] = {}
    groups, share = plan.bounds[0], epsilon / plan.parts(_asks(message).drawn)

    def choose() -> list[list[Any]]:
        found = _exact(island, plan)
        behind[plan.released.table] = sum(row[0] for row in found.values())
        ordered = sorted(found, key=repr)
        rate = rate_of(share, 1) / groups
        least = 1 + math.log(groups / delta) / float(rate)
        noise = discrete_laplace(rate, island.secret, len(ordered))
        return [list(key) for key, extra in zip(ordered, noise.tolist(), strict=True) if found[key][0] + extra > least]

    spent = PrivateRelease(unit=_unit_of(plan), epsilon=share, delta=delta)
    listed = _release(island, message, plan, "groups", [], 1, [spent], choose)
    write_event(island, message, plan, f"{len(listed)} keys of groups, by numbers of units with noise", behind)
    return {"keys": listed}


def read_cells(island: Any, message: Any) -> list[tuple[Any, ...]]:
    """The groups that a request names.

    Raises:
        PolicyError: one is named twice.
    """
    cells = [tuple(key) for key in message["cells"]]
    if len(set(cells)) < len(cells):
        raise PolicyError("a group is asked twice in one request, and would get noise twice", where=island.name, remedy="look at the coordinator: it does not follow the protocol")  # fmt: skip
    return cells


@task(discloses=promise_privacy)
def count_strata(island: Any, message: Any) -> Any:
    """The number of units of each group, with this site's noise: what a stratified sample has its rates from."""
    plan, cells = plan_here(island, message), read_cells(island, message)
    share = _terms(island, message)[0] / plan.parts("stratified")

    def add() -> Any:
        found = _exact(island, plan)
        noise = discrete_laplace(rate_of(share, 1) / plan.bounds[0], island.secret, len(cells))
        return np.array([found.get(cell, (0,))[0] for cell in cells], np.int64) + noise

    bound = [list(cell) for cell in cells]
    words = _release(island, message, plan, "strata", bound, 1, [Laplace(unit=_unit_of(plan), epsilon=share)], add)
    write_event(island, message, plan, f"the units of {len(cells)} groups, with noise and masked", {})
    return {"words": Sum(np.asarray(words, dtype=np.int64), role="side")}


@task(discloses=promise_privacy)
def add_noised(island: Any, message: Any) -> Any:
    """The numbers of each group, of all units or of a sample, with this site's noise."""
    plan, cells = plan_here(island, message), read_cells(island, message)
    rates = _rates_of(island, message, len(cells))
    words = _noised_words(island, message, plan, cells, rates, ())
    return {"words": Sum(np.asarray(words, dtype=np.int64), role="side")}


def _laws(message: Any, plan: NoisedPlan, part: float, rates: Sequence[float], parties: Sequence[str]) -> list[Any]:
    """The noise on each number of each group."""
    sampler = _asks(message).drawn
    return [noise_rates(plan, part, rate, sampler) if not parties else shared_noise(plan, part, rate, sampler) for rate in rates]  # fmt: skip


def _add_one(island: Any, exact: int, law: Any, parties: Sequence[str]) -> int:
    """A number with this site's noise, or with its part of the noise of several parties."""
    if not isinstance(law, SharedNoise):
        return exact + int(discrete_laplace(law, island.secret, 1)[0])
    rounded = (2 * exact + law.coarse) // (2 * law.coarse)
    return rounded + int(draw_laplace_part(law.scale, len(parties), lambda count: island.secret.uint64((count,)), 1)[0])


def _noised_words(island: Any, message: Any, plan: NoisedPlan, cells: Sequence[tuple[Any, ...]], rates: tuple[float, ...], parties: Sequence[str]) -> Any:  # fmt: skip
    """The numbers of each group with this site's noise, or with its part of the noise of several parties.

    A part is for the sum of these parties alone. Else sums of several choices of parties would differ by one site's numbers, with its part of the noise in place of the whole.
    """
    sampler = _asks(message).drawn
    part = _terms(island, message)[0] / plan.parts(sampler)
    whole = all(rate == 1 for rate in rates)
    laws = _laws(message, plan, part, rates, parties)  # refused before anything is charged
    behind: dict[str, int] = {}

    def add() -> Any:
        draw = (
            None
            if whole
            else _Draw(island.secret.bytes(32), tuple(cells), rates, len(plan.numbers) * (sampler == "distinct"))
        )
        found = _exact(island, plan, draw)
        behind[plan.released.table] = sum(found[key][0] for key in cells if key in found)
        made = np.zeros((len(cells), len(plan.numbers)), np.int64)
        for row, cell in enumerate(cells):
            exact = found.get(cell, (0,) * (1 + len(plan.numbers)))[1:]
            made[row] = [_add_one(island, exact[k], law, parties) for k, law in enumerate(laws[row])]
        return made.reshape(-1)

    words = _release_numbers(island, message, plan, whole, list(parties), add)
    write_event(island, message, plan, f"the numbers of {len(cells)} groups, with noise and masked", behind)
    return words


def _release_numbers(island: Any, message: Any, plan: NoisedPlan, whole: bool, parties: list[str], make: Callable[[], Any]) -> Any:  # fmt: skip
    """The release of a statement's numbers; see `_release`."""
    part, count, unit = _terms(island, message)[0] / plan.parts(_asks(message).drawn), len(plan.numbers), _unit_of(plan)
    # Accountants know no law of noise on a sample that all numbers share.
    spent = Laplace(unit=unit, epsilon=part, count=count) if whole else PrivateRelease(unit=unit, epsilon=part * count)
    kind, bound = _bound_numbers(island, message, parties)
    return _release(island, message, plan, kind, bound, count, [spent], make)


def _bound_numbers(island: Any, message: Any, parties: list[str]) -> tuple[str, Any]:
    """What a release of numbers is, and what it is for."""
    cells = read_cells(island, message)
    kind = "pilot" if _asks(message).error and message["pilot"] else "numbers"
    return kind, [parties, [list(key) for key in cells], _rates_of(island, message, len(cells))]


# ---------------------------------------------------------------- of a sample that nobody knows


def wants_shares(message: Any) -> bool:
    """Whether a statement asks for a sample under shares."""
    return bool(_asks(message).sampled_by == "shares")


def release_numbers(island: Any, message: Any, plan: NoisedPlan, make: Callable[[Callable[[], DrawnNumbers]], Any]) -> Any:  # fmt: skip
    """What a site writes down of numbers that it will share; see `_release`.

    Args:
        island: the site.
        message: the request.
        plan: its plan.
        make: makes the release, of a function that reads the numbers.
    """
    cells = read_cells(island, message)
    rates = _rates_of(island, message, len(cells))
    _laws(
        message, plan, _terms(island, message)[0] / plan.parts(_asks(message).drawn), rates, ()
    )  # refused before anything is charged
    behind: dict[str, int] = {}

    def read() -> DrawnNumbers:
        silo, keys, count = silo_of(island.data), len(plan.keys), len(plan.numbers)
        text = _units_text(silo, plan, values=_asks(message).drawn == "distinct")
        (found,) = silo.run_all([text], list(names_of(silo, plan).values()))
        places = {cell: k for k, cell in enumerate(cells)}
        rows = [row for row in found if tuple(row[:keys]) in places]
        behind[plan.released.table] = len(rows)
        at = np.array([places[tuple(row[:keys])] for row in rows], np.int64)
        made = np.zeros((len(rows), len(cells), count), np.int64)
        made[np.arange(len(rows)), at] = np.array([[int(one) for one in row[keys + 1 :]] for row in rows], np.int64).reshape(len(rows), count)  # fmt: skip
        thresholds = np.array([math.floor(rate * 2**32) for rate in rates], np.uint64)[at]
        return DrawnNumbers(thresholds, made.reshape(len(rows), -1))

    kept = _release_numbers(island, message, plan, False, ["shares"], lambda: make(read))
    write_event(island, message, plan, "how many rows of a sample there are, up to the next power of two", behind)
    return kept


def find_noised(island: Any, message: Any, plan: NoisedPlan) -> Any:
    """What `release_numbers` wrote down; ``None`` if there is none for these sites, groups and rates."""
    kind, bound = _bound_numbers(island, message, ["shares"])
    tag, held = _name_release(_digest_terms(message, plan), kind, _sites_of(message), bound)
    _, known = find_release(island, tag)
    return known["value"] if known is not None and known["bound"] == held else None


def add_noise(island: Any, message: Any, plan: NoisedPlan) -> Any:
    """This site's noise on each number of each group, alone."""
    rates = _rates_of(island, message, len(message["cells"]))
    part = _terms(island, message)[0] / plan.parts(_asks(message).drawn)
    return np.array([_add_one(island, 0, law, ()) for row in _laws(message, plan, part, rates, ()) for law in row], np.int64)  # fmt: skip


@task(discloses=promise_privacy)
async def share_noised(island: Island, peers: Peers, *, request: Any, parties: Any, me: str) -> Any:
    """The numbers of each group with this site's part of the noise, under masks that cancel in the sum over all sites."""
    message, names = request["message"], [str(name) for name in parties]
    if _asks(message).noise != "shares":
        raise PolicyError("noise in parts, and the statement asks for noise that suffices alone", where=island.name, remedy="look at the coordinator: it asks for something else than the job says")  # fmt: skip
    plan, cells = plan_here(island, message), read_cells(island, message)
    rates = _rates_of(island, message, len(cells))
    circle = await OwnerCircle.begin(island.secret, peers, names, me, digest_request(request, names))
    words = np.asarray(_noised_words(island, message, plan, cells, rates, sorted(names)), np.int64)
    if abs(words).max(initial=0) >= 1 << 59:
        raise DataError("a sum leaves the range of 2^59", where=island.name, remedy="scale the values down in the statement: SUM(x / 1e6), or use noise=own")  # fmt: skip
    return {"part": circle.mask(FIELD.of(words))}


def _rates_of(island: Any, message: Any, cells: int) -> tuple[float, ...]:
    """The rate of each group's sample.

    Raises:
        ConfigError: they are none.
    """
    rates, said = tuple(float(one) for one in message["rates"]), _asks(message)
    free = said.error or said.drawn == "stratified"  # what the coordinator chooses, and noise follows
    if len(rates) != cells or not all(0 < rate <= 1 and (free or rate == said.sample) for rate in rates):
        raise ConfigError(f"rates {rates[:3]} of {cells} groups", where=island.name, remedy="use a rate above 0 and at most 1 for each, or that of the signed job")  # fmt: skip
    return rates


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
            from .secret_sample import require_open

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
            found.append(PlanStep("each site, added up masked", "noised", f"{shown}, for {_PILOT:.0%} of epsilon"))
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
            from .secret_sample import guess_session

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
                from .secret_sample import open_sample

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
        share = 1.0 if not self.error else _PILOT if pilot else 1 - _PILOT
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
            cost = self.epsilon / parts * (_PILOT * numbers + (1 - _PILOT) * plan.hidden_keys)
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


_PILOT, _FAILS = 0.1, 0.02
"""The part of epsilon that a pilot takes; and how often a sample that it has chosen may miss the error, as a part of ``1 - confidence``."""


async def _ask_all(fed: Federation, what: Any, message: Mapping[str, Any]) -> Any:
    told = await fed.ask_all(fed.parties, what, message)
    if len(told.values) < len(fed.parties):
        raise DataError(next(iter(told.rejected.values()), "a site did not answer"), where="saqe", remedy="start all sites, and ask within their budgets")  # fmt: skip
    return told
