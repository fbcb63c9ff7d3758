"""Settings of Sphinx. To build the site: sphinx-build -W --keep-going -n -b html docs build/site.

Nothing is fetched: neither inventories of other projects nor fonts or scripts.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

import b2nd_dask

project = "b2nd_dask"
author = "the b2nd_dask developers"
project_copyright = author
version = release = b2nd_dask.__version__

extensions = [
    "myst_nb",
    "repository_pages",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "sphinx_design",
]
exclude_patterns = ["_*"]
templates_path = ["_templates"]
# `name` in a docstring is a link where it is a public name, else a parameter
default_role = "autolink"
# names of other projects are no links; ours must be there
nitpick_ignore_regex = [(r"py:.*", r"(?!b2nd_dask\b).*")]

# a word such as `path` that is an attribute of several classes: no link, and no fault
suppress_warnings = ["ref.python"]

myst_enable_extensions = ["attrs_block", "attrs_inline", "colon_fence", "deflist"]
myst_heading_anchors = 4
# executing the notebooks takes minutes: -D nb_execution_mode=cache does
nb_execution_mode = "off"
nb_execution_timeout = 600
nb_execution_raise_on_error = True
# widgets would be loaded from other hosts
nb_ipywidgets_js = {}

autodoc_typehints = "none"
autodoc_member_order = "groupwise"
autosummary_generate = True
add_module_names = False
napoleon_google_docstring = False
napoleon_use_rtype = False
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
copybutton_only_copy_prompt_lines = True

html_theme = "pydata_sphinx_theme"
html_title = "b2nd_dask"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_favicon = "_static/logo.svg"
html_show_sourcelink = False
html_copy_source = False
html_show_sphinx = False
# without it the theme writes an error to the console
html_context = {"default_mode": "auto"}
html_theme_options = {
    "logo": {
        "image_light": "_static/logo.svg",
        "image_dark": "_static/logo.svg",
        "text": "b2nd_dask",
        "alt_text": "b2nd_dask, to the start page",
    },
    "header_links_before_dropdown": 5,
    "navbar_align": "left",
    "show_prev_next": True,
    "show_toc_level": 2,
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": [],
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
    "back_to_top_button": False,
}
html_sidebars = {"index": [], "comparison": [], "changelog": []}
