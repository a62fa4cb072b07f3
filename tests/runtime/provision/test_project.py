"""project.yaml: what is wrong is named with its path, its value and the nearest key."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from atoll.core.errors import ConfigError
from atoll.runtime.provision import ProjectConfig

Load = Callable[[dict[str, Any]], ProjectConfig]

SERVER = {"name": "server", "hosts": ["localhost"]}
WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "unknown key": ({"server": []}, r"server=\[\] is not a setting. Did you mean 'servers'\?"),
    "unknown key inside": (
        {"servers": [{**SERVER, "prot": 1}]},
        r"servers\[0\].prot=1 is not a setting. Did you mean 'port'\?",
    ),
    "no server": ({"servers": []}, r"servers=\[\] "),
    "no host": ({"servers": [{"name": "server"}]}, r"servers\[0\].hosts is missing"),
    "wrong host": ({"servers": [{**SERVER, "hosts": ["fl hospital"]}]}, r"hosts\[0\]='fl hospital' is not a host name"),
    "wrong port": ({"servers": [{**SERVER, "port": 70000}]}, r"servers\[0\].port=70000"),
    "path as name": ({"sites": [{"name": "../x", "org": "N"}]}, r"sites\[0\].name='../x' is not a name"),
    "the authority's folder": ({"sites": [{"name": "CA", "org": "N"}]}, r"sites\[0\].name='CA' is not a name"),
    "a slash in the project": ({"project": "a/b"}, r"project='a/b' is not a name"),
    "twice": (
        {"sites": [{"name": "Server", "org": "N"}]},
        r"sites\[0\].name='Server' is already the name at servers\[0\].name",
    ),
    "unknown role": ({"admins": [{"name": "a", "org": "N", "role": "root"}]}, r"admins\[0\].role='root'"),
    "unknown transport": ({"transport": "udp"}, "transport='udp'"),
    "kits outlive the authority": ({"validity": {"kits": 400, "ca": 300}}, "validity.kits=400 is longer than"),
    "number as text": ({"validity": {"kits": "400"}}, "validity.kits='400'"),
    "one organisation as server and key holder": (
        {
            "servers": [{**SERVER, "org": "University"}],
            "helpers": {"keys": {"role": "key holder", "org": "University"}},
        },
        r"helpers.keys.org='University' also runs the server 'server', and would see what a key holder keeps from it",
    ),
    "one organisation as second server too": (
        {
            "servers": [{**SERVER, "org": "University"}],
            "helpers": {"other": {"role": "second-server", "org": "University"}},
        },
        r"helpers.other.org='University' also runs the server 'server', and would see what a second-server keeps from it",
    ),
    "one organisation as both index servers": (
        {
            "helpers": {
                "first": {"role": "index server", "org": "Lab"},
                "second": {"role": "index server", "org": "Lab"},
            }
        },
        r"helpers.second.org='Lab' also plays the index server 'first', and would see what each keeps from the other",
    ),
    "line break in an organisation": (
        {"sites": [{"name": "n", "org": "a\nb"}]},
        r"sites\[0\].org='a\\nb' is not an org",
    ),
}


@pytest.mark.parametrize(("change", "said"), WRONG.values(), ids=WRONG)
def test_what_is_wrong_is_named(tree: dict[str, Any], loaded: Load, change: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said) as refused:
        loaded({**tree, **change})
    assert refused.value.where
    assert refused.value.where.endswith("project.yaml")
    assert refused.value.remedy


def test_everything_wrong_is_told_at_once(tree: dict[str, Any], loaded: Load) -> None:
    with pytest.raises(ConfigError, match=r"(?s)transport='udp'.*servers\[0\]\.port=0|servers\[0\]\.port=0.*transport"):
        loaded({**tree, "transport": "udp", "servers": [{**SERVER, "port": 0}]})


def test_a_list_is_no_project(loaded: Load) -> None:
    with pytest.raises(ConfigError, match="expected a mapping here, not list"):
        loaded([])  # type: ignore[arg-type]


def test_addresses_are_written_in_one_way(tree: dict[str, Any], loaded: Load) -> None:
    tree["servers"][0]["hosts"] = ["0:0::1", "fl.example"]
    assert loaded(tree).servers[0].hosts == ["::1", "fl.example"]


def test_the_defaults(loaded: Load) -> None:
    found = loaded({"project": "p", "servers": [SERVER]})
    assert (found.transport, found.servers[0].port, found.validity.kits, found.validity.ca) == ("tcp", 8443, 365, 3650)
    assert found.parties() == {"server": ("server", "server")}
