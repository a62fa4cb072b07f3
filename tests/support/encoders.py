"""Tiny encoders, made in a test: random weights, words as tokens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

WORDS = ("good", "bad", "so", "late", "crew", "seat", "kind", "rude", "flight", "ok")


def make_encoder(folder: Path, *, width: int = 16, seed: int = 0, kind: str = "bert") -> Path:
    """Write a model of one layer and a tokeniser of words, as ``save_pretrained`` does; skip the test without the libraries."""
    torch = pytest.importorskip("torch")
    library, tokenizers = pytest.importorskip("transformers"), pytest.importorskip("tokenizers")
    pytest.importorskip("peft")
    names = ["[PAD]", "[UNK]", *WORDS]
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel({word: i for i, word in enumerate(names)}, "[UNK]"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    words = library.PreTrainedTokenizerFast(tokenizer_object=made, pad_token="[PAD]", unk_token="[UNK]")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: Any
        if kind == "causal":
            config = library.GPT2Config(vocab_size=len(names), n_embd=width, n_layer=1, n_head=2, n_positions=32)
            model = library.GPT2LMHeadModel(config)
        else:
            config = library.BertConfig(
                vocab_size=len(names), hidden_size=width, num_hidden_layers=1, num_attention_heads=2,
                intermediate_size=2 * width, max_position_embeddings=32, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
            )  # fmt: skip
            model = library.BertModel(config)
        with torch.no_grad():
            for name, p in model.named_parameters():
                if p.dim() == 2:
                    p.mul_(10.0)  # a tenth of the usual size tells no words apart
                del name
    model.save_pretrained(folder)
    words.save_pretrained(folder)
    return folder


def make_reviews(folder: Path, sites: int = 2, rows: int | tuple[int, ...] = 24, seed: int = 0) -> Path:
    """Write a CSV file of texts and their labels for each site; "good" and "kind" are of one class, "bad" and "rude" of the other.

    ``rows`` is their number at each site, or at all sites.
    """
    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True, exist_ok=True)
    for site in range(sites):
        lines = ["text,label"]
        for _ in range(rows if isinstance(rows, int) else rows[site]):
            label = int(rng.integers(2))
            key = (("bad", "rude"), ("good", "kind"))[label][int(rng.integers(2))]
            others = rng.choice(["so", "late", "crew", "seat", "flight", "ok"], size=int(rng.integers(1, 4)))
            lines.append(f"{key} {' '.join(others)},{'good' if label else 'bad'}")
        (folder / f"site{site}.csv").write_text("\n".join(lines) + "\n")
    return folder


def make_dual_encoder(folder: Path, *, width: int = 12, seed: int = 0) -> Path:
    """Write a ``CLIPModel`` of one layer a side, for images of 16 × 16, with a tokeniser of words and the settings of images."""
    torch = pytest.importorskip("torch")
    library, tokenizers = pytest.importorskip("transformers"), pytest.importorskip("tokenizers")
    pytest.importorskip("PIL")
    names = ["[PAD]", "[UNK]", "[BOS]", "[EOS]", *WORDS, *COLOURS]
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel({word: i for i, word in enumerate(names)}, "[UNK]"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.post_processor = tokenizers.processors.TemplateProcessing(
        single="[BOS] $A [EOS]", special_tokens=[("[BOS]", 2), ("[EOS]", 3)]
    )
    marks = {"pad_token": "[PAD]", "unk_token": "[UNK]", "bos_token": "[BOS]", "eos_token": "[EOS]"}
    layers = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    ids = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3}
    config = library.CLIPConfig(
        text_config={**layers, **ids, "vocab_size": len(names), "max_position_embeddings": 16},
        vision_config={**layers, "image_size": 16, "patch_size": 8},
        projection_dim=width, initializer_factor=5.0,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        library.CLIPModel(config).save_pretrained(folder)
    library.PreTrainedTokenizerFast(tokenizer_object=made, **marks).save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(
        json.dumps(
            {
                "image_processor_type": "CLIPImageProcessor",
                "size": {"shortest_edge": 16},
                "crop_size": {"height": 16, "width": 16},
            }
        )
    )
    return folder


COLOURS = ("red", "green", "blue")


def make_pictures(folder: Path, sites: int = 2, rows: int | tuple[int, ...] = 12, seed: int = 0) -> Path:
    """Write PNG files of noisy colours, and a CSV file a site with their names and colours: ``image,label``.

    ``rows`` is their number at each site, or at all sites.
    """
    pillow = pytest.importorskip("PIL.Image")
    rng = np.random.default_rng(seed)
    (folder / "files").mkdir(parents=True, exist_ok=True)
    for site in range(sites):
        lines = ["image,label"]
        for row in range(rows if isinstance(rows, int) else rows[site]):
            colour = row % len(COLOURS)
            pixels = rng.integers(0, 120, size=(18 + row % 3, 20, 3), dtype=np.uint8)
            pixels[..., colour] += 120
            name = f"files/{site}-{row}.png"
            pillow.fromarray(pixels).save(folder / name)
            lines.append(f"{name},{COLOURS[colour]}")
        (folder / f"site{site}.csv").write_text("\n".join(lines) + "\n")
    return folder


def make_image_encoder(folder: Path, *, width: int = 16, seed: int = 0) -> Path:
    """Write a ``ViTModel`` of one layer, for images of 16 × 16, and the settings of images; it has no side of texts."""
    torch, library = pytest.importorskip("torch"), pytest.importorskip("transformers")
    pytest.importorskip("PIL")
    config = library.ViTConfig(
        hidden_size=width, intermediate_size=2 * width, num_hidden_layers=1, num_attention_heads=2, image_size=16,
        patch_size=8, initializer_range=0.3, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        library.ViTModel(config).save_pretrained(folder)
    said = {"image_processor_type": "ViTImageProcessor", "size": {"height": 16, "width": 16}}
    (folder / "preprocessor_config.json").write_text(json.dumps(said))
    return folder
