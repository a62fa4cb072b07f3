"""Which helper of a project plays which part of a job."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from atoll.core.errors import ConfigError, nearest

__all__ = ["place_helpers"]


def place_helpers(
    needed: Mapping[str, str], plays: Mapping[str, str], *, there: Collection[str] = (), before: Collection[str] = ()
) -> dict[str, str]:
    """Give every party a helper of its own, which plays its role: one of its name, else one that is connected, else the first by name.

    Of the sites of an earlier attempt the same parties get the same helpers again.

    Args:
        needed: party -> role.
        plays: helper -> what it plays.
        there: sites that are connected.
        before: the sites of the job's earlier attempts; then no others are taken.

    Returns:
        Party -> helper.

    Raises:
        ConfigError: the project has too few helpers of a role.
    """
    found: dict[str, str] = {}
    for role in dict.fromkeys(needed.values()):
        parties = [party for party, wanted in sorted(needed.items()) if wanted == role]
        sites = [site for site, part in sorted(plays.items()) if part == role and (not before or site in before)]
        if len(sites) < len(parties):
            raise _too_few(role, parties, sites, plays)
        named = [party for party in parties if party in sites]
        free = sorted((site for site in sites if site not in named), key=lambda site: (site not in there, site))
        rest = [party for party in parties if party not in named]
        found |= dict(zip((*named, *rest), (*named, *sorted(free[: len(rest)])), strict=True))
    return found


def _too_few(role: str, parties: list[str], sites: list[str], plays: Mapping[str, str]) -> ConfigError:
    have = f"only {', '.join(map(repr, sites))} plays it" if sites else "nobody in the project plays it"
    hint = "" if sites else nearest(role, set(plays.values()))
    return ConfigError(
        f"the job needs a {role} for {', '.join(map(repr, parties))}, and {have}.{hint}",
        where="helpers",
        remedy=f"add `helpers: {{NAME: {role}}}` to project.yaml, run atoll provision, copy project-sites.txt to the server's "
        "kit, and start `atoll site` with the new kit",
    )
