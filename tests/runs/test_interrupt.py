"""Ctrl-C in Python, as it is pressed: on a terminal of its own, in the middle of a script."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

import atoll
from atoll.core.federation.federation import Federation
from atoll.rounds import each_round
from atoll.rounds.program import ProgramJob

ISLANDS = atoll.data.dirichlet(atoll.data.digits(), parties=6, alpha=0.5, seed=0)
SCRIPT = """
import sys
import atoll

islands = atoll.data.dirichlet(atoll.data.digits(), parties=6, alpha=0.5, seed=0)
job = atoll.Training(
    model=atoll.models.linear(64, 10), algorithm=atoll.FedAvg(lr=0.1), selection=atoll.Everyone(), rounds={rounds},
    callbacks=[lambda row: print("round", row["round"], flush=True)],
)
result = atoll.simulate(job, islands, engine="inline", folder=sys.argv[1])
print("ended:", result.reason, "after", len(result.metrics))
"""


def job(rounds: int, *callbacks) -> atoll.Training:
    return atoll.Training(
        model=atoll.models.linear(64, 10), algorithm=atoll.FedAvg(lr=0.1), selection=atoll.Everyone(), rounds=rounds, callbacks=callbacks,
    )  # fmt: skip


def press(row) -> None:
    """Ctrl-C when round 3 has been recorded, so that round 4 is the last."""
    if row["round"] == 3:
        signal.raise_signal(signal.SIGINT)


def typed(script: Path, *arguments: str, ctrl_c_at: bytes) -> tuple[int, str]:
    """Run a script on a terminal and press Ctrl-C when a text appears: its exit status, and what was on the screen."""
    terminal, its_end = pty.openpty()
    start = "import os, runpy, sys; os.login_tty(0); del sys.argv[0]; runpy.run_path(sys.argv[0], run_name='__main__')"
    with subprocess.Popen([sys.executable, "-c", start, str(script), *arguments], stdin=its_end) as child:
        os.close(its_end)
        screen = watched(terminal, ctrl_c_at)
    return child.returncode, screen


def watched(terminal: int, ctrl_c_at: bytes) -> str:
    """What appears on a terminal until nobody has it open any more."""
    screen, pressed = b"", False
    while True:
        try:
            screen += os.read(terminal, 4096)
        except OSError:  # the script has closed its terminal
            break
        if not pressed and ctrl_c_at in screen:
            os.write(terminal, b"\x03")
            pressed = True
    os.close(terminal)
    return screen.decode()


@pytest.mark.network
def test_one_ctrl_c_ends_a_script_after_the_round_and_the_run_goes_on_later(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(SCRIPT.format(rounds=100_000)))
    code, screen = typed(script, str(tmp_path / "run"), ctrl_c_at=b"round 5\r")
    assert code == 0
    assert "stopping after this round" in screen
    assert "Training (FedAvg)" in screen  # the progress, on a terminal
    done = int(screen.split("ended: interrupted after ")[1].split()[0])
    assert 5 <= done < 100_000
    assert f"stopped after round {done} of 100000" in screen
    assert f"folder={str(tmp_path / 'run')!r}, resume=True" in screen
    resumed = atoll.simulate(job(done + 2), ISLANDS, engine="inline", folder=tmp_path / "run", resume=True)
    whole = atoll.simulate(job(done + 2), ISLANDS, engine="inline")
    assert len(resumed.metrics) == done + 2
    for name, value in whole.params.items():
        np.testing.assert_array_equal(resumed.params[name], value)


@pytest.mark.network
@pytest.mark.parametrize(("wish", "shown"), [("True", True), ("None", True), ("False", False)])
def test_a_terminal_shows_the_rounds_unless_progress_is_false(tmp_path, wish, shown):
    script = tmp_path / "script.py"
    text = textwrap.dedent(SCRIPT.format(rounds=3)).replace("folder=sys.argv[1]", f"progress={wish}")
    script.write_text(text.replace('callbacks=[lambda row: print("round", row["round"], flush=True)],', ""))
    code, screen = typed(script, ctrl_c_at=b"nothing says this")
    assert code == 0
    assert ("Training (FedAvg)" in screen) is shown
    assert "ended: all 3 rounds are done after 3" in screen


@pytest.mark.parametrize("engine", ["inline", "batched"])
def test_without_a_folder_the_result_holds_the_rounds_so_far(engine, capsys):
    result = atoll.simulate(job(50, press), ISLANDS, engine=engine)
    assert (result.reason, len(result.metrics)) == ("interrupted", 4)
    assert "Without folder=... there is no checkpoint" in capsys.readouterr().err
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_second_ctrl_c_stops_at_once():
    def twice(row) -> None:
        if row["round"] == 2:
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt, match=r"^$"):
        atoll.simulate(job(50, twice), ISLANDS, engine="inline")


def test_a_handler_of_the_caller_stays_in_place():
    heard = []
    before = signal.signal(signal.SIGINT, lambda number, frame: heard.append(number))
    try:
        result = atoll.simulate(job(5, press), ISLANDS, engine="inline")
    finally:
        signal.signal(signal.SIGINT, before)
    assert (heard, len(result.metrics)) == ([signal.SIGINT], 5)


def test_a_program_with_rounds_of_its_own_ends_too():
    async def program(fed: Federation) -> int:
        done = 0
        for number in each_round(fed):
            fed.record({"round": number})
            press({"round": number})
            done = number
        return done

    result = atoll.simulate(ProgramJob.of(program), ISLANDS, engine="inline")
    assert (result.outcome, result.reason) == (4, "interrupted")


def test_progress_is_shown_when_it_is_wanted_and_not_elsewhere(tmp_path, capsys):
    atoll.simulate(job(4), ISLANDS, engine="inline")
    assert capsys.readouterr().err == ""
    atoll.simulate(job(4), ISLANDS, engine="inline", folder=tmp_path / "run", progress=True)
    assert "Training (FedAvg): round 4/4" in capsys.readouterr().err
    atoll.simulate(job(6), ISLANDS, engine="inline", folder=tmp_path / "run", resume=True, progress=True)
    assert "Training (FedAvg): continuing after round 4" in capsys.readouterr().err
