"""An enclave's tables lie sealed with its host: what the host has says nothing, and what it gives back altered, old, swapped or not at all ends the statement with the name of the block."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.core.errors import LetterError
from atoll.query.secure.enclave import AccessTrace, EnclaveTable
from atoll.query.secure.host_memory import KeptColumns, OwnMemory, SealedMemory
from atoll.query.strategies import opaque
from tests.query.test_opaque import ASKED, NAMES, SECRET, people
from tests.support.silos import connected

KEY = bytes(range(32))


@given(st.lists(st.integers(0, 2**64 - 1), max_size=40), st.integers(1, 50), st.booleans())
def test_an_array_comes_back_as_it_was_written_last(values: list[int], block: int, own: bool) -> None:
    memory: Any = OwnMemory() if own else SealedMemory(KEY, block=block)
    first = np.array(values, np.uint64)
    kept = memory.write(first)
    np.testing.assert_array_equal(memory.read(kept), first)
    memory.write(first[::-1], kept)
    np.testing.assert_array_equal(memory.read(kept), first[::-1])
    table = KeptColumns(memory, {"a": first, "b": first > 7})
    more = table.update_with({"a": first + np.uint64(1)})
    assert (list(more), more["b"].dtype, "c" in more) == (["a", "b"], np.dtype(bool), False)
    np.testing.assert_array_equal(more["a"] - np.uint64(1), table["a"])


def test_blocks_that_nobody_asks_for_any_more_are_gone() -> None:
    memory = SealedMemory(KEY, block=8)
    kept = [memory.write(np.arange(k)) for k in range(4)]
    assert len(memory.host) == 1 + 1 + 2 + 3
    del kept
    assert not memory.host


def test_no_block_is_sealed_twice_alike() -> None:
    memory = SealedMemory(KEY)
    kept = memory.write(np.zeros(9))
    before = dict(memory.host)
    memory.write(np.zeros(9), kept)
    memory.write(np.zeros(9), kept)
    assert len({one[32:] for one in (*before.values(), *memory.host.values())}) == 2


# ---------------------------------------------------------------- the host plays


class PlayingHost(dict[tuple[int, int], bytes]):
    """Keeps all that it was ever given; from some writing on it gives back what ``cheat`` makes of it."""

    def __init__(self, cheat: Any, honest: int) -> None:
        super().__init__()
        self.cheat, self.honest, self.past = cheat, honest, list[tuple[tuple[int, int], bytes]]()

    def __setitem__(self, place: tuple[int, int], block: bytes) -> None:
        self.past.append((place, block))
        super().__setitem__(place, block)

    def get(self, place: Any, default: Any = None) -> Any:
        found = super().get(place, default)
        return found if len(self.past) < self.honest else self.cheat(self, place, found)


def replay(host: PlayingHost, place: Any, found: bytes) -> bytes:
    """The first version of an array that was written several times."""
    return next(block for where, block in host.past if where == place)


def swap(host: PlayingHost, place: Any, found: bytes) -> bytes:
    """The block of another array."""
    return next((block for where, block in host.past if where[0] != place[0] and len(block) == len(found)), found)


def alter(host: PlayingHost, place: Any, found: bytes) -> bytes:
    return found[:-1] + bytes([found[-1] ^ 1])


def rename(host: PlayingHost, place: Any, found: bytes) -> bytes:
    """Another block that says it were this one."""
    return found[:32] + swap(host, place, found)[32:]


def drop(host: PlayingHost, place: Any, found: bytes) -> None:
    return None


CHEATS = {
    replay: r"block \d+ of array \d+ in the enclave's memory is an old one: version 1 was replayed, and version \d+ was written",
    swap: r"was swapped with block \d+ of array \d+",
    alter: "was altered, or is of another run",
    rename: "was altered, or is of another run",
    drop: "was dropped",
}  # fmt: skip


@pytest.mark.parametrize(("cheat", "honest"), [(drop, 3), *((cheat, 40) for cheat in CHEATS)])
def test_a_host_that_cheats_ends_the_statement(cheat: Any, honest: int, monkeypatch: pytest.MonkeyPatch) -> None:
    host = PlayingHost(cheat, honest)
    monkeypatch.setattr(opaque, "SealedMemory", lambda key: SealedMemory(key, host))
    with connected(people(), NAMES) as db, pytest.raises(LetterError, match=CHEATS[cheat]):
        db.sql(ASKED, strategy="opaque")


def test_blocks_of_another_run_do_not_open(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = PlayingHost(lambda host, place, found: found, 0)
    monkeypatch.setattr(opaque, "SealedMemory", lambda key: SealedMemory(key, seen))
    with connected(people(), NAMES) as db:
        assert db.check(db.sql(ASKED, strategy="opaque"))
    yesterday = dict(seen.past)
    host = PlayingHost(lambda host, place, found: yesterday[place], 0)
    monkeypatch.setattr(opaque, "SealedMemory", lambda key: SealedMemory(key, host))
    with connected(people(), NAMES) as db, pytest.raises(LetterError, match="is of another run"):
        db.sql(ASKED, strategy="opaque")


def test_the_host_reads_no_cell_and_one_that_keeps_all_apart_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    word = SECRET[:8].encode()

    def seen(memory: Any) -> bytes:
        host = PlayingHost(lambda host, place, found: found, 0)
        with monkeypatch.context() as patch:
            patch.setattr(opaque, "SealedMemory", lambda key: memory(key, host))
            with connected(people(), NAMES) as db:
                db.sql(ASKED, strategy="opaque")
        return b"".join(block for _, block in host.past)

    class Bare(SealedMemory):
        def write(self, array: Any, over: Any = None) -> Any:
            self.host[0, len(self.host)] = np.ascontiguousarray(array).tobytes()
            return super().write(array, over)

    said = seen(SealedMemory)
    assert word not in said
    assert word[::-1] not in said
    assert word[::-1] in seen(Bare)


def test_a_sort_writes_its_rows_anew_at_each_stage() -> None:
    memory = SealedMemory(KEY)
    table = EnclaveTable({"a": np.arange(16, dtype=np.uint64)[::-1]}, np.ones(16, bool), AccessTrace(memory))
    before = memory._seals
    table.sort_rows([table.columns["a"]])
    assert memory._seals - before > 10  # the network of 16 rows has 10 stages
