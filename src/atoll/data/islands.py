"""`Islands`: a federated data set, which is a population of clients with their rows. Names and tags are sequences that store no string per client."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from atoll.core.algebra.rng import Rng, keyed, mix64, mix_key, mix_keys, name_order
from atoll.core.errors import AtollError, DataError, nearest
from atoll.core.overview import Overview

from ._checks import Array
from ._supply import ByteCache, Located, Pooled, Supply, offsets_of
from .dataset import About, Dataset, Rows, root
from .describe import Description, describe, sampled
from .join import concatenate

__all__ = ["ColumnNames", "Islands", "Shard", "Tags"]


class ColumnNames(Sequence[str]):
    """The clients' names: natural keys if given, else "client-0", "client-1", ... made on access.

    Args:
        ids: client numbers, shape ``(clients,)``.
        keys: the natural keys of the whole population, indexed by client number, or ``None``.
    """

    def __init__(self, ids: NDArray[np.int64], keys: NDArray[Any] | None = None) -> None:
        self._ids = ids
        self._keys = keys
        self._lookup: dict[str, int] | None = None

    def __len__(self) -> int:
        return len(self._ids)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> ColumnNames: ...
    def __getitem__(self, index: int | slice) -> str | ColumnNames:
        if isinstance(index, slice):
            return ColumnNames(self._ids[index], self._keys)
        client = int(self._ids[index])
        return f"client-{client}" if self._keys is None else str(self._keys[client])

    def __iter__(self) -> Iterator[str]:
        return (self[i] for i in range(len(self)))

    def at(self, positions: NDArray[np.int64]) -> list[str]:
        """Return the names at these positions."""
        clients = self._ids[positions].tolist()
        return [f"client-{i}" for i in clients] if self._keys is None else [str(self._keys[i]) for i in clients]

    def order(self) -> NDArray[np.int64]:
        """Return the positions in the order of the names."""
        return np.argsort(self._ids, kind="stable") if self._keys is None else name_order(list(self))

    def index(self, value: Any, start: int = 0, stop: int | None = None) -> int:
        """Return the position of a name.

        Raises:
            DataError: there is no such client; suggests the nearest name (among the first thousand).
        """
        found = self._find(value)
        if start <= found < (len(self) if stop is None else stop):
            return found
        few = [self[i] for i in range(min(len(self), 1000))]
        raise DataError(f"no client named {value!r}.{nearest(str(value), few)}", remedy="see islands.names")

    def _find(self, value: Any) -> int:
        if self._keys is not None:
            if self._lookup is None:
                self._lookup = {name: i for i, name in enumerate(self)}
            return self._lookup.get(value, -1)
        number = str(value).removeprefix("client-")
        if value == number or not number.isdecimal():
            return -1
        here = np.flatnonzero(self._ids == int(number))
        return int(here[0]) if len(here) else -1

    def __contains__(self, value: object) -> bool:
        return self._find(value) >= 0

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Sequence)
            and len(other) == len(self)
            and all(a == b for a, b in zip(self, other, strict=True))
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        shown = ", ".join(map(repr, self[:3]))
        return f"[{shown}, ... {len(self):,} names]" if len(self) > 3 else f"[{shown}]"


class Tags(Sequence[str]):
    """The corruption of each client, ``""`` for none: one byte per client.

    Args:
        codes: shape ``(clients,)``, uint8; 0 is none, ``k`` is ``labels[k - 1]``.
        labels: the corruptions' names.
    """

    def __init__(self, codes: NDArray[np.uint8], labels: Sequence[str] = ()) -> None:
        self._codes = codes
        self.labels = tuple(labels)

    def __len__(self) -> int:
        return len(self._codes)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> Tags: ...
    def __getitem__(self, index: int | slice) -> str | Tags:
        if isinstance(index, slice):
            return Tags(self._codes[index], self.labels)
        code = int(self._codes[index])
        return self.labels[code - 1] if code else ""

    def take(self, positions: NDArray[np.int64]) -> Tags:
        """Return the tags at some positions."""
        return Tags(self._codes[positions], self.labels)

    def where(self, label: str) -> NDArray[np.int64]:
        """Return the positions of the clients with this tag (``""``: the clean ones).

        Raises:
            DataError: no client of this population can have the tag.
        """
        if label == "":
            return np.flatnonzero(self._codes == 0)
        if label not in self.labels:
            raise DataError(
                f"no tag {label!r}.{nearest(label, self.labels)}",
                remedy=f"use one of {', '.join(self.labels) or 'none: nothing is corrupted'}",
            )
        return np.flatnonzero(self._codes == self.labels.index(label) + 1)

    def counts(self) -> dict[str, int]:
        """Map each tag to its number of clients, without the clean ones."""
        found = np.bincount(self._codes, minlength=len(self.labels) + 1)
        return {label: int(found[k + 1]) for k, label in enumerate(self.labels)}

    def __repr__(self) -> str:
        shown = ", ".join(f"{label}: {n:,}" for label, n in self.counts().items())
        return f"Tags({len(self):,} clients; {shown or 'none'})"


class Shard:
    """A view of one client's rows. Columns are made or copied when you access them, and ``len`` is free.

    ``shard["x"]`` always equals ``shard.source["x"][shard.rows]``. Shards of one partition share their ``source``,
    so that an engine can fetch the rows of many clients with one indexing call (see `Islands.gather`). A generated
    or corrupted shard has its own source. The arrays may be read-only views: copy before you write.

    Attributes:
        client: the client's number in the population that it was made in; a subset does not change it.
        name: the client's name.
        tag: the corruption applied to this client, ``""`` for none.
        held_out: the client's rows that it does not train on, or ``None``; see `Islands.with_held_out`.
    """

    __slots__ = ("_found", "_supply", "client", "held_out", "name", "tag")
    __iter__ = None

    def __init__(self, supply: Supply, client: int, name: str, tag: str = "", held_out: Shard | None = None) -> None:
        self._supply = supply
        self._found: tuple[Dataset, Rows] | None = None
        self.client = client
        self.name = name
        self.tag = tag
        self.held_out = held_out

    def _locate(self) -> tuple[Dataset, Rows]:
        if self._found is None:
            self._found = self._supply.locate(self.client)
        return self._found

    @property
    def source(self) -> Dataset:
        """The data set that contains the rows."""
        return self._locate()[0]

    @property
    def rows(self) -> Rows:
        """Row numbers in ``source``: an int64 array ``(len,)``, or a slice if the rows are adjacent."""
        return self._locate()[1]

    @property
    def origin(self) -> tuple[Hashable, int]:
        """Where the rows come from: equal for two shards of one process only if their rows are the same. What follows from rows can be kept by it."""
        return self._supply, self.client

    @property
    def x(self) -> Array:
        """The features."""
        return self["x"]

    @property
    def y(self) -> Array:
        """The labels or targets."""
        return self["y"]

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns."""
        return self._supply.schema().columns

    def dataset(self) -> Dataset:
        """Return the rows as a `Dataset` (a view)."""
        return self.source._view(self.rows)

    def __getitem__(self, column: str) -> Array:
        source, rows = self._locate()
        return source[column][rows]

    def __contains__(self, column: object) -> bool:
        return column in self.columns

    def __len__(self) -> int:
        return self._supply.size_of(self.client)

    def __repr__(self) -> str:
        tag = f", {self.tag}" if self.tag else ""
        return f"Shard({self.name!r}: {len(self):,} rows{tag})"


