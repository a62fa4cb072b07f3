"""Words and sound as phones."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.core.errors import ConfigError, DataError
from atoll.crossmodal import PHONES, SpeechToPhone, TextToPhone, utterances_of
from atoll.crossmodal.phones import count_edits, rate_phone_errors

LEXICON = {
    "a": ["AH"],
    "ab": ["AE", "B"],
    "abb": ["B", "B"],
    "good": ["G", "UH", "D"],
    "goods": ["G", "UH", "D", "Z"],
    "don't": ["D", "OW", "N", "T"],
}


def names(found):
    return [PHONES[i] for i in found.phones]


def test_there_are_the_39_phones_of_the_dictionary():
    assert len(set(PHONES)) == len(PHONES) == 39


def test_a_word_of_the_dictionary_is_one_entry_and_another_is_matched_from_its_beginning():
    translate = TextToPhone(LEXICON)
    assert names(translate("good")) == LEXICON["good"]
    found = translate("goodsgood")  # the longest entry first: goods + good, never good + s + good
    assert names(found) == [*LEXICON["goods"], *LEXICON["good"]]
    assert (found.words, found.unknown) == (1, 1)
    assert names(translate("abba")) == [*LEXICON["abb"], "AH"]
    assert names(translate("xxgoodxx")) == LEXICON["good"]
    assert names(translate("Don’t, GOOD-a!")) == [*LEXICON["don't"], *LEXICON["good"], "AH"]
    assert translate("12 … 7") == translate("")


@given(st.lists(st.sampled_from(sorted(LEXICON)), max_size=8))
def test_words_of_the_dictionary_come_back_in_order_and_none_is_unknown(words):
    found = TextToPhone(LEXICON)(" ".join(words))
    assert names(found) == [phone for word in words for phone in LEXICON[word]]
    assert (found.words, found.unknown) == (len(words), 0)


@given(st.text(alphabet="abgods ", max_size=20))
def test_matching_is_the_slow_definition(text):
    expected = []
    for word in text.split():
        if word in LEXICON:
            expected += LEXICON[word]
            continue
        while word:
            fits = [entry for entry in LEXICON if word.startswith(entry)]
            entry = max(fits, key=len, default=None)
            expected += LEXICON[entry] if entry else []
            word = word[len(entry or "x") :]
    assert names(TextToPhone(LEXICON)(text)) == expected


def test_a_file_in_cmus_form_is_read(tmp_path):
    path = tmp_path / "own.dict"
    path.write_text(";;; a comment\nGOOD G UH1 D # of most\ngood(2) G UW0 D\n\nbye B AY1\n", "utf-8")
    translate = TextToPhone.read(path)
    assert names(translate("Good bye")) == ["G", "UH", "D", "B", "AY"]
    path.write_text("good\n", "utf-8")
    with pytest.raises(DataError, match="line 1 has no phones"):
        TextToPhone.read(path)
    path.write_text("good G Q1\n", "utf-8")
    with pytest.raises(ConfigError, match="'Q'"):
        TextToPhone.read(path)
    with pytest.raises(DataError, match="cannot be read"):
        TextToPhone.read(tmp_path / "none.dict")


def test_the_installed_dictionary_and_decoder_use_the_same_phones():
    pytest.importorskip("pocketsphinx")
    translate = TextToPhone.installed()
    assert len(translate.entries) > 120_000
    assert names(translate("wonderful movie")) == ["W", "AH", "N", "D", "ER", "F", "AH", "L", "M", "UW", "V", "IY"]
    rule = SpeechToPhone()
    draw = np.random.default_rng(0)
    noise = (draw.normal(0, 2000, 16_000) * np.repeat(draw.random(20), 800)).astype(np.int16)
    decoder = rule.decoder()
    heard = rule(noise, decoder)
    assert all(0 <= phone < 39 for phone in heard)
    assert rule(noise, decoder) == rule(noise) == heard  # what was decoded before changes nothing


SHORT = st.lists(st.integers(0, 2), max_size=5).map(tuple)


def least_edits(said, heard):
    """The definition, by trying all."""

    @cache
    def of(a, b):
        if not a or not b:
            return len(a) + len(b)
        return min(of(a[1:], b) + 1, of(a, b[1:]) + 1, of(a[1:], b[1:]) + (a[0] != b[0]))

    return of(said, heard)


@settings(max_examples=60, deadline=None)
@given(SHORT, SHORT)
def test_edits_are_the_fewest_that_make_one_sequence_of_the_other(said, heard):
    assert count_edits(said, heard) == count_edits(heard, said) == least_edits(said, heard)


def test_errors_are_counted_over_the_phones_that_were_said():
    assert rate_phone_errors([(1, 2, 3), (4,)], [(1, 3), (4, 5, 6)]) == 3 / 4
    assert rate_phone_errors([(1,)], [(2, 3)]) == 2  # more was heard than was said
    assert np.isnan(rate_phone_errors([(), ()], [(1,), ()]))


@pytest.mark.parametrize("missing", ["", " \t", None, float("nan")])
def test_a_missing_text_is_no_empty_sentence(missing):
    with pytest.raises(DataError, match="row 2 has no text"):
        utterances_of("text", ["good", missing], ["a", "b"], phones=TextToPhone(LEXICON))
    assert len(utterances_of("text", ["good", "!"], ["a", "b"], phones=TextToPhone(LEXICON))) == 2
