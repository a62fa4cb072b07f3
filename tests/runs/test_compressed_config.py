"""Compressors in configurations: around each other, inside methods, and on the way down."""

from __future__ import annotations

import pytest

from atoll.algorithms import DIANA
from atoll.core.errors import ConfigError
from atoll.runs.config import RunConfig, parse_config, validated
from atoll.stages import QSGD, ErrorFeedback, RandomK, Sign, TopK

BASE = {"data": {"source": "digits"}, "model": {"name": "linear", "features": 64, "outputs": 10}}


def test_stages_stand_inside_stages_and_methods():
    config = validated(
        RunConfig,
        {
            **BASE,
            "algorithm": {"name": "DIANA", "compressor": {"name": "RandomK", "fraction": 0.2}},
            "uplink": [{"name": "ErrorFeedback", "stage": {"name": "TopK", "fraction": 0.1}}],
            "downlink": "Sign",
        },
        "c.yaml",
    )
    assert config.algorithm.build("algorithm") == DIANA(compressor=RandomK(0.2))
    assert config.uplink[0].build("uplink[0]") == ErrorFeedback(TopK(0.1))
    assert config.downlink is not None
    assert config.downlink.build("downlink") == Sign()
    again = validated(RunConfig, config.plain(), "c.yaml")
    assert again.plain() == config.plain()


@pytest.mark.parametrize("per", ["model", 512])
def test_a_scale_belongs_to_a_tensor_a_model_or_a_bucket(per):
    config = parse_config({**BASE, "uplink": [{"name": "QSGD", "levels": 7, "per": per}]})
    assert config.uplink[0].build("uplink[0]") == QSGD(7, per)


def test_settings_without_sense_are_refused_when_the_file_is_read():
    with pytest.raises(ConfigError, match=r"uplink\[0\]\.levels=0"):
        parse_config({**BASE, "uplink": [{"name": "QSGD", "levels": 0}]})
