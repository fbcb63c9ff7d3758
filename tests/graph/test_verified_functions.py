"""Functions that read all elements of a chunk, in one part or many, detect damage.

Each public function of `dask.array` is called on a frame with one flipped bit. It raises
`ChecksumError`, or is listed below with the elements that it does not read.
"""

import uuid
import warnings

import dask
import dask.array as da
import numpy as np
import pytest
from packaging.version import Version

from b2nd_dask import ChecksumError, from_b2nd, to_b2nd
from tests.frame.sealed import flip, stored_chunks

#: The newest version of dask whose functions are all listed here.
KNOWN_DASK = Version("2026.8.0")

# chunks of 24 and 32 kB, so that a few blocks of one are read alone
MATRIX = np.random.default_rng(6).permutation(96 * 128).reshape(96, 128).astype("f8")
VECTOR = np.random.default_rng(7).permutation(8192).astype("f8")

UFUNCS = {name for name in dir(da) if isinstance(getattr(da, name), da.ufunc.ufunc)}
OF_INTEGERS = {"bitwise_and", "bitwise_not", "bitwise_or", "bitwise_xor", "invert"} | {
    "left_shift",
    "right_shift",
}

#: Arguments of each function: `x` is a matrix, `v` a vector, both read from a frame.
CALLS = {
    "all": lambda x, v: da.all(x < 1e6),
    "allclose": lambda x, v: da.allclose(x, x + 0),
    "angle": lambda x, v: da.angle(x),
    "any": lambda x, v: da.any(x < 0),
    "append": lambda x, v: da.append(v, v),
    "apply_along_axis": lambda x, v: da.apply_along_axis(np.sum, 0, x, dtype="f8", shape=()),
    "apply_gufunc": lambda x, v: da.apply_gufunc(
        lambda b: b.sum(axis=-1), "(i)->()", x.rechunk((7, -1)), output_dtypes="f8"
    ),
    "apply_over_axes": lambda x, v: da.apply_over_axes(da.sum, x, [0, 1]),
    "argmax": lambda x, v: da.argmax(x),
    "argmin": lambda x, v: da.argmin(x, axis=1),
    "argtopk": lambda x, v: da.argtopk(v, 5),
    "argwhere": lambda x, v: da.argwhere(x > 9000),
    "around": lambda x, v: da.around(x, 1),
    "array": lambda x, v: da.array(x),
    "as_gufunc": lambda x, v: da.as_gufunc(signature="()->()", output_dtypes="f8")(np.abs)(x),
    "asanyarray": lambda x, v: da.asanyarray(x),
    "asarray": lambda x, v: da.asarray(x),
    "assert_eq": lambda x, v: da.assert_eq(x, MATRIX),
    "atleast_1d": lambda x, v: da.atleast_1d(x),
    "atleast_2d": lambda x, v: da.atleast_2d(v),
    "atleast_3d": lambda x, v: da.atleast_3d(x),
    "atop": lambda x, v: da.atop(np.abs, "ij", x, "ij", dtype="f8"),
    "average": lambda x, v: da.average(x, axis=0, weights=np.arange(96)),
    "bincount": lambda x, v: da.bincount(v.astype(int), minlength=8192),
    "block": lambda x, v: da.block([[x, x], [x, x]]),
    "blockwise": lambda x, v: da.blockwise(np.abs, "ij", x, "ij", dtype="f8"),
    "broadcast_arrays": lambda x, v: da.broadcast_arrays(x, 1)[0],
    "broadcast_to": lambda x, v: da.broadcast_to(v, (3, 8192)),
    "choose": lambda x, v: da.choose((x > 50).astype(int), [x, x + 1]),
    "clip": lambda x, v: da.clip(x, 1, 50),
    "coarsen": lambda x, v: da.coarsen(np.mean, x, {0: 3, 1: 4}),
    "compute": lambda x, v: da.compute(x, v),
    "concatenate": lambda x, v: da.concatenate([x, x])[:, ::-1],
    "corrcoef": lambda x, v: da.corrcoef(x),
    "count_nonzero": lambda x, v: da.count_nonzero(x),
    "cov": lambda x, v: da.cov(x),
    "cumprod": lambda x, v: da.cumprod(x / 1e4, axis=0),
    "cumsum": lambda x, v: da.cumsum(x, axis=1),
    "diag": lambda x, v: da.diag(v),
    "diff": lambda x, v: da.diff(v),
    "digitize": lambda x, v: da.digitize(x, np.array([0, 100.0, 5000])),
    "divmod": lambda x, v: da.divmod(x, 7),
    "dot": lambda x, v: da.dot(v, v),
    "dstack": lambda x, v: da.dstack([x, x]),
    "ediff1d": lambda x, v: da.ediff1d(v),
    "einsum": lambda x, v: da.einsum("ij,kj->ik", x, x),
    "expand_dims": lambda x, v: da.expand_dims(x, 1),
    "extract": lambda x, v: da.extract(x > -1, x),
    "fix": lambda x, v: da.fix(x),
    "flatnonzero": lambda x, v: da.flatnonzero(x > 500),
    "flip": lambda x, v: da.flip(x, 0),
    "fliplr": lambda x, v: da.fliplr(x),
    "flipud": lambda x, v: da.flipud(x),
    "frexp": lambda x, v: da.frexp(x)[0],
    "frompyfunc": lambda x, v: da.frompyfunc(abs, 1, 1)(x),
    "gradient": lambda x, v: da.gradient(v),
    "histogram": lambda x, v: da.histogram(v, bins=5, range=(0, 9000))[0],
    "histogram2d": lambda x, v: da.histogram2d(v, v, bins=5, range=((0, 9), (0, 9)))[0],
    "histogramdd": lambda x, v: da.histogramdd((v, v), bins=5, range=((0, 9), (0, 9)))[0],
    "hstack": lambda x, v: da.hstack([x, x]),
    "i0": lambda x, v: da.i0(x / 1e4),
    "imag": lambda x, v: da.imag(x * 1j),
    "insert": lambda x, v: da.insert(v, 77, -1, axis=0),
    "isclose": lambda x, v: da.isclose(x, 5),
    "iscomplex": lambda x, v: da.iscomplex(x),
    "isin": lambda x, v: da.isin(x, [5, 6]),
    "isneginf": lambda x, v: da.isneginf(x),
    "isnull": lambda x, v: da.isnull(x),
    "isposinf": lambda x, v: da.isposinf(x),
    "isreal": lambda x, v: da.isreal(x),
    "map_blocks": lambda x, v: da.map_blocks(np.abs, x),
    "map_overlap": lambda x, v: da.map_overlap(np.abs, x, depth=1, boundary="none"),
    "matmul": lambda x, v: da.matmul(x, x.T),
    "max": lambda x, v: da.max(x),
    "mean": lambda x, v: da.mean(x, axis=0),
    "median": lambda x, v: da.median(x, axis=1),
    "meshgrid": lambda x, v: da.meshgrid(v, v[:2])[0],
    "min": lambda x, v: da.min(x, axis=1),
    "modf": lambda x, v: da.modf(x)[1],
    "moment": lambda x, v: da.moment(x, 3),
    "moveaxis": lambda x, v: da.moveaxis(x, 0, 1),
    "nan_to_num": lambda x, v: da.nan_to_num(x),
    "nanargmax": lambda x, v: da.nanargmax(x, axis=0),
    "nanargmin": lambda x, v: da.nanargmin(x),
    "nancumprod": lambda x, v: da.nancumprod(x / 1e4, axis=1),
    "nancumsum": lambda x, v: da.nancumsum(x, axis=0),
    "nanmax": lambda x, v: da.nanmax(x),
    "nanmean": lambda x, v: da.nanmean(x),
    "nanmedian": lambda x, v: da.nanmedian(x, axis=0),
    "nanmin": lambda x, v: da.nanmin(x),
    "nanpercentile": lambda x, v: da.nanpercentile(x, 50, axis=0),
    "nanprod": lambda x, v: da.nanprod(x),
    "nanquantile": lambda x, v: da.nanquantile(x, 0.5, axis=1),
    "nanstd": lambda x, v: da.nanstd(x),
    "nansum": lambda x, v: da.nansum(x, axis=0),
    "nanvar": lambda x, v: da.nanvar(x),
    "nonzero": lambda x, v: da.nonzero(x > 500)[0],
    "notnull": lambda x, v: da.notnull(x),
    "outer": lambda x, v: da.outer(v, v[:3]),
    "pad": lambda x, v: da.pad(x, 5, mode="reflect"),
    "percentile": lambda x, v: da.percentile(v, [20, 80]),
    "piecewise": lambda x, v: da.piecewise(x, [x < 5, x >= 5], [-1, 1]),
    "prod": lambda x, v: da.prod(x / 1e4),
    "ptp": lambda x, v: da.ptp(x, axis=0),
    "quantile": lambda x, v: da.quantile(x, 0.5, axis=0),
    "ravel": lambda x, v: da.ravel(x),
    "ravel_multi_index": lambda x, v: da.ravel_multi_index(x[None].astype(int), (9,), mode="wrap"),
    "real": lambda x, v: da.real(x),
    "rechunk": lambda x, v: da.rechunk(x, (5, 128)),
    "reduction": lambda x, v: da.reduction(x, np.sum, np.sum, dtype="f8"),
    "repeat": lambda x, v: da.repeat(x, 2, axis=1),
    "reshape": lambda x, v: da.reshape(x, (96, 4, 32)),
    "reshape_blockwise": lambda x, v: da.reshape_blockwise(x, (96 * 128,)),
    "roll": lambda x, v: da.roll(x, (5, 7), (0, 1)),
    "rollaxis": lambda x, v: da.rollaxis(x, 1),
    "rot90": lambda x, v: da.rot90(x),
    "round": lambda x, v: da.round(x),
    "searchsorted": lambda x, v: da.searchsorted(da.arange(9.0, chunks=3), v),
    "select": lambda x, v: da.select([x < 5, x < 9], [x, x + 1]),
    "shuffle": lambda x, v: da.shuffle(v, [list(range(i, 8192, 5)) for i in range(5)], axis=0),
    "sinc": lambda x, v: da.sinc(x),
    "squeeze": lambda x, v: da.squeeze(x[None]),
    "stack": lambda x, v: da.stack([x, x]),
    "std": lambda x, v: da.std(x, axis=1),
    "store": lambda x, v: da.store(x, np.empty(x.shape), lock=False, compute=False),
    "sum": lambda x, v: da.sum(x),
    "swapaxes": lambda x, v: da.swapaxes(x, 0, 1),
    "take": lambda x, v: da.take(v, np.random.default_rng(1).permutation(8192)),
    "tensordot": lambda x, v: da.tensordot(x, x, axes=2),
    "tile": lambda x, v: da.tile(v, 3),
    "to_npy_stack": lambda x, v: da.to_npy_stack("stack", x),
    "to_zarr": lambda x, v: da.to_zarr(x.rechunk((48, 64)), f"{uuid.uuid4()}.zarr", compute=False),
    "topk": lambda x, v: da.topk(x, 3, axis=0),
    "transpose": lambda x, v: da.transpose(x),
    "tril": lambda x, v: da.tril(x),
    "triu": lambda x, v: da.triu(x),
    "unify_chunks": lambda x, v: da.unify_chunks(x, "ij", da.ones((96, 128), chunks=5), "ij")[1][0],
    "union1d": lambda x, v: da.union1d(v, v),
    "unique": lambda x, v: da.unique(v),
    "unravel_index": lambda x, v: da.unravel_index(v.astype(int), (8192, 2)),
    "var": lambda x, v: da.var(x),
    "vdot": lambda x, v: da.vdot(x, x),
    "vstack": lambda x, v: da.vstack([x, x]),
    "where": lambda x, v: da.where(x > 5, x, 0),
}

