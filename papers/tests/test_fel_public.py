"""The tables of fel-movielens and fel-celeba: files are read as they are written, opt-in users alone make the embedding, and the label clusters nobody."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from atoll.core.errors import DataError
from atoll.ensemble import AttributeClusters, CentroidClusters
from atoll_papers import fel_public
from atoll_papers.fel_public import draw_faces, draw_films, embed_films, faces_of, films_of, read_faces, read_films


def write_films(folder: Path, table: fel_public.Table) -> None:
    """Write the files of MovieLens 100K."""
    place = folder / "movielens_100k"
    place.mkdir()
    rated = zip(table["user"], table["item"], table["stars"], strict=True)
    (place / "u.data").write_text("".join(f"{u + 1}\t{i + 1}\t{int(s)}\t0\n" for u, i, s in rated))
    people = enumerate(zip(table["age"], table["male"], strict=True), 1)
    (place / "u.user").write_text("".join(f"{k}|{age}|{'M' if male else 'F'}|writer|0\n" for k, (age, male) in people))
    films = enumerate(zip(table["year"], table["kinds"], strict=True), 1)
    lines = (
        f"{k}|Café {k}|{f'01-Jan-{year}' if year else ''}||http|{'|'.join(map(str, kinds))}\n"
        for k, (year, kinds) in films
    )
    (place / "u.item").write_text("".join(lines), encoding="latin-1")


def test_films_are_read_as_they_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = dict(draw_films(2, users=9, items=30, each=5))
    table["year"][3] = 0  # not known
    write_films(tmp_path, table)
    monkeypatch.setenv("ATOLL_DATA", str(tmp_path))
    found = read_films()
    assert set(found) == set(table)
    assert all(np.array_equal(found[name], table[name]) for name in table)
    (tmp_path / "movielens_100k" / "u.user").write_text("1|old|M|writer|0\n")
    with pytest.raises(DataError, match="a line of users or items: invalid literal"):
        read_films()


def test_only_opt_in_users_make_the_embedding() -> None:
    table = draw_films(4)
    opt_in = np.array([3, 50, 99])
    others = ~np.isin(table["user"], opt_in)
    moved = {**table, "stars": np.where(others, 1.0, table["stars"])}
    found = embed_films(table, opt_in, 200)
    np.testing.assert_array_equal(found, embed_films(moved, opt_in, 200))
    seen = np.unique(table["item"][~others])
    assert found[seen].any()
    np.testing.assert_allclose(np.delete(found, seen, axis=0), 0, atol=1e-9)
    assert not embed_films(table, np.array([], np.int64), 200).any()


def test_users_of_films_have_one_group_and_a_quarter_of_their_rows_for_tests() -> None:
    table = draw_films(1)
    job = fel_public._job(AttributeClusters("age"), 28, 1, 0.1)
    islands = films_of(table, job, seed=5)
    assert len(islands) == 120
    assert islands.test is not None
    assert len(islands.test) == 120 * 7
    assert set(job.draw_opt_in([str(name) for name in islands.names])) < set(islands.names)
    for user in range(120):
        own = islands.shard(user)
        assert own["x"].shape == (23, 28)
        assert len(np.unique(own["age"])) == 1
    assert np.array_equal(islands.shard(7)["x"], films_of(table, job, seed=5).shard(7)["x"])
    assert not np.array_equal(islands.shard(7)["x"], films_of(table, job, seed=6).shard(7)["x"])


def test_smiling_is_the_label_and_no_attribute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = np.random.default_rng(0)
    names = np.array([*(f"attribute {k}" for k in range(31)), "Smiling", *(f"attribute {k}" for k in range(31, 39))])
    attr = draw.integers(0, 2, (60, 40)).astype(np.uint8)
    (tmp_path / "celeba_attr").mkdir()
    np.savez(tmp_path / "celeba_attr" / "celeba_attr.npz", attr=attr, attr_names=names, identity=np.arange(60) // 15)
    monkeypatch.setenv("ATOLL_DATA", str(tmp_path))
    found = read_faces()
    np.testing.assert_array_equal(np.maximum(found["y"], 0), attr[:, 31])
    np.testing.assert_array_equal(found["x"], np.delete(attr, 31, axis=1))
    islands = faces_of(found, people=3, seed=0)
    assert len(islands) == 3
    assert [len(islands.shard(k)) for k in range(3)] == [12] * 3


def test_people_are_clustered_by_attributes_and_by_their_number() -> None:
    islands = faces_of(draw_faces(3), people=60, seed=0)
    assert {name: len(np.unique(islands.shard(k)["third"])) for k, name in enumerate(islands.names)} == dict.fromkeys(
        islands.names, 1
    )
    rule = CentroidClusters(3, [f"a{k}" for k in range(39)])
    assert "y" not in rule.looks_at
    thirds = [int(islands.shard(k)["third"][0]) for k in range(60)]
    many = [float(np.asarray(islands.shard(k)["x"]).sum(1).mean()) for k in range(60)]
    assert np.corrcoef(thirds, many)[0, 1] > 0.7


@pytest.mark.slow
@pytest.mark.parametrize("entry", [fel_public.MOVIELENS_ENTRY, fel_public.CELEBA_ENTRY])
def test_a_quick_run_judges_every_line(entry: object, tmp_path: Path) -> None:
    from atoll.reproduce import Lab

    claims = entry.run(Lab(tmp_path), True)  # type: ignore[attr-defined]
    assert all(one.kind == "figure" or one.holds is not None for one in claims)
