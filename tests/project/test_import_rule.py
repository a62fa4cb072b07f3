"""The import rule of ARCHITECTURE.md: which room may know which, and which libraries are loaded when."""

from __future__ import annotations

import sys

import pytest

from tests.support.sources import Import, imports, modules

ANY = None
# room -> rooms it may import, at the top of a file, inside a function or for type checkers. A room may always import itself.
ROOMS: dict[str, set[str] | None] = {
    "core": set(),
    "engines": {"core"},
    "devices": {"core"},
    "data": {"core"},
    "stages": {"core", "privacy"},
    "privacy": {"core"},
    "secure": {"core", "stages", "privacy", "native"},
    "rounds": {"core"},
    "learn": {"core", "data", "stages", "privacy", "secure", "devices", "rounds"},
    **{
        kind: {"core", "learn"}
        for kind in ("algorithms", "selection", "aggregation", "pacing", "topology", "mechanisms")
    },
    "reducers": {"core", "secure"},
    "views": {"core", "labels"},
    "statistics": {"core", "data", "stages", "privacy", "rounds"},
    "client": {"bridges", "core", "data"},
    "bridges": {"core", "client", "rounds", "simulation"},
    "models": {"bridges", "core", "client", "data", "fitting", "learn"},
    "native": set(),
    "heap": set(),
    "torch": {"native", "heap", "core", "data", "learn", "stages"},
    "adapters": {"core", "data", "learn", "native", "torch"},
    "trees": {"core", "data", "native"},
    "programs": {"core", "data", "learn", "privacy", "secure", "stages"},
    "labels": {"core", "data", "learn", "programs", "torch", "stages", "privacy", "secure", "rounds"},
    "fitting": {"core", "data", "statistics"},
    "truth": {"core", "data", "privacy", "secure"},
    "ensemble": {"core", "data", "labels", "learn", "privacy", "rounds", "torch", "trees"},
    "crossmodal": {"adapters", "core", "data", "learn", "native", "privacy", "secure", "stages", "torch"},
    "vertical": {"core", "data", "privacy", "secure", "trees"},
    "query": {
        "core",
        "data",
        "privacy",
        "secure",
        "statistics",
        "simulation",
    },  # `connect` runs statements on this machine
    "runtime": {"core", "heap", "engines", "data", "privacy", "learn", "rounds", "runs", "report", "simulation"},
    "atoll": ANY,
    "__main__": {"cli"},
    "auditing": ANY,
    "cli": ANY,
    "report": ANY,
    "papers": ANY,  # the papers beside the package
    "reproduce": ANY,
    "runs": ANY,
    "simulation": ANY,
    "study": ANY,
    "testing": ANY,
}
# Libraries that a room may load as soon as it is loaded itself; every other library waits inside a function.
EAGER: dict[str, set[str]] = {
    "torch": {"torch"},
    "adapters": {"torch"},
    "labels": {"torch"},
    "ensemble": {"torch"},
    "crossmodal": {"torch"},
    "bridges": {"flwr"},
    "testing": {"hypothesis", "pytest"},
    "cli": {"typer", "click", "rich"},
    "runs": {"pydantic", "pydantic_core", "ruamel"},
    "runtime": {"pydantic", "pydantic_core", "ruamel"},
    "report": {"jinja2", "rich"},
}
NEVER: dict[str, set[str]] = {"core": {"torch"}, "learn": {"torch"}, "engines": {"torch"}}


def every_import() -> list[Import]:
    """The imports of all files."""
    return [item for module in modules() for item in imports(module)]


def _library(item: Import) -> str:
    return item.target.split(".")[0]


def _room(item: Import) -> str:
    """The room of Atoll that an import reaches."""
    return [*item.target.split("."), "atoll"][1]


def test_every_room_has_a_rule() -> None:
    assert {module.room for module in modules()} <= set(ROOMS)


@pytest.mark.parametrize("room", sorted(ROOMS))
def test_a_room_imports_only_the_rooms_it_may(room: str) -> None:
    allowed = ROOMS[room]
    if allowed is ANY:
        return
    own = [item for item in every_import() if item.module.room == room and _library(item) == "atoll"]
    wrong = [f"{i.where} imports {i.target}" for i in own if _room(i) not in {room, *allowed}]
    assert not wrong, f"{room} may import {sorted({room, *allowed})} only"


def test_only_people_and_tests_reach_the_runtime() -> None:
    """What is not about networks must run without them. One reproduction is: it measures the transports."""
    users = {item.module.room for item in every_import() if _library(item) == "atoll" and _room(item) == "runtime"}
    assert users <= {"runtime", "cli", "papers", "testing"}


def test_nothing_of_the_package_knows_the_papers_beside_it() -> None:
    """Entry points name them, so that the package is whole without them."""
    wrong = [i.where for i in every_import() if i.module.room != "papers" and _library(i) == "atoll_papers"]
    assert not wrong


def test_libraries_wait_until_they_are_used() -> None:
    ready = {"numpy", "atoll", "atoll_papers", *sys.stdlib_module_names}
    wrong = [
        f"{item.where} loads {_library(item)} at once"
        for item in every_import()
        if item.eager and _library(item) not in ready | EAGER.get(item.module.room, set())
    ]
    assert not wrong, "import it inside the function that needs it"


@pytest.mark.parametrize("room", sorted(NEVER))
def test_some_rooms_never_name_pytorch(room: str) -> None:
    wrong = [i.where for i in every_import() if i.module.room == room and _library(i) in NEVER[room]]
    assert not wrong


def test_only_rooms_that_build_on_torch_load_it_at_once() -> None:
    loads = {item.module.room for item in every_import() if item.eager and _library(item) == "torch"}
    assert loads <= {"adapters", "crossmodal", "ensemble", "labels", "torch"}


def test_the_scanner_sees_what_it_must_see() -> None:
    """The guard itself: lazy, typed, relative and dynamic imports of this very package are found."""
    found = {(item.module.name, item.target): item for item in every_import()}
    assert found["atoll.models.networks", "torch.nn"].typing or not found["atoll.models.networks", "torch.nn"].eager
    assert found["atoll.learn.training", "atoll.learn.algorithms.fedavg.FedAvg"].eager
    assert not found["atoll.learn.pacing.synchronous", "atoll.learn.round.rounds.ServerRounds"].eager
    assert found["atoll.core.federation.federation", "atoll.core.world.World"].typing
