"""`to_b2nd` to object stores: the same frames as on a disk, all or nothing."""

import traceback
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import blosc2
import dask
import dask.array as da
import fsspec
import numpy as np
import pytest

from b2nd_dask import from_b2nd, open_b2nd, remove_staging, to_b2nd, verify

pytest_plugins = ["tests.s3_recording"]

MIB = 1 << 20


class Store:
    """An object store with one name for a frame."""

    def __init__(self, url, options):
        self.name = f"{uuid.uuid4().hex}.b2nd"
        self.url = f"{url}{self.name}"
        self.options = options

    @property
    def keywords(self):
        return {"storage_options": self.options} if self.options else {}

    def fs(self):
        fs, path = fsspec.url_to_fs(self.url, **self.options)
        fs.invalidate_cache()
        return fs, path

    def data(self):
        fs, path = self.fs()
        return fs.cat_file(path)

    def names(self):
        """All objects: the target, its members, and staged ones."""
        fs, path = self.fs()
        parent = path.rpartition("/")[0]
        return [found for found in fs.find(parent or "/") if self.name in found]


@pytest.fixture(params=["s3", "memory"])
def store(request):
    if request.param == "memory":
        return Store("memory://", {})
    server = request.getfixturevalue("recording_s3")
    return Store(f"{server.url}/", server.storage_options)


@pytest.fixture
def s3(recording_s3):
    return Store(f"{recording_s3.url}/", recording_s3.storage_options)


