"""The peak memory of a piece of Python, in a new process."""

from __future__ import annotations

from typing import Any

import blosc2
import dask
import dask.array as da
import numpy as np

import b2nd_dask
from b2nd_dask import from_b2nd, open_b2nd, to_b2nd
from benchmarks.memory import forget_peak, peak_resident, resident
from tests.forked import run_forked


def _growth(code: str, before: str, config: dict[str, Any], values: dict[str, Any]) -> int:
    names = {
        "b2nd_dask": b2nd_dask,
        "da": da,
        "np": np,
        "from_b2nd": from_b2nd,
        "open_b2nd": open_b2nd,
        "to_b2nd": to_b2nd,
        **values,
    }
    # loads modules before the memory is measured
    from_b2nd(blosc2.zeros((4,)).to_cframe()).compute()
    dask.config.set(config)
    exec(compile(before, "<before>", "exec"), names)
    work = compile(code, "<code>", "exec")
    forget_peak()
    start = resident()
    exec(work, names)
    return peak_resident() - start


def write_maps(path: Any, shape: tuple[int, int, int], blocks: tuple[int, int, int]) -> None:
    """Write many maps of small numbers, each a chunk; cheap to compute and to write."""
    x: Any = da.map_blocks(
        lambda block_info: np.random.default_rng(block_info[None]["chunk-location"]).integers(
            0, 9, (1, *shape[1:]), "u2"
        ),
        chunks=((1,) * shape[0], *((n,) for n in shape[1:])),
        dtype="u2",
    )
    to_b2nd(x, path, blocks=blocks, cparams={"codec": "lz4", "clevel": 1})


def peak_growth(code: str, *, before: str = "", config: Any = None, **values: Any) -> int:
    """Bytes of resident memory by which the peak of `code` exceeds the memory before.

    `values` are variables of the code, `config` is dask's; `before` runs first and does not count.
    Two threads compute.
    """
    config = {"scheduler": "threads", "num_workers": 2} | (config or {})
    return run_forked(_growth, code, before, config, values)
