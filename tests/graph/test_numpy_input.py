"""NumPy arrays and memory-mapped files are written block by block, without a copy of them."""

import os
import pickle
import tracemalloc

import dask
import numpy as np
import pytest
from distributed import Client

from b2nd_dask import StaleFrameError, open_b2nd, to_b2nd
from b2nd_dask.graph.write import input_arrays as mapped
from b2nd_dask.graph.write.input_arrays import from_numpy
from tests.peak import peak_growth

VALUES = np.random.default_rng(3).normal(size=(100, 60))
SMALL_BLOCKS = {"array.chunk-size": "5kB"}


@pytest.fixture
def file(tmp_path):
    np.save(tmp_path / "values.npy", VALUES)
    return tmp_path / "values.npy"


VIEWS = {
    "all": lambda x: x,
    "rows": lambda x: x[7:91:3],
    "backwards": lambda x: x[::-2, ::-1],
    "turned": lambda x: x.T,
    "column": lambda x: x[:, 5],
    "one": lambda x: x[3, 4:5].reshape(()),
    "none": lambda x: x[5:5],
    "new axis": lambda x: x[:, None, 10:20],
    "spread": lambda x: np.broadcast_to(x[3], (70, 60)),
    "other dtype": lambda x: x.view("M8[ns]"),
    "fields": lambda x: x.view([("a", "f8"), ("b", "i8")])["b"],
    "selected": lambda x: x[[3, 1, 1]],
    "computed": lambda x: x * 2,
    "real": lambda x: x.view("c16").imag,
}


