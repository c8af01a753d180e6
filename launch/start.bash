# Runs the Python part of a launcher with a Python that is new enough; every launcher sources it.
# shellcheck shell=bash
set -euo pipefail

place="$(basename -- "$(readlink -f -- "${BASH_SOURCE[1]}")")"
here="$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")"

if ! pwd -P >/dev/null 2>&1; then
  echo "launch/$place: the folder you are in is gone; cd to one that is there" >&2
  exit 1
fi

if [ -n "${ATTNLAB_PYTHON:-}" ]; then
  candidates=("$ATTNLAB_PYTHON")
else
  candidates=(python3 python3.13 python3.12 python3.11)
fi

# A terminal without "…" is no reason to fail.
encoding="${PYTHONIOENCODING:-}"
export PYTHONIOENCODING="${encoding%%:*}:replace"

for python in "${candidates[@]}"; do
  # A name may be on PATH and still not run (a version manager's shim), so it is run to find out.
  if "$python" -IS -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
    exec "$python" "$here/$place.py" "$@"
  fi
done

echo "launch/$place: needs Python >= 3.11, got none from: ${candidates[*]}; set ATTNLAB_PYTHON=/path/to/python" >&2
exit 1
