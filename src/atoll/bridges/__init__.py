"""Bridges: what was written for other frameworks runs unchanged on Atoll. Flower's apps, scripts of NVFlare's client API, MONAI's bundles."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .flower import FlowerApp, flower_program
    from .monai import MonaiBundle, monai_bundle
    from .nvflare import FlareApi
else:
    from atoll.core.lazy import lazy

    __getattr__, __dir__ = lazy(
        __name__,
        {
            "flower": ("FlowerApp", "flower_program"),
            "monai": ("MonaiBundle", "monai_bundle"),
            "nvflare": ("FlareApi",),
        },
    )

__all__ = ["FlareApi", "FlowerApp", "MonaiBundle", "flower_program", "monai_bundle"]
