"""Tiny encoders, made in a test: random weights, words as tokens."""

from __future__ import annotations

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
