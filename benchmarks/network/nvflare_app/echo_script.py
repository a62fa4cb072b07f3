"""The client with NVFlare's Client API, as its recipes run it: receive, add, send."""

from __future__ import annotations

import sys

import numpy as np
import nvflare.client as flare
from echo_parts import added


def main() -> None:
    """Answer every model received until the job ends."""
    clients = int(sys.argv[1])
    flare.init()
    client = int(flare.get_site_name().removeprefix("site-")) - 1
    plus = added(client, clients)
    while flare.is_running():
        received = flare.receive()
        if received is None:
            break
        flare.send(flare.FLModel(params={k: np.asarray(v) + plus for k, v in received.params.items()}))


if __name__ == "__main__":
    main()
