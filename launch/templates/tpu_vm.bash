#!/usr/bin/env bash
# What launch/tpu_vm does on each worker, in ~/attnlab:
#     tpu_vm.bash prepare NAME BUCKET      unpacks the code beside .venv, makes that, mounts BUCKET
#     tpu_vm.bash start FOLDER NAME FLAGS… runs the experiment so that it outlives the connection
#     tpu_vm.bash follow                   shows its output; ends as it ends, with its status
#     tpu_vm.bash stop                     SIGTERM: it saves a checkpoint and ends
# A TPU has room for one run. FOLDER is that of the run, below ~/attnlab.
set -euo pipefail
home="$HOME/attnlab"
code="$home/code"

running() {
  [ -f "$home/pid" ] && grep -qs tpu_vm.bash "/proc/$(<"$home/pid")/cmdline"
}

prepare() {
  if running; then
    echo "$(hostname): a run is going on here; end it: bash $code/launch/templates/tpu_vm.bash stop" >&2
    exit 1
  fi
  if [ -n "$2" ] && ! command -v gcsfuse >/dev/null; then
    echo "$(hostname): gcsfuse is not installed; cloud.google.com/storage/docs/cloud-storage-fuse/install" >&2
    exit 1
  fi
  mkdir -p "$code"
  find "$code" -mindepth 1 -maxdepth 1 ! -name '.venv*' -exec rm -rf {} +
  tar -xzf "$HOME/attnlab.tar.gz" -C "$code"
  if ! "$code/launch/local" --help >/dev/null 2>&1; then
    # Images with Ubuntu 22.04 have Python 3.10.
    sudo apt-get -qq update && sudo apt-get -qq install --yes python3.11 python3.11-venv
  fi
  "$code/launch/local" "$1" --check=words  # makes .venv
  if [ -n "$2" ] && ! mountpoint -q "$home/buckets/$2"; then
    mkdir -p "$home/buckets/$2"
    # Hosts see each other's files at once; checkpoints are renamed when whole.
    gcsfuse --implicit-dirs --metadata-cache-ttl-secs=0 --metadata-cache-negative-ttl-secs=0 \
      --rename-dir-limit=200000 "$2" "$home/buckets/$2"
  fi
}

start() {
  rm -f "$home/status"
  setsid nohup bash "${BASH_SOURCE[0]}" run "$@" >"$home/output.txt" 2>&1 </dev/null &
  echo $! >"$home/pid"
}

run() {
  local status=0 folder="$home/$1"
  trap : TERM  # stop signals the whole group; the status is still to be written
  cd "$HOME"
  python3 "$code/launch/host.py" "$folder" "$code/launch/local" "${@:2}" --run_dir="$folder" || status=$?
  echo "$status" >"$home/status"
}

follow() {
  tail --pid="$(<"$home/pid")" -n +1 -F "$home/output.txt" 2>/dev/null
  exit "$(<"$home/status")"
}

stop() {
  kill -TERM -- "-$(<"$home/pid")"
}

"$@"
