"""The thesis's printed values, cell by cell, and its statements; with figures from its author's own sheets where it shows only drawings.

Tables 3.4 to 3.9: mean round lengths and distribution times. Tables A.1 to A.6: best accuracies of the global model, synchronisation ratios and futility.
Repaired: line 4061 prints "1.00/00.05" at C = 1.0. An outlier as printed: 0.9321 in line 4040, where the author's own sheet has 0.9732.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .tasks import FRACTIONS

__all__ = [
    "BOSTON_ACCURACY",
    "BOSTON_DISTRIBUTION",
    "BOSTON_LENGTHS",
    "BOSTON_RATIOS",
    "KDD_ACCURACY",
    "KDD_DISTRIBUTION",
    "KDD_LENGTHS",
    "KDD_RATIOS",
    "LOSSES",
    "MNIST_ACCURACY",
    "MNIST_DISTRIBUTION",
    "MNIST_LENGTHS",
    "MNIST_RATIOS",
    "PaperTable",
    "STATEMENTS",
    "STUDY",
    "Statement",
    "TABLES",
]


# ------------------------------------------------------------------ tables as printed

# A row: algorithm, cr, line of the thesis, then the cells for C = 0.1, 0.3, 0.5, 0.7 and 1.0.
BOSTON_LENGTHS = """
    FedAvg      0.1 2134    316.22   489.37   586.90   731.12   808.59
    FedAvg      0.3 2135    429.63   652.39   641.40   736.53   832.02
    FedAvg      0.5 2136    372.43   495.37   475.14   621.91   676.41
    FedAvg      0.7 2137    354.34   405.86   593.10   728.25   661.67
    FedCS       0.1 2140    207.50   487.47   564.20   656.49   786.96
    FedCS       0.3 2141    336.97   519.58   651.23   401.95   832.02
    FedCS       0.5 2142    186.51   221.46   467.98   621.91   676.41
    FedCS       0.7 2143    195.09   398.81   584.68   393.09   661.67
    SAFA        0.1 2146    149.69   389.44   540.41   606.48   734.40
    SAFA        0.3 2147    202.44   430.68   583.22   371.77   699.23
    SAFA        0.5 2148    169.33   215.66   408.85   510.85   508.23
    SAFA        0.7 2149    161.81   293.09   402.18   411.06   379.29
"""
"""Table 3.4: round length of task 1, s."""
MNIST_LENGTHS = """
    FedAvg      0.1 2186   3402.55  5557.25  5610.20  5614.28  5620.40
    FedAvg      0.3 2187   5410.97  5606.12  5610.20  5614.28  5620.40
    FedAvg      0.5 2188   5602.04  5606.12  5610.20  5614.28  5620.40
    FedAvg      0.7 2189   5602.04  5606.12  5610.20  5614.28  5620.40
    FedCS       0.1 2192   1487.96  2133.02  3668.70  1871.65  1982.91
    FedCS       0.3 2193   1261.59  1542.61  3132.86  2349.46  5395.54
    FedCS       0.5 2194   1273.37  1642.59  3025.75  2876.63  3162.02
    FedCS       0.7 2195   1253.74  1969.28  2180.46  4344.88  2530.01
    SAFA        0.1 2198    198.28   315.33  3703.81  1708.93  1947.90
    SAFA        0.3 2199    206.88   368.01  2691.25  1899.23  2149.23
    SAFA        0.5 2200    203.48   800.64  2573.60  2727.25  2186.67
    SAFA        0.7 2201    241.86  1893.14  1877.30  2619.79  2340.80
"""
"""Table 3.6: round length of task 2, s."""
KDD_LENGTHS = """
    FedAvg      0.1 2241   1640.20  1680.60  1721.00  1761.40  1822.00
    FedAvg      0.3 2242   1640.20  1680.60  1721.00  1761.40  1822.00
    FedAvg      0.5 2243   1640.20  1680.60  1721.00  1761.40  1822.00
    FedAvg      0.7 2244   1640.20  1680.60  1721.00  1761.40  1822.00
    FedCS       0.1 2247    788.75  1319.17  1607.42  1539.14  1802.09
    FedCS       0.3 2248    685.26  1216.12  1521.82  1617.97  1775.50
    FedCS       0.5 2249    714.73  1229.87  1371.03  1605.23  1821.60
    FedCS       0.7 2250    754.52  1190.44  1526.23  1573.42  1731.65
    SAFA        0.1 2253    310.70   353.98  1419.29  1514.38  1802.15
    SAFA        0.3 2254    274.03   330.32  1499.79  1559.50  1762.51
    SAFA        0.5 2255    242.93   398.27  1317.91  1476.14  1724.52
    SAFA        0.7 2256    212.52  1187.96  1313.99  1223.72  1690.61
