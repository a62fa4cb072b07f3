"""`VerticalStatistics`: what columns at several parties say of the guest's labels, and of each other, before anyone trains.

* ``woe``: each column is cut into bins. Of a bin with ``e`` of all ``E`` rows of a class, and ``o`` of the ``O`` others, the *weight of evidence* is ``ln((e / E) / (o / O))``, and the
  *information value* of the column the sum over its bins of ``(e / E - o / O)`` times it (Siddiqi 2006). Where e or o is 0, 1/2 is added to both, as in FATE. The guest encrypts for each row
  whether it is of the class. A host adds the ciphertexts of each bin up, and the guest decrypts these counts alone.
* ``correlation``: Pearson's, of all pairs of columns, a missing value as the column's mean. One party encrypts its columns, the other multiplies them with its own and adds up (`atoll.vertical.linear.sealed`), and the first
  decrypts the sums, which are the correlations.

Both are exact. The parties follow the protocol: a host that cuts two columns so that their bins differ in one row learns the label of that row.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from atoll.core.errors import CompositionError, ConfigError
from atoll.core.exposure import Explanation, Exposure
from atoll.core.job import Job, Prepared
from atoll.core.persistence.named_results import NamedResults
from atoll.core.requests.task import Task
from atoll.core.validation import Checked, require_parts
from atoll.secure.encrypted import JoinedFields, KeyOwner, Paillier, SealedVector
from atoll.secure.encrypted.vectors import time_product
from atoll.secure.psi import PsiProtocol
from atoll.secure.psi.job import align_parties
from atoll.trees.objectives import SOFTMAX, SQUARED

from .job import Vertical, find_shared_rows, require_no_labels
from .linear.protocols import PaillierColumns
from .linear.rows import read_numbers
from .linear.sealed import ColumnFields, PeerColumns, require_ciphertexts
from .model import ColumnScales, require
from .tables import PartyTable, read_labels

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.core.execution.session import Peers
    from atoll.core.federation.federation import Federation
    from atoll.core.requests.island import Island, Secret

__all__ = ["BinnedColumn", "VerticalStatistics", "VerticalStatisticsResult", "bin_columns", "weigh_counts"]

STATISTICS = "vertical-statistics"
"""The name under which each party keeps what it learned."""
_MOST_BINS = 256
_MOST_COLUMNS = 1 << 16


@dataclass(frozen=True, kw_only=True)
class VerticalStatistics(Checked, Job):
    """Weights of evidence, or correlations, of columns that lie at several parties, for rows that they share. One party, the guest, has the labels.

    Attributes:
        statistic: ``woe``: what each column says of the labels; or ``correlation``: what the columns say of each other.
        bins: ``woe``: most bins of a column of numbers, between quantiles of its known values. Missing values are a bin of their own.
        min_bin_rows: ``woe``: bins of fewer rows are joined with a neighbour, rare categories with each other.
        align: see `Vertical`, as those that follow.
        guest: the party with the labels; by default the first.
        hosts: the other parties, in order.
        id: the column of the keys.
        label: the column of the labels at the guest. Among correlations it is one more column: numbers, or 0 and 1 for two classes; more classes are left out.
        task: what the labels are.
        test: share of the shared rows left out: the rows that a training with the same ``order`` holds out.
        order: the seed of the order of rows.
        key: how two texts of one number among the keys count.
        repeats: ``"first"`` takes the first row of a key that stands in several rows.
        categories: ``woe``: columns whose numbers are codes of categories; text is categories anyway.
        min_aligned: least number of shared rows.
        cipher: the encryption.
        short_exponents: whether noise has exponents of 448 bits, see `VerticalLinear`.
    """

    kind: ClassVar[str] = "vertical-statistics"
    reads: ClassVar[str] = "table"
    missing_features: ClassVar[bool] = True

    statistic: Literal["woe", "correlation"] = "woe"
    bins: int = 10
    min_bin_rows: int = 10
    align: PsiProtocol | None = None
    guest: str | None = None
    hosts: Sequence[str] = ()
    id: str = "id"
    label: str = "y"
    task: Literal["auto", "binary", "multiclass", "regression"] = "auto"
    test: float = 0.0
    order: int = 0
    key: Literal["text", "number"] | None = None
    repeats: Literal["first"] | None = None
    categories: Sequence[str] = ()
    min_aligned: int = 10
    cipher: Paillier = field(default_factory=Paillier)
    short_exponents: bool = False

    def __post_init__(self) -> None:
        require_parts(self, {"cipher": (Paillier, "atoll.secure.encrypted.Paillier()")})
        bounds = (
            ("statistic", self.statistic in ("woe", "correlation"), "use woe or correlation"),
            ("bins", 2 <= self.bins <= _MOST_BINS, f"use 2 to {_MOST_BINS} bins"),
            ("min_bin_rows", self.min_bin_rows >= 1, "use at least 1 row"),
        )
        for name, good, remedy in bounds:
            if not good:
                raise ConfigError(f"{name}={getattr(self, name)!r}", where="VerticalStatistics", remedy=remedy)
        given = (self.categories,) if isinstance(self.categories, str) else tuple(self.categories)
        object.__setattr__(self, "categories", given)
        if given and self.statistic != "woe":
            raise CompositionError(
                f"categories={list(given)} with statistic={self.statistic!r}",
                where="VerticalStatistics",
                remedy="use statistic='woe', or leave these columns out of the tables",
            )
        object.__setattr__(self, "hosts", self.training.hosts)

    @property
    def training(self) -> Vertical:
        """A training of the same parties and rows, which refuses what it would."""
        names = ("align", "guest", "hosts", "id", "label", "task", "test", "order", "key", "repeats", "min_aligned")
        return Vertical(**{name: getattr(self, name) for name in names})

    def names(self) -> tuple[str, ...]:
        """The kind, the statistic and the alignment, which a site's policy can allow or refuse."""
        return (*super().names(), self.statistic, *([] if self.align is None else [type(self.align).__name__]))

    @property
    def key_columns(self) -> Sequence[str]:
        """The column of keys."""
        return (self.id,)

    def prepare(self, data: Any) -> Prepared:
        """Name the roles.

        Raises:
            ConfigError: there are fewer than two parties, or none is the guest.
            CompositionError: the alignment cannot carry so many parties.
        """
        roles = self.training.roles(data.names)
        self.training.plan(roles)
        return _PreparedStatistics(self, roles)

    def explain(self, data: Any = None, clients: int = 0) -> Explanation:
        """Who learns what."""
        parties = self.training.roles(data.names) if data is not None else ["guest", "host"]
        told = self.learns(parties)
        return Explanation(
            self.title, len(parties), tuple(Exposure(who, what) for who, lines in told.items() for what in lines)
        )

    def learns(self, parties: Sequence[str]) -> dict[str, list[str]]:
        """What each party learns of the others: party -> sentences."""
        job = self.training
        contract = job.protocol(len(parties)).contract(job.plan(parties), dict.fromkeys(parties, 0))
        made = {name: [one.sees for one in contract.learns if one.who == name] for name in parties}
        assumed = "Paillier's assumption" + (" and noise with exponents of 448 bits" if self.short_exponents else "")
        sealed = f"nothing of another's single rows: ciphertexts of {self.cipher.key_bits} bits, under {assumed}"
        guest, *hosts = parties
        if self.statistic == "correlation":
            for name in parties:
                made[name] += [sealed, "how many columns each other party has, and which are constant", "the correlation of each of its own columns with each column of every other party"]  # fmt: skip
            return made
        made[guest] += [
            "how many columns each host has, how many rows are in each of their bins, and how many of these are of each class; not which rows, nor which columns or bins"
        ]
        for name in hosts:
            made[name] += [sealed, f"the weight of evidence of each of its own bins, of {self.min_bin_rows} rows or more, and so how many rows of each class are in it"]  # fmt: skip
        return made

    def read_result(
        self, folders: Mapping[str, Path], cost: Mapping[str, float] | None = None
    ) -> VerticalStatisticsResult:
        """The result of parties whose folders of named results are all at hand; see `VerticalResult.read`."""
        parties = self.training.roles(list(folders))
        replies: dict[str, Any] = {name: NamedResults(folders[name]).get(name, STATISTICS) for name in parties}
        return VerticalStatisticsResult(self, tuple(parties), replies, dict(cost or {}))

    def predict_cost(self, keys: Mapping[str, int], columns: Sequence[int], outputs: int = 1) -> dict[str, float]:
        """Seconds of all parties' processors and bytes between them, before anyone is contacted.

        Args:
            keys: party -> its number of keys, the guest first.
            columns: how many columns each has, in the same order.
            outputs: classes, 1 for two.
        """
        job, bits = self.training, self.cipher.key_bits
        rows = max(1, round(min(keys.values()) * (1 - self.test)))
        made = job.predict_alignment(keys)
        self.cipher.require()
        whole, half = time_product(2 * bits), time_product(bits)
        encrypted, products, sent = 0.0, 0.0, 0.0
        if self.statistic == "woe":
            encrypted, others = rows, sum(columns[1:])
            products = rows * (others + 3 * len(columns[1:]))
            per = JoinedFields(outputs, 1, rows).per_plaintext(bits)
            sent = rows * len(columns[1:]) + math.ceil(others * (self.bins + 1) / per)
        else:
            counts = [ColumnFields(rows, each + (i == 0), bits).count for i, each in enumerate(columns)]
            for i, count in enumerate(counts[:-1]):
                later = columns[i + 1 :]
                encrypted += rows * count
                products += count * sum(later) * (rows * 6 + 6 * 4 * 256 + 1.2 * bits)
                sent += count * (rows * len(later) + sum(later))
        noise = 448 if self.short_exponents else bits // 2
        made["seconds"] += encrypted * 2 * noise / 8 * half + products * whole
        made["bytes"] += sent * bits / 4
        return made


