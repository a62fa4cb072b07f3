"""Which parts of a training go together: every pair of examples against the list in ``refused_pairs.txt``."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.part_examples import pairs, refused, verdict_of

LISTED = Path(__file__).parent / "refused_pairs.txt"


def test_exactly_the_listed_pairs_are_refused() -> None:
    """A pair that changes sides is a decision: after it, write the list anew with ``python -m tests.support.part_examples``."""
    listed = set(LISTED.read_text().splitlines())
    found = set(refused())
    assert found - listed == set(), "refused, and not listed"
    assert listed - found == set(), "listed, and not refused"


@pytest.mark.slow
def test_a_refusal_says_where_and_what_to_do() -> None:
    """The words of every refusal name a place and a remedy."""
    said = {why for one, other in pairs() if (why := verdict_of(one, other))}
    assert [why for why in sorted(said) if "Remedy: " not in why or "(in " not in why] == []
