"""The version of Chameleon Lab."""

__version__ = "0.1.0"
