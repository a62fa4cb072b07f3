"""Weights of evidence and correlations across parties: what pandas and NumPy say of all columns in one place."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import atoll
from atoll.core.errors import AtollError, CompositionError, ConfigError, DataError, MessageError
from atoll.core.requests.cohort import Community
from atoll.core.requests.island import Secret
from atoll.secure.encrypted import JoinedFields, Paillier
from atoll.secure.encrypted.vectors import KeyOwner, SealedVector
from atoll.vertical import Vertical, VerticalLinear, VerticalStatistics
from atoll.vertical.linear.sealed import PeerColumns
from atoll.vertical.statistics import bin_columns, weigh_counts
from atoll.vertical.tables import PartyTable
from tests.support.sessions_by_hand import hold

pytest.importorskip("gmpy2")
pytest.importorskip("rbcl")
SHORT = Paillier(key_bits=512, insecure=True)


def tables(seed=0, rows=260, classes=2, hosts=1):
    """A bank and shops with rows in orders of their own; holes, text, a constant and a mostly equal column."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, 5))
    signal = x[:, 0] + x[:, 2] + rng.normal(size=rows)
    y = (signal > 0.3).astype(int) if classes == 2 else np.digitize(signal, np.linspace(-1, 1, classes - 1))
    ids = np.array([f"u{i:04}" for i in range(rows)])
    made = {"bank": {"id": ids, "a": x[:, 0], "b": np.round(2 * x[:, 1]), "y": y}}
    for k in range(hosts):
        c, d = x[:, 2] + k * x[:, 3], np.where(rng.random(rows) < 0.6, 0.0, x[:, 3])
        c = np.where(rng.random(rows) < 0.15, np.nan, c)
        order = rng.permutation(rows)
        shop = {"id": ids, "c": c, "d": d, "flat": np.ones(rows), "few": np.where(np.arange(rows) < 3, np.nan, x[:, 4])}
        made[f"shop-{k}"] = {name: values[order] for name, values in shop.items()}
    return made


def measure(parties, **more):
    job = VerticalStatistics(cipher=SHORT, **more)
    return job, atoll.simulate(job, parties, engine="inline", progress=False)


def joined(parties):
    """All columns of all parties in the guest's order."""
    made = pd.DataFrame()
    for name, table in parties.items():
        frame = pd.DataFrame(table).set_index("id")
        frame.columns = [f"{name}.{column}" for column in frame.columns]
        made = frame if made.empty else made.join(frame)
    return made


@pytest.mark.parametrize("classes", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_weights_of_evidence_are_those_of_pandas(classes):
    """Quantile bins by ``qcut``, missing values apart, the formula by hand."""
    parties = tables(1, classes=classes, hosts=2)
    _, result = measure(parties, bins=5, min_bin_rows=1)
    every = joined(parties)
    y = every.pop("bank.y")
    assert list(result.woe) == list(every.columns)
    assert result.classes == (("1",) if classes == 2 else ("0", "1", "2", "3"))
    for column in every.columns:
        cut = pd.qcut(every[column], 5, duplicates="drop") if every[column].nunique() > 1 else every[column]
        cut = cut.astype(str).where(every[column].notna(), "missing")
        found, iv = result.woe[column], result.iv[column]
        for k, one in enumerate(result.classes):
            is_of = y.astype(str) == one
            expected, total = [], 0.0
            for _, group in is_of.groupby(cut):
                e, o = group.sum(), (~group).sum()
                more = 0.5 if e == 0 or o == 0 else 0.0
                share, rest = (e + more) / is_of.sum(), (o + more) / (~is_of).sum()
                expected.append((len(group), e, np.log(share / rest)))
                total += (share - rest) * np.log(share / rest)
            mine = zip(found["rows"], found["events"][:, k], found["woe"][:, k], strict=True)
            np.testing.assert_allclose(sorted(mine), sorted(expected), rtol=1e-12, atol=1e-12)
            assert iv[k] == pytest.approx(total, rel=1e-12, abs=1e-14)


@given(st.integers(0, 10**6), st.integers(2, 12), st.integers(1, 30))
@settings(max_examples=40, deadline=None)
def test_every_row_is_in_one_bin_and_no_bin_is_small(seed, bins, least):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(20, 200))
    number = np.where(rng.random(n) < rng.random() / 2, np.nan, rng.choice([rng.normal(size=n), np.round(rng.normal(size=n))]))  # fmt: skip
    text = np.array(["", "red", "green", "blue", "grey"])[rng.integers(0, 5, n) * (rng.random(n) < 0.8)]
    data = {"id": np.arange(n), "number": number, "text": text, "none": np.full(n, np.nan)}
    table = PartyTable.of(data, "shop", coded=(), precision=np.float64)
    rows = rng.permutation(n)[: n - 3]
    for column in bin_columns(table, rows, bins, least):
        assert column.sizes.sum() == len(rows) == len(column.index)
        assert len(set(column.names)) == len(column.names) <= (bins + 1 if column.name == "number" else 6)
        assert len(column.names) == 1 or column.sizes.min() >= least
        if column.name == "number" and len(column.names) > 1:  # bins are intervals
            values = [number[rows][column.index == k] for k in range(len(column.names))]
            known = [one[~np.isnan(one)] for one in values]
            known = [one for one in known if len(one)]
            assert all(a.max() < b.min() for a, b in pairwise(known))


