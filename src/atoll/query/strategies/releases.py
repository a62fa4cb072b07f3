"""What sites release with noise: once for a statement and its terms, charged and written down before it leaves, and read from the record ever after. See `atoll.query.strategies.saqe`."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from atoll.core.errors import ConfigError, PolicyError
from atoll.core.event import Covered, Event, Laplace
from atoll.core.sealing.record import hash_parts
from atoll.privacy import PrivateRelease
from atoll.secure.noise import draw_laplace_part
from atoll.statistics.answered import keep_record, open_record
from atoll.statistics.disclosure import discrete_laplace

from ..databases.silo import quote, quote_text
from ..events import NOISED, write_event
from ..local import names_of, plan_of, prefix_of, silo_of
from ..noised_plan import (
    NoisedPlan,
    SharedNoise,
    make_noised_plan,
    make_sampled_plan,
    noise_rates,
    shared_noise,
)
from ..sampling import draw_condition, rate_digits
from .strategy import read_strategy

__all__ = [
    "PILOT",
    "RECORD",
    "DrawnNumbers",
    "add_noise",
    "asks_of",
    "count_exactly",
    "digest_terms",
    "find_noised",
    "find_release",
    "list_answers",
    "part_of",
    "noise_laws",
    "noise_words",
    "plan_here",
    "rates_of",
    "read_cells",
    "release_answer",
    "release_numbers",
    "release_once",
    "require_budget",
    "sites_of",
    "terms_of",
    "unit_of",
    "wants_shares",
]

RECORD = NOISED
"""Name of the record of answers with noise, among the results that stay at a site."""
PILOT = 0.1
"""The part of epsilon that a pilot takes."""
_NOTHING: Mapping[str, Any] = {}
_TRIES = 50
"""How often a release looks at the record anew: other jobs of the same site write to it too."""


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
    sampler = asks_of(message).drawn
    plan: NoisedPlan = plan_of(silo_of(island.data), message, make_sampled_plan if sampler else make_noised_plan, "saqe")  # fmt: skip
    if sampler:
        plan.require_sampler(sampler)
    return plan


def asks_of(message: Any) -> Any:
    """The strategy with its settings, as the signed job has them."""
    return read_strategy(message)


def count_exactly(island: Any, plan: NoisedPlan, draw: _Draw | None = None) -> dict[tuple[Any, ...], tuple[int, ...]]:
    """Key -> units and numbers."""
    silo = silo_of(island.data)
    (found,) = silo.run_all([_bounded_text(silo, plan, draw)], list(names_of(silo, plan).values()))
    keys = len(plan.keys)
    return {tuple(row[:keys]): tuple(int(one) for one in row[keys:]) for row in found}


def release_answer(island: Any, message: Any, plan: NoisedPlan, kind: str, bound: Any, parts: int, spent: Sequence[Event], make: Callable[[], Any]) -> Any:  # fmt: skip
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
    _, _, analyst = terms_of(island, message)
    failing = sum(event.delta for event in spent if isinstance(event, PrivateRelease))
    charged = {"epsilon": part_of(island, message, plan) * parts, "delta": failing}
    terms, sites = digest_terms(message, plan), sites_of(message)
    tag, held = _name_release(terms, kind, sites, bound)
    about = {"kind": kind, "terms": terms, "sites": sites}
    return release_once(island, tag, plan.statement.text, analyst, charged, spent, make, held, about)


def _name_release(terms: str, kind: str, sites: Sequence[str], bound: Any) -> tuple[str, str]:
    """The tag of a release, and what it is released for."""
    return hash_parts("noised answer", terms, kind).hex(), hash_parts("released for", json.dumps([sites, bound])).hex()


def sites_of(message: Any) -> list[str]:
    """The sites whose answer it is, as the request names them."""
    return sorted(str(name) for name in message["sites"])


def digest_terms(message: Any, plan: NoisedPlan) -> str:
    """What an answer with noise belongs to: the statement, the plan, and all settings that change the noise."""
    said = asks_of(message).told()
    if not said["error"]:  # then it is a matter of intervals alone
        del said["confidence"]
    if not plan.hidden_keys:
        del said["delta"]
    if said["sampled_by"] == "owners":  # as records of before say it
        del said["sampled_by"]
    return hash_parts("terms", json.dumps([plan.statement.sql, repr(plan.numbers), plan.bounds, said], sort_keys=True)).hex()  # fmt: skip


def find_release(island: Any, tag: str) -> tuple[list[Any], Any]:
    """The record of a site's releases with noise, and of it the one of a tag; ``None`` if there is none."""
    answers = list_answers(island)
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
    value, tries = None, 0
    while True:
        answers, known = find_release(island, tag)
        if known is not None:
            return _read_release(island, known, tag, bound)
        require_budget(island, analyst, charged)
        if not tries:
            value = make()
            for event in events:
                island.spend(event)
        entry = {"tag": tag, "analyst": analyst, "text": text, "bound": bound, "value": value, **about, **charged}
        try:
            keep_record(island, RECORD, {"answers": [*answers, entry]}, begins=not answers)
        except PolicyError:  # another job has written meanwhile: it may have spent what is left, or made this release
            tries += 1
            if tries == _TRIES:
                raise
        else:
            silo_of(island.data).charged = {**charged, "analyst": analyst, "release": tag}
            return value


