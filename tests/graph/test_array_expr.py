"""Frames as arrays of `dask_array`: sources that absorb the expressions above them."""

import gc
import pickle
import subprocess
import sys
import warnings
from functools import partial

import blosc2
import cloudpickle
import dask
import dask.array
import fsspec
import numpy as np
import pytest
from dask.callbacks import Callback
from distributed import Client, LocalCluster
from hypothesis import given
from hypothesis import strategies as st

from b2nd_dask import commit, create, from_b2nd, open_b2nd, persist_compressed, plan, to_b2nd
from b2nd_dask.frame.open import cache
from b2nd_dask.graph import _dask_compat
from b2nd_dask.graph.optimize import at_once
from b2nd_dask.graph.read.from_b2nd import expressions
from tests.graph.commands import REFUSES_FILES_AND_PORT, cluster
from tests.graph.expressions import kinds, library, reads, steps, tasks, written
from tests.graph.pruning import chunks_read
from tests.graph.pushdown import arrays, computing_with

ARRAY = np.random.default_rng(3).normal(size=(20, 30))
READ = ["FrameExpr"]
REDUCED = ["PartialReduce", "ReducedExpr"]
#: Programs, the classes of their expressions, and how many of the twelve blocks are read.
PROGRAMS = {
    "whole": (lambda x, m: x, READ, 12),
    "slice": (lambda x, m: x[3:15, ::2], READ, 9),
    "integers": (lambda x, m: x[3, 4], READ, 1),
    "backwards": (lambda x, m: x[::-2][3:5, ::-1], READ, 3),
    "transposed": (lambda x, m: x.T[::3, 2], READ, 3),
    "new axis": (lambda x, m: x[:, None, ::2], READ, 12),
    "work": (lambda x, m: m.sqrt(m.abs(x * 2 + 1)).astype("f4"), READ, 12),
    "used twice": (lambda x, m: (x + 1) * (x - 1), READ, 12),
    "choice": (lambda x, m: m.where(x > 0, x, 0), READ, 12),
    "slice behind work": (lambda x, m: (x * 2 + 1)[5:7].T, READ, 3),
    "sum": (lambda x, m: x.sum(), REDUCED, 12),
    "sum of work": (lambda x, m: (x * x).sum(axis=0), REDUCED, 12),
    "slice of sums": (lambda x, m: (x + 1).sum(axis=0)[2:25:3], REDUCED, 12),
    "deviation": (lambda x, m: x.std(axis=1), ["Elemwise", *REDUCED], 12),
    "without NaN": (lambda x, m: m.nanmax(x, axis=(0, 1)), REDUCED, 12),
    "search": (lambda x, m: x.argmax(axis=1), ["PartialReduce", "ArgChunk", *READ], 12),
    "least": (lambda x, m: m.nanargmin(x), ["PartialReduce", "ArgChunk", *READ], 12),
    "filter": (lambda x, m: x[0][x[0] > 0], ["BooleanIndexFlattened", *READ], 3),
    "several slices": (lambda x, m: x[:3] + x[10:13], READ, 6),
    # blocks that several expressions need are read once
    "centred": (
        lambda x, m: x - x.mean(axis=0),
        ["Elemwise", *READ, "PartialReduce", "Blockwise"],
        12,
    ),
    "overlapping": (lambda x, m: x[1:] * x[:-1], ["Elemwise", "SliceSlicesIntegers", *READ], 12),
    "function of blocks": (
        lambda x, m: (x + 1).map_blocks(np.sort) if m is not np else np.sort(x + 1),
        ["FusedBlockwise"],
        4,
    ),
}


@pytest.fixture
def x(tmp_path):
    return written(tmp_path, ARRAY, chunks=(5, 10), blocks=(5, 5))


