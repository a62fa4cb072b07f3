from .silo import Silo as Silo
