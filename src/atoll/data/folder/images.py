"""Sets of images from the folder in ``ATOLL_DATA``, and digits in several domains."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atoll.core.algebra.rng import Rng
from atoll.core.calls import checked_call
from atoll.core.errors import DataError, nearest
from atoll.core.extras import need

from ..bundled import digits
from ..dataset import Dataset, root
from ..join import concatenate
from ..readers.arrays import arrays_of, read_idx_pair, read_npz
from ._place import Folder, locate

__all__ = [
    "cifar10_subset",
    "digit_domains",
    "enlarged",
    "mnist",
    "on_patches",
    "printed_digits",
    "qmnist_writers",
    "textures",
]


# Pictures of digits in other domains: upscaled, on patches, in printed fonts; and textures.


Images = NDArray[np.float32]
_SIDE = 28
_OF_SIGNS = ("cmex", "cmsy", "cmmi", "stixsiz", "stixnonuni")


def enlarged(images: Images, side: int = _SIDE, margin: int = 2) -> Images:
    """Enlarge pictures ``(rows, 1, h, w)`` to ``(rows, 1, side, side)`` by bilinear interpolation, with a dark margin."""
    inner = side - 2 * margin
    rows = _stretch_matrix(images.shape[-2], inner)
    columns = _stretch_matrix(images.shape[-1], inner)
    made = np.zeros((len(images), 1, side, side), np.float32)
    made[:, 0, margin : side - margin, margin : side - margin] = rows @ images[:, 0] @ columns.T
    return made


def _stretch_matrix(old: int, new: int) -> Images:
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
    fonts = _find_fonts()
    y = rng.permutation(np.arange(rows) % 10)
    drawn: dict[tuple[int, int, int], Images] = {}
    made = np.zeros((rows, 1, side, side), np.float32)
    for row, digit in enumerate(y):
        key = (int(rng.integers(len(fonts))), int(digit), int(rng.integers(15, 23)))
        if key not in drawn:
            drawn[key] = _draw_glyph(fonts[key[0]], *key[1:])
        made[row, 0] = _place_drawing(drawn[key], side, rng)
    return made, y


@functools.cache
def _find_fonts() -> list[str]:
    """Fonts with ten digits. In some fonts of signs a digit's code is another sign."""
    matplotlib = need("matplotlib", "report", "drawing digits in fonts")
    folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    files = [path for path in sorted(folder.glob("*.ttf")) if not path.name.lower().startswith(_OF_SIGNS)]
    found = [str(path) for path in files if set(range(48, 58)) <= set(_load_face(path).get_charmap())]
    if not found:
        raise DataError("there are no fonts", where=str(folder), remedy="install matplotlib again")
    return found


def _load_face(path: str | Path) -> Any:
    return need("matplotlib.ft2font", "report", "drawing digits in fonts").FT2Font(str(path))


def _draw_glyph(font: str, digit: int, size: int) -> Images:
    """A digit as tall as ``size`` pixels, cut to its ink."""
    face = _load_face(font)
    face.set_size(float(size) / 0.72, 72)  # a digit is about 0.72 of the font's size
    face.set_text(str(digit), 0.0)
    face.draw_glyphs_to_bitmap(antialiased=True)
    ink = np.asarray(face.get_image(), dtype=np.float32) / 255.0
    rows, columns = np.flatnonzero(ink.any(axis=1)), np.flatnonzero(ink.any(axis=0))
    return ink[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]


def _place_drawing(ink: Images, side: int, rng: np.random.Generator) -> Images:
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


_MNIST = "LeCun, Cortes, Burges: The MNIST database of handwritten digits, 1998"
_QMNIST = "Yadav and Bottou: Cold case: the lost MNIST digits, NeurIPS 2019"
_CIFAR = "Krizhevsky: Learning multiple layers of features from tiny images, 2009"
_CIFAR_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


@checked_call
def mnist(*, scale: bool = True, flat: bool = False, folder: Folder = None) -> Dataset:
    """Load MNIST: 60,000 digits to train and 10,000 to test, ``x (rows, 1, 28, 28)``.

    Files: ``mnist/{train-images-idx3,train-labels-idx1,t10k-images-idx3,t10k-labels-idx1}-ubyte.gz``.

    Args:
        scale: whether to return float32 in [0, 1]; else uint8.
        flat: ``x (rows, 784)``.
        folder: data folder; the environment variable ``ATOLL_DATA`` by default.

    Raises:
        DataError: missing or malformed files.
    """
    parts = []
    for part in ("train", "t10k"):
        images = locate(folder, "mnist", f"{part}-images-idx3-ubyte.gz")
        labels = locate(folder, "mnist", f"{part}-labels-idx1-ubyte.gz")
        parts.append(read_idx_pair(images, labels, scale=scale, flat=flat, name="mnist", citation=_MNIST))
    return parts[0].with_test(parts[1])