def _read_release(island: Any, known: Mapping[str, Any], tag: str, bound: str) -> Any:
    """A release that was made before, which costs nothing.

    Raises:
        PolicyError: it was released for something else.
    """
    if known["bound"] != bound:
        raise PolicyError(f"the {known.get('kind', 'noise')} of this statement left for other groups, rates or sites, and leaves once", where=island.name, remedy="name another edition, strategy=saqe:edition=monday, which is charged; if neither the sites nor Atoll's version has changed, look at the coordinator")  # fmt: skip
    silo_of(island.data).charged = {"epsilon": 0.0, "release": tag}
    island.spend(Covered(what=f"the {known.get('kind', 'noise')} of an answer that was counted before"))
    return known["value"]


def terms_of(island: Any, message: Any) -> tuple[float, float, str]:
    """Epsilon, delta and the analyst of a request."""
    said = asks_of(message)
    epsilon, delta, analyst = said.epsilon, said.delta, said.analyst
    if said.error and "pilot" in message:
        epsilon *= PILOT if message["pilot"] else 1 - PILOT
    if not (math.isfinite(epsilon) and epsilon > 0 and 0 < delta < 1):
        raise ConfigError(f"epsilon={epsilon}, delta={delta}", where=island.name, remedy="use an epsilon above 0, and a delta in (0, 1)")  # fmt: skip
    return epsilon, delta, analyst


def part_of(island: Any, message: Any, plan: NoisedPlan) -> float:
    """Epsilon of one part of an answer."""
    return terms_of(island, message)[0] / plan.parts(asks_of(message).drawn)


def list_answers(island: Any) -> list[Any]:
    """What the site has answered with noise."""
    found: list[Any] | None = open_record(
        island, RECORD, lambda record: [{**one, "tag": one["tag"]} for one in record["answers"]]
    )
    return found or []


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
    answers = list_answers(island)
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


def unit_of(plan: NoisedPlan) -> str:
    """What an answer hides, as a ledger names it: a user, or an example."""
    return "user" if plan.released.unit else "example"


def read_cells(island: Any, message: Any) -> list[tuple[Any, ...]]:
    """The groups that a request names.

    Raises:
        PolicyError: one is named twice.
    """
    cells = [tuple(key) for key in message["cells"]]
    if len(set(cells)) < len(cells):
        raise PolicyError("a group is asked twice in one request, and would get noise twice", where=island.name, remedy="look at the coordinator: it does not follow the protocol")  # fmt: skip
    return cells


def noise_laws(
    message: Any, plan: NoisedPlan, part: float, rates: Sequence[float], parties: Sequence[str]
) -> list[Any]:
    """The noise on each number of each group."""
    sampler = asks_of(message).drawn
    return [noise_rates(plan, part, rate, sampler) if not parties else shared_noise(plan, part, rate, sampler) for rate in rates]  # fmt: skip


