"""All operations on a frame in any order, compared with a NumPy array.

After any operations, reads equal the NumPy array, checksums are valid or absent as documented, no
file is left beside the frame, and a frame opened earlier has one state or raises an error.
"""

import itertools
import os
import shutil
import signal
import tempfile
import warnings
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import blosc2
import dask
import dask.array as da
import numpy as np
import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from b2nd_dask import (
    ChecksumError,
    StaleFrameError,
    compact,
    from_b2nd,
    list_staging,
    open_b2nd,
    remove_staging,
    seal,
    to_b2nd,
    verify,
)
from b2nd_dask.format.integrity import ChecksumState
from tests.forked import run_forked
from tests.vectors import same

MOST_ROWS = 40
#: Length of the dask blocks of a write that ends early, along both axes.
BLOCK = 4
#: Element types whose every value is exact in float64, so that sums are compared exactly.
DTYPES = ["u1", "<i4", ">i2", "<f8"]
SEEDS = st.integers(0, 2**16)
#: Processes are drawn seldom, since data are sent to them and back.
SCHEDULERS = st.sampled_from(["sync", "threads", "threads", "processes"])


def elements(seed, shape, dtype):
    """Whole numbers, some in constant regions, since chunks of one value are special."""
    rng = np.random.default_rng(seed)
    if seed % 4 < 2:
        return np.full(shape, seed % 4, dtype)
    return rng.integers(0, 100, shape).astype(dtype)


def behind(values, new):
    """Concatenate arrays in the byte order of the first."""
    return np.concatenate([values, new]).astype(values.dtype)


class Failing:
    """Returns blocks unchanged, until one of them fails or ends the process."""

    def __init__(self, at, kill):
        self.at, self.kill = at, kill

    def __call__(self, block, block_info=None):
        if block_info[0]["num-chunks"] and block_info[0]["chunk-location"] == self.at:
            if self.kill:
                os.kill(os.getpid(), signal.SIGKILL)
            raise RuntimeError("no more")
        return block


def write(call, drawn, path, failing, **options):
    """A write whose name does not depend on a failure, so that the same call resumes it."""
    values = elements(*drawn)
    token = dask.base.tokenize(call, values)
    x = da.from_array(values, chunks=BLOCK, name=f"values-{token}")
    meta = np.empty((0, 0), x.dtype)
    x = x.map_blocks(failing, dtype=x.dtype, meta=meta, name=f"work-{token}")
    with dask.config.set(scheduler="sync"):
        to_b2nd(x, path, resume=True, **options)


class Opened:
    """A frame and an array that were opened at one time."""

    def __init__(self, path, values):
        self.frame, self.lazy, self.values = open_b2nd(path), from_b2nd(path), values
        self.touched = False
        """Whether the frame has changed since."""


