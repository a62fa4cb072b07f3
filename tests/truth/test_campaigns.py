"""A campaign finds what all reports in one place say, whoever adds up, whoever is lost, and whoever lies."""

from __future__ import annotations

import hmac
import itertools
import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import atoll
from atoll.core.errors import AtollError, ConfigError, DataError, LetterError, PolicyError, QuorumError, TaskError
from atoll.core.persistence.named_results import NamedResults
from atoll.core.requests.cohort import Community
from atoll.core.requests.request import Mailboxes
from atoll.core.sealing.letter import Letter
from atoll.core.world import World
from atoll.engines import Inline
from atoll.secure import checked_sums
from atoll.testing import killed_and_resumed
from atoll.truth import (
    CRH,
    GLAD,
    TDH,
    Additive,
    DawidSkene,
    Logistic,
    MajorityVote,
    Masks,
    OneCoin,
    PlainReplies,
    Shamir,
    Truth,
    Virtual,
    WeightedSum,
    protocols,
)
from atoll.truth.models.model import Term
from atoll.truth.protocols import SumCodec

ADD, SHARE = "atoll.truth.parties:add", "atoll.truth.parties:share"


def drawn(workers=7, tasks=9, classes=3, seed=0, part=0.7):
    """Workers of all qualities."""
    rng = np.random.default_rng(seed)
    truth, skill = rng.integers(0, classes, tasks), rng.uniform(0.4, 0.95, workers)
    rows = []
    for w in range(workers):
        for t in np.flatnonzero(rng.random(tasks) < part).tolist():
            said = truth[t] if rng.random() < skill[w] else rng.integers(0, classes)
            rows.append((f"t{t}", f"w{w}", f"c{said}"))
    return rows


def numbers(workers=6, tasks=5, seed=0):
    rng = np.random.default_rng(seed)
    spread = np.linspace(0.1, 4, workers)
    return [
        (f"t{t}", f"w{w}", str(1e9 + 100 * t + spread[w] * rng.normal())) for w in range(workers) for t in range(tasks)
    ]


PARTS = atoll.truth.split_by_worker(drawn())
LAYOUT = {"tasks": [f"t{t}" for t in range(9)], "classes": ["c0", "c1", "c2"]}


def simulated(job, parts=PARTS, **more):
    return atoll.simulate(job, parts, **{"engine": "inline", "progress": False, "seed": 2, **more})


# ---------------------------------------------------------------------- the same truth


@pytest.mark.parametrize(
    ("protocol", "iterations"),
    [
        (Shamir(), 1),
        (Masks(), 1),
        *((p, 3) for p in (PlainReplies(), Virtual(), Additive(), Shamir(), Shamir(committee=4))),
    ],
    ids=str,
)
def test_every_protocol_finds_what_all_reports_in_one_place_say(protocol, iterations):
    for model in (DawidSkene(iterations=iterations), Logistic(iterations=iterations)):
        result = simulated(Truth(model=model, protocol=protocol))
        compared = result.compare_plain()
        assert compared.agreement == 1.0
        assert compared.max_difference < 2e-5
        assert result.truth == model.fit_predict(drawn())
        assert result.lost == ()


@pytest.mark.parametrize(
    ("protocol", "returns"),
    [
        (Masks(threshold=0.3), 0.0),
        *(
            (p, r)
            for p in (PlainReplies(), Shamir(threshold=0.3), Virtual(of=Shamir(threshold=0.3)))
            for r in (0.0, 1.0)
        ),
    ],
    ids=str,
)
def test_with_losses_it_finds_what_those_who_were_there_say(protocol, returns):
    """A worker may be lost before it contributes or before it adds up; its contribution then counts."""
    result = simulated(
        Truth(model=DawidSkene(iterations=4, tolerance=0), protocol=protocol, loss=0.15, returns=returns)
    )
    assert 0 < len(result.lost) < 7
    assert result.compare_plain().max_difference < 2e-5
    assert len({one.senders for one in result.steps}) > 1
    if not returns:
        for early, late in zip(result.steps, result.steps[1:], strict=False):
            assert set(late.senders) <= set(early.senders)


