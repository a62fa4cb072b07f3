"""What a job says of its bytes and work before anyone is contacted, against what is sent and done."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

import atoll
from atoll.secure.oblivious import CodeReceiver
from atoll.secure.psi import (
    Alignment,
    Circuit,
    Ecdh,
    KeyValueTable,
    Opprf,
    Oprf,
    Unbalanced,
    cuckoo,
    ecdh,
    job,
    opprf,
    oprf,
    unbalanced,
)
from tests.support.alignment import tables

CASES = [
    (Ecdh(), "ids", ("bank", "shop")), (Ecdh(), "count", ("bank",)), (Ecdh(), "sum:shop.x", ("shop",)), (Oprf(), "ids", ("shop",)), (Oprf(), "count", ()),
    (Unbalanced(), "ids", ()), (Unbalanced(), "sum:shop.x", ()), (Circuit(), "count", ()), (Circuit(), "shares:shop.x", ()), (Opprf(), "ids", ("shop", "bank")),
]  # fmt: skip


@pytest.mark.parametrize(
    ("protocol", "result", "to"), CASES, ids=[f"{type(p).__name__}-{r[:5]}-{len(t)}" for p, r, t in CASES]
)
def test_bytes_and_operations_are_those_that_are_said(monkeypatch, protocol, result, to):
    data = tables({"bank": range(40), "shop": range(9, 30)})
    data["shop"]["x"] = np.ones(21)
    if isinstance(protocol, Opprf):
        data |= tables({"mill": range(60)})
    done: Counter = Counter()

    def counted(module, name, operation, size):
        real = getattr(module, name)

        def call(*args, **more):
            done[operation] += size(*args)
            return real(*args, **more)

        monkeypatch.setattr(module, name, call)

    for module in (ecdh, unbalanced, opprf):
        counted(module, "raise_points", "raise", lambda points, *_: len(points))
        counted(module, "hash_keys", "point", len)
    counted(oprf, "mask_rows", "mask", lambda rows, *_: len(rows))
    counted(CodeReceiver, "extend", "row", lambda _, words: len(words) * (len(words[0]) == 64))
    counted(KeyValueTable, "encode", "cell", lambda keys, *_: len(keys))
    made = Alignment(protocol=protocol, result=result, to=to, show=True)
    run = atoll.simulate(made, data, engine="inline", progress=False)
    costs = made.explain(run.data).costs
    assert costs["bytes_with_headers"] == pytest.approx(run.bytes["bytes_relayed"], rel=0.05)
    work = dict(protocol.work(made.plan(list(data)), {name: len(table["id"]) for name, table in data.items()}))
    assert {name: done[name] for name in ("raise", "point", "mask", "row", "cell") if done[name] or name in work} == {name: work[name] for name in ("raise", "point", "mask", "row", "cell") if name in work}  # fmt: skip
    assert set(work) <= set(job.COSTS)
    assert work["key"] >= sum(len(table["id"]) for table in data.values())
    assert work.get("bit", 0) == (63 * cuckoo.bins_for(21) if isinstance(protocol, Circuit) else 0)


def test_seconds_are_those_of_the_operations_on_a_machine_of_this_speed(monkeypatch):
    monkeypatch.setattr(job, "_slowness", lambda: 2.0)
    sizes = {"bank": 1000, "shop": 3000}
    made = Alignment()
    work = Ecdh().work(made.plan(list(sizes)), sizes)
    assert job.predict_seconds(work) == pytest.approx(2e-6 * (4000 * (5 + 19 + 2 * 53 + 6)))
    assert made.explain(clients=2).costs["processor_seconds"] == pytest.approx(2e-6 * 2000 * 136)


def test_the_speed_of_this_machine_is_measured_once():
    job._slowness.cache_clear()
    assert 0.02 < job._slowness() < 50
    assert job._slowness() == job._slowness()
