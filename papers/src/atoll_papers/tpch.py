"""Tables of TPC-H at three silos, its 22 queries, and what the silos allow.

Source: TPC Benchmark H, specification 3.0.1: tables of clause 1.4, queries of clause 2.4. The text of a query has the parameters of its validation run; where these choose no row of tables as small as ours, other ones of
those that the clause admits, and what a query divides by (a year of a yearly mean) stays. Tables come from `draw_silos`, or are the three databases of `hufu_sample` in the folder of ``ATOLL_DATA``, which TPC-H's own
generator made (BUAA-BDA/OpenHuFu, ``dataset/sample``). Orders of one silo are of customers of all three.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from atoll.data.folder import locate

__all__ = ["QUERIES", "SILOS", "TYPES", "draw_silos", "policy_of", "read_silos", "write_union"]

SILOS = ("north", "south", "west")
_MONEY = "DECIMAL(15,2)"
TYPES = {
    "region": {"r_regionkey": "INTEGER", "r_name": "VARCHAR"},
    "nation": {"n_nationkey": "INTEGER", "n_name": "VARCHAR", "n_regionkey": "INTEGER"},
    "supplier": {"s_suppkey": "BIGINT", "s_name": "VARCHAR", "s_address": "VARCHAR", "s_nationkey": "INTEGER", "s_phone": "VARCHAR", "s_acctbal": _MONEY, "s_comment": "VARCHAR"},
    "part": {"p_partkey": "BIGINT", "p_name": "VARCHAR", "p_mfgr": "VARCHAR", "p_brand": "VARCHAR", "p_type": "VARCHAR", "p_size": "INTEGER", "p_container": "VARCHAR"},
    "partsupp": {"ps_partkey": "BIGINT", "ps_suppkey": "BIGINT", "ps_availqty": "INTEGER", "ps_supplycost": _MONEY},
    "customer": {"c_custkey": "BIGINT", "c_name": "VARCHAR", "c_address": "VARCHAR", "c_nationkey": "INTEGER", "c_phone": "VARCHAR", "c_acctbal": _MONEY, "c_mktsegment": "VARCHAR", "c_comment": "VARCHAR"},
    "orders": {"o_orderkey": "BIGINT", "o_custkey": "BIGINT", "o_orderstatus": "VARCHAR", "o_totalprice": _MONEY, "o_orderdate": "DATE", "o_orderpriority": "VARCHAR", "o_shippriority": "INTEGER", "o_comment": "VARCHAR"},
    "lineitem": {
        "l_orderkey": "BIGINT", "l_partkey": "BIGINT", "l_suppkey": "BIGINT", "l_quantity": _MONEY, "l_extendedprice": _MONEY, "l_discount": _MONEY, "l_tax": _MONEY, "l_returnflag": "VARCHAR",
        "l_linestatus": "VARCHAR", "l_shipdate": "DATE", "l_commitdate": "DATE", "l_receiptdate": "DATE", "l_shipinstruct": "VARCHAR", "l_shipmode": "VARCHAR",
    },
}  # fmt: skip
"""Table -> its columns that a query reads, with their types."""

_REVENUE = "l_extendedprice * (1 - l_discount)"
QUERIES = {
    1: f"""SELECT l_returnflag, l_linestatus, sum(l_quantity) AS sum_qty, sum(l_extendedprice) AS sum_base_price, sum({_REVENUE}) AS sum_disc_price, sum({_REVENUE} * (1 + l_tax)) AS sum_charge,
        avg(l_quantity) AS avg_qty, avg(l_extendedprice) AS avg_price, avg(l_discount) AS avg_disc, count(*) AS count_order FROM lineitem WHERE l_shipdate <= DATE '1998-12-01' - INTERVAL 90 DAY
        GROUP BY l_returnflag, l_linestatus ORDER BY l_returnflag, l_linestatus""",
    2: """SELECT s_acctbal, s_name, n_name, p_partkey, p_mfgr, s_address, s_phone, s_comment FROM part, supplier, partsupp, nation, region WHERE p_partkey = ps_partkey AND s_suppkey = ps_suppkey AND p_size = 15
        AND p_type LIKE '%BRASS' AND s_nationkey = n_nationkey AND n_regionkey = r_regionkey AND r_name = 'EUROPE' AND ps_supplycost = (SELECT min(ps_supplycost) FROM partsupp, supplier, nation, region
        WHERE p_partkey = ps_partkey AND s_suppkey = ps_suppkey AND s_nationkey = n_nationkey AND n_regionkey = r_regionkey AND r_name = 'EUROPE') ORDER BY s_acctbal DESC, n_name, s_name, p_partkey LIMIT 100""",
    3: f"""SELECT l_orderkey, sum({_REVENUE}) AS revenue, o_orderdate, o_shippriority FROM customer, orders, lineitem WHERE c_mktsegment = 'BUILDING' AND c_custkey = o_custkey AND l_orderkey = o_orderkey
        AND o_orderdate < DATE '1995-03-15' AND l_shipdate > DATE '1995-03-15' GROUP BY l_orderkey, o_orderdate, o_shippriority ORDER BY revenue DESC, o_orderdate LIMIT 10""",
    4: """SELECT o_orderpriority, count(*) AS order_count FROM orders WHERE o_orderdate >= DATE '1993-07-01' AND o_orderdate < DATE '1993-07-01' + INTERVAL 3 MONTH
        AND EXISTS (SELECT * FROM lineitem WHERE l_orderkey = o_orderkey AND l_commitdate < l_receiptdate) GROUP BY o_orderpriority ORDER BY o_orderpriority""",
    5: f"""SELECT n_name, sum({_REVENUE}) AS revenue FROM customer, orders, lineitem, supplier, nation, region WHERE c_custkey = o_custkey AND l_orderkey = o_orderkey AND l_suppkey = s_suppkey
        AND c_nationkey = s_nationkey AND s_nationkey = n_nationkey AND n_regionkey = r_regionkey AND r_name = 'ASIA' AND o_orderdate >= DATE '1994-01-01' AND o_orderdate < DATE '1994-01-01' + INTERVAL 1 YEAR
        GROUP BY n_name ORDER BY revenue DESC""",
    6: """SELECT sum(l_extendedprice * l_discount) AS revenue FROM lineitem WHERE l_shipdate >= DATE '1994-01-01' AND l_shipdate < DATE '1994-01-01' + INTERVAL 1 YEAR
        AND l_discount BETWEEN 0.06 - 0.01 AND 0.06 + 0.01 AND l_quantity < 24""",
    7: f"""SELECT supp_nation, cust_nation, l_year, sum(volume) AS revenue FROM (SELECT n1.n_name AS supp_nation, n2.n_name AS cust_nation, extract(year FROM l_shipdate) AS l_year, {_REVENUE} AS volume
        FROM supplier, lineitem, orders, customer, nation n1, nation n2 WHERE s_suppkey = l_suppkey AND o_orderkey = l_orderkey AND c_custkey = o_custkey AND s_nationkey = n1.n_nationkey
        AND c_nationkey = n2.n_nationkey AND ((n1.n_name = 'CHINA' AND n2.n_name = 'CANADA') OR (n1.n_name = 'CANADA' AND n2.n_name = 'CHINA'))
        AND l_shipdate BETWEEN DATE '1995-01-01' AND DATE '1996-12-31') AS shipping GROUP BY supp_nation, cust_nation, l_year ORDER BY supp_nation, cust_nation, l_year""",
    8: f"""SELECT o_year, sum(CASE WHEN nation = 'CANADA' THEN volume ELSE 0 END) / sum(volume) AS mkt_share FROM (SELECT extract(year FROM o_orderdate) AS o_year, {_REVENUE} AS volume, n2.n_name AS nation
        FROM part, supplier, lineitem, orders, customer, nation n1, nation n2, region WHERE p_partkey = l_partkey AND s_suppkey = l_suppkey AND l_orderkey = o_orderkey AND o_custkey = c_custkey
        AND c_nationkey = n1.n_nationkey AND n1.n_regionkey = r_regionkey AND r_name = 'AMERICA' AND s_nationkey = n2.n_nationkey AND o_orderdate BETWEEN DATE '1995-01-01' AND DATE '1996-12-31'
        AND p_type = 'SMALL PLATED NICKEL') AS all_nations GROUP BY o_year ORDER BY o_year""",
    9: f"""SELECT nation, o_year, sum(amount) AS sum_profit FROM (SELECT n_name AS nation, extract(year FROM o_orderdate) AS o_year, {_REVENUE} - ps_supplycost * l_quantity AS amount
        FROM part, supplier, lineitem, partsupp, orders, nation WHERE s_suppkey = l_suppkey AND ps_suppkey = l_suppkey AND ps_partkey = l_partkey AND p_partkey = l_partkey AND o_orderkey = l_orderkey
        AND s_nationkey = n_nationkey AND p_name LIKE '%green%') AS profit GROUP BY nation, o_year ORDER BY nation, o_year DESC""",
    10: f"""SELECT c_custkey, c_name, sum({_REVENUE}) AS revenue, c_acctbal, n_name, c_address, c_phone, c_comment FROM customer, orders, lineitem, nation WHERE c_custkey = o_custkey AND l_orderkey = o_orderkey
        AND o_orderdate >= DATE '1993-10-01' AND o_orderdate < DATE '1993-10-01' + INTERVAL 3 MONTH AND l_returnflag = 'R' AND c_nationkey = n_nationkey
        GROUP BY c_custkey, c_name, c_acctbal, c_phone, n_name, c_address, c_comment ORDER BY revenue DESC LIMIT 20""",
    11: """SELECT ps_partkey, sum(ps_supplycost * ps_availqty) AS value FROM partsupp, supplier, nation WHERE ps_suppkey = s_suppkey AND s_nationkey = n_nationkey AND n_name = 'CHINA' GROUP BY ps_partkey
        HAVING sum(ps_supplycost * ps_availqty) > (SELECT sum(ps_supplycost * ps_availqty) * 0.0001 FROM partsupp, supplier, nation WHERE ps_suppkey = s_suppkey AND s_nationkey = n_nationkey AND n_name = 'CHINA')
        ORDER BY value DESC""",
    12: """SELECT l_shipmode, sum(CASE WHEN o_orderpriority = '1-URGENT' OR o_orderpriority = '2-HIGH' THEN 1 ELSE 0 END) AS high_line_count,
        sum(CASE WHEN o_orderpriority <> '1-URGENT' AND o_orderpriority <> '2-HIGH' THEN 1 ELSE 0 END) AS low_line_count FROM orders, lineitem WHERE o_orderkey = l_orderkey AND l_shipmode IN ('MAIL', 'SHIP')
        AND l_commitdate < l_receiptdate AND l_shipdate < l_commitdate AND l_receiptdate >= DATE '1994-01-01' AND l_receiptdate < DATE '1994-01-01' + INTERVAL 1 YEAR GROUP BY l_shipmode ORDER BY l_shipmode""",
    13: """SELECT c_count, count(*) AS custdist FROM (SELECT c_custkey, count(o_orderkey) FROM customer LEFT OUTER JOIN orders ON c_custkey = o_custkey AND o_comment NOT LIKE '%special%requests%' GROUP BY c_custkey)
        AS c_orders (c_custkey, c_count) GROUP BY c_count ORDER BY custdist DESC, c_count DESC""",
    14: f"""SELECT 100.00 * sum(CASE WHEN p_type LIKE 'PROMO%' THEN {_REVENUE} ELSE 0 END) / sum({_REVENUE}) AS promo_revenue FROM lineitem, part WHERE l_partkey = p_partkey
        AND l_shipdate >= DATE '1995-09-01' AND l_shipdate < DATE '1995-09-01' + INTERVAL 1 MONTH""",
    15: f"""WITH revenue AS (SELECT l_suppkey AS supplier_no, sum({_REVENUE}) AS total_revenue FROM lineitem WHERE l_shipdate >= DATE '1996-01-01' AND l_shipdate < DATE '1996-01-01' + INTERVAL 3 MONTH GROUP BY supplier_no)
        SELECT s_suppkey, s_name, s_address, s_phone, total_revenue FROM supplier, revenue WHERE s_suppkey = supplier_no AND total_revenue = (SELECT max(total_revenue) FROM revenue) ORDER BY s_suppkey""",
    16: """SELECT p_brand, p_type, p_size, count(DISTINCT ps_suppkey) AS supplier_cnt FROM partsupp, part WHERE p_partkey = ps_partkey AND p_brand <> 'Brand#45' AND p_type NOT LIKE 'MEDIUM POLISHED%'
        AND p_size IN (49, 14, 23, 45, 19, 3, 36, 9) AND ps_suppkey NOT IN (SELECT s_suppkey FROM supplier WHERE s_comment LIKE '%Customer%Complaints%')
        GROUP BY p_brand, p_type, p_size ORDER BY supplier_cnt DESC, p_brand, p_type, p_size""",
    17: """SELECT sum(l_extendedprice) / 7.0 AS avg_yearly FROM lineitem, part WHERE p_partkey = l_partkey AND p_brand = 'Brand#23' AND p_container = 'WRAP DRUM'
        AND l_quantity < (SELECT 0.2 * avg(l_quantity) FROM lineitem WHERE l_partkey = p_partkey)""",
    18: """SELECT c_name, c_custkey, o_orderkey, o_orderdate, o_totalprice, sum(l_quantity) FROM customer, orders, lineitem WHERE o_orderkey IN (SELECT l_orderkey FROM lineitem GROUP BY l_orderkey HAVING sum(l_quantity) > 300)
        AND c_custkey = o_custkey AND o_orderkey = l_orderkey GROUP BY c_name, c_custkey, o_orderkey, o_orderdate, o_totalprice ORDER BY o_totalprice DESC, o_orderdate LIMIT 100""",
    19: f"""SELECT sum({_REVENUE}) AS revenue FROM lineitem, part WHERE (p_partkey = l_partkey AND p_brand = 'Brand#13' AND p_container IN ('SM CASE', 'SM BOX', 'SM PACK', 'SM PKG') AND l_quantity >= 10 AND l_quantity <= 10 + 10
        AND p_size BETWEEN 1 AND 5 AND l_shipmode IN ('AIR', 'AIR REG') AND l_shipinstruct = 'DELIVER IN PERSON') OR (p_partkey = l_partkey AND p_brand = 'Brand#24'
        AND p_container IN ('MED BAG', 'MED BOX', 'MED PKG', 'MED PACK') AND l_quantity >= 20 AND l_quantity <= 20 + 10 AND p_size BETWEEN 1 AND 10 AND l_shipmode IN ('AIR', 'AIR REG')
        AND l_shipinstruct = 'DELIVER IN PERSON') OR (p_partkey = l_partkey AND p_brand = 'Brand#14' AND p_container IN ('LG CASE', 'LG BOX', 'LG PACK', 'LG PKG') AND l_quantity >= 20 AND l_quantity <= 20 + 10
        AND p_size BETWEEN 1 AND 15 AND l_shipmode IN ('AIR', 'AIR REG') AND l_shipinstruct = 'DELIVER IN PERSON')""",
    20: """SELECT s_name, s_address FROM supplier, nation WHERE s_suppkey IN (SELECT ps_suppkey FROM partsupp WHERE ps_partkey IN (SELECT p_partkey FROM part WHERE p_name LIKE 'forest%')
        AND ps_availqty > (SELECT 0.5 * sum(l_quantity) FROM lineitem WHERE l_partkey = ps_partkey AND l_suppkey = ps_suppkey AND l_shipdate >= DATE '1994-01-01' AND l_shipdate < DATE '1994-01-01' + INTERVAL 1 YEAR))
        AND s_nationkey = n_nationkey AND n_name = 'CANADA' ORDER BY s_name""",
    21: """SELECT s_name, count(*) AS numwait FROM supplier, lineitem l1, orders, nation WHERE s_suppkey = l1.l_suppkey AND o_orderkey = l1.l_orderkey AND o_orderstatus = 'F' AND l1.l_receiptdate > l1.l_commitdate
        AND EXISTS (SELECT * FROM lineitem l2 WHERE l2.l_orderkey = l1.l_orderkey AND l2.l_suppkey <> l1.l_suppkey) AND NOT EXISTS (SELECT * FROM lineitem l3 WHERE l3.l_orderkey = l1.l_orderkey
        AND l3.l_suppkey <> l1.l_suppkey AND l3.l_receiptdate > l3.l_commitdate) AND s_nationkey = n_nationkey AND n_name = 'CHINA' GROUP BY s_name ORDER BY numwait DESC, s_name LIMIT 100""",
    22: """SELECT cntrycode, count(*) AS numcust, sum(c_acctbal) AS totacctbal FROM (SELECT substring(c_phone, 1, 2) AS cntrycode, c_acctbal FROM customer WHERE substring(c_phone, 1, 2) IN ('13', '31', '23', '29', '30', '18', '17')
        AND c_acctbal > (SELECT avg(c_acctbal) FROM customer WHERE c_acctbal > 0.00 AND substring(c_phone, 1, 2) IN ('13', '31', '23', '29', '30', '18', '17'))
        AND NOT EXISTS (SELECT * FROM orders WHERE o_custkey = c_custkey)) AS custsale GROUP BY cntrycode ORDER BY cntrycode""",
}
"""Number -> SQL."""


_EVERYWHERE = ("region", "nation")
_REGIONS = ("AFRICA", "AMERICA", "ASIA", "EUROPE", "MIDDLE EAST")
_NATIONS = (
    ("ALGERIA", 0), ("ARGENTINA", 1), ("BRAZIL", 1), ("CANADA", 1), ("EGYPT", 4), ("ETHIOPIA", 0), ("FRANCE", 3), ("GERMANY", 3), ("INDIA", 2), ("INDONESIA", 2), ("IRAN", 4), ("IRAQ", 4), ("JAPAN", 2),
    ("JORDAN", 4), ("KENYA", 0), ("MOROCCO", 0), ("MOZAMBIQUE", 0), ("PERU", 1), ("CHINA", 2), ("ROMANIA", 3), ("SAUDI ARABIA", 4), ("VIETNAM", 2), ("RUSSIA", 3), ("UNITED KINGDOM", 3), ("UNITED STATES", 1),
)  # fmt: skip
_HOMES = (3, 18, 8, 22, 6, 18, 3, 24, 7, 2)
"""Nations of suppliers in turn, and of most customers: those that queries name, so that few rows have them too."""
_PARTS = (
    ("blush linen", "Brand#11", "STANDARD POLISHED BRASS", 15, "JUMBO BAG"), ("dark green lace", "Brand#23", "SMALL PLATED NICKEL", 49, "WRAP DRUM"), ("green misty rose", "Brand#13", "PROMO BRUSHED TIN", 3, "SM CASE"),
    ("forest lime snow", "Brand#24", "PROMO PLATED STEEL", 9, "MED BOX"), ("navy puff sky", "Brand#14", "MEDIUM POLISHED COPPER", 14, "LG PACK"),
)  # fmt: skip
"""Parts that queries name: half of all."""
_TYPES = tuple(f"{size} {finish} {metal}" for size in ("STANDARD", "SMALL", "MEDIUM", "LARGE", "ECONOMY", "PROMO") for finish in ("ANODIZED", "BURNISHED", "PLATED", "POLISHED", "BRUSHED") for metal in ("TIN", "NICKEL", "BRASS", "STEEL", "COPPER"))  # fmt: skip
_PACKS = tuple(f"{size} {kind}" for size in ("SM", "LG", "MED", "JUMBO", "WRAP") for kind in ("CASE", "BOX", "BAG", "JAR", "PKG", "PACK", "CAN", "DRUM"))  # fmt: skip
_SEGMENTS = ("AUTOMOBILE", "BUILDING", "FURNITURE", "HOUSEHOLD", "MACHINERY")
_URGENCIES = ("1-URGENT", "2-HIGH", "3-MEDIUM", "4-NOT SPECIFIED", "5-LOW")
_SHIPPING = ("DELIVER IN PERSON", "COLLECT COD", "NONE", "TAKE BACK RETURN"), ("REG AIR", "AIR", "RAIL", "SHIP", "TRUCK", "MAIL", "FOB")  # fmt: skip
_BEGIN, _TODAY = datetime.date(1992, 1, 1), datetime.date(1995, 6, 17)
_SUPPLIERS = 10


def policy_of() -> dict[str, Any]:
    """What the silos allow: all columns are protected; keys of TPC-H are unique, an order has 7 lines at most and a part 4 suppliers, who are known where the part is. Nations and regions are at every silo."""
    special: dict[str, dict[str, Any]] = {
        "r_regionkey": {"key": True}, "n_nationkey": {"key": True}, "n_regionkey": {"at_most": 5}, "s_suppkey": {"key": True}, "p_partkey": {"key": True, "join": "local"},
        "ps_partkey": {"at_most": 4, "join": "local"}, "c_custkey": {"key": True}, "o_orderkey": {"key": True}, "l_orderkey": {"at_most": 7},
    }  # fmt: skip
    columns = {table: {"columns": {name: {"level": "protected", **special.get(name, {})} for name in names}} for table, names in TYPES.items()}  # fmt: skip
    return {
        "limits": {"seconds": 300, "memory": "2GiB"},
        "policy": {"min_count": 1},
        "tables": {
            table: {**one, "mode": "replicated" if table in _EVERYWHERE else "horizontal"}
            for table, one in columns.items()
        },
    }


def draw_silos(folder: Path, orders: int, seed: int) -> dict[str, str]:
    """Three silos as files of DuckDB, whose rows are drawn as TPC-H's generator draws them, from values among which those that queries name are frequent.

    Args:
        folder: where to write them.
        orders: how many orders all silos have; they have about 4 lines each, and a customer for 10 of them.
        seed: draws them.
    """
    import duckdb

    made = _Rows(orders, seed).made
    silos = {}
    for place, silo in enumerate(SILOS):
        silos[silo] = str(folder / f"{silo}.duckdb")
        with duckdb.connect(silos[silo]) as db:
            for table, types in TYPES.items():
                columns = [list(one) for one in zip(*made[table][place], strict=True)] or [[] for _ in types]
                shown = ", ".join(f"unnest(${k + 1}::{kind}[]) AS {name}" for k, (name, kind) in enumerate(types.items()))  # fmt: skip
                db.execute(f"CREATE TABLE {table} AS SELECT {shown}", columns)
    return silos


class _Rows:
    """Table -> the rows of each silo. Parts lie with what their suppliers ask for them, lines with their orders, and customers anywhere."""

    def __init__(self, orders: int, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.made: dict[str, list[list[tuple[Any, ...]]]] = {table: [[] for _ in SILOS] for table in TYPES}
        for own in self.made["region"]:
            own += list(enumerate(_REGIONS))
        for own in self.made["nation"]:
            own += [(k, name, region) for k, (name, region) in enumerate(_NATIONS)]
        parts, customers = max(20, orders // 12), max(20, orders // 10)
        self._add_parts(parts)
        self._add_customers(customers)
        for key in range(1, orders + 1):
            self._add_order(key, parts, customers)

    def _pick(self, words: Sequence[Any]) -> Any:
        return words[int(self.rng.integers(len(words)))]

    def _money(self, low: float, high: float) -> str:
        return f"{self.rng.uniform(low, high):.2f}"

    def _add_parts(self, parts: int) -> None:
        for key in range(1, _SUPPLIERS + 1):
            nation = _HOMES[key - 1]
            said = "slow Customer and Complaints" if key == 5 else "quiet deposits"
            self.made["supplier"][key % 3].append((key, f"Supplier#{key:09}", f"street {key}", nation, f"{10 + nation}-{key:03}", self._money(-999, 9999), said))  # fmt: skip
        for key in range(1, parts + 1):
            drawn = (f"{self._pick(('almond', 'green', 'forest', 'plum'))} steel", f"Brand#{self._pick('12345')}{self._pick('12345')}", self._pick(_TYPES), int(self.rng.integers(1, 51)), self._pick(_PACKS))  # fmt: skip
            name, *rest = _PARTS[key // 2 % len(_PARTS)] if key % 2 else drawn
            self.made["part"][key % 3].append((key, name, f"Manufacturer#{key % 5 + 1}", *rest))
            for supplier in self._suppliers(key):
                self.made["partsupp"][key % 3].append((key, supplier, int(self.rng.integers(1, 10_000)), self._money(1, 1000)))  # fmt: skip

    @staticmethod
    def _suppliers(part: int) -> list[int]:
        return [(part + 3 * k) % _SUPPLIERS + 1 for k in range(4)]

    def _add_customers(self, customers: int) -> None:
        for key in range(1, customers + 1):
            nation = self._pick(_HOMES) if self.rng.random() < 0.8 else int(self.rng.integers(len(_NATIONS)))
            self._pick(self.made["customer"]).append((key, f"Customer#{key:09}", f"road {key}", nation, f"{10 + nation}-{key:03}", self._money(-999, 9999), self._pick(_SEGMENTS), self._pick(("", "even packages"))))  # fmt: skip

    def _add_order(self, key: int, parts: int, customers: int) -> None:
        """An order of a customer whose number no 3 divides, and its lines; every sixtieth is a large one."""
        rng, place = self.rng, key % 3
        customer = int(rng.integers(customers // 3)) * 3 + int(rng.integers(1, 3))
        ordered = _BEGIN + datetime.timedelta(int(rng.integers(2406)))
        large = key % 60 == 0
        lines = []
        for _ in range(7 if large else int(rng.integers(1, 8))):
            part, quantity = int(rng.integers(1, parts + 1)), int(rng.integers(44 if large else 1, 51))
            shipped, due = (ordered + datetime.timedelta(int(rng.integers(*days))) for days in ((1, 122), (30, 91)))
            received = shipped + datetime.timedelta(int(rng.integers(1, 31)))
            flag = self._pick("RA") if received <= _TODAY else "N"
            lines.append((
                key, part, self._pick(self._suppliers(part)), quantity, f"{quantity * (900 + part):.2f}", f"0.{int(rng.integers(11)):02}", f"0.0{int(rng.integers(9))}",
                flag, "F" if shipped <= _TODAY else "O", shipped, due, received, self._pick(_SHIPPING[0]), self._pick(_SHIPPING[1]),
            ))  # fmt: skip
        states = {line[8] for line in lines}
        total = f"{sum(float(line[4]) for line in lines):.2f}"
        said = self._pick(("special packages among requests", "ironic foxes", ""))
        self.made["orders"][place].append((key, customer, states.pop() if len(states) == 1 else "P", total, ordered, self._pick(_URGENCIES), 0, said))  # fmt: skip
        self.made["lineitem"][place] += lines


def read_silos(folder: Path) -> dict[str, str]:
    """The three databases of ``hufu_sample``, as files of DuckDB with the columns of `TYPES`.

    Args:
        folder: where to write them.

    Raises:
        DataError: ``ATOLL_DATA`` is not set, or its folder has them not.
    """
    import duckdb

    paths = {(place, table): locate(None, "hufu_sample", f"tpch_db{place}_{table}.csv") for place in range(len(SILOS)) for table in TYPES}  # fmt: skip
    made = {}
    for place, silo in enumerate(SILOS):
        made[silo] = str(folder / f"{silo}.duckdb")
        with duckdb.connect(made[silo]) as db:
            for table, types in TYPES.items():
                shown = ", ".join(f"CAST({name} AS {kind}) AS {name}" for name, kind in types.items())
                db.execute(f"CREATE TABLE {table} AS SELECT {shown} FROM read_csv(?, delim='|', header=true, all_varchar=true)", [str(paths[place, table])])  # fmt: skip
    return made


def write_union(silos: Mapping[str, str]) -> Any:
    """A connection of DuckDB to the rows of all silos in one place."""
    import duckdb

    db = duckdb.connect()
    for place, path in enumerate(silos.values()):
        db.execute(f"ATTACH '{path}' AS silo{place} (READ_ONLY)")
    for table in TYPES:
        places = range(1 if table in _EVERYWHERE else len(silos))
        db.execute(f"CREATE TABLE {table} AS " + " UNION ALL ".join(f"FROM silo{place}.{table}" for place in places))
    return db
