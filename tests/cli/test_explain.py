"""`atoll explain` says who will see what, and its costs are those that the run has."""

from __future__ import annotations

import json

import pytest

import atoll
from atoll.cli.app import run
from atoll.core.addresses import load_object
from atoll.core.federation.reducer import Plain, Reducer
from atoll.core.job import Job
from atoll.core.rooms import job_kinds
from atoll.reducers import (
    BoundedSum,
    Enclave,
    Encrypted,
    MultiRound,
    OneShot,
    SecureAggregation,
    SecureIndexing,
    SecureTree,
    TwoServers,
)
from atoll.runs import yaml

RUN = {
    "name": "digits",
    "data": {"source": "digits", "partition": {"name": "dirichlet", "parties": 12, "alpha": 0.5}},
    "model": {"name": "mlp", "features": 64, "outputs": 10},
    "algorithm": {"name": "FedAvg", "lr": 0.1},
    "selection": {"name": "Uniform", "count": 6},
    "rounds": 1,
}


def explained(capsys, tmp_path, *words, code=0, **more):
    file = tmp_path / "job.yaml"
    file.write_text(yaml.dump({**RUN, **more}))
    assert run(["explain", str(file), *words, "--json"]) == code
    return json.loads(capsys.readouterr().out)


def test_a_plain_training_shows_every_reply_and_a_secure_one_a_sum(capsys, tmp_path):
    plain = explained(capsys, tmp_path)
    assert plain["clients"] == 6
    assert plain["exposures"][0] == {"who": "server", "sees": "the reply of every client", "assuming": ""}
    masked = explained(capsys, tmp_path, reducer={"name": "SecureAggregation", "threshold": 4})
    server = masked["exposures"][0]
    assert server["sees"].startswith("the sum of the replies of 4 clients or more")
    assert "fewer than 4 of the 6 holders" in server["assuming"]


@pytest.mark.every(3)
@pytest.mark.parametrize(
    "reducer", [{"name": "Plain"}, {"name": "SecureAggregation"}, {"name": "TwoServers"}], ids=lambda r: r["name"]
)
@pytest.mark.parametrize("uplink", [[], [{"name": "Clip", "bound": 1.0}]], ids=["plain", "clipped"])
def test_the_costs_are_those_of_a_round(capsys, tmp_path, reducer, uplink):
    """What a client really sends is the words of the update, and a little more: weights, metrics, keys and shares. A helper sends the sum of the masks once."""
    said = explained(capsys, tmp_path, reducer=reducer, uplink=uplink)["costs"]
    file = tmp_path / "job.yaml"
    made, data = atoll.runs.config.to_job(atoll.runs.load_config(file))
    row = atoll.simulate(made, data, progress=False).metrics.rows[0]
    each = row["bytes_up"] / 6
    assert said["parameters"] == 64 * 64 + 64 + 64 * 10 + 10
    helper = said["bytes_up"] / 6 if reducer["name"] == "TwoServers" else 0
    assert said["bytes_up"] <= each - helper <= said["bytes_up"] + 6200
    assert said["bits_per_weight"] == pytest.approx(8 * said["bytes_up"] / said["parameters"], abs=0.01)


@pytest.mark.parametrize(
    "scheme", ["bfv", *(pytest.param(name, marks=pytest.mark.slow) for name in ("ckks", "paillier", "batchcrypt"))]
)
@pytest.mark.parametrize("uplink", [[], [{"name": "Clip", "bound": 1.0}]], ids=["plain", "clipped"])
def test_the_expansion_of_ciphertexts_is_known_beforehand(scheme, uplink):
    data = atoll.data.dirichlet(atoll.data.digits(), parties=3, alpha=1.0)
    job = atoll.Training(
        model=atoll.models.mlp(64, 10), algorithm=atoll.FedAvg(lr=0.1), rounds=1, uplink=[atoll.stages.Clip(1.0)] if uplink else [],
        selection=atoll.selection.Everyone(), reducer=Encrypted(scheme),
    )  # fmt: skip
    costs = job.explain(data, 3).costs
    row = atoll.simulate(job, data, progress=False).metrics[0]
    # A client sends ciphertexts of the update, of its weight and of metrics; the helper sends keys and the sum once.
    each = row["bytes_up"] / 3
    assert costs["expansion"] == pytest.approx(costs["bytes_up"] / costs["bytes_up_plain"], rel=1e-3)
    assert costs["expansion"] > 1.2, "ciphertexts are longer than numbers"
    assert 0.97 * costs["bytes_up"] <= each <= 1.5 * costs["bytes_up"] + 80_000


@pytest.mark.parametrize("number", [2, 5, 50])
@pytest.mark.parametrize(
    "reducer",
    [Plain(), SecureAggregation(), MultiRound(), SecureTree(size=2), OneShot(), Enclave(), BoundedSum(), TwoServers(), Encrypted(), Encrypted(scheme="paillier", keys="threshold"),
     *(SecureIndexing(by=by) for by in ("enclave", "shares", "keys"))],
    ids=repr,
)  # fmt: skip
def test_every_reducer_says_what_the_server_and_its_helpers_see(reducer, number):
    rows = {row.who: row for row in reducer.exposures(number)}
    assert "server" in rows
    assert set(reducer.others) <= set(rows)
    assert ("every client" in rows["server"].sees) == (not reducer.secure)


