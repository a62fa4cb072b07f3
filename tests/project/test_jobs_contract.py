"""Jobs are known by their contract: nobody outside a kind's own room tests for it, and rooms say what they bring."""

from __future__ import annotations

import ast
import re

import pytest

from atoll.core.job import Job
from atoll.core.rooms import job_kinds, part_kinds
from atoll.runs.config import RunConfig, config_class, job_class
from tests.support.sources import PACKAGE, imports, modules

KNOWING = {"atoll.runs", "atoll.runtime", "atoll.simulation", "atoll.report", "atoll.cli"}
OF_LEARNING = {"atoll.cli.commands.demo"}
"""They compare a training with others of its kind."""


def _classes() -> set[str]:
    return {where.partition(":")[2] for where in job_kinds().values()}


def test_nobody_outside_its_room_knows_a_kind_of_job() -> None:
    adapter = "atoll.simulation imports atoll.rounds.program.ProgramJob"  # a plain program is a job too
    wrong = [
        f"{module.name} imports {item.target}"
        for module in modules()
        if any(module.name == room or module.name.startswith(f"{room}.") for room in KNOWING)
        and module.name not in OF_LEARNING
        for item in imports(module)
        if item.target.rpartition(".")[2] in _classes()
    ]
    overload = "atoll.simulation imports atoll.learn.training.Training"  # for editors alone, see the next test
    assert set(wrong) <= {adapter, overload}


def test_only_type_checkers_learn_from_simulation_what_a_training_gives() -> None:
    import ast

    source = next(module for module in modules() if module.name == "atoll.simulation")
    tree = ast.parse(source.path.read_text(encoding="utf-8"))
    run = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and not _overloads(node)]
    names = {name.id for node in run for part in node.body for name in ast.walk(part) if isinstance(name, ast.Name)}
    assert not names & {"Training", "TrainingResult", "Trained"}


def _overloads(node: object) -> bool:
    return any(getattr(mark, "id", "") == "overload" for mark in getattr(node, "decorator_list", []))


def test_nobody_asks_which_kind_a_job_is() -> None:
    asked = re.compile(rf"isinstance\([^)]*\b({'|'.join(_classes())})\b")
    own = {where.partition(":")[0] for where in job_kinds().values()}
    wrong = [m.name for m in modules() if m.name not in own and asked.search(m.path.read_text(encoding="utf-8"))]
    assert not wrong


@pytest.mark.parametrize("kind", ["training", "program", "statistics", "fit"])
def test_a_kind_is_what_its_room_says_and_can_be_configured(kind: str) -> None:
    made = job_class(kind)
    assert issubclass(made, Job)
    assert made.kind == kind
    assert config_class(RunConfig, made).makes is made


def test_every_kind_of_parts_has_one_room() -> None:
    rooms = sorted(PACKAGE.glob("*/room.py"))
    said = [
        node.args[0].value
        for room in rooms
        for node in ast.walk(ast.parse(room.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        and getattr(node.func, "id", "") == "PartKind"
        and isinstance(node.args[0], ast.Constant)
    ]
    assert sorted(map(str, said)) == sorted(part_kinds())
