"""The contract of a strategy, and how one is chosen."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar

from atoll.core.errors import AtollError, CompositionError, ConfigError, PolicyError, nearest
from atoll.core.exposure import Exposure
from atoll.core.requests.disclosure import Disclosure

if TYPE_CHECKING:
    from atoll.core.federation.federation import Federation

    from ..policy import QueryPolicy
    from ..statement import Catalog, SqlStatement

__all__ = [
    "CONTACT_NBYTES",
    "HELPER",
    "ROLE_NBYTES",
    "QueryAnswer",
    "PlanStep",
    "Strategy",
    "choose_strategy",
    "choose_three",
    "known_strategies",
    "listed_strategies",
    "permits_strategy",
    "predict_seconds",
    "promise_min_count",
    "promise_one_row",
    "promise_privacy",
    "promise_sum",
    "read_strategy",
    "takes_epsilon",
    "strategy_of",
    "wants_helper",
]

_ROUND, _RATE = 0.008, 4e7
"""Seconds of a message and its reply through the coordinator, and bytes a second of all links together: what sites on one machine with sealed links have."""
CONTACT_NBYTES = 26.0
"""Bytes of a message or a reply beside its values."""
ROLE_NBYTES = 200.0
"""Bytes of what begins a role of a session."""
HELPER = "helper"
"""The third party beside two sites, where a strategy computes on shares at three."""


@dataclass(frozen=True)
class QueryAnswer:
    """What a statement gives.

    Attributes:
        columns: names of the columns.
        types: DuckDB's types of the columns.
        rows: the rows; ordered only if the statement orders them.
        withheld_groups: groups that fewer units than ``min_count`` stand behind; ``None`` where a strategy tells their number only if enough units stand behind them together, and it does not.
        withheld_values: NULLs that stand for a value that few units, or a difference of few units, would show.
        rounds: contacts with the sites; between sites, messages that follow one another, under shares as many as the protocol has for these sizes.
        groups: what the cost depends on and only the run tells: the keys of all groups that the sites were asked for, also of those that are withheld; or numbers, see the strategy's ``predict_cost``.
        comparisons: secret comparisons, each of one number or of a whole vector.
        privacy: what the answer costs of a privacy budget, and its noise; ``None`` for an answer without noise.
        approximate: how far from exact it may be, by what: ``error`` of distances, or ``intervals``, column -> the ends of each row's, at a ``confidence``; ``None`` for an exact answer.
        sizes: rows of each part of the plan that each site told, where a strategy asks for them.
        widths: words of each column of text, where a strategy asks for them.
        joins: rows of joins whose size only the run tells, as multiples of the longer table's rows.
        expected: bytes that the strategy expected for these sizes, if it knows them already.
        noted: sizes that parties opened on the way, by name; see `atoll.secure.shares.Trio.note`.
        kept: of a relation that stays shared its name, its id, how many rows it has at most, its bytes at a party, and the parties; ``None`` for an answer.
    """

    columns: tuple[str, ...]
    types: tuple[str, ...]
    rows: list[tuple[Any, ...]]
    withheld_groups: int | None = 0
    withheld_values: int = 0
    rounds: int = 0
    groups: Sequence[Sequence[str | None]] = ((),)
    comparisons: int = 0
    privacy: Mapping[str, Any] | None = None
    approximate: Mapping[str, Any] | None = None
    sizes: Mapping[str, Sequence[int]] = field(default_factory=dict)
    widths: Mapping[str, int] = field(default_factory=dict)
    joins: Sequence[float] = ()
    expected: float | None = None
    noted: Mapping[str, Sequence[int]] = field(default_factory=dict)
    kept: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class PlanStep:
    """One step of a plan, for ``EXPLAIN``.

    Attributes:
        place: where it runs.
        form: in which form its rows are: ``plain``, ``masked``.
        what: what it does.
    """

    place: str
    form: str
    what: str


@dataclass(frozen=True)
class Strategy:
    """Base class of strategies. Fields that are text or numbers are options: ``hufu:comparison=masked,radii=3``."""

    name: ClassVar[str] = ""
    shares_rows: ClassVar[bool] = False
    """Whether it shares single rows among parties. Then ``"auto"`` takes it only where no strategy without answers, and plans it only then."""
    takes_helper: ClassVar[bool] = False
    """Whether a party without rows may be its third one, beside two sites."""
    party: ClassVar[str] = ""
    """The role of a party without rows that it always needs, which is its name too; empty for none."""
    answers_with_noise: ClassVar[bool] = False
    """Whether its answers are differentially private."""
    offers: ClassVar[frozenset[str]] = frozenset()
    """What it answers beside SQL; see `SqlStatement.needs`."""
    variants: ClassVar[tuple[str, ...]] = ()
    """Options with which it answers in another way, which ``--strategy each`` tries too."""
    no_options: ClassVar[frozenset[str]] = frozenset()
    """Fields that are none of its options, such as those of a strategy that it refines."""
    takes_error: ClassVar[bool] = False
    """Whether it meets a wanted error: it has the fields ``error`` and ``confidence``. Others answer exactly, or refuse."""
    needs_terms: ClassVar[bool] = False
    """Whether it answers with terms that a person gives, an epsilon among them; ``"auto"`` leaves it out."""

    by_name: ClassVar[str] = ""
    """Why ``"auto"`` leaves it out, so that a person must name it; empty if it does not."""

    @classmethod
    def of_options(cls, text: str) -> Strategy:
        """The strategy with options, such as ``radii=3,bound=extent``.

        Raises:
            ConfigError: there is no such option, or a value is of another type.
        """
        known = cls.options()
        given: dict[str, Any] = {}
        for part in filter(None, text.split(",")):
            name, _, value = part.partition("=")
            if name not in known:
                raise ConfigError(f"strategy {cls.name}: there is no option {name!r}.{nearest(name, known)}", where="query", remedy=f"use {', '.join(known)}, as in {cls.name}:{next(iter(known))}={next(iter(known.values()))}" if known else "use none")  # fmt: skip
            try:
                given[name] = type(known[name])(value)
            except ValueError:
                raise ConfigError(f"strategy {cls.name}: {name}={value!r}", where="query", remedy=f"use a value such as {known[name]}") from None  # fmt: skip
        return cls(**given)

    @classmethod
    def options(cls) -> dict[str, Any]:
        """Its settings and their usual values: its fields that are text or numbers."""
        return {one.name: one.default for one in fields(cls) if isinstance(one.default, str | int | float) and one.name not in cls.no_options}  # fmt: skip

    def told(self) -> dict[str, Any]:
        """Its name and all of its settings, as each request of a statement says them. Sites compare them with those of the job that was signed, and do what they say."""
        return {"name": self.name, **{name: type(usual)(getattr(self, name)) for name, usual in self.options().items()}}

    def carrier(self, plan: Any) -> str:
        """The name of the strategy whose tasks carry a plan out: its own, unless it hands the plan over."""
        del plan
        return self.name

    def plan(self, statement: SqlStatement, catalog: Catalog, policy: QueryPolicy) -> Any:
        """A plan for a statement.

        Raises:
            AtollError: the strategy cannot answer it; the error says why.
        """
        raise NotImplementedError

    def for_parties(self, sites: int, *, helper: bool) -> Strategy:
        """The strategy that answers among these parties, of one that has several ways; see `require_parties`."""
        del sites, helper
        return self

    def choose_parties(self, plan: Any, names: Sequence[str]) -> list[str]:
        """Who holds the shares, where it shares rows: the first three sites, or two and a helper."""
        del plan
        return choose_three(names)

    def wants_helper(self, sites: int) -> bool:
        """Whether a simulation adds a party without rows."""
        return self.takes_helper and sites < 3

    def require_parties(self, sites: int, *, helper: bool) -> None:
        """Refuse to answer with too few parties.

        Args:
            sites: number of sites.
            helper: whether there is a party without rows beside them.

        Raises:
            CompositionError: there are too few.
        """

    def fit_plan(self, plan: Any, sites: int) -> Any:
        """The plan for so many sites, of a strategy whose cheapest plan depends on their number."""
        del sites
        return plan

    def require_named(self, plan: Any, names: Sequence[str]) -> None:
        """Refuse a plan that names a party which takes no part.

        Args:
            plan: the plan.
            names: the sites, and the helper if there is one.

        Raises:
            PolicyError: there is no such party.
        """

    def require_plan(self, plan: Any, sites: int, *, helper: bool) -> None:
        """Refuse to carry one plan out with too few parties, of a strategy whose plans need different ones; see `require_parties`."""

    def steps(self, plan: Any) -> Sequence[PlanStep]:
        """The steps of a plan, in order."""
        raise NotImplementedError

    def outline(self, plan: Any) -> Sequence[str]:
        """The steps in a line each, as a site's events have them."""
        return [f"{one.place}, {one.form}: {one.what}" for one in self.steps(plan)]

    def exposures(self, plan: Any) -> Sequence[Exposure]:
        """What a plan gives away, to whom, assuming what."""
        raise NotImplementedError

    def predict_cost(self, plan: Any, sites: int, groups: Sequence[Sequence[str | None]] = ((),)) -> float:
        """Bytes that a plan sends and receives at all sites together, by which strategies compare.

        Args:
            plan: the plan.
            sites: number of sites.
            groups: the keys of the groups; as long as nobody has named them, one.
        """
        raise NotImplementedError

    def predict_rounds(self, plan: Any, sites: int) -> int:
        """Messages that follow one another: contacts with the sites, and between sites as many as there are at most, as far as the plan tells."""
        del sites
        return sum(step.place.startswith("each site") for step in self.steps(plan))

    def predict_plan(self, plan: Any, sites: int) -> tuple[float, int]:
        """Bytes and rounds of a plan, for ``EXPLAIN``; see `predict_cost` and `predict_rounds`."""
        return self.predict_cost(plan, sites), self.predict_rounds(plan, sites)

    def predict_answer(self, plan: Any, sites: int, answer: QueryAnswer) -> float:
        """The same, once the sites have told how many groups or rows there are.

        Args:
            plan: the plan.
            sites: number of sites.
            answer: what the sites told stands in it.
        """
        return self.predict_cost(plan, sites, answer.groups)

    async def run(self, fed: Federation, plan: Any, message: Mapping[str, Any]) -> QueryAnswer:
        """Carry a plan out.

        Args:
            fed: the sites.
            plan: the plan.
            message: what each site needs to make the same plan of its own; see `atoll.query.job`.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class Choice:
    """A strategy with its plan, and why others lost.

    Attributes:
        strategy: the strategy.
        plan: its plan.
        rejected: name of another strategy -> why.
    """

    strategy: Strategy
    plan: Any
    rejected: Mapping[str, str] = field(default_factory=dict)


def choose_three(sites: Sequence[str]) -> list[str]:
    """The three parties: the first three sites, or two and a helper."""
    return list(sites[:3]) if len(sites) > 2 else [*sites, HELPER]


def promise_min_count(message: Any) -> Disclosure:
    """What a site's task tells rests on as many units as the strictest policy asks for."""
    return Disclosure(int(message["policy"]["min_count"]))


