"""Low-quality clients: noise, blur, salt and pepper, irrelevant or fake data, wrong labels, rotations."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import ceil, prod
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from atoll.core.algebra.rng import Rng
from atoll.core.calls import checked_call, shown
from atoll.core.errors import DataError, nearest
from atoll.core.validation import Checked, is_real

from ._checks import Array
from ._supply import ByteCache, Ids, Supply, offsets_of, span
from .dataset import Dataset, Rows, root
from .islands import Islands, Tags

__all__ = [
    "Blur",
    "Corruption",
    "CorruptionScope",
    "Fake",
    "GradedNoise",
    "Irrelevant",
    "Mislabel",
    "Noise",
    "Rotate",
    "SaltAndPepper",
    "corrupt",
    "gaussian_blur",
]


# The base class of corruptions, and what it can see of the population.


Columns = dict[str, Array]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class CorruptionScope:
    """The population that a corrupted client belongs to.

    Ranges are one number for images (``x`` with three or more dimensions) and one per feature for tables.

    Attributes:
        sample: rows that represent the population: all of them if they are in one pool.
        clients: number of clients.
    """

    sample: Dataset
    clients: int

    @cached_property
    def low(self) -> Floats:
        """Smallest value of ``x``."""
        return np.ma.filled(self._known.min(axis=self._axes), 0.0).astype(np.float64)

    @cached_property
    def high(self) -> Floats:
        """Largest value of ``x``."""
        return np.ma.filled(self._known.max(axis=self._axes), 0.0).astype(np.float64)

    @cached_property
    def spread(self) -> Floats:
        """Standard deviation of ``x``."""
        return np.ma.filled(self._known.std(axis=self._axes, dtype=np.float64), 0.0)

    @property
    def classes(self) -> int | None:
        """Number of classes."""
        return self.sample.classes

    @property
    def _known(self) -> Any:
        """``x``, without the features that are missing."""
        return np.ma.masked_invalid(self.sample.x) if self.sample.about.missing_features else self.sample.x

    @property
    def _axes(self) -> int | None:
        return 0 if self.sample.x.ndim == 2 else None


class Corruption(Checked):
    """A way to corrupt one client's rows. Subclass it to add one, as a frozen dataclass."""

    name: ClassVar[str]

    @abstractmethod
    def apply(self, columns: Columns, client: int, rng: np.random.Generator, scope: CorruptionScope) -> Columns:
        """Return the columns to replace.

        Args:
            columns: the client's columns; read-only.
            client: the client's number.
            rng: keyed by (seed, corruption, client).
            scope: the population.
        """

    def check(self, scope: CorruptionScope) -> None:
        """Refuse data that this corruption does not support; called once, before any client is corrupted."""
        need_numbers(scope.sample, self.name)


def need_numbers(sample: Dataset, name: str) -> None:
    """Refuse data without numeric features."""
    if "x" not in sample or sample.x.dtype.kind not in "biuf":
        raise DataError(
            f"the corruption {name!r} needs a numeric column 'x'",
            where=f"data set {sample.name!r}",
            remedy="use a corruption of the labels, or encode the features first",
        )


def like(values: Array, x: Array) -> Array:
    """Return values in the dtype of ``x``: rounded and clipped if it has integers."""
    if x.dtype.kind in "iu":
        bounds = np.iinfo(x.dtype)
        values = np.clip(np.rint(values), bounds.min, bounds.max)
    return values.astype(x.dtype)


# Corruptions of the feature values.


@dataclass(frozen=True)
class Noise(Corruption):
    """Additive Gaussian noise: ``x + N(0, (sigma * s)^2)``.

    FedProf (section 5.5) adds Gaussian noise to 40 % of the clients without naming its deviation; ``sigma = 1`` is
    our choice.

    Attributes:
        sigma: standard deviation of the noise.
        relative: whether ``sigma`` is in standard deviations ``s`` of the population's ``x``; else ``s = 1``.
        clip: whether to keep the values in the population's range.
    """

    sigma: float = 1.0
    relative: bool = True
    clip: bool = False
    name: ClassVar[str] = "noise"

    def apply(self, columns: Columns, client: int, rng: np.random.Generator, scope: CorruptionScope) -> Columns:
        """Add noise to ``x``."""
        return {"x": self._noisy(columns["x"], self.sigma, rng, scope)}

    def _noisy(self, x: Array, sigma: float, rng: np.random.Generator, scope: CorruptionScope) -> Array:
        scale = sigma * scope.spread if self.relative else sigma
        noisy = x + scale * rng.standard_normal(x.shape, dtype=np.float32)
        return like(np.clip(noisy, scope.low, scope.high) if self.clip else noisy, x)

    def check(self, scope: CorruptionScope) -> None:
        """Refuse settings or data that the corruption does not support."""
        super().check(scope)
        if not 0.0 <= self.sigma < np.inf:
            raise DataError(f"sigma={self.sigma}", where=f"corruption {self.name!r}", remedy="choose 0 or more")


