"""What every reader must do, wherever the bytes are."""

from __future__ import annotations

import multiprocessing
import pickle
import random
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from b2nd_dask.storage import Location, Span
from b2nd_dask.storage.read.remote import RemoteReader

if TYPE_CHECKING:
    from b2nd_dask.storage import ByteReader
    from tests.storage.conftest import Store

# Larger than the gaps that a remote reader reads over, so that it needs several requests.
DATA = random.Random(7).randbytes(900_000)
SIZE = len(DATA)


def test_spans_come_in_the_order_asked_and_may_overlap(store: Store) -> None:
    spans = [Span(890_000, 899_000), Span(5, 105), Span(50, 120), Span(5, 105), Span(0, SIZE)]
    reader = store.put(DATA).open()
    assert reader.read(spans) == [DATA[start:stop] for start, stop in spans]


def test_random_spans_read_as_slices(store: Store) -> None:
    draw = random.Random(3)
    starts = [draw.randrange(SIZE + 1000) for _ in range(150)]
    spans = [Span(start, start + draw.choice([0, 1, 500, 9_000, 70_000])) for start in starts]
    reader = store.put(DATA).open()
    assert reader.read(spans) == [DATA[start:stop] for start, stop in spans]


def test_results_are_clipped_at_the_end(store: Store) -> None:
    reader = store.put(DATA).open()
    spans = [Span(SIZE - 3, SIZE + 10), Span(SIZE, SIZE + 1), Span(SIZE + 9, SIZE + 10)]
    assert reader.read(spans) == [DATA[-3:], b"", b""]


def test_a_length_out_of_a_damaged_file_costs_nothing(store: Store) -> None:
    assert store.put(DATA).open().read([Span(SIZE - 3, 2**62)]) == [DATA[-3:]]


def test_empty_spans_and_no_spans(store: Store) -> None:
    reader = store.put(DATA).open()
    assert reader.read([]) == []
    assert reader.read([Span(7, 7), Span(0, 0)]) == [b"", b""]


def test_an_empty_object(store: Store) -> None:
    reader = store.put(b"").open()
    assert reader.identity().size == 0
    assert reader.read([Span(0, 100)]) == [b""]


@pytest.mark.parametrize("span", [Span(-5, 3), Span(9, 3)])
def test_what_is_no_span_is_refused(store: Store, span: Span) -> None:
    reader = store.put(DATA).open()
    with pytest.raises(ValueError, match="start"):
        reader.read([span])


def test_identity_stays_while_the_object_does(store: Store) -> None:
    location = store.put(DATA)
    reader = location.open()
    identity = reader.identity()
    assert identity.size == SIZE
    assert identity.token
    reader.read([Span(0, 10)])
    assert reader.identity() == identity
    assert location.open().identity() == identity


def test_identity_tells_a_replacement_of_the_same_size(store: Store) -> None:
    reader = store.put(DATA).open()
    before = reader.identity()
    again = store.put(DATA[::-1])
    if store.kind == "bytes":
        reader = again.open()  # bytes cannot be replaced, other bytes must differ
    after = reader.identity()
    assert after.size == before.size
    assert after.token != before.token


def test_identity_tells_the_new_size(store: Store) -> None:
    reader = store.put(DATA).open()
    reader.identity()
    again = store.put(DATA[:1000])
    if store.kind == "bytes":
        reader = again.open()
    assert reader.identity().size == 1000


def test_a_missing_object_is_named(store: Store) -> None:
    if store.missing is None:
        pytest.skip("bytes are never missing")
    with pytest.raises(FileNotFoundError) as caught:
        store.missing.open().read([Span(0, 10)])
    assert store.missing.label in str(caught.value)


def test_a_reader_knows_whether_it_reads_a_directory(store: Store) -> None:
    assert store.put(DATA).open().is_directory is store.is_sparse


def test_only_readers_of_urls_pay_for_an_identity(store: Store) -> None:
    reader = store.put(DATA).open()
    assert reader.identity_is_cheap is not isinstance(reader, RemoteReader)


def test_the_label_is_that_of_the_location(store: Store) -> None:
    location = store.put(DATA)
    assert location.open().label == location.label


def test_the_size_of_the_object_itself(store: Store) -> None:
    assert store.put(DATA).open().opened_identity().size == SIZE


def test_an_object_has_no_members(store: Store) -> None:
    reader = store.put(DATA).open()
    if store.is_sparse:
        pytest.skip("a sparse frame has members")
    with pytest.raises(ValueError, match=r"no member '00000000\.chunk'"):
        reader.read([Span(0, 4)], "00000000.chunk")


