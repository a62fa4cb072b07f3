"""The README of a kit: who it is for, and the one command that starts it."""

from __future__ import annotations

from .kit import KitConfig

__all__ = ["readme"]

_COMMAND = {
    "server": "atoll server {folder}",
    "site": "atoll site {folder} --data FOLDER",
    "helper": "atoll site {folder}",
    "admin": "atoll submit job.yaml --kit {folder}",
    "auditor": "atoll jobs --kit {folder}",
}
_DOES = {
    "server": "It waits for sites and admins on port {port}; no other port is opened.",
    "site": "It dials out to the server and opens no port. FOLDER holds the data, which does not leave this machine.",
    "helper": "It dials out to the server and opens no port. It plays {plays} in jobs that need one, and holds no data of clients.",
    "admin": "It dials out to the server. Jobs that you submit run at the sites that agree to them.",
    "auditor": "It dials out to the server. You see jobs, logs and results, and can change nothing.",
}


def readme(config: KitConfig, until: str) -> bytes:
    """Return the text of ``README.txt``.

    Args:
        config: the kit's settings.
        until: the certificate's last day.
    """
    where = ", ".join(f"{host}:{server.port}" for server in config.servers for host in server.hosts)
    lines = [
        f"Startup kit of {config.plays or config.role} {config.name} ({config.org}) for project {config.project}",
        "",
        f'Install:   pip install "atoll[{"net" if config.transport == "tcp" else "net,grpc"}]"',
        f"Check:     atoll doctor {config.name}",
        f"Start:     {_COMMAND[config.role].format(folder=config.name)}",
        "",
        _DOES[config.role].format(port=config.servers[0].port, plays=f"the {config.plays}"),
        f"Server:    {where}",
        f"Valid to:  {until}",
        "",
        "key.pem proves that you are who this kit says. Do not copy, mail or share it; keep it readable by you alone (chmod 600 key.pem).",
        "If it may have been seen, tell the project's provisioner, who revokes this kit and makes you a new one.",
    ]
    return "\n".join([*lines, ""]).encode()
