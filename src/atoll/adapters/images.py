"""Images for an encoder: read from files or arrays, then resized, cropped and scaled as the encoder's folder says. NumPy and Pillow alone, no torchvision."""

from __future__ import annotations

import functools
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core.errors import ConfigError, DataError
from atoll.core.extras import need
from atoll.core.redaction import private

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["ImageSettings", "hash_images", "images_below", "prepare_images", "read_settings"]

_FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF", "PPM")
_MEAN = (0.48145466, 0.4578275, 0.40821073)
_DEVIATION = (0.26862954, 0.26130258, 0.27577711)
_BICUBIC = 3
_MOST_PIXELS = 89_478_485  # as Pillow warns
_TYPE, _FILES = "CLIPImageProcessor", ("preprocessor_config.json", "processor_config.json")
_KINDS: dict[str, dict[str, Any]] = {
    "CLIP": {},
    "Bit": {},
    "ViT": {"square": True, "resample": 2, "do_center_crop": False, "image_mean": (0.5,) * 3, "image_std": (0.5,) * 3},
}
"""How the name of a class of transformers that prepares images begins -> what it does where its settings are silent, if it is not what CLIP's does."""


@dataclass(frozen=True)
class ImageSettings:
    """How an image becomes numbers: resized, cut around its centre, multiplied, less the mean and divided by the deviation.

    Attributes:
        resize: the shortest edge, ``(edge,)``, or height and width, in pixels; ``()`` for none.
        crop: height and width, in pixels; ``()`` for none.
        resample: Pillow's code of the interpolation.
        factor: what pixels of 0 to 255 are multiplied with.
        mean: of each channel.
        deviation: of each channel.
    """

    resize: tuple[int, ...]
    crop: tuple[int, ...]
    resample: int = _BICUBIC
    factor: float = 1 / 255
    mean: tuple[float, ...] = _MEAN
    deviation: tuple[float, ...] = _DEVIATION

    @property
    def shape(self) -> tuple[int, int, int]:
        """Return the shape of a prepared image."""
        height, width = self.crop or self.resize
        return 3, height, width

    @classmethod
    def read(cls, folder: str, side: int, *, needed: bool = False) -> ImageSettings:
        """Read the settings in an encoder's folder, as ``CLIPImageProcessor``, ``BitImageProcessor`` or ``ViTImageProcessor`` saves them.

        Args:
            folder: the folder.
            side: height and width that the encoder takes, in pixels.
            needed: whether the folder must have settings; without any, CLIP's own are taken.

        Raises:
            ConfigError: another class prepares its images, or makes other sizes than the encoder takes.
            DataError: there are no settings, and they are needed.
        """
        where = f"encoder {Path(folder).name!r}"
        said = _read_said(Path(folder), where)
        if needed and not said:
            raise DataError(
                f"no {_FILES[0]} says how its images become numbers",
                where=where,
                remedy="save the settings of the class that prepares its images beside the model, such as ViTImageProcessor(...).save_pretrained(folder)",
            )
        kind = str(said.get("image_processor_type", said.get("feature_extractor_type", _TYPE)))
        own = next(
            (
                known
                for name, known in _KINDS.items()
                if kind.startswith((f"{name}ImageProcessor", f"{name}FeatureExtractor"))
            ),
            None,
        )
        if own is None:
            raise ConfigError(
                f"{kind} prepares its images",
                where=where,
                remedy=f"save the settings of a {_TYPE}, a BitImageProcessor or a ViTImageProcessor beside the model",
            )
        square = bool(own.get("square"))
        said = {**{name: value for name, value in own.items() if name != "square"}, **said}
        made = cls(
            _edges(said.get("size", side if square else {"shortest_edge": side}), square)
            if said.get("do_resize", True)
            else (),
            _edges(said.get("crop_size", side), square=True) if said.get("do_center_crop", True) else (),
            int(said.get("resample", _BICUBIC)),
            float(said.get("rescale_factor", 1 / 255)) if said.get("do_rescale", True) else 1.0,
            *(
                tuple(map(float, said.get(name, first))) if said.get("do_normalize", True) else none
                for name, first, none in (("image_mean", _MEAN, (0.0,) * 3), ("image_std", _DEVIATION, (1.0,) * 3))
            ),
        )
        if (made.crop or made.resize) != (side, side):
            raise ConfigError(
                f"its images become {' × '.join(map(str, made.crop or made.resize)) or 'of any size'}, and the model takes {side} × {side}",
                where=where,
                remedy=f"say crop_size {side} in {_FILES[0]}",
            )
        return made


