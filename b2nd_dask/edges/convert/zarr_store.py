"""Arrays and groups of zarr: reads versions 2 and 3, writes version 3."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from b2nd_dask.edges.convert.shared import (
    Copier,
    Options,
    compression_by_name,
    label_of,
    lazy,
    location_of,
    text_dtype,
)
from b2nd_dask.edges.datasets.tree import Member, Tree, keep_attrs, name_coordinates, refuse_paths
from b2nd_dask.format.chunk.compression import CODECS
from b2nd_dask.format.labels import as_json
from b2nd_dask.frame.write.new_frame import check_storable
from b2nd_dask.frame.write.writer import cast_fill
from b2nd_dask.lazy import require
from b2nd_dask.storage import printable

#: Dims in the attributes of version 2, as xarray writes them.
_DIMS_V2 = "_ARRAY_DIMENSIONS"
_SHUFFLES = ("bitshuffle", "shuffle", "noshuffle")


def read_zarr(path: str, options: Options) -> Tree:
    """Describe a store of zarr: a directory, a .zip or a URL.

    Raises FileNotFoundError if there is no array or group, ValueError if a symbolic link leads out
    of its directory, and `other_files` is false.
    """
    zarr, label = require("convert", "zarr"), label_of(path)
    location = location_of(path)
    if location.is_url:
        group = zarr.open(path, mode="r", storage_options=options.storage_options or None)
        return zarr_tree(group, label, options)
    local = Path(location.url)
    if not options.other_files:
        _refuse_links(local, label)
    return zarr_tree(zarr.open(_local_store(local, "r"), mode="r"), label, options)


def _local_store(path: Path, mode: str) -> Any:
    """The store at a path: zarr would take characters such as # in a path for parts of a URL."""
    stores = require("convert", "zarr").storage
    if path.suffix.lower() == ".zip":
        return stores.ZipStore(path, mode=mode)
    return stores.LocalStore(path, read_only=mode == "r")


def _refuse_links(local: Path, label: str) -> None:
    """Check that no link leads out of a local directory: it may lead to any file of the user."""
    root = local.resolve()
    for path in local.rglob("*"):
        if path.is_symlink() and not path.resolve().is_relative_to(root):
            inner = printable(str(path.relative_to(local)))
            raise ValueError(
                f"{label}: the link {inner} leads out of it; copy the linked file, or give "
                "other_files=True (--other-files) if you trust its author"
            )


def zarr_tree(node: Any, label: str, options: Options) -> Tree:
    """Describe an opened array or group."""
    tree = Tree(label, is_array=hasattr(node, "shape"))
    if tree.is_array:
        tree.add(node.basename, partial(_member, node, label, tree.lost, options))
    else:
        _fill(tree, node, options)
    return tree


def _fill(tree: Tree, group: Any, options: Options) -> None:
    """Add the contents of a group to its tree."""
    tree.attrs = dict(group.attrs)
    with warnings.catch_warnings():
        # zarr skips a member with damaged metadata and warns; make this warning an error
        warnings.filterwarnings("error", message=".*not recognized as a component.*")
        members = sorted(group.members())
    for name, child in members:
        if hasattr(child, "shape"):
            inner = f"{tree.label}/{printable(name)}"
            tree.add(name, partial(_member, child, inner, tree.lost, options))
        elif (inside := tree.inside(name)) is not None:
            _fill(inside, child, options)


def _member(array: Any, label: str, lost: list[str], options: Options) -> Member:
    """Describe an opened array; raise TypeError if the elements are Python objects."""
    codecs = (*array.filters, *array.compressors)
    if any(getattr(codec, "codec_id", None) == "pickle" for codec in codecs):
        raise TypeError("its elements are pickled, and to read them may run code of their author")
    try:
        unit = array.shards or array.chunks
    except NotImplementedError:
        # chunks of several lengths along an axis
        unit = tuple(map(max, array.write_chunk_sizes))
    dtype = array.dtype
    if dtype.kind == "T":
        dtype = text_dtype(array, unit, options.block_nbytes, label)
    check_storable(dtype)
    attrs = dict(array.attrs)
    dims = attrs.pop(_DIMS_V2, None)
    if array.metadata.zarr_format == 3:
        dims = array.metadata.dimension_names or dims
    elements = lazy(array, unit, options.block_nbytes, label, dtype)
    return Member(elements, full_dims(dims, array.ndim, label, lost), attrs | _fill_attrs(array))


def _fill_attrs(array: Any) -> dict[str, Any]:
    """The fill value as an attribute.

    xarray stores `_FillValue` as zarr's fill value in version 2, and as an attribute with encoded
    floats in version 3.
    """
    fill, attrs, version = array.fill_value, array.attrs, array.metadata.zarr_format
    if "_FillValue" in attrs and version == 3:
        coder = require("convert", "xarray.backends.zarr").FillValueCoder
        try:
            return {"_FillValue": coder.decode(attrs["_FillValue"], array.dtype.str)}
        except (TypeError, ValueError, KeyError):
            return {}
    if version == 2 and _DIMS_V2 in attrs and fill is not None:
        return {"_FillValue": array.dtype.type(fill)} if array.dtype.kind in "iuf" else {}
    return {"fill_value": fill} if array.dtype.kind in "biufc" and fill else {}


