"""Tables like those of TPC-H at a tiny scale, divided among three sites, and its 22 queries (TPC-H specification 3.0.1, with the parameters of its validation run where the tables are large enough for them).

Every table is divided: orders lie with their line items, parts with what suppliers ask for them, customers anywhere. Nations and regions are at every site.
"""

from __future__ import annotations

import datetime
from decimal import Decimal
from typing import Any

import numpy as np

from tests.support.silos import TableSource

__all__ = ["POLICY", "QUERIES", "TYPES", "make_sources"]

MONEY = "DECIMAL(15,2)"
TYPES = {
    "region": {"r_regionkey": "INTEGER", "r_name": "VARCHAR"},
    "nation": {"n_nationkey": "INTEGER", "n_name": "VARCHAR", "n_regionkey": "INTEGER"},
    "supplier": {"s_suppkey": "BIGINT", "s_name": "VARCHAR", "s_address": "VARCHAR", "s_nationkey": "INTEGER", "s_phone": "VARCHAR", "s_acctbal": MONEY, "s_comment": "VARCHAR"},
    "part": {"p_partkey": "BIGINT", "p_name": "VARCHAR", "p_mfgr": "VARCHAR", "p_brand": "VARCHAR", "p_type": "VARCHAR", "p_size": "INTEGER", "p_container": "VARCHAR"},
    "partsupp": {"ps_partkey": "BIGINT", "ps_suppkey": "BIGINT", "ps_availqty": "INTEGER", "ps_supplycost": MONEY},
    "customer": {"c_custkey": "BIGINT", "c_name": "VARCHAR", "c_address": "VARCHAR", "c_nationkey": "INTEGER", "c_phone": "VARCHAR", "c_acctbal": MONEY, "c_mktsegment": "VARCHAR", "c_comment": "VARCHAR"},
    "orders": {"o_orderkey": "BIGINT", "o_custkey": "BIGINT", "o_orderstatus": "VARCHAR", "o_totalprice": MONEY, "o_orderdate": "DATE", "o_orderpriority": "VARCHAR", "o_shippriority": "INTEGER", "o_comment": "VARCHAR"},
    "lineitem": {
        "l_orderkey": "BIGINT", "l_partkey": "BIGINT", "l_suppkey": "BIGINT", "l_quantity": MONEY, "l_extendedprice": MONEY, "l_discount": MONEY, "l_tax": MONEY, "l_returnflag": "VARCHAR",
        "l_linestatus": "VARCHAR", "l_shipdate": "DATE", "l_commitdate": "DATE", "l_receiptdate": "DATE", "l_shipinstruct": "VARCHAR", "l_shipmode": "VARCHAR",
    },
}  # fmt: skip


def _columns(table: str, **special: Any) -> dict[str, Any]:
    return {"columns": {name: {"level": "protected", **special.get(name, {})} for name in TYPES[table]}}


KEY, LOCAL = {"key": True}, {"join": "local"}
POLICY = {
    "policy": {"min_count": 1},
    "tables": {
        "region": {"mode": "replicated", **_columns("region", r_regionkey=KEY)},
        "nation": {"mode": "replicated", **_columns("nation", n_nationkey=KEY, n_regionkey={"at_most": 5})},
        "supplier": _columns("supplier", s_suppkey=KEY),
        "part": _columns("part", p_partkey={**KEY, **LOCAL}),
        "partsupp": _columns("partsupp", ps_partkey={"at_most": 4, **LOCAL}),
        "customer": _columns("customer", c_custkey=KEY),
        "orders": _columns("orders", o_orderkey={**KEY, **LOCAL}),
        "lineitem": _columns("lineitem", l_orderkey={"at_most": 7, **LOCAL}),
    },
}

NATIONS = ["ALGERIA", "BRAZIL", "CANADA", "FRANCE", "GERMANY", "SAUDI ARABIA", "CHINA", "INDIA"]
REGIONS = ["AFRICA", "AMERICA", "ASIA", "EUROPE", "MIDDLE EAST"]
HOME = [0, 1, 1, 3, 3, 4, 2, 2]


