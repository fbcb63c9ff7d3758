"""A tree as zarr version 3: an array, or a group of arrays with their dimension names."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from b2nd_dask.edges.convert.copying import Copier
from b2nd_dask.edges.convert.lazy import unit_of
from b2nd_dask.edges.convert.options import Options, name_of, settings_of
from b2nd_dask.edges.datasets.tree import Member, Tree
from b2nd_dask.edges.extras import require
from b2nd_dask.format.labels.pack import NotKeptError, as_json

_BLOSC = ("blosclz", "lz4", "lz4hc", "zlib", "zstd")
_SHUFFLES = ("bitshuffle", "shuffle", "noshuffle")


def check_zarr(tree: Tree, options: Options) -> None:
    """Check that a tree can be zarr; attributes that JSON cannot hold are noted as lost.

    Raises
    ------
    ValueError
        Unknown compression.
    """
    _codec_of(options.cparams)
    for path, member in tree.walk():
        _attrs(member.attrs, path or tree.label, tree.lost, member)
    _attrs(tree.attrs, tree.label, tree.lost)


def _codec_of(cparams: Any) -> Any:
    """The codec of zarr for compression that is named as for frames; None is zarr's default."""
    if cparams is None:
        return None
    zarr = require("convert", "zarr")
    given = settings_of(cparams)
    codec = name_of(given.get("codec", "zstd"))
    filters = [name_of(each) for each in given.get("filters", ["shuffle"])]
    if codec not in _BLOSC or not set(filters) <= {*_SHUFFLES, "nofilter"}:
        raise ValueError(
            f"cparams={cparams!r}: of zarr's codecs there are {', '.join(_BLOSC)}, with the "
            "filters shuffle, bitshuffle or none"
        )
    shuffle = next((each for each in filters if each != "nofilter"), "noshuffle")
    return zarr.codecs.BloscCodec(cname=codec, clevel=int(given.get("clevel", 5)), shuffle=shuffle)


def _attrs(
    attrs: Mapping[str, Any], label: str, lost: list[str], member: Member | None = None
) -> dict[str, Any]:
    """Attributes as JSON, with the fill value as xarray codes it."""
    found: dict[str, Any] = {}
    for name, value in attrs.items():
        try:
            if name == "_FillValue" and member is not None:
                coder = require("convert", "xarray.backends.zarr").FillValueCoder
                found[name] = coder.encode(value, member.array.dtype)
            else:
                found[name] = as_json(value)
        except (NotKeptError, TypeError, ValueError, KeyError) as reason:
            lost.append(f"attribute {name!r} of {label} ({reason})")
    return found


def write_zarr(tree: Tree, ready: Path, options: Options) -> None:
    """Write a tree into a new directory, or a .zip."""
    zarr = require("convert", "zarr")
    zipped = ready.suffix == ".zip"
    store = zarr.storage.ZipStore(ready, mode="w") if zipped else zarr.storage.LocalStore(ready)
    try:
        for path, level in tree.levels():
            if level.only is None:
                attrs = _attrs(level.attrs, level.label, [])
                zarr.create_group(store, path=path, zarr_format=3, attributes=attrs)
        copier = Copier(tree, options)
        for path, member in tree.walk():
            copier.copy(member, _created(member, store, path, options))
    finally:
        store.close()


def _created(member: Member, store: Any, path: str, options: Options) -> Any:
    """The array that elements are copied to."""
    attrs = _attrs(member.attrs, "", [], member)
    fill = attrs.pop("fill_value", None)
    compression = {} if options.cparams is None else {"compressors": _codec_of(options.cparams)}
    return require("convert", "zarr").create_array(
        store,
        name=path or None,
        shape=member.array.shape,
        dtype=member.array.dtype,
        chunks=options.chunks_of(member.array.shape, unit_of(member.array)),
        zarr_format=3,
        fill_value=fill,
        dimension_names=member.dims,
        attributes=attrs,
        **compression,
    )
