from .flower import FlowerApp as FlowerApp
from .flower import flower_program as flower_program
from .monai import MonaiBundle as MonaiBundle
from .monai import monai_bundle as monai_bundle
from .nvflare import FlareApi as FlareApi