def test_a_frame_that_is_opened_again_is_read_once(tmp_path):
    """`dask_array` caches the parts of expressions that still exist, with their old references."""
    first = written(tmp_path, ARRAY, chunks=(5, 10), blocks=(5, 5))
    kept = (first * 2).optimize()
    del first
    gc.collect()
    x = from_b2nd(tmp_path / "frame.b2nd", array_type="dask-array")
    assert kept.name == (x * 2).optimize().name
    assert set(REDUCED) <= set(kinds((x * 2 + x).sum()))
    assert "FusedBlockwise" not in kinds((x * 2 + x).sum())
    same((x * 2 + x).sum().compute(), (ARRAY * 2 + ARRAY).sum())


def of_rows(x):
    return x.rechunk((5, 30))


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_are_absorbed(x, name):
    program, wanted, count = PROGRAMS[name]
    if name == "function of blocks":
        x = of_rows(x)
    found = program(x, library())
    assert set(wanted) <= set(kinds(found))
    assert kinds(found)[0] == wanted[0]
    assert "FrameExpr" in wanted or "FrameExpr" not in kinds(found)
    assert reads(found) == count
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        same(found.compute(scheduler="sync"), program(ARRAY, np))
    assert found.chunks == found.optimize().chunks


def same(got, want):
    assert np.shape(got) == np.shape(want)
    assert np.asarray(got).dtype == np.asarray(want).dtype
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-8)


def run(x, number):
    """Compute an array by one of several functions."""
    with np.errstate(all="ignore"):
        if number == 0:
            return x.compute(scheduler="sync")
        if number == 1:
            return dask.compute(x, x.sum(), scheduler="sync")[0]
        if number == 2:
            return x.optimize().optimize().compute(scheduler="sync")
        if number == 3:
            return x.persist(scheduler="sync").compute(scheduler="sync")
        if number == 4:
            return cloudpickle.loads(cloudpickle.dumps(x)).compute(scheduler="sync")
        with dask.config.set({"array.optimize-graph": False}):
            return x.compute(scheduler="sync")


@given(data=st.data())
def test_steps(fresh_path, data):
    array = data.draw(arrays().filter(lambda a: a.dtype.kind in "fiu" and a.dtype.itemsize > 1))
    sizes = {
        name: tuple(data.draw(st.integers(1, n)) for n in array.shape) for name in ("chunks", "own")
    }
    library()
    stored = blosc2.asarray(array, chunks=sizes["chunks"], blocks=sizes["chunks"])
    frame, plain = open_b2nd(stored), np.asarray(array, array.dtype.newbyteorder("="))
    x = from_b2nd(
        frame, chunks=data.draw(st.none() | st.just(sizes["own"])), array_type="dask-array"
    )
    for _ in range(data.draw(st.integers(0, 4))):
        step, shape = data.draw(steps(plain.shape))
        with np.errstate(all="ignore"):
            x, plain = step(x), np.asarray(step(plain))
        assert x.shape == plain.shape == shape
    if data.draw(st.booleans()) and plain.size:
        axis = data.draw(st.none() | st.integers(0, plain.ndim - 1)) if plain.ndim else None
        x, plain = x.sum(axis=axis), plain.sum(axis=axis)
    got = run(x, data.draw(st.integers(0, 5)))
    assert np.shape(got) == np.shape(plain)
    # sums of large numbers that nearly cancel have few digits
    scale = np.nanmax(np.abs(array.astype("f8")), initial=1) ** 2
    np.testing.assert_allclose(got, plain, rtol=1e-3, atol=1e-5 * scale)


@pytest.mark.parametrize("name", ["sum", "mean", "any", "std", "min"])
@pytest.mark.parametrize("dtype", ["c8", "?", "f4"])
def test_reductions_keep_the_meta_that_the_library_gives(tmp_path, name, dtype):
    array = (ARRAY > 0).astype(dtype)
    x = written(tmp_path, array, chunks=(5, 10), blocks=(5, 5))
    plain = library().from_array(array, chunks=(5, 10))
    for axis in (None, 0, (0, 1)):
        found = getattr(x, name)(axis=axis).optimize()
        want = getattr(plain, name)(axis=axis).optimize()
        assert "ReducedExpr" in kinds(found)
        assert type(found._meta) is type(want._meta)
        assert (found._meta.ndim, found.dtype) == (want._meta.ndim, want.dtype)


