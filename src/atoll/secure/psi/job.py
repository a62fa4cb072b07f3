"""`Alignment`: the job, and `align_parties`, which any program can await."""

from __future__ import annotations

import csv
import functools
import hashlib
import io
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from atoll.core.errors import CompositionError, ConfigError
from atoll.core.event import Event, NonPrivate
from atoll.core.exposure import Explanation
from atoll.core.job import Job, Prepared, name_of
from atoll.core.rooms import part_names
from atoll.core.validation import Checked, require_parts

from .ecdh import Ecdh
from .keys import BETWEEN, name_rows_without_key
from .protocol import CHUNK, RESULTS, AlignmentPlan, PsiProtocol, intersect_keys, tell_program

if TYPE_CHECKING:
    from atoll.core.federation.federation import Federation

__all__ = ["Aligned", "Alignment", "align_parties", "write_keys"]


EXAMPLE = 1000
"""Keys of a party in an explanation without data."""


COSTS = {
    "key": 5.0, "point": 19.0, "raise": 53.0, "check": 6.0, "base transfer": 170.0, "row": 2.5, "mask": 1.5, "cell": 1.5, "bit": 0.85,
    "cipher": 1400.0, "cipher key": 200_000.0,
}  # fmt: skip
"""Microseconds of one operation, of all roles that take part in it, on a processor that makes a short hash in ``_HASH``: measured on one core of a Xeon."""
_HASH = 0.44
HEADER = 212
"""Bytes of a message beside its array: names, kinds, and the seal."""


def predict_seconds(work: Mapping[str, int]) -> float:
    """Processor seconds of some operations on this machine, all roles together: those of `COSTS`, scaled by the time of 20,000 hashes here.

    Args:
        work: how many there are of each name, as `PsiProtocol.work` says.
    """
    return sum(COSTS[name] * count for name, count in work.items()) * 1e-6 * _slowness()


@functools.cache
def _slowness() -> float:
    """How much slower a short hash is here than where `COSTS` were measured: the best of several, since others may use the processor."""
    found = []
    for _ in range(5):
        start = time.process_time()
        for i in range(4000):
            hashlib.blake2b(b"%d" % i, digest_size=16).digest()
        found.append((time.process_time() - start) / 4000)
    return min(found) * 1e6 / _HASH


@dataclass(frozen=True)
class Aligned:
    """What the roles of an alignment have told the program.

    Attributes:
        sizes: number of distinct keys of each party.
        count: number of shared keys; ``None`` if no role told it.
        sum: the sum; ``None`` if there is none, or no role told it.
        names: the shared keys in the order of u, of each party that learned and told them.
    """

    sizes: Mapping[str, int] = field(default_factory=dict)
    count: int | None = None
    sum: float | None = None
    names: Mapping[str, Sequence[str]] = field(default_factory=dict)


async def align_parties(
    fed: Federation, parties: Sequence[str], protocol: PsiProtocol, plan: AlignmentPlan, *, show: bool = False, at: Any = None
) -> Aligned:  # fmt: skip
    """Align parties in one session. Each keeps its rows in ``island.state[plan.label]``; see `intersect_keys`.

    Args:
        fed: the federation.
        parties: the parties, as ``plan.roles`` names them.
        protocol: the protocol.
        plan: the settings.
        show: whether parties tell the program what they learned; otherwise it gets only their sizes.
        at: label of the session, as in ``Federation.session``.

    Raises:
        CompositionError: the protocol cannot carry the plan.
    """
    protocol.require_plan(plan)
    args = {"protocol": protocol.spec(), "plan": plan.spec(), "show": show}
    told = await fed.session({name: (name, intersect_keys.with_args(me=name, **args)) for name in parties}, at=at)
    return Aligned(
        {name: int(one["size"]) for name, one in told.items()},
        next((int(one["count"]) for one in told.values() if one["count"] is not None), None),
        next((one["total"] for one in told.values() if one["total"] is not None), None),
        {name: tuple(one["names"]) for name, one in told.items() if one["names"] is not None},
    )


