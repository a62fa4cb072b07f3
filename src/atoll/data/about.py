"""`About`: the description of a data set, without its rows."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["About"]


@dataclass(frozen=True)
class About:
    """The description of a data set, without its rows.

    Attributes:
        name: short name.
        task: "classification", "binary", "regression", "multilabel", "tokens" (a class for each entry of a row) or "unlabelled".
        classes: number of classes (of labels, if multilabel); ``None`` for a regression.
        citation: who made the data, and where it was published.
        labels: the classes' names, in code order, if known.
        features: names of the features in ``x``, if known.
        missing_features: whether features may be missing: NaN in ``x``.
    """

    name: str = "data"
    task: str = "unlabelled"
    classes: int | None = None
    citation: str = ""
    labels: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    missing_features: bool = False