#: The same, as methods, operators and functions of submodules, and by reads in parts.
MORE_CALLS = {
    "computed": lambda x, v: x,
    "masked": lambda x, v: x[x > 5000],
    "masked along an axis": lambda x, v: x[da.from_array(np.arange(96) >= 0)],
    "vindex": lambda x, v: x.vindex[tuple(np.indices(x.shape).reshape(2, -1)[:, ::-1])],
    "strides": lambda x, v: (
        da.concatenate([x[::2, ::2], x[1::2, ::2]]) + da.concatenate([x[::2, 1::2], x[1::2, 1::2]])
    ),
    "rows": lambda x, v: da.stack([x[i] for i in range(96)]),
    "blocks of bytes": lambda x, v: x.view("i8"),
    "columns of rows": lambda x, v: x.rechunk((96, 1)).sum(axis=0),
    "in few blocks": lambda x, v: x.rechunk((7, 128)).map_blocks(np.abs).rechunk((96, 5)),
    "flattened": lambda x, v: x.flatten()[::-1],
    "with other blocks": lambda x, v: x + da.ones(x.shape, chunks=(5, 7)),
    "fft": lambda x, v: da.fft.fft(x.rechunk((5, -1))),
    "fftshift": lambda x, v: da.fft.fftshift(x),
    "norm": lambda x, v: da.linalg.norm(x),
    "qr": lambda x, v: da.linalg.qr(x.rechunk((10, -1)))[1],
    "svd": lambda x, v: da.linalg.svd(x.rechunk((10, -1)))[1],
    "permuted": lambda x, v: da.random.default_rng(1).permutation(v),
    "masked_where": lambda x, v: da.ma.masked_where(x > 5, x),
    "windows": lambda x, v: da.lib.stride_tricks.sliding_window_view(v, 7).sum(axis=-1),
    "delayed": lambda x, v: da.from_delayed(dask.delayed(np.sum)(x), (), "f8"),
    "several": lambda x, v: [x[:40], x[40:], x.max()],
}

