from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from atoll.core.errors import ConfigError, DataError
from atoll.labels.objectives import hidden_pieces, masked_error, masked_tokens, pieces_of, spread_pieces

SCORES = torch.tensor([[0.3, 0.1, 0.9, 0.2], [0.5, 0.5, 0.5, 0.4]])


def test_the_pieces_of_each_kind_of_row():
    assert pieces_of((3, 8, 10), 4) == (2, 3)
    assert pieces_of((2, 9), 3) == (3,)
    assert pieces_of((7,), 1) == (7,)
    with pytest.raises(DataError, match=r"rows of shape \(1, 2, 3, 4\)"):
        pieces_of((1, 2, 3, 4), 2)
    with pytest.raises(ConfigError, match="piece=0"):
        pieces_of((4,), 0)


def test_the_smallest_scores_are_hidden_and_ties_go_to_the_first():
    assert hidden_pieces(SCORES, 0.5).tolist() == [[False, True, False, True], [True, False, False, True]]


@given(st.integers(2, 12), st.floats(0.2, 0.8))
def test_every_row_hides_the_same_number(pieces: int, share: float):
    scores = torch.rand(4, pieces, generator=torch.Generator().manual_seed(pieces))
    if not 0 < round(share * pieces) < pieces:
        return
    assert hidden_pieces(scores, share).sum(1).tolist() == [round(share * pieces)] * 4


def test_shares_that_hide_all_or_nothing_are_refused():
    with pytest.raises(ConfigError, match=r"share=0\.05 hides 0 of 4"):
        hidden_pieces(SCORES, 0.05)
    with pytest.raises(ConfigError, match=r"share=1\.0 hides 4 of 4"):
        hidden_pieces(SCORES, 1.0)


def test_pieces_cover_squares_of_all_channels_and_segments_and_cells():
    image = spread_pieces(torch.tensor([[True, False, False, True]]), (2, 3, 3), 2)[0]
    square = [[True, True, False], [True, True, False], [False, False, True]]
    assert image.tolist() == [square, square]
    assert spread_pieces(torch.tensor([[False, True]]), (1, 3), 2)[0].tolist() == [[False, False, True]]
    assert spread_pieces(torch.tensor([[False, True]]), (4,), 2)[0].tolist() == [False, False, True, True]


def test_only_hidden_entries_count():
    rows, hidden = torch.tensor([[1.0, 2, 3]]), torch.tensor([[True, False, True]])
    assert masked_error(torch.tensor([[2.0, 99, 6]]), rows, hidden).tolist() == [5.0]
    assert masked_error(torch.tensor([[2.0, 99, 6]]), rows, ~hidden).tolist() == [97.0**2]


def test_hidden_tokens_are_a_classification():
    logits = torch.randn(2, 3, 5, generator=torch.Generator().manual_seed(0))
    tokens, hidden = torch.tensor([[0, 4, 2], [1, 1, 3]]), torch.tensor([[True, False, True], [False, True, False]])
    slow = [torch.nn.functional.cross_entropy(logits[i][hidden[i]], tokens[i][hidden[i]]).item() for i in range(2)]
    assert masked_tokens(logits, tokens, hidden).tolist() == pytest.approx(slow)
