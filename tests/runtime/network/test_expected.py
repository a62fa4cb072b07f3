"""What a server expects of a reply is what honest clients send, for every algorithm and kind of reply."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import atoll
from atoll.core.algebra.aggregate import Mean, Parts, Sum
from atoll.core.errors import MessageError
from atoll.core.execution import sum_builder
from atoll.core.execution.engine import News
from atoll.core.message import DEFAULT_LIMITS
from atoll.core.requests.chain import Chain
from atoll.core.requests.request import PartialSum, ReplyForm, Request, weight_bound
from atoll.core.requests.task import task
from atoll.core.requests.wire import pack_folded
from atoll.data import Dataset, Islands
from atoll.labels import FADA
from atoll.runtime.network.replies import ReplyTable
from atoll.runtime.network.validation import limits_of, majority, measures, outlying, require_expected
from tests.support.adaptation_toys import federation, network, trained

SIZES = (7, 12, 20)


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Each single reply of a simulation is checked as a server checks it; the requests that were."""
    real, seen = sum_builder.encode_reply, list[str]()

    def encode_reply(request: Request, aggregates: Any, key: int, memory: Any, **more: Any) -> Any:
        made = real(request, aggregates, key, memory, **more)
        if made.totals and request.expects is not None:
            require_expected(made.totals, request, SIZES[memory.position])
            assert made.nbytes[0] <= limits_of(request, DEFAULT_LIMITS).max_bytes
            seen.append(request.id)
        return made

    monkeypatch.setattr(sum_builder, "encode_reply", encode_reply)
    yield seen
    assert seen


def islands(classes: int = 3) -> Islands:
    rng = np.random.default_rng(1)
    parts = {
        f"client-{i}": Dataset({"x": rng.normal(size=(n, 4)).astype(np.float32), "y": np.arange(n) % classes})
        for i, n in enumerate(SIZES)
    }
    return Islands.from_datasets(parts)


A = atoll.algorithms
S = atoll.selection
PLAIN = ("FedAvg", "FedProx", "Scaffold", "FedNova", "FedDyn", "FedAdam", "FedAvgM", "FedMirror", "MimeLite", "Mime", "DIANA", "Signum", "LocalSVRG",
         "FedAC", "GIANT", "DINGO", "FedNL", "FedADMM", "PFedMe", "FedSSO", "FLECS", "MFL", "ADIANA", "CEADMM", "FedAQ", "Ditto")  # fmt: skip
ALGORITHMS = {
    **{name: getattr(A, name)() for name in PLAIN},
    "IFCA": A.IFCA(base=A.FedAvg(lr=0.1)),
    "VRLSGD": A.VRLSGD(steps=3),
    "DANE": A.DANE(mu=1.0),
    "FedCOMGATE": A.FedCOMGATE(steps=3),
    "Upcycled": A.Upcycled(base=A.FedAvg(lr=0.1), coefficient=0.5),
}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_honest_reply_is_what_is_expected(name: str, checked: list[str]) -> None:
    job = atoll.Training(
        model=atoll.models.linear(4, 3), algorithm=ALGORITHMS[name], selection=atoll.selection.Everyone(), rounds=2
    )
    atoll.simulate(job, islands(), engine="inline")


UPLINKS = {
    "top": [atoll.stages.TopK(0.5)], "quantised": [atoll.stages.QSGD(8)], "random": [atoll.stages.RandomK(0.5)],
    "signs": [atoll.stages.OneBit()], "ternary": [atoll.stages.Ternary()], "sketched": [atoll.stages.CountSketch(3, 9)],
}  # fmt: skip


@pytest.mark.parametrize("name", UPLINKS)
def test_so_is_what_stages_make_of_it(name: str, checked: list[str]) -> None:
    job = atoll.Training(
        model=atoll.models.linear(4, 3), algorithm=A.FedAvg(lr=0.1), selection=atoll.selection.Everyone(),
        uplink=UPLINKS[name], rounds=2,
    )  # fmt: skip
    atoll.simulate(job, islands(), engine="inline")


def test_running_statistics_metrics_of_a_loop_and_reports(checked: list[str]) -> None:
    torch = pytest.importorskip("torch")
    nn = torch.nn

    def loop(module: Any, data: Any, config: Any, rng: Any) -> dict[str, float]:
        return {"seen": float(len(data))}

    normed = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))
    own = atoll.torch.CustomLoop(nn.Linear(4, 3), loop)
    for model, selection in (
        (normed, atoll.selection.Everyone()),
        (own, atoll.selection.Everyone()),
        (normed, S.Oort(3)),
    ):
        job = atoll.Training(model=model, algorithm=A.FedAvg(lr=0.1), selection=selection, rounds=2)
        atoll.simulate(job, islands(), engine="inline")


def test_replies_that_follow_from_earlier_phases(checked: list[str]) -> None:
    """FADA's clients train against discriminators that the server has made in the phases before."""
    data = federation(sizes=SIZES, targets=(2,))
    target = data.shard(2).dataset()
    hidden = Dataset({"x": target.x, "y": target.y * 0, "labelled": np.zeros(len(target), bool)})
    sources = Islands.from_datasets({f"source {i}": data.shard(i).dataset() for i in range(2)})
    method = FADA(base=A.FedAvg(lr=0.1, batch_size=None, steps=1), rows=20, judge_steps=2)
    trained(method, network(), sources.with_others({"target": hidden}), rounds=1)