@checked_call
def qmnist_writers(*, scale: bool = True, flat: bool = False, folder: Folder = None) -> Dataset:
    """Load MNIST with a column ``writer``: the person who wrote the digit. Pass it to `natural` to get one client per writer.

    There are 539 writers to train, with 19 to 131 digits each, and 297 others to test. File:
    ``qmnist_writers/mnist_writer_ids.npz`` (arrays ``train_writer`` and ``test_writer``), in addition to MNIST's.

    Args:
        scale: whether to return float32 in [0, 1]; else uint8.
        flat: ``x (rows, 784)``.
        folder: data folder; the environment variable ``ATOLL_DATA`` by default.

    Raises:
        DataError: missing or malformed files.
    """
    path = locate(folder, "qmnist_writers", "mnist_writer_ids.npz")
    writers = arrays_of(path, ("train_writer", "test_writer"))
    train = mnist(scale=scale, flat=flat, folder=folder)
    parts = []
    for part, writer in zip((train, train.test), writers, strict=True):
        if part is None or len(part) != len(writer):
            raise DataError(
                f"{len(writer)} writers for {0 if part is None else len(part)} digits",
                where=path.name,
                remedy="use the writers of the same MNIST files",
            )
        citation = f"{_MNIST}; writers: {_QMNIST}"
        parts.append(part.with_columns({"writer": writer.astype(np.int64)}, name="qmnist_writers", citation=citation))
    return parts[0].with_test(parts[1])


@checked_call
def cifar10_subset(*, scale: bool = True, flat: bool = False, holdout: bool = False, folder: Folder = None) -> Dataset:
    """Load part of CIFAR-10: 10,000 images to train (1,000 per class) and 1,000 to test, ``x (rows, 3, 32, 32)``.

    The test rows are the first 1,000 of the official 10,000, so a score on them is not the official one. File:
    ``cifar10_subset/cifar10_subset.npz``.

    Args:
        scale: whether to return float32 in [0, 1]; else uint8.
        flat: ``x (rows, 3072)``.
        holdout: whether to test on the 1,000 held-out training images instead.
        folder: data folder; the environment variable ``ATOLL_DATA`` by default.

    Raises:
        DataError: a missing or malformed file.
    """
    made = read_npz(
        locate(folder, "cifar10_subset", "cifar10_subset.npz"),
        test=("x_holdout", "y_holdout") if holdout else ("x_test", "y_test"),
        scale=scale,
        flat=flat,
        classes=10,
        name="cifar10_subset",
        citation=_CIFAR,
    )
    return made.with_columns({}, labels=_CIFAR_CLASSES)


# The same ten digits in five domains.


_DOMAINS = ("plain", "inverted", "patches", "small", "fonts")
_CITATION = (
    "LeCun, Cortes, Burges: MNIST, 1998; patches after Ganin and Lempitsky: Unsupervised domain adaptation by backpropagation, ICML 2015; "
    "Alpaydin and Kaynak: Optical recognition of handwritten digits, UCI, 1998; fonts of matplotlib"
)


@checked_call
def digit_domains(
    *,
    rows: int = 2000,
    test: int = 500,
    domains: Sequence[str] = _DOMAINS,
    seed: int | Rng = 0,
    base: Dataset | None = None,
    backgrounds: Dataset | None = None,
    folder: Folder = None,
) -> Dataset:
    """Make digits in several domains, ``x (rows, 1, 28, 28)`` in [0, 1], with a column ``domain``: a stand-in for Digit-Five.

    | domain | pictures |
    | --- | --- |
    | ``plain`` | MNIST |
    | ``inverted`` | dark digits on white, of other MNIST rows |
    | ``patches`` | ``|patch - digit|`` on patches of CIFAR-10's pictures in grey, or on textures if CIFAR-10 is not in the folder |
    | ``small`` | scikit-learn's digits of 8 by 8 pixels, enlarged: at most 1,797 rows, of other writers |
    | ``fonts`` | printed digits in matplotlib's fonts |

    No picture and no background is in two domains, or in the training and the test rows. Pass ``"domain"`` to `natural` for one client a domain.

    Args:
        rows: training rows of each domain, with equal numbers of each digit as far as possible.
        test: test rows of each domain.
        domains: which domains.
        seed: chooses rows, patches and fonts.
        base: digits in place of MNIST, ``x (rows, 1, 28, 28)``, with test rows.
        backgrounds: pictures in place of CIFAR-10's, ``x (rows, channels, at least 28, at least 28)``, with test rows.
        folder: data folder; the environment variable ``ATOLL_DATA`` by default.

    Raises:
        DataError: an unknown domain, missing files, or fewer rows than asked for.
    """
    for domain in domains:
        if domain not in _DOMAINS:
            raise DataError(
                f"no domain {domain!r}.{nearest(domain, _DOMAINS)}",
                where="digit_domains",
                remedy=f"use {', '.join(_DOMAINS)}",
            )
    if rows < 1 or test < 1 or not domains:
        raise DataError(
            f"rows={rows}, test={test}", where="digit_domains", remedy="ask for at least one row of one domain"
        )
    rng = root(seed).child("digit-domains")
    written = [domain for domain in domains if domain in ("plain", "inverted", "patches")]
    sources = _divide_digits(base, folder, written, rows, test, rng) if written else {}
    parts: dict[str, tuple[Dataset, Dataset]] = {}
    for domain in domains:
        own = rng.child(domain).generator()
        if domain == "fonts":
            parts[domain] = (_images_of(*printed_digits(rows, own)), _images_of(*printed_digits(test, own)))
        elif domain == "small":
            parts[domain] = _make_small(rows, test, own)
        elif domain == "patches":
            parts[domain] = _patch_rows(sources[domain], backgrounds, folder, own)
        else:
            train, held = sources[domain]
            parts[domain] = (_written_as(domain, train), _written_as(domain, held))
    joined = [concatenate([_name_domain(part[k], domain) for domain, part in parts.items()]) for k in (0, 1)]
    return joined[0].with_test(joined[1])


