"""A site runs what was signed once as one job, until that has ended; whatever it forgets, it takes nothing old for new."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from atoll.core.errors import BundleError, CheckpointError
from atoll.runtime.bundle import Manifest, Verified
from atoll.runtime.identity import Peer
from atoll.runtime.site.ledger import Register


def signed(number: int, when: int | None = None, who: str = "ann") -> Verified:
    """The bundle of a number."""
    return Verified(
        Manifest((), f"{number:032x}", number if when is None else when), Peer(who, "admin", "x", 1, ""), b""
    )


def test_a_signing_is_one_job_in_any_number_of_attempts(tmp_path: Path) -> None:
    register = Register(tmp_path / "r.json")
    for _ in range(3):  # attempts, and resumptions
        register.admit("1", signed(1))
    with pytest.raises(BundleError, match=r"ran here as job 1 already .in job 2, deployment.*atoll clone"):
        register.admit("2", signed(1))
    with pytest.raises(BundleError, match=r"the job has run another bundle here .in job 1"):
        register.admit("1", signed(2))
    register.admit("2", signed(3))
    register.admit("1", signed(1))


def test_what_is_known_is_one_manifest_as_one_job_until_its_end(tmp_path: Path) -> None:
    register, bundle = Register(tmp_path / "r.json"), signed(1)
    assert not register.knows("1", bundle.manifest)
    register.admit("1", bundle)
    for again in (register, Register(tmp_path / "r.json")):
        assert again.knows("1", bundle.manifest)
        assert not again.knows("2", bundle.manifest)
        other = signed(1, when=2)  # the same nonce around something else
        assert not again.knows("1", other.manifest)
        with pytest.raises(BundleError, match="has run another bundle here"):
            again.admit("1", other)
    register.end("1")
    assert not register.knows("1", bundle.manifest)


def test_a_job_that_has_ended_is_over_also_for_the_next_process(tmp_path: Path) -> None:
    register = Register(tmp_path / "r.json")
    register.admit("1", signed(1))
    register.admit("2", signed(2))
    register.end("1")
    register.end("1")
    register.end("unknown")
    for again in (register, Register(tmp_path / "r.json")):
        assert again.over == {"1"}
        for job in ("1", "3"):
            with pytest.raises(BundleError, match=r"has ended here for good|ran here as job 1 already"):
                again.admit(job, signed(1))
        again.admit("2", signed(2))


def test_what_is_let_go_leaves_a_mark(tmp_path: Path) -> None:
    register = Register(tmp_path / "r.json", most=3)
    for number in (10, 11, 12):
        register.admit(str(number), signed(number))
    register.end("11")
    register.admit("13", signed(13))  # 11 goes: it has ended
    register.admit("10", signed(10))  # known, however old
    for number in (11, 9):
        with pytest.raises(
            BundleError, match=r"signed on 1970-01-01 00:00:00 UTC, longer ago than this site remembers"
        ):
            register.admit("x", signed(number))
    register.admit("b", signed(99, when=5, who="bob"))  # another admin's clock is another clock
    assert len(Register(tmp_path / "r.json", most=3)._entries) == 3


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    steps=st.lists(
        st.tuples(st.integers(0, 7), st.integers(0, 7), st.sampled_from(["admit", "end", "anew"])), max_size=30
    )
)
def test_no_bundle_ever_runs_as_two_jobs_or_after_its_end(tmp_path: Path, steps: list[tuple[int, int, str]]) -> None:
    path = tmp_path / "r.json"
    path.unlink(missing_ok=True)
    register, over = Register(path, most=2), set[int]()
    ran: dict[int, int] = {}
    for number, job, what in steps:
        if what == "anew":
            register = Register(path, most=2)
        elif what == "end":
            register.end(str(job))
            over |= {n for n, j in ran.items() if j == job and str(job) in register.over}
        else:
            try:
                register.admit(str(job), signed(number))
            except BundleError:
                continue
            assert ran.setdefault(number, job) == job
            assert number not in over
        assert len(register._entries) <= 2


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"[]", b'{"atoll":2,"bundles":[],"before":{}}', b'{"atoll":1,"bundles":[[]],"before":{}}']
)
def test_a_damaged_register_lets_nothing_run(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "r.json").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"the register of bundles cannot be read.*restore the file"):
        Register(tmp_path / "r.json")


def test_what_cannot_be_written_down_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    register = Register(tmp_path / "r.json")

    def full(path: Path, content: bytes) -> None:
        raise CheckpointError("could not write", where=str(path), remedy="free space")

    with monkeypatch.context() as patch:
        patch.setattr("atoll.runtime.site.ledger.write_bytes", full)
        with pytest.raises(CheckpointError, match="could not write"):
            register.admit("1", signed(1))
    register.admit("2", signed(1))  # nothing was remembered of it