# ---------------------------------------------------------------------- what is not expected


@task
def step(island: Any, message: Any) -> Any:
    """Never runs."""
    raise NotImplementedError


FORM = ReplyForm(
    {"update": Mean({"w": np.zeros((3, 2))}, examples=1.0), "count": Sum(np.float64(0.0), role="side")},
    {"report/loss": Parts(np.float64(0.0), role="report"), "report/profile": None},
    frozenset({"loss"}),
    {"update": (1.0, 3.0), "loss": (1.0, 3.0)},
)


def request(**changes: Any) -> Request:
    return Request("main/step/0", step, None, "main", 0, Chain(), expects=lambda: FORM, **changes)


def reply(**changes: Any) -> Any:
    made = {
        "update": Mean({"w": np.ones((3, 2))}, examples=5.0), "count": Sum(np.float64(2.0), role="side"),
        "loss": Mean(np.float64(0.3), examples=5.0, role="metric"), **changes,
    }  # fmt: skip
    return {name: a.total() for name, a in made.items() if a is not None}


WRONG = {
    "another shape": (reply(update=Mean({"w": np.ones((3, 2, 2))}, examples=5.0)), r"'update/w' is of shape \(3, 2, 2\)"),
    "another structure": (reply(update=Mean([np.ones((3, 2))], examples=5.0)), "'update' is a list of 1"),
    "another leaf": (reply(update=Mean({"w": np.ones((3, 2)), "v": np.ones(1)}, examples=5.0)), "'update' is a dict of 2"),
    "complex numbers": (reply(update=Mean({"w": np.ones((3, 2)) * 1j}, examples=5.0)), "is of complex128"),
    "another kind": (reply(update=Sum({"w": np.ones((3, 2))})), r"'update' is a sum \(update\)"),
    "another role": (reply(count=Sum(np.float64(1.0))), r"'count' is a sum \(update\)"),
    "nothing": (reply(update=None), "no 'update', which the request asks for"),
    "a metric that nobody registered": (reply(accuracy=Mean(np.float64(1.0), examples=5.0, role="metric")), "the metrics are: loss"),
    "an update that nobody asked for": (reply(loss=Mean(np.float64(1.0), examples=5.0)), "is not a metric"),
    "a metric of many numbers": (reply(loss=Mean(np.ones(9), examples=5.0, role="metric")), "must be a number"),
    "a weight of more rows than it has": (reply(update=Mean({"w": np.ones((3, 2))}, examples=6.0)), "has the weight 6, but a party of 5 rows has at most 5"),
    "a loss of more rows than it has": (reply(loss=Mean(np.float64(1.0), examples=500.0, role="metric")), "has the weight 500"),
    "a report that is none": (reply(**{"report/profile": Sum(np.ones(3))}), "but a report was asked for"),
}  # fmt: skip


SINGLE = ReplyForm({"update": Parts({"w": np.zeros((3, 2))}), "tag": Parts(np.zeros(3), role="side")}, {}, frozenset())
SINGLY_WRONG = {
    "another shape": ({"w": np.ones((5, 2))}, r"'update/w' is of shape \(5, 2\)"),
    "another leaf": ({"w": np.ones((3, 2)), "v": np.ones(1)}, "'update' is a dict of 2"),
    "words": ({"w": np.full((3, 2), "a")}, "which is not a number"),
}


@pytest.mark.parametrize("name", SINGLY_WRONG)
def test_a_single_update_of_another_form_is_refused_and_other_single_replies_may_differ(name: str) -> None:
    asked = Request("main/step/0", step, None, "main", 0, Chain(), expects=lambda: SINGLE)
    tag = Parts(np.ones(5), role="side").total()
    require_expected({"update": Parts({"w": np.ones((3, 2), np.float32)}).total(), "tag": tag}, asked, 5)
    value, words = SINGLY_WRONG[name]
    with pytest.raises(MessageError, match=words):
        require_expected({"update": Parts(value).total(), "tag": tag}, asked, 5)


@pytest.mark.parametrize("name", WRONG)
def test_what_is_not_expected_is_refused_by_name(name: str) -> None:
    totals, words = WRONG[name]
    with pytest.raises(MessageError, match=words):
        require_expected(totals, request(), 5)


def test_what_is_expected_passes() -> None:
    require_expected(reply(), request(), 5)
    require_expected(reply(loss=None), request(), 5)
    require_expected(reply(**{"report/loss": Parts(np.float64(1.0), examples=5.0, role="report")}), request(), 5)
    require_expected(reply(update=Mean({"w": np.ones((3, 2), np.float32)}, examples=5.0)), request(), 5)
    anything = ReplyForm(FORM.reply, {}, None)
    free = Request("main/step/0", step, None, "main", 0, Chain(), expects=lambda: anything)
    require_expected(reply(seen=Mean(np.float64(1.0), examples=5.0, role="metric")), free, 5)
    for name in ("a/b", "x" * 101, "a\nb", ""):
        with pytest.raises(MessageError, match="is not a metric"):
            require_expected(reply(**{name: Mean(np.float64(1.0), role="metric")}), free, 5)


