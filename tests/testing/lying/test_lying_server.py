"""A server that lies: it sees what it is told, it learns what a missing guard lets it, and it drives any reducer."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.core.errors import ConfigError
from atoll.core.federation.reducer import Plain
from atoll.core.requests.task import task
from atoll.testing import check_reducer
from atoll.testing.lying import MOVES, TARGETS, AttackTarget, attack, attack_all, require_refusals
from atoll.testing.lying.guards import GUARDS, LieGuard, without_guard
from atoll.testing.lying.opening import open_places, whole_places
from tests.support import double_masked as D

# ---------------------------------------------------------------------- what it can see


@given(st.lists(st.integers(-(2**20), 2**20), min_size=2, max_size=20))
def test_a_vector_is_open_only_without_its_mask(numbers):
    words = np.array(numbers, dtype=np.int64).view(np.uint64) << np.uint64(24)
    assert open_places(words) == tuple(numbers)
    mask = np.random.default_rng(0).integers(0, 2**64, size=len(numbers), dtype=np.uint64)
    assert open_places(words + mask) is None
    assert open_places(words + np.uint64(1)) is None


def test_a_decoded_sum_is_open_if_it_has_no_noise():
    assert whole_places(np.array([3.0, 0.0, -7.0])) == (3, 0, -7)
    assert whole_places(np.array([3.2, 0.0])) is None
    assert whole_places(np.array([np.nan, 0.0])) is None
    assert whole_places(np.array([1e12, 0.0])) is None


@pytest.mark.parametrize("protocol", TARGETS)
@pytest.mark.quick("enclave", "bounded")
def test_a_server_that_lies_learns_nothing(protocol):
    """`attack` first requires that the reader opens the sum of an honest server, else no lie would be seen to succeed."""
    found, reasons = attack(TARGETS[protocol])
    assert set(found) == set(MOVES)
    assert "learned" not in found.values(), reasons
    assert found["repeat"] in ("refused", "same bytes")
    assert {move for move, what in found.items() if what == "none"} <= {"edited-replies"}, reasons
    assert found["edited-replies"] == "refused" or "adds its part" in reasons["edited-replies"]


# ---------------------------------------------------------------------- what it learns without a guard

UNGUARDED = [(name, protocol) for name, guard in GUARDS.items() for protocol in guard.moves]


@pytest.mark.parametrize(("guard", "protocol"), UNGUARDED)
@pytest.mark.quick("inner-secagg", "second-one-shot", "trust-secagg", "votes-enclave")
def test_each_guard_switched_off_lets_the_server_learn(guard, protocol):
    """With its guards, `test_a_server_that_lies_learns_nothing` makes the same moves in vain."""
    moves = GUARDS[guard].moves[protocol]
    with without_guard(guard):
        found, reasons = attack(TARGETS[protocol], moves=moves)
    assert found == dict.fromkeys(moves, "learned"), reasons


def test_every_guard_counts():
    assert all(guard.moves for guard in GUARDS.values())
    stopped = {move for guard in GUARDS.values() for moves in guard.moves.values() for move in moves}
    assert stopped <= set(MOVES)
    page = (Path(__file__).parents[3] / "docs" / "concepts" / "secure-sums.md").read_text(encoding="utf-8")
    table = page.partition("## A server that lies")[2].partition("Some guards stand behind others")[0]
    assert not [name for name in (*GUARDS, *stopped) if f"`{name}`" not in table]


def test_a_guard_that_has_moved_is_named(monkeypatch):
    monkeypatch.setitem(GUARDS, "gone", LieGuard("nothing", {"atoll.secure.tree:Oak.climb": None}, {}))
    with pytest.raises(ConfigError, match=r"no Oak\.climb in atoll\.secure\.tree"), without_guard("gone"):
        pass
    with pytest.raises(ConfigError, match="guard 'none of ours'"), without_guard("none of ours"):
        pass


# ---------------------------------------------------------------------- a reducer of your own


@task
def reveal_any(island, message):
    """Shares of whatever is asked for, as often as it is."""
    return [island.state["shares"][a][b] for a, b in D.opened(message["kept"], message["lost"])]


class RevealsAny(D.DoubleMasked):
    async def reduce(self, reduction):
        return await super().reduce(_Swapped(reduction))


class _Swapped:
    def __init__(self, reduction):
        self._reduction = reduction

    def __getattr__(self, name):
        return getattr(self._reduction, name)

    async def ask_all(self, parties, half, *args, **more):
        return await self._reduction.ask_all(parties, reveal_any, *args, **more)


class NeverSums(D.DoubleMasked):
    async def reduce(self, reduction):
        raise ArithmeticError("no sum")


def test_a_reducer_of_your_own_is_attacked():
    honest = D.DoubleMasked()
    require_refusals(honest, moves=["repeat", "other-key", "other-label", "two-halves"])
    with pytest.raises(AssertionError, match="RevealsAny breaks the law of lies, other-set: the server learns client-"):
        require_refusals(RevealsAny(), moves=["repeat", "other-set"])
    with pytest.raises(
        AssertionError, match=r"DoubleMasked breaks the law of lies, smaller-sum: .* what client-0 holds"
    ):
        require_refusals(honest, moves=["smaller-sum"])
    unguarded = pytest.raises(AssertionError, match=r"lies, other-key: .* two answers of client-0 under one mask")
    with without_guard("requests"), unguarded:
        require_refusals(honest, moves=["other-key"])
    with pytest.raises(AssertionError, match="NeverSums breaks the law of lies: an honest sum fails"):
        require_refusals(NeverSums())


@pytest.mark.slow
def test_check_reducer_makes_the_moves():
    check_reducer(D.DoubleMasked(), lies=["repeat", "other-key", "two-halves"])
    with pytest.raises(AssertionError, match="DoubleMasked breaks the law of lies, other-set"):
        check_reducer(D.DoubleMasked(), lies=MOVES)


@dataclasses.dataclass(frozen=True)
class Faulty(Plain):
    secure = True

    def check(self, uplink, parties, terms, task):
        """Allow everything."""


def test_a_plain_sum_that_claims_to_be_secure_is_read():
    found, reasons = attack(AttackTarget(Faulty(), "", least=6), moves=["smaller-sum"])
    assert found == {"smaller-sum": "learned"}
    assert reasons["smaller-sum"] == "two sums whose difference is what client-0 holds"


def test_unknown_protocols_and_moves_are_named():
    with pytest.raises(ConfigError, match="'secag'"):
        attack_all(["secag"])
    with pytest.raises(ConfigError, match="'shout'"):
        attack_all(["secagg"], moves=["shout"])


# ---------------------------------------------------------------------- between real processes


@pytest.mark.slow
@pytest.mark.parametrize("protocol", TARGETS)
def test_between_real_sites_every_move_is_made(protocol):
    found, reasons = attack(TARGETS[protocol], real=True)
    assert set(found) == set(MOVES)
    assert "learned" not in found.values(), reasons
    assert found["repeat"] in ("refused", "same bytes")
    assert found["below-least"] == "refused"
    assert found["kill"] != "none"


@pytest.mark.slow
def test_over_mutual_tls_the_same_server_lies(tmp_path):
    from atoll.testing.lying.sites import LyingSites
    from tests.support.bridge import Bridge, Bridged
    from tests.support.certificates import authority

    class LyingBridged(LyingSites, Bridged):
        """A lying server whose links cross the bridge."""

    bridge = Bridge(tmp_path, "grpc", authority())
    try:
        moves = [move for move in MOVES if move != "kill"]  # the bridge joins each site's channel once
        found, _ = attack(TARGETS["two-servers"], moves=moves, make_server=lambda: LyingBridged(bridge, "lies"))
    finally:
        bridge.close()
    assert set(found) == set(moves)
    assert found["repeat"] == found["below-least"] == "refused"
