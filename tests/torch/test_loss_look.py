"""The first look at a loss of the user's own: pairs of rows that nobody asked for, and parameters that nobody trains."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import atoll
from atoll.algorithms import FedAvg
from atoll.core.errors import CompositionError, DataError
from atoll.data import Dataset
from atoll.selection import Everyone
from atoll.torch.learner import seeded
from atoll.torch.shared_state import reaches

ROWS = 9
RNG = np.random.default_rng(3)
X = RNG.normal(size=(ROWS, 4)).astype(np.float32)
REAL = (np.abs(X.sum(1)) + 0.1).astype(np.float32)
CLASSES = np.arange(ROWS) % 3


def train(
    loss: Any, outputs: int = 1, y: Any = REAL, model: Any = None, **columns: Any
) -> tuple[Any, nn.Module, dict[str, torch.Tensor]]:
    """Take one step of a linear model; return the result, the model before it, and the columns."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        first = model or nn.Linear(4, outputs)
    data = {"x": X, "y": y, **columns}
    job = atoll.Training(
        model=first,
        loss=loss,
        algorithm=FedAvg(lr=0.01, epochs=1, batch_size=None),
        rounds=1,
        selection=Everyone(),
    )
    made = atoll.simulate(job, {"a": Dataset(data)}, engine="inline", progress=False)
    return made, first, {name: torch.tensor(value) for name, value in data.items()}


def pooled(values: torch.Tensor) -> torch.Tensor:
    """One value for all rows."""
    return values.mean()


PAIRS = {
    "gaussian of slices": (lambda o, t: F.gaussian_nll_loss(o[:, :1], t, o[:, 1:].exp()), 2),
    "gaussian of a slice and a column": (lambda o, t: F.gaussian_nll_loss(o[:, 0], t, o[:, 1:].exp()), 2),
    "pairwise distance": (F.pairwise_distance, 1),
    "dist": (torch.dist, 1),
    "broadcast_tensors": (lambda o, t: (lambda a, b: (a - b) ** 2)(*torch.broadcast_tensors(o, t)), 1),
    "expand targets": (lambda o, t: (o - t.expand(len(o), len(t))) ** 2, 1),
    "expand outputs": (lambda o, t: (o.expand(len(o), len(t)) - t) ** 2, 1),
    "unsqueeze(0)": (lambda o, t: ((t.unsqueeze(0) - o) ** 2).mean(), 1),
    "standardised": (lambda o, t: (((o - t.mean()) / t.std() - (t - t.mean()) / t.std()) ** 2).mean(), 1),
    "weights of rows": (lambda o, t: (1 + (t > 1).float()) * F.mse_loss(o, t.view_as(o), reduction="none"), 1),
    "weights of rows, mean": (lambda o, t: ((1 + (t > 1).float()) * (o - t.view_as(o)) ** 2).mean(), 1),
    "pinball by max": (lambda o, t: pooled(torch.max(0.9 * (t - o), -0.1 * (t - o))), 1),
    "squeezed too far": (lambda o, t: ((o.squeeze(1) - t[:, None]) ** 2).mean(), 1),
    "soft margin": (nn.SoftMarginLoss(), 1),
}


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.filterwarnings("ignore:Using a target size:UserWarning")
def test_rows_that_meet_every_other_by_broadcasting_are_refused(name: str) -> None:
    loss, outputs = PAIRS[name]
    with pytest.raises(DataError, match=r"of shape \(n, ?\w*\) and targets? ?.*give both one shape"):
        train(loss, outputs)


def focal(output: Any, target: Any) -> Any:
    kept = 1 - output.softmax(1).gather(1, target[:, None])
    return (kept**2 * F.cross_entropy(output, target, reduction="none")).mean()


def test_a_factor_of_each_row_that_gather_makes_a_column_is_refused() -> None:
    with pytest.raises(DataError, match=r"errors of shape \(n, 1\) and errors of shape \(n,\)"):
        train(focal, 3, CLASSES)


