"""Relations that stay shared between statements: the parties join rows of all sites once, keep their shares of what they made, and answer later statements from it.

**Meaning.** A statement that reads a kept relation *is* the statement with the relation written out, ``WITH stays AS MATERIALIZED (SELECT …) SELECT …`` (`atoll.query.kept_relations` writes it). This text is signed, planned by each site itself,
and checked: levels, releases, ``min_count``, units. Only the execution differs: the parties take the shares that they have, and no row is shared or joined anew. The rows are those of the moment when it was kept.

**What a party keeps**, as named results that stay with it (`Island.leave`), under an id that the analyst draws and signs:

* each of the three parties its two parts of three of every column, and of which rows count. Shares of two statements are of the same rows in the same order, which no party knows: whatever is opened is shuffled or sorted obliviously first;
* every party a *state*: digests of the relation's query, of its tables and of the policy, the owners in their order, and who signed; a site also how many rows it shared, and the largest and least number of each column, so that it
  can still refuse a statement whose numbers might leave 64 bits.

A party that has no state, or one with other digests, other owners or another analyst, refuses before a share is used. A number that the parties drew together when they made the relation, and digests of the parts that two of them have in common,
are compared before each statement: so ids of two relations, a relation that was made twice, and a part that one party altered are found. (Two parties that alter a common part together are not: at most one is curious, and none departs from the protocol.)

**min_count.** The written-out statement is planned by each site as if nothing were kept, and the site's record of answers is that plan's, over the site's rows of now. So its rows must be those of then: a site whose tables have changed refuses.
Where single rows may show (``min_count: 1``) there is no such record, and rows may change.

A relation is kept by three parties, unsliced. It ends with ``DROP TABLE``, with the connection that made it, and after some days (``limits: {kept_days: 7}``).
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, cast

import numpy as np

from atoll.core import message as M
from atoll.core.errors import CompositionError, ConfigError, DataError, LetterError, PolicyError
from atoll.core.exposure import Exposure
from atoll.core.requests.task import task
from atoll.secure.shares import SharedArray, SharedWords, Trio
from atoll.secure.tables import SharedTable

from ..events import append_event
from ..local import plan_of, silo_of
from ..secure.costs import measure_extents, relayed_nbytes
from ..secure.kept_plan import KeptTables, define_relation, held_relations, kept_planner, tables_below, to_kept
from ..secure.limits.column_bounds import largest_number
from ..secure.operators import KeptRows, SecurePlan, list_leaves, prune_held
from ..secure.plan import make_row_plan
from ..statement import parse_statement
from .shared_rows import DIGEST, MOST_ROWS, LocalRows, gather_leaves, hand_out, promised_of, require_size, send_leaves
from .smcql import Smcql, shown_operators
from .strategy import Choice, PlanStep, QueryAnswer, known_strategies, promise_min_count

if TYPE_CHECKING:
    from atoll.core.execution.session import Peers
    from atoll.core.federation.federation import Federation
    from atoll.core.requests.island import Island

    from ..policy import QueryPolicy
    from ..statement import Catalog, SqlStatement

__all__ = [
    "KEPT_AS",
    "KEPT_ID",
    "STATE",
    "KeptSmcql",
    "KeptTerms",
    "choose_kept",
    "drop_relations",
    "require_kept_strategy",
]

KEPT_AS = "smcql:mode=shares,slices=none"
"""The strategy that reads and makes kept relations."""
STATE = "query-kept"
"""Name of a party's list of the relations that it keeps; the state of one has its id behind it, and its rows have ``-rows`` behind that."""
KEPT_ID = re.compile("[0-9a-f]{32}")
"""What an id of a relation is."""
_TRIES = 50
_ANEW = "create it anew: DROP TABLE, then CREATE TEMP TABLE"


# ---------------------------------------------------------------- what a request says


