from .keys import RowKeys as RowKeys
from .keys import normalise_key as normalise_key
from .keys import order_keys as order_keys
