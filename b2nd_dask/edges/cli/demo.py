"""`demo`: the share of land on the Earth, computed out of core from a frame of the land mask."""

from __future__ import annotations

import importlib.util
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import click
import dask.array as da
import numpy as np
from dask.base import compute
from numpy.typing import NDArray

from b2nd_dask.edges.cli.group import Verb, safe
from b2nd_dask.edges.cli.shared import progress
from b2nd_dask.frame.access import open_b2nd
from b2nd_dask.graph.read.from_b2nd import from_b2nd
from b2nd_dask.graph.resources import Progress, tasks_shown
from b2nd_dask.graph.write.to_b2nd import to_b2nd
from b2nd_dask.lazy import require

#: Rows of the mask, and side of a frame chunk in cells: 6 degrees. 61 % of these chunks hold only
#: land or only sea.
ROWS, CHUNK = 21_600, 720
#: Side of a map cell in mask cells: half a degree.
CELL = 60

#: Surfaces in square kilometres, from The World Factbook. Antarctica counts with its ice shelves.
EARTH_KM2, LAND_KM2, ANTARCTICA_KM2 = 510.072e6, 148.94e6, 14.2e6


@dataclass(frozen=True, slots=True)
class LandCover:
    """Shares of land, computed from a mask with rows from the north pole to the south pole."""

    by_latitude: NDArray[np.float64]
    """Share of land in each row, 0 to 1."""

    map: NDArray[np.float64]
    """Share of land in each map cell, 0 to 1, shape (rows / cell, columns / cell)."""

    @property
    def share(self) -> float:
        """Share of land on the sphere, 0 to 1."""
        return self.share_south_of(90)

    def share_south_of(self, latitude: float) -> float:
        """Land south of `latitude` (degrees north) as a share of the whole sphere, 0 to 1."""
        rows = len(self.by_latitude)
        first = round((90 - latitude) / 180 * rows)
        return float(row_areas(rows)[first:] @ self.by_latitude[first:])


def row_areas(rows: int) -> NDArray[np.float64]:
    """Share of the sphere's area in each of `rows` bands of equal latitude, pole to pole.

    Examples
    --------
    >>> [round(float(area), 6) for area in row_areas(6)]
    [0.066987, 0.183013, 0.25, 0.25, 0.183013, 0.066987]
    """
    edges = np.sin(np.linspace(np.pi / 2, -np.pi / 2, rows + 1))
    areas: NDArray[np.float64] = (edges[:-1] - edges[1:]) / 2
    return areas


def land_cover(land: da.Array, cell: int) -> tuple[da.Array, da.Array]:
    """Lazy arrays for the fields of `LandCover`.

    Lengths and chunks of `land` (True over land) are multiples of `cell`, the side of a map cell.
    """
    return land.mean(axis=1), da.coarsen(np.mean, land, {0: cell, 1: cell})


def save_picture(cover: LandCover, path: Path) -> None:
    """Draw the map beside the share of land by latitude, as a PNG file."""
    from matplotlib.colors import LinearSegmentedColormap
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 5.2), layout="constrained")
    chart, profile = figure.subplots(1, 2, sharey=True, width_ratios=(4, 1))
    colours = LinearSegmentedColormap.from_list("sea to land", ["#dfe9f0", "#4f6f3a"])
    extent = (-180, 180, -90, 90)
    image = chart.imshow(100 * cover.map, cmap=colours, vmin=0, vmax=100, extent=extent)
    chart.set(xlabel="longitude (degrees east)", ylabel="latitude (degrees north)")
    chart.set(xticks=range(-180, 181, 60), yticks=range(-90, 91, 30), aspect="auto")
    chart.set_title("in cells of half a degree", loc="left", fontsize="medium")
    figure.colorbar(image, ax=chart, location="bottom", shrink=0.4, aspect=40, label="land (%)")

    latitudes = np.linspace(90, -90, len(cover.by_latitude))
    profile.fill_betweenx(latitudes, 100 * cover.by_latitude, color="#4f6f3a", linewidth=0)
    profile.set(xlim=(0, 100), xlabel="land (%)")
    profile.grid(axis="both", color="#cccccc", linewidth=0.5)
    profile.set_axisbelow(True)
    profile.set_title("by latitude", loc="left", fontsize="medium")
    figure.suptitle(f"Land covers {cover.share:.2%} of the Earth in this mask", x=0.01, ha="left")
    figure.savefig(path, dpi=100)


