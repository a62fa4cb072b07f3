"""Views against slow readable references and independent libraries."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy import ndimage, stats

from atoll import views as V
from atoll.labels.views.geometry import matrices_of, warp
from atoll.labels.views.pixels import _larger
from atoll.labels.views.randaugment import OPERATIONS

KEYS = V.row_keys(torch.tensor([3, 4]), torch.arange(400))


def _smooth_images(n: int = 6, side: int = 14) -> torch.Tensor:
    return torch.rand(n, 2, side, side + 3, generator=torch.Generator().manual_seed(0))


def test_geometry_is_that_of_scipy() -> None:
    rows, view = _smooth_images(), V.Affine(scale=0.4)
    height, width = rows.shape[-2:]
    seen, matrices = view(rows, KEYS[:6]), matrices_of(view.maps(KEYS[:6], height, width), height, width)
    for row, shown, matrix in zip(rows.numpy(), seen.numpy(), matrices.double().numpy(), strict=True):
        turned = matrix[::-1, [1, 0, 2]]  # (x, y) to (row, column)
        for channel, got in zip(row, shown, strict=True):
            framed = np.pad(channel, 3)
            offset = turned[:, 2] + 3 - turned[:, :2] @ [3, 3]
            wanted = ndimage.affine_transform(framed, turned[:, :2], offset, order=1, output_shape=framed.shape)
            np.testing.assert_allclose(got, wanted[3:-3, 3:-3], atol=2e-5)


def test_strokes_are_those_of_scipys_morphology() -> None:
    rows, view = _smooth_images(), V.Thicken(0.9)
    parts = view.parts(KEYS[:6]).numpy()
    assert parts.min() < 0 < parts.max()
    for row, shown, part in zip(rows.numpy(), view(rows, KEYS[:6]).numpy(), parts, strict=True):
        extreme = ndimage.maximum_filter if part > 0 else ndimage.minimum_filter
        wanted = (1 - abs(part)) * row + abs(part) * extreme(row, (1, 3, 3), mode="nearest")
        np.testing.assert_allclose(shown, wanted, atol=1e-6)
    many = V.Thicken(0.5).parts(KEYS)
    assert float(many.abs().max()) <= 0.5
    assert float(many.mean()) == pytest.approx(0, abs=0.05)
    line = torch.rand(3, 1, 1, 5, generator=torch.Generator().manual_seed(1))
    assert V.Thicken()(line, KEYS[:3]).shape == line.shape


def test_maps_are_the_documented_product() -> None:
    view = V.Affine(degrees=0, shift=0, scale=0, shear=0.3)
    b = view.maps(KEYS, 28, 28)[:, 1]
    assert float(b.abs().max()) <= 0.3
    turn = V.Affine(degrees=30, shift=0, scale=0.2, shear=0).maps(KEYS, 28, 28)
    scale = (turn[:, 0] * turn[:, 4] - turn[:, 1] * turn[:, 3]) ** -0.5
    assert float(scale.min()) == pytest.approx(0.8, abs=0.01)
    assert float(scale.max()) == pytest.approx(1.2, abs=0.01)
    angle = torch.rad2deg(torch.atan2(turn[:, 3], turn[:, 0]))
    assert float(angle.max()) == pytest.approx(30, abs=1)


@pytest.mark.slow  # loads kornia: the test with SciPy holds the same
def test_geometry_is_that_of_kornia() -> None:
    transform = pytest.importorskip("kornia.geometry.transform")
    rows = _smooth_images()
    height, width = rows.shape[-2:]
    for view in (V.Affine(), V.Affine(180, 0.5, 0.5, 1.0)):
        matrices = matrices_of(view.maps(KEYS[:6], height, width), height, width)
        whole = torch.cat([matrices, torch.tensor([0.0, 0.0, 1.0]).expand(6, 1, 3)], 1)
        there = torch.linalg.inv(whole.double()).float()[:, :2]
        wanted = transform.warp_affine(rows, there, (height, width), align_corners=True)
        torch.testing.assert_close(view(rows, KEYS[:6]), wanted, atol=2e-4, rtol=0)


def test_crops_show_a_part_of_the_image() -> None:
    down = torch.linspace(0, 1, 16).reshape(1, 1, 16, 1).expand(400, 1, 16, 16).contiguous()
    seen = V.Crop((0.25, 0.25), (1.0, 1.0))(down, KEYS)
    middle = seen[:, 0, 2:-2, 8]
    slopes = (middle[:, -1] - middle[:, 0]) / 11 * 15
    torch.testing.assert_close(slopes, torch.full_like(slopes, 0.5), atol=1e-4, rtol=0)  # half of each side
    assert float(seen.amin((1, 2, 3)).std()) > 0.1  # at many places


def test_an_image_outside_is_the_fill() -> None:
    away = torch.tensor([[1.0, 0, 99, 0, 1, 0]])
    assert torch.equal(warp(torch.ones(1, 1, 5, 5), away, fill=0.5), torch.full((1, 1, 5, 5), 0.5))


def test_moves_flips_and_quarter_turns_are_those_of_a_loop() -> None:
    rows = _smooth_images(40, 9)
    for row, shown in zip(rows, V.Translate(2)(rows, KEYS[:40]), strict=True):
        framed = F.pad(row, (2, 2, 2, 2))
        moves = [framed[:, 2 - d : 11 - d, 2 - r : 14 - r] for d in range(-2, 3) for r in range(-2, 3)]
        assert any(torch.equal(shown, move) for move in moves)
    for row, shown in zip(rows, V.Translate(2, fill=None)(rows, KEYS[:40]), strict=True):
        framed = F.pad(row[None], (2, 2, 2, 2), mode="reflect")[0]
        moves = [framed[:, 2 - d : 11 - d, 2 - r : 14 - r] for d in range(-2, 3) for r in range(-2, 3)]
        assert any(torch.equal(shown, move) for move in moves)
    flipped = [torch.equal(s, r.flip(-1)) for r, s in zip(rows, V.Flip()(rows, KEYS[:40]), strict=True)]
    assert 10 < sum(flipped) < 30
    square, view = rows[..., :9], V.QuarterTurn()
    turns = view.turns(KEYS[:40])
    assert set(turns.tolist()) == {0, 1, 2, 3}
    for row, turn, shown in zip(square, turns, view(square, KEYS[:40]), strict=True):
        assert torch.equal(shown, row.rot90(int(turn), (-2, -1)))


def test_blur_is_a_convolution_and_colour_jitter_its_formula() -> None:
    rows = _smooth_images()
    seen = V.GaussianBlur((1.3, 1.3), radius=3, p=1.0)(rows, KEYS[:6])
    wanted = ndimage.gaussian_filter(rows.numpy(), (0, 0, 1.3, 1.3), mode="nearest", radius=(0, 0, 3, 3))
    np.testing.assert_allclose(seen.numpy(), wanted, atol=1e-5)
    half = V.ColourJitter((1.0, 1.0), (0.5, 0.5))(rows, KEYS[:6])
    m = rows.mean((1, 2, 3), keepdim=True)
    torch.testing.assert_close(half, m + (rows - m) / 2)
    dark = V.ColourJitter((0.3, 1.3), (1.0, 1.0))(torch.eye(8).expand(400, 8, 8), KEYS)
    assert float(dark.amax((1, 2)).min()) == pytest.approx(0.3, abs=0.02)
    assert float(dark[:, 0, 1].abs().max()) == 0.0  # the ground stays black


def test_a_square_of_its_size_is_cut_out() -> None:
    hidden = (V.Cutout(4)(torch.ones(400, 12, 12), KEYS) == 0).sum((1, 2))
    assert int(hidden.max()) == 16
    assert int(hidden.min()) == 4  # a corner: two rows and two columns of the square are inside
    assert torch.equal(V.Cutout()(torch.ones(1, 28, 28), KEYS[:1]), V.Cutout(10)(torch.ones(1, 28, 28), KEYS[:1]))


def test_randaugment_draws_for_each_image() -> None:
    view = V.RandAugment(1, uniform=False)
    chosen = view.drawn(KEYS)[:, 0]
    assert set(chosen.tolist()) == set(range(len(OPERATIONS)))
    rows = torch.rand(400, 1, 12, 12, generator=torch.Generator().manual_seed(1))
    seen = view(rows, KEYS)
    of = {name: chosen == i for i, name in enumerate(OPERATIONS)}
    assert torch.equal(seen[of["identity"]], rows[of["identity"]])
    assert torch.equal(seen[of["colour"]], rows[of["colour"]])  # one channel
    high, low = rows.amax((1, 2, 3), keepdim=True), rows.amin((1, 2, 3), keepdim=True)
    inverted = of["solarize"]
    torch.testing.assert_close(seen[inverted], torch.where(rows > low, low + high - rows, rows)[inverted])
    few = seen[of["posterize"]].flatten(1)
    assert max(len(row.unique()) for row in few) <= 16  # 4 bits
    assert all(not torch.equal(a, b) for a, b in zip(seen[of["rotate"]], rows[of["rotate"]], strict=True))


def test_mixtures_have_the_larger_weight_of_a_beta_distribution() -> None:
    for alpha in (0.2, 0.75, 1.0, 3.0):
        quantiles = np.asarray(_larger(alpha), dtype=np.float64)
        law = stats.beta(alpha, alpha)
        wanted = 1 - law.ppf((np.arange(4096) + 0.5) / 8192)  # the smaller one lies below the median
        np.testing.assert_allclose(quantiles, wanted, atol=1e-4)
    rows, view = torch.rand(400, 4, 4, generator=torch.Generator().manual_seed(2)), V.Mixup()
    own = V.OwnRows(rows[:50])
    other, weight = view.drawn(KEYS, own)
    assert int(other.max()) < 50
    wanted = weight[:, None, None] * rows + (1 - weight[:, None, None]) * rows[other]
    torch.testing.assert_close(view(rows, KEYS, own), wanted)


def test_series_are_sampled_where_they_should_be() -> None:
    times = np.arange(40)
    rows = torch.from_numpy(np.stack([np.sin(times / 3), times / 4]).astype(np.float32)).expand(400, 2, 40)
    seen = V.Slice(0.5)(rows, KEYS)
    for shown in seen[:20].numpy():
        start = round(float(shown[1, 0] * 4))
        np.testing.assert_allclose(shown[0], np.interp(start + times * 19 / 39, times, np.sin(times / 3)), atol=1e-5)
    warped = V.TimeWarp(0.9)(rows, KEYS)
    at = warped[:, 1].double() * 4  # the time that each moment shows
    assert float(at.diff(dim=-1).min()) > 0
    torch.testing.assert_close(at[:, 0], torch.zeros(400, dtype=torch.float64))
    torch.testing.assert_close(at[:, -1], torch.full((400,), 39.0, dtype=torch.float64), atol=1e-4, rtol=0)
    assert float((at - torch.arange(40)).abs().amax(-1).median()) > 1
    for shown, when in zip(warped[:20, 0].numpy(), at[:20].numpy(), strict=True):
        np.testing.assert_allclose(shown, np.interp(when, times, np.sin(times / 3)), atol=1e-4)


def test_speeds_of_time_are_linear_between_knots() -> None:
    from atoll.labels.views.draws import units

    straight = torch.arange(301, dtype=torch.float32).expand(5, 301)
    shown = V.TimeWarp(0.5, knots=4)(straight, KEYS[:5]).double()
    speeds = 1.0 + 0.5 * (2.0 * units(KEYS[:5], 0, 4).double() - 1.0)
    for row, speed in zip(shown.numpy(), speeds.numpy(), strict=True):
        v = np.interp(np.arange(301), [0, 100, 200, 300], speed)
        passed = np.concatenate([[0.0], np.cumsum((v[1:] + v[:-1]) / 2)])
        np.testing.assert_allclose(row, passed / passed[-1] * 300, atol=2e-3)


def test_texts_are_those_of_a_loop() -> None:
    length = torch.arange(400) % 9 + 2
    rows = torch.where(torch.arange(12) < length[:, None], torch.arange(1, 13).expand(400, 12), 0)
    dropped = V.DropTokens(0.4)(rows, KEYS)
    gone = 0
    for row, seen in zip(rows.tolist(), dropped.tolist(), strict=True):
        left = [t for t in seen if t]
        assert seen == left + [0] * (12 - len(left))
        assert left == sorted(left)
        assert left[0] == 1
        gone += sum(t > 0 for t in row) - len(left)
    assert gone / float((length - 1).sum()) == pytest.approx(0.4, abs=0.04)
    swapped = V.SwapTokens(0.25)(rows, KEYS)
    assert torch.equal(swapped.sort(-1).values, rows.sort(-1).values)
    assert torch.equal(swapped > 0, rows > 0)
    assert 0 < float((swapped != rows).sum(-1).max()) <= 6  # three exchanges
    hidden = V.MaskSpan(99, 0.5)(rows, KEYS) == 99
    assert torch.equal(hidden.sum(-1), length // 2)
    assert int((hidden.int().diff(dim=-1) == 1).sum(-1).max()) <= 1
    single = V.MaskTokens(99, 0.3)(rows, KEYS) == 99
    assert not bool((single & (rows == 0)).any())
    assert float(single.sum()) / float(length.sum()) == pytest.approx(0.3, abs=0.04)


def test_swapped_features_come_from_the_marginals_of_the_own_party() -> None:
    features = 10
    party = torch.arange(400) // 200
    rows = torch.arange(400.0)[:, None] + 1000 * torch.arange(features)
    own = V.OwnRows(rows, party * 200, torch.full((400,), 200))
    seen = V.SwapFeatures(0.55)(rows, KEYS, own)
    source = seen - 1000 * torch.arange(features)
    changed = source != torch.arange(400.0)[:, None]
    assert int(changed.sum(-1).max()) == 5  # floor(.55 * 10), less where a row drew itself
    assert float(changed.sum()) / 400 == pytest.approx(5, abs=0.1)
    assert torch.equal((source // 200).long(), party[:, None].expand(400, features))
    assert len(source[changed].unique()) > 350


def test_without_a_fill_what_lies_outside_is_the_image_itself():
    """A flat image stays flat under every map and cut, whatever its brightness; with a fill it does not."""
    flat = torch.full((16, 1, 12, 12), 0.7)
    for view in (V.Affine(90, 0.5, 0.3, 0.5, fill=None), V.Cutout(6, fill=None)):
        torch.testing.assert_close(view(flat, KEYS[:16]), flat)
    for view in (V.Affine(90, 0.5, 0.3, 0.5), V.Cutout(6)):
        assert float(view(flat, KEYS[:16]).min()) < 0.1
    image = torch.rand(1, 1, 12, 12, generator=torch.Generator().manual_seed(0))
    cut = V.Cutout(6, fill=None)(image, KEYS[:1])
    assert torch.allclose(cut[cut != image], image.mean())
