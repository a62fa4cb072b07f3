"""What goes with what is decided by rows (`atoll.learn.capabilities`): no part of a training asks which class another one is of."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator

from tests.support.sources import PACKAGE as SOURCE
from tests.support.sources import modules as files

ROOMS = ("core", "learn", "stages", "privacy", "rounds", "torch", "models", "runs", "runtime")
BASES = frozenset(
    {
        "Algorithm",
        "Topology",
        "Pacing",
        "Selection",
        "Aggregation",
        "Stage",
        "Reducer",
        "Evaluation",
        "Budget",
        "Learner",
        "Reporting",
    }
)
"""Whoever has one of these among its bases, by name, is a part."""
ALLOWED = {
    "core/requests/chain.py": {"Stage"},
    "core/requests/policy.py": {"Stage"},
    "core/requests/stage.py": {"Stage"},
    "learn/algorithms/accelerated.py": {"Transformed", "Wrapped"},
    "learn/algorithms/objective_perturbation.py": {"FedDyn", "FedProx", "Wrapped"},
    "learn/algorithms/one_gradient.py": {"Stage"},
    "learn/catalogue.py": {"Algorithm", "Wrapped"},
    "learn/local/reports.py": {"Wrapped"},
    "learn/composition.py": {"Algorithm"},
    "learn/wrapped.py": {"Algorithm", "Drawing", "Wrapped"},
    "torch/learner.py": {"PerClientBroadcast"},
    "torch/client.py": {"Drawing"},
    "torch/local.py": {"Drawing"},
    "stages/clip.py": {"Clip"},
    "stages/filters.py": {"ExcludeVariables", "Percentile"},
    "stages/noise.py": {"GaussianNoise"},
    "stages/remembering.py": {"Stage"},
}
"""File -> classes that it asks for. All of them look inside: a wrapper at its base, a stage at the stage inside it or at another of its own kind."""


ASKS = (ast.ClassDef, ast.Call, ast.Compare)


def nodes_of(nodes: Iterable[ast.AST]) -> list[ast.AST]:
    """Classes, calls and comparisons of a module: one walk for all that is asked of it."""
    return [node for node in nodes if isinstance(node, ASKS)]


def modules() -> dict[str, list[ast.AST]]:
    """Path below ``src/atoll`` -> what its syntax tree has of `ASKS`."""
    return {str(module.path.relative_to(SOURCE)): nodes_of(module.nodes) for module in files() if module.room in ROOMS}


def classes(found: dict[str, list[ast.AST]]) -> dict[str, set[str]]:
    """Class -> names of its bases."""
    made: dict[str, set[str]] = {}
    for nodes in found.values():
        for node in nodes:
            if isinstance(node, ast.ClassDef):
                made.setdefault(node.name, set()).update(name_of(base) for base in node.bases)
    return made


def name_of(node: ast.AST) -> str:
    """The last word of a name or an attribute."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def parts(bases: dict[str, set[str]]) -> set[str]:
    """Classes that are parts of a training."""
    known, size = set(BASES), 0
    while size != len(known):
        size = len(known)
        known |= {name for name, above in bases.items() if above & known}
    return known


def kinds_asked(nodes: list[ast.AST]) -> Iterator[str]:
    """Names of classes in ``isinstance(x, C)``, ``type(x) is C`` and ``type(x) in (C, D)``."""
    for node in nodes:
        if isinstance(node, ast.Call) and name_of(node.func) in ("isinstance", "issubclass"):
            yield from (name_of(inner) for inner in ast.walk(node.args[1]))
        elif isinstance(node, ast.Compare) and any(is_type(side) for side in (node.left, *node.comparators)):
            yield from (name_of(inner) for side in (node.left, *node.comparators) for inner in ast.walk(side))


def is_type(node: ast.AST) -> bool:
    """Whether it is ``type(x)`` itself, and not an attribute of it."""
    return isinstance(node, ast.Call) and name_of(node.func) == "type" and len(node.args) == 1


def asked(found: dict[str, list[ast.AST]]) -> dict[str, set[str]]:
    """File -> parts whose class it asks for."""
    known = parts(classes(found))
    named = {path: set(kinds_asked(nodes)) & known for path, nodes in found.items()}
    return {path: names for path, names in named.items() if names}


def test_no_part_asks_which_class_another_is_of() -> None:
    found = asked(modules())
    extra = {path: names - ALLOWED.get(path, set()) for path, names in found.items()}
    gone = {path: names - found.get(path, set()) for path, names in ALLOWED.items()}
    assert {path: names for path, names in extra.items() if names} == {}, "declare a row, see docs/extend/composing.md"
    assert {path: names for path, names in gone.items() if names} == {}, "take it out of ALLOWED"


def test_the_guard_finds_what_it_forbids() -> None:
    text = """
class Mine(Pacing): ...
class Mine2(Mine): ...
def check(job):
    if isinstance(job.pacing, Mine2) or type(job.topology) is not Star: ...
    if type(job.selection) in (Uniform, Everyone): ...
    type(job.pacing).course is Mine.course
class Star(Topology): ...
class Uniform(Selection): ...
class Everyone(Selection): ...
"""
    assert asked({"m.py": nodes_of(ast.walk(ast.parse(text)))}) == {"m.py": {"Mine2", "Star", "Uniform", "Everyone"}}


def test_what_a_learner_offers_is_asked_of_its_protocols() -> None:
    """No ``hasattr(learner, ...)``: `atoll.learn.learner` says what a learner may offer. ``check`` is of the contract itself."""
    probe = re.compile(r"(?:has|get)attr\((?:\w+\.)*learner, \"(?!check\")")
    texts = {str(path.relative_to(SOURCE)): path.read_text(encoding="utf-8") for path in SOURCE.rglob("*.py")}
    assert [name for name, text in texts.items() if probe.search(text) and name != "learn/learner.py"] == []
    assert probe.search('getattr(self.learner, "curved", False)')
