"""A tree as an HDF5 file; with dims as dimension scales, which NetCDF-4 and xarray read."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np

from b2nd_dask.edges.convert.copying import Counter, blocks_of_tree, copy_blocks
from b2nd_dask.edges.convert.hdf5_file import SurvivingFile
from b2nd_dask.edges.convert.lazy import unit_of
from b2nd_dask.edges.convert.options import Options
from b2nd_dask.edges.datasets.tree import Member, Tree
from b2nd_dask.edges.extras import require
from b2nd_dask.storage import printable

_UNITS = {
    "ns": "nanoseconds",
    "us": "microseconds",
    "ms": "milliseconds",
    "s": "seconds",
    "m": "minutes",
    "h": "hours",
    "D": "days",
}
#: What NetCDF calls a dim that has no coordinate.
_BARE_DIM = "This is a netCDF dimension but not a netCDF variable. {:>10}"


def check_hdf5(tree: Tree, options: Options) -> None:
    """Check that a tree can be HDF5; what attributes cannot hold is noted as lost.

    Raises
    ------
    TypeError
        Elements that HDF5 has no form for.
    ValueError
        Unknown compression.
    """
    compression_of(options.cparams)
    for path, member in tree.walk():
        encoded(member, printable(path) or tree.label)
        _held_attrs(member.attrs, path or tree.label, tree.lost)
    _held_attrs(tree.attrs, tree.label, tree.lost)


def compression_of(cparams: Any) -> dict[str, Any]:
    """Arguments of h5py for compression: gzip, which all readers know."""
    given = (
        dict(cparams) if isinstance(cparams, Mapping) else {} if cparams is None else vars(cparams)
    )
    codec = str(getattr(given.get("codec"), "name", given.get("codec", "zlib"))).lower()
    if codec not in ("zlib", "gzip"):
        raise ValueError(
            f"cparams={cparams!r}: HDF5 files are compressed by gzip, which every reader has: "
            'give {"codec": "zlib", "clevel": N} or nothing'
        )
    return {"compression": "gzip", "compression_opts": int(given.get("clevel", 4)), "shuffle": True}


def encoded(member: Member, label: str) -> Member:
    """The array with elements that HDF5 has: times as CF has them, text as UTF-8.

    Raises
    ------
    TypeError
        Elements without a form.
    """
    dtype = member.array.dtype
    if dtype.kind == "U":
        width = max(1, dtype.itemsize)
        text = da.map_blocks(_utf8, member.array, width, dtype=f"S{width}")
        return replace(member, array=text)
    return with_numbers(member, label)


def with_numbers(member: Member, label: str) -> Member:
    """The array with numbers for times.

    Raises
    ------
    TypeError
        A unit that CF has no word for.
    """
    array, dtype, attrs = member.array, member.array.dtype, dict(member.attrs)
    if dtype.kind in "mM":
        unit, step = np.datetime_data(dtype)
        if unit not in _UNITS or step != 1:
            raise TypeError(
                f"{label}: HDF5 has no {dtype}; .astype('{dtype.kind}8[s]') or the like first"
            )
        native = array.astype(dtype.newbyteorder("="))
        # NaT is the smallest integer
        numbers = da.map_blocks(np.ndarray.view, native, "i8", dtype="i8", meta=np.empty(0, "i8"))
        attrs["_FillValue"] = np.iinfo("i8").min
        if dtype.kind == "M":
            attrs |= {
                "units": f"{_UNITS[unit]} since 1970-01-01",
                "calendar": "proleptic_gregorian",
            }
        else:
            attrs["units"] = _UNITS[unit]
        return replace(member, array=numbers, attrs=attrs)
    return member


def _utf8(elements: Any, width: int) -> Any:
    if not elements.size:
        return elements.astype(f"S{width}")
    return np.char.encode(elements, "utf-8").astype(f"S{width}")


def _held_attrs(attrs: Mapping[str, Any], label: str, lost: list[str]) -> dict[str, Any]:
    found = {}
    for name, value in attrs.items():
        kind = np.asarray(value).dtype.kind if not isinstance(value, Mapping) else "O"
        if kind in "OmMV":
            lost.append(f"attribute {name!r} of {label} (HDF5 has no {type(value).__name__})")
        else:
            found[name] = value
    return found


def write_hdf5(tree: Tree, ready: Path, options: Options, member: str | None = None) -> None:
    """Write a tree into a new file.

    Parameters
    ----------
    member : str, optional
        Name of the dataset, where the source is a single array.
    """
    h5py = require("convert", "h5py")
    total = blocks_of_tree(tree, options)
    with closing(SurvivingFile(ready)) as disk:

        def step(done: int, total: int) -> None:
            disk.check()
            if options.progress is not None:
                options.progress(done, total)

        counter = Counter(step, total)
        with h5py.File(disk, "w", track_order=True) as file:
            if tree.only is not None:
                tree = Tree(tree.label, members={member or tree.only.name or "values": tree.only})
            _write(tree, file, options, counter)
        disk.check()


def _write(tree: Tree, group: Any, options: Options, counter: Counter) -> None:
    group.attrs.update(_forms(_held_attrs(tree.attrs, tree.label, [])))
    made = {}
    for name, member in tree.members.items():
        made[name] = _write_dataset(member, name, group, options, counter)
    scales = {}
    for name, member in tree.members.items():
        if member.dims == (name,):
            scales[name] = made[name]
    _name_dims(tree, group, made, scales)
    for name, inner in tree.groups.items():
        _write(inner, group.create_group(name, track_order=True), options, counter)


def _name_dims(tree: Tree, group: Any, made: dict[str, Any], scales: dict[str, Any]) -> None:
    for scale in scales.values():
        scale.make_scale(scale.name.rpartition("/")[2])
    for name, member in tree.members.items():
        for axis, dim in enumerate(member.dims or ()):
            if dim not in scales and dim in made:
                # the name of another array, which is no scale
                made[name].dims[axis].label = dim
                continue
            if dim not in scales:
                size = member.array.shape[axis]
                scales[dim] = group.create_dataset(dim, (size,), "f4")
                scales[dim].make_scale(_BARE_DIM.format(size))
            if name != dim:
                made[name].dims[axis].attach_scale(scales[dim])


def _write_dataset(
    member: Member, name: str, group: Any, options: Options, counter: Counter
) -> Any:
    h5py = require("convert", "h5py")
    is_text = member.array.dtype.kind == "U"
    member = encoded(member, name)
    array, attrs = member.array, _held_attrs(member.attrs, name, [])
    chunks = options.chunks_of(array.shape, unit_of(member.array))
    dtype: Any = array.dtype
    if is_text:
        dtype = h5py.string_dtype("utf-8", dtype.itemsize)
    cut = {"chunks": chunks, **compression_of(options.cparams)} if array.ndim and array.size else {}
    fill = attrs.get("_FillValue", attrs.pop("fill_value", None))
    fill = fill if fill is not None and array.dtype.kind in "iufc" else None
    dataset = group.create_dataset(name, array.shape, dtype, fillvalue=fill, **cut)
    if "_FillValue" in attrs and array.dtype.kind in "iufc":
        attrs["_FillValue"] = array.dtype.type(attrs["_FillValue"])
    dataset.attrs.update(_forms(attrs))
    if array.size:
        target = _Text(dataset, dtype) if is_text else dataset
        copy_blocks(array, target, chunks, options.budget, counter, together=False)
    return dataset


class _Text:
    """A dataset of UTF-8, for which h5py has to be told that bytes are that."""

    def __init__(self, dataset: Any, dtype: Any) -> None:
        self._dataset, self._dtype = dataset, dtype

    def __setitem__(self, region: Any, elements: Any) -> None:
        self._dataset[region] = elements.astype(self._dtype)


def _forms(attrs: Mapping[str, Any]) -> dict[str, Any]:
    """Attributes in forms that h5py takes: lists of text are arrays of objects for it."""
    return {
        name: np.array(value, object)
        if isinstance(value, list) and value and all(isinstance(each, str) for each in value)
        else value
        for name, value in attrs.items()
    }
