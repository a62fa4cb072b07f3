"""Answers with noise: bounded contributions, budgets by analyst, one answer for one statement, and noise of the size that is said."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atoll.core.errors import AtollError, CompositionError, ConfigError
from atoll.core.persistence.named_results import NamedResults
from atoll.privacy.discrete import DiscreteLaplaceLaw, LaplacePartLaw
from atoll.query import QueryPolicy, Silo, SqlConnection
from atoll.query.sampling import count_error, sample_epsilon
from atoll.query.strategies import releases, saqe
from atoll.query.strategies.releases import RECORD
from atoll.secure.noise import draw_laplace_part
from tests.support.silos import TableSource, connected

TYPES = {"pid": "INTEGER", "ward": "VARCHAR", "code": "VARCHAR", "cost": "DOUBLE"}
COLUMNS = {
    "pid": {"level": "private", "join": "local"},
    "ward": "public",
    "code": {"level": "private"},
    "cost": {"level": "private", "release": "noise", "range": [0, 100]},
}


def policy_of(unit: str = "pid", epsilon: float = 4.0, **more: Any) -> dict[str, Any]:
    privacy = {"people": {"anna": {"epsilon": epsilon, "delta": 1e-4}, "ben": {"epsilon": 0.5}}, **more}
    table = {"columns": COLUMNS, **({"unit": unit} if unit else {})}
    return {"policy": {"min_count": 5, "privacy": privacy}, "tables": {"v": table}}


def sites(north: list[tuple[Any, ...]], south: list[tuple[Any, ...]] | None = None) -> dict[str, Any]:
    return {"north": TableSource({"v": (TYPES, north)}), "south": TableSource({"v": (TYPES, south or [(999, "A", "x", 50.0)])})}  # fmt: skip


MANY = [(k, "AB"[k % 2], "flu", 10.0) for k in range(4000)]


def ask(db: Any, text: str, epsilon: float = 1.0, analyst: str = "anna", **more: Any) -> Any:
    return db.sql(text, epsilon=epsilon, analyst=analyst, **more)


def test_golden_numbers_of_a_sample() -> None:
    """The issue's: N 10,000, q 0.1, epsilon 0.5."""
    assert sample_epsilon(0.5, 0.1) == pytest.approx(2.0132, abs=5e-5)
    assert count_error(10_000, 0.1, 0.5) == pytest.approx(300.06, abs=5e-3)
    assert math.log1p(math.expm1(sample_epsilon(0.5, 0.1)) * 0.1) == pytest.approx(0.5)


def test_noise_is_as_large_as_the_answer_says() -> None:
    """100 groups of a unit each, with the same law of noise: their spread is the standard deviation that the answer tells."""
    rows = [(k, f"w{k:03d}", "x", 10.0) for k in range(200)]
    with connected(sites(rows, [(900, "w000", "x", 10.0)]), policy_of(epsilon=100.0)) as db:
        found = ask(db, "SELECT ward, count(*) AS n, sum(cost) AS s FROM v GROUP BY ward ORDER BY ward", 2.0)
    assert (found.strategy, len(found.rows)) == ("saqe", 200)
    said = found.privacy["noise_std"]
    errors = np.array([[row[1] - 1, row[2] - 10.0] for row in found.rows[1:]])
    for error, std in zip(errors.T, (said["COUNT(*)"], said['SUM("v"."cost")']), strict=True):
        assert 0.75 < error.std() / std < 1.3
        assert abs(error.mean()) < 5 * std / math.sqrt(len(error))
    assert said["COUNT(*)"] == pytest.approx(math.sqrt(2) * math.sqrt(2 * math.exp(-1)) / (1 - math.exp(-1)), rel=1e-9)


