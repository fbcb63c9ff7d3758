"""Blosc2 frames (b2nd, Caterva) as dask arrays: parallel, out of core.

Importing the package also sets ``from_b2nd`` and ``to_b2nd`` in ``dask.array``, and the method
``to_b2nd`` of ``dask.array.Array``, and the way its graphs are optimized; its method ``rechunk``
reads frames in the new blocks where that costs little.
"""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

import dask.array as _da

from b2nd_dask._version import __version__
from b2nd_dask.edges.display import install as _install_display
from b2nd_dask.edges.inputs import install as _install_inputs
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
from b2nd_dask.frame.compact import compact
from b2nd_dask.frame.seal import add_stats, seal
from b2nd_dask.frame.verify import Verification, verify
from b2nd_dask.frame.write.parts import commit
from b2nd_dask.graph.optimize.optimizer import install as _install
from b2nd_dask.graph.persist import persist_compressed
from b2nd_dask.graph.plan.plan import FrameReads, Plan, Target, plan
from b2nd_dask.graph.read.from_b2nd import from_b2nd
from b2nd_dask.graph.write.parts import create
from b2nd_dask.graph.write.rechunk import rechunk
from b2nd_dask.graph.write.to_b2nd import to_b2nd
from b2nd_dask.storage import StagingInfo, list_staging, remove_staging

if _TYPE_CHECKING:
    from b2nd_dask import plot
    from b2nd_dask.edges.convert.convert import convert

_install()
_install_display()
_install_inputs()
_da.from_b2nd = from_b2nd  # type: ignore[attr-defined]
_da.to_b2nd = to_b2nd  # type: ignore[attr-defined]
_da.Array.to_b2nd = to_b2nd  # type: ignore[attr-defined]

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


def __getattr__(name: str) -> _Any:
    """Import what few programs use when it is first asked for."""
    if name == "plot":
        return _import_module("b2nd_dask.plot")
    if name == "convert":
        return _import_module("b2nd_dask.edges.convert.convert").convert
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
