"""Several writers of one frame: disjoint updates succeed in any order, others raise errors."""

import fcntl
import os
import random
import re
import shutil
import signal
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path

import blosc2
import dask
import dask.array as da
import numpy as np
import pytest
from distributed import Client, LocalCluster
from hypothesis import given
from hypothesis import strategies as st

from b2nd_dask import (
    B2ndError,
    StaleFrameError,
    compact,
    from_b2nd,
    list_staging,
    open_b2nd,
    remove_staging,
    seal,
    to_b2nd,
)
from b2nd_dask.format import trailer
from b2nd_dask.frame.open import opening
from b2nd_dask.frame.open.cache import process_cache
from b2nd_dask.frame.open.opening import parse_frame
from b2nd_dask.storage import Location, Staging
from b2nd_dask.storage.write import local_update
from tests.forked import answer, run_to_end, started
from tests.graph.test_write_again import commit_of
from tests.graph.writers import CHUNKS, VALUES, holds
from tests.strategies import examples


def rows(start, stop):
    return {"mode": "r+", "region": slice(start, stop)}


APPEND = {"mode": "r+", "append_axis": 0}


def keys_at(target):
    with closing(Location.of(target).open()) as reader:
        return parse_frame(reader).keys


def planned(target, values, **where):
    return to_b2nd(values, target, compute=False, **where)


def write_rows(target, start, stop, value, connection):
    """Plan an update, and compute it on a signal; report the outcome."""
    update = planned(target, np.full((stop - start, 40), float(value)), **rows(start, stop))
    connection.send("planned")
    connection.recv()
    try:
        update.compute(scheduler="sync")
    except B2ndError as error:
        connection.send(f"{type(error).__name__} {error}")
    else:
        connection.send("done")


@pytest.mark.slow
@pytest.mark.parametrize("count", [4, 8])
def test_processes_that_write_disjoint_regions(target, contiguous, count):
    expected = np.random.default_rng(6).normal(size=(10 * count, 40))
    to_b2nd(expected, target, chunks=CHUNKS, contiguous=contiguous)
    old = expected.copy()
    with ExitStack() as stack:
        writers = [
            stack.enter_context(started(write_rows, target, at, at + 10, 1000 + at))[1]
            for at in range(0, 10 * count, 10)
        ]
        assert [answer(writer) for writer in writers] == ["planned"] * count
        random.Random(count).shuffle(writers)
        for writer in writers:
            writer.send("go")
        while not all(writer.poll() for writer in writers):
            seen = whole(target)
            for at in range(0, 10 * count, 10):
                new = (seen[at : at + 10] == 1000 + at).all()
                assert new or (seen[at : at + 10] == old[at : at + 10]).all()
        assert [answer(writer) for writer in writers] == ["done"] * count
    for at in range(0, 10 * count, 10):
        expected[at : at + 10] = 1000 + at
    holds(target, expected)


def whole(target):
    """Read one state of a frame that other processes change."""
    while True:
        try:
            return open_b2nd(target)[...]
        except StaleFrameError:
            pass


def test_several_in_one_compute(target, contiguous):
    to_b2nd(VALUES, target, chunks=CHUNKS, contiguous=contiguous)
    new = da.from_array(VALUES + 1, chunks=CHUNKS)
    updates = [planned(target, new[at : at + 10], **rows(at, at + 10)) for at in range(0, 60, 10)]
    dask.compute(*updates, scheduler="threads", num_workers=4)
    holds(target, VALUES + 1)


@pytest.mark.slow
def test_of_two_that_overlap_one_is_refused(target, contiguous):
    to_b2nd(VALUES, target, chunks=CHUNKS, contiguous=contiguous)
    with (
        started(write_rows, target, 10, 30, 1) as (_, one),
        started(write_rows, target, 20, 40, 2) as (_, two),
    ):
        assert [answer(writer) for writer in (one, two)] == ["planned", "planned"]
        for writer in (one, two):
            writer.send("go")
        answers = [answer(writer) for writer in (one, two)]
    winner = answers.index("done")
    assert answers.count("done") == 1
    connection = answers[1 - winner]
    assert connection.startswith("StaleFrameError")
    assert str(target) in connection
    assert "[20:30, 0:40], as did the write " in connection
    with closing(Location.of(target).open()) as reader:
        assert f"the write {parse_frame(reader).keys[0]} (published at 20" in connection
    expected = VALUES.copy()
    expected[10:30] = 1 if winner == 0 else expected[10:30]
    expected[20:40] = 2 if winner == 1 else expected[20:40]
    holds_with_staging(target, expected)