# Populations whose clients' data are made on demand from a key of (seed, client).


Make = Callable[[int, np.random.Generator], Dataset | Mapping[str, Any]]
Sizes = int | NDArray[np.int64] | None


class GeneratedData(Supply):
    """Clients made on demand; a client's data depend on the key and its number, never on the order of calls."""

    def __init__(self, count: int, make: Make, sizes: Sizes, rng: Rng, cache_bytes: int, name: str) -> None:
        self.count = count
        self._make = make
        self._key = rng.child("client").key
        self._name = name
        self._cache = ByteCache(cache_bytes)
        self._sizes = _as_sizes(sizes, count, name)

    def sizes(self) -> NDArray[np.int64]:
        if self._sizes is None:
            self._sizes = np.array([len(self._source(i)) for i in range(self.count)], np.int64)
        if isinstance(self._sizes, int):
            return np.full(self.count, self._sizes, np.int64)
        return self._sizes

    def size_of(self, client: int) -> int:
        known = self._expected(client)
        return len(self._source(client)) if known is None else known

    def locate(self, client: int) -> tuple[Dataset, Rows]:
        source = self._source(client)
        return source, slice(0, len(source))

    def _source(self, client: int) -> Dataset:
        return self._cache.get(client, self._build)

    def _build(self, client: int) -> Dataset:
        where = f"client-{client} of {self._name!r}"
        try:
            made = self._make(client, keyed(mix_key(self._key, client)))
        except AtollError:
            raise
        except Exception as error:  # the generator is the user's own and may raise anything
            raise DataError(
                f"the generator raised {type(error).__name__}: {error}",
                where=where,
                remedy="correct it; it is called as make(client, rng)",
            ) from error
        if not isinstance(made, Dataset):
            if not isinstance(made, Mapping):
                raise DataError(
                    f"the generator returned {type(made).__name__}",
                    where=where,
                    remedy="return a Dataset, or a dict of columns",
                )
            made = Dataset(made, name=self._name)
        expected = self._expected(client)
        if expected is not None and len(made) != expected:
            raise DataError(
                f"the generator made {len(made)} rows, but sizes= says {expected}",
                where=where,
                remedy="make as many rows as announced, or leave sizes= out",
            )
        return made

    def _expected(self, client: int) -> int | None:
        if self._sizes is None or isinstance(self._sizes, int):
            return self._sizes
        return int(self._sizes[client])