def noise(nbytes, chunks, seed=0):
    """Elements that do not compress."""
    items = np.frombuffer(np.random.default_rng(seed).bytes(nbytes), "i8")
    return da.from_array(items, chunks=chunks // 8)


def failing(x):
    def fail(block, block_id=None):
        if sum(block_id) > 0:
            raise RuntimeError("this block fails")
        return block

    return x.map_blocks(fail, dtype=x.dtype)


@pytest.mark.parametrize("contiguous", [True, False])
def test_round_trip(store, contiguous):
    x = da.random.default_rng(0).normal(size=(100, 90), chunks=(40, 30))
    expected = x.compute()
    y = to_b2nd(x, store.url, contiguous=contiguous, vlmeta={"a": 1}, **store.keywords)
    np.testing.assert_array_equal(y.compute(), expected)
    assert open_b2nd(store.url, **store.keywords).vlmeta["a"] == 1
    assert verify(store.url, **store.keywords).nchunks == 9
    assert verify(store.url, **store.keywords).ok
    assert len(store.names()) == (1 if contiguous else 10)


@pytest.mark.parametrize("name", ["a b", "a%20b", "a#b", "a?b", "ü", "a+b", "a[1]"])
def test_names_with_characters_that_urls_use(recording_s3, name):
    options, url = recording_s3.storage_options, f"{recording_s3.url}/names/{name}.b2nd"
    written = to_b2nd(np.arange(60.0), url, storage_options=options)
    np.testing.assert_array_equal(written.compute(), np.arange(60.0))
    fs = fsspec.filesystem("s3", **options)
    fs.invalidate_cache()
    assert [found for found in fs.find(f"{recording_s3.url}/names") if name in found] == [
        url.removeprefix("s3://")
    ]


def test_blosc2_reads_what_was_written(store, tmp_path):
    x = noise(20 * MIB, 3 * MIB).rechunk((7 * MIB // 8,))
    x = da.concatenate([x, da.zeros(MIB, chunks=MIB // 4, dtype=x.dtype)])
    to_b2nd(x, store.url, chunks=MIB // 8, **store.keywords)
    path = tmp_path / "copy.b2nd"
    path.write_bytes(store.data())
    copy = blosc2.open(str(path))
    assert copy.chunks == (MIB // 8,)
    np.testing.assert_array_equal(copy[:], x.compute())


def test_blosc2_reads_a_sparse_frame(s3, tmp_path):
    x = noise(MIB, MIB // 8)
    to_b2nd(x, s3.url, contiguous=False, **s3.keywords)
    fs, path = s3.fs()
    fs.get(path, str(tmp_path / "copy.b2nd"), recursive=True)
    np.testing.assert_array_equal(blosc2.open(str(tmp_path / "copy.b2nd"))[:], x.compute())


def test_bytes_do_not_pass_through_the_committing_process(s3, recording_s3):
    x = noise(48 * MIB, 12 * MIB)
    to_b2nd(x, s3.url, compute=False, **s3.keywords).compute()
    assert recording_s3.count("UploadPartCopy") == 4
    staged = recording_s3.received("PutObject")
    assert 48 * MIB <= staged < 49 * MIB
    # one part of 5 MiB for the header, one for index and trailer
    assert recording_s3.sent("GetObject", "ListObjects") < 5 * MIB + 10_000
    assert recording_s3.received("UploadPart") < 5 * MIB + 10_000
    assert recording_s3.uploads() == []
    assert s3.names() == [f"frames/{s3.name}"]
    y = from_b2nd(s3.url, **s3.keywords)
    np.testing.assert_array_equal(y[::1000].compute(), x[::1000].compute())


def test_threads_of_the_client_ask_for_nothing_but_what_they_stage(s3, recording_s3):
    x = noise(40 * MIB // 8, MIB // 8)
    to_b2nd(x, s3.url, **s3.keywords)
    staged = 40
    # the marker of the staging area and the frame
    assert recording_s3.count("PutObject") == staged + 2
    # checks for the target and the marker: before, after, and after the clean-up
    assert recording_s3.count("HeadObject") == 5
    assert recording_s3.count("DeleteObject") == 1
    assert s3.names() == [f"frames/{s3.name}"]


@pytest.mark.parametrize("action", ["other", "nothing"])
def test_what_many_tasks_staged_is_removed_where_a_store_refuses_to_at_once(
    s3, recording_s3, action
):
    x = noise(20 * MIB // 8, MIB // 8)
    recording_s3.refused = action
    to_b2nd(x, s3.url, **s3.keywords)
    assert recording_s3.count("DeleteObject") == {"other": 21, "nothing": 1}[action]
    assert s3.names() == [f"frames/{s3.name}"]


@pytest.mark.parametrize("contiguous", [True, False])
def test_a_staging_area_that_another_process_removes(store, contiguous):
    fs, path = store.fs()
    parent = path.rpartition("/")[0]

    def remove(block, block_id=None):
        if block_id == (0,):
            fs.invalidate_cache()
            for found in fs.find(parent or "/"):
                if store.name in found and ".staging/" in found:
                    fs.rm_file(found)
        return block

    x = da.ones(80, chunks=10).cumsum(axis=0).map_blocks(remove, dtype=float)
    with pytest.raises(FileNotFoundError, match="given up"), dask.config.set(scheduler="sync"):
        to_b2nd(x, store.url, contiguous=contiguous, **store.keywords)
    assert store.names() == []


@pytest.mark.parametrize("scheduler", ["sync", "threads", "processes"])
def test_schedulers(s3, scheduler):
    # two parts of an upload, which are of 5 MiB at least
    x = noise(12 * MIB, 6 * MIB)
    with dask.config.set(scheduler=scheduler, num_workers=2):
        y = to_b2nd(x + 1, s3.url, **s3.keywords)
        np.testing.assert_array_equal(y.compute(), x.compute() + 1)
    assert s3.names() == [f"frames/{s3.name}"]


@pytest.mark.parametrize("contiguous", [True, False])
def test_a_delayed_write(store, contiguous):
    x = da.arange(1000, chunks=100)
    written = to_b2nd(x, store.url, contiguous=contiguous, compute=False, **store.keywords)
    assert written.compute() == store.url
    np.testing.assert_array_equal(from_b2nd(store.url, **store.keywords), np.arange(1000))


@pytest.mark.parametrize("nbytes", [MIB, 12 * MIB])
def test_a_frame_replaces_the_one_it_is_computed_from(store, nbytes):
    x = noise(nbytes, nbytes // 2)
    y = to_b2nd(x, store.url, **store.keywords)
    z = to_b2nd(y + 1, store.url, mode="w", **store.keywords)
    np.testing.assert_array_equal(z.compute(), x.compute() + 1)
    # cached listings and frames show the new frame as well
    np.testing.assert_array_equal(from_b2nd(store.url, **store.keywords), x.compute() + 1)
    assert len(store.names()) == 1


@contextmanager
def waiting_for_all_tasks():
    """At the end, uploads that were running when a write failed are removed."""
    with ThreadPoolExecutor(4) as pool, dask.config.set(pool=pool):
        yield


@pytest.mark.parametrize("contiguous", [True, False])
def test_a_task_that_fails_leaves_nothing(store, contiguous):
    x = failing(noise(8 * MIB, MIB))
    with waiting_for_all_tasks(), pytest.raises(RuntimeError, match="this block fails"):
        to_b2nd(x, store.url, contiguous=contiguous, **store.keywords)
    assert store.names() == []


def test_a_task_that_fails_leaves_the_old_object(store):
    x = to_b2nd(noise(MIB, MIB // 4), store.url, **store.keywords)
    before = store.data()
    with waiting_for_all_tasks(), pytest.raises(RuntimeError, match="this block fails"):
        to_b2nd(failing(x), store.url, mode="w", **store.keywords)
    assert store.data() == before
    assert len(store.names()) == 1


def test_a_write_that_is_given_up_is_no_folder_that_a_task_does_not_see(store):
    def give_up(block):
        remove_staging(store.url, **store.keywords)
        return block

    x = da.arange(20, chunks=20).map_blocks(give_up, meta=np.empty(0, int))
    written = to_b2nd(x, store.url, compute=False, **store.keywords)
    with pytest.raises(FileNotFoundError, match="has ended or was given up") as caught:
        written.compute(scheduler="sync")
    assert caught.value.filename == store.url
    assert "folder" not in str(caught.value)
    assert store.names() == []


def test_a_bucket_that_is_missing(s3):
    written = to_b2nd(np.arange(10), "s3://nowhere/a.b2nd", compute=False, **s3.keywords)
    with pytest.raises(FileNotFoundError, match=r"No such bucket: 's3://nowhere/a\.b2nd'$"):
        written.compute(scheduler="sync")


@pytest.mark.parametrize("contiguous", [True, False])
def test_a_name_that_another_writer_takes_meanwhile(store, contiguous):
    def take(block):
        to_b2nd(np.arange(10), store.url, **store.keywords)
        return block

    x = da.arange(20, chunks=20).map_blocks(take, meta=np.empty(0, int))
    with pytest.raises(FileExistsError, match="another writer has created") as caught:
        to_b2nd(x, store.url, contiguous=contiguous, **store.keywords)
    assert 'mode="w"' not in str(caught.value)
    assert from_b2nd(store.url, **store.keywords).sum().compute() == 45


@pytest.mark.parametrize("contiguous", [True, False])
def test_a_name_that_is_taken(store, contiguous):
    to_b2nd(np.arange(10), store.url, **store.keywords)
    before = store.data()
    with pytest.raises(FileExistsError, match=r'mode="w" to replace|remove it first') as caught:
        to_b2nd(np.arange(20), store.url, contiguous=contiguous, **store.keywords)
    assert store.url in str(caught.value)
    assert store.data() == before
    assert len(store.names()) == 1


def test_a_sparse_frame_is_not_replaced(store):
    to_b2nd(np.arange(10), store.url, contiguous=False, **store.keywords)
    for contiguous in (True, False):
        with pytest.raises(FileExistsError, match=r"remove (it|them) first"):
            to_b2nd(np.arange(9), store.url, mode="w", contiguous=contiguous, **store.keywords)
    np.testing.assert_array_equal(from_b2nd(store.url, **store.keywords), np.arange(10))


def test_no_secrets_are_shown(s3, recording_s3):
    written = to_b2nd(np.arange(10), s3.url, compute=False, **s3.keywords)
    recording_s3.refused = "PutObject"
    with pytest.raises(PermissionError) as caught:
        written.compute(scheduler="sync")
    shown = "".join(traceback.format_exception(caught.value))
    assert s3.url in shown
    graph = repr(dict(written.__dask_graph__())) + repr(written) + repr(written.dask)
    assert "hunter2" not in shown + graph


def test_a_refusal_in_a_commit_is_reported_as_it_is(s3, recording_s3):
    to_b2nd(np.arange(10), s3.url, **s3.keywords)
    # the commit reads the staged objects
    recording_s3.refused = "GetObject"
    with pytest.raises(PermissionError) as caught:
        to_b2nd(noise(20 * MIB // 8, 2 * MIB // 8), s3.url, mode="w", **s3.keywords)
    assert s3.url in str(caught.value)
    assert "shared file system" not in str(caught.value)
    recording_s3.refused = ""
    np.testing.assert_array_equal(from_b2nd(s3.url, **s3.keywords), np.arange(10))
    assert s3.names() == [f"frames/{s3.name}"]


def test_a_web_server(http_server):
    with pytest.raises(OSError, match=r"web servers are read-only.*a\.b2nd"):
        to_b2nd(np.arange(10), f"{http_server.url}/a.b2nd")
