"""Sound frames to mutate: all kinds, codecs and filters."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import TYPE_CHECKING, Any

import blosc2
import dask.array as da
import numpy as np

from b2nd_dask import to_b2nd
from tests.fuzz.files import Files, read_files
from tests.vectors import DATA, load

if TYPE_CHECKING:
    from collections.abc import Iterator

LARGEST = 12_000
"""Maximum bytes of a seed: mutations of large frames mostly hit streams."""

CODEC, FILTER = blosc2.Codec, blosc2.Filter
GRID = {"chunks": (7, 9), "blocks": (3, 4)}
CODECS = {
    "blosclz": {"codec": CODEC.BLOSCLZ},
    "lz4": {"codec": CODEC.LZ4},
    "lz4hc": {"codec": CODEC.LZ4HC},
    "zlib": {"codec": CODEC.ZLIB},
    "zstd": {"codec": CODEC.ZSTD},
    "never split": {"codec": CODEC.LZ4, "splitmode": blosc2.SplitMode.NEVER_SPLIT},
    "always split": {"codec": CODEC.ZSTD, "splitmode": blosc2.SplitMode.ALWAYS_SPLIT},
    "plain": {"clevel": 0},
    "dict": {"codec": CODEC.ZSTD, "use_dict": True, "filters": [FILTER.NOFILTER]},
}
FILTERS = {
    "none": [FILTER.NOFILTER],
    "bitshuffle": [FILTER.BITSHUFFLE],
    "delta": [FILTER.DELTA, FILTER.SHUFFLE],
    "trunc": [FILTER.TRUNC_PREC, FILTER.SHUFFLE],
    "bytedelta": [FILTER.SHUFFLE, FILTER.BYTEDELTA],
    "int_trunc": [FILTER.INT_TRUNC],
}
SHAPED = {
    "zfp rate": {"codec": CODEC.ZFP_RATE, "codec_meta": 50},
    "zfp prec": {"codec": CODEC.ZFP_PREC, "codec_meta": 20},
    "zfp acc": {"codec": CODEC.ZFP_ACC, "codec_meta": 3},
    "ndlz": {"codec": CODEC.NDLZ, "codec_meta": 4},
    "ndcell": {"filters": [FILTER.NDCELL], "filters_meta": [4]},
    "ndmean": {"filters": [FILTER.NDMEAN], "filters_meta": [4]},
}


def smooth(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Values that compress and are not constant."""
    n = int(np.prod(shape))
    return (np.sin(np.arange(n) / 7) * 1000).astype(dtype).reshape(shape)


def made_by_blosc2(folder: Path) -> Iterator[tuple[str, Any]]:
    """Make frames with python-blosc2."""
    numbers = itertools.count()

    def make(array: np.ndarray, **how: Any) -> Any:
        path = folder / f"{next(numbers)}.b2nd"
        return blosc2.asarray(array, urlpath=str(path), **how)

    for name, cparams in CODECS.items():
        yield name, make(smooth((20, 30), "i4"), cparams=cparams, **GRID)
    for (name, filters), codec in itertools.product(FILTERS.items(), (CODEC.LZ4, CODEC.ZSTD)):
        meta = [
            8 if f == FILTER.TRUNC_PREC else -4 if f == FILTER.INT_TRUNC else 0 for f in filters
        ]
        dtype = "i4" if name == "int_trunc" else "f8"
        cparams = {"codec": codec, "filters": filters, "filters_meta": meta}
        yield f"{name} {codec.name}", make(smooth((20, 30), dtype), cparams=cparams, **GRID)
    for name, cparams in SHAPED.items():
        dtype = "u1" if name == "ndlz" else "f4"
        grid = {"chunks": (16, 16), "blocks": (8, 8)}
        filters = {"filters": [FILTER.NOFILTER], **cparams}
        yield name, make(smooth((20, 30), dtype), cparams=filters, **grid)
    special = make(smooth((30, 30), "f8"), chunks=(10, 10), blocks=(5, 5))
    special[:10], special[10:20, :10] = 0, np.nan
    yield "special", special
    entries = make(smooth((9,), "i2"), chunks=(5,), blocks=(2,))
    values = {
        "n": 1,
        "s": {1, 2},
        "z": 1j,
        "a": np.arange(3),
        "t": (1, [2.5, None]),
        "d": {"k": b"v"},
    }
    for name, value in values.items():
        entries.schunk.vlmeta[name] = value
    yield "vlmeta", entries
    yield "meta", make(smooth((9,), "i2"), chunks=(5,), blocks=(2,), meta={"m": {"a": [1, 2]}})
    yield "sparse", make(smooth((20, 30), "i4"), contiguous=False, **GRID)
    fields = np.zeros(40, [("a", "<i4"), ("b", "<f8", (2,)), ("c", "S3")])
    fields["a"] = np.arange(40)
    yield "fields", make(fields, chunks=(15,), blocks=(4,))


def made_here(folder: Path) -> Iterator[tuple[str, Path]]:
    """Make frames with this package."""
    array = smooth((20, 30), "f4")
    array[:7] = 3
    source = da.from_array(array, chunks=(14, 30))
    for name, how in {"own": {}, "own sparse": {"contiguous": False}}.items():
        path = folder / f"{name}.b2nd"
        to_b2nd(source, path, chunks=(7, 9), blocks=(3, 4), vlmeta={"k": [1, 2]}, **how)
        yield name, path


def make_seeds(folder: Path) -> dict[str, Files]:
    """Make all seeds, and take small ones of each folder of vectors."""
    seeds = {name: read_files_of(array) for name, array in made_by_blosc2(folder)}
    seeds |= {name: read_files(path) for name, path in made_here(folder)}
    for row in load(DATA):
        if row.expect == "read" and not row.file.startswith("hostile/"):
            files = read_files(row.path)
            if sum(map(len, files.values())) <= LARGEST:
                seeds[row.file] = files
    return seeds


def read_files_of(array: Any) -> Files:
    """Load the files of an opened array."""
    from pathlib import Path

    return read_files(Path(array.schunk.urlpath))