@dataclass(frozen=True)
class BinnedColumn:
    """A column in bins.

    Attributes:
        name: of the column.
        names: of the bins.
        index: the bin of each row.
    """

    name: str
    names: tuple[str, ...]
    index: NDArray[np.int64]

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Rows of each bin."""
        return np.bincount(self.index, minlength=len(self.names)).astype(np.int64)


def bin_columns(table: PartyTable, rows: NDArray[np.int64], bins: int, least: int) -> list[BinnedColumn]:
    """All columns of a party in bins of at least so many rows, or in one.

    Numbers are cut at quantiles of the known ones, as ``pandas.qcut`` does; a bin has its upper end. A missing value is in the last bin, or in the largest if they are too few.

    Args:
        table: the party's table.
        rows: the rows that count, in order.
        bins: most bins of known numbers.
        least: least number of rows of a bin.
    """
    made, j = [], 0
    for name in table.features:
        if name in table.categories:
            names = table.categories[name]
            x = table.x[rows, j : j + len(names)]
            j += len(names)
            made.append(_bin_categories(name, names, x, least))
        else:
            made.append(_bin_numbers(name, np.asarray(table.x[rows, j], np.float64), bins, least))
            j += 1
    return made


def _bin_numbers(name: str, x: NDArray[np.float64], bins: int, least: int) -> BinnedColumn:
    known = ~np.isnan(x)
    cuts = np.unique(np.quantile(x[known], np.linspace(0, 1, bins + 1)))[1:-1] if known.any() else np.zeros(0)
    sizes = np.bincount(np.searchsorted(cuts, x[known], side="left"), minlength=len(cuts) + 1)
    kept, held = [], 0
    for cut, size in zip(cuts.tolist(), sizes.tolist(), strict=False):
        held += size
        if held >= least:
            kept.append(cut)
            held = 0
    if kept and held + sizes[-1] < least:
        kept.pop()
    shown = [f"{cut:.6g}" for cut in kept]
    names = [f"<= {one}" for one in shown] + [f"> {shown[-1]}" if shown else "known"]
    return _with_missing(name, names, np.searchsorted(np.array(kept), x, side="left"), known, least)


def _bin_categories(name: str, names: Sequence[str], x: NDArray[Any], least: int) -> BinnedColumn:
    known = ~np.isnan(x).any(axis=1) & (x == 1).any(axis=1)
    index = np.where(known, np.argmax(np.nan_to_num(x), axis=1) if x.shape[1] else 0, 0)
    sizes = np.bincount(index[known], minlength=len(names))
    own = [k for k in range(len(names)) if sizes[k] >= least]
    rest = [k for k in range(len(names)) if sizes[k] < least]
    if rest and own and sizes[rest].sum() < least:  # the smallest of the others makes them enough
        smallest = min(own, key=lambda k: sizes[k])
        own.remove(smallest)
        rest.append(smallest)
    groups = [[k] for k in own] + ([rest] if rest else [])
    place = np.zeros(max(len(names), 1), np.int64)
    for at, group in enumerate(groups):
        place[group] = at
    shown = [" or ".join(names[k] for k in sorted(group)) for group in groups] or ["known"]
    return _with_missing(name, shown, place[index], known, least)


def _with_missing(
    name: str, names: Sequence[str], index: NDArray[np.int64], known: NDArray[np.bool_], least: int
) -> BinnedColumn:
    """Bins with one for missing values: of its own, or the largest bin where they are too few to show."""
    absent, sizes = int((~known).sum()), np.bincount(index[known], minlength=len(names))
    if not known.any():
        return BinnedColumn(name, ("missing",), np.zeros(len(index), np.int64))
    if absent >= least and sizes.sum() >= least:
        return BinnedColumn(name, (*names, "missing"), np.where(known, index, len(names)))
    largest = int(np.argmax(sizes))
    shown = [f"{one} or missing" if absent and k == largest else one for k, one in enumerate(names)]
    return BinnedColumn(name, tuple(shown), np.where(known, index, largest))


def weigh_counts(
    rows: NDArray[np.int64], events: NDArray[np.int64], totals: NDArray[np.int64], count: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The weight of evidence of each bin of a column, ``(bins, outputs)``, and its information value, ``(outputs,)``.

    Args:
        rows: of each bin.
        events: how many of these are of the class of each output, ``(bins, outputs)``.
        totals: the rows of each class.
        count: all rows.
    """
    others = rows[:, None] - events
    more = np.where((events == 0) | (others == 0), 0.5, 0.0)
    share, rest = (events + more) / totals, (others + more) / (count - totals)
    woe = np.log(share / rest)
    return woe, ((share - rest) * woe).sum(axis=0)


