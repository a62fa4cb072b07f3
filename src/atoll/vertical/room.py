"""What the room of vertical models adds: kinds of job, and the models that they train."""

from __future__ import annotations

from atoll.core.rooms import PartKind, is_class

__all__ = ["JOBS", "PARTS", "OWN_JOBS"]

JOBS = {
    "fed-gkt": "atoll.vertical.split.fed_gkt:FedGKT",
    "split-fed": "atoll.vertical.split.split_fed:SplitFed",
    "vertical": "atoll.vertical.job:Vertical",
    "vertical-prediction": "atoll.vertical.prediction:VerticalPrediction",
    "vertical-statistics": "atoll.vertical.statistics:VerticalStatistics",
}
"""Maps ``job:`` of a configuration to its class."""

OWN_JOBS = {"site": {"vertical-prediction": "guest"}}
"""Kinds of jobs that a site may submit alone -> the setting that must name it: the hosts agreed to answer when they trained, and each has a policy."""

PARTS = (
    PartKind("vertical model", ("atoll.vertical",), is_class("atoll.vertical.model:VerticalModel"), "One model over columns that lie at several parties.", "VerticalModel"),
    PartKind("cut defence", ("atoll.vertical",), is_class("atoll.vertical.split.defences:CutDefence"), "Hides labels or columns at the cut of a split network.", "CutDefence"),
)  # fmt: skip
