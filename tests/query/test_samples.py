"""Samples of units: rates, the noise that they need, estimates within their intervals, and the smallest sample for a wanted error."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.core.errors import AtollError, CompositionError, ConfigError, DataError
from atoll.query import Query, connect
from atoll.query.noised_plan import noise_rates
from atoll.query.sampling import Estimate, count_error, find_rate, rate_digits, sample_epsilon, stratify_rates
from atoll.query.strategies.saqe import Saqe

POLICY: dict[str, Any] = {
    "policy": {"min_count": 5, "privacy": {"people": {"anna": {"epsilon": 1e4, "delta": 1e-3}}}},
    "tables": {"v": {"unit": "pid", "columns": {
        "pid": {"level": "private", "join": "local"}, "ward": "public", "doctor": {"level": "private", "join": "local"},
        "cost": {"level": "private", "release": "noise", "range": [0, 100]}, "change": {"level": "private", "release": "noise", "range": [-50, 50]},
    }}},
}  # fmt: skip
WARDS, SMALL = 40, 20


@pytest.fixture(scope="module")
def silos(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """40 wards of 160 units at two sites, and one of 20."""
    rng, folder = np.random.default_rng(3), tmp_path_factory.mktemp("wards")
    made = {}
    for site in range(2):
        lines = ["pid,ward,doctor,cost,change"]
        for k in range(WARDS * 80 + SMALL // 2):
            ward = f"w{k // 80:02d}"
            lines.append(f"{2 * k + site},{ward},{2 * (k // 7) + site},{rng.uniform(20, 60):.3f},{rng.uniform(-40, 50):.3f}")  # fmt: skip
        place = folder / f"s{site}"
        place.mkdir()
        (place / "v.csv").write_text("\n".join(lines) + "\n")
        made[f"s{site}"] = str(place)
    return made


def ask(db: Any, text: str, strategy: str = "saqe", epsilon: float = 4.0, **more: Any) -> Any:
    return db.sql(text, strategy=strategy, epsilon=epsilon, analyst="anna", **more)


# ---------------------------------------------------------------- laws


@given(st.floats(1e-3, 20), st.floats(1e-4, 1))
def test_noise_on_a_sample_costs_what_was_asked(epsilon: float, rate: float) -> None:
    assert math.log1p(rate * math.expm1(sample_epsilon(epsilon, rate))) == pytest.approx(epsilon, rel=1e-6)


@given(st.lists(st.integers(1, 10_000), min_size=1, max_size=30), st.floats(0.01, 1))
def test_strata_share_a_sample_evenly(units: list[int], rate: float) -> None:
    rates = stratify_rates(units, rate)
    drawn = rates * units
    assert drawn.sum() == pytest.approx(rate * sum(units), rel=1e-9)
    assert all(d == pytest.approx(drawn.max()) for d, one in zip(drawn, rates, strict=True) if one < 1)


@given(st.integers(1_000, 100_000), st.floats(0.2, 5), st.floats(0.02, 0.3))
def test_the_smallest_sample_is_found(rows: int, epsilon: float, wanted: float) -> None:
    def error(rate: float) -> float:
        return count_error(rows, rate, epsilon) / rows

    found = find_rate(error, wanted)
    if found is None:
        assert error(1.0) > wanted
    else:
        assert error(found) <= wanted
        assert found < 1e-5 or error(found * 0.999) > wanted


def test_rates_as_digits_are_never_larger() -> None:
    assert int(rate_digits(0.1), 16) <= 0.1 * 2**64
    assert rate_digits(1.0) > "f" * 16 >= rate_digits(1 - 2**-53)


@pytest.mark.parametrize(("confidence", "least"), [(0.95, 0.95), (0.99, 0.99), (0.999, 0.999)])
def test_an_interval_of_laplace_noise_alone_is_wide_enough(confidence: float, least: float) -> None:
    half = Estimate(0.0, 2.0, 3 * 4.0).half_width(confidence)  # of scale 1: excess kurtosis 3
    assert least <= 1 - math.exp(-half) <= 1 - (1 - least) / 40


def test_every_group_costs_its_part_whatever_the_rates() -> None:
    """Of a unit in two groups, each drawn by itself, the groups cost epsilon together; noise is that of what they cost before the sample."""
    text, tables = "SELECT ward, count(*), avg(cost) FROM v GROUP BY ward", {"v": {"pid": "BIGINT", "ward": "VARCHAR", "cost": "DOUBLE"}}  # fmt: skip
    from atoll.query.noised_plan import make_sampled_plan
    from atoll.query.policy import QueryPolicy
    from atoll.query.statement import Catalog, parse_statement

    policy = QueryPolicy.of({**POLICY, "policy": {"privacy": {"people": {"anna": {"epsilon": 1}}, "groups": 2, "rows": 3}}})  # fmt: skip
    plan = make_sampled_plan(parse_statement(text, Catalog(tables)), Catalog(tables), policy)
    for rate in (1.0, 0.3, 0.01):
        laws = noise_rates(plan, 0.25, rate, "stratified")
        spent = sum(float(law) * 3 * one.most for law, one in zip(laws, plan.numbers, strict=True))
        assert 2 * math.log1p(rate * math.expm1(spent)) == pytest.approx(0.25 * len(plan.numbers), rel=1e-6)
    assert noise_rates(plan, 0.25, 0.01, "distinct") == noise_rates(plan, 0.25, 1.0, "uniform")


# ---------------------------------------------------------------- answers


@pytest.mark.parametrize("strategy", ["saqe", "saqe:sample=0.3", "saqe:sample=0.3,sampler=stratified"])
def test_intervals_hold_the_true_numbers(silos: dict[str, str], strategy: str) -> None:
    """Four numbers of 40 groups each: nearly all lie in their intervals, which are no wider than they must be, and estimates are right on average."""
    text = "SELECT count(*) AS n, ward, avg(cost) AS mean, sum(cost) AS total, sum(change) AS moved FROM v GROUP BY ward HAVING n > 50 ORDER BY ward DESC"  # fmt: skip
    with connect(silos=silos, policy=POLICY) as db:
        found = ask(db, text, strategy, 40.0)
        true = np.array([[row[0], *row[2:]] for row in db._pool(text, ())[0]], float)
    said = np.array([[found.approximate["intervals"][name][k] for name in ("n", "mean", "total", "moved")] for k in range(WARDS)])  # fmt: skip
    values = np.array([[row[0], *row[2:]] for row in found.rows])
    inside = ((said[..., 0] <= true) & (true <= said[..., 1])).mean(axis=0)
    assert all(inside >= 0.85)
    widths, errors = (said[..., 1] - said[..., 0]) / 2, values - true
    assert all(abs(errors.mean(axis=0)) <= 4 * errors.std(axis=0) / math.sqrt(WARDS))
    assert widths[:, 0].mean() <= 3 * errors[:, 0].std() + 1
    assert found.approximate["rate"] == (1.0 if strategy == "saqe" else pytest.approx(0.3, rel=0.2))


def test_a_small_stratum_is_whole(silos: dict[str, str]) -> None:
    text = "SELECT ward, count(*) AS n FROM v WHERE ward >= 'w38' GROUP BY ward ORDER BY ward"
    with connect(silos=silos, policy=POLICY) as db:
        found = ask(db, text, "saqe:sample=0.3,sampler=stratified", 400.0)
    widths = [high - low for low, high in found.approximate["intervals"]["n"]]
    assert (found.rows[2], widths[2] < 1) == (("w40", SMALL), True)
    assert widths[0] > 20


def test_values_are_drawn_with_all_their_rows(silos: dict[str, str]) -> None:
    text = "SELECT count(DISTINCT doctor) AS d FROM v"
    with connect(silos=silos, policy=POLICY) as db:
        true = db._pool(text, ())[0][0][0]
        whole = ask(db, text)
        half = ask(db, text, "saqe:sample=0.5,sampler=distinct")
        assert abs(whole.rows[0][0] - true) < 12
        (low, high), = half.approximate["intervals"]["d"]  # fmt: skip
        assert low - 30 <= true <= high + 30
        assert 40 < high - low < 400
        with pytest.raises(CompositionError, match="a value is in it more often"):
            ask(db, text, "saqe:sample=0.5")
        assert abs(ask(db, "SELECT count(DISTINCT pid) FROM v", "saqe:sample=0.5").rows[0][0] - (2 * WARDS * 80 + SMALL)) < 400  # fmt: skip


@pytest.mark.parametrize(("text", "strategy", "match"), [
    ("SELECT count(*), count(DISTINCT doctor) FROM v", "saqe:sample=0.5,sampler=distinct", "over a sample of values"),
    ("SELECT count(DISTINCT cost) FROM v", "saqe", "one value may lie at two sites"),
    ("SELECT count(*) FROM v", "saqe:sample=0.5,sampler=stratified", "there are no groups"),
    ("SELECT count(*) FROM v", "saqe:sample=2", "sample=2"),
    ("SELECT count(*) FROM v", "saqe:sample=0.5,sampler=lucky", "sampler=lucky"),
])  # fmt: skip
def test_samples_without_a_meaning_are_refused(silos: dict[str, str], text: str, strategy: str, match: str) -> None:
    with connect(silos=silos, policy=POLICY) as db, pytest.raises(AtollError, match=match):
        ask(db, text, strategy)


def test_a_sample_is_drawn_once_and_by_the_site_alone(silos: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The keys of two statements and of two sites differ, a repeated statement draws none, and no message has any."""
    from atoll.core.requests.island import Secret
    from atoll.query.strategies import releases

    keys: list[bytes] = []
    made = releases._Draw

    def seen(key: bytes, *more: Any) -> Any:
        keys.append(key)
        return made(key, *more)

    monkeypatch.setattr(releases, "_Draw", seen)
    assert Secret().bytes(32) != Secret().bytes(32)
    with connect(silos=silos, policy=POLICY) as db:
        for text in ("SELECT count(*) FROM v", "SELECT count(*) FROM v", "SELECT count(*) FROM v WHERE cost > 30"):
            ask(db, text, "saqe:sample=0.2")
    assert (len(keys), len(set(keys)), {len(key) for key in keys}) == (4, 4, {32})


