"""A frozen encoder is tuned through small parts: what travels, what is saved, what is refused."""

from __future__ import annotations

import functools
import json
import math
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import atoll
from atoll.adapters import AttAI, BitFit, Bottleneck, LinearHead, Peft, Tuning, WholeModel, load_adapter
from atoll.adapters.encoder import Encoder, quiet
from atoll.adapters.methods import EncoderTarget
from atoll.algorithms import LocalAdam
from atoll.core.errors import AtollError, DataError
from tests.support.encoders import make_encoder, make_reviews

LORA = Peft("LORA", {"r": 2, "target_modules": ["query", "value"]})


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("adapters")
    make_encoder(folder / "tiny")
    make_reviews(folder / "data")
    return folder


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ATOLL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "features"


def reviews(place: Path) -> Any:
    return atoll.data.from_csv_folder(place / "data", target="label", keep=["text"], features=[])


def tuning(place: Path, method: Any = LORA, **more: Any) -> Tuning:
    settings = {"rounds": 2, "algorithm": atoll.FedAvg(lr=0.1, batch_size=8), "length": 8, **more}
    return Tuning(encoder=str(place / "tiny"), method=method, **settings)


METHODS = {
    "attai": (AttAI(), 2 * (16**2 + 16)),
    "attai, text": (AttAI(side="text"), 2 * (16**2 + 16)),
    "attai, both": (AttAI(side="both"), 4 * (16**2 + 16)),
    "bottleneck": (Bottleneck(hidden=4), 2 * 4 * 16 + 4 + 16),
    "probe": (LinearHead(), 34),
    "lora": (LORA, 2 * 2 * 2 * 16 + 34),
    "ia3": (Peft("IA3", {"target_modules": ["key", "value"], "feedforward_modules": []}), 2 * 16 + 34),
    "prompt": (Peft("PROMPT_TUNING", {"num_virtual_tokens": 4}), 4 * 16 + 34),
    "p_tuning": (Peft("P_TUNING", {"num_virtual_tokens": 4, "encoder_hidden_size": 8}), None),
    "prefix": (Peft("PREFIX_TUNING", {"num_virtual_tokens": 4}), 4 * 2 * 16 + 34),
    "bitfit": (BitFit(), None),
    "whole": (WholeModel(), None),
}


@pytest.mark.filterwarnings("ignore:`past_key_values` is deprecated")  # peft's own, in prefix tuning
@pytest.mark.quick("attai*", "bottleneck", "probe", "lora", "prompt", "bitfit")
@pytest.mark.parametrize("name", METHODS)
def test_a_method_trains_what_it_declares_and_a_saved_adapter_scores_the_same(
    name: str, place: Path, tmp_path: Path
) -> None:
    method, values = METHODS[name]
    rows = reviews(place)
    job = tuning(place, method, rounds=1)
    result = atoll.simulate(job, rows, engine="inline")
    assert values in (None, sum(value.size for value in result.params.values()))
    texts = job.model.rows.texts(rows.shard(0))
    loaded = load_adapter(result.save(tmp_path / "adapter"), str(place / "tiny"))
    x = job.model.rows.encode(rows.shard(0))["x"]
    import torch

    with torch.no_grad():
        ours = result.model.eval()(torch.from_numpy(np.array(x))).numpy()
    np.testing.assert_allclose(loaded.score(texts), ours, rtol=0, atol=1e-6)
    assert set(loaded.predict(texts)) <= {"bad", "good"}
    frozen = Encoder.open(str(place / "tiny")).model.state_dict()
    fresh = make_encoder(tmp_path / "again")
    for key, value in Encoder.open(str(fresh)).model.state_dict().items():
        assert torch.equal(frozen[key], value)  # the shared encoder is as it was


