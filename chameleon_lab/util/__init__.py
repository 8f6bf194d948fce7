"""Independent helpers: units, files, progress bars, torch's version."""
