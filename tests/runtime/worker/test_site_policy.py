"""A site's YAML file says what it insists on; the same section stands in a run's configuration."""

from __future__ import annotations

import numpy as np
import pytest

from atoll.core.errors import ConfigError, DataError, PolicyError
from atoll.core.requests.policy import SitePolicy
from atoll.runs import parse_config
from atoll.runs.execution import execute
from atoll.runs.folder import RunFolder
from atoll.runtime.job_spec import parse_job
from atoll.runtime.worker import load_site_data, site_spec
from atoll.runtime.worker.at_site import _admitted
from atoll.runtime.worker.headers import look_at_headers
from atoll.runtime.worker.policies import demand_of_site, require_allowed, require_names
from atoll.runtime.worker.words import settings_of
from atoll.stages import Clip, GaussianNoise

SECTION = (
    "policy:\n  stages: [{name: Clip, bound: 2.0}, {name: GaussianNoise, multiplier: 0.5}]\n  tasks: ['atoll.*']\n"
)


def site(folder, policy):
    np.savez(folder / "rows.npz", x=np.ones((4, 2)), y=np.array([0, 1, 0, 1]))
    (folder / "site.yaml").write_text(f"path: rows.npz\n{policy}")
    return site_spec(str(folder / "site.yaml"))


def test_a_site_reads_its_policy(tmp_path):
    spec = site(tmp_path, SECTION)
    look_at_headers(spec, "north")
    made = load_site_data(spec, "north")
    assert made.policy == SitePolicy(stages=[Clip(2.0), GaussianNoise(0.5)], tasks=["atoll.*"], min_count=10)
    assert made.sizes == (4,)
    assert load_site_data(site(tmp_path, ""), "north").policy is None


def test_budgets_of_analysts_stand_beside_what_every_release_must_have(tmp_path):
    """`privacy: people` is for queries alone, and the rest of the section for all jobs."""
    (tmp_path / "north").mkdir()
    (tmp_path / "north" / "v.csv").write_text("ward\nA\n")
    people = "people: {anna: {epsilon: 4, delta: 1.0e-6}}, rows: 3"
    for more in ("", ", require: false"):
        (tmp_path / "north.yaml").write_text(f"path: north\npolicy: {{min_count: 2, privacy: {{{people}{more}}}}}\ntables: {{v: {{columns: public}}}}\n")  # fmt: skip
        spec = site_spec(str(tmp_path / "north.yaml"))
        look_at_headers(spec, "north")
        made = load_site_data(spec, "north")
        silo = made.population.shard(0)
        noise = silo.policy.privacy
        assert (noise.people, noise.rows, silo.policy.min_count) == ({"anna": (4.0, 1e-6)}, 3, 2)
        demand = demand_of_site(spec, "north")
        assert demand is None if not more else demand.require is False
    (tmp_path / "north.yaml").write_text("path: north\npolicy: {privacy: {people: {anna: {epsilon: -4}}}}\ntables: {v: {columns: public}}\n")  # fmt: skip
    with pytest.raises(ConfigError, match="anna"):
        look_at_headers(site_spec(str(tmp_path / "north.yaml")), "north")


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ("policy: {stages: [{name: Clipp}]}", "Clipp"),
        ("policy: {largest_replies: 3}", "Did you mean"),
        ("policy: {smallest_cohort: 0}", "smallest_cohort=0"),
        ("policy: {results: no}", "results='no' should be true or false"),
        ("policy: {allow: []}", "allow=.. allows nothing, and a policy without allow allows everything"),
        ("policy: {learned: []}", "learned=.. allows nothing"),
        ("policy:\n  privacy:\n  # {require: true}\n", "privacy has no value"),
    ],
)
def test_a_wrong_policy_is_refused_before_the_site_connects(tmp_path, section, words):
    with pytest.raises(ConfigError, match=words):
        look_at_headers(site(tmp_path, section), "north")


@pytest.mark.parametrize("section", ["policy", "consent"])
def test_a_section_of_which_nothing_is_left_does_not_allow_everything(tmp_path, section):
    with pytest.raises(DataError, match=f"{section}=None .*Remedy: write {{}} .*or leave {section} out"):
        look_at_headers(site(tmp_path, f"{section}:\n"), "north")
    look_at_headers(site(tmp_path, f"{section}: {{}}\n"), "north")


@pytest.mark.parametrize(
    ("allow", "job", "words"),
    [
        ("[FedAvg]", "algorithm: FedAvg\n", None),
        ("[FedAvg]", "model: {name: 'my_nets:small'}\n", "the job's own code, my_nets:small, may not run here"),
        ("['my_nets:*', 'shadow:*']", "model: {name: 'my_nets:small'}\n", None),
        ("['my_nets:*']", "algorithm: FedAvg\n", r"the job's own code, shadow:\*, may not run here"),
        ("['*:*']", "program: 'a.b:c'\narguments: {at: 'other:thing'}\n", None),
    ],
)
def test_code_that_a_site_does_not_allow_is_not_imported(tmp_path, allow, job, words):
    spec = site(tmp_path, f"policy: {{allow: {allow}}}\n")
    (tmp_path / "job.yaml").write_text(job)
    source = None
    if "shadow" in f"{allow}{words}":
        source = tmp_path / "source"
        source.mkdir()
        (source / "shadow.py").write_text("raise RuntimeError('it was imported')\n")
    given = settings_of(spec, "north")
    if words is None:
        require_allowed(given, "north", tmp_path / "job.yaml", source)
        return
    with pytest.raises(PolicyError, match=words) as found:
        require_allowed(given, "north", tmp_path / "job.yaml", source)
    assert found.value.where == "policy of site 'north'"


