"""The law of order: no permutation of a table's columns, and none of the clients, changes a result, whoever reads the tables and whatever the job."""

from __future__ import annotations

import copy
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import atoll
from atoll.data import (
    Dataset,
    DataTable,
    Islands,
    corrupt,
    from_csv_files,
    from_csv_folder,
    from_dataframes,
    from_pandas,
    read_csv,
    read_parquet,
    unlabel,
)
from atoll.data.corruption import Mislabel
from atoll.fitting import GLM, Fit
from atoll.runtime.worker import load_site_data
from atoll.runtime.worker.cards import merge_cards, recoded
from atoll.selection import Everyone
from atoll.statistics import Statistics
from atoll.trees import Trees
from atoll.vertical import Vertical, VerticalLinear

Frames = dict[str, pd.DataFrame]
FEATURES = ("age", "dose", "smoker", "visits")


@st.composite
def drawn(draw: Any) -> tuple[Frames, Frames]:
    """Tables of two or three clients, and the same with their columns and the clients in other orders."""
    seed, clients = draw(st.integers(0, 2**16)), draw(st.integers(2, 3))
    made: Frames = {}
    for k in range(clients):
        r, n = np.random.default_rng([seed, k]), int(12 + 3 * k)
        age = np.round(r.normal(60, 9, n), 1)
        visits = r.integers(0, 4, n)
        words = draw(st.sampled_from([("never", "former"), ("never", "ex"), ("ex", "never", "now")]))
        made[f"site-{k}"] = pd.DataFrame(
            {
                "age": age,
                "dose": np.round(r.normal(0, 1, n), 3),
                "visits": visits.astype(float) + 0.5
                if draw(st.booleans()) and k
                else visits,  # whole numbers here, fractions there
                "smoker": np.array([words[i % len(words)] for i in range(n)]),
                "y": np.where((np.arange(n) + (age > 60)) % 2, "yes", "no"),
            }
        )
    columns = st.permutations(list(next(iter(made.values()))))
    order = draw(st.permutations(list(made)))
    return made, {name: made[name][draw(columns)] for name in order}


def _files(folder: Path, frames: Frames) -> list[Path]:
    folder.mkdir(parents=True)
    for name, frame in frames.items():
        # a mark of the byte order, as spreadsheets write it, in the first file alone
        frame.to_csv(folder / f"{name}.csv", index=False, encoding="utf-8-sig" if name == "site-0" else "utf-8")
    return [folder / f"{name}.csv" for name in frames]


def _parquet(folder: Path, frames: Frames) -> Islands:
    folder.mkdir(parents=True)
    for name, frame in frames.items():
        frame.to_parquet(folder / f"{name}.parquet", index=False)
    return Islands.from_datasets({name: read_parquet(folder / f"{name}.parquet", target="y") for name in frames})


def _folder(folder: Path, frames: Frames) -> Islands:
    _files(folder, frames)
    return from_csv_folder(folder, target="y")


def rows_of_sql(connection: sqlite3.Connection, categories: Mapping[str, Sequence[str]]) -> Dataset:
    """The factory of a site that has a database."""
    return from_pandas(pd.read_sql("select * from visits", connection), target="y", categories=categories)


def _databases(folder: Path, frames: Frames) -> dict[str, Path]:
    folder.mkdir(parents=True)
    files = {name: folder / f"{name}.sqlite" for name in frames}
    for name, frame in frames.items():
        connection = sqlite3.connect(files[name])
        frame.to_sql("visits", connection, index=False)
        connection.close()
    return files


def _sites(folder: Path, frames: Frames) -> Islands:
    """Sites with databases, whose cards are merged as a server does."""
    words = sorted({word for frame in frames.values() for word in frame.smoker})
    sites = {}
    for name, file in _databases(folder, frames).items():
        spec = {
            "database": str(file),
            "factory": f"{__name__}:rows_of_sql",
            "arguments": {"categories": {"smoker": words}},
        }
        sites[name] = load_site_data(spec, name)
    cards = {name: site.card for name, site in sites.items() if site.card is not None}
    agreed = merge_cards(cards)
    return Islands.from_datasets(
        {name: recoded(site.population.shard(0).dataset(), cards[name], agreed) for name, site in sites.items()}
    )


