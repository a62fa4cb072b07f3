"""What the phones of spoken sentences keep of their words: how errors are counted, and how the linear bound is found."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll_papers import crossmodal_decoding
from atoll_papers.crossmodal_decoding import count_edits, rate_errors, score_linear

SHORT = st.lists(st.integers(0, 2), max_size=5).map(tuple)


def least_edits(said: tuple[int, ...], heard: tuple[int, ...]) -> int:
    """The definition, by trying all."""

    @cache
    def of(a: tuple[int, ...], b: tuple[int, ...]) -> int:
        if not a or not b:
            return len(a) + len(b)
        return min(of(a[1:], b) + 1, of(a, b[1:]) + 1, of(a[1:], b[1:]) + (a[0] != b[0]))

    return of(said, heard)


@settings(max_examples=60, deadline=None)
@given(SHORT, SHORT)
def test_edits_are_the_fewest_that_make_one_sequence_of_the_other(said: tuple[int, ...], heard: tuple[int, ...]) -> None:  # fmt: skip
    assert count_edits(said, heard) == count_edits(heard, said) == least_edits(said, heard)


def test_made_speech_is_heard_wrong_and_nothing_else_changes() -> None:
    pytest.importorskip("torch")
    sides = crossmodal_decoding._made_decoded(0)
    wrong = rate_errors(sides.said["speech"], sides.heard["speech"])
    assert 0.55 < wrong < 0.7  # two of three are drawn anew, a 39th of them as they were; a neighbour makes up for some
    assert rate_errors(sides.said["text"], sides.heard["text"]) == 0
    assert sides.said["speech"].labels == sides.heard["speech"].labels
    said, coded = sides.said["speech"].phones[0], sides.words["speech"][0][0]
    assert " ".join(coded) == " ".join(map(str, said))


def test_the_linear_bound_finds_what_tokens_in_a_row_tell_and_no_more() -> None:
    pytest.importorskip("sklearn")
    draw = np.random.default_rng(0)

    def rows(count: int) -> tuple[list[list[str]], list[str]]:
        """Both classes have the same tokens; in one ``a`` comes right before ``b``."""
        made, labels = [], []
        for i in range(count):
            others = draw.choice(["x", "y", "z"], 4).tolist()
            made.append([*others[:2], *(["a", "b"] if i % 2 else ["b", "a"]), *others[2:]])
            labels.append(("no", "yes")[i % 2])
        return made, labels

    train, test = rows(80), rows(40)
    assert score_linear(*train, *test, 2) == 1.0
    assert score_linear(*train, *test, 1) < 0.75