def read_settings(file: Path, where: str) -> dict[str, Any]:
    """Return the settings in a JSON file of an encoder's folder; none where it holds something else than settings.

    Raises:
        DataError: it is no JSON.
    """
    try:
        made = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{file.name} is no JSON", where=where, remedy="save it again with save_pretrained") from error
    return made if isinstance(made, dict) else {}


def _read_said(place: Path, where: str) -> dict[str, Any]:
    for name in _FILES:
        if (place / name).is_file():
            settings = read_settings(place / name, where)
            said = settings.get("image_processor", settings if name == _FILES[0] else {})
            return said if isinstance(said, dict) else {}
    return {}


def _edges(said: Any, square: bool = False) -> tuple[int, ...]:
    if isinstance(said, Mapping):
        named = ("shortest_edge",) if "shortest_edge" in said else ("height", "width")
        return tuple(int(said[name]) for name in named)
    return (int(said), int(said)) if square else (int(said),)


def prepare_images(images: Sequence[Any], settings: ImageSettings) -> NDArray[np.float32]:
    """Return prepared images, ``(rows, 3, height, width)``, the numbers of ``CLIPImageProcessor`` without torchvision.

    Args:
        images: names of files, or arrays of pixels, see `_pixels_of`.
        settings: the encoder's.

    Raises:
        DataError: a file is missing or holds no image, or an array has another shape.
    """
    made = np.zeros((len(images), *settings.shape), dtype=np.float32)
    mean, deviation = (np.array(one, dtype=np.float32) for one in (settings.mean, settings.deviation))
    for row, image in enumerate(images):
        pixels = _cut(_resize(_open(image, row), settings, row), settings)
        scaled = (pixels.astype(np.float64) * settings.factor).astype(np.float32)
        made[row] = ((scaled - mean) / deviation).transpose(2, 0, 1)
    return made


def _resize(image: Any, settings: ImageSettings, row: int) -> NDArray[np.uint8]:
    if settings.resize:
        width, height = image.size
        if len(settings.resize) == 1:
            (edge,) = settings.resize
            short, long = min(width, height), max(width, height)
            far = int(edge * long / short)
            width, height = (edge, far) if width <= height else (far, edge)
        else:
            height, width = settings.resize
        if width * height > _MOST_PIXELS:
            raise DataError(
                f"an image of {private(image.size)} pixels becomes one of {private((width, height))}",
                where=f"row {row}",
                remedy="leave images out that are thousands of times as long as wide",
            )
        image = image.resize((width, height), resample=settings.resample)
    return np.asarray(image)


def _cut(pixels: NDArray[np.uint8], settings: ImageSettings) -> NDArray[np.uint8]:
    """Cut around the centre; what a small image lacks is black."""
    if not settings.crop:
        return pixels
    for axis, size in enumerate(settings.crop):
        lacking = size - pixels.shape[axis]
        if lacking > 0:
            before = (lacking + 1) // 2
            around = [(0, 0)] * 3
            around[axis] = (before, lacking - before)
            pixels = np.pad(pixels, around)
        begin = (pixels.shape[axis] - size) // 2
        pixels = pixels.take(range(begin, begin + size), axis=axis)
    return pixels


