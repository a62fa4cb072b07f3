"""The linear algebra of second-order methods: exact where mathematics says so, the same on NumPy and PyTorch."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from atoll.learn.curvature import (
    bfgs,
    block_sr1,
    cg,
    damp_operator,
    hessian,
    inverse_floored,
    least_squares_begin,
    least_squares_step,
    ratio,
    ravel,
    restore,
    shorten,
    step_params,
    two_loop,
    unravel,
)
from tests.support.curved_toys import spd

SEEDS = st.integers(0, 10_000)


def tree(vector):
    return {"a": vector[:4].reshape(2, 2), "b": vector[4:]}


def acting(matrix):
    return lambda v: tree(matrix @ ravel(v))


@settings(max_examples=30, deadline=None)
@given(SEEDS)
def test_conjugate_gradients_solve_in_as_many_iterations_as_dimensions(seed):
    draw = np.random.default_rng(seed)
    matrix, b = spd(draw, 6), draw.normal(size=6)
    np.testing.assert_allclose(ravel(cg(acting(matrix), tree(b), 8)), np.linalg.solve(matrix, b), rtol=1e-6, atol=1e-8)
    found = ravel(cg(damp_operator(acting(matrix), 0.7), tree(b), 8))
    np.testing.assert_allclose(found, np.linalg.solve(matrix + 0.7 * np.eye(6), b), rtol=1e-6, atol=1e-8)


def test_conjugate_gradients_stop_where_the_curvature_is_not_positive():
    b = np.arange(1.0, 7.0)
    np.testing.assert_array_equal(ravel(cg(acting(-np.eye(6)), tree(b), 5)), b)
    np.testing.assert_array_equal(ravel(cg(acting(np.zeros((6, 6))), tree(b), 5)), b)
    np.testing.assert_array_equal(ravel(cg(acting(np.eye(6)), tree(0 * b), 5)), 0 * b)
    # A later direction of negative curvature leaves a descent direction: <x, b> > 0.
    bent = np.diag([3.0, 2.0, 1.0, 0.5, 0.1, -0.2])
    for iterations in range(1, 9):
        assert ravel(cg(acting(bent), tree(b), iterations)) @ b > 0


@settings(max_examples=30, deadline=None)
@given(SEEDS, st.integers(0, 3), st.sampled_from([0.0, 0.5]))
def test_least_squares_give_the_pseudo_inverse_of_what_is_singular_or_indefinite(seed, missing, damping):
    draw = np.random.default_rng(seed)
    turn, _ = np.linalg.qr(draw.normal(size=(6, 6)))
    values = draw.choice([-1.0, 1.0], size=6) * draw.uniform(0.5, 2.0, size=6)
    values[:missing] = 0.0
    matrix, b = turn @ np.diag(values) @ turn.T, draw.normal(size=6)
    state = least_squares_begin(tree(b))
    for _ in range(8):
        state = least_squares_step(state, acting(matrix), damping)
    if damping:
        expected = np.linalg.solve(matrix @ matrix + damping * np.eye(6), matrix @ b)
    else:
        expected = np.linalg.pinv(matrix, rcond=1e-9) @ b
    np.testing.assert_allclose(ravel(state["x"]), expected, rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(ravel(state["image"]), matrix @ b, atol=1e-12)


@settings(max_examples=40, deadline=None)
@given(SEEDS, st.integers(0, 5), st.sampled_from([0.0, 1e-6, 0.09]), st.sampled_from([np.float64, np.float32]))
@example(1, 2, 0.0, np.float64)
@example(0, 0, 0.09, np.float32)
def test_least_squares_stay_where_they_are_once_only_rounding_is_left(seed, missing, damping, dtype):
    draw = np.random.default_rng(seed)
    turn, _ = np.linalg.qr(draw.normal(size=(6, 6)))
    values = draw.choice([-1.0, 1.0], size=6) * draw.uniform(0.5, 2.0, size=6)
    values[:missing] = 0.0
    matrix, b = (turn @ np.diag(values) @ turn.T).astype(dtype), draw.normal(size=6).astype(dtype)
    state = least_squares_begin(tree(b))
    for _ in range(40):
        state = least_squares_step(state, acting(matrix), damping)
    assert ravel(state["x"]).dtype == dtype
    inverse = np.divide(values, values**2 + damping, out=np.zeros(6), where=values != 0)
    expected = turn @ (inverse * (turn.T @ b))
    error = np.linalg.norm(ravel(state["x"]) - expected) / np.linalg.norm(expected)
    assert error < 1e4 * np.finfo(dtype).eps


def test_trees_and_vectors_and_dtypes():
    narrow = {"a": np.ones((2, 2), np.float32), "b": np.ones(2, np.float32)}
    assert cg(lambda v: v, narrow, 3)["a"].dtype == np.float32
    assert step_params(narrow, np.full(6, 0.5))["b"].dtype == np.float32
    np.testing.assert_array_equal(ravel(unravel(np.arange(6.0), narrow)), np.arange(6.0))
    assert unravel(np.zeros((3, 6)), narrow)["a"].shape == (3, 2, 2)
    assert ratio(np.float32(1), np.float32(0)) == 0
    matrix = spd(np.random.default_rng(1), 6)

    def many(vectors):
        rows = [ravel({name: leaf[i] for name, leaf in vectors.items()}) for i in range(len(vectors["b"]))]
        return unravel(np.array(rows) @ matrix, narrow)

    np.testing.assert_allclose(hessian(many, narrow, np.eye(6)), matrix)


def test_floors_of_eigenvalues():
    matrix, v = np.diag([4.0, 0.1, -2.0]), np.ones(3)
    np.testing.assert_allclose(inverse_floored(matrix, v, 0.5), [0.25, 2.0, 2.0])
    np.testing.assert_allclose(inverse_floored(matrix, v, 0.5, size=True), [0.25, 2.0, 0.5])


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_short_forms_of_symmetric_matrices(library):
    draw = np.random.default_rng(0)
    matrix = draw.normal(size=(5, 5))
    matrix = matrix + matrix.T
    given_matrix = pytest.importorskip("torch").tensor(matrix) if library == "torch" else matrix

    def back(form, count):
        return np.asarray(restore(shorten(given_matrix, form, count), 5))

    np.testing.assert_array_equal(back("full", 0), matrix)
    np.testing.assert_array_equal(back("top", 15), matrix)
    np.testing.assert_allclose(back("rank", 5), matrix, atol=1e-12)
    # Eckart-Young: what is left is the other singular values.
    sizes = np.sort(np.abs(np.linalg.eigvalsh(matrix)))[::-1]
    for rank in range(1, 5):
        left = np.linalg.norm(matrix - back("rank", rank))
        assert left == pytest.approx(np.sqrt((sizes[rank:] ** 2).sum()))
    upper = np.abs(matrix[np.triu_indices(5)])
    kept = np.abs(back("top", 4)[np.triu_indices(5)])
    assert np.count_nonzero(kept) == 4
    np.testing.assert_allclose(np.sort(kept)[-4:], np.sort(upper)[-4:])


@settings(max_examples=30, deadline=None)
@given(SEEDS)
def test_quasi_newton_updates_meet_their_secants_and_pairs_are_the_matrix(seed):
    draw = np.random.default_rng(seed)
    matrix, b = spd(draw, 5), 2.0 * np.eye(5)
    pairs = []
    for _ in range(4):
        s = draw.normal(size=5)
        pairs.append({"s": s, "q": matrix @ s})
        b = bfgs(b, s, matrix @ s)
        np.testing.assert_allclose(b @ s, matrix @ s, rtol=1e-8, atol=1e-10)
        assert np.linalg.eigvalsh(b)[0] > 0
    g = draw.normal(size=5)
    np.testing.assert_allclose(two_loop(pairs, g, 0.5), np.linalg.solve(b, g), rtol=1e-6, atol=1e-8)


@settings(max_examples=30, deadline=None)
@given(SEEDS)
def test_block_updates_learn_a_hessian_that_stands_still(seed):
    draw = np.random.default_rng(seed)
    matrix, b = spd(draw, 6), 10.0 * np.eye(6)
    for _ in range(3):
        sketch = np.linalg.qr(draw.normal(size=(6, 2)))[0]
        b = block_sr1(b, sketch, (matrix - b) @ sketch, 1e-10)
        np.testing.assert_allclose(b @ sketch, matrix @ sketch, atol=1e-6)
    np.testing.assert_allclose(b, matrix, atol=1e-5)
    same = block_sr1(matrix, sketch, 0 * sketch, 1e-10)
    np.testing.assert_array_equal(same, matrix)
