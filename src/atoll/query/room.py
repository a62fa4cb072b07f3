"""What the room of queries adds: a kind of job, and the strategies that answer statements."""

from __future__ import annotations

from atoll.core.rooms import PartKind, is_class

__all__ = ["JOBS", "OWN_JOBS", "PARTS"]

JOBS = {"query": "atoll.query.job:Query"}
"""Maps ``job:`` of a configuration to its class."""

OWN_JOBS = {"analyst": {"query": ""}}
"""Maps the role of a signer to the kinds of jobs that it may submit alone, and the setting that must name it."""

PARTS = (
    PartKind("query strategy", ("atoll.query.strategies",), is_class("atoll.query.strategies.strategy:Strategy"), "How a statement is answered: what sites compute, what is combined, what leaves.", extra="sql"),
)  # fmt: skip
