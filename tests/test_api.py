"""The public names and signatures, and the additions of `import b2nd_dask` to dask."""

import inspect
import pickle
import sys
from subprocess import run

import blosc2
import dask.array as da
import numpy as np
import pytest

import b2nd_dask
from b2nd_dask import (
    Frame,
    FrameReads,
    Plan,
    StagingInfo,
    Target,
    Verification,
    from_b2nd,
    open_b2nd,
    to_b2nd,
)
from b2nd_dask.frame.array import reference_of
from b2nd_dask.frame.reference import FrameReference

VALUES = np.arange(600.0).reshape(20, 30)

NAMES = """
B2ndError ChecksumError ChunkKind CorruptChunkError Frame FrameFormatError FrameReads Plan
StagingInfo StaleFrameError Target UninitializedChunkError UnsupportedFrameError Verification
VersionMismatchError __version__ add_stats commit compact convert create from_b2nd list_staging
open_b2nd persist_compressed plan plot rechunk remove_staging seal to_b2nd verify
"""

SIGNATURES = {
    "commit": "(urlpath, *, fill=None, storage_options=None)",
    "compact": "(urlpath)",
    "convert": "(src, dst, *, source_format=None, target_format=None, member=None, dtype=None, "
    "chunks=None, blocks=None, cparams=None, stats=False, max_mem=None, overwrite=False, "
    "skip=False, check=False, other_files=False, storage_options=None, progress=None)",
    "add_stats": "(urlpath, *, threads=None)",
    "create": "(urlpath, shape, dtype, *, mode='w-', chunks=None, blocks=None, cparams=None, "
    "meta=None, vlmeta=None, contiguous=True, storage_options=None, stats=False)",
    "from_b2nd": "(urlpath, *, axis=None, stack=False, chunks=None, dtype=None, "
    "uninit=None, verify='auto', storage_options=None, name=None, offset=0, component=None, "
    "array_type='dask')",
    "list_staging": "(urlpath, *, storage_options=None)",
    "open_b2nd": "(urlpath, *, dtype=None, uninit=None, verify='auto', storage_options=None, "
    "offset=0, component=None, threads=None)",
    "persist_compressed": "(x, *, cparams=None)",
    "plan": "(*collections)",
    "rechunk": "(src, dst, *, chunks, blocks=None, cparams=None, max_mem=None, mode='w-', "
    "meta='keep', vlmeta='keep', contiguous=True, storage_options=None, compute=True, "
    "resume=False, fsync=True, stats=None)",
    "remove_staging": "(urlpath, *, key=None, storage_options=None)",
    "seal": "(urlpath, *, threads=None)",
    "to_b2nd": "(arr, urlpath, *, mode='w-', chunks=None, blocks=None, cparams=None, meta=None, "
    "vlmeta=None, contiguous=True, region=None, append_axis=None, caterva=False, "
    "storage_options=None, compute=True, resume=False, fsync=True, max_mem=None, "
    "append_dim=None, encoding=None, stats=False)",
    "verify": "(urlpath, *, threads=None, storage_options=None, offset=0)",
}

MEMBERS = {
    Frame: "attrs blocks cbytes chunk_kinds chunks close closed contiguous cparams cratio dtype "
    "info meta nbytes nchunks ndim path shape size stats version vlmeta",
    Verification: "bad bad_statistics checksum_state nchunks ok path reason",
    FrameReads: "block_shape blocks chunk_shape chunks constants decode_nbytes dtype fetch_nbytes "
    "is_intermediate path reads shape visits",
    Plan: "blocks chunks constants decode_nbytes fetch_nbytes frames peak_nbytes reads targets "
    "tasks writing_tasks",
    Target: "block_shape chunk_shape chunks contiguous dtype is_intermediate path shape",
    StagingInfo: "key modified nbytes path",
}

PLOTS = {
    "chunk_map": "(frame, by='kind', *, ax=None, cmap=None)",
    "compression": "(frames, *, figure=None)",
    "slices": "(x, axis=0, *, interactive=None, count=12, figure=None, **image)",
    "thumbnail": "(x, *, size=400, method='mean', ax=None, colorbar=True, **image)",
}

FUNCTIONS = {
    Frame.chunk_kinds: "(self)",
    Frame.close: "(self)",
    Frame.__getitem__: "(self, index)",
    Frame.__array__: "(self, dtype=None, copy=None)",
}


def signature(function):
    """Names, kinds and defaults of the parameters; annotations are for mypy."""
    plain = inspect.signature(function)
    parameters = [p.replace(annotation=p.empty) for p in plain.parameters.values()]
    return str(plain.replace(parameters=parameters, return_annotation=plain.empty))


def members(kind):
    names = {*dir(kind), *getattr(kind, "__dataclass_fields__", ())}
    return sorted(name for name in names if not name.startswith("_"))


def test_names():
    assert sorted(b2nd_dask.__all__) == sorted(NAMES.split())


@pytest.mark.parametrize("name", SIGNATURES)
def test_signatures(name):
    assert signature(getattr(b2nd_dask, name)) == SIGNATURES[name]


def test_signatures_of_plots():
    assert {name: signature(getattr(b2nd_dask.plot, name)) for name in PLOTS} == PLOTS
    assert sorted(b2nd_dask.plot.__all__) == sorted(PLOTS)