def full_dims(dims: Any, ndim: int, label: str, lost: list[str]) -> tuple[str, ...] | None:
    """Names of all axes, if at least one has a name; they are lost if two are the same."""
    if dims is None or len(dims) != ndim or not any(dims):
        return None if ndim or dims is None else ()
    names = tuple(str(dim) if dim else f"dim_{axis}" for axis, dim in enumerate(dims))
    if len(set(names)) == ndim:
        return names
    lost.append(f"names of dims of {label}, since two are the same: {[*dims]}")
    return None


def element_of(fill: Any, dtype: np.dtype[Any]) -> Any:
    """A fill value as an element of a dtype, perhaps rounded.

    Raises TypeError, ValueError or OverflowError if it is none, or elements are no numbers.
    """
    if dtype.kind not in "biufc":
        raise TypeError(f"elements of {dtype} are no numbers")
    is_whole = isinstance(fill, float | np.floating) and float(fill).is_integer()
    return cast_fill(int(fill) if is_whole and dtype.kind in "iu" else fill, dtype)[()]


def pop_fill(attrs: dict[str, Any], dtype: np.dtype[Any]) -> Any:
    """Remove and return ``fill_value``, which readers make of a fill value other than zero.

    Returns None if it is none: it is an attribute like others.
    """
    try:
        element = element_of(attrs["fill_value"], dtype)
    except (KeyError, TypeError, ValueError, OverflowError):
        return None
    if not element:
        return None
    del attrs["fill_value"]
    return element


def zarr_writer(tree: Tree, options: Options) -> Callable[[Path], None]:
    """The function that writes a tree into a new directory, or a .zip, by its suffix.

    Raises TypeError if zarr cannot hold the elements of a single array, ValueError if the
    compression is unknown.
    """
    codec = _codec_of(options.cparams)
    # zarr takes a backslash for a slash
    refuse_paths(tree, r"\.{0,2}|zarr\.json|.*\\.*")
    tree.convert(_with_known_dtype)
    name_coordinates(tree)
    keep_attrs(tree, _attr)
    return partial(_write, tree, options, {} if codec is None else {"compressors": codec})


def _with_known_dtype(member: Member) -> Member:
    """The array as it is; TypeError if zarr does not have its dtype."""
    dtype = member.array.dtype
    with warnings.catch_warnings():
        # the write itself warns
        warnings.simplefilter("ignore")
        try:
            require("convert", "zarr").create_array({}, shape=0, dtype=dtype)
        except (TypeError, ValueError) as error:
            raise TypeError(f"zarr has no type for {dtype} ({error})") from error
    return member


def _codec_of(cparams: Any) -> Any:
    """The codec of zarr for the compression settings of frames; None for zarr's default."""
    if cparams is None:
        return None
    zarr = require("convert", "zarr")
    codec, clevel, filters = compression_by_name(cparams, "zstd", 5)
    if codec not in CODECS or not set(filters) <= {*_SHUFFLES, "nofilter"}:
        raise ValueError(
            f"cparams={cparams!r}: use one of zarr's codecs {', '.join(CODECS)}, with the filter "
            "shuffle, bitshuffle or none"
        )
    shuffle = next((each for each in filters if each != "nofilter"), "noshuffle")
    return zarr.codecs.BloscCodec(cname=codec, clevel=clevel, shuffle=shuffle)


def _attr(name: str, value: Any, member: Member | None) -> Any:
    """An attribute as JSON, with the fill value in xarray's encoding."""
    if name == "_FillValue" and member is not None:
        coder, dtype = require("convert", "xarray.backends.zarr").FillValueCoder, member.array.dtype
        # the coder would cut fractions
        return coder.encode(element_of(value, dtype) if dtype.kind in "biufc" else value, dtype)
    return as_json(value)


def _write(tree: Tree, options: Options, compression: dict[str, Any], ready: Path) -> None:
    zarr = require("convert", "zarr")
    with closing(_local_store(ready, "w")) as store:
        for path, level in tree.levels():
            if not level.is_array:
                zarr.create_group(store, path=path, zarr_format=3, attributes=level.attrs)
        copier = Copier(tree, options)
        for path, member in tree.walk():
            attrs = dict(member.attrs)
            target = zarr.create_array(
                store,
                name=path or None,
                shape=member.array.shape,
                dtype=member.array.dtype,
                chunks=options.chunks_of(member.array),
                zarr_format=3,
                fill_value=pop_fill(attrs, member.array.dtype),
                dimension_names=member.dims,
                attributes=attrs,
                **compression,
            )
            copier.copy(member, target)
