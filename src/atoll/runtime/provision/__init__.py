"""Provisioning: an authority, and one startup kit a party."""

from .kit import Kit, KitConfig
from .passphrase import find_passphrase
from .project import ProjectConfig, ServerConfig, load_project

__all__ = ["Kit", "KitConfig", "ProjectConfig", "ServerConfig", "find_passphrase", "load_project"]
