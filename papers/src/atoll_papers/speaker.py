"""Speech that a machine makes of sentences: eSpeak NG through its C interface, from the optional package ``espeakng-loader`` (GPL-3.0).

It keeps a state between sentences that moves their intonation a little, so the same sentences in another order are not the same bytes. `speak_apart` begins a process of its own, in which
the same list is the same sound every time.
"""

from __future__ import annotations

import csv
import ctypes
import functools
import json
import subprocess
import sys
import wave
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core.errors import DataError, MissingExtraError

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Sentence", "speak", "speak_apart", "tie_prosody", "write_folder"]

_RETRIEVE, _POSITION_CHARACTER, _UTF_8 = 2, 1, 1
_RATE, _VOLUME, _PITCH = 1, 2, 3
_CALLBACK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.c_void_p)


@dataclass(frozen=True)
class Sentence:
    """What is said, and how.

    Attributes:
        text: the words.
        label: the label of the row.
        rate: words a minute, 80 to 450.
        pitch: 0 to 99; 50 is the voice's own.
        volume: 0 to 200; 100 is the voice's own.
    """

    text: str
    label: str
    rate: int = 175
    pitch: int = 50
    volume: int = 100


def tie_prosody(texts: Sequence[str], labels: Sequence[str], seed: int, strength: float = 0.2) -> list[Sentence]:
    """Return sentences whose rate, pitch and volume lean a little to their label: each is ``z = +-strength + N(0, 1)`` in its own unit.

    Args:
        texts: the words of each.
        labels: of each ``"positive"``, which is said higher, faster and louder, or anything else.
        seed: of the noise.
        strength: how far, in deviations of what the same label has.
    """
    draw = np.random.default_rng(seed)
    made = []
    for text, label in zip(texts, labels, strict=True):
        z = np.clip((strength if label == "positive" else -strength) + draw.normal(size=3), -3, 3)
        made.append(Sentence(text, label, round(170 + 20 * z[0]), round(50 + 12 * z[1]), round(100 + 15 * z[2])))
    return made


def speak(sentences: Sequence[Sentence]) -> tuple[list[NDArray[np.int16]], int]:
    """Return the samples of each sentence, and how many there are a second.

    Raises:
        MissingExtraError: the package is not installed.
        DataError: a sentence makes no sound.
    """
    library, rate, heard = _library()
    sounds = []
    for number, one in enumerate(sentences, 1):
        for parameter, value in ((_RATE, one.rate), (_PITCH, one.pitch), (_VOLUME, one.volume)):
            library.espeak_SetParameter(parameter, value, 0)
        heard.clear()
        said = one.text.encode("utf-8")
        library.espeak_Synth(said, ctypes.c_size_t(len(said) + 1), 0, _POSITION_CHARACTER, 0, _UTF_8, None, None)
        library.espeak_Synchronize()
        if not heard:
            raise DataError(f"sentence {number} makes no sound", where="speaker", remedy="give it a word, or leave it out")  # fmt: skip
        sounds.append(np.concatenate(heard))
    return sounds, rate


@functools.cache
def _library() -> tuple[Any, int, list[Any]]:
    """The library, its rate, and the list into which it puts pieces of sound; the callback lives as long as the process."""
    try:
        import espeakng_loader
    except ImportError as error:
        raise MissingExtraError("speech is made by espeakng-loader", where="speaker", remedy="pip install espeakng-loader, which is under the GPL") from error  # fmt: skip
    library: Any = ctypes.CDLL(espeakng_loader.get_library_path())
    heard: list[Any] = []

    def keep(samples: Any, count: int, events: Any) -> int:
        del events
        if samples and count > 0:
            heard.append(np.ctypeslib.as_array(samples, shape=(count,)).copy())
        return 0

    rate = int(library.espeak_Initialize(_RETRIEVE, 0, str(espeakng_loader.get_data_path()).encode(), 0))
    library.espeak_keep = _CALLBACK(keep)
    library.espeak_SetSynthCallback(library.espeak_keep)
    library.espeak_SetVoiceByName(b"en-us")
    return library, rate, heard


def write_folder(folder: Path, sentences: Sequence[Sentence], sounds: Sequence[NDArray[np.int16]], rate: int) -> Path:
    """Write WAV files and the ``labels.csv`` that `atoll.crossmodal.read_speech` reads."""
    folder.mkdir(parents=True, exist_ok=True)
    lines: list[tuple[str, ...]] = [("file", "label", "text")]
    for number, (one, sound) in enumerate(zip(sentences, sounds, strict=True)):
        with wave.open(str(folder / f"{number:05}.wav"), "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(rate)
            file.writeframes(np.asarray(sound, dtype="<i2").tobytes())
        lines.append((f"{number:05}.wav", one.label, one.text))
    with (folder / "labels.csv").open("w", newline="", encoding="utf-8") as listed:
        csv.writer(listed).writerows(lines)
    return folder


def speak_apart(folder: Path, sentences: Sequence[Sentence]) -> Path:
    """Write a folder for `atoll.crossmodal.read_speech` in a new process: the same list is the same sound.

    Raises:
        DataError: the process has failed.
    """
    told = json.dumps([asdict(one) for one in sentences])
    done = subprocess.run([sys.executable, "-m", "atoll_papers.speaker", str(folder)], input=told, capture_output=True, text=True, check=False)  # fmt: skip
    if done.returncode:
        raise DataError(f"no speech was made: {(done.stderr.strip().splitlines() or ['no reason'])[-1]}", where="speaker", remedy="pip install espeakng-loader, which is under the GPL")  # fmt: skip
    return folder


if __name__ == "__main__":
    _given = [Sentence(**one) for one in json.load(sys.stdin)]
    write_folder(Path(sys.argv[1]), _given, *speak(_given))