def test_a_unit_counts_in_so_many_groups_and_rows() -> None:
    """One patient with a thousand rows moves a count and a sum as if with one row."""
    heavy = [(1, "A", "x", 90.0)] * 1000 + [(1, "B", "x", 90.0)] * 1000
    with connected(sites(heavy), policy_of(epsilon=1e6)) as db:
        found = ask(db, "SELECT count(*), sum(cost) FROM v WHERE pid = 1", 9e5)
        assert found.rows[0][0] == 1
        assert found.rows[0][1] == pytest.approx(90, abs=0.1)
    with connected(sites(heavy), policy_of(epsilon=1e6, groups=2, rows=3)) as db:
        assert ask(db, "SELECT ward, count(*) FROM v WHERE pid = 1 GROUP BY ward ORDER BY ward", 9e5).rows == [("A", 3), ("B", 3)]  # fmt: skip


def test_a_statement_again_is_the_same_answer_for_nothing_and_a_budget_ends() -> None:
    text = "SELECT count(*), avg(cost) FROM v"
    with connected(sites(MANY), policy_of()) as db:
        first = ask(db, text, 3.0)
        assert abs(first.rows[0][0] - 4001) < 200
        assert abs(first.rows[0][1] - 10) < 5
        for _ in range(3):
            assert ask(db, text, 3.0).rows == first.rows
        with pytest.raises(AtollError, match=r"the epsilon of anna is 4 here: 3 is spent, and this answer takes 3"):
            ask(db, "SELECT count(*) FROM v WHERE cost > 5", 3.0)
        ask(db, "SELECT count(*) FROM v WHERE cost > 5", 1.0)
        with pytest.raises(AtollError, match=r"4 is spent, and this answer takes 0\.01"):
            ask(db, "SELECT count(*) FROM v WHERE cost > 6", 0.01)
        assert ask(db, text, 3.0).rows == first.rows
        ask(db, "SELECT count(*) FROM v WHERE cost > 6", 0.5, "ben")
        with pytest.raises(AtollError, match="carl has no budget for answers with noise"):
            ask(db, "SELECT count(*) FROM v", 0.5, "carl")


def test_groups_that_no_column_tells_are_listed_by_their_noised_units() -> None:
    """A diagnosis of one patient stays hidden, one of thousands is listed."""
    with connected(sites([*MANY, (5000, "A", "kuru", 1.0)]), policy_of()) as db:
        found = ask(db, "SELECT code, count(*) FROM v GROUP BY code", 2.0, delta=1e-5)
        assert [row[0] for row in found.rows] == ["flu"]
        assert found.privacy["delta"] == 1e-5
        with pytest.raises(AtollError, match=r"the delta of anna is 0\.0001 here"):
            ask(db, "SELECT code, count(*) FROM v WHERE cost > 1 GROUP BY code", 0.5, delta=9.5e-5)


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("SELECT max(cost) FROM v", "with noise"),
        ("SELECT sum(pid) FROM v", "only counts rows"),
        ("SELECT sum(cost / cost) FROM v", "the range of"),
        ("SELECT count(*) FROM v WHERE pid IN (SELECT pid FROM v WHERE cost > 3)", "one unit could move many rows"),
        ("SELECT code FROM v", "it asks for rows"),
    ],
)
def test_what_noise_cannot_hide_is_refused(text: str, match: str) -> None:
    with connected(sites(MANY), policy_of()) as db, pytest.raises(AtollError, match=match):
        ask(db, text)


def test_a_unit_at_two_sites_or_a_site_without_a_budget_is_refused() -> None:
    policy = policy_of()
    policy["tables"]["v"]["columns"] = {**COLUMNS, "pid": "private"}
    with connected(sites(MANY), policy) as db, pytest.raises(CompositionError, match="may have rows at several sites"):
        ask(db, "SELECT count(*) FROM v")
    del policy["policy"]["privacy"]
    with connected(sites(MANY), policy) as db, pytest.raises(AtollError, match="not all sites have a budget"):
        ask(db, "SELECT count(*) FROM v")
    with connected(sites(MANY), policy_of()) as db, pytest.raises(ConfigError, match="epsilon above 0"):
        ask(db, "SELECT count(*) FROM v", -1.0)


