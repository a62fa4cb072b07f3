"""Flower's grid over a federation: what the ``ServerApp`` sends is asked of the clients."""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from flwr.app import Message, RecordDict
from flwr.app.error import Error
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid

from atoll.core.algebra.tree import Tree
from atoll.core.errors import ConfigError

from .client import answer
from .identity import RUN, node_ids
from .records import packed, unpacked

if TYPE_CHECKING:
    from atoll.core.federation.federation import Federation

__all__ = ["FederationGrid"]


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
