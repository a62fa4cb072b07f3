"""Jobs that need helpers: what their terms say, who plays what, and when they may begin."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.core.errors import ConfigError
from atoll.runtime.bundle import verify
from atoll.runtime.job_spec import load_job, pack_job, parse_job
from atoll.runtime.provision.project import SiteList
from atoll.runtime.resources import Resources
from atoll.runtime.scheduler import Scheduler, place_helpers
from atoll.runtime.server.site_session import Members
from atoll.runtime.terms import Action, Answer, Deploy, Offer, Refuse, Release, Wait, Want, job_tree, read_terms
from tests.support.certificates import authority

ONE = Resources(1.0)
YES, NEVER = Answer(True), Answer(False, "site 'k' has 1 CPU", never=True)
ROLES = {"keys": "key holder", "spare": "key holder", "deals": "dealer"}

# ---------------------------------------------------------------------- what a job says


def written(folder: Path, program: str, **settings: Any) -> Path:
    (folder / "code").mkdir(parents=True)
    (folder / "code" / "needy.py").write_text(program, encoding="utf-8")
    lines = [f"{key}: {value}" for key, value in {"source": "code", "job": "program", "program": "needy:main", **settings}.items()]  # fmt: skip
    (folder / "job.yaml").write_text("\n".join(lines), encoding="utf-8")
    return folder


FUNCTION = "async def main(fed):\n    return 1\n\n\nmain.others = {'holder': 'key holder', 'edge-0': 'edge'}\n"
CLASS = """
class main:
    def __init__(self, holder="holder"):
        self.others = {holder: "key holder"}

    async def __call__(self, fed):
        return 1