"""
"""Table 3.8: round length of task 3, s."""
BOSTON_DISTRIBUTION = """
    FedAvg      0.1 2156      0.40     0.81     1.21     1.62     2.02
    FedAvg      0.3 2157      0.40     0.81     1.21     1.62     2.02
    FedAvg      0.5 2158      0.40     0.81     1.21     1.62     2.02
    FedAvg      0.7 2159      0.40     0.81     1.21     1.62     2.02
    FedCS       0.1 2162      0.33     0.81     1.21     1.62     2.02
    FedCS       0.3 2163      0.40     0.81     1.21     1.31     2.02
    FedCS       0.5 2164      0.33     0.64     1.21     1.62     2.02
    FedCS       0.7 2165      0.33     0.81     1.21     1.29     2.02
    SAFA        0.1 2168      1.84     1.83     1.80     1.84     1.81
    SAFA        0.3 2169      1.49     1.46     1.43     1.40     1.41
    SAFA        0.5 2170      1.00     1.07     0.96     1.05     1.02
    SAFA        0.7 2171      0.76     0.69     0.77     0.75     0.74
"""
"""Table 3.5: T_dist of task 1, s."""
MNIST_DISTRIBUTION = """
    FedAvg      0.1 2213      2.04     6.12    10.20    14.28    20.40
    FedAvg      0.3 2214      2.04     6.12    10.20    14.28    20.40
    FedAvg      0.5 2215      2.04     6.12    10.20    14.28    20.40
    FedAvg      0.7 2216      2.04     6.12    10.20    14.28    20.40
    FedCS       0.1 2219      2.04     6.12    10.20    14.14    20.40
    FedCS       0.3 2220      2.02     6.05    10.20    14.13    20.40
    FedCS       0.5 2221      2.04     6.06    10.20    14.28    20.20
    FedCS       0.7 2222      2.04     6.12    10.11    14.28    20.20
    SAFA        0.1 2225     18.27    18.45    18.26    18.47    18.38
    SAFA        0.3 2226     14.45    14.65    14.48    14.54    14.69
    SAFA        0.5 2227     10.89    10.51    10.70    10.84    10.58
    SAFA        0.7 2228      7.17     7.23     7.55     7.21     7.41
"""
"""Table 3.7: T_dist of task 2, s."""
KDD_DISTRIBUTION = """
    FedAvg      0.1 2268     20.20    60.60   101.00   141.40   202.00
    FedAvg      0.3 2269     20.20    60.60   101.00   141.40   202.00
    FedAvg      0.5 2270     20.20    60.60   101.00   141.40   202.00
    FedAvg      0.7 2271     20.20    60.60   101.00   141.40   202.00
    FedCS       0.1 2274     20.20    60.48   100.78   140.79   201.60
    FedCS       0.3 2275     20.11    60.60   100.81   141.09   201.60
    FedCS       0.5 2276     20.13    60.60   100.85   140.84   201.60
    FedCS       0.7 2277     20.20    60.60   100.61   141.14   201.19
    SAFA        0.1 2280    181.95   182.32   181.49   181.84   182.15
    SAFA        0.3 2281    142.89   141.91   141.95   142.50   142.81
    SAFA        0.5 2282    104.38   104.56   105.34   104.59   104.52
    SAFA        0.7 2283     70.62    70.63    70.55    70.05    70.61
