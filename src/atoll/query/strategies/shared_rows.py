"""Rows of sites under shares at three parties: what each site takes from its own tables and shares, and what the parties do with it.

A site reads the leaves of the plan in one snapshot (`LocalRows`), tells their sizes, and writes down which of its units they are before they leave. All roles compare a digest of what they were asked for (`compare_requests`), sites share
their rows, and the parties compute the tables of the plan and hand out their parts of the answer. `atoll.query.strategies.smcql` plans this, says what it costs and gives away, and puts parts together; other strategies that
share rows take from here what they do in the same way.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core.errors import CompositionError, DataError, LetterError
from atoll.core.extras import need
from atoll.core.requests.disclosure import Disclosure
from atoll.core.requests.task import task
from atoll.secure.shares import ReplicatedComputation, ReplicatedSharing, Trio, WordRing
from atoll.secure.tables import MOST_SIDE, SharedTable, concatenate_tables, send_table, share_table
from atoll.statistics.answered import RowSets

from ..column_codes import LONGEST
from ..databases.silo import quote
from ..events import write_event
from ..local import keep_units, names_of, open_record, plan_of, prefix_of, silo_of, units_text
from ..plan import Released
from ..secure.costs import measure_extents, release_rows, shared_layout, sliced_layout
from ..secure.extents import Extents, fill_up, too_many_rows
from ..secure.limits.column_bounds import largest_number, longest_of, plain_texts, require_bounds
from ..secure.operators import Operator, SecurePlan, held_places
from ..secure.plan import make_secure_plan, make_told_plan
from ..secure.tables import Resize, SecureTables, refuse_claim
from ..slices import (
    HERE,
    SlicedTables,
    SliceSizes,
    compute_alone,
    make_sliced_plan,
    place_rows,
    read_keys,
    slice_texts,
    sliced_rows,
    tell_slices,
)
from ..statement import SOURCE
from .strategy import HELPER, promise_min_count, read_strategy
from .unit_sets import SetRows, UnitRows, divide_units

if TYPE_CHECKING:
    from atoll.core.execution.session import Peers
    from atoll.core.requests.island import Island

__all__ = [
    "DIGEST",
    "MOST_ROWS",
    "ROW_BITS",
    "LocalRows",
    "compare_requests",
    "compute_answer",
    "compute_shares",
    "gather_leaves",
    "hand_out",
    "list_bases",
    "local_rows",
    "measure_rows",
    "own_result",
    "own_rows",
    "plain_terms",
    "planner_of",
    "promised_of",
    "read_arrow",
    "require_size",
    "send_leaves",
    "share_rows",
    "slices_of",
    "write_arrow",
]

DIGEST = 16
"""Bytes of what parties compare before rows leave."""
ROW_BITS = 40
"""Bits of the number of a row within its site."""
MOST_ROWS = 1 << 21
"""Most rows of a table that the parties make."""


def promised_of(args: Any) -> Disclosure:
    """What a role of a session tells rests on as many units as the strictest policy asks for."""
    return promise_min_count(args["request"]["message"])


# ---------------------------------------------------------------- at a site


def write_arrow(table: Any) -> bytes:
    """A table of Arrow as bytes."""
    pyarrow = need("pyarrow", "sql", "rows of a site")
    sink = pyarrow.BufferOutputStream()
    with pyarrow.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def read_arrow(content: bytes) -> Any:
    """The table of `write_arrow`."""
    return need("pyarrow", "sql", "rows of a site").ipc.open_stream(content).read_all()


class LocalRows:
    """The rows of the leaves at one site, of one snapshot.

    Args:
        island: the site.
        message: the request.
        plan: its plan.
        claims: tables, their columns, and how many rows may have one value, that are checked besides those of the leaves.
        kept: a snapshot that was kept, in place of one of this moment; see `keep`.
        watched: tables of which a digest of all rows is made, in the same snapshot.

    Attributes:
        which: names the release that these rows belong to, of a strategy that keeps them.
        contents: watched table -> the digest.
        plain: column of a table -> bytes of its longest text, or how many caps a number of it passes (`count_over`), where rows of the leaves must not tell.
    """

    which: tuple[str, str] = ("", "")

    def __init__(self, island: Any, message: Mapping[str, Any], plan: SecurePlan, claims: Sequence[tuple[str, str, int]] = (), kept: Sequence[bytes] | None = None, watched: Sequence[str] = ()) -> None:  # fmt: skip
        silo = silo_of(island.data)
        names = names_of(silo, plan)
        prefix, tables = prefix_of(silo, plan, names), list(names.values())
        self.plan, self.name, self.number = plan, silo.name, 0
        first, held = island.name == message["first"], held_places(plan)
        self.leaves = [leaf if (first or not leaf.lone) and place not in held else None for place, leaf in enumerate(plan.leaves)]  # fmt: skip
        mine = [leaf for leaf in self.leaves if leaf is not None]
        self.claims = list(dict.fromkeys([*(claim for leaf in mine for claim in leaf.claims), *claims]))
        texts = [f"{prefix} {text}" for leaf in mine for text in (leaf.size or "SELECT 1", leaf.text)]
        texts += [f"{prefix} SELECT coalesce(max(n), 0) FROM (SELECT count(*) AS n FROM {quote(SOURCE + table)} WHERE {quote(column)} IS NOT NULL GROUP BY {quote(column)})" for table, column, _ in self.claims]  # fmt: skip
        self.released = [(leaf, one) for leaf in mine for one in leaf.released]
        texts += [f"{prefix} {leaf.units_text(one)}" for leaf, one in self.released]
        counted = list(dict.fromkeys(one.table for _, one in self.released))
        texts += [units_text(next(one for _, one in self.released if one.table == table), plan.catalog, names[table]) for table in counted]  # fmt: skip
        texts += [units_text(Released(table, table, "", True), plan.catalog, names[table]) for table in watched]
        plain = plain_texts(plan, mine)
        texts += [f"{prefix} {text}" for text in (*plain.values(), *slice_texts(plan))]
        self._read = silo.run_all(texts, tables, arrow=True) if kept is None else [read_arrow(one) for one in kept]
        found = iter(self._read)
        self.sizes, self.counts, self.rows = list[int](), list[int](), list[Any]()
        for leaf in self.leaves:
            if leaf is None:
                self.sizes.append(0)
                self.counts.append(0)
                self.rows.append(None)
                continue
            self.counts.append(int(next(found).column(0)[0].as_py()))
            self.sizes.append(fill_up(self.counts[-1]))
            self.rows.append(next(found))
        for table, column, most in self.claims:
            rows = next(found)
            seen = int(rows.column(0)[0].as_py())
            if seen > most:
                raise DataError(f"a value of {table}.{column} is in more than {most} row{'' if most == 1 else 's'}, as the policy says", where=self.name, remedy="correct key or at_most in the policy")  # fmt: skip

        self._kept = [SetRows.read(leaf.cells, one.alias, next(found)) for leaf, one in self.released]
        self._units = {table: next(found) for table in counted}
        self.contents = {table: digest_table(next(found)) for table in watched}
        self.plain = {base: int(next(found).column(0)[0].as_py()) for base in plain}
        self.slices = [tell_slices(rows) for rows in found]

    def keep(self) -> list[bytes]:
        """The snapshot, as bytes."""
        return [write_arrow(one) for one in self._read]

    def record(self, island: Any) -> None:
        """Write down which units of this site stand behind the answer, before any of their rows leaves.

        The parties leave out further rows, which no site sees. So of each table the record has the units of all rows that this site shares.

        Args:
            island: the site.

        Raises:
            PolicyError: these units differ from those of an earlier answer by too few.
        """

        def describe() -> Iterator[Any]:
            alone = len(self.plan.leaves) == 1 == len(self.released)  # a number is then a sum over these units
            least = self.plan.policy.min_count
            for table, rows_of in self._units.items():
                units = UnitRows(rows_of)
                sets: list[RowSets] = []
                for (leaf, one), rows in zip(self.released, self._kept, strict=True):
                    if one.table == table:
                        said = f"{one.alias} {leaf.body.partition(' WHERE ')[2]}".strip()
                        sets += divide_units(leaf.cells, said, one.alias, rows, units, least, alone)
                record = open_record(island, self.plan.statement.text, least, table, units.hashes)
                record.describe(units.pad(sets), alone=False)
                yield record

        keep_units(island, describe)

    @property
    def behind(self) -> dict[str, int]:
        """Rows of each leaf here."""
        return {leaf.name: len(rows) for leaf, rows in zip(self.leaves, self.rows, strict=True) if leaf is not None}

    def tell_sizes(self, island: Any, message: Mapping[str, Any], *more: str) -> None:
        """Write down that the sizes leave, and what else does."""
        sliced = sliced_rows(self.plan)
        told = [] if sliced is None else [f"the values of {list_bases(sliced.bases)}, with the rows of each up to the next power of two"]  # fmt: skip
        told += ["the number of these rows, up to the next power of two", *more]
        write_event(island, message, self.plan, f"{', '.join(told)}, and the longest text of each column, in steps of 8 bytes", self.behind)  # fmt: skip

    def shared_sizes(self, request: Mapping[str, Any], me: str) -> list[int]:
        """Rows of each leaf that this site shares.

        Raises:
            DataError: the coordinator says other slices of this site than it told.
        """
        slices = slices_of(self.plan, request)
        if slices is None:
            return self.sizes
        own = slices.counts.get(me, np.zeros((len(self.slices), len(slices.keys)), np.int64))
        said = [{key: int(n) for key, n in zip(slices.keys, row, strict=True) if n} for row in own]
        if said != [dict(zip(one["keys"], one["rows"], strict=True)) for one in self.slices]:
            raise DataError(f"this site told other values of {list_bases(slices.sliced.bases)} than are asked for, or other numbers of their rows", where=me, remedy="ask again: its rows have changed since it was asked how many there are, or the coordinator is lying")  # fmt: skip
        return slices.with_rows({me: self.sizes})[me]

    def keys(self, place: int) -> list[str | None]:
        """The value of the slice of each row of a leaf."""
        sliced = sliced_rows(self.plan)
        names = {} if sliced is None else dict(sliced.columns)
        (k,) = (k for k, column in enumerate(self.plan.leaves[place].columns) if column.name == names[place])
        return read_keys(self.rows[place].column(k))

    def widths(self) -> dict[str, int]:
        """Words that each column of text needs here."""
        found = {}
        for leaf, rows in zip(self.leaves, self.rows, strict=True):
            for place, column in enumerate(() if leaf is None else leaf.columns):
                if column.code.kind == "text":
                    longest = longest_of(column, self.plain, rows.column(place))
                    if longest > 8 * LONGEST:
                        raise DataError(f"a text of more than {8 * LONGEST} bytes, which is the most that parties share", where=column.text, remedy="shorten it: left(x, 100)")  # fmt: skip
                    found[column.name] = max(1, -(-longest // 8))
        return found

    def encode(self, place: int, widths: Mapping[str, int], extents: Extents) -> dict[str, Any]:
        """The columns of one leaf as `send_table` takes them.

        Args:
            place: the leaf.
            widths: words of each column of text.
            extents: how large numbers that parties compute with may be.

        Raises:
            DataError: a number of the answer might leave 64 bits.
        """
        made: dict[str, Any] = {}
        compute = need("pyarrow.compute", "sql", "shares of rows")
        leaf = self.plan.leaves[place]
        for k, column in enumerate(leaf.columns):
            values = self.rows[place].column(k)
            if column.row:  # rows of different sites are different units
                values = compute.add(values, self.number << ROW_BITS)
            if column.checked:
                numbers = values.fill_null(0).to_numpy().astype(np.int64)
                most = largest_number(column, self.plan, extents, self.plain, self.name)
                # The absolute value of the smallest integer has no place in 64 bits: both ends are compared.
                if len(numbers) and (int(numbers.max()) > most or int(numbers.min()) < -most):
                    raise DataError(f"the numbers that follow from {column.text} might leave 64 bits", where="shares", remedy="scale the values down in the statement: SUM(CAST(x / 1000 AS DECIMAL(18,2)))")  # fmt: skip
            if column.number:
                made[column.name] = numbers
                made[f"{column.name}?"] = np.asarray(values.is_valid().to_numpy(zero_copy_only=False)).astype(np.uint8)
                continue
            words, there = column.code.encode(values, widths.get(column.name, 1))
            made |= {f"{column.name}.{w}": one for w, one in enumerate(words)}
            made[f"{column.name}?"] = there
        return made


def digest_table(table: Any) -> str:
    """A digest of all rows of a table of Arrow, in any order."""
    rows = sorted(repr(row) for row in zip(*(one.to_pylist() for one in table.columns), strict=True))
    return hashlib.blake2b("\n".join(rows).encode(), digest_size=DIGEST).hexdigest()


def local_rows(island: Any, message: Mapping[str, Any], *, fresh: bool, claims: Callable[[SecurePlan], Sequence[tuple[str, str, int]]] = lambda plan: (), make: Callable[..., Any] = make_secure_plan, by: str = "smcql") -> LocalRows:  # fmt: skip
    """The rows of a statement's leaves at a site, of one snapshot for all of its requests.

    Args:
        island: the site.
        message: the request.
        fresh: whether this is the statement's first request.
        claims: of a plan: tables, their columns, and how many rows may have one value, that the site checks besides those of the leaves.
        make: makes the plan; see `atoll.query.local.plan_of`.
        by: the strategy whose task asks.
    """
    silo = silo_of(island.data)
    plan = plan_of(silo, message, make, by)
    if fresh or not isinstance(silo.kept, LocalRows) or silo.kept.plan is not plan:
        silo.kept = LocalRows(island, message, plan, claims(plan))
    kept: LocalRows = silo.kept
    return kept


@task(discloses=promise_min_count)
def measure_rows(island: Any, message: Any) -> Any:
    """How many rows the tables of each leaf have, rounded up to a power of two, and how long texts are, in steps of 8 bytes."""
    kept = local_rows(island, message, fresh=True, make=planner_of(message))
    kept.tell_sizes(island, message)
    return {"rows": kept.sizes, "words": kept.widths(), **({"slices": kept.slices} if kept.slices else {})}


def planner_of(message: Mapping[str, Any]) -> Callable[..., SecurePlan]:
    """What makes the plan of three parties for a request: in slices, or with joins whose size is told, if its strategy says so."""
    told = read_strategy(message).told()
    if told.get("joins") == "told":
        return make_told_plan
    return make_sliced_plan if told.get("slices") == "public" else make_secure_plan


def slices_of(plan: SecurePlan, request: Mapping[str, Any]) -> SliceSizes | None:
    """The slices of a request; ``None`` for a plan without.

    Raises:
        LetterError: it has those of other sites.
    """
    sliced = sliced_rows(plan)
    if sliced is None:
        return None
    told = request.get("slices")
    if not isinstance(told, Mapping) or list(told["counts"]) != list(request["sizes"]):
        raise LetterError(f"the values of {list_bases(sliced.bases)} are not those of the sites that are asked", where="smcql", remedy="ask all sites the same: the coordinator may be lying")  # fmt: skip
    return SliceSizes.of_request(sliced, told)


def list_bases(bases: Sequence[tuple[str, str]]) -> str:
    """The columns whose values name slices, as people read them."""
    return ", ".join(f"{table}.{column}" for table, column in bases)


def own_rows(island: Any, request: Mapping[str, Any], place: int, make: Callable[..., Any] = make_secure_plan, by: str = "smcql") -> dict[str, Any]:  # fmt: skip
    """The columns of one leaf at this site; see `LocalRows.encode`; ``make`` and ``by`` as in `local_rows`."""
    kept = local_rows(island, request["message"], fresh=False, make=make, by=by)
    kept.number = list(request["sizes"]).index(island.name)
    slices = slices_of(kept.plan, request)
    made = kept.encode(place, request["widths"], measure_extents(kept.plan, request["sizes"], slices=slices))
    if slices is None or place not in slices.sliced.places:
        return made
    rows, places = place_rows(kept.keys(place), slices, island.name, place)
    placed = {}
    for name, values in {**made, HERE: np.ones(kept.rows[place].num_rows, np.uint8)}.items():
        placed[name] = np.zeros(int(request["sizes"][island.name][place]), values.dtype)
        placed[name][places] = values[rows]
    return placed


def own_result(island: Island, request: Mapping[str, Any], slices: SliceSizes, make: Callable[..., Any], by: str) -> dict[str, Any]:  # fmt: skip
    """The rows of the slices that this site alone has, which it computes in plaintext."""
    kept = local_rows(island, request["message"], fresh=False, make=make, by=by)
    kept.number = list(request["sizes"]).index(island.name)
    extents = measure_extents(kept.plan, request["sizes"], slices=slices)
    joint = {key for key, several in zip(slices.keys, slices.joint, strict=True) if several}
    leaves = {}
    for place in slices.sliced.places:
        rows = np.flatnonzero([key not in joint for key in kept.keys(place)])
        leaves[place] = {name: values[rows] for name, values in kept.encode(place, request["widths"], extents).items()}
    try:
        return compute_alone(kept.plan, slices.sliced, leaves, sliced_layout(kept.plan, slices, request["widths"]))
    except DataError as error:
        raise refuse_claim(str(error.what)) from None


def plain_terms(value: Any) -> Any:
    """What a request says as JSON has it, whether it has been sent or not."""
    if isinstance(value, Mapping):
        return {str(key): plain_terms(one) for key, one in value.items()}
    if isinstance(value, list | tuple | np.ndarray):
        return [plain_terms(one) for one in value]
    return value if value is None or isinstance(value, bool | float | str) else int(value)


def _about(request: Mapping[str, Any], plan: SecurePlan, parties: Sequence[str]) -> bytes:
    """What is computed, in 16 bytes: all that the request says, with the strictest policy as this party knows it, and the three parties.

    A strategy's own terms, such as an epsilon or who reads keys, are in the request too. The order of the owners counts, as rows are numbered by it.
    """
    told = {**request, "message": {**request["message"], "policy": plan.policy.told(plan.catalog.tables)}, "sizes": list(request["sizes"].items())}  # fmt: skip
    text = json.dumps(plain_terms([told, list(parties)]), sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=DIGEST).digest()


def _require_parties(island: Island, plan: SecurePlan, request: Mapping[str, Any], parties: Sequence[str]) -> None:
    """Refuse to share rows among other parties than those of the strategy, and with a helper that the signed job does not ask for.

    Raises:
        LetterError: names both.
    """
    owners = [str(owner) for owner in request["sizes"]]
    way = read_strategy(request["message"]).for_parties(len(owners), helper=HELPER in parties)
    chosen = way.choose_parties(plan, owners)
    signed = None if island.data is None else silo_of(island.data).signed
    unasked = HELPER in chosen and signed is not None and not any(HELPER in one.others(len(owners)) for one in signed)
    if unasked or [str(one) for one in parties] != chosen:
        raise LetterError(f"{', '.join(map(str, parties))} are to hold the shares, and the statement is one for {'sites alone' if unasked else ', '.join(chosen)}", where="smcql", remedy="ask all sites the same: the coordinator may be lying")  # fmt: skip


async def compare_requests(island: Island, peers: Peers, plan: SecurePlan, request: Any, parties: Sequence[str], me: str, make: Callable[..., Any] = make_secure_plan, by: str = "smcql") -> None:  # fmt: skip
    """Let all roles compare what they were asked for, and then write down what this site answers, before a row leaves.

    Raises:
        LetterError: another role was asked for something else, or a role or the rows of this site are left out.
        DataError: the coordinator says other sizes of this site than it measured.
        PolicyError: the answer differs from an earlier one by too few units, or the same statement was answered in this job for other owners.
    """
    about, owners = _about(request, plan, parties), {str(owner) for owner in request["sizes"]}
    apart = (owners | set(parties)) ^ {me, *peers.names}
    if apart:
        raise LetterError(f"{', '.join(sorted(apart))} takes part in the session alone, or in the statement alone", where="smcql", remedy="ask all sites the same: the coordinator may be lying")  # fmt: skip
    # A party whose own rows are left out would tell the rest of the rows from the whole.
    if island.data is not None and me not in owners:
        raise LetterError(f"the statement leaves out the rows of {me}", where="smcql", remedy="ask all sites the same: the coordinator may be lying")  # fmt: skip
    _require_parties(island, plan, request, parties)
    if me in owners:
        kept = local_rows(island, request["message"], fresh=False, make=make, by=by)
        if kept.shared_sizes(request, me) != [int(one) for one in request["sizes"][me]]:
            raise DataError(f"this site has {kept.shared_sizes(request, me)} rows, filled up, and {list(request['sizes'][me])} are asked for", where=me, remedy="ask again: its rows have changed since it was asked how many there are, or the coordinator is lying")  # fmt: skip
    await peers.broadcast(np.frombuffer(about, np.uint8))
    for other, told in (await peers.gather()).items():
        if not isinstance(told, np.ndarray) or told.tobytes() != about:
            raise LetterError(f"{other} was asked for something else than {me}, or has another policy", where="smcql", remedy="ask all sites the same: the coordinator may be lying")  # fmt: skip
    # Parts of the answer are in replies, which leave after the promise is on disk: of one statement, no second set of owners is opened in a job.
    island.promise(f"owners of the statement {request['message']['sql']}", json.dumps(sorted(owners)))
    if me in owners:
        kept.record(island)
        write_event(island, request["message"], plan, f"shares of the rows, for {', '.join(map(str, parties))}", kept.behind)  # fmt: skip


@task(discloses=promised_of)
async def share_rows(island: Island, peers: Peers, *, request: Any, parties: Any) -> Any:
    """Share a site's rows with three other parties."""
    await send_leaves(island, peers, request, parties, planner_of(request["message"]))
    return {}