def test_peft_itself_loads_what_was_saved_and_computes_the_same(place: Path, tmp_path: Path) -> None:
    import torch

    peft, transformers = pytest.importorskip("peft"), pytest.importorskip("transformers")
    config = peft.LoraConfig(r=2, target_modules=["query", "value"])
    job = tuning(place, config, head=2)
    result = atoll.simulate(job, reviews(place), engine="inline")
    assert {"body.base_model.model.encoder.layer.0.attention.self.query.lora_A.default.weight", "head.weight"} <= set(
        result.params
    )
    result.save(tmp_path / "adapter")
    with quiet():
        base = transformers.AutoModel.from_pretrained(place / "tiny")
        theirs = peft.PeftModel.from_pretrained(base, str(tmp_path / "adapter")).eval()
    x = torch.from_numpy(np.array(job.model.rows.encode(reviews(place).shard(0))["x"]))
    with torch.no_grad():
        want = theirs(input_ids=x[:, 0], attention_mask=x[:, 1]).last_hidden_state
        found = result.model.eval().body(input_ids=x[:, 0], attention_mask=x[:, 1]).last_hidden_state
    torch.testing.assert_close(found, want, rtol=0, atol=0)
    about = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert about["base_model_name_or_path"] == "tiny"


LEARNERS = {
    "bottleneck": (Bottleneck(hidden=4), atoll.FedAvg(lr=0.05, batch_size=8), 0.9),
    "attai": (AttAI(side="both"), LocalAdam(lr=0.01, batch_size=8), 0.8),
}


@pytest.mark.parametrize("name", LEARNERS)
def test_training_learns_and_engines_agree(name: str, place: Path) -> None:
    method, algorithm, share = LEARNERS[name]
    job = tuning(place, method, rounds=3, algorithm=algorithm)
    rows = reviews(place)
    rows = rows.with_test(rows.pooled())
    one, many = (atoll.simulate(job, rows, engine=engine) for engine in ("inline", "batched"))
    assert one.metrics.last("test/loss") < share * one.metrics.column("test/loss")[0]
    for key, value in one.params.items():
        np.testing.assert_allclose(many.params[key], value, rtol=1e-3, atol=1e-5)


def test_the_parts_of_a_training_are_those_given_here(place: Path) -> None:
    parts = atoll.Training(model=None, rounds=2, algorithm=atoll.FedAvg(lr=0.1, batch_size=8))
    given = Tuning(encoder=str(place / "tiny"), method=LinearHead(), training=parts, length=8)
    one, two = (atoll.simulate(job, reviews(place), engine="inline") for job in (given, tuning(place, LinearHead())))
    assert given.rounds == 2
    for name, value in one.params.items():
        np.testing.assert_array_equal(value, two.params[name])
    with pytest.raises(AtollError, match="rounds is a setting here and in training="):
        Tuning(encoder="tiny", training=parts, rounds=3)
    with pytest.raises(AtollError, match="with a model of its own"):
        Tuning(encoder="tiny", training=atoll.Training(model=dict))


def test_cached_features_equal_fresh_ones_and_follow_weights_texts_and_length(place: Path, cache: Path) -> None:
    encoder = Encoder.open(str(place / "tiny"), length=8)
    texts = ["good crew", "", "so rude so late", "kind"]
    fresh = encoder.encode(texts, cached=False)
    assert not cache.exists()
    np.testing.assert_array_equal(encoder.encode(texts), fresh)
    (kept,) = cache.iterdir()
    np.testing.assert_array_equal(encoder.encode(texts), fresh)
    kept.write_bytes(kept.read_bytes()[:90])  # a crash in the middle
    np.testing.assert_array_equal(encoder.encode(texts), fresh)
    encoder.encode(texts[::-1])
    Encoder.open(str(place / "tiny"), length=4).encode(texts)
    assert len([*cache.iterdir()]) == 3
    np.testing.assert_allclose(encoder.encode(texts[::-1])[::-1], fresh, atol=1e-6)


def test_the_batch_loss_is_equation_8_of_fedclip() -> None:
    torch = pytest.importorskip("torch")
    from atoll.adapters.layers import in_batch_loss

    scores, y = torch.tensor([[2.0, 0.5], [0.1, 1.0], [1.5, -1.0]]), torch.tensor([0, 1, 0])
    table = scores[:, y].double().numpy()
    own = [np.log(np.exp(row).sum()) - row[i] for t in (table, table.T) for i, row in enumerate(t)]
    assert float(in_batch_loss(scores, y)) == pytest.approx(np.mean(own), rel=1e-6)
    sure = 1000.0 * torch.eye(2)[y]
    floor = np.mean([np.log(2), 0.0, np.log(2)])  # two rows of the first class, one of the second
    assert float(in_batch_loss(sure, y)) == pytest.approx(floor, rel=1e-6)


