"""Which rewrite rules the user wants: the key ``b2nd_dask.optimize`` of dask's configuration.

Its values are true (all rules, the default), false (none: dask's own graph is used as it is) and a
list of names out of `RULE_NAMES`, or these names in a string. As any key of dask's it may stand in
a YAML file, in ``dask.config.set`` and in the environment, there as ``DASK_B2ND_DASK__OPTIMIZE``.
"""

from __future__ import annotations

from typing import Any

import dask

KEY = "b2nd_dask.optimize"
#: In the order in which they are applied. Here, since they must be known where the rules themselves
#: cannot be imported.
RULE_NAMES = (
    "aliases",
    "inline_reads",
    "reduction_pushdown",
    "index_pushdown",
    "merge_blocks",
    "constant_views",
)


def chosen_rules() -> tuple[str, ...]:
    """Names of the rules that are switched on, in the order in which they are applied.

    Raises
    ------
    ValueError
        The setting is no switch, or names a rule that does not exist.
    """
    value: Any = dask.config.get(KEY, None)
    if value is None or value is True:
        return RULE_NAMES
    if value is False:
        return ()
    names = value.replace(",", " ").split() if isinstance(value, str) else value
    listed = isinstance(names, list | tuple | set | frozenset)
    if not listed or not all(name in RULE_NAMES for name in names):
        raise ValueError(
            f"{KEY} in dask's configuration must be true, false or a list of rules "
            f"({', '.join(RULE_NAMES)}), not {value!r}"
        )
    return tuple(name for name in RULE_NAMES if name in names)
