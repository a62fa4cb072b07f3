"""What every protocol of alignment says: frames whose sizes follow from the sizes of the sets alone, and random words in them that no other run has."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from atoll.secure.psi import Ecdh, Opprf, Oprf, Unbalanced
from tests.support.alignment import align, recorded, tables

pytest.importorskip("rbcl")


def say(monkeypatch, protocol, first, secrets):
    """All frames of an alignment of 40 keys with 60, of which 12 are shared."""
    with recorded(monkeypatch) as said:
        found = align(protocol, tables({"bank": range(first, first + 40), "shop": range(first + 28, first + 88)}), secrets=secrets)  # fmt: skip
    assert len(found["bank"]["names"]) == 12
    return said


def words_of(said):
    """Words of 64 bits in frames of several rows of bytes, without those that are small numbers. Frames of one row have settings, which are the same in each run."""
    frames = [np.ascontiguousarray(m) for *_, m in said if m.dtype == np.uint8 and m.ndim == 2 and len(m) > 1]
    words = [frame[:, : frame.shape[1] // 8 * 8].copy().view("<u8").ravel() for frame in frames]
    found = np.concatenate(words)
    return found[(found > 1 << 32) & (found < 2**64 - 2**32)]


@pytest.mark.every(2)
@pytest.mark.parametrize("protocol", [Ecdh(), Oprf(), Unbalanced(), Opprf()], ids=lambda one: type(one).__name__)
def test_frames_follow_from_sizes_alone_and_no_word_comes_twice(monkeypatch, protocol):
    """Two-sample chi-square of the bytes of words, .9999: sets of equal sizes and outcomes are equally distributed, and say nothing that a run before has said."""
    one, again, other = (say(monkeypatch, protocol, first, secrets) for first, secrets in ((0, 1), (0, 2), (500, 3)))
    shapes = [[(a, b, name, m.shape, m.dtype) for a, b, name, m in said] for said in (one, again, other)]
    assert shapes[0] == shapes[1] == shapes[2]
    first, second, third = (words_of(said) for said in (one, again, other))
    assert len(first) > 300
    assert not len(np.intersect1d(first, second))
    counts = [np.bincount(words.view(np.uint8), minlength=256) for words in (first, third)]
    assert stats.chi2_contingency(np.stack(counts)).pvalue > 1e-4
