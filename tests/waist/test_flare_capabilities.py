"""What NVIDIA FLARE's paper lists (its capabilities that are not governance), a test a line; ``tests/PROPERTIES.md`` has the list."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import atoll
from atoll.algorithms import FedAvg, FedAvgM, FedProx, Scaffold
from atoll.core.errors import MessageError, QuorumError, TaskError
from atoll.core.message import ArraySpec, ScalarSpec
from atoll.core.requests.cohort import Community
from atoll.core.requests.policy import SitePolicy
from atoll.core.requests.task import TaskSchema
from atoll.fitting import GLM, SVM, Fit, KMeans
from atoll.stages import Clip, ExcludeVariables
from tests.support.learn_toys import Fixed

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


# ---------------------------------------------------------------------- machine learning


PIXELS = [f"p{k}" for k in range(18, 30)]


def digits_at(parties: int, rows: int) -> tuple[dict[str, Any], Any, Any]:
    """Twelve pixels of digits as a table at each party; and those and the labels of all of them."""
    import pandas as pd

    full = atoll.data.digits().take(np.arange(rows))
    x, y = np.asarray(full.x, dtype=np.float64)[:, 18:30], np.asarray(full.y)
    whole = pd.DataFrame(x, columns=PIXELS).assign(digit=y, odd=y % 2)
    cuts = np.linspace(0, rows, parties + 1).astype(int)
    return {f"site-{k}": whole[cuts[k] : cuts[k + 1]] for k in range(parties)}, x, y


def fitted(model: Any, data: Any, **settings: Any) -> Any:
    return atoll.simulate(Fit(model=model, columns=PIXELS, **settings), data, engine="inline", progress=False).outcome


def test_linear_models() -> None:
    """Sites send sums; the model is scikit-learn's on the pooled rows."""
    from sklearn.linear_model import LogisticRegression

    data, x, y = digits_at(3, 200)
    found = fitted(GLM(alpha=10.0), data, label="odd")
    pooled = LogisticRegression(C=0.1, solver="newton-cholesky", tol=1e-10).fit(x, y % 2)
    np.testing.assert_allclose(found.estimator().predict_proba(x), pooled.predict_proba(x), atol=1e-6)


def test_k_means() -> None:
    """Sites send sums and counts a centre: scikit-learn's iterations on the pooled rows."""
    from sklearn.cluster import KMeans as Pooled

    data, x, _ = digits_at(3, 300)
    found = fitted(KMeans(clusters=5, centres=x[:5].tolist()), data)
    pooled = Pooled(5, init=x[:5], n_init=1, tol=0).fit(x)
    np.testing.assert_allclose(found["centres"], pooled.cluster_centers_, rtol=1e-10, atol=1e-12)


def test_support_vector_machine_in_two_steps() -> None:
    """Sites send their support vectors, the server fits one machine to the union of them: nearly the machine of all rows."""
    from sklearn.svm import SVC

    data, x, y = digits_at(4, 400)
    found = fitted(SVM(), data, label="digit")
    full = atoll.data.digits()
    held, truth = np.asarray(full.x, dtype=np.float64)[400:, 18:30], np.asarray(full.y)[400:]
    assert len(found["vectors"]) < len(x)
    mine = float((np.asarray(found.estimator().predict(held)).astype(int) == truth).mean())
    assert mine > SVC().fit(x, y).score(held, truth) - 0.02
    assert found.told["contacts"] == 3, "means, squares around them for the kernel's width, support vectors"


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
