from .base import receive_seeds as receive_seeds
from .base import send_seeds as send_seeds
from .extension import CodeReceiver as CodeReceiver
from .extension import CodeSender as CodeSender
from .extension import PseudoRandomCode as PseudoRandomCode
from .extension import transpose_bits as transpose_bits
from .transfers import TransferReceiver as TransferReceiver
from .transfers import TransferSender as TransferSender