def test_the_batch_loss_trains(place: Path) -> None:
    job = tuning(place, Bottleneck(hidden=4), loss="batch", rounds=1)
    assert np.isfinite(atoll.simulate(job, reviews(place), engine="inline").metrics.last("loss"))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"method": Peft("LORA", {"r": 2, "target_modules": ["attn"]})}, "peft cannot change this encoder.*query"),
        ({"method": Peft("LORA", {"r": 99, "target_modules": ["query"]})}, "the rank 99 exceeds.*use r=16"),
        ({"method": Peft("LORA", {"r": 0, "target_modules": ["query"]})}, "peft cannot change"),
        ({"method": Peft("LORRA")}, "Did you mean 'LORA'"),
        ({"method": Peft("LORA", {"rank": 2})}, "peft refuses the settings"),
        ({"method": Peft("MULTITASK_PROMPT_TUNING", {"num_virtual_tokens": 4})}, "a task with every row.*PROMPT_TUN"),
        ({"digest": "0" * 64}, "has the hash .* and the job was made for 000000000000"),
        ({"head": 3}, "head=3, and the data have 2 classes"),
        ({"text": "words"}, "no column 'words'.*keep="),
        ({"prompt": "a tweet"}, "is the same for all classes"),
        ({"length": 0}, "use at least 1 token"),
        (
            {"method": AttAI(), "prompt": "so so so {label}", "length": 3},
            "are the same in their first 3 tokens.*shorter",
        ),
        ({"method": Peft("PROMPT_TUNING", {"num_virtual_tokens": 4}), "length": 64}, "has 32 places.*use length=28"),
    ],
)
def test_a_setting_that_does_not_fit_is_refused(change: dict[str, Any], words: str, place: Path) -> None:
    with pytest.raises(AtollError, match=words):
        tuning(place, **change).prepare(reviews(place))


def test_a_missing_text_is_no_empty_sentence(place: Path) -> None:
    job, rows = tuning(place, LinearHead()), {"text": np.array(["good crew", " "]), "y": np.array([0, 1])}
    data = atoll.data.Dataset(rows, task="classification", classes=2, labels=("bad", "good"))
    with pytest.raises(DataError, match="row 2 has nothing in the column 'text'"):
        job.model.rows.texts(data)


def test_texts_are_cut_at_the_places_of_the_encoder(place: Path) -> None:
    whole = Encoder.open(str(place / "tiny"), length=64)
    assert (whole.places, whole.longest) == (32, 32)
    assert whole.tokenise(["good " * 50]).shape == (1, 2, 32)
    assert np.isfinite(whole.encode(["good " * 50], cached=False)).all()
    made = atoll.simulate(tuning(place, BitFit(), rounds=1, length=64), reviews(place), engine="inline")
    assert np.isfinite(made.metrics.last("loss"))


def test_an_unknown_side_is_refused() -> None:
    with pytest.raises(AtollError, match=r"side='inputs'\. Did you mean 'input'"):
        AttAI(side="inputs")  # type: ignore[arg-type]


def test_a_folder_that_is_no_encoder_is_refused(place: Path, tmp_path: Path) -> None:
    own = tmp_path / "own"
    make_encoder(own)
    (own / "tokenizer.json").rename(own / "elsewhere")
    with pytest.raises(AtollError, match="there is no tokeniser"):
        Encoder.open(str(own))
    (own / "elsewhere").rename(own / "tokenizer.json")
    config = json.loads((own / "config.json").read_text())
    (own / "config.json").write_text(json.dumps({**config, "auto_map": {"AutoModel": "mine.Model"}}))
    with pytest.raises(AtollError, match="trust_remote_code"):
        Encoder.open(str(own))
    (own / "config.json").write_text(json.dumps(config))
    (own / "model.safetensors").rename(own / "pytorch_model.bin")
    with pytest.raises(AtollError, match="is a pickle"):
        Encoder.open(str(own))
    with pytest.raises(AtollError, match="there is no encoder"):
        Encoder.open(str(tmp_path / "nowhere"))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"num_hidden_layers": 2}, r"lack 16 of the model's values, such as 'encoder\.layer\.1.*save the whole model"),
        ({"hidden_size": 32}, "transformers cannot load it.*save_pretrained"),
    ],
)
def test_values_that_the_weights_lack_are_not_drawn(change: dict[str, Any], words: str, tmp_path: Path) -> None:
    make_encoder(tmp_path / "own")
    settings = tmp_path / "own" / "config.json"
    settings.write_text(json.dumps({**json.loads(settings.read_text()), **change}))
    with pytest.raises(AtollError, match=words):
        _ = Encoder.open(str(tmp_path / "own")).model


