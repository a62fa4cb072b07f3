"""Threshold Paillier: any t of n decrypt, fewer do not, and wrong answers are named."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from atoll.core import message as M
from atoll.core.errors import ConfigError, QuorumError
from atoll.core.requests.island import Secret
from atoll.secure.encrypted import Digits, Paillier, ThresholdPaillier

pytest.importorskip("gmpy2")

SCHEME, FORM = ThresholdPaillier(key_bits=256, insecure=True), [Digits(20, 12, 9)]


@pytest.fixture(scope="module")
def dealt():
    public, shares = SCHEME.deal(5, 3, Secret())
    numbers = np.random.default_rng(0).integers(0, 2**12, (4, 20), dtype=np.uint64)
    sealed = SCHEME.add(public, [SCHEME.encrypt(public, [row], FORM, Secret()) for row in numbers], FORM)
    answers = {f"p{i}": SCHEME.answer(public, share, sealed, FORM, Secret()) for i, share in enumerate(shares)}
    return public, shares, sealed, answers, numbers.sum(axis=0)


def test_any_three_of_five_decrypt(dealt):
    public, _, sealed, answers, sums = dealt
    for names in combinations(answers, 3):
        found, wrong = SCHEME.combine(public, sealed, FORM, {name: answers[name] for name in names})
        assert np.array_equal(found[0], sums)
        assert not wrong


def test_two_do_not(dealt):
    public, _, sealed, answers, _ = dealt
    with pytest.raises(QuorumError, match="2 right parts of a decryption, fewer than the threshold of 3"):
        SCHEME.combine(public, sealed, FORM, {name: answers[name] for name in ("p1", "p4")})
    twice = {"a": answers["p1"], "b": answers["p1"], "c": answers["p2"]}
    with pytest.raises(QuorumError, match="wrong ones from b"):
        SCHEME.combine(public, sealed, FORM, twice)


def test_two_shares_fit_every_exponent(dealt):
    """Shamir: with t - 1 shares, each candidate for the secret has exactly one polynomial, so they tell nothing; here, two candidates."""
    _, shares, *_ = dealt
    (i, a), (j, b) = ((share["index"], int.from_bytes(share["share"], "little")) for share in shares[:2])
    for secret in (5, 12345):
        # The line through (0, secret), (i, a) and (j, b) exists over the rationals whatever the secret is.
        slope = ((a - secret) * j * j - (b - secret) * i * i) / (i * j * (j - i))
        curve = ((b - secret) * i - (a - secret) * j) / (i * j * (j - i))
        assert secret + slope * i + curve * i * i == pytest.approx(a, rel=1e-9)


def altered(answer, **new):
    return {**answer, **new}


@pytest.mark.parametrize("what", ["part", "index", "response", "challenge", "none", "missing", "zero"])
def test_wrong_answers_are_named_and_worked_around(dealt, what):
    public, _, sealed, answers, sums = dealt
    mine, other = answers["p0"], answers["p1"]
    wrong = {
        "part": altered(mine, parts=[other["parts"][0], *mine["parts"][1:]]),
        "index": altered(mine, index=4),
        "response": altered(mine, response=other["response"]),
        "challenge": altered(mine, challenge=other["challenge"]),
        "none": altered(mine, parts=[]),
        "missing": {"index": 1},
        "zero": altered(mine, parts=[np.zeros(1, np.uint8)] * len(mine["parts"])),
    }[what]
    found, names = SCHEME.combine(public, sealed, FORM, {**answers, "p0": wrong})
    assert names == ["p0"]
    assert np.array_equal(found[0], sums)


def test_an_answer_to_another_ciphertext_is_wrong(dealt):
    public, shares, sealed, answers, _ = dealt
    single = SCHEME.encrypt(public, [np.zeros(20, np.uint64)], FORM, Secret())
    stale = SCHEME.answer(public, shares[0], single, FORM, Secret())
    assert SCHEME.right(public, single, FORM, stale)
    assert not SCHEME.right(public, sealed, FORM, stale)
    assert SCHEME.combine(public, sealed, FORM, {**answers, "p0": stale})[1] == ["p0"]


def test_keys_and_answers_travel_as_messages(dealt):
    public, _, sealed, answers, sums = dealt
    sent = {name: M.decode(M.encode(answer)) for name, answer in answers.items()}
    assert np.array_equal(SCHEME.combine(M.decode(M.encode(public)), sealed, FORM, sent)[0][0], sums)


def test_safe_primes_are_safe():
    import gmpy2

    from atoll.secure.encrypted.threshold import safe_prime

    for bits in (64, 128, 160):
        p = safe_prime(bits, Secret())
        assert p.bit_length() == bits
        assert gmpy2.is_prime(p, 40)
        assert gmpy2.is_prime((p - 1) // 2, 40)


def test_plain_parties_encrypt_under_a_dealt_key(dealt):
    public, *_ = dealt
    plain = Paillier(key_bits=256, insecure=True)
    assert plain.encrypt(public, [np.zeros(20, np.uint64)], FORM, Secret()).size == SCHEME.blocks(FORM) * 64


@pytest.mark.parametrize("threshold", [0, 1, 6])
def test_thresholds_that_make_no_sense_are_refused(threshold):
    with pytest.raises(ConfigError, match="of 5 parties"):
        SCHEME.deal(5, threshold, Secret())
