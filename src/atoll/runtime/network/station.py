"""The server's end of the link to one site: orders go out in the order given, answers find who asked."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Any

from atoll.core.errors import TaskError
from atoll.core.wire import unpack_error
from atoll.engines.link import LinkClosed

__all__ = ["Station"]


class Station:
    """One site.

    Args:
        name: of the site.
        link: to its job process.
        on_frame: takes what is no answer: replies, words of roles.
        on_end: told once when the link has ended, and why.
    """

    def __init__(
        self,
        name: str,
        link: Any,
        on_frame: Callable[[Station, Any], None],
        on_end: Callable[[Station, BaseException], None],
    ) -> None:
        self.name = name
        self.link = link
        self.heard = time.monotonic()
        self.alive = True
        self._on_frame = on_frame
        self._on_end = on_end
        self._orders: asyncio.Queue[tuple[Any, ...]] = asyncio.Queue()
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._tasks = [asyncio.create_task(self._read()), asyncio.create_task(self._write())]

    def post(self, frame: dict[str, Any], body: Any = None) -> None:
        """Put an order on its way, and what belongs to it."""
        self._orders.put_nowait((frame,) if body is None else (frame, body))

    async def call(self, number: int, frame: dict[str, Any]) -> Any:
        """Give an order and wait for its answer.

        Raises:
            AtollError: the site's own error, or the site went away.
        """
        if not self.alive:
            raise self.gone()
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._answers[number] = future
        self.post({**frame, "number": number})
        answer = await future
        error = unpack_error(answer.get("error"))
        if error is not None:
            raise error
        return answer

    def gone(self) -> TaskError:
        """What to say when the site's process is not there any more."""
        return TaskError(
            "the site's job process went away",
            where=f"site {self.name}",
            remedy="see its log; the job goes on from its last checkpoint when the site is back",
        )

    async def _read(self) -> None:
        try:
            while True:
                frame = await self.link.recv()
                self.heard = time.monotonic()
                if frame["op"] == "answer":
                    future = self._answers.pop(frame["number"], None)
                    if future is not None and not future.done():
                        future.set_result(frame)
                elif frame["op"] != "pulse":
                    self._on_frame(self, frame)
        except (LinkClosed, OSError):
            self._end(self.gone())
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # a frame that makes no sense, or a disk that is full: whoever waits must know
            self._end(error)

    async def _write(self) -> None:
        with contextlib.suppress(LinkClosed, OSError):
            while True:
                for piece in await self._orders.get():
                    await self.link.send(piece)

    def _end(self, error: BaseException) -> None:
        if not self.alive:
            return
        self.alive = False
        for future in self._answers.values():
            if not future.done():
                future.set_exception(error)
                future.exception()  # whoever asked may be gone already
        self._answers.clear()
        self._on_end(self, error)

    async def close(self) -> None:
        """Let the link go."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._on_end = lambda *_: None
        self._end(self.gone())
        closing = self.link.close()
        if closing is not None:
            await closing
