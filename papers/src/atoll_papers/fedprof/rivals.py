"""Verdicts on FedProf against the methods of its group, once trained.

The thesis gives neither layers, batch size, noise levels nor seeds, so only orders and ratios are judged; a ratio holds
from three quarters of the thesis's, as medians over seeds.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from atoll.reproduce import Claim

from .tasks import GROUPS, FedProfSetting, Key, table_of
from .trainings import FedProfFound

__all__ = ["judge_better", "judge_sooner", "judge_trained", "not_trained"]


def judge_trained(setting: FedProfSetting, found: Mapping[Key, FedProfFound]) -> list[Claim]:
    """Judge FedProf against every method of its group, for the trained cells; if neither reaches the target, it is undecided which is first."""
    claims = []
    for key, own, other in _pairs(setting, found):
        claims += _pair(setting, key, own, other)
    return claims + _groups(setting, found)


def judge_sooner(setting: FedProfSetting, found: Mapping[Key, FedProfFound], target: float) -> list[Claim]:
    """Judge rounds to a target without numbers in the thesis: FedProf against every method of its group.

    Args:
        setting: the task.
        found: cells with rounds to this target.
        target: accuracy.
    """
    return [
        Claim(
            f"{_where(setting, key)}: fewer rounds to {target:g}",
            None,
            f"{own.told('rounds')} against {other.told('rounds')}",
            _sooner(own, other),
            "medians over seeds; not a target of the thesis",
        )
        for key, own, other in _pairs(setting, found)
    ]


def judge_better(setting: FedProfSetting, found: Mapping[Key, FedProfFound]) -> list[Claim]:
    """Judge the best accuracy in a task without numbers in the thesis: FedProf against every method of its group."""
    return [
        Claim(
            f"{_where(setting, key)}: higher best accuracy",
            None,
            f"{own.told('best', '.3f')} against {other.told('best', '.3f')}",
            own.best > other.best,
            "medians over seeds; not a task of the thesis",
        )
        for key, own, other in _pairs(setting, found)
    ]


def not_trained(
    setting: FedProfSetting, found: Collection[Key], groups: Mapping[str, Sequence[str]], share: float
) -> list[Claim]:
    """Name the rivals of groups at a share that were not trained, or not FedProf in their group.

    Args:
        setting: the task.
        found: the trained cells.
        groups: group -> methods, FedProf last.
        share: ``C``.
    """
    return [
        Claim(
            f"{_where(setting, (group, method, share))}: accuracy, and rounds to the target",
            None,
            None,
            None,
            "not trained",
        )
        for group, methods in groups.items()
        for method in methods[:-1]
        if not {(group, method, share), (group, "FedProf", share)} <= set(found)
    ]


def _pairs(setting: FedProfSetting, found: Mapping[Key, FedProfFound]) -> list[tuple[Key, FedProfFound, FedProfFound]]:
    """Return every trained rival's key, FedProf's cell and the rival's."""
    keys = [
        (group, method, share)
        for group, methods in GROUPS.items()
        for share in setting.shares
        for method in methods[:-1]
    ]
    pairs = ((key, found.get((key[0], "FedProf", key[2])), found.get(key)) for key in keys)
    return [(key, own, other) for key, own, other in pairs if own is not None and other is not None]


def _where(setting: FedProfSetting, key: Key) -> str:
    return f"{setting.name}, {key[0]}, C={key[2]:g}: FedProf against {key[1]}"


def _sooner(own: FedProfFound, other: FedProfFound) -> bool | None:
    if own.rounds is None and other.rounds is None:
        return None
    return own.rounds is not None and (other.rounds is None or own.rounds < other.rounds)


def _pair(setting: FedProfSetting, key: Key, own: FedProfFound, other: FedProfFound) -> list[Claim]:
    table, where = table_of(setting), _where(setting, key)
    mine, theirs = table[key[0], "FedProf", key[2]], table[key]
    claims = [
        Claim(
            f"{where}: higher best accuracy",
            f"{mine.best:.3f} against {theirs.best:.3f}",
            f"{own.told('best', '.3f')} against {other.told('best', '.3f')}",
            own.best > other.best,
            "medians over seeds",
        ),
        Claim(
            f"{where}: fewer rounds to {setting.target:g}",
            f"{mine.rounds} against {theirs.rounds}",
            f"{own.told('rounds')} against {other.told('rounds')}",
            _sooner(own, other),
            "medians over seeds",
        ),
    ]
    for of, word in (("seconds", "time"), ("watt_hours", "energy")):
        a, b = getattr(own, of), getattr(other, of)
        paper = getattr(theirs, of) / getattr(mine, of)
        if a is not None and b is not None:
            claims.append(
                Claim(
                    f"{where}: the other's {word} to {setting.target:g}, as a multiple",
                    round(paper, 2),
                    round(b / a, 2),
                    b / a >= max(1.0, 0.75 * paper),
                    "holds from three quarters of the thesis's multiple, but not below 1",
                )
            )
    return claims


def _groups(setting: FedProfSetting, found: Mapping[Key, FedProfFound]) -> list[Claim]:
    """Partial aggregation needs fewer rounds than full."""
    claims = []
    for share in setting.shares:
        full, partial = found.get(("full", "FedAvg", share)), found.get(("partial", "FedAvg-RP", share))
        if full is not None and partial is not None:
            table = table_of(setting)
            claims.append(
                Claim(
                    f"{setting.name}, C={share:g}: partial aggregation needs fewer rounds to {setting.target:g} than full",
                    f"{table['partial', 'FedAvg-RP', share].rounds} against {table['full', 'FedAvg', share].rounds}",
                    f"{partial.told('rounds')} against {full.told('rounds')}",
                    _sooner(partial, full),
                    "FedAvg-RP against FedAvg, medians over seeds",
                )
            )
    return claims
