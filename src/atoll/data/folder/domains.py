"""The same ten digits in five domains."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from atoll.core.algebra.rng import Rng
from atoll.core.calls import checked_call
from atoll.core.errors import DataError, nearest

from ..bundled import digits
from ..dataset import Dataset, root
from ..generation.pictures import enlarged, on_patches, printed_digits, textures
from ..join import concatenate
from ._place import Folder
from .images import cifar10_subset, mnist

__all__ = ["digit_domains"]

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
    sources = _written(base, folder, written, rows, test, rng) if written else {}
    parts: dict[str, tuple[Dataset, Dataset]] = {}
    for domain in domains:
        own = rng.child(domain).generator()
        if domain == "fonts":
            parts[domain] = (_of(*printed_digits(rows, own)), _of(*printed_digits(test, own)))
        elif domain == "small":
            parts[domain] = _small(rows, test, own)
        elif domain == "patches":
            parts[domain] = _patched(sources[domain], backgrounds, folder, own)
        else:
            train, held = sources[domain]
            parts[domain] = (_written_as(domain, train), _written_as(domain, held))
    joined = [concatenate([_named(part[k], domain) for domain, part in parts.items()]) for k in (0, 1)]
    return joined[0].with_test(joined[1])


def _of(x: np.ndarray, y: np.ndarray) -> Dataset:
    return Dataset({"x": x.astype(np.float32), "y": y}, task="classification", classes=10, name="digit_domains")


def _written_as(domain: str, part: Dataset) -> Dataset:
    return _of(part.x if domain == "plain" else 1.0 - part.x, part.y)


def _named(part: Dataset, domain: str) -> Dataset:
    names = [str(digit) for digit in range(10)]
    return part.with_columns({"domain": np.full(len(part), domain)}, citation=_CITATION, labels=tuple(names))


def _written(
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
        order = _equal(part.y, rng.child("rows", count).generator())
        if need > len(order):
            raise DataError(
                f"{len(domains)} domains of {count} rows need {need:,} digits, and there are {len(order):,}",
                where="digit_domains", remedy="ask for fewer rows or domains",
            )  # fmt: skip
        found.append([part.take(order[k * count : (k + 1) * count]) for k in range(len(domains))])
    return dict(zip(domains, zip(*found, strict=True), strict=True))


def _equal(y: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Row numbers in random order, one of each class after another as long as there are any."""
    mixed = rng.permutation(len(y))
    by_class = mixed[np.argsort(y[mixed], kind="stable")]
    turn = np.arange(len(y)) - np.searchsorted(y[by_class], y[by_class])
    return np.asarray(by_class[np.lexsort((rng.random(len(y)), turn))])


def _small(rows: int, test: int, rng: np.random.Generator) -> tuple[Dataset, Dataset]:
    whole = digits(flat=False, test=0)
    order = _equal(whole.y, rng)
    if rows + test > len(order):
        rows, test = (len(order) * rows) // (rows + test), (len(order) * test) // (rows + test)
    parts = (whole.take(order[:rows]), whole.take(order[rows : rows + test]))
    return tuple(_of(enlarged(part.x), part.y) for part in parts)  # type: ignore[return-value]


def _patched(
    parts: tuple[Dataset, Dataset], backgrounds: Dataset | None, folder: Folder, rng: np.random.Generator
) -> tuple[Dataset, Dataset]:
    behind = _behind(backgrounds, folder)
    found = []
    for k, part in enumerate(parts):
        pictures = textures(min(len(part), 1000), rng) if behind is None else behind[k]
        found.append(_of(on_patches(part.x, pictures, rng), part.y))
    return found[0], found[1]


def _behind(backgrounds: Dataset | None, folder: Folder) -> tuple[np.ndarray, np.ndarray] | None:
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
