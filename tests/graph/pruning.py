"""Programs that may be answered from statistics of chunks, and the chunks that they read."""

import warnings
from contextlib import contextmanager

import dask
import dask.array as da
import numpy as np
import pytest

import b2nd_dask
from b2nd_dask.frame.read import fetch as fetch_module
from b2nd_dask.frame.read import region as region_module

REDUCTIONS = {
    "sum": lambda x, m: m.sum(x),
    "min": lambda x, m: m.min(x),
    "max": lambda x, m: m.max(x),
    "mean": lambda x, m: m.mean(x),
    "any": lambda x, m: m.any(x),
    "all": lambda x, m: m.all(x),
    "nansum": lambda x, m: m.nansum(x),
    "nanmin": lambda x, m: m.nanmin(x),
    "nanmax": lambda x, m: m.nanmax(x),
    "nanmean": lambda x, m: m.nanmean(x),
    "count_nonzero": lambda x, m: m.count_nonzero(x),
    "isnan": lambda x, m: m.isnan(x).sum(),
    "not isnan": lambda x, m: (~m.isnan(x)).mean(),
    "filled": lambda x, m: m.where(m.isnan(x), 0, x).sum(),
    "wider": lambda x, m: x.astype("f8").max(),
    "zeros": lambda x, m: (x == 0).sum(),
    "scaled nanmax": lambda x, m: m.nanmax(x * -0.5 + 1.0),
    "scaled nanmin": lambda x, m: m.nanmin(abs(x * 0.5) / 3.0),
}
#: Functions of comparisons with a scalar in the range of the elements.
SEARCHES = {
    "any": lambda x, m, t: (x > t).any(),
    "sum": lambda x, m, t: (x > t).sum(),
    "all": lambda x, m, t: (x <= t).all(),
    "axis": lambda x, m, t: (x >= t).sum(axis=-1),
    "both": lambda x, m, t: ((x > t) & (x < t + 2)).sum(),
    "either": lambda x, m, t: ((x < t) | ~(x < t + 2)).any(axis=0),
    "equal": lambda x, m, t: (x == t).sum(),
    "unequal": lambda x, m, t: (x != t).sum(),
    "scaled": lambda x, m, t: (x * 0.5 - 1.0 > t).sum(),
    "negative": lambda x, m, t: (abs(-(x * 1.0)) > t).sum(),
    "where": lambda x, m, t: m.where(x > t, x, 0),
    "where not": lambda x, m, t: m.where(x > t, 0, x * 2),
    "infinite": lambda x, m, t: (m.isfinite(x) & (x > t)).sum(),
    "elements": lambda x, m, t: x[x > t],
    "positions": lambda x, m, t: m.nonzero(x > t)[0],
    "mean of": lambda x, m, t: m.where(x > t, 1.5, 0).mean(),
    "dependent": lambda x, m, t: (x > m.nanmax(x)).sum(),
    # scalars that float16 and float32 cannot represent
    "overflow": lambda x, m, t: m.isnan(x * 1e300).sum(),
    "half overflow": lambda x, m, t: (x * 1e5 >= t).sum(),
    "underflow": lambda x, m, t: (x / 1e-50 >= t).sum(),
    # elements that a mask selects may depend on others
    "backwards": lambda x, m, t: x.map_blocks(lambda block: block[::-1])[x > t],
    "centred": lambda x, m, t: x.map_blocks(lambda block: block - block.sum(dtype="f8"))[x > t],
}


@contextmanager
def chunks_read():
    """Collect the chunks that are fetched in the block."""
    counts = []
    real = fetch_module.fetch

    def fetch(opened, batch):
        batch = list(batch)
        counts.extend(batch)
        return real(opened, batch)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(region_module, "fetch", fetch)
        patch.setattr(fetch_module, "fetch", fetch)
        yield counts


def written(folder, array, chunks, **options):
    path = folder / "x.b2nd"
    b2nd_dask.to_b2nd(array, path, chunks=chunks, mode="w", stats=True, **options)
    return path


def computed(program, *arguments):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return _computed(program, *arguments)


def _computed(program, *arguments):
    found = program(*arguments)
    return found.compute(scheduler="sync") if isinstance(found, da.Array) else found


def with_and_without_statistics(program, *arguments):
    """Results with and without statistics; without them there are as many warnings, or more."""
    results, warned = [], []
    for prunes in (True, False):
        switch = dask.config.set({"b2nd_dask.statistics": prunes})
        with switch, warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            results.append(_computed(program, *arguments))
        warned.append({str(each.message) for each in seen})
    assert warned[0] <= warned[1]
    return results


def agree(found, expected, name):
    assert np.asarray(found).dtype.newbyteorder("=") == np.asarray(expected).dtype.newbyteorder("=")
    tolerance = {"f2": 1e-2, "f4": 1e-5}.get(np.asarray(expected).dtype.str[1:], 1e-11)
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance, err_msg=name)
