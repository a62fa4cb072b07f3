"""Flower apps unchanged: a ``ServerApp`` and a ``ClientApp`` on Atoll's engines and between its sites. Needs the extra ``flower``.

The ``ServerApp`` runs in a thread of the program, and its grid asks the federation. The ``ClientApp`` runs in a task at each client. Messages
cross as arrays and plain values. Results are Flower's own: its strategies add up, and Atoll only carries.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import os
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atoll.core.errors import AtollError, CompositionError, ConfigError, JobError
from atoll.core.extras import need
from atoll.rounds.program import ProgramJob
from atoll.simulation import Result, simulate

if TYPE_CHECKING:
    from atoll.core.federation.federation import Federation

__all__ = ["FlowerApp", "changes_of", "flattened", "flower_program", "job_of", "simulate_app"]

# A Flower app's folder: what its ``pyproject.toml`` says, and what of it has no counterpart here.


_WORD = re.compile(r"""(?:[^\s"']|"[^"]*"|'[^']*')+""")
Value = bool | int | float | str
_NODES = 10
"""Nodes of a simulation where an app names no number, as in Flower."""


@dataclass(frozen=True)
class FlowerApp:
    """A Flower app.

    Attributes:
        folder: where its modules are.
        name: the project's name.
        serverapp: ``module:attribute``.
        clientapp: ``module:attribute``.
        config: the run's configuration, with dotted keys.
        nodes: SuperNodes of a simulation.
    """

    folder: Path
    name: str
    serverapp: str
    clientapp: str
    config: Mapping[str, Value]
    nodes: int = _NODES

    @classmethod
    def read(cls, folder: str | Path) -> FlowerApp:
        """Read an app's folder.

        Raises:
            ConfigError: it is not an app, or its ``pyproject.toml`` cannot be used.
            CompositionError: it has a component without a counterpart.
        """
        file = Path(folder) / "pyproject.toml"
        try:
            tree = tomllib.loads(file.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            said = getattr(error, "strerror", None) or str(error)
            raise ConfigError(
                f"the app cannot be read: {said}",
                where=str(file),
                remedy="name the folder of a Flower app, with its pyproject.toml",
            ) from error
        flower = _section(tree, "tool", "flwr")
        components = _section(flower, "app", "components")
        unknown = sorted(components.keys() - {"serverapp", "clientapp"})
        if unknown:
            raise CompositionError(
                f"the component {unknown[0]!r} has no counterpart in Atoll",
                where=f"{file}, [tool.flwr.app.components]",
                remedy="run an app of a serverapp and a clientapp",
            )
        for name in ("serverapp", "clientapp"):
            if ":" not in str(components.get(name, "")):
                raise ConfigError(
                    f"{name}={components.get(name)!r}",
                    where=f"{file}, [tool.flwr.app.components]",
                    remedy=f'name it as in {name} = "package.module:app"',
                )
        return cls(
            Path(folder).resolve(), str(_section(tree, "project").get("name", Path(folder).resolve().name)),
            str(components["serverapp"]), str(components["clientapp"]), flattened(_section(flower, "app", "config"), str(file)),
            _nodes(_section(flower, "federations"), file),
        )  # fmt: skip

    def configured(self, changes: Mapping[str, Value]) -> dict[str, Value]:
        """Return the run's configuration with changes, as ``flwr run --run-config`` makes them.

        Raises:
            ConfigError: the app has no such key.
        """
        unknown = next((key for key in changes if key not in self.config), None)
        if unknown is not None:
            raise ConfigError(
                f"the app has no setting {unknown!r}",
                where="--run-config",
                remedy=f"use one of {', '.join(self.config)}",
            )
        return {**self.config, **changes}


def changes_of(words: str) -> dict[str, Value]:
    """Return what ``--run-config`` says: ``KEY=VALUE`` words, whose values are written as in TOML.

    Raises:
        ConfigError: it cannot be read.
    """
    found: dict[str, Value] = {}
    for word in _WORD.findall(words):
        key, equals, value = word.partition("=")
        try:
            tree = tomllib.loads(f"value = {value}")
        except tomllib.TOMLDecodeError:
            tree = {"value": None}
        if not equals or not isinstance(tree["value"], bool | int | float | str):
            raise ConfigError(
                f"{word!r} is not KEY=VALUE",
                where="--run-config",
                remedy="write texts in quotes, as in 'lr=0.1 name=\"a\"'",
            )
        found[key] = tree["value"]
    return found


def _section(tree: Mapping[str, Any], *path: str) -> dict[str, Any]:
    found: Any = tree
    for key in path:
        found = found.get(key, {}) if isinstance(found, Mapping) else {}
    return dict(found) if isinstance(found, Mapping) else {}


def _nodes(federations: Mapping[str, Any], file: Path) -> int:
    """Return the number of nodes of the app's default federation."""
    chosen = federations.get(str(federations.get("default", "")), {})
    if "address" in chosen:
        raise CompositionError(
            f"the default federation is a SuperLink at {chosen['address']!r}",
            where=f"{file}, [tool.flwr.federations]",
            remedy="give --supernodes for a simulation, or submit the app to Atoll's own server (atoll flower job)",
        )
    nodes = _section(chosen, "options").get("num-supernodes", _NODES)
    if not isinstance(nodes, int) or nodes < 1:
        raise ConfigError(f"num-supernodes={nodes!r}", where=str(file), remedy="use a whole number of at least 1")
    return nodes


def flattened(tree: Mapping[str, Any], where: str, above: str = "") -> dict[str, Value]:
    """Return a configuration with dotted keys.

    Raises:
        ConfigError: a value is neither a text, a number nor a truth value: Flower takes no other.
    """
    found: dict[str, Value] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping):
            found.update(flattened(value, where, f"{above}{key}."))
        elif isinstance(value, bool | int | float | str):
            found[f"{above}{key}"] = value
        else:
            raise ConfigError(
                f"{above}{key}={value!r}", where=where, remedy="use texts, numbers and truth values, as Flower does"
            )
    return found


# The program that runs a Flower app: its ``ServerApp`` in a thread, and its ``ClientApp`` at the clients.


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
    from .flower_grid import RUN, SERVER, FederationGrid, answer, as_server, loaded_app

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


# A Flower app in a simulation, and as a job.


_LATE = "torch._dynamo"
"""What PyTorch imports when an optimizer is first used: seconds that each worker would spend."""


def simulate_app(
    app: FlowerApp,
    changes: Mapping[str, Value] | None = None,
    *,
    nodes: int | None = None,
    engine: str = "processes",
    workers: int | None = None,
) -> Result:
    """Run an app on this machine.

    Args:
        app: the app.
        changes: of its run configuration.
        nodes: number of clients; by default the app's own.
        engine: inline, processes or ray.
        workers: number of processes.

    Raises:
        AtollError: the app cannot be imported, or its ServerApp raised.
    """
    need("flwr", "flower", "A Flower app")
    from .flower_grid import loaded_app

    count = app.nodes if nodes is None else nodes
    islands = {f"node-{i}": None for i in range(count)}  # a Flower client loads its own rows, by its partition's number
    with _importing(app.folder):
        loaded_app(app.clientapp, "clientapp")  # before workers are forked: they inherit what it imports
        if engine != "inline" and "torch" in sys.modules:
            importlib.import_module(_LATE)
        program = flower_program(app.serverapp, app.clientapp, app.configured(changes or {}))
        found: Result = simulate(ProgramJob.of(program), islands, engine=engine, workers=workers)
    return found


def job_of(app: FlowerApp, changes: Mapping[str, Value], here: Path) -> dict[str, Any]:
    """Return an app as the settings of a job.

    Args:
        app: the app.
        changes: of its run configuration.
        here: the folder that the job's file will be in.
    """
    arguments = {"serverapp": app.serverapp, "clientapp": app.clientapp, "config": app.configured(changes)}
    return {
        "name": app.name, "sites": "all", "source": os.path.relpath(app.folder, here), "job": "program",
        "program": "atoll.bridges.flower:flower_program", "arguments": arguments,
    }  # fmt: skip


@contextlib.contextmanager
def _importing(folder: Path) -> Iterator[None]:
    """Find an app's modules; workers inherit the path."""
    sys.path.insert(0, str(folder))
    kept = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(folder), *([kept] if kept else [])])
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        os.environ.pop("PYTHONPATH", None)
        if kept is not None:
            os.environ["PYTHONPATH"] = kept
