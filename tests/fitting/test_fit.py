"""The job: every way of running it gives the same, and what parties tell stands for enough rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import atoll
from atoll.core.errors import AtollError, DataError, MessageError, PolicyError
from atoll.data import Dataset, Islands
from atoll.data.units import compare_numbers
from atoll.fitting import GLM, PCA, SVM, Fit, FittedModel, GaussianMixture, KaplanMeier, KMeans, NaiveBayes, Ridge
from atoll.fitting.method import AtParty
from atoll.fitting.methods.kmeans import _together_only
from atoll.fitting.program import fitted
from atoll.fitting.rows import PartyRows
from atoll.reducers import SecureAggregation
from atoll.runs import RunFolder, execute, parse_config
from atoll.testing import Timetable
from tests.support.flowers import COLUMNS, PARTS, X, Y, fit, frame, parties

SAVED = [
    (KMeans(clusters=3, centres=X[:3].tolist()), {}),
    (GaussianMixture(components=2), {}),
    (PCA(components=2), {"scale": "standard"}),
    (NaiveBayes(), {"label": "y"}),
    (Ridge(), {"columns": COLUMNS[:3], "label": "d"}),
    (GLM(alpha=1.0), {"label": "y"}),
    (SVM(kernel="linear"), {"label": "y"}),
]


@pytest.mark.parametrize(("model", "settings"), SAVED, ids=[type(model).__name__ for model, _ in SAVED])
def test_a_saved_model_comes_back_to_the_bit(model: Any, settings: dict[str, Any], tmp_path: Path) -> None:
    found = fit(model, **settings)
    found.save(tmp_path / "fit.json")
    again = FittedModel.load(tmp_path / "fit.json")
    for name, value in found.params.items():
        assert np.array_equal(np.asarray(again[name]), np.asarray(value))
    rows = frame()[list(settings.get("columns", COLUMNS))]
    assert np.array_equal(again.predict(rows), found.predict(rows))
    assert again.layout == found.layout
    assert again.score(frame()) == found.score(frame())


@pytest.mark.every(3)
@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"format": "atoll.fit/9"}, "its format is 'atoll.fit/9'"),
        ({"method": "os.system"}, "its method is 'os.system'"),
        ({"params": {"centres": {"values": [1], "dtype": "|O"}}}, r"an array of type \|O"),
        ({"settings": {"clusters": "many"}}, "clusters='many'"),
        ({"layout": {}}, "is not a fitted model"),
    ],
)
def test_a_file_that_is_no_model_is_refused(change: dict[str, Any], match: str, tmp_path: Path) -> None:
    whole = json.loads(fit(KMeans(clusters=2)).to_json())
    (tmp_path / "fit.json").write_text(json.dumps({**whole, **change}))
    with pytest.raises(AtollError, match=match):
        FittedModel.load(tmp_path / "fit.json")


@pytest.mark.quick("socket")
@pytest.mark.parametrize("engine", ["batched", "processes", "socket"])
def test_every_engine_finds_the_same(engine: str) -> None:
    job = Fit(model=KMeans(clusters=3), columns=COLUMNS, scale="robust")
    found = atoll.simulate(job, parties(), engine=engine, workers=2, progress=False).outcome
    assert found.plain() == fit(KMeans(clusters=3), scale="robust").plain()


def test_stopped_and_resumed_it_is_the_same(tmp_path: Path) -> None:
    job = Fit(model=KMeans(clusters=3), columns=COLUMNS, impute="median")
    few = Fit(model=KMeans(clusters=3), columns=COLUMNS, impute="median", rounds=3)
    first = atoll.simulate(few, parties(), engine="inline", folder=tmp_path / "run", progress=False).outcome
    assert first.told["converged"] is False
    whole = atoll.simulate(job, parties(), engine="inline", progress=False).outcome
    again = atoll.simulate(
        few, parties(), engine="inline", folder=tmp_path / "run", resume=True, progress=False
    ).outcome
    assert again.plain() == first.plain()
    assert whole.told["contacts"] > 3


@pytest.mark.parametrize(
    "model", [KMeans(clusters=3), GLM(alpha=1.0), GaussianMixture(components=2)], ids=["kmeans", "glm", "mixture"]
)
def test_a_killed_job_ends_as_if_it_had_not_been(model: Any, tmp_path: Path) -> None:
    from atoll.core.world import World
    from atoll.engines import ENGINES
    from atoll.testing import killed_and_resumed

    settings: dict[str, Any] = {"label": "y"} if isinstance(model, GLM) else {}
    job = Fit(model=model, columns=COLUMNS, **settings)
    data = atoll.data.federated.as_population(parties())
    life = killed_and_resumed(
        lambda folder, resume: World(data, ENGINES["inline"](1), folder=folder, resume=resume), job, tmp_path, points=3
    )
    assert life.result.plain() == fit(model, **settings).plain()
    assert list(life.files) == ["fit.json"]


def test_a_configuration_gives_a_folder_with_the_model(tmp_path: Path) -> None:
    data = {"source": "iris", "partition": {"name": "iid", "parties": 4, "seed": 1}}
    settings = {
        "job": "fit", "data": data, "model": {"name": "KMeans", "clusters": 3}, "columns": ["petal length", "petal width"], "min_count": 5
    }  # fmt: skip
    names = atoll.data.iris().about.features
    settings["columns"] = list(names[2:])
    folder = RunFolder(tmp_path / "run")
    result = execute(parse_config(settings), folder)
    assert folder.config().made() == Fit(model=KMeans(clusters=3), columns=tuple(names[2:]), min_count=5)
    kept = FittedModel.load(folder.path / "fit.json")
    assert np.array_equal(kept["centres"], result.outcome["centres"])
    assert folder.manifest()["result"]["method"] == "KMeans"
    assert [row["phase"] for row in folder.metrics()][:2] == ["proposals", "lloyd"]
    assert folder.report_file.exists()


def test_sites_find_what_the_simulation_finds(tmp_path: Path) -> None:
    from atoll.runtime.worker.sitedata import load_site_data
    from tests.support.work_toys import held

    table = frame()
    table.loc[::7, "a"] = np.nan
    for name, rows in parties(table).items():
        rows.to_csv(tmp_path / f"{name}.csv", index=False)
    specs = {name: {"path": str(tmp_path / f"{name}.csv"), "policy": {"min_count": 5}} for name in PARTS}
    sites = {name: (lambda name=name: load_site_data(specs[name], name, reads="table")) for name in specs}
    job = {
        "job": "fit",
        "model": {"name": "GLM", "alpha": 0.5},
        "label": "y",
        "impute": "mean",
        "scale": "standard",
        "min_count": 5,
    }
    told = held(job, sites, tmp_path / "job")
    assert told["status"] == "finished"
    simulated = fit(GLM(alpha=0.5), parties(table), columns=(), label="y", impute="mean", scale="standard", min_count=5)
    np.testing.assert_allclose(told["result"]["params"]["coef"], simulated["coef"], rtol=1e-9)
    file = next((tmp_path / "job").rglob("fit.json"))
    assert FittedModel.load(file).score(table) == simulated.score(table)
    with pytest.raises(AtollError, match="min_count=1, but this site requires at least 5 rows"):
        held({**job, "min_count": 1}, sites, tmp_path / "other")


def test_sites_refuse_a_method_by_its_name() -> None:
    from atoll.core.requests.policy import SitePolicy

    with pytest.raises(PolicyError, match="SVM"):
        atoll.simulate(
            Fit(model=SVM(), label="y"), parties(), engine="inline", policy=SitePolicy(allow=("KMeans", "GLM"))
        )
    atoll.simulate(
        Fit(model=GLM(alpha=1.0), label="y"), parties(), engine="inline", policy=SitePolicy(allow=("fit", "GLM"))
    )


def test_sites_that_give_sums_only_take_part() -> None:
    from atoll.core.requests.policy import SitePolicy
    from atoll.reducers import SecureAggregation

    policy = SitePolicy(sums_only=True, smallest_cohort=3, min_count=5)
    reducer = SecureAggregation(server="active", least=3)
    agreed: dict[str, Any] = {
        "columns": COLUMNS,
        "label": "y",
        "categories": {"y": ["0", "1", "2"]},
        "scale": "robust",
        "min_count": 5,
    }
    found = atoll.simulate(
        Fit(model=GLM(alpha=1.0), reducer=reducer, **agreed), parties(), engine="inline", policy=policy
    ).outcome
    np.testing.assert_allclose(found["coef"], fit(GLM(alpha=1.0), **agreed)["coef"], rtol=1e-9)
    with pytest.raises(PolicyError, match="this site gives sums only"):
        atoll.simulate(Fit(model=GLM(alpha=1.0), **agreed), parties(), engine="inline", policy=policy)


def test_it_says_who_sees_what() -> None:
    from atoll.reducers import SecureAggregation

    said = Fit(model=KMeans(clusters=3), min_count=5).explain(clients=4)
    assert [one.sees for one in said.exposures] == ["the reply of every client"]
    assert any("each party's one-shot and proposals" in note for note in said.notes)
    assert said.notes[-1] == "what stands for fewer than 5 rows of a party is not told"
    hidden = Fit(model=KMeans(clusters=3, start_from="moments"), reducer=SecureAggregation()).explain(clients=4)
    assert not any("proposals" in note for note in hidden.notes)
    assert "sum" in hidden.exposures[0].sees
    noised = Fit(model=KaplanMeier(times=[1, 2], epsilon=0.5)).explain()
    assert noised.notes[-1].startswith("differential privacy of each row: ")
    assert "0.5" in noised.notes[-1]


def test_a_party_that_does_not_reply_is_left_out_where_the_quorum_allows_it() -> None:
    lost = Timetable({}, lost={"replied": ["west"]})
    job = Fit(model=Ridge(), columns=COLUMNS[:3], label="d")
    with pytest.raises(AtollError, match="2 of 3"):
        atoll.simulate(job, parties(), engine="inline", devices=lost, progress=False)
    two = Fit(model=Ridge(), columns=COLUMNS[:3], label="d", quorum=2)
    found = atoll.simulate(two, parties(), engine="inline", devices=lost, progress=False).outcome
    alone = fit(Ridge(), {name: parties()[name] for name in ("north", "south")}, columns=COLUMNS[:3], label="d")
    np.testing.assert_allclose(found["coef"], alone["coef"], rtol=1e-12)
    assert found.told["rows"] == 100


def test_data_sets_are_tables_too() -> None:
    islands = Islands.from_datasets(
        {name: Dataset({"x": X[rows], "y": Y[rows]}, classes=3) for name, rows in PARTS.items()}
    )
    found = atoll.simulate(Fit(model=GLM(alpha=1.0), label="y"), islands, engine="inline", progress=False).outcome
    np.testing.assert_allclose(found["coef"], fit(GLM(alpha=1.0), label="y")["coef"], rtol=1e-9)
    with pytest.raises(DataError, match=r"an array of shape \(150, 2\)"):
        found.predict(X[:, :2])


# ------------------------------------------------------------------ what single rows show through


def test_a_party_with_few_rows_tells_nothing_of_them() -> None:
    table = {**parties(), "tiny": frame()[:4]}
    found = fit(Ridge(), table, columns=COLUMNS[:3], label="d", min_count=5)
    whole = fit(Ridge(), columns=COLUMNS[:3], label="d")
    np.testing.assert_allclose(found["coef"], whole["coef"], rtol=1e-12)
    assert (found.told["rows"], found.told["withheld"]) == (150, 4)
    with pytest.raises(DataError, match="no party has a usable row: 4 rows are at parties with fewer than min_count=5"):
        fit(Ridge(), {"tiny": frame()[:4]}, columns=COLUMNS[:3], label="d", min_count=5)


def told_by(
    model: Any, x: Any, state: dict[str, Any], least: int, memory: Any = None
) -> tuple[dict[str, Any], AtParty]:
    party = AtParty(np.random.default_rng(0), None, memory)
    return model.reply(PartyRows(x, np.zeros(len(x)), {}, "one", least), state, party), party


def test_a_lone_row_is_seen_without_a_minimum_count_and_not_with_one() -> None:
    draw = np.random.default_rng(2)
    x = np.concatenate([draw.normal(size=(40, 2)) + 3, draw.normal(size=(40, 2)) + 20, [[99.0, -99.0]]])
    state = {"phase": "lloyd", "centres": np.array([[0.0, 0.0], [20.0, 20.0], [90.0, -90.0]])}
    open_, _ = told_by(KMeans(clusters=3), x, state, 1)
    assert (open_["sums"][2] + state["centres"][2]).tolist() == [99.0, -99.0]  # the attack: a cluster of one is the row
    hidden, _ = told_by(KMeans(clusters=3), x, state, 5)
    assert hidden["sizes"][2] == 0
    assert ((hidden["sizes"] == 0) | (hidden["sizes"] >= 5)).all()
    # Nor does it follow from the sum of all rows, which scaling asks for: a second cluster is hidden with it.
    left = x.sum(axis=0) - (hidden["sums"] + hidden["sizes"][:, None] * state["centres"]).sum(axis=0)
    assert (hidden["sizes"] == 0).sum() == 2
    assert np.abs(left - [99.0, -99.0]).max() > 10


def test_two_answers_never_differ_by_few_rows() -> None:
    draw = np.random.default_rng(3)
    x, model = draw.normal(size=(300, 2)), KMeans(clusters=3)
    centres, memory, member = x[:3].copy(), None, None
    for _ in range(12):
        _, party = told_by(model, x, {"phase": "lloyd", "centres": centres}, 8, memory)
        memory = party.memory
        if member is not None:
            moves = pd.Series(list(zip(member[member != memory], memory[member != memory], strict=True))).value_counts()
            assert (moves >= 8).all()
        member = memory
        centres = np.array([x[memory == k].mean(axis=0) for k in range(3)])
    nearest = ((x[:, None] - centres) ** 2).sum(axis=2).argmin(axis=1)
    moves = pd.Series(list(zip(memory, nearest, strict=True))).value_counts()  # those that wait are too few
    assert all(count < 8 for (old, new), count in moves.items() if old != new)
    assert _together_only(np.array([1, 1, 0]), np.array([0, 0, 0]), 2).tolist() == [1, 1, 0]
    assert _together_only(np.array([1, 2, 0]), np.array([0, 0, 0]), 2).tolist() == [0, 0, 0]


def test_proposals_and_classes_of_few_rows_are_not_told() -> None:
    x = np.concatenate([np.zeros((30, 2)), [[50.0, 50.0]]])
    rows = PartyRows(x + np.random.default_rng(0).normal(size=x.shape), np.array([0] * 30 + [1]), {}, "one", 5)
    told = KMeans(clusters=2).proposal(rows, {"phase": "proposals"}, AtParty(np.random.default_rng(0), None))
    assert (told["sizes"] >= 5).all()
    assert np.abs(told["centres"]).max() < 10
    counts = NaiveBayes().reply(
        rows, {"phase": "sums", "classes": 2, "levels": []}, AtParty(np.random.default_rng(0), None)
    )
    assert counts["counts"].tolist() == [0, 0]  # the other class is the sum of all rows but one


def test_rows_that_differ_from_an_earlier_answer_by_few_are_refused(tmp_path: Path) -> None:
    job = Fit(model=Ridge(), columns=COLUMNS[:3], label="d", min_count=5)
    atoll.simulate(job, parties(), engine="inline", results=tmp_path, progress=False)
    atoll.simulate(
        Fit(model=PCA(), columns=COLUMNS, min_count=5), parties(), engine="inline", results=tmp_path, progress=False
    )
    fewer = {**parties(), "west": parties()["west"][1:]}
    with pytest.raises(AtollError, match="of the earlier request 'fit of Ridge' is fewer than min_count=5 rows"):
        atoll.simulate(job, fewer, engine="inline", results=tmp_path, progress=False)


def test_kaplan_meier_with_noise_tells_no_row_counts() -> None:
    table = frame().assign(time=np.arange(150.0), event=1)
    table.loc[:9, "time"] = np.nan
    found = atoll.simulate(
        Fit(model=KaplanMeier(times=[50, 200], epsilon=1.0)), parties(table), engine="inline", progress=False
    ).outcome
    assert found.told["rows"] == 150  # the sizes of the tables, not how many have a time


def _fit_at_sites(monkeypatch: pytest.MonkeyPatch, tables: dict[str, pd.DataFrame], **more: Any) -> list[str]:
    """The notes of a fit whose program believes that its parties are sites."""

    async def program(self: Any, fed: Any) -> FittedModel:
        return await fitted(fed, self.job, self.contacts, at_sites=True)

    monkeypatch.setattr("atoll.fitting.job._PreparedFit.program", program)
    job = Fit(model=Ridge(), label="dose", **more)
    found = atoll.simulate(job, tables, engine="inline", progress=False).outcome
    return list(found.told.get("notes", ()))


def test_sites_of_a_fit_tell_where_their_numbers_lie_unless_sums_are_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(4)
    tables = {
        site: pd.DataFrame(
            {"age": rng.normal(50, 9, 60), "weight": rng.normal(70, 8, 60), "dose": rng.normal(5, 1, 60)}
        )
        for site in ("north", "south", "west")
    }
    assert _fit_at_sites(monkeypatch, tables) == []
    tables["west"]["age"] *= 365.25
    tables["south"].loc[:14, "weight"] = -99.0
    days, missing = _fit_at_sites(monkeypatch, tables, min_count=5)
    assert days.startswith("column 'age' of site 'west' lies around") or "column 'age' of site 'west' is about" in days
    assert missing.startswith("column 'weight' has -99 in 15 rows of site 'south', unlike all other values")
    few = _fit_at_sites(monkeypatch, tables, min_count=20)
    assert [line for line in few if "-99" in line] == []  # fifteen rows are fewer than may be told
    masked = Fit(model=Ridge(), label="dose", columns=["age", "weight"], reducer=SecureAggregation())
    assert not any("other" in note for note in masked.explain(tables).notes)
    assert any(
        "roughly where its numbers lie" in note for note in Fit(model=Ridge(), label="dose").explain(tables).notes
    )
    assert _fit_at_sites(monkeypatch, tables, columns=["age", "weight"], reducer=SecureAggregation()) == []


@pytest.mark.parametrize("signs", [{"age": [[1, 2]]}, {"age": [["x", 2]]}, {1: [[-99.0, 2]]}])
def test_what_a_site_tells_of_its_numbers_is_numbers(signs: Any) -> None:
    with pytest.raises(MessageError, match="no numbers of columns"):
        compare_numbers({"north": {"extents": {}, "signs": signs}})
