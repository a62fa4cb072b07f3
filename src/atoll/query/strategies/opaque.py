"""``opaque``: statements over rows of different sites in an enclave (Zheng et al. 2017, "Opaque: an oblivious and encrypted distributed analytics platform"). **Simulated**: no hardware hides the enclave's memory from its host.

1. A party of the role ``enclave`` draws a key, and has it attested: a quote, signed by a root that the sites' policies pin, of a measurement of its code and of what it is asked to compute, for each site's own challenge.
2. Each site works out the measurement that it expects, from its own code, statement, policy and plan, and verifies the quote. Then it seals its rows to the enclave's key, in blocks that are bound to the statement, the plan, the
   owner and their number. A coordinator that asks the enclave for something else, a replayed quote, and a block that was altered, replayed or swapped are errors with names.
3. The enclave computes, and gives the coordinator the answer. Tables on the way lie in sealed blocks with versions (`atoll.query.secure.host_memory`): a host that gives back an old block, another or none is found out. In the
   mode ``encryption`` they lie in DuckDB's memory.

========================  ====================================================  ================================================================
mode                      what the enclave does                                 what its host sees of the memory
========================  ====================================================  ================================================================
``encryption``            DuckDB over the tables                                sizes, and which rows are read
``oblivious``             steps that no value changes                           sizes, also of tables on the way (`atoll.query.secure.enclave`)
``oblivious-pad``         the same, tables filled up to what they could be      the sizes of the sites' tables, up to a power of two
========================  ====================================================  ================================================================

Each site must allow it: ``policy: {enclave: {simulated: true}}``. The paper's enclaves are Intel's, which keep the key from their host; here the host of the party ``enclave`` could read all rows, and every plan and answer says so.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from atoll.core import message as M
from atoll.core.errors import ConfigError, DataError, LetterError, PolicyError
from atoll.core.event import AttestationSimulated
from atoll.core.exposure import Exposure
from atoll.core.requests.disclosure import Disclosure
from atoll.core.requests.task import task
from atoll.core.sealing import hpke, sealed_nbytes
from atoll.secure import attestation
from atoll.secure.seed_holders import ENCLAVE, Attestation, attestation_of

from ..databases.silo import connect_duckdb, lock_connection, quote
from ..events import write_event
from ..local import message_of, names_of, plan_of, prefix_of, silo_of
from ..plan import ROW, Key
from ..secure import enclave, host_memory
from ..secure.costs import WITHHELD, leaf_layout, measure_extents
from ..secure.enclave import AccessTrace, EnclaveTable, EnclaveTables
from ..secure.host_memory import SealedMemory
from ..secure.near import refuse_near
from ..secure.operators import SecurePlan
from ..secure.plan import make_secure_plan
from ..secure.tables import REPEATED_KEY
from ..statement import SOURCE
from .shared_rows import LocalRows, local_rows, plain_terms, read_arrow, require_size, write_arrow
from .smcql import Smcql, read_answer, shown_operators
from .strategy import CONTACT_NBYTES, ROLE_NBYTES, PlanStep, QueryAnswer, Strategy, promise_min_count
from .sums import finish_cells

if TYPE_CHECKING:
    from atoll.core.execution.session import Peers
    from atoll.core.federation.federation import Federation
    from atoll.core.requests.island import Island

    from ..policy import QueryPolicy
    from ..statement import Catalog, SqlStatement

__all__ = ["MODES", "Opaque", "compute_in_enclave", "measure_sealed", "seal_rows"]

MODES = ("encryption", "oblivious", "oblivious-pad")
_CHALLENGE = 32
_SAYS = "the enclave is simulated: no hardware keeps its memory from its host, who could read all rows"


def _promised_of(args: Any) -> Disclosure:
    return promise_min_count(args["request"]["message"])


# ---------------------------------------------------------------- what all parties make alike


def make_enclave_plan(statement: SqlStatement, catalog: Catalog, policy: QueryPolicy) -> SecurePlan:
    """The operators of a statement, which the enclave computes.

    Raises:
        PolicyError: not every policy lets rows go to an enclave.
        CompositionError: the enclave has no such operator.
    """
    if policy.enclave is None:
        raise PolicyError("not every site lets rows go to one enclave", where="opaque", remedy="let each site write policy: {enclave: {simulated: true}}, with the same root, or use the strategy smcql")  # fmt: skip
    return refuse_near(make_secure_plan(statement, catalog, policy), "opaque")


def _require_mode(plan: SecurePlan, mode: str) -> None:
    """Refuse a mode that tells of fewer units than the strictest policy allows: exact sizes may be those of one person's rows, and DuckDB in the enclave counts no units.

    Raises:
        PolicyError: names the mode.
    """
    if (
        plan.policy.min_count > 1 and mode != "oblivious-pad"
    ):  # at a site by its own policy, whatever the coordinator says
        raise PolicyError(f"min_count is {plan.policy.min_count}, and mode={mode} {'counts no units' if mode == 'encryption' else 'tells how many rows tables have'}", where="opaque", remedy="use opaque:mode=oblivious-pad, or let sites set min_count: 1")  # fmt: skip


def digest_request(request: Mapping[str, Any], plan: SecurePlan) -> bytes:
    """What is computed, in 32 bytes: all that the request says, with the strictest policy as this party knows it."""
    told = {**request, "message": {**request["message"], "policy": plan.policy.told(plan.catalog.tables)}, "sizes": list(request["sizes"].items())}  # fmt: skip
    return hashlib.sha256(json.dumps(plain_terms(told), sort_keys=True).encode()).digest()


@functools.cache
def measure_code() -> bytes:
    """The code that runs in the enclave, in 32 bytes."""
    digest = hashlib.sha256()
    for module in (__file__, enclave.__file__, host_memory.__file__, attestation.__file__):
        digest.update(hashlib.sha256(Path(str(module)).read_bytes()).digest())
    return digest.digest()


def _mode_of(message: Mapping[str, Any]) -> str:
    return str(message["strategy"]["mode"])


def _attested(kind: str, root: str, about: bytes) -> Attestation:
    """The attestation of a measurement: of the code, and of what it computes."""
    measurement = hashlib.sha256(measure_code() + about).hexdigest()
    settings = {"measurement": measurement, **({"root": root} if root else {})}
    return attestation_of({"name": kind, "settings": settings})


def bind_key(challenge: bytes, key: bytes) -> bytes:
    """What a quote answers: a site's challenge, and the key of the enclave."""
    return hashlib.sha256(b"atoll enclave key" + challenge + key).digest()


