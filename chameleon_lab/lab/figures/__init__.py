"""Drawings for notebooks: Plotly and Bokeh figures, widgets, and the report as a page."""
