"""``python -m chameleon_lab`` is the command ``chameleon``."""

from .cli import main

main()