def _as_sizes(sizes: Any, count: int, name: str) -> Sizes:
    if sizes is None or isinstance(sizes, int):
        if isinstance(sizes, int) and sizes < 0:
            raise DataError(f"sizes={sizes} is negative", where=f"population {name!r}", remedy="give 0 or more")
        return sizes
    array = np.asarray(sizes)
    if array.shape != (count,) or array.dtype.kind not in "iu" or (count and array.min() < 0):
        raise DataError(
            f"sizes of shape {array.shape} and dtype {array.dtype} for {count} clients",
            where=f"population {name!r}",
            remedy="give one whole number per client, or a single one for all",
        )
    return array.astype(np.int64)


# Splitting each client's rows into a training and a test part.


Part = Literal["train", "test"]


def train_sizes(sizes: NDArray[np.int64], fraction: float) -> NDArray[np.int64]:
    """Return ``floor((1 - fraction) * size)``, but at least one row if there is one."""
    kept = np.floor((1.0 - fraction) * sizes + 1e-9).astype(np.int64)
    return np.asarray(np.maximum(kept, np.minimum(sizes, 1)))


def chosen(key: int, clients: NDArray[np.int64], sizes: NDArray[np.int64], fraction: float) -> NDArray[np.bool_]:
    """Mark the training rows, client after client, shape ``(sum(sizes),)``.

    Each row has a 64-bit hash of (key, client, position); the rows with the smallest hashes of a client train. So
    a client's split depends only on its number and its size, for a given key.
    """
    keys = np.repeat(mix_keys(key, clients.astype(np.uint64)), sizes)
    starts = offsets_of(sizes)[:-1]
    position = np.arange(int(sizes.sum())) - np.repeat(starts, sizes)
    noise = mix64(keys ^ mix64(position.astype(np.uint64)))
    owner = np.repeat(np.arange(len(sizes)), sizes)
    # The rows are sorted by client, then by hash: the rank within the client follows from the position.
    by_hash = np.lexsort((noise, owner))
    rank = np.empty(len(by_hash), np.int64)
    rank[by_hash] = position
    return rank < np.repeat(train_sizes(sizes, fraction), sizes)