def _sql_tables(folder: Path, frames: Frames) -> dict[str, DataTable]:
    found = {}
    for name, file in _databases(folder, frames).items():
        connection = sqlite3.connect(file)
        found[name] = DataTable.of(pd.read_sql("select * from visits", connection), name)
        connection.close()
    return found


def _csv_tables(folder: Path, frames: Frames) -> dict[str, DataTable]:
    return {file.stem: DataTable.read(file) for file in _files(folder, frames)}


READERS: dict[str, Callable[[Path, Frames], Any]] = {
    "simulate takes frames": lambda _, frames: frames,
    "simulate takes columns": lambda _, frames: {n: {c: f[c].to_numpy() for c in f} for n, f in frames.items()},
    "from_dataframes": lambda _, frames: from_dataframes(frames, target="y"),
    "from_pandas": lambda _, frames: Islands.from_datasets({n: from_pandas(f, target="y") for n, f in frames.items()}),
    "from_csv_files": lambda d, frames: from_csv_files(_files(d, frames), target="y"),
    "from_csv_folder": _folder,
    "read_csv": lambda d, frames: Islands.from_datasets({p.stem: read_csv(p, target="y") for p in _files(d, frames)}),
    "read_parquet": _parquet,
    "sites with SQL": _sites,
}
TABLES: dict[str, Callable[[Path, Frames], Any]] = {"DataTable.read": _csv_tables, "tables of SQL": _sql_tables}
TRAINING = atoll.Training(
    model=atoll.models.linear(4, 2), algorithm=atoll.FedAvg(lr=1e-3, batch_size=4), selection=Everyone(), rounds=2
)


def _run(job: Any, data: Any) -> Any:
    return atoll.simulate(job, data, engine="inline", progress=False)


def _trained(data: Any) -> dict[str, Any]:
    made = _run(TRAINING, data)
    return {"": made.params["bias"], **dict(zip(made.data.about.features, made.params["weight"], strict=True))}


def _described(data: Any) -> dict[str, Any]:
    found = _run(Statistics(quantiles=[0.5]), data).outcome
    told = {name: found[name].plain() for name in FEATURES}
    return {
        f"{name} {what}": told[name][what]
        for name in FEATURES
        for what in ("mean", "std", "values")
        if told[name].get(what) is not None
    }


def _fitted(data: Any) -> dict[str, Any]:
    found = _run(Fit(model=GLM(alpha=1.0), label="y", columns=["age", "dose", "visits", "smoker"]), data).outcome
    return dict(zip(found.features, np.ravel(found["coef"]), strict=True))


def _grown(data: Any) -> dict[str, Any]:
    made = _run(Trees(rounds=2), data)
    order = list(made.data.about.features)
    rows = {name: np.asarray(made.data.shard(name).x) for name in made.data.names}
    assert sorted(order) == list(FEATURES)
    return {name: made.outcome.predict(x) for name, x in rows.items()}


def _labelled(data: Any) -> dict[str, Any]:
    """Self-training on rows of which some have no label; the network begins at 0, so that no column has a weight of its own."""
    import torch

    from atoll.labels import FixMatch

    def net() -> Any:
        layer = torch.nn.Linear(4, 2)
        torch.nn.init.zeros_(layer.weight)
        torch.nn.init.zeros_(layer.bias)
        return layer

    method = FixMatch(lr=1e-3, tau=0.6, steps=4, batch_size=4, weak=None, strong=None)
    made = _run(atoll.Training(model=net, algorithm=method, selection=Everyone(), rounds=1), data)
    weights = np.asarray(made.params["weight"]).T
    return {"": made.params["bias"], **dict(zip(made.data.about.features, weights, strict=True))}


def _joined(data: Any) -> dict[str, Any]:
    """A linear model: of boosted trees the first of equally good columns counts, as in XGBoost."""
    made = _run(Vertical(model=VerticalLinear(security="none"), label="y"), data)
    told = made.predictions
    return dict(zip(map(str, told["id"].tolist()), told["federated"], strict=True))