def _add_one(island: Any, exact: int, law: Any, parties: Sequence[str]) -> int:
    """A number with this site's noise, or with its part of the noise of several parties."""
    if not isinstance(law, SharedNoise):
        return exact + int(discrete_laplace(law, island.secret, 1)[0])
    rounded = (2 * exact + law.coarse) // (2 * law.coarse)
    return rounded + int(draw_laplace_part(law.scale, len(parties), lambda count: island.secret.uint64((count,)), 1)[0])


def noise_words(island: Any, message: Any, plan: NoisedPlan, cells: Sequence[tuple[Any, ...]], rates: tuple[float, ...], parties: Sequence[str]) -> Any:  # fmt: skip
    """The numbers of each group with this site's noise, or with its part of the noise of several parties.

    A part is for the sum of these parties alone. Else sums of several choices of parties would differ by one site's numbers, with its part of the noise in place of the whole.
    """
    sampler, part = asks_of(message).drawn, part_of(island, message, plan)
    whole = all(rate == 1 for rate in rates)
    laws = noise_laws(message, plan, part, rates, parties)  # refused before anything is charged
    behind: dict[str, int] = {}

    def add() -> Any:
        draw = (
            None
            if whole
            else _Draw(island.secret.bytes(32), tuple(cells), rates, len(plan.numbers) * (sampler == "distinct"))
        )
        found = count_exactly(island, plan, draw)
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
    """The release of a statement's numbers; see `release_answer`."""
    part, count, unit = part_of(island, message, plan), len(plan.numbers), unit_of(plan)
    # Accountants know no law of noise on a sample that all numbers share.
    spent = Laplace(unit=unit, epsilon=part, count=count) if whole else PrivateRelease(unit=unit, epsilon=part * count)
    kind, bound = _bound_numbers(island, message, parties)
    return release_answer(island, message, plan, kind, bound, count, [spent], make)


def _bound_numbers(island: Any, message: Any, parties: list[str]) -> tuple[str, Any]:
    """What a release of numbers is, and what it is for."""
    cells = read_cells(island, message)
    kind = "pilot" if asks_of(message).error and message["pilot"] else "numbers"
    return kind, [parties, [list(key) for key in cells], rates_of(island, message, len(cells))]


def wants_shares(message: Any) -> bool:
    """Whether a statement asks for a sample under shares."""
    return bool(asks_of(message).sampled_by == "shares")


def release_numbers(island: Any, message: Any, plan: NoisedPlan, make: Callable[[Callable[[], DrawnNumbers]], Any]) -> Any:  # fmt: skip
    """What a site writes down of numbers that it will share; see `release_answer`.

    Args:
        island: the site.
        message: the request.
        plan: its plan.
        make: makes the release, of a function that reads the numbers.
    """
    cells = read_cells(island, message)
    rates = rates_of(island, message, len(cells))
    noise_laws(message, plan, part_of(island, message, plan), rates, ())  # refused before anything is charged
    behind: dict[str, int] = {}

    def read() -> DrawnNumbers:
        silo, keys, count = silo_of(island.data), len(plan.keys), len(plan.numbers)
        text = _units_text(silo, plan, values=asks_of(message).drawn == "distinct")
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
    tag, held = _name_release(digest_terms(message, plan), kind, sites_of(message), bound)
    _, known = find_release(island, tag)
    return known["value"] if known is not None and known["bound"] == held else None


def add_noise(island: Any, message: Any, plan: NoisedPlan) -> Any:
    """This site's noise on each number of each group, alone."""
    rates = rates_of(island, message, len(message["cells"]))
    part = part_of(island, message, plan)
    return np.array([_add_one(island, 0, law, ()) for row in noise_laws(message, plan, part, rates, ()) for law in row], np.int64)  # fmt: skip


def rates_of(island: Any, message: Any, cells: int) -> tuple[float, ...]:
    """The rate of each group's sample.

    Raises:
        ConfigError: they are none.
    """
    rates, said = tuple(float(one) for one in message["rates"]), asks_of(message)
    free = said.error or said.drawn == "stratified"  # what the coordinator chooses, and noise follows
    if len(rates) != cells or not all(0 < rate <= 1 and (free or rate == said.sample) for rate in rates):
        raise ConfigError(f"rates {rates[:3]} of {cells} groups", where=island.name, remedy="use a rate above 0 and at most 1 for each, or that of the signed job")  # fmt: skip
    return rates
