"""Methods of `atoll.labels` and their views in configurations: by name, with settings, and with errors that say where."""

from __future__ import annotations

from typing import Any

import pytest

import atoll
from atoll.core.errors import ConfigError
from atoll.labels import FixMatch, SemiFL
from atoll.runs import parse_config, registry, to_job, yaml
from atoll.runtime.job_spec import described
from atoll.views import Compose, Cutout, Flip, MaskFeatures, SwapFeatures, Translate, View, strong, weak


def job(settings: dict[str, Any], algorithm: Any) -> Any:
    return to_job(parse_config({**settings, "algorithm": algorithm}))[0]


def test_views_are_parts_with_settings(settings: dict[str, Any]) -> None:
    said = {
        "name": "SemiFL", "tau": 0.9, "weak": "Flip",
        "strong": {"name": "Compose", "links": [{"name": "Translate", "by": 2}, {"name": "Cutout", "size": 0.25}]},
    }  # fmt: skip
    made = job(settings, said).algorithm
    assert made == SemiFL(tau=0.9, weak=Flip(), strong=Compose([Translate(2), Cutout(0.25)]))
    assert isinstance(made.strong.links[0].by, int), "2 pixels, not twice the side"


def test_the_views_of_a_kind_and_none_and_those_of_python_by_default(settings: dict[str, Any]) -> None:
    made = job(settings, {"name": "FixMatch", "weak": None, "strong": {"name": "strong", "kind": "photos"}}).algorithm
    assert made == FixMatch(weak=None, strong=strong("photos"))
    assert job(settings, "FixMatch").algorithm == FixMatch()
    assert job(
        settings, {"name": "atoll.labels:FixMatch", "weak": {"name": "weak", "kind": "text"}}
    ).algorithm.weak == weak("text")


def test_a_round_trip_through_yaml_and_through_python_changes_nothing(settings: dict[str, Any]) -> None:
    said = {
        "name": "fix_match",
        "strong": {"name": "Compose", "links": ["Flip", {"name": "RandAugment", "operations": 3}]},
    }
    made = parse_config({**settings, "algorithm": said})
    again = parse_config(yaml.parse(made.to_yaml(), "again"))
    assert again == made
    assert again.digest() == made.digest()
    training = to_job(made)[0]
    plain = described(training, model=settings["model"])["algorithm"]
    assert plain["strong"] == {"name": "Compose", "links": [{"name": "Flip"}, {"name": "RandAugment", "operations": 3}]}
    assert job(settings, plain).algorithm == training.algorithm


@pytest.mark.parametrize(
    ("algorithm", "said", "remedy"),
    [
        ({"name": "SemiFL", "weak": "Flpi"}, r"algorithm\.weak\.name='Flpi' is not a known view\. Did you mean 'Flip'\?", "use one of Affine"),
        ({"name": "SemiFL", "weak": {"name": "Flip", "p": 2.0}}, r"algorithm\.weak\.p=2\.0", "use a number from 0 to 1"),
        ({"name": "SemiFL", "weak": {"name": "Flip", "q": 1}}, r"algorithm\.weak\.q=1 is not a setting", "p, vertical"),
        ({"name": "SemiFL", "weak": {"name": "weak", "kind": "photo"}}, r"algorithm\.weak\.kind='photo'\. Did you mean 'photos'\?", "use one of images"),
        (
            {"name": "FixMatch", "strong": {"name": "Compose", "links": ["Flip", {"name": "Cutout", "size": 2.5}]}},
            r"algorithm\.strong\.links\[1\]\.size=2\.5", "use pixels",
        ),
        ({"name": "FixMatch", "strong": {"name": "Compose", "links": ["Flip", "MaskFeatures"]}}, r"links are of images and of table", "views of one kind"),
        ({"name": "FixMatch", "strong": 3}, "algorithm.strong names no view", "write it as"),
        ("SemFL", r"algorithm\.name='SemFL' is not a known algorithm", "or your own as module:name"),
    ],
)  # fmt: skip
def test_a_wrong_view_is_named_with_place_and_remedy(
    settings: dict[str, Any], algorithm: Any, said: str, remedy: str
) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        parse_config({**settings, "algorithm": algorithm}, "mine.yaml")
    assert caught.value.where == "mine.yaml"
    assert remedy in str(caught.value.remedy)


def test_every_view_is_a_part_and_can_be_described() -> None:
    from atoll import views

    known = registry("view").parts()
    assert {name for name in views.__all__ if isinstance(getattr(views, name), type) and issubclass(getattr(views, name), View)} - set(known) <= {
        "View", "ImageView", "SeriesView", "TableView", "TextView",
    }  # fmt: skip
    assert {"weak", "strong", "Compose", "Invert"} <= set(known)
    assert {"View", "ImageView", "OwnRows", "row_keys"}.isdisjoint(known)


def test_a_configuration_trains_as_python_does(settings: dict[str, Any]) -> None:
    views = {"weak": {"name": "MaskFeatures", "p": 0.1}, "strong": {"name": "SwapFeatures", "share": 0.5}}
    said = {"name": "FixMatch", "lr": 0.1, "steps": 2, "batch_size": 8, "tau": 0.5, **views}
    config = parse_config({**settings, "model": "tests.support.parts_of_mine:layers", "rounds": 1, "algorithm": said})
    written, islands = to_job(config)
    python = atoll.Training(
        model=written.model, rounds=1, selection=written.selection,
        algorithm=FixMatch(lr=0.1, steps=2, batch_size=8, tau=0.5, weak=MaskFeatures(0.1), strong=SwapFeatures(0.5)),
    )  # fmt: skip
    one, two = (atoll.simulate(made, islands, engine="inline", seed=1).params for made in (written, python))
    assert all((one[name] == two[name]).all() for name in one)