def test_a_site_takes_no_coordinators_word_for_bounds_and_budgets(tmp_path: Path) -> None:
    """A coordinator that sends wider bounds and a narrower range gets the site's own; one that names nobody gets nothing."""
    from atoll.query.local import plan_of
    from atoll.query.noised_plan import make_noised_plan
    from atoll.query.strategies.saqe import Saqe

    own = QueryPolicy.of(policy_of())
    with_site = Silo(TableSource({"v": (TYPES, MANY)}), own, "north")
    told = own.told({"v": list(TYPES)})
    told["noise"] = [50, 50]
    told["tables"]["v"]["columns"]["cost"][2:4] = [0.0, 1.0]
    plan = plan_of(with_site, {"sql": "SELECT sum(cost) FROM v", "catalog": {"v": TYPES}, "policy": told, "strategy": Saqe(epsilon=1.0).told()}, make_noised_plan, "saqe")  # fmt: skip
    with_site.close()
    assert plan.bounds == (1, 1)
    assert float(plan.numbers[0].most * plan.numbers[0].step) == 100.0


def test_no_site_is_charged_for_an_answer_that_another_one_refuses() -> None:
    silos = {name: Silo(source, QueryPolicy.of(policy_of(epsilon=epsilon)), name) for (name, source), epsilon in zip(sites(MANY).items(), (1, 0.5), strict=True)}  # fmt: skip
    with SqlConnection(silos) as db:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Silo, "run_all", lambda *given, **more: pytest.fail("a row was read"))
            with pytest.raises(AtollError, match=r"the epsilon of anna is 0\.5 here"):
                ask(db, "SELECT count(*) FROM v", 0.9)
        ask(db, "SELECT count(*) FROM v", 0.5)  # 0.9 more would be beyond the first site's 1


def test_an_answer_that_was_lost_is_charged_once(monkeypatch: Any) -> None:
    """The coordinator dies after the sites' noise is in the sum. Asked again, the statement gets that noise, at no further cost."""
    from atoll.core.errors import DataError
    from atoll.query import noised_plan

    text, seen = "SELECT count(*) FROM v", []

    def dies(plan: Any, cells: Any) -> Any:
        seen.append(cells)
        raise DataError("the coordinator dies", where="test")

    with connected(sites(MANY), policy_of()) as db:
        with monkeypatch.context() as patch:
            patch.setattr(noised_plan, "finish_cells", dies)
            with pytest.raises(DataError, match="dies"):
                ask(db, text, 3.0)
        assert [ask(db, text, 3.0).rows] == [[(int(row[0]),) for row in seen[0]]]
        ask(db, "SELECT count(*) FROM v WHERE cost > 5", 1.0)  # 3 were charged, and not 6


def test_a_coordinator_that_asks_a_group_twice_averages_no_noise(monkeypatch: Any) -> None:
    async def lies(self: Any, fed: Any, plan: Any, message: Any) -> Any:
        asked = {**message, "rates": [1.0, 1.0], "cells": [["A"], ["A"]], "sites": list(fed.parties.names)}
        return await fed.sum(fed.parties, saqe.add_noised, asked, reducer=self.reducer, quorum=len(fed.parties))

    monkeypatch.setattr(saqe.Saqe, "run", lies)
    with connected(sites(MANY), policy_of()) as db, pytest.raises(AtollError, match="a group is asked twice"):
        ask(db, "SELECT ward, count(*) FROM v GROUP BY ward")


