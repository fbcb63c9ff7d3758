"""Other libraries over frames: results equal those for arrays in memory."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import dask.array as da
import numpy as np
import pytest

from b2nd_dask import from_b2nd, open_b2nd, to_b2nd

if TYPE_CHECKING:
    from pathlib import Path

RNG = np.random.default_rng(11)
VALUES = RNG.random((24, 40, 36)).astype("f4")
TABLE = RNG.random((400, 12)) @ RNG.random((12, 12))


@pytest.fixture(scope="module")
def volume(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("interop") / "volume.b2nd"
    to_b2nd(VALUES, path, chunks=(6, 20, 18))
    return path


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Any:
    path = tmp_path_factory.mktemp("interop") / "table.b2nd"
    return to_b2nd(TABLE, path, chunks=(100, 12))


# ---- NumPy


def test_numpy(volume: Path) -> None:
    frame = open_b2nd(volume)
    for got, want in (
        (np.asarray(frame), VALUES),
        (np.asarray(frame, "f8"), VALUES.astype("f8")),
        (np.array(frame, copy=True), VALUES),
        (np.mean(frame), np.mean(VALUES)),
        (np.add(frame, 1), VALUES + 1),
        (np.percentile(frame, 30), np.percentile(VALUES, 30)),
        (np.stack([frame, frame]), np.stack([VALUES, VALUES])),
        (np.einsum("ijk->k", frame), np.einsum("ijk->k", VALUES)),
        (VALUES - np.asarray(frame), np.zeros_like(VALUES)),
    ):
        assert got.dtype == want.dtype
        np.testing.assert_array_equal(got, want)
    assert (np.shape(frame), np.ndim(frame), np.size(frame)) == ((24, 40, 36), 3, VALUES.size)
    with pytest.raises(ValueError, match="without a copy"):
        np.asarray(frame, copy=False)


def test_the_array_api(volume: Path) -> None:
    """A frame is storage, as a dataset of h5py: libraries get a namespace of dask or NumPy."""
    compat = pytest.importorskip("array_api_compat", reason="comes with scikit-learn and xarray")
    frame = open_b2nd(volume)
    assert not hasattr(frame, "__array_namespace__")
    assert not compat.is_array_api_obj(frame)
    with pytest.raises(TypeError, match="Frame"):
        compat.array_namespace(frame)
    x = from_b2nd(volume)
    assert compat.is_dask_array(x)
    xp = compat.array_namespace(x)
    got = xp.permute_dims(xp.astype(x, xp.float64), (2, 0, 1)).compute()
    np.testing.assert_array_equal(got, VALUES.astype("f8").transpose(2, 0, 1))
    assert compat.array_namespace(np.asarray(frame)).__name__.endswith("numpy")


# ---- napari: it takes array-likes with ndim, shape, dtype and slicing


def test_slicing_as_image_viewers_do(volume: Path) -> None:
    data = open_b2nd(volume)
    assert (data.ndim, data.shape, data.dtype, data.size) == (3, (24, 40, 36), "f4", VALUES.size)
    assert len(data) == 24
    for index in (
        3,
        np.int64(7),
        -1,
        (5, slice(None, None, 4), slice(None, None, 4)),
        (slice(2, 9), 4),
        (slice(None), slice(None), 35),
        (Ellipsis, 2),
        np.s_[8, :, :],
        (slice(None, None, -1), 3, slice(5, 6)),
    ):
        np.testing.assert_array_equal(np.asarray(data[index]), VALUES[index])
    # the corners from which a viewer chooses contrast limits
    sample = [np.asarray(data[i]) for i in (0, data.shape[0] // 2, data.shape[0] - 1)]
    assert np.max(sample) == VALUES[[0, 12, 23]].max()


def test_multiscale_and_threads(volume: Path, tmp_path: Path) -> None:
    half = da.coarsen(np.mean, from_b2nd(volume), {1: 2, 2: 2}).to_b2nd(tmp_path / "half.b2nd")
    levels = [open_b2nd(volume), open_b2nd(tmp_path / "half.b2nd")]
    assert levels[1].shape == half.shape == (24, 20, 18)
    planes: dict[int, Any] = {}

    def look(number: int) -> None:
        planes[number] = [np.asarray(level[number]) for level in levels]

    threads = [threading.Thread(target=look, args=(n,)) for n in range(24)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number in range(24):
        np.testing.assert_array_equal(planes[number][0], VALUES[number])
        want = VALUES[number].reshape(20, 2, 18, 2).mean((1, 3))
        np.testing.assert_allclose(planes[number][1], want, rtol=1e-6)


# ---- cubed


def test_cubed(volume: Path, tmp_path: Path) -> None:
    cubed = pytest.importorskip("cubed", reason="of the extra interop")
    import cubed.array_api as xp

    spec = cubed.Spec(work_dir=str(tmp_path), allowed_mem="100MB")
    frame = open_b2nd(volume)
    x = cubed.from_array(frame, chunks=frame.chunks, spec=spec)
    got = xp.mean(xp.astype(x, xp.float64) * 2, axis=0).compute()
    np.testing.assert_allclose(got, VALUES.astype("f8").mean(0) * 2)


# ---- scikit-learn, block by block


def test_scikit_learn(table: Any) -> None:
    sklearn = pytest.importorskip("sklearn", reason="of the extra interop")
    from sklearn.cluster import MiniBatchKMeans
    from sklearn.decomposition import IncrementalPCA
    from sklearn.preprocessing import StandardScaler

    assert sklearn.__version__
    scaler, pca, same = StandardScaler(), IncrementalPCA(3), IncrementalPCA(3, batch_size=100)
    kmeans = MiniBatchKMeans(3, random_state=1, n_init=1)
    again = MiniBatchKMeans(3, random_state=1, n_init=1)
    for block in table.blocks:
        rows = block.compute()
        scaler.partial_fit(rows)
        pca.partial_fit(rows)
        kmeans.partial_fit(rows)
    np.testing.assert_allclose(scaler.mean_, TABLE.mean(0))
    np.testing.assert_allclose(scaler.var_, TABLE.var(0))
    same.fit(TABLE)
    np.testing.assert_allclose(pca.singular_values_, same.singular_values_)
    for start in range(0, 400, 100):
        again.partial_fit(TABLE[start : start + 100])
    np.testing.assert_array_equal(kmeans.cluster_centers_, again.cluster_centers_)
    # a fitted model on all blocks, lazily
    scaled = table.map_blocks(scaler.transform, dtype=table.dtype)
    np.testing.assert_allclose(scaled.compute(), scaler.transform(TABLE))


# ---- dask.array


def test_map_overlap(volume: Path) -> None:
    def smooth(x: Any) -> Any:
        return (x[:-2] + x[1:-1] + x[2:]) / 3

    x = from_b2nd(volume)
    got = x.map_overlap(smooth, depth={0: 1}, boundary="nearest", trim=False, chunks=x.chunks)
    padded = np.pad(VALUES, ((1, 1), (0, 0), (0, 0)), mode="edge")
    np.testing.assert_allclose(got.compute(), smooth(padded), rtol=1e-6)


def test_linear_algebra(table: Any) -> None:
    pytest.importorskip("scipy", reason="of the extra interop")
    q, r = da.linalg.tsqr(table)
    np.testing.assert_allclose((q @ r).compute(), TABLE)
    np.testing.assert_allclose(da.linalg.norm(table).compute(), np.linalg.norm(TABLE))
    _, singular, _ = da.linalg.svd_compressed(table, 12, n_power_iter=4, seed=1)
    want = np.linalg.svd(TABLE, compute_uv=False)
    np.testing.assert_allclose(singular.compute()[:3], want[:3], rtol=1e-6)
    right = TABLE @ np.arange(12.0)
    solution = da.linalg.lstsq(table, da.from_array(right, chunks=100))[0]
    np.testing.assert_allclose(solution.compute(), np.arange(12.0), atol=1e-6)
    np.testing.assert_allclose((table.T @ table).compute(), TABLE.T @ TABLE)


def test_dask_image(volume: Path) -> None:
    filters = pytest.importorskip("dask_image.ndfilters", reason="of the extra interop")
    from scipy import ndimage

    x = from_b2nd(volume)
    for name, argument in (("gaussian_filter", 1.0), ("uniform_filter", 3)):
        got = getattr(filters, name)(x, argument, mode="reflect")
        want = getattr(ndimage, name)(VALUES, argument, mode="reflect")
        np.testing.assert_allclose(got.compute(), want, rtol=1e-4)


def test_data_frames(table: Any) -> None:
    pytest.importorskip("pyarrow", reason="dask.dataframe needs it")
    import dask.dataframe as dd

    frame = dd.from_dask_array(table, columns=[f"c{n}" for n in range(12)])
    np.testing.assert_allclose(frame.mean().compute().to_numpy(), TABLE.mean(0))


# ---- xarray and flox


def test_apply_ufunc(volume: Path) -> None:
    xr = pytest.importorskip("xarray", reason="of the extra xarray")
    x = xr.DataArray(from_b2nd(volume, chunks=(24, 20, 18)), dims=("time", "y", "x"))

    def spread(values: Any) -> Any:
        return values.max(axis=-1) - values.min(axis=-1)

    got = xr.apply_ufunc(
        spread, x, input_core_dims=[["time"]], dask="parallelized", output_dtypes=["f4"]
    )
    np.testing.assert_array_equal(got.compute(), np.ptp(VALUES, axis=0))
    assert got.dims == ("y", "x")


def test_flox(volume: Path) -> None:
    flox = pytest.importorskip("flox", reason="of the extra interop")
    xr = pytest.importorskip("xarray", reason="of the extra xarray")
    months = np.arange(24) % 5
    want = np.stack([VALUES[months == n].mean(0) for n in range(5)])
    x = from_b2nd(volume)
    got, labels = flox.groupby_reduce(x.transpose(1, 2, 0), months, func="mean")
    np.testing.assert_array_equal(labels, np.arange(5))
    np.testing.assert_allclose(got.compute(), want.transpose(1, 2, 0), rtol=1e-6)
    labelled = xr.DataArray(x, dims=("time", "y", "x"), coords={"month": ("time", months)})
    grouped = labelled.groupby("month").mean()
    np.testing.assert_allclose(grouped.transpose("month", "y", "x"), want, rtol=1e-6)