def test_zeros_over_zeros_overlap_too(target, contiguous):
    """The index is unchanged, although the chunk was written."""
    to_b2nd(np.zeros((60, 40)), target, chunks=CHUNKS, contiguous=contiguous)
    update = planned(target, VALUES[:20], **rows(0, 20))
    to_b2nd(0, target, **rows(10, 30))
    with pytest.raises(StaleFrameError, match=re.escape("[10:20, 0:40], as did the write")):
        update.compute()
    holds_with_staging(target, np.zeros((60, 40)))


def test_regions_that_cut_chunks_read_beside_others(target, contiguous):
    """Old elements of their chunks are read after other chunks have changed."""
    to_b2nd(VALUES, target, chunks=CHUNKS, contiguous=contiguous)
    updates = [
        planned(target, VALUES[at : at + 5] + 1, **rows(at, at + 5)) for at in range(3, 60, 20)
    ]
    for update in updates:
        update.compute(scheduler="sync")
    expected = VALUES.copy()
    for at in range(3, 60, 20):
        expected[at : at + 5] += 1
    holds(target, expected)


def test_a_cut_chunk_that_another_wrote_is_refused(target, contiguous):
    to_b2nd(VALUES, target, chunks=CHUNKS, contiguous=contiguous)
    update = planned(target, VALUES[:5] + 1, **rows(0, 5))
    to_b2nd(VALUES[5:10] + 2, target, **rows(5, 10))
    # no element is in both
    with pytest.raises(StaleFrameError) as caught:
        update.compute()
    assert "writes the chunks of the elements [0:10, 0:40], as did the write" in str(caught.value)
    assert "multiples of these" in str(caught.value)
    assert str(CHUNKS) in str(caught.value)
    expected = VALUES.copy()
    expected[5:10] += 2
    holds_with_staging(target, expected)


def holds_with_staging(target, expected):
    """As `holds`, after a Delayed failed, whose staging area stays."""
    assert list_staging(target)
    remove_staging(target)
    holds(target, expected)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("first", ["append", "region"])
def test_a_region_beside_an_append(target, contiguous, axis, first):
    to_b2nd(VALUES, target, chunks=CHUNKS, contiguous=contiguous)
    # an update planned earlier, whose chunks get other numbers
    to_b2nd(VALUES[20:30] + 5, target, **rows(20, 30))
    more = np.ones((15, 40) if axis == 0 else (60, 7))
    updates = {
        "append": planned(target, more, mode="r+", append_axis=axis),
        "region": planned(target, VALUES[30:50] + 1, **rows(30, 50)),
    }
    late = planned(target, VALUES[20:40], **rows(20, 40))
    updates.pop(first).compute()
    next(iter(updates.values())).compute()
    expected = VALUES.copy()
    expected[20:30] += 5
    expected[30:50] += 1
    expected = np.concatenate([expected, more], axis)
    holds(target, expected)
    with pytest.raises(StaleFrameError, match=re.escape("[30:40, 0:40], as did")):
        late.compute()
    holds_with_staging(target, expected)


def test_of_two_appends_one_is_refused(target, contiguous):
    to_b2nd(VALUES, target, chunks=CHUNKS, contiguous=contiguous)
    updates = [planned(target, VALUES * k, mode="r+", append_axis=0) for k in (1, 2)]
    across = planned(target, VALUES, mode="r+", append_axis=1)
    updates[1].compute()
    for update in (updates[0], across):
        with pytest.raises(StaleFrameError, match="Append again, one after the other"):
            update.compute()
    holds_with_staging(target, np.concatenate([VALUES, VALUES * 2]))


def overwrite_in_place(target):
    """Chunks of the same compressed size: header, index and trailer stay, except wiped fields."""
    array = blosc2.open(str(target), mode="a")
    array[59, 39] = -array[59, 39]


def set_vlmeta(target):
    array = blosc2.open(str(target), mode="a")
    array.schunk.vlmeta["a"] = 1


