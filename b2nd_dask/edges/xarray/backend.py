"""The engine ``b2nd`` of xarray: `xr.open_dataset(path, engine="b2nd")`."""

from __future__ import annotations

import errno
import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import xarray as xr
from xarray.backends import BackendEntrypoint

from b2nd_dask.edges.datasets.places import (
    Folder,
    Place,
    found_at,
    groups_of,
    levels_of,
    manifest_of,
    place_of,
)
from b2nd_dask.edges.xarray.backend_array import install
from b2nd_dask.edges.xarray.variables import (
    Contents,
    OpenOptions,
    contents_of,
    contents_of_frame,
    decoded,
)
from b2nd_dask.errors import B2ndError
from b2nd_dask.format.manifest import MANIFEST
from b2nd_dask.frame.array import Frame, reference_of
from b2nd_dask.frame.members.store import inside, is_folder, is_named_store, opened
from b2nd_dask.storage import Location, printable, split_path, split_store, what_directory

#: Suffixes of files and directories of this engine.
_SUFFIXES = (".b2nd", ".b2z", ".b2d", ".b2e", ".b2frame")
#: Attempts to open a dataset during concurrent changes.
_TRIES = 20
#: The options of xarray-blosc2; explicit, since xarray will change its defaults.
_HOW: dict[str, Any] = {
    "combine_attrs": "drop_conflicts",
    "data_vars": "all",
    "coords": "different",
    "compat": "no_conflicts",
    "join": "outer",
}
#: Most cells of the dims that attributes become, for each dataset: all but one are missing.
_MOST_CELLS = 100
#: Arguments of the engine: options of decoding, and its own.
_DECODERS = (
    "mask_and_scale",
    "decode_times",
    "concat_characters",
    "decode_coords",
    "use_cftime",
    "decode_timedelta",
)
_OPTIONS = ("drop_variables", "group", "storage_options", "verify", "uninit")
_Opened = TypeVar("_Opened")


class B2ndBackend(BackendEntrypoint):
    """Blosc2 frames, directories of them and stores of python-blosc2 as datasets."""

    description = "Blosc2 frames (.b2nd), directories and stores of them (b2nd_dask)"
    supports_groups: ClassVar[bool] = True

    open_dataset_parameters = ("filename_or_obj", *_DECODERS, *_OPTIONS)

    def open_dataset(self, filename_or_obj: Any, **options: Any) -> xr.Dataset:
        """Open a dataset; called by `xarray.open_dataset`.

        Parameters
        ----------
        filename_or_obj : path, URL, bytes, Frame, blosc2.NDArray, or a list of these
            A frame, a directory of frames, or a store (``.b2z``, ``.b2d``, ``.b2e``).
        concat_characters : bool
            Whether arrays of single characters become text; False by default, since this package
            stores text as text.
        group : str, optional
            Level of a store, or directory inside a directory, such as ``"model/run1"``.
        storage_options : mapping, optional
            Options of the fsspec file system of URLs.
        verify, uninit
            As for `b2nd_dask.open_b2nd`; `uninit` is for data variables.
        drop_variables, mask_and_scale, decode_times, decode_coords, use_cftime, decode_timedelta
            As for `xarray.open_dataset`.
        """
        return open_source(filename_or_obj, _options(options), _dataset)

    def guess_can_open(self, filename_or_obj: Any) -> bool:
        """Whether this engine opens a file, by its suffix, or a directory, by its contents."""
        if isinstance(filename_or_obj, Frame):
            return True
        if not isinstance(filename_or_obj, str | os.PathLike):
            return False
        # a member or a group is that of its store
        name = os.fsdecode(split_store(filename_or_obj)[0])
        if split_path(name)[0].rstrip("/").endswith(_SUFFIXES):
            return True
        path = Path(name)
        try:
            # xarray-blosc2 and this package write both; the frames are not opened
            return (path / "dataset.json").is_file() and any(path.glob("*.b2nd"))
        except OSError:
            return False

    def open_datatree(self, filename_or_obj: Any, **options: Any) -> xr.DataTree:
        """Open a store or directory with all its groups; called by `xarray.open_datatree`."""
        groups = self.open_groups_as_dict(filename_or_obj, **options)
        try:
            return xr.DataTree.from_dict(groups)
        except ValueError:
            # default names of dims conflict between a group and its parent: make them unique
            groups = open_source(filename_or_obj, _options(options, own_labels=True), _groups)
            return xr.DataTree.from_dict(groups)
        except KeyError as error:
            raise ValueError(
                f"{groups['/'].encoding['source']}: an array and a group have the same name, which "
                f"a tree cannot hold ({error.args[0]}); xarray.open_groups opens both"
            ) from error

    def open_groups_as_dict(self, filename_or_obj: Any, **options: Any) -> dict[str, xr.Dataset]:
        """Open each group of a store or directory; called by `xarray.open_groups`."""
        return open_source(filename_or_obj, _options(options), _groups)


