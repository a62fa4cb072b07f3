"""The minimum count of a request that names none: the largest that its parties require.

A party refuses a request with a smaller minimum count than its policy has. A request without one first asks the parties what they require, and takes the largest.
The answer comes from the policies alone; no row is in it. A server that lies about it gains nothing: each party compares the request with its own policy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..requests.disclosure import RULES_TASK
from ..requests.task import task

if TYPE_CHECKING:
    from ..requests.party import Parties
    from .federation import Federation

__all__ = ["required_min_count", "told_rules"]


@task(name=RULES_TASK)
def told_rules(island: Any, message: Any) -> Any:
    """The smallest number of rows that the party's policy wants behind every number."""
    del message
    return {"min_count": island.rules.min_count}


async def required_min_count(fed: Federation, parties: Parties, asked: int | None, *, quorum: int) -> int:
    """The minimum count of a request.

    Args:
        fed: the federation.
        parties: who will be asked.
        asked: what the settings say; ``None`` is nothing.
        quorum: how many of the parties must answer.
    """
    if asked is not None:
        return asked
    told = await fed.ask_all(parties, told_rules, None, quorum=quorum)
    return max((int(one["min_count"]) for one in told.values), default=1)