@dataclass(frozen=True)
class GradedNoise(Noise):
    """Gaussian noise that grows with the client: client ``k`` of ``N`` has deviation ``sigma * (k + 1) / N``.

    The noise-based feature skew of Li et al. (2022, NIID-Bench).
    """

    name: ClassVar[str] = "graded_noise"

    def apply(self, columns: Columns, client: int, rng: np.random.Generator, scope: CorruptionScope) -> Columns:
        """Add the client's noise to ``x``."""
        return {"x": self._noisy(columns["x"], self.sigma * (client + 1) / scope.clients, rng, scope)}


@dataclass(frozen=True, eq=False)
class Irrelevant(Corruption):
    """Replace the features with unrelated ones, and keep the client's own labels.

    Attributes:
        source: other data to draw rows from, with features of the same shape; without it, uniform noise over the
            population's range. (FedProf calls its irrelevant images "fake" and does not say what they show.)
    """

    source: Dataset | None = None
    name: ClassVar[str] = "irrelevant"

    def apply(self, columns: Columns, client: int, rng: np.random.Generator, scope: CorruptionScope) -> Columns:
        """Replace ``x``."""
        x = columns["x"]
        if self.source is None:
            return {"x": like(_draw_uniform(x.shape, rng, scope), x)}
        rows = rng.integers(0, len(self.source), len(x))
        return {"x": like(self.source.x[rows], x)}

    def check(self, scope: CorruptionScope) -> None:
        """Refuse settings or data that the corruption does not support."""
        super().check(scope)
        if self.source is not None and self.source.x.shape[1:] != scope.sample.x.shape[1:]:
            raise DataError(
                f"rows of shape {self.source.x.shape[1:]} cannot replace rows of shape {scope.sample.x.shape[1:]}",
                where=f"corruption {self.name!r} from {self.source.name!r}",
                remedy="bring the other data to the same shape",
            )


@dataclass(frozen=True)
class Fake(Corruption):
    """Replace all data: features and targets are drawn uniformly over the population's ranges.

    So ``x``, ``y`` and their relation carry no information. (FedProf's table says "no valid data".)
    """

    name: ClassVar[str] = "fake"

    def apply(self, columns: Columns, client: int, rng: np.random.Generator, scope: CorruptionScope) -> Columns:
        """Replace ``x`` and ``y``."""
        x = columns["x"]
        made: Columns = {"x": like(_draw_uniform(x.shape, rng, scope), x)}
        if "y" in columns:
            made["y"] = _draw_targets(columns["y"], rng, scope)
        return made


def _draw_uniform(shape: tuple[int, ...], rng: np.random.Generator, scope: CorruptionScope) -> Array:
    return np.asarray(scope.low + (scope.high - scope.low) * rng.random(shape, dtype=np.float32))


def _draw_targets(y: Array, rng: np.random.Generator, scope: CorruptionScope) -> Array:
    known = scope.sample.y
    if scope.sample.task == "classification":
        return rng.integers(0, scope.classes or 1, y.shape)
    if y.dtype.kind in "iu":  # binary and multilabel: one of the two ends; counts: whole numbers between
        low, high = int(known.min()), int(known.max())
        drawn = rng.integers(0, 2, y.shape) * (high - low) + low
        return drawn if scope.sample.task in ("binary", "multilabel") else rng.integers(low, high + 1, y.shape)
    low, high = known.min(axis=0), known.max(axis=0)
    return np.asarray(low + (high - low) * rng.random(y.shape), y.dtype)


# Wrong labels.