def test_the_bound_of_a_weight_is_the_line_through_two_honest_ones() -> None:
    for rows in (1, 2, 5, 1000, 10**9):
        assert rows <= weight_bound((1.0, 3.0), rows) < rows * 1.06
        assert 1.0 <= weight_bound((1.0, 1.0), rows) < 1.06
        assert math.sqrt(rows) <= weight_bound((1.0, math.sqrt(3)), rows)


def test_a_reply_of_another_size_is_refused_before_it_is_received() -> None:
    form = ReplyForm({"update": Mean(np.zeros(2), examples=1.0)}, {}, frozenset())
    limits = limits_of(Request("r", step, None, "main", 0, Chain(), expects=lambda: form), DEFAULT_LIMITS)
    assert limits.max_bytes < 2 << 20
    assert limits.max_leaves < 100_000
    assert limits_of(Request("r", step, None, "main", 0, Chain()), DEFAULT_LIMITS) == DEFAULT_LIMITS


def test_what_stands_far_outside_is_named_and_what_is_merely_uneven_is_not() -> None:
    def norms(*values: float) -> dict[int, Any]:
        return {i: measures({"update": Mean(np.array([v]), examples=3.0).total()}) for i, v in enumerate(values)}

    assert outlying(norms(1.0, 1.1, 2501.0)) == {2: "an update of norm 2.5e+03, 2,274 times the median"}
    assert outlying(norms(1.0, 2.0, 4.0, 8.0, 16.0)) == {}
    assert outlying(norms(1.0, 2501.0)) == {}  # of two, nobody can say which one is wrong
    assert outlying(norms(0.0, 0.0, 1.0)) == {}
    assert outlying(norms(1.0, 1.0, 1.0, 0.0)) == {}
    rng = np.random.default_rng(0)
    assert all(outlying(norms(*np.exp(0.5 * rng.normal(size=20)))) == {} for _ in range(200))
    losses = {
        i: measures({"loss": Mean(np.float64(v), role="metric").total()}) for i, v in enumerate((0.3, 0.4, 0.5, 99.0))
    }
    assert "the metric 'loss' 99, 220 times" in outlying(losses)[3]


# ---------------------------------------------------------------------- a task that declares nothing


def frames(*shapes: int) -> list[Any]:
    made = []
    for position, shape in enumerate(shapes):
        one = np.array([position])
        totals = {"x": Sum(np.ones(shape)).total()}
        made.append({"op": "folded", "folded": pack_folded(PartialSum(totals, one, one * 8))})
    return made


def test_without_a_declaration_the_form_is_what_most_sent_and_not_what_came_first() -> None:
    for shapes, complete, wanted in (
        ((4, 3, 3), True, 3),
        ((4, 3), True, 4),
        ((3, 4, 4, 3), True, 3),
        ((4, 3, 3), False, 3),
    ):
        found = majority(frames(*shapes), complete=complete)
        assert found is not None
        assert found["x"].value.shape == (wanted,)
    assert majority(frames(4, 3), complete=False) is None  # who is right is not known yet
    assert majority([], complete=True) == {}
    assert majority([{"op": "lost"}, *frames(3)], complete=True) is not None


def test_the_first_reply_of_a_cohort_does_not_turn_the_others_out() -> None:
    told: list[int] = []
    table = ReplyTable(News(), lambda position, error: told.append(position))
    asked = Request("main/step/0", step, None, "main", 0, Chain())
    positions = np.array([0, 1, 2])
    table.begin(asked, positions, lambda *_: None, "sum")
    for position, frame in enumerate(frames(4, 3, 3)):
        table.take_reply(asked.id, position, {**frame, "id": asked.id, "party": position, "events": []}, 0.0)
    assert told == [0]
    running = table.sum_of(asked.id, [0, 1, 2])
    assert running is not None
    whole = running.fold_sum()
    assert whole.senders.tolist() == [1, 2]
    assert "of shape (4,)" in whole.rejected[0]
    assert whole.totals["x"].value.tolist() == [2.0, 2.0, 2.0]


def test_a_sum_is_whole_without_a_party_that_is_lost_while_it_is_awaited() -> None:
    table = ReplyTable(News())
    asked = Request("main/step/0", step, None, "main", 0, Chain())
    table.begin(asked, np.array([0, 1, 2]), lambda *_: None, "sum")
    replies = [
        {**frame, "id": asked.id, "party": position, "events": []} for position, frame in enumerate(frames(3, 3, 3))
    ]
    table.take_reply(asked.id, 0, replies[0], 0.0)
    table.note_losses({1}, 0.0)
    table.take_reply(asked.id, 2, replies[2], 0.0)
    running = table.sum_of(asked.id, [0, 1, 2])
    assert running is not None
    whole = running.fold_sum()
    assert (whole.senders.tolist(), whole.rejected) == ([0, 2], {1: "the party was lost"})