# ---------------------------------------------------------------- at a site


class SourceRows:
    """The columns of the tables that a statement reads at one site, of one snapshot, as bytes of Arrow."""

    def __init__(self, island: Any, message: Mapping[str, Any], plan: SecurePlan) -> None:
        silo = silo_of(island.data)
        names, self.plan = names_of(silo, plan), plan
        first = island.name == message["first"]
        mine = [table for table in plan.sources if first or plan.policy.table(table).mode != "replicated"]
        prefix = prefix_of(silo, plan, names)
        found = silo.run_all([f"{prefix} SELECT * EXCLUDE ({quote(ROW)}) FROM {quote(SOURCE + table)}" for table in mine], list(names.values()), arrow=True)  # fmt: skip
        rows = dict(zip(mine, found, strict=True))
        self.tables = [write_arrow(rows[table]) if table in rows else b"" for table in plan.sources]
        self.sizes = [len(one) for one in self.tables]
        self.behind = {table: one.num_rows for table, one in rows.items()}


def _source_rows(island: Any, message: Mapping[str, Any], *, fresh: bool) -> SourceRows:
    silo = silo_of(island.data)
    plan = plan_of(silo, message, make_enclave_plan, "opaque")
    if fresh or not isinstance(silo.kept, SourceRows) or silo.kept.plan is not plan:
        silo.kept = SourceRows(island, message, plan)
    kept: SourceRows = silo.kept
    return kept


