"""Shared by Bokeh's drawings: display as a widget, and as an offline HTML page."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ...util.files import write_then_rename
from .packages import load, load_widgets
from .palette import INK, INK_2, LINE

if TYPE_CHECKING:
    from bokeh.models import LayoutDOM
    from bokeh.plotting import figure
    from ipywidgets import DOMWidget

# In Bokeh's own page: the style, and the summary before the drawing.
_PAGE = """
{% block postamble %}<style>
body { font: 14px/1.45 Inter, system-ui, sans-serif; color: {{ ink }}; padding: 24px }
table { border-collapse: collapse } td, th { padding: 2px 14px 2px 0; text-align: left }
</style>{% endblock %}
{% block contents %}{{ summary }}{{ super() }}{% endblock %}
"""


class BokehView(ABC):
    """Something that Bokeh draws. In a notebook it shows itself, where jupyter_bokeh is installed.

    The widget works in JupyterLab, in VS Code and in Colab. Where none is shown (a notebook that is only read), the
    summary stands in its place; :meth:`save` writes a page with the whole drawing.
    """

    layout: LayoutDOM
    title = "Chameleon Lab"

    @cached_property
    def widget(self) -> DOMWidget:
        """What a notebook shows. Raises MissingPackageError without ipywidgets and jupyter_bokeh."""
        return bokeh_widget(self.layout)

    @abstractmethod
    def summary_html(self) -> str:
        """The figures in words, as HTML."""

    def to_html(self) -> str:
        """A page with the summary and the drawing as they are now; Bokeh's code is in it."""
        from bokeh.embed import file_html
        from bokeh.resources import INLINE

        return file_html(
            self.layout,
            INLINE,
            self.title,
            template=_PAGE,
            template_variables={"ink": INK, "summary": self.summary_html()},
            suppress_callback_warning=True,  # a page is to be read: what edits in a notebook is not expected to
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write :meth:`to_html` to a file. Raises OSError if it cannot be written."""
        with write_then_rename(path) as beside:
            beside.write_text(self.to_html(), encoding="utf-8")

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        shown = self.widget._repr_mimebundle_(include=include, exclude=exclude)
        _send_bokeh_js()
        # Front ends without widgets show this; those with them prefer the widget.
        return {**shown, "text/plain": repr(self), "text/html": self.summary_html()}


def bokeh_widget(layout: LayoutDOM) -> DOMWidget:
    """A Bokeh drawing that changes in the notebook when it is changed here, and the other way round.

    Raises MissingPackageError without ipywidgets or jupyter_bokeh.
    """
    load_widgets("jupyter_bokeh")
    return load("jupyter_bokeh", "jupyter_bokeh", "widgets").BokehModel(layout)


def _send_bokeh_js() -> None:
    """Put Bokeh's code into the output, since jupyter_bokeh brings none; every time, so that each cell stands alone."""
    ipython = load("IPython", "ipython", "widgets").get_ipython()
    if getattr(ipython, "kernel", None) is None:
        return
    from bokeh.io import output_notebook
    from bokeh.resources import Resources

    output_notebook(Resources(mode="inline", components=["bokeh"]), hide_banner=True)


def new_plot(**options: Any) -> figure:
    """A Bokeh figure in the look that all share. Raises MissingPackageError without bokeh."""
    plotting = load("bokeh.plotting", "bokeh", "figures")
    plot = plotting.figure(
        sizing_mode="stretch_width",
        toolbar_location="right",
        active_scroll=None,  # the wheel scrolls the notebook
        background_fill_color="white",
        border_fill_color="white",
        outline_line_color=None,
        **options,
    )
    plot.toolbar.logo = None
    plot.grid.grid_line_color = LINE
    plot.axis.axis_line_color = LINE
    plot.axis.major_tick_line_color = LINE
    plot.axis.minor_tick_line_color = None
    plot.axis.major_label_text_color = INK_2
    plot.axis.axis_label_text_color = INK
    plot.axis.axis_label_text_font_style = "normal"
    plot.axis.axis_label_text_font_size = "12px"
    plot.title.text_font_style = "normal"
    plot.title.text_font_size = "14px"
    plot.title.text_color = INK
    made: figure = plot
    return made


def show_bytes(plot: figure) -> None:
    """Let the y axis of a plot count in KiB, MiB and GiB."""
    models = load("bokeh.models", "bokeh", "figures")
    plot.yaxis.formatter = models.NumeralTickFormatter(format="0.[0] ib")
    powers = [float(2**k) for k in range(10)]
    plot.yaxis.ticker = plot.ygrid.ticker = models.AdaptiveTicker(
        base=1024, mantissas=powers, desired_num_ticks=5
    )
