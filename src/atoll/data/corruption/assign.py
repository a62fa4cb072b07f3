"""Choosing the clients to corrupt, and corrupting their rows on access."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from atoll.core.algebra.rng import Rng
from atoll.core.calls import checked_call, shown
from atoll.core.errors import DataError, nearest

from .._cache import ByteCache
from .._checks import Array
from .._supply import Ids, Supply, offsets_of, span
from ..dataset import Dataset, Rows, root
from ..islands import Islands
from ..names import Tags
from .base import Corruption, CorruptionScope
from .images import Blur, Rotate, SaltAndPepper
from .labels import Mislabel
from .values import Fake, GradedNoise, Irrelevant, Noise

__all__ = ["corrupt"]

_KINDS: tuple[type[Corruption], ...] = (Blur, Fake, GradedNoise, Irrelevant, Mislabel, Noise, Rotate, SaltAndPepper)
_BY_NAME = {kind.name: kind for kind in _KINDS}
_CACHE_BYTES = 64 << 20
_MOST = 255  # the codes are bytes


@checked_call
def corrupt(
    islands: Islands, groups: Mapping[str | Corruption, float], *, seed: int | Rng = 0, cache_bytes: int = _CACHE_BYTES
) -> Islands:
    """Corrupt the data of random, disjoint groups of clients.

    Atoll computes nothing until you access a client's rows. ``islands.tags`` of the result names the corruption of each
    client; a client that two calls corrupt has both names, joined by ``+``. The server's test set stays clean.

    Args:
        islands: the population.
        groups: maps a corruption to a fraction of the clients. A corruption is a name ("blur", "fake", "graded_noise",
            "irrelevant", "mislabelled", "noise", "rotate", "salt_and_pepper"), for its default settings, or an
            object such as ``Blur(sigma=1.5)``.
        seed: the seed that chooses the clients, and of the corruptions' random numbers.
        cache_bytes: how many bytes of corrupted data to cache.

    Returns:
        A population of the same clients.

    Raises:
        DataError: an unknown name, fractions that add up to more than 1, or data that a corruption does not support.

    Example:
        The low-quality clients of FedProf's large task::

            corrupt(islands, {"irrelevant": 0.15, "blur": 0.20, "salt_and_pepper": 0.25}, seed=0)
    """
    if not isinstance(groups, Mapping):
        raise DataError(
            f"groups={shown(groups)}",
            where="corrupt",
            remedy="map each corruption to a share of the clients, such as {Mislabel(0.4): 1.0}",
        )
    kinds = [_resolve(kind) for kind in groups]
    counts = _counts(list(groups.values()), len(islands))
    scope = CorruptionScope(islands._supply.sample(), islands._supply.count)
    for kind in kinds:
        kind.check(scope)
    rng = root(seed).child("corrupt")
    codes = np.zeros(len(islands), np.uint8)
    chosen = rng.child("clients").generator().permutation(len(islands))[: sum(counts)]
    codes[chosen] = np.repeat(np.arange(1, len(kinds) + 1), counts)
    spoiled = np.zeros(islands._supply.count, np.uint8)
    spoiled[islands.clients] = codes
    supply = Corrupted(islands._supply, spoiled, kinds, scope, rng, cache_bytes)
    return islands._with(supply=supply, tags=_joined(islands.tags, codes, _labels(kinds)))


class Corrupted(Supply):
    """A population in which some clients' rows are corrupted on access."""

    def __init__(
        self,
        base: Supply,
        codes: NDArray[np.uint8],
        kinds: Sequence[Corruption],
        scope: CorruptionScope,
        rng: Rng,
        cache: int,
    ) -> None:
        self.count = base.count
        self._base, self._codes, self._kinds, self._scope, self._rng = base, codes, kinds, scope, rng
        self._cache = ByteCache(cache)

    def sizes(self) -> NDArray[np.int64]:
        return self._base.sizes()

    def size_of(self, client: int) -> int:
        return self._base.size_of(client)

    def locate(self, client: int) -> tuple[Dataset, Rows]:
        if not self._codes[client]:
            return self._base.locate(client)
        source = self._cache.get(client, self._spoil)
        return source, slice(0, len(source))

    def gather(self, clients: Ids, columns: Sequence[str]) -> tuple[list[Array], NDArray[np.int64]]:
        """Fetch the rows of all clients at once, then overwrite those of the corrupted clients."""
        stacked, sizes = self._base.gather(clients, columns)
        starts = offsets_of(sizes)
        for place in np.flatnonzero(self._codes[clients]):
            source, _ = self.locate(int(clients[place]))
            for column, array in zip(columns, stacked, strict=True):
                array[starts[place] : starts[place + 1]] = source[column]
        return stacked, sizes

    def schema(self) -> Dataset:
        return self._base.schema()

    def sample(self) -> Dataset:
        return self._base.sample()

    def _spoil(self, client: int) -> Dataset:
        kind = self._kinds[self._codes[client] - 1]
        source, rows = self._base.locate(client)
        columns = {name: source[name][rows] for name in source.columns}
        rng = self._rng.child(kind.name, client).generator()
        for name, array in kind.apply(columns, client, rng, self._scope).items():
            if name not in columns or array.shape != columns[name].shape:
                raise DataError(
                    f"corruption {kind.name!r} made a column {name!r} of shape {array.shape}",
                    where=f"client-{client}",
                    remedy="return replacements with the shapes of the client's own columns",
                )
            columns[name] = array.astype(columns[name].dtype, copy=False)
        for array in columns.values():
            array.flags.writeable = False
        return Dataset._of(columns, None, span(rows), source.about)


def _resolve(kind: str | Corruption) -> Corruption:
    if isinstance(kind, Corruption):
        return kind
    if kind not in _BY_NAME:
        raise DataError(
            f"unknown corruption {kind!r}.{nearest(str(kind), _BY_NAME)}",
            remedy=f"use one of {', '.join(sorted(_BY_NAME))}, or a Corruption object",
        )
    return _BY_NAME[kind]()


def _counts(fractions: Sequence[float], clients: int) -> list[int]:
    total = sum(fractions)
    if len(fractions) > _MOST:
        raise DataError(f"{len(fractions)} groups", where="corrupt", remedy=f"use at most {_MOST} (see GradedNoise)")
    if any(not 0.0 <= f <= 1.0 for f in fractions) or total > 1.0 + 1e-9:
        raise DataError(
            f"fractions {list(fractions)} add up to {total:g}",
            where="corrupt",
            remedy="give each group of clients a share, together at most 1",
        )
    # Rounding the cumulative shares keeps the groups within the population.
    ends = np.rint(np.minimum(np.cumsum(fractions), 1.0) * clients).astype(int)
    return [int(n) for n in np.diff(ends, prepend=0)]


def _labels(kinds: Sequence[Corruption]) -> list[str]:
    names = [kind.name for kind in kinds]
    return [repr(kind) if names.count(kind.name) > 1 else kind.name for kind in kinds]


def _joined(old: Tags, codes: NDArray[np.uint8], labels: list[str]) -> Tags:
    """Merge the tags of an earlier corruption with the new ones."""
    if not old.labels:
        return Tags(codes, labels)
    names = ["", *labels]
    before = ["", *old.labels]
    joined = [[f"{a}+{b}" if a and b else a or b for b in names] for a in before]
    pairs = set(zip(old._codes.tolist(), codes.tolist(), strict=True))
    found = sorted({joined[a][b] for a, b in pairs} - {""})
    table = np.array([[found.index(j) + 1 if j in found else 0 for j in row] for row in joined], np.uint8)
    return Tags(table[old._codes, codes], found)
