"""What every store of jobs obeys. A new one is tested by subclassing ``StoreLaws`` with a fixture ``store``."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from atoll.core.errors import JobError, TaskError
from atoll.core.persistence.trail import AuditEvent
from atoll.core.requests.wire import pack_error, unpack_error
from atoll.runtime.store.records import JobFilter, JobState, JobStore, Submission

S = JobState
ERROR = pack_error(TaskError("it raised", where="round 3, site 'b'", remedy="look at its log"))


def job(token: str = "t", **changes: Any) -> Submission:
    """A submission."""
    said: dict[str, Any] = {"name": "digits", "submitter": "ann", "org": "Bonn", "spec": {"rounds": 3}, "token": token}
    return Submission(**{**said, **changes})


def start(store: JobStore, token: str = "t", sites: tuple[str, ...] = ("a", "b")) -> str:
    """A job that runs."""
    made = store.submit(job(token), now=1.0, who="ann")
    store.move(made.id, S.SCHEDULED, now=2.0, sites=sites)
    store.move(made.id, S.DEPLOYING, now=3.0)
    store.move(made.id, S.RUNNING, now=4.0)
    return made.id


class StoreLaws:
    """The laws. ``small`` makes a store that keeps 5 lines of 10 characters."""

    @pytest.fixture
    def store(self) -> JobStore:
        raise NotImplementedError

    @pytest.fixture
    def small(self) -> Callable[[], JobStore]:
        raise NotImplementedError

    def test_it_is_a_store(self, store: JobStore) -> None:
        assert isinstance(store, JobStore)

    def test_a_job_is_queued_and_noted(self, store: JobStore) -> None:
        made = store.submit(job(spec={"a": (1, 2.5, None), "b": {"c": "é\n"}}), now=12.5, who="admin 'ann'")
        assert store.get(made.id) == made
        assert (made.state, made.attempts, made.barren, made.error, made.sites) == (S.QUEUED, 0, 0, None, ())
        assert made.spec == {"a": [1, 2.5, None], "b": {"c": "é\n"}}
        assert made.times == ((S.QUEUED, 12.5),)
        (event,) = store.events()
        assert (event.number, event.when, event.who, event.what, event.job) == (
            1,
            12.5,
            "admin 'ann'",
            "submit",
            made.id,
        )

    def test_a_token_is_one_job_however_often_it_comes(self, store: JobStore) -> None:
        first = store.submit(job(), now=1.0, who="ann")
        running = store.move(first.id, S.SCHEDULED, now=2.0)
        assert store.submit(job(), now=9.0, who="ann") == running
        assert len(store.jobs()) == 1
        assert [e.what for e in store.events()] == ["submit", "moved"]
        assert store.submit(job(submitter="bob"), now=9.0, who="bob").id != first.id

    @pytest.mark.parametrize("change", [{"name": "x"}, {"spec": {"rounds": 4}}, {"org": "Graz"}])
    def test_a_token_never_stands_for_two_jobs(self, store: JobStore, change: dict[str, Any]) -> None:
        store.submit(job(), now=1.0, who="ann")
        with pytest.raises(JobError, match=r"token 't' belongs to job .*new token"):
            store.submit(job(**change), now=2.0, who="ann")
        assert len(store.events()) == 1

    def test_what_is_no_plain_tree_is_refused(self, store: JobStore) -> None:
        with pytest.raises(JobError, match=r"cannot be kept"):
            store.submit(job(spec={"a": object()}), now=1.0, who="ann")
        assert store.jobs() == []

    def test_ids_sort_by_age(self, store: JobStore) -> None:
        made = [store.submit(job(str(n)), now=100.0 - n, who="ann").id for n in range(12)]
        assert made == sorted(made)
        assert [record.id for record in store.jobs()] == made

    def test_jobs_are_found_by_state_and_submitter(self, store: JobStore) -> None:
        running = start(store)
        store.submit(job("2", submitter="bob", name="[c]t"), now=1.0, who="bob")
        third = store.submit(job("3"), now=2.0, who="ann").id
        for wanted, found in (
            (JobFilter(states=frozenset({S.RUNNING, S.FAILED})), [running]),
            (JobFilter(submitter="ann"), [running, third]),
            (JobFilter(states=frozenset()), []),
            (JobFilter(site="b"), [running]),
            (JobFilter(site="ab"), []),
            (JobFilter(since=2.0), [third]),
            (JobFilter(before=third, submitter="ann"), [running]),
            (JobFilter(name="d?gi*"), [running, third]),
            (JobFilter(name="[c]t"), ["00000002-" + store.jobs()[1].id.partition("-")[2]]),
            (JobFilter(name="digit"), []),
        ):
            assert [r.id for r in store.jobs(wanted)] == found
            assert store.count(wanted) == len(found)
        assert [r.id for r in store.jobs(JobFilter(submitter="ann"), limit=1)] == [third]
        assert store.jobs(limit=0) == []
        assert {str(r.spec) for r in store.jobs()} == {"{}"}

    def test_a_job_is_found_by_number_and_token(self, store: JobStore) -> None:
        made = store.submit(job("t\udc80"), now=1.0, who="ann")
        assert store.find_numbered(1) == made
        for number in (0, 2, 1 << 70):
            with pytest.raises(JobError, match="there is no job"):
                store.find_numbered(number)
        assert store.submitted("ann", "t\udc80") == made
        assert store.submitted("bob", "t\udc80") is store.submitted("ann", "x") is None

    def test_a_job_that_has_ended_can_be_deleted(self, store: JobStore) -> None:
        shared, own = store.put_bundle(b"shared"), store.put_bundle(b"own")
        first = store.submit(job("1", bundle=shared), now=1.0, who="ann")
        last = store.submit(job("2", bundle=own), now=1.0, who="ann")
        other = store.submit(job("3", bundle=shared, submitter="bob"), now=1.0, who="bob")
        assert (store.count_kept("ann"), store.count_kept("bob"), store.count_kept("eve")) == (9, 6, 0)
        with pytest.raises(JobError, match=rf"the job is queued.*atoll abort {first.id}"):
            store.delete(first.id, now=5.0, who="ann")
        for made in (first, last, other):
            store.log(made.id, "server", ["line"], now=1.0)
            store.move(made.id, S.ABORTED, now=4.0)
        assert store.delete(first.id, now=5.0, who="ann").state is S.ABORTED
        assert store.delete(other.id, now=5.0, who="bob").id == other.id
        with pytest.raises(JobError, match="there is no job"):
            store.get(first.id)
        with pytest.raises(JobError, match="there is no job"):
            store.lines(first.id)
        assert (store.deleted(first.id), store.deleted(last.id), store.deleted("x")) == (True, False, False)
        assert [e.what for e in store.events(job=first.id)] == ["submit", "moved", "deleted"]
        assert store.events(job=first.id)[-1].details["state"] == "aborted"
        with pytest.raises(JobError, match="is not in the store"):
            store.bundle(shared)
        assert store.bundle(own) == b"own"
        assert store.submit(job("4"), now=6.0, who="ann").id.startswith("00000004-")  # never the id of another

    def test_a_life(self, store: JobStore) -> None:
        job_id = start(store)
        done = store.move(job_id, S.FINISHED, now=5.0, reason="30 rounds")
        assert done == store.get(job_id)
        assert (done.attempts, done.barren, done.sites, done.reason) == (1, 0, ("a", "b"), "30 rounds")
        assert done.times == (
            (S.QUEUED, 1.0),
            (S.SCHEDULED, 2.0),
            (S.DEPLOYING, 3.0),
            (S.RUNNING, 4.0),
            (S.FINISHED, 5.0),
        )
        moves = [e.details["to"] for e in store.events(job=job_id) if e.what == "moved"]
        assert moves == ["scheduled", "deploying", "running", "finished"]

    def test_an_error_comes_back_as_it_was(self, store: JobStore) -> None:
        job_id = start(store)
        store.move(job_id, S.FAILED, now=5.0, reason="a task raised", error=ERROR, who="server")
        error = unpack_error(store.get(job_id).error)
        assert isinstance(error, TaskError)
        assert str(error) == "it raised (in round 3, site 'b'). Remedy: look at its log"
        assert store.events()[-1].details["error"] == ERROR

    def test_attempts_and_barren_ones_are_counted(self, store: JobStore) -> None:
        job_id = start(store)
        seen = []
        for progress in (False, False, True, False):
            back = store.move(job_id, S.QUEUED, now=5.0, progress=progress)
            seen.append((back.attempts, back.barren))
            store.move(job_id, S.SCHEDULED, now=6.0)
            store.move(job_id, S.QUEUED, now=6.0)  # a refusal is no attempt
            store.move(job_id, S.SCHEDULED, now=6.0)
            store.move(job_id, S.DEPLOYING, now=6.0)
        assert seen == [(1, 1), (2, 2), (3, 0), (4, 1)]
        assert store.get(job_id).sites == ("a", "b")

    def test_an_illegal_move_changes_nothing(self, store: JobStore) -> None:
        job_id = start(store)
        before, events = store.get(job_id), store.events()
        with pytest.raises(JobError, match=r"running cannot become scheduled"):
            store.move(job_id, S.SCHEDULED, now=9.0, reason="no", sites=("z",))
        with pytest.raises(JobError, match=r"no job 'x'.*atoll jobs"):
            store.move("x", S.QUEUED, now=9.0)
        with pytest.raises(JobError, match=r"cannot be kept"):
            store.move(job_id, S.FAILED, now=9.0, error={"e": object()})
        assert (store.get(job_id), store.events()) == (before, events)

    def test_a_restart_queues_what_was_under_way(self, store: JobStore) -> None:
        running, asking, over = start(store, "1"), store.submit(job("2"), now=1.0, who="ann").id, start(store, "3")
        store.move(asking, S.SCHEDULED, now=2.0)
        store.move(over, S.ABORTED, now=5.0)
        waiting = store.submit(job("4"), now=1.0, who="ann").id
        assert [r.id for r in store.restart(now=7.0)] == [running, asking, waiting]
        back = store.get(running)
        assert (back.state, back.attempts, back.barren, back.sites) == (S.QUEUED, 1, 0, ("a", "b"))
        assert back.times[-1] == (S.QUEUED, 7.0)
        assert len(store.get(waiting).times) == 1
        assert store.get(over).state is S.ABORTED
        assert [e.details["from"] for e in store.events()[-2:]] == ["running", "scheduled"]

    def test_an_error_of_megabytes_is_kept_as_kilobytes(self, store: JobStore) -> None:
        job_id = start(store)
        error = {"kind": "TaskError", "what": "x" * (5 << 20), "where": "w\u2028forged", "remedy": "r" * 5000}
        kept = store.move(job_id, S.FAILED, now=5.0, reason="y" * (5 << 20), error=error)
        assert kept == store.get(job_id)
        assert len(json.dumps([kept.reason, dict(kept.error or {})])) < 20_000
        assert (kept.error or {})["where"] == "w\ufffdforged"
        assert len(json.dumps(store.events()[-1].details)) < 20_000

    @pytest.mark.parametrize("end", [S.FAILED, S.ABORTED])
    def test_a_person_resumes_what_ended_without_a_result(self, store: JobStore, end: JobState) -> None:
        job_id = start(store)
        store.move(job_id, S.QUEUED, now=5.0)
        store.move(job_id, end, now=6.0, reason="no room", error=ERROR)
        back = store.resume(job_id, now=7.0, who="admin 'ann'", token="t1")
        assert back == store.get(job_id)
        assert (back.state, back.attempts, back.barren, back.error, back.sites) == (S.QUEUED, 1, 0, None, ("a", "b"))
        assert (back.reason, back.times[-1]) == ("resumed by admin 'ann'", (S.QUEUED, 7.0))
        event = store.events()[-1]
        assert (event.who, event.what, event.job) == ("admin 'ann'", "resumed", job_id)
        assert event.details == {"from": end, "attempt": 1, "token": "t1", "reason": "no room", "error": ERROR}
        assert [r.id for r in store.restart(now=8.0)] == [job_id]

    def test_nothing_else_is_resumed(self, store: JobStore) -> None:
        running, done = start(store, "1"), start(store, "2")
        store.move(done, S.FINISHED, now=5.0)
        before = store.jobs(), store.events()
        with pytest.raises(JobError, match=r"the job is running, and goes on by itself"):
            store.resume(running, now=9.0, who="ann")
        with pytest.raises(JobError, match=rf"has its result.*atoll clone {done}"):
            store.resume(done, now=9.0, who="ann")
        with pytest.raises(JobError, match=r"no job 'x'"):
            store.resume("x", now=9.0, who="ann")
        assert (store.jobs(), store.events()) == before

    def test_bundles(self, store: JobStore) -> None:
        digest = store.put_bundle(b"zip")
        assert (
            digest == "4a70fe9aa6436e02c2dea340fbd1e352e4ef2d8ce6ca52ad25d4b95471fc8bf2"
        )  # sha256sum of the three bytes
        assert store.put_bundle(b"zip") == digest
        assert store.bundle(digest) == b"zip"
        assert store.submit(job(bundle=digest), now=1.0, who="ann").bundle == digest
        for missing in ("0" * 64, "../../etc/passwd", ""):
            with pytest.raises(JobError, match=r"bundle .* (is not in the store|has no such digest)"):
                store.bundle(missing)
        with pytest.raises(JobError, match=r"submit the job again"):
            store.submit(job("2", bundle="0" * 64), now=1.0, who="ann")
        assert len(store.jobs()) == 1

    def test_the_trail_is_numbered_and_kept(self, store: JobStore) -> None:
        for n in range(5):
            details = {"n": n, "deep": [{"x": (1,)}]}
            number = store.record(
                AuditEvent(when=float(n), who="ann", what="refused", job="j" if n % 2 else "", details=details)
            )
            assert number == n + 1
        assert [e.number for e in store.events(after=2)] == [3, 4, 5]
        assert [e.number for e in store.events(job="j")] == [2, 4]
        assert [e.number for e in store.events(limit=2)] == [1, 2]
        assert store.events()[0].details == {"n": 0, "deep": [{"x": [1]}]}

    def test_a_log_keeps_the_newest_lines_of_each_node(self, small: Callable[[], JobStore]) -> None:
        store = small()
        job_id = store.submit(job(), now=1.0, who="ann").id
        store.log(job_id, "server", ["first\n"], now=1.0)
        store.log(job_id, "a", [f"line {n}" for n in range(7)], now=2.0)
        store.log(job_id, "a", ["x" * 50], now=3.0)
        store.log(job_id, "a", [], now=3.0)
        assert [line.text for line in store.lines(job_id, node="a")] == [
            "line 3",
            "line 4",
            "line 5",
            "line 6",
            "x" * 9 + "…",
        ]
        assert [line.text for line in store.lines(job_id, node="server")] == ["first"]
        numbers = [line.number for line in store.lines(job_id)]
        assert numbers == sorted(set(numbers))
        assert [line.number for line in store.lines(job_id, after=numbers[-2])] == numbers[-1:]
        assert len(store.lines(job_id, limit=2)) == 2
        last = numbers[-1]
        store.log(job_id, "b", ["more"], now=4.0)
        assert [(line.node, line.when) for line in store.lines(job_id, after=last)] == [("b", 4.0)]
        store.close()

    def test_a_log_belongs_to_a_job(self, store: JobStore) -> None:
        with pytest.raises(JobError, match=r"no job 'x'"):
            store.log("x", "a", ["line"], now=1.0)
        with pytest.raises(JobError, match=r"no job 'x'"):
            store.lines("x")

    def test_any_text_can_be_kept(self, store: JobStore) -> None:
        strange = "a\x00b\udc80\u202e'; DROP TABLE jobs; --"
        made = store.submit(job(name=strange), now=1.0, who=strange)
        store.log(made.id, strange, [strange], now=1.0)
        store.move(made.id, S.FAILED, now=2.0, reason=strange)
        assert "DROP TABLE" in store.get(made.id).reason
        assert [line.node for line in store.lines(made.id)] == [store.events()[0].who]
        assert store.submit(job(name=strange), now=3.0, who=strange).id == made.id

    def test_closing_twice_is_allowed(self, store: JobStore) -> None:
        store.close()
        store.close()
