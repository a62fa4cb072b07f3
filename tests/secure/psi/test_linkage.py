"""`Linkage`: pairs of records and of columns, what stays at the parties, and what the linker and the program are told."""

from __future__ import annotations

import pytest

import atoll
from atoll.core.errors import AtollError
from atoll.core.requests.policy import SitePolicy
from atoll.secure.psi import Linkage
from atoll.secure.psi.fuzzy import describe_columns, link_contract
from tests.support.alignment import recorded

PEOPLE = {
    "bank": {"name": ["Anna Schmidt", "Peter Pan"], "birthDate": ["1.2.1980", "11.12.1999"], "income": [1.0, 2.0]},
    "shop": {"NAME": ["peter  pan", "Ana Schmidt", "Eve Else"], "date_of_birth": ["1.2.1980", "11.12.1999", "3.1.1990"], "basket": [1, 2, 3], "zip": [4, 5, 6]},
}  # fmt: skip
RECORDS = {"bank": {"name": PEOPLE["bank"]["name"]}, "shop": {"name": PEOPLE["shop"]["NAME"]}}
SCHEMA = Linkage(of="columns", threshold=0.6, show=True)


def test_columns_are_matched_by_names_in_words_and_forms():
    found = atoll.simulate(SCHEMA, PEOPLE, progress=False)
    assert found.pairs == [("birthDate", "date_of_birth"), ("name", "NAME")]
    assert found.sizes == {"bank": 3, "shop": 4}
    twins = describe_columns({"birthDate": [], "BIRTH DATE": ["1.2.1980", None, "31.12.99"], "birth_date": ["a.b"]})
    assert [name.casefold() for name in twins["name"]] == ["birth date"] * 3
    assert twins["form"] == ["9", "9.9.9999", "a.a"]


def test_records_are_paired_and_the_program_learns_the_pairs_only_if_told(tmp_path):
    shown = atoll.simulate(
        Linkage(columns=["name"], threshold=0.7, show=True), RECORDS, folder=tmp_path / "run", progress=False
    )
    assert shown.outcome.pairs == [(0, 1), (1, 0)]
    assert (tmp_path / "run" / "pairs.csv").read_text() == "bank,shop\n0,1\n1,0\n"
    quiet = atoll.simulate(Linkage(columns=["name"], threshold=0.7), RECORDS, progress=False)
    assert (quiet.outcome.count, quiet.outcome.records) == (2, {})
    kinds = [
        {(one.who, one.kind) for one in Linkage(columns=["name"], show=show).explain().exposures}
        for show in (True, False)
    ]
    assert kinds[0] - kinds[1] == {("the program", "ids")}


@atoll.task
def look(island, message):
    return island.left("linked")["names"]


async def looking(fed):
    return {name: await fed.ask(name, look) for name in PEOPLE}


def test_the_names_stay_at_the_parties_in_one_order(tmp_path):
    atoll.simulate(Linkage(of="columns", threshold=0.6), PEOPLE, results=tmp_path, progress=False)
    later = atoll.simulate(looking, PEOPLE, results=tmp_path, progress=False, tasks=[look])
    assert sorted(zip(later["bank"], later["shop"], strict=True)) == [("birthDate", "date_of_birth"), ("name", "NAME")]


def test_what_is_said_is_what_the_contract_says_and_shows_no_name(monkeypatch):
    with recorded(monkeypatch) as said:
        atoll.simulate(SCHEMA, PEOPLE, engine="inline", progress=False)
    assert link_contract(SCHEMA.encoding(["bank", "shop"]), {"bank": 3, "shop": 4}).compare_recorded(said) == []
    assert not any(b"birth" in message.tobytes() for *_, message in said)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Linkage(), r"columns=\[\]"),
        (lambda: Linkage(columns="name"), "columns='name'"),
        (lambda: Linkage(columns=["name"], of="cells"), "of='cells'"),
        (lambda: Linkage(columns=["name"], threshold=0), "threshold=0"),
    ],
)
def test_settings_that_make_no_sense_are_refused(make, says):
    with pytest.raises(AtollError, match=says):
        make()


def test_three_parties_and_a_careful_one_are_refused():
    with pytest.raises(AtollError, match="3 parties"):
        atoll.simulate(SCHEMA, {**PEOPLE, "mill": {"id": [1]}}, progress=False)
    with pytest.raises(AtollError, match="tells linker"):
        atoll.simulate(SCHEMA, PEOPLE, policy={"shop": SitePolicy(learned=["sizes", "count", "ids"])}, progress=False)
