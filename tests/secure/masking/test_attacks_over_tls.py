"""A server that lies, between processes over mutual TLS: what it asks travels to the sites and back, and wins it no reply."""

from __future__ import annotations

import contextlib
import os
import signal
from dataclasses import replace

import numpy as np
import pytest

from atoll.core.algebra.aggregate import Sum
from atoll.core.errors import LetterError, PolicyError, QuorumError
from atoll.core.federation.federation import run_program
from atoll.core.requests.cohort import Community
from atoll.core.requests.request import Mailboxes
from atoll.core.requests.task import task
from atoll.core.sealing.letter import Letter
from atoll.core.time.clock import Clock, run
from atoll.core.world import World
from atoll.reducers import SecureAggregation
from atoll.runtime.network.shared import Shared, bare, words
from atoll.secure.masking.party_steps import label_of, masked, reveal, vote

# Each attack has a quick sibling in one process, in `test_over_network` or `test_secure_aggregation`.
pytestmark = [pytest.mark.slow, pytest.mark.parametrize("transport", ["tcp", "grpc"], scope="module")]
PARTIES = 6
HONEST = (np.arange(4) * 21.0).tolist()


@task
def squares(island, message):
    return {"x": Sum(np.arange(4) * island.data * message)}


async def one_sum(fed):
    found = await fed.sum(fed.parties, squares, 1.0, reducer=SecureAggregation(), at=1)
    return found["x"].tolist(), found.n, found.counts


@pytest.fixture(scope="module")
def bridge(transport, tmp_path_factory):
    from tests.support.bridge import Bridge
    from tests.support.certificates import authority

    made = Bridge(tmp_path_factory.mktemp("bridge"), transport, authority())
    yield made
    made.close()


def under(bridge, lies=None, data=None, program=one_sum, **kept):
    """The sum, under a server whose engine has these methods in place of its own."""
    engine = bridge.engine()
    if lies is not None:
        engine.__class__ = type("Lying", (lies, type(engine)), {})
    people = Community(data or [float(i + 1) for i in range(PARTIES)])
    world = World(people, engine, clock=Clock(virtual=False), sealing="real", **kept)
    return run(run_program(world, program), virtual=False)[0]


def other_set(request, without=-1):
    """The same step for a set without one party."""
    kept = list(request.message["kept"])
    lost = kept.pop(without)
    label = label_of(kept, [lost])
    return replace(request, id=f"{request.id.rpartition('@')[0]}@{label}", message={"kept": kept, "lost": [lost]})


def test_an_honest_server_gets_the_sum(bridge):
    assert under(bridge)[:2] == (HONEST, PARTIES)


def test_both_seeds_are_not_given(bridge):
    answers = []

    class Twice:
        async def run(self, request, positions):
            first = await super().run(request, positions)
            if request.task.name in (vote.name, reveal.name):
                answers.extend(await super().run(other_set(request), positions[:-1]))
            return first

    assert under(bridge, Twice)[:2] == (HONEST, PARTIES)
    assert len(answers) == 2 * (PARTIES - 1)
    assert all(isinstance(answer.error, PolicyError) for answer in answers)


@contextlib.contextmanager
def telling_one_site(engine, positions, other):
    """Send one site, with two parties, another request under the same name."""
    victim = list(engine.sites.group_parties(dict.fromkeys(positions.tolist())))[-1]
    honest = victim.post

    def post(frame, *body):
        if frame["op"] == "launch":
            names = [engine.world.roster.name(p) for p in frame["positions"]] if other.mail else []
            frame, body = {**frame, "request": bare(other, names)}, [Shared(words(other)).form(victim.link)]
        honest(frame, *body)

    victim.post = post
    try:
        yield
    finally:
        victim.post = honest


def test_split_sets_open_nothing(bridge):
    class Splitting:
        def launch(self, request, positions, push):
            if request.task.name not in (vote.name, reveal.name):
                return super().launch(request, positions, push)
            with telling_one_site(self, positions, replace(other_set(request, without=0), id=request.id)):
                return super().launch(request, positions, push)

    with pytest.raises((PolicyError, QuorumError), match=r"agree on who is in the sum|hear \d votes"):
        under(bridge, Splitting)


def test_other_models_give_noise(bridge):
    class TwoModels:
        def launch(self, request, positions, push):
            if request.wraps is None:
                return super().launch(request, positions, push)
            other = replace(request, wraps=replace(request.wraps, message=1.5))
            with telling_one_site(self, positions, other):
                return super().launch(request, positions, push)

    try:
        found, _, _ = under(bridge, TwoModels)
    except QuorumError as error:
        found = [f"refused: {error}"]
    assert "masks of the sum did not cancel" in str(found) or np.abs(np.array(found) - HONEST).max() > 1e3


