"""The logger at DEBUG: for each layer the rule that lowered it, or why none did."""

import blosc2
import dask
import numpy as np
import pytest

from b2nd_dask import from_b2nd


def annotated(x):
    with dask.annotate(priority=1):
        return x * 2


#: Programs, and the messages logged for them.
LOGGED = {
    "slice": (lambda x: x[3:15].cumsum(axis=0), "lowered by slices"),
    "new blocks": (lambda x: x.rechunk((20, 10)).cumsum(axis=0), "lowered by new_blocks"),
    "new blocks of work": (lambda x: (x * 2).rechunk((20, 10)).cumsum(axis=0), "lowered by new_b"),
    "annotated": (lambda x: annotated(x) + 1, "is opaque: it has annotations"),
    "work": (lambda x: (x * 2)[:, ::2].sum(), "lowered by reductions"),
    "whole": (lambda x: x[3:15], "read_at_once reads"),
    "positions": (lambda x: x[[1, 17]] + 1, "lowered by positions"),
    "reversed": (lambda x: x[::-1].sum(), "does not fold: axes of the read are reversed"),
    "text": (lambda x: x.astype("m8[s]").max(), "does not fold: its elements are not numbers"),
    "tiny blocks": (lambda x: x.rechunk((1, 1)) + 1, "is dask's rechunk"),
    "used twice": (lambda x: x + x.sum(), "is not absorbed: it is needed by"),
    "constants": (lambda x: x.rechunk((1, 1)) + 1, "lowered by views"),
    "cumulative": (lambda x: x.cumsum(axis=0), "is opaque, no rule reads through it"),
}


@pytest.mark.parametrize("name", LOGGED)
def test_the_log_says_which_rule_it_was(tmp_path, caplog, name):
    program, said = LOGGED[name]
    path = tmp_path / "a.b2nd"
    blosc2.asarray(np.ones((20, 30)), chunks=(5, 10), blocks=(5, 5), urlpath=str(path))
    caplog.set_level("DEBUG", "b2nd_dask")
    program(from_b2nd(path)).compute(scheduler="sync")
    assert any(said in message for message in caplog.messages), caplog.text