def run_demo(output: Path, *, overwrite: bool) -> LandCover:
    """Make the frame, compute the share of land, report it and draw the map.

    The folder `output` is made if it is missing; with `overwrite` the frame is made even if it
    exists. Raises ImportError if global-land-mask or matplotlib is not installed.
    """
    require("demo", "matplotlib")
    npz = find_mask()
    if npz is None:
        raise ImportError(
            "global-land-mask is not installed; install it with: pip install 'b2nd-dask[demo]'"
        )
    output.mkdir(parents=True, exist_ok=True)
    path, picture, map_path = (output / n for n in ("land.b2nd", "land.png", "land-map.b2nd"))
    if overwrite or not path.exists():
        click.echo("Writing the land mask as a frame ...")
        with progress("writing the land mask as a frame") as show:
            write_frame(land_bands(npz, CHUNK), path, CHUNK, show)
    click.echo(safe(f"{open_b2nd(path).info}\n"))
    click.echo("Computing the share of land by latitude and on a map of half degrees ...")
    with progress("computing the share of land") as show, tasks_shown(show):
        cover = LandCover(*compute(*land_cover(from_b2nd(path), CELL)))
    save_picture(cover, picture)
    to_b2nd(cover.map, map_path, mode="w", vlmeta={"units": "1", "cell": "half a degree"})
    click.echo(safe(f"Picture: {picture}\nThe map as a frame: {map_path}\n"))
    click.echo(describe_land(cover))
    return cover


def describe_land(cover: LandCover) -> str:
    """Compare the computed share of land with the known one and explain the difference."""
    antarctica = cover.share_south_of(-60) * EARTH_KM2
    with_shelves = cover.share + (ANTARCTICA_KM2 - antarctica) / EARTH_KM2
    return (
        f"Land, rows weighted by their area on the sphere: {cover.share:.2%} of the Earth.\n"
        f"Known answer: about {LAND_KM2 / EARTH_KM2:.1%} ({LAND_KM2 / 1e6:.1f} of "
        f"{EARTH_KM2 / 1e6:.1f} million km2, The World Factbook).\n"
        "Why it differs: the mask comes from the GLOBE elevation model, "
        "in which floating ice shelves are sea.\n"
        f"South of 60 S the mask has {antarctica / 1e6:.1f} million km2 of land; "
        f"Antarctica with its shelves has {ANTARCTICA_KM2 / 1e6:.1f}. "
        f"With the shelves the share is {with_shelves:.1%}.\n"
        "Lakes and the Caspian Sea are land in the mask."
    )


_FILE, _MEMBER = "globe_combined_mask_compressed.npz", "mask.npy"


def find_mask() -> Path | None:
    """Find the file of the mask; None if the package is not installed."""
    spec = importlib.util.find_spec("global_land_mask")
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin).with_name(_FILE)
    return path if path.is_file() else None


def land_bands(npz: Path, height: int) -> Iterator[NDArray[np.bool_]]:
    """Read the mask from north to south, `height` rows at a time, as True over land.

    The package stores one deflated ``mask.npy`` of 21600 x 43200 booleans, true over the ocean,
    made from the GLOBE elevation model: rows from 90 degrees north, columns from 180 degrees west,
    each 1/120 of a degree. Importing the package would put all 933 MB into memory.
    """
    with zipfile.ZipFile(npz) as archive, archive.open(_MEMBER) as stream:
        np.lib.format.read_magic(stream)
        shape, fortran, dtype = np.lib.format.read_array_header_1_0(stream)
        if len(shape) != 2 or fortran or dtype != np.bool_:
            raise ValueError(
                f"{npz}: expected a 2-d boolean array in C order, found shape {shape}, dtype "
                f"{dtype}; install global-land-mask 1.0"
            )
        rows, columns = shape
        for top in range(0, rows, height):
            raw = stream.read(min(height, rows - top) * columns)
            yield ~np.frombuffer(raw, np.bool_).reshape(-1, columns)


def write_frame(
    bands: Iterable[NDArray[np.bool_]], path: Path, chunk: int, show: Progress = lambda *_: None
) -> None:
    """Write bands of `chunk` rows as a frame with square chunks; memory holds one band.

    A chunk with only sea becomes a code in the index, a chunk with only land a repeated-value chunk
    of 33 bytes; only coasts are compressed. The complete frame gets its name at the end.
    """
    growing = path.with_name(path.name + ".part")
    growing.unlink(missing_ok=True)
    for number, band in enumerate(bands, 1):
        to_b2nd(band, growing, mode="a", append_axis=0, chunks=chunk)
        show(number, ROWS // chunk)
    growing.replace(path)


@click.command("demo", cls=Verb)
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    default="demo-output",
    show_default=True,
    help="Folder for the frame and the picture.",
)
@click.option("--overwrite", is_flag=True, help="Make the frame again if it exists.")
def demo_command(output: Path, overwrite: bool) -> None:
    """Compute how much of the Earth is land, out of core, from the real global land mask.

    Needs the extra "demo": pip install 'b2nd-dask[demo]'.

    \b
    Example:
      b2nd-dask demo --output /tmp/demo
    """
    run_demo(output.expanduser(), overwrite=overwrite)