"""
"""Table 3.9: T_dist of task 3, s."""

# A row: algorithm, cr, line of the thesis, then the cells for C = 0.1, 0.3, 0.5, 0.7 and 1.0.
BOSTON_ACCURACY = """
    Fully_local 0.1 3976    0.6154   0.6308   0.5820   0.5423   0.5270
    Fully_local 0.3 3977    0.5806   0.6363   0.6145   0.5843   0.5443
    Fully_local 0.5 3978    0.5180   0.6043   0.6276   0.6181   0.5978
    Fully_local 0.7 3979    0.4443   0.5480   0.6327   0.6409   0.6361
    FedAvg      0.1 3982    0.6055   0.6413   0.6411   0.6417   0.6424
    FedAvg      0.3 3983    0.6117   0.6418   0.6415   0.6419   0.6418
    FedAvg      0.5 3984    0.4432   0.6164   0.6421   0.6419   0.6413
    FedAvg      0.7 3985    0.3763   0.5576   0.6283   0.6413   0.6418
    FedCS       0.1 3988    0.6109   0.6415   0.6412   0.6417   0.6423
    FedCS       0.3 3989    0.6077   0.6417   0.6416   0.6420   0.6418
    FedCS       0.5 3990    0.4097   0.6073   0.6423   0.6418   0.6413
    FedCS       0.7 3991    0.2882   0.5999   0.6297   0.6293   0.6418
    SAFA        0.1 3994    0.6419   0.6414   0.6413   0.6417   0.6423
    SAFA        0.3 3995    0.6426   0.6419   0.6416   0.6417   0.6419
    SAFA        0.5 3996    0.6423   0.6415   0.6422   0.6419   0.6415
    SAFA        0.7 3997    0.6402   0.6422   0.6417   0.6412   0.6420
"""
"""Table A.1: best accuracy of task 1."""
MNIST_ACCURACY = """
    Fully_local 0.1 4026    0.8849   0.9066   0.9026   0.9131   0.9019
    Fully_local 0.3 4027    0.8909   0.8932   0.8937   0.8909   0.9126
    Fully_local 0.5 4028    0.8649   0.8898   0.9021   0.8932   0.9081
    Fully_local 0.7 4029    0.8518   0.8956   0.9026   0.8959   0.9093
    FedAvg      0.1 4032    0.9407   0.9664   0.9738   0.9766   0.9796
    FedAvg      0.3 4033    0.9326   0.9640   0.9705   0.9745   0.9755
    FedAvg      0.5 4034    0.9178   0.9532   0.9652   0.9696   0.9738
    FedAvg      0.7 4035    0.8818   0.9452   0.9534   0.9591   0.9672
    FedCS       0.1 4038    0.9423   0.9666   0.9732   0.9762   0.9791
    FedCS       0.3 4039    0.9328   0.9626   0.9702   0.9741   0.9765
    FedCS       0.5 4040    0.9232   0.9529   0.9650   0.9699   0.9321
    FedCS       0.7 4041    0.8962   0.9434   0.9546   0.9599   0.9673
    SAFA        0.1 4044    0.9748   0.9746   0.9764   0.9779   0.9787
    SAFA        0.3 4045    0.9698   0.9696   0.9727   0.9753   0.9781
    SAFA        0.5 4046    0.9658   0.9672   0.9686   0.9697   0.9714
    SAFA        0.7 4047    0.9604   0.9632   0.9652   0.9603   0.9645
"""
"""Table A.3: best accuracy of task 2."""
KDD_ACCURACY = """
    Fully_local 0.1 4077    0.7793   0.6603   0.6307   0.6307   0.6307
    Fully_local 0.3 4078    0.7477   0.6363   0.6307   0.6307   0.6307
    Fully_local 0.5 4079    0.8419   0.6859   0.6339   0.6307   0.6307
    Fully_local 0.7 4080    0.9530   0.7886   0.6673   0.6491   0.6442
    FedAvg      0.1 4083    0.9935   0.9942   0.9962   0.9992   0.9992
    FedAvg      0.3 4084    0.9961   0.9961   0.9962   0.9963   0.9992
    FedAvg      0.5 4085    0.9961   0.9960   0.9961   0.9962   0.9963
    FedAvg      0.7 4086    0.9961   0.9961   0.9961   0.9957   0.9962
    FedCS       0.1 4089    0.9959   0.9962   0.9961   0.9991   0.9993
    FedCS       0.3 4090    0.9961   0.9961   0.9962   0.9963   0.9992
    FedCS       0.5 4091    0.9961   0.9962   0.9959   0.9962   0.9962
    FedCS       0.7 4092    0.9961   0.9776   0.9960   0.9960   0.9960
    SAFA        0.1 4095    0.9962   0.9961   0.9962   0.9992   0.9992
    SAFA        0.3 4096    0.9960   0.9961   0.9962   0.9991   0.9991
    SAFA        0.5 4097    0.9959   0.9961   0.9962   0.9961   0.9962
    SAFA        0.7 4098    0.9960   0.9934   0.9961   0.9958   0.9960
