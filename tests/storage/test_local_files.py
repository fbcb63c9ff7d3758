"""System calls for writing, where they do less than they should."""

import os

import numpy as np

from b2nd_dask.storage import Location, staging_for
from b2nd_dask.storage.write.local_files import append_whole


def test_a_write_that_the_system_cuts_is_gone_on_with(tmp_path, monkeypatch):
    """As Linux does at 2 GiB: however often it is tried, the whole never fits into one call."""
    original = os.writev

    def writev(fd, buffers):
        return original(fd, [b"".join(buffers)[:1000]])

    monkeypatch.setattr(os, "writev", writev)
    payloads = [os.urandom(n) for n in (700, 0, 700, 2500, 1, 99)]
    path = tmp_path / "a.part"
    path.write_bytes(b"before")
    fd = os.open(path, os.O_RDWR)
    try:
        assert append_whole(fd, payloads) == 6
    finally:
        os.close(fd)
    assert path.read_bytes() == b"before" + b"".join(payloads)


def test_more_chunks_than_one_call_takes(tmp_path):
    staging = staging_for(
        Location.of(tmp_path / "a.b2nd"), sparse=False, replace=False, header_len=100
    )
    staging.prepare()
    payloads = [bytes([i % 251]) * (i % 7) for i in range(3 * os.sysconf("SC_IOV_MAX") + 5)]
    runs = staging.append(payloads)
    assert staging.fetch(runs) == payloads
    np.testing.assert_array_equal([run.stop - run.start for run in runs], [*map(len, payloads)])
