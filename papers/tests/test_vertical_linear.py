"""The reproduction of linear models over columns at several parties: what must hold in its quick form."""

from __future__ import annotations

from pathlib import Path

import pytest

from atoll.reproduce import Lab, NotKept
from atoll_papers.vertical_linear import ENTRY, _fit_pieces, _losses, _solvers


def test_quasi_newton_takes_fewer_rounds_to_the_same_optimum() -> None:
    pytest.importorskip("gmpy2")
    pytest.importorskip("rbcl")
    claims = _solvers(True)
    assert [claim.verdict for claim in claims[:2]] == ["holds", "holds"]
    messages = {claim.claim.partition(":")[0]: claim.ours for claim in claims[2:]}
    assert messages["quasi-newton"] < messages["newton"] < messages["gradient"]


def test_the_slope_of_three_pieces_changes_nothing_but_the_scale() -> None:
    """Without a penalty that counts: the weights of slope 1/4 are four times those of slope 1."""
    import numpy as np

    rng = np.random.default_rng(0)
    x = np.concatenate([rng.normal(size=(4000, 3)), np.ones((4000, 1))], axis=1)
    y = (x[:, 0] - x[:, 1] + rng.logistic(size=4000) > 0).astype(float)
    steep = _fit_pieces(x, y, (-0.5, 0.5), (0.0, 1.0))
    flat = _fit_pieces(x, y, (-2.0, 2.0), (0.0, 1.0))
    np.testing.assert_allclose(flat, 4 * steep, rtol=2e-2, atol=2e-3)


@pytest.mark.slow
def test_the_quick_form_has_every_part(tmp_path: Path) -> None:
    claims = ENTRY.run(Lab(tmp_path), True)
    assert {"Other losses", "Protocols", "Quasi-Newton", "Products of ciphertexts"} == {one.part for one in claims}
    assert all(one.holds for one in claims if one.part == "Protocols")


def test_other_losses_are_measured() -> None:
    pytest.importorskip("rbcl")
    claims = {claim.claim: claim for claim in _losses(True)}
    assert claims["Taylor's loss costs AUC"].ours < 0.02
    assert claims["Taylor's: largest difference of a probability"].ours > 0.05


def test_it_keeps_no_training(tmp_path: Path) -> None:
    with pytest.raises(NotKept, match="vertical-linear"):
        ENTRY.run(Lab(tmp_path, kept=True), True)
