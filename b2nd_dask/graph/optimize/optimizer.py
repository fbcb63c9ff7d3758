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
from collections.abc import Callable
from types import ModuleType
from typing import Any

import dask
import dask.array as da
from dask.highlevelgraph import HighLevelGraph

from b2nd_dask.graph._dask_compat import is_planned, logger, resolve_all, warn_once
from b2nd_dask.graph.read.blocks import readings

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
        setting = _setting()
        return own if setting is False else _ArrayOptimizer(own, setting)


def _setting() -> Any:
    """The user's choice of rules: for `chosen_rules`, or the error that it is."""
    setting = dask.config.get(KEY, None)
    if dask.config.get(STATISTICS_KEY, True) is True or setting is False:
        return setting
    asks = _SWITCHES.get(str(dask.config.get(STATISTICS_KEY)).lower())
    if asks is None:
        return SettingError(f"{STATISTICS_KEY} in dask's configuration must be true or false")
    try:
        names = chosen_rules(setting)
    except SettingError as error:
        return error
    return names if asks else [name for name in names if name not in STATISTICS_RULES]


def active_rules() -> tuple[str, ...]:
    """Names of the rules that dask's configuration switches on.

    Raises
    ------
    ValueError
        A setting means nothing.
    """
    return chosen_rules(_setting())


class _ArrayOptimizer:
    """The optimizer that dask stores with every array, and sends to a scheduler.

    It pickles as "the way that arrays are optimized in your process": a scheduler without this
    package uses dask's own. It is equal to dask's own, which collections of other packages hold:
    dask computes collections with unequal ones apart, and then returns their results in another
    order (dask 2026.8.0).
    """

    def __init__(self, own: Optimizer, setting: Any) -> None:
        self.own = own
        self.setting = setting

    def __call__(self, dsk: Any, keys: Any, **kwargs: Any) -> Any:
        made = _rewritten(self.own, self.setting, dsk, keys, **kwargs)
        return self.own(dsk, keys, **kwargs) if made is None else made

    def __reduce__(self) -> tuple[Any, ...]:
        # all rules, the default, leave the choice to the scheduler's own configuration
        chosen = None if self.setting in (None, True) else {"setting": self.setting}
        return getattr, (da.Array, "__dask_optimize__"), chosen

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ArrayOptimizer) or other == self.own

    def __hash__(self) -> int:
        return hash(self.own)


class SettingError(ValueError):
    """A setting of this package in dask's configuration that means nothing."""


def chosen_rules(setting: Any) -> tuple[str, ...]:
    """Names of the rules that a setting switches on, in the order of `RULE_NAMES`."""
    if isinstance(setting, SettingError):
        raise setting
    if setting is None or (switch := _SWITCHES.get(str(setting).lower())):
        return RULE_NAMES
    if switch is False:
        return ()
    names = setting.replace(",", " ").split() if isinstance(setting, str) else setting
    listed = isinstance(names, list | tuple | set | frozenset)
    if not listed or not all(name in RULE_NAMES for name in names):
        raise SettingError(
            f"{KEY} in dask's configuration must be true, false or a list of rules "
            f"({', '.join(RULE_NAMES)}), not {setting!r}"
        )
    return tuple(name for name in RULE_NAMES if name in names)


def _rewritten(own: Optimizer, setting: Any, dsk: Any, keys: Any, **kwargs: Any) -> Any:
    """The tasks that the rules make of a graph; None where it is left to dask."""
    # who turns fusion off wants to see the layers
    if dask.config.get("optimization.fuse.active", None) is False:
        return None
    try:
        rules = chosen_rules(setting) if _reads_frames(dsk) else ()
        return _Rules.load().rewritten(own, dsk, keys, rules, **kwargs) if rules else None
    except SettingError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever it is, dask's own graph is right
        warn_once("b2nd_dask leaves a graph as dask has optimized it", error)
        return None


def _reads_frames(dsk: Any) -> bool:
    return isinstance(dsk, HighLevelGraph) and next(readings(dsk), None) is not None


class _Rules:
    """Import the rules for the first graph that reads a frame; a failure is final."""

    _found: ModuleType | Exception | None = None

    @classmethod
    def load(cls) -> Any:
        """The module `rewrite`."""
        if cls._found is None:
            try:
                resolve_all()
                from b2nd_dask.graph.optimize import rewrite

                cls._found = rewrite
            except Exception as error:  # noqa: BLE001 - raised again below, each time
                cls._found = error
        if isinstance(cls._found, Exception):
            raise cls._found
        return cls._found
