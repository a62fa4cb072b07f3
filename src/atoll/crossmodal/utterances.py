"""`Utterances`: one party's rows, with the phones of each; readers of folders of speech and of files of text."""

from __future__ import annotations

import hashlib
import io
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from atoll.core.algebra.rng import Rng
from atoll.core.errors import ConfigError, DataError, nearest
from atoll.core.persistence.files import write_bytes
from atoll.core.redaction import private
from atoll.data.readers.csv import table_of_csv
from atoll.learn.metrics import Confusion
from atoll.native import cache_folder

from .acoustic import Acoustic, read_wave
from .phones import PHONES, SpeechToPhone, TextToPhone

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["LONGEST", "Utterances", "label_sentiment", "read_speech", "read_texts", "utterances_of"]

LONGEST = 800
"""Words, phones or frames of an utterance that count; the rest is cut off."""

Modality = Literal["speech", "text", "vector"]


@dataclass(frozen=True)
class Utterances:
    """The rows of one party: speech, text or vectors, the phones of each utterance, and its label.

    Attributes:
        modality: ``"speech"``, ``"text"`` or ``"vector"``: numbers of a whole utterance, such as functionals of a sound that was not kept, or features of a face.
        inputs: of speech the frames of each utterance, shape ``(frames, width)``, float32; of text its words; of vectors ``(width,)`` numbers, kept as one frame.
        phones: the numbers of its phones, see `PHONES`.
        labels: the name of its class.
        held_out: rows for measuring, that are never trained on; by default a job holds some back.
        words: how many words the texts have, and
        unknown: how many of them the dictionary did not have.
        phone_names: the phones that the numbers mean.
        texts: of speech what was said, where it is known, and empty where it is not; it is for comparisons alone, and no side trains on it.
    """

    modality: Modality
    inputs: Sequence[Any] = field(repr=False)
    phones: Sequence[Sequence[int]] = field(repr=False)
    labels: Sequence[str] = field(repr=False)
    held_out: Utterances | None = field(default=None, repr=False)
    words: int = 0
    unknown: int = 0
    phone_names: tuple[str, ...] = field(default=PHONES, repr=False)
    texts: Sequence[str] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        where = f"{self.modality} utterances"
        if self.modality not in ("speech", "text", "vector"):
            raise ConfigError(f"modality={self.modality!r}", where="Utterances", remedy="use 'speech', 'text' or 'vector'")  # fmt: skip
        sizes = {"inputs": len(self.inputs), "phones": len(self.phones), "labels": len(self.labels)}
        if self.texts and (self.modality != "speech" or len(self.texts) != len(self.labels)):
            raise DataError(f"{len(self.texts)} texts for {len(self.labels)} utterances of {self.modality}", where=where, remedy="give what was said of every utterance of speech, or no texts")  # fmt: skip
        if len(set(sizes.values())) > 1:
            raise DataError(f"{sizes['inputs']} inputs, {sizes['phones']} sequences of phones, {sizes['labels']} labels", where=where, remedy="give one of each for every utterance")  # fmt: skip
        phones = tuple(np.asarray(row, dtype=np.int64).reshape(-1)[:LONGEST] for row in self.phones)
        if any(len(row) and not 0 <= row.min() <= row.max() < len(self.phone_names) for row in phones):
            raise DataError("a phone that is none of the set", where=where, remedy=f"use numbers from 0 to {len(self.phone_names) - 1}, which name atoll.crossmodal.PHONES")  # fmt: skip
        if self.modality != "text":
            given = [np.asarray(frames, dtype=np.float32) for frames in self.inputs]
            whole = self.modality == "vector"
            if whole and any(one.ndim != 1 and one.shape[:-1] != (1,) for one in given):
                raise DataError("a vector of several rows", where=where, remedy="give (width,) numbers an utterance, or frames as modality 'speech'")  # fmt: skip
            inputs: tuple[Any, ...] = tuple(one.reshape(1, -1) if whole else one[:LONGEST] for one in given)
            if any(frames.ndim != 2 or not len(frames) for frames in inputs) or len({frames.shape[1] for frames in inputs}) > 1:  # fmt: skip
                raise DataError("frames of several widths, or none", where=where, remedy="give arrays of shape (frames, width) with one width, as atoll.crossmodal.Acoustic makes them")  # fmt: skip
            if any(not np.isfinite(frames).all() for frames in inputs):
                raise DataError("a frame with a number that is not finite", where=where, remedy="leave the utterance out, or mend its sound")  # fmt: skip
        else:
            inputs = tuple(tuple(str(word) for word in words)[:LONGEST] for words in self.inputs)
        for name, value in (
            ("inputs", inputs),
            ("phones", phones),
            ("labels", tuple(map(str, self.labels))),
            ("texts", tuple(map(str, self.texts))),
        ):
            object.__setattr__(self, name, value)

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def width(self) -> int:
        """Numbers of a frame, or of a vector; 0 of text."""
        return int(self.inputs[0].shape[1]) if self.modality != "text" and len(self) else 0

    @property
    def counts(self) -> dict[str, int]:
        """Class -> its rows."""
        return dict(sorted(Counter(self.labels).items()))

    def take(self, rows: Sequence[int] | NDArray[Any]) -> Utterances:
        """Return some of the rows, without those held out."""
        at = [int(row) for row in rows]
        return replace(self, inputs=[self.inputs[i] for i in at], phones=[self.phones[i] for i in at], labels=[self.labels[i] for i in at], texts=[self.texts[i] for i in at] if self.texts else (), held_out=None)  # fmt: skip

    def written(self, phones: Callable[[Any], Any] | None = None) -> Utterances:
        """Return the same rows as text: what was said of each, and its phones by the dictionary.

        Args:
            phones: what turns a text into phones; by default the installed dictionary.

        Raises:
            DataError: they are no speech, or what was said is not known of some.
        """
        if not self.texts or (self.held_out is not None and not self.held_out.texts):
            raise DataError(f"{self.modality} of which nobody knows the texts", where=f"{self.modality} utterances", remedy="give texts=..., or labels.csv a column text")  # fmt: skip
        made = utterances_of("text", self.texts, self.labels, phones=phones)
        return made if self.held_out is None else replace(made, held_out=self.held_out.written(phones))

    def split(self, share: float, rng: Rng) -> tuple[Utterances, Utterances]:
        """Return rows to train on and rows to measure on: those held out, or a share of each class drawn by ``rng``."""
        if self.held_out is not None:
            return replace(self, held_out=None), self.held_out
        draw, apart = rng.child("held out").generator(), list[int]()
        for name in sorted(set(self.labels)):
            rows = [i for i, label in enumerate(self.labels) if label == name]
            apart += draw.permutation(rows)[: round(share * len(rows))].tolist()
        chosen = set(apart)
        return self.take([i for i in range(len(self)) if i not in chosen]), self.take(sorted(apart))


