from .fixed import FixedPoint as FixedPoint
from .layout import Decoded as Decoded
from .layout import Encoded as Encoded
from .layout import WordLayout as WordLayout
from .layout import form_of as form_of
from .slots import Slot as Slot
