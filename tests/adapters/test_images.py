"""Images before a frozen dual encoder: prepared as CLIP's own processor does, encoded once, tuned like texts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import atoll
from atoll.adapters import (
    AttAI,
    BitFit,
    Bottleneck,
    Encoder,
    LinearHead,
    Peft,
    PromptFL,
    Tuning,
    leave_domains_out,
    load_adapter,
)
from atoll.adapters.encoder import quiet
from atoll.adapters.images import ImageSettings, hash_images, prepare_images
from atoll.adapters.methods import EncoderTarget
from atoll.cli.app import run
from atoll.core.errors import AtollError
from atoll.core.redaction import redacted
from tests.support.encoders import COLOURS, make_dual_encoder, make_image_encoder, make_pictures

pillow = pytest.importorskip("PIL.Image")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("images")
    make_dual_encoder(folder / "tiny")
    make_pictures(folder / "data")
    return folder


@pytest.fixture(autouse=True)
def own_folders(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATOLL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("ATOLL_IMAGES", str(place / "data"))


def pictures(place: Path) -> Any:
    return atoll.data.from_csv_folder(place / "data", target="label", keep=["image"], features=[])


def tuning(place: Path, method: Any = None, **more: Any) -> Tuning:
    settings = {"rounds": 2, "algorithm": atoll.FedAvg(lr=0.1, batch_size=8), "length": 8, "image": "image", **more}
    return Tuning(encoder=str(place / "tiny"), method=method or AttAI(), **settings)


@pytest.mark.parametrize(
    "said",
    [
        {},
        {"size": {"height": 20, "width": 24}, "resample": 2},
        {"size": {"shortest_edge": 11}},
        {"do_resize": False},
        {"do_normalize": False, "rescale_factor": 0.01},
        {"do_rescale": False, "image_mean": [10.0, 20.0, 30.0], "image_std": [1.0, 2.0, 3.0]},
    ],
)
def test_the_numbers_are_those_of_clips_own_processor(
    said: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Oracle: transformers' processor that needs no torchvision."""
    library = pytest.importorskip("transformers.models.clip.image_processing_pil_clip")
    given = {"size": {"shortest_edge": 16}, "crop_size": {"height": 16, "width": 16}, **said}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(given))
    rng = np.random.default_rng(0)
    shapes = [(30, 17, 3), (16, 16, 3), (9, 40, 3), (17, 33, 3), (5, 5, 3), (31, 8)]
    arrays = [rng.integers(0, 256, size=shape, dtype=np.uint8) for shape in shapes]
    theirs = [pillow.fromarray(one) for one in arrays]
    clear = pillow.fromarray(rng.integers(0, 256, size=(20, 18, 4), dtype=np.uint8), "RGBA")
    clear.save(tmp_path / "clear.png")
    theirs[2].save(tmp_path / "plain.png")
    with quiet():
        want = library.CLIPImageProcessorPil(**given)([*theirs, clear, theirs[2]], return_tensors="np")["pixel_values"]
    files = [str(tmp_path / "clear.png"), str(tmp_path / "plain.png")]
    monkeypatch.delenv("ATOLL_IMAGES")
    found = prepare_images([*arrays, *files], ImageSettings.read(str(tmp_path), 16))
    np.testing.assert_array_equal(found, want)


def test_the_numbers_are_those_of_the_processor_of_vit(tmp_path: Path) -> None:
    """Oracle: transformers' processor that needs no torchvision; what the file leaves out, it says itself."""
    library = pytest.importorskip("transformers.models.vit.image_processing_pil_vit")
    said = {"size": {"height": 16, "width": 16}, "image_processor_type": "ViTImageProcessor"}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(said))
    rng = np.random.default_rng(0)
    arrays = [rng.integers(0, 256, size=shape, dtype=np.uint8) for shape in ((30, 17, 3), (9, 40, 3), (5, 5, 3))]
    with quiet():
        made = library.ViTImageProcessorPil(size=said["size"])
        want = made([pillow.fromarray(one) for one in arrays], return_tensors="np")["pixel_values"]
    np.testing.assert_array_equal(prepare_images(arrays, ImageSettings.read(str(tmp_path), 16)), want)


