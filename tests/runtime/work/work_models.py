"""Models that a job names as ``module:name``."""

from __future__ import annotations

from typing import Any


def logistic() -> Any:
    """A linear classifier of scikit-learn."""
    from sklearn.linear_model import SGDClassifier

    return SGDClassifier(loss="log_loss", max_iter=2, random_state=0)
