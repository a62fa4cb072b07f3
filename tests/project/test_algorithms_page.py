"""The page that lists algorithms says what ``atoll algorithms`` finds."""

import re

from atoll.cli.commands.algorithms import page
from atoll.learn.catalogue import facts
from tests.support.sources import ROOT


def test_the_page_is_what_the_command_prints() -> None:
    written = (ROOT / "docs" / "algorithms.md").read_text(encoding="utf-8")
    assert written == page(facts()), "run: atoll algorithms --markdown > docs/algorithms.md"


def test_fedavg_comes_first_and_papers_come_last() -> None:
    text = page(facts())
    rows = [line for line in text.split("\n") if line.startswith("| `") and " floats" not in line]
    assert next(row for row in rows if " d + 1 " in row).startswith("| `FedAvg` |")
    assert text.index("## Statistics") < text.index("## Papers")


def test_every_algorithm_of_the_choice_is_one() -> None:
    text = page(facts())
    choice = text[text.index("## Which one when") : text.index("## Read the tables")]
    named = {name for name in re.findall(r"`(\w+)`", choice) if name != "Gossip"}
    assert named <= {fact.name for fact in facts()}
    assert len(named) > 20
