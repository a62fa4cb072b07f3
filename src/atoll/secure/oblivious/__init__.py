"""Oblivious transfer: a party takes one of another's two values, which learns neither the choice nor, at the chooser, the other value leaks.

128 transfers with public keys (`send_seeds`, `receive_seeds`) are stretched to millions with AES alone (`TransferSender`, `TransferReceiver`). A longer code in
place of the two choices gives each row a pseudo-random function of its own (`CodeSender`, `CodeReceiver`), from which private set intersection is made.

All of it is secure against parties that follow the protocol and try to learn more from what they see (*semi-honest*). A party that departs from it may learn choices
or values: nothing here proves that corrections are consistent. Frames that are not what the protocol expects are refused, with the name of the party.
"""

from atoll.core.lazy import attach_names

__getattr__, __dir__, __all__ = attach_names(__name__)
