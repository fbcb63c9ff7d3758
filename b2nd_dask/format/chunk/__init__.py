"""One compressed chunk: its header, parsed and checked at once; coding; some of its blocks.

`chunk_header` makes the only `ChunkHeader`s there are, and `codec` and `blocks` take nothing else.
`compression` says how chunks are compressed, and what python-blosc2 would choose.
Imports `errors` alone; `blosc2` is called in `codec` and `compression` only.
"""
