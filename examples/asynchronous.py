"""A protocol of your own: buffered asynchronous averaging (FedBuff, Nguyen et al. 2022) as one plain async program.

Ten clients are always at work. Each trains from the model it was given; whenever five replies are in, the server adds their mean and
hands the new model to those who answered. Devices are slow and fast; time is virtual, so nobody waits.

Run it: python examples/asynchronous.py
"""

from __future__ import annotations

from typing import Any

import numpy as np

import atoll
from atoll.core.requests.results import Outcomes

BUFFER, AT_WORK, UPDATES = 5, 10, 40


class Uneven:
    """Client k needs 1 to 10 seconds, always the same."""

    def plan(self, parties: Any, plan: Any) -> Outcomes:
        seconds = 1.0 + parties.positions * 7 % 10
        return Outcomes(seconds, np.ones(len(parties), dtype=bool), np.ones(len(parties)))

    def transfer(self, source: str, target: str, nbytes: int) -> float:
        return 0.0


@atoll.task
def local(island: Any, message: Any) -> Any:
    """Softmax regression, one pass of gradient descent."""
    x, y = np.asarray(island.data.x, dtype=np.float64), np.asarray(island.data.y)
    weights = message["weights"].copy()
    for rows in np.array_split(island.rng.generator().permutation(len(y)), max(1, len(y) // 10)):
        scores = np.exp(x[rows] @ weights)
        scores /= scores.sum(axis=1, keepdims=True)
        scores[np.arange(len(rows)), y[rows]] -= 1.0
        weights -= 0.3 * x[rows].T @ scores / max(1, len(rows))
    return {"update": atoll.Mean(weights - message["weights"], examples=len(y))}


async def fedbuff(fed: atoll.Federation) -> dict[str, Any]:
    weights, staleness = np.zeros((64, 10)), []
    order = fed.rng.child("order").generator().permutation(len(fed.parties))
    await fed.send(fed.parties[order[:AT_WORK]], local, {"weights": weights}, version=0)
    for version in range(1, UPDATES + 1):
        came = await fed.arrivals(BUFFER)
        staleness += (version - 1 - came.version).tolist()
        total = await fed.combine(came)
        weights = weights + total["update"]
        start = AT_WORK + version * BUFFER
        free = order[np.arange(start, start + len(came)) % len(order)]
        await fed.send(fed.parties[free], local, {"weights": weights}, version=version)
    return {"weights": weights, "staleness": float(np.mean(staleness)), "seconds": fed.clock.now()}


def main() -> None:
    islands = atoll.data.dirichlet(atoll.data.digits(), parties=100, alpha=0.5, seed=0)
    result = atoll.simulate(fedbuff, islands, engine="inline", devices=Uneven())
    test = islands.test
    accuracy = np.mean(np.argmax(test.x @ result["weights"], axis=1) == test.y)
    print(
        f"accuracy {accuracy:.3f} after {result['seconds']:.0f} simulated seconds, mean staleness {result['staleness']:.2f}"
    )


if __name__ == "__main__":
    main()
