"""Why sides do not help each other in `crossmodal-mosi`: what the phones of its spoken sentences keep of their words, and what changes if the decoder makes no mistake.

A bound outside our networks: logistic regression on counts of words, and on counts of one to five phones in a row, of the same sentences. Phones are *said*, those of the words by the dictionary, or *heard*, those that
PocketSphinx finds in what eSpeak NG says. Then our networks, with phones heard and with phones said, after the steps of `crossmodal-mosi` and after four times as many.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from atoll.core.extras import need
from atoll.crossmodal import PHONES, Crossmodal, Utterances, train_alone
from atoll.crossmodal.phones import rate_phone_errors
from atoll.crossmodal.utterances import score_f1
from atoll.reproduce import Claim, Entry, keeping_nothing

from .crossmodal import MOSI_JOB, SOURCE, federate_sides, make_sides, mosi_sides

__all__ = ["DECODING_ENTRY", "score_linear"]

_SEEDS = 2
_ERROR = 2.7
"""The standard error of a F1 over about 340 sentences, in points."""


Tokens = dict[str, tuple[list[list[str]], list[list[str]]]]
"""Side -> the tokens of each row to train on, and of each to measure on."""


def score_linear(train: Sequence[Sequence[str]], labels: Sequence[str], test: Sequence[Sequence[str]], true: Sequence[str], longest: int) -> float:  # fmt: skip
    """Return the F1 of logistic regression on weighted counts (tf-idf) of up to ``longest`` tokens in a row that two rows or more have.

    Args:
        train: the tokens of each row to train on.
        labels: their classes.
        test: the tokens of each row to measure on.
        true: their classes.
        longest: see above.
    """
    counts = need("sklearn.feature_extraction.text", "sklearn", "crossmodal-decoding").TfidfVectorizer(
        analyzer=lambda row: [" ".join(row[i : i + n]) for n in range(1, longest + 1) for i in range(len(row) - n + 1)], min_df=2, sublinear_tf=True
    )  # fmt: skip
    model = need("sklearn.linear_model", "sklearn", "crossmodal-decoding").LogisticRegression(C=10.0, max_iter=2000)
    model.fit(counts.fit_transform(train), list(labels))
    classes = list(model.classes_)
    said = model.predict(counts.transform(test))
    return score_f1(np.array([classes.index(name) for name in said]), np.array([classes.index(name) for name in true]), len(classes))  # fmt: skip


# ---------------------------------------------------------------- the sides


@dataclass(frozen=True)
class _Decoded:
    """Both sides, with the words of all sentences, and with the phones that were said and heard on the side of speech."""

    words: Tokens
    said: Mapping[str, Utterances]
    heard: Mapping[str, Utterances]


def _mosi_decoded() -> _Decoded:
    heard = mosi_sides()
    spoken = heard["speech"].written()
    said = {**heard, "speech": _with_phones(heard["speech"], spoken)}
    return _Decoded(_code_tokens({**heard, "speech": spoken}, lambda rows: rows.inputs), said, heard)


def _code_tokens(sides: Mapping[str, Utterances], read: Callable[[Utterances], Sequence[Sequence[str]]]) -> Tokens:
    return {side: (*([list(row) for row in read(part)] for part in (rows, _held_out(rows))),) for side, rows in sides.items()}  # type: ignore[misc]  # fmt: skip


def _held_out(rows: Utterances) -> Utterances:
    return rows.held_out if rows.held_out is not None else rows


def _with_phones(rows: Utterances, other: Utterances) -> Utterances:
    """The rows with the phones of others."""
    held = None if rows.held_out is None else _with_phones(rows.held_out, _held_out(other))
    return replace(rows, phones=other.phones, held_out=held)


def _made_decoded(seed: int) -> _Decoded:
    """Generated sides, whose words are their phones three at a time; two phones of three are heard wrong."""
    said = make_sides({"speech": 60, "text": 90}, seed, 60)
    draw = np.random.default_rng(seed)

    def mishear(rows: Utterances) -> Utterances:
        phones: Any = [np.where(draw.random(len(row)) < 2 / 3, draw.integers(0, 39, len(row)), row) for row in rows.phones]  # fmt: skip
        return replace(rows, phones=phones, held_out=None if rows.held_out is None else mishear(rows.held_out))

    def split(rows: Utterances) -> list[list[str]]:
        return [[" ".join(map(str, row[i : i + 3])) for i in range(0, len(row), 3)] for row in rows.phones]

    return _Decoded(_code_tokens(said, split), said, {**said, "speech": mishear(said["speech"])})


# ---------------------------------------------------------------- what is measured


def _judge_linear(sides: _Decoded) -> list[Claim]:
    part = "What a linear model finds: F1 in %, trained on a side's own sentences, and on both sides'"
    tokens: dict[str, tuple[Tokens, int]] = {"words": (sides.words, 1)}
    for name, rows in (("phones said", sides.said), ("phones heard", sides.heard)):
        tokens[name] = (_code_tokens(rows, lambda one: [[PHONES[i] for i in row] for row in one.phones]), 5)
    made, found = list[Claim](), dict[tuple[str, str, str], float]()
    for side, other in (("text", "speech"), ("speech", "text")):
        labels, true, more = sides.said[side].labels, _held_out(sides.said[side]).labels, sides.said[other].labels
        for name, (coded, longest) in tokens.items():
            own, test = coded[side]
            found[side, name, "own"] = 100 * score_linear(own, labels, test, true, longest)
            found[side, name, "both"] = 100 * score_linear([*own, *coded[other][0]], [*labels, *more], test, true, longest)  # fmt: skip
        told = ", ".join(f"{name} {found[side, name, 'own']:.1f} and {found[side, name, 'both']:.1f}" for name in tokens)  # fmt: skip
        made.append(Claim.figure(f"at the side of {side}: own, and both sides'", told, f"standard error {_ERROR}", part))  # fmt: skip
    near = min(found[side, "phones said", arm] - found[side, "words", arm] for side in sides.said for arm in ("own", "both"))  # fmt: skip
    gain = {name: found["speech", name, "both"] - found["speech", name, "own"] for name in tokens}
    lost = found["speech", "phones heard", "both"] - found["speech", "phones said", "both"]
    return [
        *made,
        Claim("phones that were said tell the class as well as words", "assumed", f"{near:+.1f} at least", near > -_ERROR, "points beside words, over sides and sentences", part),
        Claim("phones that were heard tell it as well", "assumed", f"{lost:+.1f}", lost > -_ERROR, "points beside phones that were said, both sides' sentences, at the side of speech", part),
        Claim("other sentences help the side of speech, by phones that were said", "both sides gain", f"{gain['phones said']:+.1f}", gain["phones said"] > _ERROR, f"points that both sides' sentences add to its own; more than {_ERROR}", part),
        Claim("and by phones that were heard", "both sides gain", f"{gain['phones heard']:+.1f}", gain["phones heard"] > _ERROR, "the same", part),
    ]  # fmt: skip


def _judge_networks(job: Crossmodal, sides: _Decoded, seeds: int, times: Sequence[int]) -> list[Claim]:
    part, made = f"What our networks find: F1 in %, means of {seeds} seeds, no noise", list[Claim]()
    mean: dict[tuple[str, int, str], float] = {}
    for more in times:
        longer = replace(job, iterations=more * job.iterations)
        for seed in range(seeds):
            alone = {side: train_alone(longer, rows, seed)["f1"] for side, rows in sides.said.items()}
            arms = {"alone": alone, "heard": federate_sides(longer, sides.heard, seed)[0], "said": federate_sides(longer, sides.said, seed)[0]}  # fmt: skip
            for arm, scores in arms.items():
                for side, value in scores.items():
                    mean[arm, more, side] = mean.get((arm, more, side), 0.0) + 100 * value / seeds
        steps = longer.rounds * longer.iterations
        for side in sides.said:
            told = ", ".join(f"{name} {mean[arm, more, side]:.1f}" for arm, name in (("alone", "alone"), ("heard", "federated with phones heard"), ("said", "with phones said")))  # fmt: skip
            made.append(Claim.figure(f"at the side of {side}, {steps} steps", told, "networks and rates are those of crossmodal-mosi", part))  # fmt: skip
    first, last = times[0], times[-1]
    for side in ("speech", "text"):
        gain = mean["said", first, side] - mean["alone", first, side]
        made.append(Claim(f"with phones said, the other side helps the side of {side}", "in all settings", f"{gain:+.1f}", gain > _ERROR, f"points, after the fewest steps; more than {_ERROR}", part))  # fmt: skip
    longer_gain = mean["said", last, "text"] - mean["said", first, "text"]
    made.append(Claim("more steps help the side of text", None, f"{longer_gain:+.1f}", longer_gain > _ERROR, f"points between the fewest and the most steps, phones said; more than {_ERROR}", part))  # fmt: skip
    return made


@keeping_nothing("crossmodal-decoding")
def _run_decoding(quick: bool) -> list[Claim]:
    sides = _made_decoded(0) if quick else _mosi_decoded()
    wrong = rate_phone_errors(_held_out(sides.said["speech"]).phones, _held_out(sides.heard["speech"]).phones)
    job = replace(MOSI_JOB, rounds=2, iterations=5, pretrain=5) if quick else MOSI_JOB
    return [
        Claim.figure("errors of the phones that were heard", f"{100 * wrong:.0f} %", "put in, left out or replaced, over the phones of the dictionary, in the sentences to measure on"),
        *_judge_linear(sides), *_judge_networks(job, sides, 1 if quick else _SEEDS, (1, 4)),
    ]  # fmt: skip


DECODING_ENTRY = Entry(
    name="crossmodal-decoding",
    title="What phones of MOSI's sentences keep of their words, said and heard",
    source=SOURCE,
    run=_run_decoding,
    needs="MOSI's text below ATOLL_DATA, the extras speech and sklearn, and espeakng-loader, which is under the GPL; the extra sklearn alone with --quick",
    data=("mosi_texts",),
    quick_data=(),
)