def test_reductions_keep_the_meta_that_is_given(x):
    steps = {"chunk": dask.array.chunk.sum, "aggregate": dask.array.chunk.sum}
    meta = np.ma.empty((0, 0), "f8")
    found = library().reduction(x, **steps, axis=0, dtype="f8", meta=meta).optimize()
    assert "ReducedExpr" in kinds(found)
    assert isinstance(found._meta, np.ma.MaskedArray)


def test_small_blocks_share_a_task(x):
    with computing_with(threads=1):
        found = tasks(x.sum())
        assert len(found) < 12
        np.testing.assert_allclose(x.sum().compute(), ARRAY.sum())
        # blocks along other axes stay
        assert x.mean(axis=0).optimize().expr.array.chunks[1] == (10, 10, 10)
    with dask.config.set({"b2nd_dask.optimize": ["reductions"]}):
        assert len(tasks(x.sum())) == 13


def test_constants_are_no_inputs(x):
    ones = library().ones(x.shape, chunks=x.chunks)
    assert kinds(x * ones + 1) == READ
    # its elements are undefined, not constant
    assert kinds(x * library().empty(x.shape, chunks=x.chunks)) != READ
    np.testing.assert_array_equal((x + ones).compute(), ARRAY + 1)
    # of several rows
    column = x[:, :1] + library().zeros((20, 4), chunks=(5, 2))
    np.testing.assert_array_equal(column.compute(), np.repeat(ARRAY[:, :1], 4, axis=1))


def test_filters_with_constant_masks_or_elements(x):
    row = x[0]
    constant = partial(library().full, row.shape, chunks=row.chunks)
    np.testing.assert_array_equal(row[constant(True, dtype=bool)].compute(), ARRAY[0])
    np.testing.assert_array_equal(constant(7)[row > 0].compute(), 7)


def test_blocks_are_writable(tmp_path):
    array = np.zeros((20, 20))
    array[0, 0] = 1
    x = written(tmp_path, array, chunks=(10, 10), blocks=(10, 10))
    np.testing.assert_array_equal(x.map_blocks(added_in_place).compute(), array + 1)
    np.testing.assert_array_equal((x * 2).map_blocks(added_in_place).compute(), array * 2 + 1)


def added_in_place(block):
    block += 1
    return block


def test_functions_of_lists_of_blocks(x):
    found = library().blockwise(widths, "a", of_rows(x) + 1, "ab", dtype="i8")
    np.testing.assert_array_equal(found.compute(), [30] * 20)


def widths(blocks):
    assert isinstance(blocks, list)
    return np.full(len(blocks[0]), sum(block.shape[1] for block in blocks))


def test_other_expressions_are_inputs(x):
    noise = library().arange(30, chunks=10) * 2
    found = (x + noise)[::2, 3:].T
    assert kinds(found)[0] in ("FrameExpr", "FusedBlockwise")
    same(found.compute(), (ARRAY + np.arange(30) * 2)[::2, 3:].T)
    mean = x.mean(axis=0).persist()
    found = ((x - mean) * 2)[4:6].sum(axis=0)
    assert "ReducedExpr" not in kinds(x.T.sum())
    same(found.compute(), ((ARRAY - ARRAY.mean(axis=0)) * 2)[4:6].sum(axis=0))


def test_frames_are_read_together(tmp_path, x):
    other = open_b2nd(blosc2.asarray(ARRAY[0], chunks=(10,), blocks=(5,)))
    row = from_b2nd(other, array_type="dask-array")
    assert kinds((x * row)[:, ::-1]) == READ
    # that are broadcast once
    assert reads(x * row) == reads((x * row).sum(axis=0)) == 12 + 3
    assert kinds((x * row).sum(axis=0)) == [*REDUCED, "FrameExpr"]
    same((x * row)[:, ::-1].sum(axis=1).compute(), (ARRAY * ARRAY[0])[:, ::-1].sum(axis=1))
    # blocks that do not align are first read in other blocks
    same((x + row.rechunk(7)).compute(), ARRAY + ARRAY[0])


