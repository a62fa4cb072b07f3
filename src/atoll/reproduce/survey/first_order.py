"""First-order methods that are transforms of a direction or of the mean update."""

from __future__ import annotations

from atoll.learn.algorithms import FedAvg

from .row import Row

__all__ = ["ROWS"]

ROWS = (
    Row(name="FedAvg T=1", algorithm=FedAvg(lr=0.01, steps=1, batch_size=None), reference=2.69e-4),
    Row(name="FedAvg T=5", algorithm=FedAvg(lr=0.01, steps=5, batch_size=None), reference=7.67e-2),
    Row(name="FedAvg T=20", algorithm=FedAvg(lr=0.01, steps=20, batch_size=None), reference=1.19),
)