def test_categories_are_bins_and_rare_ones_join():
    parties = tables(2)
    rows = len(parties["shop-0"]["id"])
    parties["shop-0"]["colour"] = np.array(["red"] * 150 + ["blue"] * (rows - 155) + ["green"] * 3 + ["grey"] * 2)
    _, result = measure(parties, categories=["b"])
    assert result.woe["shop-0.colour"]["bins"] == ["red", "blue or green or grey"]
    assert len(result.woe["bank.b"]["bins"]) > 3
    assert "missing" in result.woe["shop-0.c"]["bins"]
    assert any("or missing" in one for one in result.woe["shop-0.few"]["bins"])  # three missing rows do not stand alone
    assert result.iv["shop-0.flat"] == [0.0]


@pytest.mark.parametrize("hosts", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_correlations_are_those_of_numpy(hosts):
    parties = tables(3, hosts=hosts)
    _, result = measure(parties, statistic="correlation")
    names, found = result.correlation
    order = [name for name in joined(parties).columns if name != "bank.y"]
    order.insert(2, "bank.y")  # after the guest's own columns
    every = joined(parties)[order]
    assert names == order
    expected = every.fillna(every.mean()).corr().to_numpy()
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-10)
    assert np.isnan(found[names.index("shop-0.flat")]).all()


def test_rows_that_a_training_holds_out_do_not_count():
    parties = tables(4)
    _, result = measure(parties, test=0.25, order=3)
    told = atoll.simulate(Vertical(model=VerticalLinear(security="none"), order=3), parties, engine="inline", progress=False)  # fmt: skip
    assert result.rows == told.rows
    trained = told.predictions["id"][~told.predictions["test"]]
    some = {"bank": {name: v[np.isin(parties["bank"]["id"], trained)] for name, v in parties["bank"].items()}}
    _, again = measure({**parties, **some})
    assert again.iv == result.iv


def test_each_party_keeps_what_it_learned(tmp_path):
    """Between organisations the parts stay in the parties' folders; together they are the whole."""
    for statistic in ("woe", "correlation"):
        job = VerticalStatistics(cipher=SHORT, statistic=statistic)
        run = atoll.simulate(job, tables(5), engine="inline", progress=False, results=tmp_path / statistic)
        read = job.read_result(dict.fromkeys(["bank", "shop-0"], tmp_path / statistic))
        one, other = (
            (each.correlation[1] if statistic == "correlation" else list(each.iv.values()))
            for each in (run.outcome, read)
        )
        np.testing.assert_array_equal(one, other)
        assert "vertical-model" not in str(sorted((tmp_path / statistic).rglob("*")))


def test_what_is_learned_is_said_and_the_cost_foreseen():
    parties = tables(6)
    for statistic in ("woe", "correlation"):
        job, result = measure(parties, statistic=statistic)
        told = job.explain(Community(parties))
        assert {one.who for one in told.exposures} == set(parties)
        assert statistic in job.names()
        assert any("512 bits, under Paillier's assumption" in line for line in result.learns["shop-0"])
        foreseen = job.predict_cost({name: len(t["id"]) for name, t in parties.items()}, [2, 4])
        assert 0.5 < foreseen["bytes"] / result.cost["bytes"] < 2
        assert foreseen["seconds"] > 0


def test_labels_travel_as_ciphertexts_alone():
    parties = tables(7)
    job = VerticalStatistics(cipher=SHORT)
    ready = job.prepare(Community(parties))
    is_of = np.random.default_rng(0).integers(0, 2, (60, 1))
    column = bin_columns(
        PartyTable.of({"id": np.arange(60), "c": np.linspace(0.5, 9.0, 60)}, "shop"), np.arange(60), 4, 10
    )
    (_, woe), said = hold(
        **{
            "bank": lambda peers: ready._weigh([], is_of, peers, ["shop-0"], Secret(1)),
            "shop-0": lambda peers: ready._be_weighed(column, 60, peers, Secret(2)),
        }
    )
    sent = [message for source, _, message in said if source == "bank"]
    assert set(sent[0]) == {"key", "outputs", "sealed"}
    assert len({row.tobytes() for row in sent[0]["sealed"]}) == 60
    expected, _ = weigh_counts(column[0].sizes, woe["c"]["events"], is_of.sum(axis=0), 60)
    np.testing.assert_array_equal(woe["c"]["woe"], expected)