# ---------------------------------------------------------------- a wanted error


def test_the_smallest_sample_that_meets_an_error_is_drawn(silos: dict[str, str]) -> None:
    text = "SELECT count(*) AS n, avg(cost) AS mean FROM v"
    with connect(silos=silos, policy=POLICY) as db:
        rates = []
        for error in (0.2, 0.05, 0.02):
            found = ask(db, text, "auto", 6.0, error=error, confidence=0.9)
            assert found.strategy == "saqe"
            for name, ends in found.approximate["intervals"].items():
                assert (ends[0][1] - ends[0][0]) / 2 <= error * found.rows[0][found.columns.index(name)] * 1.001
            rates.append(found.approximate["rate"])
        assert rates[0] < rates[1] / 4 < rates[1] < rates[2] <= 1
        with pytest.raises(DataError, match=r"an error of 1e-05 at confidence 0\.95: with all rows it may be .* The pilot has cost 0\.6"):  # fmt: skip
            ask(db, text, "auto", 6.0, error=1e-5)
        with pytest.raises(CompositionError, match="the error of ratio: it is computed from several numbers"):
            ask(db, "SELECT sum(cost) / count(*) AS ratio FROM v", error=0.1)
        with pytest.raises(ConfigError, match="leave sample out"):
            ask(db, text, "saqe:sample=0.5", error=0.1)


