"""What the room of vertical models adds: kinds of job."""

from __future__ import annotations

__all__ = ["JOBS"]

JOBS = {
    "vertical": "atoll.vertical.job:Vertical",
    "vertical-prediction": "atoll.vertical.prediction:VerticalPrediction",
}
"""Maps ``job:`` of a configuration to its class."""