@dataclass(frozen=True)
class Mislabel(Corruption):
    """Replace a share of the client's labels by wrong ones.

    ``corrupt(islands, {Mislabel(0.4, kind="pairs"): 1.0})`` spoils labels at every client, ``{Mislabel(): 0.3}`` at 30 % of the clients, and a range,
    ``{Mislabel((0.0, 0.8)): 1.0}``, another share at each client.

    Attributes:
        fraction: share of the labels to replace; exactly ``round(fraction * labels)``. A range ``(low, high)`` draws one share for each client. Missing labels
            stay missing.
        kind: ``"symmetric"``: each of the other classes with equal probability; ``"pairs"``: the next class, ``(y + 1) mod C``, as between classes that
            people confuse.
    """

    fraction: float | tuple[float, float] = 0.5
    kind: Literal["symmetric", "pairs"] = "symmetric"
    name: ClassVar[str] = "mislabelled"

    def __post_init__(self) -> None:
        shares = self.fraction if isinstance(self.fraction, tuple | list) else (self.fraction, self.fraction)
        if len(shares) != 2 or not all(is_real(share) for share in shares) or not 0.0 <= shares[0] <= shares[1] <= 1.0:
            raise DataError(
                f"fraction={self.fraction!r}",
                where="corruption 'mislabelled'",
                remedy="choose it between 0 and 1, or a range (low, high) between them",
            )
        if self.kind not in ("symmetric", "pairs"):
            raise DataError(
                f"kind={self.kind!r}.{nearest(str(self.kind), ('symmetric', 'pairs'))}",
                where="corruption 'mislabelled'",
                remedy="use 'symmetric' or 'pairs'",
            )

    def apply(self, columns: Columns, client: int, rng: np.random.Generator, scope: CorruptionScope) -> Columns:
        """Replace labels in ``y``."""
        y = columns["y"].copy()
        there = np.arange(len(y)) if "labelled" not in columns else np.flatnonzero(columns["labelled"])
        rows = there[rng.permutation(len(there))]
        fraction = self.fraction if isinstance(self.fraction, float | int) else rng.uniform(*self.fraction)
        rows = rows[: round(fraction * len(rows))]
        if scope.sample.task == "binary":
            y[rows] = -y[rows] if scope.sample.y.min() < 0 else 1 - y[rows]
        else:
            classes = int(scope.classes or 2)
            step = 1 if self.kind == "pairs" else rng.integers(1, classes, len(rows))
            y[rows] = (y[rows] + step) % classes
        return {"y": y}

    def check(self, scope: CorruptionScope) -> None:
        """Refuse data that the corruption does not support."""
        if scope.sample.task not in ("classification", "binary") or (scope.classes or 0) < 2:
            raise DataError(
                f"there is no other class to flip to in a {scope.sample.task} task",
                where=f"corruption 'mislabelled' of {scope.sample.name!r}",
                remedy="use it with two classes or more",
            )


# Corruptions of images: blur, salt and pepper, rotation.


def gaussian_blur(images: Array, sigma: float) -> NDArray[np.float32]:
    """Blur the last two axes with a Gaussian kernel, separably.

    The kernel is ``exp(-k^2 / (2 sigma^2))`` for ``|k| <= ceil(3 sigma)``, normalised to sum 1; edges are mirrored
    with the edge pixel repeated (``d c b a | a b c d | d c b a``).

    Args:
        images: ``(..., height, width)``.
        sigma: standard deviation of the kernel in pixels.

    Returns:
        Same shape, float32.
    """
    radius = ceil(3.0 * sigma)
    offsets = np.arange(-radius, radius + 1)
    kernel = np.exp(-0.5 * (offsets / sigma) ** 2)
    kernel = (kernel / kernel.sum()).astype(np.float32)
    blurred = images.astype(np.float32)
    for axis in (-2, -1):
        n = blurred.shape[axis]
        mirrored = np.arange(-radius, n + radius) % (2 * n)
        padded = np.take(blurred, np.minimum(mirrored, 2 * n - 1 - mirrored), axis=axis)
        total = np.zeros_like(blurred)
        for k, weight in enumerate(kernel):
            window = [slice(None)] * blurred.ndim
            window[axis] = slice(k, k + n)
            total += weight * padded[tuple(window)]
        blurred = total
    return blurred


@dataclass(frozen=True)
class _OnImages(Corruption):
    """A corruption that needs height and width.

    Attributes:
        shape: (height, width) or (channels, height, width) of flat rows. Images of three or four dimensions,
            ``(rows, height, width)`` or ``(rows, channels, height, width)``, do not need it.
    """

    shape: tuple[int, ...] | None = None

    def as_images(self, x: Array) -> Array:
        return x if self.shape is None else x.reshape(len(x), *self.shape)

    def check(self, scope: CorruptionScope) -> None:
        """Refuse settings or data that the corruption does not support."""
        super().check(scope)
        x = scope.sample.x
        if self.shape is None and x.ndim not in (3, 4):
            side = round(x.shape[-1] ** 0.5)
            guess = (side, side) if side * side == x.shape[-1] else ("height", "width")
            raise DataError(
                f"{self.name!r} needs images, but each row of x has shape {x.shape[1:]}",
                where=f"data set {scope.sample.name!r}",
                remedy=f"give the layout of flat rows: {type(self).__name__}(shape={guess})".replace("'", ""),
            )
        if self.shape is not None and (len(self.shape) not in (2, 3) or prod(self.shape) != prod(x.shape[1:])):
            raise DataError(
                f"shape={self.shape} does not fit rows of shape {x.shape[1:]}",
                where=f"corruption {self.name!r}",
                remedy=f"give (height, width) or (channels, height, width) of {prod(x.shape[1:])} values",
            )


