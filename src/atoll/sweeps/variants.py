"""What a sweep varies: combinations of settings, their labels, and seeds."""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from atoll.core.errors import ConfigError

__all__ = ["combinations", "label_of", "require_new", "seeds_of"]


def combinations(over: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Return every combination of values, the last setting changing fastest; one empty combination without settings.

    Raises:
        ConfigError: a setting has no values.
    """
    for path, values in over.items():
        if isinstance(values, str) or not isinstance(values, Sequence) or not values:
            raise ConfigError(
                f"{path}={values!r} has no values to try", where="sweep", remedy="give a list, such as [0.01, 0.1]"
            )
    return [dict(zip(over, values, strict=True)) for values in itertools.product(*over.values())]


def label_of(settings: Mapping[str, Any], name: str = "") -> str:
    """Return a folder-safe label of a combination: ``algorithm.lr=0.01,rounds=5``, after the job's name if it has one."""
    parts = [name] if name else []
    text = ",".join([*parts, *(f"{path}={value}" for path, value in settings.items())]) or "run"
    bare = re.sub(r"[{}\[\]]", "", text).replace(", ", ",")
    return re.sub(r"[^\w.=,+-]+", "-", bare)[:120]


def require_new(label: str, known: Collection[str]) -> str:
    """Return a label that no other variant has: their runs would share folders.

    Raises:
        ConfigError: another variant has it, because a value occurs twice, or values differ only in signs that a folder's name cannot have.
    """
    if label in known:
        raise ConfigError(
            f"two variants have the label {label!r}",
            where="sweep",
            remedy="leave one out, or give the jobs names of their own",
        )
    return label


def seeds_of(seeds: int | Iterable[int]) -> list[int]:
    """Return seeds: the first ``n`` whole numbers, or those given.

    Raises:
        ConfigError: there is none, or one twice.
    """
    found = list(range(seeds)) if isinstance(seeds, int) else [int(seed) for seed in seeds]
    if not found or len(set(found)) < len(found):
        raise ConfigError(f"seeds={seeds!r}", where="sweep", remedy="give a number of at least 1, or different seeds")
    return found
