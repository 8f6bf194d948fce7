"""Packages for figures and widgets: loaded at first use, with a clear error if one is missing."""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType


class MissingPackageError(ImportError):
    """A figure or widget was asked for, and a package that draws it is not installed."""


def load(module: str, package: str, what: str) -> ModuleType:
    """Import a module of an optional package.

    Args:
        module: what to import, such as ``"plotly.graph_objects"``.
        package: what to install for it.
        what: who needs it, in the plural, for the error.

    Raises:
        MissingPackageError: it does not load; the message says what to install.
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise MissingPackageError(
            f"{what} need {package}, which does not load ({error}): install it with `pip install {package}`"
        ) from error


def load_widgets(*modules: str) -> None:
    """Check for the packages that show widgets, and let Colab show those that are not its own.

    JupyterLab and VS Code show them as they are.

    Raises:
        MissingPackageError: one does not load.
    """
    for module in ("ipywidgets", *modules):
        load(module, module, "widgets")
    if "google.colab" in sys.modules:
        load("google.colab.output", "google-colab", "widgets in Colab").enable_custom_widget_manager()
