"""Flower's messages over a federation: the task that runs a ``ClientApp``, and the grid through which a ``ServerApp`` asks clients. It loads Flower."""

from __future__ import annotations

import asyncio
import functools
import hashlib
import importlib
import logging
import threading
from collections import defaultdict
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.app.error import Error
from flwr.app.message.array import Array
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid

from atoll.client.connection import name_wrong_count
from atoll.core.addresses import load_object
from atoll.core.algebra.aggregate import Aggregate
from atoll.core.algebra.tree import Tree
from atoll.core.errors import CompositionError, ConfigError, TaskError
from atoll.core.requests.task import task

if TYPE_CHECKING:
    from atoll.core.federation.federation import Federation
    from atoll.core.requests.island import Island

__all__ = [
    "RUN",
    "SERVER",
    "FederationGrid",
    "answer",
    "as_server",
    "at_client",
    "loaded_app",
    "node_ids",
    "packed",
    "unpacked",
]

# An app's own objects, by name.


@functools.lru_cache(maxsize=8)
def loaded_app(where: str, kind: str) -> Any:
    """Return the app of a name.

    Raises:
        ConfigError: it cannot be imported.
    """
    try:
        return load_object(where)
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"{kind} {where!r} cannot be imported: {error}",
            where="Flower's app",
            remedy="install what the app depends on, and correct its name",
        ) from error


# What Flower's messages say of who sends them, as its own runtime sets it.


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


# Flower's records as message trees, and back: bytes for bytes, so that nothing changes on the way.


def packed(records: RecordDict) -> Tree:
    """Return records as a message tree.

    Raises:
        CompositionError: a record of a kind that is not known here.
    """
    return [[name, *_packed(name, record)] for name, record in records.items()]


def _packed(name: str, record: Any) -> tuple[str, Tree]:
    if isinstance(record, ArrayRecord):
        return "arrays", [[key, a.dtype, list(a.shape), a.stype, a.data] for key, a in record.items()]
    if isinstance(record, MetricRecord | ConfigRecord):
        kind = "metrics" if isinstance(record, MetricRecord) else "config"
        return kind, [[key, list(value) if isinstance(value, list) else value] for key, value in record.items()]
    raise CompositionError(
        f"the record {name!r} is a {type(record).__name__}, which has no counterpart in Atoll",
        where="Flower's message",
        remedy="use ArrayRecord, MetricRecord and ConfigRecord",
    )


def unpacked(tree: Tree) -> RecordDict:
    """Return records from a message tree."""
    found = RecordDict()
    for name, kind, rows in tree:
        if kind == "arrays":
            found[name] = ArrayRecord(
                {key: Array(dtype, tuple(shape), stype, data) for key, dtype, shape, stype, data in rows}
            )
        else:
            found[name] = (MetricRecord if kind == "metrics" else ConfigRecord)(dict(rows))
    return found


# The task that runs a ``ClientApp`` at a client.


_LOG = logging.getLogger("atoll.flower")
_COUNT = "num-examples"
"""The metric by which Flower's strategies weigh replies."""


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
    content = packed(reply.content)
    wrong = name_wrong_count(content, _COUNT)
    return {"error": wrong} if wrong else {"content": content}


# Flower's grid over a federation: what the ``ServerApp`` sends is asked of the clients.


