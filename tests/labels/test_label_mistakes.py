"""Mistakes that people make about labels, views and methods: each gives an ``AtollError`` that names the value, the place and the remedy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import atoll
from atoll import labels as L
from atoll import views as V
from atoll.core.errors import AtollError
from atoll.data import Mislabel, adaptation, corrupt, iid, unlabel
from atoll.labels import evaluators as E
from atoll.labels import streams as S
from atoll.labels.objectives import pseudo_labels
from atoll.learn import Training
from atoll.runs import parse_config, yaml
from tests.support.label_toys import CLASSES, images, net

ROWS = images(24, share=2.0)
WHOLE = iid(ROWS, parties=3, seed=0)
KEYS = V.row_keys(torch.tensor([1, 2]), torch.arange(2))
PICTURES = torch.rand(2, 1, 8, 8)
DOMAINS = ROWS.with_columns({"domain": np.array(["a", "b"])[np.arange(24) % 2]})


def written(algorithm: str) -> Any:
    """A training from a file, with something wrong in its algorithm."""
    text = f"data: {{source: digits, partition: {{name: iid, parties: 2}}}}\nmodel: {{name: linear, features: 64, outputs: 10}}\nalgorithm: {algorithm}"
    return parse_config(yaml.parse(text, "few.yaml")).made()


def prepared(algorithm: Any, model: Any = net, islands: Any = WHOLE, **parts: Any) -> Any:
    return Training(model=model, algorithm=algorithm, rounds=1, **parts).prepare(islands)


MISTAKES: dict[str, tuple[Callable[[], Any], str]] = {
    # labels as data
    "a place nobody knows": (lambda: unlabel(WHOLE, keep=4, at="sever"), "at='sever'.*server"),
    "rows that nobody divided": (lambda: unlabel(ROWS, keep=4), "a Dataset in place of parties.*iid"),
    "a list of clients": (lambda: unlabel([ROWS], keep=4), "a list in place of parties"),
    "more labels than there are": (lambda: unlabel(WHOLE, keep=1000), "keep=1000, but there are 24"),
    "more classes than there are": (lambda: unlabel(WHOLE, keep=9, at="classes"), "keep=9, but there are 4 classes.*at most 4"),
    "half a label": (lambda: unlabel(WHOLE, keep=2.5), "keep=2.5"),
    "labels as text": (lambda: unlabel(WHOLE, keep="40"), "keep='40'"),
    "no number of labels": (lambda: unlabel(WHOLE), "keep=0 leaves no label"),
    "text as a seed": (lambda: unlabel(WHOLE, keep=4, seed="a"), "seed='a'.*whole number"),
    "another word for keep": (lambda: unlabel(WHOLE, share=0.1), "share=0.1: unlabel has no setting"),
    "labels removed twice": (lambda: unlabel(unlabel(WHOLE, keep=8, at="server"), keep=2, at="server"), "already has the labels"),
    "too many wrong labels": (lambda: Mislabel(1.4), "fraction=1.4.*between 0 and 1"),
    "wrong labels as text": (lambda: Mislabel("0.4"), "fraction='0.4'"),
    "the other spelling of pairs": (lambda: Mislabel(0.4, kind="pair"), "kind='pair'. Did you mean 'pairs'"),
    "another word for the share": (lambda: Mislabel(rate=0.4), "rate=0.4: Mislabel has no setting"),
    "a list of corruptions": (lambda: corrupt(WHOLE, [Mislabel(0.4)]), r"map each corruption to a share.*1\.0"),
    "a domain that is not there": (lambda: adaptation(DOMAINS.with_test(DOMAINS), "c"), "no domain 'c'.*a, b"),
    "no column of domains": (lambda: adaptation(ROWS.with_test(ROWS), "a"), "no column 'domain'"),
    "nothing but targets": (lambda: adaptation(DOMAINS.with_test(DOMAINS), ["a", "b"]), "no source"),
    # views
    "one image, not images": (lambda: V.weak("image"), "kind='image'. Did you mean 'images'"),
    "no kind of rows": (lambda: V.strong(), "missing.*'kind'"),
    "degrees as text": (lambda: V.Affine(degrees="30"), "degrees='30'"),
    "degrees below zero": (lambda: V.Affine(degrees=-3), "degrees=-3"),
    "another library's word": (lambda: V.Affine(translate=0.1), "translate=0.1: Affine has no setting"),
    "a number for a range": (lambda: V.ColourJitter(1.5), r"brightness=1.5.*pair \(low, high\)"),
    "a view for a list": (lambda: V.Compose(V.Cutout(3)), r"links=Cutout.* is no list.*\[Flip\(\), Cutout\(\)\]"),
    "a name in a list of views": (lambda: V.Compose(["Cutout"]), "links has 'Cutout', which is no view"),
    "too strong": (lambda: V.RandAugment(magnitude=9), "magnitude=9"),
    "arrays for a view": (lambda: V.weak("images")(np.zeros((2, 1, 8, 8)), KEYS), "a ndarray.*torch.from_numpy"),
    "a number for keys": (lambda: V.weak("images")(PICTURES, 0), "keys that are a int.*row_keys"),
    "keys of other rows": (lambda: V.weak("images")(PICTURES[:1], KEYS), r"shape \(1, 1, 8, 8\).*shape \(2,\).*one key for each row"),
    "whole pixels": (lambda: V.weak("images")((255 * PICTURES).byte(), KEYS), r"uint8.*/ 255"),
    "a table for images": (lambda: V.weak("images")(torch.rand(2, 9), KEYS), r"shape \(B, 9\).*weak\('table'\)"),
    "a name for a view": (lambda: L.FixMatch(weak="images"), r"weak='images' is no view.*weak\('images'\)"),
    "a function for a view": (lambda: L.FedSimCLR(view=V.strong), r"view=.* is no view.*strong\('images'\)"),
    "a view of Relabel": (lambda: L.Relabel(view="table"), r"view='table' is no view.*strong\('table'\)"),
    # methods
    "percent for a probability": (lambda: L.SemiFL(tau=95), "tau=95.*0.95"),
    "another word for tau": (lambda: L.FixMatch(threshold=0.9), "threshold=0.9: FixMatch has no setting"),
    "a method inside by its own name": (lambda: L.FreeMatch(tau=-0.1), r"tau=-0.1 \(in FreeMatch"),
    "a weight that is no number": (lambda: L.FixMatch(weight=float("nan")), "weight=nan"),
    "labels at one client": (lambda: L.SemiFL(labels_at="client"), "labels_at='client'.*'clients'"),
    "a base by its name": (lambda: L.SemiFL(base="FedProx"), "base='FedProx'"),
    "no temperature": (lambda: L.FedSimCLR(temperature=0.0), "temperature=0.0.*above 0"),
    "contrast with nothing": (lambda: L.FedSimCLR(batch_size=1), "batch_size=1.*at least 2 rows"),
    "a guard around nothing": (lambda: L.Guard(base=atoll.FedAvg()), "FedAvg has no loss of its own"),
    "transitions that are none": (lambda: L.ForwardCorrection(transition=[[0.5, 0.5], [1.0, 0.5]]), "row 1 of transition"),
    "every row is sure": (lambda: pseudo_labels(torch.zeros(2, 4), 0.2, "SemiFL"), r"tau=0.2 with 4 classes.*\(in SemiFL"),
    "no public rows": (lambda: prepared(atoll.FedAvg(), topology=L.DSFL()), "with_public"),
    "a model without losses of its own": (lambda: prepared(L.FixMatch(), atoll.models.linear(64, 4)), "use a PyTorch module"),
    "a loss beside a method": (lambda: prepared(L.FixMatch(), loss="mse"), "leave out loss="),
    # networks
    "a name for an encoder": (lambda: L.Siamese("resnet", 64), "encoder='resnet' is no module"),
    "no number of features": (lambda: L.Siamese(nn.Flatten()), "missing.*'features'"),
    "another word for a setting of heads": (lambda: L.Siamese(nn.Flatten(), 64, dim=8), "dim=8: Siamese has no setting"),
    "a network without a classifier": (lambda: L.DomainNetwork(nn.Flatten()), "missing.*'classifier'"),
    "a judge by its name": (lambda: L.DomainNetwork(nn.Flatten(), nn.Linear(64, 4), discriminator="mlp"), "discriminator='mlp' is no module"),
    "a committee of one": (lambda: L.Committee(net()), r"give a list of models"),
    "weights above one": (lambda: L.Committee([net(), net()], [0.5, 0.6]), r"weights \[0.5, 0.6\].*sum 1"),
    "parameters for a trained model": (lambda: L.Pretrained({"w": 1}, lambda: nn.Linear(64, CLASSES)), "trained=dict has no encoder"),
    "a head that is a module": (lambda: L.Pretrained(L.Siamese(net(), 4), nn.Linear(4, 4)), "head=Linear makes no network"),
    "a share above one": (lambda: S.Trailing(keep=1.5), "keep=1.5"),
    "another word for a stream": (lambda: S.Frozen(prefix="encoder."), "prefix='encoder.': Frozen has no setting"),
    # evaluators
    "scores of unequal numbers of seeds": (lambda: E.paired_gain([0.1, 0.2], [0.1]), r"\(2,\) and \(1,\) seeds"),
    "another word for a level": (lambda: E.paired_gain([0.1, 0.2], [0.1, 0.2], alpha=0.05), "alpha=0.05: paired_gain has no setting"),
    "a threshold of two": (lambda: E.PseudoLabels(2), "tau=2"),
    "no neighbours": (lambda: E.NeighbourAccuracy(k=0), "k=0"),
    # names and files
    "a misspelt method": (lambda: L.SemiFl, r"SemiFl.*use atoll\.labels\.SemiFL"),
    "a method that lives elsewhere": (lambda: atoll.SemiFL, r"use atoll\.labels\.SemiFL"),
    "a misspelt method in a file": (lambda: written("{name: FixMach}"), "FixMach.*Did you mean 'FixMatch'"),
    "a misspelt setting in a file": (lambda: written("{name: FixMatch, threshold: 0.9}"), "threshold"),
    "a misspelt view in a file": (lambda: written("{name: FixMatch, weak: {name: Translat}}"), "Translat.*Did you mean 'Translate'"),
    "a kind that is none in a file": (lambda: written("{name: FixMatch, weak: {name: weak, kind: image}}"), "kind='image'.*Did you mean 'images'"),
    "percent in a file": (lambda: written("{name: SemiFL, tau: 95}"), "tau=95"),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_gives_value_place_and_remedy(name: str) -> None:
    make, text = MISTAKES[name]
    with torch.random.fork_rng(devices=[]), pytest.raises(AtollError, match=text) as caught:
        make()
    assert caught.value.where, "no place"
    assert caught.value.remedy, "no remedy"
