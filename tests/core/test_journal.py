"""The journal: replies that are never made twice, through crashes, torn tails and checkpoints."""

from __future__ import annotations

import numpy as np
import pytest

from atoll.core import message as M
from atoll.core.algebra.aggregate import Mean, Parts
from atoll.core.errors import CheckpointError
from atoll.core.event import NonPrivate
from atoll.core.execution.host import Journal
from atoll.core.requests.cohort import Community
from atoll.core.requests.request import Reply, Request, TaskResult
from atoll.core.requests.task import Task, task
from atoll.core.sealing import Letter
from atoll.core.time.meter import Said
from atoll.core.world import World
from atoll.engines import Inline
from atoll.testing import Killed, live

TASK = Task("a:b", print)


def row(request, party=0, slot="main", value=None, **more):
    return Request(f"{slot}/{request}", TASK, None, slot, 0), TaskResult(Reply(party, value, nbytes=9), **more)


def test_what_was_written_comes_back_from_the_file(tmp_path):
    path = tmp_path / "journal.log"
    letter = Letter("client-3", "client-1", "main/t/0", 0, bytes(range(32)), b"ciphertext")
    reply = Reply(3, {"u": Mean({"w": np.ones(2)}, examples=4.0), "p": Parts(1.5)}, {"client-1": letter}, [], 77)
    request = Request("main/t/0", TASK, None, "main", 0)
    said = {"b": Said(1, 10)}
    opened = (("main/s/0", "client-2", 1),)
    Journal(path).put([(request, TaskResult(reply, {"main": {"s": 1}}, True, time=2.5, said=said, opened=opened))])
    ran = Journal(path).get("main/t/0", 3)
    assert ran.reply.mail["client-1"].pack() == letter.pack()
    assert (ran.reply.nbytes, ran.left, ran.opened) == (77, {"main": {"s": 1}}, opened)
    assert (ran.time, ran.said) == (2.5, said)
    assert ran.reply.value["u"].weight == 4.0
    np.testing.assert_array_equal(ran.reply.value["u"].value["w"], np.ones(2))
    assert Journal(path).get("main/t/0", 2) is None
    assert Journal(path).get("main/t/1", 3) is None


@pytest.mark.parametrize("cut", [1, 8, 20])
def test_a_torn_tail_is_cut_and_what_follows_is_read(tmp_path, cut):
    path = tmp_path / "journal.log"
    journal = Journal(path)
    journal.put([row("t/0", value="first")])
    kept = path.stat().st_size
    journal.put([row("t/1", value="torn")])
    path.write_bytes(path.read_bytes()[:-cut])
    again = Journal(path)
    assert path.stat().st_size == kept
    assert again.get("main/t/1", 0) is None
    again.put([row("t/2", value="after")])
    last = Journal(path)
    assert [last.get(f"main/t/{i}", 0) is None for i in range(3)] == [False, True, False]


def test_damage_in_the_middle_is_not_guessed_at(tmp_path):
    path = tmp_path / "journal.log"
    Journal(path).put([row("t/0", value="x" * 50), row("t/1")])
    content = bytearray(path.read_bytes())
    content[10:30] = b"\0" * 20
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match="the journal is damaged at byte 0"):
        Journal(path)


def test_a_checkpoint_forgets_its_own_scope_one_generation_later(tmp_path):
    path = tmp_path / "journal.log"
    journal = Journal(path)
    journal.put([row("t/0"), row("t/0", slot="main/inner")])
    journal.forget("main")  # a resume may fall back to the checkpoint before this one
    assert Journal(path).get("main/t/0", 0) is not None
    journal.put([row("t/1")])
    journal.forget("main")
    assert journal.get("main/t/0", 0) is None
    assert journal.get("main/t/1", 0) is not None
    assert journal.get("main/inner/t/0", 0) is not None
    journal.forget("main")
    assert len(journal) == 1
    assert len(Journal(path)) == 1  # the file has shrunk too


def test_the_file_stays_small(tmp_path):
    path = tmp_path / "journal.log"
    journal = Journal(path)
    size = 0
    for i in range(100):
        journal.put([row(f"t/{i}", value=np.zeros(100))])
        size = max(size, path.stat().st_size)
        journal.forget("main")
    assert size < 6 * M.nbytes(np.zeros(100)) + 3000


def test_a_full_disk_means_that_nothing_is_known(tmp_path, monkeypatch):
    journal = Journal(tmp_path / "journal.log")
    monkeypatch.setattr("os.fsync", lambda handle: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(CheckpointError, match=r"could not append .* No space left on device .*nothing was released"):
        journal.put([row("t/0")])
    assert journal.get("main/t/0", 0) is None


@task
async def say(island, peers, to):
    """A role that releases something, so that it must never be played twice."""
    island.spend(NonPrivate(what="a number"))
    await peers.send(to, island.secret.integer(2**20))
    return await peers.recv(to)


async def conversation(fed):
    state = await fed.restore(None)
    if state is None:
        state = await fed.session({me: (me, say.with_args(to=to)) for me, to in (("ann", "bob"), ("bob", "ann"))})
        await fed.checkpoint(state)
    return state


def test_a_session_that_ended_is_not_held_again(tmp_path):
    def world(name, resume=False):
        return World(Community({"ann": None, "bob": None}), Inline(), folder=tmp_path / name, resume=resume)

    steps = live(world("whole"), conversation).steps
    with pytest.raises(Killed, match="before commit"):
        live(world("killed"), conversation, kill_at=steps.index("before commit"))
    again = live(world("killed", True), conversation)
    assert len(again.spent) == 2  # booked once: the session was answered from the journal
    assert "before commit" in again.steps
