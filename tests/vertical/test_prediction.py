"""Predictions with a saved model: one round trip, in the order of the keys asked for."""

from __future__ import annotations

import numpy as np
import pytest

import atoll
from atoll.core.errors import ConfigError, DataError, PolicyError
from atoll.core.execution.session import LocalPeers
from atoll.core.persistence.named_results import NamedResults
from atoll.core.requests.policy import SitePolicy
from atoll.runs.policy import PolicyConfig
from atoll.runtime.worker.sitedata import load_site_data
from atoll.vertical import SecureBoost, Vertical, VerticalPrediction, prediction
from tests.support.vertical_toys import as_parties, draw

FEW = {"trees": 3, "depth": 3, "bins": 16, "security": "none"}


@pytest.fixture(params=[400, 401, 402], ids=["regression", "multiclass", "binary"])
def trained(request, tmp_path):
    parties, _ = as_parties(draw(request.param, 500), hosts=2)
    return parties, fitted(parties, tmp_path), tmp_path


def fitted(parties, folder, **settings):
    job = Vertical(model=SecureBoost(**FEW), **settings)
    return atoll.simulate(job, parties, engine="inline", results=folder, progress=False).outcome


def predict(parties, folder, **settings):
    job = VerticalPrediction(**settings)
    return atoll.simulate(job, parties, engine="inline", results=folder, progress=False).outcome


def test_a_saved_model_answers_in_the_order_asked_in_one_round_trip(trained, monkeypatch):
    parties, result, folder = trained
    told = dict(zip(result.predictions["id"].tolist(), result.predictions["federated"], strict=True))
    asked = {**parties, "guest": {name: values[::-2] for name, values in parties["guest"].items() if name != "y"}}
    said, send = [], LocalPeers.send

    async def heard(self, role, message, channel=""):
        said.append((self.me, role))
        await send(self, role, message, channel)

    monkeypatch.setattr(LocalPeers, "send", heard)
    found = predict(asked, folder)
    # A host says which rows it has, and then answers, without waiting for anyone in between.
    answers = [("host-1", "guest"), ("host-2", "guest")]
    assert sorted(said) == sorted([("guest", "host-1"), ("guest", "host-2"), *answers, *answers])
    assert found.ids == tuple(asked["guest"]["id"].tolist())
    expected = np.array([told[key] for key in found.ids])
    np.testing.assert_array_equal(found.predictions, expected[:, 0] if expected.shape[1] == 1 else expected)
    assert (found.rows, found.unknown) == (len(expected), 0)


def test_rows_that_a_host_lacks_are_refused_by_name_or_get_the_guests_model(tmp_path):
    parties, _ = as_parties(draw(402, 500), hosts=2)
    result = fitted(parties, tmp_path)
    lost = parties["host-2"]["id"][:2].tolist()
    less = {**parties, "host-2": {name: values[2:] for name, values in parties["host-2"].items()}}
    with pytest.raises(DataError, match=r"2 of \d+ rows are not at 'host-2'") as refused:
        predict(less, tmp_path)
    assert any(name in refused.value.what for name in lost)
    found = predict(less, tmp_path, unknown="guest")
    told = result.predictions
    expected = {key: alone if key in lost else joint for key, alone, joint in zip(told["id"].tolist(), told["alone"][:, 0], told["federated"][:, 0], strict=True)}  # fmt: skip
    np.testing.assert_array_equal(found.predictions, [expected[key] for key in found.ids])
    assert found.unknown == 2
    none = {**parties, "host-2": {name: values[:0] for name, values in parties["host-2"].items()}}
    assert predict(none, tmp_path, unknown="guest").unknown == len(told["id"])


def test_labels_may_be_text_and_other_columns_anything(tmp_path):
    parties, _ = as_parties(draw(402, 400))
    parties["guest"]["y"] = np.where(parties["guest"]["y"] > 0, "yes", "no")
    result = fitted(parties, tmp_path)
    parties["guest"]["note"] = np.full(len(parties["guest"]["id"]), "new")
    told = dict(zip(result.predictions["id"].tolist(), result.predictions["federated"][:, 0], strict=True))
    found = predict(parties, tmp_path)
    np.testing.assert_array_equal(found.predictions, [told[key] for key in found.ids])
    np.testing.assert_array_equal(result.predict(parties), found.predictions)


def test_parts_of_different_models_are_refused(tmp_path):
    parties, _ = as_parties(draw(402, 300))
    with pytest.raises(ConfigError, match="no result named 'vertical-model'"):
        predict(parties, tmp_path)
    fitted(parties, tmp_path)
    old = (tmp_path / "host-1" / "vertical-model.msg").read_bytes()
    fitted(parties, tmp_path)
    predict(parties, tmp_path)
    with pytest.raises(DataError, match="no column 'c"):
        predict({**parties, "host-1": {"id": parties["host-1"]["id"]}}, tmp_path)
    (tmp_path / "host-1" / "vertical-model.msg").write_bytes(old)
    with pytest.raises(DataError, match="another model than that of 'guest'"):
        predict(parties, tmp_path)
    with pytest.raises(DataError, match="'host-1' is not of this role"):
        predict(parties, tmp_path, guest="host-1")


