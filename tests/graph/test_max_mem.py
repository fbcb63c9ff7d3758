"""`to_b2nd(..., max_mem=)`: rechunks, transposes and reshapes of frames, within a stated memory."""

from __future__ import annotations

import importlib
import logging
import os
import re
import signal
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import blosc2
import dask
import dask.array as da
import numpy as np
import pytest
from dask.utils import key_split
from distributed import Client, LocalCluster
from hypothesis import given
from hypothesis import strategies as st

import b2nd_dask
from b2nd_dask import ChecksumError, from_b2nd, list_staging, to_b2nd, verify
from b2nd_dask.frame.rechunk import work as work_module
from b2nd_dask.graph.write import write_tasks
from tests.forked import run_to_end
from tests.peak import peak_growth, write_maps
from tests.strategies import examples

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.servers import S3Server

MIB = 1 << 20
VALUES = np.random.default_rng(1).integers(0, 100, (48, 60, 80)).astype("i4")


@pytest.fixture(autouse=True)
def _two_threads() -> Iterator[None]:
    # the memory is divided among them
    with dask.config.set(num_workers=2):
        yield


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source.b2nd"
    blosc2.asarray(VALUES, urlpath=str(path), chunks=(1, 60, 80), blocks=(1, 20, 80))
    return path


@pytest.fixture
def target(tmp_path: Path) -> Path:
    (tmp_path / "target").mkdir()
    return tmp_path / "target" / "target.b2nd"


def assert_written(target: Path, expected: np.ndarray) -> None:
    written = blosc2.open(str(target), mode="r")
    assert written.dtype == expected.dtype
    np.testing.assert_array_equal(written[...], expected)
    assert verify(target).ok
    assert list(target.parent.iterdir()) == [target]


ARRAYS: dict[str, Callable[[Any], Any]] = {
    "read": lambda x: x,
    "functions": lambda x: x * 2 + 1,
    "rechunk": lambda x: x.rechunk((48, 5, 10)) if isinstance(x, da.Array) else x,
    "transpose": lambda x: x.T,
    "transpose, rechunk": lambda x: chunked(x.transpose(1, 2, 0), (6, 10, 48)),
    "rechunk, transpose": lambda x: chunked(x, (48, 5, 10)).transpose(2, 0, 1),
    "functions, rechunk": lambda x: chunked(x + 1, (48, 5, 10)),
    "rechunk, functions": lambda x: (chunked(x, (48, 5, 10)) * 2.5).astype("f4"),
    "both": lambda x: chunked((x + 1) * 1.5, (48, 5, 10)).T * 2,
    "two frames": lambda x: chunked(x, (48, 5, 10)) + chunked(x.T * 2, (10, 5, 48)).T,
    "broadcast": lambda x: chunked(x, (48, 5, 10)) + np.arange(80),
    "merge axes": lambda x: x.reshape(48 * 60, 80),
    "split an axis": lambda x: x.reshape(48, 15, 4, 80),
    "reshape, rechunk": lambda x: chunked(x.reshape(48, 4800), (48, 100)),
    "transpose, reshape": lambda x: x.T.reshape(80 * 60, 48),
    "of both": lambda x: chunked(chunked(x + 1, (48, 5, 10)) * 2, (9, 60, 8)),
    "swapaxes": lambda x: x.swapaxes(0, 2),
    "functions, reshape": lambda x: (x + 1).reshape(48 * 60, 80) * 2,
    "slice": lambda x: x[10:20, ::1],
    "slice, rechunk": lambda x: chunked(x[10:41, :, 7:79], (31, 7, 9)),
    "slice, functions": lambda x: x[3:20, 5:55] * 2,
    "functions, slice, rechunk": lambda x: chunked((x + 1)[3:20, 1:], (17, 9, 9)),
    "rechunk, slice": lambda x: chunked(x, (48, 7, 8))[1:, 3:50, 9:],
    "functions, rechunk, slice": lambda x: chunked(x * 2, (48, 7, 8))[1:, 3:50, 9:] + 1,
    "slices, transposes": lambda x: x[5:40].T[3:, 11:50][1:60].swapaxes(0, 1),
    "slice, reshape": lambda x: x[7:47, 3:].reshape(-1, 80),
    "reshape, slice": lambda x: chunked(x.reshape(48 * 60, 80), (7, 80))[61:2000, 3:],
    "slices of both": lambda x: (
        chunked(x[1:41], (40, 9, 9)) + chunked(x[8:, :, 1:], (9, 9, 9))[:, :, :1]
    ),
    "slices of one rechunk": lambda x: difference(chunked(x * 2, (48, 7, 8))),
    "slices of one reshape": lambda x: difference(chunked(x.reshape(48 * 60, 80), (7, 80))),
    "rechunks of one function": lambda x: (
        chunked(x * 2, (48, 15, 20)) - chunked(x * 2, (24, 30, 20))
    ),
    "rechunk and its transpose": lambda x: with_transpose(
        chunked(x[:, :48, :48] * 2, (24, 12, 12))
    ),
    "reshape and its transpose": lambda x: with_transpose(x[:8, :10].reshape(80, 80)),
}


