from .reducer import MultiRound as MultiRound
