"""What a job's process does: the program at the server, the tasks at a site; a site's data, and what a server must know of it."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .agreement import merge_cards
    from .cards import DataCard, card_of
    from .remote import RemoteIslands
    from .sitedata import SiteData, load_site_data
    from .words import site_spec
else:
    from atoll.core.lazy import lazy

    __getattr__, __dir__ = lazy(
        __name__,
        {
            "agreement": ("merge_cards",),
            "cards": ("DataCard", "card_of"),
            "remote": ("RemoteIslands",),
            "sitedata": ("SiteData", "load_site_data"),
            "words": ("site_spec",),
        },
    )

__all__ = ["DataCard", "RemoteIslands", "SiteData", "card_of", "load_site_data", "merge_cards", "site_spec"]
