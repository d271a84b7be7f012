"""How Sphinx makes the site; `ddlnb.survey.site` writes its pages and calls it."""

from pathlib import Path

from latex2mathml.converter import convert

extensions = ["myst_nb", "sphinx_design", "sphinxcontrib.bibtex", "sphinx.ext.autodoc"]
nb_execution_mode = "off"
nb_render_markdown_format = "myst"
myst_enable_extensions = ["amsmath", "colon_fence", "deflist", "dollarmath"]
myst_dmath_allow_digits = myst_dmath_allow_space = False  # $5 and $6 are prices
myst_heading_anchors = 4
bibtex_reference_style = "author_year"
bibtex_bibfiles = [path.name for path in Path(__file__).parent.glob("*.bib")]
default_role = "code"
autodoc_typehints_format = "short"
suppress_warnings = ["bibtex.missing_field"]
html_theme = "furo"
html_math_renderer = "mathml"
html_static_path = ["site.css"]
html_css_files = ["site.css"]
html_extra_path = ["extra"]
exclude_patterns = ["extra"]
html_show_sphinx = html_show_sourcelink = html_copy_source = False
copyright = ""


def _inline(writer, node):
    writer.body.append(convert(node.astext()))
    raise _skip()


def _block(writer, node):
    text = node.astext()  # formulas side by side stand below each other on a phone
    parts = [text] if "\\begin" in text else text.split("\\qquad")
    shown = "".join(convert(part, display="block") for part in parts)
    writer.body.append(f'<div class="math">{shown}</div>')
    raise _skip()


def _skip() -> Exception:
    from docutils.nodes import SkipNode

    return SkipNode()


def setup(app):
    """Write formulas as MathML, which browsers show without a script."""
    app.add_html_math_renderer("mathml", (_inline, None), (_block, None))