def label_sentiment(value: Any) -> str:
    """Return the class of a label: of a number ``"positive"`` above 0 and ``"negative"`` up to 0, of a word the word.

    Example:
        >>> label_sentiment(-1.8), label_sentiment("2.4"), label_sentiment("neutral")
        ('negative', 'positive', 'neutral')
    """
    word = str(value).strip()
    try:
        number = float(word)
    except ValueError:
        return word
    return "positive" if number > 0 else "negative"


def utterances_of(
    modality: Modality, sources: Sequence[Any], labels: Sequence[Any], *, phones: Callable[[Any], Any] | None = None, acoustic: Acoustic | None = None
) -> Utterances:  # fmt: skip
    """Make utterances of texts, or of sound at 16 kHz.

    Args:
        modality: what they are.
        sources: texts; or arrays of 16-bit samples at 16 kHz.
        labels: a label each, see `label_sentiment`.
        phones: what turns one of them into phones; by default the installed dictionary, or the installed decoder.
        acoustic: what turns sound into frames.

    Raises:
        MissingExtraError: PocketSphinx is not installed, and nothing else was given.
        DataError: a label or a text is missing.
    """
    named = _name_labels(labels, f"{modality} utterances")
    if modality == "speech":
        hear, tell = phones or _hearing(), acoustic or Acoustic()
        return Utterances("speech", [tell(sound) for sound in sources], [hear(sound) for sound in sources], named)
    absent = next((i for i, text in enumerate(sources) if text is None or text != text or not str(text).strip()), None)
    if absent is not None:
        raise DataError(f"row {absent + 1} has no text", where="text utterances", remedy="leave the row out, or write what was said")  # fmt: skip
    translate = phones or TextToPhone.installed()
    found: list[Any] = [translate(text) for text in sources]
    return Utterances(
        "text", [str(text).lower().split() for text in sources], [getattr(one, "phones", one) for one in found], named,
        words=sum(getattr(one, "words", 0) for one in found), unknown=sum(getattr(one, "unknown", 0) for one in found),
    )  # fmt: skip


def _name_labels(labels: Sequence[Any], where: str) -> list[str]:
    """The class of each row; a row without one is refused."""
    named = [label_sentiment(label) for label in labels]
    absent = next((i for i, (name, raw) in enumerate(zip(named, labels, strict=True)) if not name or raw is None or _is_nan(raw)), None)  # fmt: skip
    if absent is not None:
        raise DataError(f"row {absent + 1} has no label", where=where, remedy="leave the row out")
    return named


def _is_nan(value: Any) -> bool:
    """Return whether a label is the number that is none, also as a word: such as a table writes where one is missing."""
    try:
        return math.isnan(float(value))
    except (TypeError, ValueError):
        return False