def test_hosts_answer_in_the_order_of_the_training(tmp_path):
    parties, _ = as_parties(draw(402, 500), hosts=2)
    result = fitted(parties, tmp_path, hosts=["host-2", "host-1"])
    told = dict(zip(result.predictions["id"].tolist(), result.predictions["federated"][:, 0], strict=True))
    found = predict(parties, tmp_path)
    np.testing.assert_array_equal(found.predictions, [told[key] for key in found.ids])
    with pytest.raises(DataError, match="the hosts are host-1, and those of the training were host-2, host-1"):
        predict({name: parties[name] for name in ("guest", "host-1")}, tmp_path)


def test_settings_out_of_range_are_refused():
    with pytest.raises(ConfigError, match="unknown='host'"):
        VerticalPrediction(unknown="host")
    with pytest.raises(ConfigError, match="repeats='last'"):
        VerticalPrediction(repeats="last")


@pytest.mark.parametrize("job", [Vertical(id="nr"), VerticalPrediction(id="nr")])
def test_a_site_reads_the_keys_of_the_job_as_text(tmp_path, job):
    (tmp_path / "shop.csv").write_text("nr,x\n007,1\n012,2\n", encoding="utf-8")
    found = load_site_data({"path": str(tmp_path / "shop.csv")}, "shop", reads=job.reads, text=job.key_columns)
    table = found.population.shard(0)
    assert list((table.dataset() if hasattr(table, "dataset") else table)["nr"]) == ["007", "012"]


def test_a_site_limits_the_rows_an_hour_that_it_answers_for(tmp_path, monkeypatch):
    parties, _ = as_parties(draw(402, 300))
    fitted(parties, tmp_path)
    few = {**parties, "guest": {name: values[:40] for name, values in parties["guest"].items()}}
    now = [1e9]
    monkeypatch.setattr(prediction.time, "time", lambda: now[0])

    def ask(most):
        run = {"engine": "inline", "results": tmp_path, "progress": False}
        return atoll.simulate(
            VerticalPrediction(), few, policy={"host-1": SitePolicy(predictions_per_hour=most)}, **run
        )

    for _ in range(2):
        assert ask(100).outcome.rows == 40
    refused = r"predictions_per_hour=100: 80 rows within the last hour, and 40 more are asked for .*policy of 'host-1'"
    with pytest.raises(PolicyError, match=refused):
        ask(100)
    ask(120)
    now[0] += 3600
    assert ask(40).outcome.rows == 40
    with pytest.raises(PolicyError, match="predictions_per_hour=40: 40 rows"):
        ask(40)
    kept = NamedResults(tmp_path).get("host-1", f"{prediction.ANSWERED}-{int(1e9 // 86400)}")
    assert (list(kept["times"]), list(kept["rows"])) == ([1e9] * 3 + [1e9 + 3600], [40] * 4)  # a record may only grow
    now[0] = 86400 * (1e9 // 86400 + 1) - 1  # what a site has answered for before midnight counts after it
    ask(40)
    now[0] += 2
    with pytest.raises(PolicyError, match="predictions_per_hour=40: 40 rows"):
        ask(40)


def test_a_limit_below_one_is_refused():
    with pytest.raises(ConfigError, match="predictions_per_hour=0"):
        SitePolicy(predictions_per_hour=0)
    assert PolicyConfig(predictions_per_hour=5).build("policy").rules.predictions_per_hour == 5


def test_rows_in_another_unit_and_codes_of_missing_values_are_said(tmp_path):
    """What trees, fits and trainings say of rows to predict, said of columns at several parties too: each party's part knows where its own columns lay."""
    rng = np.random.default_rng(8)
    ids, height, weight = np.arange(300).astype(str), rng.normal(170, 8, 300), rng.normal(70, 9, 300)
    word = np.where(rng.random(300) < 0.5, "yes", "no")
    y = (height + weight + rng.normal(0, 5, 300) > 240).astype(int)
    parties = {
        "guest": {"id": ids, "height": height, "word": word, "y": y},
        "host": {"id": ids, "weight": weight, "empty": np.full(300, np.nan)},
    }
    result = fitted(parties, tmp_path)
    rows = {name: {key: values[:40] for key, values in table.items() if key != "y"} for name, table in parties.items()}
    assert len(result.predict(rows)) == predict(rows, tmp_path).rows == 40  # in the training's units, nothing is said
    metres = {**rows, "guest": {**rows["guest"], "height": rows["guest"]["height"] / 100}}
    said = r"table of 'guest': column 'height' of the rows lies around 1\.\d+, and nearly all that the model was trained on between about 1.3e[+]02 and 2.6e[+]02: is it in another unit"
    with pytest.warns(RuntimeWarning, match=said):
        result.predict(metres)
    with pytest.warns(RuntimeWarning, match=said):
        predict(metres, tmp_path)
    with pytest.warns(RuntimeWarning, match=said):
        prediction.keep_rows(NamedResults(tmp_path), "guest", metres["guest"], "1")
    missing = {**rows, "host": {**rows["host"], "weight": np.where(np.arange(40) < 9, -99, rows["host"]["weight"])}}
    with pytest.warns(RuntimeWarning, match=r"table of 'host': column 'weight' .*-99"):
        result.predict(missing)
    with pytest.warns(RuntimeWarning, match=r"table of 'host': column 'weight' .*-99"):
        predict(missing, tmp_path)
    job = VerticalPrediction(rows=prediction.ROWS + "1")  # `keep_rows` said it of the rows that it kept
    assert atoll.simulate(job, rows, engine="inline", results=tmp_path, progress=False).outcome.rows == 40
