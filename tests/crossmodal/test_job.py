"""The job: what travels, what stays, what is promised, and whether the sides help each other."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest

import atoll
from atoll.core.errors import CheckpointError, ConfigError, DataError
from atoll.core.persistence.named_results import NamedResults
from atoll.crossmodal import (
    BiGRU,
    Crossmodal,
    FrameCNN,
    SequenceTransformer,
    SideModel,
    TextToPhone,
    Utterances,
    read_texts,
    train_aligned,
    train_alone,
    train_together,
)
from atoll.crossmodal import parties as parties_of_a_job
from atoll.crossmodal.parties import CopyCoder, SideTraining, average_copies, read_copy, split_rows, vocabulary_of
from atoll.crossmodal.utterances import score_f1
from atoll.privacy import epsilon_of
from tests.crossmodal.helpers import made_side

torch = pytest.importorskip("torch")

SMALL = Crossmodal(
    speech=FrameCNN(filters=8, widths=(3,)),
    text=FrameCNN(filters=8, widths=(1, 2)),
    rounds=2,
    iterations=5,
    pretrain=3,
    batch=16,
    hidden=8,
    width=4,
)


def sides(count=60):
    return {"south": made_side("speech", count, 1), "north": made_side("text", count + 20, 2)}


def play(job, parties, **options):
    return atoll.simulate(job, parties, engine="inline", progress=False, **options).outcome


def side_of(job, rows, seed=0, own=1, width=6):
    training, valid, held_out = split_rows(job, rows, own)
    words = vocabulary_of(training)
    return SideTraining(job, training, valid, held_out, ("negative", "positive"), words, width, seed, own)


def test_a_result_has_each_side_and_the_seed_decides_it():
    first = play(SMALL, sides())
    assert set(first.sides) == {"north", "south"}
    assert first.rounds == 2
    assert len(first.history) == 2
    assert first.sides["south"]["modality"] == "speech"
    assert 0 <= first.sides["south"]["f1"] <= 1
    assert first.sides["south"]["epsilon"] == math.inf
    again, other = play(SMALL, sides()), play(SMALL, sides(), seed=1)
    assert first.plain() == again.plain() != other.plain()
    assert json.dumps(first.plain())
    assert first.bytes > 4 * first.parameters > 0


def test_after_an_exchange_all_copies_are_equal_and_own_networks_are_not_touched(monkeypatch):
    mixed, own = {}, {}
    from atoll.crossmodal.parties import SideSteps

    before = SideSteps._mix

    def watched(self, island, message):
        own[island.name, "before"] = {k: v.copy() for k, v in island.state["own"].items()}
        found = before(self, island, message)
        mixed[island.name] = island.state["shared"]
        own[island.name, "after"] = island.state["own"]
        return found

    monkeypatch.setattr(SideSteps, "_mix", watched)
    play(replace(SMALL, rounds=1), sides())
    north, south = mixed["north"], mixed["south"]
    assert set(north) == set(south)
    assert all(np.array_equal(north[name], south[name]) for name in north)
    for party in ("north", "south"):
        assert all(np.array_equal(own[party, "before"][k], own[party, "after"][k]) for k in own[party, "before"])


def test_the_mean_is_by_rows_convex_and_the_same_in_any_order():
    a, b = {"w": np.array([0.0, 4.0], np.float32)}, {"w": np.array([1.0, 0.0], np.float32)}
    found = average_copies({"s": (1283, a), "t": (16331, b)})["w"]
    assert np.allclose(found, [0.9272, 0.2914], atol=1e-4)  # 1283 / 17614 = .0728
    assert np.array_equal(found, average_copies({"t": (16331, b), "s": (1283, a)})["w"])
    assert np.array_equal(average_copies({"s": (7, a), "t": (7, b)})["w"], [0.5, 2.0])


def test_without_noise_the_shared_part_is_averaged_plain_training():
    """One step of SGD from equal weights: the mean of copies is a step along the mean gradient, which autograd says."""
    job = replace(
        SMALL, rounds=1, iterations=1, pretrain=0, valid=0.0, test=0.0, weights="equal", lr=1e-9, optimizer="sgd"
    )
    parties = {name: made_side("text", 10, seed) for name, seed in (("a", 1), ("b", 2))}
    steps = []
    for place, (_, rows) in enumerate(sorted(parties.items())):
        side = side_of(replace(job, batch=10), rows, own=place, width=1)
        nets = side.networks(np.zeros((40, 1), np.float32))
        nets.own.eval()
        start = nets.pack_shared()
        told = nets.phones(side.train_rows.phones, nets.table)
        fused = nets.fusion(nets.own(side.train_rows.inputs, side.train_rows.lengths), told)
        slopes = torch.autograd.grad(
            torch.nn.functional.cross_entropy(fused, side.train_rows.labels), [*nets.shared.values()], allow_unused=True
        )
        plain = {n: start[n] - 0.3 * (0 if g is None else g.numpy()) for n, g in zip(nets.shared, slopes, strict=True)}
        nets.own.train()
        for layer in nets.own.modules():
            if isinstance(layer, torch.nn.Dropout):
                layer.p = 0.0
        nets.train(side.train_rows, [np.arange(10)], None, 0)
        steps.append((plain, nets.pack_shared()))
    for plain, made in steps:
        assert all(np.allclose(plain[name], made[name], atol=1e-6) for name in plain)


@pytest.mark.parametrize("fused", [False, True])
def test_bounded_sums_are_those_of_single_examples(fused):
    job = replace(SMALL, epsilon=5.0, clip=0.7, shared_loss="fused" if fused else "phones", share_fusion=fused)
    side = side_of(job, made_side("text", 24, 5), width=6)
    table = np.random.default_rng(0).normal(0, 1, (40, 6)).astype(np.float32)
    nets = side.networks(table)
    nets.own.eval()
    part = side.train_rows.take(np.arange(8))
    own = nets.own(part.inputs, part.lengths).detach()
    found = nets.bounded_sum(part, own)
    total = {name: np.zeros(value.shape, np.float64) for name, value in nets.shared.items()}
    clipped = 0
    for i in range(8):
        told = nets.phones(part.phones[i : i + 1], nets.table)
        loss = torch.nn.functional.cross_entropy(
            nets.fusion(own[i : i + 1], told) if fused else told, part.labels[i : i + 1]
        )
        slopes = torch.autograd.grad(loss, [*nets.shared.values()])
        length = math.sqrt(sum(float((g.double() ** 2).sum()) for g in slopes))
        clipped += length > 0.7
        for name, slope in zip(nets.shared, slopes, strict=True):
            total[name] += slope.double().numpy() * min(1.0, 0.7 * (1 - 1e-5) / length)
    assert clipped
    assert all(np.allclose(found[name].numpy(), total[name], atol=1e-6) for name in total)
    assert math.sqrt(sum(float((v**2).sum()) for v in total.values())) <= 8 * 0.7


@pytest.fixture
def planned_by_rows(monkeypatch):
    """Parties plan by their exact number of rows, so that the search for the noise is the same each time."""
    monkeypatch.setattr(parties_of_a_job, "count_noisily", lambda rows, noise, stream: rows)


def test_a_promise_is_kept_for_what_a_party_has_and_grows_with_rounds(planned_by_rows):
    job = replace(SMALL, epsilon=2.0)
    assert job.promised
    assert not job.fused
    assert job.table_plan.noise > 0
    for rows in {len(split_rows(job, part, 1)[0]) for part in sides().values()}:
        events = ((job.size_event, 1), (job.table_plan.event, 1), (job.step_event(rows), job.rounds))
        assert 1.99 < epsilon_of(events, job.delta, "rdp") <= 2.0
        spent = [job.spent(rows, "speech", number) for number in range(job.rounds + 1)]
        assert spent == sorted(spent)
        assert spent[-1] <= 2.0
        assert job.spent(rows, "text", job.rounds) < spent[-1]  # it has no table to pay for
    outcome = play(job, sides())
    assert 0 < outcome.sides["north"]["epsilon"] < outcome.sides["south"]["epsilon"] <= 2.0


def test_every_release_is_in_the_ledger(tmp_path, planned_by_rows):
    job = replace(SMALL, epsilon=2.0)
    play(job, sides(), ledger=tmp_path / "ledger.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "ledger.jsonl").read_text().splitlines()]
    steps = [line for line in lines if line.get("kind") == "gaussian" and line["count"] == job.iterations]
    assert len(steps) == 4
    assert {line["party"] for line in steps} == {"north", "south"}
    once = [line for line in lines if line.get("kind") == "gaussian" and line["count"] == 1]
    tables = [line["party"] for line in once if line["noise_multiplier"] == job.table_plan.event.noise_multiplier]
    sizes = {line["party"] for line in once if line["noise_multiplier"] == job.size_event.noise_multiplier}
    assert (tables, sizes, len(once)) == (["south"], {"north", "south"}, 3)


def test_no_epsilon_is_claimed_where_gradients_depend_on_networks_without_noise():
    fused = replace(SMALL, epsilon=2.0, shared_loss="fused")
    result = atoll.simulate(fused, sides(), engine="inline", progress=False)
    assert result.outcome.sides["north"]["epsilon"] == math.inf
    assert any("epsilon=2 is not claimed" in line for line in result.notices)
    assert "no epsilon is claimed" in " ".join(fused.explain(sides()).notes)
    exact = replace(SMALL, epsilon=2.0, table="exact")
    assert not exact.promised
    assert exact.spent(60, "text", 2) == math.inf
    with pytest.raises(ConfigError, match="shared fusion"):
        replace(SMALL, epsilon=2.0, share_fusion=True)


@pytest.mark.slow  # three do in `test_three.py`
def test_the_sides_help_each_other():
    """Phones tell the class nine times of ten, words six times: a side that shares them beats its own network alone, and is below what one place would reach."""
    job = Crossmodal(
        speech=FrameCNN(filters=8, widths=(3,)),
        text=FrameCNN(filters=8, widths=(1,)),
        rounds=4,
        iterations=20,
        pretrain=20,
        lr=0.01,
        shared_lr=0.5,
        classes=("negative", "positive"),
    )
    parties = {"south": made_side("speech", 240, 1), "north": made_side("text", 120, 2)}
    alone = {name: train_alone(job, rows)["f1"] for name, rows in parties.items()}
    found = play(job, parties)
    together = train_together(job, parties)
    for name in parties:
        assert found.sides[name]["f1"] > alone[name] + 0.03
        assert together[name]["f1"] > alone[name] + 0.03


@pytest.mark.parametrize(
    "network", [BiGRU(width=8, layers=1), SequenceTransformer(width=8, heads=2, layers=1), FrameCNN(filters=4)]
)
def test_networks_take_no_notice_of_padding(network):
    rows = made_side("text", 6, 0)
    side = side_of(replace(SMALL, text=network, test=0.0, valid=0.0), rows)
    nets = side.networks(np.zeros((40, 6), np.float32))
    whole = nets.logits(side.train_rows)
    for i in range(6):
        assert np.allclose(nets.logits(side.train_rows.take([i])), whole[i], atol=1e-5)


def test_letters_with_anything_else_are_refused():
    coder = CopyCoder({"phones.last.bias": (2,)}, 32)
    good = {"rows": 5, "values": {"phones.last.bias": np.ones(2, np.float32)}}
    assert read_copy(good, coder, "north")[0] == 5
    bad = {
        "also holds 'labels'": {**good, "labels": [1]}, "claims 0 rows": {**good, "rows": 0}, "claims 1e\\+30 rows": {**good, "rows": 1e30},
        "has 'own.last.weight' too much": {**good, "values": {**good["values"], "own.last.weight": np.ones(2)}}, "lacks 'phones.last.bias'": {**good, "values": {}},
        "another shape": {**good, "values": {"phones.last.bias": np.ones(3)}}, "not finite": {**good, "values": {"phones.last.bias": np.array([1, np.inf])}}, "holds no copy": {"rows": 5},
    }  # fmt: skip
    for what, letter in bad.items():
        with pytest.raises(DataError, match=what):
            read_copy(letter, coder, "north")


def test_what_cannot_work_is_refused_with_a_remedy():
    rows = made_side("text", 20, 0)
    other = Utterances("text", [["a"]] * 4, [[0]] * 4, ["a", "b"] * 2, phone_names=("X",))
    with pytest.raises(DataError, match="different phones"):
        play(SMALL, {"a": rows, "b": other})
    wide = made_side("speech", 20, 0, width=3)
    with pytest.raises(DataError, match="frames of 3 and 6"):
        play(SMALL, {"a": made_side("speech", 20, 0), "b": wide})
    with pytest.raises(DataError, match="1 party"):
        play(SMALL, {"a": rows})
    with pytest.raises(DataError, match="no Utterances"):
        play(SMALL, {"a": rows, "b": "texts"})
    with pytest.raises(DataError, match="none of the 2 classes"):
        play(replace(SMALL, classes=("x", "y")), {"a": rows, "b": rows})
    for wrong in (
        {"epsilon": 0.0},
        {"delta": 1.0},
        {"rounds": 0},
        {"clip": math.inf},
        {"test": 1.0},
        {"table": "private"},
        {"classes": "ab"},
        {"shared_loss": "phone"},
        {"table": "Exact"},
        {"weights": "alike"},
        {"optimizer": "Adam"},
    ):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            replace(SMALL, **wrong)


def test_more_than_two_parties_and_a_missing_table_train_too():
    three = {**sides(), "west": made_side("speech", 40, 7)}
    assert set(play(SMALL, three).sides) == {"north", "south", "west"}
    texts = {"a": made_side("text", 40, 1), "b": made_side("text", 40, 2)}
    assert play(SMALL, texts).sides["a"]["f1"] >= 0


def test_a_file_of_texts_is_read(tmp_path):
    path = tmp_path / "texts.csv"
    path.write_text('text,label\n"Good, bye",1.2\nbye xyz,-0.4\n"bye",0\n', "utf-8")
    rows = read_texts(path, phones=TextToPhone({"good": ["G", "UH", "D"], "bye": ["B", "AY"]}))
    assert rows.labels == ("positive", "negative", "negative")
    assert (rows.words, rows.unknown) == (5, 1)
    assert rows.inputs[0] == ("good,", "bye")
    path.write_text("text,labl\na,1\n", "utf-8")
    with pytest.raises(DataError, match="Did you mean 'labl'"):
        read_texts(path, phones=TextToPhone({"a": ["AH"]}))


def test_a_trained_side_predicts_from_its_own_modality_and_comes_back_from_a_file(tmp_path):
    outcome = play(SMALL, sides(), results=tmp_path)
    for name, rows in sides().items():
        model = SideModel.of(SMALL, name, tmp_path)
        model.save(tmp_path / "side.msg")
        again = SideModel.load(tmp_path / "side.msg", SMALL)
        found = model.predict_proba(rows)
        assert np.array_equal(found, again.predict_proba(rows))
        assert np.allclose(found.sum(1), 1)
        assert model.predict(rows) == [model.classes[i] for i in found.argmax(1)]
        assert np.allclose(found[3], model.predict_proba(rows.take([3]))[0], atol=1e-6)
        assert not np.allclose(found, model.predict_proba(rows, alone=True))
        split = int(NamedResults(tmp_path).get(name, "crossmodal")["split"])
        _, _, held_out = split_rows(SMALL, rows, split)
        true = np.array([model.classes.index(label) for label in held_out.labels])
        assert score_f1(model.predict_proba(held_out).argmax(1), true, 2) == outcome.sides[name]["f1"]
        assert model.predict_proba(rows.take([])).shape == (0, 2)


def test_a_side_refuses_rows_and_files_that_are_not_its_own(tmp_path):
    play(SMALL, sides(), results=tmp_path)
    model = SideModel.of(SMALL, "south", tmp_path)
    with pytest.raises(DataError, match="text at a side that knows speech"):
        model.predict(made_side("text", 3, 0))
    with pytest.raises(DataError, match="frames of 3 numbers instead of 6"):
        model.predict(made_side("speech", 3, 0, width=3))
    with pytest.raises(DataError, match="other phones"):
        model.predict(Utterances("speech", [np.zeros((2, 6))], [[0]], ["positive"], phone_names=("X",)))
    with pytest.raises(CheckpointError, match="no side of such a job"):
        SideModel.of(replace(SMALL, hidden=5), "south", tmp_path)
    with pytest.raises(ConfigError, match="no result named"):
        SideModel.of(SMALL, "west", tmp_path)
    for content in (b"", b"\x80\x04]"):
        (tmp_path / "other").write_bytes(content)
        with pytest.raises(CheckpointError, match="damaged"):
            SideModel.load(tmp_path / "other", SMALL)


def test_training_meets_unknown_words():
    """A word of one row alone is unknown, so that what unknown words mean is learnt and not what weights began with."""
    rows = Utterances(
        "text",
        [["one", "two"], ["two", "two", "three"], ["three"], ["four", "four"]],
        [[0]] * 4,
        ["negative", "positive"] * 2,
    )
    assert vocabulary_of(rows) == ["three", "two"]
    side = side_of(replace(SMALL, test=0.0, valid=0.0), rows)
    assert side.train_rows.inputs.tolist() == [[1, 3, 0], [3, 3, 2], [2, 0, 0], [1, 1, 0]]
    nets = side.networks(np.zeros((40, 6), np.float32))
    before = nets.own.first.weight.detach().numpy().copy()
    nets.train_own(side.train_rows, [np.arange(4)], 0)
    assert not np.array_equal(before[1], nets.own.first.weight.detach().numpy()[1])


def test_the_oracle_follows_the_loss_of_the_job(monkeypatch):
    from atoll.crossmodal import comparison

    asked = []
    begin = comparison._begin
    monkeypatch.setattr(comparison, "_begin", lambda side, table: asked.append(side.job) or begin(side, table))
    for job, loss in ((SMALL, "fused"), (replace(SMALL, epsilon=3.0), "phones")):
        train_together(replace(job, rounds=1, iterations=1, pretrain=0), sides(20), 0)
        assert {(one.shared_loss, one.epsilon, one.table) for one in asked} == {(loss, None, "exact")}
        asked.clear()


@pytest.mark.parametrize("bits", [16, 8])
def test_rounded_copies_are_the_same_at_all_parties_and_nearer_than_half_a_step(bits):
    draw = np.random.default_rng(0)
    values = {"a": draw.normal(size=(5, 3)).astype(np.float32), "b": np.zeros(4, np.float32), "c": (1e-6 * draw.normal(size=2)).astype(np.float32)}  # fmt: skip
    coder = CopyCoder({name: value.shape for name, value in values.items()}, bits)
    letter = {"rows": 3, "values": coder.encode(values)}
    rows, found = read_copy(letter, coder, "north")
    assert rows == 3
    for name, value in values.items():
        assert np.abs(found[name] - value).max() <= np.abs(value).max() / (2 ** (bits - 1) - 1) * (1 + 1e-6)
    again = coder.decode(coder.encode(found))
    assert all(np.array_equal(again[name], found[name]) for name in values)
    assert letter["values"]["codes"].nbytes == 21 * bits // 8
    packed = letter["values"]
    bad = [values, {**packed, "like": values}, {**packed, "codes": packed["codes"][1:]}, {**packed, "scale": packed["scale"] * np.nan}, {**packed, "scale": packed["scale"].astype(np.float64)}]  # fmt: skip
    for other in bad:
        with pytest.raises(DataError, match="the copy of 'north'"):
            read_copy({"rows": 3, "values": other}, coder, "north")


def test_rounded_copies_take_fewer_bytes_and_leave_the_promise_as_it_was(planned_by_rows):
    plain, job = replace(SMALL, epsilon=2.0), replace(SMALL, epsilon=2.0, bits=8)
    whole, rounded = play(plain, sides()), play(job, sides())
    assert rounded.parameters == whole.parameters
    assert whole.bytes - rounded.bytes > 2.9 * whole.parameters  # three of four bytes, less two dozen for the steps
    assert all(rounded.sides[name]["epsilon"] == whole.sides[name]["epsilon"] for name in whole.sides)
    with pytest.raises(ConfigError, match="bits"):
        replace(SMALL, bits=12)


def test_aligned_rows_are_the_same_utterances_and_join_both_decisions():
    """A half of the class is told by the word, a half by the sound: both together are better than each."""
    draw, words, frames, labels = np.random.default_rng(0), [], [], []
    for i in range(160):
        by_word, positive = bool(draw.integers(2)), bool(i % 2)
        words.append(("good" if positive else "bad") if by_word else "so")
        frames.append(draw.normal(size=(4, 2)) + (0 if by_word else 3) * (1 if positive else -1))
        labels.append(("negative", "positive")[positive])
    rows = Utterances("speech", frames, [[0]] * 160, labels, texts=words)
    lexicon = TextToPhone({"good": ["G"], "bad": ["G"], "so": ["G"]})
    written = rows.written(lexicon)
    assert (written.modality, written.labels, written.phones[0].tolist()) == ("text", rows.labels, [14])
    job = Crossmodal(speech=FrameCNN(filters=4, widths=(1,)), text=FrameCNN(filters=4, widths=(1,)), rounds=3, iterations=20, pretrain=0, lr=0.02, hidden=4, width=4)  # fmt: skip
    joint = train_aligned(job, rows, 0, phones=lexicon)["f1"]
    single = train_together(job, {"speech": rows, "text": written}, 0)
    assert joint > max(one["f1"] for one in single.values()) + 0.1
    assert rows.take([1, 2]).texts == (words[1], words[2])
    with pytest.raises(DataError, match="nobody knows the texts"):
        train_aligned(job, replace(rows, texts=()), 0)
    with pytest.raises(DataError, match="1 texts for 160 utterances"):
        replace(rows, texts=["a"])
