"""Rewrite graphs that read frames: dask calls `optimize` for every graph of arrays.

What dask's own optimizer makes of a graph is rewritten by the rules of `rules.registry`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import dask
import dask.array as da
from dask.core import flatten
from dask.highlevelgraph import HighLevelGraph

from b2nd_dask.graph.optimize.rewrite import rewrite
from b2nd_dask.graph.optimize.switch import RULE_NAMES, chosen_rules
from b2nd_dask.graph.read.blocks import FrameBlocks

Optimizer = Callable[..., Any]
_UNSET = object()


def install() -> None:
    """Make dask arrays use `optimize`, unless the user's setting ``array_optimize`` says otherwise.

    The setting itself is left alone: a function in dask's configuration could not be sent to the
    workers of a cluster, as dask does with it.
    """
    if da.array_expr_enabled():
        return  # then arrays have no graph of layers to optimize
    da.Array.__dask_optimize__ = _Hook(inspect.getattr_static(da.Array, "__dask_optimize__"))


class _Hook:
    """The attribute ``__dask_optimize__`` of dask arrays.

    Parameters
    ----------
    own : object
        What the attribute was: a descriptor that looks at ``array_optimize``.
    """

    def __init__(self, own: Any) -> None:
        self._own = own

    def __get__(self, instance: object, owner: type | None = None) -> Optimizer:
        own: Optimizer = self._own.__get__(instance, owner)
        if dask.config.get("array_optimize", _UNSET) is not _UNSET:
            return own
        rules = chosen_rules()
        return _ArrayOptimizer(own, rules) if rules else own


class _ArrayOptimizer:
    """`optimize`, as dask keeps it with every array and sends it to a scheduler.

    It pickles as "the way that arrays are optimized in your process": a scheduler without this
    package takes dask's own. It is equal to dask's own, which collections of other packages hold:
    dask computes collections with unequal ones apart, and then gives their results in another
    order (dask 2026.8.0).

    Parameters
    ----------
    own : callable
        dask's own.
    rules : tuple of str
        The rules to apply.
    """

    def __init__(self, own: Optimizer, rules: tuple[str, ...]) -> None:
        self.own = own
        self.rules = rules

    def __call__(self, dsk: Any, keys: Any, **kwargs: Any) -> Any:
        return _optimized(self.own, self.rules, dsk, keys, **kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        # what is no choice is left to the scheduler's own configuration
        chosen = None if self.rules == RULE_NAMES else {"rules": self.rules}
        return getattr, (da.Array, "__dask_optimize__"), chosen

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ArrayOptimizer) or other == self.own

    def __hash__(self) -> int:
        return hash(self.own)


def optimize(dsk: Any, keys: Any, **kwargs: Any) -> Any:
    """Optimize a graph of arrays as dask does, then rewrite what reads frames.

    Parameters
    ----------
    dsk, keys, **kwargs
        As for dask's own optimizer of arrays, `dask.array.optimize`.

    Returns
    -------
    Mapping
        The optimized graph.
    """
    return _optimized(da.optimize, chosen_rules(), dsk, keys, **kwargs)


def _optimized(own: Optimizer, rules: tuple[str, ...], dsk: Any, keys: Any, **kwargs: Any) -> Any:
    ours = isinstance(dsk, HighLevelGraph) and any(map(_reads_frames, dsk.layers.values()))
    found = own(dsk, keys, **kwargs)
    # with fusion turned off the graph keeps its layers
    if not ours or isinstance(found, HighLevelGraph):
        return found
    return rewrite(found, set(flatten(keys if isinstance(keys, list | set) else [keys])), rules)


def _reads_frames(layer: Any) -> bool:
    return any(isinstance(dep, FrameBlocks) for dep in getattr(layer, "io_deps", {}).values())