def hold_out(base: Supply, fraction: float, key: int, part: Part) -> Supply:
    """Return the training or the test part of each client."""
    if not isinstance(base, Pooled):
        return HeldOut(base, fraction, key, part)
    sizes = base.sizes()
    mask = chosen(key, np.arange(base.count), sizes, fraction)
    kept = train_sizes(sizes, fraction)
    if part == "test":
        mask, kept = ~mask, sizes - kept
    return Pooled(base.pool, offsets_of(kept), base.order[mask])


class HeldOut(Supply):
    """One part of each client of a population whose rows are not in one pool."""

    def __init__(self, base: Supply, fraction: float, key: int, part: Part) -> None:
        self.count = base.count
        self._base, self._fraction, self._key, self._part = base, fraction, key, part

    def sizes(self) -> NDArray[np.int64]:
        sizes = self._base.sizes()
        kept = train_sizes(sizes, self._fraction)
        return kept if self._part == "train" else sizes - kept

    def size_of(self, client: int) -> int:
        size = self._base.size_of(client)
        kept = int(train_sizes(np.array([size]), self._fraction)[0])
        return kept if self._part == "train" else size - kept

    def locate(self, client: int) -> tuple[Dataset, Rows]:
        source, rows = self._base.locate(client)
        index = np.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows
        mask = chosen(self._key, np.array([client]), np.array([len(index)]), self._fraction)
        return source, index[mask if self._part == "train" else ~mask]

    def sample(self) -> Dataset:
        return self._base.sample()


_POOLED_BYTES = 4 << 30
_CACHE_BYTES = 64 << 20


