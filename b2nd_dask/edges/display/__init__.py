"""Frames and plans in notebooks: HTML with a drawing of the chunks, without JavaScript.

`pages` makes the pages for `_repr_html_` of classes in lower layers, from the elements of `style`.
A page never raises: a part that cannot be shown is replaced by its error. Only `style` and `pages`
insert text into HTML, and escape it there. `chunk_values` prepares the maps of chunks here, in a
terminal and in plots.
"""
