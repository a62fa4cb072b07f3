"""Provisioning: an authority, and one startup kit for each party."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .kit import Kit, KitConfig
    from .make import Provisioned, provision
    from .passphrase import CA_VARIABLE, find_passphrase, new_passphrase
    from .project import ProjectConfig, ServerConfig, load_project
    from .revocations import Revocations
    from .sites import SiteList
else:
    from atoll.core.lazy import lazy

    __getattr__, __dir__ = lazy(
        __name__,
        {
            "kit": ("Kit", "KitConfig"),
            "make": ("Provisioned", "provision"),
            "passphrase": ("CA_VARIABLE", "find_passphrase", "new_passphrase"),
            "project": ("ProjectConfig", "ServerConfig", "load_project"),
            "revocations": ("Revocations",),
            "sites": ("SiteList",),
        },
    )

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
