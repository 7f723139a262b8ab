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
html_copy_source = False
html_theme_options = {"top_of_page_buttons": []}

# Anchors as GitHub gives them, so that links between pages work in both places.
myst_heading_anchors = 6
myst_enable_extensions = ["dollarmath"]
# Executing takes minutes: `make docs EXECUTE=force`.
nb_execution_mode = os.environ.get("JAXMARL_DOCS_EXECUTE", "off")
nb_execution_timeout = 1800
nb_execution_raise_on_error = True

# Docstrings mark code with single backticks.
default_role = "code"
# Pages of the reference list their modules only; with all objects every page takes a sixth longer to write.
toc_object_entries = False
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
napoleon_google_docstring = True
napoleon_numpy_docstring = False
# Attributes are listed as a field, not as objects, since some are defined again as properties.
napoleon_use_ivar = True
# What is returned is described in a sentence, whose beginning is no type.
napoleon_use_rtype = False
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
    # Tuples of any length, whose type Sphinx cuts at the comma.
    (r"py:.*", r"tuple\[\w+"),
]

PAGES = re.compile(r"docs/(reference/)?(\w+)\.md")
# An inline code that a letter follows, and a bar outside of code, which reStructuredText reads as markup.
PLURAL = re.compile(r"(`[^`]+`)(?=\w)")
BAR = re.compile(r"(`[^`]*`)|\|")
# Several names before one explanation; the commas would make types of all but the last.
NAMES = re.compile(r"^:(?:ivar|param) [^:]*:")


def read_markup(app, what, name, obj, options, lines):
    """Escapes what docstrings do not mean as markup, before napoleon reads them."""
    del app, what, name, obj, options
    text = PLURAL.sub(r"\1\\ ", "\n".join(lines))
    lines[:] = BAR.sub(lambda found: found[1] or r"\|", text).split("\n")


def link_pages(app, what, name, obj, options, lines):
    """Completes what napoleon made of a docstring.

    Names of pages, such as `docs/reference/f110.md 8.1`, become links. The first line of a property is a
    sentence, of which napoleon makes a type where it has a colon.
    """
    del app, name, obj, options
    if what == "property":
        types = [line.removeprefix(":type: ") for line in lines if line.startswith(":type: ")]
        lines[:] = [line for line in lines if not line.startswith(":type: ")]
        lines[0] = f"{types[0]}: {lines[0]}" if types else lines[0]
    lines[:] = [NAMES.sub(lambda found: found[0].replace(", ", ","), line) for line in lines]
    lines[:] = [PAGES.sub(r":doc:`docs/\1\2.md </docs/\1\2>`", line) for line in lines]


def skip_member(app, what, name, obj, skip, options):
    """Skips what Python or flax added to a class: fields of named tuples, and `replace`."""
    del app, what, options
    documented = str(getattr(obj, "__doc__", "") or "")
    generated = documented.startswith(("Alias for field number", "Returns a new object replacing"))
    return True if generated or name == "replace" else skip


def setup(app):
    """Connects the functions above."""
    app.connect("autodoc-process-docstring", read_markup, priority=100)
    app.connect("autodoc-process-docstring", link_pages, priority=900)
    app.connect("autodoc-skip-member", skip_member)
