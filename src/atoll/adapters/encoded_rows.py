"""A party's texts or images as the numbers that a tuned encoder takes; the training's tasks meet them at the party, in place of its data."""

from __future__ import annotations

import weakref
from collections import OrderedDict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core.errors import DataError, nearest
from atoll.data import Dataset, Islands

from .encoder import hash_texts
from .images import hash_images, prepare_images

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from atoll.core.requests.task import Task

    from .encoder import Encoder

__all__ = ["EncodedRows"]

_MOST_KEPT = 512
"""Parties whose encoded rows a process keeps."""


@dataclass(eq=False)
class EncodedRows:
    """How texts, or images, become rows.

    Attributes:
        encoder: the encoder; its modality says what the column holds.
        column: the column of texts, or of images: names of files, or pixels.
        features: whether rows are features, ``(rows, width)``, or what the encoder takes: ids and masks, ``(rows, 2, length)``, or prepared images,
            ``(rows, 3, height, width)``.
    """

    encoder: Encoder
    column: str
    features: bool
    _kept: OrderedDict[str, Dataset] = field(default_factory=OrderedDict, repr=False)
    _populations: weakref.WeakKeyDictionary[Any, Any] = field(default_factory=weakref.WeakKeyDictionary, repr=False)

    @property
    def _where(self) -> str:
        return f"Tuning.{self.encoder.modality}"

    def texts(self, rows: Any) -> list[str]:
        """Return the texts of some rows, or the names of their images.

        Raises:
            DataError: there is no such column, it holds no text, or a row has none.
        """
        about = getattr(rows, "about", None) or getattr(getattr(rows, "source", None), "about", None)
        known = list(getattr(rows, "columns", ()))
        if self.column in rows:
            found = np.asarray(rows[self.column])
            if found.ndim == 1 and found.dtype.kind == "U":
                absent = next((row for row, one in enumerate(found.tolist(), 1) if not one.strip()), None)
                if absent is not None:  # it would be learnt from as an empty sentence
                    raise DataError(f"row {absent} has nothing in the column {self.column!r}", where=self._where, remedy="leave the row out")  # fmt: skip
                return [str(one) for one in found]
            raise DataError(
                f"the column {self.column!r} holds {found.dtype} of shape {found.shape}, no text",
                where=self._where,
                remedy="name the column of texts"
                if self.encoder.modality == "text"
                else "name the column of images: files, or pixels of (height, width, 3)",
            )
        features = tuple(getattr(about, "features", ()))
        words = dict(getattr(about, "categories", {}) or {}).get(self.column)
        if words and self.column in features:  # a reader took the texts for a category
            codes = np.asarray(rows["x"])[:, features.index(self.column)].astype(np.int64)
            return [words[code] for code in codes]
        raise DataError(
            f"the rows have no column {self.column!r}.{nearest(self.column, known)}",
            where=self._where,
            remedy=f"read it as it is: keep=[{self.column!r}], features=[], as in atoll.data.from_csv_folder(folder, target=..., keep=[{self.column!r}], features=[])",
        )

    def images(self, rows: Any) -> list[Any]:
        """Return the images of some rows: names of files, or arrays of pixels.

        Raises:
            DataError: there is no such column, or it holds no images.
        """
        found = np.asarray(rows[self.column]) if self.column in rows else None
        if found is not None and found.ndim in (3, 4):
            return list(found)
        names = self.texts(rows)
        if not any(names) and getattr(getattr(rows, "about", None), "name", "") == _EXAMPLE:
            height, width = self.encoder.image_settings.shape[1:]
            return [np.zeros((height, width, 3), dtype=np.uint8) for _ in names]
        return names

    @property
    def _of_images(self) -> bool:
        return self.encoder.modality == "image"

    def _given(self, rows: Any) -> list[Any]:
        return self.images(rows) if self._of_images else self.texts(rows)

    def _features(self, given: Sequence[Any]) -> NDArray[np.float32]:
        return self.encoder.encode_images(given) if self._of_images else self.encoder.encode(given)

    def features_of(self, rows: Any) -> NDArray[np.float32]:
        """Return the features of some rows, ``(rows, width)``."""
        return self._features(self._given(rows))

    def encode(self, rows: Any) -> Dataset:
        """Return rows with the column ``x`` encoded; labels and their names stay."""
        if isinstance(rows, Dataset) and rows.about.name == _MADE:
            return rows
        given = self._given(rows)
        about = getattr(rows, "about", None) or rows.source.about
        causal = self.encoder.kind == "causal"
        own = {} if causal else {name: np.asarray(rows[name]) for name in ("y", "labelled") if name in rows}
        tail = "".join(str(hash(value.tobytes())) for value in own.values())
        key = hash_texts(
            hash_images(given) if self._of_images else given, f"{self.features} {tail} {about.task} {about.labels}"
        )
        if key not in self._kept:
            if causal:
                made = self._next_tokens(given)
            else:
                made = Dataset(
                    {"x": self.inputs(given), **own}, task=about.task, classes=about.classes, labels=about.labels, name=_MADE
                )  # fmt: skip
            self._kept[key] = made
            while len(self._kept) > _MOST_KEPT:
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        return self._kept[key]

    def inputs(self, given: Sequence[Any]) -> NDArray[Any]:
        """Return what the tuned module takes of texts or images: features, or what the encoder takes."""
        if self.features:
            return self._features(given)
        return prepare_images(given, self.encoder.image_settings) if self._of_images else self.encoder.tokenise(given)

    def _next_tokens(self, texts: Sequence[str]) -> Dataset:
        """Return ids with the next token of each as its class; padding has none."""
        x = self.encoder.tokenise(texts)
        y, there = np.zeros_like(x[:, 0]), np.zeros(x[:, 0].shape, dtype=bool)
        y[:, :-1] = x[:, 0, 1:]
        there[:, :-1] = (x[:, 1, 1:] == 1) & (x[:, 1, :-1] == 1)
        return Dataset(
            {"x": x, "y": np.where(there, y, 0), "labelled": there},
            task="tokens", classes=int(self.encoder.model.config.vocab_size), name=_MADE,
        )  # fmt: skip

    def population(self, given: Any) -> Any:
        """Return a population whose rows are encoded: whole `Islands` at once, any other when its rows are asked for."""
        try:
            found = self._populations.get(given)
        except TypeError:  # no weak references
            found = None
        if found is None:
            found = self._encode_islands(given) if isinstance(given, Islands) else _EncodedPopulation(given, self)
            try:
                self._populations[given] = found
            except TypeError:
                return found
        return found

    def _encode_islands(self, given: Islands) -> Islands:
        if given.about.name == _MADE:
            return given
        rows = {str(given.names[i]): self.encode(given.shard(i)) for i in range(len(given))}
        made = Islands.from_datasets(rows)
        if given.held_out is not None:
            held = {str(given.names[i]): self.encode(given.held_out.shard(i)) for i in range(len(given))}
            made = made.with_held_out(held)
        made = made if given.test is None else made.with_test(self.encode(given.test))
        return made if given.public is None else made.with_public(self.encode(given.public))

    def task(self, given: Task) -> Task:
        """Return a task that meets encoded rows in place of texts or images."""

        def on_cohorts(many: Any) -> Any:
            return many and (lambda cohort, message, **more: many(_EncodedCohort(cohort, self), message, **more))

        def run(island: Any, message: Any, **more: Any) -> Any:
            return given.run(_EncodedIsland(island, self), message, **more)

        return replace(
            given, run=run, many=on_cohorts(given.many), sums=on_cohorts(given.sums),
            summands=on_cohorts(given.summands), tuning=None,
        )  # fmt: skip


