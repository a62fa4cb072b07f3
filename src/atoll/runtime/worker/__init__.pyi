from .cards import DataCard as DataCard
from .cards import RemoteIslands as RemoteIslands
from .cards import card_of as card_of
from .cards import merge_cards as merge_cards
from .sitedata import SiteData as SiteData
from .sitedata import load_site_data as load_site_data
from .words import site_spec as site_spec