def promise_sum(message: Any) -> Disclosure:
    """The same of what leaves in a masked sum alone."""
    return Disclosure(int(message["policy"]["min_count"]), summed=True)


def promise_one_row(message: Any) -> Disclosure:
    """The plan refuses a ``min_count`` above 1, so nothing is promised."""
    del message
    return Disclosure(1)


def promise_privacy(message: Any) -> Disclosure:
    """What a site's task tells has noise, whose cost its budget bears."""
    del message
    return Disclosure(private=True)


def predict_seconds(nbytes: float, rounds: int) -> float:
    """Seconds on the links: 8 ms for each round, and 40 MB/s. Links of other speed differ, and what sites compute comes on top."""
    return rounds * _ROUND + nbytes / _RATE


def known_strategies() -> tuple[str, ...]:
    """The words that name a strategy: ``auto``, and the strategies."""
    return ("auto", *_known())


def listed_strategies() -> tuple[str, ...]:
    """What ``--strategy each`` tries: all strategies, and those that have several ways in each of them."""
    found = _known()
    return (*found, *(f"{name}:{one}" for name, kind in found.items() for one in vars(kind).get("variants", ())))


def strategy_of(name: str) -> type[Strategy] | None:
    """The strategy of a name, with options or without; ``None`` for ``"auto"``, and for a name that no strategy has. Others are not loaded: all of them take half a second."""
    name = name.partition(":")[0]
    place = f"{__package__}.{name}"
    if not name.isidentifier() or importlib.util.find_spec(place) is None:
        return None
    found = vars(importlib.import_module(place)).values()
    return next((one for one in found if isinstance(one, type) and issubclass(one, Strategy) and one.name == name), None)  # fmt: skip