def test_several_results_share_reads(x):
    with chunks_read() as read:
        got = dask.compute(x.sum(), x.max(), (x + 1)[:5], scheduler="sync")
    assert len(read) == 12
    for one, other in zip(got, (ARRAY.sum(), ARRAY.max(), (ARRAY + 1)[:5]), strict=True):
        same(one, other)


def tasks_run(function):
    """The result of a function, and the keys of the tasks that a local scheduler runs for it."""
    keys = []
    with Callback(pretask=lambda key, *_: keys.append(key)):
        return function(), keys


@pytest.mark.parametrize("name", ["whole", "slice", "backwards", "integers", "new axis"])
def test_what_compute_returns_is_read_by_one_task(x, name):
    program = PROGRAMS[name][0]
    found, keys = tasks_run(lambda: program(x, library()).compute(scheduler="sync"))
    same(found, program(ARRAY, np))
    assert len(keys) == 1
    assert keys[0].startswith("read(frame)-")
    assert not isinstance(found, np.ndarray) or found.flags.writeable
    with dask.config.set({"b2nd_dask.optimize": "slices"}):
        found, keys = tasks_run(lambda: program(x, library()).compute(scheduler="sync"))
    same(found, program(ARRAY, np))
    assert len(keys) > 1


def test_results_that_are_read_at_once_beside_others(x, monkeypatch):
    rows, again = x[3:9], x[3:9]
    found, keys = tasks_run(lambda: dask.compute(rows, again, x[::2].T, scheduler="sync"))
    for one, other in zip(found, (ARRAY[3:9], ARRAY[3:9], ARRAY[::2].T), strict=True):
        same(one, other)
    # a transposed result is copied in any case
    assert len(keys) > 2
    same(dask.compute(x, x.sum(), scheduler="sync")[0], ARRAY)
    same(dask.delayed(np.negative)(rows).compute(scheduler="sync"), -ARRAY[3:9])
    kept = rows.persist(scheduler="sync")
    assert kept.name == rows.name
    assert set(dict(kept.__dask_graph__())) >= {(rows.name, i, j) for i in (0, 1) for j in range(3)}
    same(dask.persist(rows, scheduler="sync")[0].compute(), ARRAY[3:9])
    monkeypatch.setattr(at_once, "SMALL_NBYTES", 0)
    monkeypatch.setattr(at_once, "MOST_NBYTES", 0)
    found, keys = tasks_run(lambda: rows.compute(scheduler="sync"))
    same(found, ARRAY[3:9])
    assert len(keys) > 1


@pytest.mark.parametrize("scheduler", ["threads", "processes"])
def test_schedulers(x, scheduler):
    da = library()
    wanted = [(x * 2 + 1).T.mean(axis=1), x[::-3, 5], da.nanargmax(x, axis=0), x[x > 0].sum()]
    got = dask.compute(*wanted, scheduler=scheduler)
    above = ARRAY[ARRAY > 0].sum()
    expected = [(ARRAY * 2 + 1).T.mean(axis=1), ARRAY[::-3, 5], ARRAY.argmax(axis=0), above]
    for one, other in zip(got, expected, strict=True):
        same(one, other)


@pytest.mark.slow
def test_cluster(x):
    options = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": "127.0.0.1:0"}
    with LocalCluster(**options) as local, Client(local) as client:
        for program, _, _ in PROGRAMS.values():
            same(program(of_rows(x), library()).compute(), program(ARRAY, np))
        same(client.compute(x.sum()).result(), ARRAY.sum())
        same(client.persist((x + 1).T).compute(), ARRAY.T + 1)
        same(dask.persist(x * 2)[0].compute(), ARRAY * 2)
        kept = persist_compressed(x)
        same((kept + 1).sum(axis=0).compute(), (ARRAY + 1).sum(axis=0))