@dataclass(frozen=True)
class KeptTerms:
    """What a request says of kept relations.

    Attributes:
        ids: relation -> the id under which parties keep it.
        creates: the relation that is made; empty for none.
        owners: the sites, in order.
    """

    ids: Mapping[str, str]
    creates: str
    owners: tuple[str, ...]

    @classmethod
    def read(cls, message: Mapping[str, Any]) -> KeptTerms:
        """The terms of a request.

        Raises:
            PolicyError: it says none.
        """
        given = message.get("kept")
        if not isinstance(given, Mapping) or not all(KEPT_ID.fullmatch(str(one)) for one in given["ids"].values()):
            raise PolicyError("the request does not say which relations are kept", where="smcql", remedy="look at the coordinator: it does not follow the protocol")  # fmt: skip
        return cls({str(name): str(one) for name, one in given["ids"].items()}, str(given["creates"]), tuple(map(str, given["owners"])))  # fmt: skip

    def told(self) -> dict[str, Any]:
        """As a request says them."""
        return {"ids": dict(self.ids), "creates": self.creates, "owners": list(self.owners)}

    @property
    def held(self) -> tuple[str, ...]:
        """The relations that are read."""
        return tuple(sorted(name for name in self.ids if name != self.creates))


def _planner(message: Mapping[str, Any]) -> Any:
    terms = KeptTerms.read(message)
    return kept_planner(terms.held, terms.creates)


# ---------------------------------------------------------------- what a party keeps


def _digest(value: Any) -> str:
    return hashlib.blake2b(json.dumps(value, sort_keys=True).encode(), digest_size=DIGEST).hexdigest()


def _about(plan: SecurePlan, op: KeptRows, terms: KeptTerms) -> dict[str, Any]:
    """What a relation is bound to, as far as a plan and a request tell."""
    tables = tables_below(plan, op)
    columns = {table: dict(plan.catalog.tables[table]) for table in tables}
    allowed = plan.policy.told({table: [name.lower() for name in found] for table, found in columns.items()})
    return {"statement": define_relation(plan.statement.sql, op.relation), "tables": _digest(columns), "policy": _digest(allowed), "owners": list(terms.owners)}  # fmt: skip


_ODD = {
    "statement": "what the statement says that it is",
    "tables": "the columns of its tables",
    "policy": "the policies of the sites",
    "owners": "the sites that take part, or their order",
}


def _read_state(island: Any, number: str) -> dict[str, Any]:
    """What a party has left of a relation; empty if there is nothing."""
    try:
        found: dict[str, Any] = island.left(f"{STATE}-{number}")
    except ConfigError:
        return {}
    return {} if found.get("dropped") else found


def find_state(island: Any, number: str) -> dict[str, Any] | None:
    """The state of a relation at a party; ``None`` if it keeps none of the id, or has kept it for too long."""
    found = _read_state(island, number)
    return None if not found or time.time() > float(found["until"]) else found


def _room_of(island: Any, message: Mapping[str, Any]) -> tuple[int, float]:
    """Bytes of relations that a party keeps, and for how many days: by its own policy, and at a helper by the strictest of the sites."""
    if island.data is not None:
        policy = silo_of(island.data).policy
        return policy.kept, policy.kept_days
    nbytes, days = message["policy"].get("kept", (0, 0.0))
    return int(nbytes), float(days)


def _forget(island: Any, number: str) -> None:
    """Leave nothing of a relation but that it was here."""
    island.leave(f"{STATE}-{number}-rows", {})
    island.leave(f"{STATE}-{number}", {"dropped": True})


def _asker(island: Any) -> str:
    """Who has signed the job; empty where statements are the site's own, and at a helper."""
    return "" if island.data is None else str(silo_of(island.data).asker)


def require_state(island: Any, plan: SecurePlan, op: KeptRows, terms: KeptTerms) -> dict[str, Any]:
    """The state of a relation that a statement reads.

    Raises:
        PolicyError: the party keeps no such relation, or it is bound to something else.
    """
    state = find_state(island, terms.ids[op.relation])
    if state is None:
        raise PolicyError(f"{island.name} no longer keeps {op.relation}", where=island.name, remedy=_ANEW)
    for name, now in _about(plan, op, terms).items():
        if (list(state[name]) if name == "owners" else state[name]) != now:
            raise PolicyError(f"{op.relation} was kept, and since then {_ODD[name]} differ", where=island.name, remedy=_ANEW)  # fmt: skip
    if state["asker"] != _asker(island):
        raise PolicyError(f"{op.relation} was kept for another analyst", where=island.name, remedy="let the one who kept it ask, or create it anew")  # fmt: skip
    return state