def wants_helper(name: str, sites: int, *, always: bool = False) -> bool:
    """Whether a simulation adds a party without rows for a strategy; by its name, with options or without.

    Args:
        name: the name.
        sites: number of sites.
        always: ask only of strategies whose every plan shares rows.
    """
    kind, _, options = name.partition(":")
    known = strategy_of(kind)
    return known is not None and (known.shares_rows or not always) and known.of_options(options).wants_helper(sites)


def takes_epsilon(name: str) -> bool:
    """Whether a strategy answers with an epsilon that a person gives; by its name, with options or without."""
    known = strategy_of(name)
    return known is not None and known.needs_terms


def read_strategy(message: Mapping[str, Any]) -> Strategy:
    """The strategy that a request names, with its settings; see `Strategy.told`.

    Raises:
        PolicyError: there is no such strategy, or its settings are not all there.
    """
    given = message.get("strategy")
    kind = strategy_of(str(given.get("name"))) if isinstance(given, Mapping) and ":" not in str(given.get("name")) else None  # fmt: skip
    said = {} if kind is None or not isinstance(given, Mapping) else {str(name): value for name, value in given.items() if name != "name"}  # fmt: skip
    usual = {} if kind is None else kind.options()
    if kind is None or {name: type(value) for name, value in said.items()} != {name: type(value) for name, value in usual.items()}:  # fmt: skip
        raise PolicyError(f"the request does not say which strategy asks: {str(given)[:200]}", where="query", remedy="look at the coordinator: it does not follow the protocol")  # fmt: skip
    return kind(**said)