"""
"""Table A.5: best accuracy of task 3."""
BOSTON_RATIOS = """
    FedAvg      0.1 4004  0.100/0.04 0.300/0.03 0.500/0.05 0.700/0.06 1.000/0.06
    FedAvg      0.3 4005  0.100/0.09 0.300/0.14 0.500/0.14 0.700/0.17 1.000/0.16
    FedAvg      0.5 4006  0.100/0.26 0.300/0.27 0.500/0.27 0.700/0.23 1.000/0.25
    FedAvg      0.7 4007  0.100/0.33 0.300/0.36 0.500/0.31 0.700/0.38 1.000/0.35
    FedCS       0.1 4010  0.080/0.21 0.300/0.07 0.500/0.04 0.700/0.04 1.000/0.06
    FedCS       0.3 4011  0.100/0.17 0.300/0.12 0.500/0.14 0.648/0.32 1.000/0.16
    FedCS       0.5 4012  0.079/0.39 0.234/0.41 0.500/0.28 0.700/0.25 1.000/0.25
    FedCS       0.7 4013  0.078/0.49 0.300/0.33 0.500/0.35 0.644/0.51 1.000/0.35
    SAFA        0.1 4016  0.910/0.00 0.894/0.00 0.900/0.00 0.906/0.00 0.882/0.00
    SAFA        0.3 4017  0.722/0.00 0.714/0.00 0.716/0.01 0.678/0.00 0.700/0.00
    SAFA        0.5 4018  0.498/0.02 0.502/0.01 0.470/0.00 0.536/0.01 0.506/0.01
    SAFA        0.7 4019  0.368/0.04 0.346/0.02 0.362/0.03 0.342/0.04 0.354/0.03
"""
"""Table A.2: SR/futility of task 1."""
MNIST_RATIOS = """
    FedAvg      0.1 4055  0.100/0.03 0.300/0.04 0.500/0.05 0.700/0.05 1.000/0.05
    FedAvg      0.3 4056  0.100/0.16 0.300/0.15 0.500/0.14 0.700/0.15 1.000/0.15
    FedAvg      0.5 4057  0.100/0.24 0.300/0.24 0.500/0.25 0.700/0.22 1.000/0.26
    FedAvg      0.7 4058  0.100/0.36 0.300/0.36 0.500/0.35 0.700/0.35 1.000/0.35
    FedCS       0.1 4061  0.092/0.04 0.300/0.05 0.500/0.06 0.693/0.06 1.000/0.05
    FedCS       0.3 4062  0.099/0.16 0.296/0.16 0.500/0.15 0.692/0.15 1.000/0.16
    FedCS       0.5 4063  0.100/0.23 0.297/0.28 0.500/0.25 0.700/0.25 0.990/0.25
    FedCS       0.7 4064  0.100/0.33 0.300/0.33 0.495/0.35 0.700/0.36 0.990/0.36
    SAFA        0.1 4067  0.896/0.00 0.902/0.00 0.891/0.00 0.900/0.00 0.894/0.00
    SAFA        0.3 4068  0.704/0.00 0.710/0.00 0.704/0.00 0.707/0.00 0.709/0.00
    SAFA        0.5 4069  0.524/0.01 0.517/0.01 0.521/0.01 0.521/0.01 0.509/0.01
    SAFA        0.7 4070  0.341/0.04 0.351/0.04 0.359/0.04 0.342/0.04 0.350/0.04
"""
"""Table A.4: SR/futility of task 2."""
KDD_RATIOS = """
    FedAvg      0.1 4105  0.100/0.05 0.300/0.05 0.500/0.05 0.700/0.05 1.000/0.05
    FedAvg      0.3 4106  0.100/0.15 0.300/0.15 0.500/0.15 0.700/0.15 1.000/0.15
    FedAvg      0.5 4107  0.100/0.25 0.300/0.25 0.500/0.25 0.700/0.25 1.000/0.25
    FedAvg      0.7 4108  0.100/0.35 0.300/0.35 0.500/0.35 0.700/0.35 1.000/0.35
    FedCS       0.1 4111  0.100/0.05 0.299/0.05 0.499/0.05 0.697/0.05 0.998/0.05
    FedCS       0.3 4112  0.099/0.15 0.300/0.15 0.499/0.15 0.698/0.15 0.998/0.15
    FedCS       0.5 4113  0.099/0.24 0.300/0.25 0.499/0.25 0.697/0.25 0.998/0.25
    FedCS       0.7 4114  0.100/0.36 0.300/0.35 0.498/0.36 0.699/0.36 0.996/0.36
    SAFA        0.1 4117  0.901/0.00 0.900/0.00 0.900/0.00 0.901/0.00 0.901/0.00
    SAFA        0.3 4118  0.703/0.00 0.700/0.00 0.701/0.00 0.702/0.00 0.703/0.00
    SAFA        0.5 4119  0.512/0.01 0.514/0.01 0.516/0.01 0.513/0.01 0.512/0.01
    SAFA        0.7 4120  0.345/0.04 0.343/0.04 0.344/0.04 0.342/0.04 0.344/0.04
