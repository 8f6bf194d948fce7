"""The panel on large traces, in Chromium: python -m benchmarks.lab."""
