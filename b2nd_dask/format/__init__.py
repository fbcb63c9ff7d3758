"""The bytes of a Blosc2 frame: pure functions between bytes and typed, immutable values. No I/O."""