@pytest.mark.parametrize("name", VIEWS)
@pytest.mark.parametrize("mode", ["r", "r+", "c", None])
def test_views_of_files_and_of_arrays(target, file, monkeypatch, name, mode):
    monkeypatch.setattr(mapped, "_WINDOW", 1000)
    whole = np.load(file, mmap_mode=mode)
    if mode in ("r+", "c"):
        whole[2:9, 3:5] = 1.25
    view = VIEWS[name](whole)
    with dask.config.set(SMALL_BLOCKS):
        back = to_b2nd(view, target, chunks=tuple(max(1, n // 3) for n in view.shape))
    assert back.dtype == view.dtype
    assert back.compute().tobytes() == np.asarray(view).tobytes()
    # only the elements: no block stays mapped, and assignment is possible
    if mode == "r+":
        whole[0, 0] = 7
        assert np.load(file)[0, 0] == 7


@pytest.mark.parametrize("offset", [0, 24, 5000])
@pytest.mark.parametrize("order", ["C", "F"])
def test_raw_files(target, tmp_path, offset, order):
    file = tmp_path / "raw.bin"
    file.write_bytes(bytes(offset) + VALUES.tobytes(order) + b"behind")
    x = np.memmap(str(file), "f8", "r", offset=offset, shape=VALUES.shape, order=order)
    with dask.config.set(SMALL_BLOCKS):
        back = to_b2nd(x[10:], target)
    np.testing.assert_array_equal(back, VALUES[10:])


SERIES = (400, 18, 48)


@pytest.mark.slow
@pytest.mark.parametrize("chunks", [None, SERIES])
@pytest.mark.parametrize("kind", ["memmap", "turned", "array", "labelled"])
def test_memory_for_numpy_arrays(tmp_path, kind, chunks):
    file, target = str(tmp_path / "maps.npy"), str(tmp_path / "maps.b2nd")
    np.save(file, np.arange(400 * 180 * 480, dtype="f4").reshape(400, 180, 480))
    read = {
        "memmap": "np.load(file, mmap_mode='r')",
        "array": "np.load(file)",
        "turned": "np.load(file, mmap_mode='r').transpose(0, 2, 1)",
        "labelled": "__import__('xarray').DataArray(np.load(file, mmap_mode='r'))",
    }
    growth = peak_growth(
        "to_b2nd(x, target, chunks=chunks, cparams={'clevel': 1})",
        before=f"x = {read[kind]}",
        config={"array.chunk-size": "8MiB"},
        file=file,
        target=target,
        chunks=chunks,
    )
    assert growth < 110 << 20
    expected = np.load(file, mmap_mode="r")
    if kind == "turned":
        expected = expected.transpose(0, 2, 1)
    np.testing.assert_array_equal(open_b2nd(target)[::50], expected[::50])


def test_a_file_is_not_in_the_graph_and_is_read_by_other_processes(target, file):
    x = np.load(file, mmap_mode="r")
    with dask.config.set(SMALL_BLOCKS):
        written = to_b2nd(x, target, compute=False)
    tasks = pickle.dumps(dict(written.dask))
    assert len(tasks) < VALUES.nbytes
    assert VALUES[50].tobytes() not in tasks
    written.compute(scheduler="processes", num_workers=2)
    np.testing.assert_array_equal(open_b2nd(target)[...], VALUES)


@pytest.mark.parametrize("kind", ["memmap", "array"])
def test_a_cluster(target, file, kind):
    x = np.load(file, mmap_mode="r" if kind == "memmap" else None)
    with (
        dask.config.set(SMALL_BLOCKS),
        Client(n_workers=1, threads_per_worker=1, dashboard_address="127.0.0.1:0"),
    ):
        back = to_b2nd(x, target, chunks=(100, 7))
        np.testing.assert_array_equal(back.compute(), VALUES)


def test_the_array_counts_not_its_name(target, file):
    """A file that was replaced or removed after it was mapped."""
    x = np.load(file, mmap_mode="r")
    np.save(file.with_name("other.npy"), VALUES + 1)
    file.with_name("other.npy").replace(file)
    np.testing.assert_array_equal(to_b2nd(x, target).compute(), VALUES)
    file.unlink()
    np.testing.assert_array_equal(to_b2nd(x, target, mode="w").compute(), VALUES)


def test_a_file_that_changes_before_it_is_read(target, file):
    written = to_b2nd(np.load(file, mmap_mode="r"), target, compute=False)
    np.save(file, VALUES + 1)
    os.utime(file, ns=(1, 1))
    with pytest.raises(StaleFrameError, match=r"values\.npy: the file of a memory-mapped array"):
        written.compute()
    file.unlink()
    with pytest.raises(FileNotFoundError, match=r"pass np\.asarray\(x\), .*values\.npy"):
        written.compute()
    assert not target.exists()


def part_of_file(file):
    found = mapped.mapped_array(np.load(file, mmap_mode="r"))
    assert found is not None
    return found[10:90, 5:50]


@pytest.mark.parametrize("window", [1000, 4 << 20])
def test_what_was_read_of_a_file_stays_as_it_was(file, monkeypatch, window):
    """A writer changes or truncates the file while elements are encoded."""
    monkeypatch.setattr(mapped, "_WINDOW", window)
    read = np.asarray(part_of_file(file))
    with file.open("r+b") as writer:
        writer.write(bytes(file.stat().st_size))
    np.testing.assert_array_equal(read, VALUES[10:90, 5:50])
    # an access to a page behind the end of the file would end the process
    assert read.flags.owndata
    os.truncate(file, 0)
    np.testing.assert_array_equal(read, VALUES[10:90, 5:50])


def test_a_file_that_changes_while_it_is_read(file, monkeypatch):
    part, copy = part_of_file(file), mapped.MappedArray._copy_to

    def change(self, elements):
        np.save(file, VALUES + 1)
        os.utime(file, ns=(1, 1))
        copy(self, elements)

    monkeypatch.setattr(mapped, "_WINDOW", 1000)
    monkeypatch.setattr(mapped.MappedArray, "_copy_to", change)
    with pytest.raises(StaleFrameError, match=r"values\.npy: the file of a memory-mapped array"):
        np.asarray(part)


@pytest.mark.parametrize("mode", ["r", "r+", "c"])
@pytest.mark.parametrize("size", [0, 5000])
def test_a_file_that_was_made_shorter(target, file, mode, size):
    x = np.load(file, mmap_mode=mode)
    os.truncate(file, size)
    with pytest.raises(StaleFrameError, match=r"values\.npy: .*shorter .* at byte 48128"):
        to_b2nd(x, target)
    assert not target.exists()


def test_a_file_that_is_made_shorter_before_it_is_mapped_again(file, monkeypatch):
    part = part_of_file(file)
    os.truncate(file, 5000)
    monkeypatch.setattr(mapped, "file_state", lambda stat: part.state)
    with pytest.raises(StaleFrameError, match=r"values\.npy: .*shorter"):
        np.asarray(part)


def test_links_and_other_files_of_their_names(tmp_path, file):
    link = tmp_path / "link.npy"
    link.symlink_to(file)
    x = np.load(link, mmap_mode="r")
    assert mapped.mapped_array(x) is not None
    np.save(tmp_path / "other.npy", VALUES + 1)
    (tmp_path / "other.npy").replace(file)
    assert mapped.mapped_array(x) is None


def test_elements_larger_than_what_is_mapped_at_a_time(file, monkeypatch):
    monkeypatch.setattr(mapped, "_WINDOW", 100)
    x = np.memmap(file, "V4800", "r", offset=128, shape=(1, 10))
    np.testing.assert_array_equal(
        np.asarray(mapped.mapped_array(x)).view("f8"), VALUES.reshape(1, -1)
    )


class _OfPairs:
    """An array whose attribute `data` has other elements, as of sparse arrays."""

    shape, ndim, dtype = (2, 2), 2, np.dtype("f8")
    data = np.ones(2)

    def __array__(self, dtype=None, copy=None):
        return np.eye(2)

    def __getitem__(self, index):
        return np.eye(2)[index]


def test_only_labelled_arrays_hold_their_elements_in_data(target):
    to_b2nd(_OfPairs(), target)
    np.testing.assert_array_equal(open_b2nd(target)[...], np.eye(2))


def test_an_array_may_change_once_a_delayed_write_is_made(target):
    values = VALUES.copy()
    written = to_b2nd(values, target, compute=False)
    values[...] = 0
    written.compute()
    np.testing.assert_array_equal(open_b2nd(target)[...], VALUES)


@pytest.mark.parametrize("mode", ["r", None])
def test_equal_arrays_have_one_name_where_a_write_may_be_resumed(target, file, mode):
    def name():
        x = np.load(file, mmap_mode=mode)
        return from_numpy(x, named=True, snapshot=False).name

    before = name()
    assert name() == before
    to_b2nd(np.load(file, mmap_mode=mode), target, resume=True)
    # the key, which contains the name, shows that it is finished
    to_b2nd(np.load(file, mmap_mode=mode), target, resume=True)
    np.save(file, VALUES + 1)
    assert name() != before
    with pytest.raises(FileExistsError):
        to_b2nd(np.load(file, mmap_mode=mode), target, resume=True)


def test_elements_that_are_not_contiguous_are_not_copied():
    """dask must not pickle the array for a token either."""
    x = np.ones((400, 2, 1000))[:, 0]
    tracemalloc.start()
    try:
        from_numpy(x, named=False, snapshot=False)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < x.nbytes / 10


def test_the_transpose_has_another_name(target):
    """Two arrays with equal tokens of dask."""
    x = VALUES[:60]
    to_b2nd(x, target, mode="w", resume=True)
    back = to_b2nd(x.T, target, mode="w", resume=True)
    np.testing.assert_array_equal(back.compute(), x.T)
    names = {from_numpy(y, named=True, snapshot=False).name for y in (x, x.T, x.copy())}
    assert len(names) == 2


def test_arrays_that_are_not_contiguous_have_a_name_too():
    names = {from_numpy(x.T, named=True, snapshot=False).name for x in (VALUES, VALUES.copy())}
    assert len(names) == 1
