"""What a job's process does: the program at the server, the tasks at a site; a site's data and what a server must know of them."""

from .agreement import merge_cards
from .cards import Card, card_of
from .remote import RemoteIslands
from .sitedata import SiteData, load_site_data
from .words import site_spec

__all__ = ["Card", "RemoteIslands", "SiteData", "card_of", "load_site_data", "merge_cards", "site_spec"]