def require_room(island: Any, relation: str, nbytes: int, limit: int) -> None:
    """Refuse to keep more than a party's limit; what has been kept for too long is forgotten.

    Args:
        island: the party.
        relation: the relation.
        nbytes: its size here.
        limit: most bytes of all relations.

    Raises:
        PolicyError: it does not fit.
    """
    held = 0
    for number in _list(island):
        state = _read_state(island, number)
        if state and find_state(island, number) is None:
            _forget(island, number)
        else:
            held += int(state.get("nbytes", 0))
    if held + nbytes > limit:
        raise PolicyError(f"{relation} takes {nbytes:,} bytes here, and {limit - held:,} of the limit of {limit:,} are free", where=island.name, remedy="drop relations that are no longer needed, keep fewer rows or columns, or let the site raise limits: {kept: 1GiB}")  # fmt: skip


def _list(island: Any) -> list[str]:
    try:
        return [str(one) for one in island.left(STATE)["ids"]]
    except ConfigError:
        return []


def _list_anew(island: Any, number: str) -> None:
    """Add an id to the party's list, which only grows; another job may write to it meanwhile."""
    for tries in range(_TRIES):
        try:
            island.leave(STATE, {"ids": [*_list(island), number]}, at_once=True)
        except PolicyError:
            if tries == _TRIES - 1:
                raise
        else:
            return


def _as_tree(table: SharedTable) -> dict[str, Any]:
    """A party's share of a table as a message."""
    bits = {name: found or 0 for name, found in table.layout.items()}
    return {"bits": bits, "columns": {name: list(one.parts) for name, one in table.columns.items()}, "valid": list(table.valid.parts)}  # fmt: skip


def _from_tree(trio: Trio, found: Mapping[str, Any]) -> SharedTable:
    columns: dict[str, Any] = {}
    for name, (one, other) in found["columns"].items():
        bits, parts = int(found["bits"][name]), (np.asarray(one), np.asarray(other))
        columns[str(name)] = SharedWords(trio, parts, bits) if bits else SharedArray(trio.numbers, parts)
    one, other = found["valid"]
    return SharedTable(columns, SharedWords(trio, (np.asarray(one), np.asarray(other)), 1))


def _digest_part(tables: Mapping[str, SharedTable], place: int) -> str:
    """A digest of one of a party's two parts of relations: whoever else has the part makes the same."""
    found = hashlib.blake2b(digest_size=DIGEST)
    for relation in sorted(tables):
        table = tables[relation]
        for name in sorted(table.columns):
            found.update(f"{relation} {name}".encode() + np.ascontiguousarray(table.columns[name].parts[place]).tobytes())  # fmt: skip
        found.update(np.ascontiguousarray(table.valid.parts[place]).tobytes())
    return found.hexdigest()


async def compare_parts(trio: Trio, tables: Mapping[str, SharedTable], tags: str) -> None:
    """Let each two of the three parties compare the part of kept relations that both have, and when they were made.

    A digest goes to the other holder of the part alone: the third one, who has the other two parts, could try values with it.

    Raises:
        DataError: they differ.
    """
    numbers: Any = trio.numbers
    await numbers.peers.send(numbers.before, [tags, _digest_part(tables, 0)])
    await numbers.peers.send(numbers.after, [tags, _digest_part(tables, 1)])
    for other, place in ((numbers.before, 0), (numbers.after, 1)):
        told = await numbers.peers.recv(other)
        if list(map(str, told)) != [tags, _digest_part(tables, place)]:
            raise DataError(f"{other} and {numbers.me} keep shares of {', '.join(sorted(tables))} that do not belong together", where="smcql", remedy=f"{_ANEW}; if it happens again, look at {other} and {numbers.me}: one may have altered its share")  # fmt: skip


# ---------------------------------------------------------------- at a site