def test_files_that_are_cut_off_are_refused(tmp_path: Path) -> None:
    own = make_encoder(tmp_path / "own")
    weights = own / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:500])
    (own / "tokenizer.json").write_text("{}")
    with pytest.raises(AtollError, match="cannot load it"):
        _ = Encoder.open(str(own)).model
    with pytest.raises(AtollError, match="cannot load its tokeniser"):
        _ = Encoder.open(str(own)).tokeniser


def test_the_hash_follows_every_file_and_no_folder(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Encoder.open(str(place / "tiny"))
    make_encoder(tmp_path / "same")
    make_encoder(tmp_path / "other", seed=1)
    monkeypatch.setenv("ATOLL_MODELS", str(tmp_path))
    assert Encoder.open("same", digest=first.digest).digest == first.digest
    with pytest.raises(AtollError, match="has the hash"):
        Encoder.open("models/other", digest=first.digest)


def test_one_encoder_serves_all_clients(place: Path) -> None:
    one, two = (Encoder.open(str(place / "tiny"), length=length) for length in (4, 8))
    assert one.model is two.model
    built = [LORA.build(one, method_target()) for _ in range(2)]
    shared = [dict(m.named_parameters())["body.base_model.model.embeddings.word_embeddings.weight"] for m in built]
    assert shared[0].data_ptr() == shared[1].data_ptr() == one.model.embeddings.word_embeddings.weight.data_ptr()


@pytest.mark.parametrize("begin", ["pissa", "olora"])
def test_no_method_changes_the_shared_encoder(begin: str, place: Path) -> None:
    own = {"r": 2, "target_modules": ["query"]}
    model = Encoder.open(str(place / "tiny")).model
    before = {name: p.clone() for name, p in model.named_parameters()}
    with pytest.raises(AtollError, match="changes frozen values of the encoder"):
        tuning(place, Peft("LORA", {**own, "init_lora_weights": begin})).prepare(reviews(place))
    trained = tuning(place, Peft("LORA", {**own, "bias": "all"}), rounds=1)
    assert len(atoll.simulate(trained, reviews(place), engine="inline").params) > 4
    assert all(p.equal(before[name]) and not p.requires_grad for name, p in model.named_parameters())


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        ("adapter_model.safetensors", None, "there is no adapter_model"),  # peft would ask a hub
        ("adapter_model.safetensors", b"cut", "peft cannot load it"),
        ("adapter_config.json", None, "there is no adapter_config"),
        ("tuning.json", b"{", "is no JSON"),
        ("tuning.json", b"{}", "lacks 'causal'"),
        ("tuning.json", b"NaN", "has the scale nan"),
    ],
)
def test_a_saved_adapter_that_is_not_whole_is_refused(
    file: str, content: bytes | None, words: str, place: Path, tmp_path: Path
) -> None:
    save_lora(place, tmp_path)
    if content == b"NaN":
        content = json.dumps({**json.loads((tmp_path / file).read_text()), "scale": math.nan}).encode()
    (tmp_path / "adapter_model.bin").write_bytes(b"a pickle")
    (tmp_path / file).unlink() if content is None else (tmp_path / file).write_bytes(content)
    with pytest.raises(DataError, match=words):
        load_adapter(tmp_path, str(place / "tiny"))


@pytest.mark.parametrize("file", ["head.safetensors", "adapter_model.safetensors"])
@pytest.mark.parametrize("value", [np.nan, -np.inf])
def test_values_that_are_not_finite_are_refused(file: str, value: float, place: Path, tmp_path: Path) -> None:
    numpy_of = pytest.importorskip("safetensors.numpy")
    save_lora(place, tmp_path)
    values = numpy_of.load_file(str(tmp_path / file))
    name = max(values)
    values[name].reshape(-1)[-1] = value
    numpy_of.save_file(values, str(tmp_path / file))
    with pytest.raises(DataError, match=f"'{name}' has a value that is not finite"):
        load_adapter(tmp_path, str(place / "tiny"))


