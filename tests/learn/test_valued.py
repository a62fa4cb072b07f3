"""What each client brought, by name of a setting: beside the training, which it does not change."""

from __future__ import annotations

import numpy as np
import pytest

import atoll
from atoll.aggregation import Valued
from atoll.algorithms import Scaffold
from atoll.core.errors import CompositionError, ConfigError
from atoll.core.federation.reducer import Plain
from atoll.data import Islands
from atoll.pacing import SAFA, FedBuff, Tiered
from atoll.runs import parse_config, to_job
from atoll.topology import Gossip, Hierarchical
from tests.support.learn_toys import flat, islands, rows

DATA = atoll.data.iid(atoll.data.digits(), parties=6, seed=0)
SPOILED = atoll.data.corrupt(DATA, {"mislabelled": 2 / 6}, seed=1)
WRONG = set(np.array(DATA.names)[np.isin(np.arange(6), SPOILED.tags.where("mislabelled"))])


def training(measure="aligned", **parts):
    plain = {"model": atoll.models.linear(64, 10), "algorithm": atoll.FedAvg(lr=0.3), "selection": atoll.Everyone()}
    return atoll.Training(**{**plain, "rounds": 2, "aggregation": Valued(measure=measure, orders=30), **parts})


@pytest.mark.parametrize("measure", ["aligned", "missing", "shapley"])
def test_those_with_wrong_labels_bring_the_least(measure):
    job = training(measure)
    found = atoll.simulate(job, SPOILED, engine="inline")
    plain = atoll.simulate(training(aggregation=atoll.aggregation.Renormalised()), SPOILED, engine="inline")
    np.testing.assert_allclose(flat(found.params), flat(plain.params), rtol=1e-6, atol=1e-9)
    for row in found.metrics:
        brought = row["contributions"]
        assert max(brought[name] for name in WRONG) < min(v for name, v in brought.items() if name not in WRONG)
    if measure == "shapley":  # everything is given away: the round's gain, and over rounds the training's
        gain = found.metrics[0]["test/loss"] - found.metrics[1]["test/loss"]
        assert sum(found.metrics[1]["contributions"].values()) == pytest.approx(gain, rel=1e-4)


def test_it_is_the_same_on_engines_and_after_a_resume(tmp_path):
    job = training("shapley", algorithm=Scaffold(lr=0.1), selection=atoll.Uniform(3), rounds=3)
    whole = atoll.simulate(job, DATA, engine="inline")
    atoll.simulate(job.replace(rounds=1), DATA, engine="inline", folder=tmp_path / "run")
    resumed = atoll.simulate(job, DATA, engine="inline", folder=tmp_path / "run", resume=True)
    assert resumed.metrics.rows == whole.metrics.rows
    other = atoll.simulate(job, DATA, workers=1)
    for one, two in zip(whole.metrics, other.metrics, strict=True):
        assert one["contributions"] == pytest.approx(two["contributions"], abs=1e-6)
        assert len(one["contributions"]) == 3


def test_many_clients_are_estimated_and_edges_tell_of_their_own():
    many = islands([5] * 12)
    job = training(model=atoll.models.linear(4, 3), rounds=1, aggregation=Valued("shapley", orders=2))
    told = atoll.simulate(job, many, engine="inline").metrics[0]["contributions"]
    assert set(told) == set(many.names)
    edged = job.replace(topology=Hierarchical(groups=2), aggregation=Valued("missing"))
    edges = atoll.simulate(edged, many, engine="inline").metrics[0]
    assert set(edges["contributions"]) == set(many.names)


class Hidden(Plain):
    secure = True


@pytest.mark.parametrize(
    ("parts", "why"),
    [
        ({"reducer": Hidden()}, "Valued sees single replies"),
        ({"pacing": FedBuff(buffer=2)}, "Valued keeps single models"),
        ({"pacing": SAFA()}, "Valued keeps single models of one round's base, and SAFA lets clients work"),
        ({"pacing": Tiered(tiers=2, by="observed")}, "Valued "),
        ({"topology": Gossip()}, "Gossip weights neighbours' states by its graph"),
        ({"algorithm": atoll.FedSGD()}, "does not reply with the mean update"),
    ],
)
def test_what_makes_no_sense_is_refused(parts, why):
    with pytest.raises(CompositionError, match=why):
        atoll.simulate(training(**parts), DATA, engine="inline")


def test_bad_settings_and_no_test_rows():
    for bad in ({"measure": "luck"}, {"orders": 1}):
        with pytest.raises(ConfigError, match="use one of aligned, missing, shapley"):
            Valued(**bad)
    alone = Islands.from_datasets([rows(6, 1), rows(5, 2)])
    with pytest.raises(ConfigError, match="the server has no test rows"):
        training("missing", model=atoll.models.linear(4, 3)).program(alone)
    assert (
        "contributions" in atoll.simulate(training(model=atoll.models.linear(4, 3)), alone, engine="inline").metrics[0]
    )


def test_a_configuration_names_it():
    settings = {
        "data": {"source": "digits", "partition": {"name": "iid", "parties": 3}},
        "model": {"name": "linear", "features": 64, "outputs": 10},
        "aggregation": {"name": "Valued", "measure": "missing"},
    }
    assert to_job(parse_config(settings))[0].aggregation == Valued(measure="missing")
