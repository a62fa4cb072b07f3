"""Flower apps on Atoll give what Flower's own simulation gives. Needs the extra ``flower``; Flower's own side also Ray."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="needs the extra flower")

from atoll.bridges.flower import FlowerApp, simulate_app
from atoll.core.errors import AtollError, JobError

HERE = Path(__file__).parent
APPS = ["quickstart_numpy", "quickstart_pytorch", "numpy_client"]
# Flower 1.42.0 prints these losses for quickstart_numpy and numpy_client: the same model, by the Message API and by a NumPyClient.
LOSSES = [2.5593281183758356, 0.544212283848182, 0.39137200133756944]
pytestmark = pytest.mark.filterwarnings("ignore")  # of Flower about its own older interfaces


def arrays(file: Path) -> list[Any]:
    return list(np.load(file).values())


@pytest.mark.parametrize("engine", ["inline", pytest.param("processes", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", ["quickstart_numpy", "numpy_client"])
def test_an_app_runs_unchanged(name: str, engine: str, tmp_path: Path) -> None:
    app = FlowerApp.read(HERE / "apps" / name)
    result = simulate_app(app, {"out": str(tmp_path / "out.npz")}, engine=engine)
    found = arrays(tmp_path / "out.npz")
    np.testing.assert_allclose(found[2], LOSSES, rtol=1e-9)
    if name == "quickstart_numpy":  # the state of a client's context stays with it
        np.testing.assert_allclose(found[3], [1.0, 2.0, 3.0])
        assert [(row["round"], row["kind"], row["replied"]) for row in result.metrics][:2] == [
            (1, "train", 4),
            (1, "evaluate", 4),
        ]


@pytest.mark.slow
@pytest.mark.parametrize("name", APPS)
def test_it_gives_flowers_own_result(name: str, tmp_path: Path) -> None:
    if importlib.util.find_spec("ray") is None:
        pytest.skip("Flower's own simulation needs ray")
    app = FlowerApp.read(HERE / "apps" / name)
    own, ours = tmp_path / "own.npz", tmp_path / "ours.npz"
    words = [
        sys.executable,
        str(HERE / "flowers_own.py"),
        str(app.folder),
        str(app.nodes),
        f"out={json.dumps(str(own))}",
    ]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    log = done.stdout + done.stderr
    lost = [line for line in log.splitlines() if " failures" in line and " 0 failures" not in line]
    assert done.returncode == 0, log[-2000:]
    assert not lost, f"Flower's own run lost replies: {lost}"
    simulate_app(app, {"out": str(ours)}, engine="inline")
    for theirs, mine in zip(arrays(own), arrays(ours), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-6, atol=1e-6)


def app_of(folder: Path, client: str = "", server: str = "") -> FlowerApp:
    """An app in two modules; the server asks every node once and writes down what came."""
    text = "[tool.flwr.app.components]\nserverapp = 'served_%s:app'\nclientapp = 'cliented_%s:app'\n"
    number = folder.name.replace("-", "_")
    (folder / "pyproject.toml").write_text(text % (number, number), encoding="utf-8")
    (folder / f"cliented_{number}.py").write_text(
        "from flwr.app import *\nfrom flwr.clientapp import ClientApp\napp = ClientApp()\n@app.query()\ndef q(msg, context):\n    "
        + client,
        encoding="utf-8",
    )
    (folder / f"served_{number}.py").write_text(
        "from flwr.app import *\nfrom flwr.serverapp import ServerApp\napp = ServerApp()\n@app.main()\ndef main(grid, context):\n    "
        + (server or SERVER).replace("FOLDER", str(folder)),
        encoding="utf-8",
    )
    return FlowerApp.read(folder)


SERVER = """
    made = [Message(RecordDict({"c": ConfigRecord({"n": i})}), dst_node_id=n, message_type="query") for i, n in enumerate(grid.get_node_ids())]
    replies = list(grid.send_and_receive(made))
    told = [r.error.reason if r.has_error() else str(dict(r.content["c"])) for r in replies]
    open("FOLDER/told", "w").write("\\n".join(told))
"""
ECHO = "return Message(RecordDict({'c': ConfigRecord({'n': msg.content['c']['n'], 'at': context.node_config['partition-id']})}), reply_to=msg)"


def test_each_node_may_get_a_message_of_its_own(tmp_path: Path) -> None:
    simulate_app(app_of(tmp_path, ECHO), nodes=3, engine="inline")
    assert (tmp_path / "told").read_text().splitlines() == [f"{{'n': {i}, 'at': {i}}}" for i in range(3)]


def test_replies_may_be_pulled_later(tmp_path: Path) -> None:
    server = SERVER.replace(
        "list(grid.send_and_receive(made))",
        "[]\n    ids = list(grid.push_messages(made))\n    while len(replies) < len(ids):\n        replies += grid.pull_messages(ids)",
    )
    simulate_app(app_of(tmp_path, ECHO, server), nodes=2, engine="inline")
    assert sorted((tmp_path / "told").read_text().splitlines()) == [f"{{'n': {i}, 'at': {i}}}" for i in range(2)]


def test_an_error_of_a_client_is_a_reply_as_in_flower(tmp_path: Path) -> None:
    raising = "if msg.content['c']['n'] == 1: raise ValueError('no rows here')\n    " + ECHO
    result = simulate_app(app_of(tmp_path, raising), nodes=3, engine="inline")
    told = (tmp_path / "told").read_text().splitlines()
    assert "no rows here" in told[1]
    assert [row["failed"] for row in result.metrics] == [1]


@pytest.mark.parametrize(
    ("server", "said"),
    [
        ("raise KeyError('lr')", "the ServerApp raised KeyError: 'lr'"),
        ("grid.push_messages([Message(RecordDict(), dst_node_id=3, message_type='query')])", "there is no node 3"),
        ("import a_package_that_is_not_there", "No module named 'a_package_that_is_not_there'"),
    ],
)
def test_a_wrong_server_app_is_named(server: str, said: str, tmp_path: Path) -> None:
    with pytest.raises((AtollError, JobError), match=said):
        simulate_app(app_of(tmp_path, ECHO, server), nodes=2, engine="inline")


def test_an_app_that_cannot_be_imported_is_named(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(
        "[tool.flwr.app.components]\nserverapp = 'not_there_at_all:app'\nclientapp = 'not_there_at_all:app'\n",
        encoding="utf-8",
    )
    with pytest.raises(AtollError, match="clientapp 'not_there_at_all:app' cannot be imported"):
        simulate_app(FlowerApp.read(tmp_path), nodes=2, engine="inline")
