"""Blosc2 frames (b2nd, Caterva) as dask arrays: parallel, out of core.

Importing the package adds ``from_b2nd`` and ``to_b2nd`` to ``dask.array`` and the method
``to_b2nd`` to ``dask.array.Array``. It also installs its graph optimization. The modules behind
these names are imported at first use.
"""

import sys as _sys
from importlib import import_module as _import_module
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

import dask.array as _da

from b2nd_dask._version import __version__ as __version__
from b2nd_dask.graph.optimize.optimizer import install as _install

if _TYPE_CHECKING:
    # the names of `_NAMES`
    from b2nd_dask import plot
    from b2nd_dask.edges.convert.convert import convert
    from b2nd_dask.errors import (
        B2ndError,
        ChecksumError,
        CorruptChunkError,
        FrameFormatError,
        StaleFrameError,
        UninitializedChunkError,
        UnsupportedFrameError,
        VersionMismatchError,
    )
    from b2nd_dask.format.index import ChunkKind
    from b2nd_dask.frame.access import open_b2nd
    from b2nd_dask.frame.array import Frame
    from b2nd_dask.frame.checksums import Verification, verify
    from b2nd_dask.frame.upkeep import add_stats, compact, seal
    from b2nd_dask.frame.write.parts import commit
    from b2nd_dask.graph.persist import persist_compressed
    from b2nd_dask.graph.plan.plan import FrameReads, Plan, Target, plan
    from b2nd_dask.graph.read.from_b2nd import from_b2nd
    from b2nd_dask.graph.write.parts import create
    from b2nd_dask.graph.write.rechunk import rechunk
    from b2nd_dask.graph.write.to_b2nd import to_b2nd
    from b2nd_dask.storage import StagingInfo, list_staging, remove_staging

#: The public names of each module, which is imported at first use.
_NAMES = {
    "edges.convert.convert": ("convert",),
    "errors": (
        "B2ndError",
        "ChecksumError",
        "CorruptChunkError",
        "FrameFormatError",
        "StaleFrameError",
        "UninitializedChunkError",
        "UnsupportedFrameError",
        "VersionMismatchError",
    ),
    "format.index": ("ChunkKind",),
    "frame.access": ("open_b2nd",),
    "frame.array": ("Frame",),
    "frame.checksums": ("Verification", "verify"),
    "frame.upkeep": ("add_stats", "compact", "seal"),
    "frame.write.parts": ("commit",),
    "graph.persist": ("persist_compressed",),
    "graph.plan.plan": ("FrameReads", "Plan", "Target", "plan"),
    "graph.read.from_b2nd": ("from_b2nd",),
    "graph.write.parts": ("create",),
    "graph.write.rechunk": ("rechunk",),
    "graph.write.to_b2nd": ("to_b2nd",),
    "plot": ("plot",),
    "storage": ("StagingInfo", "list_staging", "remove_staging"),
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names}
# a literal, which type checkers read
__all__ = [
    "B2ndError",
    "ChecksumError",
    "ChunkKind",
    "CorruptChunkError",
    "Frame",
    "FrameFormatError",
    "FrameReads",
    "Plan",
    "StagingInfo",
    "StaleFrameError",
    "Target",
    "UninitializedChunkError",
    "UnsupportedFrameError",
    "Verification",
    "VersionMismatchError",
    "__version__",
    "add_stats",
    "commit",
    "compact",
    "convert",
    "create",
    "from_b2nd",
    "list_staging",
    "open_b2nd",
    "persist_compressed",
    "plan",
    "plot",
    "rechunk",
    "remove_staging",
    "seal",
    "to_b2nd",
    "verify",
]
_OF_DASK = ("from_b2nd", "to_b2nd")


def __getattr__(name: str) -> _Any:
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = _import_module(f"{__name__}.{module}")
    # importing `plot` has set it already
    return globals().setdefault(name, getattr(found, name, found))


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


class _ToB2nd:
    """The method `to_b2nd` of dask arrays, imported at first use."""

    def __get__(self, array: object, owner: type | None = None) -> _Any:
        return __getattr__("to_b2nd").__get__(array, owner)


#: The previous `__getattr__` of `dask.array`, by dask or another package.
_otherwise = vars(_da).get("__getattr__")
if getattr(_otherwise, "__module__", None) == __name__:
    # it comes from an earlier import of this module
    _otherwise = None


def _name_of_dask(name: str) -> _Any:
    """Return an attribute of `dask.array` that dask does not define itself."""
    if name in _OF_DASK:
        return __getattr__(name)
    if _otherwise is not None:
        return _otherwise(name)
    raise AttributeError(f"module {_da.__name__!r} has no attribute {name!r}")


_install()
_da.Array.to_b2nd = _ToB2nd()  # type: ignore[attr-defined]
_da.__getattr__ = _name_of_dask  # type: ignore[method-assign]
_da.__dir__ = lambda: sorted({*vars(_da), *_OF_DASK})  # type: ignore[method-assign]
# importing dask.array imports xarray if it is installed
if _sys.modules.get("xarray") is not None:
    _import_module("b2nd_dask.edges.xarray.accessor").register()
