"""The panel's server: answers JupyterLab's panel in the kernel."""