@dataclass(frozen=True)
class VerticalStatisticsResult:
    """The outcome of `VerticalStatistics`.

    Attributes:
        job: the job.
        parties: the parties, the guest first.
        replies: what the parties' roles returned. What they learned is among them in a simulation alone; between organisations it stays at each party, as ``vertical-statistics``.
        cost: ``seconds`` of the session, and the ``bytes`` that went between parties.
    """

    job: VerticalStatistics
    parties: tuple[str, ...]
    replies: Mapping[str, Any]
    cost: Mapping[str, float] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"VerticalStatisticsResult({self.job.statistic}, {self.rows['aligned']:,} shared rows of {', '.join(self.parties)})"

    @property
    def rows(self) -> dict[str, int]:
        """How many rows are shared (``aligned``), counted (``train``) and left out (``test``)."""
        return dict(self.replies[self.parties[0]]["rows"])

    @property
    def learns(self) -> dict[str, list[str]]:
        """What each party learns of the others: party -> sentences."""
        return self.job.learns(self.parties)

    @property
    def classes(self) -> tuple[str, ...]:
        """The classes that the weights of evidence stand for: the second of two, or each."""
        return tuple(self.replies[self.parties[0]]["classes"])

    @property
    def woe(self) -> dict[str, dict[str, Any]]:
        """Of each column, as ``PARTY.column``: the ``bins``, how many ``rows`` each has, how many of these are ``events``, and their ``woe``; the last two ``(bins, classes)``."""
        made = {}
        for party in self.parties:
            for name, one in self.replies[party]["woe"].items():
                made[f"{party}.{name}"] = {key: one[key] for key in ("bins", "rows", "events", "woe")}
        return made

    @property
    def iv(self) -> dict[str, list[float]]:
        """The information value of each column, of each class."""
        found = (self.replies[party]["woe"] for party in self.parties)
        told = [(party, columns) for party, columns in zip(self.parties, found, strict=True)]
        return {f"{party}.{name}": [float(v) for v in one["iv"]] for party, columns in told for name, one in columns.items()}  # fmt: skip

    @property
    def correlation(self) -> tuple[list[str], NDArray[np.float64]]:
        """All columns as ``PARTY.column``, and the matrix of their correlations; NaN for a constant column."""
        own = {party: [f"{party}.{name}" for name in self.replies[party]["columns"]] for party in self.parties}
        blocks = [
            np.concatenate([np.asarray(self.replies[party]["correlation"][other]) for other in self.parties], axis=1)
            for party in self.parties
        ]
        return [name for names in own.values() for name in names], np.concatenate(blocks)


