"""Leader-boards: the order is that of the numbers, losses up to the bound are borne, and attacks succeed beyond their bound and fail below it."""

from __future__ import annotations

import gzip
import itertools
import json
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import atoll
from atoll.cli.app import run
from atoll.core.errors import AtollError, ConfigError, DataError, PolicyError, QuorumError
from atoll.core.requests.cohort import Community
from atoll.core.requests.island import Secret
from atoll.secure.ranking import (
    FIELD,
    RankingTerms,
    add_ranks,
    mix_powers,
    rank_by_sorting,
    rank_parties,
    send_number,
    split_number,
)
from atoll.secure.shares import open_shamir
from atoll.secure.shares.sharing import lagrange
from atoll.testing import Timetable
from atoll.truth import plan_truth


def names_of(n):
    return [f"w{i:02}" for i in range(n)]


def play(program, numbers, **settings):
    people = Community(dict(zip(names_of(len(numbers)), numbers, strict=True)))
    return atoll.simulate(program, people, engine="inline", progress=False, **settings)


def board(numbers, threshold, *, lost=None, seed=0, **terms):
    async def program(fed):
        return await rank_parties(fed, fed.parties, threshold, at=0, **terms)

    cost = {} if lost is None else {"devices": Timetable(lost=lost)}
    return play(program, numbers, seed=seed, **cost)


def sorted_names(numbers):
    names = names_of(len(numbers))
    return tuple(names[i] for i in np.argsort(-np.asarray(numbers), kind="stable"))


# ------------------------------------------------------------------ the order


