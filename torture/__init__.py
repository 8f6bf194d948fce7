"""Tries to break the promises, and counts: every operator, module and optimizer of PyTorch's own test databases, the
ways around the dispatcher, faults, and real models. ``python -m torture --help``.
"""