def weighted(output: Any, target: Any, *, w: Any) -> Any:
    return (w * (output - target.view_as(output)) ** 2).mean()


def test_a_column_of_weights_that_meets_a_column_of_errors_is_refused() -> None:
    with pytest.raises(DataError, match=r"errors of shape \(n, 1\) and targets of shape \(n,\)"):
        train(weighted, 1, w=np.ones(ROWS, np.float32))


def supervised_contrast(output: Any, target: Any) -> Any:  # Khosla et al. 2020
    z = F.normalize(output, dim=1)
    own = torch.eye(len(target), dtype=torch.bool)
    likeness = (z @ z.T / 0.5).masked_fill(own, -1e9)
    same = (target[:, None] == target[None, :]) & ~own
    logs = likeness - likeness.logsumexp(1, keepdim=True)
    return -(logs * same).sum(1) / same.sum(1).clamp(min=1)


def ranking(output: Any, target: Any) -> Any:
    apart = target[:, None] - target[None, :]
    return F.softplus(-torch.sign(apart) * (output - output.T)).mean()


def cox(output: Any, target: Any) -> Any:  # partial likelihood without censoring
    risk = output.squeeze(1)
    later = target[None, :] >= target[:, None]
    return torch.logsumexp(risk.masked_fill(~later, -torch.inf), 1) - risk


def balanced(output: Any, target: Any) -> Any:  # a score beside class counts: (n, 1) and (C,)
    counts = torch.bincount(target, minlength=output.shape[1]).clamp(min=1)
    logs = output - torch.logsumexp(output, 1, keepdim=True) + counts.log()
    return F.cross_entropy(logs, target)


def errors_in_order(output: Any, target: Any) -> Any:
    error = (output.squeeze(1) - target) ** 2
    return F.relu(error[:, None] - error[None, :]).mean() + error.mean()


def distances(output: Any, target: Any) -> Any:
    return (torch.cdist(output, output) - torch.cdist(target[:, None], target[:, None])).pow(2).mean()


LEGAL = {
    "supervised contrast": (supervised_contrast, 3, CLASSES),
    "ranking": (ranking, 1, REAL),
    "cox": (cox, 1, REAL),
    "class counts of 3": (balanced, 3, CLASSES),
    "class counts of 5": (balanced, 5, CLASSES),
    "errors in order": (errors_in_order, 1, REAL),
    "distances": (distances, 1, REAL),
    "far from zero": (lambda o, t: (o.squeeze(1) - t - 1000).abs(), 1, REAL),
    "one class weight": (lambda o, t: torch.where(t == 0, 2.0, 1.0) * F.cross_entropy(o, t, reduction="none"), 3, CLASSES),
    "gaussian": (lambda o, t: F.gaussian_nll_loss(o[:, 0], t, o[:, 1].exp()), 2, REAL),
    "no targets": (lambda o, t: o.pow(2).mean(), 2, REAL),
    "probabilities": (lambda o, t: F.binary_cross_entropy(o.squeeze(1).sigmoid(), (t > 1).float()), 1, REAL),
}  # fmt: skip


@pytest.mark.parametrize("name", LEGAL)
def test_losses_that_pair_rows_on_purpose_are_plain_pytorch(name: str) -> None:
    loss, outputs, y = LEGAL[name]
    made, first, columns = train(loss, outputs, y)
    values = loss(first(columns["x"]), columns["y"])
    values.mean().backward()
    with torch.no_grad():  # plain PyTorch: the oracle
        expected = first.weight - 0.01 * first.weight.grad
    np.testing.assert_allclose(made.params["weight"], expected.numpy(), atol=1e-6)
    assert not [notice for notice in made.notices if "The loss" in notice]