@pytest.mark.slow
def test_a_scheduler_that_sees_no_files(tmp_path):
    folder = tmp_path / "frames"
    folder.mkdir()
    x = written(folder, ARRAY, chunks=(5, 10), blocks=(5, 5))
    preload = REFUSES_FILES_AND_PORT.format(folder=str(folder), port=0)
    with cluster(tmp_path / "cluster", preload) as client:
        with pytest.raises(PermissionError, match="does not see"):
            client.run_on_scheduler((folder / "frame.b2nd").open)
        for name in ("sum of work", "slice behind work", "centred", "search"):
            program = PROGRAMS[name][0]
            same(program(x, library()).compute(), program(ARRAY, np))
            same(client.compute(program(x, library())).result(), program(ARRAY, np))
        to_b2nd(x * 2, folder / "twice.b2nd")
        same(from_b2nd(folder / "twice.b2nd").compute(), ARRAY * 2)


def test_optimizing_opens_nothing(tmp_path, x, monkeypatch):
    sent = cloudpickle.dumps([program(x, library()) for program, *_ in PROGRAMS.values()])
    (tmp_path / "frame.b2nd").unlink()
    cache.process_cache.clear()
    monkeypatch.setattr(type(x.expr), "_instances", {})
    for array in pickle.loads(sent):
        assert array.optimize().__dask_graph__()
    assert kinds(pickle.loads(sent)[0].rechunk((10, 15))) == READ


def test_names_are_those_of_other_processes(x):
    found = (x * 2 + 1)[::2].T.mean(axis=0)
    code = (
        "import pickle, sys; x = pickle.loads(sys.stdin.buffer.read()); "
        "print(x.name, x.optimize().name)"
    )
    run = partial(subprocess.run, [sys.executable, "-c", code], capture_output=True, check=True)
    assert run(input=pickle.dumps(found)).stdout.decode().split() == [
        found.name,
        found.optimize().name,
    ]
    again = pickle.loads(pickle.dumps(x))
    assert again.expr is x.expr
    assert x.name.startswith("read(frame)-")


@pytest.fixture
def with_statistics(tmp_path):
    """The numbers to 1000 in ten chunks with statistics, and their array."""
    library()
    path = tmp_path / "x.b2nd"
    array = np.arange(1000.0)
    to_b2nd(dask.array.from_array(array, chunks=100), path, chunks=(100,), stats=True)
    return from_b2nd(path, array_type="dask-array"), array


def test_statistics(with_statistics):
    x, array = with_statistics
    programs = {
        "sum": (lambda x: x.sum(), 0),
        "beside": (lambda x: x - x.mean(), 10),
        "counted": (lambda x: (x > 150).sum(), 1),
        "filter": (lambda x: x[x > 950], 1),
        "where": (lambda x: (x > 950) * 1, 1),
        "masked": (lambda x: x[x > 950].sum(), 1),
    }
    for name, (program, count) in programs.items():
        with chunks_read() as read:
            same(program(x).compute(scheduler="sync"), program(array))
        assert len(read) == count, name
        with dask.config.set({"b2nd_dask.statistics": False}), chunks_read() as read:
            same(program(x).compute(scheduler="sync"), program(array))
        assert len(read) == 10, name


def test_what_statistics_answer_is_not_read_for_others(with_statistics):
    x, array = with_statistics
    # the mean is answered from statistics, so nothing shares the elements
    assert kinds(x * 2 - x.mean())[:2] == ["FrameExpr", "PartialReduce"]
    found = dask.compute(x.sum(), x.max(), x.std(), scheduler="sync")
    for one, other in zip(found, (array.sum(), array.max(), array.std()), strict=True):
        same(one, other)


def test_blocks_of_a_store_are_not_read_twice_behind_lowering(x):
    """A rechunk behind lowering may leave other reads of the same elements."""
    compressed = blosc2.asarray(x.compute(), chunks=x.chunksize).to_cframe()
    fsspec.filesystem("memory").pipe("/lowered.b2nd", compressed)
    stored = from_b2nd("memory://lowered.b2nd", array_type="dask-array")
    whole = tuple((n,) for n in x.shape)
    assert (x + x).expr.simplify()._accept_rechunk(whole) is not None
    for mixed in (stored + x, x + stored):
        assert mixed.expr.simplify()._accept_rechunk(whole) is None


