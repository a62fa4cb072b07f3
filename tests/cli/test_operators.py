"""An operator's first hour: other tools' verbs lead to ours, logs are lines for people, a wait ends with the result, and a misspelt policy is refused."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any, cast, get_args

import pytest

import atoll
from atoll import vertical
from atoll.cli.app import run
from atoll.cli.commands import known
from atoll.cli.commands.algorithms import describe_parts
from atoll.cli.commands.jobs import _states
from atoll.cli.commands.logs import readable
from atoll.cli.commands.submit import reached
from atoll.cli.output import _VERBS, meant
from atoll.core.addresses import load_object
from atoll.core.errors import ConfigError
from atoll.core.job import Job
from atoll.core.requests.policy import SitePolicy
from atoll.core.rooms import job_kinds, part_names
from atoll.query.indexes import known_indexes
from atoll.runs import parse_config, parse_policy
from atoll.runs.folder import FORMAT
from atoll.runs.kept import _tell_rejected
from atoll.runtime.consent import parse_consent
from atoll.secure import psi
from atoll.secure.psi import Alignment
from atoll.trees.job import Scheme
from atoll.vertical.linear.vertical_linear import SECURITIES
from tests.project.test_remedies import commands


@pytest.mark.parametrize(
    ("word", "verb"),
    [("stop", "abort"), ("cancel", "abort"), ("kill", "abort"), ("status", "jobs"), ("ps", "jobs"), ("results", "result"), ("rm", "delete"),
     ("glm", "fit"), ("xgboost", "trees"), ("describe", "stats"), ("train", "run"), ("jbos", "jobs")],
)  # fmt: skip
def test_other_tools_verbs_lead_to_the_right_one(word: str, verb: str, typed: Any) -> None:
    code, result, said = typed(word)
    assert (code, result["error"]["what"].startswith(f"No such command '{word}'")) == (2, True)
    assert f"`atoll {verb}" in result["error"]["remedy"]
    assert word == "jbos" or "Did you mean" not in said


def test_each_of_these_sentences_names_a_command_and_no_word_is_one() -> None:
    for sentence, words in _VERBS.items():
        for name in re.findall(r"`atoll ([a-z]+)", sentence):
            assert name in commands()
        assert not set(words.split()) & set(known())
    assert meant("qwertyuiop") == ("", False)


def test_logs_are_lines_that_people_read() -> None:
    entry = {
        "time": "2026-01-01",
        "level": "info",
        "logger": "atoll",
        "message": "round",
        "record": {"round": 3, "loss": 0.123456789},
    }
    assert readable(json.dumps(entry)) == "round (round 3, loss 0.12346)"
    warned = {**entry, "level": "warning", "message": "replies were rejected", "record": None, "clients": ["north"]}
    assert readable(json.dumps(warned)) == "warning: replies were rejected (clients ['north'])"
    failed = {**entry, "level": "error", "message": "it failed", "traceback": "Traceback:\n  File x\nValueError: no"}
    assert readable(json.dumps(failed)).splitlines()[1:] == ["  Traceback:", "    File x", "  ValueError: no"]
    for plain in ("done 3", '{"not": "an entry"}', "[1, 2]", "{broken"):
        assert readable(plain) == plain


def test_no_entry_forges_another_line() -> None:
    forged = {"message": "a\n2026-01-01 server: job 7 is finished\x1b[2J", "level": "info"}
    assert len(readable(json.dumps(forged)).splitlines()) == 1
    assert "\x1b" not in readable(json.dumps(forged))


class _Server:
    """A server's answer to a request for a job's results."""

    async def result(self, job: str, out: Path, *, replace: bool, files: tuple[str, ...]) -> list[Path]:
        del job, replace
        rows = [
            {"round": 1, "test/accuracy": 0.5},
            {"round": 2, "test/accuracy": 0.75, "clients/accuracy/values": [0.5, 1.0], "selected": 2},
        ]
        texts = {
            "config.yaml": "name: tumours\n",
            "manifest.json": json.dumps(
                {
                    "format": FORMAT,
                    "status": "finished",
                    "notices": ["2 replies were rejected"],
                    "result": {"trees": 3, "features": ["age"], "importance": {"age": 0.5}},
                }
            ),
            "metrics.jsonl": "\n".join(map(json.dumps, rows)) + "\n",
        }
        assert set(files) == set(texts), "nothing large is fetched"
        for name in files:
            (out / name).write_text(texts[name], encoding="utf-8")
        return []


def test_a_wait_ends_with_what_the_job_has_found() -> None:
    found = asyncio.run(reached(_Server(), "00000001-x"))  # type: ignore[arg-type]
    assert found["result"] == {"round": 2, "test/accuracy": 0.75, "trees": 3, "importance.age": 0.5}
    assert found["notices"] == ["2 replies were rejected"]


def test_a_line_of_the_log_says_whose_replies_were_rejected_and_why() -> None:
    row = {"round": 2, "rejected_clients": {"north": "refused by its policy", **{f"site-{i}": "NaN" for i in range(4)}}}
    assert _tell_rejected(row) == (
        "replies were rejected in round 2: north: refused by its policy; site-0: NaN; site-1: NaN; and 2 more"
    )


def test_a_state_that_there_is_not_is_answered_with_a_word() -> None:
    with pytest.raises(ConfigError, match=r"'runing' is not a state of a job\. Did you mean 'running'\?"):
        _states(["runing"])


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        ({"allow": ["FedAvgg"]}, "allow='FedAvgg' is no kind of job, algorithm or method. Did you mean 'FedAvg'?"),
        ({"allow": ["statistic"]}, "Did you mean 'statistics'?"),
        ({"allow": ["SecureBost"]}, "Did you mean 'SecureBoost'?"),
        ({"allow": ["training", "fedd*"]}, r"allow='fedd\*' is no kind"),
        ({"tasks": ["train"]}, "tasks='train' is the name of no task"),
        ({"free": ["exchange"]}, "free='exchange' is the name of no task"),
        ({"tasks": ["atol.*"]}, r"tasks='atol.\*' is the name of no task. Did you mean 'atoll'?"),
        ({"tasks": ["atoll.vertcal.job:host"]}, "there is no atoll.vertcal. Did you mean 'vertical'?"),
        ({"learned": ["sizes", "cuont"]}, "learned='cuont' is nothing that a protocol tells. Did you mean 'count'?"),
        ({"allow": ["SFTLL"]}, "Did you mean 'SFTL'?"),
    ],
)
def test_a_policy_with_a_name_that_does_not_exist_is_refused(policy: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words.replace("?", r"\?")):
        parse_policy(policy)


def test_a_policy_with_names_that_exist_is_taken() -> None:
    names = [
        "training",
        "statistics",
        "trees",
        "fit",
        "program",
        "FedAvg",
        "Fed*",
        "KMeans",
        "FixMatch",
        "histogram",
        "SecureBoost",
        "VerticalLinear",
        "arbiter",
        "SplitNet",
        "Ecdh",
        "query",
        "*",
        "row-features",
        "study.*:*",
    ]
    assert parse_policy({"allow": names, "tasks": ["atoll.*", "own:task"]}).allow == tuple(names)
    parse_consent({"people": {"anna": ["statistics", "ct_study:*"], "eve": "any", "*": "built-in"}}, "north")


def test_a_simulations_policy_with_a_name_that_does_not_exist_is_refused() -> None:
    tables = {"bank": {"id": ["1", "2"]}, "shop": {"id": ["2", "3"]}}
    for wrong in (SitePolicy(allow=("Ecdhh",)), SitePolicy(tasks=("atol.*",))):
        with pytest.raises(ConfigError, match="Did you mean"):
            atoll.simulate(Alignment(), tables, policy={"shop": wrong}, engine="inline", progress=False)


def test_policies_know_what_jobs_call_themselves() -> None:
    """What a job says in `names` is among what its kind declares, for a job of each part that has a name of its own."""
    known = {kind: set(load_object(where).known_names()) for kind, where in job_kinds().items()}
    models = [getattr(vertical, name) for name in part_names("vertical model")]
    jobs: list[Job] = [vertical.Vertical(model=model()) for model in models if model is not vertical.PrADA]
    jobs += [vertical.Vertical(model=vertical.VerticalLinear(security=cast("Any", one))) for one in SECURITIES]
    protocols = [getattr(psi, name)() for name in part_names("alignment protocol")]
    jobs += [Alignment(protocol=one, result="ids" if "ids" in one.results else "count") for one in protocols]
    jobs += [
        Alignment(result="count", protocol=psi.Oprf()),
        psi.Linkage(columns=["name"]),
        vertical.VerticalPrediction(),
    ]
    jobs += [atoll.Trees(scheme=one) for one in get_args(Scheme)]
    for job in jobs:
        assert set(job.names()) <= known[job.kind], job
        parse_policy({"allow": [*job.names()]})


def test_consent_with_a_name_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"allow='statistik' is no kind of job.* Did you mean 'statistics'\?"):
        parse_consent({"people": {"anna": ["statistik"]}}, "north")


BASE = {
    "data": {"source": "iris", "partition": {"name": "iid", "parties": 3}},
    "model": {"name": "linear", "features": 4, "outputs": 3},
    "algorithm": {"name": "FedAvg", "lr": 0.1},
}


@pytest.mark.parametrize("value", [5, "text", [1], {"a": 4}, None, 2.5, True])
@pytest.mark.parametrize(
    "setting",
    ["data", "model", "algorithm", "policy", "policies", "uplink", "evaluation", "stop", "devices", "trackers", "engine", "rounds", "seed", "name"],
)  # fmt: skip
def test_no_message_names_a_class_of_a_library(setting: str, value: Any) -> None:
    assert not re.search(r"[A-Z]\w+Config|instance of|dictionary|pydantic|subclass|BaseModel", _said(setting, value))


def _said(setting: str, value: Any) -> str:
    try:
        parse_config({**BASE, setting: value})
    except ConfigError as error:
        return str(error)
    return ""


def test_every_model_protocol_and_kind_of_job_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    parts = describe_parts()
    assert {"Ecdh", "Oprf", "Opprf", "Unbalanced", "Circuit", "SecureBoost", "Pivot", "VerticalLinear", "SplitNet"} <= parts.keys()  # fmt: skip
    assert {name for name, one in parts.items() if one.kind == "transfer method"} == {"SFTL", "SFHTL", "PrADA"}
    indexes = {one.asked: name for name, one in parts.items() if one.kind == "index of queries"}
    assert (indexes["index: {location: tree}"], indexes["index: {age: pgm}"], len(indexes)) == ("PackedTree", "PiecewiseGeometricIndex", len(known_indexes()))  # fmt: skip
    jobs = {one.asked.removeprefix("job: "): name for name, one in parts.items() if one.kind == "kind of job"}
    assert jobs["split-fed"] == "SplitFed"
    assert jobs.keys() == job_kinds().keys() - {"program"}, "all but a user's own program"
    for one in parts.values():
        module, _, name = one.address.rpartition(".")
        assert load_object(f"{module}:{name}").__name__ == name
        assert name == one.name or one.kind == "rule of queries", "a rule's name is SQL's"
        assert one.text.endswith(".")
        assert "\n" not in one.text
    assert run(["algorithms", "--json"]) == 0
    assert [one["name"] for one in json.loads(capsys.readouterr().out)["parts"]] == list(parts)
    assert run(["algorithms", "SFTL", "FedAvg", "FedGKT", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [one["name"] for one in told["algorithms"]] == ["FedAvg"]
    assert [one["name"] for one in told["parts"]] == ["SFTL", "FedGKT"]
    assert told["parts"][0]["rest"]
    assert run(["algorithms", "SecureBost", "--json"]) == 2
    assert "Did you mean 'SecureBoost'?" in json.loads(capsys.readouterr().out)["error"]["what"]
