"""The documentation site: `tox run -e docs` builds it into build/docs."""

import sys
from pathlib import Path

import attncheck

sys.path.insert(0, str(Path(__file__).parent))

project = "attncheck"
author = "the attncheck developers"
copyright = f"{author}, MIT licence"
version = release = attncheck.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "numpydoc", "measured"]
html_theme = "furo"
html_title = f"attncheck {release}"
html_copy_source = False

# Mathematics between dollars.
myst_enable_extensions = ["dollarmath"]
# Links to headings, as GitHub makes them.
myst_heading_anchors = 3

# Docstrings are numpydoc; what they say of types and shapes is all that is shown.
default_role = "py:obj"
numpydoc_show_class_members = False
autodoc_typehints = "none"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
add_module_names = False
toc_object_entries_show_parents = "hide"

# A name with a dot must be found. Words of types, and names of arguments and fields, need not be links.
nitpicky = True
nitpick_ignore_regex = [("py:class", ".*"), ("py:obj", r"[^.]*")]
