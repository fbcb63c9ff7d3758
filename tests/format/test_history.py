"""The history of a frame: bytes by hand, and bytes that are none."""

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from b2nd_dask.format.trailer import (
    MARKS_NBYTES,
    MAX_UPDATES,
    UNKNOWN,
    History,
    PastUpdate,
    build_marks,
    metadata_digest,
    parse_marks,
)
from b2nd_dask.frame.open import opening
from tests.strategies import examples

DIGEST = b"metadata"
UPDATES = tuple(PastUpdate(f"{k:016x}", 10**12 + k, k, 2 * k) for k in range(1, 4))
KEY = UPDATES[-1].key
WRITE_ID = build_marks(KEY, None, b"")
PAST = History(b"the base", UPDATES)


def test_bytes_by_hand():
    rows = [struct.pack(">Q", k) + struct.pack("<QII", 10**12 + k, k, 2 * k) for k in range(1, 4)]
    end = b"b2ndpast" + b"the base" + DIGEST + struct.pack("<Q", 3)
    write_id = b"b2ndmark" + struct.pack(">Q", 3)
    assert build_marks(KEY, PAST, DIGEST) == b"".join(rows) + end + write_id
    before = b"an index chunk" + b"".join(rows) + end + write_id
    assert parse_marks(before) == (KEY, PAST, DIGEST)


def test_the_oldest_but_the_first_are_left_out():
    many = tuple(PastUpdate(f"{k:016x}", k, 0, 1) for k in range(MAX_UPDATES + 5))
    raw = build_marks(many[-1].key, History(b"the base", many), DIGEST)
    assert parse_marks(raw) == (many[-1].key, History(UNKNOWN, (many[0], *many[6:])), DIGEST)
    # in the one place where no more is read over
    assert len(raw) == MARKS_NBYTES <= opening._MAX_GAP


RAW = build_marks(KEY, PAST, DIGEST).removesuffix(WRITE_ID)
NONE = {
    "empty": b"",
    "cut": RAW[1:],
    "behind it": RAW + b"\0",
    "too many": RAW[:-8] + struct.pack("<Q", 4),
    "very many": RAW[:-8] + struct.pack("<Q", 2**64 - 1),
    "none": RAW[:-8] + bytes(8),
    "other magic": RAW.replace(b"b2ndpast", b"b2ndpost"),
}


@pytest.mark.parametrize("raw", NONE.values(), ids=NONE)
def test_what_is_no_history(raw):
    assert parse_marks(raw + WRITE_ID) == (KEY, History(), b"")


def test_a_history_of_another_write_does_not_count():
    key = "ab" * 8
    assert parse_marks(RAW + build_marks(key, None, DIGEST)) == (key, History(), b"")
    assert parse_marks(RAW + bytes(16)) == (None, History(), b"")


def test_metadata_are_told_apart():
    given = [({}, b""), ({}, b"a"), ({"a": b""}, b""), ({"a": b"b"}, b""), ({"ab": b""}, b"")]
    digests = {metadata_digest(meta, vlmeta) for vlmeta, meta in given}
    assert len(digests) == len(given)


@examples(50)
@given(data=st.binary(max_size=200), at=st.integers(0, len(RAW)))
def test_garbage_is_no_error(data, at):
    for raw in (data, RAW[:at] + data + RAW[at:], np.random.default_rng(at).bytes(100)):
        parse_marks(raw)
        parse_marks(raw + WRITE_ID)