class FederationGrid(Grid):  # type: ignore[misc]  # Flower is not installed where types are checked
    """A grid whose nodes are a federation's parties. The ``ServerApp``'s threads call it, and the federation's event loop does the work.

    Messages of one call with the same content and type are one request to many clients, so that their content crosses once.

    Args:
        fed: the federation.
        clientapp: ``module:attribute``.
        config: the run's configuration.
    """

    def __init__(self, fed: Federation, clientapp: str, config: Mapping[str, Any]) -> None:
        self._fed, self._loop = fed, asyncio.get_running_loop()
        self._names = [str(party.name) for party in fed.parties]
        self._ids = node_ids(self._names)
        self._position = {node: i for i, node in enumerate(self._ids)}
        self._about = {"app": clientapp, "config": dict(config), "nodes": self._names, "ids": self._ids, "run": RUN}
        self._sent, self._calls = 0, 0
        self._waiting: dict[str, Future[list[Message]]] = {}
        self._lock = threading.Lock()

    @property
    def exchanges(self) -> int:
        """How often the ``ServerApp`` has sent something."""
        return self._calls

    def set_run(self, run: Any) -> None:
        """Do nothing: there is one run."""

    @property
    def run(self) -> Any:
        """The run."""
        return SimpleNamespace(run_id=RUN, override_config={}, fab_id="", fab_version="", fab_hash="")

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        """Return a message; Flower's own constructor does the same."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        """Return the nodes, in the order of the federation."""
        return list(self._ids)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Send messages; return their identifiers."""
        batch = self._numbered(messages)
        future = asyncio.run_coroutine_threadsafe(self._exchange(batch), self._loop)
        with self._lock:
            self._waiting.update({message.metadata.message_id: future for message in batch})
        return [message.metadata.message_id for message in batch]

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the replies that have come to these messages."""
        wanted, found = set(message_ids), list[Message]()
        with self._lock:
            there = {
                number: self._waiting[number]
                for number in wanted
                if number in self._waiting and self._waiting[number].done()
            }
            for number in there:
                del self._waiting[number]
        for number, future in there.items():
            found += [reply for reply in future.result() if reply.metadata.reply_to_message_id == number]
        return found

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Send messages and wait for the replies, in the order of the messages; ``timeout`` is the federation's own deadline."""
        batch = self._numbered(messages)
        return asyncio.run_coroutine_threadsafe(self._exchange(batch, timeout), self._loop).result()

    def _numbered(self, messages: Iterable[Message]) -> list[Message]:
        batch = list(messages)
        with self._lock:
            for message in batch:
                self._sent += 1
                message.metadata.__dict__["_message_id"] = str(self._sent)
                if message.metadata.dst_node_id not in self._position:
                    raise ConfigError(
                        f"there is no node {message.metadata.dst_node_id}",
                        where="ServerApp",
                        remedy="send to one of grid.get_node_ids()",
                    )
        return batch

    async def _exchange(self, batch: list[Message], timeout: float | None = None) -> list[Message]:
        """Ask the federation; return the replies that came, in the order of the messages."""
        self._calls += 1
        groups: dict[tuple[int, str], list[Message]] = defaultdict(list)
        for message in batch:
            groups[id(message.content), message.metadata.message_type].append(message)
        number = self._calls
        asked = [self._ask(group, f"{number}.{i}", timeout) for i, group in enumerate(groups.values())]
        replies = {key: reply for found in await asyncio.gather(*asked) for key, reply in found.items()}
        self._record(number, batch, replies)
        return [replies[message.metadata.message_id] for message in batch if message.metadata.message_id in replies]

    async def _ask(self, group: list[Message], at: str, timeout: float | None) -> dict[str, Message]:
        """Ask the clients of messages with one content; a client that is asked twice is asked one after the other."""
        head, later = {message.metadata.dst_node_id: message for message in reversed(group)}, list[Message]()
        later = [message for message in group if head[message.metadata.dst_node_id] is not message]
        by_place = {self._position[node]: message for node, message in head.items()}
        first = group[0].metadata
        told = {"id": first.message_id, "type": first.message_type, "group": first.group_id, "ttl": first.ttl}
        message: Tree = {**self._about, "message": {**told, "content": packed(group[0].content)}}
        parties = self._fed.parties[sorted(by_place)]
        answers = await self._fed.ask_all(parties, answer, message, at=at, quorum=0, deadline=timeout)
        found = {}
        for party, value in zip(answers.senders, answers.values, strict=True):
            asked = by_place[self._names.index(str(party.name))]
            found[asked.metadata.message_id] = _reply(asked, value)
        return {**found, **(await self._ask(later, f"{at}+", timeout) if later else {})}

    def _record(self, number: int, batch: list[Message], replies: Mapping[str, Message]) -> None:
        """Write a row about an exchange, with Flower's own words."""
        failed = sum(reply.has_error() for reply in replies.values())
        first = batch[0].metadata if batch else None
        self._fed.record(
            {
                "round": _round_of(batch, number), "kind": first.message_type if first is not None else "",
                "selected": len(batch), "replied": len(replies) - failed, "failed": failed,
            }
        )  # fmt: skip


def _round_of(batch: list[Message], number: int) -> int:
    """Return the round that Flower's strategies write into a message, or else its group, or the number of the exchange."""
    if not batch:
        return number
    configs = batch[0].content.config_records.values()
    told = next(
        (str(config["server-round"]) for config in configs if "server-round" in config), batch[0].metadata.group_id
    )
    return int(told) if told.isdigit() else number


def _reply(asked: Message, value: Any) -> Message:
    if "error" in value:
        code = value.get("code", ErrorCode.CLIENT_APP_RAISED_EXCEPTION)
        reply = Message(Error(code=code, reason=value["error"]), reply_to=asked)
    else:
        reply = Message(unpacked(value["content"]), reply_to=asked)
    reply.metadata.__dict__["_message_id"] = f"{asked.metadata.message_id}r"
    return reply