@pytest.mark.parametrize("lie", [{"rates": [0.4]}, {"rates": [1.0, 1.0], "cells": [["A"], ["B"]]}], ids=["rates", "groups"])  # fmt: skip
def test_rates_and_groups_are_those_of_one_release(lie: dict[str, Any], tmp_path: Path, monkeypatch: Any) -> None:
    """A coordinator that asks a second time for other rates or groups gets nothing, in a later job either, and nothing is charged."""
    text, terms = "SELECT ward, count(*) FROM v GROUP BY ward", {"strategy": "saqe:sampler=stratified,sample=0.5"}
    if "cells" not in lie:
        lie = {"rates": [0.4, 0.4, 0.4]}
    rows = [(k, "ABC"[k % 3], "flu", 1.0) for k in range(300)]

    def opened() -> SqlConnection:
        return SqlConnection({name: Silo(source, QueryPolicy.of(policy_of()), name) for name, source in sites(rows).items()}, folder=tmp_path)  # fmt: skip

    with opened() as db:
        first = ask(db, text, 2.0, **terms).rows
        before = saqe.Saqe._add_noised
        with monkeypatch.context() as patch:
            patch.setattr(saqe.Saqe, "_add_noised", lambda self, fed, plan, message: before(self, fed, plan, {**message, **lie}))  # fmt: skip
            with pytest.raises(AtollError, match="left for other groups, rates or sites"):
                ask(db, text, 2.0, **terms)
    with opened() as db:
        assert ask(db, text, 2.0, **terms).rows == first
        ask(db, "SELECT count(*) FROM v", 2.0)


def test_a_repeated_statement_is_free_or_has_room_at_every_site(tmp_path: Path) -> None:
    """A group that was added since leaves the answer as it is. Another epsilon, or another analyst, is another answer: all sites have room for it, or none is charged."""
    text = "SELECT ward, count(*) FROM v GROUP BY ward"
    rows = {"north": [(1, "A", "flu", 1.0)], "south": [(2, "B", "flu", 1.0)]}

    def opened(south: float = 4.0) -> SqlConnection:
        return SqlConnection({name: Silo(TableSource({"v": (TYPES, some)}), QueryPolicy.of(policy_of(epsilon=4.0 if name == "north" else south)), name) for name, some in rows.items()}, folder=tmp_path)  # fmt: skip

    with opened() as db:
        first = ask(db, text, 2.0).rows
        rows["north"] += [(3, "C", "flu", 1.0)]
    with opened(south=1.0) as db:
        assert ask(db, text, 2.0).rows == first
        with pytest.raises(AtollError, match=r"the epsilon of anna is 1 here: 2 is spent, and this answer takes 0\.5"):
            ask(db, text, 0.5)
    with opened() as db:
        ask(db, text, 2.0, strategy="saqe:edition=2")  # 0.5 were charged nowhere


# ---------------------------------------------------------------- noise that no site knows


@pytest.mark.parametrize(("scale", "parts"), [(0.3, 1), (2.5, 2), (20.0, 4)])
def test_parts_add_up_to_the_wanted_law(scale: float, parts: int) -> None:
    """The sum of so many differences is discrete Laplace noise: its law, convolved number by number."""
    first, weights = LaplacePartLaw(scale, parts).weights()
    half = np.array([float(one) for one in weights[: int(40 * scale) + 40]])
    half /= half.sum()
    one = np.convolve(half, half[::-1])
    whole = one
    for _ in range(parts - 1):
        whole = np.convolve(whole, one)
    reach = len(whole) // 2
    wanted = np.exp(-np.abs(np.arange(-reach, reach + 1)) / scale)
    assert first == 0
    np.testing.assert_allclose(whole, wanted / wanted.sum(), atol=1e-13)
    spread = float((whole * np.arange(-reach, reach + 1.0) ** 2).sum())
    assert spread == pytest.approx(2 * parts * LaplacePartLaw(scale, parts).variance_of_law) == pytest.approx(DiscreteLaplaceLaw(scale).variance_of_law)  # fmt: skip


