"""Plotly figures with a text version, and widgets of them that follow their width."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...trace import StepTrace
from .packages import load

if TYPE_CHECKING:
    import plotly.graph_objects as go

_DEFAULT_EXPORT = re.compile(r"export\s*\{([^{}]*?),?\s*([\w$]+) as default\s*\}")

# A widget of Plotly's takes its room's width when it is made, and later on only when the window changes.
_FOLLOWING = """
export default async () => {
  const widget = typeof %(drawn)s === "function" ? await %(drawn)s() : %(drawn)s;
  const follow = async context => {
    const done = await widget.render(context);
    let width = context.el.clientWidth;
    const observer = new ResizeObserver(() => {
      if (context.el.clientWidth !== width) {
        width = context.el.clientWidth;
        for (const plot of [context.el, ...context.el.querySelectorAll(".js-plotly-plot")]) {
          plot._responsiveChartHandler?.();
        }
      }
    });
    observer.observe(context.el);
    return async () => {
      observer.disconnect();
      await (typeof done === "function" ? done() : undefined);
    };
  };
  return { initialize: context => widget.initialize?.(context), render: follow };
};
"""


def figure_in_words(figure: go.Figure, words: Callable[[], str]) -> go.Figure:
    """The same static figure, which also leaves words in its output: for who cannot see it, or no Plotly shows it."""
    return _static()(figure, words)


def widget_in_words(figure: go.Figure, words: Callable[[], str]) -> go.FigureWidget:
    """A widget of a figure that follows the width of its output, and leaves words there beside it.

    Raises MissingPackageError if anywidget or ipywidgets is not installed.
    """
    return _widget()(figure, words)


def step_in_words(step: StepTrace, headline: str) -> str:
    """What a figure of a step shows: its headline, what was alive at the peak, and why it waited."""
    lines = [re.sub(r"<br>", "\n", re.sub(r"</?(sub|b|i)>", "", headline))]
    if len(step.ops):
        lines.append(str(step.alive()))
    return "\n".join(lines)


@cache
def _static() -> type:
    figures = load("plotly.graph_objects", "plotly", "figures")

    class Figure(figures.Figure):  # type: ignore[name-defined,misc]  # a base that is loaded late
        def __init__(self, figure: Any = None, words: Callable[[], str] | None = None, **given: Any) -> None:
            super().__init__(figure, **given)
            object.__setattr__(self, "_words", words)

        def _ipython_display_(self) -> None:
            shown = self._repr_mimebundle_()
            if not shown or self._words is None:
                super()._ipython_display_()
                return
            display = load("IPython.display", "ipython", "figures").display
            display({**shown, "text/plain": self._words()}, raw=True)

    return Figure


@cache
def _widget() -> type:
    figures = load("plotly.graph_objects", "plotly", "figures")
    source = figures.FigureWidget._esm

    class FigureWidget(figures.FigureWidget):  # type: ignore[name-defined,misc]  # a base that is loaded late
        _esm = _following(source)

        def __init__(self, figure: Any = None, words: Callable[[], str] | None = None, **given: Any) -> None:
            super().__init__(figure, **given)
            object.__setattr__(self, "_words", words)

        def _repr_mimebundle_(self, include: Any = None, exclude: Any = None, **given: Any) -> dict[str, Any]:
            shown = super()._repr_mimebundle_(include, exclude, **given)
            return shown if self._words is None else {**shown, "text/plain": self._words()}

    return FigureWidget


def _following(source: Any) -> Any:
    """Plotly's module, with an observer of its room; as it is, where it is not written as those known."""
    text = source.read_text(encoding="utf-8") if isinstance(source, Path) else str(source)
    found = list(_DEFAULT_EXPORT.finditer(text))
    if not found:
        return source
    last = found[-1]
    others = f"export{{{last[1]}}}" if last[1].strip() else ""
    return text[: last.start()] + others + ";" + text[last.end() :] + _FOLLOWING % {"drawn": last[2]}
