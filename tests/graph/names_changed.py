"""Missing or changed names of dask, each with a fresh import of the package.

Run this in its own process: it replaces modules.
"""

import importlib
import sys
import warnings
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType

import dask
import dask.array as da
import numpy as np

from b2nd_dask.graph import _dask_compat
from b2nd_dask.graph.optimize import optimizer

NAMES = _dask_compat.NAMES
_real = importlib.import_module


def check_each(folder: Path, way: str, writing: list[str]) -> int:
    """Check all names, those of `writing` also by writes; return their number."""
    check = _Check(folder, way)
    dask.config.set(scheduler="sync")
    _compile_once()
    if way == "missing":
        check.without(NAMES, full=True)
    for entry in NAMES:
        check.without([entry], full=way == "missing" and entry.name in writing)
    # of the package as it was
    assert not _dask_compat._Warned.done
    return len(NAMES)


def _compile_once() -> None:
    """Cache the compiled modules: without byte code files a fresh import mostly compiles."""
    original, known = SourceFileLoader.get_code, {}

    def get_code(self, fullname):
        if fullname not in known:
            known[fullname] = original(self, fullname)
        return known[fullname]

    SourceFileLoader.get_code = get_code


class _Check:
    def __init__(self, folder, way):
        self.folder, self.way = folder, way
        self.array = np.load(folder / "array.npy")
        self.plain_hook = optimizer._plain_hook()

    def changed(self, entry):
        return object() if NAMES.index(entry) % 2 else lambda *anything: None

    def hide(self, entries):
        hidden = {}
        for entry in entries:
            module = hidden.get(entry.module)
            if module is None:
                module = hidden[entry.module] = ModuleType(entry.module)
                module.__dict__.update(_real(entry.module).__dict__)
            del module.__dict__[entry.name]
            if self.way != "missing":
                module.__dict__[entry.name] = self.changed(entry)

        def import_module(name, *args):
            asked_by = sys._getframe(1).f_globals["__name__"]
            ours = asked_by == "b2nd_dask.graph._dask_compat"
            return hidden[name] if ours and name in hidden else _real(name, *args)

        importlib.import_module = import_module

    def import_anew(self):
        for name in list(sys.modules):
            if name == "b2nd_dask" or name.startswith("b2nd_dask.graph"):
                del sys.modules[name]
        da.Array.__dask_optimize__ = self.plain_hook
        return _real("b2nd_dask")

    def without(self, entries, *, full):
        """Results are right without these names, and one warning names them."""
        self.hide(entries)
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                b2nd = self.import_anew()
                self.use(b2nd, full=full)
                if all(entry.is_compared for entry in entries):
                    self.plan(b2nd, indexes="getitem" not in [entry.name for entry in entries])
        finally:
            importlib.import_module = _real
        texts = [str(w.message) for w in caught if "b2nd_dask" in str(w.message)]
        assert len(texts) == 1, ([e.name for e in entries], texts)
        assert "Results are right" in texts[0]
        if len(entries) == 1:
            assert entries[0].name in texts[0], (entries, texts)

    def plan(self, b2nd, *, indexes):
        """Tasks of other functions are optimized: of each chunk the touched blocks are read."""
        x = b2nd.from_b2nd(self.folder / "x.b2nd")
        (found,) = b2nd.plan((x * 2)[:, 3].cumsum(axis=0)).frames
        # a quarter of the chunks has no data
        assert found.decode_nbytes == x.nbytes * 3 / 4 / (4 if indexes else 2)

    def use(self, b2nd, *, full):
        path, array = self.folder / "x.b2nd", self.array
        x = b2nd.from_b2nd(path)
        same((x * 2 + 1).sum(axis=0), (array * 2 + 1).sum(axis=0))
        same((x + 1)[3, ::7], (array + 1)[3, ::7])
        same((x + 1).rechunk(-1), array + 1)
        same(x[[5, 18, 5]] - x.mean(), array[[5, 18, 5]] - array.mean())
        if not full:
            return
        same(b2nd.open_b2nd(path), array)
        same(x.argmax(axis=1), array.argmax(axis=1))
        use = self.folder / "use.b2nd"
        use.unlink(missing_ok=True)
        same(b2nd.to_b2nd(x + 1, use, chunks=(7, 5), vlmeta="keep"), array + 1)
        begun = np.concatenate([array[:3], array[3:] + 1])
        same(b2nd.to_b2nd(array[:3], use, mode="r+", region=slice(0, 3)), begun)
        zeros = da.zeros((2, 20))
        same(b2nd.to_b2nd(zeros, use, mode="a", append_axis=0)[-2:], np.zeros((2, 20)))
        same(b2nd.to_b2nd(x.rechunk(20), use, mode="w"), array)


def same(got, want):
    np.testing.assert_allclose(np.asarray(got), want, rtol=1e-12)