class _PreparedStatistics(Prepared):
    def __init__(self, job: VerticalStatistics, parties: list[str]) -> None:
        self.job, self.parties = job, parties
        self._cost: dict[str, float] = {}
        self.guest = Task("atoll.vertical.statistics:guest", self._guest)
        self.host = Task("atoll.vertical.statistics:host", self._host)
        self.tasks = (self.guest, self.host)

    async def program(self, fed: Federation) -> Any:
        """The alignment, and one session of all parties."""
        found = await fed.restore(None)
        begin = time.perf_counter()
        if found is None:
            training = self.job.training
            plan = replace(training.plan(self.parties), label=STATISTICS)
            await align_parties(fed, self.parties, training.protocol(len(self.parties)), plan)
            found = {}
            await fed.checkpoint(found)
        if not found:
            found = await fed.session({name: (name, self.host if i else self.guest) for i, name in enumerate(self.parties)})  # fmt: skip
            moved = fed.bytes()
            self._cost = {"seconds": time.perf_counter() - begin, "bytes": moved["bytes_relayed"] + moved["bytes_between"]}  # fmt: skip
            await fed.checkpoint(found)
        return found

    def outcome(self, value: Any) -> VerticalStatisticsResult:
        """The result."""
        return VerticalStatisticsResult(self.job, tuple(self.parties), value, self._cost)

    def facts(self, outcome: VerticalStatisticsResult) -> Mapping[str, Any]:
        """The rows and what each party learns."""
        told = {"statistic": self.job.statistic, "rows": outcome.rows, "learns": outcome.learns}
        return {"result": {**told, **({"cost": dict(outcome.cost)} if outcome.cost else {})}}

    # The roles.

    async def _guest(self, island: Island, peers: Peers) -> Any:
        job, me, hosts = self.job, self.parties[0], self.parties[1:]
        await peers.restore(None)
        coded = job.categories if job.statistic == "woe" else None
        table = PartyTable.of(
            island.data, me, key=job.id, label=job.label, precision=np.float64, coded=coded, as_listed=True
        )
        labels = read_labels(table, job.label, job.task, np.float64)
        rows = find_shared_rows(job.training, table, island, STATISTICS)
        labels.require_all(rows.places)
        labels.require_varied(rows.train)
        y, kind = labels.values[rows.train], labels.objective
        found: dict[str, Any]
        if job.statistic == "woe":
            if kind.name == SQUARED:
                raise ConfigError(
                    "weights of evidence of labels that are numbers",
                    where="VerticalStatistics",
                    remedy="use statistic='correlation', or task='binary' or 'multiclass' for labels that are classes",
                )
            own = bin_columns(table, rows.train, job.bins, job.min_bin_rows)
            is_of = (y[:, None] == (np.arange(kind.outputs) if kind.name == SOFTMAX else 1)).astype(np.int64)
            made = await self._weigh(own, is_of, peers, hosts, island.secret)
            found = {"woe": made, "classes": list(labels.classes if kind.name == SOFTMAX else labels.classes[1:])}
        else:
            several = kind.name == SOFTMAX
            x = table.x[rows.train] if several else np.concatenate([table.x[rows.train], y[:, None]], axis=1)
            columns = [*table.features, *([] if several else [job.label])]
            found = await self._correlate(me, columns, x, peers, island.secret)
        island.leave(STATISTICS, {**found, "rows": rows.counts})
        return {"rows": rows.counts, **({} if island.remote else found)}

    async def _host(self, island: Island, peers: Peers) -> Any:
        job, me = self.job, island.name
        await peers.restore(None)
        coded = job.categories if job.statistic == "woe" else None
        table = PartyTable.of(island.data, me, key=job.id, precision=np.float64, coded=coded, as_listed=True)
        require_no_labels(table, job.label)
        rows = find_shared_rows(job.training, table, island, STATISTICS)
        if job.statistic == "woe":
            own = bin_columns(table, rows.train, job.bins, job.min_bin_rows)
            found: dict[str, Any] = {"woe": await self._be_weighed(own, len(rows.train), peers, island.secret)}
        else:
            found = await self._correlate(me, list(table.features), table.x[rows.train], peers, island.secret)
        island.leave(STATISTICS, {**found, "rows": rows.counts})
        return {} if island.remote else found

    # Weights of evidence.

    async def _weigh(
        self, own: Sequence[BinnedColumn], is_of: NDArray[np.int64], peers: Peers, hosts: Sequence[str], secret: Secret
    ) -> dict[str, Any]:
        """At the guest: the weights of its own columns, after it told each host those of the host's."""
        cipher, (count, outputs), totals = self.job.cipher, is_of.shape, is_of.sum(axis=0)
        if (totals == 0).any() or (totals == count).any():
            raise ConfigError(
                "a class without rows among those that count", where="VerticalStatistics", remedy="use a smaller test="
            )
        fields = JoinedFields(outputs, 1, count)
        owner = KeyOwner(cipher, secret, short=self.job.short_exponents)
        await peers.broadcast({"key": owner.public, "outputs": outputs, "sealed": owner.encrypt(fields.join(is_of))}, hosts)  # fmt: skip
        for name in hosts:
            sizes, ends, sealed = _read_counts(await peers.recv(name), self.job.min_bin_rows, count, name)
            size = math.ceil(len(sizes) / fields.per_plaintext(cipher.key_bits))
            opened = owner.decrypt(require_ciphertexts(sealed, size, cipher.key_bits, name))
            events = fields.split(opened, len(sizes), cipher.key_bits)
            good = bool(((events >= 0) & (events <= sizes[:, None])).all())
            good = good and all((events[a:b].sum(axis=0) == totals).all() for a, b in pairwise([0, *ends]))
            require(good, f"counts of {name!r} that are not those of its bins", "VerticalStatistics")
            parts = [weigh_counts(sizes[a:b], events[a:b], totals, count) for a, b in pairwise([0, *ends])]  # fmt: skip
            woe = np.concatenate([one for one, _ in parts]) if parts else np.zeros((0, outputs))
            iv = np.array([one for _, one in parts]).reshape(len(parts), outputs)
            await peers.send(name, {"woe": woe, "iv": iv, "events": events})
        made = {}
        for column in own:
            events = np.stack([np.bincount(column.index[is_of[:, k] == 1], minlength=len(column.names)) for k in range(outputs)], axis=1)  # fmt: skip
            made[column.name] = _as_table(column, events, *weigh_counts(column.sizes, events, totals, count))
        return made

    async def _be_weighed(
        self, own: Sequence[BinnedColumn], count: int, peers: Peers, secret: Secret
    ) -> dict[str, Any]:
        """At a host: the weights of its columns, from the sums of the guest's ciphertexts in its bins."""
        guest, cipher = self.parties[0], self.job.cipher
        told = await peers.recv(guest)
        found = told if isinstance(told, Mapping) else {}
        outputs: Any = found.get("outputs")
        require(type(outputs) is int and 1 <= outputs <= 1000, f"{outputs!r} classes", "VerticalStatistics")
        fields = JoinedFields(outputs, 1, count)
        require(isinstance(found.get("key"), Mapping), f"no key of {guest!r}", "VerticalStatistics")
        labels = SealedVector(cipher, found["key"], require_ciphertexts(found.get("sealed"), count, cipher.key_bits, guest))  # fmt: skip
        sums = [one for column in own for one in labels.add_by_index(column.index, len(column.names))]
        sizes = np.concatenate([column.sizes for column in own]) if own else np.zeros(0, np.int64)
        ends = np.cumsum([len(column.names) for column in own], dtype=np.int64)
        sealed = labels.pack(sums, fields, secret)
        await peers.send(guest, {"sizes": sizes, "ends": ends, "sealed": sealed})
        told = await peers.recv(guest)
        found = told if isinstance(told, Mapping) else {}
        woe = read_numbers(found.get("woe"), (len(sizes), outputs), guest)
        iv = read_numbers(found.get("iv"), (len(own), outputs), guest)
        events: Any = found.get("events")
        good = isinstance(events, np.ndarray) and events.dtype == np.int64 and events.shape == woe.shape
        require(good, f"no counts of {guest!r}", "VerticalStatistics")
        starts = [0, *ends.tolist()]
        return {
            column.name: _as_table(column, events[a:b], woe[a:b], iv[k])
            for k, (column, a, b) in enumerate(zip(own, starts, starts[1:], strict=False))
        }

    # Correlations.

    async def _correlate(
        self, me: str, columns: Sequence[str], x: NDArray[np.float64], peers: Peers, secret: Secret
    ) -> dict[str, Any]:
        """The correlations of a party's columns with all. Of two parties, the first encrypts its columns and the second multiplies."""
        scaled, rows = ColumnScales.of(x).apply(x), len(x)
        # Missing values are the mean, so deviations over all rows are smaller than over the known ones.
        spread = np.sqrt((scaled**2).mean(axis=0))
        scaled = scaled / np.where(spread > 0, spread, 1.0)
        flat, at = spread == 0, self.parties.index(me)
        earlier, later = self.parties[:at], self.parties[at + 1 :]
        cipher, mine = self.job.cipher, None
        if later:
            mine = PaillierColumns(cipher, scaled, secret, self.job.short_exponents)
            await peers.broadcast(mine.message(), later)
        await peers.broadcast({"flat": flat}, earlier + later)
        made, absent = {me: scaled.T @ scaled / rows}, {me: flat}
        for name in earlier:
            told = await peers.recv(name)
            key = told.get("key") if isinstance(told, Mapping) else None
            await peers.send(name, PeerColumns(cipher, key, told, rows, name).multiply(scaled, secret))
            absent[name] = _read_flat(await peers.recv(name), name)
        for name in later if mine else ():
            absent[name] = _read_flat(await peers.recv(name), name)
            made[name] = mine.open(await peers.recv(name), len(absent[name]), name) / rows  # type: ignore[union-attr]
            await peers.send(name, made[name])
        for name in earlier:
            made[name] = read_numbers(await peers.recv(name), (len(absent[name]), len(columns)), name).T
        for name, block in made.items():
            good = bool((np.abs(block) <= 1 + 1e-6).all())
            require(good, f"correlations beyond 1 from {name!r}", "VerticalStatistics")
            made[name] = np.clip(np.where(flat[:, None] | absent[name][None, :], np.nan, block), -1.0, 1.0)
        return {"columns": list(columns), "correlation": made}