class FrameMachine(RuleBasedStateMachine):
    """One path; `values` are the elements that it must have."""

    def __init__(self, pool):
        super().__init__()
        self.pool = pool
        self.folder = Path(tempfile.mkdtemp(prefix="stateful"))
        self.path = self.folder / "frame.b2nd"
        self.opened = []
        # writes of equal elements must be different calls, else the second one would do nothing
        self.calls = itertools.count()

    def teardown(self):
        shutil.rmtree(self.folder)

    def changed(self, values, checksums=None):
        """Note the new elements of the frame."""
        self.values = values
        self.checksums = self.checksums if checksums is None else checksums
        for opened in self.opened:
            opened.touched = True

    def refused(self, where):
        """Whether a change raises: the shape is not that of the checksums."""
        if self.checksums is not ChecksumState.STALE:
            return False
        with pytest.raises(ChecksumError, match="seal"):
            to_b2nd(np.zeros_like(self.values[:1]), self.path, **where)
        return True

    # ---- writing

    @initialize(data=st.data())
    def begin(self, data):
        self.new(data, "w-")
        self.open()

    def new(self, data, mode):
        rows, columns = data.draw(st.integers(1, 12)), data.draw(st.integers(1, 9))
        dtype = data.draw(st.sampled_from(DTYPES))
        self.chunks = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 9))
        blocks = tuple(data.draw(st.integers(1, n)) for n in self.chunks)
        values = elements(data.draw(SEEDS), (rows, columns), dtype)
        to_b2nd(
            da.from_array(values, chunks=data.draw(st.integers(1, 12))),
            self.path,
            mode=mode,
            chunks=self.chunks,
            blocks=blocks,
            contiguous=data.draw(st.booleans()),
            cparams={"clevel": data.draw(st.sampled_from([0, 5]))},
        )
        self.vlmeta = {}
        self.changed(values, ChecksumState.VALID)

    @rule(data=st.data())
    def overwrite(self, data):
        self.new(data, "w")

    @rule(seed=SEEDS, scheduler=SCHEDULERS)
    def overwrite_with_itself(self, seed, scheduler):
        """The frame that is replaced is the one that is read."""
        with self.computing(scheduler):
            (from_b2nd(self.path)[::-1] + 1).to_b2nd(self.path, mode="w", vlmeta="keep")
        self.changed(self.values[::-1] + 1, ChecksumState.VALID)
        self.chunks = open_b2nd(self.path).chunks

    def region(self, data):
        bounds = [sorted(data.draw(st.tuples(*[st.integers(0, n)] * 2))) for n in self.values.shape]
        return tuple(slice(*pair) for pair in bounds)

    @rule(data=st.data(), seed=SEEDS, scheduler=SCHEDULERS)
    def write_a_region(self, data, seed, scheduler):
        where = self.region(data)
        if self.refused({"mode": "r+", "region": (slice(0, 1), slice(None))}):
            return
        values = self.values.copy()
        values[where] = elements(seed, values[where].shape, values.dtype)
        x = da.from_array(values[where], chunks=4) if values[where].size else values[where]
        with self.computing(scheduler):
            to_b2nd(x, self.path, mode="r+", region=where)
        self.changed(values)

    @precondition(lambda self: len(self.values) < MOST_ROWS)
    @rule(seed=SEEDS, count=st.integers(1, 7), scheduler=SCHEDULERS)
    def append(self, seed, count, scheduler):
        if self.refused({"mode": "a", "append_axis": 0}):
            return
        new = elements(seed, (count, self.values.shape[1]), self.values.dtype)
        with self.computing(scheduler):
            to_b2nd(da.from_array(new, chunks=3), self.path, mode="a", append_axis=0)
        self.changed(behind(self.values, new))

    @rule(data=st.data(), seed=SEEDS, kill=st.booleans(), kind=st.sampled_from(["w", "append"]))
    def a_write_that_ends_early_goes_on(self, data, seed, kill, kind):
        """Ended by an error in this process, or by the end of another; then the same call again."""
        old, checksums = self.values, self.checksums
        if kind == "append" and (self.checksums is ChecksumState.STALE or len(old) >= MOST_ROWS):
            return
        # the old frame is unchanged until now: a frame opened here must stay valid
        self.open()
        # not the elements: dask names a pickled big-endian dtype differently
        drawn = seed, (9, old.shape[1]), old.dtype.str
        new, call = elements(*drawn), next(self.calls)
        blocks = -(-len(new) // BLOCK), -(-old.shape[1] // BLOCK)
        at = tuple(data.draw(st.integers(0, n - 1)) for n in blocks)
        options = {"mode": "w", "chunks": self.chunks, "contiguous": data.draw(st.booleans())}
        if kind == "append":
            options = {"mode": "r+", "append_axis": 0}
        if kill:
            with pytest.raises(AssertionError, match="exit code -9"):
                run_forked(write_in_another_process, call, drawn, self.path, at, options)
        else:
            with pytest.raises(RuntimeError, match="no more"):
                write(call, drawn, self.path, Failing(at, kill=False), **options)
        self.everything_is_as_it_should()
        assert len(list_staging(self.path)) == 1
        if data.draw(st.booleans()):
            remove_staging(self.path)
            return
        write(call, drawn, self.path, Failing(None, kill=False), **options)
        if kind == "append":
            self.changed(behind(old, new), checksums)
        else:
            self.vlmeta = {}
            self.changed(new, ChecksumState.VALID)
        self.chunks = open_b2nd(self.path).chunks

    @rule()
    def give_space_back(self):
        before = self.path.stat().st_ino
        freed = compact(self.path)
        assert freed >= 0
        if freed or self.path.stat().st_ino != before:
            self.changed(self.values)
        assert compact(self.path) == 0

    @rule()
    def add_checksums(self):
        was_valid = self.checksums is ChecksumState.VALID
        assert seal(self.path) == (not was_valid)
        if not was_valid:
            self.changed(self.values, ChecksumState.VALID)

    # ---- other software

    @rule(data=st.data(), seed=SEEDS)
    def python_blosc2_assigns(self, data, seed):
        where = self.region(data)
        values = self.values.copy()
        if not values[where].size:
            return
        values[where] = elements(seed, values[where].shape, values.dtype)
        array = blosc2.open(str(self.path), mode="a")
        array[where] = np.ascontiguousarray(values[where])
        del array
        self.changed(values, ChecksumState.ABSENT)

    @rule(rows=st.integers(1, MOST_ROWS))
    def python_blosc2_resizes(self, rows):
        old, columns = self.values.shape
        if rows == old:
            return
        array = blosc2.open(str(self.path), mode="a")
        array.resize((rows, columns))
        if rows > old:
            # elements behind the old end in its last chunk are undefined
            array[old:] = 1
        expected = array[...]
        del array
        values = np.ones((rows, columns), self.values.dtype)
        values[:old] = self.values[:rows]
        np.testing.assert_array_equal(expected, values)
        same_grid = -(-rows // self.chunks[0]) == -(-old // self.chunks[0])
        inside = rows < old and same_grid and self.checksums is not ChecksumState.ABSENT
        self.changed(values, ChecksumState.STALE if inside else ChecksumState.ABSENT)

    @rule(value=st.integers(0, 9))
    def python_blosc2_sets_metadata(self, value):
        array = blosc2.open(str(self.path), mode="a")
        array.schunk.vlmeta["value"] = value
        del array
        self.vlmeta = {"value": value}
        self.changed(self.values)

    # ---- reading

    def computing(self, scheduler):
        pool = {"pool": self.pool} if scheduler == "processes" else {"num_workers": 2}
        return dask.config.set(scheduler=scheduler, **pool)

    @rule(data=st.data(), scheduler=SCHEDULERS)
    def read(self, data, scheduler):
        chunks = data.draw(st.sampled_from([None, "auto", 3, (5, 2)]))
        self.assert_read(data, from_b2nd(self.path, chunks=chunks), self.values, scheduler)

    def assert_read(self, data, lazy, values, scheduler):
        n, m = values.shape
        where = data.draw(st.integers(0, n - 1)), data.draw(st.integers(0, m - 1))
        points = [0, where[0], n - 1], [m - 1, where[1], 0]
        part = self.region(data) if values is self.values else (slice(1, None, 2), slice(None))
        with self.computing(scheduler):
            got = dask.compute(
                lazy,
                lazy[part] + 1,
                lazy[where],
                lazy.vindex[points],
                lazy.astype("f8").sum(),
                (lazy * 2).max(axis=0),
                lazy - lazy.min(),
            )
        want = (
            values,
            values[part] + 1,
            values[where],
            values[points],
            values.astype("f8").sum(),
            (values * 2).max(axis=0),
            values - values.min(),
        )
        for one, other in zip(got, want, strict=True):
            np.testing.assert_array_equal(one, other)

    @rule()
    def open(self):
        self.opened.append(Opened(self.path, self.values))

    @precondition(lambda self: self.opened)
    @rule(
        data=st.data(),
        # a process that has not opened that state has only its version
        scheduler=st.sampled_from(["threads", "processes", "processes"]),
        lazily=st.sampled_from([True, True, False]),
    )
    def use_what_was_opened(self, data, scheduler, lazily):
        """Reads return the state at the time of the open, or raise an error."""
        opened = data.draw(st.sampled_from(self.opened))
        try:
            if lazily:
                self.assert_read(data, opened.lazy, opened.values, scheduler)
            else:
                np.testing.assert_array_equal(opened.frame[...], opened.values)
                np.testing.assert_array_equal(opened.frame[::2, -1], opened.values[::2, -1])
        except StaleFrameError:
            # the chosen process may or may not have that state open
            assert opened.touched, "nothing has changed"

    # ---- invariants

    @invariant()
    def everything_is_as_it_should(self):
        frame = open_b2nd(self.path)
        assert frame.dtype == self.values.dtype
        assert same(frame[...], self.values)
        assert dict(frame.vlmeta) == self.vlmeta
        found = verify(self.path)
        assert (found.checksum_state, found.bad) == (self.checksums, ())

    @invariant()
    def nothing_lies_beside_it(self):
        assert list(self.folder.iterdir()) == [self.path]


def write_in_another_process(call, drawn, path, at, options):
    write(call, drawn, path, Failing(at, kill=True), **options)


@pytest.fixture(scope="module")
def pool():
    """Two processes that open the frame in all of its states, and cache it."""
    with ProcessPoolExecutor(2, get_context("forkserver")) as pool:
        yield pool


def run(pool, **options):
    # to explain an example takes longer than to find it
    options["phases"] = [Phase.reuse, Phase.generate, Phase.shrink]
    with warnings.catch_warnings():
        # of frames that python-blosc2 has resized
        warnings.filterwarnings("ignore", message=".*resized", category=UserWarning)
        run_state_machine_as_test(lambda: FrameMachine(pool), settings=settings(**options))


def test_any_order(pool):
    run(pool, max_examples=12, stateful_step_count=10)


@pytest.mark.slow
def test_any_order_for_longer(pool):
    run(pool, max_examples=30, stateful_step_count=20)


@pytest.mark.long
def test_any_order_anew(pool):
    run(pool, max_examples=1000, stateful_step_count=60, derandomize=False)
