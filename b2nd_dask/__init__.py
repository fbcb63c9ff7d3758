"""Blosc2 frames (b2nd, Caterva) as dask arrays: parallel, out of core.

Importing the package adds ``from_b2nd`` and ``to_b2nd`` to ``dask.array`` and the method
``to_b2nd`` to ``dask.array.Array``. It also installs its graph optimization. The modules behind
these names are imported at first use.
"""

import sys as _sys
from importlib import import_module as _import_module
from typing import Any as _Any

import dask.array as _da
import lazy_loader as _lazy_loader

from b2nd_dask._version import __version__ as __version__
from b2nd_dask.graph.optimize.optimizer import install as _install

_DASK_NAMES = ("from_b2nd", "to_b2nd")

# the names of `__init__.pyi`, each imported at first use
__getattr__, __dir__, __all__ = _lazy_loader.attach_stub(__name__, __file__)


class _ToB2nd:
    """The method `to_b2nd` of dask arrays, imported at first use."""

    def __get__(self, array: object, owner: type | None = None) -> _Any:
        return __getattr__("to_b2nd").__get__(array, owner)


#: The previous `__getattr__` of `dask.array`, which dask or another package has defined.
_dask_getattr = vars(_da).get("__getattr__")
if getattr(_dask_getattr, "__module__", None) == __name__:
    # it comes from an earlier import of this module
    _dask_getattr = None


def _getattr(name: str) -> _Any:
    """Return an attribute of `dask.array` that dask does not define itself."""
    if name in _DASK_NAMES:
        return __getattr__(name)
    if _dask_getattr is not None:
        return _dask_getattr(name)
    raise AttributeError(f"module {_da.__name__!r} has no attribute {name!r}")


_install()
_da.Array.to_b2nd = _ToB2nd()  # type: ignore[attr-defined]
_da.__getattr__ = _getattr  # type: ignore[method-assign]
_da.__dir__ = lambda: sorted({*vars(_da), *_DASK_NAMES})  # type: ignore[method-assign]
# importing dask.array imports xarray if it is installed
if _sys.modules.get("xarray") is not None:
    _import_module("b2nd_dask.edges.xarray.accessor").register()