class KeptLocalRows(LocalRows):
    """The rows at one site of a statement over kept relations: those of leaves that are shared anew, and what the site knows of the others.

    Args:
        island: the site.
        message: the request.
        plan: its plan.

    Attributes:
        states: relation -> its state here.
        ends: place of a leaf -> the least and the largest number of each column; ``None`` of text.

    Raises:
        PolicyError: a relation is not kept here as the statement says, or rows have changed that few of must not show.
    """

    def __init__(self, island: Any, message: Mapping[str, Any], plan: SecurePlan) -> None:
        self.terms, held = KeptTerms.read(message), held_relations(plan)
        self.states = {op.relation: require_state(island, plan, op, self.terms) for op in held}
        strict = plan.policy.min_count > 1
        watched = [table for table in plan.catalog.tables if table in tables_below(plan, plan.root)] if strict and self.terms.creates else []  # fmt: skip
        super().__init__(island, message, plan, watched=[table for table in watched if table in plan.sources])
        self._written = self._write_out(island, message) if strict and not self.terms.creates else None
        self.ends = {place: self._ends_of(place) for place, leaf in enumerate(self.leaves) if leaf is not None}
        for op in held:
            state = self.states[op.relation]
            for place, rows, ends in zip(list_leaves(op), state["sizes"], state["ends"], strict=True):
                self.sizes[place] = int(rows)
                self.ends[place] = [None if one is None else (int(one[0]), int(one[1])) for one in ends]
            self.contents |= {str(table): str(one) for table, one in state["contents"].items()}
            self.plain |= {(str(table), str(column)): int(most) for table, column, most in state["plain"]}

    def _write_out(self, island: Any, message: Mapping[str, Any]) -> LocalRows:
        """The rows of the written-out statement as if nothing were kept, for the record."""
        plan = make_row_plan(self.plan.statement, self.plan.catalog, self.plan.policy)
        known = {relation: {str(table): str(one) for table, one in state["contents"].items()} for relation, state in self.states.items()}  # fmt: skip
        rows = LocalRows(island, message, plan, watched=[table for table in plan.catalog.tables if any(table in found for found in known.values())])  # fmt: skip
        for relation, found in known.items():
            odd = next((table for table, one in found.items() if rows.contents[table] != one), None)
            if odd is not None:
                raise PolicyError(f"rows of {odd} have changed since {relation} was kept, and min_count is {plan.policy.min_count}: the record of answers is about rows of one moment", where=island.name, remedy=_ANEW)  # fmt: skip
        return rows

    def _ends_of(self, place: int) -> list[tuple[int, int] | None]:
        made: list[tuple[int, int] | None] = []
        for k, column in enumerate(self.plan.leaves[place].columns):
            if column.code.kind != "whole" or column.row:
                made.append(None)
                continue
            numbers = self.rows[place].column(k).fill_null(0).to_numpy().astype(np.int64)
            made.append((int(numbers.min()), int(numbers.max())) if len(numbers) else (0, 0))
        return made

    def require_ends(self, request: Mapping[str, Any]) -> None:
        """Refuse a statement some of whose numbers might leave 64 bits, of the rows that are kept.

        Raises:
            DataError: names the column.
        """
        extents = measure_extents(self.plan, request["sizes"])
        for op in held_relations(self.plan):
            for place in list_leaves(op):
                for column, ends in zip(self.plan.leaves[place].columns, self.ends.get(place, ()), strict=False):
                    if ends is None or not (column.number or column.bounded):
                        continue
                    most = largest_number(column, self.plan, extents, self.plain, self.name)
                    # Where few must not show, a refusal may not tell how large a number is.
                    if self.plan.policy.min_count == 1 and max(-ends[0], ends[1]) > most:
                        raise DataError(f"the numbers that follow from {column.text} might leave 64 bits", where="shares", remedy="scale the values down in the relation: CAST(x / 1000 AS DECIMAL(18,2)) AS x")  # fmt: skip

    def record(self, island: Any) -> None:
        """Write down which units stand behind the answer: those of the statement that is written out. A relation that is made shows nothing yet."""
        if self._written is not None:
            self._written.record(island)

    @property
    def behind(self) -> dict[str, int]:
        """Rows of each leaf here; of a kept relation those that were shared, filled up."""
        found = super().behind
        for op in held_relations(self.plan):
            names = [self.plan.leaves[place].name for place in list_leaves(op)]
            found |= dict(zip(names, map(int, self.states[op.relation]["sizes"]), strict=True))
        return found

    def state(self, op: KeptRows) -> dict[str, Any]:
        """What the site remembers of a relation that it helps to make."""
        places = list_leaves(op)
        ends = [[None if one is None else list(one) for one in self.ends.get(place, [])] for place in places]
        return {"sizes": [self.sizes[place] for place in places], "ends": ends, "contents": dict(self.contents), "plain": [[*base, most] for base, most in self.plain.items()]}  # fmt: skip


