"""Pictures of digits in other domains: upscaled, on patches, in printed fonts; and textures."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atoll.core.errors import DataError
from atoll.core.extras import need

__all__ = ["enlarged", "on_patches", "printed_digits", "textures"]

Images = NDArray[np.float32]
_SIDE = 28
_OF_SIGNS = ("cmex", "cmsy", "cmmi", "stixsiz", "stixnonuni")


def enlarged(images: Images, side: int = _SIDE, margin: int = 2) -> Images:
    """Enlarge pictures ``(rows, 1, h, w)`` to ``(rows, 1, side, side)`` by bilinear interpolation, with a dark margin."""
    inner = side - 2 * margin
    rows = _stretch(images.shape[-2], inner)
    columns = _stretch(images.shape[-1], inner)
    made = np.zeros((len(images), 1, side, side), np.float32)
    made[:, 0, margin : side - margin, margin : side - margin] = rows @ images[:, 0] @ columns.T
    return made


def _stretch(old: int, new: int) -> Images:
    """The matrix of linear interpolation between pixel centres, ``(new, old)``; rows add up to 1."""
    place = np.clip((np.arange(new) + 0.5) * old / new - 0.5, 0, old - 1)
    low = np.minimum(place.astype(np.int64), old - 2)
    part = (place - low).astype(np.float32)
    matrix = np.zeros((new, old), np.float32)
    matrix[np.arange(new), low], matrix[np.arange(new), low + 1] = 1 - part, part
    return matrix


def on_patches(images: Images, backgrounds: Images, rng: np.random.Generator) -> Images:
    """Put digits ``(rows, 1, h, w)`` on patches of random backgrounds: ``|patch - digit|``, as in MNIST-M (Ganin and Lempitsky 2015).

    Args:
        images: digits in [0, 1].
        backgrounds: ``(n, channels, H, W)`` in [0, 1], at least as large; the mean of the channels is taken.
        rng: chooses the backgrounds and the patches' places.
    """
    h, w = images.shape[-2:]
    grey = backgrounds.mean(axis=1)
    which = rng.integers(0, len(grey), len(images))
    top = rng.integers(0, grey.shape[1] - h + 1, len(images))
    left = rng.integers(0, grey.shape[2] - w + 1, len(images))
    windows = np.lib.stride_tricks.sliding_window_view(grey, (h, w), axis=(1, 2))
    return np.asarray(np.abs(windows[which, top, left][:, None] - images), np.float32)


def textures(rows: int, rng: np.random.Generator, side: int = 32) -> Images:
    """Make ``(rows, 1, side, side)`` textures in [0, 1]: noise whose spectrum falls with the frequency, as that of photographs does (1/f, Field 1987)."""
    noise = np.fft.rfft2(rng.standard_normal((rows, side, side)))
    frequency = np.hypot(np.fft.fftfreq(side)[:, None], np.fft.rfftfreq(side)[None])
    frequency[0, 0] = 1.0 / side
    made = np.fft.irfft2(noise / frequency, s=(side, side))
    low, high = made.min(axis=(1, 2), keepdims=True), made.max(axis=(1, 2), keepdims=True)
    return np.asarray(((made - low) / (high - low))[:, None], np.float32)


def printed_digits(rows: int, rng: np.random.Generator, side: int = _SIDE) -> tuple[Images, NDArray[np.int64]]:
    """Draw digits ``(rows, 1, side, side)`` in [0, 1] in the fonts that matplotlib bundles, turned, sized and placed at random.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    fonts = _fonts()
    y = rng.permutation(np.arange(rows) % 10)
    drawn: dict[tuple[int, int, int], Images] = {}
    made = np.zeros((rows, 1, side, side), np.float32)
    for row, digit in enumerate(y):
        key = (int(rng.integers(len(fonts))), int(digit), int(rng.integers(15, 23)))
        if key not in drawn:
            drawn[key] = _glyph(fonts[key[0]], *key[1:])
        made[row, 0] = _placed(drawn[key], side, rng)
    return made, y


@functools.cache
def _fonts() -> list[str]:
    """Fonts with ten digits. In some fonts of signs a digit's code is another sign."""
    matplotlib = need("matplotlib", "report", "drawing digits in fonts")
    folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    files = [path for path in sorted(folder.glob("*.ttf")) if not path.name.lower().startswith(_OF_SIGNS)]
    found = [str(path) for path in files if set(range(48, 58)) <= set(_face(path).get_charmap())]
    if not found:
        raise DataError("there are no fonts", where=str(folder), remedy="install matplotlib again")
    return found


def _face(path: str | Path) -> Any:
    return need("matplotlib.ft2font", "report", "drawing digits in fonts").FT2Font(str(path))


def _glyph(font: str, digit: int, size: int) -> Images:
    """A digit as tall as ``size`` pixels, cut to its ink."""
    face = _face(font)
    face.set_size(float(size) / 0.72, 72)  # a digit is about 0.72 of the font's size
    face.set_text(str(digit), 0.0)
    face.draw_glyphs_to_bitmap(antialiased=True)
    ink = np.asarray(face.get_image(), dtype=np.float32) / 255.0
    rows, columns = np.flatnonzero(ink.any(axis=1)), np.flatnonzero(ink.any(axis=0))
    return ink[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]


def _placed(ink: Images, side: int, rng: np.random.Generator) -> Images:
    """A drawing in the middle of a square, turned by up to 15 degrees and moved by up to 2 pixels."""
    angle = np.deg2rad(rng.uniform(-15, 15))
    dy, dx = rng.uniform(-2, 2, 2)
    yy, xx = np.mgrid[0:side, 0:side] - (side - 1) / 2.0
    sy = np.cos(angle) * (yy - dy) - np.sin(angle) * (xx - dx) + (ink.shape[0] - 1) / 2.0
    sx = np.sin(angle) * (yy - dy) + np.cos(angle) * (xx - dx) + (ink.shape[1] - 1) / 2.0
    padded = np.pad(ink, 1)
    top, left = np.floor(sy).astype(np.int64), np.floor(sx).astype(np.int64)
    fy, fx = sy - top, sx - left

    def at(i: NDArray[np.int64], j: NDArray[np.int64]) -> NDArray[np.float32]:
        return padded[np.clip(i + 1, 0, padded.shape[0] - 1), np.clip(j + 1, 0, padded.shape[1] - 1)]

    upper = (1 - fx) * at(top, left) + fx * at(top, left + 1)
    lower = (1 - fx) * at(top + 1, left) + fx * at(top + 1, left + 1)
    return np.asarray((1 - fy) * upper + fy * lower, np.float32)