CHANGES = {
    "element": overwrite_in_place,
    "vlmeta": set_vlmeta,
    "resize": lambda target: blosc2.open(str(target), mode="a").resize((60, 39)),
    "sealed": lambda target: (overwrite_in_place(target), seal(target)),
    "compact": compact,
    "replaced": lambda target: to_b2nd(VALUES * 3, target, mode="w", chunks=CHUNKS),
    "copied": lambda target: (
        shutil.copy(target, f"{target}.copy"),
        Path(f"{target}.copy").rename(target),
    ),
}


@pytest.mark.parametrize("updated", [True, pytest.param(False, marks=pytest.mark.slow)])
@pytest.mark.parametrize("change", CHANGES)
def test_changes_by_others_are_no_updates(target, contiguous, change, updated):
    if change == "copied" and not contiguous:
        pytest.skip("a copied directory is replaced, which no rename does")
    to_b2nd(VALUES, target, chunks=CHUNKS, cparams={"clevel": 0}, contiguous=contiguous)
    if updated or change == "compact":
        to_b2nd(VALUES[:10], target, **rows(0, 10))
    # the update of whole chunks reads nothing: only its commit can detect the change
    updates = [planned(target, VALUES[:n] + 1, **rows(0, n)) for n in (10, 15)]
    CHANGES[change](target)
    # an update planned later, on the new state
    if change not in ("resize", "element", "vlmeta"):
        to_b2nd(VALUES[50:] + 1, target, **rows(50, 60))
    found = blosc2.open(str(target))[...]
    for update in updates:
        with pytest.raises(StaleFrameError, match="changed"):
            update.compute(scheduler="sync")
    np.testing.assert_array_equal(blosc2.open(str(target))[...], found)


def kill_in_commit(target, moment):
    """Write rows; killed immediately before the switch to the new state."""
    update = planned(target, VALUES[:10] + 1, **rows(0, 10))
    if moment == "before":
        local_update.pwrite = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
        original = os.rename

        def rename(source, *arguments, **keywords):
            if Path(source).name == "chunks.b2frame":
                os.kill(os.getpid(), signal.SIGKILL)
            return original(source, *arguments, **keywords)

        os.rename = rename
    update.compute(scheduler="sync")


@pytest.mark.slow
def test_a_writer_that_is_killed_in_its_commit(target, contiguous):
    to_b2nd(VALUES, target, chunks=CHUNKS, contiguous=contiguous)
    updates = [planned(target, VALUES[at : at + 15] + 1, **rows(at, at + 15)) for at in (15, 40)]
    before = sum(path.stat().st_size for path in [target, *target.rglob("*")])
    assert run_to_end(kill_in_commit, target, "before").code == -signal.SIGKILL
    assert sum(path.stat().st_size for path in [target, *target.rglob("*")]) > before
    for update in updates:
        update.compute()
    expected = VALUES.copy()
    expected[15:30] += 1
    expected[40:55] += 1
    holds_with_staging(target, expected)


def test_a_commit_that_runs_again_when_others_have_published(target, contiguous):
    to_b2nd(VALUES, target, chunks=CHUNKS, contiguous=contiguous)
    update = planned(target, VALUES[:10] + 1, **rows(0, 10))
    commit = commit_of(update)
    commit()
    to_b2nd(VALUES[10:20] + 1, target, **rows(10, 20))
    # also over the rows of the killed update, which must not come back
    to_b2nd(VALUES[:10] + 7, target, **rows(0, 10))
    assert commit() == str(target)
    update.compute()
    expected = VALUES.copy()
    expected[:10] += 7
    expected[10:20] += 1
    holds(target, expected)


def append_and_die(target):
    """Append with resume=True; killed after the frame has changed, before the clean-up."""
    Staging.clean_up = lambda staging: os.kill(os.getpid(), signal.SIGKILL)
    with dask.config.set(scheduler="sync"):
        append_once(target)


def append_once(target):
    to_b2nd(da.full((20, 40), 7.0, chunks=10), target, mode="r+", append_axis=0, resume=True)