def test_no_site_knows_the_noise_of_an_answer_in_parts(tmp_path: Path) -> None:
    """Of 150 groups at three sites: what is left of the noise when one site takes its own off has the wanted law's spread, and the whole is half as much again; the answer says so."""
    rows = {f"s{site}": [(1000 * site + k, f"w{k:03d}", "x", 10.0) for k in range(150)] for site in range(3)}
    sources = {name: TableSource({"v": (TYPES, some)}) for name, some in rows.items()}
    silos = {name: Silo(source, QueryPolicy.of(policy_of(epsilon=100.0)), name) for name, source in sources.items()}
    text = "SELECT ward, count(*) AS n, sum(cost) AS s FROM v GROUP BY ward ORDER BY ward"
    with SqlConnection(silos, folder=tmp_path) as db:
        found = ask(db, text, 1.0, strategy="saqe:noise=shares")
        assert ask(db, text, 1.0, strategy="saqe:noise=shares").rows == found.rows
        own = ask(db, text, 1.0)
    kept = NamedResults(tmp_path)
    released = {one.party: np.array(next(x for x in kept.get(one.party, RECORD)["answers"] if x["kind"] == "numbers")["value"]).reshape(150, 2) for one in kept.all()}  # fmt: skip
    errors = np.array([[row[1] - 3, row[2] - 30.0] for row in found.rows])
    wanted = DiscreteLaplaceLaw(2.0).variance_of_law
    assert np.var(errors[:, 0]) == pytest.approx(1.5 * wanted, rel=0.8)
    for name in rows:
        assert np.var(errors[:, 0] - (released[name][:, 0] - 1)) == pytest.approx(wanted, rel=0.8)
    for column, name in enumerate(("COUNT(*)", 'SUM("v"."cost")')):
        assert errors[:, column].std() == pytest.approx(found.privacy["noise_std"][name], rel=0.25)
        assert found.privacy["noise_std"][name] == pytest.approx(own.privacy["noise_std"][name] / math.sqrt(2), rel=0.01)  # fmt: skip
    assert any("of all sites but any one" in one["sees"] for one in found.leakage)


def test_noise_in_parts_is_of_one_choice_of_sites(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums over three of four sites, one left out at a time, would tell each site's number with a part of the noise: an answer is of one choice, whatever the coordinator calls it."""
    terms: dict[str, Any] = {"epsilon": 1.0, "strategy": "saqe:noise=shares"}

    def opened(*places: int) -> SqlConnection:
        sources = {f"s{site}": TableSource({"v": (TYPES, [(site, "w", "x", 10.0)])}) for site in places}
        return SqlConnection({name: Silo(source, QueryPolicy.of(policy_of(epsilon=1.5)), name) for name, source in sources.items()}, folder=tmp_path)  # fmt: skip

    with opened(0, 1, 2) as db:
        assert ask(db, "SELECT count(*) FROM v", **terms).rows == ask(db, "SELECT count(*) FROM v", **terms).rows
    with opened(0, 1, 3) as db, pytest.raises(AtollError, match="answered among other sites than s0, s1, s3"):
        ask(db, "SELECT count(*) FROM v", **terms)
    with monkeypatch.context() as patch, opened(0, 1, 3) as db:
        for module in (saqe, releases):
            patch.setattr(module, "sites_of", lambda message: ["s0", "s1", "s2"])
        with pytest.raises(AtollError, match="left for other groups, rates or sites"):
            ask(db, "SELECT count(*) FROM v", **terms)
    with opened(0, 1, 3) as db, pytest.raises(AtollError, match="1 is spent, and this answer takes 1"):
        ask(db, "SELECT count(*) FROM v", epsilon=1.0, strategy="saqe:noise=shares,edition=2")


def test_noise_in_parts_that_has_no_law_is_refused() -> None:
    with connected(sites(MANY[:20]), policy_of()) as db:
        with pytest.raises(CompositionError, match="too small for noise in parts"):
            ask(db, "SELECT count(*) FROM v", 1e-4, strategy="saqe:noise=shares")
        with pytest.raises(ConfigError, match="use own or shares"):
            ask(db, "SELECT count(*) FROM v", 1.0, strategy="saqe:noise=loud")
        half = ask(db, "SELECT count(*) FROM v", 3.0, strategy="saqe:noise=shares,sample=0.5")
        assert half.approximate["rate"] == 0.5
    with pytest.raises(ConfigError, match="of 1 party"):
        draw_laplace_part(1.0, 1, lambda count: np.zeros(count, np.uint64), 1)
    with pytest.raises(ConfigError, match="parts=0"):
        LaplacePartLaw(1.0, 0)
