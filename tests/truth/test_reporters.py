"""A sum over few reporters is opened by nobody, and how many there are stays hidden."""

from __future__ import annotations

import collections
import csv
import io
from dataclasses import replace

import numpy as np
import pytest

import atoll
from atoll.core.errors import ConfigError, LetterError, PolicyError, QuorumError, TaskError
from atoll.core.requests.cohort import Community
from atoll.core.world import World
from atoll.engines import Inline
from atoll.testing import killed_and_resumed
from atoll.truth import CRH, DawidSkene, Logistic, OneCoin, Shamir, Truth, Virtual, WeightedSum, reporters
from atoll.truth.reporters import ReporterTest, count_rounds

ADD, WITHHOLD = "atoll.truth.parties:add", "atoll.truth.parties:withhold"


def drawn(workers=7, tasks=9, seed=0):
    """Tasks with two to five reporters of three classes."""
    rng = np.random.default_rng(seed)
    truth, skill = rng.integers(0, 3, tasks), rng.uniform(0.4, 0.95, workers)
    rows = []
    for t in range(tasks):
        for w in rng.permutation(workers)[: 2 + t % 4].tolist():
            said = truth[t] if rng.random() < skill[w] else rng.integers(0, 3)
            rows.append((f"t{t}", f"w{w}", f"c{said}"))
    return rows


ROWS = drawn()
PARTS = atoll.truth.split_by_worker(ROWS)
COUNTS = collections.Counter(task for task, _, _ in ROWS)


def simulated(job, parts=PARTS, **more):
    return atoll.simulate(job, parts, **{"engine": "inline", "progress": False, "seed": 2, **more})


def campaign(least, model=None, **more):
    return Truth(model=model or OneCoin(iterations=2), protocol=Shamir(threshold=3, min_reporters=least), label="", **more)  # fmt: skip


# ---------------------------------------------------------------------- the same truth, without some tasks


@pytest.mark.parametrize("least", [2, 3, 4, 5])
def test_tasks_with_fewer_reporters_are_withheld_and_the_rest_is_as_without_them(least):
    """What is left is what all reports on the other tasks say in one place, where these are tasks on which nobody reported."""
    result = simulated(campaign(least, DawidSkene(iterations=3)))
    few = tuple(sorted(task for task, count in COUNTS.items() if count < least))
    assert result.withheld == few
    assert (len(few) > 0) == (least > 2)
    left = [row for row in ROWS if row[0] not in few]
    layout = atoll.truth.reports_of(ROWS).layout()
    wanted = atoll.truth.fit_reports(DawidSkene(iterations=3), atoll.truth.reports_of(left), layout=layout)
    assert result.truth == {task: label for task, label in wanted.truth.items() if task not in few}
    assert max(abs(result.confidence[task] - wanted.confidence[task]) for task in result.truth) < 2e-5
    compared = result.compare_plain()
    assert (compared.agreement, set(compared.truth)) == (1.0, set(result.truth))
    assert result.plain()["withheld"] == len(few)


@pytest.mark.parametrize(
    "model", [WeightedSum(iterations=2), DawidSkene(iterations=2)], ids=lambda model: type(model).__name__
)
def test_with_losses_each_sum_counts_those_who_are_in_it(model):
    result = simulated(campaign(4, model, loss=0.2))
    assert result.lost
    assert result.compare_plain().max_difference < 2e-5


def test_numbers_are_withheld_alike_and_stand_empty_in_the_file():
    rng = np.random.default_rng(1)
    rows = [(f"t{t}", f"w{w}", str(50 + 10 * t + rng.normal())) for t in range(4) for w in range(2 + t)]
    result = simulated(campaign(3, CRH(iterations=2)), atoll.truth.split_by_worker(rows))
    assert result.withheld == ("t0",)
    assert result.compare_plain().agreement == 1.0
    written = list(csv.DictReader(io.StringIO(result.csv())))
    assert [row["task"] for row in written if not row["truth"]] == ["t0"]
    assert len(written) == 4


def test_if_no_task_has_enough_reporters_nothing_is_shown():
    result = simulated(campaign(6))
    assert (result.truth, len(result.withheld)) == ({}, 9)


