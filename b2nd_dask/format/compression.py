"""How the chunks of a frame are compressed."""

from __future__ import annotations

from dataclasses import dataclass


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
