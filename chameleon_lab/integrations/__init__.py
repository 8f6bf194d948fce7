"""Callbacks that run the training of other frameworks in a session. Each module needs its own framework."""