def _images_of(x: np.ndarray, y: np.ndarray) -> Dataset:
    return Dataset({"x": x.astype(np.float32), "y": y}, task="classification", classes=10, name="digit_domains")


def _written_as(domain: str, part: Dataset) -> Dataset:
    return _images_of(part.x if domain == "plain" else 1.0 - part.x, part.y)


def _name_domain(part: Dataset, domain: str) -> Dataset:
    names = [str(digit) for digit in range(10)]
    return part.with_columns({"domain": np.full(len(part), domain)}, citation=_CITATION, labels=tuple(names))


def _divide_digits(
    base: Dataset | None, folder: Folder, domains: Sequence[str], rows: int, test: int, rng: Rng
) -> dict[str, tuple[Dataset, Dataset]]:
    """Disjoint training and test rows of handwritten digits for each domain."""
    whole = mnist(folder=folder) if base is None else base
    if whole.test is None or whole.x.shape[1:] != (1, 28, 28):
        raise DataError(
            f"digits of shape {whole.x.shape[1:]}, {'without' if whole.test is None else 'with'} test rows",
            where="digit_domains", remedy="give base= of pictures (rows, 1, 28, 28), with test rows",
        )  # fmt: skip
    found = []
    for part, count in ((whole, rows), (whole.test, test)):
        need = count * len(domains)
        order = _alternate_classes(part.y, rng.child("rows", count).generator())
        if need > len(order):
            raise DataError(
                f"{len(domains)} domains of {count} rows need {need:,} digits, and there are {len(order):,}",
                where="digit_domains", remedy="ask for fewer rows or domains",
            )  # fmt: skip
        found.append([part.take(order[k * count : (k + 1) * count]) for k in range(len(domains))])
    return dict(zip(domains, zip(*found, strict=True), strict=True))


def _alternate_classes(y: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Row numbers in random order, one of each class after another as long as there are any."""
    mixed = rng.permutation(len(y))
    by_class = mixed[np.argsort(y[mixed], kind="stable")]
    turn = np.arange(len(y)) - np.searchsorted(y[by_class], y[by_class])
    return np.asarray(by_class[np.lexsort((rng.random(len(y)), turn))])


def _make_small(rows: int, test: int, rng: np.random.Generator) -> tuple[Dataset, Dataset]:
    whole = digits(flat=False, test=0)
    order = _alternate_classes(whole.y, rng)
    if rows + test > len(order):
        rows, test = (len(order) * rows) // (rows + test), (len(order) * test) // (rows + test)
    parts = (whole.take(order[:rows]), whole.take(order[rows : rows + test]))
    return tuple(_images_of(enlarged(part.x), part.y) for part in parts)  # type: ignore[return-value]


def _patch_rows(
    parts: tuple[Dataset, Dataset], backgrounds: Dataset | None, folder: Folder, rng: np.random.Generator
) -> tuple[Dataset, Dataset]:
    behind = _load_backgrounds(backgrounds, folder)
    found = []
    for k, part in enumerate(parts):
        pictures = textures(min(len(part), 1000), rng) if behind is None else behind[k]
        found.append(_images_of(on_patches(part.x, pictures, rng), part.y))
    return found[0], found[1]


def _load_backgrounds(backgrounds: Dataset | None, folder: Folder) -> tuple[np.ndarray, np.ndarray] | None:
    """Backgrounds to train and to test; ``None`` if CIFAR-10 is not there."""
    if backgrounds is None:
        try:
            backgrounds = cifar10_subset(folder=folder)
        except DataError:
            return None
    if backgrounds.test is None or min(backgrounds.x.shape[-2:]) < 28:
        raise DataError(
            f"backgrounds of shape {backgrounds.x.shape[1:]}, {'without' if backgrounds.test is None else 'with'} test rows",
            where="digit_domains", remedy="give pictures of at least 28 by 28 pixels, with test rows",
        )  # fmt: skip
    return backgrounds.x, backgrounds.test.x
