"""What NVIDIA FLARE's paper lists (its capabilities that are not governance), a test a line; ``tests/PROPERTIES.md`` has the list."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from learn_toys import Fixed

import atoll
from atoll.core.errors import MessageError, QuorumError, TaskError
from atoll.core.message import ArraySpec, ScalarSpec
from atoll.core.requests.cohort import Community
from atoll.core.requests.policy import SitePolicy
from atoll.core.requests.task import TaskSchema
from atoll.learn.algorithms import FedAvg, FedAvgM, FedProx, Scaffold
from atoll.stages import Clip, ExcludeVariables

WARDS = Community({"north": [61, 75], "east": [44, 58, 39], "south": [83]})


@atoll.task
def count(island: Any, message: Any) -> int:
    return len(island.data) + (message or 0)


@atoll.task
def fails_in_the_east(island: Any, message: Any) -> int:
    if island.name == "east":
        raise RuntimeError("the disk is broken")
    return len(island.data)


@atoll.task
def context(island: Any, message: Any) -> dict[str, Any]:
    """Everything that FLARE's context has: who I am, what I keep, what the others are called, what I may draw."""
    island.state = {"visits": 1 + (island.state or {"visits": 0})["visits"]}
    return {
        "name": island.name,
        "role": island.party.role,
        "visits": island.state["visits"],
        "drawn": int(island.rng.generator().integers(1000)),
    }


def run(program: Any, **more: Any) -> Any:
    return atoll.simulate(program, WARDS, engine="inline", **more)


def training(algorithm: Any, **more: Any) -> Any:
    parts = {"selection": atoll.Everyone(), "rounds": 2, "model": atoll.models.Linear(64, 10), **more}
    return atoll.Training(algorithm=algorithm, **parts)


def digits(parties: int = 3) -> Any:
    return atoll.data.iid(atoll.data.digits().take(slice(0, 90)), parties=parties, seed=0)


# ---------------------------------------------------------------------- executors, contexts, letters


def test_library_agnostic_executor() -> None:
    """Any Python runs at a site; a model may be NumPy's or scikit-learn's, and PyTorch's and scripts have tests of their own."""
    from sklearn.linear_model import SGDClassifier

    class Mean:
        """No library at all."""

        async def __call__(self, fed: Any) -> int:
            return sum((await fed.ask_all(fed.parties, count)).values)

    assert run(Mean()) == 6
    for model in (atoll.models.Linear(64, 10), SGDClassifier(loss="log_loss")):
        job = training(FedAvg(lr=0.1), model=model, rounds=1)
        assert len(atoll.simulate(job, digits(), engine="inline").metrics) == 1


def test_context_is_passed_to_every_task() -> None:
    async def program(fed: Any) -> Any:
        await fed.ask_all(fed.parties, context)
        return (await fed.ask_all(fed.parties, context)).by_name()

    first, again = run(program, seed=4), run(program, seed=4)
    assert first == again
    assert {name: told["visits"] for name, told in first.items()} == {"north": 2, "east": 2, "south": 2}
    assert len({told["drawn"] for told in first.values()}) > 1


def test_typed_letters_inside_the_envelope() -> None:
    """What FLARE calls a DXO: a task declares kind and form of its message and reply, and nothing else travels."""
    schema = TaskSchema(
        message={"edges": ArraySpec("float64", (None,)), "weighted": ScalarSpec(bool)},
        reply={"counts": atoll.Sum(ArraySpec("float64", (None,)))},
    )
    ages = atoll.core.Task(
        "tests.flare:ages",
        lambda island, m: {"counts": atoll.Sum(np.histogram(island.data, m["edges"])[0].astype(np.float64))},
        schema=schema,
    )

    async def program(fed: Any) -> Any:
        fed.world.registry[ages.name] = ages
        with pytest.raises(MessageError, match="expected an array of float64"):
            await fed.sum(fed.parties, ages, {"edges": [0, 50, 100], "weighted": False})
        return (await fed.sum(fed.parties, ages, {"edges": np.array([0.0, 50, 100]), "weighted": False}))["counts"]

    assert run(program).tolist() == [2.0, 4.0]


# ---------------------------------------------------------------------- broadcast, send, relay


def test_broadcast_and_wait() -> None:
    async def program(fed: Any) -> Any:
        heard = await fed.ask_all(fed.parties, count)
        return heard.by_name(), fed.under_way

    assert run(program) == ({"north": 2, "east": 3, "south": 1}, 0)


def test_broadcast_without_waiting_and_a_callback_for_each_reply() -> None:
    async def program(fed: Any) -> Any:
        called: list[tuple[str, int]] = []
        await fed.send(fed.parties, count)
        at_once = fed.under_way
        while fed.under_way:
            came = await fed.arrivals()
            called += zip(fed.parties[came.positions].names, await came.results(), strict=True)
        return at_once, sorted(called)

    assert run(program) == (3, [("east", 3), ("north", 2), ("south", 1)])


