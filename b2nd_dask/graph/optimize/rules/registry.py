"""The rewrite rules, in the order in which they are applied."""

from __future__ import annotations

from b2nd_dask.graph.optimize.rules.aliases import ALIASES
from b2nd_dask.graph.optimize.rules.index_pushdown import INDEX_PUSHDOWN
from b2nd_dask.graph.optimize.rules.inline import INLINE_READS
from b2nd_dask.graph.optimize.rules.merge import MERGE_BLOCKS
from b2nd_dask.graph.optimize.rules.reduction_pushdown import REDUCTION_PUSHDOWN
from b2nd_dask.graph.optimize.rules.rule import GraphRule, Rule
from b2nd_dask.graph.optimize.rules.views import give_views

CONSTANT_VIEWS = GraphRule(
    "constant_views",
    "A block of one repeated value takes no time and no memory as a view of a single element.",
    # the replacement looks itself for what must be writable
    lambda tasks, output_keys: bool(tasks),
    lambda tasks, output_keys, found: give_views(tasks, output_keys),
)

RULES: tuple[Rule, ...] = (
    ALIASES,
    INLINE_READS,
    REDUCTION_PUSHDOWN,
    INDEX_PUSHDOWN,
    MERGE_BLOCKS,
    CONSTANT_VIEWS,
)
