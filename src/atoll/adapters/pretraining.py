"""A small dual encoder from generated pictures and their captions, in the format of a ``CLIPModel``.

It has seen no photograph, and its weights are not CLIP's: it is there to try adapters of images where no weights are to be had. Its folder says so in ``README.md`` and in
``config.json``, and so does the command.

Objective: Radford et al. 2021, "Learning Transferable Visual Models From Natural Language Supervision": each picture against the captions of its mini-batch and each
caption against the pictures. Equal captions share the target.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core.algebra.rng import Rng
from atoll.core.errors import ConfigError, DataError
from atoll.core.extras import need

from .encoder import Encoder, image_features, prompts_of, quiet, text_features, unit_rows
from .images import ImageSettings, prepare_images

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["COLOURS", "NOTE", "SHAPES", "Pretraining", "draw_pictures", "pretrain_encoder"]

NOTE = "A small dual encoder from generated pictures and captions. It has seen no photograph, and its weights are not CLIP's."
"""What a folder says of itself."""

_SHAPES: dict[str, Callable[[Any, Any], Any]] = {
    "circle": lambda u, v: np.hypot(u, v) - 1,
    "square": lambda u, v: np.maximum(np.abs(u), np.abs(v)) - 0.85,
    "triangle": lambda u, v: np.maximum(v - 0.7, np.abs(u) * 0.87 - (v + 1) * 0.5),
    "cross": lambda u, v: np.minimum(np.maximum(np.abs(u) - 0.3, np.abs(v) - 1), np.maximum(np.abs(u) - 1, np.abs(v) - 0.3)),
    "ring": lambda u, v: np.abs(np.hypot(u, v) - 0.75) - 0.25,
    "bar": lambda u, v: np.maximum(np.abs(u) - 1.1, np.abs(v) - 0.3),
    "moon": lambda u, v: np.maximum(np.hypot(u, v) - 1, 0.85 - np.hypot(u - 0.55, v)),
    "diamond": lambda u, v: np.abs(u) + np.abs(v) - 1.1,
}  # fmt: skip
"""Shapes as functions that are negative inside, for coordinates from -1 to 1."""
_COLOURS = {
    "red": (0.95, 0.3, 0.3), "green": (0.3, 0.85, 0.35), "blue": (0.4, 0.55, 1.0), "yellow": (0.95, 0.9, 0.3),
    "purple": (0.75, 0.4, 0.95), "orange": (1.0, 0.6, 0.2), "white": (0.95, 0.95, 0.95), "cyan": (0.3, 0.9, 0.9),
}  # fmt: skip
_DARK = 0.25  # a ground is darker than its shape, so that few steps learn a shape
SHAPES = tuple(_SHAPES)
"""The shapes of generated pictures."""
COLOURS = tuple(_COLOURS)
"""The colours of shapes and grounds."""
_GROUNDS = ("plain", "striped", "speckled", "shaded")
_CAPTIONS = (
    "a picture of a {shape}", "a {colour} {shape}", "a {colour} {shape} on dark {ground}",
    "a {size} {colour} {shape} on {texture} dark {ground}",
)  # fmt: skip
_SHARES = (0.4, 0.2, 0.2, 0.2)  # colours are learnt first where most captions name them
_SIDE, _PATCH, _TOKENS = 32, 16, 24
_IMAGES = ImageSettings((_SIDE,), (_SIDE, _SIDE))
_HELD_OUT = 512


def draw_pictures(
    rows: int, rng: np.random.Generator, side: int = _SIDE
) -> tuple[NDArray[np.uint8], NDArray[np.int64], list[str]]:
    """Draw shapes on grounds.

    Args:
        rows: their number.
        rng: draws shapes, colours, grounds, sizes, places and captions.
        side: height and width, in pixels.

    Returns:
        Pixels ``(rows, side, side, 3)``, the code of each shape in `SHAPES`, and a caption each, which may leave things out.
    """
    y = rng.integers(len(SHAPES), size=rows)
    colour = rng.integers(len(COLOURS), size=rows)
    ground = (colour + rng.integers(1, len(COLOURS), size=rows)) % len(COLOURS)
    texture, large = rng.integers(len(_GROUNDS), size=rows), rng.random(rows) < 0.5
    grid = (np.arange(side) + 0.5) / side * 2 - 1
    place = rng.uniform(-0.12, 0.12, size=(2, rows, 1, 1))
    turn = rng.uniform(-0.15, 0.15, size=(rows, 1, 1))
    size = np.where(large, rng.uniform(0.7, 0.8, rows), rng.uniform(0.5, 0.6, rows))[:, None, None]
    across, down = grid[None, None, :] - place[0], grid[None, :, None] - place[1]
    u, v = (np.cos(turn) * across + np.sin(turn) * down) / size, (np.cos(turn) * down - np.sin(turn) * across) / size
    inside = np.zeros((rows, side, side))
    for code, name in enumerate(SHAPES):
        own = y == code
        inside[own] = np.clip(0.5 - _SHAPES[name](u[own], v[own]) * size[own] * side / 2, 0, 1)
    table = np.array([_COLOURS[name] for name in COLOURS])
    tint = rng.normal(0, 0.04, size=(2, rows, 1, 1, 3))
    behind = _DARK * table[ground][:, None, None] + tint[0] + _texture(texture, rng, side)[..., None]
    made = (
        behind
        + inside[..., None] * (table[colour][:, None, None] + tint[1] - behind)
        + rng.normal(0, 0.02, (rows, side, side, 3))
    )
    captions = [
        _CAPTIONS[which].format(
            shape=SHAPES[y[i]], colour=COLOURS[colour[i]], ground=COLOURS[ground[i]], texture=_GROUNDS[texture[i]],
            size="large" if large[i] else "small",
        )
        for i, which in enumerate(rng.choice(len(_CAPTIONS), size=rows, p=_SHARES).tolist())
    ]  # fmt: skip
    return np.round(np.clip(made, 0, 1) * 255).astype(np.uint8), y, captions


def _texture(kind: NDArray[np.int64], rng: np.random.Generator, side: int) -> NDArray[np.float64]:
    """Return what textures add to their ground, ``(rows, side, side)``."""
    rows, grid = len(kind), np.arange(side) / side
    angle = rng.uniform(0, math.pi, size=(rows, 1, 1))
    along = np.cos(angle) * grid[None, None, :] + np.sin(angle) * grid[None, :, None]
    kinds = np.stack(
        [
            np.zeros((rows, side, side)),
            0.1 * np.sign(np.sin(2 * math.pi * rng.uniform(3, 5, size=(rows, 1, 1)) * along)),
            rng.normal(0, 0.08, size=(rows, side, side)),
            0.3 * (along - along.mean((1, 2), keepdims=True)),
        ]
    )
    return np.asarray(kinds[kind, np.arange(rows)])


@dataclass(frozen=True)
class Pretraining:
    """What a pretraining came to.

    Attributes:
        folder: the encoder's folder.
        digest: its hash; see `Encoder`.
        parameters: number of its values.
        steps: steps of training.
        loss: of the last step.
        shapes: share of held-out pictures whose shape the prompt "a picture of a ..." finds; there are eight.
        note: what it is, and what not.
    """

    folder: str
    digest: str
    parameters: int
    steps: int
    loss: float
    shapes: float
    note: str = NOTE


def pretrain_encoder(
    folder: str | Path,
    *,
    pairs: int = 4096,
    steps: int = 400,
    batch: int = 128,
    width: int = 64,
    layers: int = 2,
    lr: float = 2e-3,
    seed: int = 0,
) -> Pretraining:
    """Make a small dual encoder from generated pictures and captions, and write it as `Encoder.open` and ``CLIPModel.from_pretrained`` read it.

    Args:
        folder: where to write it; it must not hold an encoder already.
        pairs: generated pictures and captions.
        steps: steps of training.
        batch: pairs of a step.
        width: numbers of the features, and of the hidden states; a multiple of 4.
        layers: layers of the side of images; that of texts has one less, at least one.
        lr: rate of Adam, which falls to zero as a cosine after a tenth of the steps.
        seed: draws pictures and first weights.

    Raises:
        ConfigError: a number is too small, or the width is no multiple of 4.
        DataError: the folder holds an encoder.
    """
    if min(steps, batch - 1, width, layers) < 1 or batch > pairs or width % 4 or not lr > 0:
        raise ConfigError(
            f"pairs={pairs}, steps={steps}, batch={batch}, width={width}, layers={layers}, lr={lr}",
            where="pretrain_encoder",
            remedy="use positive numbers, at least 2 pairs of a step and no more than there are, and a width that is a multiple of 4",
        )
    place = Path(folder)
    if (place / "config.json").exists():
        raise DataError(
            f"there is an encoder in {str(folder)!r} already", where="pretrain_encoder", remedy="give another folder"
        )
    own = need("atoll.torch.own_state", "torch", "pretrain_encoder")
    with own.seed_generators(seed), quiet():
        tokeniser = _make_tokeniser()
        model = _make_model(tokeniser, width, layers)
        loss = _train(model, tokeniser, pairs, steps, batch, lr, seed)
        place.mkdir(parents=True, exist_ok=True)
        model.save_pretrained(place)
        tokeniser.save_pretrained(place)
    _write_about(place)
    encoder = Encoder.open(str(place), length=_TOKENS, modality="image")
    found = _find_shapes(encoder, seed)
    count = sum(p.numel() for p in model.parameters())
    return Pretraining(str(place), encoder.digest, count, steps, loss, found)


def _make_tokeniser() -> Any:
    """Return a tokeniser of pieces of words: words that no caption has are spelt by letters, so that none is like another."""
    library, transformers = (
        need("tokenizers", "encoders", "pretrain_encoder"),
        need("transformers", "encoders", "pretrain_encoder"),
    )
    made = library.Tokenizer(library.models.BPE(unk_token=None))
    made.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=True)
    made.normalizer = library.normalizers.Lowercase()
    # The end must not be token 2: transformers reads a text's features at its largest token then, as CLIP's first configurations ask.
    marks = {"pad_token": "<|pad|>", "eos_token": "<|endoftext|>", "bos_token": "<|startoftext|>"}
    trainer = library.trainers.BpeTrainer(
        vocab_size=400, special_tokens=[*marks.values()], initial_alphabet=library.pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )  # fmt: skip
    words = [*SHAPES, *COLOURS, *_GROUNDS, "large", "small", "a picture of a", "on", "dark"]
    made.train_from_iterator([f" {word}" for word in words for _ in range(4)], trainer)
    made.post_processor = library.processors.TemplateProcessing(
        single=f"{marks['bos_token']} $A {marks['eos_token']}",
        special_tokens=[(name, made.token_to_id(name)) for name in (marks["bos_token"], marks["eos_token"])],
    )
    return transformers.PreTrainedTokenizerFast(tokenizer_object=made, model_max_length=_TOKENS, **marks)


def _make_model(tokeniser: Any, width: int, layers: int) -> Any:
    library = need("transformers", "encoders", "pretrain_encoder")
    shape = {"hidden_size": width, "intermediate_size": 4 * width, "num_attention_heads": 4}
    ids = {f"{mark}_token_id": getattr(tokeniser, f"{mark}_token_id") for mark in ("pad", "bos", "eos")}
    config = library.CLIPConfig(
        text_config={**shape, **ids, "num_hidden_layers": max(1, layers - 1), "vocab_size": len(tokeniser), "max_position_embeddings": _TOKENS},
        vision_config={**shape, "num_hidden_layers": layers, "image_size": _SIDE, "patch_size": _PATCH},
        projection_dim=width,
    )  # fmt: skip
    return library.CLIPModel(config)


def _train(model: Any, tokeniser: Any, pairs: int, steps: int, batch: int, lr: float, seed: int) -> float:
    torch = need("torch", "torch", "pretrain_encoder")
    rng, loss = Rng.of(seed).child("pretraining").generator(), math.nan
    drawn, _, captions = draw_pictures(pairs, rng)
    pixels = torch.from_numpy(prepare_images(list(drawn), _IMAGES))
    words = tokeniser(captions, padding=True, return_tensors="pt")
    codes = torch.from_numpy(np.unique(np.array(captions), return_inverse=True)[1])
    adam = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.01)
    rates = torch.optim.lr_scheduler.LambdaLR(adam, lambda step: _rate(step, steps))
    model.train()
    for _ in range(steps):
        own = torch.from_numpy(rng.choice(pairs, size=batch, replace=False))
        images = image_features(model, pixels[own])
        texts = text_features(model, words["input_ids"][own], words["attention_mask"][own])
        units = [torch.nn.functional.normalize(one, dim=-1) for one in (images, texts)]
        scores = model.logit_scale.clamp(max=math.log(100)).exp() * units[0] @ units[1].T
        same = (codes[own, None] == codes[None, own]).float()
        share = same / same.sum(1, keepdim=True)
        total = -((share * scores.log_softmax(1)).sum(1).mean() + (share * scores.T.log_softmax(1)).sum(1).mean()) / 2
        adam.zero_grad()
        total.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        adam.step()
        rates.step()
        loss = float(total.detach())
    model.eval()
    return loss


def _rate(step: int, steps: int) -> float:
    """Return the share of the rate: up in the first tenth, then down as a cosine."""
    warm = max(1, steps // 10)
    return (step + 1) / warm if step < warm else 0.5 * (1 + math.cos(math.pi * (step - warm) / max(1, steps - warm)))


def _write_about(place: Path) -> None:
    config = json.loads((place / "config.json").read_text("utf-8"))
    (place / "config.json").write_text(json.dumps({**config, "note": NOTE}, indent=2) + "\n", "utf-8")
    (place / "README.md").write_text(f"# A small dual encoder\n\n{NOTE}\n", "utf-8")
    said = {
        "image_processor_type": "CLIPImageProcessor", "size": {"shortest_edge": _SIDE}, "crop_size": {"height": _SIDE, "width": _SIDE},
        "resample": _IMAGES.resample, "rescale_factor": _IMAGES.factor, "image_mean": _IMAGES.mean, "image_std": _IMAGES.deviation,
    }  # fmt: skip
    (place / "preprocessor_config.json").write_text(json.dumps(said, indent=2) + "\n", "utf-8")


def _find_shapes(encoder: Encoder, seed: int) -> float:
    """Return the share of new pictures whose shape is found by its prompt."""
    pixels, y, _ = draw_pictures(_HELD_OUT, Rng.of(seed).child("held out").generator())
    texts = unit_rows(prompts_of(encoder, [*SHAPES], "a picture of a {label}"))
    return float(((encoder.encode_images(list(pixels), cached=False) @ texts.T).argmax(1) == y).mean())