def kept_rows(island: Any, message: Mapping[str, Any], *, fresh: bool) -> KeptLocalRows:
    """The rows of a statement at a site; see `atoll.query.strategies.shared_rows.local_rows`."""
    silo = silo_of(island.data)
    plan = plan_of(silo, message, _planner(message), "smcql")
    known = silo.kept
    if fresh or not isinstance(known, KeptLocalRows) or known.plan is not plan or known.terms != KeptTerms.read(message):  # fmt: skip
        silo.kept = known = KeptLocalRows(island, message, plan)
    return known


@task(discloses=promise_min_count)
def measure_kept(island: Any, message: Any) -> Any:
    """How many rows the leaves have that are shared anew, and what is known of the relations that are kept: their sizes when they were made."""
    kept = kept_rows(island, message, fresh=True)
    kept.tell_sizes(island, message)
    words = kept.widths()
    for relation, state in kept.states.items():
        words |= {f"{relation}@{k}": int(n) for k, n in state.get("words", {}).items()}
    return {"rows": kept.sizes, "words": words}


def _prepare(island: Any, request: Mapping[str, Any]) -> KeptLocalRows | None:
    """What a party checks before it takes part; ``None`` at a helper.

    Raises:
        PolicyError: a relation is not kept here as the statement says.
        LetterError: the owners are not those that the request names.
    """
    terms = KeptTerms.read(request["message"])
    if [str(one) for one in request["sizes"]] != list(terms.owners):
        raise LetterError(f"rows of {', '.join(map(str, request['sizes']))} are asked for, and the request names {', '.join(terms.owners)}", where="smcql", remedy="ask all sites the same: the coordinator may be lying")  # fmt: skip
    if island.data is None:
        plan = plan_of(None, request["message"], _planner(request["message"]), "smcql")
        for op in held_relations(plan):
            require_state(island, plan, op, terms)
        return None
    kept = kept_rows(island, request["message"], fresh=False)
    kept.require_ends(request)
    return kept


def _note(island: Any, what: str, terms: KeptTerms, names: Sequence[str], **more: Any) -> None:
    """Add an event to a site's chain; a helper has none."""
    if island.data is not None and names:
        append_event(island, what, {"relations": {name: terms.ids[name] for name in names}, **more})


@task(discloses=promised_of)
async def share_for_kept(island: Island, peers: Peers, *, request: Any, parties: Any) -> Any:
    """Take part as a site that holds no shares: share the leaves that are shared anew, and remember what it shared of a relation that is made."""
    kept, terms = _prepare(island, request), KeptTerms.read(request["message"])
    await send_leaves(island, peers, request, parties, _planner(request["message"]))
    _note(island, "read", terms, terms.held)
    if terms.creates and kept is not None:
        _remember(island, request, kept, kept.plan, {}, None)
    return {}


@task(discloses=promised_of)
async def compute_from_kept(island: Island, peers: Peers, *, request: Any, parties: Any, me: str) -> Any:
    """Take part as one of three parties: take the shares of kept relations, share the other leaves, and return this party's part of the answer."""
    _prepare(island, request)
    terms, make = KeptTerms.read(request["message"]), _planner(request["message"])
    plan, trio, leaves = await gather_leaves(island, peers, request, parties, me, make)
    stored = await _take(island, trio, plan, terms)
    _note(island, "read", terms, terms.held)
    return await hand_out(plan, KeptTables(trio, leaves, stored, MOST_ROWS))


async def _take(island: Island, trio: Trio, plan: SecurePlan, terms: KeptTerms) -> dict[str, SharedTable]:
    """The shares of the relations that a statement reads, once all three parties have compared them."""
    stored: dict[str, SharedTable] = {}
    tags = []
    for op in held_relations(plan):
        number = terms.ids[op.relation]
        state = require_state(island, plan, op, terms)
        if "tag" not in state:
            raise PolicyError(f"{island.name} keeps no shares of {op.relation}", where=island.name, remedy=_ANEW)
        stored[op.relation] = _from_tree(trio, island.left(f"{STATE}-{number}-rows"))
        tags.append(f"{op.relation} {state['tag']}")
    if stored:
        await compare_parts(trio, stored, "; ".join(sorted(tags)))
    return stored