def _sizes_of(kept: LocalRows, mode: str) -> list[int]:
    """Rows of each leaf that this site tells."""
    if mode == "oblivious-pad":
        return kept.sizes
    return [0 if leaf is None else rows.num_rows for leaf, rows in zip(kept.leaves, kept.rows, strict=True)]


@task(discloses=promise_min_count)
def measure_sealed(island: Any, message: Any) -> Any:
    """How large the tables are that this site will seal: bytes of each, or rows of each leaf, up to a power of two where they are filled up; and how long texts are, in steps of 8 bytes."""
    told, mode = (
        "the number of these rows{}, and the longest text of each column, in steps of 8 bytes",
        _mode_of(message),
    )
    _require_mode(plan_of(silo_of(island.data), message, make_enclave_plan, "opaque"), mode)
    if mode == "encryption":
        source = _source_rows(island, message, fresh=True)
        write_event(island, message, source.plan, "the bytes of these rows", source.behind)
        return {"rows": source.sizes, "words": {}}
    kept = local_rows(island, message, fresh=True, make=make_enclave_plan, by="opaque")
    write_event(island, message, kept.plan, told.format(", up to the next power of two" if mode == "oblivious-pad" else ""), kept.behind)  # fmt: skip
    return {"rows": _sizes_of(kept, mode), "words": kept.widths()}


def _sealed_tables(island: Any, request: Mapping[str, Any]) -> tuple[list[bytes], dict[str, int]]:
    """The bytes that a site seals, of each table, and the rows of each.

    Raises:
        DataError: the coordinator says other sizes of this site than it measured.
    """
    message, mode = request["message"], _mode_of(request["message"])
    told = [int(one) for one in request["sizes"][island.name]]
    if mode == "encryption":
        source = _source_rows(island, message, fresh=False)
        sizes, tables, behind = source.sizes, source.tables, source.behind
    else:
        kept = local_rows(island, message, fresh=False, make=make_enclave_plan, by="opaque")
        kept.number = list(request["sizes"]).index(island.name)
        sizes, tables, behind = _sizes_of(kept, mode), [], kept.behind
        extents = measure_extents(kept.plan, request["sizes"])
        for place, leaf in enumerate(kept.plan.leaves):
            layout = leaf_layout(leaf, request["widths"])
            rows = np.zeros((len(layout) + 1, told[place]), "<u8")
            if told[place] and sizes == told:
                made = kept.encode(place, request["widths"], extents)
                count = kept.rows[place].num_rows
                for k, name in enumerate(layout):
                    rows[k, :count] = np.asarray(made[name]).astype(np.int64 if layout[name] is None else np.uint64).view(np.uint64)  # fmt: skip
                rows[-1, :count] = 1
            tables.append(rows.tobytes())
    if sizes != told:
        raise DataError(f"this site has tables of {sizes}, and {told} are asked for", where=island.name, remedy="ask again: its rows have changed since it was asked how many there are, or the coordinator is lying")  # fmt: skip
    return tables, behind


