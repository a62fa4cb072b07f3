"""Public addresses: what people import stays where it is, or the old address still works, or the changelog says where it went.

``addresses.txt`` has the names of every package's ``__all__``, and what pages and examples import. A new address is a new line. No line goes.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import re
import sys
import warnings
from collections.abc import Iterable, Iterator

import pytest

from atoll.core.addresses import MOVED, MovedWarning
from atoll.core.lazy import read_stub
from tests.support.sources import ROOT, modules

FROZEN = (ROOT / "tests" / "project" / "addresses.txt").read_text(encoding="utf-8").split()
CHANGELOG = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
_IMPORT = re.compile(r"^\s*from (atoll[\w.]*) import (?:\(([^)]*)\)|([^\n(#]+))", re.MULTILINE)


def _exports() -> Iterator[str]:
    """The names of every package."""
    for module in modules():
        if (module.stub or module.path.name == "__init__.py") and module.room != "papers":
            if module.stub:
                yield from (f"{module.name}.{name}" for name in read_stub(module.name))
            for node in module.tree.body:
                if (
                    isinstance(node, ast.Assign)
                    and getattr(node.targets[0], "id", "") == "__all__"
                    and isinstance(node.value, ast.List)
                ):
                    yield from (f"{module.name}.{name}" for name in ast.literal_eval(node.value))


def imported(text: str) -> Iterator[str]:
    """The addresses that a page imports."""
    for module, many, few in _IMPORT.findall(text):
        for each in (many or few).split(","):
            name = each.strip().split(" as ")[0]
            if name.isidentifier() and not name.startswith("_"):
                yield f"{module}.{name}"


def declared() -> set[str]:
    """Every public address of today."""
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.py")]
    return {*_exports(), *(each for page in pages for each in imported(page.read_text(encoding="utf-8")))}


def vanished(frozen: Iterable[str], today: set[str], changelog: str) -> list[str]:
    """The addresses that nothing answers to and the changelog does not name."""
    return [each for each in frozen if each not in today and not _answers(each) and f"`{each}`" not in changelog]


def _answers(address: str) -> bool:
    module, _, name = address.rpartition(".")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", MovedWarning)  # an old address says the new one
            return hasattr(importlib.import_module(module), name)
    except ImportError:
        return False


def test_every_public_address_still_answers() -> None:
    lost = vanished(FROZEN, declared(), CHANGELOG)
    assert not lost, "let the old address find the new one, or name it under Unreleased in CHANGELOG.md"


def test_every_public_address_is_written_down() -> None:
    new = sorted(declared() - set(FROZEN))
    assert not new, "add these lines to tests/project/addresses.txt"
    assert sorted(set(FROZEN)) == FROZEN


@pytest.mark.parametrize(
    ("address", "changelog", "lost"),
    [
        ("atoll.learn.FedAvgg", "", True),
        ("atoll.gone.FedAvg", "", True),
        ("atoll.gone.FedAvg", "`atoll.gone.FedAvg` is `atoll.FedAvg` now.", False),
        ("atoll.core.rooms.Named", "", False),
    ],
)
def test_an_address_vanishes_if_nothing_says_where_it_is(address: str, changelog: str, lost: bool) -> None:
    assert vanished([address], set(), changelog) == ([address] if lost else [])


def test_pages_are_read_whole() -> None:
    text = "from atoll.a import (\n    B,\n    C as D,\n)\n    from atoll import e, f as g  # why\nfrom atoll import _own\n"
    assert list(imported(text)) == ["atoll.a.B", "atoll.a.C", "atoll.e", "atoll.f"]


def test_an_old_address_of_a_module_answers_and_says_the_new_one() -> None:
    for name in [name for name in sys.modules if name.startswith("atoll.learn.pacing.regions")]:
        del sys.modules[name]
    with pytest.warns(MovedWarning, match=r"atoll\.learn\.pacing\.regions\.slack is atoll\.learn\.pacing\.slack now"):
        from atoll.learn.pacing.regions.slack import Forgetting  # type: ignore[import-not-found]
    from atoll.learn.pacing.slack import Forgetting as new

    assert Forgetting is new
    with pytest.raises(ModuleNotFoundError, match=r"No module named 'atoll\.learn\.pacing\.never'"):
        importlib.import_module("atoll.learn.pacing.never")


def test_every_line_of_a_moved_module_leads_to_a_module() -> None:
    for old, place in MOVED.items():
        if ":" not in old:
            assert importlib.util.find_spec(place) is not None, old
            assert place not in MOVED, f"{old}: give the last place"
