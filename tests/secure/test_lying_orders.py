"""A server that lies about what the parties did: it repeats orders with other letters, keys, labels and sets. Sites are real processes, as between organisations."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from atoll.core.algebra.aggregate import Sum
from atoll.core.errors import CompositionError, PolicyError, QuorumError
from atoll.core.federation.federation import run_program
from atoll.core.requests.cohort import Community
from atoll.core.requests.policy import SitePolicy
from atoll.core.requests.task import task
from atoll.core.time.clock import Clock, run
from atoll.core.world import World
from atoll.reducers import BoundedSum, Enclave, Encrypted, OneShot, SecureAggregation, SecureIndexing, TwoServers
from atoll.secure.ballot import Electorate, require_majority
from atoll.secure.masking.agreement import Agreement
from atoll.secure.words import FixedPoint
from atoll.testing.lying.sites import Rehearsal

NAMES = [f"client-{i}" for i in range(6)]
REDUCERS = {
    "secagg": SecureAggregation(),
    "one-shot": OneShot(),
    "two-servers": TwoServers(),
    "enclave": Enclave(),
    "indexing": SecureIndexing("shares", max_weight=4096),
    "bounded": BoundedSum(norm=100.0),
    "bfv": Encrypted(),
    "threshold": Encrypted("paillier", keys="threshold"),
}
OPENING = ("reveal", "sum_shares", "open_masks", "add", "open_sum", "answer_sum")


@task
def value(island, message):
    return {"x": Sum(np.arange(4) * island.data * message)}


def summed(reducer, engine, message=1.0, policy=None):
    people = Community(
        dict(zip(NAMES, [float(7 * i + 3) for i in range(6)], strict=True)), others=dict.fromkeys(reducer.others)
    )
    world = World(people, engine, clock=Clock(virtual=False), sealing="real", policy=policy or SitePolicy())
    return run(
        run_program(world, lambda fed: fed.sum(fed.parties.named(*NAMES), value, message, reducer=reducer)),
        virtual=False,
    )[0]


def step_of(request):
    return request.task.name.rpartition(":")[2]


class Repeating(Rehearsal):
    """Asks who opens once more: without the first party, with all that belongs to it."""

    def __init__(self, sites):
        super().__init__(sites)
        self.answers = []

    async def run(self, request, positions):
        first = await super().run(request, positions)
        if step_of(request) in OPENING and not self.answers:
            message = dict(request.message)
            if isinstance(message.get("kept"), list):
                message["kept"] = message["kept"][1:]
            mail = None if request.mail is None else request.mail.only_from(set(NAMES[1:]))
            for other in (
                replace(request, message=message, mail=mail),
                replace(request, id=request.id + "/again", message=message, mail=mail),
                replace(request, id=request.id + "/again", sum=request.sum + "/again", message=message, mail=mail),
            ):
                self.answers += await super().run(other, positions)
        return first


@pytest.mark.network
@pytest.mark.quick("secagg", "two-servers", "indexing")
@pytest.mark.parametrize("name", REDUCERS)
def test_nobody_opens_a_second_set_under_any_name(name):
    engine = Repeating(6 + len(REDUCERS[name].others))
    found = summed(REDUCERS[name], engine)
    assert found["x"].tolist() == pytest.approx((np.arange(4) * 123.0).tolist(), abs=1e-3)
    assert engine.answers
    for answer in engine.answers:
        assert isinstance(answer.error, PolicyError)
        assert answer.error.what == "this party does not answer"


class Splitting(Rehearsal):
    """Tells half of the sites that the first party is not in the sum that they vote on."""

    async def open(self, world):
        await super().open(world)
        for number, site_link in enumerate(self.sites.site_links.values()):
            if number % 2:
                site_link.post = partial(self._told, site_link.post)

    def _told(self, post, frame, body=None):
        if frame["op"] == "launch" and frame["request"]["task"]["name"].rpartition(":")[2] in ("vote", "vote_on_sum"):
            message = body["message"]
            body = {**body, "message": {**message, "kept": message["kept"][1:]}}
        return post(frame, *(() if body is None else (body,)))


@pytest.mark.network
@pytest.mark.quick("secagg", "two-servers", "indexing")
@pytest.mark.parametrize("name", REDUCERS)
def test_a_split_view_opens_nothing(name):
    with pytest.raises((QuorumError, PolicyError), match=r"does not answer|fewer than|could not be compared"):
        summed(REDUCERS[name], Splitting(6 + len(REDUCERS[name].others)))


class Skipping(Rehearsal):
    """Leaves out the votes."""

    def launch(self, request, positions, push):
        if isinstance(request.message, dict) and "votes" in request.message:
            votes = request.message["votes"]
            bare = {name: {} for name in votes} if all(isinstance(v, dict) for v in votes.values()) else {}
            request = replace(request, message={**request.message, "votes": bare})
        elif step_of(request) in ("reveal", "sum_shares", "answer_sum"):
            request = replace(request, mail=None)
        return super().launch(request, positions, push)


@pytest.mark.network
@pytest.mark.quick("secagg", "two-servers", "indexing")
@pytest.mark.parametrize("name", REDUCERS)
def test_without_votes_nothing_opens(name):
    with pytest.raises((QuorumError, PolicyError), match=r"does not answer|fewer than|could not be compared"):
        summed(REDUCERS[name], Skipping(6 + len(REDUCERS[name].others)))


@pytest.mark.network
def test_a_second_sum_of_the_same_over_another_set_is_refused_where_the_policy_says_so():
    async def program(fed):
        found = [(await fed.sum(fed.parties, value, 1.0, reducer=SecureAggregation(), at=0))["x"][1]]
        found.append((await fed.sum(fed.parties, value, 1.0, reducer=SecureAggregation(), at=1))["x"][1])
        found.append((await fed.sum(fed.parties[1:], value, 2.0, reducer=SecureAggregation(), at=2))["x"][1])
        with pytest.raises(QuorumError, match="fewer than the quorum"):
            await fed.sum(fed.parties[1:], value, 1.0, reducer=SecureAggregation(), at=3)
        return found

    people = Community([float(i + 1) for i in range(6)])
    for policy, refused in ((SitePolicy(second_sums=False), True), (SitePolicy(), False)):
        world = World(people, Rehearsal(6), clock=Clock(virtual=False), sealing="real", policy=policy)
        if refused:
            assert run(run_program(world, program), virtual=False)[0] == [21.0, 21.0, 40.0]
        else:
            with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
                run(run_program(world, program), virtual=False)


@pytest.mark.parametrize("n", range(2, 40))
def test_two_majorities_share_more_parties_than_collude(n):
    for corrupt in (None, *range((n + 2) // 3)):
        electorate = Electorate(tuple(map(str, range(n))), 2, b"", corrupt)
        colluding = (n - 1) // 3 if corrupt is None else corrupt
        assert 2 * electorate.majority - n > colluding
        assert electorate.majority <= n


class Organised:
    """A party whose cohort has fewer organisations than parties: two parties each."""

    name, sum, once, remote = "0/a", "main/sum", False, False

    def organisation(self, name):
        return name.partition("/")[0]

    def promise(self, what, bound):
        raise AssertionError("it bound itself to a set of too few")


def test_the_least_sum_counts_organisations():
    names = tuple(f"{site}/{one}" for site in range(3) for one in "ab")
    many = Agreement(names, 5, 0, 5, 3, True, FixedPoint())
    organisation = Organised().organisation
    many.require_set(set(range(6)), set(), 0, organisation)
    few = replace(many, least=4)
    with pytest.raises(PolicyError, match="a sum of 6 parties of 3 organisations, fewer than 5"):
        few.require_set(set(range(6)), set(), 0, organisation)
    Electorate(names, 3, b"").require_set(Organised(), names)
    with pytest.raises(PolicyError, match="a sum of 6 parties of 3 organisations, with at least 4"):
        require_majority(Organised(), Electorate(names, 4, b""), names, {})


@pytest.mark.network
@pytest.mark.parametrize(
    "reducer", [SecureAggregation(server="honest"), Encrypted("paillier", keys="threshold", server="honest")]
)
def test_between_organisations_no_reducer_trusts_the_server(reducer):
    with pytest.raises(CompositionError, match="server='honest' between organisations"):
        summed(reducer, Rehearsal(6 + len(reducer.others)))


class Flattering(Rehearsal):
    """Tells sites that they trust the server."""

    def launch(self, request, positions, push):
        if step_of(request) == "deal":
            request = replace(request, message={**request.message, "active": False, "threshold": 3})
        return super().launch(request, positions, push)


@pytest.mark.network
def test_a_site_trusts_no_server_on_its_word():
    with pytest.raises(QuorumError, match="fewer than"):
        summed(SecureAggregation(), Flattering(6))
