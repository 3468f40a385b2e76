"""A light book: of MathJax and Font Awesome only what its pages use.

MathJax comes with ``sphinx-mathjax-offline``, which would copy twenty times what a page loads. The
theme's Font Awesome draws about twenty icons with a script of 1.5 MB; here a style sheet does,
with a font that holds these icons only.
"""

import base64
import io
import re
import shutil
from importlib.util import find_spec
from pathlib import Path

from fontTools.subset import Options, Subsetter
from fontTools.ttLib import TTFont
from sphinx.application import Sphinx

MATHJAX = (
    "startup.js",
    "core.js",
    "input/tex.js",
    "output/chtml.js",
    "output/chtml/fonts",
    "a11y/assistive-mml.js",
)
# What no page loads: the maps of minified scripts, the theme's words in languages other than ours.
UNUSED = ("vendor", "locales", "scripts/*.map", "styles/*.map", "scripts/*.txt", "sphinx-thebe.*")
ICONS = """
:root { --fa-font-solid: normal 900 1em/1 "Font Awesome 6 Free"; }
@font-face {
  font-family: "Font Awesome 6 Free";
  font-weight: 900;
  src: url(data:font/woff;base64,%s) format("woff");
}
.fa-solid, .fas { display: inline-block; font: var(--fa-font-solid); text-rendering: auto; }
.fa-lg { font-size: 1.25em; line-height: 0.05em; vertical-align: -0.075em; }
"""


def copy_mathjax(static: Path) -> None:
    """Copy the parts of MathJax that ``mathjax3_config`` loads, and its fonts."""
    (package,) = find_spec("sphinx-mathjax-offline").submodule_search_locations
    for name in MATHJAX:
        source, target = Path(package, "static/mathjax", name), static / "mathjax" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, dirs_exist_ok=True)
        else:
            shutil.copy(source, target)


def icon_styles(names: set[str], codes: set[int], vendor: Path) -> str:
    """The style sheet of some icons of Font Awesome, by name or by code, with their font."""
    sheet = (vendor / "css/all.min.css").read_text()
    rules = re.findall(r'([^{}]*:before){content:"\\([0-9a-f]+)"', sheet)  # names in a row, code
    by_name = {
        name: code for row, code in rules for name in re.findall(r"\.fa-([a-z0-9-]+):before", row)
    }
    used = {name: by_name[name] for name in sorted(names & set(by_name))}
    options = Options(flavor="woff", layout_features=[], notdef_outline=False)
    font = TTFont(vendor / "webfonts/fa-solid-900.ttf", recalcTimestamp=False)
    subsetter = Subsetter(options)
    subsetter.populate(unicodes=codes | {int(code, 16) for code in used.values()})
    subsetter.subset(font)
    font.flavor = "woff"
    file = io.BytesIO()
    font.save(file)
    licence = sheet.partition("*/")[0] + "*/"
    lines = [f'.fa-{name}::before {{ content: "\\{code}"; }}\n' for name, code in used.items()]
    return licence + ICONS % base64.b64encode(file.getvalue()).decode() + "".join(lines)


def squeeze(page: str) -> str:
    """A page without the indents and empty lines of its templates; what shows them keeps them.

    Names, punctuation and spaces of code are not marked either: they have the colour of all text.

    Example:
        >>> squeeze("<ul>\\n\\n  <li>one</li>\\n<pre>a\\n  b</pre></ul>")
        '<ul>\\n<li>one</li>\\n<pre>a\\n  b</pre></ul>'
        >>> squeeze('<pre><span class="k">del</span> <span class="n">a</span></pre>')
        '<pre><span class="k">del</span> a</pre>'
    """
    kept = r"<(pre|script|style|textarea)\b.*?</\1>"
    page = re.sub(r'<span class="[npw]">([^<]*)</span>', r"\1", page)
    return re.sub(kept + r"|\n\s+", lambda m: m[0] if m[1] else "\n", page, flags=re.DOTALL)


def lighten(app: Sphinx, exception: Exception | None) -> None:
    """Once all pages are written, add what they use and remove what they do not."""
    if exception or app.builder.format != "html":
        return
    out, static = Path(app.outdir), Path(app.outdir, "_static")
    copy_mathjax(static)
    pages = {path: squeeze(path.read_text()) for path in out.rglob("*.html")}
    for path, page in pages.items():
        path.write_text(page)
    names = {name for page in pages.values() for name in re.findall(r"\bfa-([a-z0-9-]+)", page)}
    sheets = [path.read_text() for path in static.rglob("*.css") if "vendor" not in path.parts]
    codes = {int(c, 16) for sheet in sheets for c in re.findall(r"\\(f[0-9a-f]{3})\b", sheet)}
    (vendor,) = (static / "vendor/fontawesome").iterdir()
    (static / "icons.css").write_text(icon_styles(names, codes, vendor))
    for path in [path for pattern in UNUSED for path in static.glob(pattern)]:
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def setup(app: Sphinx) -> dict[str, bool]:
    """Called by Sphinx."""
    app.connect("build-finished", lighten, priority=900)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