def test_what_is_absorbed_behind_lowering(x):
    # dask simplifies lowered expressions again: then blocks without other dependents are read
    shifted = x.rechunk((4, 7))[1:] + x[:-1]
    got = dask.compute(shifted.argmax(), library().nanargmin(shifted, axis=0), scheduler="sync")
    plain = ARRAY[1:] + ARRAY[:-1]
    same(got[0], plain.argmax())
    same(got[1], plain.argmin(axis=0))


def test_joined_frames(tmp_path):
    da = library()
    parts = [open_b2nd(blosc2.asarray(ARRAY + i, chunks=(5, 10), blocks=(5, 5))) for i in range(3)]
    plain = np.concatenate([ARRAY + i for i in range(3)])
    x = from_b2nd(parts, array_type="dask-array")
    assert isinstance(x, da.Array)
    assert kinds((x + 1)[18:22:3].T) == READ
    same((x + 1)[18:22:3].T.compute(), (plain + 1)[18:22:3].T)
    same((x * 2).mean(axis=0).compute(), (plain * 2).mean(axis=0))
    stacked = from_b2nd(parts, stack=True, axis=1, array_type="dask-array")
    same(stacked.sum(axis=1).compute(), np.stack([ARRAY + i for i in range(3)], 1).sum(axis=1))
    same(to_b2nd(x[5:45], tmp_path / "joined.b2nd").compute(), plain[5:45])


@pytest.mark.parametrize(
    "program",
    [lambda x: x + 1, lambda x: x + x.rechunk(((1,), (0, 2, 4))), lambda x: x - x.mean(axis=0)],
    ids=["one", "two", "with a mean"],
)
def test_blocks_without_elements_along_an_axis_of_one_are_written(target, program):
    """`dask.array` would repeat that axis in each of its blocks."""
    row = ARRAY[:1, :6]
    x = library().from_array(row, chunks=(1, 3)).rechunk(((0, 1, 0), (2, 0, 4)))
    to_b2nd(program(x), target)
    kept = library().from_array(row, chunks=(1, 6))
    np.testing.assert_array_equal(open_b2nd(target)[...], program(kept).compute())


