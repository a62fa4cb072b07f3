"""Measurements of a training between rounds, for the loop of `atoll.rounds`, and the headline numbers of its records."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from atoll.core.algebra.tree import Tree

if TYPE_CHECKING:
    from atoll.core.federation.federation import Federation

    from ..context import Context

__all__ = ["MEASURES", "TrainingMeasures", "news_of"]

MEASURES = {
    "accuracy": "test/accuracy",
    "loss": "test/loss",
    "rmse": "test/rmse",
    "worst_decile": "clients/accuracy/worst_decile",
}
"""Label -> column."""


@dataclass(frozen=True)
class TrainingMeasures:
    """Measurements of a training's evaluation between rounds."""

    context: Context

    def timed(self, row: dict[str, Any]) -> dict[str, float]:
        """Return how long the round would take on real devices."""
        return self.context.evaluation.timed(row)

    def due(self, number: int, last: bool) -> bool:
        """Return whether the server or clients evaluate after this round."""
        evaluation = self.context.evaluation
        return evaluation.due(number, last) or evaluation.clients_due(number, last)

    async def take(self, watch: Federation, model: Tree, number: int, last: bool) -> tuple[dict[str, Any], bool]:
        """Measure scores on the server's rows, then at clients."""
        context, evaluation, found = self.context, self.context.evaluation, dict[str, Any]()
        at_server, at_clients = evaluation.due(number, last), evaluation.clients_due(number, last)
        if at_server:
            found |= evaluation.at_server(context.learner, model, context.test)
        if at_clients:
            found |= await evaluation.at_clients(watch, context.learner, model, number, context.reducer)
        return found, at_server and at_clients >= (evaluation.clients != 0)


def news_of(last: Mapping[str, float]) -> Iterator[str]:
    """Return accuracy or error, and loss, as a progress display says them."""
    if "test/accuracy" in last:
        yield f"accuracy {100 * last['test/accuracy']:.1f} %"
    elif "test/rmse" in last:
        yield f"RMSE {last['test/rmse']:.4g}"
    loss = last.get("test/loss", last.get("loss"))
    if loss is not None:
        yield f"loss {loss:.3f}"