@pytest.mark.parametrize("name", ["l1", "mse", "hinge"])
def test_a_model_that_begins_with_zeros_and_far_targets_is_no_pairing(name: str) -> None:
    model = nn.utils.skip_init(nn.Linear, 4, 1)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    own = {
        "l1": lambda o, t: (o[:, 0] - t).abs().mean(),
        "mse": lambda o, t: F.mse_loss(o[:, 0], t),
        "hinge": lambda o, t: F.relu(1 - o[:, 0] * torch.sign(t - 50)).mean(),
    }[name]
    made, *_ = train(own, model=model, y=REAL + 49)
    assert not [notice for notice in made.notices if "The loss" in notice]


@pytest.mark.parametrize(
    "loss",
    [
        lambda o, t: (o.mean() - t.mean()) ** 2,  # proportions
        lambda o, t: (o.squeeze(1).sort().values - t.sort().values).abs().mean(),  # Wasserstein
        lambda o, t: ((o.squeeze(1)[:, None] - t[None, :]) ** 2).mean(),  # what the remedy tells to write
        lambda o, t: torch.cdist(o, t[:, None]).mean(),
    ],
)
def test_a_loss_that_no_order_of_targets_changes_trains_and_is_named(loss: Any) -> None:
    made, *_ = train(loss)
    assert [notice for notice in made.notices if "is the same whichever row a target belongs to" in notice]


def test_a_loss_whose_shapes_fit_one_number_of_rows_is_refused() -> None:
    with pytest.raises(DataError, match=r"raises RuntimeError on 32 rows: .*must match"):
        train(lambda o, t: ((o - t) ** 2).mean(1), ROWS)  # (9, 9) and (9,)


@pytest.mark.parametrize("loss", [nn.BCELoss(), nn.BCEWithLogitsLoss(), F.binary_cross_entropy])
def test_a_loss_that_takes_no_whole_numbers_says_how_to_give_it_fractions(loss: Any) -> None:
    model = seeded(lambda: nn.Sequential(nn.Linear(4, 1), nn.Sigmoid(), nn.Flatten(0)), 0)
    with pytest.raises(DataError, match=r"cannot take targets of this type: .*target\.float\(\)"):
        train(loss, 1, CLASSES % 2, model)


def test_a_loss_without_a_gradient_is_refused() -> None:
    for loss in (lambda o, t: F.cross_entropy(o, t).detach(), lambda o, t: (o.argmax(1) != t).float()):
        with pytest.raises(DataError, match=r"has no gradient by the model's parameters.*detach\(\)"):
            train(loss, 3, CLASSES)

    def seldom(o: Any, t: Any) -> Any:
        return F.cross_entropy(o, t) if len(o) > 5 else torch.zeros(())

    made, first, columns = train(seldom, 3, CLASSES)
    F.cross_entropy(first(columns["x"]), columns["y"]).backward()
    expected = first.weight.detach() - 0.01 * first.weight.grad
    np.testing.assert_allclose(made.params["weight"], expected.numpy(), atol=1e-6)


def test_a_loss_that_needs_more_rows_than_the_first_look_has_is_a_mean_of_its_rows() -> None:
    def tops(output: Any, target: Any) -> Any:
        error = (output.squeeze(1) - target) ** 2
        return error + error.topk(4).values.mean()

    made, first, columns = train(tops)
    tops(first(columns["x"]), columns["y"]).mean().backward()
    expected = first.weight.detach() - 0.01 * first.weight.grad
    np.testing.assert_allclose(made.params["weight"], expected.numpy(), atol=1e-6)


