"""The policy of a site, as plain text."""

from __future__ import annotations

import functools
import importlib
import pkgutil
import re
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, ValidationError, model_validator

from atoll.core.addresses import MOVED, load_object
from atoll.core.errors import ConfigError, nearest
from atoll.core.rooms import job_kinds

from .parts import part_class, refusing
from .registries import registry
from .schema import Section, collect, names_at, refused

if TYPE_CHECKING:
    from atoll.core.requests.policy import Policies, SitePolicy
    from atoll.privacy import Demand

    from .parts import PartConfig as StagePart
else:
    StagePart = part_class("uplink stage")

__all__ = [
    "PolicyConfig",
    "PrivacyConfig",
    "parse_demand",
    "parse_policy",
    "policies_of",
    "require_known_names",
    "require_known_tasks",
]


class PrivacyConfig(Section):
    """What a site demands of every release, and of all jobs together: the settings of ``atoll.privacy.Demand`` and of its ``Budget``."""

    require: bool = True
    unit: Literal["example", "user", "island"] = "user"
    epsilon: float | None = None
    delta: float = 1e-5
    method: str = "pld"
    adversary: Literal["server", "clients", "model"] = "server"
    neighbours: Literal["add-remove", "replace-one"] = "add-remove"

    @model_validator(mode="after")
    def _accepted(self) -> PrivacyConfig:
        with refusing(list(type(self).model_fields), "Budget"):
            self.build()
        return self

    def build(self) -> Demand:
        """Make the demand."""
        from atoll.privacy import Budget, Demand

        terms: dict[str, Any] = {name: getattr(self, name) for name in ("delta", "method", "adversary", "neighbours")}
        budget = None if self.epsilon is None else Budget(self.epsilon, **terms)
        return Demand(self.require, self.unit, budget)


class PolicyConfig(Section):
    """What a site requires: the settings of ``atoll.core.requests.policy.SitePolicy``."""

    stages: list[StagePart] = Field(default_factory=list)
    largest_reply: int | None = None
    smallest_cohort: int = 1
    tasks: list[str] = Field(default_factory=list)
    free: list[str] = Field(default_factory=list)
    allow: list[str] = Field(default_factory=list)
    results: bool = True
    confined: bool = False
    sums_only: bool = False
    second_sums: bool | None = None
    privacy: PrivacyConfig | None = None
    min_count: int = 1
    extremes: list[str] = Field(default_factory=list)
    learned: list[str] = Field(default_factory=list)
    min_aligned: int = 1
    predictions_per_hour: int | None = None

    @model_validator(mode="after")
    def _accepted(self) -> PolicyConfig:
        with refusing(list(type(self).model_fields), "SitePolicy"):
            self.build("policy")
            require_known_names(self.allow)
            require_known_tasks({"tasks": self.tasks, "free": self.free})
        return self

    def build(self, path: str) -> SitePolicy:
        """Make the policy."""
        from atoll.core.requests.policy import SitePolicy

        stages = tuple(part.build(f"{path}.stages[{i}]") for i, part in enumerate(self.stages))
        words = {name: tuple(getattr(self, name)) for name in ("tasks", "free", "allow", "extremes", "learned")}
        more: dict[str, Any] = {
            **words,
            "results": self.results,
            "sums_only": self.sums_only,
            "second_sums": self.second_sums,
            "confined": self.confined,
            "privacy": None if self.privacy is None else self.privacy.build(),
            "min_count": self.min_count,
            "min_aligned": self.min_aligned,
            "predictions_per_hour": self.predictions_per_hour,
        }
        return SitePolicy(stages, self.largest_reply, self.smallest_cohort, **more)


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
    known = {*_known_names(), *registry("algorithm").extra}
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


_HOME = __name__.partition(".")[0]


@functools.cache
def _rooms() -> tuple[str, ...]:
    """The packages and modules of Atoll, and those that moved."""
    here = [module.name for module in pkgutil.iter_modules(importlib.import_module(_HOME).__path__)]
    return tuple(dict.fromkeys([*here, *(re.split(r"[.:]", old)[1] for old in MOVED)]))


def policies_of(policy: PolicyConfig | None, own: Mapping[str, PolicyConfig], names: Iterable[str]) -> Policies | None:
    """Return the policies of the islands of a run.

    Args:
        policy: the policy of each island without an entry in ``own``.
        own: maps an island's name to its policy.
        names: names of all islands.
    """
    shared = None if policy is None else policy.build("policy")
    if not own:
        return shared
    made = {name: each.build(f"policies.{name}") for name, each in own.items()}
    return made if shared is None else {**dict.fromkeys(map(str, names), shared), **made}


def parse_policy(tree: Any, where: str = "policy") -> SitePolicy:
    """Check a policy section, and make the policy.

    Raises:
        ConfigError: names the path, the value and the nearest valid key of every problem.
    """
    try:
        return PolicyConfig.model_validate(tree).build(where)
    except ValidationError as error:
        raise refused(collect(error, tree, lambda loc: names_at(PolicyConfig, loc)), where) from error


def parse_demand(tree: Any, where: str = "policy") -> Demand | None:
    """Check the section ``privacy`` of a policy, and make the demand, without reading what else is in the policy.

    Args:
        tree: the policy, or nothing.
        where: the place that errors name.

    Raises:
        ConfigError: names the path, the value and the nearest valid key of every problem.
    """
    section = tree.get("privacy") if isinstance(tree, Mapping) else None
    if section is None:
        return None
    try:
        return PrivacyConfig.model_validate(section).build()
    except ValidationError as error:
        names = lambda loc: names_at(PrivacyConfig, loc)  # noqa: E731
        raise refused(collect(error, section, names), f"{where}, privacy") from error