def alter_counts(alter):
    """A host that says other counts than those of its bins."""

    async def role(peers):
        told = await peers.recv("bank")
        fields = JoinedFields(1, 1, 60)
        labels = SealedVector(SHORT, told["key"], told["sealed"])
        index = np.repeat([0, 1], 30)
        sealed = labels.pack(labels.add_by_index(index, 2), fields, Secret(1))
        message = {"sizes": np.array([30, 30]), "ends": np.array([2]), "sealed": sealed}
        await peers.send("bank", alter(message))
        await peers.recv("bank")

    return role


@pytest.mark.parametrize(
    ("alter", "match"),
    [
        (lambda m: {**m, "sizes": np.array([59, 1])}, "fewer than 10 rows"),
        (lambda m: {**m, "sizes": np.array([30, 31])}, "or not of all rows"),
        (lambda m: {**m, "sizes": np.array([10, 50])}, "not those of its bins"),
        (lambda m: {**m, "ends": np.array([3])}, "no bins of 'shop-0'"),
        (lambda m: {**m, "sizes": np.array([30.0, 30.0])}, "no bins of 'shop-0'"),
        (lambda m: {**m, "sealed": m["sealed"][:0]}, "no 1 ciphertexts from 'shop-0'"),
        (lambda m: {**m, "sealed": np.zeros_like(m["sealed"])}, "not invertible"),
        (lambda m: {**m, "sealed": KeyOwner(SHORT, Secret(3)).encrypt([1])}, "not those of its bins|not invertible"),
        (lambda m: "hello", "no bins of 'shop-0'"),
    ],
)
def test_counts_that_are_not_those_of_the_bins_are_refused(alter, match):
    ready = VerticalStatistics(cipher=SHORT).prepare(Community(tables(7)))
    is_of = (np.arange(60) % 30 < 20).astype(np.int64)[:, None]
    with pytest.raises(AtollError, match=match):
        hold(
            **{
                "bank": lambda peers: ready._weigh([], is_of, peers, ["shop-0"], Secret(1)),
                "shop-0": alter_counts(alter),
            }
        )


def test_correlations_beyond_1_are_refused():
    ready = VerticalStatistics(cipher=SHORT, statistic="correlation").prepare(Community(tables(7)))
    x = np.random.default_rng(0).normal(size=(40, 2))

    async def shop(peers):
        told = await peers.recv("bank")
        theirs = PeerColumns(SHORT, told["key"], told, 40, "bank")
        await peers.send("bank", {"flat": np.zeros(1, np.bool_)})
        await peers.send("bank", theirs.multiply(100.0 * x[:, :1], Secret(3)))

    with pytest.raises(MessageError, match="correlations beyond 1 from 'shop-0'"):
        hold(**{"bank": lambda peers: ready._correlate("bank", ["a", "b"], x, peers, Secret(1)), "shop-0": shop})


@pytest.mark.parametrize(
    ("wrong", "kind", "match"),
    [
        ({"statistic": "mean"}, ConfigError, "statistic='mean'"),
        ({"bins": 1}, ConfigError, "bins=1"),
        ({"min_bin_rows": 0}, ConfigError, "min_bin_rows=0"),
        ({"test": 1.0}, ConfigError, "test=1.0"),
        ({"statistic": "correlation", "categories": ["c"]}, CompositionError, "categories="),
    ],
)
def test_settings_out_of_range_are_refused(wrong, kind, match):
    with pytest.raises(kind, match=match):
        VerticalStatistics(**wrong)


def test_tables_that_do_not_fit_are_refused():
    parties = tables(8)
    numbers = {**parties, "bank": {**parties["bank"], "y": np.linspace(0, 1, 260)}}
    with pytest.raises(AtollError, match="weights of evidence of labels that are numbers"):
        measure(numbers)
    twice = {**parties, "shop-0": {**parties["shop-0"], "y": parties["shop-0"]["c"]}}
    with pytest.raises(DataError, match="the name of the guest's labels"):
        measure(twice)
    text = {**parties, "shop-0": {**parties["shop-0"], "t": np.array(["x"] * 260)}}
    with pytest.raises(DataError, match="holds text, not numbers"):
        measure(text, statistic="correlation")
