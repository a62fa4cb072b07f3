"""The policy of a site, as plain text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, ValidationError, model_validator

from .parts import part_class, refusing
from .policy_names import require_known_names, require_known_tasks
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