@task(discloses=promised_of)
async def keep_relation(island: Island, peers: Peers, *, request: Any, parties: Any, me: str) -> Any:
    """Take part as one of three parties in making a relation, and keep this party's share of it; nothing is opened but whether policies are right about keys."""
    kept, terms = _prepare(island, request), KeptTerms.read(request["message"])
    plan, trio, leaves = await gather_leaves(island, peers, request, parties, me, _planner(request["message"]))
    stored = await _take(island, trio, plan, terms)
    op = plan.root
    if not isinstance(op, KeptRows):
        raise LetterError("the statement makes no relation", where="smcql", remedy="look at the coordinator: it does not follow the protocol")  # fmt: skip
    table = to_kept(op, await KeptTables(trio, leaves, stored, MOST_ROWS).make(op))
    mine = island.secret.bytes(DIGEST)
    others = [str(one) for one in parties if str(one) != me]
    await peers.broadcast(np.frombuffer(mine, np.uint8), others)
    drawn = [mine, *(np.asarray(one, np.uint8).tobytes() for one in (await peers.gather(others)).values())]
    words: dict[str, int] = {}
    for name in table.columns:
        stem, _, rest = name.partition(".")
        words |= {stem: max(words.get(stem, 0), int(rest) + 1)} if rest else {}
    shares = _as_tree(table)
    more = {"tag": _digest(sorted(one.hex() for one in drawn)), "words": words}
    _remember(island, request, kept, plan, more, shares)
    return {"rows": len(table), "nbytes": M.nbytes(shares), "noted": trio.noted}


def _remember(island: Any, request: Mapping[str, Any], kept: KeptLocalRows | None, plan: SecurePlan, more: Mapping[str, Any], shares: Any) -> None:  # fmt: skip
    """Leave a relation's state at a party, and its shares if it has some, once the job has ended well.

    Raises:
        PolicyError: there is no room.
    """
    terms, op = KeptTerms.read(request["message"]), cast("KeptRows", plan.root)
    number = terms.ids[terms.creates]
    if number in _list(island):
        raise PolicyError(f"{terms.creates} is to be kept under the id of another relation", where=island.name, remedy="look at the coordinator: it asks for something twice")  # fmt: skip
    limit, days = _room_of(island, request["message"])
    state = {**_about(plan, op, terms), "relation": op.relation, "asker": _asker(island), "until": time.time() + 86400 * days, **({} if kept is None else kept.state(op)), **more}  # fmt: skip
    nbytes = M.nbytes(state) + (0 if shares is None else M.nbytes(shares))
    require_room(island, op.relation, nbytes, limit)
    _list_anew(island, number)
    if shares is not None:
        island.leave(f"{STATE}-{number}-rows", shares)
    island.leave(f"{STATE}-{number}", {**state, "nbytes": nbytes})
    _note(island, "kept", terms, [op.relation], bytes=nbytes)


@task(discloses=promised_of)
async def drop_kept(island: Island, peers: Peers, *, request: Any) -> Any:
    """Forget relations: nothing stays of their rows. Of one that another analyst kept nothing changes."""
    del peers
    terms = KeptTerms.read(request["message"])
    signed = None if island.data is None else silo_of(island.data).signed
    if signed is not None and not any(one.drops and dict(one.kept) == dict(terms.ids) for one in signed):
        raise PolicyError(f"{', '.join(terms.ids)} is not what the job drops that was signed", where=island.name, remedy="look at the coordinator: it asks for something else than the job says")  # fmt: skip
    gone = []
    for name, number in terms.ids.items():
        state = find_state(island, number)
        if state is None:
            continue
        if state["asker"] != _asker(island):
            raise PolicyError(f"{name} was kept for another analyst", where=island.name, remedy="let the one who kept it drop it")  # fmt: skip
        _forget(island, number)
        gone.append(name)
    _note(island, "dropped", terms, gone)
    return {}


# ---------------------------------------------------------------- the strategy