def chunked(x: Any, chunks: tuple[int, ...]) -> Any:
    """Rechunk a dask array; return a NumPy array unchanged."""
    return x.rechunk(chunks) if isinstance(x, da.Array) else x


def difference(x: Any) -> Any:
    """Read two slices of an array."""
    return x[1:] - x[:-1]


def with_transpose(x: Any) -> Any:
    """Read an array twice, the second time with other axes."""
    return x + x.T


@pytest.mark.parametrize("chunks", [None, 7])
@pytest.mark.parametrize("what", ARRAYS)
def test_arrays_over_frames(source: Path, target: Path, what: str, chunks: int | None) -> None:
    function = ARRAYS[what]
    x = function(from_b2nd(source))
    sizes = None if chunks is None else tuple(-(-n // chunks) for n in x.shape)
    to_b2nd(x, target, chunks=sizes, max_mem="40MB", cparams={"clevel": 1})
    assert_written(target, function(VALUES))


@pytest.mark.parametrize(
    "what", ["functions, rechunk", "reshape, rechunk", "both", "functions, reshape", "of both"]
)
def test_delayed(source: Path, target: Path, what: str) -> None:
    x = ARRAYS[what](from_b2nd(source))
    written = to_b2nd(x, target, max_mem="32MB", compute=False)
    assert list(target.parent.iterdir()) == []
    assert written.compute() == str(target)
    assert_written(target, ARRAYS[what](VALUES))
    # as on a cluster that lost the worker with the result
    assert written.compute() == str(target)
    assert_written(target, ARRAYS[what](VALUES))


@st.composite
def programs(draw: st.DrawFn) -> dict[str, Any]:
    """Draw a frame, and the operations on it."""
    shape = draw(st.lists(st.integers(1, 12), min_size=1, max_size=3).map(tuple))
    steps: list[tuple[str, Any]] = []
    now = shape
    for kind in draw(
        st.lists(st.sampled_from(["f", "chunks", "axes", "shape", "slice"]), max_size=5)
    ):
        if kind == "f":
            steps.append(("f", draw(st.integers(1, 3))))
        elif kind == "chunks":
            steps.append(("chunks", draw(st.tuples(*(st.integers(1, n) for n in now)))))
        elif kind == "axes":
            axes = tuple(draw(st.permutations(range(len(now)))))
            steps.append(("axes", axes))
            now = tuple(now[axis] for axis in axes)
        elif kind == "slice":
            starts = draw(st.tuples(*(st.integers(0, n - 1) for n in now)))
            stops = draw(
                st.tuples(*(st.integers(a + 1, n) for a, n in zip(starts, now, strict=True)))
            )
            steps.append(("slice", tuple(map(slice, starts, stops))))
            now = tuple(stop - start for start, stop in zip(starts, stops, strict=True))
        elif len(now) > 1:
            now = (now[0] * now[1], *now[2:])
            steps.append(("shape", now))
    return {
        "shape": shape,
        "chunks": draw(st.tuples(*(st.integers(1, n) for n in shape))),
        "steps": steps,
        "wanted": draw(st.none() | st.tuples(*(st.integers(1, n) for n in now))),
    }


def result_of(x: Any, steps: list[tuple[str, Any]]) -> Any:
    for kind, argument in steps:
        if kind == "f":
            x = x * 3 + argument
        elif kind == "axes":
            x = x.transpose(argument)
        elif kind == "slice":
            x = x[argument]
        elif kind == "shape":
            x = x.reshape(argument)
        elif isinstance(x, da.Array):
            x = x.rechunk(argument)
    return x


@examples(60)
@given(program=programs())
def test_random_programs(program: dict[str, Any], fresh_path: Callable[[], Path]) -> None:
    values = np.arange(np.prod(program["shape"])).reshape(program["shape"])
    source, target = fresh_path(), fresh_path()
    blosc2.asarray(values, urlpath=str(source), chunks=program["chunks"])
    x = result_of(from_b2nd(source), program["steps"])
    with dask.config.set(scheduler="sync"):
        to_b2nd(x, target, chunks=program["wanted"], max_mem="64MB")
    expected = result_of(values, program["steps"])
    np.testing.assert_array_equal(blosc2.open(str(target), mode="r")[...], expected)
    assert not list(target.parent.glob(f".{target.name}*"))


def other_blocks(x: da.Array, *chunks: tuple[int, ...]) -> da.Array:
    """An array of the same graph that claims other blocks."""
    return da.Array(x.dask, x.name, chunks, dtype=x.dtype)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda x: other_blocks(x.T, (40,), (60,), (48,)),
        lambda x: other_blocks(x.reshape(48, 4800), (24,), (4800,)).T,
        lambda x: other_blocks(x.reshape(48, 4800), (48,), (4800,)).map_blocks(np.sqrt),
    ],
    ids=["a transpose", "a reshape", "a reshape below a function"],
)
def test_arrays_that_say_other_blocks_than_their_tasks_have(
    source: Path, target: Path, wrong: Callable[[da.Array], da.Array]
) -> None:
    x = from_b2nd(source, chunks=(8, 60, 80))
    with pytest.raises(ValueError, match="max_mem= cannot bound the memory of"):
        to_b2nd(wrong(x), target, max_mem="200MB")
    assert not target.exists()