def _networked(data: Any) -> dict[str, Any]:
    """A network of Atoll's, whose first weights are drawn at random, trained by three clients of which two are asked, on rows that they do not hold out."""
    job = atoll.Training(
        model=atoll.models.mlp(4, 2, (6,)),
        algorithm=atoll.FedAvg(lr=1e-3, batch_size=4),
        selection=atoll.selection.Uniform(2),
        rounds=2,
    )
    made = _run(job, data.with_held_out(0.25))
    weights = np.asarray(made.params["1.weight"]).T
    asked = dict(zip(made.devices.names, made.devices.asked.tolist(), strict=True))
    return {"": made.params["3.weight"], "asked": asked, **dict(zip(made.data.about.features, weights, strict=True))}


JOBS = {
    "training": _trained, "network": _networked, "statistics": _described, "fit": _fitted, "trees": _grown, "labels": _labelled, "vertical": _joined
}  # fmt: skip


def _require_same(found: dict[str, Any], wanted: dict[str, Any]) -> None:
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        if isinstance(value, dict):
            assert found[name] == value
        else:
            np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=1e-7, err_msg=name)


LAW = settings(
    max_examples=3, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None
)


SLOW = ("from_pandas", "from_csv_files", "read_parquet")  # read as their neighbours do


@pytest.mark.every(3)
@pytest.mark.parametrize("reader", [pytest.param(r, marks=pytest.mark.slow if r in SLOW else ()) for r in READERS])
@given(tables=drawn())
@LAW
def test_no_order_changes_a_training_whoever_reads(
    reader: str, tables: tuple[Frames, Frames], tmp_path_factory: Any
) -> None:
    straight, shuffled = tables
    read, folder = READERS[reader], tmp_path_factory.mktemp("tables")
    wanted = _trained(from_dataframes(straight, target="y"))
    _require_same(_trained(read(folder / "a", straight)), wanted)
    _require_same(_trained(read(folder / "b", shuffled)), wanted)


WAYS = {
    "network": ("from_dataframes", "from_csv_folder", "sites with SQL"),
    "statistics": ("DataTable.read", "tables of SQL", "simulate takes frames"),
    "fit": ("tables of SQL", "simulate takes frames", "DataTable.read"),
    "trees": ("sites with SQL", "simulate takes frames", "from_csv_folder"),
    "labels": ("from_csv_folder", "from_dataframes", "sites with SQL"),
    "vertical": ("DataTable.read", "tables of SQL", "simulate takes frames"),
}
"""The readers of each kind of job; the last repeats what its neighbours do, and is slow for that."""
PAIRS = [
    pytest.param(job, reader, marks=pytest.mark.slow if reader == readers[-1] else (), id=f"{job}, {reader}")
    for job, readers in WAYS.items()
    for reader in readers
]


def _for_job(job: str, frames: Frames) -> Frames:
    """The drawn tables as a job needs them: some rows without labels, or each party with columns of its own for the same ids."""
    if job == "labels":
        return {n: f.assign(y=[word if i % 3 else "" for i, word in enumerate(f.y)]) for n, f in frames.items()}
    if job != "vertical":
        return frames
    whole = frames["site-0"]
    r, ids = np.random.default_rng(round(10 * whole.age[0])), [f"p{k}" for k in range(90)]
    parties = {"bank": ["age", "dose"], "shop": ["visits", "smoker"]}
    values = {name: r.normal(size=len(ids)) for names in parties.values() for name in names}
    y = (values["age"] + values["visits"] + 0.5 * r.normal(size=len(ids)) > 0).astype(int)
    made = {
        party: pd.DataFrame(
            {"id": ids, **{name: values[name] for name in names}, **({"y": y} if party == "bank" else {})}
        )
        for party, names in parties.items()
    }
    turned = list(frames) != sorted(frames) or list(whole) != ["age", "dose", "visits", "smoker", "y"]
    return {name: made[name][made[name].columns[::-1]] for name in made} if turned else made


@pytest.mark.every(2)  # each job by one reader
@pytest.mark.parametrize(("job", "reader"), PAIRS)
@given(tables=drawn())
@LAW
def test_no_order_changes_a_job_of_another_kind(
    job: str, reader: str, tables: tuple[Frames, Frames], tmp_path_factory: Any
) -> None:
    straight, shuffled = (_for_job(job, frames) for frames in tables)
    read, folder = {**READERS, **TABLES}[reader], tmp_path_factory.mktemp("tables")
    wanted = JOBS[job](from_dataframes(straight, target="y") if job in ("labels", "network") else straight)
    _require_same(JOBS[job](read(folder / "a", straight)), wanted)
    _require_same(JOBS[job](read(folder / "b", shuffled)), wanted)


