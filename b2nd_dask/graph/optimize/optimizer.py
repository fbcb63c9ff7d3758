"""The hook in dask, which is called for every graph of arrays.

This module needs documented names of dask alone. `rewrite`, which needs others, replaces layers by
such as read, and dask's own optimizer goes on with them. dask's own graph stays where a name of
dask is missing or changed, a rule raises an exception, or the rewritten graph is unsound; a warning
then says so, once a process.

The key ``b2nd_dask.optimize`` of dask's configuration selects the rules: true (all, the default),
false (none: dask's own graph is used as it is), a list of names out of `RULE_NAMES`, or these names
in a string. As any key of dask's it may stand in a YAML file, in ``dask.config.set`` and in the
environment, there as ``DASK_B2ND_DASK__OPTIMIZE``.

The key ``b2nd_dask.statistics`` (true by default) switches off, if it is false, the rules that take
results from statistics of chunks instead of reading these.
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

from b2nd_dask.graph._dask_compat import is_planned, logger, resolve_all, warn_once

Optimizer = Callable[..., Any]
_UNSET = object()

KEY = "b2nd_dask.optimize"
STATISTICS_KEY = "b2nd_dask.statistics"
#: What environment variables say for true and false.
_SWITCHES = {
    **dict.fromkeys(("true", "on", "yes", "1"), True),
    **dict.fromkeys(("false", "off", "no", "0"), False),
}
#: Here, since they must be known where the rules themselves cannot be imported.
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
#: Those that `STATISTICS_KEY` switches off.
STATISTICS_RULES = frozenset({"statistics", "masks"})


def install() -> None:
    """Optimize dask arrays here, unless the user's setting ``array_optimize`` says otherwise.

    The setting itself is left alone: a function in dask's configuration could not be sent to the
    workers of a cluster, as dask does with it.
    """
    if is_planned():
        # arrays have no graph of layers to optimize
        logger.info("array.query-planning is on: graphs that read frames stay as dask makes them")
        return
    try:
        before = _plain_hook()
        before.__get__(None, da.Array)
        da.Array.__dask_optimize__ = _Hook(before)
    except Exception as error:  # noqa: BLE001 - then arrays are optimized by dask alone
        warn_once("b2nd_dask leaves all graphs as dask has optimized them", error)


def _plain_hook() -> Any:
    """Return the attribute ``__dask_optimize__`` of dask arrays from before `install`."""
    found = inspect.getattr_static(da.Array, "__dask_optimize__")
    return found.before if isinstance(found, _Hook) else found


class _Hook:
    """The attribute ``__dask_optimize__`` of dask arrays.

    `before` is the attribute that it replaces: a descriptor that looks at ``array_optimize``.
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
    """The optimizer that dask stores with every array, and sends to a scheduler.

    It pickles as "the way that arrays are optimized in your process": a scheduler without this
    package uses dask's own. It is equal to dask's own, which collections of other packages hold:
    dask computes collections with unequal ones apart, and then returns their results in another
    order (dask 2026.8.0).
    """

    def __init__(self, own: Optimizer, setting: Any, statistics: Any) -> None:
        self.own = own
        self.setting = setting
        self.statistics = statistics

    def __call__(self, dsk: Any, keys: Any, **kwargs: Any) -> Any:
        made = self._rewritten(dsk, keys, **kwargs)
        return self.own(dsk, keys, **kwargs) if made is None else made

    def _rewritten(self, dsk: Any, keys: Any, **kwargs: Any) -> Any:
        """The tasks that the rules make of a graph; None where it is left to dask."""
        # who turns fusion off wants to see the layers
        if dask.config.get("optimization.fuse.active", None) is False or not _reads_frames(dsk):
            return None
        try:
            rules = chosen_rules(self.setting, self.statistics)
            return _rewriting().rewritten(self.own, dsk, keys, rules, **kwargs) if rules else None
        except SettingError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, dask's own graph is right
            warn_once("b2nd_dask leaves a graph as dask has optimized it", error)
            return None

    def __reduce__(self) -> tuple[Any, ...]:
        # all rules, the default, leave the choice to the scheduler's own configuration
        is_default = self.setting in (None, True) and self.statistics is True
        chosen = None if is_default else {"setting": self.setting, "statistics": self.statistics}
        return getattr, (da.Array, "__dask_optimize__"), chosen

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ArrayOptimizer) or other == self.own

    def __hash__(self) -> int:
        return hash(self.own)


class SettingError(ValueError):
    """A setting of this package in dask's configuration that means nothing."""


def _settings() -> tuple[Any, Any]:
    """The arguments of `chosen_rules` in dask's configuration."""
    return dask.config.get(KEY, None), dask.config.get(STATISTICS_KEY, True)


def active_rules() -> tuple[str, ...]:
    """Names of the rules that dask's configuration switches on; as `chosen_rules`."""
    return chosen_rules(*_settings())


def chosen_rules(setting: Any, statistics: Any = True) -> tuple[str, ...]:
    """Names of the rules that settings switch on, in the order of `RULE_NAMES`.

    Parameters
    ----------
    setting, statistics
        Values of `KEY` and `STATISTICS_KEY`.

    Raises
    ------
    SettingError
        A setting means nothing.
    """
    names = _names_in(setting)
    asks = True if statistics is None else _SWITCHES.get(str(statistics).lower())
    if asks is None:
        raise SettingError(
            f"{STATISTICS_KEY} in dask's configuration must be true or false, not {statistics!r}"
        )
    left_out = frozenset() if asks else STATISTICS_RULES
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
    # what a graph reads is of a class there: without the module there is none
    blocks = sys.modules.get("b2nd_dask.graph.read.blocks")
    if blocks is None or not isinstance(dsk, HighLevelGraph):
        return False
    return next(blocks.readings(dsk), None) is not None


def _rewriting() -> Any:
    """The module `rewrite`, imported for the first graph that reads a frame."""
    found = _imported()
    if isinstance(found, Exception):
        raise found
    return found


@cache
def _imported() -> ModuleType | Exception:
    """The module `rewrite`, or why it cannot be imported, which is final."""
    try:
        resolve_all()
        from b2nd_dask.graph.optimize import rewrite
    except Exception as error:  # noqa: BLE001 - raised for each graph
        return error
    return rewrite