@pytest.mark.slow
def test_an_append_that_was_killed_behind_its_switch_appends_once(target, contiguous):
    """Also if other updates were published since."""
    to_b2nd(VALUES, target, chunks=CHUNKS, contiguous=contiguous)
    assert run_to_end(append_and_die, target).code == -signal.SIGKILL
    to_b2nd(VALUES[10:20] + 1, target, **rows(10, 20))
    # in a new process, as a user does: other libraries may have changed dask's tokens in this one
    assert run_to_end(append_once, target).code == 0
    expected = np.concatenate([VALUES, np.full((20, 40), 7.0)])
    expected[10:20] += 1
    holds(target, expected)


def test_a_region_is_resumed_when_others_have_published(target, contiguous, caplog):
    caplog.set_level("INFO", "b2nd_dask")
    to_b2nd(VALUES, target, chunks=CHUNKS, contiguous=contiguous)
    flag = target.with_name("flag")

    def block(values, block_info=None):
        if block_info[0]["chunk-location"] == (1, 1) and not flag.exists():
            raise RuntimeError("no more")
        return values + 1

    def write():
        x = da.from_array(VALUES[5:30], chunks=(5, 20), name="values")
        x = x.map_blocks(block, dtype=float, meta=np.empty((0, 0)), name="work")
        with dask.config.set(scheduler="sync"):
            to_b2nd(x, target, resume=True, **rows(5, 30))

    with pytest.raises(RuntimeError):
        write()
    flag.touch()
    to_b2nd(VALUES[40:] + 1, target, **rows(40, 60))
    write()
    flag.unlink()
    assert int(re.findall(r": (\d+) of 6", caplog.messages[-1])[0]) > 0
    expected = VALUES.copy()
    expected[5:30] += 1
    expected[40:] += 1
    holds(target, expected)


@pytest.mark.parametrize("cut", [True, False])
def test_more_updates_than_the_history_has(target, contiguous, cut, monkeypatch):
    monkeypatch.setattr(trailer, "MAX_UPDATES", 3)
    to_b2nd(VALUES, target, chunks=CHUNKS, contiguous=contiguous)
    update = planned(target, VALUES[: 15 if cut else 10] + 1, **rows(0, 15 if cut else 10))
    late = planned(target, VALUES[20:30], **rows(20, 30))
    commit = commit_of(planned(target, VALUES[:15] + 1, **rows(0, 15)))
    for at in range(20, 60, 10):
        to_b2nd(VALUES[at : at + 10] + 1, target, **rows(at, at + 10))
    expected = VALUES.copy()
    expected[20:] += 1
    if cut:
        # it may have read elements of an earlier state
        for call in (update.compute, commit):
            with pytest.raises(StaleFrameError):
                call()
    else:
        update.compute()
        expected[:10] += 1
    with pytest.raises(StaleFrameError, match="so many updates"):
        late.compute()
    holds_with_staging(target, expected)


def hold(path, connection):
    """Hold the frame's lock, like a commit of an update."""
    with local_update.frame_locked(path):
        connection.send("held")
        connection.recv()


@pytest.mark.slow
def test_a_commit_waits_until_the_lock_is_free(target, contiguous):
    """Here until the process that holds it is killed."""
    to_b2nd(VALUES, target, chunks=CHUNKS, contiguous=contiguous)
    with (
        started(hold, target) as (holder, connection),
        started(write_rows, target, 0, 10, 1) as (_, writer),
    ):
        assert answer(connection) == "held"
        assert answer(writer) == "planned"
        writer.send("go")
        assert not writer.poll(0.3)
        np.testing.assert_array_equal(open_b2nd(target)[...], VALUES)
        os.kill(holder.pid, signal.SIGKILL)
        assert answer(writer) == "done"
    expected = VALUES.copy()
    expected[:10] = 1
    holds(target, expected)


def test_waiting_ends_when_the_write_is_given_up(target, contiguous, monkeypatch, caplog):
    """Also for zeros, which stage nothing: the missing staging area raises no error."""
    caplog.set_level("INFO", "b2nd_dask")
    monkeypatch.setattr(local_update, "_LONG", 0.0)
    to_b2nd(VALUES, target, chunks=CHUNKS, contiguous=contiguous)
    with local_update.frame_locked(target), ThreadPoolExecutor(1) as threads:
        writing = threads.submit(to_b2nd, 0, target, **rows(0, 10))
        while "waits for another process" not in caplog.text:
            assert not writing.done()
        assert str(target) in caplog.text
        remove_staging(target)
        with pytest.raises(FileNotFoundError, match="staging area of this write was removed"):
            writing.result(600)
    holds(target, VALUES)