class _Generator:
    """Rows of the tables at three sites."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.made: dict[str, list[list[tuple[Any, ...]]]] = {name: [[], [], []] for name in TYPES}

    def pick(self, words: list[str]) -> str:
        return words[int(self.rng.integers(len(words)))]

    def money(self, low: int, high: int) -> Decimal:
        return Decimal(int(self.rng.integers(100 * low, 100 * high))) / 100

    def day(self, begin: datetime.date, most: int) -> datetime.date:
        return begin + datetime.timedelta(int(self.rng.integers(1, most)))

    def add_parts(self, suppliers: int, parts: int) -> None:
        pick, money = self.pick, self.money
        for key in range(1, suppliers + 1):
            nation = key % len(NATIONS)
            self.made["supplier"][key % 3].append((key, f"Supplier#{key}", f"street {key}", nation, f"{10 + nation}-{key}", money(-900, 9000), pick(["good", "Customer has Complaints", ""])))  # fmt: skip
        for key in range(1, parts + 1):
            kind = f"{pick(['STANDARD', 'PROMO', 'ECONOMY', 'MEDIUM'])} {pick(['ANODIZED', 'POLISHED'])} {pick(['STEEL', 'BRASS', 'TIN'])}"
            size = int(self.rng.choice([1, 5, 9, 15, 23, 49]))
            self.made["part"][key % 3].append((key, pick(["forest lime", "green mint", "forest green"]), f"Manufacturer#{key % 2 + 1}", f"Brand#{pick(['12', '23', '34'])}", kind, size, pick(["SM CASE", "MED BOX", "LG BOX", "MED BAG"])))  # fmt: skip
            for j in range(2):
                self.made["partsupp"][key % 3].append((key, (key + j * 2) % suppliers + 1, int(self.rng.integers(1, 200)), money(1, 1000)))  # fmt: skip

    def add_customers(self, customers: int) -> None:
        for key in range(1, customers + 1):
            nation, balance = int(self.rng.integers(len(NATIONS))), self.money(-900, 9000)
            if key == customers:  # the only one without an order, for query 22
                nation, balance = 1, Decimal(9500)
            self.made["customer"][int(self.rng.integers(3))].append((key, f"Customer#{key}", f"road {key}", nation, f"{10 + nation}-{key}", balance, self.pick(["BUILDING", "AUTOMOBILE"]), self.pick(["", "slow"])))  # fmt: skip

    def add_orders(self, orders: int, customers: int, suppliers: int, parts: int) -> None:
        rng, pick, day = self.rng, self.pick, self.day
        for key in range(1, orders + 1):
            site, ordered = key % 3, day(datetime.date(1993, 1, 1), 1500)
            self.made["orders"][site].append((key, int(rng.integers(1, customers)), pick(["F", "O", "P"]), self.money(1000, 90000), ordered, pick(["1-URGENT", "2-HIGH", "5-LOW"]), 0, pick(["", "special packages requests"])))  # fmt: skip
            for _ in range(int(rng.integers(1, 4)) if key % 9 else 7):
                shipped, part = day(ordered, 120), int(rng.integers(1, parts + 1))
                supplier = (part + 2 * int(rng.integers(2))) % suppliers + 1
                self.made["lineitem"][site].append((
                    key, part, supplier, Decimal(int(rng.integers(1, 51))), self.money(900, 9000), Decimal(int(rng.integers(0, 11))) / 100, Decimal(int(rng.integers(0, 9))) / 100,
                    pick(["R", "A", "N"]), pick(["O", "F"]), shipped, day(ordered, 90), day(shipped, 60), pick(["DELIVER IN PERSON", "NONE"]), pick(["MAIL", "SHIP", "AIR", "AIR REG", "TRUCK"]),
                ))  # fmt: skip


def make_sources(seed: int = 0, customers: int = 12, orders: int = 40) -> dict[str, TableSource]:
    """The tables of three sites."""
    made = _Generator(seed)
    made.add_parts(6, 12)
    made.add_customers(customers)
    made.add_orders(orders, customers, 6, 12)
    fixed = {"region": [(k, name) for k, name in enumerate(REGIONS)], "nation": [(k, name, HOME[k]) for k, name in enumerate(NATIONS)]}  # fmt: skip
    return {f"s{j}": TableSource({name: (TYPES[name], fixed.get(name, made.made[name][j])) for name in TYPES}) for j in range(3)}  # fmt: skip


REVENUE = "l_extendedprice * (1 - l_discount)"
QUERIES = {
    1: "SELECT l_returnflag, l_linestatus, sum(l_quantity), sum(l_extendedprice), sum(l_extendedprice * (1 - l_discount)), sum(l_extendedprice * (1 - l_discount) * (1 + l_tax)), avg(l_quantity), avg(l_extendedprice), avg(l_discount), count(*) FROM lineitem WHERE l_shipdate <= DATE '1998-12-01' - INTERVAL 90 DAY GROUP BY l_returnflag, l_linestatus ORDER BY l_returnflag, l_linestatus",
    2: "SELECT s_acctbal, s_name, n_name, p_partkey, p_mfgr, s_address, s_phone, s_comment FROM part, supplier, partsupp, nation, region WHERE p_partkey = ps_partkey AND s_suppkey = ps_suppkey AND p_size IN (15, 23, 49) AND p_type LIKE '%STEEL' AND s_nationkey = n_nationkey AND n_regionkey = r_regionkey AND r_name <> 'AFRICA' AND ps_supplycost = (SELECT min(ps_supplycost) FROM partsupp, supplier, nation, region WHERE p_partkey = ps_partkey AND s_suppkey = ps_suppkey AND s_nationkey = n_nationkey AND n_regionkey = r_regionkey AND r_name <> 'AFRICA') ORDER BY s_acctbal DESC, n_name, s_name, p_partkey LIMIT 100",
    3: f"SELECT l_orderkey, sum({REVENUE}) AS revenue, o_orderdate, o_shippriority FROM customer, orders, lineitem WHERE c_mktsegment = 'BUILDING' AND c_custkey = o_custkey AND l_orderkey = o_orderkey AND o_orderdate < DATE '1995-03-15' AND l_shipdate > DATE '1994-03-15' GROUP BY l_orderkey, o_orderdate, o_shippriority ORDER BY revenue DESC, o_orderdate LIMIT 10",
    4: "SELECT o_orderpriority, count(*) AS order_count FROM orders WHERE o_orderdate >= DATE '1993-07-01' AND o_orderdate < DATE '1993-07-01' + INTERVAL 12 MONTH AND EXISTS (SELECT * FROM lineitem WHERE l_orderkey = o_orderkey AND l_commitdate < l_receiptdate) GROUP BY o_orderpriority ORDER BY o_orderpriority",
    5: f"SELECT n_name, sum({REVENUE}) AS revenue FROM customer, orders, lineitem, supplier, nation, region WHERE c_custkey = o_custkey AND l_orderkey = o_orderkey AND l_suppkey = s_suppkey AND c_nationkey = s_nationkey AND s_nationkey = n_nationkey AND n_regionkey = r_regionkey AND r_name <> 'ASIA' AND o_orderdate >= DATE '1994-01-01' AND o_orderdate < DATE '1994-01-01' + INTERVAL 3 YEAR GROUP BY n_name ORDER BY revenue DESC",
    6: "SELECT sum(l_extendedprice * l_discount) AS revenue FROM lineitem WHERE l_shipdate >= DATE '1994-01-01' AND l_shipdate < DATE '1994-01-01' + INTERVAL 1 YEAR AND l_discount BETWEEN 0.05 AND 0.07 AND l_quantity < 24",
    7: f"SELECT supp_nation, cust_nation, l_year, sum(volume) AS revenue FROM (SELECT n1.n_name AS supp_nation, n2.n_name AS cust_nation, extract(year FROM l_shipdate) AS l_year, {REVENUE} AS volume FROM supplier, lineitem, orders, customer, nation n1, nation n2 WHERE s_suppkey = l_suppkey AND o_orderkey = l_orderkey AND c_custkey = o_custkey AND s_nationkey = n1.n_nationkey AND c_nationkey = n2.n_nationkey AND ((n1.n_name IN ('FRANCE', 'BRAZIL') AND n2.n_name IN ('GERMANY', 'CHINA')) OR (n1.n_name = 'GERMANY' AND n2.n_name = 'FRANCE')) AND l_shipdate BETWEEN DATE '1993-01-01' AND DATE '1996-12-31') AS shipping GROUP BY supp_nation, cust_nation, l_year ORDER BY supp_nation, cust_nation, l_year",
    8: f"SELECT o_year, sum(CASE WHEN nation = 'BRAZIL' THEN volume ELSE 0 END) / sum(volume) AS mkt_share FROM (SELECT extract(year FROM o_orderdate) AS o_year, {REVENUE} AS volume, n2.n_name AS nation FROM part, supplier, lineitem, orders, customer, nation n1, nation n2, region WHERE p_partkey = l_partkey AND s_suppkey = l_suppkey AND l_orderkey = o_orderkey AND o_custkey = c_custkey AND c_nationkey = n1.n_nationkey AND n1.n_regionkey = r_regionkey AND r_name <> 'AFRICA' AND s_nationkey = n2.n_nationkey AND o_orderdate BETWEEN DATE '1993-01-01' AND DATE '1996-12-31' AND p_type LIKE '%STEEL') AS all_nations GROUP BY o_year ORDER BY o_year",
    9: f"SELECT nation, o_year, sum(amount) AS sum_profit FROM (SELECT n_name AS nation, extract(year FROM o_orderdate) AS o_year, {REVENUE} - ps_supplycost * l_quantity AS amount FROM part, supplier, lineitem, partsupp, orders, nation WHERE s_suppkey = l_suppkey AND ps_suppkey = l_suppkey AND ps_partkey = l_partkey AND p_partkey = l_partkey AND o_orderkey = l_orderkey AND s_nationkey = n_nationkey AND p_name LIKE '%green%') AS profit GROUP BY nation, o_year ORDER BY nation, o_year DESC",
    10: f"SELECT c_custkey, c_name, sum({REVENUE}) AS revenue, c_acctbal, n_name, c_address, c_phone, c_comment FROM customer, orders, lineitem, nation WHERE c_custkey = o_custkey AND l_orderkey = o_orderkey AND o_orderdate >= DATE '1993-10-01' AND o_orderdate < DATE '1993-10-01' + INTERVAL 18 MONTH AND l_returnflag = 'R' AND c_nationkey = n_nationkey GROUP BY c_custkey, c_name, c_acctbal, c_phone, n_name, c_address, c_comment ORDER BY revenue DESC LIMIT 20",
    11: "SELECT ps_partkey, sum(ps_supplycost * ps_availqty) AS value FROM partsupp, supplier, nation WHERE ps_suppkey = s_suppkey AND s_nationkey = n_nationkey AND n_name <> 'GERMANY' GROUP BY ps_partkey HAVING sum(ps_supplycost * ps_availqty) > (SELECT sum(ps_supplycost * ps_availqty) * 0.05 FROM partsupp, supplier, nation WHERE ps_suppkey = s_suppkey AND s_nationkey = n_nationkey AND n_name <> 'GERMANY') ORDER BY value DESC",
    12: "SELECT l_shipmode, sum(CASE WHEN o_orderpriority = '1-URGENT' OR o_orderpriority = '2-HIGH' THEN 1 ELSE 0 END) AS high_line_count, sum(CASE WHEN o_orderpriority <> '1-URGENT' AND o_orderpriority <> '2-HIGH' THEN 1 ELSE 0 END) AS low_line_count FROM orders, lineitem WHERE o_orderkey = l_orderkey AND l_shipmode IN ('MAIL', 'SHIP') AND l_commitdate < l_receiptdate AND l_shipdate < l_commitdate AND l_receiptdate >= DATE '1994-01-01' AND l_receiptdate < DATE '1994-01-01' + INTERVAL 3 YEAR GROUP BY l_shipmode ORDER BY l_shipmode",
    13: "SELECT c_count, count(*) AS custdist FROM (SELECT c_custkey, count(o_orderkey) FROM customer LEFT OUTER JOIN orders ON c_custkey = o_custkey AND o_comment NOT LIKE '%special%requests%' GROUP BY c_custkey) AS c_orders (c_custkey, c_count) GROUP BY c_count ORDER BY custdist DESC, c_count DESC",
    14: f"SELECT 100.00 * sum(CASE WHEN p_type LIKE 'PROMO%' THEN {REVENUE} ELSE 0 END) / sum({REVENUE}) AS promo_revenue FROM lineitem, part WHERE l_partkey = p_partkey AND l_shipdate >= DATE '1995-09-01' AND l_shipdate < DATE '1995-09-01' + INTERVAL 12 MONTH",
    15: f"WITH revenue AS (SELECT l_suppkey AS supplier_no, sum({REVENUE}) AS total_revenue FROM lineitem WHERE l_shipdate >= DATE '1995-01-01' AND l_shipdate < DATE '1995-01-01' + INTERVAL 12 MONTH GROUP BY supplier_no) SELECT s_suppkey, s_name, s_address, s_phone, total_revenue FROM supplier, revenue WHERE s_suppkey = supplier_no AND total_revenue = (SELECT max(total_revenue) FROM revenue) ORDER BY s_suppkey",
    16: "SELECT p_brand, p_type, p_size, count(DISTINCT ps_suppkey) AS supplier_cnt FROM partsupp, part WHERE p_partkey = ps_partkey AND p_brand <> 'Brand#45' AND p_type NOT LIKE 'MEDIUM POLISHED%' AND p_size IN (49, 23, 45, 5, 15, 9) AND ps_suppkey NOT IN (SELECT s_suppkey FROM supplier WHERE s_comment LIKE '%Customer%Complaints%') GROUP BY p_brand, p_type, p_size ORDER BY supplier_cnt DESC, p_brand, p_type, p_size",
    17: "SELECT sum(l_extendedprice) / 7.0 AS avg_yearly FROM lineitem, part WHERE p_partkey = l_partkey AND p_brand = 'Brand#23' AND p_container <> 'SM CASE' AND l_quantity < (SELECT 0.5 * avg(l_quantity) FROM lineitem WHERE l_partkey = p_partkey)",
    18: "SELECT c_name, c_custkey, o_orderkey, o_orderdate, o_totalprice, sum(l_quantity) FROM customer, orders, lineitem WHERE o_orderkey IN (SELECT l_orderkey FROM lineitem GROUP BY l_orderkey HAVING sum(l_quantity) > 100) AND c_custkey = o_custkey AND o_orderkey = l_orderkey GROUP BY c_name, c_custkey, o_orderkey, o_orderdate, o_totalprice ORDER BY o_totalprice DESC, o_orderdate LIMIT 100",
    19: f"SELECT sum({REVENUE}) AS revenue FROM lineitem, part WHERE (p_partkey = l_partkey AND p_brand = 'Brand#12' AND p_container IN ('SM CASE', 'SM BOX') AND l_quantity BETWEEN 1 AND 31 AND p_size BETWEEN 1 AND 15 AND l_shipmode IN ('AIR', 'AIR REG') AND l_shipinstruct = 'DELIVER IN PERSON') OR (p_partkey = l_partkey AND p_brand = 'Brand#23' AND p_container IN ('MED BAG', 'MED BOX') AND l_quantity BETWEEN 10 AND 40 AND p_size BETWEEN 1 AND 50 AND l_shipmode IN ('AIR', 'AIR REG') AND l_shipinstruct = 'DELIVER IN PERSON')",
    20: "SELECT s_name, s_address FROM supplier, nation WHERE s_suppkey IN (SELECT ps_suppkey FROM partsupp WHERE ps_partkey IN (SELECT p_partkey FROM part WHERE p_name LIKE 'forest%') AND ps_availqty > (SELECT 0.5 * sum(l_quantity) FROM lineitem WHERE l_partkey = ps_partkey AND l_suppkey = ps_suppkey AND l_shipdate >= DATE '1994-01-01' AND l_shipdate < DATE '1994-01-01' + INTERVAL 1 YEAR)) AND s_nationkey = n_nationkey AND n_name <> 'CANADA' ORDER BY s_name",
    21: "SELECT s_name, count(*) AS numwait FROM supplier, lineitem l1, orders, nation WHERE s_suppkey = l1.l_suppkey AND o_orderkey = l1.l_orderkey AND o_orderstatus = 'F' AND l1.l_receiptdate > l1.l_commitdate AND EXISTS (SELECT * FROM lineitem l2 WHERE l2.l_orderkey = l1.l_orderkey AND l2.l_suppkey <> l1.l_suppkey) AND NOT EXISTS (SELECT * FROM lineitem l3 WHERE l3.l_orderkey = l1.l_orderkey AND l3.l_suppkey <> l1.l_suppkey AND l3.l_receiptdate > l3.l_commitdate) AND s_nationkey = n_nationkey AND n_name <> 'CHINA' GROUP BY s_name ORDER BY numwait DESC, s_name LIMIT 100",
    22: "SELECT cntrycode, count(*) AS numcust, sum(c_acctbal) AS totacctbal FROM (SELECT substring(c_phone, 1, 2) AS cntrycode, c_acctbal FROM customer WHERE substring(c_phone, 1, 2) IN ('13', '11', '14', '12', '10') AND c_acctbal > (SELECT avg(c_acctbal) FROM customer WHERE c_acctbal > 0.00 AND substring(c_phone, 1, 2) IN ('13', '11', '14', '12', '10')) AND NOT EXISTS (SELECT * FROM orders WHERE o_custkey = c_custkey)) AS custsale GROUP BY cntrycode ORDER BY cntrycode",
}
"""Number -> SQL."""
