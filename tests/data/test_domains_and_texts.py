"""Digits in domains, texts as vectors, and the DATA of commands; with generated and bundled data only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import atoll.data
from atoll.core.errors import DataError
from atoll.data import (
    Dataset,
    Domains,
    TextVectors,
    WordVectors,
    adaptation,
    digit_domains,
    divided_by_party,
    read_data,
)
from atoll.data.folder.images import enlarged, on_patches, printed_digits, textures
from atoll.data.missing import labelled_rows


def written(rows: int = 60, seed: int = 0) -> Dataset:
    """Bundled digits as large as MNIST's, in its place."""
    small = atoll.data.digits(flat=False, test=0, seed=seed).take(slice(0, 2 * rows))
    big = small.with_columns({"x": enlarged(small.x)})
    return big.take(slice(0, rows)).with_test(big.take(slice(rows, 2 * rows)))


def test_five_domains_share_no_picture_and_have_equal_classes() -> None:
    made = digit_domains(rows=20, test=10, base=written(150), backgrounds=_pictures(), seed=3)
    names, counts = np.unique(made["domain"], return_counts=True)
    assert dict(zip(names.tolist(), counts.tolist(), strict=True)) == dict.fromkeys(
        ("fonts", "inverted", "patches", "plain", "small"), 20
    )
    assert made.x.shape == (100, 1, 28, 28)
    assert made.x.min() >= 0
    assert made.x.max() <= 1
    assert made.test is not None
    for name in names:
        y = made.y[made["domain"] == name]
        assert np.bincount(y, minlength=10).tolist() == [2] * 10
    dark = made.x[made["domain"] == "inverted"].mean(axis=(1, 2, 3))
    assert dark.min() > 0.5 > made.x[made["domain"] == "plain"].mean()
    plain = 1 - np.concatenate([p.x[p["domain"] == "inverted"] for p in (made, made.test)])
    others = np.concatenate([p.x[p["domain"] == "plain"] for p in (made, made.test)])
    assert len(np.unique(np.concatenate([np.round(plain, 5), np.round(others, 5)]), axis=0)) == 60
    again = digit_domains(rows=20, test=10, base=written(150), backgrounds=_pictures(), seed=3)
    np.testing.assert_array_equal(made.x, again.x)


def _pictures() -> Dataset:
    made = textures(12, np.random.default_rng(5))
    return Dataset({"x": made[:8], "y": np.zeros(8, int)}).with_test(Dataset({"x": made[8:], "y": np.zeros(4, int)}))


def test_a_patch_is_the_difference_of_the_digit_and_a_background() -> None:
    rng = np.random.default_rng(0)
    behind = rng.random((3, 3, 31, 30)).astype(np.float32)
    digits = (rng.random((5, 1, 28, 28)) < 0.3).astype(np.float32)
    made = on_patches(digits, behind, np.random.default_rng(1))
    grey = behind.mean(axis=1)
    cuts = [g[i : i + 28, j : j + 28] for g in grey for i in range(4) for j in range(3)]
    for one, digit in zip(made, digits, strict=True):
        assert any(np.allclose(one[0], np.abs(cut - digit[0]), atol=1e-6) for cut in cuts)


def test_enlarging_keeps_planes_and_printed_digits_are_read_by_a_classifier() -> None:
    plane = (np.arange(8)[:, None] * 2.0 + np.arange(8)[None]).astype(np.float32)[None, None]
    inner = enlarged(plane, 28, 2)[0, 0, 4:-4, 4:-4]
    np.testing.assert_allclose(np.diff(inner, 2, axis=0), 0, atol=1e-4)  # linear inside
    np.testing.assert_allclose(np.diff(inner, axis=1), 8 / 24, atol=1e-4)
    x, y = printed_digits(500, np.random.default_rng(0))
    flat = x.reshape(500, -1)
    nearest = (flat[400:] @ flat[:400].T - (flat[:400] ** 2).sum(1) / 2).argmax(1)
    assert (y[nearest] == y[400:]).mean() > 0.6


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"domains": ["plan"]}, "no domain 'plan'. Did you mean 'plain'"),
        ({"rows": 40}, "3 domains of 40 rows need 120 digits, and there are 60"),
        ({"rows": 0}, "rows=0"),
        ({"base": Dataset({"x": np.zeros((3, 4)), "y": [0, 1, 2]})}, r"digits of shape \(4,\), without test rows"),
    ],
)
def test_domains_that_cannot_be_made_are_refused(options: dict[str, Any], message: str) -> None:
    given_: dict[str, Any] = {"rows": 20, "test": 10, "base": written(), "backgrounds": _pictures(), **options}
    with pytest.raises(DataError, match=message):
        digit_domains(**given_)


