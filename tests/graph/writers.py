"""The elements that tests of several writers write, and a check of the frame."""

import blosc2
import numpy as np

from b2nd_dask import open_b2nd, verify

VALUES = np.random.default_rng(5).normal(size=(60, 40))
CHUNKS = (10, 20)


def holds(target, expected):
    """Check with this package, its checksums and python-blosc2; nothing else is left there."""
    np.testing.assert_array_equal(open_b2nd(target)[...], expected)
    np.testing.assert_array_equal(blosc2.open(str(target))[...], expected)
    assert verify(target).ok
    assert list(target.parent.iterdir()) == [target]
