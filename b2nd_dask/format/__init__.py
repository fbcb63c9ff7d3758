"""The bytes of a Blosc2 frame: pure functions between bytes and typed, immutable values. No I/O.

A module for each part of a frame (`header`, `metalayers`, `array_meta`, `index`, `trailer`), one
for its `grid`, `integrity` and `statistics` of what a frame says of each chunk, and the folder
`chunk`; docs/format.md describes the bytes.
`parse_*` reads and checks, `build_*` writes. Only `errors` may be imported; `graph` imports `grid`
alone, and gets everything else through `frame`.
"""