@settings(max_examples=15)
@given(st.data())
def test_the_order_is_that_of_the_numbers_to_one_unit(data):
    """Lemma 5.1 and Theorems 5.1 and 5.2: neighbours differ by one unit, at either end of the range, and numbers may be as large or small as you like."""
    threshold = data.draw(st.integers(1, 3))
    n = data.draw(st.integers(2 * threshold + 1, 9))
    most = data.draw(st.sampled_from((1.0, 1e9, 1e-9)))
    scale = RankingTerms(tuple(names_of(n)), threshold).scale
    first = data.draw(st.sampled_from((1, scale // 3, scale - n)))
    units = first + np.array(data.draw(st.permutations(range(n))))
    found = board((units / scale * most).tolist(), threshold, most=most)
    assert found.order == sorted_names(units)
    assert found.unranked == found.wrong == ()
    assert len(found.representatives) == 2 * threshold + 1


def test_what_the_server_sees_bounds_ratios_and_nothing_finer():
    """``h_b / h_a <= x_b / x_a <= (h_b / h_a)^(1 / N)``, up to the noise."""
    numbers = [0.2, 0.5, 0.9, 0.91, 0.35]
    found = board(numbers, 2)
    seen = dict(zip(numbers, (found.seen[name] for name in names_of(5)), strict=True))
    for low in numbers:
        for high in numbers:
            if low < high:
                ratio = seen[low] / seen[high]
                assert ratio - 1e-5 <= low / high <= ratio ** (1 / 5) + 1e-5


def test_two_leader_boards_show_other_numbers():
    async def program(fed):
        return [await rank_parties(fed, fed.parties, 1, at=at) for at in (0, 1)]

    first, second = play(program, [0.2, 0.5, 0.9, 0.7])
    assert first.order == second.order == ("w02", "w03", "w01", "w00")
    assert first.seen.keys() == second.seen.keys()
    assert all(first.seen[name] != second.seen[name] for name in first.seen)


def test_the_factors_of_groups_are_binomials():
    """Property 7: ``lambda_g = (-1)^(g-1) C(N, g)``; they take powers 1 to 2 t to 0, and 1 to 1."""
    for threshold in (1, 2, 5):
        n, p = 2 * threshold + 1, FIELD.prime
        factors = [(-1) ** (g - 1) * math.comb(n, g) for g in range(1, n + 1)]
        assert [f % p for f in factors] == list(lagrange(tuple(range(n)), FIELD))
        moments = [sum(f * g**m for g, f in enumerate(factors, 1)) for m in range(n)]
        assert moments == [1] + [0] * (n - 1)


def test_powers_are_rounded_alike_and_nothing_overflows():
    for threshold in (1, 3, 10):
        terms = RankingTerms(tuple(names_of(30)), threshold)
        rows = [terms.encode(unit / terms.scale) for unit in (1, 2, terms.scale // 2, terms.scale - 1, terms.scale)]
        for low, high in itertools.pairwise(rows):
            assert (low <= high).all()
            assert low[0] < high[0]
        assert rows[-1].tolist() == [terms.scale] * terms.groups
        exact = Fraction(terms.scale - 1, terms.scale)
        assert rows[-2].tolist() == [math.floor(terms.scale * exact**k + Fraction(1, 2)) for k in range(1, terms.groups + 1)]  # fmt: skip
        assert terms.groups * terms.scale * terms.heaviest + terms.heaviest < FIELD.prime
        assert terms.heaviest >= 32 * terms.groups * terms.scale
        assert terms.groups * terms.noise <= terms.heaviest // 2


# ------------------------------------------------------------------ losses


@pytest.mark.parametrize(("lost", "unranked"), [({"mix_powers": ["w00", "w01", "w02", "w03"]}, ()), ({"send_number": ["w01"]}, ("w01",)), ({"add_ranks": ["w00", "w02", "w03", "w04", "w05"]}, ())])  # fmt: skip
def test_losses_at_any_step_change_no_place(lost, unranked):
    """Theorems 5.3 and 5.4: one of each group mixes, ``t + 1`` of all add up. Of groups (0 3 6), (1 4), (2 5) somebody is left."""
    numbers = [0.3, 0.1, 0.2, 0.9, 0.5, 0.7, 0.6]
    found = board(numbers, 1, lost=lost)
    assert found.order == tuple(name for name in sorted_names(numbers) if name not in unranked)
    assert found.unranked == unranked


@pytest.mark.parametrize(
    ("lost", "words"),
    [
        ({"mix_powers": ["w01", "w04"]}, "group 2 has nobody who is left to mix: w0[14], w0[14]"),
        ({"send_number": ["w02", "w05"]}, "group 3 has nobody who shared a weight: w0[25], w0[25]"),
        ({"add_ranks": [f"w0{i}" for i in range(6)]}, "fewer than the quorum of 2"),
    ],
)
def test_one_loss_more_ends_it(lost, words):
    with pytest.raises(QuorumError, match=words):
        board([0.3, 0.1, 0.2, 0.9, 0.5, 0.7, 0.6], 1, lost=lost)


def test_the_rival_has_no_stand_ins():
    """Tang, Shi and Yao: the representatives are drawn first, and one that is lost before it mixes ends the protocol."""
    numbers = [0.3, 0.1, 0.2, 0.9, 0.5, 0.7, 0.6]
    fine = board(numbers, 1, stand_ins=False)
    assert fine.order == sorted_names(numbers)
    lost = {"mix_powers": [fine.representatives[1]]}
    with pytest.raises(QuorumError, match="group 2 has nobody who is left to mix"):
        board(numbers, 1, stand_ins=False, lost=lost)
    with_stand_ins = board(numbers, 1, lost=lost)
    assert with_stand_ins.order == fine.order
    assert with_stand_ins.representatives[1] != fine.representatives[1]


def test_failures_are_as_frequent_as_the_closed_form_says():
    """Property 10: each party is lost before it mixes with probability .4; 7 parties in groups of 3, 2, 2. The protocol itself is played."""
    rng, trials, failed, rival = np.random.default_rng(3), 40, 0, 0
    for _ in range(trials):
        gone = {"mix_powers": [name for name in names_of(7) if rng.random() < 0.4]}
        for stand_ins in (True, False):
            try:
                board([0.3, 0.1, 0.2, 0.9, 0.5, 0.7, 0.6], 1, lost=gone, stand_ins=stand_ins)
            except QuorumError:
                failed, rival = failed + stand_ins, rival + (not stand_ins)
    plan = plan_truth(7, 4, 0.4, 1, ranking_threshold=1, trials=1)
    for found, chance in ((failed, plan.ranking_failure), (rival, plan.ranking_rival)):
        assert abs(found / trials - chance) < 3 * math.sqrt(chance * (1 - chance) / trials)


# ------------------------------------------------------------------ who lies


@atoll.task
def add_wrongly(island, message):
    """As `add_ranks`, but one party returns something else."""
    rows = add_ranks(island, message)
    return FIELD.add(rows, np.ones_like(rows)) if island.name == "w04" else rows


def test_a_party_that_adds_up_wrongly_is_named(monkeypatch):
    numbers = [0.3, 0.1, 0.2, 0.9, 0.5, 0.7, 0.6]
    monkeypatch.setattr("atoll.secure.ranking.add_ranks", add_wrongly)
    found = board(numbers, 2)
    assert found.order == sorted_names(numbers)
    assert found.wrong == ("w04",)


def test_a_party_mixes_under_one_set_of_weights():
    """Under two the server would see two numbers of each party."""

    async def program(fed):
        terms = RankingTerms(tuple(fed.parties.names), 1)
        given = await fed.exchange(fed.parties, send_number, terms.message(), at=(0, "share"))
        message = {"terms": terms.message(), "ranked": list(fed.parties.names), "weights": ["w00", "w01", "w02"]}
        await fed.exchange(fed.parties[:1], mix_powers, message, mail=given.mail, at=(0, "mix", 0))
        other = {**message, "weights": ["w03", "w01", "w02"]}
        await fed.exchange(fed.parties[:1], mix_powers, other, mail=given.mail, at=(1, "mix", 0))

    with pytest.raises(PolicyError, match="w00 has bound itself to something else in 'weights of"):
        play(program, [0.3, 0.1, 0.2, 0.9])


# ------------------------------------------------------------------ attacks


@atoll.task
def tell_letters(island, message):
    """What a colluder has."""
    return {name: island.inbox[name] for name in message}


async def shares_of(fed, threshold, colluders):
    """The powers that colluders hold of each party, by colluder."""
    terms = RankingTerms(tuple(fed.parties.names), threshold)
    given = await fed.exchange(fed.parties, send_number, terms.message(), at=(0, "share"))
    told = await fed.exchange(fed.parties.named(*colluders), tell_letters, list(fed.parties.names), mail=given.mail)
    return terms, told.by_name()


def numbers_by_shares(terms, held, threshold):
    """What shares of some groups open to, if they are enough."""
    by_group = {terms.group_of(name): letters for name, letters in held.items()}
    if len(by_group) < threshold + 1:
        return None
    chosen = dict(list(by_group.items())[: threshold + 1])
    return [int(open_shamir({g: letters[name] for g, letters in chosen.items()}, threshold + 1, FIELD)[0]) / terms.scale for name in terms.names]  # fmt: skip


@pytest.mark.parametrize(("colluders", "learn"), [((0, 1, 2), True), ((0, 1), False), ((0, 5, 1, 6), False)])
def test_colluders_of_more_than_t_groups_learn_all_and_those_of_t_groups_nothing(colluders, learn):
    """Theorem 5.5 with t = 2: three groups open everything. Two groups do not, however many members they send: members of a group have the same shares."""
    numbers = [0.3, 0.1, 0.2, 0.9, 0.5, 0.7, 0.6]

    async def program(fed):
        return await shares_of(fed, 2, [names_of(7)[i] for i in colluders])

    terms, held = play(program, numbers)
    found = numbers_by_shares(terms, held, 2)
    if learn:
        np.testing.assert_allclose(found, numbers, atol=1 / terms.scale)
        return
    assert found is None
    # For any number that another party may have, one polynomial fits: the shares say nothing.
    groups = sorted({terms.group_of(name) for name in held})
    target = {terms.group_of(name): int(letters["w03"][0]) for name, letters in held.items()}
    assert len(target) == len(groups) == 2
    for number in (0.9, 0.4):
        points = [(0, int(terms.encode(number)[0])), *((g + 1, target[g]) for g in groups)]
        shares = {x + 1: np.array([y], dtype=np.uint64) for x, y in points}
        assert open_shamir(shares, 3, FIELD).shape == (1,)  # of degree 2 through three points


def weights_by(rows, seen):
    """The weights of ``seen = rows @ weights``, as near as the noise lets."""
    return np.linalg.solve(np.array(rows, dtype=np.float64), np.array(seen, dtype=np.float64))


def number_of(weights, seen):
    """The ``x`` whose polynomial is what was seen, by bisection."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        value = sum(w * middle**k for k, w in enumerate(weights, 1))
        low, high = (middle, high) if value < seen else (low, middle)
    return low


def test_the_server_with_2_t_plus_1_parties_learns_all_numbers():
    """Property 12: their own numbers and what the server sees are as many equations as there are weights, whatever groups they are of."""
    numbers = [0.2, 0.55, 0.95, 0.4, 0.8, 0.7]
    found = board(numbers, 1)
    scale = RankingTerms(tuple(names_of(6)), 1).scale
    seen = [found.seen[name] for name in names_of(6)]
    rows = [[scale * numbers[i] ** k for k in (1, 2, 3)] for i in (0, 1, 2)]
    weights = weights_by(rows, seen[:3])
    for x, h in zip(numbers[3:], seen[3:], strict=True):
        assert abs(number_of(scale * weights, h) - x) < 1e-4


@pytest.mark.parametrize("seed", range(4))
def test_the_server_with_2_t_parties_has_a_line_of_weights_and_numbers_left(seed):
    """One party fewer: other weights, whole numbers within their range, give each colluder what the server saw of it, within the noise, and another party another number.

    The other number is thousands of units away, and not far: the server learns numbers nearly. Without the noise, whole weights would be the only ones.
    """
    rng = np.random.default_rng(seed)
    terms = RankingTerms(tuple(names_of(7)), 1)
    rows = [[int(a) for a in terms.encode(number)] for number in np.sort(rng.uniform(0.1, 1.0, 2))]
    least = [terms.heaviest // 2 + 1, 1, 1]
    weights = [int(rng.integers(low, terms.heaviest)) for low in least]
    (a, b, c), (d, e, f) = rows
    line = [b * f - c * e, c * d - a * f, a * e - b * d]  # real weights along it have the same sums
    reach = min(Fraction((terms.heaviest if step > 0 else low) - w, step) for step, low, w in zip(line, least, weights, strict=True))  # fmt: skip
    others = [round(w + reach * Fraction(9, 10) * step) for w, step in zip(weights, line, strict=True)]
    assert all(low <= w <= terms.heaviest for low, w in zip(least, others, strict=True))
    for row in rows:
        moved = sum((w - was) * k for w, was, k in zip(others, weights, row, strict=True))
        assert 0 < abs(moved) < terms.groups * terms.noise / 4
    target = terms.encode(0.6)
    seen = sum(w * int(k) for w, k in zip(weights, target, strict=True))
    found = number_of([w * terms.scale for w in others], seen)
    assert abs(found - 0.6) * terms.scale > 1000


# ------------------------------------------------------------------ three helpers


@settings(max_examples=5)
@given(st.lists(st.floats(1e-300, 1e300), min_size=1, max_size=6))
def test_helpers_sort_any_positive_numbers_and_show_the_order_alone(numbers):
    async def program(fed):
        return await rank_by_sorting(fed, fed.parties, names_of(9)[6:], at=0)

    found = play(program, [*numbers, *[1.0] * (9 - len(numbers))])
    assert found.order == sorted_names([*numbers, *[1.0] * (9 - len(numbers))])
    assert found.seen == {}


def test_two_of_three_words_say_nothing_and_all_give_the_number():
    parts = split_number(0.7, Secret(1))
    assert np.bitwise_xor.reduce(parts).view(np.float64)[0] == 0.7
    drawn = np.concatenate([split_number(0.7, Secret(seed))[2] for seed in range(400)])
    ones = np.unpackbits(drawn.view(np.uint8)).mean()
    assert abs(ones - 0.5) < 3 * 0.5 / math.sqrt(64 * 400)


def test_a_party_that_is_lost_is_not_ranked_by_helpers():
    async def program(fed):
        return await rank_by_sorting(fed, fed.parties.named("w03", "w04", "w05"), names_of(3), at=0)

    found = play(program, [1, 1, 1, 5e9, 0.1, 7e-3], devices=Timetable(lost={"hand_number": ["w04"]}))
    assert (found.order, found.unranked) == (("w03", "w05"), ("w04",))


# ------------------------------------------------------------------ bad input


@pytest.mark.parametrize(
    ("numbers", "settings", "kind", "words"),
    [
        ([0.5, 0.6], {}, ConfigError, "threshold=1 of 2 parties .*rank 3 parties or more"),
        ([0.5, 0.0, 0.6], {}, DataError, r"the number 0.0 .*above 0 and at most 1"),
        ([0.5, 1.5, 0.6], {}, DataError, r"the number 1.5 .*set `most`"),
        ([0.5, float("nan"), 0.6], {}, DataError, "the number nan"),
        ([0.5, 1e-12, 0.6], {}, DataError, "below half of"),
        ([0.5, 0.4, 0.6], {"most": 0.0}, ConfigError, r"most=0.0"),
        ([0.5, 0.4, 0.6], {"scale": 1 << 40}, ConfigError, r"scale=1099511627776 for 3 groups"),
    ],
)
def test_bad_input_is_refused(numbers, settings, kind, words):
    with pytest.raises(kind, match=words):
        board(numbers, 1, **settings)


def test_terms_that_a_server_made_up_are_refused():
    for message in ({"names": ["w00"]}, {"names": ["w09"] * 3, "threshold": 1, "most": 1.0, "scale": 0}, None):
        with pytest.raises(PolicyError, match="terms of a ranking that cannot be read"):
            RankingTerms.of(message)

    async def without(fed):
        terms = RankingTerms(("a", "b", "c"), 1)
        await fed.exchange(fed.parties, send_number, terms.message())

    with pytest.raises(AtollError, match="a ranking without w00"):
        play(without, [0.5, 0.6])
    with pytest.raises(ConfigError, match="name three different parties"):
        play(lambda fed: rank_by_sorting(fed, fed.parties, ["w00", "w00", "w01"], at=0), [0.5, 0.6])


# ------------------------------------------------------------------ the command


@pytest.mark.parametrize("by", ["groups", "helpers"])
def test_the_command_orders_workers_and_tells_what_the_server_sees(tmp_path, capsys, by):
    scores = {"007": 3.5, "ann": 1e6, "7": 20.0, "a/b": 19.0}
    path = tmp_path / "scores.csv.gz"
    path.write_bytes(
        gzip.compress(b"score,worker\n" + b"".join(f"{x},{name}\n".encode() for name, x in scores.items()))
    )
    assert run(["truth", "rank", str(path), "--threshold", "1", "--by", by, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["order"] == ["ann", "7", "a/b", "007"]
    assert list(found["seen_by_server"]) == (found["order"] if by == "groups" else [])
    assert sorted(found["seen_by_server"].values(), reverse=True) == list(found["seen_by_server"].values())
    assert run(["truth", "rank", str(path), "--by", by]) == 0
    assert ("its place alone" in capsys.readouterr().out) == (by == "helpers")


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ("worker,points\na,1\n", "there is no column 'score'"),
        ("worker,score\na,1\na,2\n", "worker «a» has two scores, 1 and «2»"),
        ("worker,score\na,one\n", "the score «one» is no number give numbers with a decimal point"),
        ("worker,score\na,1\nb,-1\nc,2\n", "the number -1.0"),
        ("worker,score\na,1\nb,1\n", "rank 3 parties or more"),
    ],
)
def test_the_command_refuses_bad_files(tmp_path, capsys, rows, words):
    (tmp_path / "scores.csv").write_text(rows)
    assert run(["truth", "rank", str(tmp_path / "scores.csv"), "--json"]) != 0
    error = json.loads(capsys.readouterr().out)["error"]
    assert words in f"{error['what']} {error['remedy']}"