@given(tables=drawn())
@LAW
def test_no_order_changes_the_rows_of_stacked_tables(tables: tuple[Frames, Frames]) -> None:
    straight, shuffled = tables
    whole, other = (
        DataTable.stacked([DataTable.of(each[name], name) for name in straight]) for each in (straight, shuffled)
    )
    for column in straight["site-0"]:
        assert [*map(str, whole[column])] == [*map(str, other[column])]


DRAWS: dict[str, Callable[[Islands], Islands]] = {
    "held out": lambda islands: islands.with_held_out(0.3, seed=1),
    "corrupted": lambda islands: corrupt(islands, {Mislabel(0.5): 0.5}, seed=1),
    "rows keep labels": lambda islands: unlabel(islands, keep=9, at="rows", seed=1),
    "clients keep labels": lambda islands: unlabel(islands, keep=2, at="parties", seed=1),
    "classes keep labels": lambda islands: unlabel(islands, keep=1, at="classes", seed=1),
    "labels at the server": lambda islands: unlabel(islands, keep=9, at="server", seed=1),
}


@pytest.mark.parametrize("draw", DRAWS)
def test_no_order_of_clients_changes_what_is_drawn_of_their_rows(draw: str) -> None:
    r, rows = np.random.default_rng(2), {}
    for name in ("north", "site-10", "east", "site-2"):
        rows[name] = Dataset({"x": r.normal(size=(20, 2)), "y": np.arange(20) % 3})
    told = []
    for order in (list(rows), list(rows)[::-1]):
        made = DRAWS[draw](Islands.from_datasets({name: rows[name] for name in order}))
        assert list(made.names) == order
        parts = [made] if made.held_out is None else [made, made.held_out]
        told.append({(name, k): part.shard(name).dataset() for k, part in enumerate(parts) for name in sorted(order)})
    assert len(np.concatenate([told[0][key].x for key in told[0]])) >= 70
    for key, data in told[0].items():
        for column in data.columns:
            np.testing.assert_array_equal(told[1][key][column], data[column], err_msg=f"{key} {column}")


@pytest.mark.parametrize("given", ["a network", "a factory", "a loop", "ours", "listed"])
@pytest.mark.parametrize("reader", ["from_dataframes", "from_datasets"])
def test_the_order_of_columns_is_said_where_a_network_may_read_places(reader: str, given: str) -> None:
    import torch

    from atoll.torch.learner import seeded

    r, names = np.random.default_rng(5), ["dose", "age", "visits"]
    rows = {name: {**dict(zip(names, r.normal(size=(3, 8)), strict=True)), "y": np.arange(8) % 2} for name in "abc"}

    def read(turned: str) -> Islands:
        orders = {name: names[::-1] if name in turned else names for name in rows}
        if reader == "from_dataframes":
            frames = {name: pd.DataFrame({c: rows[name][c] for c in [*order, "y"]}) for name, order in orders.items()}
            listed = {"features": ["visits", "dose", "age"]} if given == "listed" else {}
            return from_dataframes(frames, target="y", **listed)
        known = {name: np.stack([rows[name][c] for c in order], 1) for name, order in orders.items()}
        parts = {name: Dataset({"x": x, "y": rows[name]["y"]}, features=orders[name]) for name, x in known.items()}
        return Islands.from_datasets(parts)

    net = seeded(lambda: torch.nn.Linear(3, 2), 0)
    models = {"a factory": lambda: copy.deepcopy(net), "a loop": atoll.torch.CustomLoop(net, lambda *_: None), "ours": atoll.models.mlp(3, 2)}  # fmt: skip
    job = atoll.Training(model=models.get(given, net), rounds=1)
    for turned in ("", "b"):
        said = [n for n in _run(job, read(turned)).notices if "in alphabetical order: age, dose, visits." in n]
        wanted = turned and given != "ours" and (given, reader) != ("listed", "from_dataframes")
        assert len(said) == bool(wanted)