def test_a_wrong_share_is_worked_around(bridge):
    class Wrong:
        async def run(self, request, positions):
            replies = await super().run(request, positions)
            for reply in replies:
                if request.task.name == reveal.name and reply.party == 1:
                    shares = reply.value["shares"]
                    shares.update({name: bytes([share[0] ^ 1]) + share[1:] for name, share in shares.items()})
            return replies

    found, n, counts = under(bridge, Wrong)
    assert (found, n) == (HONEST, PARTIES)
    assert counts["wrong_shares"] == 1


def altered(letter):
    assert letter.real
    box = letter._box[:-1] + bytes([letter._box[-1] ^ 1])
    return Letter(letter.sender, letter.to, letter.request, letter.number, letter.key, box)


@pytest.mark.parametrize("how", ["altered", "reflected", "swapped"])
def test_letters_that_the_server_tampers_with_are_refused(bridge, how):
    class Tampering:
        def launch(self, request, positions, push):
            if request.task.name == masked.name and request.mail is not None:
                boxes = {name: request.mail.box(name) for name in names_of(request.mail)}
                request = replace(request, mail=tampered(boxes, how))
            return super().launch(request, positions, push)

    said = "it was altered" if how == "altered" else "its envelope says client-0 to client-1"
    with pytest.raises(LetterError, match=said):
        under(bridge, Tampering)


def test_letters_of_an_earlier_sum_are_refused(bridge):
    """A server replays the shares of one sum in the next, whose masks it would then know."""
    kept = []

    class Replaying:
        def launch(self, request, positions, push):
            if request.task.name == masked.name and request.mail is not None:
                kept.append(request.mail)
                request = replace(request, mail=kept[0])
            return super().launch(request, positions, push)

    async def two_sums(fed):
        first = await one_sum(fed)
        assert first[:2] == (HONEST, PARTIES)
        await fed.sum(fed.parties, squares, 1.0, reducer=SecureAggregation(), at=2)

    with pytest.raises(LetterError, match=r"its envelope says|was opened before"):
        under(bridge, Replaying, program=two_sums)
    assert len(kept) == 2


@pytest.mark.parametrize("last", [vote.name, reveal.name], ids=["vote", "reveal"])
def test_no_other_survivors_after_kill_nine(bridge, tmp_path, last):
    """Every site is killed right after it has bound itself; the server comes back and asks the parties about another set."""
    asked, answers = [], []

    class Killing:
        async def run(self, request, positions):
            replies = await super().run(request, positions)
            if request.task.name in (vote.name, reveal.name):
                asked.append(request)
            if request.task.name == last:
                assert all(reply.error is None for reply in replies)
                for process in self.processes:
                    os.kill(process.pid, signal.SIGKILL)
                raise RuntimeError("all sites are killed")
            return replies

    with pytest.raises(RuntimeError, match="all sites are killed"):
        under(bridge, Killing, folder=tmp_path)

    promises = [
        line for file in tmp_path.rglob("ledger.jsonl") for line in file.read_text().splitlines() if '"promise"' in line
    ]
    assert len(promises) >= PARTIES, "each party has written down what it gives before it gave it"

    async def again(fed):
        for request in asked:
            answers.extend(await fed.world.engine.run(other_set(request), fed.parties.positions[:-1]))

    under(bridge, program=again, folder=tmp_path, resume=True)
    assert len(answers) == len(asked) * (PARTIES - 1) > 0
    assert all(isinstance(answer.error, PolicyError) for answer in answers)


def names_of(mail):
    return sorted(mail._letters)


def tampered(boxes, how):
    victim, *others = sorted(boxes)
    changed = dict(boxes)
    if how == "altered":
        changed[victim] = {sender: altered(letter) for sender, letter in boxes[victim].items()}
    elif how == "reflected":  # a party gets what it has sent to others
        changed[victim] = {other: boxes[other][victim] for other in others}
    else:
        changed[victim], changed[others[0]] = boxes[others[0]], boxes[victim]
    made = Mailboxes()
    made._letters = changed
    return made


def test_a_party_with_nan_drops_out(bridge):
    found, n, _ = under(bridge, data=[1.0, 2.0, float("nan"), 4.0, 5.0, 6.0])
    assert n == PARTIES - 1
    assert found == (np.arange(4) * 18.0).tolist()
