"""`Alignment`: what the program learns, what stays at the parties, and settings that make no sense."""

from __future__ import annotations

from dataclasses import replace

import pytest

import atoll
from atoll.core.errors import AtollError
from atoll.core.requests.cohort import Community
from atoll.core.requests.policy import SitePolicy
from atoll.core.world import World
from atoll.engines.inline import Inline
from atoll.secure.psi import Aligned, Alignment, Ecdh, Opprf, Oprf
from atoll.secure.psi.job import align_parties
from atoll.simulation import run_in

TABLES = {"bank": {"id": ["u1", "u2", "u2", "u3"]}, "shop": {"id": ["u9", "u3", "u2"], "amount": [9, 3, 2]}}


@atoll.task
def look(island, message):
    kept = island.left("aligned")
    return [[island.data["id"][row] for row in kept["rows"]], kept["count"]]


async def looking(fed):
    return {name: await fed.ask(name, look) for name in TABLES}


def test_the_program_learns_nothing_and_the_rows_stay_in_one_order(tmp_path):
    found = atoll.simulate(Alignment(), TABLES, results=tmp_path, progress=False)
    assert found.outcome == Aligned({"bank": 3, "shop": 3})
    later = atoll.simulate(looking, TABLES, results=tmp_path, progress=False, tasks=[look])
    assert later["bank"] == later["shop"] == [["u3", "u2"], 2]


def test_a_site_that_keeps_no_results_still_aligns():
    found = atoll.simulate(Alignment(show=True), TABLES, policy={"shop": SitePolicy(results=False)}, progress=False)
    assert found.count == 2


def test_the_run_folder_has_the_shared_keys(tmp_path):
    atoll.simulate(Alignment(show=True), TABLES, folder=tmp_path / "run", progress=False)
    assert (tmp_path / "run" / "shared.csv").read_text() == "id\nu3\nu2\n"


def test_a_policy_names_protocols():
    careful = SitePolicy(allow=["Opprf"])
    assert atoll.simulate(Alignment(protocol=Opprf(), show=True), TABLES, policy=careful, progress=False).count == 2
    with pytest.raises(AtollError, match="Ecdh may not run here"):
        atoll.simulate(Alignment(), TABLES, policy=careful, progress=False)


def test_a_count_by_oprf_says_that_ecdh_found_it():
    """Masks would show the receiver which keys match. The site that refuses `Ecdh` refuses the count too."""
    found = atoll.simulate(Alignment(protocol=Oprf(), result="count", show=True), TABLES, progress=False)
    assert found.count == 2
    assert found.notices == ("Oprf shows one party which keys match, so Ecdh found the count",)
    assert found.notices[0] in Alignment(protocol=Oprf(), result="count").explain(clients=2).notes
    assert atoll.simulate(Alignment(protocol=Oprf(), show=True), TABLES, progress=False).notices == ()
    with pytest.raises(AtollError, match="Ecdh may not run here"):
        atoll.simulate(
            Alignment(protocol=Oprf(), result="count"), TABLES, policy=SitePolicy(allow=["Oprf"]), progress=False
        )


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"result": "sums"}, "result='sums'"),
        ({"result": "sum:"}, "result='sum:'"),
        ({"result": "sum:mill.x"}, "names no party"),
        ({"to": "bank"}, "to='bank'"),
        ({"to": ["mill"]}, "'mill' is no party"),
        ({"min_count": 0}, "min_count=0"),
        ({"protocol": Ecdh}, "Ecdh is a class"),
        ({"protocol": Opprf(), "result": "count"}, "Opprf gives no count"),
        ({"key": "words"}, "key='words'"),
        ({"id": "key"}, "no column 'key'"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, says):
    with pytest.raises(AtollError, match=says):
        atoll.simulate(Alignment(**settings), TABLES, progress=False)


def test_one_party_is_refused():
    with pytest.raises(AtollError, match="1 party"):
        atoll.simulate(Alignment(), {"bank": TABLES["bank"]}, progress=False)


def test_a_site_logs_how_many_rows_have_no_key_and_tells_nobody(caplog):
    """Oracle: the two keys that are missing here."""

    class Between(World):
        def executor(self, *args, **more):
            return replace(super().executor(*args, **more), remote=True)

    data = {**TABLES, "bank": {"id": [*TABLES["bank"]["id"], None, " "]}}
    plan = Alignment().plan(list(data))

    async def program(fed):
        return await align_parties(fed, list(data), Ecdh(), plan)

    found, _ = run_in(Between(Community(data), Inline()), program)
    assert found.sizes == {"bank": 3, "shop": 3}  # distinct keys; of the others nothing is told
    assert [one.getMessage() for one in caplog.records if one.name == "atoll.psi"] == [
        f"2 of {len(data['bank']['id'])} rows have no key in 'id': they match no row of another party"
    ]
