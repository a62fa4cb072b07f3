"""Small trained parts of a frozen text encoder, on tweets of six airlines: FedCLIP's attention, and what each method costs and is worth.

Source: Lu, Hu, Wang, Xie 2023, "FedCLIP: Fast Generalization and Personalization for CLIP in Federated Learning". Its images and CLIP's weights are not to be had
here, so that no number of its tables stands beside ours; its protocol does: one domain left out, 60/20/20, the round chosen on the second parts, Adam. The numbers beside ours are those
of an earlier sketch on the same tweets, 400 of each airline, 15 rounds, MiniLM.

The real runs need the encoder as the folder ``minilm`` below ``ATOLL_MODELS``. ``--quick`` makes a tiny encoder with random weights and texts of a few words: it shows the path,
and its numbers say nothing about the methods.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import atoll
from atoll.adapters import AttAI, BitFit, Bottleneck, LinearHead, Peft, Tuning, leave_domains_out
from atoll.adapters.leave_out import measure_zero_shot
from atoll.algorithms import LocalAdam
from atoll.core.extras import need
from atoll.reproduce import Claim, Entry, keeping_nothing

__all__ = ["FEDCLIP_ENTRY", "PEFT_ENTRY", "make_texts", "make_tiny_encoder", "measure_methods"]

Columns = tuple[list[str], list[str], list[str]]
"""Texts, their classes, and their domains."""

PROMPT = "A tweet with {label} sentiment"
PEFT = {"lora": Peft("LORA", {"r": 8, "target_modules": ["query", "value"]}), "ia3": Peft("IA3", {"target_modules": ["key", "value", "output.dense"], "feedforward_modules": ["output.dense"]}), "prompt": Peft("PROMPT_TUNING", {"num_virtual_tokens": 8}), "bitfit": BitFit()}  # fmt: skip
METHODS: dict[str, tuple[Any, str]] = {
    "linear": (LinearHead(), "class"),
    "AttAI, batch loss": (AttAI(), "batch"),
    "AttAI": (AttAI(), "class"),
    "bottleneck": (Bottleneck(), "class"),
    **{name: (method, "class") for name, method in PEFT.items()},
}
"""Methods, and their losses."""
BESIDE = {"linear": (0.70, 0.70), "AttAI, batch loss": (0.74, 0.72), "AttAI": (0.81, 0.77), "bottleneck": (0.80, 0.78)}
"""Personalization and generalization of the sketch."""
_OF_EACH, _BAND = 400, 0.05


def make_tiny_encoder(folder: Path) -> Path:
    """Write an encoder of one layer with random weights, and a tokeniser of the words of `make_texts`."""
    library, tokenizers = (need(name, "encoders", "--quick") for name in ("transformers", "tokenizers"))
    words = ["[PAD]", "[UNK]", *_WORDS["negative"], *_WORDS["positive"], *_OTHERS, *PROMPT.split()]
    words = list(dict.fromkeys(words))
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel({word: i for i, word in enumerate(words)}, "[UNK]"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    config = library.BertConfig(
        vocab_size=len(words), hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64,
        max_position_embeddings=32, initializer_range=0.2,
    )  # fmt: skip
    from atoll.adapters.encoder import quiet
    from atoll.torch.own_state import seed_generators

    with quiet(), seed_generators(0):
        library.BertModel(config).save_pretrained(folder)
        marks = {"pad_token": "[PAD]", "unk_token": "[UNK]"}
        library.PreTrainedTokenizerFast(tokenizer_object=made, **marks).save_pretrained(folder)
    return folder


_WORDS = {"negative": ("bad", "rude", "late", "negative"), "positive": ("good", "kind", "fast", "positive")}
_OTHERS = ("so", "crew", "seat", "flight", "staff", "bag")


def make_texts(domains: int = 3, rows: int = 40, seed: int = 0) -> Columns:
    """Return texts of two classes in some domains: a word tells the class, others tell nothing."""
    rng = np.random.default_rng(seed)
    made: Columns = ([], [], [])
    for domain in range(domains):
        for _ in range(rows):
            label = ("negative", "positive")[int(rng.integers(2))]
            text = f"{rng.choice(_WORDS[label])} {' '.join(rng.choice(_OTHERS, size=int(rng.integers(1, 4))))}"
            for column, value in zip(made, (text, label, f"domain-{domain}"), strict=True):
                column.append(value)
    return made


def _tweets(of_each: int) -> Columns:
    """Return some tweets of each airline, drawn with seed 0."""
    whole = atoll.data.airline_tweets(test=0.0)
    airlines = np.asarray(whole["airline"])
    rng = np.random.default_rng(0)
    chosen = np.concatenate(
        [
            np.sort(rng.permutation(np.flatnonzero(airlines == name))[:of_each])
            for name in sorted(set(airlines.tolist()))
        ]
    )
    labels = np.asarray(whole.about.labels)[np.asarray(whole["y"])[chosen]]
    return [str(one) for one in np.asarray(whole["text"])[chosen]], labels.tolist(), airlines[chosen].tolist()


def measure_methods(
    encoder: str, columns: Columns, names: list[str], rounds: int, leave_out: str
) -> dict[str, dict[str, Any]]:
    """Return what `leave_domains_out` says of each method, and of the prompts alone as ``"zero-shot"``."""
    found = {}
    for name in ("zero-shot", *names):
        method, loss = METHODS.get(name, (AttAI(), "class"))
        job = Tuning(
            encoder=encoder, method=method, prompt=PROMPT if not isinstance(method, LinearHead) else "", loss=loss, length=64 if rounds > 3 else 8, rounds=rounds,
            algorithm=LocalAdam(lr=1e-3, batch_size=32), selection=atoll.Everyone(),
        )  # fmt: skip
        if name == "zero-shot":
            found[name] = measure_zero_shot(job, *columns)
        else:
            found[name] = leave_domains_out(job, *columns, run=atoll.simulate, leave_out=leave_out)
    return found


@contextmanager
def _setting(quick: bool) -> Iterator[tuple[str, Columns, int, str]]:
    """Give the encoder, the texts, the rounds and the domain that is left out."""
    if quick:
        with tempfile.TemporaryDirectory() as folder:
            yield str(make_tiny_encoder(Path(folder) / "tiny")), make_texts(), 3, "domain-0"
    else:
        yield "minilm", _tweets(_OF_EACH), 15, "Virgin America"


def _both(one: dict[str, Any]) -> str:
    return f"{one['personalization']:.3f}, {one['generalization']:.3f}"


@keeping_nothing("fedclip-text")
def _run_fedclip(quick: bool) -> list[Claim]:
    with _setting(quick) as (encoder, columns, rounds, left_out):
        found = measure_methods(encoder, columns, list(BESIDE), rounds, left_out)
    zero, attai, batch = (found[name] for name in ("zero-shot", "AttAI", "AttAI, batch loss"))
    parts = next(iter(attai["folds"]))
    mean = np.mean([*parts["domains"].values(), parts["generalization"]])
    made = [
        Claim("AttAI is worth more than the prompts alone: personalization", None, f"{attai['personalization']:.3f} against {zero['personalization']:.3f}", attai["personalization"] > zero["personalization"], "FedCLIP has no such line"),
        Claim("comprehensive is the mean over all domains (Table 4)", None, f"{attai['comprehensive']:.4f}", bool(np.isclose(attai["comprehensive"], mean)), "an identity"),
        Claim("the class loss is worth at least Eq. 8, which compares with the prompts of the mini-batch", None, f"{attai['personalization']:.3f} against {batch['personalization']:.3f}", attai["personalization"] >= batch["personalization"] - 0.01, "personalization, less .01"),
    ]  # fmt: skip
    if not quick:
        made += [
            Claim(f"{name}: {word}", beside, f"{found[name][word]:.3f}", abs(found[name][word] - beside) <= _BAND, f"within {_BAND}", "Beside the sketch, Virgin America left out")
            for name, pair in BESIDE.items()
            for word, beside in zip(("personalization", "generalization"), pair, strict=True)
        ]  # fmt: skip
    return made


@keeping_nothing("peft-airlines")
def _run_peft(quick: bool) -> list[Claim]:
    names = (
        ["linear", "AttAI", "bottleneck", "lora", "bitfit"]
        if quick
        else [name for name in METHODS if "loss" not in name]
    )
    with _setting(quick) as (encoder, columns, rounds, left_out):
        found = measure_methods(encoder, columns, names, rounds, left_out)
    made = [
        Claim.figure(f"{name}: personalization, generalization; values trained; bytes up a round", f"{_both(found[name])}; {found[name]['trainable']:,}; {found[name]['bytes_up']:,}", "of a participant")
        for name in names
    ]  # fmt: skip
    sizes = {name: found[name]["trainable"] for name in names}
    sent = {name: found[name]["bytes_up"] for name in names}
    exact = all(4 * sizes[name] <= sent[name] <= 4 * sizes[name] + 8192 for name in names)
    made.append(Claim("a participant sends four bytes for each trained value, and a head of at most 8 KiB around them", None, ", ".join(f"{name} {sent[name] - 4 * sizes[name]:,}" for name in names), exact, "nothing of the encoder travels"))  # fmt: skip
    if not quick:
        made.append(Claim("LoRA of rank 8 has 73,728 values", "73,728", f"{sizes['lora']:,}", sizes["lora"] == 73_728, "before prompts, which need no head"))  # fmt: skip
    return made


FEDCLIP_ENTRY = Entry(
    name="fedclip-text",
    title="FedCLIP's attention adapter, on tweets in place of images",
    source="Lu, Hu, Wang, Xie 2023, FedCLIP",
    run=_run_fedclip,
    needs="tweets of airlines below ATOLL_DATA, and MiniLM as the folder minilm below ATOLL_MODELS; nothing with --quick",
    data=("airline_tweets",),
    quick_data=(),
)
PEFT_ENTRY = Entry(
    name="peft-airlines",
    title="Methods that tune a frozen encoder on tweets: accuracy and bytes",
    source="Lu, Hu, Wang, Xie 2023; Hu et al. 2022 (LoRA); Liu et al. 2022 (IA3); Ben Zaken et al. 2022 (BitFit)",
    run=_run_peft,
    needs="tweets of airlines below ATOLL_DATA, and MiniLM as the folder minilm below ATOLL_MODELS; nothing with --quick",
    data=("airline_tweets",),
    quick_data=(),
)
