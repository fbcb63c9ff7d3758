"""`to_b2nd(..., max_mem=)`: rechunks, transposes and reshapes of frames, within a stated memory."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Any

import blosc2
import dask
import dask.array as da
import numpy as np
import pytest
from distributed import Client, LocalCluster
from hypothesis import given
from hypothesis import strategies as st

import b2nd_dask
from b2nd_dask import from_b2nd, list_staging, to_b2nd, verify
from b2nd_dask.frame.rechunk import work as work_module
from tests.forked import run_to_end
from tests.peak import peak_growth
from tests.strategies import examples

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

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
}


def chunked(x: Any, chunks: tuple[int, ...]) -> Any:
    """Rechunk a dask array; return NumPy's as it is."""
    return x.rechunk(chunks) if isinstance(x, da.Array) else x


@pytest.mark.parametrize("chunks", [None, 7])
@pytest.mark.parametrize("what", ARRAYS)
def test_arrays_over_frames(source: Path, target: Path, what: str, chunks: int | None) -> None:
    function = ARRAYS[what]
    x = function(from_b2nd(source))
    sizes = None if chunks is None else tuple(-(-n // chunks) for n in x.shape)
    to_b2nd(x, target, chunks=sizes, max_mem="32MB", cparams={"clevel": 1})
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
    # as a cluster does that has lost the worker with the result
    assert written.compute() == str(target)
    assert_written(target, ARRAYS[what](VALUES))


@st.composite
def programs(draw: st.DrawFn) -> dict[str, Any]:
    """Draw a frame, and what is done with it."""
    shape = draw(st.lists(st.integers(1, 12), min_size=1, max_size=3).map(tuple))
    steps: list[tuple[str, Any]] = []
    now = shape
    for kind in draw(st.lists(st.sampled_from(["f", "chunks", "axes", "shape"]), max_size=5)):
        if kind == "f":
            steps.append(("f", draw(st.integers(1, 3))))
        elif kind == "chunks":
            steps.append(("chunks", draw(st.tuples(*(st.integers(1, n) for n in now)))))
        elif kind == "axes":
            axes = tuple(draw(st.permutations(range(len(now)))))
            steps.append(("axes", axes))
            now = tuple(now[axis] for axis in axes)
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
        try:
            to_b2nd(x, target, chunks=program["wanted"], max_mem="64MB")
        except ValueError as error:
            # a rechunk between two functions of which the lower one has been moved itself
            assert "cannot bound the memory of the layer" in str(error)  # noqa: PT017
            assert not target.exists()
            kinds = [kind for kind, _ in program["steps"]]
            assert sum(kind in ("chunks", "axes", "shape") for kind in kinds) > 1
            return
    expected = result_of(values, program["steps"])
    np.testing.assert_array_equal(blosc2.open(str(target), mode="r")[...], expected)
    assert not list(target.parent.glob(f".{target.name}*"))


@pytest.mark.parametrize(
    ("make", "arguments", "message"),
    [
        (lambda x: x.rechunk((48, 60, 80)) * 2, {"max_mem": "4MB"}, "the least that would do"),
        (lambda x: (x * 2).rechunk((48, 60, 80)), {"max_mem": "1MB"}, "the least that would do"),
        (lambda x: x.reshape(2880, 80), {"max_mem": "1MB"}, "the least that would do"),
        (lambda x: x.sum(axis=0), {"max_mem": "1GB"}, r"of the layer sum-aggregate-\w+: only"),
        (lambda x: da.roll(x, 3, 0), {"max_mem": "1GB"}, "of the layer concatenate"),
        (lambda x: da.reshape_blockwise(x, (2880, 80)), {"max_mem": "1GB"}, "reshape-blockwise"),
        (lambda x: x.rechunk((9, 9, 9)).sum(0), {"max_mem": "1GB"}, "of the layer sum-aggregate"),
        (lambda x: x, {"max_mem": "64"}, "too few"),
        (lambda x: x, {"max_mem": "1GB", "mode": "a", "append_axis": 0}, "for new frames"),
    ],
)
def test_what_cannot_be_bounded(
    source: Path,
    target: Path,
    make: Callable[[da.Array], da.Array],
    arguments: dict[str, Any],
    message: str,
) -> None:
    with pytest.raises(ValueError, match=message):
        to_b2nd(make(from_b2nd(source)), target, **arguments)
    assert list(target.parent.iterdir()) == []


def test_other_arrays_are_bounded_by_their_blocks(target: Path) -> None:
    x = da.from_array(VALUES, chunks=(8, 60, 80))
    to_b2nd(x + 1, target, max_mem="32MB")
    assert_written(target, VALUES + 1)
    to_b2nd(VALUES, target, max_mem="32MB", mode="w", chunks=(4, 5, 6))
    assert_written(target, VALUES)


def killed_in(name: str, number: int, source: Path, target: Path, what: str) -> None:
    """Die after so many regions."""
    plain, done = getattr(work_module, name), []

    def counted(*arguments: Any) -> Any:
        done.append(1)
        if len(done) > number:
            os.kill(os.getpid(), signal.SIGKILL)
        return plain(*arguments)

    setattr(work_module, name, counted)
    with dask.config.set(scheduler="sync", num_workers=2):
        x = ARRAYS[what](from_b2nd(source))
        to_b2nd(x, target, max_mem="12MB", resume=True, chunks=(16, 10, 20))


@pytest.mark.parametrize(("what", "number"), [("functions, rechunk", 1), ("rechunk", 0)])
def test_a_killed_write_goes_on(source: Path, target: Path, what: str, number: int) -> None:
    ended = run_to_end(killed_in, "write_block", number, source, target, what)
    assert ended.code == -signal.SIGKILL, ended
    assert not target.exists()
    (area,) = list_staging(target)
    x = ARRAYS[what](from_b2nd(source))
    with dask.config.set(scheduler="sync"):
        to_b2nd(x, target, max_mem="12MB", resume=True, chunks=(16, 10, 20))
    assert_written(target, ARRAYS[what](VALUES))
    assert area.key


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


MIB = 1 << 20


@pytest.mark.slow
@pytest.mark.parametrize(
    ("expression", "megabytes"),
    [
        ("x.T.rechunk((32, 32, 256))", 40),
        ("(x + 1).rechunk((256, 32, 32))", 40),
        ("x.reshape(256 * 512, 512)", 40),
    ],
)
def test_memory_stays_within_what_was_stated(
    tmp_path: Path, expression: str, megabytes: int
) -> None:
    path = tmp_path / "large.b2nd"
    x = da.map_blocks(
        lambda block_info: np.random.default_rng(block_info[None]["chunk-location"]).integers(
            0, 9, (1, 512, 512), "u2"
        ),
        chunks=((1,) * 256, (512,), (512,)),
        dtype="u2",
    )
    to_b2nd(x, path, blocks=(1, 64, 512), cparams={"codec": "lz4", "clevel": 1})
    growth = peak_growth(
        f"to_b2nd({expression}, target, max_mem=limit, cparams={{'clevel': 1}})",
        # what is loaded at the first use is not what the work takes
        before="x = from_b2nd(path); to_b2nd(x[:1].T, small, cparams={'clevel': 1})",
        small=tmp_path / "small.b2nd",
        path=path,
        target=tmp_path / "target.b2nd",
        limit=megabytes * MIB,
    )
    # what it loads at the first use, and the graph, come on top
    assert growth < (megabytes + 20) * MIB
    found = b2nd_dask.open_b2nd(tmp_path / "target.b2nd")
    names = {"x": from_b2nd(path)}
    expected = eval(expression, names)
    index = (slice(100, 110), *(slice(3, 9),) * (len(found.shape) - 1))
    np.testing.assert_array_equal(found[index], expected[index].compute())
