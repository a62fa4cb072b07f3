"""The scheduler's decisions, one by one."""

from __future__ import annotations

from collections import deque

import pytest

from atoll.core.errors import ConfigError, JobError
from atoll.runtime.resources import Resources
from atoll.runtime.scheduler import Scheduler
from atoll.runtime.terms import Action, Answer, Deploy, Offer, Refuse, Release, Wait, Want

ONE = Resources(1.0)
YES, NO, NEVER = Answer(True), Answer(False, "it is busy"), Answer(False, "it has 1 CPU", never=True)


def want(job: str, sites: str | None = None, **more: object) -> Want:
    return Want(job=job, need=ONE, sites=None if sites is None else tuple(sites), **more)  # type: ignore[arg-type]


def scheduler(sites: str = "ab", **options: object) -> Scheduler:
    made = Scheduler(**options)  # type: ignore[arg-type]
    for site in sites:
        made.add_site(site, 0.0)
    return made


def offers(actions: list[Action]) -> dict[str, Offer]:
    return {a.site: a for a in actions if isinstance(a, Offer)}


def answer(made: Scheduler, asked: dict[str, Offer], said: dict[str, Answer], now: float = 0.0) -> list[Action]:
    actions: list[Action] = []
    for site, what in said.items():
        actions += made.take_answer(asked[site].job, site, asked[site].ticket, what, now)
    return actions


def begun(actions: list[Action]) -> list[tuple[str, str]]:
    return [(a.job, "".join(a.sites)) for a in actions if isinstance(a, Deploy)]


def test_a_job_asks_all_and_begins_when_all_hold_it() -> None:
    made = scheduler()
    asked = offers(made.submit(want("1", "ba"), 0.0))
    assert sorted(asked) == ["a", "b"]
    assert answer(made, asked, {"a": YES}) == []
    assert answer(made, asked, {"b": YES}) == [Deploy("1", ("b", "a"))]
    assert made.deployed == {"1": ("b", "a")}
    assert made.queued == {}


def test_a_no_lets_everything_go() -> None:
    made = scheduler("abc")
    asked = offers(made.submit(want("1", "abc"), 0.0))
    actions = answer(made, asked, {"a": YES, "b": NO})
    assert actions == [Release("1", "a"), Release("1", "c"), Wait("1", "it is busy")]
    assert answer(made, asked, {"c": YES}) == []  # too late: the release is behind the offer
    assert made.queued == {"1": "it is busy"}


def test_all_sites_are_those_of_the_project_whether_they_have_come_or_not() -> None:
    made = Scheduler(known="abc")
    made.add_site("a", 0.0)
    made.add_site("b", 0.0)
    assert made.submit(want("1", patience=10.0), 0.0) == [Wait("1", "waits for site 'c' to connect")]
    assert sorted(offers(made.add_site("c", 1.0))) == ["a", "b", "c"]
    assert offers(made.submit(want("2", quorum=2), 1.0)) == {}  # its turn comes


def test_a_site_that_nobody_has_heard_of_is_named_at_once_and_may_join_later() -> None:
    made = Scheduler(known=["north", "south"])
    made.add_site("north", 0.0)
    job = Want(job="1", need=ONE, sites=("nort", "north"), patience=10.0)
    slip = "waits for site 'nort' to connect; the server knows no site 'nort'. Did you mean 'north'?"
    assert made.submit(job, 0.0) == [Wait("1", slip)]
    assert made.know(["nort", "north"], 1.0) == [Wait("1", "waits for site 'nort' to connect")]
    made.know(["north"], 2.0)
    (given_up,) = made.tick(11.0)
    assert isinstance(given_up, Refuse)
    assert "'nort' did not connect; the server knows no site 'nort'. Did you" in str(given_up.error)
    made.submit(job, 12.0)
    assert sorted(offers(made.add_site("nort", 13.0))) == ["nort", "north"]


def test_a_new_list_of_sites_counts_at_once_for_jobs_that_wait() -> None:
    made = Scheduler(known="abc")
    made.add_site("a", 0.0)
    made.submit(want("1"), 0.0)
    made.submit(want("2", "b"), 0.0)
    assert made.know("abd", 1.0) == [Wait("1", "waits for sites 'b', 'd' to connect")]
    assert sorted(offers(made.know("", 2.0))) == ["a"]  # who is connected is one of them, whatever the list says
    slip = "waits for site 'b' to connect; the server knows no site 'b'"
    assert made.queued["2"] == slip  # a job that names its sites knows better


