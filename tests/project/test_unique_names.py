"""A public class name means one thing in the whole project."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Mapping

from tests.support.sources import modules


def homes_of(trees: Mapping[str, ast.Module]) -> dict[str, list[str]]:
    """Public classes at the top of modules -> the modules that define them."""
    found: dict[str, list[str]] = defaultdict(list)
    for module, tree in trees.items():
        for name in _public_classes(tree.body):
            found[name].append(module)
    return found


def _public_classes(body: Iterable[ast.stmt]) -> Iterable[str]:
    return (node.name for node in body if isinstance(node, ast.ClassDef) and not node.name.startswith("_"))


def test_no_name_means_two_things() -> None:
    found = homes_of({module.name: module.tree for module in modules()})
    assert {name: homes for name, homes in found.items() if len(homes) > 1} == {}, "give each class a name of its own"


def test_the_search_sees_classes() -> None:
    assert homes_of({module.name: module.tree for module in modules()})["Event"] == ["atoll.core.event"]
    one, other = ast.parse("class Link:\n    pass\n"), ast.parse("class _Own:\n    pass\nclass Link(dict):\n    pass\n")
    assert homes_of({"one": one, "other": other}) == {"Link": ["one", "other"]}
