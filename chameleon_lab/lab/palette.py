"""The colours of figures and widgets: the light tokens of the panel, so that a category has one colour everywhere."""

from __future__ import annotations

from ..trace import Category

INK, INK_2, LINE = "#1f1f1f", "#575757", "#e4e6ea"
LOST = "#c72200"
"""Device time lost; nothing else has this colour."""
TRANSFER, TRANSFER_FORCED = "#7c879b", "#56627a"
REPLAY = "#13827f"
"""Ops that run again; the colour of activations, which are what they make."""
PREDICTED = "#b0168f"
SESSION_STAGES = {"WarmUp": "#c9d0db", "Profile": "#97a3b8", "Stable": "#56627a"}
STACK = (
    ("Parameters", "#27438c", (Category.PARAMETER,)),
    ("Optimizer states", "#987be1", (Category.OPTIMIZER_STATE,)),
    ("Gradients", "#cb8100", (Category.GRADIENT,)),
    ("Activations", "#13827f", (Category.ACTIVATION,)),
    ("Inputs, other", "#b0b7c2", (Category.INPUT, Category.OTHER)),
)
"""Name, colour and categories of each layer of a stack of resident bytes, bottom first."""

CATEGORIES = {category.name.lower(): colour for _, colour, categories in STACK for category in categories}
"""Colour by the name of a Category in lower case."""