def permits_strategy(asked: tuple[str, Mapping[str, Any] | None], found: Strategy, statement: SqlStatement, catalog: Catalog, policy: QueryPolicy, wanted: Mapping[str, Any]) -> bool:  # fmt: skip
    """Whether a strategy with its settings may answer a statement that asks for one: ``"auto"`` takes none with terms of their own, and shares no rows where another strategy can do without.

    Args:
        asked: a name, with options after a colon, or ``"auto"``; and settings beside the options, as `choose_strategy` takes them.
        found: the strategy.
        statement: the statement.
        catalog: the tables.
        policy: what the sites allow.
        wanted: ``error`` and ``confidence``, for the strategies that take them.
    """
    name, terms = asked
    name, _, options = name.partition(":")
    if name != "auto":
        kind = strategy_of(name)
        return kind is not None and found.told() == replace(kind.of_options(options), **(terms or {}), **(wanted if kind.takes_error else {})).told()  # fmt: skip
    if found.needs_terms or found.told() != replace(type(found)(), **(wanted if found.takes_error else {})).told():
        return False
    return not found.shares_rows or not any(_can_answer(kind(), statement, catalog, policy) for kind in _known().values() if not (kind.shares_rows or kind.needs_terms))  # fmt: skip


def _can_answer(strategy: Strategy, statement: SqlStatement, catalog: Catalog, policy: QueryPolicy) -> bool:
    """Whether a strategy has a plan for a statement, with as many sites as it may need."""
    try:
        _require_offers(strategy, statement)
        strategy.plan(statement, catalog, policy)
    except (PolicyError, CompositionError):
        return False
    return True


def _known() -> dict[str, type[Strategy]]:
    from atoll.core.rooms import part_kinds

    from .. import strategies

    fits = part_kinds()["query strategy"].fits
    found = [getattr(strategies, name) for name in dir(strategies)]
    return {one.name: one for one in found if fits(one)}