@pytest.fixture(scope="module")
def cluster():
    with (
        LocalCluster(
            n_workers=2, threads_per_worker=2, processes=True, dashboard_address="127.0.0.1:0"
        ) as cluster,
        Client(cluster) as client,
    ):
        yield client


@pytest.mark.slow
def test_on_a_cluster(target, contiguous, cluster):
    to_b2nd(VALUES, target, chunks=CHUNKS, contiguous=contiguous)
    new = da.from_array(VALUES + 1, chunks=(5, 20))
    updates = [planned(target, new[at : at + 15], **rows(at, at + 15)) for at in (0, 20, 40)]
    updates.append(planned(target, np.ones((20, 40)), mode="r+", append_axis=0))
    cluster.gather(cluster.compute(updates))
    expected = np.concatenate([VALUES, np.ones((20, 40))])
    for at in (0, 20, 40):
        expected[at : at + 15] += 1
    holds(target, expected)


#: Start and length along an axis of 12 elements in chunks of 3, or an append.
SPANS = st.integers(0, 11).flatmap(lambda a: st.tuples(st.just(a), st.integers(a + 1, 12)))
UPDATES = st.lists(st.one_of(st.tuples(SPANS, SPANS), st.integers(1, 5)), min_size=2, max_size=6)


@examples(15)
@given(data=st.data(), updates=UPDATES, contiguous=st.booleans(), sealed=st.booleans())
def test_any_updates_in_any_order(data, updates, contiguous, sealed):
    """Updates planned on several states, published in any order: each is whole, or raised."""
    with tempfile.TemporaryDirectory() as folder, dask.config.set(scheduler="sync"):
        target = Path(folder, "x.b2nd")
        held = np.arange(144.0).reshape(12, 12)
        if sealed:
            to_b2nd(held, target, chunks=3, contiguous=contiguous)
        else:
            blosc2.asarray(held, urlpath=str(target), chunks=(3, 3), contiguous=contiguous)
        waiting, done, number = [], [], 0
        while updates or waiting:
            if updates and (not waiting or data.draw(st.booleans())):
                waiting.append(plan_one(target, held, updates.pop(), number, len(done)))
                number += 1
                continue
            written, apply, cells, since = waiting.pop(data.draw(st.integers(0, len(waiting) - 1)))
            others = set().union(*done[since:])
            grown = any(min(cell) < 0 for cell in others)
            append = any(min(cell) < 0 for cell in cells)
            try:
                written.compute()
            except StaleFrameError:
                assert cells & others or (grown and append)
                continue
            assert not cells & others
            assert not (grown and append)
            held = apply(held)
            done.append(cells)
            np.testing.assert_array_equal(open_b2nd(target)[...], held)
            np.testing.assert_array_equal(blosc2.open(str(target))[...], held)
        remove_staging(target)
        assert list(Path(folder).iterdir()) == [target]


