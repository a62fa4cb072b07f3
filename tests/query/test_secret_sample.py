"""A sample that is drawn under shares: it is the one that the seeds of all sites say, its answer is within its interval, the same again for nothing, and nobody is told of a row."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.core.errors import AtollError, CompositionError, ConfigError, LetterError, PolicyError
from atoll.engines.recording import RecordingEngine
from atoll.query import SqlConnection
from atoll.query.databases.silo import Silo
from atoll.query.policy import QueryPolicy
from atoll.query.strategies import secret_sample
from atoll.query.strategies.releases import DrawnNumbers
from atoll.query.strategies.saqe import Saqe
from atoll.query.strategies.secret_sample import draw_sums, expand_seed
from atoll.secure.tables import SharedTable, outward_rows
from tests.query.test_noised_answers import TYPES, ask, policy_of
from tests.support.silos import TableSource, connected
from tests.support.trios import among_three

SHARES = "saqe:sampled_by=shares,sample=0.5"
COUNTED = "SELECT ward, count(*) AS n, sum(cost) AS s FROM v GROUP BY ward ORDER BY ward"


def opened(**more: Any) -> dict[str, Any]:
    made = policy_of(epsilon=1e4, **more)
    return {**made, "tables": {"v": {**made["tables"]["v"], "sizes": "open"}}}


def wards(rows: int = 90, sites: int = 3) -> dict[str, TableSource]:
    every = [(k, "AB"[k % 2], "flu", 10.0) for k in range(rows)]
    return {f"s{k}": TableSource({"v": (TYPES, every[k::sites])}) for k in range(sites)}


# ---------------------------------------------------------------- under shares


@settings(max_examples=4)
@given(st.lists(st.integers(1, 9), min_size=2, max_size=4), st.integers(1, 3), st.integers(0, 2**32))
def test_the_sample_is_what_the_seeds_of_all_sites_say(counts: list[int], width: int, seed: int) -> None:
    rng, three = np.random.default_rng(seed), ["p0", "p1", "p2"]
    names = [*three, *(f"q{k}" for k in range(len(counts) - 3))][: len(counts)]
    if len(counts) > 3:  # the three parties alone share rows here
        names, counts = three, counts[:3]
    rows = {name: 1 << max(0, n - 1).bit_length() for name, n in zip(names, counts, strict=True)}
    made = {name: DrawnNumbers(rng.choice([0, 1 << 31, 1 << 32], n).astype(np.uint64), rng.integers(-99, 99, (n, width)), rng.bytes(32), rng.integers(-5, 5, width)) for name, n in zip(names, counts, strict=True)}  # fmt: skip
    total = sum(rows.values())
    words = np.bitwise_xor.reduce([expand_seed(one.seed, total) for one in made.values()])
    right, at = sum(one.noise for one in made.values()), 0
    for name, one in made.items():
        inside = words[at : at + len(one.thresholds)] < one.thresholds
        right, at = right + inside @ one.numbers, at + rows[name]

    async def play(trio: Any, values: Any) -> Any:
        me = trio.numbers.me
        sums = await draw_sums(trio, rows, width, {me: made[me]} if me in made else {})
        return await trio.open_numbers(sums), await outward_rows(SharedTable({"n": sums}, trio.constant(np.ones(width, np.uint64), 1)), ordered=True)  # fmt: skip

    for (found, _), _ in among_three(play)(seed=seed):
        np.testing.assert_array_equal(np.asarray(found).view(np.int64), right)


def test_words_of_a_seed_are_uniform_and_of_32_bits() -> None:
    words = expand_seed(bytes(32), 1 << 14)
    assert words.max() < 1 << 32
    assert abs((words < 1 << 31).mean() - 0.5) < 0.02
    np.testing.assert_array_equal(words[:9], expand_seed(bytes(32), 9))


# ---------------------------------------------------------------- statements


@pytest.mark.parametrize(("sites", "options"), [(3, ""), (2, ""), (3, ",sampler=stratified"), (4, ",sampler=distinct")])
def test_an_answer_lies_in_its_interval_and_costs_what_was_predicted(sites: int, options: str) -> None:
    text = "SELECT count(DISTINCT pid) AS n FROM v" if "distinct" in options else COUNTED
    with connected(wards(sites=sites), opened()) as db:
        found = ask(db, text, 400.0, strategy=SHARES + options)
        for column, right in (("n", 90 if "distinct" in options else 45), ("s", 450)):
            for low, high in found.approximate["intervals"].get(column, []):
                # 0.95 a number; beyond three of these widths is a fault
                assert low - (high - low) <= right <= high + (high - low)
        assert abs(found.predicted / found.bytes - 1) < 0.1
        assert "that nobody knows" in found.plan[-2]["what"]
        assert any("how many units of v" in one["sees"] for one in found.leakage)


def test_with_nearly_all_rows_the_sums_are_those_of_all() -> None:
    with connected(wards(), opened()) as db:
        found = ask(db, COUNTED, 3000.0, strategy="saqe:sampled_by=shares,sample=0.9999999")
        assert [(row[0], row[1]) for row in found.rows] == [("A", 45), ("B", 45)]


def test_the_same_again_is_free_whatever_has_become_of_the_rows(tmp_path: Path) -> None:
    rows = {f"s{k}": [(9 * k + j, "A", "flu", 10.0) for j in range(8)] for k in range(3)}

    def reopened() -> SqlConnection:
        return SqlConnection({name: Silo(TableSource({"v": (TYPES, list(some))}), QueryPolicy.of(opened()), name) for name, some in rows.items()}, folder=tmp_path)  # fmt: skip

    text = "SELECT count(*) FROM v"
    with reopened() as db:
        first = ask(db, text, 6000.0, strategy=SHARES).rows
    rows["s0"] += [(100 + j, "A", "flu", 10.0) for j in range(40)]
    with reopened() as db:
        assert ask(db, text, 6000.0, strategy=SHARES).rows == first
        assert ask(db, text, 3000.0, strategy=f"{SHARES},edition=2").rows[0][0] > 20
        with pytest.raises(AtollError, match=r"the epsilon of anna is 10000 here: 9000 is spent"):
            ask(db, text, 3000.0, strategy=f"{SHARES},edition=3")


def test_no_message_tells_of_a_row() -> None:
    engine, rare = RecordingEngine(), 1234567
    made = wards(8)
    made["s1"].tables["v"][1].append((rare, "A", "canary of the sea", 77.0))
    with connected(made, opened()) as db:
        db.engine = engine
        ask(db, COUNTED, 4.0, strategy=SHARES)
    # Frames are filled up with zeros: behind a share whose last byte is 77 they would read as the number 77.
    said = b"|".join(bytes(one).rstrip(b"\0") for messages in engine.heard.values() for one in messages)
    assert b"canary" not in said
    assert struct.pack("<d", 77.0) not in said
    for canary in (rare, 7700, 77):
        assert canary.to_bytes(8, "little") not in said


# ---------------------------------------------------------------- lies and refusals


@pytest.mark.parametrize(
    ("lie", "match"),
    [
        (lambda name, one: {**one, "rows": {**one["rows"], "s1": 64}} if name == "s1" else one, "of another size"),
        (lambda name, one: {**one, "rows": {**one["rows"], "s1": 64}} if name == "s2" else one, "was asked for something else than"),
        (lambda name, one: {**one, "rows": {k: v for k, v in one["rows"].items() if k != "s2"}}, "are to hold the shares, and the statement is one for"),
        (lambda name, one: {**one, "message": {**one["message"], "rates": [0.25] * len(one["message"]["rates"])}}, "rate above 0 and at most 1|rates"),
        (lambda name, one: {**one, "message": {**one["message"], "cells": one["message"]["cells"][:1], "rates": one["message"]["rates"][:1]}}, "4 sums, and the statement has 2"),
    ],
    ids=["own size", "another's size", "a site left out", "rates", "groups"],
)  # fmt: skip
def test_a_coordinator_that_asks_for_something_else_gets_nothing(lie: Any, match: str, monkeypatch: Any) -> None:
    from atoll.core.federation.federation import Federation

    plain = Federation.session

    async def session(fed: Any, roles: Any) -> Any:
        told = {name: (at, job.with_args(request=lie(name, dict(job.args["request"])))) if "request" in job.args else (at, job) for name, (at, job) in roles.items()}  # fmt: skip
        return await plain(fed, told)

    with connected(wards(12), opened()) as db:
        with monkeypatch.context() as patch:
            patch.setattr(Federation, "session", session)
            with pytest.raises(AtollError, match=match):
                ask(db, COUNTED, 4.0, strategy=SHARES)
        ask(db, COUNTED, 4.0, strategy=SHARES)


def test_what_cannot_be_sampled_under_shares_is_refused() -> None:
    for more in ({"sample": 1.0}, {"sample": 0.5, "noise": "shares"}):
        with pytest.raises(ConfigError, match="sampled_by='shares'"):
            Saqe(sampled_by="shares", epsilon=1.0, **more)
    with pytest.raises(ConfigError, match="sampled_by='dice'"):
        Saqe(sampled_by="dice")
    with pytest.raises(CompositionError, match="2 sites, and three parties draw"):
        Saqe(sampled_by="shares", sample=0.5).require_parties(2, helper=False)
    with connected(wards(6), policy_of()) as db, pytest.raises(PolicyError, match="do not say sizes: open"):
        ask(db, COUNTED, 1.0, strategy=SHARES)


def test_a_session_without_sites_is_no_session() -> None:
    with pytest.raises(LetterError, match="no site shares rows"):
        secret_sample._require(None)


def test_a_value_that_a_condition_leaves_out_of_one_number_is_drawn_by_itself() -> None:
    """Both numbers count different doctors, of whom the first has none in ward A."""
    rows = [(k, "B", f"d{k}", 1.0) for k in range(40)]
    with connected({f"s{k}": TableSource({"v": (TYPES, rows[k::3])}) for k in range(3)}, opened()) as db:
        for by in ("owners", "shares"):
            found = ask(db, "SELECT count(DISTINCT pid) FILTER (WHERE ward = 'A') AS a, count(DISTINCT pid) AS b FROM v", 4000.0, strategy=f"saqe:sampled_by={by},sample=0.5,sampler=distinct").rows[0]  # fmt: skip
            assert found[0] == 0
            assert 10 < found[1] < 70
