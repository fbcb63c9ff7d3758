"""The hook in dask, called for every graph of arrays.

This module needs only documented names of dask. `rewrite`, which needs private ones, replaces
layers by layers that read; dask's own optimizer then continues. dask's own graph is used if a
name of dask is missing or changed, a rule raises an exception, or the rewritten graph is unsound;
a warning reports this once per process.

The key ``b2nd_dask.optimize`` of dask's configuration selects the rules: true (all, the default),
false (none: dask's own graph is used), a list of names from `RULE_NAMES`, or these names in a
string. Like any key of dask, it may be set in a YAML file, by ``dask.config.set`` or in the
environment, there as ``DASK_B2ND_DASK__OPTIMIZE``.

If the key ``b2nd_dask.statistics`` is false (default: true), no rule takes results from statistics
of chunks instead of reading the chunks.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Collection
from functools import cache
from types import ModuleType
from typing import Any

import dask
import dask.array as da
from dask.highlevelgraph import HighLevelGraph

from b2nd_dask.graph._dask_compat import has_query_planning, logger, resolve_all, warn_once

Optimizer = Callable[..., Any]
_UNSET = object()

KEY = "b2nd_dask.optimize"
STATISTICS_KEY = "b2nd_dask.statistics"
#: Values of environment variables for true and false.
_SWITCHES = {
    **dict.fromkeys(("true", "on", "yes", "1"), True),
    **dict.fromkeys(("false", "off", "no", "0"), False),
}
#: Defined here, since the modules of the rules may fail to import.
RULE_NAMES = (
    "read_at_once",
    "slices",
    "new_blocks",
    "elementwise",
    "reductions",
    "merge_blocks",
    "positions",
    "late_reads",
    "views",
    "statistics",
    "masks",
)
#: The rules that `STATISTICS_KEY` disables.
STATISTICS_RULES = frozenset({"statistics", "masks"})


def install() -> None:
    """Install the optimizer of dask arrays; the user's setting ``array_optimize`` takes precedence.

    The setting itself stays unchanged: dask sends its configuration to the workers of a cluster,
    and a function in it could not be sent.
    """
    if has_query_planning():
        # expressions have no graph of layers to optimize
        logger.info("array.query-planning is on: graphs that read frames stay as dask makes them")
        return
    try:
        before = _plain_hook()
        before.__get__(None, da.Array)
        da.Array.__dask_optimize__ = _Hook(before)
    except Exception as error:  # noqa: BLE001 - then dask alone optimizes arrays
        warn_once("b2nd_dask leaves all graphs as dask has optimized them", error)


def _plain_hook() -> Any:
    """Return the attribute ``__dask_optimize__`` of dask arrays from before `install`."""
    found = inspect.getattr_static(da.Array, "__dask_optimize__")
    return found.before if isinstance(found, _Hook) else found


class _Hook:
    """The attribute ``__dask_optimize__`` of dask arrays.

    `before` is the replaced attribute: a descriptor that reads ``array_optimize``.
    """

    def __init__(self, before: Any) -> None:
        self.before = before

    def __get__(self, instance: object, owner: type | None = None) -> Optimizer:
        own: Optimizer = self.before.__get__(instance, owner)
        if dask.config.get("array_optimize", _UNSET) is not _UNSET:
            return own
        settings = _settings()
        return own if settings[0] is False else _ArrayOptimizer(own, *settings)


class _ArrayOptimizer:
    """The optimizer that dask stores with every array and sends to a scheduler.

    It pickles as "the optimizer of arrays in your process": a scheduler without this package uses
    dask's own. It compares equal to dask's own, which collections of other packages have: dask
    2026.8.0 computes collections with unequal optimizers separately, and changes their order.
    """

    def __init__(self, own: Optimizer, setting: Any, statistics: Any) -> None:
        self.own = own
        self.setting = setting
        self.statistics = statistics

    def __call__(self, dsk: Any, keys: Any, **kwargs: Any) -> Any:
        made = self._rewritten(dsk, keys, **kwargs)
        return self.own(dsk, keys, **kwargs) if made is None else made

    def _rewritten(self, dsk: Any, keys: Any, **kwargs: Any) -> Any:
        """The tasks that the rules make of a graph; None to leave the graph to dask."""
        # a user who disables fusion wants to see the layers
        if dask.config.get("optimization.fuse.active", None) is False or not _reads_frames(dsk):
            return None
        try:
            rules = chosen_rules(self.setting, self.statistics)
            return _rewriting().rewritten(self.own, dsk, keys, rules, **kwargs) if rules else None
        except SettingError:
            raise
        except Exception as error:  # noqa: BLE001 - in any case dask's own graph is right
            warn_once("b2nd_dask leaves a graph as dask has optimized it", error)
            return None

    def __reduce__(self) -> tuple[Any, ...]:
        # with the default, all rules, the scheduler's own configuration decides
        is_default = self.setting in (None, True) and self.statistics is True
        chosen = None if is_default else {"setting": self.setting, "statistics": self.statistics}
        return getattr, (da.Array, "__dask_optimize__"), chosen

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ArrayOptimizer) or other == self.own

    def __hash__(self) -> int:
        return hash(self.own)


class SettingError(ValueError):
    """A setting of this package in dask's configuration is invalid."""


def _settings() -> tuple[Any, Any]:
    """The arguments for `chosen_rules` from dask's configuration."""
    return dask.config.get(KEY, None), dask.config.get(STATISTICS_KEY, True)


def active_rules() -> tuple[str, ...]:
    """Names of the rules that dask's configuration enables, in the order of `RULE_NAMES`."""
    return chosen_rules(*_settings())


def chosen_rules(setting: Any, statistics: Any = True) -> tuple[str, ...]:
    """Names of the rules that settings enable, in the order of `RULE_NAMES`.

    The settings are values of `KEY` and `STATISTICS_KEY`; raises `SettingError` for invalid ones.
    """
    names = _names_in(setting)
    prunes = True if statistics is None else _SWITCHES.get(str(statistics).lower())
    if prunes is None:
        raise SettingError(
            f"{STATISTICS_KEY} in dask's configuration must be true or false, not {statistics!r}"
        )
    left_out = frozenset() if prunes else STATISTICS_RULES
    return tuple(name for name in RULE_NAMES if name in names and name not in left_out)


def _names_in(setting: Any) -> Collection[str]:
    switch = True if setting is None else _SWITCHES.get(str(setting).lower())
    if switch is not None:
        return RULE_NAMES if switch else ()
    names = setting.replace(",", " ").split() if isinstance(setting, str) else setting
    listed = isinstance(names, list | tuple | set | frozenset)
    if not listed or not all(name in RULE_NAMES for name in names):
        raise SettingError(
            f"{KEY} in dask's configuration must be true, false or a list of rules "
            f"({', '.join(RULE_NAMES)}), not {setting!r}"
        )
    return names


def _reads_frames(dsk: Any) -> bool:
    # this module defines the class of reads: if it is not loaded, no graph reads a frame
    blocks = sys.modules.get("b2nd_dask.graph.read.blocks")
    if blocks is None or not isinstance(dsk, HighLevelGraph):
        return False
    return next(blocks.readings(dsk), None) is not None


@cache
def _rewriting() -> ModuleType:
    """The module `rewrite`, imported for the first graph that reads a frame.

    After a failure the next graph tries again.
    """
    resolve_all()
    from b2nd_dask.graph.optimize import rewrite

    return rewrite
