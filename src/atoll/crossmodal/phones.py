"""Phones, which speech and text have in common: a dictionary turns words into them, a phone decoder turns sound into them."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core.errors import ConfigError, DataError
from atoll.core.extras import need
from atoll.core.redaction import private

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["PHONES", "Pronunciation", "SpeechToPhone", "TextToPhone", "count_edits", "rate_phone_errors"]

PHONES: tuple[str, ...] = (
    "AA", "AE", "AH", "AO", "AW", "AY", "B", "CH", "D", "DH", "EH", "ER", "EY", "F", "G", "HH", "IH", "IY", "JH", "K", "L", "M", "N",
    "NG", "OW", "OY", "P", "R", "S", "SH", "T", "TH", "UH", "UW", "V", "W", "Y", "Z", "ZH",
)  # fmt: skip
"""The 39 phones of the CMU pronouncing dictionary, without stress. Number ``i`` of a sequence is ``PHONES[i]``."""

_NUMBERS = {name: number for number, name in enumerate(PHONES)}
_WORD = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)*['’]?", re.UNICODE)


@dataclass(frozen=True)
class Pronunciation:
    """The phones of a text.

    Attributes:
        phones: numbers of phones, in order.
        words: how many words the text has.
        unknown: how many of them the dictionary does not have; their phones are those of the entries found inside them.
    """

    phones: tuple[int, ...]
    words: int
    unknown: int


@dataclass(frozen=True)
class TextToPhone:
    """Text to phones by forward maximum matching: at each place of a word the longest entry of the dictionary counts, and matching goes on behind it.

    A word of the dictionary is one entry, so its phones are the dictionary's. In any other word, a letter at which no entry begins is left out.

    Attributes:
        entries: word in lower case -> its phones, by name. `read` and `installed` make it from a file.

    Raises:
        ConfigError: there are no entries, or one has a phone that is none of `PHONES`.

    Example:
        >>> lexicon = TextToPhone({"good": ["G", "UH", "D"], "bye": ["B", "AY"]})
        >>> found = lexicon("Good, goodbye!")
        >>> [PHONES[i] for i in found.phones], found.words, found.unknown
        (['G', 'UH', 'D', 'G', 'UH', 'D', 'B', 'AY'], 2, 1)
    """

    entries: Mapping[str, Sequence[str]] = field(repr=False)

    def __post_init__(self) -> None:
        if not self.entries:
            raise ConfigError("a dictionary without words", where="TextToPhone", remedy="give word -> phones, such as {'good': ['G', 'UH', 'D']}, or use TextToPhone.installed()")  # fmt: skip
        coded = {}
        for word, names in self.entries.items():
            strange = next((name for name in names if name not in _NUMBERS), None)
            if strange is not None or not names:
                raise ConfigError(f"{private(word)} has the phone {strange!r}" if names else f"{private(word)} has no phones", where="TextToPhone", remedy=f"use {', '.join(PHONES[:4])} … of atoll.crossmodal.PHONES, without stress")  # fmt: skip
            coded[str(word).lower().replace("’", "'")] = tuple(_NUMBERS[name] for name in names)
        object.__setattr__(self, "_coded", coded)
        object.__setattr__(self, "_longest", max(map(len, coded)))

    @classmethod
    def read(cls, path: str | Path) -> TextToPhone:
        """Read a dictionary in CMU's form: a line a word, ``word PH1 PH2 …``. Of ``word`` and ``word(2)`` the first counts; stress, as in ``AH0``, is left out.

        Raises:
            DataError: the file cannot be read, or a line has no phones.
        """
        place = Path(path)
        try:
            lines = place.read_text("utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(f"the dictionary cannot be read: {error}", where=place.name, remedy="give a text file in CMU's form, a line a word") from error  # fmt: skip
        found: dict[str, tuple[str, ...]] = {}
        for number, line in enumerate(lines, 1):
            word, *phones = line.partition("#")[0].split()[:] or [""]
            if not word or word.startswith(";;;"):
                continue
            if not phones:
                raise DataError(f"line {number} has no phones", where=place.name, remedy="write the word and its phones: good G UH D")  # fmt: skip
            found.setdefault(re.sub(r"\(\d+\)$", "", word).lower(), tuple(name.rstrip("012") for name in phones))
        return cls(found)

    @classmethod
    def installed(cls) -> TextToPhone:
        """The dictionary of the installed PocketSphinx, with about 126,000 words.

        Raises:
            MissingExtraError: PocketSphinx is not installed.
        """
        return _installed_dictionary()

    def __call__(self, text: str) -> Pronunciation:
        """Return the phones of a text. Letters count, in any case; everything else separates words."""
        coded: dict[str, tuple[int, ...]] = self._coded  # type: ignore[attr-defined]
        phones: list[int] = []
        words = unknown = 0
        for match in _WORD.finditer(text):
            word = match.group().lower().replace("’", "'")
            known = coded.get(word) or coded.get(word.rstrip("'"))
            words += 1
            unknown += known is None
            phones.extend(self._match(word, coded) if known is None else known)
        return Pronunciation(tuple(phones), words, unknown)

    def _match(self, word: str, coded: Mapping[str, tuple[int, ...]]) -> list[int]:
        """The phones of the longest entries inside a word, from its beginning on."""
        longest: int = self._longest  # type: ignore[attr-defined]
        phones: list[int] = []
        at = 0
        while at < len(word):
            end = next((end for end in range(min(len(word), at + longest), at, -1) if word[at:end] in coded), 0)
            phones.extend(coded[word[at:end]] if end else ())
            at = end or at + 1
        return phones


@functools.cache
def _installed_dictionary() -> TextToPhone:
    return TextToPhone.read(_model_folder() / "cmudict-en-us.dict")


def _model_folder() -> Path:
    library = need("pocketsphinx", "speech", "phones of English", where="atoll.crossmodal")
    return Path(library.get_model_path()) / "en-us"


@dataclass(frozen=True)
class SpeechToPhone:
    """Sound to phones, by the phone loop of PocketSphinx: its acoustic model of US English and its model of which phone follows which.

    Attributes:
        weight: how much the second model counts.
        beam: how much less likely than the best a path may be that is followed further.
    """

    weight: float = 2.0
    beam: float = 1e-20

    def decoder(self) -> Any:
        """A decoder, which one thread at a time may use.

        Raises:
            MissingExtraError: PocketSphinx is not installed.
        """
        library = need("pocketsphinx", "speech", "decoding speech", where="SpeechToPhone")
        folder = _model_folder()
        return library.Decoder(
            hmm=str(folder / "en-us"), allphone=str(folder / "en-us-phone.lm.bin"), lm=None, dict=None,
            lw=self.weight, beam=self.beam, pbeam=self.beam, cmn="batch", loglevel="FATAL",
        )  # fmt: skip

    def __call__(self, sound: NDArray[np.int16], decoder: Any = None) -> tuple[int, ...]:
        """Return the phones of one utterance.

        Args:
            sound: samples at 16 kHz, one channel.
            decoder: of `decoder`; by default a new one.
        """
        machine = decoder or self.decoder()
        machine.reinit_feat()  # it remembers the level and the noise of the utterances before, and their order would decide phones
        machine.start_utt()
        machine.process_raw(np.ascontiguousarray(sound, dtype="<i2").tobytes(), full_utt=True)
        machine.end_utt()
        heard: Iterable[Any] = machine.seg() or ()
        return tuple(_NUMBERS[piece.word] for piece in heard if piece.word in _NUMBERS)


# ------------------------------------------------------------------ how well phones are recognised


def count_edits(said: Sequence[int], heard: Sequence[int]) -> int:
    """Return how many phones have to be put in, left out or replaced to make one sequence of the other (Levenshtein 1966).

    Example:
        >>> count_edits([1, 2, 3, 4], [1, 3, 5])
        2
    """
    other, places = np.asarray(heard, dtype=np.int64), np.arange(len(heard) + 1)
    row = places.copy()
    for number, one in enumerate(said, 1):
        replaced, left_out = row[:-1] + (other != one), row[1:] + 1
        row = np.concatenate(([number], np.minimum(replaced, left_out)))
        row = np.minimum.accumulate(row - places) + places  # one put in more for each place to the right
    return int(row[-1])


def rate_phone_errors(said: Sequence[Sequence[int]], heard: Sequence[Sequence[int]]) -> float:
    """Return the phone error rate: the edits between what was said and what was heard, over all phones that were said. It exceeds 1 where more was heard than was said; it is NaN where nothing was said.

    Args:
        said: the phones of each utterance, such as a dictionary has of its text.
        heard: those that a decoder has found.
    """
    phones = sum(map(len, said))
    return sum(map(count_edits, said, heard)) / phones if phones else math.nan
