"""What a worker inherits from the process that forked it."""

from __future__ import annotations

import gc
import os
import socket
import sys

import pytest

from atoll.engines.processes import Workers

pytestmark = pytest.mark.network


class Ending:
    """Part of a cycle; says in which process it is collected."""

    ended: list[int] = []  # noqa: RUF012 - shared on purpose

    def __init__(self) -> None:
        self.me = self

    def __del__(self) -> None:
        Ending.ended.append(os.getpid())


def body(sock: socket.socket) -> None:
    mine = Ending()
    del mine
    gc.collect()
    sock.sendall(bytes([gc.isenabled(), *(pid == os.getpid() for pid in Ending.ended)]))


@pytest.mark.skipif(sys.platform != "linux", reason="workers are not forked here")
def test_a_worker_collects_its_own_garbage_and_not_its_parents() -> None:
    gc.collect()
    Ending.ended.clear()
    Ending()  # garbage that nobody has collected when the worker is forked
    workers = Workers()
    (sock,) = workers.start(1, body)
    assert gc.isenabled()
    assert sock.recv(10) == bytes([True, True])  # one end: of what was made there
    workers.stop()
    gc.collect()
    assert Ending.ended == [os.getpid()]