def test_what_a_helper_computes_tells_of_no_row_of_its_own(tmp_path):
    """Without a word about it, a party with rows has the usual minimum count, and one without has 1; a number that it gives counts."""
    rows = {"factory": "tests.support.sources:modules"}
    for said, given, least in ((None, {}, 1), ({"allow": ["query"]}, {}, 1), ({"min_count": 4}, {}, 4), ({"allow": ["query"]}, rows, 10)):  # fmt: skip
        made = load_site_data({**given, **({} if said is None else {"policy": said})}, "helper", "shares")
        assert made.rules.rules.min_count == least
    assert load_site_data(site(tmp_path, ""), "north").rules.rules.min_count == 10


def test_a_run_has_policies_of_single_islands(tmp_path):
    strict = {"stages": [{"name": "Clip", "bound": 1.0}]}
    tree = {
        "data": {"source": "iris", "partition": {"name": "iid", "parties": 4}},
        "model": {"name": "linear", "features": 4, "outputs": 3},
        "selection": "Everyone",
        "rounds": 1,
        "policies": {"client-1": strict},
    }

    def refused(name, **more):
        config = parse_config({**tree, **more})
        (row,) = execute(config, RunFolder(tmp_path / name), report=False).metrics
        return sorted(row.get("rejected_clients", {}))

    assert refused("one") == ["client-1"]
    assert refused("others", policy=strict, policies={"client-1": {}}) == [
        "client-0",
        "client-2",
        "client-3",
    ]
    with pytest.raises(ConfigError, match=r"no party is named 'client-7'"):
        refused("nobody", policies={"client-7": strict})
    with pytest.raises(ConfigError, match=r"policies\.client-1\.larges_reply"):
        parse_config({**tree, "policies": {"client-1": {"larges_reply": 3}}})
    with pytest.raises(ConfigError, match=r"policies.*is each site's own"):
        parse_job({"model": tree["model"], "policies": {"north": strict}})
    assert parse_config({**tree, "policies": {}}).digest() != parse_config(tree).digest()


def test_a_run_has_a_policy(tmp_path):
    tree = {
        "data": {"source": "iris", "partition": {"name": "iid", "parties": 4}},
        "model": {"name": "linear", "features": 4, "outputs": 3},
        "selection": "Everyone",
        "rounds": 1,
        "policy": {"stages": [{"name": "Clip", "bound": 1.0}]},
        "pacing": {"name": "Synchronous", "quorum": 0},
    }
    refused = execute(parse_config(tree), RunFolder(tmp_path / "refused"), report=False)
    (row,) = refused.metrics
    assert (row["replied"], row["rejected"]) == (0, 4)
    kept = parse_config({**tree, "uplink": [{"name": "Clip", "bound": 0.5}]})
    (row,) = execute(kept, RunFolder(tmp_path / "kept"), report=False).metrics
    assert row["replied"] == 4


def test_a_site_without_a_policy_sends_no_features_of_rows(tmp_path):
    """FADA's clients and its helper need the name itself; another job needs nothing. What a person may run is another matter."""

    class Job:
        def __init__(self, *names):
            self.names, self.one_form = (lambda: names), False

        def made(self, checking):
            assert checking
            return self

    asks = Job("training", "FADA", "FedAvg", "row-features")
    for words in ("", "policy: {allow: ['*']}\n"):
        data = load_site_data(site(tmp_path, words), "north")
        with pytest.raises(
            PolicyError, match=r"features of single rows(?s:.*)'north'(?s:.*)allow: \['\*', 'row-features'\]"
        ):
            _admitted(asks, data)
        assert _admitted(Job("training", "FedAvg"), data) == {}
    agreed = load_site_data(site(tmp_path, "policy: {allow: [FADA, FedAvg, row-features]}\n"), "north")
    assert _admitted(asks, agreed) == {}
    require_names(("FADA", "FedAvg"), asks.names(), "consent")


@pytest.mark.parametrize(
    ("extremes", "said"),
    [
        ("[age, 'do*']", None),
        ("['x*']", None),
        ("[]", None),
        ("[aeg]", r"extremes: no column 'aeg'\. Did you mean 'age'"),
    ],
)
def test_extremes_name_columns_that_are_there(tmp_path, extremes, said):
    (tmp_path / "rows.csv").write_text("age,dose,died\n1,2,0\n3,4,1\n")
    (tmp_path / "site.yaml").write_text(f"path: rows.csv\ntarget: died\npolicy: {{extremes: {extremes}}}\n")
    spec = site_spec(str(tmp_path / "site.yaml"))
    if said is None:
        look_at_headers(spec, "north")
    else:
        with pytest.raises(ConfigError, match=said):
            look_at_headers(spec, "north")


@pytest.mark.parametrize("header", ["task,worker,label", "value,src,obj,year"])
def test_reports_and_claims_need_no_target(tmp_path, header):
    """A site brings them as they are: it names neither a target nor keys. Other tables still do."""
    (tmp_path / "reports.csv").write_text(f"{header}\n")
    look_at_headers(site_spec(str(tmp_path / "reports.csv")), "north")
    with pytest.raises(DataError, match="no column 'ward'"):
        look_at_headers({**site_spec(str(tmp_path / "reports.csv")), "drop": ["ward"]}, "north")
    (tmp_path / "reports.csv").write_text("task,label\n")
    with pytest.raises(DataError, match="the target column is not set"):
        look_at_headers(site_spec(str(tmp_path / "reports.csv")), "north")