def test_an_encoder_of_images_alone_has_features_and_a_head(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch
    import transformers

    folder, rows = make_image_encoder(tmp_path / "vit"), pictures(place)
    encoder = Encoder.open(str(folder))
    assert (encoder.modality, encoder.modalities, encoder.width) == ("image", ("image",), 16)
    names = [str(one) for one in rows.shard(0)["image"]]
    pixels = torch.from_numpy(prepare_images(names, encoder.image_settings))
    with quiet(), torch.no_grad():
        states = transformers.ViTModel.from_pretrained(folder)(pixel_values=pixels).last_hidden_state
    np.testing.assert_allclose(encoder.encode_images(names), states.numpy().mean(1), atol=1e-6)
    for method in (LinearHead(), Bottleneck(hidden=4)):
        job = Tuning(
            encoder=str(folder), method=method, image="image", rounds=3, algorithm=atoll.FedAvg(lr=0.5, batch_size=4)
        )
        result = atoll.simulate(job, rows, engine="inline")
        loaded = load_adapter(result.save(tmp_path / "adapter"), str(folder))
        assert loaded.predict(names) == [COLOURS[row % 3] for row in range(12)]
    lora = Peft("LORA", {"r": 2, "target_modules": ["q_proj", "v_proj"]}).build(encoder, EncoderTarget(3, None, 20.0))
    assert lora(pixels).shape == (12, 3)
    found = leave_domains_out(
        tuning(place, LinearHead(), rounds=1).replace(encoder=str(folder), model=None), names, ["a", "b"] * 6, ["c"] * 6 + ["d"] * 6,
        run=lambda *given, **more: atoll.simulate(*given, engine="inline", **more), leave_out="d",
    )  # fmt: skip
    assert found["zero_shot"] is None
    assert found["generalization"] is not None
    (folder / "preprocessor_config.json").unlink()
    with pytest.raises(AtollError, match=r"no preprocessor_config\.json says"):
        Encoder.open(str(folder)).image_settings


def test_an_encoder_of_images_alone_refuses_prompts(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, rows = make_image_encoder(tmp_path / "vit"), pictures(place)
    own = {"encoder": str(folder), "algorithm": atoll.FedAvg(lr=0.1), "rounds": 1}
    for change in (
        {"image": "image", "prompt": "a {label}", "method": LinearHead()},
        {"image": "image", "method": AttAI("text")},
        {"image": "image", "method": PromptFL()},
        {"text": "image"},
    ):
        with pytest.raises(AtollError, match=r"takes images alone.*LinearHead\(\)"):
            Tuning(**own, **change).prepare(rows)
    words = ["adapters", "train", str(place / "data" / "site0.csv"), "--image", "image", "--group", "label"]
    assert run([*words, "--encoder", str(folder), "--method", "zero-shot"]) != 0
    assert "takes images alone" in capsys.readouterr().err
    assert run(["adapters", "hash", str(folder)]) == 0
    assert capsys.readouterr().out.strip() == Encoder.open(str(folder)).digest


def test_arrays_in_any_layout_are_one_image() -> None:
    settings = ImageSettings((16,), (16, 16))
    whole = np.random.default_rng(0).integers(0, 256, size=(20, 20, 3), dtype=np.uint8)
    forms = [whole, whole.transpose(2, 0, 1), whole / 255.0, (whole / 255.0).astype(np.float32).transpose(2, 0, 1)]
    assert len(set(hash_images(forms))) == 1
    assert len({one.tobytes() for one in prepare_images(forms, settings)}) == 1
    for wrong, words in (
        (whole * 2.0, "pixels of float64 from"),
        (whole.astype(int), "pixels of int64"),
        (whole[:, 0, 0], "is no image"),
    ):
        with pytest.raises(AtollError, match=words):
            prepare_images([wrong], settings)


def test_features_are_the_models_own_and_are_kept_by_content(place: Path, tmp_path: Path) -> None:
    import torch
    import transformers

    encoder = Encoder.open(str(place / "tiny"), modality="image")
    names = [f"files/0-{row}.png" for row in (3, 0, 3)]
    fresh = encoder.encode_images(names, cached=False)
    model = transformers.CLIPModel.from_pretrained(place / "tiny").eval()
    rows = torch.from_numpy(prepare_images(names, encoder.image_settings))
    with torch.no_grad():
        np.testing.assert_allclose(model.get_image_features(pixel_values=rows).pooler_output.numpy(), fresh, atol=1e-6)
        made = encoder.tokeniser(["a red crew", "so late"], padding=True, return_tensors="pt")
        want = model.get_text_features(input_ids=made["input_ids"], attention_mask=made["attention_mask"]).pooler_output
    np.testing.assert_allclose(encoder.encode(["a red crew", "so late"]), want.numpy(), atol=1e-6)
    kept = tmp_path / "cache" / "features"
    before = {*kept.iterdir()}
    np.testing.assert_array_equal(encoder.encode_images(names), fresh)
    (own,) = {*kept.iterdir()} - before
    copied = [np.asarray(pillow.open(place / "data" / name)) for name in names]
    np.testing.assert_array_equal(encoder.encode_images(copied), fresh)  # pixels have files of their own
    assert len({*kept.iterdir()} - before) == 2
    assert fresh.shape == (3, 12)
    np.testing.assert_array_equal(fresh[0], fresh[2])
    np.save(own, fresh + 1)
    np.testing.assert_array_equal(encoder.encode_images(names), fresh + 1)  # it is the file that is read


METHODS = {
    "attai": (AttAI(), 2 * (12**2 + 12)),
    "bottleneck": (Bottleneck(hidden=4), 2 * 4 * 12 + 4 + 12),
    "probe": (LinearHead(), 13 * 3),
    "lora": (Peft("LORA", {"r": 2, "target_modules": ["q_proj", "v_proj"]}), 2 * 2 * 2 * 16 + 13 * 3),
    "bitfit": (BitFit(), None),
}


@pytest.mark.parametrize("name", METHODS)
def test_methods_tune_the_side_of_images_and_a_saved_adapter_scores_the_same(
    name: str, place: Path, tmp_path: Path
) -> None:
    method, values = METHODS[name]
    rows = pictures(place)
    result = atoll.simulate(tuning(place, method, rounds=1), rows, engine="inline")
    assert values in (None, sum(value.size for value in result.params.values()))
    assert not any("text_model" in one or "logit_scale" in one for one in result.params)
    loaded = load_adapter(result.save(tmp_path / "adapter"), str(place / "tiny"))
    names = [str(one) for one in rows.shard(0)["image"]]
    import torch

    with torch.no_grad():
        x = torch.from_numpy(np.array(result.job.model.rows.encode(rows.shard(0))["x"]))
        ours = result.model.eval()(x).numpy()
    np.testing.assert_allclose(loaded.score(names), ours, atol=1e-5)
    assert set(loaded.predict(names)) <= set(COLOURS)


def test_it_learns_from_files_as_from_pixels(place: Path) -> None:
    rows = pictures(place)
    rows = rows.with_test(rows.pooled())
    job = tuning(place, Bottleneck(hidden=8), rounds=4, prompt="{label} seat")
    result = atoll.simulate(job, rows, engine="inline")
    losses = result.metrics.column("test/loss")
    assert losses[-1] < 0.8 * losses[0]
    rng = np.random.default_rng(0)
    pixels = rng.random((12, 3, 16, 16), dtype=np.float32)
    parts = {
        name: atoll.data.Dataset(
            {"x": pixels, "y": np.arange(12) % 3}, task="classification", labels=COLOURS, classes=3
        )
        for name in ("a", "b")
    }
    found = atoll.simulate(tuning(place, image="x"), atoll.data.Islands.from_datasets(parts), engine="inline")
    assert np.isfinite(found.metrics.last("loss"))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"image": "picture"}, "no column 'picture'.*keep="),
        ({"method": Peft("PROMPT_TUNING", {"num_virtual_tokens": 2})}, "takes no virtual tokens"),
        ({"causal": True, "method": BitFit()}, "a language model takes texts"),
    ],
)
def test_a_setting_that_does_not_fit_is_refused(change: dict[str, Any], words: str, place: Path) -> None:
    with pytest.raises(AtollError, match=words):
        tuning(place, **change).prepare(pictures(place))


