"""The figures: what is drawn, from what, and the same file twice."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

from atoll_papers.safa.figures import Span, Timeline, draw_losses, draw_timeline, lengths, losses, main, timeline


def test_a_timeline_is_a_run() -> None:
    plain, safa, buffered = (timeline(pace, 12) for pace in ("FedAvg", "SAFA", "FedBuff"))
    assert timeline("SAFA", 12) == safa
    for made in (plain, safa, buffered):
        assert made.rounds == sorted(made.rounds)
        assert len(made.rounds) == 12
        assert all(span.end > span.start >= 0 for span in made.spans)
        assert {span.client for span in made.spans} <= set(range(6))
        assert 0 < sum(span.lost for span in made.spans) < 0.6 * len(made.spans)
        # Nobody does two things at once.
        for client in range(6):
            own = sorted((s.start, s.end) for s in made.spans if s.client == client)
            assert all(a[1] <= b[0] + 1e-9 for a, b in itertools.pairwise(own))
    assert max(plain.rounds) > 5 * max(safa.rounds)  # a deadline of 600 s, and in most rounds somebody crashes
    assert safa.busy > 3 * plain.busy


def test_the_share_of_time_at_work() -> None:
    made = Timeline([Span(0, 0, 50, False), Span(1, 0, 90, True), Span(1, 90, 190, False), Span(0, 150, 160, False)], [100.0])  # fmt: skip
    assert made.busy == pytest.approx((50 + 10) / 200)


def test_strict_waiting_removes_the_gain() -> None:
    for crash in (0.3, 0.7):
        made = lengths(crash, 1)
        tables, strict = made["SAFA, the tables' rule"], made["SAFA that waits as Algorithm 1 says"]
        assert strict[0] < 0.15 < 0.9 < min(made["FedAvg"])
        assert strict[-1] > 0.95  # C = 1 > 1 - cr
        assert tables[-1] < 0.9


def test_losses_of_a_lab(tmp_path: Path) -> None:
    for name, status, seed, values in (
        ("safa-boston-safa-0.3-0.3", "finished", 0, [3.0, 2.0]),
        ("safa-boston-fedavg-0.3-0.3", "finished", 1, [9.0]),
        ("safa-boston-fedcs-0.3-0.3", "running", 0, [9.0]),
        ("safa-boston-fedcs-0.3-0.1", "finished", 0, [9.0]),
        ("safa-boston-alone-3", "finished", 0, [9.0]),
    ):
        folder = tmp_path / "safa-boston" / f"{name}-{seed}"
        folder.mkdir(parents=True)
        (folder / "manifest.json").write_text(json.dumps({"name": name, "status": status, "seed": seed}))
        (folder / "metrics.jsonl").write_text("".join(json.dumps({"test/loss": v}) + "\n" for v in values))
    (tmp_path / "safa-boston" / "safa-boston-empty").mkdir()
    found = losses(tmp_path)
    assert found == {("boston", 0.3, "SAFA"): [3.0, 2.0]}
    pytest.importorskip("matplotlib")
    assert "<svg" in draw_losses(tmp_path, found).read_text()


@pytest.mark.slow
def test_figures_are_the_same_twice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    main([str(tmp_path / "made"), "--seeds", "1"])
    assert draw_timeline(tmp_path).read_bytes() == (tmp_path / "made" / "asynchrony-timeline.svg").read_bytes()
    assert {path.name for path in (tmp_path / "made").iterdir()} == {
        "asynchrony-timeline.svg",
        "asynchrony-lengths.svg",
    }
    assert "asynchrony-lengths.svg" in capsys.readouterr().out
