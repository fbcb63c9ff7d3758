"""How frames and plans look in a notebook: HTML with a drawing of the chunks, without JavaScript.

`pages` makes the pages, which classes of the layers below name in their `_repr_html_`, `style` what
they share. Nothing of these raises: what cannot be shown says why. All text that comes from a file
is escaped where it is put into HTML, by `style` and `draw_chunks` alone. `chunk_values` and `cells`
are what maps of chunks show: here, in a terminal and in plots.
"""