@pytest.mark.parametrize(
    ("make", "arguments", "message"),
    [
        (lambda x: x.rechunk((48, 60, 80)) * 2, {"max_mem": "4MB"}, "which is the minimum"),
        (lambda x: (x * 2).rechunk((48, 60, 80)), {"max_mem": "1MB"}, "which is the minimum"),
        (lambda x: x.reshape(2880, 80), {"max_mem": "1MB"}, "which is the minimum"),
        (lambda x: x.sum(axis=0), {"max_mem": "1GB"}, r"of sum-aggregate\. It supports"),
        (lambda x: da.roll(x, 3, 0), {"max_mem": "1GB"}, r"of concatenate\. It supports"),
        (
            lambda x: da.reshape_blockwise(x, (2880, 80)),
            {"max_mem": "1GB"},
            r"of reshape-blockwise\. It supports",
        ),
        (
            lambda x: x.rechunk((9, 9, 9)).sum(0),
            {"max_mem": "1GB"},
            r"of sum-aggregate\. It supports",
        ),
        (lambda x: x[3], {"max_mem": "1GB"}, r"of indexing by integers, .*\. It supports"),
        (lambda x: x[::2].T, {"max_mem": "1GB"}, r"slices with steps\. It supports"),
        (lambda x: x, {"max_mem": "64"}, '"64B" is too little for new chunks'),
        (lambda x: x, {"max_mem": "1GB", "mode": "r+", "append_axis": 0}, "for new frames"),
    ],
)
def test_what_cannot_be_bounded(
    source: Path,
    target: Path,
    make: Callable[[da.Array], da.Array],
    arguments: dict[str, Any],
    message: str,
) -> None:
    with pytest.raises(ValueError, match=message) as raised:
        to_b2nd(make(from_b2nd(source)), target, **arguments)
    # no names of layers, which end in hashes
    assert not re.search(r"[0-9a-f]{16}", str(raised.value))
    assert list(target.parent.iterdir()) == []