def test_numbers_at_any_offset_and_claims_add_up_alike():
    result = simulated(Truth(model=CRH(iterations=3)), atoll.truth.split_by_worker(numbers()))
    assert result.compare_plain().agreement == 1.0
    found = CRH(iterations=3).fit_predict(numbers())
    assert max(abs(result.truth[task] - found[task]) for task in found) < 1e-6 * 500  # of the range
    claims = [
        ("ada", "wiki", "Oslo"),
        ("ada", "news", "Norway"),
        ("ada", "blog", "Norway"),
        ("bo", "wiki", "Bergen"),
        ("bo", "blog", "Norway"),
    ]
    model = TDH(contains={"Oslo": ("Norway",), "Bergen": ("Norway",)})
    given = atoll.truth.reports_of(
        {"obj": [c[0] for c in claims], "src": [c[1] for c in claims], "value": [c[2] for c in claims]}
    )
    found = simulated(Truth(model=model), atoll.truth.split_by_worker(given))
    assert found.truth == model.fit_predict(given) == {"ada": "Oslo", "bo": "Bergen"}


@pytest.mark.parametrize(
    ("job", "told"),
    [
        (Truth(model=TDH()), {"candidates"}),
        (Truth(model=TDH(), candidates={"t": ["a", "b"]}), set()),
        (Truth(model=OneCoin(), tasks=["t"]), {"classes"}),
        (Truth(model=CRH()), {"tasks", "low and high"}),
    ],
    ids=["claims", "agreed", "classes", "numbers"],
)
def test_what_parties_are_asked_for_is_said_beforehand(job, told):
    named = [one.assuming for one in job.explain(clients=3).exposures]
    assert {one.removeprefix("name them beforehand: ") for one in named if one.startswith("name them")} == told


def test_a_site_of_many_workers_adds_its_own_first():
    rows = drawn()
    alone = simulated(Truth(model=DawidSkene(iterations=4)))
    sites = {"north": [r for r in rows if r[1] < "w3"], "south": [r for r in rows if r[1] >= "w3"]}
    together = simulated(Truth(model=DawidSkene(iterations=4)), sites)
    assert together.truth == alone.truth
    assert max(abs(together.confidence[t] - alone.confidence[t]) for t in alone.truth) < 1e-5
    assert together.bytes_up < alone.bytes_up / 2


@pytest.mark.parametrize("looks", [True, False])
def test_two_sites_that_claim_a_worker_are_refused_by_name(looks, monkeypatch):
    """Where reports lie at their sites, these compare tags of their workers under a key that the server does not know."""
    if not looks:
        monkeypatch.setattr("atoll.truth.job.PreparedTruth._require_own_workers", lambda self: None)
    rows, tags = drawn(), []

    class Reading(Inline):
        async def run(self, request, positions):
            replies = await super().run(request, positions)
            tags.extend(one for reply in replies if request.task.name.endswith(":tag") for one in reply.value)
            return replies

    with pytest.raises(DataError, match=r"sites 'north' and 'south' both claim a worker .*Remedy: give each worker"):
        simulated(Truth(model=DawidSkene()), {"north": rows, "south": rows[:3]}, engine=Reading(), sealing="real")
    assert not looks or not tags
    if not looks:
        assert len(tags) == 7 + 1
        assert not {hmac.digest(b"", f"w{i}".encode(), "sha256")[:16] for i in range(7)} & set(tags)


def test_the_virtual_sum_has_the_integers_and_the_bytes_of_the_sealed_one():
    for model in (OneCoin(iterations=2), WeightedSum(iterations=2)):
        for loss, seeds in ((0.0, True), (0.1, True), (0.1, False)):
            shares = Shamir(seeds=seeds)
            sealed, virtual = (
                simulated(Truth(model=model, protocol=p, loss=loss), sealing="real")
                for p in (shares, Virtual(of=shares))
            )
            np.testing.assert_array_equal(sealed.fit.broadcast["truth"], virtual.fit.broadcast["truth"])
            assert (sealed.bytes_up, sealed.bytes_down) == (virtual.bytes_up, virtual.bytes_down)
            assert sealed.steps == virtual.steps