async def send_leaves(island: Island, peers: Peers, request: Any, parties: Any, make: Callable[..., Any] = make_secure_plan, by: str = "smcql") -> None:  # fmt: skip
    """Share the rows of all leaves, as one who is none of the three parties; ``make`` and ``by`` as in `local_rows`."""
    plan = plan_of(silo_of(island.data), request["message"], make, by)
    await compare_requests(island, peers, plan, request, parties, island.name, make, by)
    for place in range(len(plan.leaves)):
        size = 0 if place in held_places(plan) else int(request["sizes"][island.name][place])
        if size:
            rows = own_rows(island, request, place, make, by)
            await send_table(peers, list(parties), island.secret, rows, layout=shared_layout(plan, place, request["widths"]), capacity=size)  # fmt: skip
    slices = slices_of(plan, request)
    if slices is not None and slices.result_rows(island.name):
        rows = own_result(island, request, slices, make, by)
        await send_table(peers, list(parties), island.secret, rows, layout=sliced_layout(plan, slices, request["widths"]), capacity=slices.result_rows(island.name))  # fmt: skip


@task(discloses=promised_of)
async def compute_shares(island: Island, peers: Peers, *, request: Any, parties: Any, me: str) -> Any:
    """Take part in the computation; return this party's part of the answer's rows."""
    return await compute_answer(island, peers, request, parties, me, make=planner_of(request["message"]))