def _as_table(
    column: BinnedColumn, events: NDArray[np.int64], woe: NDArray[np.float64], iv: NDArray[np.float64]
) -> dict[str, Any]:
    return {"bins": list(column.names), "rows": column.sizes, "events": events, "woe": woe, "iv": iv}


def _read_counts(message: Any, least: int, rows: int, name: str) -> tuple[NDArray[np.int64], list[int], Any]:
    """A host's bins: their rows, where the bins of each column end, and their ciphertexts.

    Raises:
        MessageError: they have another form, or a bin has fewer rows than agreed.
    """
    found = message if isinstance(message, Mapping) else {}
    sizes, ends = (np.asarray(found.get(key)) for key in ("sizes", "ends"))
    good = all(one.dtype == np.int64 and one.ndim == 1 for one in (sizes, ends))
    good = good and len(ends) <= _MOST_COLUMNS and len(sizes) <= (_MOST_BINS + 1) * len(ends)
    good = good and bool((np.diff(ends, prepend=0) >= 1).all()) and (int(ends[-1]) if len(ends) else 0) == len(sizes)
    require(good, f"no bins of {name!r}", "VerticalStatistics")
    starts = [0, *ends.tolist()]
    good = all(int(sizes[a:b].sum()) == rows for a, b in pairwise(starts))
    small = [b - a > 1 and int(sizes[a:b].min()) < least for a, b in pairwise(starts)]
    require(good and not any(small), f"bins of {name!r} of fewer than {least} rows, or not of all rows", "VerticalStatistics")  # fmt: skip
    return sizes, ends.tolist(), found.get("sealed")


def _read_flat(message: Any, name: str) -> NDArray[np.bool_]:
    """Which columns of another party are constant.

    Raises:
        MessageError: it does not say so.
    """
    found = message.get("flat") if isinstance(message, Mapping) else None
    good = isinstance(found, np.ndarray) and found.dtype == np.bool_ and found.ndim == 1 and len(found) <= _MOST_COLUMNS
    require(good, f"no columns of {name!r}", "VerticalStatistics")
    return np.asarray(found)