def test_every_function_is_pinned():
    functions = {n for n in b2nd_dask.__all__ if inspect.isfunction(getattr(b2nd_dask, n))}
    assert functions == SIGNATURES.keys()


@pytest.mark.parametrize("kind", MEMBERS)
def test_members(kind):
    assert members(kind) == MEMBERS[kind].split()


@pytest.mark.parametrize("function", FUNCTIONS)
def test_signatures_of_methods(function):
    assert signature(function) == FUNCTIONS[function]


#: Number of modules of this package that its import loads.
LOADED = 13

OWN_MODULES = """
import sys, warnings, dask.array as da, b2nd_dask
own = lambda: len([name for name in sys.modules if name.partition(".")[0] == "b2nd_dask"])
print(own())
da.ones((6, 6), chunks=3).rechunk(2).sum().compute(scheduler="sync")
print(own(), "fsspec" in sys.modules)
assert {"from_b2nd", "to_b2nd"} <= set(dir(da)) and hasattr(da.Array, "to_b2nd")
"""


def test_importing_loads_few_modules_and_graphs_without_frames_no_more():
    found = run([sys.executable, "-c", OWN_MODULES], capture_output=True, text=True, check=True)
    first, second, fsspec = found.stdout.split()
    assert int(first) <= LOADED
    assert (second, fsspec) == (first, "False")


def test_what_is_added_to_dask():
    assert da.from_b2nd is from_b2nd
    assert da.to_b2nd is da.Array.to_b2nd is to_b2nd
    assert {"from_b2nd", "to_b2nd", "Array", "ones"} <= set(dir(da))
    messages = {
        da: r"module 'dask\.array' has no attribute 'nothing'",
        b2nd_dask: "No b2nd_dask attribute nothing",
    }
    for module, message in messages.items():
        with pytest.raises(AttributeError, match=f"^{message}$"):
            getattr(module, "nothing")  # noqa: B009 - as a user asks
    # all else is dask's own
    assert da.Array.rechunk.__module__ == "dask.array.core"


@pytest.fixture
def frame(tmp_path):
    path = tmp_path / "x.b2nd"
    to_b2nd(VALUES, path, chunks=(6, 10), vlmeta={"unit": "m"}).compute()
    return open_b2nd(path)


def test_attributes(frame, tmp_path):
    array = blosc2.open(frame.path)
    assert frame.path == str(tmp_path / "x.b2nd")
    for name in ("shape", "chunks", "blocks", "dtype", "ndim", "size"):
        assert getattr(frame, name) == getattr(array, name)
    assert frame.nchunks == array.schunk.nchunks == 12
    assert frame.nbytes == VALUES.nbytes
    assert frame.cratio == frame.nbytes / frame.cbytes > 1


def test_ratio_without_data(tmp_path):
    to_b2nd(np.zeros((4, 4)), tmp_path / "x.b2nd")
    assert open_b2nd(tmp_path / "x.b2nd").cratio == 0.0


def test_info_prints(frame):
    text = str(frame.info)
    for part in (frame.path, "20 x 30", "float64", "contiguous", "zstd", "present", "'unit'"):
        assert part in text
    assert frame.info["chunk kinds"] == "12 stored"


def test_iteration_reads_each_chunk_once(frame, monkeypatch):
    reads, read = [], FrameReference.read
    monkeypatch.setattr(
        FrameReference, "read", lambda self, *a, **k: reads.append(a) or read(self, *a, **k)
    )
    np.testing.assert_array_equal(list(frame), VALUES)
    assert len(reads) == 4
    with pytest.raises(TypeError, match="0-d"):
        iter(open_b2nd(blosc2.asarray(np.array(3.0))))


def test_conversion(frame):
    np.testing.assert_array_equal(np.asarray(frame, np.float32), VALUES.astype(np.float32))
    assert np.array(frame).flags.writeable
    with pytest.raises(ValueError, match="without a copy"):
        np.asarray(frame, copy=False)


def test_closed_frames_are_not_read(frame):
    x, other, read = from_b2nd(frame), open_b2nd(frame.path), frame.attrs
    with frame as entered:
        assert entered is frame
        assert not frame.closed
    assert frame.closed
    frame.close()
    for use in (
        lambda: frame[0],
        lambda: list(frame),
        lambda: np.asarray(frame),
        lambda: frame.attrs,
        lambda: frame.info,
        lambda: frame.cbytes,
        lambda: frame.chunk_kinds(),
        lambda: from_b2nd(frame),
        lambda: pickle.dumps(frame),
    ):
        with pytest.raises(ValueError, match=r"x\.b2nd: this Frame is closed; open it again"):
            use()
    assert (frame.shape, frame.dtype, len(frame)) == ((20, 30), np.float64, 20)
    assert repr(frame).endswith("(closed)>")
    # its dask arrays, and other frames, can still be read
    assert x.sum().compute() == other[...].sum() == VALUES.sum()
    assert read["unit"] == "m"


def test_pickled_frames_carry_the_reference_alone(frame):
    again = pickle.loads(pickle.dumps(frame))
    np.testing.assert_array_equal(again[3], VALUES[3])
    assert pickle.loads(pickle.dumps(reference_of(frame))).shape == frame.shape
    graph = pickle.dumps(from_b2nd(frame).dask)
    assert b"FrameReference" in graph
    assert b"frame.array" not in graph
