"""The stores obey the laws, and agree on everything."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from atoll.core.errors import JobError
from atoll.runtime.store.records import JobState, JobStore
from atoll.runtime.store.sqlite import SqliteStore
from tests.support.memory_store import MemoryStore
from tests.support.store_laws import StoreLaws, job


class TestMemory(StoreLaws):
    @pytest.fixture
    def store(self) -> JobStore:
        return MemoryStore()

    @pytest.fixture
    def small(self) -> Callable[[], JobStore]:
        return lambda: MemoryStore(log_lines=5, log_width=10)


class TestSqlite(StoreLaws):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[JobStore]:
        made = SqliteStore(tmp_path / "store")
        yield made
        made.close()

    @pytest.fixture
    def small(self, tmp_path: Path) -> Callable[[], JobStore]:
        return lambda: SqliteStore(tmp_path / "small", log_lines=5, log_width=10)


steps = st.lists(
    st.one_of(
        st.tuples(st.just("submit"), st.sampled_from("abc"), st.sampled_from(["x", "y"])),
        st.tuples(st.just("move"), st.integers(0, 3), st.sampled_from(list(JobState)), st.booleans()),
        st.tuples(st.just("delete"), st.integers(0, 3)),
        st.tuples(st.just("log"), st.integers(0, 3), st.sampled_from("ab"), st.lists(st.text(max_size=12), max_size=4)),
        st.tuples(st.just("restart")),
    ),
    max_size=25,
)


def act(store: JobStore, step: tuple[Any, ...], now: float) -> Any:
    """Take a step; what it gives, or the words of the refusal."""
    jobs = [record.id for record in store.jobs()]
    name = jobs[step[1]] if step[0] in ("move", "delete", "log") and step[1] < len(jobs) else "nobody"
    try:
        match step:
            case ("submit", token, label):
                return store.submit(job(token, name=label), now=now, who="ann")
            case ("move", _, state, progress):
                return store.move(
                    name, state, now=now, progress=progress, reason="so", sites=("a",) if progress else None
                )
            case ("delete", _):
                return store.delete(name, now=now, who="ann")
            case ("log", _, node, lines):
                return store.log(name, node, lines, now=now)
            case _:
                return store.restart(now=now)
    except JobError as error:
        return str(error)


def seen(store: JobStore) -> Any:
    """Everything that a store tells."""
    return store.jobs(), store.events(), [store.lines(record.id) for record in store.jobs()]


@settings(
    max_examples=settings.default.max_examples // 3,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(steps)
def test_sqlite_tells_what_memory_tells(tmp_path_factory: pytest.TempPathFactory, taken: list[tuple[Any, ...]]) -> None:
    folder = tmp_path_factory.mktemp("store")
    memory, sqlite = MemoryStore(log_lines=3, log_width=8), SqliteStore(folder, log_lines=3, log_width=8)
    try:
        for now, step in enumerate(taken):
            assert act(memory, step, float(now)) == act(sqlite, step, float(now))
        assert seen(memory) == seen(sqlite)
    finally:
        sqlite.close()
    again = SqliteStore(folder, log_lines=3, log_width=8)
    assert seen(memory) == seen(again)
    again.close()