def test_adaptation_hides_the_targets_labels_and_tests_on_them() -> None:
    made = digit_domains(rows=20, test=10, domains=["plain", "inverted", "small"], base=written(), seed=0)
    islands, roles = adaptation(made, "inverted")
    assert list(islands.names) == ["plain", "small", "inverted"]
    assert [roles.role(name) for name in islands.names] == ["source", "source", "target"]
    target = islands.shard("inverted")
    assert not labelled_rows(target).any()
    assert not target.y.any()
    assert islands.test is not None
    assert set(islands.test["domain"].tolist()) == {"inverted"}
    assert len(np.unique(islands.test.y)) == 10
    assert labelled_rows(islands.shard("small")).all()
    with pytest.raises(DataError, match=r"no domain 'outverted'\. Did you mean 'inverted'"):
        adaptation(made, "outverted")
    with pytest.raises(DataError, match="plain is a source and a target"):
        adaptation(made, "plain", sources=["plain", "small"])
    others, roles = adaptation(made, "inverted", unseen=True)
    assert list(others.names) == ["plain", "small"]
    assert roles.targets == ("inverted",)
    assert np.array_equal(others.test.y, islands.test.y)  # type: ignore[union-attr]


@settings(deadline=None, max_examples=30)
@given(st.lists(st.floats(0, 1), min_size=0, max_size=3), st.integers(1, 3), st.integers(1, 2))
def test_weights_of_a_target_add_up_to_one_unless_all_are_named(
    given_: list[float], sources: int, targets: int
) -> None:
    s, t = tuple(f"s{i}" for i in range(sources)), tuple(f"t{i}" for i in range(targets))
    named = {(s[i], t[0]): w / 4 for i, w in enumerate(given_[: sources - 1])}
    matrix = Domains(s, t, named).matrix
    np.testing.assert_allclose(matrix.sum(axis=0), 1.0)
    np.testing.assert_allclose(Domains(s, t).weighted(matrix).matrix, matrix)
    with pytest.raises(DataError, match="weight -1"):
        Domains(s, t, {(s[0], t[0]): -1.0})


WORDS = ["late", "flight", "crew", "kind", "lost", "bag", "thanks", "delay", "seat", "great"]


def tweets(rows: int, seed: int = 0) -> list[str]:
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(WORDS, rng.integers(2, 7))) for _ in range(rows)]


def test_vectors_are_the_leading_directions_of_tf_idf() -> None:
    """Oracle: the exact singular value decomposition, and scikit-learn's weights."""
    from sklearn.feature_extraction.text import TfidfTransformer

    texts = tweets(80)
    form = TextVectors(dims=6, buckets=128, passes=12)
    fitted = form.fit([texts[:50], texts[50:]])
    counts = form.counts(texts)
    x = TfidfTransformer().fit_transform(counts).toarray()
    _, values, directions = np.linalg.svd(x, full_matrices=False)
    np.testing.assert_allclose(fitted.strengths, values[:6], rtol=1e-3)
    overlap = np.linalg.svd(fitted.basis.T @ directions[:6].T, compute_uv=False)
    assert overlap.min() > 0.99
    np.testing.assert_allclose(np.linalg.norm(fitted(texts), axis=1), np.sqrt(6), rtol=1e-4)


def test_parties_learn_what_their_pooled_texts_would_teach() -> None:
    texts = tweets(60)
    form = TextVectors(dims=4, buckets=64)
    alone, together = form.fit([texts]), form.fit([texts[:10], texts[10:45], texts[45:]])
    np.testing.assert_allclose(alone.idf, together.idf)
    np.testing.assert_allclose(alone(texts), together(texts), atol=5e-3)
    with pytest.raises(DataError, match="no texts to fit"):
        form.fit([[]])
    with pytest.raises(DataError, match="dims=60"):
        TextVectors(dims=60, buckets=64)


