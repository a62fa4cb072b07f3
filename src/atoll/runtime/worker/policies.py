"""What a site requires, according to its settings, and the jobs that it refuses before any of their code runs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from atoll.core.errors import ConfigError, PolicyError

if TYPE_CHECKING:
    from atoll.core.requests.policy import SitePolicy
    from atoll.privacy import Demand

__all__ = [
    "MIN_COUNT",
    "demand_of_site",
    "named_code",
    "policy_of_site",
    "require_allowed",
    "require_confined",
    "require_names",
    "usual_count",
]

_CODE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
"""How a job's settings name code: ``module:name``."""

MIN_COUNT = 10
"""Smallest number of rows behind every number that a statistic tells of a site whose policy has no word about it."""


def usual_count(*, rows: bool) -> int:
    """The minimum count of a party whose policy has no word about it: what a party without rows computes tells of no row of its own."""
    return MIN_COUNT if rows else 1


LET_CONSENT = "let the site add it to what its consent lets the signer run (people: {NAME: [...]})"
"""The remedy for a job that a site's consent does not name."""

_ALLOWING = ("allow", "tasks", "learned")
"""Settings of a policy that list what is allowed; without a word, everything is."""

_IMPORTED = (".py", ".so", ".pyd")
"""Ends of files that an interpreter on some system may import."""


_OF_QUERIES = ("people", "groups", "rows")
"""What ``policy: privacy`` says of noise in answers to queries; the rest is for all jobs."""


def rules_of_queries(given: Mapping[str, Any]) -> dict[str, Any]:
    """What a site's policy says of queries alone, as `atoll.query.QueryPolicy` reads it: noise in answers, enclaves, and choices that no record sees; nothing if it has no word about them.

    Args:
        given: the result of `settings_of`.
    """
    said = given.get("policy")
    section = said.get("privacy") if isinstance(said, Mapping) and given.get("tables") is not None else None
    found = {key: section[key] for key in _OF_QUERIES if key in section} if isinstance(section, Mapping) else {}
    asked = said if isinstance(said, Mapping) and given.get("tables") is not None else {}
    words = {key: asked[key] for key in ("enclave", "unrecorded") if key in asked}
    return {**({"privacy": found} if found else {}), **words}


def _for_all_jobs(given: Mapping[str, Any]) -> Any:
    """A site's policy without what is for queries alone."""
    said = given.get("policy")
    own = rules_of_queries(given)
    if not own or not isinstance(said, Mapping):
        return said
    rest = {key: value for key, value in said["privacy"].items() if key not in _OF_QUERIES} if "privacy" in own else {}
    return {**{key: value for key, value in said.items() if key not in own}, **({"privacy": rest} if rest else {})}


def policy_of_site(given: Mapping[str, Any], name: str) -> SitePolicy | None:
    """Return the policy in a site's settings; ``None`` if they have none. Without a word about ``min_count`` it has ``MIN_COUNT``, and 1 at a helper without rows.

    Args:
        given: the result of `settings_of`.
        name: the site's name.

    Raises:
        ConfigError: a value is wrong; the error names the path and value of each.
    """
    if given.get("policy") is None:
        return None
    from atoll.runs import parse_policy

    from .words import WAYS, inside

    said = _for_all_jobs(given)
    if isinstance(said, Mapping):
        _require_words(said, f"policy of site {name!r}")
        said = {"min_count": usual_count(rows=any(given.get(way) for way in WAYS)), **said}
    with inside(given.get("folder")):
        return parse_policy(said, f"policy of site {name!r}")


def _require_words(said: Mapping[str, Any], where: str) -> None:
    """Refuse a setting that says nothing, where nothing would mean that everything is allowed.

    Raises:
        ConfigError: a setting without a value, or an empty list of what is allowed.
    """
    for key, value in said.items():
        if value is None:
            raise ConfigError(f"{key} has no value", where=where, remedy=f"give {key} a value, or leave it out")
        if key in _ALLOWING and isinstance(value, list) and not value:
            raise ConfigError(
                f"{key}=[] allows nothing, and a policy without {key} allows everything",
                where=where,
                remedy=f"name what {key} allows, or leave it out; with `consent: {{people: {{}}}}` nobody runs anything",
            )


