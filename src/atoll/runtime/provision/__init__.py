"""Provisioning: an authority, and one startup kit a party."""

from .kit import Kit, KitConfig
from .make import Provisioned, provision
from .passphrase import CA_VARIABLE, find_passphrase, new_passphrase
from .project import ProjectConfig, ServerConfig, load_project
from .revocations import Revocations
from .sites import SiteList

__all__ = [
    "CA_VARIABLE",
    "Kit",
    "KitConfig",
    "ProjectConfig",
    "Provisioned",
    "Revocations",
    "ServerConfig",
    "SiteList",
    "find_passphrase",
    "load_project",
    "new_passphrase",
    "provision",
]