@task(discloses=_promised_of)
async def seal_rows(island: Island, peers: Peers, *, request: Any) -> Any:
    """Verify the enclave's quote, and send it this site's rows."""
    silo, message = silo_of(island.data), request["message"]
    plan = plan_of(silo, message, make_enclave_plan, "opaque")
    _require_mode(plan, _mode_of(message))
    apart = {*map(str, request["sizes"]), ENCLAVE} ^ {island.name, *peers.names}
    if apart:
        raise LetterError(f"{', '.join(sorted(apart))} takes part in the session alone, or in the statement alone", where="opaque", remedy="ask all sites the same: the coordinator may be lying")  # fmt: skip
    about, allowed = digest_request(request, plan), silo.policy.enclave
    expected = _attested(str(message["strategy"]["attestation"]), "" if allowed is None else allowed.root, about)
    if allowed is None or (expected.simulated and not allowed.simulated):
        raise PolicyError(f"{_SAYS}, and this site does not allow it", where=island.name, remedy="write policy: {enclave: {simulated: true}}, or use the strategy smcql")  # fmt: skip
    (tables, behind), challenge = _sealed_tables(island, request), island.secret.bytes(_CHALLENGE)
    await peers.send(ENCLAVE, challenge)
    told = await peers.recv(ENCLAVE)
    if not isinstance(told, Mapping) or not all(isinstance(told.get(name), bytes) for name in ("key", "quote")):
        raise LetterError("the enclave sent no quote", where="opaque", remedy="look at the enclave")
    expected.verify(told["quote"], bind_key(challenge, told["key"]))
    if _mode_of(message) != "encryption":
        local_rows(island, message, fresh=False, make=make_enclave_plan, by="opaque").record(island)
    # Rows leave after the promise is on disk: of one statement, no second set of owners is answered in a job.
    island.promise(f"owners of the statement {message['sql']}", json.dumps(sorted(map(str, request["sizes"]))))
    write_event(island, message, plan, f"these rows, sealed to the enclave whose {'simulated ' if expected.simulated else ''}quote was verified", behind)  # fmt: skip
    await peers.send(ENCLAVE, attestation.seal_blocks(island.secret, told["key"], about, island.name, tables))
    return {}


# ---------------------------------------------------------------- in the enclave


@task(discloses=_promised_of)
async def compute_in_enclave(island: Island, peers: Peers, *, request: Any) -> Any:
    """Have the key attested, open the blocks of all sites, and compute the answer."""
    message, owners = request["message"], [str(owner) for owner in request["sizes"]]
    plan = plan_of(None, message, make_enclave_plan, "opaque")
    _require_mode(plan, _mode_of(message))
    about, key = digest_request(request, plan), island.secret.bytes(hpke.KEY)
    attested, public = _attested(str(message["strategy"]["attestation"]), "", about), hpke.public_of(key)
    for owner, challenge in (await peers.gather(owners)).items():
        if not isinstance(challenge, bytes) or len(challenge) != _CHALLENGE:
            raise LetterError(f"{owner} sent no challenge", where="opaque", remedy="look at the site")
        await peers.send(owner, {"key": public, "quote": attested.quote(bind_key(challenge, public))})
    letters = await peers.gather(owners)
    tables = {owner: attestation.open_blocks(key, about, owner, letters[owner]) for owner in owners}
    if _mode_of(message) == "encryption":
        return {"cells": _run_plainly(plan, tables), "withheld": [0, 0], "sizes": [], "accesses": [0, 0]}
    trace = AccessTrace(SealedMemory(island.secret.bytes(hpke.KEY)))
    answer, groups, values = read_answer(plan, *run_obliviously(plan, request, tables, trace))
    return {
        "cells": _unordered(plan, [[_text(value) for value in row] for row in answer]),
        "withheld": [-1 if groups is None else groups, values],
        "sizes": trace.sizes,
        "accesses": [trace.steps, int(trace.digest[:15], 16)],
    }


def _text(value: Any) -> str | None:
    """A value as DuckDB reads it again."""
    return None if value is None else f"{value:f}" if isinstance(value, Decimal) else str(value)


def _unordered(plan: SecurePlan, rows: list[list[str | None]]) -> list[list[str | None]]:
    """Rows in an order of their own, unless the statement orders them: that of the owners would say whose a row is."""
    if plan.statement.tree.args.get("order") is None:
        rows.sort(key=lambda row: [(cell is not None, cell or "") for cell in row])
    return rows


