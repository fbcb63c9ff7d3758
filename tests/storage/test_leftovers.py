"""Staging areas that are listed while others come and go."""

import threading

from b2nd_dask.storage import Location, StagingInfo, list_staging, remove_staging, staging_for


def test_while_a_write_finishes(tmp_path):
    target = tmp_path / "a.b2nd"
    over = threading.Event()

    def churn():
        while not over.is_set():
            staging = staging_for(Location.of(target), sparse=False, replace=False, header_len=100)
            staging.prepare()
            staging.append([b"x" * 50])
            staging.discard()

    thread = threading.Thread(target=churn)
    thread.start()
    try:
        for _ in range(2000):
            assert all(isinstance(info, StagingInfo) for info in list_staging(target))
    finally:
        over.set()
        thread.join()


def test_a_link_that_leads_nowhere(tmp_path):
    target = tmp_path / "a.b2nd"
    area = tmp_path / f".a.b2nd.{'0' * 16}.staging"
    area.symlink_to(tmp_path / "nothing")
    (info,) = list_staging(target)
    assert info.nbytes == 0
    assert remove_staging(target) == [info]
    assert list(tmp_path.iterdir()) == []
