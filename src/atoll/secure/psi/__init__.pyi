from .ecdh import Ecdh as Ecdh
from .keys import RowKeys as RowKeys
from .keys import normalise_key as normalise_key
from .keys import order_keys as order_keys
from .protocol import AlignmentPlan as AlignmentPlan
from .protocol import AlignmentSide as AlignmentSide
from .protocol import Matches as Matches
from .protocol import PsiProtocol as PsiProtocol
