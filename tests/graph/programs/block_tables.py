"""Lines that give functions to dask: of blocks, of lists of blocks, of Delayed values.

`tables` says what stands in the places of these templates.
"""

# ruff: noqa: E501 - a template stays in one line

from __future__ import annotations

from tests.graph.programs.tables import lines_of

#: Functions of blocks and of lists of blocks.
BLOCKS = {
    "keeps": lines_of("""
        {a}.map_blocks(fn.plus_one)   {a}.map_blocks(fn.reversed_rows)
        {a}.map_blocks(fn.array_type)
        {a}.map_blocks(fn.plus_one, dtype={a}.dtype, meta={a}._meta)
        {a}.map_blocks(fn.with_location, dtype={a}.dtype)
        {a}.map_blocks(fn.with_number, dtype={a}.dtype)
        {a}.map_blocks(fn.stacked_twice, new_axis=0, dtype={a}.dtype)
        da.blockwise(fn.first_of_blocks, {to}, {a}, {of}, dtype={a}.dtype)
        da.blockwise(fn.widths_of_blocks, {to}, {a}, {of}, dtype={a}.dtype)
        da.blockwise(fn.row_sums, {to}, {a}, {of}, concatenate=True, dtype={a}.dtype)
        da.apply_gufunc(fn.row_sums, '(i)->()', {a}.rechunk({{-1: -1}}), output_dtypes={a}.dtype)
        da.stack([da.from_delayed(b, {block}, {a}.dtype) for b in {a}.to_delayed().ravel()[:1]])
        da.from_delayed(dask.delayed(fn.plus_one)({a}.to_delayed().ravel()[0]), {block}, {a}.dtype)
    """),
    "grows": lines_of("""
        da.blockwise(fn.sum_of_blocks, {to}, {a}, {of}, dtype={a}.dtype)
        {a}.map_blocks(fn.doubled_sorted)
        da.blockwise(fn.sum_of_blocks, {to}, {a} * 2, {of}, concatenate=False, dtype={a}.dtype)
        {a}.map_blocks(fn.row_sums, drop_axis={a}.ndim - 1, dtype={a}.dtype)
    """),
}
#: Functions that write into an array that nothing else is made of.
IN_PLACE = lines_of("""
    {a}.map_blocks(fn.in_place_plus_one, dtype={a}.dtype, meta={a}._meta)
    {a}.map_blocks(fn.in_place_plus_one, dtype={a}.dtype, meta={a}._meta)
    {a}.map_blocks(fn.in_place_cleared, dtype={a}.dtype, meta={a}._meta)
    {a}.map_blocks(fn.in_place_cleared, dtype={a}.dtype, meta={a}._meta)
    {a}.map_blocks(fn.in_place_sorted, dtype={a}.dtype, meta={a}._meta)
    {a}.map_blocks(fn.in_place_flat, dtype={a}.dtype, meta={a}._meta)
    da.blockwise(fn.in_place_sum_of_blocks, {to}, {a}, {of}, dtype={a}.dtype, meta={a}._meta[..., 0])
    da.reduction({a}, fn.in_place_total, fn.total, axis={axes}, dtype={a}.dtype, meta={a}._meta)
""")
#: Each block with an array of one block of any length. The sums are of all its elements.
ONE_BLOCK = lines_of("""
    {a}.map_blocks(fn.plus_sum_of, {a}[:3].rechunk(-1), dtype={a}.dtype)
    {a}.map_blocks(fn.plus_sum_of, {a}.rechunk(-1), dtype={a}.dtype)
    {a}.map_blocks(fn.plus_sum_of, {a}.sum(axis={axes}).rechunk(-1), dtype={a}.dtype)
    {a}.map_blocks(fn.plus_sum_of, {a}.max(), dtype={a}.dtype)
    {a}.map_blocks(fn.plus_sum_of, {a}[..., -1].ravel().rechunk(-1), dtype={a}.dtype)
    {a}.map_blocks(fn.plus_sum_of, ({a} * 2)[1:].rechunk(-1), dtype={a}.dtype)
    ({a} + 1).map_blocks(fn.plus_sum_of, {a}[{slices}].rechunk(-1), dtype={a}.dtype)
    {a}.map_blocks(fn.plus_sum_of, da.arange(5, chunks=-1), dtype={a}.dtype)
    {a}.map_blocks(fn.plus_sum_of, da.from_array(np.array([2, 1, 1])), dtype={a}.dtype)
    {a}.map_blocks(fn.plus_sum_of, da.from_array(np.array([2])), dtype={a}.dtype)
    {a}.map_blocks(fn.plus_sum_of, da.from_array(np.array(2)), dtype={a}.dtype)
    {a}.map_blocks(np.add, da.ones(1))   {a}.map_blocks(np.add, da.full((), 2))
    {a}.map_blocks(np.add, da.ones((1,) * {a}.ndim))
    {a}.map_blocks(np.add, {a}[..., :1])   {a}.map_blocks(np.add, {a}[..., :1].max())
    da.map_blocks(fn.plus_sum_of, {a}.rechunk(-1), {a}[:3].rechunk(-1), dtype={a}.dtype)
    da.map_blocks(fn.plus_sum_of, {a}.rechunk(-1), {a}.ravel().rechunk(-1), dtype={a}.dtype)
    da.map_blocks(fn.plus_sum_of, {a}[:1].rechunk(-1), {a}, dtype={a}.dtype)
    da.map_blocks(fn.sum_with_rows_of, {a}[:3].rechunk(-1), {a}, dtype={a}.dtype, chunks={a}.chunks)
    da.blockwise(fn.plus_sum_of, {of}, {a}, {of}, {a}[:3].rechunk(-1), {of}, align_arrays=False, dtype={a}.dtype)
    da.blockwise(fn.plus_sum_of, {of}, {a}, {of}, {a}.ravel().rechunk(-1), 'z', concatenate=True, dtype={a}.dtype)
    da.blockwise(fn.plus_sum_of, {of}, {a}, {of}, da.arange(5, chunks=2), 'z', concatenate=True, dtype={a}.dtype)
    da.blockwise(fn.plus_sum_of, {of}, {a}, {of}, {a}.sum(), '', dtype={a}.dtype)
    da.blockwise(fn.plus_sum_of, {of}, {a}, {of}, {a}.sum(axis={axes}), None, dtype={a}.dtype)
    da.blockwise(fn.blocks_and_sum, {of}, {a}, {of}, {a}.rechunk(-1)[:1], {of}, 2, None, align_arrays=False, dtype={a}.dtype)
    {a}.map_blocks(fn.plus_sum_of, {a}[:3].rechunk(-1), dtype={a}.dtype)[{index}]
    {a}.map_blocks(fn.plus_sum_of, {a}[1:3].rechunk(-1), dtype={a}.dtype).sum(axis={axes})
""")
#: The same by functions that are recognised, with a block that fits each.
FITTING_BLOCK = lines_of("""
    (lambda x: x.map_blocks(np.add, x.blocks[(0,) * x.ndim]))(fn.whole_blocks({a}))
    (lambda x: x.map_blocks(np.add, x.blocks[(-1,) * x.ndim])[{index}])(fn.whole_blocks({a}))
    (lambda x: x.map_blocks(np.add, x.blocks[(0,) * x.ndim])[{slices}])(fn.whole_blocks({a}))
    (lambda x: x.map_blocks(np.add, x.blocks[(0,) * x.ndim]).sum(axis={axes}))(fn.whole_blocks({a}))
    (lambda x: x.map_blocks(np.maximum, (x * 2).blocks[(0,) * x.ndim]).max(axis={axes}))(fn.whole_blocks({a}))
    (lambda x: (x + 1).map_blocks(np.multiply, x.blocks[(0,) * x.ndim])[{index}])(fn.whole_blocks({a}))
    (lambda x: da.map_blocks(np.subtract, x.blocks[(0,) * x.ndim], x, chunks=x.chunks, dtype=x.dtype))(fn.whole_blocks({a}))
    (lambda x: x.map_blocks(np.add, x.blocks[-1]))(fn.whole_blocks({a}))
    (lambda x: x.map_blocks(np.add, x.blocks[..., -1])[{index}])(fn.whole_blocks({a}))
    (lambda x: x.map_blocks(np.add, x.blocks[0]).sum(axis={axes}))(fn.whole_blocks({a}))
    (lambda x: x.map_blocks(np.add, da.arange(x.chunks[-1][0], chunks=-1)))(fn.whole_blocks({a}))
    (lambda x: x.map_blocks(np.multiply, da.arange(x.chunks[-1][0], chunks=-1))[{slices}])(fn.whole_blocks({a}))
    (lambda x: x.map_blocks(np.add, da.arange(x.chunks[-1][0], chunks=-1)).sum(axis={axes}))(fn.whole_blocks({a}))
    (lambda x: x.map_blocks(np.add, np.arange(x.chunks[-1][0]))[{index}])(fn.whole_blocks({a}))
    (lambda x: x.map_blocks(np.where, x.blocks[(0,) * x.ndim], x.blocks[(-1,) * x.ndim], dtype=x.dtype)[{index}])(fn.whole_blocks({a}))
    (lambda x: x.map_blocks(np.add, x.blocks[(0,) * x.ndim][..., :1]).max(axis={axes}))(fn.whole_blocks({a}))
    (lambda x: x.map_blocks(np.add, x.blocks[(0,) * x.ndim][-1:])[{slices}])(fn.whole_blocks({a}))
    (lambda x: x.map_blocks(np.add, x.blocks[(0,) * x.ndim].max(axis=0))[{index}])(fn.whole_blocks({a}))
    (lambda x: da.blockwise(np.add, {of}, x, {of}, x.blocks[(0,) * x.ndim], {of}, align_arrays=False, dtype=x.dtype)[{slices}])(fn.whole_blocks({a}))
    (lambda x: da.blockwise(np.add, {of}, x, {of}, x.blocks[(0,) * x.ndim], {of}, align_arrays=False, dtype=x.dtype).sum(axis={axes}))(fn.whole_blocks({a}))
    (lambda x: da.blockwise(np.add, {of}, x, {of}, x.blocks[(0,) * x.ndim][0], {of}[1:], align_arrays=False, dtype=x.dtype)[{index}])(fn.whole_blocks({a}))
    {a}.map_blocks(np.add, {a}[..., :1].rechunk(-1))   {a}.map_blocks(np.add, {a}.max())[{index}]
    {a}.map_blocks(np.add, {a}.rechunk(-1)[(slice(1),) * {a}.ndim])[{index}]
    {a}.map_blocks(np.add, {a}.rechunk(-1)[(slice(1),) * {a}.ndim]).sum(axis={axes})
    {a}.map_blocks(np.add, {a}.ravel()[:1])[{slices}]   {a}.map_blocks(np.add, {a}.ravel()[0])[{index}]
""")
FITTING_BLOCK_OF_PAIR = lines_of("""
    (lambda x: x.map_blocks(np.add, {b}[tuple(slice(c[0]) for c in x.chunks)].rechunk(-1))[{index}])(fn.whole_blocks({a}))
    (lambda x: x.map_blocks(np.add, {b}[tuple(slice(c[0]) for c in x.chunks)].rechunk(-1)).sum(axis={axes}))(fn.whole_blocks({a}))
    (lambda x: x.map_blocks(np.maximum, {b}[..., : x.chunks[-1][0]][-1:].rechunk(-1))[{slices}])(fn.whole_blocks({a}))
    {a}.map_blocks(np.add, {b}.max())[{index}]   {a}.map_blocks(np.add, {b}.ravel()[:1]).sum(axis={axes})
""")
#: The same of two arrays.
ONE_BLOCK_OF_PAIR = lines_of("""
    {a}.map_blocks(fn.plus_sum_of, {b}.rechunk(-1), dtype={a}.dtype)
    {a}.map_blocks(fn.plus_sum_of, {b}[:3].rechunk(-1), dtype={a}.dtype)
    {a}.rechunk(-1).map_blocks(fn.plus_sum_of, {b}.rechunk(-1), dtype={a}.dtype)
    {a}.map_blocks(fn.plus_sum_of, {b}.ravel()[:1], dtype={a}.dtype)
    {a}.map_blocks(fn.plus_sum_of, {b}.max(), dtype={a}.dtype).sum(axis={axes})
    da.blockwise(fn.plus_sum_of, {of}, {a}, {of}, {b}.ravel().rechunk(-1), 'z', concatenate=True, dtype={a}.dtype)
    da.blockwise(fn.plus_sum_of, {of}, {a}, {of}, {b}.ravel(), 'z', concatenate=True, dtype={a}.dtype)
""")
#: Functions that get the position of their block.
BLOCK_INFO = lines_of("""
    {a}.map_blocks(fn.with_place, dtype={a}.dtype)
    {a}.map_blocks(fn.with_location, dtype={a}.dtype)
    {a}.map_blocks(fn.with_number, dtype={a}.dtype)
    {a}.rechunk({target}).map_blocks(fn.with_place, dtype={a}.dtype)
    {a}.rechunk({target}).map_blocks(fn.with_number, dtype={a}.dtype)
    {a}[{slices}].map_blocks(fn.with_place, dtype={a}.dtype)
    {a}[{index}].map_blocks(fn.with_location, dtype={a}.dtype)
    {a}.T.map_blocks(fn.with_place, dtype={a}.dtype)
    ({a} * 2 + 1)[{slices}].map_blocks(fn.with_place, dtype={a}.dtype)
    ({a} + 1).rechunk({target}).map_blocks(fn.with_number, dtype={a}.dtype)
    (-{a}.T).map_blocks(fn.with_number, dtype={a}.dtype)
    {a}.map_blocks(fn.with_place, dtype={a}.dtype).sum(axis={axes})
    {a}.rechunk({target}).map_blocks(fn.with_place, dtype={a}.dtype).max(axis={axes})
    {a}[::2].map_blocks(fn.with_number, dtype={a}.dtype).sum(axis={axes})
    ({a} - 1)[{slices}].T.map_blocks(fn.with_place, dtype={a}.dtype).sum(axis={axes})
    {a}.map_blocks(fn.with_place, dtype={a}.dtype)[{index}]
    {a}.map_blocks(fn.with_number, dtype={a}.dtype)[{slices}]
    {a}.map_blocks(fn.with_both_places, {a}.rechunk(-1), dtype={a}.dtype)
    {a}.map_blocks(fn.with_both_places, {a}.sum(), dtype={a}.dtype)
    {a}.map_blocks(fn.plus_one).map_blocks(fn.with_place, dtype={a}.dtype)
    {a}.map_blocks(fn.stacked_twice, new_axis=0, dtype={a}.dtype).map_blocks(fn.with_place, dtype={a}.dtype)
    ({a} - {a}.min()).map_blocks(fn.with_place, dtype={a}.dtype)
""")
#: Axes that are exchanged, new, contracted, or of other lengths.
BLOCKWISE = lines_of("""
    da.blockwise(fn.transposed, {of}[::-1], {a}, {of}, dtype={a}.dtype)
    da.blockwise(fn.transposed, {of}[::-1], {a} * 2, {of}, dtype={a}.dtype)[{cut}:]
    da.blockwise(fn.transposed, {of}[::-1], {a}[{slices}], {of}, dtype={a}.dtype).sum(axis={axes})
    da.blockwise(fn.plus_transposed, {of}, {a}, {of}, {a}.T, {of}[::-1], dtype={a}.dtype)
    da.blockwise(fn.plus_transposed, {of}, {a}, {of}, {a}.T.rechunk(2), {of}[::-1], dtype={a}.dtype)
    da.blockwise(fn.plus_transposed, {of}, {a}, {of}, {a}.T + 1, {of}[::-1], dtype={a}.dtype).sum(axis={axes})
    da.blockwise(fn.plus_transposed, 'ab', {a}[:3, :3], 'ab', {a}[:3, :3], 'ba', dtype={a}.dtype)
    da.blockwise(fn.stacked_last, {of} + 'z', {a}, {of}, new_axes={{'z': 2}}, dtype={a}.dtype)
    da.blockwise(fn.stacked_twice, 'z' + {of}, {a} + 1, {of}, new_axes={{'z': 2}}, dtype={a}.dtype)
    da.blockwise(fn.stacked_twice, 'z' + {of}, {a}, {of}, new_axes={{'z': (2, 2)}}, dtype={a}.dtype)
    da.blockwise(fn.stacked_last, {of} + 'z', {a}, {of}, new_axes={{'z': 2}}, dtype={a}.dtype).sum(axis=0)
    da.blockwise(fn.column_sums, {of}[1:], {a}, {of}, concatenate=True, dtype={a}.dtype)
    da.blockwise(fn.column_sums, {of}[1:], {a}.rechunk({target}), {of}, concatenate=True, dtype={a}.dtype)
    da.blockwise(fn.row_sums, {of}[:-1], {a}[{slices}], {of}, concatenate=True, dtype={a}.dtype)
    da.blockwise(fn.dot_of_blocks, 'ac', {a}, 'ab', {a}.T, 'bc', concatenate=True, dtype={a}.dtype)
    da.blockwise(fn.dot_of_lists, 'ac', {a}, 'ab', {a}.T * 2, 'bc', dtype={a}.dtype)
    (lambda x: da.blockwise(fn.dot_of_blocks, 'ac', x + 1, 'ab', x.T.rechunk(2), 'bc', concatenate=True, dtype=x.dtype))({a}.reshape({n}, -1))
    (lambda x: da.blockwise(fn.dot_of_lists, 'ac', x, 'ab', x.T, 'bc', dtype=x.dtype))({a}.reshape({n}, -1))
    da.blockwise(fn.repeated_rows, {of}, {a}, {of}, adjust_chunks={{'a': lambda n: 2 * n}}, dtype={a}.dtype)
    da.blockwise(fn.repeated_rows, {of}, {a} * 2, {of}, adjust_chunks={{'a': lambda n: 2 * n}}, dtype={a}.dtype)[{cut}:]
    da.blockwise(fn.first_rows, {of}, {a}, {of}, adjust_chunks={{'a': lambda n: min(n, 1)}}, dtype={a}.dtype)
    da.blockwise(fn.first_rows, {of}, {a}[{slices}], {of}, adjust_chunks={{'a': lambda n: min(n, 1)}}, dtype={a}.dtype)
    da.blockwise(np.multiply.outer, {of} + 'z', {a}, {of}, da.arange(3, chunks=2), 'z', dtype={a}.dtype)
    da.blockwise(np.multiply.outer, {of} + 'z', {a}, {of}, {a}[..., 0].ravel()[:4], 'z', dtype={a}.dtype)
    da.blockwise(fn.blocks_and_sum, {of}, {a}, {of}, {a}.rechunk({target}), {of}, 2, None, dtype={a}.dtype)
    da.blockwise(fn.sum_of_blocks, {of}[1:], {a}.T, {of}[::-1], dtype={a}.dtype)
    da.blockwise(np.transpose, {of}[::-1], {a}, {of}, dtype={a}.dtype)[{cut}:]
    da.blockwise(np.transpose, {of}[::-1], {a} + 1, {of}, dtype={a}.dtype).sum(axis={axes})
    (lambda x: da.blockwise(np.add, 'ab', x, 'ab', x, 'ba', dtype=x.dtype))(fn.square({a}))
    (lambda x: da.blockwise(np.add, 'ab', x, 'ab', x, 'ba', dtype=x.dtype)[1:, ::2])(fn.square({a}))
    (lambda x: da.blockwise(np.subtract, 'ab', x + 1, 'ab', x, 'ba', dtype=x.dtype)[{cut}:].sum(axis=0))(fn.square({a}))
    (lambda x: da.blockwise(np.negative, 'ba', x, 'ab', dtype=x.dtype)[1:])(fn.square({a}))
    (lambda x: da.blockwise(np.add, 'ba', x, 'ab', 1, None, dtype=x.dtype).sum(axis=1))(fn.square({a}))
    (lambda x: da.blockwise(np.add, 'ab', x, 'ab', x[0], 'a', dtype=x.dtype)[1:])(fn.square({a}))
    (lambda x: da.blockwise(np.add, 'ab', x, 'ab', x[:, 0], 'b', dtype=x.dtype).max(axis=0))(fn.square({a}))
    da.blockwise(np.sum, {of}[:-1], {a}, {of}, axis=-1, concatenate=True, dtype={a}.dtype)
    da.blockwise(np.max, {of}[1:], {a} * 2, {of}, axis=0, concatenate=True, dtype={a}.dtype)
    da.blockwise(np.expand_dims, {of} + 'z', {a}, {of}, axis=-1, new_axes={{'z': 1}}, dtype={a}.dtype)[{cut}:]
    da.blockwise(np.expand_dims, 'z' + {of}, -{a}, {of}, axis=0, new_axes={{'z': 1}}, dtype={a}.dtype).sum(axis={axes})
    {a}.map_blocks(np.max, axis=-1, keepdims=True, chunks=(*{a}.chunks[:-1], (1,) * {a}.numblocks[-1]), dtype={a}.dtype)
    {a}.map_blocks(np.max, axis=0, keepdims=True, chunks=((1,) * {a}.numblocks[0], *{a}.chunks[1:]), dtype={a}.dtype)[{cut}:]
    {a}.map_blocks(np.max, axis=0, keepdims=True, chunks=((1,) * {a}.numblocks[0], *{a}.chunks[1:]), dtype={a}.dtype).sum(axis={axes})
    {a}.map_blocks(np.sum, axis=-1, drop_axis={a}.ndim - 1, dtype={a}.dtype)
    {a}.map_blocks(np.flip, axis=0)[{slices}]   {a}.map_blocks(np.cumsum, axis=0, dtype={a}.dtype)[{index}]
    {a}.map_blocks(np.expand_dims, axis=0, new_axis=0)[{index}]   {a}.map_blocks(np.roll, 1, axis=0)[{slices}]
""")
#: Delayed in between. "bins": counts, or sums of weights, of elements by their values.
DELAYED = {
    "bins": lines_of("""
        da.histogram({a}, bins=4, range=[{a}.min(), {a}.max()])[0]
        da.histogram({a}, bins=4, range=[{a}.min(), {a}.max()])[1]
        da.histogram({a} * 2, bins=4, range=[{a}.min(), 9])[0]
        da.histogram({a}[1:], bins=5, range=[{a}.min(), {a}.max()])[0]
        da.histogram({a}, bins=3, range=(-4, 4), weights=abs({a}))[0]
        da.histogram({a}, bins=3, range=[-3, 3], density=True)[0]
        da.histogram({a}, bins=3, range=[{a}.min(), {a}.max()], weights={a} * 2, density=True)[0]
        da.histogram({a}.rechunk({target}), bins=[-4, 0, 1, 4])[0]
        da.histogram({a}, bins=da.arange(6, chunks=3) - 2)[0]
        da.histogram({a}.rechunk({target}), bins=3, range=(-4, 4), weights=({a} + 1).rechunk({target}))[0]
    """),
    "sums": lines_of("""
        da.from_delayed(dask.delayed(fn.doubled)({a}.sum()), (), {a}.sum().dtype)
        da.from_delayed(dask.delayed(fn.doubled)({a}.sum(axis=0)), {a}.shape[1:], {a}.sum().dtype)
        da.from_delayed(dask.delayed(sum)([{a}.sum(), {a}.max()]), (), {a}.sum().dtype)
        da.from_delayed(dask.delayed(fn.plus_sum_of)({a}, {a}.max()), {a}.shape, {a}.dtype)
        da.from_delayed(dask.delayed(fn.plus_sum_of)({a}[1:], {a}), {a}[1:].shape, {a}.dtype)
        {a} + da.from_delayed(dask.delayed(fn.doubled)({a}.max()), (), {a}.dtype)
        {a} - da.from_delayed(dask.delayed(fn.doubled)({a}.sum(axis=0)), {a}.shape[1:], {a}.dtype)
        ({a} + da.from_delayed(dask.delayed(fn.doubled)({a}.min()), (), {a}.dtype)).sum(axis={axes})
    """),
    "keeps": lines_of("""
        fn.reassembled({a}, da)   fn.reassembled({a} + 1, da)   fn.reassembled({a}.T, da)
        fn.reassembled(({a} + 1)[{slices}], da)   fn.reassembled({a}.rechunk({target}), da)
        fn.reassembled({a}, da, optimize_graph=False)   fn.reassembled(-{a}, da)[{index}]
        da.concatenate([da.from_delayed(d, {block}, {a}.dtype) for d in {a}.to_delayed().ravel()[[0, 0]]])
        fn.stored({a}, da)   fn.stored({a}[{slices}], da)   fn.stored({a}.rechunk({target}), da)
        fn.stored({a} - {a}.min(), da)   fn.stored_again({a}, da)   fn.stored_again(-{a}[{slices}], da)
        fn.stored_later({a}, da)   fn.stored_later(({a} + 1).T, da)
        da.from_array(np.asarray({a}[{slices}]))
    """),
}
