"""The paper's statements, and what the sweep says about them. Every rule was set before the test rows were looked at."""

from __future__ import annotations

from collections.abc import Mapping

from atoll.reproduce import Claim
from atoll.secure import SecureIndexing

from .sweep import CompressionTask, Found

__all__ = ["curve", "judge_all", "judge_quick", "judge_without_enclave"]

_WITHOUT = "Without an enclave"
EQUAL = 0.01
"""Accuracies that differ by at most one point count as equal."""
FARTHER = 1.25
"""Rounds that compression may need, as a factor on those of the plain training."""


def judge_all(task: CompressionTask, found: Mapping[str, Found]) -> list[Claim]:
    """Judge every statement of the paper about one task."""
    return [
        *_rates(task, found), *_order(found), _rounds(found), *_refresh(found), _margin(found), _overflow(found), *judge_without_enclave(task),
    ]  # fmt: skip


def _points(found: Found) -> str:
    return f"{100 * found.accuracy:.1f} %"


def _rates(task: CompressionTask, found: Mapping[str, Found]) -> list[Claim]:
    plain = found["plain"]
    equal = {
        name: one.rate
        for name, one in found.items()
        if name.startswith("pq") and one.accuracy >= plain.accuracy - EQUAL
    }
    best = max(equal, key=lambda name: equal[name], default="")
    ours = round(equal[best], 1) if best else None
    note = f"plain: {_points(plain)}; {best or 'no codebook'} is the shortest within one point, its rate with the uncompressed biases"
    return [
        Claim(
            f"Experiments, {task.paper}: uplink compression by product quantisation at equal accuracy",
            task.rate, ours, ours is not None and ours >= task.rate, note,
        )
    ]  # fmt: skip


def _order(found: Mapping[str, Found]) -> list[Claim]:
    pq, sq, plain = found["pq 8,256"], found["sq 2,3"], found["plain"]
    pruned = {
        n: max((found[f"prune 1/{n}"], found[f"prune 1/{n} scaled"]), key=lambda one: one.accuracy) for n in (8, 32)
    }
    return [
        Claim(
            "Experiments: at a rate of 32, product quantisation (8 entries, 256 codewords) beats pruning (1/32, the better scaling)",
            None, [_points(pq), _points(pruned[32])], pq.accuracy > pruned[32].accuracy, f"rates {pq.rate:.1f} and {pruned[32].rate:.1f}. {curve(found, 'pq')}",
        ),
        Claim(
            "Experiments: at high rates, pruning (1/8, the better scaling) beats scalar quantisation at its highest rate (2 bits in words of 3)",
            None, [_points(pruned[8]), _points(sq)], pruned[8].accuracy > sq.accuracy, f"rates {pruned[8].rate:.1f} and {sq.rate:.1f}. {curve(found, 'prune')}",
        ),
        Claim(
            "Experiments: scalar quantisation falls off at high rates, because sums overflow", None, [_points(found["sq 8,12"]), _points(found["sq 2,4"]), _points(sq)],
            found["sq 8,12"].accuracy >= plain.accuracy - EQUAL > sq.accuracy and found["sq 2,4"].accuracy > (plain.accuracy + sq.accuracy) / 2,
            f"8 bits in words of 12, within one point of plain ({_points(plain)}); 2 bits in words of 4 and of 3. Overflow is the cause if one more bit a word, with the same"
            f" codes, takes back more than half of the loss; {100 * (sq.overflowed or 0):.1f} % of the sums overflow in words of 3",
        ),
    ]  # fmt: skip


def _rounds(found: Mapping[str, Found]) -> Claim:
    target = 0.95 * found["plain"].accuracy
    plain, pq = (found[name].run.rounds_to(target) for name in ("plain", "pq 8,64"))
    holds = plain is not None and pq is not None and pq <= FARTHER * plain
    return Claim(
        "Experiments: product quantisation needs about as many rounds as no compression", plain, pq, holds,
        f"rounds to 95 % of the plain accuracy ({100 * target:.1f} %), 8 entries and 64 codewords; at most {FARTHER:g} times. The left number is that of our plain training",
    )  # fmt: skip