@pytest.mark.parametrize("threads", [1, 2, 4])
@pytest.mark.parametrize(
    "make",
    [
        lambda x: x.reshape(2880, 80),
        lambda x: ((x + 1).rechunk((48, 10, 20)) * 2).rechunk((12, 60, 80)),
        lambda x: (x[10:40, :, 20:60] + 1).rechunk((30, 10, 20)),
        lambda x: x.T.rechunk((20, 10, 48)),
    ],
    ids=["reshape", "two rechunks", "slice", "transpose"],
)
def test_the_least_memory_that_an_error_names_is_enough_for_all_steps(
    source: Path, target: Path, make: Callable[[da.Array], da.Array], threads: int
) -> None:
    x = make(from_b2nd(source))
    with dask.config.set(num_workers=threads):
        with pytest.raises(ValueError, match="which is the minimum") as raised:
            to_b2nd(x, target, max_mem="1kB")
        (_, least) = re.findall(r'max_mem="([^"]+)"', str(raised.value))
        to_b2nd(x, target, max_mem=least)
    assert_written(target, x.compute(scheduler="sync"))


def test_other_arrays(target: Path) -> None:
    x = da.from_array(VALUES, chunks=(8, 60, 80))
    to_b2nd(x + 1, target, max_mem="32MB")
    assert_written(target, VALUES + 1)
    to_b2nd(VALUES, target, max_mem=np.int64(32e6), mode="w", chunks=(4, 5, 6))
    assert_written(target, VALUES)


def test_other_arrays_are_bounded_by_their_blocks(tmp_path: Path) -> None:
    growth = peak_growth(
        "to_b2nd(x, target, max_mem=limit, cparams={'clevel': 1})",
        before="make = lambda n: da.full((n, 512, 512), 3, chunks=(1, 512, 512), dtype='i4')"
        ".map_blocks(lambda b: b + np.arange(512, dtype='i4')); x = make(96); "
        "to_b2nd(make(4), small, max_mem=limit, cparams={'clevel': 1})",
        small=tmp_path / "small.b2nd",
        target=tmp_path / "target.b2nd",
        limit=20 * MIB,
    )
    # the array has 96 MiB
    assert growth < 20 * MIB
    expected = np.broadcast_to(3 + np.arange(512), (512, 512))
    np.testing.assert_array_equal(b2nd_dask.open_b2nd(tmp_path / "target.b2nd")[95], expected)


def test_a_graph_may_be_deep_and_have_many_ways_down(tmp_path: Path, target: Path) -> None:
    blosc2.asarray(VALUES[0], urlpath=str(tmp_path / "x.b2nd"), chunks=(20, 80), blocks=(20, 80))
    x = from_b2nd(tmp_path / "x.b2nd").rechunk((60, 20))
    for _ in range(60):
        x = da.maximum(x, x)
    # deeper than Python's limit of recursion
    for _ in range(1000):
        x = x + 1
    to_b2nd(x, target, max_mem=64 * MIB)
    assert_written(target, VALUES[0] + 1000)


def names_of(x: da.Array, target: Path) -> Counter[str]:
    """Number of tasks by their name on the dashboard."""
    written = to_b2nd(x, target, max_mem="32MB", compute=False)
    return Counter(map(key_split, written.__dask_graph__()))


@pytest.mark.parametrize("what", ["functions, rechunk", "reshape, rechunk", "rechunk"])
def test_names_of_tasks_tell_the_step_and_the_target(source: Path, target: Path, what: str) -> None:
    names = names_of(ARRAYS[what](from_b2nd(source)), target)
    documented = (Path(__file__).parents[2] / "docs/cluster.md").read_text(encoding="utf-8")
    steps = ("open", "plan", "source", "flat", "write", "known", "merge", "commit")
    assert set(names) <= {f"{step}(target)" for step in steps}
    assert all(f"`{name.partition('(')[0]}(out)`" in documented for name in names)


