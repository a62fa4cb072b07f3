"""Adapters on images: renditions, and the entry's path on generated pictures."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from atoll.reproduce import Lab
from atoll_papers import image_adapters

for library in ("torch", "transformers", "peft", "PIL"):  # not imported here: that takes seconds of every worker
    if find_spec(library) is None:
        pytest.skip(f"{library} is not installed", allow_module_level=True)


def test_each_image_is_in_one_rendition() -> None:
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, size=(8, 6, 5, 3), dtype=np.uint8)
    images, labels, domains = image_adapters.in_renditions(pixels, [str(row) for row in range(8)])
    assert sorted(labels) == [str(row) for row in range(8)]
    assert domains == [name for name in image_adapters.RENDITIONS for _ in range(2)]
    np.testing.assert_array_equal(images[:2], pixels[[0, 4]])
    for grey in images[2:6]:
        assert (grey == grey[..., :1]).all()
    assert set(np.unique(images[6:])) <= {0, 128, 255}
    flat = image_adapters.RENDITIONS["edges"](np.full((1, 6, 5, 3), 0.3))
    np.testing.assert_array_equal(flat, 1.0)


def test_the_quick_run_needs_no_data_and_no_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATOLL_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("ATOLL_DATA", raising=False)
    monkeypatch.setattr(image_adapters, "_PAIRS", {True: 128})
    monkeypatch.setattr(image_adapters, "_STEPS", {True: 2})
    monkeypatch.setattr(image_adapters, "_OF_EACH", {True: 40})
    claims = {claim.claim: claim for claim in image_adapters.ENTRY.run(Lab(tmp_path), True)}
    assert next(one for name, one in claims.items() if "comprehensive is" in name).holds
    assert not any(one.paper for one in claims.values()), "numbers of other weights stand beside none"
