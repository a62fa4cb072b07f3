"""What the room of queries adds: a kind of job, the strategies that answer statements, and the rules that they may call."""

from __future__ import annotations

from typing import Any

from atoll.core.addresses import load_object
from atoll.core.rooms import PartKind, is_class

__all__ = ["JOBS", "OWN_JOBS", "PARTS", "READY"]

JOBS = {"query": "atoll.query.job:Query"}
"""Maps ``job:`` of a configuration to its class."""

OWN_JOBS = {"analyst": {"query": "analyst?"}}
"""Maps the role of a signer to the kinds of jobs that it may submit alone, and the setting that must name it; with ``?``, if there is one."""

READY = {
    "query": (
        "atoll.query.job", "atoll.query.connection", "atoll.query.strategies", "atoll.query.databases.files", "atoll.query.databases.sqlite", "duckdb", "numpy.ma",
        "sqlglot.dialects.duckdb", "sqlglot.optimizer.annotate_types", "sqlglot.optimizer.merge_subqueries", "sqlglot.optimizer.qualify", "sqlglot.typing.duckdb",
        "atoll.native", "atoll.privacy.canaries", "atoll.privacy.discrete", "atoll.privacy.gaussian", "atoll.secure.masking.reducer", "atoll.statistics.disclosure",
        "atoll.report.page", "atoll.report.trackers", "atoll.rounds.history", "jinja2",
        "cryptography.x509", "cryptography.hazmat.backends.openssl.backend", "cryptography.hazmat.primitives.ciphers.aead", "cryptography.hazmat.primitives.serialization",
    ),
}  # fmt: skip
"""Modules that a process loads before a statement comes, since a person waits for the answer; those of Atoll with all that they list."""


def _is_rule(found: Any) -> bool:
    return bool(load_object("atoll.query.rules.registry:is_rule")(found))


PARTS = (
    PartKind("query strategy", ("atoll.query.strategies",), is_class("atoll.query.strategies.strategy:Strategy"), "How a statement is answered: what sites compute, what is combined, what leaves.", extra="sql"),
    PartKind("query index", ("atoll.query.indexes",), is_class("atoll.query.indexes.registry:LocalIndex"), "How a site finds rows of its own tables: by a range of a column, or near to a point."),
    PartKind("query rule", ("atoll.query.rules",), _is_rule, "A table function in FROM: what it makes of a statement.", extra="sql"),
)  # fmt: skip
