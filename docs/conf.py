"""Settings of the site; `docs/site/build.py` collects its pages and calls Sphinx."""

import os
import re
import sys
from importlib.metadata import version as installed_version
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

project = "jaxmarl_echelon"
author = "jaxmarl_echelon contributors"
release = installed_version(project)
extensions = ["sphinx.ext.autodoc", "sphinx.ext.napoleon", "myst_nb"]
root_doc = "index"
html_theme = "furo"
html_title = f"{project} {release}"
html_static_path = ["site/static"]
html_css_files = ["style.css"]
html_show_sphinx = False

# Anchors as GitHub gives them, so that links between pages work in both places.
myst_heading_anchors = 6
myst_enable_extensions = ["dollarmath"]
# Executing takes minutes: `make docs EXECUTE=force`.
nb_execution_mode = os.environ.get("JAXMARL_DOCS_EXECUTE", "off")
nb_execution_timeout = 1800
nb_execution_raise_on_error = True

# Docstrings mark code with single backticks.
default_role = "code"
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_class_signature = "separated"
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
napoleon_google_docstring = True
napoleon_numpy_docstring = False
# Attributes are listed as a field, not as objects, since some are defined again as properties.
napoleon_use_ivar = True
napoleon_preprocess_types = False
suppress_warnings = ["config.cache"]

# Names that no page defines, though a signature or a docstring uses them. The build needs no network, so
# there are no inventories of other libraries; of the project the reference has the front door only.
nitpick_ignore_regex = [
    (r"py:.*", r"(jax|jnp|np|numpy|flax|optax|omegaconf|distrax|collections|typing|pathlib)\b.*"),
    (r"py:.*", r"(matplotlib|PIL|chex|struct|functools|types|scipy|rich|Array|ndarray|DictConfig)\b.*"),
    # Python's own types and errors, aliases and type variables.
    (
        r"py:.*",
        r"[A-Za-z]+(Error|Warning)|[a-z]+|[A-Z]|optional|Path|Any|Callable|Mapping|Sequence|NamedTuple",
    ),
    (r"py:.*", r"(jaxmarl_echelon|algos|physics)\..*"),
]

PAGES = re.compile(r"docs/(reference/)?(\w+)\.md")


def link_pages(app, what, name, obj, options, lines):
    """Turns names of pages in docstrings, such as `docs/reference/f110.md 8.1`, into links."""
    del app, what, name, obj, options
    lines[:] = [PAGES.sub(r":doc:`docs/\1\2.md </docs/\1\2>`", line) for line in lines]


def skip_member(app, what, name, obj, skip, options):
    """Skips what Python or flax added to a class: fields of named tuples, and `replace`."""
    del app, what, options
    documented = str(getattr(obj, "__doc__", "") or "")
    generated = documented.startswith(("Alias for field number", "Returns a new object replacing"))
    return True if generated or name == "replace" else skip


def setup(app):
    """Connects the functions above."""
    app.connect("autodoc-process-docstring", link_pages)
    app.connect("autodoc-skip-member", skip_member)
