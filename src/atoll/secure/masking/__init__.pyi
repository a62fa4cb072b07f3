from .agreement import Agreement as Agreement
from .degree import MaskingPlan as MaskingPlan
from .degree import plan as plan
from .one_shot import OneShot as OneShot
from .reducer import SecureAggregation as SecureAggregation