def test_the_ledger_says_that_nothing_was_shared(tmp_path):
    for protocol, said in ((Virtual(), True), (Shamir(), False)):
        file = tmp_path / f"{type(protocol).__name__}.jsonl"
        simulated(Truth(model=OneCoin(iterations=1), protocol=protocol), ledger=file)
        assert ("shares-virtual" in file.read_text()) == said
        assert "non-private" in file.read_text() or "NonPrivate" in file.read_text()


def test_what_is_known_of_a_worker_stays_at_its_party(tmp_path):
    result = simulated(Truth(model=DawidSkene(iterations=3)), results=tmp_path)
    model = DawidSkene(iterations=3)
    model.fit(drawn())
    kept = NamedResults(tmp_path).get("w3", "truth")
    assert list(kept["workers"]) == ["w3"]
    wanted = [[model.errors_["w3"][label][c] for c in kept["classes"]] for label in kept["classes"]]
    np.testing.assert_allclose(kept["errors"][0], wanted, atol=1e-6)
    assert not hasattr(result.outcome, "errors")
    assert result.fit.state == {}


@pytest.mark.parametrize("model", [OneCoin(iterations=2), GLAD(iterations=2), DawidSkene(iterations=2)], ids=lambda model: type(model).__name__)  # fmt: skip
def test_a_leader_board_has_the_order_of_the_parties_and_no_number(model, tmp_path):
    """Of sites it is the order of the means of their workers; lost parties are in no place."""
    result = simulated(Truth(model=model, ranking=2, label=""), results=tmp_path)
    skills = model.fit(drawn()).skills_
    assert sorted(result.ranking) == sorted(skills.keys())
    assert_falls([skills[name] for name in result.ranking])
    assert result.prepared.facts(result.outcome)["result"]["ranking"] == list(result.ranking)
    assert not list(tmp_path.rglob("*.msg"))
    places = {"east": ("w0", "w1"), "north": ("w2", "w3"), "south": ("w4", "w5", "w6")}
    sites = {place: [row for row in drawn() if row[1] in names] for place, names in places.items()}
    ranked = simulated(Truth(model=model, ranking=1), sites).ranking
    assert_falls([np.mean([skills[name] for name in places[place]]) for place in ranked])


def assert_falls(numbers):
    """Equal numbers come in an order of chance."""
    assert all(late < early + 1e-6 for early, late in itertools.pairwise(numbers))


def test_a_leader_board_goes_on_without_whoever_is_lost():
    result = simulated(Truth(model=OneCoin(iterations=3, tolerance=0), protocol=Shamir(threshold=0.3), ranking=1, loss=0.15, returns=0.0))  # fmt: skip
    assert len(result.ranking) == 7 - len(result.lost) < 7
    assert not set(result.ranking) & set(result.lost)


@pytest.mark.parametrize("protocol", [Shamir(committee=3), Shamir(threshold=2, checks=True)], ids=["lot", "checks"])
def test_a_run_goes_on_after_a_crash_at_any_step(tmp_path, protocol):
    job = Truth(model=DawidSkene(iterations=2), protocol=protocol, loss=0.1, ranking=int(not protocol.checks))
    few = {name: PARTS[name] for name in list(PARTS)[:4]}

    def world(folder, resume):
        return World(Community(few), Inline(), folder=folder, resume=resume, seed=5, secret_seed=3)

    life = killed_and_resumed(world, job, tmp_path, points=4)
    assert life.result.iterations == 2


# ---------------------------------------------------------------------- who adds up


def test_every_lot_gives_the_same_sums():
    results = [
        simulated(Truth(model=OneCoin(iterations=3), protocol=Shamir(committee=3)), secret_seed=seed)
        for seed in range(3)
    ]
    (full,) = [simulated(Truth(model=OneCoin(iterations=3)))]
    for one in results:
        np.testing.assert_array_equal(one.fit.broadcast["truth"], full.fit.broadcast["truth"])
        assert one.holders == (3, 2)
        assert one.bytes_up < full.bytes_up


