"""Wrong sums are corrected and their holders named up to the bound; wrong sharings name the sender or the false accuser; entries beyond their range are found."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.core.errors import ConfigError, DataError
from atoll.core.requests.island import Secret
from atoll.secure.shares import (
    Field,
    SharedArray,
    add_masks,
    commit_share,
    correct_shamir,
    count_masks,
    draw_entries,
    draw_factors,
    escape_odds,
    find_outside,
    find_wrong_sharings,
    judge_opening,
    mix_shares,
    open_shamir,
    opens_commitment,
    split_shamir,
)
from tests.support.rooms import computed, program

FIELDS = (Field(), Field(2**31 - 1), Field(101))
LOT = bytes(range(32))


def shared(field, n, threshold, seed, values=6):
    secret = Secret(seed)
    truth = field.random(secret, (values,))
    return truth, dict(enumerate(split_shamir(truth, n, threshold, field, secret))), secret


def spoil(shares, who, field, rng, density):
    """Wrong shares: of each wrong holder one value or more is moved, and others by chance."""
    for place in who:
        moved = shares[place].copy()
        for at in {int(rng.integers(moved.size)), *np.flatnonzero(rng.random(moved.size) < density).tolist()}:
            moved[at] = (int(moved[at]) + int(rng.integers(1, min(field.prime, 2**62)))) % field.prime
        shares[place] = moved


@given(st.data())
def test_wrong_holders_up_to_the_bound_are_named_and_beyond_it_refused(data):
    """Beyond the bound wrong values that are drawn by chance lie near another polynomial with a negligible probability, but in the field of 101 elements."""
    field = data.draw(st.sampled_from(FIELDS))
    n = data.draw(st.integers(1, 16))
    threshold = data.draw(st.integers(1, n))
    asked = sorted(data.draw(st.sets(st.integers(0, n - 1), min_size=threshold)))
    wrong = sorted(data.draw(st.sets(st.sampled_from(asked))))
    seed = data.draw(st.integers(0, 2**32))
    truth, shares, secret = shared(field, n, threshold, seed)
    shares = {place: shares[place] for place in asked}
    spoil(shares, wrong, field, np.random.default_rng(seed), data.draw(st.sampled_from((0.0, 0.5, 1.0))))
    bound = (len(asked) - threshold) // 2
    if len(wrong) <= bound:
        found = correct_shamir(shares, threshold, field, secret)
        assert found.wrong == tuple(wrong)
        np.testing.assert_array_equal(found.values, truth)
    elif field.prime > 101 and len(wrong) <= len(asked) - threshold:
        with pytest.raises(DataError, match=f"more than {bound} of the shares"):
            correct_shamir(shares, threshold, field, secret)


@pytest.mark.parametrize("most", [0, 1, 2])
def test_who_corrects_fewer_notices_more(most):
    """Of 7 shares with threshold 3 up to 4 wrong ones are noticed if nobody is corrected, even if they collude; for each that is corrected one fewer."""
    field, n, threshold = Field(), 7, 3
    truth, shares, secret = shared(field, n, threshold, 3)
    for count in range(1, n - threshold - most + 1):
        # The worst that colluders can do: move to another polynomial that agrees with t - 1 honest holders.
        attack = _near_polynomial(shares, n, threshold, field, count)
        if count <= most:
            assert correct_shamir(attack, threshold, field, secret, most=most).wrong == tuple(range(count))
        else:
            with pytest.raises(DataError, match=f"more than {most} of the shares"):
                correct_shamir(attack, threshold, field, secret, most=most)
    beyond = n - threshold - most + 1
    attack = _near_polynomial(shares, n, threshold, field, beyond)
    moved = correct_shamir(attack, threshold, field, secret, most=most)
    assert not np.array_equal(moved.values, truth)
    assert not set(moved.wrong) & set(range(beyond))  # they blame others


def _near_polynomial(shares, n, threshold, field, count):
    """Shares of which the first ``count`` holders moved theirs by a polynomial that is 0 at the last ``threshold - 1`` holders."""
    attack = dict(shares)
    for place in range(count):
        move = math.prod(place - zero for zero in range(n - threshold + 1, n)) % field.prime
        attack[place] = field.add(shares[place], np.full_like(shares[place], move))
    return attack


def test_it_opens_what_open_shamir_opens_and_takes_any_shape():
    field, secret = Field(), Secret(5)
    values = field.random(secret, (3, 4))
    shares = split_shamir(values, 6, 4, field, secret)
    for chosen in itertools.combinations(range(6), 4):
        found = correct_shamir({i: shares[i] for i in chosen}, 4, field, secret)
        np.testing.assert_array_equal(found.values, open_shamir({i: shares[i] for i in chosen}, 4, field))
        assert found.wrong == ()


def test_many_holders_and_many_values_are_corrected_at_once():
    field, n, threshold = Field(2**31 - 1), 60, 20
    truth, shares, secret = shared(field, n, threshold, 8, values=500)
    wrong = sorted(np.random.default_rng(1).choice(n, 20, replace=False).tolist())
    spoil(shares, wrong, field, np.random.default_rng(2), 0.01)
    found = correct_shamir(shares, threshold, field, secret)
    assert found.wrong == tuple(wrong)
    np.testing.assert_array_equal(found.values, truth)


def test_what_is_no_share_names_its_holder():
    field = Field(101)
    _, shares, secret = shared(field, 5, 2, 1)
    for bad in (np.full(6, 101, dtype=np.uint64), np.zeros(5, dtype=np.uint64), np.zeros(6, dtype=np.int64)):
        with pytest.raises(DataError, match="holder 3 sent an array"):
            correct_shamir({**shares, 3: bad}, 2, field, secret)
    with pytest.raises(DataError, match="1 shares, and 2 are needed"):
        correct_shamir({0: shares[0]}, 2, field, secret)
    with pytest.raises(ConfigError, match=r"most=2 wrong .* correct 0 to 1"):
        correct_shamir(shares, 2, field, secret, most=2)


# ------------------------------------------------------------------ sharings of a wrong degree

VALUES, N, T = 5, 9, 3


def campaign(field, seed, senders=4):
    """Letters of all senders, ``(senders, holders, values + masks)``, what holders mix of them, and the sums."""
    secret = Secret(seed)
    masked = add_masks(field.random(secret, (senders, VALUES)), field, secret)
    letters = np.stack([np.stack(split_shamir(row, N, T, field, secret)) for row in masked])
    return letters, draw_factors(LOT, VALUES, field)


def mixed(letters, factors, field):
    return {place: mix_shares(letters[:, place], factors, field) for place in range(N)}


@given(st.sampled_from(FIELDS), st.integers(0, 2**32), st.data())
def test_honest_senders_pass_and_whoever_deviates_is_named(field, seed, data):
    """One sender gives some holders shares of another polynomial, and another holder lies about all senders."""
    letters, factors = campaign(field, seed)
    assert find_wrong_sharings(mixed(letters, factors, field), T, field).fine
    cheated = sorted(data.draw(st.sets(st.integers(0, N - 1), min_size=1, max_size=N - T)))
    at = data.draw(st.integers(0, VALUES - 1))
    rng = np.random.default_rng(seed)
    for place in cheated:
        letters[2, place, at] = field.add(letters[2, place, at], np.uint64(int(rng.integers(1, min(field.prime, 2**62)))))  # fmt: skip
    shown = mixed(letters, factors, field)
    verdict = find_wrong_sharings(shown, T, field)
    assert set(verdict.disputed) | set(verdict.wrong) == {2}
    if len(cheated) <= (N - T) // 2:
        assert verdict.disputed == {2: tuple(cheated)}
    salt, share = b"s" * 32, letters[2, cheated[0]]
    commitment = commit_share(share, salt, "round 1 from 2 to it")
    terms = {"factors": factors, "shown": shown[cheated[0]][2], "field": field}
    assert judge_opening(commitment, share, salt, "round 1 from 2 to it", **terms) == "sender"


def test_a_false_accuser_is_named_whatever_it_opens():
    field = Field()
    letters, factors = campaign(field, 3)
    shown = mixed(letters, factors, field)
    shown[4] = field.add(shown[4], np.ones_like(shown[4]))
    verdict = find_wrong_sharings(shown, T, field)
    assert verdict.disputed == dict.fromkeys(range(4), (4,))
    assert verdict.wrong == ()
    salt, share = b"s" * 32, letters[1, 4]
    commitment = commit_share(share, salt, "a")
    terms = {"factors": factors, "shown": shown[4][1], "field": field}
    assert judge_opening(commitment, share, salt, "a", **terms) == "holder"
    other = share.copy()
    other[-1] = field.add(other[-1], np.uint64(1))  # what it would have had to get
    assert np.array_equal(mix_shares(other, factors, field), shown[4][1])
    assert judge_opening(commitment, other, salt, "a", **terms) == "holder"
    assert judge_opening(commitment, share, salt, "b", **terms) == "holder"
    assert not opens_commitment(commitment, share, b"s", "a")
    assert opens_commitment(commitment, share, salt, "a")


def test_without_a_lot_that_comes_later_a_sender_could_pass():
    """Who knows the factors before it shares cancels its error; under the lot that follows, it is found."""
    field = Field()
    letters, factors = campaign(field, 5)
    letters[0, 2, 0] = field.add(letters[0, 2, 0], factors[1, 0])
    letters[0, 2, 1] = field.sub(letters[0, 2, 1], factors[0, 0])
    assert find_wrong_sharings(mixed(letters, factors, field), T, field).fine
    later = draw_factors(LOT[::-1], VALUES, field)
    assert find_wrong_sharings(mixed(letters, later, field), T, field).disputed == {0: (2,)}


def test_what_is_shown_is_uniform_whatever_the_values_are():
    """The mask hides the mixed values: over a small field all shown numbers are equally frequent (chi-square of 100 degrees, .999 quantile 149.4)."""
    field, secret = Field(101), Secret(2)
    factors = draw_factors(LOT, VALUES, field)
    masked = add_masks(np.zeros((8000, VALUES), dtype=np.uint64), field, secret)
    assert masked.shape == (8000, VALUES + count_masks(field))
    counts = np.bincount(mix_shares(masked, factors, field)[:, 0].astype(int), minlength=101)
    assert ((counts - 8000 / 101) ** 2 / (8000 / 101)).sum() < 149.4


def test_masks_follow_from_the_field_and_terms_are_refused():
    assert [count_masks(field) for field in FIELDS] == [1, 2, 10]
    field = Field()
    letters, factors = campaign(field, 1)
    with pytest.raises(DataError, match="share the values that `add_masks` returns"):
        mix_shares(letters[..., :-1], factors, field)
    few = {place: row for place, row in mixed(letters, factors, field).items() if place < T}
    with pytest.raises(DataError, match="have 4 or more holders"):
        find_wrong_sharings(few, T, field)
    with pytest.raises(ConfigError, match="use 32 bytes"):
        commit_share(letters[0, 0], b"short", "")


# ------------------------------------------------------------------ entries beyond their range


@program
async def look_for_entries(it, values):
    x = await it.share(values, owner="p0", shape=(2, 3))
    mine = SharedArray(it, x.parts)
    return await find_outside(mine, 1000)


def test_entries_beyond_their_range_are_found_among_shares():
    values = np.array([[1000, -1000, 0], [1001, -1001, 2**59]])
    for found in computed("look_for_entries", [values], "Shamir"):
        assert found.tolist() == [[False] * 3, [True] * 3]


def test_the_odds_are_those_of_draws():
    drawn = [draw_entries(bytes([i]) * 32, 6, 2).tolist() for i in range(200)]
    assert all(0 <= low < high < 6 for low, high in drawn)
    missed = np.mean([0 not in row and 1 not in row for row in drawn])
    exact = escape_odds(6, 2, 2)
    assert exact == pytest.approx(math.comb(4, 2) / math.comb(6, 2))
    assert abs(missed - exact) < 3 * math.sqrt(exact * (1 - exact) / 200)
    assert (escape_odds(6, 5, 2), escape_odds(6, 0, 2), escape_odds(6, 2, 0)) == (0, 1, 1)
    with pytest.raises(ConfigError, match="draw 0 to 6"):
        draw_entries(LOT, 6, 7)