#: Functions that take a part of the elements.
IN_PARTS = {
    "compress": "what the condition chooses",
    "delete": "all but what is deleted",
    "diagonal": "the diagonal",
    "trace": "the diagonal",
}
#: Functions of arguments that are no elements of a frame, names of dask's own and of this package,
#: and functions that need packages which are not installed.
NOTHING_READ = """
    arange array_expr_enabled empty empty_like eye from_array from_delayed from_npy_stack
    from_tiledb from_zarr fromfunction full full_like indices linspace ndim ones ones_like optimize
    register_chunk_type result_type shape tri tril_indices tril_indices_from triu_indices
    triu_indices_from zeros zeros_like
    from_b2nd to_b2nd
    push to_hdf5 to_tiledb
"""


def test_each_function_of_dask_is_named() -> None:
    if Version(dask.__version__) > KNOWN_DASK:
        pytest.skip(f"functions that are newer than dask {KNOWN_DASK} are not named")
    public = {
        name
        for name, value in vars(da).items()
        if not name.startswith("_") and callable(value) and not isinstance(value, type)
    }
    assert public - UFUNCS <= {*CALLS, *IN_PARTS, *NOTHING_READ.split()}


@pytest.fixture(scope="module")
def damaged(tmp_path_factory):
    """A matrix and a vector, each in a frame, with a flipped bit in the second chunk."""
    folder, paths = tmp_path_factory.mktemp("damaged"), []
    for values, chunks, blocks in ((MATRIX, (48, 64), (8, 16)), (VECTOR, 4096, 256)):
        paths.append(folder / f"{values.ndim}.b2nd")
        # not compressed: any flipped bit decodes without an error
        to_b2nd(values, paths[-1], chunks=chunks, blocks=blocks, cparams={"clevel": 0})
        file, _, stop = stored_chunks(paths[-1])[1]
        flip(file, stop - 2, 4)
    return paths