def test_a_committee_of_which_too_few_are_left_is_drawn_anew():
    job = Truth(
        model=DawidSkene(iterations=8, tolerance=0), protocol=Shamir(committee=3, threshold=3), loss=0.12, returns=0.5
    )
    result = simulated(job, atoll.truth.split_by_worker(drawn(12)), seed=1)
    assert result.iterations == 8
    assert result.compare_plain().max_difference < 2e-5


@pytest.mark.parametrize("left", [4, 3])
def test_just_enough_holders_give_the_sum_and_one_fewer_none(left, monkeypatch):
    """Of 7 holders with threshold 4, 3 may be lost after they have shared."""

    class Losing(Inline):
        async def run(self, request, positions):
            replies = await super().run(request, positions)
            if request.task.name == ADD:
                for reply in replies[left:]:
                    reply.rejected = "lost"
            return replies

    job = Truth(model=OneCoin(iterations=1), label="")
    if left == 4:
        result = simulated(job, engine=Losing())
        assert result.compare_plain().max_difference < 1e-5
        assert result.lost == ()
    else:
        with pytest.raises(QuorumError, match="holders sent their sums of votes in iteration 0, and 4 are needed"):
            simulated(job, engine=Losing())


def test_additive_shares_need_everybody():
    with pytest.raises(QuorumError, match=r"Remedy: use Shamir\(\)"):
        simulated(Truth(model=DawidSkene(iterations=8), protocol=Additive(), loss=0.3))


# ---------------------------------------------------------------------- numbers