def test_many_threads_read_one_reader(store: Store) -> None:
    reader = store.put(DATA).open()

    def read(seed: int) -> bool:
        draw = random.Random(seed)
        starts = [draw.randrange(SIZE) for _ in range(5)]
        spans = [Span(start, start + 2000) for start in starts]
        return reader.read(spans) == [DATA[start:stop] for start, stop in spans]

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(read, range(24)))


def test_a_closed_reader_reads_no_more(store: Store) -> None:
    reader = store.put(DATA).open()
    reader.read([Span(0, 10)])
    reader.close()
    reader.close()
    with pytest.raises(ValueError, match="closed"):
        reader.read([Span(0, 10)])


def test_a_location_pickles(store: Store) -> None:
    location: Location = pickle.loads(pickle.dumps(store.put(DATA)))
    assert location == store.put(DATA)
    assert location.open().read([Span(100, 200)]) == [DATA[100:200]]


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_a_reader_goes_on_in_a_forked_child(store: Store) -> None:
    reader = store.put(DATA).open()
    reader.read([Span(0, 10)])
    ours, theirs = multiprocessing.Pipe(duplex=False)
    child = multiprocessing.get_context("fork").Process(
        target=lambda: theirs.send_bytes(reader.read([Span(800_000, 800_500)])[0])
    )
    child.start()
    theirs.close()
    assert ours.poll(60)
    assert ours.recv_bytes() == DATA[800_000:800_500]
    ours.close()
    child.join()
    assert child.exitcode == 0
    assert reader.read([Span(700_000, 700_500)]) == [DATA[700_000:700_500]]


def test_members_of_a_directory(sparse_store: Store) -> None:
    chunk = DATA[:5000]
    reader = sparse_store.put(b"main", **{"00000000.chunk": chunk, "0000000A.chunk": b""}).open()
    spans = [Span(4000, 4100), Span(0, 32), Span(4990, 6000)]
    assert reader.read(spans, "00000000.chunk") == [chunk[start:stop] for start, stop in spans]
    assert reader.read([Span(0, 32)], "0000000A.chunk") == [b""]
    assert reader.read([Span(0, 32)]) == reader.read([Span(0, 32)], "chunks.b2frame") == [b"main"]


def test_a_missing_member_is_named(sparse_store: Store) -> None:
    reader = sparse_store.put(b"main").open()
    with pytest.raises(FileNotFoundError, match=r"00000001\.chunk"):
        reader.read([Span(0, 4)], "00000001.chunk")


def read_members(reader: ByteReader, items: list[tuple[str, Span]]) -> list[bytes]:
    buffers = [memoryview(bytearray(stop - start)) for _, (start, stop) in items]
    found = [(bytes(data), size) for data, size in reader.read_each(items, buffers)]
    # the sizes of members come along
    wholes = [reader.read([Span(0, 1 << 24)], member)[0] for member, _ in items]
    assert [size for _, size in found] == list(map(len, wholes))
    return [data for data, _ in found]


def test_several_members_in_one_call(sparse_store: Store) -> None:
    chunks = {f"{i:08X}.chunk": DATA[i * 1000 : i * 1000 + 500 + i] for i in range(5)}
    reader = sparse_store.put(b"main", **chunks).open()
    items = [(name, Span(start, 500)) for start in (400, 3, 0) for name in chunks]
    items += [("", Span(1, 9)), ("chunks.b2frame", Span(0, 2)), ("00000004.chunk", Span(500, 600))]
    expected = [{"": b"main", "chunks.b2frame": b"main", **chunks}[m][a:b] for m, (a, b) in items]
    assert read_members(reader, items) == expected
    assert read_members(reader, []) == []


def test_the_missing_one_of_several_members_is_named(sparse_store: Store) -> None:
    chunks = {f"{i:08X}.chunk": DATA[:500] for i in (0, 2)}
    reader = sparse_store.put(b"main", **chunks).open()
    with pytest.raises(FileNotFoundError) as caught:
        read_members(reader, [(f"{i:08X}.chunk", Span(0, 500)) for i in range(3)])
    assert str(caught.value.filename).endswith("/00000001.chunk")


def test_an_object_is_read_as_its_only_member(store: Store) -> None:
    reader = store.put(DATA).open()
    assert read_members(reader, [("", Span(5, 9)), ("", Span(0, 3))]) == [DATA[5:9], DATA[:3]]


def test_what_a_separate_request_costs(store: Store) -> None:
    reader = store.put(DATA).open()
    if isinstance(reader, RemoteReader):
        assert reader.max_gap >= 64 * 1024
    else:
        assert 0 <= reader.max_gap <= 4096
