"""An environment with exactly the extras that a page names: whatever else is installed here cannot be imported there."""

from __future__ import annotations

import importlib.metadata as metadata
import os
import re
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

_HOOK = """
import os
import sys
from importlib.machinery import PathFinder

HIDDEN = frozenset(os.environ["HIDDEN_MODULES"].split(","))


class Finder(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in HIDDEN else PathFinder.find_spec(name, path, target)


sys.meta_path[sys.meta_path.index(PathFinder)] = Finder
"""
_NAMED = re.compile(r'pip install "\.\[([a-z,]+)\]"')


def extras_of(page: str) -> frozenset[str]:
    """The extras that a page says to install from a clone; one that an aside names is not meant."""
    return frozenset(extra for found in _NAMED.findall(page) for extra in found.split(","))


def distributions(extras: frozenset[str]) -> set[str]:
    """The names of all distributions that Atoll with these extras brings."""
    found: set[str] = set()
    wanted: list[tuple[str, frozenset[str]]] = [("atoll", extras)]
    while wanted:
        name, also = wanted.pop()
        key = f"{canonicalize_name(name)}[{','.join(sorted(also))}]"
        if key in found:
            continue
        found |= {key, canonicalize_name(name)}
        try:
            needs = metadata.requires(name) or []
        except metadata.PackageNotFoundError:  # not for this system
            continue
        wanted += [
            (need.name, frozenset(need.extras))
            for need in map(Requirement, needs)
            if need.marker is None or any(need.marker.evaluate({"extra": extra}) for extra in ("", *also))
        ]
    return found


def environment(folder: Path, extras: frozenset[str]) -> dict[str, str]:
    """The variables of a process that finds exactly Atoll with these extras.

    Args:
        folder: an empty one, for the hook.
        extras: the extras.
    """
    there = distributions(extras)
    owners = metadata.packages_distributions()
    hidden = sorted(m for m, names in owners.items() if not {canonicalize_name(name) for name in names} & there)
    folder.mkdir(parents=True)
    (folder / "sitecustomize.py").write_text(_HOOK, encoding="utf-8")
    return {**os.environ, "PYTHONPATH": str(folder), "HIDDEN_MODULES": ",".join(hidden)}
