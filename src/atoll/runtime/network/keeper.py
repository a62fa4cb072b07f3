"""What a site does with states and generations on the server's orders."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from atoll.core.requests.request import TaskResult
from atoll.core.requests.wire import pack_error, pack_ran, unpack_request
from atoll.core.time.meter import Said

from .parked import Parking
from .segments import Segments

if TYPE_CHECKING:
    from atoll.core.execution.host import Host

__all__ = ["Keeper", "without_state"]


class Keeper:
    """Carries out orders about what tasks left behind.

    Args:
        host: the owner of the states and the journal.
        registry: tasks and stages that the program registered by name.
        parking: executions that are not decided yet.
    """

    def __init__(self, host: Host, registry: Mapping[str, Any], parking: Parking) -> None:
        self._host = host
        self._registry = registry
        self._parking = parking
        self._segments = Segments(host.store)

    def obey(self, frame: Any) -> Any:
        """Carry out an order; return the answer if one is wanted."""
        op, positions = frame["op"], [int(p) for p in frame.get("positions", ())]
        if op == "keep":
            self._parking.keep(frame["id"], positions)
        elif op == "discard":
            self._parking.discard(frame["id"], positions)
        elif op == "conclude":
            self._parking.conclude(frame["id"], positions)
        elif op == "drop":
            self._host.store.drop(frame["slot"])
        if "number" not in frame:
            return None
        answer = {"op": "answer", "number": frame["number"]}
        if op == "known":
            step = self._host.journal.step(frame["request"]["id"], int(frame["position"]), int(frame["step"]))
            return {**answer, "ran": self._find_known(frame), "step": step is not None}
        try:
            return {**answer, "names": self._generation(frame)}
        except Exception as error:
            return {**answer, "error": pack_error(self._host.executor.redact_error(error))}

    def _find_known(self, frame: Any) -> Any:
        """Return what the journal has of a role's result, for a session that is not held again."""
        request = unpack_request({**frame["request"], "message": None}, self._registry)
        ran = self._host.replay(request, int(frame["position"]))
        if ran is None:
            return None
        self._parking.park(request, ran)
        return pack_ran(without_state(ran))

    def _generation(self, frame: Any) -> list[str]:
        host, op = self._host, frame["op"]
        if op == "commit":
            return host.store.commit(frame["slot"], frame["generation"], full=frame["full"])
        if op == "settle":
            host.store.settle(frame["slot"])
            host.journal.forget(frame["slot"])
            self._segments.settle(frame["slot"], list(frame["names"]))
        elif op == "load":
            host.store.load(frame["slot"], list(frame["names"]))
        elif op == "kept":
            self._role(frame)
        elif op == "publish":
            host.publish()
        return []

    def _role(self, frame: Any) -> None:
        """Make what a role left behind the party's state: the session is over and counts."""
        host, position = self._host, int(frame["position"])
        parked = self._parking.get(frame["id"], position)
        parked.ran = replace(
            parked.ran, said={role: Said(*words) for role, words in frame["said"].items()}, time=float(frame["time"])
        )
        if frame["sealed"] and host.replay(parked.request, parked.ran.reply.party) is None:
            host.journal.put([(parked.request, parked.ran)])
        self._parking.keep(frame["id"], [position])


def without_state(ran: TaskResult) -> TaskResult:
    """Return what may leave the site: the reply, never the private state behind it."""
    return replace(ran, left={})
