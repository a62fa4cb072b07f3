"""A report leads with what its kind of job found, for people who read it: names, whole rounds, rounded numbers, the job's name."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import atoll
from atoll.data import Dataset, Islands
from atoll.fitting import GLM, PCA, Cox, Fit, KaplanMeier, KMeans
from atoll.learn.round.evaluation import scores
from atoll.query import Query
from atoll.report import figures, write_report
from atoll.report.facts import Facts, partition_facts
from atoll.report.page import _round_numbers, _told_result
from atoll.trees import Trees
from atoll.trees.page import calibration
from atoll.truth import CRH, OneCoin, PlainReplies
from atoll.vertical import SecureBoost, Vertical
from tests.report.test_report import Page

COLUMNS = ["age", "bmi", "sugar"]
PARTS = {"north": (0, 80), "south": (1, 70), "a hospital": (2, 50)}


def table(seed: int, size: int) -> dict[str, Any]:
    draw = np.random.default_rng(seed)
    x = draw.normal(size=(size, 3))
    died = (draw.random(size) < 1 / (1 + np.exp(-2 * x[:, 0]))).astype(int)
    time = np.round(draw.exponential(np.exp(-x[:, 0]) * 10) + 0.1, 0)
    return {
        "age": x[:, 0], "bmi": x[:, 1], "sugar": x[:, 2], "died": died, "time": time, "event": (draw.random(size) < 0.7).astype(int),
        "arm": np.where(draw.random(size) < 0.5, "drug", "placebo"),
    }  # fmt: skip


def rows_of(part: dict[str, Any]) -> Dataset:
    x = np.stack([part[name] for name in COLUMNS], axis=1).astype(np.float32)
    return Dataset({"x": x, "y": part["died"]}, classes=2, features=COLUMNS, labels=["alive", "dead"])


TABLES = {name: table(*part) for name, part in PARTS.items()}


@pytest.fixture(scope="module")
def islands() -> Islands:
    return Islands.from_datasets({name: rows_of(part) for name, part in TABLES.items()}).with_test(
        rows_of(table(9, 150))
    )


def page_of(job: Any, data: Any, tmp_path: Path, **options: Any) -> tuple[Any, Page, str]:
    result = atoll.simulate(job, data, engine="inline", progress=False, **options)
    html = result.report(tmp_path / "page.html").read_text(encoding="utf-8")
    return result, Page(html), " ".join(re.sub(r"<[^>]*>", " ", html[html.index("<main>") :]).split())


def sections_of(job: Any, data: Any) -> tuple[Any, list[Any]]:
    """What a job found, and its sections, which are not drawn."""
    result = atoll.simulate(job, data, engine="inline", progress=False)
    return result.outcome, list(result.prepared.sections(result.outcome))


def figure_of(html: str, name: str) -> str:
    return html[html.index(f'aria-label="{name}"') :].partition("</svg>")[0]


def test_trees_lead_with_auc_calibration_and_importance(islands: Islands, tmp_path: Path) -> None:
    from sklearn.metrics import roc_auc_score

    result, page, text = page_of(Trees(rounds=5, max_depth=2), islands, tmp_path)
    value = roc_auc_score(islands.test.y, result.outcome.predict(islands.test.x))
    assert text.index(f"test AUC {value:.4f} 150 rows that no site trained on") < text.index("clients 3")
    assert page.figures[:2] == ["calibration", "importance"]
    assert "most important age" in text
    assert "0 asked a round" not in text


def test_trees_without_test_rows_say_that_nothing_measures_them(islands: Islands) -> None:
    _, (first, second) = sections_of(Trees(rounds=2, max_depth=2), islands.with_test(None))
    assert "The server has no test rows" in first["text"]
    assert [one["name"] for one in second["figures"]] == ["importance"]


def test_calibration_is_the_mean_and_the_share_of_each_tenth() -> None:
    y, p = np.array([0, 1, 1, 0, 1, 1]), np.array([0.0, 0.1, 0.15, 0.95, 1.0, 0.55])
    mean, came, count = calibration(y, p)
    np.testing.assert_allclose(mean, [0.0, 0.125, 0.55, 0.975])  # 0.1 is of the second tenth, 1 of the last
    np.testing.assert_allclose(came, [0.0, 1.0, 1.0, 0.5])
    np.testing.assert_array_equal(count, [1, 2, 1, 2])


def test_a_linear_fit_leads_with_its_coefficients() -> None:
    outcome, (first, *_) = sections_of(Fit(model=GLM(), label="died", columns=COLUMNS), TABLES)
    keys = ("estimate", "error", "low", "high", "p")
    rows = [[name, *(f"{one[key]:.5g}" for key in keys[:-1])] for name, one in outcome.coefficients.items()]
    assert [row[:5] for row in first["tables"][0]["rows"]] == rows
    (figure,) = first["figures"]
    assert (figure["kind"], figure["labels"]) == ("intervals", COLUMNS)  # without the intercept
    assert figure["low"] == [outcome.coefficients[name]["low"] for name in COLUMNS]
    assert first["tiles"][0] == ["method", "GLM", "converged"]


def test_survival_leads_with_its_curve() -> None:
    job = Fit(model=KaplanMeier(time="time", event="event", by="arm"), categories={"arm": ["drug", "placebo"]})
    outcome, (first, *_) = sections_of(job, TABLES)
    (figure,) = first["figures"]
    assert (figure["kind"], [one["name"] for one in figure["series"]]) == ("steps", ["drug", "placebo"])
    for k, (arm, _, events, median) in enumerate(first["tables"][0]["rows"]):
        np.testing.assert_array_equal(figure["series"][k]["values"][1:], outcome["survival"][k])
        assert (arm, events, median) == (
            ("drug", "placebo")[k],
            f"{outcome['events'][k].sum():.0f}",
            f"{outcome['median'][k]:.5g}",
        )
    _, (cox, *_) = sections_of(Fit(model=Cox(time="time", event="event"), columns=COLUMNS), TABLES)
    assert cox["title"] == "Hazard ratios"


@pytest.mark.parametrize(
    ("model", "title"), [(KMeans(clusters=2, iterations=3), "Clusters"), (PCA(components=2), "Components")]
)
def test_clusters_and_components_lead_with_theirs(model: Any, title: str) -> None:
    assert sections_of(Fit(model=model, columns=COLUMNS), TABLES)[1][0]["title"] == title


def test_columns_at_several_parties_lead_with_the_joint_model_beside_the_guests_own() -> None:
    ids = np.arange(60)
    first, *others = TABLES.values()
    bank = {"id": ids, **{name: first[name][:60] for name in ("age", "died")}}
    shop = {"id": ids, "sugar": others[0]["sugar"][:60]}
    job = Vertical(model=SecureBoost(trees=2, depth=2, security="none"), label="died")
    outcome, (first, learns) = sections_of(job, {"bank": bank, "shop": shop})
    scores = [outcome.scores[f"test/{arm}/auc"] for arm in ("alone", "federated")]
    assert first["tiles"] == [["test auc", f"{scores[1]:.4f}", f"bank alone: {scores[0]:.4f}"]]
    assert (first["figures"][0]["labels"], first["figures"][0]["series"][0]["values"]) == (["alone", "federated"], scores)  # fmt: skip
    assert {party for party, _ in learns["tables"][0]["rows"]} == {"bank", "shop"}


def test_the_truth_leads_with_it(tmp_path: Path) -> None:
    told = {f"p{k}": {"a": "duck" if k < 3 else "goose", "b": "duck" if k < 3 else "goose"} for k in range(4)}
    rows = [(task, worker, label) for task, own in told.items() for worker, label in own.items()]
    job = atoll.Truth(model=OneCoin(iterations=2), protocol=PlainReplies())
    result, page, text = page_of(job, atoll.truth.split_by_worker(rows), tmp_path)
    assert text.index("tasks 4 8 reports of 2 workers") < text.index("rounds")
    assert page.figures[:1] == ["tasks by truth"]
    (section,) = result.prepared.sections(result.outcome)
    truths = [(task, truth) for task, truth, _ in section["tables"][0]["rows"]]
    assert truths == [("p0", "duck"), ("p1", "duck"), ("p2", "duck"), ("p3", "goose")]
    numbers = [(task, worker, k + 0.123456789) for k, task in enumerate(told) for worker in "ab"]
    _, (section,) = sections_of(atoll.Truth(model=CRH(iterations=1), protocol=PlainReplies()), atoll.truth.split_by_worker(numbers))  # fmt: skip
    assert section["tables"][0]["rows"][0] == ["p0", "0.123457", "-"]


def test_a_statement_leads_with_its_answer(tmp_path: Path) -> None:
    (tmp_path / "policy.yaml").write_text("policy: {min_count: 2}\ntables: {visits: {columns: {ward: {level: public}}}}\n")  # fmt: skip
    silos = {}
    for name, wards in (("north", "AAB"), ("south", "ABB"), ("west", "AC")):
        silos[name] = tmp_path / name
        silos[name].mkdir()
        (silos[name] / "visits.csv").write_text("ward\n" + "\n".join(wards) + "\n")
    with atoll.query.connect(silos=silos, policy=tmp_path / "policy.yaml") as db:
        asked = Query(sql="SELECT ward, count(*) AS n FROM visits GROUP BY ward ORDER BY ward", strategy="sums")
        _, (answer, learns) = sections_of(asked, db.silos)
        assert answer["tables"] == [{"head": ["ward", "n"], "rows": [["A", "4"], ["B", "3"]]}]
        assert "1 group is withheld" in answer["text"]
        assert learns["tables"][0]["rows"]
        _, sections = sections_of(Query(sql="EXPLAIN SELECT count(*) FROM visits", strategy="sums"), db.silos)
        assert [one["title"] for one in sections] == ["Plan", "Who learns what"]


def test_a_program_leads_with_its_result() -> None:
    facts = Facts("own", "finished", [], "", {}, result={"mean": 0.123456789, "rows": 2000, "site": {"north": True}})
    (section,) = _told_result(facts)
    assert section["tables"][0]["rows"] == [["mean", "0.123457"], ["rows", "2,000"], ["site.north", "True"]]


def test_a_few_clients_are_bars_with_names_and_a_job_between_sites_has_its_name(
    islands: Islands, tmp_path: Path
) -> None:
    """At the server the folder of a job is called ``state``."""
    evaluation = atoll.Evaluation(clients=-1)
    job = atoll.Training(model=atoll.models.linear(3, 2), selection=atoll.Everyone(), rounds=2, evaluation=evaluation)
    result = atoll.simulate(job, islands, engine="inline", folder=tmp_path / "state", progress=False)
    config = tmp_path / "state" / "config.yaml"
    config.write_text(
        re.sub(r"(?m)^name: .*$", "name: tumours of the lung", config.read_text()) + "\nsites: [north, south]\n"
    )
    html = write_report(tmp_path / "state").read_text()
    assert "<h1>tumours of the lung</h1>" in html
    assert "<title>tumours of the lung" in html

    # Oracle: the model of the result on each client's own rows.
    own = {
        shard.name: scores(result.prepared.learner.evaluate(result.params, shard.dataset()))["accuracy"]
        for shard in islands
    }
    by_value = sorted(own, key=lambda name: own[name])
    words = [
        word.strip() for word in re.findall(r"<text[^>]*>([^<]*)</text>", figure_of(html, "accuracy over clients"))
    ]
    assert len(set(own.values())) == 3
    assert [word for word in words if word in own] == by_value
    assert [word for word in words if re.fullmatch(r"\d+\.\d %", word)] == [
        f"{100 * own[name]:.1f} %" for name in by_value
    ]
    assert all(f">{name}<" in figure_of(html, "partition of the data") for name in own)
    assert "How many clients have which accuracy" not in html

    # Rounds are whole.
    for name in ("learning curves", "bytes sent"):
        ticks = re.findall(r'id="[^"]*xtick_\d+">.*?<text[^>]*>([^<]*)</text>', figure_of(html, name), re.DOTALL)
        assert {"1", "2"} <= set(ticks)
        assert "1.5" not in ticks


def test_many_clients_are_counted() -> None:
    data = atoll.data.iid(atoll.data.iris(), parties=21, seed=0)
    assert "client_names" not in partition_facts(data)
    assert partition_facts(data.subset(range(20)))["client_sizes"] == data.sizes[:20].tolist()


def test_clients_that_are_counted_are_whole(tmp_path: Path) -> None:
    """The axis of a histogram of clients had half clients; a curve's card counted its features: 0."""
    data = atoll.data.dirichlet(atoll.data.digits(), parties=21, alpha=0.5, seed=0)
    evaluation = atoll.Evaluation(clients=-1)
    job = atoll.Training(model=atoll.models.linear(64, 10), selection=atoll.Uniform(3), rounds=1, evaluation=evaluation)
    atoll.simulate(job, data, engine="inline", folder=tmp_path / "run", progress=False)
    html = write_report(tmp_path / "run").read_text()
    for name in ("accuracy over clients", "participation of devices"):
        ticks = re.findall(r'id="[^"]*ytick_\d+">.*?<text[^>]*>([^<]*)</text>', figure_of(html, name), re.DOTALL)
        counts = [float(tick) for tick in ticks if "%" not in tick]
        assert len(counts) > 1
        assert all(count == int(count) for count in counts)
    _, (first, *_) = sections_of(Fit(model=KaplanMeier(time="time", event="event")), TABLES)
    assert not any("0 features" in word for tile in first["tiles"] for word in tile)


def test_sites_that_count_as_one_row_each_have_no_picture_of_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Databases, for one: a statement's report then needs no plotting library, which takes longer than the answer."""
    drawn: list[str] = []
    monkeypatch.setattr(figures, "figure", lambda name, *_, **__: drawn.append(name))
    for sizes in ([1, 1, 1], [1, 2, 1]):
        islands = Islands.from_owner(Dataset({"x": np.zeros(sum(sizes))}), np.repeat(np.arange(3), sizes), 3)
        figures.partition_figure(SimpleNamespace(data=partition_facts(islands)))  # type: ignore[arg-type]
    assert drawn == ["partition of the data"]


def test_reasons_on_cards_are_rounded() -> None:
    raw = "test/accuracy 0.8333333333333334 reached 0.8 after 12 rounds"
    assert _round_numbers(raw) == "test/accuracy 0.83333 reached 0.8 after 12 rounds"
