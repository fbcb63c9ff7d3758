"""The same compression as options of each library, always with the shuffle filter."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class Compression:
    codec: Literal["zstd", "lz4"]
    clevel: int

    @property
    def name(self) -> str:
        return f"{self.codec}-{self.clevel}"

    def blosc2_params(self, **others: Any) -> dict[str, Any]:
        import blosc2

        codec = blosc2.Codec[self.codec.upper()]
        return {
            "codec": codec,
            "clevel": self.clevel,
            "filters": [blosc2.Filter.SHUFFLE],
            **others,
        }

    def zarr_codec(self, itemsize: int, blocksize: int) -> Any:
        """Sizes in bytes."""
        from zarr.codecs import BloscCodec

        return BloscCodec(
            cname=self.codec,
            clevel=self.clevel,
            shuffle="shuffle",
            typesize=itemsize,
            blocksize=blocksize,
        )

    def hdf5_filter(self) -> Any:
        """C-Blosc2 chooses the size of blocks, which the filter cannot set."""
        import hdf5plugin

        return hdf5plugin.Blosc2(
            cname=self.codec, clevel=self.clevel, filters=hdf5plugin.Blosc2.SHUFFLE
        )


ZSTD = Compression("zstd", 1)
LZ4 = Compression("lz4", 5)
COMPRESSIONS = (ZSTD, LZ4)