def _run_plainly(plan: SecurePlan, tables: Mapping[str, Sequence[bytes]]) -> list[list[str | None]]:
    """The answer's cells as text, by DuckDB over the rows of all sites."""
    with connect_duckdb(memory=plan.policy.memory, threads=1) as database:
        for place, table in enumerate(plan.sources):
            types = plan.catalog.tables[table]
            columns = ", ".join(f"{quote(name.lower())} {kind}" for name, kind in types.items())
            database.execute(f"CREATE TABLE {quote(table)} ({columns})")
            for own in tables.values():
                if own[place]:
                    database.register("atoll_rows", read_arrow(own[place]))
                    database.execute(f"INSERT INTO {quote(table)} BY NAME SELECT * FROM atoll_rows")
                    database.unregister("atoll_rows")
        for whole, text in plan.statement.calls:
            if whole in plan.catalog.vertical:  # a table whose columns lie apart is a join of its parts
                database.execute(f"CREATE VIEW {quote(whole)} AS {text}")
        lock_connection(database)
        _require_claims(plan, database)
        try:
            database.execute(f"CREATE TEMP TABLE answer AS {plan.statement.pooled}")
        except Exception:  # DuckDB's words may quote a value
            raise DataError("the statement fails for some row, or needs more memory than policies allow", where="opaque", remedy="use TRY_CAST and conditions for rows where an expression has no value, or another mode") from None  # fmt: skip
        names = [str(row[0]) for row in database.execute("DESCRIBE answer").fetchall()]
        shown = ", ".join(f"CAST({quote(name)} AS VARCHAR)" for name in names)
        rows = [list(row) for row in database.execute(f"SELECT {shown} FROM answer").fetchall()]
    return _unordered(plan, rows)


def _require_claims(plan: SecurePlan, database: Any) -> None:
    """Refuse rows of which more have one value than policies say of a column that joins, as the other modes do.

    Raises:
        DataError: names no value.
    """
    for table, column, most in dict.fromkeys(claim for leaf in plan.leaves for claim in leaf.claims):
        counted = f"SELECT count(*) AS n FROM {quote(table)} WHERE {quote(column)} IS NOT NULL GROUP BY {quote(column)}"
        ((seen,),) = database.execute(f"SELECT coalesce(max(n), 0) FROM ({counted})").fetchall()
        if seen > most:
            raise DataError(f"{REPEATED_KEY}: {table}.{column}", where="opaque", remedy="correct key or at_most in the policy")  # fmt: skip


def run_obliviously(plan: SecurePlan, request: Mapping[str, Any], tables: Mapping[str, Sequence[bytes]], trace: AccessTrace) -> tuple[dict[str, Any], dict[str, Any] | None]:  # fmt: skip
    """The columns of the answer's rows; and of the number of groups that are left out, if any can be, which has no row if few units stand behind these.

    Args:
        plan: the plan.
        request: the sizes of each owner's tables, the words of texts, and in its message the mode.
        tables: owner -> the bytes of each leaf's rows.
        trace: what the enclave's host sees.
    """
    leaves = []
    for place, leaf in enumerate(plan.leaves):
        names = list(leaf_layout(leaf, request["widths"]))
        parts = [np.zeros((len(names) + 1, 0), np.uint64)]
        for owner, own in tables.items():
            size = int(request["sizes"][owner][place])
            if len(own) != len(plan.leaves) or len(own[place]) != 8 * size * (len(names) + 1):
                raise LetterError(f"{owner} sealed another table than it said", where="opaque", remedy="look at the site")  # fmt: skip
            parts.append(np.frombuffer(own[place], "<u8").reshape(len(names) + 1, size).astype(np.uint64))
        rows = np.concatenate(parts, axis=1)
        rows = rows if rows.shape[1] else np.zeros((len(names) + 1, 1), np.uint64)  # a table has a row
        leaves.append(EnclaveTable(dict(zip(names, rows, strict=False)), rows[-1] == 1, trace))
    tables_of = EnclaveTables(leaves, trace, told=_mode_of(request["message"]) == "oblivious")
    made = tables_of.make(plan.root)
    few = None
    if plan.withheld is not None:
        left = tables_of.make(plan.withheld)
        few = {WITHHELD: left.columns[WITHHELD][left.valid].view(np.int64)}
    kept = made.keep_columns(plan.shown_of(made.columns))
    numbers = {one.name for one in plan.shown if one.number or one is plan.copies}
    return {name: x[kept.valid].view(np.int64) if name in numbers else x[kept.valid] for name, x in kept.columns.items()}, few  # fmt: skip


