"""The columns that all parties have, where nobody sees a party's own reply."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from atoll.core.errors import DataError

from .columns import settle_kind
from .plan import StatisticsPlan
from .summed import named

if TYPE_CHECKING:
    from atoll.core.federation.federation import Federation

    from .job import Statistics

__all__ = ["AgreedColumns", "agreed_columns"]


@dataclass(frozen=True)
class AgreedColumns:
    """What all parties describe.

    Attributes:
        kinds: column -> kind, in order.
        keys: family and label of each cell, in order.
    """

    kinds: Mapping[str, str]
    keys: tuple[tuple[str, str], ...]

    @property
    def numbers(self) -> list[str]:
        """The columns of numbers, in order."""
        return [name for name, kind in self.kinds.items() if kind == "number"]

    def unlisted(self, plan: StatisticsPlan) -> list[str]:
        """What is not told because its values are not agreed, in words."""
        rows = [name for name, kind in self.kinds.items() if kind != "number" and name not in plan.categories]
        return [f"values of {name}: they are not agreed; give categories={{{name!r}: [...]}}" for name in rows]


async def agreed_columns(fed: Federation, job: Statistics, kinds: Mapping[str, str]) -> AgreedColumns:
    """The columns: those of the settings, or those that the parties name.

    Args:
        fed: the federation.
        job: the settings.
        kinds: what a checkpoint knows of them; empty at first.

    Raises:
        DataError: the parties have different columns.
    """
    plan = job.plan
    found: dict[str, str] = dict(kinds) or _said(job)
    if not found:
        told = await fed.ask_all(fed.parties, named, {"plan": plan.packed()})
        sites = dict(zip(told.senders.names, map(dict, told.values), strict=True))
        first = next(iter(sites.values()), {})
        found = {name: settle_kind(one.get(name, "") for one in sites.values()) or "" for name in first}
        for site, one in sites.items():
            if one.keys() != first.keys():
                _refuse(site, one, told.senders.names[0], first)
        for name in [name for name, kind in found.items() if not kind]:
            sure = {one[name]: site for site, one in reversed(sites.items()) if not one[name].endswith("?")}
            here, there, *_ = sure.values()
            _refuse(there, sites[there], here, sites[here])
    families = [*plan.by, *([plan.over] if plan.over else ())]
    groups = tuple((family, str(label)) for family in families for label in plan.categories[family])
    return AgreedColumns(found, (("", ""), *groups))


def _refuse(site: str, kinds: Mapping[str, str], other: str, theirs: Mapping[str, str]) -> None:
    raise DataError(
        f"the columns of {site} are {_shown(kinds)}, and of {other} {_shown(theirs)}",
        where="statistics",
        remedy="name columns= that all parties have, of one kind",
    )


def _said(job: Statistics) -> dict[str, str]:
    """The kinds of the columns that the settings name; they follow from the settings."""
    found: dict[str, str] = {}
    for name in job.columns:
        if name in job.text:
            found |= {f"{name}/characters": "number", f"{name}/words": "number", f"{name}/vocabulary": "words"}
        else:
            found[name] = "category" if name in job.categories else "number"
    return found


def _shown(kinds: Any) -> str:
    return ", ".join(f"{name} ({kind.replace('?', ', empty')})" for name, kind in kinds.items())
