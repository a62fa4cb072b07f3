"""Clocks kept from afar are those that the roles would keep themselves."""

from __future__ import annotations

from collections import deque

from hypothesis import given
from hypothesis import strategies as st

from atoll.core.execution.session import Chains

ROLES = "abc"
LATENCY = st.floats(0, 10, allow_nan=False)


@st.composite
def sessions(draw: st.DrawFn) -> tuple[dict[str, list[tuple[str, float | None]]], dict[str, float]]:
    """What each role did, in its own order, and the clocks that roles have who carry the time in their messages."""
    clocks = dict.fromkeys(ROLES, 1.5)
    did: dict[str, list[tuple[str, float | None]]] = {role: [] for role in ROLES}
    mail: dict[tuple[str, str], deque[float]] = {(a, b): deque() for a in ROLES for b in ROLES if a != b}
    for _ in range(draw(st.integers(0, 40))):
        a, b = draw(st.sampled_from(sorted(mail)))
        if mail[b, a] and draw(st.booleans()):
            clocks[a] = max(clocks[a], mail[b, a].popleft())
            did[a].append((b, None))
        else:
            seconds = draw(LATENCY)
            mail[a, b].append(clocks[a] + seconds)
            did[a].append((b, seconds))
    return did, clocks


@given(sessions(), st.randoms(use_true_random=False))
def test_the_order_in_which_words_come_does_not_matter(session, random) -> None:
    did, clocks = session
    chains = Chains(ROLES, 1.5)
    left = {role: deque(words) for role, words in did.items() if words}
    while left:
        role = random.choice(sorted(left))
        other, seconds = left[role].popleft()
        if seconds is None:
            chains.note_received(role, other)
        else:
            chains.note_sent(role, other, seconds)
        if not left[role]:
            del left[role]
    assert chains.times == clocks


def test_a_clock_waits_for_the_word_of_who_sent_it() -> None:
    chains = Chains(ROLES, 0.0)
    chains.note_received("b", "a")
    chains.note_sent("b", "c", 1.0)
    chains.note_received("c", "b")
    assert chains.times == {"a": 0.0, "b": 0.0, "c": 0.0}
    chains.note_sent("a", "b", 2.0)
    assert chains.times == {"a": 0.0, "b": 2.0, "c": 3.0}