def plan_one(target, held, update, number, since):
    """An update, its effect on an array, and the chunks that it writes; -1 is the end."""
    if isinstance(update, int):
        new = np.full((update, 12), 1000.0 + number)
        first = len(held) // 3
        cells = {(row, col) for row in range(first, -(-len(held) // 3)) for col in range(4)}
        written = planned(target, new, mode="r+", append_axis=0)
        return written, lambda array: np.concatenate([array, new]), cells | {(-1, -1)}, since
    region = tuple(slice(*span) for span in update)
    new = np.full([b - a for a, b in update], 1000.0 + number)
    (top, bottom), (left, right) = [(a // 3, -(-b // 3)) for a, b in update]
    cells = {(row, col) for row in range(top, bottom) for col in range(left, right)}

    def apply(array):
        array = array.copy()
        array[region] = new
        return array

    return planned(target, new, mode="r+", region=region), apply, cells, since


def test_the_array_that_is_returned_has_what_others_wrote(target):
    to_b2nd(VALUES, target, chunks=CHUNKS)
    update = planned(target, np.ones((10, 40)), **rows(0, 10))

    class First:
        """Lets the other update publish while this one computes."""

        def __call__(self, block):
            update.compute(scheduler="sync")
            return block

    new = da.ones((10, 40), chunks=(10, 40)).map_blocks(First(), meta=np.empty((0, 0)))
    back = to_b2nd(new * 2, target, **rows(20, 30))
    expected = VALUES.copy()
    expected[:10], expected[20:30] = 1, 2
    np.testing.assert_array_equal(back.compute(), expected)
    np.testing.assert_array_equal(from_b2nd(target).compute(), expected)


def test_an_array_of_the_frame_itself_is_of_the_state_before(target, contiguous):
    """An update that reads the frame itself does not follow changes; the second raises an error."""
    to_b2nd(VALUES, target, chunks=CHUNKS, contiguous=contiguous)
    x = from_b2nd(target)
    back = to_b2nd(x[:10] + 1, target, **rows(0, 10))
    with pytest.raises(StaleFrameError, match="open it again by from_b2nd"):
        to_b2nd(x[10:20] + 1, target, **rows(10, 20))
    to_b2nd(back[10:20] + 1, target, **rows(10, 20))
    expected = VALUES.copy()
    expected[:20] += 1
    holds(target, expected)


def test_the_lock_is_that_of_the_file_that_has_the_name(target, monkeypatch):
    """An update of a sparse frame replaces the file whose lock other updates wait for."""
    to_b2nd(VALUES, target, chunks=CHUNKS, contiguous=False)
    member = target / "chunks.b2frame"
    original = fcntl.flock

    def flock(fd, how):
        monkeypatch.setattr(fcntl, "flock", original)
        to_b2nd(0, target, **rows(0, 10))
        return original(fd, how)

    monkeypatch.setattr(fcntl, "flock", flock)
    with (
        local_update.frame_locked(target),
        member.open("rb+") as named,
        pytest.raises(BlockingIOError),
    ):
        original(named, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_change_that_another_publishes_while_the_end_is_checked(target, monkeypatch):
    """Its chunks lie behind the end that this write knows."""
    to_b2nd(VALUES, target, chunks=CHUNKS)
    published = []

    def then_publish(read):
        def call(*args):
            found = read(*args)
            if not found and not published:
                published.append(True)
                to_b2nd(VALUES[:10] + 1, target, **rows(0, 10))
            return found

        return call

    for name in ("pread", "read"):
        monkeypatch.setattr(os, name, then_publish(getattr(os, name)))
    to_b2nd(VALUES[10:20] + 2, target, **rows(10, 20))
    assert published
    expected = np.concatenate([VALUES[:10] + 1, VALUES[10:20] + 2, VALUES[20:]])
    np.testing.assert_array_equal(open_b2nd(target)[...], expected)


@pytest.mark.parametrize("moment", ["read_header", "geometry_of"], ids=["header", "index"])
def test_opening_while_another_publishes(target, contiguous, monkeypatch, moment):
    """Changes between the calls that read size, header and index of a large frame."""
    values = np.random.default_rng(1).normal(size=(600, 40))
    to_b2nd(values, target, chunks=(1, 40), contiguous=contiguous)
    with monkeypatch.context() as patch:
        patch.setattr(opening, moment, publishing_once(target, getattr(opening, moment)))
        # its first read may have a consistent state
        assert open_b2nd(target).shape in ((600, 40), (700, 40))
    assert open_b2nd(target).shape == (700, 40)


def publishing_once(target, original):
    """A function before whose first call another process publishes an append."""
    calls = iter([True])

    def first_publish(*arguments):
        if next(calls, False):
            to_b2nd(np.random.default_rng(2).normal(size=(100, 40)), target, **APPEND)
        return original(*arguments)

    return first_publish


@pytest.mark.parametrize("first", [True, False], ids=["file first", "directory first"])
def test_a_frame_that_has_become_a_directory_or_a_file_is_opened_anew(tmp_path, first):
    location = Location.of(tmp_path / "x.b2nd")
    to_b2nd(np.zeros(6), location.urlpath, contiguous=first)
    before = process_cache.present(location)
    # the cache cannot distinguish this from another process
    to_b2nd(np.ones(6), tmp_path / "y.b2nd", contiguous=not first)
    (tmp_path / "x.b2nd").rename(tmp_path / "old.b2nd")
    (tmp_path / "y.b2nd").rename(tmp_path / "x.b2nd")
    present = process_cache.present(location)
    assert present.reader.is_directory is first
    assert present.parsed.version != before.parsed.version
