"""Calls that wait until another package is imported, which is not imported for them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType


def when_imported(package: str, call: Callable[[], None]) -> None:
    """Call now if a package is imported, otherwise when it will be.

    xarray has no way to announce an accessor without importing it, which takes a second; and
    ``import b2nd_dask`` stands before ``import xarray`` where imports are sorted.
    """
    if package in sys.modules:
        call()
    else:
        sys.meta_path.insert(0, _Watcher(package, call))


class _Watcher(MetaPathFinder):
    """Finds one package as all other finders do, and calls when it has run."""

    def __init__(self, package: str, call: Callable[[], None]) -> None:
        self._package, self._call = package, call

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find the package once."""
        if fullname != self._package:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(fullname)
        loader = None if spec is None else spec.loader
        if loader is None:
            return spec
        run = loader.exec_module

        def run_and_call(module: ModuleType) -> None:
            run(module)
            self._call()

        loader.exec_module = run_and_call  # type: ignore[method-assign]
        return spec
