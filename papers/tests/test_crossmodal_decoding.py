"""What the phones of spoken sentences keep of their words: how the linear bound is found."""

from __future__ import annotations

import numpy as np
import pytest

from atoll.crossmodal.phones import rate_phone_errors
from atoll_papers import crossmodal_decoding
from atoll_papers.crossmodal_decoding import score_linear


def test_made_speech_is_heard_wrong_and_nothing_else_changes() -> None:
    pytest.importorskip("torch")
    sides = crossmodal_decoding._made_decoded(0)
    wrong = rate_phone_errors(sides.said["speech"].phones, sides.heard["speech"].phones)
    assert 0.55 < wrong < 0.7  # two of three are drawn anew, a 39th of them as they were; a neighbour makes up for some
    assert rate_phone_errors(sides.said["text"].phones, sides.heard["text"].phones) == 0
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
