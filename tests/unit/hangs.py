"""How long a test waits for what always comes. ``training`` has the same for what runs in children."""

HANGS_AFTER_S = 1200
"""A busy machine is no hang: this is for what would never end."""