async def compute_answer(island: Island, peers: Peers, request: Any, parties: Any, me: str, cutting: Callable[[SecurePlan, Trio], Awaitable[Resize]] | None = None, make: Callable[..., Any] = make_secure_plan, tables: Callable[[Trio, list[SharedTable]], SecureTables] | None = None, by: str = "smcql") -> Any:  # fmt: skip
    """This party's part of the answer's rows.

    Args:
        island: the party.
        peers: the session.
        request: what is asked: the message, sizes and widths.
        parties: the three.
        me: which of them this one is.
        cutting: what makes tables smaller, once all rows are shared; ``None`` for nothing.
        make: makes the plan, as in `local_rows`.
        tables: what computes the tables of the parties and the leaves; by default `SecureTables`.
        by: the strategy whose task asks.
    """
    plan, trio, leaves = await gather_leaves(island, peers, request, parties, me, make, by)
    slices = slices_of(plan, request)
    if slices is not None:
        made: SecureTables = SlicedTables(trio, leaves, slices, await _share_results(island, trio, request, plan, slices, make, by), MOST_ROWS)  # fmt: skip
    else:
        resize = None if cutting is None else await cutting(plan, trio)
        made = SecureTables(trio, leaves, resize, MOST_ROWS) if tables is None else tables(trio, leaves)
    return await hand_out(plan, made)


