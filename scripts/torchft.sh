#!/usr/bin/env bash
# Installs torchft and what it imports into a folder: torchft.sh FOLDER. Its own dependencies would bring another PyTorch.
set -euo pipefail
folder=$1
rm -rf "$folder.new"
python -m pip install --quiet --disable-pip-version-check --no-deps --target "$folder.new" torchft-nightly==2026.10.26
# Nothing that .venv has: what lies in the folder comes before it.
python -m pip install --quiet --disable-pip-version-check --no-deps --target "$folder.new" \
    opentelemetry-api opentelemetry-sdk opentelemetry-semantic-conventions opentelemetry-proto protobuf \
    opentelemetry-exporter-otlp-proto-common opentelemetry-exporter-otlp-proto-http \
    opentelemetry-exporter-otlp-common opentelemetry-exporter-http-transport googleapis-common-protos
touch "$folder.new/.done"
rm -rf "$folder"
mv "$folder.new" "$folder"