def choose_strategy(
    name: str,
    statement: SqlStatement,
    catalog: Catalog,
    policy: QueryPolicy,
    names: Sequence[str],
    terms: Mapping[str, Any] | None = None,
    *,
    wanted: Mapping[str, Any] | None = None,
    helper: bool = False,
) -> Choice:
    """The strategy of a name, or for ``"auto"`` the cheapest that can answer: if one can that shares no rows, the cheapest of those.

    Args:
        name: a name, with options after a colon, or ``"auto"``.
        statement: the statement.
        catalog: the tables.
        policy: what all sites allow.
        names: the sites.
        terms: settings of the one strategy that is named, beside its options; only noise has some.
        wanted: ``error`` and ``confidence``, for the strategies that take them.
        helper: whether there is a party without rows beside the sites.

    Raises:
        ConfigError: there is no such strategy.
        PolicyError: no strategy is allowed to answer.
        CompositionError: no strategy can answer.
    """
    sites = len(names)
    name, _, options = name.partition(":")
    asked = strategy_of(name)
    if (name != "auto" and asked is None) or (name == "auto" and options):
        known = _known()
        raise ConfigError(f"strategy={name!r}.{nearest(name, known)}", where="query", remedy=f"use auto, or {', '.join(known)}")  # fmt: skip
    plans: dict[str, tuple[Strategy, Any]] = {}
    refused: dict[str, AtollError] = {}
    rejected: dict[str, str] = {}
    # One that refines another comes after it.
    for one in sorted(_known().values(), key=lambda kind: (kind.shares_rows, len(kind.__mro__))) if asked is None else [asked]:  # fmt: skip
        strategy = replace(
            one.of_options(options), **(terms or {}), **((wanted or {}) if one.takes_error else {})
        ).for_parties(sites, helper=helper)
        if name == "auto" and one.needs_terms:
            rejected[one.name] = "it adds noise, and no epsilon is given"
            continue
        if name == "auto" and one.by_name:
            rejected[one.name] = one.by_name
            continue
        spared = [other for other, (found, _) in plans.items() if not found.shares_rows]
        if spared and one.shares_rows:
            rejected[one.name] = f"it shares rows among parties, and {' and '.join(spared)} can do without"
            continue
        try:
            _require_offers(strategy, statement)
            strategy.require_parties(sites, helper=helper)
            plan = strategy.fit_plan(strategy.plan(statement, catalog, policy), sites)
            strategy.require_named(plan, [*names, *([HELPER] if helper and one.shares_rows and sites < 3 else [])])  # fmt: skip
            strategy.require_plan(plan, sites, helper=helper)
        except (PolicyError, CompositionError) as error:
            refused[strategy.name] = error
        else:
            same = next((other for other, (_, made) in plans.items() if made == plan), None)
            if same is not None:
                rejected[one.name] = f"its plan is that of {same}"
                continue
            plans[strategy.name] = strategy, plan
    if not plans:
        raise _no_strategy(refused)
    # The cost of a plan under shares takes a rehearsal: it is not asked for where nobody competes.
    costs = {other: found.predict_cost(made, sites) for other, (found, made) in plans.items()} if len(plans) > 1 else dict.fromkeys(plans, 0.0)  # fmt: skip
    strategy, plan = plans[min(costs, key=lambda other: costs[other])]
    rejected |= {other: str(error) for other, error in refused.items()}
    rejected |= {other: f"it sends about {cost:,.0f} bytes, and {strategy.name} {costs[strategy.name]:,.0f}" for other, cost in costs.items() if other != strategy.name}  # fmt: skip
    return Choice(strategy, plan, rejected)


def _require_offers(strategy: Strategy, statement: SqlStatement) -> None:
    """Refuse a statement that needs more than SQL, which the strategy would take for the condition that stands for it."""
    missing = sorted(statement.needs - strategy.offers)
    if missing:
        able = [name for name, one in _known().items() if statement.needs <= one.offers]
        raise CompositionError(f"it asks for a {missing[0]}", where=strategy.name, remedy=f"use the strategy {' or '.join(able)}")  # fmt: skip


def _no_strategy(refused: Mapping[str, AtollError]) -> AtollError:
    """Why no strategy answers: the reason of the only one, or those of all."""
    if len(refused) == 1:
        return next(iter(refused.values()))
    kind = PolicyError if any(isinstance(one, PolicyError) for one in refused.values()) else CompositionError
    reasons, remedies, lines = dict[str, list[str]](), dict[str, list[str]](), dict[str, None]()
    for name, one in refused.items():
        what, line, place = one.what.partition("\nLINE ")
        reasons.setdefault(what, []).append(name)
        if line:
            lines[line + place] = None
        if one.remedy:
            remedies.setdefault(one.remedy, []).append(name)
    told, ways = ([f"{', '.join(names)}: {text}" for text, names in found.items()] for found in (reasons, remedies))
    return kind("; ".join(told) + "".join(lines), where="query", remedy="; or ".join(ways))
