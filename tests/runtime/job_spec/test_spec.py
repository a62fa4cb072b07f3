"""Jobs: what their files may say, what fronts read of them, and what may travel."""

from __future__ import annotations

import functools
import sys
from pathlib import Path
from typing import Any

import pytest

from atoll.algorithms import FedAvg, FedProx
from atoll.core.errors import CompositionError, ConfigError
from atoll.learn import Training
from atoll.learn.metrics import Confusion
from atoll.learn.round.evaluation import Evaluation
from atoll.models.linear_model import Linear
from atoll.rounds.loop import StopRule
from atoll.runs import yaml
from atoll.runtime.bundle import unpack
from atoll.runtime.job_spec import JobConfig, importing, load_job, pack_job, parse_job, reference_of, require_travels
from atoll.runtime.resources import Resources
from atoll.runtime.terms import JobTerms, Want, job_tree, read_terms
from atoll.selection import Everyone
from tests.support.certificates import authority
from tests.support.forging import ADMIN, check

MODEL = {"name": "linear", "features": 4, "outputs": 3}
PROGRAM = parse_job({"job": "program", "program": "asyncio:sleep"})
MODULE = """
from dataclasses import dataclass
from atoll.algorithms import FedAvg
from atoll.models.linear_model import Linear

@dataclass(frozen=True, kw_only=True)
class Halved(FedAvg):
    share: float = 0.5

def model(features: int = 4) -> Linear:
    return Linear(features, 3)

async def program(fed, rounds: int = 1):
    return rounds
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A job with a module of its own."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "halving_of_mine.py").write_text(MODULE)
    said = {
        "name": "mine",
        "source": "code",
        "model": {"name": "halving_of_mine:model", "features": 4},
        "algorithm": {"name": "halving_of_mine:Halved", "share": 0.25},
        "sites": ["a", "b"],
    }
    (tmp_path / "job.yaml").write_text(yaml.dump(said))
    return tmp_path


def test_defaults_are_written_out_and_read_back() -> None:
    made = parse_job({"model": MODEL})
    assert (made.sites, made.min_sites, made.patience, made.on_lost) == ("all", None, 600.0, "fail")
    assert made.resources.build() == Resources(1.0, 0, 0)
    assert parse_job(yaml.parse(made.to_yaml(), "job")) == made
    assert made.test_set() is None


def test_everything_can_be_said() -> None:
    made = parse_job(
        {
            "name": "digits",
            "model": MODEL,
            "data": {"test": {"name": "iris", "seed": 1}},
            "sites": ["a", "b"],
            "min_sites": 1,
            "patience": 5,
            "on_lost": "drop",
            "attempts": 2,
            "resources": {"cpus": 0.5, "memory": "4GiB", "gpus": 1},
            "algorithm": {"name": "FedProx", "mu": 0.1},
            "rounds": 3,
        }
    )
    assert made.resources.build() == Resources(0.5, 2**32, 1)
    assert made.made().algorithm == FedProx(mu=0.1)
    rows = made.test_set()
    assert rows is not None
    assert len(rows) == 30  # the test part of iris: a fifth of 150 rows
    assert parse_job(yaml.parse(made.to_yaml(), "job")) == made


WRONG: list[tuple[dict[str, Any], str]] = [
    ({}, "model is missing.*add model: ..."),
    ({"job": "trainin", "model": MODEL}, "job='trainin' is not a kind of job. Did you mean 'training'"),
    ({"job": "json:loads", "model": MODEL}, "job='json:loads' is not a class of jobs"),
    ({"model": MODEL, "site": "all"}, "site='all' is not a setting. Did you mean 'sites'"),
    ({"model": MODEL, "sites": []}, "sites=.*names no site"),
    ({"model": MODEL, "sites": ["a", "a"]}, "a site twice"),
    ({"model": MODEL, "sites": ["a"], "min_sites": 2}, "min_sites=2 of 1 sites"),
    ({"model": MODEL, "min_sites": 0}, "min_sites=0"),
    ({"model": MODEL, "patience": 0.0}, "patience=0.0"),
    ({"model": MODEL, "patience": float("inf")}, "patience=inf"),
    ({"model": MODEL, "attempts": 0}, "attempts=0"),
    ({"model": MODEL, "on_lost": "wait"}, "on_lost='wait'"),
    ({"model": MODEL, "resources": {"memory": "4 apples"}}, "resources.memory='4 apples' is not an amount.*4GiB"),
    ({"model": MODEL, "resources": {"cpus": -1.0}}, "resources.cpus=-1.0 is not an amount"),
    ({"model": MODEL, "resources": {"gpu": 1}}, "resources.gpu=1 is not a setting. Did you mean 'gpus'"),
    ({"model": MODEL, "data": {"source": "iris"}}, "data.source='iris' is not a setting"),
    ({"model": MODEL, "devices": "Fleet"}, "devices"),
    ({"model": MODEL, "engine": "inline"}, "engine='inline' is for simulations.*remove it: tasks run at the sites"),
    ({"model": MODEL, "workers": 7}, "workers=7 is for simulations"),
    ({"model": MODEL, "folder": "runs/x"}, "folder='runs/x' is the server's choice"),
    ({"model": MODEL, "arguments": {"x": 1}}, "arguments=.*is not a setting"),
    ({"job": "program", "program": "asyncio:sleep", "model": MODEL}, "model=.*is not a setting"),
    ({"job": "program", "program": "nowhere_at_all:main"}, "'nowhere_at_all:main' cannot be imported"),
    ({"job": "program", "program": "main"}, "program='main' is not module:name"),
    ({"model": "nowhere_at_all:model"}, "'nowhere_at_all:model' cannot be imported.*in the folder that `source` names"),
    ({"model": MODEL, "rounds": 0}, "rounds=0"),
]


@pytest.mark.parametrize(("tree", "said"), WRONG, ids=[said for _, said in WRONG])
def test_what_is_wrong_is_named(tree: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse_job(tree)


def test_parts_that_do_not_go_together_are_refused_before_anybody_is_asked() -> None:
    with pytest.raises(CompositionError, match=r"weights by the probability of every draw"):
        parse_job({"model": MODEL, "aggregation": "InverseProbability"})


def test_the_data_of_a_job_lie_elsewhere() -> None:
    with pytest.raises(ConfigError, match=r"is at its sites"):
        parse_job({"model": MODEL}).islands()
    with pytest.raises(ConfigError, match=r"a job is a mapping, not list"):
        parse_job([])


def test_a_program_takes_plain_arguments() -> None:
    made = parse_job(
        {"job": "program", "program": "asyncio:sleep", "arguments": {"result": {"bins": 3, "of": ["age"]}}, "seed": 4}
    )
    assert "algorithm" not in made.plain()
    assert parse_job(yaml.parse(made.to_yaml(), "job")) == made


# -- what fronts read


def test_fronts_read_the_terms_and_import_nothing(folder: Path) -> None:
    job = load_job(folder)
    before = set(sys.modules)
    terms = read_terms(job_tree(job.to_yaml().encode()))
    assert "halving_of_mine" not in sys.modules
    assert set(sys.modules) == before
    assert terms == JobTerms(**{name: getattr(job, name) for name in JobTerms.model_fields})
    assert read_terms(job.plain()) == terms


@pytest.mark.parametrize(
    ("said", "wrong"),
    [
        (b"\xff", "not text in UTF-8"),
        (b"[]", "a job is a mapping"),
        (b"a: [", "not valid YAML"),
        (b"patience: no", "patience='no'"),
        (b"name: " + b"x" * 201, "name has 201 characters"),
        (b"a: [" + b"1," * 10_000 + b"1]", "it has more than 10000 values"),
        (b"[" * 100_000, "nested too deeply"),
        (b"a: &a [1,1]\nb: &b [" + b"*a," * 9000 + b"1]\nc: [" + b"*b," * 900 + b"1]", "has more than 1000000 values"),
    ],
)
def test_terms_that_cannot_be_read(said: bytes, wrong: str) -> None:
    with pytest.raises(ConfigError, match=wrong):
        read_terms(job_tree(said))


def test_what_a_scheduler_is_told() -> None:
    first = JobTerms(sites=["a", "b", "c"], min_sites=2, on_lost="drop", patience=5.0)
    need = Resources(1.0)
    assert first.want("1") == Want(job="1", need=need, sites=("a", "b", "c"), quorum=2, patience=5.0)
    # Resumed: the very sites of the first attempt; those that stay away may be dropped, down to min_sites.
    assert first.want("1", ("a", "c")) == Want(job="1", need=need, sites=("a", "c"), floor=2, patience=5.0)
    assert JobTerms().want("1") == Want(job="1", need=need)
    assert JobTerms().want("1", ("a", "c")) == Want(job="1", need=need, sites=("a", "c"))
    assert JobTerms(on_lost="drop").want("1", ("a", "c")).floor == 1


# -- what travels


def test_a_job_travels_with_its_modules(folder: Path, tmp_path: Path) -> None:
    once: dict[str, Any] = {"nonce": "5" * 32, "now": 1.5}
    bundle = pack_job(load_job(folder), ADMIN, **once)
    assert pack_job(load_job(folder), ADMIN, **once) == bundle
    unpack(bundle, check(bundle), tmp_path / "there")
    (folder / "code" / "halving_of_mine.py").unlink()
    there = load_job(tmp_path / "there")
    assert there.source_folder == (tmp_path / "there" / "source").resolve()
    with importing(there.source_folder):
        made: Any = there.made()
        assert made.model == Linear(4, 3)
        assert made.algorithm.share == 0.25
    assert "halving_of_mine" not in sys.modules


def test_two_jobs_with_modules_of_one_name_do_not_meet(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    (other / "code").mkdir(parents=True)
    (other / "code" / "halving_of_mine.py").write_text(MODULE.replace("share: float", "shares: float"))
    (other / "job.yaml").write_text((folder / "job.yaml").read_text().replace("share:", "shares:"))
    assert load_job(folder).algorithm.args["share"] == 0.25
    assert load_job(other).algorithm.args["shares"] == 0.25


def test_settings_are_applied_and_the_source_must_be_there(folder: Path) -> None:
    assert load_job(folder / "job.yaml", ["patience=7", "algorithm.share=0.125"]).patience == 7
    with pytest.raises(ConfigError, match=r"source='nowhere' is not a folder"):
        load_job(folder, ["source=nowhere"])
    with pytest.raises(ConfigError, match=r"cannot read it"):
        load_job(folder / "code")


def test_a_module_outside_the_source_folder_does_not_travel(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = load_job(folder)
    (folder / "left").mkdir()
    (folder / "left" / "behind_of_mine.py").write_text(MODULE)
    monkeypatch.syspath_prepend(folder / "left")
    stays = parse_job({"model": MODEL, "algorithm": "behind_of_mine:Halved"})
    with pytest.raises(
        ConfigError,
        match=r"module 'behind_of_mine' lies in .*left, which does not travel with the job .in job: algorithm",
    ):
        require_travels(stays)
    with pytest.raises(ConfigError, match=r"no module 'nowhere_at_all' in the source folder"):
        require_travels(PROGRAM.model_copy(update={"program": "nowhere_at_all:main"}))
    require_travels(job)
    require_travels(PROGRAM.model_copy(update={"arguments": {"result": "not:a:module"}}))
    require_travels(PROGRAM.model_copy(update={"program": "numpy:sum"}))  # installed: a site must have it too


@pytest.mark.parametrize("name", ["__main__:main", "m:f.<locals>.g", "m:<lambda>"])
def test_names_that_mean_nothing_elsewhere_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=r"source folder, at the top level, and name it module:name"):
        require_travels(PROGRAM.model_copy(update={"program": name}))


def test_live_objects_among_plain_settings_are_refused() -> None:
    job = PROGRAM.model_copy(update={"arguments": {"rows": [1, {"deep": object()}]}})
    with pytest.raises(ConfigError, match=r"a live object cannot travel .in arguments\.rows\[1\]\.deep"):
        pack_job(job, ADMIN)


def test_pack_needs_an_administrators_kit(folder: Path) -> None:
    from atoll.core.errors import IdentityError

    bundle = pack_job(load_job(folder), authority().issue("site", "eve"))
    with pytest.raises(IdentityError, match=r"has signed a job"):
        check(bundle)


# -- live trainings, written down


def make(features: int = 4) -> Linear:
    return Linear(features, 3)


class Rule(StopRule):
    """Not plain data: its fields, none, do not say what it holds."""

    def __init__(self) -> None:
        object.__setattr__(self, "seen", [])


TRAININGS = [
    Training(model=Linear(4, 3)),
    Training(
        model=Linear(4, 3, l2=0.1),
        algorithm=FedProx(lr=0.05, mu=0.5),
        selection=Everyone(),
        rounds=7,
        evaluation=Evaluation(every=2, metrics=(Confusion(3),)),
        keep_best="accuracy",
    ),
]


@pytest.mark.parametrize("training", TRAININGS)
def test_a_training_of_plain_parts_is_written_down(training: Training) -> None:
    job = JobConfig.of(training, sites=["a"], seed=3)
    require_travels(job)
    again = parse_job(yaml.parse(job.to_yaml(), "job"))
    assert again == job
    assert again.model is not None
    assert again.made() == training.replace(uplink=(), stop=(), evaluation=training.evaluation)
    assert (again.seed, again.sites) == (3, ["a"])


def test_models_are_said_by_name() -> None:
    for model in (make, functools.partial(make, features=5)):
        job = JobConfig.of(Training(model=model))
        assert job.model is not None
        assert job.model.name.endswith(":make")
        assert job.model.build("model") == (model() if callable(model) else None)
    given = JobConfig.of(Training(model=lambda: None), model=MODEL)
    assert given.model is not None
    assert given.model.name == "linear"


def closure() -> Any:
    def inside() -> Linear:
        return Linear(4, 3)

    return inside


class Main:
    """Pretends to be of the script."""


Main.__module__ = "__main__"

ALIVE: list[tuple[dict[str, Any], str]] = [
    ({"model": lambda: Linear(4, 3)}, "a lambda cannot travel .in model.*name it module:name"),
    ({"model": closure()}, "inside is made inside a function|closure.<locals>.inside is made inside a function"),
    ({"model": Main}, "Main is defined in the script itself"),
    ({"model": object()}, "a live object cannot travel .in Training.model.*JobConfig.of"),
    ({"model": functools.partial(make, 4)}, "a live partial cannot travel"),
    ({"model": make, "callbacks": (print,)}, "1 callbacks cannot travel"),
    ({"model": make, "loss": lambda a, b: 0}, "a lambda cannot travel .in loss"),
    ({"model": make, "stop": (Rule(),)}, r"a live Rule cannot travel .in stop\[0\]"),
]


@pytest.mark.parametrize(("parts", "said"), ALIVE, ids=[said[:20] for _, said in ALIVE])
def test_what_is_alive_is_refused_with_the_remedy(parts: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        JobConfig.of(Training(**parts))


def test_a_description_that_would_make_another_training_is_refused() -> None:
    from atoll.runtime.job_spec import require_equal

    with pytest.raises(ConfigError, match=r"would become .*lr=0\.2.* .in Training\.algorithm"):
        require_equal(Training(model=make, algorithm=FedAvg(lr=0.1)), Training(model=make, algorithm=FedAvg(lr=0.2)))


def test_a_name_must_lead_back_to_the_thing_itself() -> None:
    assert reference_of(Linear, "x") == "atoll.models.linear_model:Linear"

    def other() -> None: ...

    other.__qualname__, other.__module__ = "Linear", "atoll.models.linear_model"
    with pytest.raises(ConfigError, match=r"not the object that this name imports"):
        reference_of(other, "x")