class Islands:
    """A population of clients and their rows; its memory grows with the cohort, not with the population.

    Make one with a partitioner such as `atoll.data.dirichlet`, with `Islands.from_datasets` or with
    `Islands.generate`. It is immutable: `subset`, `holdout`, `with_test` and `atoll.data.corrupt` return a new one
    that shares the rows.

    Attributes:
        about: name, task, classes, citation.
        names: the clients' names, a sequence.
        tags: the corruption of each client, a sequence.
        test: test rows that the server keeps for evaluation, or ``None``.
        public: rows that everyone may see, similar to the clients', or ``None``; a mock client on them fits uplink stages.
        others: data of helper parties that are no clients, by name, such as the rows whose labels are at the server.
        scheme: how the data were divided, for tables.
        separate: whether each client's rows came as a data set of its own.

    Example:
        >>> import atoll.data
        >>> islands = atoll.data.dirichlet(atoll.data.linear(1, examples=1000).pooled(), parties=10, alpha=1.0)
        >>> len(islands), int(islands.sizes.sum())
        (10, 1000)
        >>> x, y, offsets = islands.gather([3, 7], "x", "y")
        >>> len(x) == len(y) == int(offsets[-1]) == len(islands.shard(3)) + len(islands.shard(7))
        True
    """

    def __init__(
        self,
        supply: Supply,
        *,
        about: About,
        ids: NDArray[np.int64] | None = None,
        keys: NDArray[Any] | None = None,
        tags: Tags | None = None,
        test: Dataset | None = None,
        public: Dataset | None = None,
        others: Mapping[str, Dataset] | None = None,
        held_out: Islands | None = None,
        scheme: str = "",
        separate: bool = False,
    ) -> None:
        self._supply = supply
        self._ids = np.arange(supply.count) if ids is None else ids
        self._keys = keys
        self._sizes: NDArray[np.int64] | None = None
        self.about = about
        self.names = ColumnNames(self._ids, keys)
        self.tags = Tags(np.zeros(len(self._ids), np.uint8)) if tags is None else tags
        self.test = test
        self.public = public
        self.others = dict(others or {})
        self.held_out = held_out
        self.scheme = scheme
        self.separate = separate

    @classmethod
    def from_owner(
        cls,
        dataset: Dataset,
        owner: NDArray[np.int64],
        parties: int,
        *,
        keys: NDArray[Any] | None = None,
        scheme: str = "",
    ) -> Islands:
        """Give row ``r`` to client ``owner[r]``.

        Args:
            dataset: the rows to divide; its ``test`` becomes the server's test set.
            owner: one client number per row, ``(rows,)``, in ``0..parties-1``.
            parties: number of clients.
            keys: natural names, ``(parties,)``.
            scheme: how the rows were assigned, for tables.

        Raises:
            DataError: the owners do not fit the rows or the clients.
        """
        owner = np.asarray(owner)
        outside = len(owner) and (owner.min() < 0 or owner.max() >= parties)
        if owner.shape != (len(dataset),) or owner.dtype.kind not in "iu" or outside:
            raise DataError(
                f"owners of shape {owner.shape} and dtype {owner.dtype} for {len(dataset)} rows and {parties} clients",
                where=f"data set {dataset.name!r}",
                remedy="give each row one client number in 0..parties-1",
            )
        sizes = np.bincount(owner, minlength=parties).astype(np.int64)
        order = np.argsort(owner, kind="stable")
        supply = Pooled(dataset, offsets_of(sizes), order)
        return cls(supply, about=dataset.about, keys=keys, test=dataset.test, scheme=scheme)

    @classmethod
    def from_datasets(
        cls,
        datasets: Sequence[Dataset] | Mapping[str, Dataset],
        *,
        test: Dataset | Mapping[str, Dataset] | float | None = None,
        scheme: str = "given",
    ) -> Islands:
        """Make one client of each data set; the keys of a mapping become the clients' names.

        ``test`` is the server's test rows as one data set; or the rows that each client holds out, by its name or as a share of its rows (`with_held_out`).

        If the data sets name their classes differently, as files that were read separately do, labels get common codes of all classes. So do features that were text,
        and features are matched by name: if their orders differ, they are in alphabetical order.

        Raises:
            DataError: there are no data sets, or their columns differ; names the data set and the column.
        """
        if isinstance(test, float | int | Mapping):
            return cls.from_datasets(datasets, scheme=scheme).with_held_out(test)
        if test is not None and not isinstance(test, Dataset):
            raise DataError(
                f"test is a {type(test).__name__}",
                where="Islands.from_datasets",
                remedy="give one data set for the server, a dict of client -> data set, or a share of each client's rows, such as 0.2",
            )
        # Clients are numbered in the order of their names, whoever lists them: what is drawn for a client's number, such as the rows that it holds out, follows its name.
        names = list(map(str, datasets)) if isinstance(datasets, Mapping) else None
        order = np.arange(len(datasets)) if names is None else name_order(names)
        keys = None if names is None else np.array([names[i] for i in order.tolist()])
        given = list(datasets.values()) if isinstance(datasets, Mapping) else list(datasets)
        parts = [given[i] for i in order.tolist()]
        pool = concatenate(parts)
        classes = [p.classes for p in (pool, *parts) if p.classes is not None]
        about = replace(pool.about, classes=max(classes)) if classes else pool.about
        test_rows = pool.test
        if test is not None:
            pool.require_form(test)
            test_rows = test.coded_as(about)
        pool = Dataset._of(pool._base, None, len(pool), about, test_rows)
        supply = Pooled(pool, offsets_of(np.array([len(p) for p in parts], np.int64)), None)
        return cls(supply, about=about, ids=np.argsort(order), keys=keys, test=pool.test, scheme=scheme, separate=True)

    @classmethod
    def generate(
        cls,
        parties: int,
        make: Make,
        *,
        sizes: Sizes = None,
        seed: int | Rng = 0,
        name: str = "generated",
        about: About | None = None,
        test: Dataset | None = None,
        cache_bytes: int = _CACHE_BYTES,
    ) -> Islands:
        """Make a population whose clients' data are produced on demand.

        Args:
            parties: number of clients.
            make: ``(client, rng) -> Dataset`` or a dict of columns. ``rng`` is keyed by (seed, client): the same
                client has the same data, in any order of access.
            sizes: rows of each client (an array, or one number for all). Without it, accessing ``islands.sizes``
                makes every client once.
            seed: seed or random stream.
            name: short name.
            about: the description of the data; taken from client 0 when omitted.
            test: test rows that the server keeps.
            cache_bytes: how many bytes of the data made last to cache.

        Raises:
            DataError: on access, if a client's data are malformed or differ in size from ``sizes``.
        """
        if parties < 1:
            raise DataError(f"parties={parties}", where=f"population {name!r}", remedy="ask for at least one client")
        supply = GeneratedData(parties, make, sizes, root(seed), cache_bytes, name)
        if about is None:
            about = replace(supply.locate(0)[0].about, name=name)
        return cls(supply, about=about, test=test, scheme="generated")

    @property
    def name(self) -> str:
        """Short name of the data."""
        return self.about.name

    @property
    def task(self) -> str:
        """The kind of target."""
        return self.about.task

    @property
    def classes(self) -> int | None:
        """Number of classes, or ``None`` for a regression."""
        return self.about.classes

    @property
    def clients(self) -> NDArray[np.int64]:
        """The clients' numbers in the population that they were made in, ``(clients,)``."""
        return self._ids

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Rows of each client, ``(clients,)``."""
        if self._sizes is None:
            self._sizes = self._supply.sizes()[self._ids]
            self._sizes.flags.writeable = False
        return self._sizes

    @property
    def labelled(self) -> Literal["all", "part", "none"] | None:
        """Which of the clients' rows have a label; ``None`` if there is no column of labels, or rows are made on demand."""
        if not self.stored or "y" not in self.columns:
            return None
        if "labelled" not in self.columns:
            return "all"
        there = self.gather(np.arange(len(self)), "labelled")[0]
        return "all" if there.all() else "part" if there.any() else "none"

    @property
    def stored(self) -> bool:
        """Whether the rows of all clients are in one data set, so that fetching them is cheap."""
        return isinstance(self._supply, Pooled)

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns."""
        return self._supply.schema().columns

    def __len__(self) -> int:
        return len(self._ids)

    def __getitem__(self, client: int | str) -> Shard:
        """One client's data, by position or name; a position below zero counts from the end."""
        return self.shard(client + len(self) if isinstance(client, int) and -len(self) <= client < 0 else client)

    def __iter__(self) -> Iterator[Shard]:
        return (self.shard(i) for i in range(len(self)))

    def shard(self, client: int | str) -> Shard:
        """Return one client's rows, by position or by name.

        Raises:
            DataError: there is no such client.
        """
        if isinstance(client, str):
            client = self.names.index(client)
        elif not 0 <= client < len(self):
            self._positions([client])
        held_out = None if self.held_out is None else self.held_out.shard(client)
        return Shard(self._supply, int(self._ids[client]), self.names[client], self.tags[client], held_out)

    def gather(self, clients: ArrayLike, *columns: str) -> tuple[Array, ...]:
        """Fetch columns of several clients at once, stacked.

        Args:
            clients: positions in this population, ``(k,)``.
            columns: names of the columns.

        Returns:
            One array per column, ``(rows of all k clients, ...)``, and last the offsets, int64 ``(k + 1,)``: client
            ``j`` has the rows ``offsets[j]:offsets[j + 1]``. The arrays are new, and you may write to them.

        Raises:
            DataError: there is no such client or column.
        """
        ids = self._ids[self._positions(clients)]
        stacked, sizes = self._supply.gather(ids, columns)
        return (*stacked, offsets_of(sizes))

    def located(self, clients: ArrayLike, *columns: str) -> Located | None:
        """The location of columns of several clients, without a copy; ``None`` if their rows are not stored together.

        Raises:
            DataError: there is no such client or column.
        """
        if not isinstance(self._supply, Pooled):
            return None
        return self._supply.located(self._ids[self._positions(clients)], columns)

    def subset(self, clients: ArrayLike) -> Islands:
        """Return the population of some clients, by position or by name, with their names, data and tags.

        Raises:
            DataError: there is no such client.
        """
        positions = self._positions(clients)
        held_out = None if self.held_out is None else self.held_out.subset(positions)
        return self._with(ids=self._ids[positions], tags=self.tags.take(positions), held_out=held_out)

    def holdout(self, fraction: float, seed: int | Rng = 0) -> tuple[Islands, Islands]:
        """Split each client's rows into (train, test): two populations of the same clients.

        A client's training rows depend only on the seed, its number and its size. It keeps
        ``floor((1 - fraction) * size)`` rows to train, at least one; a small client may have no test rows.

        Args:
            fraction: share of the test rows, between 0 and 1.
            seed: seed or random stream.

        Raises:
            DataError: a fraction outside (0, 1).
        """
        if not 0.0 < fraction < 1.0:
            raise DataError(f"holdout fraction {fraction}", where=self._where(), remedy="choose it between 0 and 1")
        key = root(seed).child("holdout").key
        train, test = (self._with(supply=hold_out(self._supply, fraction, key, part)) for part in ("train", "test"))
        return train, test

    def with_held_out(self, test: float | Islands | Mapping[str, Dataset] | None, seed: int | Rng = 0) -> Islands:
        """Return the same clients with rows that they do not train on: ``clients/…`` and ``personal/…`` are then measured on these.

        Args:
            test: the share of each client's rows to hold out, drawn by seed as `holdout` does; or the other population that `holdout` gave; or a data set for
                every client, by name; ``None`` for none.
            seed: draws the rows of a share.

        Raises:
            DataError: a share outside (0, 1), or rows of other clients, of another form, or with other classes.
        """
        if test is None or isinstance(test, Islands):
            if test is not None and [*map(str, test.names)] != [*map(str, self.names)]:
                raise DataError(
                    f"rows held out of {len(test):,} clients, which are not the {len(self):,} clients here in their order",
                    where=self._where(),
                    remedy="give the second population of islands.holdout(0.2), or a data set for every client by name",
                )
            return self._with(held_out=None if test is None else test._with(held_out=None))
        if isinstance(test, Mapping):
            names = set(map(str, self.names))
            missing = next((name for name in map(str, self.names) if name not in test), None)
            unknown = next((name for name in test if name not in names), None)
            if missing is not None or unknown is not None:
                what = (
                    f"no held-out rows of client {missing!r}"
                    if missing is not None
                    else f"held-out rows of {unknown!r}, which is no client"
                )
                raise DataError(
                    what,
                    where=self._where(),
                    remedy=f"give a data set for each of {', '.join([*map(str, self.names)][:20])}",
                )
            for rows in test.values():
                self._supply.schema().require_form(rows)
            coded = {name: test[name].coded_as(self.about) for name in map(str, self.names)}
            return self._with(held_out=Islands.from_datasets(coded))
        train, held_out = self.holdout(float(test), seed)
        return train._with(held_out=held_out._with(held_out=None))

    def with_test(self, test: Dataset | None) -> Islands:
        """Return the same clients with another test set at the server, in the clients' class codes.

        Raises:
            DataError: the test set names classes that the clients do not have, or its rows have another shape.
        """
        if test is None:
            return self._with(test=None)
        if isinstance(self._supply, Pooled):  # do not make clients on demand just for this check
            self._supply.schema().require_form(test)
        return self._with(test=test.coded_as(self.about))

    def with_public(self, public: Dataset | None) -> Islands:
        """Return the same clients with public rows at the server, in the clients' class codes.

        Raises:
            DataError: the rows name classes that the clients do not have, or have another shape.
        """
        if public is None:
            return self._with(public=None)
        if len(self):
            self._supply.schema().require_form(public)
        return self._with(public=public.coded_as(self.about))

    def with_others(self, others: Mapping[str, Dataset]) -> Islands:
        """Return the same clients beside other parties with rows, in the clients' class codes: name -> rows.

        In a simulation, a party that a job needs in addition to the clients has the rows under its name; between organisations, its site has them.

        Raises:
            DataError: the rows name classes that the clients do not have, or have another shape.
        """
        if len(self):
            schema = self._supply.schema()
            for rows in others.values():
                schema.require_form(rows)
        return self._with(others={name: rows.coded_as(self.about) for name, rows in others.items()})

    def pooled(self, max_bytes: int = _POOLED_BYTES) -> Dataset:
        """Return all clients' rows as one data set, ordered by client.

        Raises:
            DataError: the data set would need more than ``max_bytes``.
        """
        schema = self._supply.schema()
        need = int(self.sizes.sum()) * schema.row_bytes
        if need > max_bytes:
            raise DataError(
                f"pooling {len(self):,} clients needs {need:,} bytes, more than max_bytes={max_bytes:,}",
                where=self._where(),
                remedy="pool a subset(...) of the clients, or raise max_bytes",
            )
        base = dict(zip(schema.columns, self._supply.gather(self._ids, schema.columns)[0], strict=True))
        for array in base.values():
            array.flags.writeable = False
        return Dataset._of(base, None, len(next(iter(base.values()))), self.about, self.test)

    def describe(self, sample: int = 10_000, seed: int | Rng = 0) -> Description:
        """Summarise the population: sizes, classes per client, label skew.

        Args:
            sample: maximum number of clients whose labels are counted (sizes always include all).
            seed: the seed that chooses these clients.
        """
        looked_at = sampled(len(self), sample, root(seed))
        names = [name for name in ("y", "labelled") if name in self.columns]
        labels = self.gather(looked_at, *names) if "y" in names else None
        return describe(self.about, self.scheme, self.sizes, self.tags.counts(), looked_at, labels)

    def _with(self, **changes: Any) -> Islands:
        kept: dict[str, Any] = {
            "supply": self._supply,
            "about": self.about,
            "ids": self._ids,
            "keys": self._keys,
            "tags": self.tags,
            "test": self.test,
            "public": self.public,
            "others": self.others,
            "held_out": self.held_out,
            "scheme": self.scheme,
            "separate": self.separate,
        }
        kept.update(changes)
        return Islands(kept.pop("supply"), **kept)

    def _positions(self, clients: ArrayLike) -> NDArray[np.int64]:
        index = np.asarray(clients)
        if index.dtype.kind == "U" and index.ndim == 1:
            index = np.array([self.names.index(name) for name in index.tolist()], np.int64)
        if index.dtype == np.bool_ and index.shape == (len(self),):
            return np.flatnonzero(index)
        if index.size == 0:
            return np.zeros(0, np.int64)
        if index.ndim != 1 or index.dtype.kind not in "iu" or index.min() < 0 or index.max() >= len(self):
            shown = index.ravel()[:5].tolist()
            raise DataError(
                f"clients {shown} are not positions in a population of {len(self):,}",
                where=self._where(),
                remedy=f"use whole numbers in 0..{len(self) - 1}, or the clients' names",
            )
        return index.astype(np.int64, copy=False)

    def _where(self) -> str:
        return f"islands of {self.name!r}"

    def __repr__(self) -> str:
        how = f" by {self.scheme}" if self.scheme else ""
        test = f", test {len(self.test):,} rows" if self.test is not None else ""
        test += "" if self.held_out is None else f", {int(self.held_out.sizes.sum()):,} rows held out at clients"
        kind = self.task + (f" of {self.classes} classes" if self.classes else "")
        return f"Islands({self.name!r}{how}: {len(self):,} clients, {kind}{test})"

    def _repr_html_(self) -> str:
        lines = {
            "clients": f"{len(self):,}" + (f", divided by {self.scheme}" if self.scheme else ""),
            "task": self.task + (f" of {self.classes} classes" if self.classes else ""),
            "test": "no rows at the server" if self.test is None else f"{len(self.test):,} rows at the server",
        }
        return Overview(f"Islands of {self.name!r}", lines).html()