"""
NOT_CALLED = CLASS.replace("def __init__", 'others = {"holder": "key holder"}\n\n    def __init__').replace("self.others = {holder: \"key holder\"}", "raise OSError('no such disk')")  # fmt: skip


@pytest.mark.parametrize("program", [FUNCTION, CLASS, NOT_CALLED])
def test_a_job_that_travels_says_what_helpers_it_needs(program: str, tmp_path: Path) -> None:
    job = load_job(written(tmp_path, program))
    assert job.helpers is None
    here = authority()
    bundle = pack_job(job, here.issue("admin", "anna"))
    said = verify(bundle, ca=here.pem, project="study").job
    assert read_terms(job_tree(said)).helpers == {"holder": "key holder"}


def test_a_training_needs_whom_its_selection_talks_to_and_no_site_for_its_edges() -> None:
    linear = {"model": {"name": "linear", "features": 2, "outputs": 2}}
    assert parse_job(linear).complete().helpers == {}
    edges = parse_job({**linear, "topology": {"name": "Hierarchical", "groups": [[0, 1], [2]]}})
    assert edges.complete().helpers == {}
    asking = parse_job({**linear, "selection": {"name": "FedProf", "count": 1, "matching": "encrypted"}})
    assert asking.complete().helpers == {"key-holder": "key-holder"}


@pytest.mark.parametrize(
    ("program", "settings", "said"),
    [
        (FUNCTION, {"helpers": "{other: dealer}"}, r"helpers=\{'other': 'dealer'\}, and the job needs \{'holder': .*leave"),
        (FUNCTION, {"helpers": "{holder: site}"}, r"helpers=\{'holder': 'site'\} is no helper.*leave it out"),
        (FUNCTION.replace("key holder", "admin"), {}, "it needs 'holder' as 'admin', which no helper plays"),
        (CLASS.replace("self.others", "1 / 0\n        self.others"), {}, "whether it has helpers: ZeroDivisionError"),
    ],
)  # fmt: skip
def test_helpers_that_cannot_be_are_refused_before_anybody_is_asked(
    program: str, settings: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=said):
        load_job(written(tmp_path, program, **settings)).complete()


# ---------------------------------------------------------------------- who plays what


def test_every_party_gets_a_helper_of_its_own() -> None:
    needed = {"keys": "key holder", "b": "key holder", "c": "dealer"}
    assert place_helpers(needed, ROLES) == {"keys": "keys", "b": "spare", "c": "deals"}
    assert place_helpers({"b": "key holder"}, ROLES) == {"b": "keys"}
    assert place_helpers({"b": "key holder"}, ROLES, there=["spare"]) == {"b": "spare"}
    assert place_helpers({"b": "key holder"}, ROLES, there=["keys"], before=["north", "spare"]) == {"b": "spare"}
    with pytest.raises(ConfigError, match="needs a dealer for 'c', 'd', and only 'deals' plays it"):
        place_helpers({"c": "dealer", "d": "dealer"}, ROLES)
    with pytest.raises(
        ConfigError, match=r"nobody in the project plays it\. Did you mean 'key holder'\?.*project.yaml"
    ):
        place_helpers({"c": "key holer"}, ROLES)


@given(
    st.dictionaries(st.sampled_from("abcdef"), st.sampled_from(["x", "y"]), max_size=6),
    st.dictionaries(st.sampled_from("abcdefghijkl"), st.sampled_from(["x", "y"])),
    st.sets(st.sampled_from("abcdefghijkl")),
    st.sets(st.sampled_from("abcdefghijkl")),
)
def test_who_has_played_a_part_plays_it_again(
    needed: dict[str, str], plays: dict[str, str], there: set[str], later: set[str]
) -> None:
    try:
        first = place_helpers(needed, plays, there=there)
    except ConfigError:
        assert any(list(needed.values()).count(role) > list(plays.values()).count(role) for role in needed.values())
        return
    assert {party: plays[site] for party, site in first.items()} == needed
    assert len(set(first.values())) == len(first)
    if first:
        assert place_helpers(needed, plays, there=later, before=["client", *first.values()]) == first


def test_a_server_knows_its_helpers_by_its_list_and_by_those_that_have_come(tmp_path: Path) -> None:
    path = tmp_path / "project-sites.txt"
    path.write_text("north\nkeys plays key holder\nold gone plays dealer\n")
    members = Members(SiteList(path), tmp_path / "sites.txt")
    assert (members.clients, members.plays) == (["north"], {"keys": "key holder"})
    for name, plays in (("north", ""), ("south", ""), ("deals", "dealer")):
        members.meet(name, plays)
    assert (tmp_path / "sites.txt").read_text() == "deals plays dealer\nsouth\n"
    again = Members(SiteList(path), tmp_path / "sites.txt")
    assert (again.clients, again.plays) == (["north", "south"], {"keys": "key holder", "deals": "dealer"})
    terms = read_terms({"helpers": {"c": "dealer"}})
    assert again.place(terms, []) == {"c": "deals"}
    assert again.place(terms, [], ["north", "old"]) == {"c": "old"}  # which is waited for, and no other
    with pytest.raises(ConfigError, match=r"sites names 'keys', a helper \(key holder\)"):
        again.place(read_terms({"sites": ["north", "keys"]}), [])


# ---------------------------------------------------------------------- when a job begins


def scheduler(sites: str = "ab", helpers: str = "k") -> Scheduler:
    made = Scheduler()
    for site in sites:
        made.add_site(site, 0.0)
    for site in helpers:
        made.add_site(site, 0.0, helper=True)
    return made


def want(job: str, **more: Any) -> Want:
    return Want(job=job, need=ONE, patience=10.0, **{"helpers": ("k",), **more})


def offers(actions: list[Action]) -> dict[str, Offer]:
    return {a.site: a for a in actions if isinstance(a, Offer)}


def answer(made: Scheduler, asked: dict[str, Offer], **said: Answer) -> list[Action]:
    return [
        a for site, what in said.items() for a in made.take_answer(asked[site].job, site, asked[site].ticket, what, 0.0)
    ]


def test_helpers_are_asked_beside_all_sites_and_are_none_of_them() -> None:
    made = scheduler()
    assert sorted(offers(made.submit(want("0", helpers=()), 0.0))) == ["a", "b"]
    made.end_job("0", 0.0)
    asked = offers(made.submit(want("1"), 0.0))
    assert sorted(asked) == ["a", "b", "k"]
    assert answer(made, asked, a=YES, b=YES) == []
    assert answer(made, asked, k=YES) == [Deploy("1", ("a", "b", "k"))]


def test_a_helper_counts_for_no_quorum_and_none_does_without() -> None:
    made = scheduler()
    busy = Answer(False, "it is busy")
    asked = offers(made.submit(want("1", quorum=1), 0.0))
    assert answer(made, asked, a=busy, k=YES, b=YES) == [Deploy("1", ("b", "k"))]
    made.end_job("1", 0.0)
    asked = offers(made.submit(want("2", quorum=2), 0.0))
    assert answer(made, asked, a=busy) == [Release("2", "b"), Release("2", "k"), Wait("2", "it is busy")]
    asked = offers(made.tick(60.0))
    told = answer(made, asked, k=busy)
    assert told[:2] == [Release("2", "a"), Release("2", "b")]


def test_a_helper_that_is_away_is_waited_for_and_then_the_job_has_failed() -> None:
    made = scheduler(helpers="")
    job = want("1", sites=("a", "b"), floor=1)
    assert made.submit(job, 0.0) == [Wait("1", "waits for its helper at site 'k' to connect")]
    assert sorted(offers(made.add_site("k", 1.0, helper=True))) == ["a", "b", "k"]
    told = made.left("k", 2.0)
    assert [a for a in told if isinstance(a, Release)] == [Release("1", site) for site in "kab"]
    (refused,) = [a for a in made.tick(20.0) if isinstance(a, Refuse)]
    assert "needs each of its helpers, and for 10 s site 'k' did not connect" in refused.error.what


def test_a_helper_that_can_never_take_a_job_ends_it() -> None:
    made = scheduler()
    asked = offers(made.submit(want("1", quorum=1), 0.0))
    told = answer(made, asked, k=NEVER)
    (refused,) = [a for a in told if isinstance(a, Refuse)]
    assert "needs each of its helpers, and site 'k' has 1 CPU" in refused.error.what
    assert made.queued == {}


def test_a_later_job_passes_an_earlier_one_at_a_helper_so_often_and_no_more() -> None:
    made = scheduler("ab")
    made._overtakes = 1
    busy = Answer(False, "it is busy")
    first = offers(made.submit(want("1", sites=("a",)), 0.0))
    answer(made, first, a=busy)
    second = offers(made.submit(want("2", sites=("b",)), 0.0))
    assert answer(made, second, b=YES, k=YES) == [Deploy("2", ("b", "k"))]
    told = made.submit(want("3", sites=("b",)), 0.0)
    assert Wait("3", "waits behind an earlier job for the same sites") in told


def test_a_resumed_job_has_its_clients_and_its_helpers() -> None:
    terms = read_terms({"helpers": {"holder": "key holder"}, "on_lost": "drop", "min_sites": 1})
    again = terms.want("1", ("a", "b", "k"), ["k"])
    assert (again.sites, again.helpers, again.floor) == (("a", "b"), ("k",), 1)
    first = terms.want("1", (), ["k"])
    assert (first.sites, first.helpers, first.quorum) == (None, ("k",), 1)