def test_a_site_that_the_list_leaves_out_is_waited_for_no_more_once_it_has_gone() -> None:
    made = scheduler("ab", known="abc")
    made.submit(want("1"), 0.0)
    made.know("ac", 1.0)  # b was revoked, and is cut off a moment later
    made.add_site("b", 2.0)  # its network was away meanwhile
    made.left("b", 3.0)
    assert made.queued == {"1": "waits for site 'c' to connect"}
    made.know("abc", 4.0)  # it has a new kit
    assert made.queued == {"1": "waits for sites 'b', 'c' to connect"}


def test_a_site_that_came_without_being_listed_is_waited_for_when_it_is_away() -> None:
    made = scheduler("ab", known="a")
    made.know("ab", 1.0)  # what is listed and what has come so far
    made.add_site("c", 2.0)
    made.left("b", 3.0)
    made.left("c", 3.0)
    made.submit(want("1"), 4.0)
    assert made.queued == {"1": "waits for sites 'b', 'c' to connect"}


def test_a_refused_job_asks_again_later_and_later() -> None:
    made, now, waits = scheduler(), 0.0, []
    asked = offers(made.submit(want("1"), now))
    for _ in range(9):
        answer(made, asked, {"a": NO, "b": NO}, now)
        wake = made.next_wake()
        assert wake is not None
        assert offers(made.tick(wake - 1e-6)) == {}
        waits.append(wake - now)
        now = wake
        asked = offers(made.tick(now))
        assert sorted(asked) == ["a", "b"]
    assert 0.5 <= waits[0] <= 1.5
    assert 30 <= waits[-1] <= 90
    assert all(later > sooner for sooner, later in zip(waits[:4], waits[2:6], strict=True))


def test_a_refused_job_asks_at_once_when_another_has_ended() -> None:
    made = scheduler()
    answer(made, offers(made.submit(want("1"), 0.0)), {"a": YES, "b": YES})
    answer(made, offers(made.submit(want("2"), 0.0)), {"a": NO, "b": YES})
    actions = made.end_job("1", 0.1)
    assert actions[:2] == [Release("1", "a"), Release("1", "b")]
    assert sorted(offers(actions)) == ["a", "b"]


def test_what_a_site_never_has_is_refused_at_once_with_the_reason() -> None:
    made = scheduler()
    asked = offers(made.submit(want("1"), 0.0))
    actions = answer(made, asked, {"a": NEVER})
    (refused,) = (a for a in actions if isinstance(a, Refuse))
    assert isinstance(refused.error, JobError)
    assert "needs 2 sites" in str(refused.error)
    assert "it has 1 CPU" in str(refused.error)
    assert Release("1", "b") in actions
    assert made.queued == {}
    assert made.next_wake() is None


def test_a_site_that_can_never_take_it_is_left_out_where_fewer_suffice() -> None:
    made = scheduler("abc")
    asked = offers(made.submit(want("1", quorum=2), 0.0))
    assert begun(answer(made, asked, {"a": NEVER, "b": YES, "c": YES})) == [("1", "bc")]
    asked = offers(made.submit(want("2", quorum=2), 0.0))
    actions = answer(made, asked, {"a": NEVER, "b": NO})
    assert sorted(offers(actions)) == []
    assert made.queued == {"2": "it has 1 CPU; it is busy"}


def test_absent_sites_are_waited_for_with_patience() -> None:
    made = scheduler("a", known="abc")
    actions = made.submit(want("1", "abc", patience=60.0), 5.0)
    assert actions == [Wait("1", "waits for sites 'b', 'c' to connect")]
    assert made.next_wake() == 65.0
    assert made.tick(64.9) == []
    assert made.add_site("b", 64.9) == [Wait("1", "waits for site 'c' to connect")]
    (refused,) = made.tick(65.0)
    assert isinstance(refused, Refuse)
    assert "site 'c' did not connect" in str(refused.error)
    assert "min_sites" in str(refused.error)
    assert made.queued == {}


def test_a_job_begins_when_the_last_site_comes() -> None:
    made = scheduler("a")
    made.submit(want("1", "ab"), 0.0)
    assert sorted(offers(made.add_site("b", 10.0))) == ["a", "b"]


def test_nobody_at_all() -> None:
    made = Scheduler()
    assert made.submit(want("1", patience=1.0), 0.0) == [Wait("1", "waits for sites (none is known) to connect")]
    assert isinstance(made.tick(1.0)[0], Refuse)


