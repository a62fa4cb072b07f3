"""Settings that no method can work with are refused where they are made, with what to use instead."""

from math import inf, nan

import pytest

from atoll import algorithms as A
from atoll.core.errors import AtollError
from atoll.learn.transforms import Momentum
from atoll.privacy import Budget
from atoll.stages import DGC, QSGD, MinMaxAffine, TopK


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: A.FedAvg(epochs=1.5), r"epochs=1\.5"),
        (lambda: A.FedAvg(steps=2.0), r"steps=2\.0"),
        (lambda: A.FedAvg(batch_size=2.5), r"batch_size=2\.5"),
        (lambda: A.FedAvg(decay=inf), "decay=inf"),
        (lambda: A.FedProx(server_lr=nan), r"server_lr=nan.*in FedProx"),
        (lambda: A.FedDyn(alpha=inf), "alpha=inf"),
        (lambda: A.FedNova(momentum=1.0), r"momentum=1\.0"),
        (lambda: A.FedNova(momentum=nan), "momentum=nan"),
        (lambda: A.PFedMe(beta=inf), "beta=inf"),
        (lambda: A.IFCA(base=A.FedAvg(), spread=inf), "spread=inf"),
        (lambda: A.IFCA(base=A.VRLSGD(steps=2)), "VRLSGD balances its corrections"),
        (lambda: A.IFCA(base=A.FedADMM()), "FedADMM balances its corrections"),
        (lambda: A.Walkman(rho=inf), "rho=inf"),
        (lambda: A.CEADMM(bound=inf), "bound=inf"),
        (lambda: A.LFedADMM(weight=inf), "weight=inf"),
        (lambda: A.ADIANA(mu=20.0, smoothness=10.0), r"mu=20\.0 above smoothness=10\.0"),
        (lambda: A.DeepGradientCompression(momentum=1.0), r"momentum=1\.0"),
        (lambda: A.SketchedSGD(momentum=-0.1), r"momentum=-0\.1"),
        (lambda: A.FedPAQ(compressor=QSGD(0)), "levels=0"),
        (lambda: QSGD(1.5), r"levels=1\.5"),
        (lambda: TopK(nan), "fraction=nan"),
        (lambda: DGC(clip=nan), "clip=nan"),
        (lambda: MinMaxAffine(1), "bits_each=1"),
        (lambda: Momentum(nan), "beta=nan"),
        (lambda: A.OutputPerturbation(base=A.FedAvg(), tau=1.0, sigma=0.0), r"sigma=0\.0"),
        (lambda: A.OutputPerturbation(base=A.FedAvg(), tau=1.0, sigma=1.0, sensitivity=nan), "sensitivity=nan"),
        (lambda: A.ObjectivePerturbation(base=A.FedAvg(), alpha=1.0), "FedAvg has no quadratic term"),
        (lambda: A.ObjectivePerturbation(base=A.Scaffold(), alpha=1.0), "Scaffold"),
        (lambda: Budget(nan), "epsilon=nan"),
    ],
)
def test_it_is_refused_with_a_remedy(make, said):
    with pytest.raises(AtollError, match=said) as caught:
        make()
    assert caught.value.remedy
