"""Sound as numbers: WAV files, and descriptors of each tenth of a second."""

from __future__ import annotations

import functools
import importlib
import io
import math
import wave
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from atoll.core.errors import ConfigError, DataError, MissingExtraError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

__all__ = ["RATE", "Acoustic", "read_wave", "resample"]

RATE = 16_000
"""Samples a second, to which all sound is brought."""

_HOP = RATE // 100
_WINDOW = RATE // 40
_BANDS = 26
_CEPSTRA = 12
_LAGS = (RATE // 400, RATE // 60)
"""Periods that a voice may have: 400 Hz to 60 Hz."""
_DESCRIPTORS = 2 * (_CEPSTRA + 4)


def read_wave(content: bytes, where: str) -> NDArray[np.int16]:
    """Return the samples of a WAV file at 16 kHz, the mean of its channels.

    Raises:
        DataError: it is no uncompressed WAV file, or is empty.
    """
    remedy = "give uncompressed WAV files of 8, 16, 24 or 32 bits: ffmpeg -i IN -ar 16000 -ac 1 OUT.wav writes one"
    try:
        with wave.open(io.BytesIO(content)) as file:
            width, channels, rate, count = file.getsampwidth(), file.getnchannels(), file.getframerate(), file.getnframes()  # fmt: skip
            raw = file.readframes(count)
    except (wave.Error, EOFError) as error:
        raise DataError(f"no WAV file: {error}", where=where, remedy=remedy) from error
    if width not in (1, 2, 3, 4) or not channels or not 4_000 <= rate <= 192_000:
        raise DataError(f"{8 * width} bits, {channels} channels, {rate} samples a second", where=where, remedy=remedy)
    raw = raw[: len(raw) // (width * channels) * width * channels]
    samples = _widen(raw, width).reshape(-1, channels).mean(axis=1)
    if not len(samples):
        raise DataError("no sound", where=where, remedy="leave the file out of labels.csv")
    return np.clip(np.rint(resample(samples, rate)), -32768, 32767).astype(np.int16)


def _widen(raw: bytes, width: int) -> Floats:
    """Samples in the range of 16 bits."""
    if width == 1:  # without a sign, unlike all others
        return (np.frombuffer(raw, np.uint8).astype(np.float64) - 128) * 256
    if width == 3:
        parts = np.frombuffer(raw, np.uint8).reshape(-1, 3).astype(np.int32)
        whole = (parts[:, 0] << 8 | parts[:, 1] << 16 | parts[:, 2] << 24) >> 8
        return whole / 256.0
    return np.frombuffer(raw, f"<i{width}").astype(np.float64) / (1 if width == 2 else 65536)


def resample(samples: Floats, rate: int) -> Floats:
    """Return sound at 16 kHz: the same spectrum, cut off or extended by zeros.

    Args:
        samples: shape ``(n,)``.
        rate: its samples a second.
    """
    if rate == RATE or not len(samples):
        return samples
    count = max(1, round(len(samples) * RATE / rate))
    spectrum = np.fft.rfft(samples)
    kept = np.zeros(count // 2 + 1, dtype=np.complex128)
    low = min(len(kept), len(spectrum))
    kept[:low] = spectrum[:low]
    return np.fft.irfft(kept, count) * (count / len(samples))


@dataclass(frozen=True)
class Acoustic:
    """What is told of each tenth of a second of sound.

    Our own descriptors are those of openSMILE's IS09 set: energy, zero crossings, pitch, voicing, 12 mel cepstra, and how each changes, every 10 ms. A frame has the
    mean and the deviation of each: 64 numbers.

    Attributes:
        features: ``"own"``, or ``"is09"``: openSMILE's 384 functionals, whose licence is for research alone.
    """

    features: Literal["own", "is09"] = "own"
    frame: ClassVar[float] = 0.1

    def __post_init__(self) -> None:
        if self.features not in ("own", "is09"):
            raise ConfigError(f"features={self.features!r}", where="Acoustic", remedy="use 'own', or 'is09' with the package opensmile")  # fmt: skip

    @property
    def width(self) -> int:
        """Numbers of a frame."""
        return 2 * _DESCRIPTORS if self.features == "own" else 384

    def __call__(self, sound: NDArray[np.int16]) -> NDArray[np.float32]:
        """Return the frames of sound at 16 kHz, shape ``(frames, width)``; at least one."""
        if self.features == "is09":
            return _ask_opensmile(sound)
        found = _describe(sound.astype(np.float64) / 32768)
        per = round(self.frame * RATE / _HOP)
        count = max(1, -(-len(found) // per))
        frames = np.zeros((count, self.width), dtype=np.float32)
        for number in range(count):
            part = found[number * per : (number + 1) * per]
            frames[number] = np.concatenate([part.mean(axis=0), part.std(axis=0)])
        return frames


def _describe(sound: Floats) -> Floats:
    """The descriptors every 10 ms, shape ``(steps, 32)``."""
    padded = np.pad(sound, (0, max(0, _WINDOW - len(sound))))
    pieces = np.lib.stride_tricks.sliding_window_view(padded, _WINDOW)[::_HOP]
    energy = np.log(np.mean(pieces**2, axis=1) + 1e-10)
    crossings = np.mean(np.abs(np.diff(np.signbit(pieces), axis=1)), axis=1)
    pitch, voicing = _find_pitch(pieces)
    emphasised = pieces - 0.97 * np.pad(pieces, ((0, 0), (1, 0)))[:, :-1]
    power = np.abs(np.fft.rfft(emphasised * np.hamming(_WINDOW), 512)) ** 2
    cepstra = np.log(power @ _mel_bands().T + 1e-10) @ _cosines().T
    told = np.column_stack([energy, crossings, pitch, voicing, cepstra])
    change = np.gradient(told, axis=0) if len(told) > 1 else np.zeros_like(told)
    return np.concatenate([told, change], axis=1)


def _find_pitch(pieces: Floats) -> tuple[Floats, Floats]:
    """The pitch of each piece, the logarithm of its frequency over 100 Hz, and the height of the autocorrelation there; of unvoiced pieces pitch 0."""
    centred = pieces - pieces.mean(axis=1, keepdims=True)
    spectrum = np.fft.rfft(centred, 1024)
    alike = np.fft.irfft(np.abs(spectrum) ** 2)[:, : _LAGS[1] + 1]
    alike = alike / (alike[:, :1] + 1e-12)
    window = alike[:, _LAGS[0] :]
    best = window.argmax(axis=1)
    height = np.clip(window[np.arange(len(window)), best], 0, 1)
    frequency = RATE / (best + _LAGS[0])
    return np.where(height > 0.3, np.log(frequency / 100), 0.0), height


@functools.cache
def _mel_bands() -> Floats:
    """Triangles that are equally wide on the mel scale, shape ``(26, 257)``."""
    top = 2595 * math.log10(1 + RATE / 2 / 700)
    edges = 700 * (10 ** (np.linspace(0, top, _BANDS + 2) / 2595) - 1)
    bins = np.linspace(0, RATE / 2, 257)
    rising = (bins - edges[:-2, None]) / (edges[1:-1] - edges[:-2])[:, None]
    falling = (edges[2:, None] - bins) / (edges[2:] - edges[1:-1])[:, None]
    return np.clip(np.minimum(rising, falling), 0, None)


@functools.cache
def _cosines() -> Floats:
    """The cosine transform to cepstra 1 to 12, shape ``(12, 26)``."""
    orders, bands = np.arange(1, _CEPSTRA + 1)[:, None], np.arange(_BANDS) + 0.5
    found: Floats = np.sqrt(2 / _BANDS) * np.cos(np.pi / _BANDS * orders * bands)
    return found


@functools.cache
def _smile() -> Any:
    try:
        library = importlib.import_module("opensmile")
    except (
        ImportError
    ) as error:  # no extra installs it: its licence allows research alone, which the user has to decide
        raise MissingExtraError("features='is09' needs opensmile", where="Acoustic", remedy="pip install opensmile, whose licence allows research alone, or use features='own'") from error  # fmt: skip
    return library.Smile(library.FeatureSet.IS09, library.FeatureLevel.Functionals)


def _ask_opensmile(sound: NDArray[np.int16]) -> NDArray[np.float32]:
    step = round(Acoustic.frame * RATE)
    pieces = [sound[at : at + step] for at in range(0, len(sound), step)]
    whole = [piece for piece in pieces if len(piece) == step] or [np.pad(sound, (0, step - len(sound)))]
    told = [np.asarray(_smile().process_signal(piece / 32768, RATE)).ravel() for piece in whole]
    return np.nan_to_num(np.array(told, dtype=np.float32))
