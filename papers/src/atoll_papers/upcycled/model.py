"""A PyTorch model whose clients are measured on their own test rows, not on their training rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from atoll.core.requests.island import Island
    from atoll.data import Islands
    from atoll.learn.learner import LearnerSettings

__all__ = ["Tested", "logistic", "twice"]


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
        from atoll.learn.server.personal import measured
        from atoll.torch.learner import adapt

        made = adapt(self.make(), replace(settings, factory=self.make), data)
        places = {name: place for place, name in enumerate(self.tests.names)}

        def measure(island: Island, message: Any) -> Any:
            own = SimpleNamespace(data=self.tests.shard(places[island.name]), state=island.state)
            return measured(made, cast("Island", own), message)

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
    from .data import divided

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
