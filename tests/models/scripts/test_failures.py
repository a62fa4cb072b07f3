"""What a script may do wrong: each is an error that says whose, where, and what to do."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import atoll
from atoll.client.connection import FrameSocket
from atoll.core.errors import CompositionError, ConfigError, PolicyError, TaskError
from atoll.core.requests.policy import SitePolicy
from atoll.models import Script
from atoll.models import script_process as running
from atoll.models.script_process import MOST
from atoll.runtime.worker.policies import named_code

pytestmark = pytest.mark.network

HEAD = "import os, sys, threading\nimport numpy as np\nimport atoll.client\n"
LOOP = (
    HEAD
    + "with atoll.client.connect() as fed:\n    for task in fed.rounds():\n        model = {'w': task.model['w'] + 1.0}\n"
)
REPLY = "        task.reply(model, examples=2, metrics={'loss': 1.0 / task.round})\n"
ROWS = {"x": np.zeros((2, 3)), "y": np.zeros(2, np.int64)}


def island_of(count: int = 1) -> atoll.data.Islands:
    names = [f"north-{i}" for i in range(count)]
    return atoll.data.Islands.from_datasets({name: atoll.data.Dataset(ROWS, classes=2) for name in names})


def run(place: Path, text: str, *, rounds: int = 1, clients: int = 1, job: Any = None, **settings: Any) -> Any:
    file = place / "train.py"
    file.write_text(text, encoding="utf-8")
    script = Script(script=str(file), model={"w": np.zeros(3)}, **settings)
    training = atoll.Training(model=script, selection=atoll.Everyone(), rounds=rounds, **(job or {}))
    return atoll.simulate(training, island_of(clients), engine="inline")


WRONG = {
    "raises before it connects": (
        "raise OSError('no such disk')\n", "ended with exit code 1 before it answered: «OSError: no such disk»"
    ),
    "raises in its loop": (LOOP + "        raise ValueError('a bad row')\n", "the script failed: «ValueError: a bad row»"),
    "calls sys.exit": (LOOP + "        sys.exit(3)\n", r"the script failed: «it called sys.exit\(3\)»"),
    "ends without an answer": (LOOP + "        break\n", "ended with exit code 0 before it answered"),
    "goes on without an answer": (LOOP + "        pass\n", "round 1 was not answered"),
    "replies with another shape": (
        LOOP + "        task.reply({'w': np.zeros(4)})\n", r"parameter 'w' has shape \(4,\), but it came with shape \(3,\)"
    ),
    "replies without a parameter": (LOOP + "        task.reply({'v': np.zeros(3)})\n", "the model has no parameter 'w'"),
    "replies without a model": (LOOP + "        task.reply(metrics={'loss': 1.0})\n", "no model in the reply to round 1"),
    "replies with no number": (LOOP + "        task.reply(model, metrics={'loss': 'low'})\n", "metric 'loss' is a str"),
    "speaks for itself": (LOOP + "        fed._frames.send({'op': 'hallo'})\n", "it sent a message 'hallo'"),
    "writes noise": (LOOP + "        fed._frames.socket.sendall(b'x' * 100)\n", "it sent what is no message"),
    "replies past the checks": (
        LOOP + "        fed._frames.send({'op': 'reply', 'id': task._id, 'model': {'w': 'x'}, 'examples': 2.0, 'metrics': {}})\n",
        "the script replied with parameters of other names, shapes or kinds",
    ),
    "hangs": (LOOP + "        threading.Event().wait()\n", "the script made no progress for 0.4 s and was ended"),
    "hangs before it connects": ("import threading\nthreading.Event().wait()\n", "made no progress for 0.4 s"),
}  # fmt: skip
QUICK = ("raises before it connects", "raises in its loop", "replies with another shape", "hangs")


@pytest.mark.parametrize("how", [pytest.param(how, marks=() if how in QUICK else pytest.mark.slow) for how in WRONG])
def test_a_wrong_script_is_named(how: str, tmp_path: Path) -> None:
    text, said = WRONG[how]
    # A hang shows quickly only where there is no work: importing NumPy is work, and takes longer on a busy machine.
    patience = 0.4 if how.startswith("hangs") else 60.0
    with pytest.raises(TaskError, match=said) as caught:
        run(tmp_path, text, patience=patience)
    assert "train.py at north-0" in str(caught.value)
    assert caught.value.remedy


def test_a_script_that_ends_before_it_is_greeted_leaves_nothing_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []

    class Deaf(FrameSocket):
        """The other end is gone before the first message."""

        def send(self, tree: Any) -> None:
            made.append(self)
            raise BrokenPipeError

    monkeypatch.setattr(running, "FrameSocket", Deaf)
    with pytest.raises(TaskError, match="ended with exit code 1 before it answered"):
        run(tmp_path, WRONG["raises before it connects"][0])
    assert [one.socket.fileno() for one in made] == [-1]


def test_a_second_answer_is_refused_where_it_is_given(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The first counts. The next round, in which the script is gone, says what it did."""
    twice = LOOP + REPLY + "        if task.round == 1: task.reply(model)\n"
    with pytest.raises(TaskError, match=r"round 1 was answered twice"):
        run(tmp_path, twice, rounds=2)
    assert "round 1 was answered twice" in capfd.readouterr().out


