"""The page that lists algorithms says what ``atoll algorithms`` finds."""

from sources import ROOT

from atoll.cli.commands.algorithms import page
from atoll.learn.catalogue import facts


def test_the_page_is_what_the_command_prints() -> None:
    written = (ROOT / "docs" / "algorithms.md").read_text(encoding="utf-8")
    assert written == page(facts()), "run: atoll algorithms --markdown > docs/algorithms.md"