def _open(image: Any, row: int) -> Any:
    """Return an image in colour; what is transparent becomes white."""
    library = need("PIL.Image", "encoders", "images")
    if not isinstance(image, str):
        pixels = _pixels_of(image, row)
        return library.fromarray(pixels if pixels.ndim == 3 else np.repeat(pixels[..., None], 3, axis=2))
    place = find_image(image)
    try:
        with library.open(place, formats=_FORMATS) as opened:
            if "A" in opened.getbands() or opened.info.get("transparency") is not None:
                whole = opened.convert("RGBA")
                return library.alpha_composite(library.new("RGBA", whole.size, (255,) * 4), whole).convert("RGB")
            return opened.convert("RGB")
    except (
        OSError,
        ValueError,
        SyntaxError,
        library.DecompressionBombError,
        library.DecompressionBombWarning,
    ) as error:
        raise DataError(
            f"{private(image)} is no image that Pillow reads: {private(error)}",
            where=f"row {row}",
            remedy=f"give files of the formats {', '.join(_FORMATS)}, whole and of fewer than 90 million pixels",
        ) from error


def _pixels_of(image: Any, row: int) -> NDArray[np.uint8]:
    """Return pixels of 0 to 255, ``(height, width)`` or ``(height, width, 3)``.

    Channels stand last or first; one channel is grey. Floating numbers go from 0 to 1.
    """
    pixels = np.asarray(image)
    if pixels.ndim == 3 and pixels.shape[-1] not in (1, 3) and pixels.shape[0] in (1, 3):
        pixels = np.moveaxis(pixels, 0, -1)
    if pixels.ndim == 3 and pixels.shape[-1] == 1:
        pixels = pixels[..., 0]
    if not (pixels.ndim == 2 or (pixels.ndim == 3 and pixels.shape[-1] == 3)) or 0 in pixels.shape:
        raise DataError(
            f"an array of shape {np.shape(image)} is no image",
            where=f"row {row}",
            remedy="give (height, width), (height, width, 3) or (3, height, width)",
        )
    if pixels.dtype == np.uint8:
        return np.ascontiguousarray(pixels)
    low, high = float(pixels.min()), float(pixels.max())
    if pixels.dtype.kind != "f" or not 0 <= low <= high <= 1:
        raise DataError(
            f"pixels of {pixels.dtype} from {private(f'{low:g}')} to {private(f'{high:g}')}",
            where=f"row {row}",
            remedy="give whole numbers of 0 to 255 as uint8, or floating numbers of 0 to 1",
        )
    return np.round(pixels * 255).astype(np.uint8)


def find_image(name: str) -> Path:
    """Return the file of an image; a relative name is below the folder that ``ATOLL_IMAGES`` names, and so is any other where a party has said that folder.

    Raises:
        DataError: there is no such file, or it is outside of the folder.
    """
    own = os.environ.get("ATOLL_IMAGES")
    place = (Path(own or ".") / name).resolve()
    if own and not place.is_relative_to(Path(own).resolve()):
        raise DataError(
            f"the image {private(name)} is outside of the folder ATOLL_IMAGES",
            where="images",
            remedy="name files below that folder",
        )
    if not name or not place.is_file():
        raise DataError(
            f"there is no image {private(name)}",
            where="images",
            remedy="name files that are there; ATOLL_IMAGES names the folder of relative names",
        )
    return place


def images_below(folder: Path, names: Sequence[str]) -> list[str]:
    """Return names of files in full, relative ones below a folder."""
    return [str((folder / name).resolve()) if name else "" for name in names]


def hash_images(images: Sequence[Any]) -> list[str]:
    """Return a hash of each image's content: the bytes of its file, or its pixels."""
    return [
        _hash_file(image) if isinstance(image, str) else _hash_pixels(_pixels_of(image, row))
        for row, image in enumerate(images)
    ]


def _hash_file(name: str) -> str:
    place = find_image(name)
    about = place.stat()
    return _hash_bytes(str(place), about.st_size, about.st_mtime_ns)


@functools.lru_cache(maxsize=100_000)
def _hash_bytes(place: str, size: int, when: int) -> str:
    del size, when  # another content under the same name
    try:
        return hashlib.sha256(Path(place).read_bytes()).hexdigest()
    except OSError as error:
        raise DataError(
            f"the image {private(place)} cannot be read: {private(error)}",
            where="images",
            remedy="let the party's process read it",
        ) from error


def _hash_pixels(pixels: NDArray[np.uint8]) -> str:
    return hashlib.sha256(f"{pixels.shape}".encode() + pixels.tobytes()).hexdigest()