# ---------------------------------------------------------------- the strategy


@dataclass(frozen=True)
class Opaque(Strategy):
    """Any statement that the operators under shares answer, in a simulated enclave.

    Attributes:
        mode: ``"encryption"``, ``"oblivious"`` or ``"oblivious-pad"``.
        attestation: the kind of attestation by which sites know the enclave, by the name of its class.
    """

    name: ClassVar[str] = "opaque"
    shares_rows: ClassVar[bool] = True
    party: ClassVar[str] = ENCLAVE
    by_name: ClassVar[str] = "its enclave is simulated: ask for opaque by its name"

    mode: str = "oblivious"
    attestation: str = "SignedAttestation"

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise ConfigError(f"mode={self.mode!r}", where="opaque", remedy=f"use {', '.join(MODES)}")

    def plan(self, statement: SqlStatement, catalog: Catalog, policy: QueryPolicy) -> SecurePlan:
        """A plan of the operators; see `atoll.query.secure.plan`."""
        made = make_enclave_plan(statement, catalog, policy)
        _require_mode(made, self.mode)
        simulated = _attested(self.attestation, "", b"").simulated
        if simulated and not (policy.enclave and policy.enclave.simulated):
            raise PolicyError(f"{_SAYS}, and not every site allows it", where=self.name, remedy="let each site write policy: {enclave: {simulated: true}}, or use the strategy smcql")  # fmt: skip
        return made

    def steps(self, plan: SecurePlan) -> Sequence[PlanStep]:
        """The steps of a plan, in order."""
        place = f"{ENCLAVE} (simulated)"
        sealed = f"verify the enclave's quote, and seal {'these tables' if self.mode == 'encryption' else 'these rows'} to its key, in blocks"  # fmt: skip
        if self.mode == "encryption":
            read = [f"{table}: {', '.join(columns)}" for table, columns in plan.sources.items()]
            computed = [PlanStep(place, "plain", f"DuckDB: {plan.statement.text}")]
        else:
            read = [leaf.text for leaf in plan.leaves]
            computed = [PlanStep(place, "oblivious", one.what) for one in shown_operators(plan)]
            computed.append(PlanStep(place, "plain", plan.finish))
        return [*(PlanStep("each site", "plain", one) for one in read), PlanStep("each site", "sealed", sealed), *computed]  # fmt: skip

    def exposures(self, plan: SecurePlan) -> Sequence[Exposure]:
        """What a plan gives away: with hardware to the enclave's host no more than sizes; without it everything."""
        tables = ", ".join(plan.sources)
        sizes = {
            "encryption": f"how many bytes the columns of {tables} have that the statement reads, of each site",
            "oblivious": f"how many rows of {tables} each site sends, and the length of the longest text of each column, in steps of 8 bytes",
            "oblivious-pad": f"how many rows of {tables} each site has, up to the next power of two, and the length of the longest text of each column, in steps of 8 bytes",
        }[self.mode]
        seen = {
            "encryption": "which rows are read, and when",
            "oblivious": "how many rows the tables on the way have; which rows are read depends on these sizes alone",
            "oblivious-pad": "nothing else; which rows are read depends on these sizes alone",
        }[self.mode]
        return [
            Exposure(f"coordinator, {ENCLAVE}'s host", sizes, "", "sizes"),
            Exposure(f"{ENCLAVE}'s host", seen, "an enclave's hardware hides its memory; this one has none"),
            Exposure(
                f"{ENCLAVE}'s host", f"all rows of {tables} that are sent, in columns that the statement reads", _SAYS
            ),
            Exposure("coordinator, analyst", "the answer", "", "sum"),
        ]

    # ------------------------------------------------------------------ costs

    def predict_cost(self, plan: SecurePlan, sites: int, groups: Sequence[Sequence[str | None]] = ((),)) -> float:
        """Bytes for 256 rows of each table at each site, as long as nobody knows how many there are."""
        del groups
        sizes = Smcql.guess_sizes(plan, sites)
        if self.mode == "encryption":
            sizes = {name: [256 * 8 * len(columns) for columns in plan.sources.values()] for name in sizes}
        return self._cost(plan, sizes, {}, 256.0)

    def predict_rounds(self, plan: SecurePlan, sites: int) -> int:
        """Two contacts with the sites; a challenge, a quote and rows."""
        del plan, sites
        return 5

    def predict_answer(self, plan: SecurePlan, sites: int, answer: QueryAnswer) -> float:
        """Bytes for the sizes that the sites told."""
        return self.predict_cost(plan, sites) if answer.expected is None else answer.expected

    def _cost(self, plan: SecurePlan, sizes: Mapping[str, Sequence[int]], widths: Mapping[str, int], answer: float) -> float:  # fmt: skip
        """Bytes for sizes of tables and bytes of the answer."""
        asked = float(M.nbytes(message_of(plan.statement, plan.catalog, plan.policy, next(iter(sizes)), self)))
        words = float(M.nbytes({"sizes": {name: list(own) for name, own in sizes.items()}, "widths": dict(widths)}))
        roles, sent = len(sizes) + 1, 0.0
        layouts = [len(leaf_layout(leaf, widths)) + 1 for leaf in plan.leaves]
        for own in sizes.values():
            tables = list(own) if self.mode == "encryption" else [8 * size * columns for size, columns in zip(own, layouts, strict=True)]  # fmt: skip
            letter = sum(size + max(1, math.ceil(size / 65536)) * (hpke.TAG + 3) for size in tables) + 90
            sent += sealed_nbytes(letter) + sealed_nbytes(_CHALLENGE + 2) + sealed_nbytes(180)
        return len(sizes) * (asked + 2 * CONTACT_NBYTES) + roles * (asked + words + ROLE_NBYTES) + 2 * sent + answer

    # ------------------------------------------------------------------ the run

    async def run(self, fed: Federation, plan: SecurePlan, message: Mapping[str, Any]) -> QueryAnswer:
        """Carry a plan out."""
        sizes, widths, _ = await Smcql.measure(fed, message, measure_sealed)
        if self.mode != "encryption":
            require_size(plan, sizes)
        if _attested(self.attestation, "", b"").simulated:
            fed.world.note(AttestationSimulated)
        request = {"message": dict(message), "sizes": sizes, "widths": widths}
        roles = {name: (name, seal_rows.with_args(request=request)) for name in sizes}
        got = (await fed.session({**roles, ENCLAVE: (ENCLAVE, compute_in_enclave.with_args(request=request))}))[ENCLAVE]
        statement = plan.statement
        kinds = tuple(Key(f"c{k}", kind) for k, kind in enumerate(statement.types))
        shown = ", ".join(f"k{k} AS {quote(name)}" for k, name in enumerate(statement.columns))
        finish = SimpleNamespace(keys=kinds, aggregates=(), catalog=plan.catalog, finish=f"SELECT {shown} FROM cells")
        rows, size = finish_cells(finish, [tuple(row) for row in got["cells"]]), float(M.nbytes(got))
        noted = {"sizes": [int(one) for one in got["sizes"]], "accesses": [int(one) for one in got["accesses"]]}
        groups, values = (int(one) for one in got["withheld"])
        return QueryAnswer(statement.columns, statement.types, rows, None if groups < 0 else groups, values, rounds=5, sizes=sizes, widths=widths, expected=self._cost(plan, sizes, widths, size), noted=noted)  # fmt: skip