async def hand_out(plan: SecurePlan, tables: SecureTables) -> dict[str, Any]:
    """This party's part of the answer's rows, and what the coordinator needs to put parts together."""
    found, part, few = await release_rows(plan, tables)
    layout = {name: bits or 0 for name, bits in found.layout.items()}
    return {"part": part, "few": few, "noted": tables.trio.noted, "rows": len(found), "layout": layout}


async def gather_leaves(island: Island, peers: Peers, request: Any, parties: Any, me: str, make: Callable[..., Any] = make_secure_plan, by: str = "smcql") -> tuple[SecurePlan, Trio, list[SharedTable]]:  # fmt: skip
    """One of three parties: compare what all are asked for, and share the rows of all leaves.

    Returns:
        The party's own plan, the three parties, and the table of each leaf; of one whose rows the parties kept already, any table.
    """
    own = None if island.data is None else silo_of(island.data)
    plan = plan_of(own, request["message"], make, by)
    await compare_requests(island, peers, plan, request, parties, me, make, by)
    sharing = ReplicatedSharing(WordRing(64))
    trio = await ReplicatedComputation(island, peers, list(parties), me, sharing).trio()
    leaves, held = list[SharedTable](), held_places(plan)
    for place in range(len(plan.leaves)):
        if place in held:
            bit = trio.constant(np.zeros(1, np.uint64), 1)
            leaves.append(SharedTable({}, bit))
            continue
        parts, layout = [], shared_layout(plan, place, request["widths"])
        for owner, sizes in request["sizes"].items():
            if sizes[place]:
                rows = own_rows(island, request, place, make, by) if owner == me else None
                table = await share_table(trio, owner, layout=layout, capacity=int(sizes[place]), rows=rows)
                if HERE in layout:
                    table = SharedTable({name: table[name] for name in layout if name != HERE}, table.words(HERE))
                parts.append(table)
        leaves.append(concatenate_tables(parts))
    return plan, trio, leaves