def test_send_and_wait_and_send_without_waiting() -> None:
    async def program(fed: Any) -> Any:
        one = await fed.ask("east", count, 10)
        await fed.send(fed.parties.named("south"), count)
        waiting = fed.busy.tolist()
        return one, waiting, await (await fed.arrivals()).results()

    assert run(program) == (13, [2], [1])


def test_relay_and_wait_visits_in_order_and_relay_without_waiting() -> None:
    visited: list[str] = []
    step = atoll.core.Task("tests.flare:step", lambda island, m: (visited.append(island.name), (m or 0) + 1)[1])

    async def program(fed: Any) -> Any:
        fed.world.registry[step.name] = step
        order = fed.parties.named("south", "north", "east")
        first = await fed.relay(order, step)
        passing = asyncio.create_task(fed.scope("pass").relay(order, step))
        return first, passing.done(), await passing

    assert run(program) == (3, False, 3)
    assert visited == ["south", "north", "east"] * 2


def test_timeouts_and_crashes_reach_the_author_of_the_controller() -> None:
    slow, down = Fixed([1.0, 1.0, 100.0]), Fixed([1.0, np.inf, 1.0])

    async def patient(fed: Any) -> Any:
        heard = await fed.ask_all(fed.parties, count, deadline=10.0, quorum=2, at=(1, "a"))
        return heard.senders.names, heard.silent.names

    assert run(patient, devices=slow) == (["north", "east"], ["south"])
    assert run(patient, devices=down) == (["north", "south"], ["east"])

    async def strict(fed: Any) -> Any:
        await fed.ask_all(fed.parties, count, deadline=10.0, quorum=3, at=(1, "a"))

    with pytest.raises(QuorumError, match="2 of 3 parties"):
        run(strict, devices=slow)

    async def broken(fed: Any) -> Any:
        heard = await fed.ask_all(fed.parties, fails_in_the_east, quorum=0)
        return heard.senders.names, {name: str(error) for name, error in heard.errors.items()}

    with pytest.raises(TaskError, match=r"the disk is broken.*at east"):
        run(broken)
    senders, errors = run(broken, errors="drop")
    assert senders == ["north", "south"]
    assert "the disk is broken" in errors["east"]


# ---------------------------------------------------------------------- workflows


def test_scatter_and_gather_is_the_hand_written_loop() -> None:
    """Broadcast weights, gather trained ones, average by rows: what FedAvg's controller does, in a program of seven lines."""

    @atoll.task(name="tests.flare:train")
    def train(island: Any, w: Any) -> Any:
        x, y = island.data
        for _ in range(3):
            w = w - 0.1 * x.T @ (x @ w - y) / len(y)
        return {"w": atoll.Mean(w, examples=float(len(y)))}

    draw = np.random.default_rng(0)
    rows = {name: (draw.normal(size=(n, 4)), draw.normal(size=n)) for name, n in (("a", 5), ("b", 9), ("c", 2))}

    async def controller(fed: Any) -> Any:
        fed.world.registry[train.name] = train
        w = np.zeros(4)
        for _ in range(3):
            w = (await fed.sum(fed.parties, train, w))["w"]
        return w

    w = np.zeros(4)
    for _ in range(3):
        trained = []
        for x, y in rows.values():
            local = w
            for _ in range(3):
                local = local - 0.1 * x.T @ (x @ local - y) / len(y)
            trained.append((len(y), local))
        w = sum(n * local for n, local in trained) / sum(n for n, _ in trained)
    np.testing.assert_allclose(atoll.simulate(controller, Community(rows), engine="inline"), w, rtol=1e-12)


def test_custom_controllers_may_ask_for_more_as_results_come() -> None:
    """It goes on until it has seen enough: the next task depends on the last result."""

    async def controller(fed: Any) -> Any:
        seen, rounds = 0, 0
        while seen < 15:
            rounds += 1
            seen += sum((await fed.ask_all(fed.parties, count)).values)
            fed.record({"seen": seen})
        return rounds

    assert run(controller) == 3


@pytest.mark.parametrize(
    "algorithm",
    [FedProx(lr=0.1, mu=0.0), FedAvgM(lr=0.1, momentum=0.0), Scaffold(lr=0.1)],
    ids=["FedProx", "FedOpt", "SCAFFOLD"],
)
def test_fedavg_fedprox_fedopt_and_scaffold(algorithm: Any) -> None:
    """Without a proximal term, without momentum, and in SCAFFOLD's first round, they are FedAvg."""
    first, same = (
        atoll.simulate(training(a, rounds=1), digits(), engine="inline").params for a in (FedAvg(lr=0.1), algorithm)
    )
    for name in first:
        np.testing.assert_allclose(same[name], first[name], rtol=1e-6, atol=1e-7)


# ---------------------------------------------------------------------- machine learning as programs