@dataclass(frozen=True)
class Blur(_OnImages):
    """Gaussian blur. FedProf (section 5.5) blurs 20 % of the clients without naming the kernel.

    Attributes:
        shape: layout of flat rows, see `gaussian_blur` for the axes.
        sigma: standard deviation of the kernel in pixels.
    """

    sigma: float = 2.0
    name: ClassVar[str] = "blur"

    def apply(self, columns: Columns, client: int, rng: np.random.Generator, scope: CorruptionScope) -> Columns:
        """Blur ``x``."""
        x = columns["x"]
        return {"x": like(gaussian_blur(self.as_images(x), self.sigma).reshape(x.shape), x)}

    def check(self, scope: CorruptionScope) -> None:
        """Refuse settings or data that the corruption does not support."""
        super().check(scope)
        if not 0.0 < self.sigma < np.inf:
            raise DataError(f"sigma={self.sigma}", where="corruption 'blur'", remedy="choose a positive number")


@dataclass(frozen=True)
class Rotate(_OnImages):
    """Rotate images by quarter turns, counter-clockwise: a feature skew that keeps the labels correct.

    Attributes:
        shape: layout of flat rows.
        turns: number of quarter turns; an odd number needs square images.
    """

    turns: int = 1
    name: ClassVar[str] = "rotate"

    def apply(self, columns: Columns, client: int, rng: np.random.Generator, scope: CorruptionScope) -> Columns:
        """Rotate ``x``."""
        x = columns["x"]
        return {"x": np.ascontiguousarray(np.rot90(self.as_images(x), self.turns, axes=(-2, -1))).reshape(x.shape)}

    def check(self, scope: CorruptionScope) -> None:
        """Refuse settings or data that the corruption does not support."""
        super().check(scope)
        height, width = self.as_images(scope.sample.x[:1]).shape[-2:]
        if self.turns % 2 and height != width:
            raise DataError(
                f"a quarter turn of images of {height} by {width}",
                where="corruption 'rotate'",
                remedy="use turns=2, or square images",
            )


@dataclass(frozen=True)
class SaltAndPepper(Corruption):
    """Set a random share of the values to the population's largest (salt) or smallest (pepper), half each.

    Works on any numeric features; each value is drawn independently.

    Attributes:
        density: share of the values to replace; FedProf uses 0.3.
    """

    density: float = 0.3
    name: ClassVar[str] = "salt_and_pepper"

    def apply(self, columns: Columns, client: int, rng: np.random.Generator, scope: CorruptionScope) -> Columns:
        """Set values of ``x`` to the ends of the range."""
        x = columns["x"]
        draw = rng.random(x.shape, dtype=np.float32)
        peppered = np.where(draw < self.density / 2, scope.low, x)
        return {"x": like(np.where(draw >= 1.0 - self.density / 2, scope.high, peppered), x)}

    def check(self, scope: CorruptionScope) -> None:
        """Refuse settings or data that the corruption does not support."""
        super().check(scope)
        if not 0.0 <= self.density <= 1.0:
            raise DataError(
                f"density={self.density}", where="corruption 'salt_and_pepper'", remedy="choose it between 0 and 1"
            )


# Choosing the clients to corrupt, and corrupting their rows on access.


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
    kinds = [_resolve_kind(kind) for kind in groups]
    counts = _counts_of_clients(list(groups.values()), len(islands))
    scope = CorruptionScope(islands._supply.sample(), islands._supply.count)
    for kind in kinds:
        kind.check(scope)
    rng = root(seed).child("corrupt")
    codes = np.zeros(len(islands), np.uint8)
    by_number = np.argsort(islands.clients, kind="stable")
    chosen = by_number[rng.child("clients").generator().permutation(len(islands))[: sum(counts)]]
    codes[chosen] = np.repeat(np.arange(1, len(kinds) + 1), counts)
    spoiled = np.zeros(islands._supply.count, np.uint8)
    spoiled[islands.clients] = codes
    supply = Corrupted(islands._supply, spoiled, kinds, scope, rng, cache_bytes)
    return islands._with(supply=supply, tags=_merge_tags(islands.tags, codes, _label_kinds(kinds)))


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


def _resolve_kind(kind: str | Corruption) -> Corruption:
    if isinstance(kind, Corruption):
        return kind
    if kind not in _BY_NAME:
        raise DataError(
            f"unknown corruption {kind!r}.{nearest(str(kind), _BY_NAME)}",
            remedy=f"use one of {', '.join(sorted(_BY_NAME))}, or a Corruption object",
        )
    return _BY_NAME[kind]()


def _counts_of_clients(fractions: Sequence[float], clients: int) -> list[int]:
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


def _label_kinds(kinds: Sequence[Corruption]) -> list[str]:
    names = [kind.name for kind in kinds]
    return [repr(kind) if names.count(kind.name) > 1 else kind.name for kind in kinds]


def _merge_tags(old: Tags, codes: NDArray[np.uint8], labels: list[str]) -> Tags:
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