def test_without_an_epsilon_an_exact_plan_meets_every_error(silos: dict[str, str]) -> None:
    with connect(silos=silos, policy=POLICY) as db:
        found = db.sql("SELECT count(*) FROM v", error=0.01)
        assert (found.strategy, found.approximate, db.check(found)) == ("sums", None, True)
    with pytest.raises(ConfigError, match="error=5"):
        Query(sql="SELECT 1", error=5)
    assert Saqe().confidence == 0.95


@pytest.mark.parametrize(("text", "epsilon"), [("SELECT count(*) FROM v", 6.0), ("SELECT avg(cost) FROM v", 14.0)])
def test_a_sample_of_few_rows_meets_the_error_that_was_paid_for(text: str, epsilon: float) -> None:
    """60 rows at two sites, an error of a fifth: what the pilot allows is not refused after the sample is paid for."""
    from atoll.query.noised_plan import estimate_aggregate, make_sampled_plan
    from atoll.query.policy import QueryPolicy
    from atoll.query.statement import Catalog, parse_statement

    catalog, rng, refused, allowed = Catalog({"v": {"cost": "DOUBLE"}}), np.random.default_rng(7), 0, 0
    plan = make_sampled_plan(parse_statement(text, catalog), catalog, QueryPolicy.of({"policy": POLICY["policy"], "tables": {"v": {"columns": {"cost": {"level": "private", "release": "noise", "range": [0, 100]}}}}}))  # fmt: skip
    asked, cost = Saqe(epsilon=epsilon, analyst="anna", error=0.2), rng.uniform(20, 60, 60)

    def draw(rate: float, *, pilot: bool = False) -> Any:
        kept = rng.random(len(cost)) < rate
        exact = [kept.sum(), *(round(cost[kept].sum() / float(one.step)) for one in plan.numbers[1:])]
        laws = [1 - math.exp(-float(law)) for law in noise_rates(plan, asked._part(plan, pilot=pilot), rate, "uniform")]
        return np.array([one + (rng.geometric(p, 2) - rng.geometric(p, 2)).sum() for one, p in zip(exact, laws, strict=True)])  # fmt: skip

    for _ in range(60):
        pilot = draw(1.0, pilot=True)[None]
        rate = find_rate(lambda rate: asked._expect_error(plan, pilot, [rate], 2), 0.2)  # noqa: B023
        if rate is not None:
            found = estimate_aggregate(plan, plan.aggregates[0], draw(rate), rate, asked._spreads(plan, asked._part(plan), rate, 2))  # fmt: skip
            allowed, refused = allowed + 1, refused + (found.relative(0.95) > 0.2)
    assert allowed > 30
    assert refused <= 1  # one in five before