def test_a_failing_script_is_one_client_among_others(tmp_path: Path) -> None:
    """The others go on, and the failed one is asked again in the next round, by a new process: nothing is lost."""
    text = LOOP + "        if fed.name == 'north-0' and task.round == 1: os.kill(os.getpid(), 9)\n" + REPLY
    file = tmp_path / "train.py"
    file.write_text(text, encoding="utf-8")
    job = atoll.Training(
        model=Script(script=str(file), model={"w": np.zeros(3)}), selection=atoll.Everyone(), rounds=2,
        pacing=atoll.Synchronous(quorum=1),
    )  # fmt: skip
    result = atoll.simulate(job, island_of(2), engine="inline", errors="drop")
    assert [row["replied"] for row in result.metrics] == [1, 2]
    np.testing.assert_array_equal(result.params["w"], np.full(3, 2.0))


def test_gigabytes_of_output_stay_a_page(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    text = LOOP + "        sys.stdout.write(('x' * 99 + chr(10)) * 60000); sys.stdout.write('y' * 100000)\n" + REPLY
    run(tmp_path, text)
    said = capfd.readouterr().out
    assert MOST * 0.9 < len(said) < MOST * 1.3
    assert "more bytes of output in the round before, left out]" in said


def test_output_may_go_to_a_file(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run(tmp_path, LOOP + "        print('at work')\n" + REPLY, log=str(tmp_path / "{client}.log"))
    assert "at work" in (tmp_path / "north-0.log").read_text()
    assert "at work" not in capfd.readouterr().out


def test_command_folder_environment_and_arguments_are_settings(tmp_path: Path) -> None:
    (tmp_path / "north-0").mkdir()
    text = LOOP + (
        "        told = (os.environ['WARD'], os.getcwd(), sys.argv[1:], sys.flags.dont_write_bytecode)\n"
        f"        assert told == ('north-0', {str(tmp_path / 'north-0')!r}, ['--rows', 'north-0.csv', os.path.dirname(__file__) + '/rows'], 1), told\n"
    )
    run(
        tmp_path, text + REPLY, arguments=["--rows", "{client}.csv", "{source}/rows"], folder=f"{tmp_path}/{{client}}",
        environment={"WARD": "{client}"}, command=[sys.executable, "-B"],
    )  # fmt: skip


def test_between_rounds_a_process_stays_or_begins_again(tmp_path: Path) -> None:
    text = LOOP + f"        open({str(tmp_path / 'pids')!r}, 'a').write(f'{{os.getpid()}} ')\n" + REPLY
    found = {}
    for between in ("keep", "restart"):
        run(tmp_path, text, rounds=3, between=between)
        pids = (tmp_path / "pids").read_text().split()
        found[between] = len(set(pids))
        (tmp_path / "pids").unlink()
        for pid in pids:  # none is left running
            with pytest.raises(ProcessLookupError, match="No such process"):
                os.kill(int(pid), 0)
    assert found == {"keep": 1, "restart": 3}


def test_no_more_processes_live_than_allowed(tmp_path: Path) -> None:
    text = LOOP + f"        open({str(tmp_path / 'pids')!r}, 'a').write(f'{{os.getpid()}} ')\n" + REPLY
    run(tmp_path, text, rounds=2, clients=2, alive=1)
    assert len(set((tmp_path / "pids").read_text().split())) == 4


def test_a_metric_may_not_take_the_name_of_a_part_of_the_reply(tmp_path: Path) -> None:
    with pytest.raises((ConfigError, TaskError), match="a metric 'update', which FedAvg replies with"):
        run(tmp_path, LOOP + "        task.reply(model, metrics={'update': 1.0})\n")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"script": "nowhere.py"}, "there is no script 'nowhere.py'"),
        ({"between": "sleep"}, "between='sleep'"),
        ({"patience": 0.0}, "patience=0.0"),
        ({"alive": 0}, "alive=0"),
        ({"script": "-c"}, "script='-c'"),
        ({"model": {"w": np.zeros(3, int)}}, "parameter 'w' is not of floating-point numbers"),
    ],
)
def test_settings_that_cannot_be_used(settings: dict[str, Any], said: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    given = {"script": str(tmp_path / "train.py"), "model": {"w": np.zeros(3)}, **settings}
    with pytest.raises(ConfigError, match=said):
        atoll.simulate(atoll.Training(model=Script(**given), rounds=1), island_of())


def test_algorithms_that_change_the_local_step_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CompositionError, match="FedProx"):
        run(tmp_path, LOOP + REPLY, job={"algorithm": atoll.algorithms.FedProx(mu=0.1)})


def test_a_command_that_cannot_be_started_is_named(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="the script cannot be started: No such file or directory"):
        run(tmp_path, LOOP + REPLY, command=["/nowhere/python"])


def test_a_script_and_its_command_need_the_site_s_consent() -> None:
    """A script is code of the job's own, also where nothing imports it, and so is a program that runs it."""
    job = {
        "model": {
            "name": "script",
            "script": "study/train.py",
            "command": ["/usr/bin/env"],
            "model": {"name": "nets:net"},
        }
    }
    assert list(named_code(job, [])) == ["study.train:__main__", "/usr/bin/env:__main__", "nets:net"]
    allowed = SitePolicy(allow=("FedAvg", "study.*:*"))
    allowed.admit_code("study.train:__main__")
    with pytest.raises(PolicyError, match="may not run here"):
        allowed.admit_code("/usr/bin/env:__main__")
    with pytest.raises(PolicyError, match="may not run here"):
        SitePolicy(allow=("*",)).admit_code("study.train:__main__")
