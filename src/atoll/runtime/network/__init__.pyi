from .engine import Network as Network
from .site_engine import SiteEngine as SiteEngine