def test_settings_of_other_layers_leave_no_values_out(place: Path, tmp_path: Path) -> None:
    save_lora(place, tmp_path)
    settings = tmp_path / "adapter_config.json"
    settings.write_text(json.dumps({**json.loads(settings.read_text()), "target_modules": ["key"]}))
    warnings.simplefilter("ignore", UserWarning)  # peft's own, of the values that it leaves out
    with pytest.raises(DataError, match="none of this adapter's"):
        load_adapter(tmp_path, str(place / "tiny"))


@functools.cache
def _trained(place: Path) -> Any:
    return atoll.simulate(tuning(place, rounds=1), reviews(place), engine="inline")


def save_lora(place: Path, folder: Path) -> None:
    """Save an adapter that was trained once for all tests."""
    _trained(place).save(folder)


def method_target() -> Any:
    return EncoderTarget(2, None, 20.0)


def test_a_language_model_learns_the_next_token(place: Path, tmp_path: Path) -> None:
    make_encoder(tmp_path / "causal", kind="causal")
    lora = Peft("LORA", {"r": 2, "target_modules": ["c_attn"], "fan_in_fan_out": True, "task_type": "CAUSAL_LM"})
    job = Tuning(
        encoder=str(tmp_path / "causal"), method=lora, causal=True, length=6, rounds=3,
        algorithm=atoll.FedAvg(lr=0.5, batch_size=8),
    )  # fmt: skip
    rows = reviews(place)
    result = atoll.simulate(job, rows.with_test(rows.pooled()), engine="inline")
    losses = result.metrics.column("test/loss")
    assert losses[-1] < losses[0]
    encoded = job.model.rows.encode(rows.shard(0))
    x, y, there = (np.asarray(encoded[name]) for name in ("x", "y", "labelled"))
    assert (y[:, :-1] == np.where(there[:, :-1], x[:, 0, 1:], 0)).all()
    assert not there[:, -1].any()


def test_golden_sizes() -> None:
    """FedCLIP counts 5.3E5 values of ViT-B/32's 151,277,313: 288 times less."""
    for side, times in (("input", 1), ("text", 1), ("both", 2)):
        for width, values in ((384, 295_680), (512, 525_312)):
            encoder: Any = SimpleNamespace(width=width)
            target = EncoderTarget(2, np.eye(2, width, dtype=np.float32), 20.0)
            module = AttAI(side=side).build(encoder, target)  # type: ignore[arg-type]
            assert sum(p.numel() for p in module.parameters()) == times * values


def test_attention_on_the_prompts_is_the_formula_and_constant_attention_is_none() -> None:
    import torch

    rng = np.random.default_rng(0)
    prompts, x = rng.normal(size=(3, 6)).astype(np.float32), rng.normal(size=(5, 6)).astype(np.float32)
    encoder: Any = SimpleNamespace(width=6)
    modules = {side: AttAI(side=side).build(encoder, EncoderTarget(3, prompts, 7.0)) for side in ("text", "both")}  # type: ignore[arg-type]
    found = modules["text"](torch.from_numpy(x)).detach().numpy()
    w1, b1, w2, b2 = (p.detach().double().numpy() for p in modules["text"].prompt_adapter.parameters())
    hidden = np.tanh(prompts @ w1.T + b1) @ w2.T + b2
    share = np.exp(hidden) / np.exp(hidden).sum(1, keepdims=True)
    units = [one / np.linalg.norm(one, axis=1, keepdims=True) for one in (x, share * prompts)]
    np.testing.assert_allclose(found, 7.0 * units[0] @ units[1].T, rtol=1e-5, atol=1e-5)
    with torch.no_grad():
        for p in modules["both"].parameters():
            p.zero_()
    plain = 7.0 * units[0] @ (prompts / np.linalg.norm(prompts, axis=1, keepdims=True)).T
    np.testing.assert_allclose(modules["both"](torch.from_numpy(x)).detach().numpy(), plain, rtol=1e-5, atol=1e-5)
