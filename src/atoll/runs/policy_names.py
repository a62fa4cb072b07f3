"""Names in policies: those of jobs, of their parts and of tasks. A misspelt one would refuse what it means to let in, or let in what it means to refuse."""

from __future__ import annotations

import functools
import importlib
import pkgutil
import re
import sys
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any

from atoll.core.addresses import MOVED, load_object
from atoll.core.errors import ConfigError, nearest
from atoll.core.rooms import job_kinds

__all__ = ["require_known_names", "require_known_policies", "require_known_tasks"]

_HOME = __name__.partition(".")[0]


def require_known_policies(policies: Any) -> None:
    """Refuse names in the policies of a simulation that no job and no task can have; configurations are checked when they are read.

    Raises:
        ConfigError: the name, and the nearest.
    """
    for policy in policies.values() if isinstance(policies, Mapping) else (policies,):
        require_known_names(getattr(policy, "allow", ()))
        require_known_tasks({name: getattr(policy, name, ()) for name in ("tasks", "free")})


def require_known_names(allow: Iterable[str], where: str = "SitePolicy") -> None:
    """Refuse a name in ``allow`` that no job has: a misspelt one would refuse what it means to let in.

    Raises:
        ConfigError: the name, and the nearest.
    """
    names = [name for name in allow if ":" not in name]
    if not names:
        return
    registries = sys.modules.get(
        f"{__package__}.registries"
    )  # where it was never imported, nobody has registered a name
    known = {*_known_names(), *(() if registries is None else registries.registry("algorithm").extra)}
    for name in names:
        if not any(fnmatchcase(one, name) for one in known):
            raise ConfigError(
                f"allow={name!r} is no kind of job, algorithm or method.{nearest(name, known)}",
                where=where,
                remedy="see `atoll algorithms`, which lists models and protocols too; kinds of jobs are "
                f"{', '.join(sorted(job_kinds()))}, and code of a job's own is module:name",
            )


@functools.cache
def _known_names() -> frozenset[str]:
    """What the jobs of all kinds say that their names can be, and Atoll's own programs."""
    told = {name for where in job_kinds().values() for name in load_object(where).known_names()}
    return frozenset({*told, *importlib.import_module("atoll.programs").__all__})


def require_known_tasks(given: Mapping[str, Iterable[str]], where: str = "SitePolicy") -> None:
    """Refuse a name of a task that no task can have: without a function, of a module that Atoll does not have, or of a package that is spelt nearly like Atoll.

    Raises:
        ConfigError: the name.
    """
    for setting, names in given.items():
        for name in names:
            head = re.split(r"[*?\[]", name)[0]
            parts = re.split(r"[.:]", head)[: None if head == name else -1]  # what a wildcard cuts says nothing
            top, rooms = "".join(parts[:1]), _rooms()
            own = top == _HOME
            fault = "" if own or set(name) & set(":*?[") else " is the name of no task"
            if not fault and own and len(parts) > 1 and parts[1] not in rooms:
                fault = f" is the name of no task: there is no {_HOME}.{parts[1]}.{nearest(parts[1], rooms)}"
            elif not fault and not own and nearest(top, [_HOME]):
                fault = f" is the name of no task.{nearest(top, [_HOME])}"
            if fault:
                raise ConfigError(
                    f"{setting}={name!r}{fault}",
                    where=where,
                    remedy="write module:function, or a pattern such as 'atoll.*'",
                )


@functools.cache
def _rooms() -> tuple[str, ...]:
    """The packages and modules of Atoll, and those that moved."""
    here = [module.name for module in pkgutil.iter_modules(importlib.import_module(_HOME).__path__)]
    return tuple(dict.fromkeys([*here, *(re.split(r"[.:]", old)[1] for old in MOVED)]))
