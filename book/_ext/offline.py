"""A book that asks nobody for anything, neither on the web nor on a disk.

Jupyter Book always loads ``sphinx_thebe``, which names a script on the web on every page; here its
hooks are taken off again. A page opened from a disk may not read other pages, so the search lists
its results there without an excerpt of each. The template ``layout.html`` does the rest.
"""

from sphinx.application import Sphinx

FROM_DISK = 'if (location.protocol === "file:") DOCUMENTATION_OPTIONS.SHOW_SEARCH_SUMMARY = false;'


def setup(app: Sphinx) -> dict[str, bool]:
    """Called by Sphinx."""
    app.setup_extension("sphinx_thebe")
    for hooks in app.events.listeners.values():
        hooks[:] = [hook for hook in hooks if hook.handler.__module__ != "sphinx_thebe"]
    styles = app.registry.css_files
    styles[:] = [style for style in styles if style[0] != "sphinx-thebe.css"]
    app.add_js_file(None, body=FROM_DISK)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
