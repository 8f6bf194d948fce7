"""What several unit tests share."""

import pytest


@pytest.fixture
def chameleon(capsys):
    """Runs a command line: its exit code, stdout and stderr."""

    from chameleon_lab.cli import main  # not before tests of what an import loads

    def run(*words):
        with pytest.raises(SystemExit) as ended:
            main(list(words))
        captured = capsys.readouterr()
        return ended.value.code, captured.out, captured.err

    return run