def _options(given: Mapping[str, Any], *, own_labels: bool = False) -> OpenOptions:
    """The options for the arguments of the engine."""
    if unknown := given.keys() - {*_DECODERS, *_OPTIONS}:
        raise TypeError(f"unexpected keyword arguments: {', '.join(sorted(unknown))}")
    own = {name: given[name] for name in _OPTIONS if name in given}
    dropped = own.pop("drop_variables", None) or ()
    own["dropped"] = frozenset([dropped] if isinstance(dropped, str) else dropped)
    decoders = {name: given[name] for name in _DECODERS if name in given}
    return OpenOptions(**own, own_labels=own_labels, decoders=decoders)


def open_source(
    source: Any, options: OpenOptions, build: Callable[[Contents | Place, OpenOptions], _Opened]
) -> _Opened:
    """Build something from one version of a user's source: contents of frames, or a place.

    Manifest and frames are opened one after the other, by name; again if they were replaced
    meanwhile. Afterwards each opened frame raises StaleFrameError if it changes. Raises
    BlockingIOError if each attempt was in vain.
    """
    # makes `chunk` of xarray's variables return arrays of `from_b2nd`
    install()
    if not isinstance(source, str | os.PathLike):
        return build(_found(source, options), options)
    location = Location.of(split_store(source)[0], storage_options=options.storage_options)
    for _ in range(_TRIES):
        before = _version(location)
        try:
            result = build(_found(source, options), options)
        except (B2ndError, OSError):
            if _version(location) == before:
                raise
            continue
        if _version(location) == before:
            return result
    problem = "it is replaced again and again while it is opened; try again"
    raise BlockingIOError(errno.EAGAIN, problem, location.label)


def _version(location: Location) -> object:
    """Identity of the file that every write of a dataset replaces: the archive or the manifest."""
    if location.is_url and not is_named_store(location):
        return None
    with opened(inside(location, MANIFEST) if is_folder(location) else location) as reader:
        return None if reader is None else reader.opened_identity()


def _dataset(found: Contents | Place, options: OpenOptions) -> xr.Dataset:
    if isinstance(found, Contents):
        return decoded(found, options)
    if parts := _parts_of(found):
        return _combined(found, parts, options)
    ds = decoded(found, options)
    if not ds.variables and not options.dropped:
        _require_contents(found, ds)
    return ds


def _parts_of(place: Place) -> list[Place]:
    """The directories, or archives of one file, in a directory that has no frames itself."""
    if not isinstance(place, Folder) or place.arrays() or manifest_of(place).groups:
        # a tree has groups in its manifest: they are not parts of one dataset
        return []
    groups: list[Place] = [place.inside(name) for name in place.groups()]
    if groups or place.location.is_url:
        return groups
    archives = sorted(Path(place.location.url).glob("*.b2z"))
    return [each for path in archives if (each := place_of(Location.of(path)))]


