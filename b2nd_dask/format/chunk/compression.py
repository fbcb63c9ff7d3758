"""How the chunks of a frame are compressed."""

from __future__ import annotations

from dataclasses import dataclass

#: NDLZ and ZFP compress cells of the array: they need its shape, which a bare chunk does not carry.
SHAPED_CODECS = frozenset({32, 33, 34, 35})
#: NDCELL and NDMEAN, likewise.
SHAPED_FILTERS = frozenset({32, 33})
#: DELTA, which takes block 0 of what is decoded as its reference (docs/format.md, Chunk body).
DELTA_FILTER = 3


@dataclass(frozen=True, slots=True)
class Compression:
    """How chunks are compressed, by ids of `blosc2.Codec`, `Filter` and `SplitMode`."""

    codec: int
    clevel: int
    filters: tuple[int, ...]
    filters_meta: tuple[int, ...] = (0,) * 6
    splitmode: int = 3
    codec_meta: int = 0
    use_dict: bool = False

    @property
    def needs_shape(self) -> bool:
        """Whether coding a chunk needs the shapes of the array."""
        return self.codec in SHAPED_CODECS or not SHAPED_FILTERS.isdisjoint(self.filters)
