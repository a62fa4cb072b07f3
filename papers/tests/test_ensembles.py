"""The reproductions of ensembles: what they make their data of, and how they judge."""

from __future__ import annotations

import numpy as np
import pytest

from atoll_papers import ensembles
from atoll_papers.ensembles import digits_of, segments_of


def test_users_of_segments_follow_their_formula() -> None:
    islands, again, other = segments_of(3, users=8), segments_of(3, users=8), segments_of(4, users=8)
    assert islands.names == other.names
    assert np.array_equal(islands.shard(5)["x"], again.shard(5)["x"])
    assert not np.array_equal(islands.shard(5)["x"], other.shard(5)["x"])
    assert [int(islands.shard(user)["segment"][0]) for user in range(8)] == [0, 1, 2, 3, 0, 1, 2, 3]
    assert len(islands.shard(0)["y"]) == 30
    assert islands.test is not None
    assert len(islands.test) == 80


def test_no_client_has_the_rows_without_labels() -> None:
    islands, rows = digits_of(0)
    assert len(islands) == 10
    assert rows.shape == (400, 64)
    assert sum(islands.sizes) + len(rows) == 1437
    held = {one.tobytes() for user in range(10) for one in np.asarray(islands.shard(user)["x"])}
    assert sum(one.tobytes() in held for one in rows) <= 2  # a digit may stand twice in the set


def test_a_line_holds_within_four_points_of_the_mean() -> None:
    found = [{"alone": 50.0, "new": 1.0}, {"alone": 58.0, "new": 3.0}]
    claims = ensembles._beside(found, {"alone": 58.0}, "Once")
    assert [(one.ours, one.holds, one.kind) for one in claims] == [("54.0", True, "statement"), ("2.0", None, "figure")]
    assert ensembles._beside(found, {"alone": 58.1}, "Once")[0].holds is False


@pytest.mark.slow
@pytest.mark.parametrize("entry", [ensembles.SUB_MODELS_ENTRY, ensembles.SEGMENTS_ENTRY, ensembles.ONE_SHOT_ENTRY])
def test_a_quick_run_judges_every_line(entry: object, tmp_path: object) -> None:
    from atoll.reproduce import Lab

    claims = entry.run(Lab(tmp_path), True)  # type: ignore[attr-defined, arg-type]
    assert claims
    assert all(one.kind == "figure" or one.holds is not None for one in claims)
