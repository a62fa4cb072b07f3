"""Models and programs that a job names as ``module:name``."""

from __future__ import annotations

import asyncio
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


class Pair:
    """Two trainings at once, one of some sites alone, and a count of its own after them."""

    after_round: Any = None
    """Called with the row of each round of the first training, where the program runs."""

    def __init__(self) -> None:
        first = atoll.Training(
            model=atoll.models.linear(4, 2), algorithm=atoll.FedAvg(lr=0.3), rounds=3, callbacks=[self._told]
        )
        other = first.replace(algorithm=atoll.algorithms.FedProx(lr=0.1, mu=0.1), callbacks=[])
        self.jobs = {"all": first, "some": (other, ["a", "c"])}

    def _told(self, row: Any) -> None:
        if Pair.after_round is not None:
            Pair.after_round(row)

    async def __call__(self, fed: Any) -> Any:
        """Run it."""
        first, (other, names) = self.jobs["all"], self.jobs["some"]  # type: ignore[misc]
        found = await asyncio.gather(fed.run(first, scope="all"), fed.run(other, names, scope="some"))
        return [{name: np.asarray(value) for name, value in one.params.items()} for one in found]


class Undeclared(Pair):
    """The same, without a word of it to the sites."""

    def __init__(self) -> None:
        super().__init__()
        self.own, self.jobs = self.jobs, {}

    async def __call__(self, fed: Any) -> Any:
        """Run one of them."""
        return await fed.run(self.own["all"], scope="all")


@atoll.task
def queries(island: Any, message: Any) -> dict[str, Any]:
    """Sum a column of a live connection."""
    del message
    return {"cost": atoll.Sum(float(island.data.execute("select sum(cost) from visits").fetchone()[0]))}


@atoll.task
async def tells(island: Any, peers: Any) -> Any:
    """Send what the connection says in the thread of roles."""
    await peers.send("hears", float(island.data.execute("select max(cost) from visits").fetchone()[0]))
    return None


@atoll.task
async def hears(island: Any, peers: Any) -> Any:
    """Add one's own."""
    said = float(await peers.recv("tells"))
    return {"most": said + float(island.data.execute("select max(cost) from visits").fetchone()[0])}


async def accounts(fed: Any) -> Any:
    """Ask connections by a task, then by roles, then by a task again."""
    first = await fed.sum(fed.parties, queries, at=0)
    told = await fed.session({"tells": ("a", tells), "hears": ("b", hears)})
    again = await fed.sum(fed.parties, queries, at=1)
    return {"sums": [float(first["cost"]), float(again["cost"])], "most": float(told["hears"]["most"])}


@atoll.task
def queries_kept(island: Any, message: Any) -> dict[str, Any]:
    """Sum a column of a connection that the site's data hold."""
    del message
    return {"cost": atoll.Sum(float(island.data.kept.execute("select sum(cost) from visits").fetchone()[0]))}


async def kept(fed: Any) -> float:
    """Ask it."""
    return float((await fed.sum(fed.parties, queries_kept))["cost"])