def _refresh(found: Mapping[str, Found]) -> list[Claim]:
    def gap(name: str) -> float:
        return found[name].accuracy - found[f"{name} late"].accuracy

    small, large, wide, narrow = (round(100 * gap(name), 1) for name in ("pq 4,16", "pq 16,16", "sq 8,12", "sq 8,9"))
    fresh, fixed = found["prune 1/8 scaled"], found["prune 1/8 scaled fixed"]
    return [
        Claim(
            "Experiments: the period of refreshing a scale matters only if words are short for the codes", None, [wide, narrow],
            abs(wide) <= 100 * EQUAL < narrow, "points lost by fitting every 20 rounds instead of every round: 8 bits in words of 12, and of 9",
        ),
        Claim(
            "Experiments: the period of refreshing a codebook matters for large blocks or few codewords", None, [small, large],
            large > small and large > 100 * EQUAL, "points lost by fitting every 20 rounds instead of every round: 16 codewords of 4 entries, and of 16",
        ),
        Claim(
            "Experiments: new masks more often make pruning better", None, [_points(fresh), _points(fixed)], fresh.accuracy > fixed.accuracy,
            "1/8 of the entries, scaled: new ones every round, and always the same",
        ),
    ]  # fmt: skip


def _margin(found: Mapping[str, Found]) -> Claim:
    seen = {p: found[f"sq 8,{p}"] for p in (9, 10, 11, 12)}
    return Claim(
        "Experiments: some margin of words over codes helps", None, [_points(one) for one in seen.values()],
        max(one.accuracy for p, one in seen.items() if p > 9) > seen[9].accuracy + EQUAL,
        "codes of 8 bits in words of 9, 10, 11 and 12; overflowed sums: " + ", ".join(f"{100 * (one.overflowed or 0):.2f} %" for one in seen.values()),
    )  # fmt: skip


def curve(found: Mapping[str, Found], start: str) -> str:
    """Return accuracy and rate of one way to compress, in words: the paper's figure, whose numbers cannot be read."""
    some = {name: one for name, one in found.items() if name.startswith(start) and not name.endswith(("late", "fixed"))}
    return "; ".join(
        f"{name}: {_points(one)} at {one.rate:.1f}x" for name, one in sorted(some.items(), key=lambda row: row[1].rate)
    )


def _overflow(found: Mapping[str, Found]) -> Claim:
    """Judge whether overflow explains what short words lose."""
    some = {name: one for name, one in found.items() if name.startswith("sq") and not name.endswith("late")}
    told = "; ".join(
        f"{name}: {_points(one)}, {100 * (one.overflowed or 0):.2f} % overflowed, at most {100 * (one.clamped or 0):.1f} % clamped"
        for name, one in some.items()
    )
    most = max(some.values(), key=lambda one: one.overflowed or 0)
    return Claim(
        "Experiments: what costs accuracy under scalar quantisation is overflow", None, told,
        most.accuracy <= min(one.accuracy for one in some.values()) + EQUAL, "the configuration with most overflowed sums is the least accurate, within a point",
    )  # fmt: skip


def judge_without_enclave(task: CompressionTask) -> list[Claim]:
    """Judge what a block costs by shares and by keys of two servers; arithmetic that tests hold to measured bytes."""
    rows, n = [], task.cohort
    for d, k in ((8, 32), (8, 256), (16, 16), (16, 256)):
        enclave, shares, keys = (
            SecureIndexing(by, max_weight=1).block_bits(k, n) for by in ("enclave", "shares", "keys")
        )
        what = f"{d} entries, {k} codewords, {n} clients of equal weight"
        note = f"bits a block: {enclave} to an enclave, a rate of {32 * d / enclave:.1f}; {shares} as shares; {keys} as two keys; {32 * d} as floats"
        rows.append(
            Claim(
                f"Without a trusted environment: without an enclave, one-hot shares lose the compression: {what}",
                None,
                f"{32 * d / shares:.1f}x",
                32 * d / shares < 2,
                f"at most twice; {note}",
                part=_WITHOUT,
                basis="derived",
            )
        )
        rows.append(
            Claim(
                f"Without a trusted environment: keys of point functions are compact: {what}",
                None,
                f"{32 * d / keys:.1f}x",
                keys < shares,
                f"shorter than shares; {note}",
                part=_WITHOUT,
                basis="derived",
            )
        )
    return rows


def judge_quick(found: Mapping[str, Found]) -> list[Claim]:
    """Judge the few short trainings of the quick form."""
    sq, pq, plain = found["sq 8,12"], found["pq 8,32"], found["plain"]
    return [
        Claim("8 bits in words of 12 end within two points of no compression", None, [_points(sq), _points(plain)], sq.accuracy >= plain.accuracy - 0.02, "few clients, few rounds: a smoke test, no evidence"),
        Claim("8 entries a block and 32 codewords send less than a tenth of a plain reply, uncompressed biases included", None, f"{pq.rate:.1f}x", pq.rate > 10, "with the uncompressed biases"),
    ]  # fmt: skip
