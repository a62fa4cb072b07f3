"""What horizontal learning registers: trainings and their kinds of parts."""

from __future__ import annotations

from typing import Any

from atoll.core.rooms import PartKind, is_class

__all__ = ["JOBS", "PARTS"]

JOBS = {"training": "atoll.learn.training:Training"}


def _whole(found: Any) -> bool:
    """Return whether something is a complete algorithm, not only a part of others; its card says which."""
    return is_class("atoll.learn:Algorithm")(found) and not found.card.part


def _program(name: str) -> tuple[str, str] | None:
    """Return what to call a method that is a program, and how to run it."""
    from .catalogue import programs

    plain = name.replace("_", "").replace("-", "").lower()
    found = next((made for made in programs() if made.lower() == plain), None)
    if found is None:
        return None
    how = f"run it from Python: atoll.simulate(atoll.programs.{found}(...).program, islands)"
    return (
        "a program, not the algorithm of a training",
        f"{how}; in a file, name a program that runs it: job: program, program: module:name",
    )


PARTS = (
    PartKind(
        "algorithm", ("atoll.algorithms",), _whole, "What clients and the server compute.", "Algorithm",
        instead=_program, further=("atoll.labels", "atoll.ensemble"), extra="torch",
    ),
    PartKind(
        "transform", ("atoll.learn.transforms",), is_class("atoll.learn.transforms:Transform"),
        "A step that changes a search direction.", "Transform",
    ),
    PartKind(
        "topology", ("atoll.topology",), is_class("atoll.topology:Topology"), "Which parties exchange messages.",
        "Topology", further=("atoll.labels", "atoll.ensemble"), extra="torch",
    ),
    PartKind(
        "graph", ("atoll.topology",), is_class("atoll.topology:Graph"), "The neighbours of each node.", "Graph"
    ),
    PartKind(
        "selection", ("atoll.selection",), is_class("atoll.learn:Selection"), "Which clients a round invites.", "Selection"
    ),
    PartKind(
        "aggregation", ("atoll.aggregation",), is_class("atoll.learn:Aggregation"),
        "How the replies of a cohort represent the whole population.", "Aggregation", further=("atoll.adapters",),
    ),
    PartKind(
        "pacing", ("atoll.pacing",), is_class("atoll.pacing:Pacing"), "When a round ends.", "Pacing"
    ),
    PartKind(
        "staleness", ("atoll.learn.pacing.staleness",), is_class("atoll.learn.pacing.staleness:Staleness"),
        "How the weight of a reply falls with its staleness.", "Staleness",
    ),
    PartKind(
        "slack estimator", ("atoll.learn.pacing.slack",), is_class("atoll.learn.pacing.slack:SlackEstimator"),
        "How an edge estimates the share of its clients that return.", "SlackEstimator",
    ),
    PartKind(
        "mechanism", ("atoll.mechanisms",), is_class("atoll.mechanisms:Mechanism"),
        "A mechanism of differential privacy.", "Mechanism",
    ),
    PartKind(
        "metric", ("atoll.learn.metrics",), is_class("atoll.learn.metrics:ScoreMetric"),
        "A measure in addition to the loss and the task's defaults.", "ScoreMetric",
    ),
)  # fmt: skip