def test_test_rows_take_no_part_in_the_fit(tmp_path: Path) -> None:
    def made(last: str) -> Dataset:
        rows = [f"{text},{k % 2}" for k, text in enumerate(tweets(40))]
        (tmp_path / "a.csv").write_text("\n".join(["text,y", *rows]))
        data = read_data(tmp_path / "a.csv", target="y", text="text", test=10, vectors=TextVectors(dims=4))
        assert data.test is not None
        changed = data.test.with_columns({"text": np.array([last] * len(data.test))})
        bare = Dataset({"text": data["text"], "y": data.y}).with_test(
            Dataset({"text": changed["text"], "y": changed.y})
        )
        return atoll.data.with_text_vectors(bare, form=TextVectors(dims=4))

    np.testing.assert_array_equal(made("late flight").x, made("quite other words").x)
    bare = read_data(tmp_path / "a.csv", target="y", text="text", test=10, vectors=False)
    assert "x" not in bare
    assert sorted(bare["text"].tolist() + bare.test["text"].tolist()) == sorted(tweets(40))  # type: ignore[union-attr]


def test_data_of_a_command(tmp_path: Path) -> None:
    assert len(read_data("digits").test or ()) == 360
    assert len(read_data("digits", test=50).test or ()) == 50
    some = read_data("digits", size=300, seed=1)
    assert len(some) == 300
    assert len(divided_by_party(some, parties=7, alpha=0.5, seed=0)) == 7
    x, y = np.random.default_rng(0).random((30, 4)), np.arange(30) % 3
    owners = np.array(["north", "south"])[np.arange(30) % 2]
    np.savez(tmp_path / "a.npz", x=x, y=y, x_test=x[:5], y_test=y[:5], party=owners)
    islands = divided_by_party(read_data(tmp_path / "a.npz"))
    assert list(islands.names) == ["north", "south"]
    assert islands.test is not None
    lines = [f"{a:.3f},{k % 3 if k % 2 else -1},{'n' if k < 10 else 's'}" for k, a in enumerate(x[:, 0])]
    (tmp_path / "b.csv").write_text("\n".join(["a,y,site", *lines]))
    table = read_data(tmp_path / "b.csv", target="y", party="site", missing=-1, test=5)
    assert table.x.shape == (25, 1)
    assert table.test is not None
    assert labelled_rows(table.test).all()
    assert int(labelled_rows(table).sum()) == 10
    assert list(divided_by_party(table).names) == ["n", "s"]


@pytest.mark.parametrize(
    ("data", "options", "message"),
    [
        ("mnits", {}, "DATA 'mnits' is neither a file"),
        ("a.csv", {}, "the target column is not set.*target="),
        ("digits", {"size": 99999}, "size=99999 of 1,437 rows"),
        ("a.csv", {"target": "y", "test": 99}, "test=99 takes 99 of the 4 rows with a label"),
    ],
)
def test_data_that_cannot_be_used_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: str, options: dict[str, Any], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.csv").write_text("x,y\n0.5,0\n0.6,1\n0.7,0\n0.8,1\n")
    with pytest.raises(DataError, match=message):
        read_data(data, **options)


def test_word_vectors_are_those_of_scikit_learn_over_the_most_common_words() -> None:
    """Oracle: scikit-learn's vocabulary by document frequency, and its weights, on texts without a tie at the cut."""
    from sklearn.feature_extraction.text import CountVectorizer, TfidfTransformer

    texts = [*tweets(60), "late late crew", "unheard words"]
    form = WordVectors(dims=10, norm=3.0)
    counted = CountVectorizer(vocabulary=WORDS).fit_transform(texts).toarray()
    expected = TfidfTransformer().fit_transform(np.log1p(counted)).toarray()
    fitted = form.fit([texts[:20], [], texts[20:]])
    order = [fitted.kept.tolist().index(form.hashes(word)[0]) for word in WORDS]
    np.testing.assert_allclose(fitted(texts)[:, order], 3 * expected, atol=1e-5)
    assert not fitted(["unheard words", ""]).any()
    assert np.array_equal(form.fit([texts]).kept, fitted.kept)
    assert len(form.fit([["late bag"]]).kept) == 2


def test_words_without_sense_are_refused() -> None:
    for bad in ({"dims": 0}, {"dims": 9, "buckets": 8}, {"norm": 0.0}):
        with pytest.raises(DataError, match="at least one word"):
            WordVectors(**bad)
    with pytest.raises(DataError, match="no words to fit"):
        WordVectors().fit([["..."]])