def test_a_reducer_of_ones_own_says_the_least_and_virtual_masks_hide_nothing():
    class Mine(Reducer):
        secure = True

    assert Mine().exposures(5)[0].assuming == "Mine keeps its promise"
    assert "every client" in SecureAggregation(masks="virtual").exposures(5)[0].sees


def test_a_job_of_sites_and_a_program_are_explained_too(capsys, tmp_path):
    job = {key: value for key, value in RUN.items() if key not in ("data", "selection")}
    file = tmp_path / "job.yaml"
    file.write_text(yaml.dump({**job, "sites": ["north", "south", "east"]}))
    assert run(["explain", str(file), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["clients"], found["costs"]) == (3, {})
    assert any("costs follow from the model" in note for note in found["notes"])
    file.write_text(yaml.dump(job))
    assert run(["explain", str(file), "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["remedy"] == "add --clients N"
    assert run(["explain", str(file), "--clients", "4", "--json"]) == 0


def test_every_kind_of_job_of_atolls_own_says_what_its_parties_see():
    silent = [kind for kind, where in job_kinds().items() if load_object(where).explain is Job.explain]
    assert silent == ["program"]  # whose code is the job's own


@pytest.mark.parametrize(
    ("settings", "server", "result", "note"),
    [
        ({"job": "statistics"}, "the reply of every client", "the statistics of all rows, and of each client's", "largest min_count of the sites' policies"),
        ({"job": "statistics", "min_count": 7, "columns": ["age"], "reducer": {"name": "SecureAggregation"}}, "the sum of the replies", "the statistics of all rows together", "fewer than 7 rows"),
        ({"job": "statistics", "epsilon": 0.5, "columns": ["age"]}, "the reply of every client", "the statistics of all rows together", "epsilon 0.5 for the whole job"),
        ({"job": "trees", "max_bin": 32}, "the reply of every client", "splits are values", "at most 32 of its values"),
        ({"job": "trees", "scheme": "bagging"}, "the trees of every client by itself", "splits are values", "no differential privacy"),
    ],
)  # fmt: skip
def test_jobs_on_tables_say_what_leaves(settings, server, result, note, capsys, tmp_path):
    file = tmp_path / "job.yaml"
    file.write_text(yaml.dump({"sites": ["north", "south", "east"], **settings}))
    assert run(["explain", str(file), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    rows = {row["who"]: row["sees"] for row in found["exposures"]}
    assert server in rows["server"]
    assert result in rows["whoever gets the result"]
    assert any(note in one for one in found["notes"])


def test_a_reducer_that_cannot_add_up_the_cohort_is_refused(capsys, tmp_path):
    found = explained(capsys, tmp_path, reducer={"name": "SecureAggregation", "threshold": 9}, code=7)
    assert found["error"]["kind"] == "QuorumError"


def test_an_enclave_sees_whole_replies_and_the_bytes_of_shares_are_not_those_of_indices(capsys, tmp_path):
    """Until the first fit, and beside the indices always, numbers go to the enclave as they are; two servers get shares of rows, many times an index."""
    stage = [{"name": "ProductQuantizer", "block": 4, "codewords": 16}]
    inside = explained(capsys, tmp_path, reducer={"name": "SecureIndexing"}, uplink=stage)
    assert inside["exposures"][1] == {
        "who": "enclave",
        "sees": "the reply of every client",
        "assuming": "it keeps them to itself: nothing attests its code",
    }
    assert "on the way up: ProductQuantizer" in inside["notes"]
    assert inside["costs"]["bits_per_weight"] < 4
    apart = explained(capsys, tmp_path, reducer={"name": "SecureIndexing", "by": "shares"}, uplink=stage)
    assert "bits_per_weight" not in apart["costs"]
    bare = explained(capsys, tmp_path, uplink=stage)
    assert "on the way up: ProductQuantizer; the sum needs every single reply" in bare["notes"]


def test_a_protocol_between_parties_says_its_frames_and_what_each_learns(capsys, tmp_path):
    file = tmp_path / "psi.yaml"
    file.write_text("job: psi\nid: id\nresult: sum:shop.amount\nto: [shop]\n")
    assert run(["explain", str(file), "--clients", "2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    told = {(one["who"], one["kind"]) for one in found["exposures"]}
    assert told == {(who, kind) for who in ("party 1", "shop") for kind in ("sizes", "count")} | {
        ("the program", "sizes")
    }
    frames = {(one["source"], one["name"]): (one["rows"], one["bytes"]) for one in found["frames"]}
    assert frames["party 1", "blinded"] == (1000, 32000)
    assert frames["shop", "cells"] == (1000, 512000)
    assert found["costs"]["bytes"] == sum(one["bytes"] for one in found["frames"])
    assert run(["explain", str(file), "--clients", "2"]) == 0
    assert "blinded: 1,000 x 32 bytes" in capsys.readouterr().out