def _combined(place: Place, parts: Sequence[Place], options: OpenOptions) -> xr.Dataset:
    """Open the parts of a place and combine them by their coordinates.

    The attributes in ``group_by`` of the parent's manifest become dims; without ``group_by``, the
    attributes that differ between the parts.
    """
    attrs = [dict(manifest_of(part).attrs) for part in parts]
    texts = {key: {str(own[key]) for own in attrs if key in own} for key in attrs[0]}
    differing = {key for key, values in texts.items() if len(values) > 1}
    keys = set(manifest_of(place).group_by) or differing
    cells = math.prod(len({str(own.get(key)) for own in attrs}) for key in keys)
    if cells > _MOST_CELLS * len(parts):
        raise ValueError(
            f"{place.label}: its {len(parts)} datasets differ in {len(keys)} attributes, which "
            f"would become dims with {cells} cells; group= opens one, xarray.open_datatree all"
        )
    datasets = []
    for part, own in zip(parts, attrs, strict=True):
        ds = _chunked(decoded(part, options))
        expand = {key: [own[key]] for key in sorted(keys) if key in own and key not in ds.dims}
        for key in expand:
            ds.attrs.pop(key, None)
        datasets.append(ds.expand_dims(expand) if expand else ds)
    if len(datasets) == 1:
        return datasets[0]
    try:
        return xr.combine_by_coords(datasets, **_HOW)  # type: ignore[return-value]
    except ValueError as error:
        some = ", ".join(printable(part.label) for part in parts[:3])
        raise ValueError(
            f"{place.label}: its {len(parts)} datasets ({some}, ...) cannot be combined into one: "
            f"{error}; group= opens one of them, xarray.open_datatree all"
        ) from error


def _chunked(ds: xr.Dataset) -> xr.Dataset:
    """The dataset with dask arrays: xarray concatenates only these lazily."""
    arrays = {
        name: array.chunk(array.encoding.get("preferred_chunks", {}))
        for name, array in ds.data_vars.items()
    }
    # with default indexes, as xarray makes them for an engine's dataset
    coords = {name: array.variable for name, array in ds.coords.items()}
    return ds.assign(arrays).assign_coords(coords)


def _groups(found: Contents | Place, options: OpenOptions) -> dict[str, xr.Dataset]:
    levels = [("/", found)] if isinstance(found, Contents) else levels_of(found)
    return {path: decoded(level, options, path) for path, level in levels}


def _require_contents(place: Place, ds: xr.Dataset) -> None:
    """Check that a place without variables is a dataset."""
    if groups := groups_of(place):
        raise ValueError(
            f"{place.label}: no arrays here, but groups: {', '.join(map(printable, groups[:10]))}; "
            "pass group=, or open all by xarray.open_datatree"
        )
    if not ds.attrs and place.raw_manifest is None:
        names = place.names if isinstance(place, Folder) else ()
        is_what = what_directory(place.label, names)
        raise FileNotFoundError(f"{place.label}: no frames (.b2nd) here{is_what}")


def _found(source: Any, options: OpenOptions) -> Contents | Place:
    """A user's source as the contents of frames, or as the place of a dataset."""
    if isinstance(source, list | tuple):
        if not source:
            raise ValueError("an empty list; give the paths of frames")
        # the variables of one dataset
        contents = Contents("a list of frames")
        for each in source:
            contents.update(open_source(each, options, contents_of))
        return contents
    if isinstance(source, Frame):
        reference_of(source)  # raises an error if the frame is closed
        frame = source
    else:
        found = found_at(source, options.storage_options, options.group or "")
        if not isinstance(found, Location):
            return found
        frame = options.open(found)
    if options.group:
        raise ValueError(
            f"{frame.path}: a single frame has no groups; omit group={options.group!r}"
        )
    return contents_of_frame(frame, None if options.own_labels else _stem(frame.path))


def _stem(path: str) -> str:
    """Name of the variable for a frame without a name."""
    name = path.rstrip("/").rpartition("/")[2]
    for suffix in _SUFFIXES:
        name = name.removesuffix(suffix)
    return name if name and not name.startswith("<") else "data"
