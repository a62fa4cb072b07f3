"""What a server, a peer or a stranger may not do: letters of another round, party, form or content, other words to one party, a step twice, and replies that no party makes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import atoll
from atoll.core.errors import AtollError, DataError, LetterError, PolicyError, TaskError
from atoll.core.requests.island import Island
from atoll.core.requests.request import Mailboxes
from atoll.core.sealing import Letter
from atoll.crossmodal import Crossmodal, FrameCNN, TableShare, VectorMLP, job
from atoll.crossmodal.parties import CopyCoder, SideSteps, read_copy
from atoll.engines import Inline
from tests.crossmodal.helpers import made_side

pytest.importorskip("torch")

JOB = Crossmodal(
    speech=FrameCNN(filters=4, widths=(1,)), text=FrameCNN(filters=4, widths=(1,)), vector=VectorMLP(hidden=4), rounds=2, iterations=1, pretrain=0, batch=8, hidden=4, width=4, label="",
)  # fmt: skip
STEP = "atoll.crossmodal.parties:"


def play(job=JOB, **options):
    parties = {"a": made_side("text", 24, 1), "b": made_side("speech", 24, 2), "c": made_side("vector", 24, 3)}
    return atoll.simulate(job, parties, **{"engine": "inline", "progress": False, **options})


def change_letters(monkeypatch, change):
    """Party b is another program: it changes its letters before they are sealed; ``None`` posts none."""
    post = Island.post

    def post_other(self, to, letter):
        letter = change(letter) if self.name == "b" else letter
        if letter is not None:
            post(self, to, letter)

    monkeypatch.setattr(Island, "post", post_other)


def only(name, change):
    """A change of the letters that have such a field: ``sums`` of the table, ``values`` of a copy."""
    return lambda letter: change(letter) if name in letter else letter


# ------------------------------------------------------------------ what a peer writes


@pytest.mark.parametrize("strange", ["f_s", "f_t", "words", "labels"])
@pytest.mark.parametrize(("kind", "what"), [("sums", "table"), ("values", "copy")])
def test_a_peer_that_sends_more_is_named(monkeypatch, kind, what, strange):
    change_letters(monkeypatch, only(kind, lambda letter: {**letter, strange: np.ones(2, np.float32)}))
    with pytest.raises((DataError, TaskError), match=f"the {what} of 'b' also holds '{strange}'"):
        play()


def test_a_weight_that_must_stay_is_named_among_those_that_are_shared(monkeypatch):
    def add(letter):
        return {**letter, "values": {**letter["values"], "own.last.weight": np.ones(2, np.float32)}}

    change_letters(monkeypatch, only("values", add))
    with pytest.raises((DataError, TaskError), match=r"copy of 'b' has 'own\.last\.weight' too much"):
        play()


COPIES = {
    "a word": lambda values: {**values, next(iter(values)): "none"},
    "a list of lists": lambda values: {**values, next(iter(values)): [[1.0], [1.0, 2.0]]},
    "nothing": lambda values: {**values, next(iter(values)): None},
    "whole numbers": lambda values: {**values, next(iter(values)): values[next(iter(values))].astype(np.int32)},
    "complex numbers": lambda values: {**values, next(iter(values)): values[next(iter(values))] * 1j},
    "truths": lambda values: {**values, next(iter(values)): values[next(iter(values))] > 0},
    "no array": lambda values: {},
    "a list": lambda values: [*values],
}


@pytest.mark.parametrize("bits", [32, 8])
@pytest.mark.parametrize("other", COPIES)
def test_a_copy_of_another_kind_is_named(other, bits):
    coder = CopyCoder({"phones.weight": (2, 3), "phones.bias": (2,)}, bits)
    values = coder.encode({"phones.weight": np.ones((2, 3), np.float32), "phones.bias": np.ones(2, np.float32)})
    assert read_copy({"rows": 5, "values": values}, coder, "b")[0] == 5
    with pytest.raises(DataError, match="the copy of 'b' "):
        read_copy({"rows": 5, "values": COPIES[other](values)}, coder, "b")


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e38])
def test_rounded_copies_have_finite_steps(monkeypatch, value):
    def spoil(letter):
        floats = {name: one for name, one in letter["values"].items() if np.asarray(one).dtype.kind == "f"}
        return {**letter, "values": {**letter["values"], **{name: np.full_like(one, value) for name, one in floats.items()}}}  # fmt: skip

    change_letters(monkeypatch, only("values", spoil))
    with pytest.raises((DataError, TaskError), match=r"the copy of 'b' has .*not finite or above"):
        play(replace(JOB, bits=8, rounds=1))


TABLES = {
    "a word": lambda letter: {**letter, "sums": "none"},
    "words": lambda letter: {**letter, "counts": letter["counts"].astype(str)},
    "complex numbers": lambda letter: {**letter, "sums": letter["sums"] * 1j},
    "another shape": lambda letter: {**letter, "sums": letter["sums"][:, :-1]},
    "other phones": lambda letter: {name: one[:-1] for name, one in letter.items()},
    "no number": lambda letter: {**letter, "sums": letter["sums"] * np.nan},
    "less than none": lambda letter: {**letter, "counts": letter["counts"] - 1},
    "a list": lambda letter: [*letter.values()],
}


@pytest.mark.parametrize("other", TABLES)
def test_a_table_of_another_kind_is_named(other):
    letter = JOB.table_plan.build(made_side("speech", 8, 0)).message()
    assert TableShare.read(letter, 39, 6, "b", JOB.table_plan).sums.shape == (39, 6)
    with pytest.raises(DataError, match="the table of 'b' "):
        TableShare.read(TABLES[other](letter), 39, 6, "b", JOB.table_plan)


@pytest.mark.parametrize("kind", ["sums", "values"])
def test_a_peer_that_replies_and_posts_nothing_is_named(monkeypatch, kind):
    change_letters(monkeypatch, only(kind, lambda letter: None))
    with pytest.raises((LetterError, TaskError), match="no letter of b has arrived"):
        play()


def test_where_all_count_alike_no_side_has_more_say(monkeypatch):
    """Neither a side that claims rows, nor one that claims utterances with a phone."""
    equal = replace(JOB, weights="equal", least=1)
    with monkeypatch.context() as patch:
        change_letters(patch, only("values", lambda letter: {**letter, "rows": 1000}))
        with pytest.raises((DataError, TaskError), match="copy of 'b' claims 1000 rows, where all copies count alike"):
            play(equal)
    change_letters(monkeypatch, only("sums", lambda letter: {**letter, "counts": 50 * letter["counts"]}))
    with pytest.raises((DataError, TaskError), match=r"table of 'b' counts 50 to 50 .* where all sides count alike"):
        play(equal)
    noisy = replace(equal, epsilon=4.0, classes=("negative", "positive")).table_plan
    letter = {"sums": np.zeros((39, 6), np.float32), "counts": np.full(39, -2.5, np.float32)}
    assert TableShare.read(letter, 39, 6, "b", noisy).counts.max() == -2.5  # noise makes such


# ------------------------------------------------------------------ what a server does with letters


class Carrying(Inline):
    """A server that delivers other letters in the mixing of some round.

    Args:
        change: of the letters of all rounds' requests so far, by step, the letters that it delivers.
        number: the round.
    """

    def __init__(self, change, number):
        super().__init__()
        self.change, self.number, self.kept = change, number, {}

    async def run(self, request, positions):
        step = request.task.name.removeprefix(STEP)
        if step in ("begin", "mix"):
            self.kept.setdefault(step, []).append(request.mail)
            if step == "mix" and request.message["round"] == self.number:
                request = replace(request, mail=self.change(self.kept))
        return await super().run(request, positions)


def of_another(kept):
    """The letter of c to a stands in the place of that of b."""
    boxes = {to: kept["mix"][-1].box(to) for to in "abc"}
    return Mailboxes({**boxes, "a": {**boxes["a"], "b": boxes["a"]["c"]}})


def in_the_name_of_another(kept):
    """The same, and the envelope says that b wrote it."""
    boxes = {to: kept["mix"][-1].box(to) for to in "abc"}
    packed = {**boxes["a"]["c"].pack(), "from": "b"}
    return Mailboxes({**boxes, "a": {**boxes["a"], "b": Letter.unpack(packed)}})


CARRIED = {
    "another round": (2, lambda kept: kept["mix"][0], "it does not open: .*letter of b to a; .*mix/2 at a"),
    "the table's": (1, lambda kept: kept["begin"][0], "it was written in .*letter of b to a"),
    "another party's": (1, of_another, "its envelope says c to a .*letter of b to a"),
    "a third party's in the name of another": (1, in_the_name_of_another, "letter of b to a"),
    "held back": (1, lambda kept: kept["mix"][-1].only_from({"a", "c"}), "no letter of b has arrived"),
}


@pytest.mark.parametrize("how", CARRIED)
def test_a_letter_that_is_not_that_of_the_round_and_its_sender_is_refused(how):
    number, change, words = CARRIED[how]
    with pytest.raises((LetterError, TaskError), match=words):
        play(engine=Carrying(change, number), sealing="real")


class Lying(Inline):
    """A server that tells party a something else in one step.

    Args:
        step: the step.
        told: fields of the message.
    """

    def __init__(self, step, **told):
        super().__init__()
        self.step, self.told = step, told

    async def run(self, request, positions):
        if request.task.name != STEP + self.step:
            return await super().run(request, positions)
        rest = await super().run(request, positions[positions != 0])
        lied = replace(request, message={**request.message, **self.told})
        return [*await super().run(lied, positions[positions == 0]), *rest]


@pytest.mark.parametrize(
    ("step", "told"),
    [
        ("open", {"classes": ["positive", "negative"]}),  # the labels of a would mean the others
        ("open", {"seed": 1}),
        ("begin", {"senders": []}),  # a would have no table
    ],
)
def test_parties_that_were_told_other_words_cannot_read_each_other(step, told):
    with pytest.raises((LetterError, TaskError), match=r"it does not open: .*a letter of . to ."):
        play(engine=Lying(step, **told), sealing="real")


@pytest.mark.parametrize("step", ["open", "begin"])
def test_a_server_that_asks_for_a_step_twice_is_refused(step):
    """A second table would be a release that the promise does not count; a second beginning would forget what was learnt."""

    class Repeating(Inline):
        async def run(self, request, positions):
            if request.task.name == STEP + step:
                self.kept = request
            if request.task.name == STEP + "train":
                request = replace(request, task=self.kept.task, message=self.kept.message, mail=self.kept.mail)
            return await super().run(request, positions)

    with pytest.raises((PolicyError, TaskError), match=f"has {'opened' if step == 'open' else 'begun'} this job before"):  # fmt: skip
        play(engine=Repeating())


# ------------------------------------------------------------------ what a party replies

REPLIES = {
    ("describe", "width"): [-1, 0, 2**40, 6.0, "6", None],
    ("describe", "modality"): ["face", 3, None],
    ("describe", "phones"): [["AA", "AA"], [1, 2], "AA", None, [""] * 39],
    ("describe", "classes"): [[1], "positive", ["a"] * 2, [f"class {i}" for i in range(5000)], None],
    ("describe", "empty"): [1, None],
    ("describe", "f_s"): [np.ones(2, np.float32)],
    ("mix", "f1"): [1.5, -0.1, np.inf, "good", None, [0.5]],
    ("mix", "labels"): [["positive"]],
    ("close", "epsilon"): [-1.0, np.nan, None],
    ("close", "modality"): ["face", None],
    ("close", "words"): [-1, "many"],
    ("close", "f_t"): [[0.0]],
}


GOOD = {
    "describe": {"modality": "speech", "width": 6, "phones": ["AA", "AE"], "empty": False, "classes": ["a", "b"]},
    "mix": {"f1": 0.5, "accuracy": np.nan},
    "close": {"modality": "text", "f1": 1.0, "accuracy": 0.0, "alone": 0.5, "epsilon": np.inf, "best_round": 1},
}
READERS = {
    "describe": lambda told: job._require_description("b", told, classes=True),
    "mix": lambda told: job._read_numbers("b", told, job._SCORES),
    "close": lambda told: job._read_side("b", told),
}


@pytest.mark.parametrize(("step", "field"), REPLIES)
def test_a_reply_that_no_party_makes_is_named(step, field):
    READERS[step](GOOD[step])
    lacking = {name: value for name, value in GOOD[step].items() if name != field}
    changed = [{**GOOD[step], field: value} for value in REPLIES[step, field]]
    for told in (*changed, *([lacking] if field in GOOD[step] else []), [], None):
        with pytest.raises(DataError, match=r"that 'b' tells: .*look at b"):
            READERS[step](told)


@pytest.mark.parametrize("step", ["describe", "begin", "mix", "close"])
def test_a_party_with_another_program_is_named_at_every_step(monkeypatch, step):
    made = getattr(SideSteps, f"_{step}")

    def reply(self, island, message):
        told = made(self, island, message)
        return told if island.name != "b" else 2**40 if step == "begin" else {**told, "labels": ["positive"]}

    monkeypatch.setattr(SideSteps, f"_{step}", reply)
    with pytest.raises(AtollError, match=r"that 'b' tells: .*look at b"):
        play(replace(JOB, rounds=1))