@settings(max_examples=60, deadline=None)
@given(bound=st.floats(1e-9, 1e6), workers=st.integers(2, 10**6), parties=st.integers(2, 50), bits=st.integers(1, 40))
def test_no_sum_overflows_or_the_field_is_refused(bound, workers, parties, bits):
    """The largest sums of both signs come back, whatever the field."""
    codec = SumCodec({"x": Term((2,), bound)}, bits, workers, parties)
    own = -(-workers // parties)
    if 2 * codec.most >= 2**60:
        with pytest.raises(ConfigError, match=r"use bits=|smaller bounds"):
            codec.field()
        return
    domain = codec.field()
    most = min(own, workers) * bound
    given_ = codec.encode({"x": np.array([most, -most])}, own)
    many = workers // own
    total = domain.of(np.zeros(2, np.int64))
    for _ in range(min(many, parties)):
        total = domain.add(total, domain.of(given_))
    np.testing.assert_array_equal(domain.signed(total), given_ * min(many, parties))


def test_a_field_that_is_too_small_is_refused_before_anything_is_shared():
    job = Truth(model=DawidSkene(floor=1e-30), protocol=Shamir(bits=52))
    big = {name: replace(part) for name, part in atoll.truth.split_by_worker(drawn(40, 4)).items()}
    with pytest.raises(ConfigError, match=r"do not fit 60 bits .*Remedy: use bits=4\d or fewer"):
        simulated(job, big)


@pytest.mark.parametrize("bits", [18, 12])
def test_fewer_bits_change_confidences_and_no_decision(bits):
    fine, coarse = (simulated(Truth(model=DawidSkene(iterations=5), protocol=Shamir(bits=b))) for b in (24, bits))
    assert coarse.truth == fine.truth
    far = max(abs(coarse.confidence[t] - fine.confidence[t]) for t in fine.truth)
    assert far < 2.0 ** (10 - bits)


def test_the_golden_bytes_of_sixty_workers_on_96_events():
    """FedTruthFinder's example: n 60, 96 events, LOGISTIC, words of 8 bytes."""
    asked = {"model": Logistic(), "tasks": [f"e{i}" for i in range(96)], "classes": ["0", "1"]}
    said = Truth(**asked, protocol=Shamir(seeds=False)).explain(clients=60)
    assert said.costs["bytes_shares"] == 46_080
    assert Truth(**asked).explain(clients=60).costs["bytes_shares"] == 31 * 768 + 29 * 32
    assert 8 * said.costs["numbers"] == 768
    assert any("up to 29 of the 60 holders" in one.who for one in said.exposures)


# ---------------------------------------------------------------------- who lies


class Relay(Inline):
    """A server that changes what it asks: ``lies(request, seen) -> request``."""

    def __init__(self, lies):
        super().__init__()
        self.lies, self.seen = lies, []

    async def run(self, request, positions):
        made = self.lies(request, self.seen)
        self.seen.append(request)
        return await super().run(made, positions)


def relayed(lies, **more):
    return simulated(Truth(model=OneCoin(iterations=2), label="", **more), engine=Relay(lies), sealing="real")


def boxes(mail):
    return {to: mail.box(to) for _, to in mail.routes}


def alter(request, seen):
    if request.task.name != ADD:
        return request
    made = boxes(request.mail)
    one = made["w2"]["w1"]
    made["w2"]["w1"] = Letter(
        one.sender, one.to, one.request, one.number, one.key, one._box[:-1] + bytes([one._box[-1] ^ 1])
    )
    return replace(request, mail=packed(made))


def packed(made):
    mail = Mailboxes()
    for to, box in made.items():
        for sender, letter in box.items():
            mail.put(sender, {to: letter})
    return mail


def swap(request, seen):
    if request.task.name != ADD:
        return request
    made = boxes(request.mail)
    made["w2"], made["w3"] = made["w3"], made["w2"]
    return replace(request, mail=packed(made))


def replay(request, seen):
    before = [one for one in seen if one.task.name == ADD]
    return replace(request, mail=before[0].mail) if request.task.name == ADD and before else request


def other_senders(request, seen):
    """Announce one sender fewer than there are letters."""
    if request.task.name != ADD:
        return request
    return replace(request, message={**request.message, "senders": request.message["senders"][1:]})


def single_sender(request, seen):
    if request.task.name != ADD:
        return request
    return replace(request, message={**request.message, "senders": ["w1"]}, mail=request.mail.only_from({"w1"}))


def other_holders(request, seen):
    if request.task.name != SHARE:
        return request
    return replace(request, message={**request.message, "holders": ["w0", "w1"]})


@pytest.mark.parametrize(
    ("lies", "said"),
    [
        (alter, "w1 to w2.*|it was altered"),
        (swap, "its envelope says w0 to w3"),
        (replay, "was altered|opened before|other|another"),
        (other_senders, "announced 6 senders and delivered 7 letters: w0 differs"),
        (single_sender, "a sum of 1 parties, fewer than 2"),
        (other_holders, "other holders than the lot has chosen"),
    ],
    ids=lambda one: getattr(one, "__name__", ""),
)
def test_a_server_that_lies_is_refused_by_name(lies, said):
    with pytest.raises((LetterError, PolicyError, TaskError), match=said):
        relayed(lies)


def test_two_sets_of_senders_are_not_both_added_up():
    """A server asks again, without one sender: the difference would be this sender's contribution."""
    refused = []

    class Twice(Inline):
        async def run(self, request, positions):
            first = await super().run(request, positions)
            if request.task.name == ADD:
                names = set(request.message["senders"][1:])
                other = replace(request, id=request.id + "-again", message={**request.message, "senders": sorted(names)}, mail=request.mail.only_from(names))  # fmt: skip
                refused.extend(await super().run(other, positions))
            return first

    result = simulated(Truth(model=OneCoin(iterations=1), label=""), engine=Twice(), sealing="real")
    assert result.compare_plain().max_difference < 1e-5
    assert len(refused) == 14
    assert all(isinstance(one.error, AtollError) for one in refused)


def test_wrong_sums_are_corrected_and_their_holders_named():
    class Wrong(Inline):
        async def run(self, request, positions):
            replies = await super().run(request, positions)
            for reply in replies:
                if request.task.name == ADD and reply.party == 4:
                    reply.value = reply.value.copy()
                    reply.value[3] += 1
                if request.task.name == ADD and reply.party == 5:
                    reply.value = "nonsense"
            return replies

    result = simulated(Truth(model=OneCoin(iterations=1), protocol=Shamir(threshold=3), label=""), engine=Wrong())
    assert result.wrong == ("w4", "w5")
    assert result.compare_plain().max_difference < 1e-5
    assert result.notices[-1] == "wrong sums of w4, w5 were corrected"
    with pytest.raises(
        DataError, match=r"wrong sums among those of w0, w1, .*Remedy: use a lower threshold or more holders"
    ):
        simulated(Truth(model=OneCoin(iterations=1), protocol=Shamir(threshold=5), label=""), engine=Wrong())


def test_letters_have_one_size_whoever_reported_on_what():
    """A worker with one report posts as many bytes as one with all."""
    sizes = {}

    class Reading(Inline):
        async def run(self, request, positions):
            replies = await super().run(request, positions)
            if request.task.name == SHARE:
                for reply in replies:
                    sizes.setdefault(reply.party, []).append(sum(letter.nbytes for letter in reply.mail.values()))
            return replies

    rows = [*drawn(4, part=1.0), ("t0", "w9", "c0")]
    simulated(
        Truth(model=OneCoin(iterations=2), label=""),
        atoll.truth.split_by_worker(rows),
        engine=Reading(),
        sealing="real",
    )
    assert len({tuple(one) for one in sizes.values()}) == 1


# ---------------------------------------------------------------------- settings


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Truth(model=DawidSkene(), protocol="shamir"), "protocol"),
        (lambda: Truth(model=DawidSkene(), alpha=-1), "alpha=-1"),
        (lambda: Truth(model=DawidSkene(), loss=1.0), "loss=1"),
        (lambda: Truth(model=CRH(), low=3.0), "give both"),
        (lambda: Shamir(threshold=1.5), "threshold=1.5"),
        (lambda: Shamir(committee="many"), "committee='many'"),
        (lambda: Shamir(committee=1), "committee=1"),
        (lambda: Shamir(bits=60), "bits=60"),
        (lambda: Shamir(checks=True, seeds=False), "checks=True without seeds"),
        (lambda: Virtual(of=Shamir(checks=True)), "checks of shares that nobody makes"),
        (
            lambda: simulated(Truth(model=DawidSkene(), protocol=Shamir(threshold=1.0, checks=True))),
            "threshold=7 of 7 holders with checks, which need one holder more",
        ),
        (lambda: simulated(Truth(model=DawidSkene(), protocol=Shamir(committee=50))), "committee=50 of 7 parties"),
        (lambda: simulated(Truth(model=DawidSkene(), protocol=Shamir(threshold=8))), "threshold=8 of 7 holders"),
        (lambda: simulated(Truth(model=DawidSkene()), {"one": drawn()}), "1 party"),
        (
            lambda: simulated(Truth(model=DawidSkene(), protocol=Masks(threshold=0.5, server="active"))),
            "a threshold of 4 of 7 holders against an active server",
        ),
        (lambda: simulated(Truth(model=CRH())), "is no number"),
        (lambda: Truth(model=MajorityVote(), ranking=1), "MajorityVote, which does not say how reliable"),
        (lambda: Truth(model=OneCoin(), ranking=-1), "ranking=-1"),
        (lambda: simulated(Truth(model=OneCoin(), ranking=4)), "threshold=4 of 7 parties"),
        (lambda: simulated(Truth(model=DawidSkene(), classes=["c0", "c1"])), "is not one that it may have"),
    ],
)
def test_settings_that_make_no_sense_are_refused_with_a_remedy(make, said):
    with pytest.raises((AtollError, TaskError), match=said) as caught:
        make()
    assert "Remedy:" in str(caught.value)