@pytest.mark.parametrize("rows", [25, 60, 400])
def test_an_interval_of_few_sampled_rows_holds_the_number(rows: int) -> None:
    """Over all samples of a tenth, each by its probability: one with few rows may be of many."""
    covered = 0.0
    for drawn in range(rows + 1):
        total = drawn / 0.1
        low, high = Estimate(total, max(total, 1.0) * 9, low=0.0, slope=9.0).interval(0.95)
        covered += math.comb(rows, drawn) * 0.1**drawn * 0.9 ** (rows - drawn) * (low <= rows <= high)
    assert covered >= 0.94


# ---------------------------------------------------------------- what a repeated statement tells


def test_a_repeated_statement_tells_nothing_of_its_rows(tmp_path: Path) -> None:
    """Rows change, or do not: the free answer is the same. Another edition is charged in either case, and has the rows of its moment."""
    for site in ("a", "b"):
        (tmp_path / site).mkdir()
        (tmp_path / site / "v.csv").write_text("pid,ward,cost,doctor,change\n" + "".join(f"{site}{k},A,1,1,1\n" for k in range(50)))  # fmt: skip
    policy = {**POLICY, "policy": {"privacy": {"people": {"anna": {"epsilon": 25}}}}}
    with connect(silos={site: str(tmp_path / site) for site in ("a", "b")}, policy=policy) as db:
        first = ask(db, "SELECT count(*) FROM v", epsilon=10.0).rows
        (tmp_path / "a" / "v.csv").write_text("pid,ward,cost,doctor,change\n" + "".join(f"c{k},A,1,1,1\n" for k in range(900)))  # fmt: skip
        assert ask(db, "SELECT count(*) FROM v", epsilon=10.0).rows == first
        later = ask(db, "SELECT count(*) FROM v", "saqe:edition=later", 10.0).rows
        assert abs(later[0][0] - 950) < 5
        assert ask(db, "SELECT count(*) FROM v", "saqe:edition=later", 10.0).rows == later
        with pytest.raises(AtollError, match="20 is spent, and this answer takes 10"):
            ask(db, "SELECT count(*) FROM v", "saqe:edition=unchanged", 10.0)


def test_the_ledger_has_the_delta_of_thresholds_and_what_samples_cost(silos: dict[str, str], tmp_path: Path) -> None:
    from atoll import simulate
    from atoll.core.event import Ledger
    from atoll.privacy import spent
    from atoll.query import open_silo

    opened = {name: open_silo(path, POLICY, name) for name, path in silos.items()}
    terms: dict[str, Any] = {"epsilon": 60.0, "delta": 1e-5, "analyst": "anna"}
    text = "SELECT doctor, avg(cost) FROM v GROUP BY doctor"
    simulate(Query(sql=text, strategy="saqe:sample=0.5", **terms), opened, progress=False, ledger=tmp_path / "l.jsonl")
    ledger = Ledger(tmp_path / "l.jsonl")
    told = [line for line in ledger if "epsilon" in line]  # of tables, and whether there is room, no row tells
    kinds = [(line["kind"], line["epsilon"], line["delta"]) for line in told if line["party"] == "s0"]
    assert kinds == [("private-release", pytest.approx(20), 1e-5), ("private-release", pytest.approx(40), 0.0)]
    assert spent(told, 2e-5)["s0"] == pytest.approx(60)
    assert math.isinf(spent(told, 1e-5)["s0"])
    for silo in opened.values():
        silo.close()


def test_the_ledger_says_that_a_repeated_answer_costs_nothing(silos: dict[str, str], tmp_path: Path) -> None:
    """Names of tables, whether there is room, and an answer that was counted before are no releases without noise: the account stays that of one answer."""
    from atoll import simulate
    from atoll.core.event import Ledger
    from atoll.privacy import spent
    from atoll.query import open_silo

    asked = Query(sql="SELECT ward, count(*) FROM v GROUP BY ward", epsilon=2.0, analyst="anna")

    async def program(fed: Any) -> list[Any]:
        await fed.restore(None)
        return [(await fed.run(asked, scope=scope)).answer.rows for scope in ("first", "again")]

    opened = {name: open_silo(path, POLICY, name) for name, path in silos.items()}
    first, again = simulate(program, opened, progress=False, ledger=tmp_path / "l.jsonl")
    lines = list(Ledger(tmp_path / "l.jsonl"))
    assert first == again
    assert {line["kind"] for line in lines} == {"covered", "laplace", "letters-unencrypted"}
    assert any("counted before" in line.get("what", "") for line in lines)
    assert spent([line for line in lines if line["party"] == "s0"], 0.0)["s0"] == pytest.approx(2)
    for silo in opened.values():
        silo.close()
