"""The synthetic populations, with test or validation rows held out, and models that are measured on the clients' own test rows."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from atoll.core.requests.island import Island
    from atoll.data import Dataset, Islands
    from atoll.learn.learner import LearnerSettings

__all__ = ["KINDS", "Tested", "divided", "islands", "logistic", "twice"]


KINDS: dict[str, tuple[float, float] | None] = {
    "iid": None,
    "0,0": (0.0, 0.0),
    "0.5,0.5": (0.5, 0.5),
    "1,1": (1.0, 1.0),
}
"""Syn(a, b); ``None`` is Syn(iid)."""


@functools.lru_cache(maxsize=64)
def divided(
    kind: str, tuning: bool = False, draw: int = 0, rows: int = 0, unit: bool = False
) -> tuple[Islands, Islands]:
    """Return the population as (training rows, measuring rows), client by client.

    Args:
        kind: one of `KINDS`.
        tuning: measure on a tenth of the training rows instead of the test rows, which are left out.
        draw: seed of the data.
        rows: most rows per client; 0 for the sizes of the experiment.
        unit: divide every row by its norm if that is above 1; this uses no other row.
    """
    import numpy as np

    from atoll.data import Islands, Shard, synthetic, synthetic_iid

    spread = KINDS[kind]
    whole = synthetic_iid(seed=draw) if spread is None else synthetic(*spread, seed=draw)
    if rows:
        sizes = np.minimum(np.asarray(whole.sizes), rows)
        whole = synthetic_iid(seed=draw, sizes=sizes) if spread is None else synthetic(*spread, seed=draw, sizes=sizes)
    # Stored: rows made on demand would be drawn and hashed again in every round.
    read = _unit if unit else Shard.dataset
    whole = Islands.from_datasets(
        {name: read(whole.shard(i)) for i, name in enumerate(whole.names)}, scheme=whole.scheme
    )
    train, test = whole.holdout(0.1, seed=draw)
    return train.holdout(0.1, seed=draw + 1) if tuning else (train, test)


def _unit(shard: Any) -> Dataset:
    import numpy as np

    from atoll.data import Dataset

    x = np.asarray(shard.x, dtype=np.float64)
    x /= np.maximum(1.0, np.linalg.norm(x, axis=1, keepdims=True))
    return Dataset({"x": x, "y": np.asarray(shard.y)}, task="classification", name="unit rows")


def islands(kind: str, tuning: bool = False, draw: int = 0, rows: int = 0, unit: bool = False) -> Islands:
    """Return the clients, with the measuring rows as the server's test set."""
    train, test = divided(kind, tuning, draw, rows, unit)
    return train.with_test(test.pooled())


# ------------------------------------------------------------------ models, measured on the clients' own test rows


@dataclass(frozen=True)
class Tested:
    """A model with a test set for each client.

    Attributes:
        make: makes the ``torch.nn.Module``; its weights follow the run's seed.
        tests: the test rows, client by client, under the clients' names.
    """

    make: Callable[[], Any]
    tests: Islands

    def learner(self, settings: LearnerSettings, data: Any) -> Any:
        """Return a learner for a data set."""
        from dataclasses import replace

        from atoll.core.requests.task import Task
        from atoll.learn.round.evaluation import measure_client
        from atoll.torch.learner import adapt

        made = adapt(self.make(), replace(settings, factory=self.make), data)
        places = {name: place for place, name in enumerate(self.tests.names)}

        def measure(island: Island, message: Any) -> Any:
            own = SimpleNamespace(data=self.tests.shard(places[island.name]), state=island.state)
            return measure_client(made, cast("Island", own), message)

        made.measure = Task("atoll.reproduce.upcycled:measure", measure)
        return made


def logistic(kind: str, tuning: bool = False, draw: int = 0, rows: int = 0, softmax: bool = False) -> Tested:
    """Return logistic regression on 20 features with 2 classes, from 0, for a synthetic population; see `islands`.

    Args:
        kind: the population.
        tuning: whether the test rows are the tuning rows.
        draw: of the population.
        rows: as in `islands`.
        softmax: as in the paper's code; see `twice`.
    """
    return Tested(twice(_zeros) if softmax else _zeros, divided(kind, tuning, draw, rows)[1])


def twice(make: Callable[[], Any]) -> Callable[[], Any]:
    """Return a maker of a model that ends in a softmax, although its loss applies another one. The models of the paper's code do this; its text does not mention it.

    Logits are then between 0 and 1, so that with ``C`` classes the loss cannot fall below ``log(1 + (C - 1) / e)`` and
    gradients are flat.
    """

    def made() -> Any:
        from torch import nn

        return nn.Sequential(make(), nn.Softmax(dim=-1))

    return made


def _zeros() -> Any:
    from torch import nn

    made = nn.Linear(20, 2)
    nn.init.zeros_(made.weight)
    nn.init.zeros_(made.bias)
    return made
