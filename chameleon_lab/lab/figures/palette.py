"""The colors of figures and widgets: the light tokens of the panel, so that a category has one color everywhere."""

from __future__ import annotations

from ...trace import Category

INK, INK_2, LINE = "#1f1f1f", "#575757", "#e4e6ea"
LOST = "#c72200"
"""Device time lost; nothing else has this color."""
TRANSFER, TRANSFER_FORCED = "#7c879b", "#56627a"
REPLAY = "#13827f"
"""Ops that run again; the color of activations, which are what they make."""
PREDICTED = "#b0168f"
SESSION_STAGES = {"WarmUp": "#c9d0db", "Profile": "#97a3b8", "Stable": "#56627a"}
STACK = (
    ("Parameters", "#27438c", (Category.PARAMETER,)),
    ("Optimizer states", "#987be1", (Category.OPTIMIZER_STATE,)),
    ("Gradients", "#cb8100", (Category.GRADIENT,)),
    ("Activations", "#13827f", (Category.ACTIVATION,)),
    ("Inputs, other", "#b0b7c2", (Category.INPUT, Category.OTHER)),
)
"""Name, color and categories of each layer of a stack of resident bytes, bottom first."""

CATEGORIES = {category.name.lower(): color for _, color, categories in STACK for category in categories}
"""Color by the name of a Category in lower case."""
