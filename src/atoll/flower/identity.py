"""What Flower's messages say of who sends them, as its own runtime sets it."""

from __future__ import annotations

import hashlib
import importlib
from typing import Any

from flwr.app import Message, RecordDict

__all__ = ["RUN", "SERVER", "as_server", "at_client", "node_ids"]

RUN, SERVER = 1, 1
"""The numbers of the run and of the server's node."""


def node_ids(names: list[str]) -> list[int]:
    """Return a node's number for each client: 63 bits that follow from its name."""
    return [int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest()) >> 1 for name in names]


def as_server() -> None:
    """Let messages that this process makes come from the server's node of the run."""
    try:
        identity: Any = importlib.import_module("flwr.supercore.task_identity").TaskIdentity
    except ImportError:  # before Flower 1.42
        return
    identity.task_id, identity.run_id, identity.node_id = 1, RUN, SERVER


def at_client(content: RecordDict, told: Any, node: int, run: int) -> Message:
    """Return a message as the client's app receives it.

    Args:
        content: its records.
        told: its identifier, type, group and time to live.
        node: the client's node.
        run: the run.
    """
    as_server()
    made = Message(content, dst_node_id=node, message_type=told["type"], ttl=told["ttl"], group_id=told["group"])
    made.metadata.__dict__.update({"_message_id": told["id"], "_run_id": run, "_src_node_id": SERVER})
    return made