"""
"""Table A.6: SR/futility of task 3."""


# ------------------------------------------------------------------ printed values, cell by cell, and statements


@dataclass(frozen=True)
class PaperTable:
    """A table of the thesis: a value for each algorithm, probability of crash and fraction.

    Attributes:
        label: its number in the thesis.
        digits: after the point.
        cells: ``(algorithm, cr, C) -> value``.
        lines: ``(algorithm, cr) -> line``.
    """

    label: str
    digits: int
    cells: Mapping[tuple[str, float, float], float]
    lines: Mapping[tuple[str, float], int]


def _read(label: str, text: str, part: int, digits: int) -> PaperTable:
    cells, lines = {}, {}
    for row in text.split("\n"):
        if not row.strip():
            continue
        algorithm, crash, line, *values = row.split()
        key = algorithm.replace("_", " "), float(crash)
        lines[key] = int(line)
        for fraction, value in zip(FRACTIONS, values, strict=True):
            cells[(*key, fraction)] = float(value.split("/")[part])
    return PaperTable(label, digits, cells, lines)


TABLES: Mapping[tuple[str, str], PaperTable] = {
    ("boston", "length"): _read("Table 3.4", BOSTON_LENGTHS, 0, 2),
    ("boston", "distribution"): _read("Table 3.5", BOSTON_DISTRIBUTION, 0, 2),
    ("boston", "accuracy"): _read("Table A.1", BOSTON_ACCURACY, 0, 4),
    ("boston", "synchronised"): _read("Table A.2", BOSTON_RATIOS, 0, 3),
    ("boston", "futility"): _read("Table A.2", BOSTON_RATIOS, 1, 2),
    ("mnist", "length"): _read("Table 3.6", MNIST_LENGTHS, 0, 2),
    ("mnist", "distribution"): _read("Table 3.7", MNIST_DISTRIBUTION, 0, 2),
    ("mnist", "accuracy"): _read("Table A.3", MNIST_ACCURACY, 0, 4),
    ("mnist", "synchronised"): _read("Table A.4", MNIST_RATIOS, 0, 3),
    ("mnist", "futility"): _read("Table A.4", MNIST_RATIOS, 1, 2),
    ("kdd", "length"): _read("Table 3.8", KDD_LENGTHS, 0, 2),
    ("kdd", "distribution"): _read("Table 3.9", KDD_DISTRIBUTION, 0, 2),
    ("kdd", "accuracy"): _read("Table A.5", KDD_ACCURACY, 0, 4),
    ("kdd", "synchronised"): _read("Table A.6", KDD_RATIOS, 0, 3),
    ("kdd", "futility"): _read("Table A.6", KDD_RATIOS, 1, 2),
}
"""By task and quantity: twelve tables, of which those with two numbers a cell appear twice."""


@dataclass(frozen=True)
class Statement:
    """A statement of the thesis in words.

    Attributes:
        text: the statement.
        number: the number in it.
        line: its line.
        basis: how the number follows from the tables.
    """

    text: str
    number: float | str
    line: int
    basis: str = ""


STATEMENTS: Mapping[str, Statement] = {
    "halves": Statement("task 1, C = 0.1: SAFA halves the time of a FedAvg round", 2.0, 2175, "2.11, 2.12, 2.20, 2.19 at the four cr"),
    "mnist over FedAvg": Statement("task 2: up to 27 times faster than FedAvg at C = 0.1 or 0.3", 27.0, 2203, "5602.04 / 203.48 at C = .1, cr = .5"),
    "mnist over FedCS": Statement("task 2: up to 6 times faster than FedCS at C = 0.1 or 0.3", 6.0, 2203, "its table holds 1487.96 / 198.28 = 7.5 at C = .1, cr = .1"),
    "kdd over FedAvg": Statement("task 3: up to 7.7 times faster than FedAvg", 7.7, 2258, "1640.20 / 212.52 at C = .1, cr = .7"),
    "kdd over FedCS": Statement("task 3: up to 3.7 times faster than FedCS", 3.7, 2258, "1319.17 / 353.98 at C = .3, cr = .1"),
    "mnist accuracy": Statement("task 2: fully local about 90 %, the others 96.0 to 98.0 %", "0.90; 0.960 to 0.980", 2203),
    "kdd accuracy": Statement("task 3: above 99 % with FedAvg, FedCS and SAFA", 0.99, 2258),
    "futility": Statement("task 3: SAFA's futility is below 4 % also at cr = 0.7", 0.04, 2285),
    "half": Statement("FedAvg and FedCS throw away about cr / 2 of the work", "cr / 2", 2285),
    "distribution": Statement("task 2: SAFA's distribution time depends on cr and not on C, tens of seconds below cr = 0.5", "14 to 18 s", 2230),
    "fraction": Statement("a larger C brings little: C = 0.3 or 0.5 is as good as 1.0 on task 2 at low cr", "0.9746, 0.9764 : 0.9787", 2289),
    "local": Statement("fully local training can be decent: task 1 at C = 0.3, task 3 at C = 0.1 and cr = 0.7", "0.5480 to 0.6363; 0.9530", 2289),
    "synchronous": Statement("FedAvg can win slightly at C = 1.0", "0.9796 : 0.9787", 2289),
    "quick": Statement("Figs. 3.7 to 3.9: SAFA's loss falls faster than FedAvg's and FedCS's at C = 0.3", "figure", 2125),
    "tolerance": Statement("Figs. 3.3, 3.4: SR falls with tau, EUR does not depend on it, VV grows with it and faster at cr = 0.7", "figure", 1936),
    "tolerance loss": Statement("Figs. 3.3, 3.4: a small tau gives a better loss", "figure; 0.0316 : 0.0353 in the sheet", 1936),
    "bias 2": Statement("Fig. 3.5: in case 2 the bias is below FedAvg's", "below", 2061, "0.530 at cr = 0.3, by a formula with a wrong sign"),
    "bias 3": Statement("Fig. 3.5: in case 3 the slowest client is at a disadvantage", "above", 2061, "1.888 at cr = 0.3, by a formula with a wrong sign"),
    "bias converges": Statement("Fig. 3.5: the bias converges after a few rounds", "figure", 2061),
}  # fmt: skip
"""By a short name."""

_LAGS = (1, 2, 3, 5, 7, 10)


def _study(rows: Mapping[tuple[str, float, float], tuple[float, ...]]) -> dict[tuple[str, float, float, int], float]:
    return {(*key, lag): value for key, values in rows.items() for lag, value in zip(_LAGS, values, strict=True)}


STUDY: Mapping[tuple[str, float, float, int], float] = _study(
    {
        ("best loss", 0.1, 0.3): (0.0315, 0.0315, 0.0315, 0.0315, 0.0315, 0.0316),
        ("best loss", 0.1, 0.7): (0.0315, 0.0315, 0.0318, 0.0316, 0.0345, 0.0360),
        ("best loss", 0.5, 0.7): (0.0315, 0.0315, 0.0316, 0.0315, 0.0320, 0.0326),
        ("best loss", 1.0, 0.7): (0.0315, 0.0315, 0.0315, 0.0315, 0.0330, 0.0322),
        ("synchronised", 0.1, 0.3): (0.786, 0.740, 0.722, 0.714, 0.704, 0.660),
        ("synchronised", 0.1, 0.7): (0.598, 0.462, 0.426, 0.364, 0.352, 0.296),
        ("synchronised", 1.0, 0.7): (0.582, 0.450, 0.406, 0.346, 0.326, 0.300),
        ("effective", 0.1, 0.3): (0.200, 0.200, 0.200, 0.200, 0.200, 0.200),
        ("effective", 0.5, 0.3): (0.564, 0.558, 0.568, 0.562, 0.564, 0.550),
        ("effective", 1.0, 0.7): (0.310, 0.292, 0.312, 0.300, 0.298, 0.290),
        ("variance", 0.1, 0.3): (0.126, 0.258, 0.299, 0.355, 0.434, 0.551),
        ("variance", 0.1, 0.7): (0.073, 0.162, 0.273, 0.467, 0.855, 1.559),
        ("variance", 1.0, 0.7): (0.054, 0.173, 0.232, 0.688, 0.979, 1.423),
    }
)
"""Task 1 by tolerance: ``(quantity, C, cr, tau)``; behind Figs. 3.3 and 3.4, from the author's sheet (the thesis shows drawings only)."""