@dataclass(frozen=True)
class KeptSmcql(Smcql):
    """``smcql`` for a statement over kept relations; see the module.

    Args:
        ids: relation -> its id, as pairs.
        creates: the relation that is made; empty for none.
    """

    no_options: ClassVar[frozenset[str]] = frozenset({"ids", "creates"})
    ids: tuple[tuple[str, str], ...] = ()
    creates: str = ""

    def terms(self, owners: Sequence[str]) -> KeptTerms:
        """What a request says of the relations."""
        return KeptTerms(dict(self.ids), self.creates, tuple(owners))

    def plan(self, statement: SqlStatement, catalog: Catalog, policy: QueryPolicy) -> SecurePlan:
        """A plan; see `atoll.query.secure.kept_plan`."""
        return kept_planner(self.terms(()).held, self.creates)(statement, catalog, policy)

    def steps(self, plan: SecurePlan) -> Sequence[PlanStep]:
        """The steps of a plan: what lies below kept relations is not done again."""
        pruned = prune_held(plan)
        found = [PlanStep("each site", "plain", leaf.text) for leaf in pruned.leaves]
        if pruned.leaves:
            found.append(PlanStep("each site", "shared", "share these rows, filled up to a power of two, among three parties"))  # fmt: skip
        for one in shown_operators(plan):
            held = isinstance(one, KeptRows) and one.held
            saved = f": about {self.saved(plan, one):,.0f} bytes less than to share and make them anew, for 256 rows of each table at each site" if isinstance(one, KeptRows) and held and plan.statement.explain else ""  # fmt: skip
            found.append(PlanStep("three parties", "kept" if held else "shared", f"{one.what}{saved}"))
        if self.creates:
            return [*found, PlanStep("three parties", "kept", f"keep their shares of {self.creates}, and open none")]
        return [*found, PlanStep("coordinator", "plain", plan.finish)]

    def saved(self, plan: SecurePlan, op: KeptRows) -> float:
        """Bytes that it takes to make a relation, for 256 rows of each table at each site."""
        sql = plan.statement.sql
        text = f"{_with_of(sql)} SELECT * FROM {op.relation}"
        made = kept_planner((), op.relation)(parse_statement(text, plan.catalog), plan.catalog, plan.policy)
        return float(Smcql("shares", "none")._cost(made, self.guess_sizes(made, 3), {}, None, orders=1)[0])

    def exposures(self, plan: SecurePlan) -> Sequence[Exposure]:
        """What a plan gives away: of kept relations nothing that was not told when they were made."""
        pruned, names = prune_held(plan), [op.relation for op in held_relations(plan)]
        found = [one for one in super().exposures(pruned) if pruned.leaves or one.kind != "sizes"]
        if self.creates:
            found = [one for one in found if one.who not in ("coordinator", "analyst", "coordinator, analyst")]
            found.append(Exposure("coordinator, three parties", f"how many rows {self.creates} has at most, which follows from these sizes", "", "sizes"))  # fmt: skip
        if names:
            found.append(Exposure("coordinator, three parties", f"that the statement reads {', '.join(names)}, and its sizes when it was kept", "", "sizes"))  # fmt: skip
            if plan.policy.min_count == 1:
                found.append(Exposure("analyst", "the answer", f"it is about the rows of the moment when {', '.join(names)} {'was' if len(names) == 1 else 'were'} kept"))  # fmt: skip
        return found

    def further_bytes(self, plan: SecurePlan, sizes: Mapping[str, Sequence[int]], asked: float) -> float:
        """Bytes of what requests say of relations, and of digests that parties compare."""
        names = list(sizes)
        roles = len({*names, *self.choose_parties(plan, names)})
        told = float(M.nbytes({"kept": self.terms(names).told()}))
        digests = 6 * relayed_nbytes(M.nbytes(["r" * 40, "0" * 32])) if held_relations(plan) else 0
        drawn = 6 * relayed_nbytes(M.nbytes(np.zeros(DIGEST, np.uint8))) if self.creates else 0
        return told * (len(names) + roles) + digests + drawn

    async def run(self, fed: Federation, plan: SecurePlan, message: Mapping[str, Any]) -> QueryAnswer:
        """Carry a plan out."""
        message = {**message, "kept": self.terms(list(fed.parties.names)).told()}
        sizes, widths, _ = await self.measure(fed, message, measure_kept)
        request = {"message": message, "sizes": sizes, "widths": widths}
        require_size(plan, sizes)
        if not self.creates:
            made, _ = await self.open_rows(fed, plan, request, compute_from_kept, share_for_kept)
            return self.with_cost(plan, made)
        parties = self.choose_parties(plan, list(sizes))
        roles = {name: (name, keep_relation.with_args(request=request, parties=parties, me=name) if name in parties else share_for_kept.with_args(request=request, parties=parties)) for name in dict.fromkeys([*parties, *sizes])}  # fmt: skip
        got = await fed.session(roles)
        first = got[parties[0]]
        about = {"relation": self.creates, "id": dict(self.ids)[self.creates], "rows": int(first["rows"]), "bytes": max(int(got[one]["nbytes"]) for one in parties), "parties": parties}  # fmt: skip
        noted = {str(name): [int(one) for one in own] for name, own in first["noted"].items()}
        answer = QueryAnswer(plan.statement.columns, plan.statement.types, [], sizes=sizes, widths=widths, noted=noted, kept=about)  # fmt: skip
        return self.with_cost(plan, answer)