def called(name, x, v):
    func = {**CALLS, **MORE_CALLS}.get(name)
    if func is not None:
        return func(x, v)
    ufunc = getattr(da, name)
    x = x.astype(int) % 50 if name in OF_INTEGERS else x
    return ufunc(*(x, 3)[: ufunc.nin])


def raised(name, x, v):
    """Whether the computation of a function of damaged frames raises ChecksumError."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            dask.compute(called(name, x, v), scheduler="sync")
        except ChecksumError:
            return True
    return False


@pytest.mark.parametrize("name", sorted({*CALLS, *MORE_CALLS, *UFUNCS}))
def test_damage_shows(damaged, tmp_path, monkeypatch, name):
    if name not in MORE_CALLS and not hasattr(da, name):
        pytest.skip("this version of dask does not have it")
    monkeypatch.chdir(tmp_path)
    x, v = map(from_b2nd, damaged)
    assert raised(name, x, v)
    with dask.config.set({"b2nd_dask.optimize": False}):
        assert raised(name, x, v)
    matrix, vector = damaged
    # blocks that cut chunks
    assert raised(name, from_b2nd(matrix, chunks=37), from_b2nd(vector, chunks=3000))


@pytest.mark.parametrize("name", IN_PARTS)
def test_parts_are_listed(damaged, name):
    """These functions do not read the damaged chunk."""
    x, _ = map(from_b2nd, damaged)
    made = {
        "compress": lambda: da.compress(np.arange(96) > 50, x, axis=0),
        "delete": lambda: da.delete(x, slice(51), axis=0),
        "diagonal": lambda: da.diagonal(x),
        "trace": lambda: da.trace(x),
    }[name]()
    want = {
        "compress": MATRIX[51:],
        "delete": MATRIX[51:],
        "diagonal": MATRIX.diagonal(),
        "trace": MATRIX.trace(),
    }[name]
    np.testing.assert_array_equal(made.compute(scheduler="sync"), want)