_MADE = "encoded rows"
_EXAMPLE = "example"  # what a server calls the made-up rows of sites' form: their texts are empty


class _EncodedPopulation:
    """A population of another kind, such as the clients of a site, or the made-up rows of sites' form at a server."""

    def __init__(self, given: Any, rows: EncodedRows) -> None:
        self._given, self._rows = given, rows

    def __getattr__(self, name: str) -> Any:
        if name in ("gather", "located", "held_out"):
            raise AttributeError(name)
        return getattr(self._given, name)

    def __len__(self) -> int:
        return len(self._given)

    @property
    def test(self) -> Any:
        test = getattr(self._given, "test", None)
        return None if test is None else self._rows.encode(test)

    @property
    def others(self) -> dict[str, Any]:
        return dict(getattr(self._given, "others", None) or {})

    def shard(self, client: Any) -> Dataset:
        return self._rows.encode(self._given.shard(client))

    def outline(self) -> Any:
        seen = self._given.outline() if hasattr(self._given, "outline") else self._given
        return _EncodedPopulation(seen, self._rows)


class _EncodedIsland:
    """An island whose data are encoded; everything else is the island's."""

    _island: Any
    _rows: EncodedRows
    __slots__ = ("_island", "_rows")

    def __init__(self, island: Any, rows: EncodedRows) -> None:
        object.__setattr__(self, "_island", island)
        object.__setattr__(self, "_rows", rows)

    @property
    def data(self) -> Dataset:
        return self._rows.encode(self._island.data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._island, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._island, name, value)


class _EncodedCohort:
    """A cohort whose data are encoded; everything else is the cohort's."""

    def __init__(self, cohort: Any, rows: EncodedRows) -> None:
        self._cohort, self._rows = cohort, rows
        self.population = rows.population(cohort.population)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cohort, name)

    def __len__(self) -> int:
        return len(self._cohort)

    def part(self, places: Any) -> _EncodedCohort:
        return _EncodedCohort(self._cohort.part(places), self._rows)

    def shard(self, i: int) -> Dataset:
        return self._rows.encode(self._cohort.shard(i))

    def island(self, i: int) -> _EncodedIsland:
        return _EncodedIsland(self._cohort.island(i), self._rows)
