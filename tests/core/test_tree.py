"""Trees: structure, arithmetic, and the same results on NumPy and PyTorch leaves."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from atoll.core.algebra import tree as T
from atoll.core.errors import ConfigError, DataError

torch = pytest.importorskip("torch")

leaf = arrays(np.float64, st.sampled_from([(3,), (2, 2), (1,)]), elements=st.floats(-100, 100))
trees = st.recursive(
    leaf,
    lambda inner: st.lists(inner, min_size=1, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, min_size=1),
)


def as_torch(tree):
    return T.map(torch.tensor, tree)


def same(ours, theirs):
    for (path, x), (other, y) in zip(T.items(ours), T.items(theirs), strict=True):
        assert path == other
        np.testing.assert_allclose(np.asarray(y), x, rtol=1e-12, atol=1e-12)


@given(trees, st.integers(1, 4))
def test_a_block_is_cut_into_what_it_was_stacked_of(tree, count):
    rows = [T.scale(tree, float(i)) for i in range(count)]
    for leaf_of, stack in ((np.asarray, np.stack), (torch.tensor, torch.stack)):
        made = [T.map(leaf_of, row) for row in rows]
        cut = T.unstack_trees(T.map(lambda *leaves, stack=stack: stack(leaves), *made), count)
        assert len(cut) == count
        for one, other in zip(rows, cut, strict=True):
            same(one, other)
    assert T.unstack_trees({"none": None, "also": ()}, 2) == [{"none": None, "also": ()}] * 2


@given(trees)
def test_numpy_and_torch_agree(tree):
    other = T.map(lambda x: x * 0.5 + 1.0, tree)
    a, b = as_torch(tree), as_torch(other)
    for fn in (T.add, T.sub, T.mul):
        same(fn(tree, other), fn(a, b))
    same(T.scale(tree, 3.0), T.scale(a, 3.0))
    same(T.square(tree), T.square(a))
    same(T.sqrt(T.square(tree)), T.sqrt(T.square(a)))
    same(T.sign(tree), T.sign(a))
    same(T.zeros_like(tree), T.zeros_like(a))
    positive = T.map(lambda x: x > 0, tree), T.map(lambda x: x > 0, a)
    same(T.where(positive[0], tree, other), T.where(positive[1], a, b))
    same(T.topk(tree, 0.4), T.topk(a, 0.4))
    np.testing.assert_allclose(float(T.norm(a)), float(T.norm(tree)), rtol=1e-12)
    np.testing.assert_allclose(float(T.dot(a, b)), float(T.dot(tree, other)), rtol=1e-12, atol=1e-9)
    assert T.size(a) == T.size(tree)


@given(trees)
def test_arithmetic(tree):
    zeros = T.zeros_like(tree)
    same(T.add(tree, zeros), tree)
    same(T.sub(tree, tree), zeros)
    same(T.scale(tree, 2.0), T.add(tree, tree))
    flat = np.concatenate([x.ravel() for x in T.leaves(tree)])
    np.testing.assert_allclose(T.norm(tree), np.linalg.norm(flat), rtol=1e-12)
    assert T.size(tree) == flat.size


@given(trees)
def test_a_tree_is_rebuilt_from_its_leaves(tree):
    same(T.rebuild(tree, T.leaves(tree)), tree)
    assert [path for path, _ in T.items(tree)] == [path for path, _ in T.items(T.rebuild(tree, iter(T.leaves(tree))))]


def test_paths():
    tree = {"layer": {"w": np.ones(1), "b": [np.ones(2), np.ones(3)]}, "scale": 2.0}
    assert [path for path, _ in T.items(tree)] == ["layer/w", "layer/b[0]", "layer/b[1]", "scale"]
    assert [path for path, _ in T.items(np.ones(1))] == [""]


def test_kinds_of_containers_stay():
    made = T.map(lambda x: x + 1, {"a": [1, (2, 3)]})
    assert made == {"a": [2, (3, 4)]}
    assert isinstance(made["a"][1], tuple)


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_python_number_keeps_the_dtype(library, dtype):
    x = np.ones(2, dtype) if library == "numpy" else torch.ones(2, dtype=getattr(torch, dtype))
    assert str(T.scale({"w": x}, 0.5)["w"].dtype).endswith(dtype)
    assert str(T.zeros_like({"w": x})["w"].dtype).endswith(dtype)


def test_stacked_leaves():
    assert T.stack([np.ones(2), np.zeros(2)]).tolist() == [[1, 1], [0, 0]]
    assert T.stack([torch.ones(2), torch.zeros(2)]).tolist() == [[1, 1], [0, 0]]


def test_topk_keeps_the_largest_by_magnitude():
    x = np.array([3.0, -5.0, 1.0, 0.0, 2.0])
    assert T.topk({"w": x}, 0.4)["w"].tolist() == [3.0, -5.0, 0.0, 0.0, 0.0]
    assert T.topk({"w": x}, 0.01)["w"].tolist() == [0.0, -5.0, 0.0, 0.0, 0.0]
    assert T.topk({"w": x}, 1.0)["w"].tolist() == x.tolist()
    assert T.topk({"w": np.array([1.0, -1.0, 0.5])}, 0.34)["w"].tolist() == [1.0, -1.0, 0.0], "ties are kept"
    assert T.topk({"w": np.zeros((0, 3))}, 0.5)["w"].shape == (0, 3)


@pytest.mark.parametrize("fraction", [-0.1, 1.1, float("nan")])
def test_a_fraction_that_is_none(fraction):
    with pytest.raises(ConfigError, match=f"fraction={fraction}"):
        T.topk({"w": np.ones(3)}, fraction)


@pytest.mark.parametrize(
    ("a", "b", "text"),
    [
        ({"a": 1.0}, {"b": 1.0}, r"a dict with keys \['a'\] against a dict with keys \['b'\]"),
        ({"a": 1.0}, {"a": 1.0, "b": 2.0}, r"keys \['a'\] against a dict with keys \['a', 'b'\]"),
        ([1.0], [1.0, 2.0], "a list of 1 against a list of 2"),
        ({"a": 1.0}, 3.0, r"a dict with keys \['a'\] against a leaf of type float"),
        ((1.0,), {"a": 1.0}, "a tuple of 1 against a dict"),
    ],
)
def test_trees_of_other_shapes_are_refused(a, b, text):
    with pytest.raises(DataError, match=text):
        T.add(a, b)


def test_leaves_against_trees_are_refused():
    with pytest.raises(DataError, match="a leaf of type float against a dict"):
        T.add(1.0, {"a": 1.0})
