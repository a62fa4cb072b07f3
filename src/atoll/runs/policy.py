"""The policy of a site, as plain text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from pydantic import Field, ValidationError, model_validator

from .parts import part_class, refusing
from .problems import collect, refused
from .schema import Section, names_at

if TYPE_CHECKING:
    from atoll.core.requests.policy import Policies, SitePolicy

    from .parts import PartConfig as StagePart
else:
    StagePart = part_class("uplink stage")

__all__ = ["PolicyConfig", "parse_policy", "policies_of"]


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

    @model_validator(mode="after")
    def _accepted(self) -> PolicyConfig:
        with refusing(list(type(self).model_fields), "SitePolicy"):
            self.build("policy")
        return self

    def build(self, path: str) -> SitePolicy:
        """Make the policy."""
        from atoll.core.requests.policy import SitePolicy

        stages = tuple(part.build(f"{path}.stages[{i}]") for i, part in enumerate(self.stages))
        words = {name: tuple(getattr(self, name)) for name in ("tasks", "free", "allow")}
        more: dict[str, Any] = {
            **words,
            "results": self.results,
            "sums_only": self.sums_only,
            "confined": self.confined,
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
