"""What people look at first in the records of a training."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

__all__ = ["MEASURES", "news_of"]

MEASURES = {
    "accuracy": "test/accuracy",
    "loss": "test/loss",
    "rmse": "test/rmse",
    "worst_decile": "clients/accuracy/worst_decile",
}
"""Label -> column."""


def news_of(last: Mapping[str, float]) -> Iterator[str]:
    """Accuracy or error, and loss, as a progress display says them."""
    if "test/accuracy" in last:
        yield f"accuracy {100 * last['test/accuracy']:.1f} %"
    elif "test/rmse" in last:
        yield f"RMSE {last['test/rmse']:.4g}"
    loss = last.get("test/loss", last.get("loss"))
    if loss is not None:
        yield f"loss {loss:.3f}"
