"""Learnt vectors in the prompts of classes: zero-shot at their start, a plain loop of PyTorch afterwards, saved as peft saves them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import atoll
from atoll.adapters import Encoder, PromptFL, Tuning, load_adapter
from atoll.adapters.encoder import prompts_of, quiet, unit_rows
from atoll.adapters.methods import EncoderTarget
from atoll.core.algebra.form import safetensors_of
from atoll.core.errors import AtollError
from tests.support.encoders import COLOURS, make_dual_encoder, make_encoder, make_pictures

RATE, ROUNDS, PROMPT = 0.5, 2, "so good {label} seat"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("prompts")
    make_dual_encoder(folder / "dual")
    make_encoder(folder / "texts")
    make_pictures(folder / "data")
    return folder


def build(encoder: Encoder, labels: Any = COLOURS, prompt: str = PROMPT, tokens: int | None = None) -> Any:
    with quiet():
        return PromptFL(tokens).build(encoder, EncoderTarget(len(labels), np.ones((3, 1)), 20.0, tuple(labels), prompt))


@pytest.mark.parametrize("folder", ["dual", "texts"])
@pytest.mark.parametrize(("prompt", "tokens"), [(PROMPT, None), (PROMPT, 2), ("{label} seat", 0), ("", 0)])
def test_no_vectors_and_vectors_at_the_words_of_the_prompt_are_zero_shot(
    folder: str, prompt: str, tokens: int | None, place: Path
) -> None:
    import torch

    encoder = Encoder.open(str(place / folder), length=12)
    labels = ("good", "rude crew", "flight")  # of one token and of two
    module = build(encoder, labels, prompt, tokens)
    x = np.random.default_rng(0).normal(size=(5, encoder.width)).astype(np.float32)
    found = module(torch.from_numpy(x))
    plain = 20.0 * unit_rows(x) @ unit_rows(prompts_of(encoder, [*labels], prompt)).T
    np.testing.assert_allclose(found.detach().numpy(), plain, atol=1e-4)
    (slope,) = torch.autograd.grad(found[:, 0].sum(), [p for p in module.parameters() if p.requires_grad])
    assert slope.shape == module.context.shape == (2 if prompt == PROMPT else 0, 16)
    assert (slope.abs().sum(1) > 1e-6).all()


def test_new_vectors_stand_before_the_name_and_are_small(place: Path) -> None:
    encoder = Encoder.open(str(place / "dual"), length=16)
    module = build(encoder, prompt="", tokens=6)
    assert module.tokens.shape == (3, 2, 9)
    plain = encoder.tokenise(COLOURS)[:, 0, :3]
    np.testing.assert_array_equal(module.tokens[:, 0, [0, 7, 8]], plain)
    assert 0.005 < float(module.context.detach().std()) < 0.05


def plain_loop(place: Path, parts: list[tuple[Any, Any]]) -> Any:
    """The oracle: transformers' own parts of the side of texts, one vector after another, and the mean of two clients' values."""
    import torch
    import transformers

    model = transformers.CLIPModel.from_pretrained(place / "dual").eval().requires_grad_(False)
    words = transformers.AutoTokenizer.from_pretrained(place / "dual")
    side = model.text_model
    ids = [words(PROMPT.replace("{label}", label))["input_ids"] for label in COLOURS]

    def scores(vectors: Any, x: Any) -> Any:
        found = []
        for own in ids:
            table = side.embeddings.token_embedding(torch.tensor(own))
            given = torch.cat([table[:1], vectors, table[3:]])[None]
            states = side.encoder(side.embeddings(inputs_embeds=given), attention_mask=None, is_causal=True)
            last = side.final_layer_norm(states.last_hidden_state)[0, own.index(3)]  # 3 is [EOS]
            found.append(model.text_projection(last))
        units = [torch.nn.functional.normalize(one, dim=-1) for one in (x, torch.stack(found))]
        return 20.0 * units[0] @ units[1].T

    shared = side.embeddings.token_embedding(torch.tensor(ids[0][1:3])).clone()
    for _ in range(ROUNDS):
        after = []
        for x, y in parts:
            own = shared.clone().requires_grad_(True)
            torch.nn.functional.cross_entropy(scores(own, x), y).backward()
            after.append((own - RATE * own.grad).detach())
        sizes = torch.tensor([float(len(y)) for _, y in parts])
        shared = torch.tensordot(sizes / sizes.sum(), torch.stack(after), 1)
    return shared.numpy()


def refuse_other_values(folder: Path, encoder: str) -> None:
    """Check that no value is taken whose form is another, nor any left as it begins."""
    file = folder / "adapter_model.safetensors"
    for one in (np.ones((1, 16), np.float32), np.ones((2, 15), np.float32)):  # the first would fill all rows
        file.write_bytes(safetensors_of({"prompt_embeddings": one}, {}))
        with pytest.raises(AtollError, match="'context' is missing, unknown or of another shape"):
            load_adapter(folder, encoder)
    file.write_bytes(file.read_bytes()[:60])
    with pytest.raises(AtollError, match=r"adapter_model\.safetensors cannot be read"):
        load_adapter(folder, encoder)
    file.unlink()
    with pytest.raises(AtollError, match="'context' is missing"):
        load_adapter(folder, encoder)


def test_images_are_tuned_as_in_a_plain_loop_and_peft_loads_what_is_saved(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import peft
    import torch
    import transformers

    monkeypatch.setenv("ATOLL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("ATOLL_IMAGES", str(place / "data"))
    rows = atoll.data.from_csv_folder(place / "data", target="label", keep=["image"], features=[])
    job = Tuning(
        encoder=str(place / "dual"), method=PromptFL(), image="image", prompt=PROMPT, length=12, rounds=ROUNDS,
        algorithm=atoll.FedAvg(lr=RATE, batch_size=None),
    )  # fmt: skip
    result = atoll.simulate(job, rows, engine="inline")
    assert {name: value.shape for name, value in result.params.items()} == {"context": (2, 16)}
    assert result.bytes["bytes_up"] < 2 * ROUNDS * 400, "the vectors' 128 bytes and counts, no weights"
    encoded = [job.model.rows.encode(rows.shard(client)) for client in range(2)]
    order = [COLOURS.index(label) for label in encoded[0].about.labels]
    parts = [(torch.from_numpy(np.array(one["x"])), torch.tensor(np.take(order, one["y"]))) for one in encoded]
    with quiet():
        want = plain_loop(place, parts)
    np.testing.assert_allclose(result.params["context"], want, atol=1e-5)
    result.save(tmp_path / "adapter")
    names = [str(one) for one in rows.shard(0)["image"]]
    ours = result.model.eval()(parts[0][0]).detach().numpy()
    np.testing.assert_allclose(load_adapter(tmp_path / "adapter", str(place / "dual")).score(names), ours, atol=1e-5)
    refuse_other_values(tmp_path / "adapter", str(place / "dual"))
    result.save(tmp_path / "adapter")
    with quiet():
        base = transformers.CLIPModel.from_pretrained(place / "dual")
        loaded = peft.PeftModel.from_pretrained(base, str(tmp_path / "adapter"))
    np.testing.assert_array_equal(loaded.get_prompt(1)[0].detach().numpy(), result.params["context"])


@pytest.mark.parametrize(
    ("prompt", "tokens", "words"),
    [
        (PROMPT, 3, "tokens=3, and the prompt has 2 before"),
        ("", None, "a prompt of 19 tokens, 16 of them learnt, for an encoder that takes 12"),
        ("so{label}", None, r"the tokens of 'so' change before the class 'red'.*a space"),
    ],
)
def test_prompts_that_do_not_fit_are_refused(prompt: str, tokens: int | None, words: str, place: Path) -> None:
    with pytest.raises(AtollError, match=words):
        build(Encoder.open(str(place / "dual"), length=12), prompt=prompt, tokens=tokens)


def test_a_count_below_0_is_refused() -> None:
    with pytest.raises(AtollError, match="tokens=-1"):
        PromptFL(-1)
