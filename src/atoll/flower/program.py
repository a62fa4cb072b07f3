"""The program that runs a Flower app: its ``ServerApp`` in a thread, and its ``ClientApp`` at the clients."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from atoll.core.errors import AtollError, JobError
from atoll.core.extras import need

from .loading import loaded_app

if TYPE_CHECKING:
    from atoll.core.federation.federation import Federation

__all__ = ["flower_program"]


def flower_program(serverapp: str, clientapp: str, config: Mapping[str, Any] | None = None) -> Any:
    """Return a program that runs a Flower app.

    The ``ServerApp`` decides everything: rounds, strategy, what it saves. After a crash it begins again, because its state is its own.

    Args:
        serverapp: ``module:attribute``.
        clientapp: ``module:attribute``.
        config: the run's configuration.

    Raises:
        MissingExtraError: Flower is not installed.
    """
    need("flwr", "flower", "A Flower app")
    from .client import answer
    from .grid import FederationGrid
    from .identity import RUN, SERVER, as_server

    async def program(fed: Federation) -> dict[str, Any]:
        from flwr.app import Context, RecordDict

        app = loaded_app(serverapp, "serverapp")
        grid = FederationGrid(fed, clientapp, config or {})
        context = Context(RUN, SERVER, {}, RecordDict(), dict(config or {}))

        def serve() -> None:
            as_server()
            app(grid, context)

        with fed.clock.busy():  # the ServerApp's own work takes no virtual time
            try:
                await asyncio.to_thread(serve)
            except AtollError:
                raise
            except Exception as error:
                raise JobError(
                    f"the ServerApp raised {type(error).__name__}: {error}",
                    where=serverapp,
                    remedy="correct the app; its trace is in the log",
                ) from error
        return {"exchanges": grid.exchanges}

    program.tasks = (answer,)  # type: ignore[attr-defined]
    return program