class Scaled(nn.Module):
    """Has a temperature of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))

    def forward(self, output: Any, target: Any) -> Any:
        """Return the cross-entropy of scaled scores."""
        return F.cross_entropy(output * self.scale, target)


def test_parameters_of_a_loss_are_named_since_training_leaves_them() -> None:
    with torch.random.fork_rng(devices=[]):
        loss, outside, frozen = Scaled(), nn.Linear(4, 3), Scaled().requires_grad_(False)

    def penalised(output: Any, target: Any) -> Any:  # the user's model, and not the copy that is trained
        return F.cross_entropy(output, target) + outside.weight.pow(2).sum()

    for given, named in ((loss, "as they are: scale."), (penalised, "as they are: one of shape (3, 4)."), (frozen, "")):
        made, *_ = train(given, 3, CLASSES)
        said = [n for n in made.notices if "uses trainable parameters that are not the model's" in n]
        assert bool(said) == bool(named)
        assert all(named in sentence for sentence in said)
    assert torch.equal(loss.scale, torch.ones(3))


def test_a_loss_with_labels_first_by_its_names_gets_them_first() -> None:
    def pinball(y_true: Any, y_pred: Any) -> Any:  # swapped, it trains the quantile .1
        error = y_true - y_pred.squeeze(1)
        return torch.maximum(0.9 * error, -0.1 * error)

    made, first, columns = train(pinball)
    pinball(columns["y"], first(columns["x"])).mean().backward()
    expected = first.weight.detach() - 0.01 * first.weight.grad
    np.testing.assert_allclose(made.params["weight"], expected.numpy(), atol=1e-6)


class Coded(nn.Module):
    """Keeps a penalty of its codes in an attribute, or returns it beside the outputs while it trains."""

    def __init__(self, *, beside: bool) -> None:
        super().__init__()
        self.code, self.last, self.beside, self.penalty = nn.Linear(4, 5), nn.Linear(5, 3), beside, 0.0

    def forward(self, x: Any) -> Any:
        """Return the outputs."""
        codes = torch.tanh(self.code(x))
        penalty = codes.pow(2).mean() + self.last.weight.pow(2).sum()
        if self.beside:
            return (self.last(codes), penalty) if self.training else self.last(codes)
        self.penalty = penalty
        return self.last(codes)


def of_codes(model: Any, x: Any, target: Any) -> Any:
    output, penalty = model(x)
    return F.cross_entropy(output, target) + penalty


@pytest.mark.parametrize("way", ["a closure", "a default", "an attribute", "a method"])
def test_a_loss_that_reads_the_given_model_is_named_and_its_remedy_is_plain_pytorch(way: str) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model, free = Coded(beside=False), Coded(beside=True)
    free.load_state_dict(model.state_dict())

    class Holder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.held = [model]

        def forward(self, output: Any, target: Any) -> Any:
            return F.cross_entropy(output, target) + self.held[0].penalty

        def decay(self, output: Any, target: Any) -> Any:
            return F.cross_entropy(output, target) + self.held[0].last.weight.pow(2).sum()

    def penalised(output: Any, target: Any) -> Any:
        return F.cross_entropy(output, target) + model.penalty

    def defaulted(output: Any, target: Any, last: Any = model.last) -> Any:
        return F.cross_entropy(output, target) + last.weight.pow(2).sum()

    loss = {"a closure": penalised, "a default": defaulted, "an attribute": Holder(), "a method": Holder().decay}[way]
    if way in ("a default", "a method"):
        with pytest.raises(CompositionError, match=r"reads the model object.*would be lost.*write loss\(model, x, tar"):
            train(loss, y=CLASSES, model=model)
    else:
        made, *_ = train(loss, y=CLASSES, model=model)
        assert any("reads the model object that was given" in n and "first values" in n for n in made.notices)
    made, first, data = train(of_codes, y=CLASSES, model=free)
    assert not any("reads the model object" in n for n in made.notices)
    of_codes(first.train(), data["x"], data["y"]).backward()
    for name, value in first.named_parameters():
        np.testing.assert_allclose(made.params[name], (value - 0.01 * value.grad).detach(), atol=1e-6)


last = seeded(lambda: nn.Linear(1, 1), 0)  # what a script may have


def of_an_attribute(output: Any, target: Any) -> Any:
    return F.cross_entropy(output, target) if target.dim() else output.last


def of_a_global(output: Any, target: Any) -> Any:
    return F.cross_entropy(output, target) + last.bias.sum()


def test_a_name_that_is_no_global_of_a_loss_is_no_reading_of_the_model() -> None:
    assert not reaches(of_an_attribute, [last])
    assert not reaches(of_a_global, [nn.Identity()])
    assert reaches(of_a_global, [last])