def _with_of(sql: str) -> str:
    """The WITH of a statement."""
    import sqlglot

    return str(sqlglot.parse_one(sql, dialect="duckdb").args["with_"].sql("duckdb"))


def choose_kept(asked: str, ids: Mapping[str, str], creates: str, statement: SqlStatement, catalog: Catalog, policy: QueryPolicy, names: Sequence[str], *, helper: bool) -> Choice:  # fmt: skip
    """The strategy of a statement over kept relations, with its plan.

    Args:
        asked: the strategy that the statement asks for.
        ids: relation -> its id.
        creates: the relation that is made; empty for none.
        statement: the statement, written out.
        catalog: the tables.
        policy: what all sites allow.
        names: the sites.
        helper: whether there is a helper.

    Raises:
        CompositionError: another strategy is asked for, or the parties cannot answer it.
        ConfigError: the relation has the name of a table.
        PolicyError: a site keeps nothing.
    """
    require_kept_strategy(asked)
    if creates and not policy.kept:
        raise PolicyError(f"not all sites keep relations between statements, such as {creates}", where="policies of the sites", remedy="let each site write limits: {kept: 1GiB}, or write the relation into the statement: WITH … AS (SELECT …)")  # fmt: skip
    known = catalog.named_tables()
    odd = next((name for name in ids if name in known), None)
    if odd is not None:
        raise ConfigError(f"{odd} is a table of the sites", where="sql", remedy="give the relation another name")
    strategy = KeptSmcql("shares", "none", "hidden", tuple(sorted(ids.items())), creates)
    strategy.require_parties(len(names), helper=helper)
    plan = strategy.plan(statement, catalog, policy)
    why = "it reads and makes no relation that stays shared"
    return Choice(strategy, plan, {name: why for name in known_strategies() if name not in ("auto", "smcql")})


def require_kept_strategy(asked: str) -> None:
    """Refuse a strategy that keeps no relations.

    Raises:
        CompositionError: it is none of ``auto`` and ``smcql`` with shares.
    """
    name, _, options = asked.partition(":")
    refused = {"mode=garbled": "a garbled circuit", "joins=told": "joins whose sizes are told"}
    odd = next((what for option, what in refused.items() if option in options.split(",")), None)
    if name not in ("auto", "smcql") or odd:
        raise CompositionError(f"{odd or f'the strategy {name}'} makes and reads no relation that stays shared between statements", where="query", remedy=f"use {KEPT_AS.partition(':')[0]}, which keeps relations at three parties, or write the relation into the statement: WITH … AS (SELECT …)")  # fmt: skip


async def drop_relations(fed: Federation, message: Mapping[str, Any], names: Sequence[str], ids: Mapping[str, str]) -> None:  # fmt: skip
    """Have all parties forget relations.

    Args:
        fed: the sites.
        message: what a request says beside them.
        names: the sites, and the helper if there is one.
        ids: relation -> its id.
    """
    told = KeptTerms(dict(ids), "", tuple(fed.parties.names)).told()
    request = {"message": {**message, "kept": told}}
    await fed.session({name: (name, drop_kept.with_args(request=request)) for name in names})