@atoll.task
def nearest(island: Any, centres: Any) -> dict[str, Any]:
    """Sums and counts of the rows next to each centre; without centres, proposals."""
    x = np.asarray(island.data.x, dtype=np.float64)
    if centres is None:
        return {"proposals": atoll.Parts(x[:2])}
    label = ((x[:, None] - centres) ** 2).sum(axis=2).argmin(axis=1)
    hot = np.eye(len(centres))[label]
    return {"sums": atoll.Sum(hot.T @ x), "counts": atoll.Sum(hot.sum(axis=0))}


def test_k_means() -> None:
    """Clients propose centres, then send sums and counts: Lloyd's iterations on the pooled rows, from the same centres."""
    data = digits(parties=4)

    async def controller(fed: Any) -> Any:
        proposed = [part.value for part in (await fed.sum(fed.parties, nearest))["proposals"]]
        start = centres = np.concatenate(proposed)[:5]
        for _ in range(6):
            found = await fed.sum(fed.parties, nearest, centres)
            centres = np.where(
                found["counts"][:, None] > 0, found["sums"] / np.maximum(found["counts"], 1)[:, None], centres
            )
        return start, centres

    start, centres = atoll.simulate(controller, data, engine="inline")
    x, pooled = np.asarray(data.pooled().x, dtype=np.float64), start
    for _ in range(6):
        label = ((x[:, None] - pooled) ** 2).sum(axis=2).argmin(axis=1)
        pooled = np.stack([x[label == k].mean(axis=0) if (label == k).any() else pooled[k] for k in range(5)])
    np.testing.assert_allclose(centres, pooled, atol=1e-9)


@atoll.task
def support(island: Any, message: Any) -> dict[str, Any]:
    """The rows that the local support vector machine rests on."""
    from sklearn.svm import SVC

    x, y = np.asarray(island.data.x), np.asarray(island.data.y)
    held = SVC(kernel="linear").fit(x, y).support_
    return {"x": x[held], "y": y[held]}


def test_support_vector_machine_in_two_steps() -> None:
    """Clients send their support vectors, the server fits on the union of them: nearly the machine of all rows."""
    from sklearn.svm import SVC

    full = atoll.data.digits()
    data = atoll.data.iid(full.take(np.arange(600)), parties=4, seed=0)

    async def controller(fed: Any) -> Any:
        told = (await fed.ask_all(fed.parties, support)).values
        x, y = (np.concatenate([one[name] for one in told]) for name in ("x", "y"))
        return SVC(kernel="linear").fit(x, y), len(y)

    machine, sent = atoll.simulate(controller, data, engine="inline")
    pooled = data.pooled()
    everything = SVC(kernel="linear").fit(np.asarray(pooled.x), np.asarray(pooled.y))
    x, y = np.asarray(full.x)[600:], np.asarray(full.y)[600:]
    assert sent < len(pooled)
    assert machine.score(x, y) > everything.score(x, y) - 0.02


# ---------------------------------------------------------------------- filters


def test_site_enforced_filters() -> None:
    """A site forces its filters on every job, in its order; a job without them does not run there."""
    job = training(FedAvg(lr=0.1))
    forced = {"client-1": SitePolicy(stages=(ExcludeVariables(["bias"]), Clip(1.0)))}
    (row, *_) = atoll.simulate(job, digits(), engine="inline", policy=forced).metrics
    assert "the uplink lacks ExcludeVariables" in row["rejected_clients"]["client-1"]
    obeying = job.replace(uplink=[ExcludeVariables(["bias"]), Clip(1.0)])
    result = atoll.simulate(obeying, digits(), engine="inline", policy=forced)
    assert not np.any(result.params["bias"])
    assert np.any(result.params["weight"])
    assert [row["rejected"] for row in result.metrics] == [0, 0]


# ---------------------------------------------------------------------- productivity


def test_simulator_command(tmp_path: Path, capsys: Any) -> None:
    """One command, many clients in one process, and the same job file that sites run."""
    from atoll.cli import run as command

    file = tmp_path / "job.yaml"
    file.write_text(
        "data: {source: digits, partition: {name: iid, parties: 4}}\n"
        "model: {name: linear, features: 64, outputs: 10}\nselection: Everyone\nrounds: 1\n"
    )
    code = command(["run", str(file), "--folder", str(tmp_path / "run"), "--no-report", "--json"])
    assert code == 0
    assert json.loads(capsys.readouterr().out)["rounds"] == 1


def test_large_messages_travel_in_bounded_chunks() -> None:
    """A message of 48 MB is written and read in chunks of 1 MB; the reader allocates it once."""
    from atoll.core import message as M

    tree = {"w": np.arange(6_000_000, dtype=np.float64), "round": 3}
    reader, largest = M.Decoder(), 0
    for chunk in M.encode_chunks(tree, 1 << 20):
        largest = max(largest, len(chunk))
        reader.feed(chunk)
    assert largest <= 1 << 20
    assert M.equal(reader.result(), tree)
