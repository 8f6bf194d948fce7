"""Changes of the training script that :func:`~chameleon_lab.planner.suggest` can name, a kind a file."""