def test_files_that_hold_no_image_are_refused_by_name(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = ImageSettings((16,), (16, 16))
    (tmp_path / "text.png").write_text("no image")
    whole = (place / "data" / "files" / "0-0.png").read_bytes()
    (tmp_path / "cut.png").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(AtollError, match="is outside of the folder ATOLL_IMAGES"):
        prepare_images([str(tmp_path / "text.png")], settings)
    monkeypatch.setenv("ATOLL_IMAGES", str(tmp_path))
    with pytest.raises(AtollError, match="becomes one of") as told:
        prepare_images([np.zeros((1, 400_000), np.uint8)], settings)
    assert "400000" not in redacted(str(told.value)), "values of the data leave a site with no error"
    for name, words in (
        ("text.png", "is no image"),
        ("cut.png", "is no image"),
        ("none.png", "there is no image"),
        ("", "there is no image"),
    ):
        with pytest.raises(AtollError, match=words):
            prepare_images([name], settings)
    with pytest.raises(AtollError, match="row 1 has nothing in the column 'image'"):
        tuning(place).model.rows.encode(
            atoll.data.Dataset({"image": np.array(["", ""]), "y": np.array([0, 1])}, labels=COLOURS[:2])
        )


def test_another_preparation_than_clips_is_refused(place: Path, tmp_path: Path) -> None:
    own = make_dual_encoder(tmp_path / "own")
    for said, words in (
        ({"image_processor_type": "SiglipImageProcessor"}, "SiglipImageProcessor prepares"),
        ({"crop_size": 20}, "become 20 × 20, and the model takes 16 × 16"),
        ({"do_center_crop": False}, "become 16, and the model takes"),
    ):
        (own / "preprocessor_config.json").write_text(json.dumps(said))
        with pytest.raises(AtollError, match=words):
            _ = Encoder.open(str(own), modality="image").image_settings
    (own / "preprocessor_config.json").unlink()
    assert Encoder.open(str(own), modality="image").image_settings.shape == (3, 16, 16)
    from tests.support.encoders import make_encoder

    make_encoder(tmp_path / "words")
    with pytest.raises(AtollError, match="takes no images"):
        Encoder.open(str(tmp_path / "words"), modality="image")


def test_the_command_takes_a_folder_of_images(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("ATOLL_IMAGES")
    lines = ["image,label,group"]
    for site in (0, 1):
        own = (place / "data" / f"site{site}.csv").read_text().splitlines()[1:]
        lines += [f"{line},site{site}" for line in own]
    (place / "data" / "labels.csv").write_text("\n".join(lines) + "\n")
    words = [
        "adapters",
        "train",
        str(place / "data"),
        "--image",
        "image",
        "--encoder",
        str(place / "tiny"),
        "--rounds",
        "1",
        "--length",
        "8",
    ]
    try:
        assert run([*words, "--prompt", "so {label}", "--leave-out", "site1", "--json"]) == 0
    finally:
        (place / "data" / "labels.csv").unlink()
    found = json.loads(capsys.readouterr().out)
    assert found["trainable"] == 2 * (12**2 + 12)
    assert all(0 <= found[name] <= 1 for name in ("zero_shot", "personalization", "generalization"))