def test_a_run_goes_on_after_a_crash_in_the_middle_of_a_test(tmp_path):
    few = {name: PARTS[name] for name in list(PARTS)[:4]}
    job = Truth(model=OneCoin(iterations=1), protocol=Shamir(threshold=2, min_reporters=2), label="")

    def world(folder, resume):
        return World(Community(few), Inline(), folder=folder, resume=resume, seed=5, secret_seed=3)

    life = killed_and_resumed(world, job, tmp_path, points=3)
    assert life.result.iterations == 1


# ---------------------------------------------------------------------- a lone reporter


LONE = [(f"p{t}", w, "duck" if t % 2 or w == "cem" else "goose") for t in range(8) for w in ("ann", "bob", "cem")]
LONE.append(("alone", "bob", "duck"))


class Wiretap(Inline):
    """A server that keeps all that it is sent."""

    def __init__(self):
        super().__init__()
        self.replies = []

    async def run(self, request, positions):
        replies = await super().run(request, positions)
        self.replies += [(request.task.name, reply.value) for reply in replies]
        return replies


def test_a_lone_reporter_is_read_from_the_sums_without_and_not_with():
    """Without, the server opens how far Bob is trusted; with, no holder sends its share of that sum, and no sum has its size."""
    trust = Logistic(iterations=1)
    trust.fit(LONE)
    wanted = -np.log1p(-trust.skills_["bob"])
    read = {}
    for least in (0, 2):
        tap = Wiretap()
        job = Truth(model=Logistic(iterations=2), protocol=Shamir(threshold=2, min_reporters=least), label="")
        result = simulated(job, atoll.truth.split_by_worker(LONE), engine=tap, sealing="real")
        shown = result.fit.broadcast["truth"][result.fit.layout.tasks.index("alone")]
        read[least] = np.log((1 - shown) / shown)
        rows = [value for name, value in tap.replies if name == (ADD if not least else WITHHOLD) and value is not None]
        if not least:
            assert {len(row) for row in rows} == {9}
        else:
            assert result.withheld == ("alone",)
            assert {len(row["sums"]) for row in rows} == {8}
    assert abs(abs(read[0]) - wanted) < 1e-5
    assert read[2] == 0


def test_what_holders_open_tells_whether_there_are_enough_and_not_how_many(monkeypatch):
    """Zeros of too few; of enough, numbers that differ from run to run and between tasks with as many reporters."""
    opened = []
    whole = reporters.correct_shamir

    def listening(*args, **more):
        found = whole(*args, **more)
        opened.append(found.values)
        return found

    monkeypatch.setattr(reporters, "correct_shamir", listening)
    for seed in range(6):
        simulated(campaign(4, OneCoin(iterations=0)), secret_seed=seed)
    seen = np.stack(opened[:: len(PARTS)]).astype(np.float64)
    enough = np.array([COUNTS[f"t{t}"] >= 4 for t in range(9)])
    assert not seen[:, ~enough].any()
    numbers = seen[:, enough]
    assert len(np.unique(numbers)) == numbers.size
    assert abs(numbers.mean() / 2**32 - 0.5) < 5 * (1 / 12 / numbers.size) ** 0.5


# ---------------------------------------------------------------------- who lies, and who is lost


class Relay(Inline):
    """A server that changes what it asks one holder, ``w2``."""

    def __init__(self, change):
        super().__init__()
        self.change = change

    async def run(self, request, positions):
        changed = self.change(request)
        if changed is request:
            return await super().run(request, positions)
        at = int(np.flatnonzero(positions == 2)[0])
        told = await super().run(changed, positions[at : at + 1])
        others = await super().run(request, np.delete(positions, at))
        return [*others[:at], *told, *others[at:]]


def other_holders(request):
    """Tell one holder of other holders in the first step: what it shares then opens nowhere."""
    if request.task.name != WITHHOLD or request.message["round"] != 1:
        return request
    names = set(request.message["from"][1:])
    return replace(request, message={**request.message, "from": sorted(names)}, mail=request.mail.only_from(names))