def demand_of_site(given: Mapping[str, Any], name: str, helper: bool = False) -> Demand | None:
    """Return what a site demands of every release now, from its file; ``None`` if it says nothing.

    Args:
        given: the result of `site_spec`.
        name: the site's name.
        helper: whether it has no clients.

    Raises:
        AtollError: the file cannot be read, or says something that makes no sense.
    """
    from .words import settings_of

    policy = _for_all_jobs(settings_of(given, name, helper)) if given else None
    if policy is None:
        return None
    if isinstance(policy, Mapping):
        _require_words(policy, f"policy of site {name!r}")
    from atoll.runs import parse_demand

    return parse_demand(policy, f"policy of site {name!r}")


def require_confined(policy: SitePolicy | None, name: str, confined: bool) -> None:
    """Refuse to run jobs without a sandbox where the site's policy insists on one.

    Raises:
        PolicyError: they are not confined.
    """
    if policy is not None and policy.confined and not confined:
        raise PolicyError(
            "jobs must run confined here, and they do not",
            where=f"policy of site {name!r}",
            remedy="install bubblewrap there and start `atoll site` with --confine always",
        )


def require_allowed(
    given: Mapping[str, Any], name: str, file: Path, source: Path | None, *, confined: bool = False
) -> None:
    """Refuse a job that the site's policy does not allow here, before importing any of its code.

    Args:
        given: the result of `settings_of`.
        name: the site's name.
        file: the job's settings.
        source: the folder of the job's modules.
        confined: whether this process is in a sandbox.

    Raises:
        PolicyError: a module, or code that the settings name as ``module:name``, is not allowed, or jobs must be
            confined and are not.
    """
    policy = policy_of_site(given, name)
    require_confined(policy, name, confined)
    if policy is None or not policy.allow:
        return
    from atoll.runs import yaml

    tree = yaml.read(file)
    files = [] if source is None else [path.relative_to(source) for path in sorted(source.rglob("*"))]
    try:
        for one in named_code(tree, files):
            policy.admit_code(one)
    except PolicyError as error:
        raise type(error)(error.what, where=f"policy of site {name!r}", remedy=error.remedy) from error


def named_code(tree: Any, files: Iterable[PurePath]) -> Iterator[str]:
    """Yield the code of a job: what its settings name, as ``module:name``, and the modules that travel with it, each as ``module:``.

    Args:
        tree: its settings.
        files: what travels, relative to the folder of its modules.
    """
    yield from _find_named(tree)
    yield from _modules(files)


def require_names(allow: Iterable[str], names: Iterable[str], where: str) -> None:
    """Refuse a job of whose signer a site's consent allows neither the kind nor the algorithms.

    Raises:
        PolicyError: names what may not run.
    """
    from atoll.core.requests.policy import ROW_FEATURES, SitePolicy

    policy = SitePolicy(allow=tuple(allow))
    try:
        policy.admit_job([name for name in names if name != ROW_FEATURES])  # what leaves is a matter of the policy
    except PolicyError as error:
        raise type(error)(
            error.what, where=where, remedy=f"{LET_CONSENT}, run the job without it, or leave the site out"
        ) from error


def _find_named(tree: Any) -> Iterator[str]:
    """Yield what a job's settings name as ``module:name``; a program's arguments are plain data, and its own name is a word."""
    if isinstance(tree, str) and _CODE.fullmatch(tree):
        yield tree
    elif isinstance(tree, list):
        for value in tree:
            yield from _find_named(value)
    elif isinstance(tree, dict):
        yield from _script(tree)
        for key, value in tree.items():
            if key != "arguments":
                yield from _find_named(value)


def _script(tree: dict[Any, Any]) -> Iterator[str]:
    """Yield what a model that is a script runs, each as ``module:__main__``: the script, and the command that runs it instead of Python."""
    if isinstance(tree.get("script"), str):
        yield ".".join(PurePath(tree["script"]).with_suffix("").parts) + ":__main__"
        command = tree.get("command")
        if isinstance(command, list) and command:
            yield f"{command[0]}:__main__"


def _modules(files: Iterable[PurePath]) -> Iterator[str]:
    """Yield the modules that travel with a job, each as ``module:``: any of them may be imported in place of another."""
    for file in files:
        if file.suffix in _IMPORTED:
            words = (*file.parts[:-1], file.name.partition(".")[0])
            yield ".".join(words[:-1] if words[-1] == "__init__" else words) + ":"