@pytest.mark.parametrize("resume", [False, True])
@pytest.mark.parametrize("views", [difference, with_transpose])
def test_what_two_views_read_is_computed_once(
    source: Path, target: Path, views: Callable[[Any], Any], resume: bool
) -> None:
    computed = []

    def counted(block: Any) -> Any:
        # dask infers the dtype with at most two elements
        computed.extend([block.shape] * (block.size > 2))
        return block * 2

    x = from_b2nd(source)[:, :48, :48].map_blocks(counted, dtype="i4").rechunk((24, 12, 12))
    to_b2nd(views(x), target, max_mem="32MB", resume=resume)
    assert_written(target, views(VALUES[:, :48, :48] * 2))
    assert len(computed) == 48


def test_axes_that_are_swapped_need_no_intermediate_frame(source: Path, target: Path) -> None:
    x = from_b2nd(source)
    for turned in (x.T, x.swapaxes(0, 2), x.swapaxes(-1, 1), da.moveaxis(x, 0, -1)):
        assert names_of(turned, target)["commit(target)"] == 1
    assert names_of((x + 1).rechunk((48, 5, 10)), target)["commit(target)"] == 2


def test_a_slice_of_a_reshape_needs_no_other_intermediate_frame(source: Path, target: Path) -> None:
    for index in ((slice(61, 2000), slice(3, None)), (slice(None), slice(7))):
        x = from_b2nd(source).reshape(48 * 60, 80)[index]
        assert names_of(x, target)["commit(target)"] == 2
        to_b2nd(x, target, max_mem="32MB", mode="w")
        assert_written(target, VALUES.reshape(48 * 60, 80)[index])


@pytest.mark.parametrize(
    ("held", "written", "is_small"), [("i1", "c16", True), ("f8", "i1", False), ("f8", "f8", False)]
)
def test_an_array_is_small_by_its_own_bytes(
    target: Path, held: str, written: str, is_small: bool
) -> None:
    values = np.arange(200_000).astype(held)
    x = da.from_array(values, chunks=50_000).rechunk(60_000).map_blocks(np.real).astype(written)
    assert (names_of(x, target)["commit(target)"] == 1) == is_small
    to_b2nd(x, target, max_mem="32MB")
    assert_written(target, values.astype(written))


def test_planning_computes_no_block(source: Path, target: Path) -> None:
    def here(block: Any) -> Any:
        # dask infers the dtype with at most one element
        assert block.size <= 1, "a block was computed"
        return block * 1.5

    for dtype in (None, "f8"):
        x = from_b2nd(source).map_blocks(here, dtype=dtype).rechunk((48, 5, 10)) * 2
        to_b2nd(x, target, max_mem="32MB", compute=False)


def joined(tmp_path: Path, *, stacked: bool) -> tuple[list[Path], da.Array, np.ndarray]:
    """Frames with different chunks, concatenated or stacked."""
    parts = [VALUES, VALUES + 1, VALUES * 2] if stacked else [VALUES, VALUES[:7] * 2, VALUES[:30]]
    paths = [tmp_path / f"part{number}.b2nd" for number in range(3)]
    for number, (part, path) in enumerate(zip(parts, paths, strict=True)):
        to_b2nd(part, path, chunks=(number + 1, 60, 80), blocks=(1, 20, 40 - 10 * number))
    values = np.stack(parts, axis=1) if stacked else np.concatenate(parts)
    return paths, from_b2nd(paths, axis=int(stacked), stack=stacked), values


@pytest.mark.parametrize("stacked", [False, True])
@pytest.mark.parametrize(
    "function",
    [
        lambda x: x,
        lambda x: x.T,
        lambda x: chunked(x, (20, *(9,) * (x.ndim - 1))) * 2,
        lambda x: (chunked(x, (20, *(9,) * (x.ndim - 1))) + 1).reshape(-1, 80),
        lambda x: x.reshape(-1, 4800),
    ],
    ids=["read", "transpose", "rechunk, functions", "all", "reshape"],
)
def test_joined_frames(
    tmp_path: Path, target: Path, function: Callable[[Any], Any], stacked: bool
) -> None:
    _, x, values = joined(tmp_path, stacked=stacked)
    wanted = tuple(min(n, 11) for n in function(values).shape)
    to_b2nd(function(x), target, chunks=wanted, max_mem="32MB")
    assert_written(target, function(values))


def test_joined_frames_are_read_without_intermediate_frames(tmp_path: Path, target: Path) -> None:
    _, x, _ = joined(tmp_path, stacked=False)
    names = names_of(x.rechunk((85, 10, 40)), target)
    assert names["commit(target)"] == 1


