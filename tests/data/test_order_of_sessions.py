"""The law of order for jobs whose parties speak to each other, for statements and for reports: no permutation of columns, clients or silos changes an answer. Others: `test_order_laws`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import atoll
import atoll.query
from atoll.data import from_dataframes
from atoll.fitting import PCA, Fit, GaussianMixture, KMeans
from atoll.secure.encrypted import Paillier
from atoll.secure.psi import Alignment, Ecdh, Linkage, Opprf
from atoll.truth import DawidSkene, fit_reports, read_reports, read_sites
from atoll.vertical import (
    VAFL,
    FedGKT,
    SecureBoost,
    SplitFed,
    SplitNet,
    Vertical,
    VerticalLinear,
    VerticalPrediction,
    VerticalStatistics,
)
from atoll.vertical.tables import PartyTable

SHORT = Paillier(key_bits=512, insecure=True)
Frames = dict[str, pd.DataFrame]


def parties() -> Frames:
    """Columns of the same forty people at two parties."""
    r, ids = np.random.default_rng(3), [f"p{k}" for k in range(40)]
    bank = pd.DataFrame({"id": ids, "age": r.normal(size=40), "dose": r.normal(size=40)})
    bank["y"] = (bank.age + r.normal(size=40) > 0).astype(int)
    shop = pd.DataFrame({"id": ids[::-1], "visits": r.normal(size=40), "fee": r.normal(size=40)})
    return {"bank": bank, "shop": shop}


def people() -> Frames:
    r = np.random.default_rng(4)
    rows = pd.DataFrame(
        {"name": [f"anna-{chr(97 + k)}{chr(107 - k)} smith" for k in range(8)], "town": ["bonn", "oslo"] * 4}
    )
    rows["visits"] = r.integers(0, 9, 8)
    return {"east": rows, "west": rows.assign(name=rows.name.str.replace("smith", "smyth"))}


def clients() -> Frames:
    made = {}
    for k, name in enumerate(("a", "b", "c")):
        r = np.random.default_rng(k)
        made[name] = pd.DataFrame(
            {"age": r.normal(size=30 + k), "dose": r.normal(size=30 + k), "fee": r.normal(size=30 + k)}
        )
        made[name]["y"] = (made[name].age > made[name].fee).astype(int)
    return made


def turned(frames: Frames, first: bool = True) -> Frames:
    """The same tables with the parties, and the columns of all or of all but the first party, in another order."""
    own = next(iter(frames))
    return {n: frames[n][frames[n].columns[::-1]] if first or n != own else frames[n] for n in reversed(list(frames))}


def _run(job: Any, data: Any, folder: Path | None = None) -> Any:
    return atoll.simulate(job, data, engine="inline", progress=False, **({"results": folder} if folder else {}))


def _evidence(frames: Frames, _: Path) -> Any:
    found = _run(VerticalStatistics(bins=3, guest="bank", cipher=SHORT), frames)
    return {name: values[0] for name, values in found.iv.items()}


def _correlations(frames: Frames, _: Path) -> Any:
    names, matrix = _run(VerticalStatistics(statistic="correlation", guest="bank", cipher=SHORT), frames).correlation
    return {f"{a} {b}": matrix[i, j] for i, a in enumerate(names) for j, b in enumerate(names)}


def _predicted(frames: Frames, folder: Path) -> Any:
    """A model learns from the tables as they stand, and answers for rows whose columns stand the other way."""
    job = Vertical(model=VerticalLinear(security="none"), label="y", guest="bank")
    _run(job, frames, folder)
    some = {n: f[f.columns[::-1]] for n, f in frames.items()}
    answers = _run(VerticalPrediction(guest="bank"), some, folder).outcome
    return dict(zip(map(str, answers.ids), np.ravel(answers.predictions).tolist(), strict=True))


def _aligned(protocol: Any) -> Callable[[Frames, Path], Any]:
    def align(frames: Frames, _: Path) -> Any:
        return {n: list(keys) for n, keys in _run(Alignment(protocol=protocol, show=True), frames).names.items()}

    return align


def _linked(frames: Frames, _: Path) -> Any:
    found = _run(Linkage(columns=("name", "town"), threshold=0.6, show=True), frames)
    return {"pairs": sorted(map(tuple, found.pairs))}


JOBS: dict[str, tuple[Callable[[], Frames], Callable[[Frames, Path], Any]]] = {
    "evidence": (parties, _evidence), "correlation": (parties, _correlations), "prediction": (parties, _predicted),
    "alignment of two": (parties, _aligned(Ecdh())), "alignment of more": (parties, _aligned(Opprf())), "linkage": (people, _linked),
}  # fmt: skip


@pytest.mark.parametrize("job", JOBS)
def test_no_order_changes_what_parties_find_together(job: str, tmp_path: Path) -> None:
    make, run = JOBS[job]
    wanted, found = run(make(), tmp_path / "a"), run(turned(make()), tmp_path / "b")
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        assert found[name] == (value if isinstance(value, list) else pytest.approx(value, rel=1e-9, abs=1e-12)), name


@pytest.mark.parametrize("job", [SplitFed(net=SplitNet(epochs=1), rounds=1), SplitFed(net=SplitNet(epochs=1), version=2, rounds=1), FedGKT(net=SplitNet(epochs=1, hidden=(4,), width=4), rounds=1)], ids=["split-fed", "one top", "fed-gkt"])  # fmt: skip
def test_no_order_of_clients_changes_a_network_that_is_split(job: Any) -> None:
    frames = clients()
    rows = frames["c"][["age", "dose", "fee"]].to_numpy(np.float32)
    told = []
    for each in (frames, dict(reversed(frames.items()))):
        found = _run(job, from_dataframes(each, target="y")).outcome
        told.append(found.predict("a", rows) if isinstance(job, FedGKT) else found.predict(rows))
    np.testing.assert_allclose(told[1], told[0], rtol=0, atol=1e-6)


POLICY = "policy: {min_count: 2}\ntables: {v: {columns: {ward: public, age: {level: private, release: aggregate}, fee: {level: private, release: aggregate}}}}\n"
STATEMENT = "SELECT ward, count(*) AS n, avg(age) AS a, sum(fee) AS s FROM v GROUP BY ward ORDER BY ward"


def test_no_order_of_columns_or_silos_changes_an_answer(tmp_path: Path) -> None:
    r = np.random.default_rng(6)
    frames = {n: pd.DataFrame({"ward": list("AABBC") * 2, "age": r.integers(20, 90, 10), "fee": r.integers(0, 99, 10)}) for n in ("north", "south")}  # fmt: skip
    (tmp_path / "p.yaml").write_text(POLICY)
    told = {}
    for way, tables in {
        "straight": frames,
        "turned": turned(frames),
        "one turned": turned(frames, first=False),
    }.items():
        for name, frame in tables.items():
            (tmp_path / way / name).mkdir(parents=True)
            frame.to_csv(tmp_path / way / name / "v.csv", index=False)
        silos = {name: str(tmp_path / way / name) for name in tables}
        with atoll.query.connect(silos=silos, policy=str(tmp_path / "p.yaml")) as db:
            told[way] = db.sql(STATEMENT).rows
    whole = pd.concat(frames.values()).groupby("ward").agg(n=("age", "size"), a=("age", "mean"), s=("fee", "sum"))
    assert [tuple(map(float, row[1:])) for row in told["straight"]] == [pytest.approx(row) for row in whole.itertuples(index=False, name=None)]  # fmt: skip
    assert told["turned"] == told["one turned"] == told["straight"]


def test_no_order_of_columns_changes_what_reports_say(tmp_path: Path) -> None:
    r = np.random.default_rng(7)
    rows = pd.DataFrame([(f"t{t}", f"w{w}", "yn"[r.random() < 0.3], "ab"[w % 2]) for t in range(12) for w in range(5)], columns=["task", "worker", "label", "site"])  # fmt: skip
    rows.to_csv(tmp_path / "a.csv", index=False)
    rows[rows.columns[::-1]].to_csv(tmp_path / "b.csv", index=False)
    straight, other = (fit_reports(DawidSkene(), read_reports(tmp_path / f"{name}.csv")) for name in "ab")
    np.testing.assert_array_equal(other.shares, straight.shares)
    sites = [read_sites(tmp_path / f"{name}.csv", "site") for name in "ab"]
    assert list(sites[0]) == list(sites[1])


NETS = {"split-net": SplitNet(epochs=1), "vafl": VAFL(epochs=1)}


def test_a_party_reads_its_columns_in_the_order_of_their_names() -> None:
    """What a vertical model draws for a column, and which of equal columns it takes, follows; the pixels of an image keep their places."""
    table = clients()["a"].assign(x10=1.0, x9=2.0, word=["b", "a"] * 15)
    read = [PartyTable.of(t.assign(id=range(30)), "a", coded=()) for t in (table, table[table.columns[::-1]])]
    assert read[0].features == read[1].features == ("age", "dose", "fee", "word", "x9", "x10", "y")
    np.testing.assert_array_equal(read[0].x, read[1].x)
    listed = PartyTable.of(table.assign(id=range(30)), "a", coded=(), as_listed=True)
    assert listed.features == tuple(table.columns)


@pytest.mark.parametrize("model", NETS)
def test_no_order_of_columns_changes_what_is_drawn_for_a_vertical_model(model: str) -> None:
    told = []
    for frames in (parties(), turned(parties()), turned(parties(), first=False)):
        found = _run(Vertical(model=NETS[model], guest="bank"), frames).predictions
        told.append(dict(zip(found["id"].tolist(), np.ravel(found["federated"]).tolist(), strict=True)))
    assert told[0] == told[1] == told[2]


@pytest.mark.parametrize("job", [SplitFed(net=SplitNet(epochs=1), rounds=1), FedGKT(net=SplitNet(epochs=1, hidden=(4,), width=4), rounds=1)], ids=["split-fed", "fed-gkt"])  # fmt: skip
def test_no_order_of_columns_changes_a_network_that_is_split(job: Any) -> None:
    told = []
    for frames in (clients(), {n: f[f.columns[::-1]] for n, f in clients().items()}):
        made = _run(job, from_dataframes(frames, target="y"))
        rows = clients()["c"][list(made.data.about.features)].to_numpy(np.float32)
        found = made.outcome
        told.append(found.predict("a", rows) if isinstance(job, FedGKT) else found.predict(rows))
    np.testing.assert_allclose(told[1], told[0], rtol=0, atol=1e-6)


METHODS = {
    "kmeans": KMeans(clusters=2, start_from="moments"),
    "mixture": GaussianMixture(components=2, start_from="moments", tolerance=0.1),
    "components": PCA(components=2, solver="subspace"),
}


@pytest.mark.parametrize("method", METHODS)
def test_no_order_changes_what_a_fit_draws(method: str) -> None:
    frames, told = {n: f.drop(columns="y") for n, f in clients().items()}, []
    for each in (frames, turned(frames)):
        found = _run(Fit(model=METHODS[method]), each).outcome
        values = next(found[name] for name in ("centres", "means", "components") if name in found.params)
        told.append(dict(zip(found.features, np.asarray(values).T, strict=True)))
    for name, values in told[0].items():
        np.testing.assert_allclose(told[1][name], values, rtol=1e-9, atol=1e-9, err_msg=name)


@pytest.mark.parametrize("model", [SplitNet(epochs=1), SecureBoost(trees=2, depth=2, bins=4, security="none")], ids=["net", "boost"])  # fmt: skip
def test_no_order_of_hosts_changes_a_model(model: Any) -> None:
    """The two hosts have equal columns, so that each split of one is as good as the other's."""
    frames = parties()
    frames["mill"] = frames["shop"].rename(columns={"visits": "km", "fee": "rent"})
    told = []
    for names in (("bank", "shop", "mill"), ("bank", "mill", "shop"), ("mill", "shop", "bank")):
        found = _run(Vertical(model=model, guest="bank"), {name: frames[name] for name in names}).predictions
        told.append(dict(zip(found["id"].tolist(), np.ravel(found["federated"]).tolist(), strict=True)))
    assert told[0] == told[1] == told[2]
