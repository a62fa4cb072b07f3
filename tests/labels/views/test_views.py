"""Laws of all views: a row's view depends on the row and its key alone; strength 0 changes nothing; values stay in range."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll import views as V
from atoll.core.errors import ConfigError, DataError
from atoll.labels.views.draws import child_keys_of_rows, children_of_rows, compute_cos_sin, normals, units, words

Tensor = torch.Tensor


def _images(n: int, channels: int = 1) -> Tensor:
    return torch.rand(n, channels, 9, 11, generator=torch.Generator().manual_seed(n))


def _square(n: int) -> Tensor:
    return torch.rand(n, 10, 10, generator=torch.Generator().manual_seed(n))


def _series(n: int) -> Tensor:
    return torch.randn(n, 2, 23, generator=torch.Generator().manual_seed(n))


def _text(n: int) -> Tensor:
    rows = torch.randint(1, 50, (n, 12), generator=torch.Generator().manual_seed(n))
    return torch.where(torch.arange(12) < torch.arange(n).unsqueeze(-1) % 10 + 3, rows, 0)


def _table(n: int) -> Tensor:
    return torch.randn(n, 7, generator=torch.Generator().manual_seed(n))


VIEWS: dict[str, tuple[V.View, Callable[[int], Tensor]]] = {
    "translate": (V.Translate(2), _images),
    "mirrored": (V.Translate(0.2, fill=None), _images),
    "flip": (V.Flip(), _images),
    "crop": (V.Crop(), _images),
    "affine": (V.Affine(), _images),
    "thicken": (V.Thicken(), _images),
    "quarter": (V.QuarterTurn(), _square),
    "jitter": (V.ColourJitter(), lambda n: _images(n, 3)),
    "blur": (V.GaussianBlur(), _images),
    "cutout": (V.Cutout(), _images),
    "mixup": (V.Mixup(), _images),
    "randaugment": (V.RandAugment(), lambda n: _images(n, 3)),
    "grey": (V.RandAugment(3, uniform=False), _images),
    "weak": (V.weak("images"), _images),
    "strong": (V.strong("images"), _images),
    "photos": (V.strong("photos"), lambda n: _images(n, 3)),
    "noise": (V.Jitter(), _series),
    "magnify": (V.Magnify(), _series),
    "warp": (V.TimeWarp(), _series),
    "slice": (V.Slice(), _series),
    "gap": (V.MaskTime(), _series),
    "flat": (V.strong("series"), lambda n: _series(n)[:, 0]),
    "drop": (V.DropTokens(0.3), _text),
    "swap": (V.SwapTokens(0.3), _text),
    "span": (V.MaskSpan(77, 0.5), _text),
    "hide": (V.MaskTokens(77, 0.5), _text),
    "text": (V.strong("text"), _text),
    "scarf": (V.SwapFeatures(), _table),
    "features": (V.MaskFeatures(), _table),
}
NOTHING: dict[str, V.View] = {
    "translate": V.Translate(0),
    "mirrored": V.Translate(0, fill=None),
    "flip": V.Flip(0.0),
    "crop": V.Crop((1.0, 1.0), (1.0, 1.0)),
    "affine": V.Affine(0.0, 0.0, 0.0, 0.0),
    "thicken": V.Thicken(0),
    "jitter": V.ColourJitter((1.0, 1.0), (1.0, 1.0)),
    "blur": V.GaussianBlur(p=0.0),
    "cutout": V.Cutout(0),
    "mixup": V.Mixup(0.0),
    "randaugment": V.RandAugment(0),
    "noise": V.Jitter(0.0),
    "magnify": V.Magnify(0.0),
    "warp": V.TimeWarp(0.0),
    "slice": V.Slice(1.0),
    "gap": V.MaskTime(0),
    "drop": V.DropTokens(0.0),
    "swap": V.SwapTokens(0.0),
    "span": V.MaskSpan(77, 0),
    "hide": V.MaskTokens(77, 0.0),
    "scarf": V.SwapFeatures(0.0),
    "features": V.MaskFeatures(0.0),
}
each = pytest.mark.parametrize("name", sorted(VIEWS))


def _case(name: str, n: int = 13) -> tuple[V.View, Tensor, Tensor, V.OwnRows]:
    view, make = VIEWS[name]
    rows = make(n)
    return view, rows, V.row_keys(torch.tensor([71, 2**31 + 5]), torch.arange(n)), V.OwnRows(rows)


@pytest.mark.every(4)
@each
def test_a_row_is_seen_alike_alone_in_any_order_and_in_any_batch(name: str) -> None:
    view, rows, keys, own = _case(name)
    together = view(rows, keys, own)
    assert together.shape == rows.shape
    assert together.dtype == rows.dtype
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(1))
    assert torch.equal(view(rows[order], keys[order], own), together[order])
    alone = torch.cat([view(rows[i : i + 1], keys[i : i + 1], own) for i in range(len(rows))])
    assert torch.equal(alone, together)


@each
def test_blocks_of_clients_give_the_same_bits(name: str) -> None:
    view, rows, keys, _ = _case(name, 12)
    blocks, many = rows.unflatten(0, (3, 4)), keys.unflatten(0, (3, 4))
    one_by_one = torch.stack([view(r, k, V.OwnRows(r)) for r, k in zip(blocks, many, strict=True)])
    mapped = torch.func.vmap(lambda r, k: view(r, k, V.OwnRows(r)))(blocks, many)
    assert torch.equal(mapped, one_by_one)
    start = torch.tensor([0, 4, 8]).repeat_interleave(4)
    flattened = view(rows, keys, V.OwnRows(rows, start, torch.full((12,), 4)))
    assert torch.equal(flattened, one_by_one.flatten(0, 1))


@each
def test_other_keys_show_something_else(name: str) -> None:
    view, rows, keys, own = _case(name)
    assert not torch.equal(view(rows, keys, own), view(rows, keys + 1, own))


@pytest.mark.parametrize("name", sorted(NOTHING))
def test_strength_zero_changes_nothing(name: str) -> None:
    _, rows, keys, own = _case(name)
    seen = NOTHING[name](rows, keys, own)
    assert torch.equal(seen, rows) if name != "crop" else torch.allclose(seen, rows, atol=1e-6)


@pytest.mark.parametrize("name", [n for n, (view, _) in VIEWS.items() if view.kind == "images"])
def test_values_stay_in_range(name: str) -> None:
    view, rows, keys, own = _case(name)
    seen = view(rows, keys, own)
    assert float(seen.min()) >= -1e-6
    assert float(seen.max()) <= float(rows.max()) + 1e-6


def test_large_batches_are_worked_on_in_parts_that_agree() -> None:
    rows, keys = (
        torch.rand(600, 1, 14, 14, generator=torch.Generator().manual_seed(3)),
        V.row_keys(torch.tensor([1, 2]), torch.arange(600)),
    )
    view = V.Compose([V.Affine(), V.Mixup()])
    start, count = torch.arange(600) // 300 * 300, torch.full((600,), 300)
    whole = view(rows, keys, V.OwnRows(rows, start, count))
    for half in (slice(0, 300), slice(300, 600)):
        assert torch.equal(whole[half], view(rows[half], keys[half], V.OwnRows(rows[half])))


def test_the_types_of_rows_are_kept() -> None:
    for dtype in (torch.float64, torch.bfloat16):
        rows, keys = _images(5).to(dtype), torch.arange(5)
        assert V.strong("images")(rows, keys).dtype == dtype
        assert V.strong("photos")(rows, keys).dtype == dtype
    tokens = _text(5).to(torch.int32)
    assert V.strong("text")(tokens, torch.arange(5)).dtype == torch.int32


@pytest.mark.parametrize(
    ("view", "rows", "match"),
    [
        (V.Affine(), torch.rand(4, 64), r"shape \(B, 64\).*give images the shape .* for table use SwapFeatures"),
        (V.Affine(), torch.zeros(4, 8, 8, dtype=torch.uint8), "type uint8.*convert pixels to floats"),
        (V.Cutout(), _text(4), "for text use DropTokens"),
        (V.QuarterTurn(), torch.rand(4, 8, 9), "8 x 9 pixels cannot be turned"),
        (V.Jitter(), _images(4), "for images use Translate"),
        (V.Jitter(), _text(4), "rows.float"),
        (V.DropTokens(), _table(4), "whole numbers of tokens.*for table use"),
        (V.MaskFeatures(), _text(4), "give tables as floats"),
        (V.MaskFeatures(), _images(4), "for images use"),
        (V.strong("images"), torch.rand(4, 64), "give images the shape"),
    ],
)
def test_rows_of_another_kind_are_refused(view: V.View, rows: Tensor, match: str) -> None:
    with pytest.raises(DataError, match=match):
        view(rows, torch.arange(4))


def test_views_that_need_other_rows_say_so() -> None:
    for view, rows in ((V.SwapFeatures(), _table(4)), (V.Compose([V.Flip(), V.Mixup()]), _images(4))):
        assert view.uses_own
        with pytest.raises(DataError, match="OwnRows"):
            view(rows, torch.arange(4))


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: V.weak("image"), "kind='image'.*images"),
        (lambda: V.Compose([V.Flip(), V.Jitter()]), "links are of images and of series"),
        (lambda: V.Compose(["flip"]), "no view"),
        (lambda: V.Flip(1.5), "p=1.5.*from 0 to 1"),
        (lambda: V.Translate(-1), "by=-1"),
        (lambda: V.Crop((0.5, 1.2)), "area=.*at most 1"),
        (lambda: V.ColourJitter((1.3, 0.3)), "brightness=.*low <= high"),
        (lambda: V.Affine(degrees=200), "degrees=200"),
        (lambda: V.Affine(scale=1.0), "scale=1.0"),
        (lambda: V.TimeWarp(knots=1), "knots=1"),
        (lambda: V.MaskSpan(3, 1.5), "length=1.5"),
    ],
)
def test_settings_that_make_no_sense_are_refused(make: Callable[[], V.View], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        make()


def test_links_of_a_chain_draw_apart_and_an_empty_chain_shows_the_rows() -> None:
    rows, keys = _series(50), torch.arange(50)
    twice = V.Compose([V.Jitter(1.0), V.Jitter(1.0)])(rows, keys) - rows
    assert float(twice.var()) == pytest.approx(2.0, rel=0.15)  # equal draws would give 4
    assert torch.equal(V.Compose()(rows[:, :1], keys), rows[:, :1])
    assert V.Compose((), "text").kind == "text"


# --- draws ---------------------------------------------------------------------------------------------------------------------


def _word(key: int, call: int, position: int) -> int:
    """The same number in plain integers."""
    low = 0xFFFFFFFF
    a, b = (key >> 32) & low, key & low
    x = ((position ^ a) * 0x7FEB352D + b + 0x9E3779B9 * (call + 1)) & low
    x = ((x >> 16 ^ x) * 0x45D9F3B) & low
    x = ((x >> 15 ^ x) * 0x7FEB352D) & low
    return x >> 16 ^ x


@settings(deadline=None)
@given(key=st.integers(-(2**63), 2**63 - 1), call=st.integers(0, 2**20))
def test_draws_are_those_of_plain_integers(key: int, call: int) -> None:
    made = words(torch.tensor([key]), call, 3)[0].tolist()
    assert made == [_word(key, call, i) for i in range(3)]
    child = int(child_keys_of_rows(torch.tensor([key]), call % 1000)[0])
    pair = [_word(key, (1 << 20) + call % 1000, i) for i in range(2)]
    assert child % 2**64 == pair[0] << 32 | pair[1]
    keys = torch.tensor([key, key ^ 5])
    assert torch.equal(children_of_rows(keys, 3), torch.stack([child_keys_of_rows(keys, i) for i in range(3)], -1))


def test_keys_differ_by_seed_row_and_view_and_not_by_batch() -> None:
    seed, rows = torch.tensor([5, 9]), torch.arange(5000)
    keys = V.row_keys(seed, rows)
    assert len(set(keys.tolist())) == 5000
    assert torch.equal(V.row_keys(seed, rows[17:19]), keys[17:19])
    assert torch.equal(V.row_keys(seed.expand(5000, 2), rows), keys)
    for other in (V.row_keys(seed + 1, rows), V.row_keys(seed, rows, view=1)):
        assert not set(other.tolist()) & set(keys.tolist())


def test_numbers_have_their_distribution() -> None:
    keys = V.row_keys(torch.tensor([5, 9]), torch.arange(20_000))
    u, z = units(keys, 0, 2).double(), normals(keys, 1, 3).double()
    # Across rows and within them; five standard errors.
    assert abs(float(u.mean()) - 0.5) < 5 * (1 / 12 / u.numel()) ** 0.5
    assert abs(float(torch.corrcoef(u.T)[0, 1])) < 5 / 20_000**0.5
    assert abs(float(torch.corrcoef(torch.stack([u[1:, 0], u[:-1, 0]]))[0, 1])) < 5 / 20_000**0.5
    assert abs(float(z.mean())) < 5 / z.numel() ** 0.5
    assert abs(float(z.var()) - 1) < 5 * (2 / z.numel()) ** 0.5
    assert abs(float((z**4).mean()) - 3) < 5 * (96 / z.numel()) ** 0.5


def test_cosine_and_sine() -> None:
    angle = torch.linspace(-torch.pi, torch.pi, 1001)
    cosine, sine = compute_cos_sin(angle)
    assert torch.allclose(cosine.double(), angle.double().cos(), atol=3e-7)
    assert torch.allclose(sine.double(), angle.double().sin(), atol=3e-7)