def test_damage_in_one_of_joined_frames_is_found(tmp_path: Path, target: Path) -> None:
    paths, x, _ = joined(tmp_path, stacked=False)
    raw = bytearray(paths[1].read_bytes())
    raw[len(raw) // 2] ^= 8
    paths[1].write_bytes(raw)
    x = from_b2nd(paths)
    with pytest.raises(ChecksumError, match=r"part1\.b2nd.*chunk \d"):
        to_b2nd(x.T.rechunk((80, 5, 85)), target, max_mem="32MB")
    assert list(target.parent.iterdir()) == []


def test_joined_frames_of_a_store(
    s3_server: S3Server, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    s3_server.client.create_bucket(Bucket="joined")
    paths, _, values = joined(tmp_path, stacked=False)
    for path in paths:
        s3_server.client.upload_file(str(path), "joined", f"parts/{path.name}")
    options = {"storage_options": s3_server.storage_options}
    x = from_b2nd("s3://joined/parts/*.b2nd", **options)
    assert x.shape == values.shape
    caplog.set_level(logging.INFO, "b2nd_dask")
    for target, made, expected in (
        ("s3://joined/turned.b2nd", x[20:70].T.rechunk((80, 9, 50)), values[20:70].T),
        # through an intermediate frame, in the store as well
        ("s3://joined/flat.b2nd", (x + 1).reshape(-1, 4800), (values + 1).reshape(-1, 4800)),
    ):
        to_b2nd(made, target, max_mem="400MB", **options)
        np.testing.assert_array_equal(b2nd_dask.open_b2nd(target, **options)[...], expected)
    # the bytes of one read are a share of the memory
    assert "pass 1 of 1" in caplog.text
    listed = s3_server.client.list_objects(Bucket="joined")["Contents"]
    names = [f"parts/{path.name}" for path in paths]
    assert sorted(entry["Key"] for entry in listed) == ["flat.b2nd", *names, "turned.b2nd"]


def damaged(path: Path, number: int) -> None:
    """Flip a bit in the data of a chunk."""
    raw = bytearray(path.read_bytes())
    stored = VALUES[number, 31].tobytes()
    # it is not compressed
    raw[raw.index(stored[:64])] ^= 8
    path.write_bytes(raw)


@pytest.mark.parametrize("number", [9, 10, 19, 20])
@pytest.mark.parametrize("columns", [slice(None), slice(35, 50)])
def test_damage_is_found_in_the_chunks_of_a_slice(
    tmp_path: Path, target: Path, columns: slice, number: int
) -> None:
    path = tmp_path / "plain.b2nd"
    to_b2nd(VALUES, path, chunks=(1, 60, 80), blocks=(1, 20, 80), cparams={"clevel": 0})
    damaged(path, number)
    x = from_b2nd(path)[10:20, columns].rechunk((10, 5, 80))
    if number in (10, 19):
        with pytest.raises(ChecksumError, match=rf"plain\.b2nd.*chunk {number}\b"):
            to_b2nd(x, target, max_mem="32MB")
    else:
        to_b2nd(x, target, max_mem="32MB")
        assert_written(target, VALUES[10:20, columns])


@pytest.mark.parametrize("joined_frames", [False, True])
def test_each_chunk_of_a_slice_is_verified_by_one_of_its_regions(
    tmp_path: Path, target: Path, joined_frames: bool
) -> None:
    values = np.random.default_rng(3).random((40, 80))
    paths = [tmp_path / "upper.b2nd", tmp_path / "lower.b2nd"]
    for path, rows in zip(paths, (values[:23], values[23:]), strict=True):
        to_b2nd(rows, path, chunks=(10, 20), blocks=(2, 5), cparams={"clevel": 0})
    plain = paths[0].read_bytes()
    # all but the first column of chunks; the window leaves out the last row of the frame
    for number, place in {2: (0, 50), 5: (11, 27), 6: (18, 41), 9: (21, 22)}.items():
        raw = bytearray(plain)
        raw[raw.index(values[place].tobytes())] ^= 8
        paths[0].write_bytes(raw)
        x = from_b2nd(paths if joined_frames else paths[0])[3:22, 25:59].rechunk((19, 3))
        with pytest.raises(ChecksumError, match=rf"upper\.b2nd.*chunk {number}\b"):
            to_b2nd(x, target, chunks=(19, 3), max_mem="25MB")
    paths[0].write_bytes(plain)
    x = from_b2nd(paths if joined_frames else paths[0])[3:22, 25:59].rechunk((19, 3))
    to_b2nd(x, target, chunks=(19, 3), max_mem="25MB")
    assert_written(target, values[3:22, 25:59])


@pytest.mark.parametrize(("at", "chunk"), [((3, 70), None), ((13, 30), 5)])
def test_chunks_beside_a_slice_are_not_verified(
    tmp_path: Path, target: Path, at: tuple[int, int], chunk: int | None
) -> None:
    path = tmp_path / "plain.b2nd"
    values = np.random.default_rng(3).random((40, 80))
    to_b2nd(values, path, chunks=(10, 20), blocks=(5, 20), cparams={"clevel": 0})
    raw = bytearray(path.read_bytes())
    raw[raw.index(values[at].tobytes())] ^= 8
    path.write_bytes(raw)
    x = from_b2nd(path)[:, :25].rechunk((40, 5))
    if chunk is None:
        to_b2nd(x, target, max_mem="32MB")
        assert_written(target, values[:, :25])
    else:
        with pytest.raises(ChecksumError, match=rf"plain\.b2nd.*chunk {chunk}\b"):
            to_b2nd(x, target, max_mem="32MB")


def test_damage_is_found_again_when_a_write_is_resumed(tmp_path: Path, target: Path) -> None:
    path = tmp_path / "plain.b2nd"
    to_b2nd(VALUES, path, chunks=(8, 60, 80), blocks=(1, 60, 80), cparams={"clevel": 0})
    damaged(path, 6)
    for _ in range(2):
        with pytest.raises(ChecksumError, match=r"plain\.b2nd.*chunk 0\b"):
            to_b2nd(from_b2nd(path)[5:45], target, chunks=(40, 60, 80), max_mem="32MB", resume=True)
    assert not target.exists()


@pytest.mark.parametrize("index", [slice(0, 10), slice(None)])
def test_damage_is_found_where_joined_frames_do_not_line_up(
    tmp_path: Path, target: Path, index: slice
) -> None:
    paths = [tmp_path / "part0.b2nd", tmp_path / "part1.b2nd"]
    for path, rows in zip(paths, (7, 10), strict=True):
        to_b2nd(VALUES[:rows], path, chunks=(5, 60, 80), blocks=(1, 60, 80), cparams={"clevel": 0})
    # the chunk is read by two regions, or a part of it by one
    damaged(paths[1], 1)
    with pytest.raises(ChecksumError, match=r"part1\.b2nd.*chunk 0\b"):
        to_b2nd(from_b2nd(paths)[index], target, chunks=(5, 60, 80), max_mem="32MB")
    assert list(target.parent.iterdir()) == []


@pytest.mark.parametrize("stacked", [False, True])
def test_slices_of_joined_frames(tmp_path: Path, target: Path, stacked: bool) -> None:
    _, x, values = joined(tmp_path, stacked=stacked)
    first = slice(5, 33) if stacked else slice(50, 60)
    for index in ((first,), (first, slice(1, 3)), (slice(5, 47), slice(2, 59))):
        to_b2nd(x[index].T, target, max_mem="32MB", mode="w")
        assert_written(target, values[index].T)


def killed_in(name: str, number: int, source: Path, target: Path, what: str) -> None:
    """Die after so many blocks or regions that a module writes."""
    module = importlib.import_module(name)
    plain, done = module.write_block, []

    def counted(*arguments: Any) -> Any:
        done.append(1)
        if len(done) > number:
            os.kill(os.getpid(), signal.SIGKILL)
        return plain(*arguments)

    module.write_block = counted
    resumed(source, target, what)


def resumed(source: Path, target: Path, what: str) -> None:
    logging.basicConfig(level=logging.INFO)
    with dask.config.set(scheduler="sync", num_workers=2):
        x = ARRAYS[what](from_b2nd(source))
        to_b2nd(x, target, max_mem="12MB", resume=True, chunks=(16, 10, 20))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "module", "number"),
    [("functions, rechunk", write_tasks, 10), ("rechunk", work_module, 1)],
    ids=["blocks of functions", "regions"],
)
def test_a_killed_write_goes_on(
    source: Path,
    target: Path,
    what: str,
    module: Any,
    number: int,
) -> None:
    ended = run_to_end(killed_in, module.__name__, number, source, target, what)
    assert ended.code == -signal.SIGKILL, ended
    assert not target.exists()
    (area,) = list_staging(target)
    assert area.key
    # in a new process, as a user does: other libraries may have changed dask's tokens in this one
    ended = run_to_end(resumed, source, target, what)
    assert ended.code == 0, ended
    assert_written(target, ARRAYS[what](VALUES))
    reused = re.findall(r"(\d+) of \d+ chunks are reused", ended.stderr)
    assert max(map(int, reused)) > 0, ended


