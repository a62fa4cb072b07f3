"""The script's side of a conversation, with the other side played by the test."""

from __future__ import annotations

import os
import random
import socket
from typing import Any

import numpy as np
import pytest

import atoll.client
from atoll.client.connection import VARIABLE, FrameSocket, load_into, parameters_of
from atoll.core.errors import DataError, MessageError, TaskError

HELLO = {
    "op": "hello",
    "name": "north",
    "settings": {"lr": 0.1},
    "form": "arrays",
    "fixed": {},
    "aliases": {},
    "release": False,
}


@pytest.fixture
def ours(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Atoll's end; the script's is where a script finds it. This process is no script: it must not die with its parent."""
    monkeypatch.setattr("atoll.client.connection._die_with_parent", lambda: None)
    here, there = socket.socketpair()
    monkeypatch.setenv(VARIABLE, str(os.dup(there.fileno())))
    there.close()
    frames = FrameSocket(here)
    frames.send(HELLO)
    yield frames
    frames.close()


def task(number: int = 1, **more: Any) -> dict[str, Any]:
    return {
        "op": "task", "id": f"r{number}", "round": number, "kind": "train", "model": {"w": np.arange(3.0)}, "settings": {}, "seed": 7,
        **more,
    }  # fmt: skip


def test_a_round_is_a_task_and_a_reply(ours: FrameSocket) -> None:
    ours.send(task())
    ours.send({"op": "end"})
    with atoll.client.connect() as fed:
        assert (fed.name, fed.settings, fed.alone) == ("north", {"lr": 0.1}, False)
        for one in fed.rounds():
            one.reply({"w": one.model["w"] + 1}, examples=5, metrics={"loss": np.float32(0.5)})
    assert ours.recv() == {"op": "here"}
    reply = ours.recv()
    np.testing.assert_array_equal(reply.pop("model")["w"], [1.0, 2.0, 3.0])
    assert reply == {"op": "reply", "id": "r1", "examples": 5.0, "metrics": {"loss": 0.5}}


def test_generators_are_seeded_before_each_task(ours: FrameSocket) -> None:
    ours.send(task(1))
    ours.send(task(2))
    ours.send({"op": "end"})
    drawn = []
    with atoll.client.connect() as fed:
        for one in fed.rounds():
            drawn.append((random.random(), np.random.random()))  # noqa: NPY002
            one.reply(one.model)
    assert drawn[0] == drawn[1]


def test_rows_cross_once_also_before_the_first_task(ours: FrameSocket) -> None:
    ours.send(task())
    ours.send(
        {
            "op": "data",
            "columns": {"x": np.ones((2, 3)), "y": np.array([0, 1])},
            "task": "classification",
            "classes": 2,
            "labels": [],
        }
    )
    ours.send({"op": "end"})
    with atoll.client.connect() as fed:
        assert len(fed.data) == 2
        assert fed.data is fed.data
        for one in fed.rounds():
            one.reply(one.model)
    assert [ours.recv()["op"] for _ in range(3)] == ["here", "data", "reply"]


def test_rows_without_columns_are_refused_by_name(ours: FrameSocket) -> None:
    ours.send({"op": "data", "lacks": "the data of north are a list, which has no columns"})
    with atoll.client.connect() as fed, pytest.raises(DataError, match="are a list, which has no columns"):
        _ = fed.data


def test_an_answer_is_given_once_in_each_turn(ours: FrameSocket) -> None:
    ours.send(task())
    with atoll.client.connect() as fed:
        rounds = fed.rounds()
        one = next(rounds)
        one.reply(one.model)
        with pytest.raises(TaskError, match="round 1 was answered twice"):
            one.reply(one.model)


def test_a_turn_without_an_answer_is_named(ours: FrameSocket) -> None:
    ours.send(task())
    with pytest.raises(TaskError, match="round 1 was not answered"), atoll.client.connect() as fed:
        for _ in fed.rounds():
            pass
    ours.recv()
    told = ours.recv()
    assert told["op"] == "failed"
    assert "round 1 was not answered" in told["error"]


def test_tensors_state_dicts_and_modules_are_models(ours: FrameSocket) -> None:
    torch = pytest.importorskip("torch")
    module = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    names = [name for name, value in module.state_dict().items() if value.is_floating_point()]
    received = {name: np.ones(tuple(module.state_dict()[name].shape), np.float32) for name in names}
    load_into(module, {name: torch.tensor(value) for name, value in received.items()})
    for model in (module, module.state_dict()):
        found = parameters_of(model, received)
        assert {name: value.dtype for name, value in found.items()} == {name: np.dtype(np.float32) for name in names}
        np.testing.assert_array_equal(found["0.weight"], 1.0)
    with pytest.raises(DataError, match="no parameter 'body'"):
        load_into(module, {"body": torch.zeros(1)})


def test_an_estimator_keeps_the_shapes_of_its_own() -> None:
    linear = pytest.importorskip("sklearn.linear_model")
    model = linear.LinearRegression().fit(np.eye(3), np.arange(3.0))
    load_into(model, {"coef": np.array([1.0, 2.0, 3.0]), "intercept": np.array([0.5])})
    assert np.isscalar(model.intercept_) or np.shape(model.intercept_) == ()
    assert model.predict(np.eye(3)).tolist() == [1.5, 2.5, 3.5]
    found = parameters_of(model, {"coef": np.zeros(3), "intercept": np.zeros(1)})
    assert found["intercept"].shape == (1,)


def test_unused_memory_of_accelerators_is_let_go_of_after_a_round_when_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    let_go: list[int] = []
    monkeypatch.setattr("atoll.client.connection._die_with_parent", lambda: None)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: let_go.append(len(answered)))
    for release, wanted in ((False, []), (True, [1, 2])):
        here, there = socket.socketpair()
        monkeypatch.setenv(VARIABLE, str(os.dup(there.fileno())))
        there.close()
        frames, answered = FrameSocket(here), list[int]()
        for message in ({**HELLO, "release": release}, task(1), task(2), {"op": "end"}):
            frames.send(message)
        with atoll.client.connect() as fed:
            for one in fed.rounds():
                one.reply(one.model)
                answered.append(one.round)
        frames.close()
        assert let_go == wanted


def test_without_a_federation_there_is_one_round(capsys: pytest.CaptureFixture[str]) -> None:
    model = {"w": np.ones(2)}
    with atoll.client.connect(model) as fed:
        assert fed.alone
        with pytest.raises(DataError, match="no client's rows outside a federation"):
            _ = fed.data
        for one in fed.rounds():
            assert (one.round, one.kind) == (1, "train")
            one.load(model)
            one.reply({"w": one.model["w"] + 1}, examples=3, metrics={"loss": 0.25})
    assert capsys.readouterr().out == "outside a federation: one local round, 3 examples, loss 0.25\n"


def test_without_a_federation_a_module_stays_as_it_is() -> None:
    torch = pytest.importorskip("torch")
    module = torch.nn.Linear(2, 2)
    before, load = module.weight.detach().clone(), torch.nn.Module.load_state_dict
    with atoll.client.connect() as fed:
        for one in fed.rounds():
            module.load_state_dict(one.model)
            with pytest.raises(DataError, match=r"connect\(model\)"):
                _ = one.model["weight"]
    assert torch.equal(module.weight, before)
    assert torch.nn.Module.load_state_dict is load


def test_a_message_may_be_no_longer_than_agreed() -> None:
    here, there = socket.socketpair()
    sender, taker = FrameSocket(here), FrameSocket(there, most=1000)
    sender.send({"x": np.zeros(100)})
    assert len(taker.recv()["x"]) == 100
    sender.send({"x": np.zeros(1000)})
    with pytest.raises(MessageError, match="1000 are allowed"):
        taker.recv()
    sender.close()
    taker.close()