def test_a_resumed_job_goes_on_without_the_lost_once_patience_is_over() -> None:
    made = scheduler("ab")
    made.submit(want("1", "abc", floor=2, patience=60.0), 0.0)
    asked = offers(made.tick(60.0))
    assert sorted(asked) == ["a", "b"]
    assert begun(answer(made, asked, {"a": YES, "b": YES}, 60.0)) == [("1", "ab")]


def test_a_resumed_job_does_not_wait_for_a_site_that_can_never_take_it() -> None:
    made = scheduler("abc")
    asked = offers(made.submit(want("1", "abc", floor=2), 0.0))
    asked = offers(answer(made, asked, {"a": NEVER}))
    assert sorted(asked) == ["b", "c"]


def test_earlier_jobs_go_first_whatever_came_first() -> None:
    made = Scheduler(max_jobs=1)
    made.submit(want("2", "a"), 0.0)
    made.submit(want("1", "a"), 0.0)
    asked = offers(made.add_site("a", 1.0))
    assert asked["a"].job == "1"
    answer(made, asked, {"a": YES})
    assert offers(made.end_job("1", 2.0))["a"].job == "2"


def test_one_job_at_a_time_asks_a_site() -> None:
    made = scheduler("abc")
    first = offers(made.submit(want("1", "ab"), 0.0))
    assert offers(made.submit(want("2", "bc"), 0.0)) == {}
    actions = answer(made, first, {"a": YES, "b": YES})
    assert sorted(offers(actions)) == ["b", "c"]
    assert sorted(offers(made.submit(want("3", "a"), 0.0))) == ["a"]


def test_there_is_a_most() -> None:
    made = scheduler("ab", max_jobs=1)
    asked = offers(made.submit(want("1", "a"), 0.0))
    (said,) = made.submit(want("2", "b"), 0.0)
    assert isinstance(said, Wait)
    assert "the most that this server runs at once" in said.why
    answer(made, asked, {"a": YES})
    assert sorted(offers(made.end_job("1", 0.0))) == ["b"]


def test_a_silent_site_is_a_no() -> None:
    made = scheduler("ab", answer_within=30.0)
    asked = offers(made.submit(want("1"), 0.0))
    answer(made, asked, {"a": YES})
    assert made.next_wake() == 30.0
    actions = made.tick(30.0)
    assert actions[:2] == [Release("1", "b"), Release("1", "a")]
    assert made.queued == {"1": "'b' does not answer"}


def test_a_site_that_leaves_takes_its_answers_along() -> None:
    made = scheduler("ab")
    asked = offers(made.submit(want("1"), 0.0))
    answer(made, asked, {"a": YES})
    actions = made.left("a", 1.0)
    assert set(actions[:2]) == {Release("1", "a"), Release("1", "b")}
    assert "waits for site 'a' to connect" in made.queued["1"]
    assert answer(made, asked, {"b": YES}) == []


def test_a_site_that_has_begun_anew_lets_go_before_it_is_asked_again() -> None:
    made = scheduler("ab")
    asked = offers(made.submit(want("1"), 0.0))
    answer(made, asked, {"a": YES})
    actions = made.add_site("a", 1.0, holding=["1", "old"])
    to_a = [a for a in actions if getattr(a, "site", None) == "a"]
    assert [type(a) for a in to_a] == [Release, Release, Release, Offer]
    again = offers(actions)
    assert answer(made, asked, {"b": YES}) == []  # of the first asking
    assert begun(answer(made, again, {"a": YES, "b": YES})) == [("1", "ab")]


def test_what_runs_is_not_let_go_when_its_site_comes_back() -> None:
    made = scheduler("a")
    answer(made, offers(made.submit(want("1"), 0.0)), {"a": YES})
    assert made.left("a", 1.0) == []
    assert made.add_site("a", 2.0, holding=["1", "stray"]) == [Release("stray", "a")]
    assert made.add_site("a", 3.0) == []
    assert made.deployed == {"1": ("a",)}