LOSSES: Mapping[tuple[str, float, str], tuple[float, float, float, float]] = {
    ("boston", 0.1, "FedAvg"): (0.0954, 0.0737, 0.0533, 0.0315),
    ("boston", 0.1, "FedCS"): (0.0957, 0.0765, 0.0543, 0.0315),
    ("boston", 0.1, "SAFA"): (0.0959, 0.0658, 0.0405, 0.0315),
    ("boston", 0.3, "FedAvg"): (0.0966, 0.0818, 0.0595, 0.0315),
    ("boston", 0.3, "FedCS"): (0.0963, 0.0769, 0.0557, 0.0315),
    ("boston", 0.3, "SAFA"): (0.0961, 0.0733, 0.0465, 0.0315),
    ("boston", 0.5, "FedAvg"): (0.0975, 0.0873, 0.0740, 0.0376),
    ("boston", 0.5, "FedCS"): (0.0975, 0.0874, 0.0731, 0.0390),
    ("boston", 0.5, "SAFA"): (0.0964, 0.0767, 0.0573, 0.0315),
    ("boston", 0.7, "FedAvg"): (0.0960, 0.0902, 0.0851, 0.0455),
    ("boston", 0.7, "FedCS"): (0.0974, 0.0914, 0.0764, 0.0402),
    ("boston", 0.7, "SAFA"): (0.0957, 0.0848, 0.0690, 0.0320),
    ("mnist", 0.1, "FedAvg"): (1.137, 0.243, 0.152, 0.109),
    ("mnist", 0.1, "FedCS"): (0.952, 0.247, 0.153, 0.109),
    ("mnist", 0.1, "SAFA"): (1.039, 0.172, 0.106, 0.078),
    ("mnist", 0.3, "FedAvg"): (0.990, 0.282, 0.169, 0.120),
    ("mnist", 0.3, "FedCS"): (0.976, 0.287, 0.174, 0.122),
    ("mnist", 0.3, "SAFA"): (1.056, 0.208, 0.132, 0.096),
    ("mnist", 0.5, "FedAvg"): (1.408, 0.389, 0.209, 0.149),
    ("mnist", 0.5, "FedCS"): (1.057, 0.405, 0.217, 0.148),
    ("mnist", 0.5, "SAFA"): (1.033, 0.240, 0.148, 0.103),
    ("mnist", 0.7, "FedAvg"): (1.166, 0.510, 0.267, 0.178),
    ("mnist", 0.7, "FedCS"): (1.125, 0.550, 0.288, 0.184),
    ("mnist", 0.7, "SAFA"): (0.931, 0.289, 0.177, 0.122),
    ("kdd", 0.1, "FedAvg"): (0.877, 0.549, 0.394, 0.330),
    ("kdd", 0.1, "FedCS"): (0.880, 0.547, 0.386, 0.299),
    ("kdd", 0.1, "SAFA"): (0.866, 0.424, 0.358, 0.288),
    ("kdd", 0.3, "FedAvg"): (0.885, 0.608, 0.428, 0.319),
    ("kdd", 0.3, "FedCS"): (0.883, 0.582, 0.418, 0.323),
    ("kdd", 0.3, "SAFA"): (0.869, 0.462, 0.363, 0.296),
    ("kdd", 0.5, "FedAvg"): (0.896, 0.668, 0.484, 0.327),
    ("kdd", 0.5, "FedCS"): (0.892, 0.662, 0.474, 0.328),
    ("kdd", 0.5, "SAFA"): (0.864, 0.511, 0.375, 0.302),
    ("kdd", 0.7, "FedAvg"): (0.904, 0.745, 0.595, 0.373),
    ("kdd", 0.7, "FedCS"): (0.913, 0.761, 0.592, 0.373),
    ("kdd", 0.7, "SAFA"): (0.882, 0.588, 0.419, 0.333),
}
"""Test loss after rounds 1, 10, 25 and the last at C = 0.3, by task, cr and algorithm; behind Figs. 3.7 to 3.9, from the author's sheet."""
