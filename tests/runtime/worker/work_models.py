"""Models and programs that a job names as ``module:name``."""

from __future__ import annotations

from typing import Any

import numpy as np

import atoll


def logistic() -> Any:
    """A linear classifier of scikit-learn."""
    from sklearn.linear_model import SGDClassifier

    return SGDClassifier(loss="log_loss", max_iter=2, random_state=0)


@atoll.task
def weigh(island: Any, message: Any) -> dict[str, Any]:
    """The sum of a party's numbers."""
    return {"sum": atoll.Sum(np.int64(sum(island.data) * message["times"]))}


async def tally(fed: Any, times: int = 1) -> Any:
    """Add up everybody's numbers."""
    total = await fed.sum(fed.parties, weigh, {"times": times})
    fed.record({"sum": total["sum"]})
    everyone = fed.world.roster
    return {"sum": int(total["sum"]), "parties": list(fed.parties.names), "others": list(everyone.others)}


class Tally:
    """The same as an object, with a party that holds no data."""

    others = {"judge": "judge"}  # noqa: RUF012

    def __init__(self, times: int) -> None:
        self.times = times

    async def __call__(self, fed: Any) -> Any:
        """Run it."""
        return await tally(fed, self.times)