@pytest.fixture(scope="module")
def cluster() -> Iterator[Client]:
    with (
        LocalCluster(
            n_workers=2, threads_per_worker=1, processes=False, dashboard_address="127.0.0.1:0"
        ) as cluster,
        Client(cluster) as client,
    ):
        yield client


@pytest.mark.parametrize("method", ["tasks", "p2p"])
def test_on_a_cluster(cluster: Client, source: Path, target: Path, method: str) -> None:
    with dask.config.set({"array.rechunk.method": method}):
        x = ((from_b2nd(source) + 1).rechunk((48, 6, 8)) * 2).T
        to_b2nd(x, target, max_mem="64MB")
    assert_written(target, ((VALUES + 1) * 2).T)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("expression", "megabytes"),
    [
        ("x.T.rechunk((32, 32, 256))", 40),
        ("(x + 1).rechunk((256, 32, 32))", 40),
        ("x.reshape(256 * 512, 512)", 40),
        ("joined.rechunk((512, 16, 32))", 40),
        ("x[3:, 5:509, 7:].T.rechunk((32, 32, 253))", 40),
    ],
)
def test_memory_stays_within_what_was_stated(
    tmp_path: Path, expression: str, megabytes: int
) -> None:
    path = tmp_path / "large.b2nd"
    write_maps(path, (256, 512, 512), (1, 64, 512))
    growth = peak_growth(
        f"to_b2nd({expression}, target, max_mem=limit, cparams={{'clevel': 1}})",
        # loads modules before the memory is measured
        before="x = from_b2nd(path); to_b2nd(x[:1].T, small, cparams={'clevel': 1})",
        small=tmp_path / "small.b2nd",
        path=path,
        joined=from_b2nd([path, path]),
        target=tmp_path / "target.b2nd",
        limit=megabytes * MIB,
    )
    # plus modules that it loads at the first use, and the graph
    assert growth < (megabytes + 20) * MIB
    found = b2nd_dask.open_b2nd(tmp_path / "target.b2nd")
    names = {"x": from_b2nd(path), "joined": from_b2nd([path, path])}
    expected = eval(expression, names)
    index = (slice(100, 110), *(slice(3, 9),) * (len(found.shape) - 1))
    np.testing.assert_array_equal(found[index], expected[index].compute())


def test_arrays_without_axes(tmp_path: Path, target: Path) -> None:
    to_b2nd(np.float64(5), tmp_path / "one.b2nd")
    x = from_b2nd(tmp_path / "one.b2nd")
    for made in (x, x + 1):
        to_b2nd(made, target, max_mem="64MB", mode="w")
        assert_written(target, np.asarray(made.compute()))
    b2nd_dask.rechunk(tmp_path / "one.b2nd", target, chunks=(), cparams={"clevel": 0}, mode="w")
    assert_written(target, np.array(5.0))


def test_advice_for_elements_in_memory(tmp_path):
    with pytest.raises(ValueError, match="give it smaller chunks=, or compute in fewer threads"):
        to_b2nd(np.ones((1000, 1000)), tmp_path / "x.b2nd", chunks=(1000, 1000), max_mem="100kB")