def too_few(request):
    if request.task.name != WITHHOLD:
        return request
    return replace(request, message={**request.message, "from": request.message["from"][:4]})


def untested(request):
    return replace(request, message={**request.message, "known": True}) if request.task.name == ADD else request


def out_of_turn(request):
    return replace(request, message={**request.message, "round": 3}) if request.task.name == WITHHOLD else request


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (other_holders, "it was altered|was written for something else"),
        (too_few, "step 1 with 4 holders, and 5 are needed"),
        (untested, "whose reporters nobody counted"),
        (out_of_turn, "step 3 with 7 holders"),
    ],
    ids=lambda one: getattr(one, "__name__", ""),
)
def test_a_server_that_lies_is_refused(change, said):
    with pytest.raises((LetterError, PolicyError, TaskError), match=said):
        simulated(campaign(2), engine=Relay(change), sealing="real")


@pytest.mark.parametrize("tell", [lambda said: {"withheld": said["withheld"]}, lambda said: {"sums": said["sums"]}, lambda said: 7])  # fmt: skip
def test_a_holder_that_shows_no_sums_is_named(tell):
    class Mute(Inline):
        async def run(self, request, positions):
            replies = await super().run(request, positions)
            if request.task.name == WITHHOLD and replies[2].value is not None:
                replies[2].value = tell(replies[2].value)
            return replies

    result = simulated(campaign(3, OneCoin(iterations=1)), engine=Mute())
    assert result.wrong == ("w2",)
    assert result.compare_plain().max_difference < 1e-5


@pytest.mark.parametrize(("lost", "at"), [(2, 1), (2, 3), (3, 2)])
def test_just_enough_holders_finish_a_test_and_one_fewer_does_not(lost, at):
    """Of 7 holders with threshold 3, 2 may be lost: a product lies on a polynomial of degree 4."""

    class Losing(Inline):
        async def run(self, request, positions):
            replies = await super().run(request, positions)
            if request.task.name == WITHHOLD and request.message["round"] == at:
                for reply in replies[:lost]:
                    reply.rejected = "lost"
            return replies

    if lost == 2:
        result = simulated(campaign(3), engine=Losing())
        assert result.compare_plain().max_difference < 1e-5
    else:
        with pytest.raises(QuorumError, match="and 5 are needed"):
            simulated(campaign(3), engine=Losing())


# ---------------------------------------------------------------------- settings


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Shamir(min_reporters=1), "use 2 workers or more, or 0"),
        (lambda: Shamir(min_reporters=2, checks=True), "leave checks out"),
        (lambda: Virtual(of=Shamir(min_reporters=2)), "leave min_reporters out"),
        (lambda: Shamir(threshold=5, min_reporters=2).plan_holders(7), r"which needs 9 .*use a threshold of 2 to 4"),
    ],
)
def test_settings_that_make_no_sense_are_refused_with_a_remedy(make, said):
    with pytest.raises(ConfigError, match=said):
        make()


def test_a_committee_is_planned_for_products():
    plain, tested = (Shamir(committee="auto", min_reporters=least).plan_holders(10_000) for least in (0, 3))
    assert plain[0] < tested[0] < 100
    assert 2 * tested[1] - 1 < tested[0]


@pytest.mark.parametrize("least", range(2, 12))
def test_the_rounds_are_the_depth_of_the_products(least):
    """Of factors and a random number that comes with the first products."""
    factors, rounds = [least // 2 + least % 2 + 1], 1
    while factors[-1] > 1:
        factors.append(-(-factors[-1] // 2))
        rounds += 1
    assert count_rounds(least) == rounds + 1


def test_a_model_whose_entries_belong_to_no_task_is_refused():
    from atoll.core.errors import CompositionError
    from atoll.truth.models.model import Term

    layout = atoll.truth.reports_of(ROWS).layout()
    with pytest.raises(CompositionError, match="last axis of each array"):
        ReporterTest.of(2, {"odd": Term((5, 2), 1.0)}, layout)
    found = ReporterTest.of(2, {"all": Term((1,), 1.0), "two": Term((2, 9), 1.0)}, layout)
    np.testing.assert_array_equal(found.owners, [-1, *range(9), *range(9)])