def test_the_result_is_written_for_people():
    result = simulated(Truth(model=DawidSkene(iterations=2), **LAYOUT))
    first, second, *_ = result.outcome.csv().splitlines()
    assert first == "task,truth,confidence"
    assert second.split(",")[:2] == ["t0", result.truth["t0"]]
    facts = result.prepared.facts(result.outcome)["result"]
    assert json.loads(json.dumps(facts))["tasks"] == 9
    assert facts["workers"] == facts["parties"] == 7


# ---------------------------------------------------------------------- who cheats


CHECKED = Shamir(threshold=3, checks=True)


@pytest.mark.parametrize(
    ("protocol", "loss"), [(CHECKED, 0.1), (Shamir(committee=5, threshold=2, checks=True), 0.0)], ids=["all", "lot"]
)
def test_checked_shares_find_the_same_truth_with_losses_and_committees(protocol, loss):
    job = Truth(model=DawidSkene(iterations=1), protocol=protocol, loss=loss, label="")
    result = simulated(job, sealing="real")
    assert result.compare_plain().max_difference < 2e-5
    assert (result.cheats, result.wrong) == ((), ())


def share_no_polynomial(monkeypatch, cheat_name):
    """One party shares numbers that lie on no polynomial, and commits to them."""
    split, post = checked_sums.split_seeded, protocols.post_checked

    def spoil(*args):
        shares = split(*args)
        shares[5] = shares[5] ^ np.eye(1, len(shares[5]), 2, dtype=np.uint64)[0]
        return shares

    def cheat(island, *more):
        with monkeypatch.context() as patch:
            if island.name == cheat_name:
                patch.setattr(checked_sums, "split_seeded", spoil)
            return post(island, *more)

    monkeypatch.setattr(protocols, "post_checked", cheat)


