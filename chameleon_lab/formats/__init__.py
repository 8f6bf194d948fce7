"""Traces read from the files of other tools. They are untrusted: nothing in them runs, and sizes are limited."""