def test_abort_at_every_stage_frees_everything() -> None:
    made = scheduler("ab")
    asked = offers(made.submit(want("1"), 0.0))
    answer(made, asked, {"a": YES})
    assert made.end_job("1", 0.0) == [Release("1", "a"), Release("1", "b")]
    assert answer(made, asked, {"b": YES}) == []
    made.submit(want("2", "z"), 0.0)
    assert made.end_job("2", 0.0) == []
    assert made.end_job("nobody", 0.0) == []
    answer(made, offers(made.submit(want("3"), 0.0)), {"a": YES, "b": YES})
    assert made.end_job("3", 0.0) == [Release("3", "a"), Release("3", "b")]
    assert (made.queued, made.deployed) == ({}, {})


def test_a_job_is_scheduled_once_at_a_time() -> None:
    made = scheduler("a")
    answer(made, offers(made.submit(want("1"), 0.0)), {"a": YES})
    with pytest.raises(JobError, match=r"scheduled already .in job 1"):
        made.submit(want("1"), 0.0)
    made.end_job("1", 0.0)
    made.submit(want("1"), 0.0)
    with pytest.raises(JobError, match=r"scheduled already"):
        made.submit(want("1"), 0.0)


@pytest.mark.parametrize("options", [{"max_jobs": 0}, {"overtakes": -1}, {"answer_within": 0}])
def test_settings_that_make_no_sense(options: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=f"{next(iter(options))}={next(iter(options.values()))}"):
        Scheduler(**options)  # type: ignore[arg-type]


def test_small_jobs_fill_gaps_but_never_starve_a_big_one() -> None:
    """Two sites of two cores; the big job needs both whole. Small ones keep coming, and until it is its turn there are always some running."""
    overtakes, cores = 3, {"a": 2, "b": 2}
    made = scheduler("ab", overtakes=overtakes)
    free, running, started = dict(cores), [], []

    def do(actions: list[Action], now: float) -> None:
        waiting = deque(actions)
        while waiting:
            action = waiting.popleft()
            if isinstance(action, Offer):
                size = 2 if action.job.startswith("big") else 1
                held = free[action.site] >= size
                free[action.site] -= size if held else 0
                holds.update({(action.job, action.site): size} if held else {})
                waiting.extend(made.take_answer(action.job, action.site, action.ticket, YES if held else NO, now))
            elif isinstance(action, Release):
                free[action.site] += holds.pop((action.job, action.site), 0)
            elif isinstance(action, Deploy):
                running.append(action.job)
                started.append(action.job)

    holds: dict[tuple[str, str], int] = {}
    do(made.submit(want("a0", "a"), 0.0), 0.0)
    do(made.submit(want("big", "ab"), 0.0), 0.0)
    for step in range(1, 40):
        before = len(started)
        do(made.submit(want(f"s{step:02}", "ab"[step % 2]), float(step)), float(step))
        if len(running) > 1 or len(started) == before:
            do(made.end_job(running.pop(0), float(step)), float(step))
        if "big" in started:
            break
    assert "big" in started
    behind = started[: started.index("big")]
    assert 1 <= len([job for job in behind if job > "big"]) <= overtakes  # gaps were filled, and only so many


def test_an_answer_to_an_earlier_offer_is_no_answer_to_a_later_one() -> None:
    made = scheduler()
    first = offers(made.submit(want("1"), 0.0))
    answer(made, first, {"a": NO})
    second = offers(made.tick(100.0))
    answer(made, second, {"a": YES}, 100.0)
    assert (
        answer(made, first, {"b": YES}, 100.0) == []
    )  # was on its way all the time; the release behind that offer undoes it
    assert begun(answer(made, second, {"b": YES}, 100.0)) == [("1", "ab")]


def test_a_new_job_looks_at_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """A queue of n jobs is made in n looks, not in n²: a server with 2,700 queued jobs is started again in seconds."""
    looks: list[str] = []
    real = Scheduler._consider

    def counted(self: Scheduler, job: str, *rest: object) -> object:
        looks.append(job)
        return real(self, job, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(Scheduler, "_consider", counted)
    made = scheduler("")
    names = [f"{number:04d}" for number in range(300)]
    for name in names:
        made.submit(want(name, "ab"), 0.0)
    assert looks == names
    del looks[:]
    assert made.tick(1.0) == []
    assert looks == []  # nothing is due
    made.add_site("a", 2.0)
    assert looks == names
    asked = offers(made.add_site("b", 3.0))
    assert {offer.job for offer in asked.values()} == {"0000"}
    del looks[:]
    assert offers(made.submit(want("0300", "ab"), 4.0)) == {}
    assert looks == ["0300"]
    assert made.why("0300") == "waits until another job has asked the same sites"
    assert made.why("nobody") == ""
