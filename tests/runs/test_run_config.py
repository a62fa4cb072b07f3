"""Configurations: strict, with errors that teach, and the same after a round trip."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import atoll
from atoll.core.errors import CompositionError, ConfigError, DataError
from atoll.core.rooms import part_kinds
from atoll.runs import json_schema, parse_config, register, registry, to_job, yaml

WRONG = [
    ({"algorithm": {"name": "FedAvg", "learnig_rate": 0.1}}, r"algorithm\.learnig_rate=0\.1 .* Did you mean 'lr'\?"),
    ({"algorithm": {"name": "FedAvg", "epoch": 2}}, r"algorithm\.epoch=2 .* Did you mean 'epochs'\?"),
    ({"algorithm": {"name": "FedAvg", "lr": "fast"}}, r"algorithm\.lr='fast' should be a valid number"),
    ({"algorithm": {"name": "FedAvg", "epochs": 1.5}}, r"algorithm\.epochs=1\.5 should be a valid integer"),
    ({"algorithm": {"name": "FedAvg", "epochs": True}}, r"algorithm\.epochs=True should be a valid integer"),
    (
        {"algorithm": {"name": "DADMM", "dim": 3}},
        r"'DADMM' is a program, not the algorithm.*\.simulate\(atoll\.programs\.DADMM\(",
    ),
    ({"algorithm": "FedAvgg"}, r"algorithm\.name='FedAvgg' is not a known algorithm\. Did you mean 'FedAvg'\?"),
    ({"algorithm": 3}, r"algorithm names no algorithm"),
    ({"algorithm": {"name": "nowhere:Thing"}}, r"'nowhere:Thing' cannot be imported: No module named 'nowhere'"),
    ({"rouns": 3}, r"rouns=3 is not a setting\. Did you mean 'rounds'\?"),
    ({"rounds": "many"}, r"rounds='many' should be a valid integer"),
    ({"evaluation": {"evry": 3}}, r"evaluation\.evry=3 .* Did you mean 'every'\?"),
    ({"data": {"source": "digits", "partitoin": "iid"}}, r"data\.partitoin='iid' .* Did you mean 'partition'\?"),
    (
        {"selection": {"name": "Uniform", "count": "x"}},
        r"selection\.count='x' should be a valid integer, or a valid number",
    ),
    ({"model": {"name": "linear", "features": 4}}, r"model\.outputs is missing"),
    (
        {"aggregation": {"name": "KeepGlobl"}},
        r"aggregation\.name='KeepGlobl' is not a known aggregation\. Did you mean 'KeepGlobal'\?",
    ),
    ({"aggregation": {"name": "Renormalised", "x": 1}}, r"aggregation\.x=1 is not a setting"),
    (
        {"evaluation": {"metrics": ["TopKAccuracyy"]}},
        r"evaluation\.metrics\[0\]\.name='TopKAccuracyy' is not a known metric\. Did you mean 'TopKAccuracy'\?",
    ),
    (
        {"evaluation": {"metrics": [{"name": "TopKAccuracy", "kk": 3}]}},
        r"evaluation\.metrics\[0\]\.kk=3 .* Did you mean 'k'\?",
    ),
    (
        {"evaluation": {"metrics": [{"name": "TopKAccuracy", "k": 1.5}]}},
        r"metrics\[0\]\.k=1\.5 should be a valid integer",
    ),
    ({"evaluation": {"metrics": ["Accuracy", "Confusion"]}}, r"evaluation\.metrics\[1\]\.classes is missing"),
    ({"evaluation": {"metrics": "TopKAccuracy"}}, r"evaluation\.metrics='TopKAccuracy' should be a list"),
    ({"evaluation": {"metrics": [{"name": "TopKAccuracy", "k": 0}]}}, r"evaluation\.metrics\[0\]\.k=0"),
    ({"evaluation": {"every": 0}}, r"evaluation\.every=0, clients_every=None"),
    ({"algorithm": {"name": "FedAvg", "lr": -1.0}}, r"algorithm\.lr=-1\.0"),
    ({"uplink": ["Clip", {"name": "Clip", "bound": 0}]}, r"uplink\[1\]\.bound=0"),
    ({"selection": {"name": "Schedule", "rounds": [[]]}}, r"selection: the schedule has an empty round"),
    ({"pacing": {"name": "Synchronous", "over_select": 0.5}}, r"pacing\.over_select=0\.5"),
    ({"stop": [{"name": "MaxTime", "seconds": 0}]}, r"stop\[0\]\.seconds=0"),
    ({"rounds": 0}, r"rounds=0"),
    (
        {"algorithm": {"name": "FedAvg", "epochs": 3, "stragglers": {"probability": 2.0}}},
        r"algorithm\.stragglers\.probability=2\.0 \(.*Remedy: use a number from 0 to 1",
    ),
    (
        {"algorithm": {"name": "FedAvg", "epochs": 3, "stragglers": {"probabilty": 0.5}}},
        r"algorithm\.stragglers\.probabilty=0\.5 is not a setting\. Did you mean 'probability'\?.*settings of stragglers are: probability",
    ),
    ({"algorithm": {"name": "FedAvg", "stragglers": 0.5}}, r"algorithm\.stragglers=0\.5 should be"),
    (
        {"loss": "CrossEntropyLoss"},
        r"loss='CrossEntropyLoss' is not a known loss\. Did you mean 'cross_entropy'\?.*use auto, cross_entr",
    ),
    (
        {"loss": "tests.support.parts_of_mine:Halved"},
        r"loss='tests.support.parts_of_mine:Halved' is a class.*calls Halved\(\)",
    ),
    (
        {"loss": "tests.support.parts_of_mine:twise"},
        r"has no attribute 'twise'\. Did you mean 'twice'\?.*define it in tests.support.parts_of_mine",
    ),
    ({"model": "nowhere:net"}, r"No module named 'nowhere'.*in the working folder or installed"),
    ({"loss": "nowhere:loss"}, r"'nowhere:loss' cannot be imported: No module named 'nowhere'"),
    ({"stop": [{"name": "Target", "value": 1.0}]}, r"stop\[0\]\.metric is missing"),
    ({"pacing": {"name": "Synchronous", "late": "never"}}, r"pacing\.late='never' should be 'cancel'"),
    ({"engine": "bathed"}, r"engine='bathed' is not an engine\. Did you mean 'batched'\?"),
    ({"compile": "yes"}, r"compile='yes' should be 'auto', 'always' or 'never'"),
    (
        {"data": {"source": "iris", "partition": "iid", "corruptions": [{"name": "Noise"}]}},
        r"data\.corruptions\[0\]\.share is missing",
    ),
    (
        {"data": {"source": "iris", "partition": "iid", "corruptions": [{"name": "Noise", "share": 3}]}},
        r"data\.corruptions\[0\]\.share=3 is not a share of the clients",
    ),
]


@pytest.mark.parametrize(("change", "said"), WRONG, ids=[str(i) for i in range(len(WRONG))])
def test_what_is_wrong_is_named_with_its_path_value_and_nearest_key(
    settings: dict[str, Any], change: dict[str, Any], said: str
) -> None:
    if "partition" in str(change.get("data")) and change["data"].get("partition") == "iid":
        change["data"]["partition"] = {"name": "iid", "parties": 6}
    with pytest.raises(ConfigError, match=said) as caught:
        parse_config({**settings, **change}, "mine.yaml")
    assert caught.value.where == "mine.yaml"
    assert caught.value.remedy
    assert caught.value.exit_code == 2


def test_several_problems_are_told_at_once(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"model\.outputs is missing; rounds='x' should be a valid integer"):
        parse_config({**settings, "model": {"name": "linear", "features": 4}, "rounds": "x"})


def test_ranges_are_checked_when_the_file_is_read_and_all_are_told(settings: dict[str, Any]) -> None:
    wrong = {**settings, "algorithm": {"name": "FedAvg", "lr": -1.0}, "selection": {"name": "Uniform", "count": 0}}
    said = r"^algorithm\.lr=-1\.0; selection\.count=0 clients \(in mine\.yaml\)\. Remedy: use a positive, finite learning rate; use"
    with pytest.raises(ConfigError, match=said):
        parse_config(wrong, "mine.yaml")


def test_a_part_that_is_no_plain_value_is_made_with_the_run_and_placed(settings: dict[str, Any]) -> None:
    with pytest.raises(
        ConfigError,
        match=r"share=2\.0 \(in c\.yaml: algorithm \(tests.support.parts_of_mine:halving\)\)\. Remedy: use at most 1",
    ):
        parse_config({**settings, "algorithm": {"name": "tests.support.parts_of_mine:halving", "share": 2.0}}, "c.yaml")


def test_parts_that_do_not_go_together_are_told_before_the_data_are_loaded(settings: dict[str, Any]) -> None:
    wrong = {**settings, "reducer": "tests.support.parts_of_mine:Blind", "aggregation": "KeepLocal"}
    with pytest.raises(
        CompositionError, match=r"KeepLocal sees single replies, .* \(in c\.yaml: Training\.aggregation\)"
    ):
        parse_config(wrong, "c.yaml")


def test_a_data_set_wants_a_partition_and_a_population_none(settings: dict[str, Any]) -> None:
    with pytest.raises(
        ConfigError, match=r"iris is one data set, not yet divided among clients \(in data\.partition\)"
    ):
        to_job(parse_config({**settings, "data": {"source": "iris"}}))
    data = {"source": {"name": "synthetic_iid"}, "partition": {"name": "iid", "parties": 3}}
    with pytest.raises(ConfigError, match=r"synthetic_iid is divided among clients already \(in data\.partition\)"):
        to_job(parse_config({**settings, "data": data}))


def test_names_are_forgiving_and_settings_are_those_of_python(settings: dict[str, Any]) -> None:
    made = parse_config({**settings, "algorithm": {"name": "fed_avg", "lr": 0.3}, "uplink": ["clip"]})
    job, islands = to_job(made)
    assert job.algorithm == atoll.FedAvg(lr=0.3)
    assert list(job.uplink) == [atoll.Clip()]
    assert len(islands) == 6
    assert made.algorithm.name == "FedAvg"


def test_every_setting_of_a_training_can_be_configured(settings: dict[str, Any]) -> None:
    fields = {f.name for f in dataclasses.fields(atoll.Training)}
    assert fields - {"callbacks"} <= set(type(parse_config(settings)).model_fields)


def test_the_defaults_are_those_of_python(settings: dict[str, Any]) -> None:
    job, _ = to_job(parse_config({k: settings[k] for k in ("data", "model")}))
    plain = atoll.Training(model=job.model)
    for field in dataclasses.fields(atoll.Training):
        assert getattr(job, field.name) == getattr(plain, field.name), field.name


def test_corruptions_spoil_their_share_of_the_clients(settings: dict[str, Any]) -> None:
    spoil = [{"name": "Noise", "share": 0.5, "sigma": 2.0}, {"name": "Mislabel", "share": 0.34}]
    made = parse_config({**settings, "data": {**settings["data"], "corruptions": spoil}})
    assert to_job(made)[1].tags.counts() == {"noise": 3, "mislabelled": 2}


def test_a_round_trip_through_yaml_changes_nothing(settings: dict[str, Any]) -> None:
    full = {
        **settings,
        "uplink": [{"name": "Clip", "bound": 2.5}],
        "stop": [{"name": "Target", "metric": "test/accuracy", "value": 0.9}, {"name": "Patience", "metric": "loss"}],
        "evaluation": {"clients": -1, "metrics": [{"name": "Confusion", "classes": 3}, "Accuracy"]},
        "aggregation": "KeepGlobal",
        "selection": {"name": "Schedule", "rounds": [[0, 1], [2, 3]]},
        "keep_best": "test/accuracy",
    }
    made = parse_config(full)
    again = parse_config(yaml.parse(made.to_yaml(), "again"))
    assert again == made
    assert to_job(again)[0] == to_job(made)[0]
    assert again.digest() == made.digest()


@given(
    lr=st.floats(1e-300, 1e300),
    name=st.text(max_size=20),
    seed=st.integers(-(10**30), 10**30),
    count=st.integers(1, 99),
)
def test_any_value_survives_the_round_trip(lr: float, name: str, seed: int, count: int) -> None:
    made = parse_config(
        {
            "name": name,
            "data": {"source": "iris", "partition": {"name": "iid", "parties": 6}},
            "model": {"name": "linear", "features": 4, "outputs": 3},
            "algorithm": {"name": "FedAvg", "lr": lr},
            "selection": {"name": "Uniform", "count": count},
            "seed": seed,
        }
    )
    again = parse_config(yaml.parse(made.to_yaml(), "again"))
    assert (again.name, again.seed, again.algorithm.args["lr"]) == (name, seed, lr)


def test_the_digest_tells_runs_apart_and_ignores_their_names(settings: dict[str, Any]) -> None:
    made = parse_config(settings)
    assert parse_config({**settings, "name": "other", "folder": "x"}).digest() == made.digest()
    assert parse_config({**settings, "seed": 1}).digest() != made.digest()
    assert made.differences(parse_config({**settings, "seed": 1, "rounds": 9})) == ["seed", "rounds"]


def test_registering_a_class_once_makes_it_configurable(settings: dict[str, Any]) -> None:
    from tests.support.parts_of_mine import Halved

    register("algorithm", "Halved", Halved)
    try:
        made = parse_config({**settings, "algorithm": {"name": "halved", "share": 0.25, "lr": 0.2}})
        assert to_job(made)[0].algorithm == Halved(share=0.25, lr=0.2)
        with pytest.raises(ConfigError, match=r"algorithm\.shar=0\.2 is not a setting\. Did you mean 'share'\?"):
            parse_config({**settings, "algorithm": {"name": "Halved", "shar": 0.2}})
        with pytest.raises(ConfigError, match="there is already a algorithm 'Halved'"):
            register("algorithm", "Halved", atoll.FedSGD)
    finally:
        registry("algorithm").extra.pop("Halved")
    with pytest.raises(ConfigError, match=r"no kind of part 'algoritm'\. Did you mean 'algorithm'\?"):
        register("algoritm", "Halved", Halved)


def test_metrics_and_the_aggregation_are_those_of_python(settings: dict[str, Any]) -> None:
    from atoll.aggregation import Rescaled
    from atoll.learn.metrics import Accuracy, TopKAccuracy

    more = {"evaluation": {"metrics": ["accuracy", {"name": "top_k_accuracy", "k": 2}]}, "aggregation": "rescaled"}
    job, islands = to_job(parse_config({**settings, **more}))
    assert list(job.evaluation.metrics) == [Accuracy(), TopKAccuracy(2)]
    assert job.aggregation == Rescaled()
    assert atoll.simulate(job, islands).metrics[-1]["test/top_2_accuracy"] > 0.5


def test_settings_that_are_a_value_of_their_own_are_a_section(settings: dict[str, Any]) -> None:
    from atoll.learn.algorithm import Stragglers

    said = {"name": "FedAvg", "epochs": 3, "stragglers": {"probability": 0.5}}
    made = parse_config({**settings, "algorithm": said})
    assert to_job(made)[0].algorithm == atoll.FedAvg(epochs=3, stragglers=Stragglers(0.5))
    assert parse_config(yaml.parse(made.to_yaml(), "again")) == made
    assert json_schema()["$defs"]["Stragglers"]["required"] == ["probability"]


def test_your_own_loss_is_named_like_any_part(settings: dict[str, Any]) -> None:
    from tests.support import parts_of_mine

    assert (
        parse_config({**settings, "loss": "tests.support.parts_of_mine:twice"}).made(checking=True).loss
        is parts_of_mine.twice
    )
    asking = parse_config({**settings, "loss": "tests.support.parts_of_mine:by_row"}).made(checking=True)
    assert asking.loss is parts_of_mine.by_row
    model = atoll.models.mlp(64, 10)
    islands = atoll.data.iid(atoll.data.digits(), parties=10, seed=0)
    result = atoll.simulate(asking.replace(model=model, rounds=1, keep_best=None, stop=()), islands)
    assert np.isfinite(result.metrics.last("loss"))


def test_an_algorithm_around_another_is_configured_inside_out(settings: dict[str, Any]) -> None:
    from tests.support.parts_of_mine import Mixed

    register("algorithm", "Mixed", Mixed)
    try:
        inside = {"name": "FedAvg", "lr": 0.3}
        plain = {"betas": [0.5, 0.6], "mode": "slow", "weights": [1.0], "table": {"a": 1.0}, "count": 2}
        made = parse_config({**settings, "algorithm": {"name": "Mixed", "base": inside, **plain}})
        said: Any = {"betas": (0.5, 0.6), "mode": "slow", "weights": (1.0,), "table": {"a": 1.0}, "count": 2}
        assert to_job(made)[0].algorithm == Mixed(base=atoll.FedAvg(lr=0.3), **said)
        assert parse_config(yaml.parse(made.to_yaml(), "again")) == made
        with pytest.raises(ConfigError, match=r"^algorithm\.base\.lr=-1\.0 \("):
            parse_config({**settings, "algorithm": {"name": "Mixed", "base": {"name": "FedAvg", "lr": -1.0}}})
        with pytest.raises(ConfigError, match=r"algorithm\.lr=0\.5 is not a setting"):
            parse_config({**settings, "algorithm": {"name": "Mixed", "base": inside, "lr": 0.5}})
        with pytest.raises(ConfigError, match=r"algorithm\.count=-1"):
            parse_config({**settings, "algorithm": {"name": "Mixed", "base": inside, "count": -1}})
        schema = json_schema()
        found = next(p for p in schema["$defs"]["AlgorithmPart"]["anyOf"] if p.get("title") == "Mixed")
        assert found["properties"]["base"] == {"$ref": "#/$defs/AlgorithmPart"}
        assert _referred(schema) <= set(schema["$defs"])
    finally:
        registry("algorithm").extra.pop("Mixed")


def _referred(schema: Any) -> set[str]:
    """Names of the definitions that a schema refers to."""
    if isinstance(schema, list):
        return set().union(*map(_referred, schema))
    if not isinstance(schema, dict):
        return set()
    own = {str(schema["$ref"]).removeprefix("#/$defs/")} if "$ref" in schema else set()
    return own.union(*map(_referred, schema.values()))


def test_your_own_part_needs_no_registration(settings: dict[str, Any]) -> None:
    made = parse_config({**settings, "algorithm": {"name": "tests.support.parts_of_mine:Halved", "share": 0.1}})
    assert to_job(made)[0].algorithm.share == 0.1
    assert parse_config(yaml.parse(made.to_yaml(), "again")) == made


@pytest.mark.parametrize("kind", sorted(part_kinds()))
def test_every_part_can_be_described(kind: str) -> None:
    for name, part in registry(kind).parts().items():
        found = registry(kind).schema(part)
        assert found.configurable, name
        assert found.text, f"{name} has no docstring"


def test_every_public_part_is_in_its_registry() -> None:
    from atoll import aggregation, algorithms, data, learn, selection, stages
    from atoll.learn import metrics

    assert set(algorithms.__all__) - {"FullGradient"} == set(registry("algorithm").parts())  # it is a part of others
    assert {"Everyone", "Schedule", "Uniform"} <= set(registry("selection").parts()) <= set(selection.__all__)
    assert set(aggregation.__all__) - {"Aggregation"} == set(registry("aggregation").parts())
    no_scores = {"FunctionMetric", "HumanTime", "ScoreMetric", "pack_metric", "unpack_metric"}
    assert set(metrics.__all__) - no_scores == set(registry("metric").parts())
    assert set(stages.__all__) <= set(registry("uplink stage").parts())
    assert {"MaxTime", "Patience", "Target"} <= set(registry("stop rule").parts())
    assert {"dirichlet", "iid", "natural", "shards"} <= set(registry("partition").parts())
    assert {"digits", "mnist", "read_csv", "synthetic"} <= set(registry("data source").parts())
    assert {"open", "concatenate", "scaled", "corrupt", "from_torch"}.isdisjoint(registry("data source").parts())
    assert hasattr(data, "digits")
    assert hasattr(learn, "Training")


def test_the_json_schema_knows_the_parts_and_their_settings() -> None:
    schema = json_schema()
    assert schema["additionalProperties"] is False
    text = str(schema)
    assert "server_lr" in text
    assert "'const': 'dirichlet'" in text
    assert _referred(schema) <= set(schema["$defs"])
    metrics = schema["$defs"]["Evaluation"]["properties"]["metrics"]
    assert metrics["items"] == {"$ref": "#/$defs/MetricPart"}
    topk = next(p for p in schema["$defs"]["MetricPart"]["anyOf"] if p.get("title") == "TopKAccuracy")
    assert topk["properties"]["k"]["type"] == "integer"
    parts = schema["$defs"]["AlgorithmPart"]["anyOf"]
    fedavg = next(p for p in parts if p.get("title") == "FedAvg")
    assert set(fedavg["properties"]) == {
        "name",
        "lr",
        "epochs",
        "batch_size",
        "steps",
        "server_lr",
        "decay",
        "stragglers",
    }


def test_data_that_cannot_be_had_says_so(settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ATOLL_DATA", raising=False)
    made = parse_config({**settings, "data": {**settings["data"], "source": "mnist"}})
    with pytest.raises(DataError, match="the environment variable ATOLL_DATA is not set"):
        to_job(made)


def test_the_weights_of_a_module_of_your_own_follow_the_seed_of_the_run() -> None:
    """Not the generator of the process, which begins anywhere: the same file gives the same model tomorrow."""
    torch = pytest.importorskip("torch")
    config = {
        "data": {"source": "digits", "partition": {"name": "iid", "parties": 2}},
        "model": {"name": "torch.nn:Linear", "in_features": 64, "out_features": 10},
        "algorithm": "FedAvg",
        "selection": "Everyone",
        "rounds": 1,
    }

    def first(seed: int) -> Any:
        torch.rand(1)  # somebody draws from it
        job, islands = to_job(parse_config(config))
        return atoll.simulate(job, islands, engine="inline", seed=seed).params["weight"]

    np.testing.assert_array_equal(first(1), first(1))
    assert not np.array_equal(first(1), first(2))


def test_a_model_that_is_its_own_learner_may_have_losses_that_only_it_knows(settings: dict[str, Any]) -> None:
    own = {"name": "tests.support.parts_of_mine:Learning", "features": 4, "outputs": 3}
    assert parse_config({**settings, "model": own, "loss": "huber"}).loss == "huber"


def test_clients_hold_out_the_share_that_the_data_say(settings: dict[str, Any]) -> None:
    plain = parse_config(settings)
    data = {**settings["data"], "held_out": 0.25}
    _, whole = to_job(plain)
    _, apart = to_job(parse_config({**settings, "data": data}))
    assert whole.held_out is None
    assert (apart.sizes + apart.held_out.sizes).tolist() == whole.sizes.tolist()
    assert apart.held_out.sizes.tolist() == [size - int(0.75 * size) for size in whole.sizes.tolist()]
    assert parse_config({**settings, "data": data}).digest() != plain.digest()
    assert "held_out" in plain.plain()["data"]
    assert parse_config({**settings, "data": {**data, "held_out": None}}).digest() == plain.digest()
    for share in (0.0, 1.0, True, "0.2"):
        with pytest.raises(ConfigError, match=r"data\.held_out"):
            parse_config({**settings, "data": {**data, "held_out": share}})
