"""What the room of ensembles adds: kinds of jobs, and the rules that give users a leaf."""

from __future__ import annotations

from atoll.core.rooms import PartKind, is_class

__all__ = ["JOBS", "PARTS"]

JOBS = {
    "ensemble": "atoll.ensemble.job:Federated",
    "fedmd": "atoll.ensemble.fedmd:FedMD",
    "fedboost": "atoll.ensemble.boosting:FedBoost",
}
"""Maps ``job:`` of a configuration to its class."""

PARTS = (
    PartKind("cluster rule", ("atoll.ensemble.clusters",), is_class("atoll.ensemble.clusters:ClusterRule"), "Which users train which leaf.", "ClusterRule"),
)  # fmt: skip
