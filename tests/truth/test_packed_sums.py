"""Sums by packed shares are those of Shamir's, in fewer bytes, among fewer colluders."""

from __future__ import annotations

import math

import numpy as np
import pytest

import atoll
from atoll.core.errors import ConfigError
from atoll.engines import Inline
from atoll.truth import Logistic, OneCoin, Shamir, Truth, Virtual, plan_committee, plan_truth
from atoll.truth.planning import RECOVERY, SECRECY, _tail

from .test_campaigns import ADD, drawn, simulated


@pytest.mark.parametrize("more", [{}, {"seeds": False}, {"committee": 6}], ids=str)
@pytest.mark.parametrize("pack", [2, 3])
def test_packed_sums_are_equal_to_the_bit(pack, more):
    model = OneCoin(iterations=2)
    plain, packed = (simulated(Truth(model=model, protocol=Shamir(threshold=4, pack=one, **more))) for one in (1, pack))
    np.testing.assert_array_equal(packed.fit.broadcast["truth"], plain.fit.broadcast["truth"])
    assert packed.bytes_up < plain.bytes_up
    virtual = simulated(Truth(model=model, protocol=Virtual(of=Shamir(threshold=4, pack=pack, **more))))
    np.testing.assert_array_equal(virtual.fit.broadcast["truth"], plain.fit.broadcast["truth"])
    if "committee" not in more:
        assert (virtual.bytes_up, virtual.bytes_down) == (packed.bytes_up, packed.bytes_down)


def test_with_losses_they_say_what_those_who_were_there_say():
    result = simulated(Truth(model=Logistic(iterations=3), protocol=Shamir(threshold=3, pack=2), loss=0.15))
    assert result.lost
    assert result.compare_plain().max_difference < 2e-5


def test_a_wrong_packed_sum_is_corrected_and_its_holder_named():
    class Wrong(Inline):
        async def run(self, request, positions):
            replies = await super().run(request, positions)
            if request.task.name == ADD:
                replies[2].value = (replies[2].value + 1) % (2**32 - 5)
            return replies

    result = simulated(Truth(model=OneCoin(iterations=1), protocol=Shamir(threshold=4, pack=3)), engine=Wrong())
    assert result.wrong == ("w2",)
    assert result.compare_plain().max_difference < 1e-5


def test_shares_of_many_tasks_are_shorter_by_the_factor():
    """60 workers on 960 events: of 8 bytes each, beside the envelopes."""
    asked = {"model": Logistic(), "tasks": [f"e{i}" for i in range(960)], "classes": ["0", "1"]}
    sizes = {}
    for pack in (1, 4):
        said = Truth(**asked, protocol=Shamir(pack=pack, seeds=False)).explain(clients=60)
        sizes[pack] = said.costs["bytes_shares"]
        assert any(f"up to {30 - pack} of the 60 holders" in one.who for one in said.exposures)
    assert sizes == {1: 60 * 960 * 8, 4: 60 * 240 * 8}


def test_the_plan_says_what_packing_costs():
    """With as many colluders as before, `pack - 1` users more must remain."""
    plain, packed = (plan_truth(100, 50, 0.05, 10, ranking_threshold=10, pack=pack, trials=1) for pack in (1, 6))
    assert plain.success_packed == plain.success
    assert packed.success_packed == plan_truth(100, 55, 0.05, 10, ranking_threshold=10, trials=1).success < plain.success  # fmt: skip
    made = plan_committee(400, 0.05, 0.1, pack=5)
    assert made.members > plan_committee(400, 0.05, 0.1).members
    safe = made.threshold - 4  # so many colluders see something
    assert _tail(400, 40, made.members)[safe] <= SECRECY
    assert _tail(400, math.ceil(20), made.members)[made.members - made.threshold + 1] <= RECOVERY


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Shamir(pack=0), "use 1 number of a polynomial or more"),
        (lambda: Shamir(pack=2, checks=True), "pack=1 with checks or min_reporters"),
        (lambda: Shamir(pack=2, min_reporters=2), "pack=1 with checks or min_reporters"),
        (lambda: Shamir(threshold=3, pack=3).plan_holders(7), "use a threshold of 4 or more, or pack fewer"),
        (lambda: plan_truth(100, 50, 0.05, 10, ranking_threshold=10, pack=52, trials=1), "pack 1 to 51 numbers"),
    ],
)
def test_settings_that_make_no_sense_are_refused_with_a_remedy(make, said):
    with pytest.raises(ConfigError, match=said):
        make()


def test_a_committee_packs():
    parts = atoll.truth.split_by_worker(drawn(14, 6))
    result = simulated(Truth(model=OneCoin(iterations=1), protocol=Shamir(committee=12, threshold=8, pack=4)), parts)
    assert result.holders == (12, 8)
    assert result.compare_plain().max_difference < 2e-5
