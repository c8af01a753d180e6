#!/usr/bin/env bash
# What the task of launch/sky does on a node, in the folder of the code:
#     sky.bash setup NAME
#     sky.bash run FOLDER NAME FLAGS…
set -euo pipefail
export PATH="$HOME/attnlab_python/bin:$PATH"

case "$1" in
  setup)
    if ! launch/local --help >/dev/null 2>&1 && command -v conda >/dev/null; then
      # launch/local needs Python 3.11, SkyPilot's own images have an older one.
      conda create --quiet --yes --prefix "$HOME/attnlab_python" python=3.12
    fi
    launch/local "$2" --check=words  # makes .venv
    ;;
  run)
    exec python3 launch/host.py "$2" launch/local "${@:3}"
    ;;
esac