async def _share_results(island: Island, trio: Trio, request: Any, plan: SecurePlan, slices: SliceSizes, make: Callable[..., Any], by: str) -> list[SharedTable]:  # fmt: skip
    """The rows that each site has computed alone, at the three parties."""
    layout, made = sliced_layout(plan, slices, request["widths"]), []
    for owner in request["sizes"]:
        capacity = slices.result_rows(owner)
        if capacity:
            rows = own_result(island, request, slices, make, by) if owner == trio.numbers.me else None
            made.append(await share_table(trio, owner, layout=layout, capacity=capacity, rows=rows))
    return made


def require_size(plan: SecurePlan, sizes: Mapping[str, Sequence[int]], shrink: Callable[[Operator, int], int] | None = None, kind: type[Extents] = Extents, slices: SliceSizes | None = None) -> None:  # fmt: skip
    """Refuse tables that are too large for the parties.

    Args:
        plan: the plan.
        sizes: rows of each leaf at each site.
        shrink: how many of an operator's rows are left, where tables are cut.
        kind: how many rows tables have.
        slices: how many rows slices have; ``None`` for a plan without.

    Raises:
        CompositionError: one has more rows than they hold, or numbers of so many rows might leave 64 bits.
    """
    found = measure_extents(plan, sizes, shrink, kind, slices, {})
    if found.side > MOST_SIDE:
        raise CompositionError(f"a matching of {found.side:,} rows, filled up, on one side, and an auction has {MOST_SIDE}", where="smcql", remedy="choose who takes part by a condition in a subquery: (SELECT * FROM riders WHERE …) AS r")  # fmt: skip
    largest = found.largest
    if largest > MOST_ROWS:
        raise too_many_rows(largest, MOST_ROWS)
    require_bounds(plan, found)