def test_arguments(tmp_path, x):
    path = tmp_path / "frame.b2nd"
    assert from_b2nd(path, array_type="dask-array", chunks="auto").numblocks == (1, 1)
    named = from_b2nd(path, array_type="dask-array", name="mine")
    assert named.name.startswith("mine-")
    with pytest.raises(ValueError, match="array_type='xarray': give 'dask' or 'dask-array'"):
        from_b2nd(path, array_type="xarray")
    code = (
        "import sys; sys.modules['dask_array'] = None; from b2nd_dask import from_b2nd\n"
        f"try: from_b2nd({str(path)!r}, array_type='dask-array')\n"
        "except ImportError as error: print(error)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert "pip install 'b2nd-dask[dask-array]'" in run.stdout


def test_the_library_is_imported_on_demand():
    code = (
        "import sys, b2nd_dask, xarray; b2nd_dask.from_b2nd; "
        "print('dask_array' in sys.modules, 'b2nd_dask.graph.array_expr' in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert run.stdout.split() == ["False", "False"]


def test_rules_are_switched(x):
    with dask.config.set({"b2nd_dask.optimize": False}):
        assert kinds((x + 1)[2:4].sum())[:2] == ["PartialReduce", "FusedBlockwise"]
        same((x + 1)[2:4].sum().compute(), (ARRAY + 1)[2:4].sum())
    with dask.config.set({"b2nd_dask.optimize": "slices"}):
        assert kinds(x[2:4]) == READ
    with (
        dask.config.set({"b2nd_dask.optimize": "everything"}),
        pytest.raises(ValueError, match="in dask's configuration"),
    ):
        (x + 1).optimize()


def test_the_log_says_what_is_absorbed(x, caplog):
    caplog.set_level("DEBUG", "b2nd_dask")
    sliced, other = x[2:4], x.reshape(600)
    sliced.optimize()
    read, moved = x.expr._name, sliced.expr._name
    assert f"{read} absorbs SliceSlicesIntegers {moved}: read(frame)-" in caplog.text
    other.optimize()
    assert f"does not absorb Reshape {other.expr._name}: no rule supports it" in caplog.text
    (x - x.mean(axis=0)).optimize()
    assert f"{read} does not absorb Mean mean_chunk-" in caplog.text
    assert ": it is needed by sub-" in caplog.text
    with dask.config.set({"b2nd_dask.optimize": False}):
        (x + 2).optimize()
    assert ": the rule elementwise is off" in caplog.text


def test_the_log_names_rules_and_reasons(x, caplog):
    caplog.set_level("DEBUG", "b2nd_dask")
    x.sum().optimize()
    assert "absorbs Sum sum-" in caplog.text
    assert ", by the rule reductions" in caplog.text
    assert "FrameReduction" not in caplog.text
    x[::-1].sum().optimize()
    assert ": axes of the read are reversed, exchanged, dropped or new" in caplog.text
    x[::2].rechunk((3, 30)).optimize()
    assert ": it skips elements, or reverses them" in caplog.text
    x.rechunk((1, 1)).optimize()
    assert ": in such blocks chunks would be decoded too often" in caplog.text


def test_a_library_that_has_changed(x, monkeypatch):
    from b2nd_dask.graph.array_expr import compat

    monkeypatch.setitem(compat.NAMES, "_blockwise", {"Elemwise": "op other"})
    monkeypatch.setattr(_dask_compat._Warned, "done", False)
    compat.rule_names.cache_clear()
    try:
        with pytest.warns(RuntimeWarning, match="Elemwise of dask-array .* has"):
            same((x * 2 + 3)[3:5].sum().compute(), (ARRAY * 2 + 3)[3:5].sum())
        same((x * 2 + 4).T.compute(), (ARRAY * 2 + 4).T)
        same(expressions().classic_array(x[:2] + 5).compute(), ARRAY[:2] + 5)
    finally:
        compat.rule_names.cache_clear()


def test_a_library_whose_arrays_of_graphs_have_changed(x, target, monkeypatch):
    from b2nd_dask.graph.array_expr import compat

    monkeypatch.setitem(compat.NAMES, "core", {"from_graph": "layer other"})
    monkeypatch.setattr(_dask_compat._Warned, "done", False)
    compat.rule_names.cache_clear()
    try:
        with pytest.warns(RuntimeWarning, match="from_graph of dask-array .* has"):
            same((x * 2 + 6)[3:5].sum().compute(), (ARRAY * 2 + 6)[3:5].sum())
        same(to_b2nd(x + 6, target).compute(), ARRAY + 6)
        with pytest.raises(_dask_compat.NameChangedError, match="from_graph of dask-array"):
            persist_compressed(x)
    finally:
        compat.rule_names.cache_clear()


def test_an_error_of_a_rule_leaves_the_expression(x, monkeypatch):
    from b2nd_dask.graph.array_expr import rules

    def fail(*args):
        raise ZeroDivisionError("of a rule")

    monkeypatch.setattr(rules, "call_of", fail)
    monkeypatch.setattr(_dask_compat._Warned, "done", False)
    with pytest.warns(RuntimeWarning, match="leaves an expression to dask_array: ZeroDivision"):
        same((x * 5).compute(), ARRAY * 5)


#: Programs to write, and whether their memory can be bounded.
WRITES = {
    "whole": (lambda x, m: x, True),
    "rows": (lambda x, m: x[5:10], True),
    "transposed": (lambda x, m: x.T, True),
    "work in other blocks": (lambda x, m: x * 2 + 1 if m is np else (x * 2 + 1).rechunk(7), True),
    "other shape": (lambda x, m: x.reshape(600), True),
    "function": (lambda x, m: np.sqrt(abs(x)) if m is np else abs(x).map_blocks(np.sqrt), True),
    "constant": (lambda x, m: m.full((5, 5), 3), True),
    "optimized": (lambda x, m: x.T if m is np else x.T.optimize(), True),
    "reduced": (lambda x, m: (x + 1).sum(axis=0), False),
    "deviations": (lambda x, m: (x - x.mean(axis=0)) / x.std(), False),
    "filled": (lambda x, m: m.where(x > 0, x, 0).max(axis=1), False),
    "joined": (lambda x, m: m.concatenate([x, x + 1]), False),
    "work, optimized": (lambda x, m: x + 1 if m is np else (x + 1).optimize(), False),
}


@pytest.mark.parametrize("name", WRITES)
def test_writes(x, target, name):
    program, bounded = WRITES[name]
    found, want = program(x, library()), program(ARRAY, np)
    written = to_b2nd(found, target)
    assert isinstance(written, library().Array)
    same(written.compute(), want)
    if bounded:
        same(to_b2nd(found, target, mode="w", max_mem="64MB").compute(), want)
    else:
        with pytest.raises(ValueError, match="max_mem= cannot bound the memory of"):
            to_b2nd(found, target, mode="w", max_mem="64MB")
    same(persist_compressed(found).compute(), want)


def test_zeros_are_written_without_their_blocks(target):
    shape, sizes = (1000, 1000), (100, 100)
    delayed = to_b2nd(library().zeros(shape, chunks=50), target, chunks=sizes, compute=False)
    needed, _ = dask.optimization.cull(dict(delayed.__dask_graph__()), delayed.__dask_keys__())
    assert len(needed) < 10
    delayed.compute()
    same(from_b2nd(target).compute(), np.zeros(shape))
    ones = library().ones(shape, dtype="i2", chunks=50)
    same(to_b2nd(ones, target, mode="w").compute(), np.ones(shape, "i2"))


def test_writes_into_frames(tmp_path, x, target):
    to_b2nd(x, target)
    assert to_b2nd(x[:5] * 0, target, mode="r+", region=slice(0, 5)).shape == (20, 30)
    to_b2nd(x[:2], target, mode="a", append_axis=0)
    want = np.concatenate([ARRAY[:5] * 0, ARRAY[5:], ARRAY[:2]])
    same(from_b2nd(target).compute(), want)
    delayed = to_b2nd(x + 1, tmp_path / "later.b2nd", compute=False)
    delayed.compute()
    same(from_b2nd(tmp_path / "later.b2nd").compute(), ARRAY + 1)
    create(tmp_path / "parts.b2nd", ARRAY.shape, "f8", chunks=(5, 30))
    for start in range(0, 20, 5):
        part = slice(start, start + 5)
        staged = to_b2nd(x[part], tmp_path / "parts.b2nd", mode="stage", region=part)
        assert isinstance(staged, library().Array)
    commit(tmp_path / "parts.b2nd")
    same(from_b2nd(tmp_path / "parts.b2nd").compute(), ARRAY)
    same(to_b2nd(x, tmp_path / "resumed.b2nd", resume=True).compute(), ARRAY)
    same(x.rechunk((20, 5)).compute(), ARRAY)


def test_metadata_of_the_frame_is_kept(tmp_path):
    library()
    path = tmp_path / "labelled.b2nd"
    to_b2nd(ARRAY, path, vlmeta={"units": "K"})
    x = from_b2nd(path, array_type="dask-array")
    with pytest.warns(UserWarning, match="attributes 'units'"):
        to_b2nd(x + 1, tmp_path / "dropped.b2nd")
    to_b2nd(x + 1, tmp_path / "kept.b2nd", vlmeta="keep")
    assert dict(open_b2nd(tmp_path / "kept.b2nd").vlmeta) == {"units": "K"}


def test_plans(x, target):
    found = plan(x[:5].sum(axis=0))
    assert (found.chunks, found.decode_nbytes) == (3, 5 * 30 * 8)
    writing = plan(to_b2nd(x * 2, target, compute=False))
    assert (writing.chunks, len(writing.targets)) == (12, 1)


def test_blocks_that_are_held_compressed(x):
    kept = persist_compressed(x * 2)
    assert isinstance(kept, library().Array)
    assert kept.chunks == x.chunks
    same(kept[3:8, ::-2].compute(), (ARRAY * 2)[3:8, ::-2])