def test_a_cheating_sender_and_a_cheating_summer_are_named_and_the_rest_is_right(monkeypatch):
    """w1 shares no polynomial; w4 adds up wrongly. The truth is that of the others."""

    class Wrong(Inline):
        async def run(self, request, positions):
            replies = await super().run(request, positions)
            for reply in replies:
                if request.task.name == checked_sums.add_checked.name and reply.party == 4:
                    reply.value = reply.value + np.uint64(1)
            return replies

    share_no_polynomial(monkeypatch, "w1")
    job = Truth(model=OneCoin(iterations=1), protocol=CHECKED, label="")
    result = simulated(job, engine=Wrong())
    assert (result.cheats, result.wrong, result.lost) == (("w1",), ("w4",), ())
    assert all("w1" not in one.senders and len(one.senders) == 6 for one in result.steps)
    assert result.compare_plain().max_difference < 1e-5
    assert result.notices[-1] == "shares of w1 lay on no polynomial: what they contributed was left out"
    facts = result.prepared.facts(result.outcome)["result"]
    assert (facts["cheats"], facts["wrong"]) == (["w1"], ["w4"])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"threshold": 2}, "other terms of the sum 1-votes-0-"),
        ({"holders": [f"w{i}" for i in range(6)]}, "other terms of the sum"),
        ({"name": "main/checked@1-votes-1-00"}, "other terms of the sum"),
        (None, "terms of a sum that cannot be read"),
    ],
    ids=["threshold", "holders", "name", "none"],
)
def test_a_server_cannot_change_the_terms_of_a_checked_sum(change, said):
    def lies(request, seen):
        if request.task.name != SHARE:
            return request
        terms = None if change is None else {**request.message["terms"], **change}
        return replace(request, message={**request.message, "terms": terms})

    with pytest.raises((PolicyError, TaskError), match=said):
        relayed(lies, protocol=CHECKED)


def test_just_enough_holders_check_a_sum_and_one_fewer_none():
    """Of 7 holders with threshold 3, the sum needs 3 and its checks 4."""

    class Losing(Inline):
        async def run(self, request, positions):
            replies = await super().run(request, positions)
            if request.task.name == checked_sums.show_mixed.name:
                for reply in replies[left:]:
                    reply.rejected = "lost"
            return replies

    job = Truth(model=OneCoin(iterations=1), protocol=CHECKED, label="")
    left = 4
    assert simulated(job, engine=Losing()).compare_plain().max_difference < 1e-5
    left = 3
    with pytest.raises(
        QuorumError, match="too few of 7 holders sent their sums of votes in iteration 0, and 4 are needed"
    ):
        simulated(job, engine=Losing())
