"""Small programs as people write them, each in a file with a function ``run``: the runner tries all of them."""