def _hearing(heard: SpeechToPhone | None = None) -> Callable[[Any], tuple[int, ...]]:
    """A decoder that is made once, when the first sound needs it."""
    machine: list[Any] = []
    rule = heard or SpeechToPhone()

    def hear(sound: Any) -> tuple[int, ...]:
        if not machine:
            machine.append(rule.decoder())
        return rule(sound, machine[0])

    return hear


def read_texts(path: str | Path, *, text: str = "text", label: str = "label", phones: TextToPhone | None = None) -> Utterances:  # fmt: skip
    """Read a CSV file with a text and a label a line.

    Args:
        path: the file, plain or gzip-compressed.
        text: its column of texts.
        label: its column of labels, see `label_sentiment`.
        phones: the dictionary; by default that of the installed PocketSphinx.

    Raises:
        DataError: a column is missing, or a row has no text or no label.
        MissingExtraError: PocketSphinx is not installed, and no dictionary was given.
    """
    table = table_of_csv(path, text="all", holes=("",))
    _require(table, (text, label), Path(path).name)
    return utterances_of("text", list(map(str, table[text])), list(map(str, table[label])), phones=phones)


def read_speech(
    folder: str | Path, *, file: str = "file", label: str = "label", text: str = "text", phones: SpeechToPhone | None = None, acoustic: Acoustic | None = None, cached: bool = True
) -> Utterances:  # fmt: skip
    """Read a folder of WAV files and its ``labels.csv``, which names a file and its label a line.

    Decoding takes about a tenth of the time that the speech takes, so the cache folder of Atoll (``ATOLL_CACHE``) keeps phones and frames by the content of the sound.

    Args:
        folder: the folder.
        file: the column of ``labels.csv`` with the names of files in the folder.
        label: its column of labels, see `label_sentiment`.
        text: its column of what was said, if it has one: for `train_aligned`. It may be empty where nobody knows.
        phones: the phone decoder.
        acoustic: the descriptors.
        cached: whether to read and write the cache.

    Raises:
        DataError: ``labels.csv`` or a file is missing or no WAV file, or names a file elsewhere.
        MissingExtraError: PocketSphinx is not installed.
    """
    place = Path(folder)
    listed = place / "labels.csv"
    if not listed.is_file():
        raise DataError("there is no labels.csv", where=str(place.name), remedy="write one into the folder of WAV files: a line file,label, then a line a file")  # fmt: skip
    table = table_of_csv(listed, text="all", holes=("",))
    _require(table, (file, label), "labels.csv")
    rule, tell = phones or SpeechToPhone(), acoustic or Acoustic()
    hear, inputs, found = _hearing(rule), [], []
    for name in map(str, table[file]):
        path = (place / name).resolve()
        if not path.is_relative_to(place.resolve()) or not path.is_file():
            raise DataError(f"{private(name)} is no file of the folder", where="labels.csv", remedy="name files by their place inside the folder: calls/one.wav")  # fmt: skip
        heard, frames = _kept(path.read_bytes(), name, rule, tell, hear, cached=cached)
        inputs.append(frames)
        found.append(heard)
    said = list(map(str, table[text])) if text in table else []
    return Utterances(
        "speech", inputs, found, _name_labels(list(map(str, table[label])), "speech utterances"), texts=said
    )


def _kept(content: bytes, name: str, rule: SpeechToPhone, tell: Acoustic, hear: Callable[[Any], Any], *, cached: bool) -> tuple[Any, Any]:  # fmt: skip
    """Phones and frames of one file, from the cache if it has them."""
    digest = hashlib.sha256(content + repr((rule, tell, 1)).encode()).hexdigest()
    place = cache_folder().parent / "speech" / f"{digest}.npz"
    if cached and place.is_file():
        with np.load(place, allow_pickle=False) as kept:
            return kept["phones"], kept["frames"]
    sound = read_wave(content, name)
    phones, frames = np.array(hear(sound), dtype=np.int64), tell(sound)
    if cached:
        whole = io.BytesIO()
        np.savez(whole, phones=phones, frames=frames)
        write_bytes(place, whole.getvalue())
    return phones, frames


def _require(table: Mapping[str, Any], names: Sequence[str], where: str) -> None:
    absent = next((name for name in names if name not in table), None)
    if absent is not None:
        raise DataError(f"there is no column {absent!r}.{nearest(absent, list(table))}", where=where, remedy=f"name the columns {' and '.join(names)}")  # fmt: skip
    if not len(table[names[0]]):
        raise DataError("no rows", where=where, remedy="give a line an utterance below the names of columns")


def score_f1(said: NDArray[Any], true: NDArray[Any], classes: int) -> float:
    """Return the F1 score, the mean over classes, each weighted by its rows; of no rows NaN.

    Example:
        >>> round(score_f1(np.array([1, 1, 0, 0]), np.array([1, 0, 0, 0]), 2), 4)
        0.7667
    """
    if not len(true):
        return math.nan
    metric = Confusion(classes)
    return metric.result(metric.of(np.eye(classes)[said], true))["f1_weighted"]
