"""The task that runs a ``ClientApp`` at a client."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from flwr.app import Context, Message

from atoll.core.algebra.aggregate import Aggregate
from atoll.core.algebra.tree import Tree
from atoll.core.errors import TaskError
from atoll.core.requests.task import task

from .identity import at_client
from .loading import loaded_app
from .records import packed, unpacked

if TYPE_CHECKING:
    from atoll.core.requests.island import Island

__all__ = ["answer"]

_LOG = logging.getLogger("atoll.flower")


@task
def answer(island: Island, message: Tree) -> dict[str, Aggregate] | Any:
    """Run the client's app on one message; an error of the app is a reply, as in Flower.

    The app's state is the client's private state: it stays there.
    """
    app = loaded_app(message["app"], "clientapp")
    told = message["message"]
    node = message["nodes"].index(island.name)
    state = unpacked(island.state["state"]) if island.state else unpacked([])
    config = {"partition-id": node, "num-partitions": len(message["nodes"])}
    context = Context(message["run"], message["ids"][node], config, state, dict(message["config"]))
    given = at_client(unpacked(told["content"]), told, message["ids"][node], message["run"])
    try:
        reply = app(given, context)
    except Exception as error:
        _LOG.exception("the ClientApp at %s raised", island.name)
        return {"error": f"{type(error)}:<'{error}'>"}
    if not isinstance(reply, Message):
        raise TaskError(
            f"the ClientApp returned a {type(reply).__name__}",
            where=island.name,
            remedy="return Message(content, reply_to=msg)",
        )
    if len(context.state):
        island.state = {"state": packed(context.state)}
    if reply.has_error():
        return {"error": str(reply.error.reason), "code": int(reply.error.code)}
    return {"content": packed(reply.content)}