@dataclass(frozen=True, kw_only=True)
class Alignment(Checked, Job):
    """Find which keys two or more parties share, without showing the others.

    Every party has a table with a column of keys. Keys are text, without outer blanks and in one form of Unicode; see `RowKeys`. All parties have their shared rows in one
    order, which follows from the keys and the seed. The rows stay at the parties under ``label``, for later jobs there (``island.left("aligned")``).

    Attributes:
        protocol: how, such as `Ecdh`.
        id: the column of keys, or several, whose values together are the key.
        result: ``"ids"``, ``"count"``, ``"sum:PARTY.COLUMN"``: the sum of a party's column over the rows of shared keys, or ``"shares:PARTY.COLUMN,PARTY.COLUMN"``: shares of who is
            shared, and of columns, on which programs compute (`read_shares`).
        to: the parties that learn the result; by default all.
        superset: for ids that one party learns, the share of the other's keys among which the shared ones hide from it, up to 1 for all. Both then have the same number of rows in one order, and the
            party in ``to`` has -1 for those that are not shared.
        min_count: for a sum and for shares, the smallest number of shared keys behind them.
        key: how two texts of one number, such as "7" and "007" in one column, count: ``"text"`` as two keys, ``"number"`` as one. By default they are refused.
        show: whether the program learns the result too; otherwise it stays at the parties.
        order: the seed of the order.
        label: name of what stays at the parties.
        row_offset: added to row numbers in errors; a table of a CSV file counts its lines by itself.
        fraction: bits after the point of the values that `Circuit` adds up: they are rounded to multiples of ``2^-fraction``, and their sum stays below ``2^(62 - fraction)``. Other protocols add up
            values as they are.
    """

    kind: ClassVar[str] = "psi"
    missing_features: ClassVar[bool] = True
    reads: ClassVar[str] = "table"
    method: ClassVar[str] = "protocol"

    protocol: PsiProtocol = field(default_factory=Ecdh)
    id: str | Sequence[str] = "id"
    result: str = "ids"
    to: Sequence[str] = ()
    min_count: int = 1
    superset: float = 0.0
    key: Literal["text", "number"] | None = None
    show: bool = False
    order: int = 0
    label: str = "aligned"
    row_offset: int = 0
    fraction: int = 20

    def __post_init__(self) -> None:
        require_parts(self, {"protocol": (PsiProtocol, "atoll.secure.psi.Ecdh()")})
        if isinstance(self.to, str):
            raise ConfigError(f"to={self.to!r}", where="Alignment", remedy=f"give a list: to=[{self.to!r}]")
        kind, _, column = self.result.partition(":")
        if kind not in RESULTS or (kind == "sum" and not column) or (column and kind not in ("sum", "shares")):
            raise ConfigError(f"result={self.result!r}", where="Alignment", remedy="use 'ids', 'count', 'sum:PARTY.COLUMN' or 'shares:PARTY.COLUMN,…'")  # fmt: skip
        if self.min_count > 1 and kind not in ("sum", "shares"):
            raise ConfigError(f"min_count={self.min_count} with result={self.result!r}", where="Alignment", remedy="leave min_count out: it guards a sum and shares; a site's policy has min_aligned for all results")  # fmt: skip
        more: dict[str, Any] = {"column": "c", "holder": "a"} if kind == "sum" else {}
        more["fraction"] = self.fraction
        self.protocol.require_plan(AlignmentPlan(("id",), ("a", "b"), kind, **more))  # before there are parties

    def names(self) -> tuple[str, ...]:
        """The kind, the protocol, and the one that finds the result in its place, which a site's policy can allow or refuse."""
        kinds = dict.fromkeys([type(self.protocol), type(self.carrier)])
        return (*super().names(), *map(name_of, kinds))

    @classmethod
    def known_names(cls) -> tuple[str, ...]:
        """The kind and all protocols."""
        return (*super().known_names(), *part_names("alignment protocol"))

    @property
    def carrier(self) -> PsiProtocol:
        """The protocol that finds the result."""
        return self.protocol.carrier(self.result.partition(":")[0])

    def notices(self) -> Sequence[str]:
        """What you would not expect of the protocol: a sentence if another one finds the result."""
        name, carrier, kind = type(self.protocol).__name__, type(self.carrier).__name__, self.result.partition(":")[0]
        found = [f"{name} shows one party which keys match, so {carrier} found the {kind}"] if carrier != name else []
        if kind in ("sum", "shares") and self.carrier.rounds:
            found.append(f"{carrier} rounds values to multiples of 2^-{self.fraction}: the sum is exact for those, and for others off by up to 2^-{self.fraction + 1} a row; fraction sets the bits")  # fmt: skip
        return found

    @property
    def key_columns(self) -> Sequence[str]:
        """The columns of keys."""
        return (self.id,) if isinstance(self.id, str) else tuple(self.id)

    def plan(self, parties: Sequence[str]) -> AlignmentPlan:
        """The settings that the roles share.

        Args:
            parties: names of the parties.

        Raises:
            ConfigError: a party is unknown, or there are fewer than two.
            CompositionError: the protocol cannot carry them.
        """
        kind, _, column = self.result.partition(":")
        more: dict[str, Any] = {}
        if kind == "sum":
            holders = [name for name in parties if column.startswith(f"{name}.")]
            if not holders:
                raise ConfigError(f"result={self.result!r} names no party", where="Alignment", remedy=f"write sum:PARTY.COLUMN with a party of {', '.join(parties)}")  # fmt: skip
            more["holder"] = max(holders, key=len)
            more["column"] = column.removeprefix(f"{more['holder']}.")
        elif column:
            more["payload"] = tuple(name.strip() for name in column.split(","))
        made = AlignmentPlan(self.key_columns, tuple(parties), kind, tuple(self.to), min_count=self.min_count, superset=self.superset, seed=self.order, key=self.key, label=self.label, row_offset=self.row_offset, fraction=self.fraction, **more)  # fmt: skip
        self.protocol.require_plan(made)
        return made

    def explain(self, data: Any = None, clients: int = 0) -> Explanation:
        """Return the protocol's contract: its frames with their bytes, and what each party learns of another."""
        names = [f"party {i + 1}" for i in range(clients or 2)] if data is None else list(data.names)
        if data is None and ":" in self.result:  # parties that the result names
            named = dict.fromkeys(one.strip().partition(".")[0] for one in self.result.partition(":")[2].split(","))
            names = [*names[: max(0, len(names) - len(named))], *named]
        plan = self.plan(names)
        sizes = {
            name: EXAMPLE if data is None else count_rows(data, i, plan.columns[0]) for i, name in enumerate(names)
        }
        contract = self.protocol.contract(plan, sizes)
        if self.show:
            contract = tell_program(contract, plan)
        notes = [*self.notices(), "no differential privacy: the result has no noise", "parties follow the protocol with their true keys: a party that claims keys of others learns whether they are shared"]  # fmt: skip
        costs: dict[str, Any] = {}
        if data is None:
            notes.append(f"frames are those of {EXAMPLE:,} keys at each party: give a configuration with data")
        costs["bytes"] = contract.nbytes
        costs["bytes_with_headers"] = contract.nbytes + HEADER * sum(-(-one.nbytes // CHUNK) for one in contract.frames)
        work = self.protocol.work(plan, sizes)
        if work:
            costs["processor_seconds"] = round(predict_seconds(work), 4)
        return Explanation(self.title, len(names), contract.learns, costs, tuple(notes), contract.frames)

    def prepare(self, data: Any) -> Prepared:
        """Make the plan for these parties.

        Raises:
            ConfigError: a party is unknown, or there are fewer than two.
        """
        names = [str(name) for name in data.names]
        if len(names) < 2:
            raise CompositionError(f"{len(names)} party", where="Alignment", remedy="give two or more")
        return _PreparedAlignment(self, names, self.plan(names), data)


class _PreparedAlignment(Prepared):
    def __init__(self, job: Alignment, parties: Sequence[str], plan: AlignmentPlan, data: Any) -> None:
        self.job, self.parties, self.plan, self._data = job, parties, plan, data

    async def program(self, fed: Federation) -> Aligned:
        """Hold the session."""
        await fed.restore(None)
        return await align_parties(fed, self.parties, self.job.protocol, self.plan, show=self.job.show)

    def most(self, rows: int) -> Sequence[Event]:
        """Return one release without noise."""
        del rows
        return (NonPrivate(what=f"the {self.plan.result} of keys that it shares"),)

    def notices(self, rows: Sequence[Mapping[str, Any]]) -> Sequence[str]:
        """Return what holds for any job, which protocol took another one's place, and how many rows had no key."""
        return [*super().notices(rows), *self.job.notices(), *name_rows_without_key(self._data, self.plan.columns)]

    def facts(self, outcome: Aligned) -> Mapping[str, Any]:
        """Return sizes, count and sum."""
        return {"result": {"sizes": dict(outcome.sizes), "count": outcome.count, "sum": outcome.sum}}

    def files(self, outcome: Aligned) -> Mapping[str, bytes]:
        """Return the shared keys, a line each below a header, if the parties told them."""
        if not outcome.names:
            return {}
        return {"shared.csv": write_keys(self.plan.columns, next(iter(outcome.names.values()))).encode()}


def write_keys(columns: Sequence[str], names: Sequence[str]) -> str:
    """Keys as CSV, a line each below the names of their columns."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(split_keys(names))
    return file.getvalue()


def split_keys(names: Sequence[str]) -> list[list[str]]:
    """Keys as the values of their columns."""
    return [name.split(BETWEEN) for name in names]


def count_rows(data: Any, position: int, column: str) -> int:
    """The number of rows of a party: a bound on the number of its keys that needs no look at them."""
    if getattr(data, "sizes", None) is not None:
        return int(data.sizes[position])
    table = data.shard(position)
    return len(table[column]) if isinstance(table, Mapping) else len(table)
