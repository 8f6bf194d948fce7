"""Functions of torch that an open session replaces: one concern a file."""
