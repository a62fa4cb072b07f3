"""A running sum gives the bits of a plain one, owns its memory, and never touches what it was given."""

from __future__ import annotations

import mmap
import tempfile

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from atoll.core import message as M
from atoll.core.algebra.aggregate import Mean, Parts, Sum, Vote, merge_totals
from atoll.core.requests.request import PartialSum
from atoll.core.requests.wire import pack_folded
from atoll.runtime.network.replies import Running


def frame(position, aggregates):
    totals = {name: aggregate.total() for name, aggregate in aggregates.items()}
    one = np.array([position])
    return {"op": "folded", "party": position, "folded": pack_folded(PartialSum(totals, one, one * 8))}


def replies(seed, clients, dtype):
    rng = np.random.default_rng(seed)
    for _ in range(clients):
        tree = {
            "w": rng.normal(size=(3, 2)).astype(dtype),
            "b": [rng.normal(size=4).astype(dtype), np.float64(rng.normal())],
        }
        n = float(rng.integers(1, 9))
        yield {
            "mean": Mean(tree, examples=n),
            "sum": Sum({"k": rng.integers(0, 5, 3)}),
            "vote": Vote(tree["w"]),
            "parts": Parts(tree, examples=n),
        }


@given(st.integers(0, 2**32), st.integers(1, 6), st.sampled_from(["f4", "f8", "f2"]))
def test_it_is_the_plain_sum_to_the_bit(seed, clients, dtype):
    said = list(replies(seed, clients, dtype))
    plain = merge_totals({name: a.total() for name, a in one.items()} for one in said)
    frames = [M.decode(M.encode(frame(i, one))) for i, one in enumerate(said)]
    before = [M.fingerprint(f) for f in frames]
    running = Running(np.arange(clients))
    for one in frames:
        running.add(one)
    folded = running.fold_sum()
    assert folded.senders.tolist() == list(range(clients))
    for name, total in plain.items():
        got = folded.totals[name]
        assert (got.weight, got.n, got.kind) == (total.weight, total.n, total.kind)
        if name != "parts":
            assert M.equal(got.value, total.value)
            assert M.equal(got.result(), total.result())
    assert [M.fingerprint(f) for f in frames] == before


def test_a_long_reply_is_read_from_its_file_piece_by_piece():
    values = np.arange(3 << 20, dtype=np.float64)  # 24 MiB
    encoded = M.encode(frame(0, {"x": Mean(values, examples=2.0)}))
    with tempfile.TemporaryFile() as file:
        file.write(encoded)
        file.flush()
        mapped = mmap.mmap(file.fileno(), len(encoded), prot=mmap.PROT_READ)
        running = Running(np.arange(2))
        for _ in range(2):
            running.add(M.decode(memoryview(mapped)))
    total = running.fold_sum().totals["x"]
    own = total.value
    np.testing.assert_array_equal(total.result(), values)
    assert total.result() is own  # the mean is made where the sum was: no second copy of a large model


def test_replies_of_other_shapes_are_added_as_they_always_were():
    running = Running(np.arange(2))
    running.add(frame(0, {"x": Sum(np.ones(3, dtype=np.float32))}))
    running.add(frame(1, {"x": Sum(np.ones(3, dtype=np.float64))}))
    assert running.fold_sum().totals["x"].value.dtype == np.float64
