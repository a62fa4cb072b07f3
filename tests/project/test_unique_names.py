"""A public class name means one thing in the whole project."""

from __future__ import annotations

import ast
from collections import defaultdict

from sources import modules

# Names that still stand twice. The list may only become shorter.
REMAINING = {
    "Card", "Channel", "Decisions", "Event", "Limits", "Link", "Memory", "Neighbours", "Network", "News", "Part", "Parties", "Quota", "Replies",
    "Schema", "Summed", "Trained", "Uniform",
}  # fmt: skip


def twice() -> dict[str, list[str]]:
    """Public classes at the top of modules that share a name, with their modules."""
    found: dict[str, list[str]] = defaultdict(list)
    for module in modules():
        for node in module.tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(module.name)
    return {name: homes for name, homes in found.items() if len(homes) > 1}


def test_no_further_name_means_two_things() -> None:
    found = twice()
    new = {name: homes for name, homes in found.items() if name not in REMAINING}
    assert not new, "give each class a name of its own"
    assert set(found) == REMAINING, "take what is unique now off the list"


def test_the_search_sees_classes() -> None:
    assert "atoll.core.event" in twice().get("Event", [])
