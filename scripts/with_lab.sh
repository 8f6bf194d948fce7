#!/usr/bin/env bash
# The oldest JupyterLab that pyproject.toml accepts, with Notebook 7 beside it, for the tests in a browser:
#
#   scripts/with_lab.sh [ARGUMENT ...]   pytest, with these arguments
#
# It lies in build/with_lab/VERSION, and serves the checkout's panel; kernels run in .venv.
set -euo pipefail
cd "$(dirname "$0")/.."

version=$(sed -n 's/^ *"jupyterlab>=\([0-9.]*\),.*/\1/p' pyproject.toml)
here=$PWD/build/with_lab/$version
wanted=("jupyterlab==$version.*" "notebook>=7,<8")

if [ "$(cat "$here/.wanted" 2>/dev/null)" != "${wanted[*]}" ]; then
    echo "==> Installing JupyterLab $version and Notebook 7 in build/with_lab/$version"
    rm -rf "$here"
    python3 -m venv "$here"
    "$here/bin/python" -m pip install --quiet --disable-pip-version-check "${wanted[@]}"
    echo "${wanted[*]}" >"$here/.wanted"
fi

# What may have changed since: where the kernels are, and the extensions, ours and those that show widgets.
mkdir -p "$here/share/jupyter/kernels/python3" "$here/share/jupyter/labextensions"
cat >"$here/share/jupyter/kernels/python3/kernel.json" <<EOF
{"argv": ["$PWD/.venv/bin/python", "-m", "ipykernel_launcher", "-f", "{connection_file}"],
 "display_name": "Python 3 (ipykernel)", "language": "python"}
EOF
for extension in chameleon-lab anywidget @bokeh @jupyter-widgets; do
    ln -sfn "$(realpath -e ".venv/share/jupyter/labextensions/$extension")" "$here/share/jupyter/labextensions/$extension"
done

CHAMELEON_LAB_PYTHON=$here/bin/python exec .venv/bin/python -m pytest "$@"
