"""A site writes down what it answers, before it leaves, in a chain: what is altered, dropped, moved or cut off is named."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from atoll.cli.app import run
from atoll.core.errors import AtollError, JobError, PolicyError
from atoll.core.persistence.named_results import NamedResults, require_grown
from atoll.core.persistence.trail import Head
from atoll.core.requests.island import Island
from atoll.query import Query, events
from atoll.query.events import check_events, read_events
from atoll.query.strategies.sums import MaskedSums
from tests.query.test_lying_coordinators import BOTH, NEAR, NOISE, ONE, ROWS, SPATIAL, VISITS, small
from tests.support.silos import connected

Trail = dict[str, Any]


def answered(*asked: tuple[str, str, dict[str, Any]]) -> Trail:
    """What stays at the first of three sites, by name, once statements are answered."""
    with connected(dict(list(small(ROWS, VISITS).items())[:3]), SPATIAL) as db:
        for silo in db.silos.values():
            silo.bind_jobs(
                [Query(sql=sql, strategy=name, **noise) for sql, name, noise in asked],
                "analyst 'anna' of 'Bonn'",
                "7-ask",
            )
        for sql, name, noise in asked:
            db.sql(sql, strategy=name, **noise)
        kept = NamedResults(db._folder)
        return {one.name: kept.get("s0", one.name) for one in kept.all("s0")}


def left(trail: Trail) -> Callable[[str], Any]:
    """The results of a site, as a command reads them."""
    kept = NamedResults()
    for name, value in trail.items():
        kept.put("s0", name, value)
    return lambda name: kept.get("s0", name)


def test_an_event_says_who_asked_what_left_and_what_it_cost() -> None:
    trail = answered((ONE, "sums", {}), (BOTH, "smcql", {}), (ONE, "saqe", NOISE), (NEAR, "hufu", {}), (BOTH, "conclave", {}), (BOTH, "shrinkwrap:split=uniform", NOISE))  # fmt: skip
    found = list(read_events(left(trail)))
    assert check_events(left(trail), "s0").number == len(found) == 10
    assert {(one.who, one.job, one.what) for one in found} == {("analyst 'anna' of 'Bonn'", "7-ask", "answered")}
    told = [(one.details["strategy"]["name"], one.details["left"], one.details["behind"], one.details["epsilon"]) for one in found]  # fmt: skip
    sized = "the number of these rows, up to the next power of two, and the longest text of each column, in steps of 8 bytes"
    shared, both = "shares of the rows, for s0, s1, s2", {"p": 2, "v": 2}
    assert told[:5] == [
        ("sums", "the sums of 1 groups, masked", {"rows": 2}, 0.0), ("smcql", sized, both, 0.0), ("smcql", shared, both, 0.0),
        ("saqe", "the numbers of 1 groups, with noise and masked", {"p": 2}, 4.0), ("hufu", "a masked part of a table that has these rows", {"rows": 2}, 0.0),
    ]  # fmt: skip
    assert [one[0] for one in told[5:]] == ["conclave", "conclave", "shrinkwrap", "shrinkwrap", "shrinkwrap"]
    costs = [one.details for one in found if one.details["epsilon"]]
    assert [(one["analyst"], one["strategy"]["name"]) for one in costs] == [("anna", "saqe"), ("anna", "shrinkwrap")]
    assert found[0].details["statement"] == ONE
    assert any("COUNT(*)" in step for step in found[0].details["plan"])


LIES: dict[str, tuple[Callable[[list[Any]], Any], str]] = {
    "altered": (lambda rows: rows[2]["details"].update(left="nothing"), "event 3 does not follow event 2"),
    "another's": (lambda rows: rows[1].update(who="analyst 'eve' of 'Bonn'"), "event 2 does not follow event 1"),
    "cheaper": (lambda rows: rows[4]["details"].update(epsilon=0.5), "event 5 does not follow event 4"),
    "dropped": (lambda rows: rows.pop(1), "event 3 does not follow event 1"),
    "the first dropped": (lambda rows: rows.pop(0), "event 2 does not follow event 0"),
    "reordered": (lambda rows: rows.insert(1, rows.pop(2)), "event 3 does not follow event 1"),
    "repeated": (lambda rows: rows.insert(1, copy.deepcopy(rows[1])), "event 2 does not follow event 2"),
    "no event": (lambda rows: rows.insert(1, {"when": 0}), "what follows event 1 is no event"),
    "cut off below a charge": (lambda rows: rows.pop(), "no event tells of an answer with noise, epsilon 4 of anna"),
}


@pytest.fixture(scope="module")
def five() -> Trail:
    return answered((ONE, "sums", {}), (BOTH, "smcql", {}), (ONE, "sums", {}), (ONE, "saqe", NOISE))


@pytest.mark.parametrize("lie", LIES)
def test_what_somebody_changes_is_named(lie: str, five: Trail) -> None:
    trail = copy.deepcopy(five)
    segment = trail["query-events-000001"]
    rows = [json.loads(one) for one in segment["events"]]
    assert check_events(left(trail), "s0").number == len(rows) == 5
    LIES[lie][0](rows)
    segment["events"] = [json.dumps(one) for one in rows]
    with pytest.raises(JobError, match=LIES[lie][1]):
        check_events(left(trail), "s0")
    segment["events"] = rows  # as values, which is what older segments hold
    with pytest.raises(JobError, match=LIES[lie][1]):
        check_events(left(trail), "s0")


def test_what_is_no_event_at_all_is_named(five: Trail) -> None:
    trail = copy.deepcopy(five)
    trail["query-events-000001"]["events"][1] = "{"
    with pytest.raises(JobError, match=r"the trail is broken: \{ is no event"):
        check_events(left(trail), "s0")


def test_what_is_cut_off_is_found_against_a_noted_end_and_within_a_full_segment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(events, "_SEGMENT", 2)
    trail = answered(*[(ONE, "sums", {})] * 5)
    end = check_events(left(trail), "s0")
    assert (end.number, trail["query-events"]["closed"][1].partition(":")[0]) == (5, "4")
    assert len(trail["query-events-000003"]["events"]) == 1
    short = copy.deepcopy(trail)
    short["query-events-000003"]["events"].clear()
    assert check_events(left(short), "s0").number == 4
    with pytest.raises(JobError, match="ends with event 4, and event 5 was noted"):
        check_events(left(short), "s0", end)
    assert check_events(left(trail), "s0", Head.read(trail["query-events"]["closed"][0])) == end
    for name in ("query-events-000001", "query-events-000002"):
        short = copy.deepcopy(trail)
        short[name]["events"].pop()
        with pytest.raises(JobError, match=r"where event|does not follow"):
            check_events(left(short), "s0")
    del trail["query-events-000002"]
    with pytest.raises(JobError, match="it has event 2 where event 4 ended a segment"):
        check_events(left(trail), "s0")


def test_two_jobs_that_write_at_once_make_one_chain(five: Trail, monkeypatch: pytest.MonkeyPatch) -> None:
    """A daemon lets a record grow only: who is late looks for the end again."""
    trail, plan = copy.deepcopy(five), None
    message = {"sql": ONE, "strategy": MaskedSums().told()}
    monkeypatch.setattr(MaskedSums, "outline", lambda self, plan: ["a step"])

    class Site:
        name = "s0"
        late = 2

        def __init__(self, data: Any) -> None:
            self.data = data

        def left(self, name: str) -> Any:
            return copy.deepcopy(left(trail)(name))

        def leave(self, name: str, value: Any, *, at_once: bool = False) -> None:
            assert at_once
            if Site.late:
                Site.late -= 1
                one = Site(self.data)
                late, Site.late = Site.late, 0
                events.write_event(one, message, plan, "the other job's", {})
                Site.late = late
            if name in trail:
                require_grown({"value": trail[name]}, value, "s0", name)
            trail[name] = value

    with connected(small(ROWS, VISITS), SPATIAL) as db:
        events.write_event(Site(db.silos["s0"]), message, plan, "mine", {"p": 1})
    found = list(read_events(left(trail)))
    assert [one.details["left"] for one in found[5:]] == ["the other job's", "the other job's", "mine"]
    assert check_events(left(trail), "s0").number == 8


def test_a_site_that_cannot_write_an_event_answers_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "_TRIES", 1)
    with connected(small(ROWS, VISITS), SPATIAL) as db:

        def leave(island: Any, name: str, value: Any, *, at_once: bool = False) -> None:
            raise PolicyError(f"no {name} may stay", where="test", remedy="none")

        monkeypatch.setattr(Island, "leave", leave)
        with pytest.raises(AtollError, match="no query-events may stay"):
            db.sql(ONE)


def test_the_command_shows_and_checks_what_silos_have_answered(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    for name in ("north", "south"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "visits.csv").write_text("ward,age\nA,3\nB,5\n")
    (tmp_path / "p.yaml").write_text("policy: {min_count: 1}\ntables: {visits: {columns: public}}\n")
    record, text = tmp_path / "record", "SELECT count(*) FROM visits WHERE ward = '\x1b[2J'"
    silos = [word for name in ("north", "south") for word in ("--silo", f"{name}={tmp_path / name}")]
    assert run(["sql", *silos, "--policy", str(tmp_path / "p.yaml"), "--record", str(record), text]) == 0
    capsys.readouterr()
    assert run(["events", "--site", str(record), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["events"]
    assert [(one["party"], one["number"], one["details"]["left"]) for one in told] == [("north", 1, "the sums of 1 groups, masked"), ("south", 1, "the sums of 1 groups, masked")]  # fmt: skip
    assert run(["events", "--site", str(record)]) == 0
    assert "\x1b[2J" not in capsys.readouterr().out
    assert run(["events", "--site", str(record), "--verify", "--json"]) == 0
    parties = json.loads(capsys.readouterr().out)["parties"]
    assert {name: one["events"] for name, one in parties.items()} == {"north": 1, "south": 1}
    kept = NamedResults(record)
    value = kept.get("north", "query-events-000001")
    value["events"][0] = value["events"][0].replace('{"rows": ', '{"rows": 7')
    kept.put("north", "query-events-000001", value)
    assert run(["events", "--site", str(record), "--verify"]) == 12
    assert "event 1 does not follow event 0" in " ".join(capsys.readouterr().err.split())
    assert run(["events", "--site", str(tmp_path / "north")]) == 2
    assert "has no events of statements" in " ".join(capsys.readouterr().err.replace("│", " ").split())
