#!/usr/bin/env bash
# What happens on a worker. The other scripts call it over ssh as `bash wechsel-jax/tpu_scripts/remote.sh VERB ...`; paths are
# relative to the checkout. Records of the run lie in ~/.wechsel-jax, which a new VM does not have.
set -euo pipefail

checkout=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
records=$HOME/.wechsel-jax
self=$checkout/tpu_scripts/remote.sh
readonly checkout records self
readonly half_written='.*\.orbax-checkpoint-tmp.*|(.*/)?\.[^/]*\.partial(/.*)?'
export CLOUDSDK_CORE_DISABLE_PROMPTS=1

fail() { # STATUS MESSAGE
  printf '%s: %s\n' "$(hostname)" "$2" >&2
  exit "$1"
}

say() { printf '%s: %s\n' "$(hostname)" "$*"; }

session() { tmux has-session -t "=wechsel-$1" 2>/dev/null; }

start_session() { # NAME VERB...
  local name=wechsel-$1 said
  shift
  # A tmux server whose last session has just ended still takes a connection, and drops it.
  for _ in {1..50}; do
    if said=$(tmux new-session -d -s "$name" bash "$self" "$@" 2>&1); then return; fi
    sleep 0.1
  done
  fail 1 "$name: tmux does not start it: $said"
}

install_packages() { # those of COMMAND:PACKAGE whose command is missing
  local pair missing=()
  for pair in "$@"; do
    command -v "${pair%%:*}" >/dev/null || missing+=("${pair#*:}")
  done
  ((${#missing[@]})) || return 0
  # A fresh VM holds the package lock for some minutes.
  sudo apt-get -o DPkg::Lock::Timeout=900 -qq update
  sudo DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=900 -qq install -y "${missing[@]}"
}

# Prints a Python that is new enough and can build extensions; nothing where there is none.
find_python() {
  local candidate
  for candidate in python3.12 python3.13 python3.11 python3; do
    if "$candidate" - 2>/dev/null <<'PYTHON'; then
import ensurepip, os, sys, sysconfig, venv
header = os.path.join(sysconfig.get_path("include"), "Python.h")
sys.exit(not (sys.version_info >= (3, 11) and os.path.exists(header)))
PYTHON
      command -v "$candidate"
      return
    fi
  done
}

make_environment() { # PYTHON, may be empty
  local python=${1:-$(find_python)}
  [[ ! -x $records/venv/bin/python ]] || return 0
  if [[ -n $python ]]; then
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || fail 2 "python: $python: expected Python 3.11 or newer"
    "$python" -m venv "$records/venv"
  else
    # TPU software versions come with Python 3.10; uv brings a newer one.
    python3 -m pip install --quiet --user uv
    "$(python3 -m site --user-base)/bin/uv" venv --quiet --seed --python 3.12 "$records/venv"
  fi
}

mount_share() { # HOST:/PATH
  mkdir -p "$checkout/shared"
  mountpoint -q "$checkout/shared" && return
  install_packages mount.nfs:nfs-common
  sudo mount -t nfs -o rw,hard,noatime "$1" "$checkout/shared"
}

setup() { # check|no-check SHARE PYTHON INPUTS
  mkdir -p "$records"
  rm -f "$records/ready"
  install_packages tmux:tmux flock:util-linux
  [[ -z $2 ]] || mount_share "$2"
  make_environment "$3"
  "$records/venv/bin/python" -m pip install --quiet --editable "${checkout}[train,tpu]"
  if [[ -n $4 ]]; then
    mkdir -p "$checkout/inputs"
    gcloud storage rsync --recursive "$4" "$checkout/inputs"
  fi
  if [[ $1 == check ]]; then
    # All workers at once: the processes of a slice wait for each other.
    timeout 300 "$records/venv/bin/python" -c 'import jax
jax.distributed.initialize()
print(f"worker {jax.process_index()} of {jax.process_count()}:", jax.local_device_count(), "of", jax.device_count(), "devices,",
      jax.devices()[0].device_kind)' || fail 1 "JAX does not find the TPU; see above"
  fi
  date -u +%FT%TZ >"$records/ready"
  say "set up"
}

launch() { # WORKDIR PROGRAM COUNT NAME=VALUE... FLAGS...
  ! session run || fail 3 "a run is running already; stop.sh ends it"
  [[ -f $records/ready ]] || fail 127 "not set up; setup.sh first"
  rm -f "$records"/{exit,stopped,pid,sync}
  printf '%s\0' "$@" >"$records/.command.partial"
  mv "$records/.command.partial" "$records/command"
  start_session run run
  say "started"
}

# Inside tmux: the program until it ends, then its exit status in a file and a last copy to the bucket.
run() {
  local words status final child flags
  mapfile -d '' -t words <"$records/command"
  flags=("${words[@]:3+words[2]}")
  cd "$checkout"
  exec >>"$records/train.log" 2>&1 # the input stays tmux's: it takes a closed terminal for the end
  printf '== %s %s: python -m %s' "$(date -u +%FT%TZ)" "$(hostname)" "${words[1]}"
  printf ' %q' "--workdir=${words[0]}" "${flags[@]}" && echo
  # Without a TPU the program shall fail and not train on the CPU.
  env JAX_PLATFORMS=tpu,cpu PYTHONUNBUFFERED=1 "${words[@]:3:words[2]}" \
    "$records/venv/bin/python" -m "${words[1]}" "--workdir=${words[0]}" "${flags[@]}" </dev/null &
  child=$!
  echo "$child" >"$records/pid"
  trap 'kill -TERM "$child" 2>/dev/null || true' TERM HUP INT
  while true; do
    status=0
    wait "$child" || status=$?
    # A signal to this shell ends `wait` while the program still saves its checkpoint.
    jobs -rp | grep -qx "$child" || break
  done
  final=0
  wait "$child" 2>/dev/null || final=$?
  ((final == 127)) || status=$final # 127: bash has given the status away already
  echo "$status" >"$records/.exit.partial"
  mv "$records/.exit.partial" "$records/exit"
  echo "== $(date -u +%FT%TZ) ended with status $status"
  if [[ -f $records/sync ]]; then
    mapfile -d '' -t words <"$records/sync"
    push "${words[@]}" || echo "the last copy to ${words[1]} failed"
  fi
}

# Prints the directories of complete checkpoints in and below a workdir, e.g. wechsel/checkpoints/100 of a comparison, oldest
# first; half-written ones have other names.
saved() { # WORKDIR
  below "$1" -type d -path '*/checkpoints/*' -prune | grep -E '(^|/)checkpoints/[0-9]+$' | sort -V || true
}

# Prints what find selects below a directory, relative to it, but nothing hidden. What vanishes meanwhile is no failure.
below() { # DIRECTORY TEST...
  [[ ! -d $1 ]] || (cd "$1" && shift && { find . -name '.?*' -prune -o "$@" -print 2>/dev/null || true; } | sed 's|^[.]/||')
}

# Prints the step of the newest checkpoint, of several runs together the sum of theirs; nothing where there is none.
newest_checkpoint() { # WORKDIR
  saved "$1" | awk -F/ '{ step = $NF; sub(/[^\/]*$/, ""); if (step + 0 > newest[$0]) newest[$0] = step + 0; some = 1 }
    END { for (run in newest) sum += newest[run]; if (some) print sum + 0 }'
}

# The same of the last steps that the metrics tell.
last_step() { # WORKDIR
  local file
  below "$1" -type f -name metrics.jsonl | while IFS= read -r file; do
    { grep -o '"step": *[0-9]*' "$1/$file" 2>/dev/null || true; } | tail -n 1 | grep -o '[0-9]*$' || true
  done | awk '{ sum += $1 } END { if (NR) print sum }'
}

# One line for watch.sh and status.sh: state, exit status, step, newest checkpoint, the log's last line.
state() { # WORKDIR
  local state=idle status="-" step="-" saved last="-"
  cd "$checkout"
  if session run; then
    state=running
  elif [[ -f $records/stopped && -f $records/command ]]; then
    state=stopped
  elif [[ -f $records/exit ]]; then
    state=exited
  elif [[ -f $records/command ]]; then
    state=died
  elif [[ ! -f $records/ready ]]; then
    state=unprepared
  fi
  if [[ $state != running && -f $records/exit ]]; then status=$(<"$records/exit"); fi
  step=$(last_step "$1")
  saved=$(newest_checkpoint "$1")
  if [[ -f $records/train.log ]]; then last=$(last_words "$state"); fi
  printf 'wechsel-state\t%s\t%s\t%s\t%s\t%s\t%s\n' "$(hostname)" "$state" "$status" "${step:--}" "${saved:--}" "${last:--}"
}

# The last line of the log, without control characters; of a run that ended rather the program's own last line, which may be
# followed by what JAX says at its end.
last_words() { # STATE
  local lines own=""
  lines=$(grep -v '^== ' "$records/train.log" | tail -n 20 | tr '\r' '\n' | tr -d '\000-\011\013-\037\177' |
    grep -v '^ *$' || true)
  if [[ $1 != running ]]; then own=$(grep '^python -m train[.]' <<<"$lines" | tail -n 1 || true); fi
  if [[ -z $own ]]; then own=$(tail -n 1 <<<"$lines"); fi
  printf '%s\n' "${own:0:500}"
}

stop() { # SECONDS for-good|for-now
  local pid waited=0
  [[ $2 == for-now ]] || touch "$records/stopped"
  session run || { say "nothing is running" && return; }
  until [[ -s $records/pid ]] || ! session run; do sleep 0.1; done
  pid=$(<"$records/pid")
  kill -TERM "$pid" 2>/dev/null || true
  say "SIGTERM sent; waiting up to $1 s for the checkpoint"
  while kill -0 "$pid" 2>/dev/null; do
    if ((waited >= $1 * 5)); then
      kill -KILL "$pid" 2>/dev/null || true
      say "killed after $1 s; what came after the last checkpoint is lost"
      break
    fi
    sleep 0.2
    waited=$((waited + 1))
  done
  # The last copy to the bucket.
  for ((waited = 0; waited < 9000; waited++)); do
    session run || break
    sleep 0.2
  done
  ! session run || fail 1 "the last copy to the bucket takes more than 30 minutes; status.sh shows when it is done"
  say "stopped with status $(cat "$records/exit" 2>/dev/null || echo unknown)"
}

logs() { # LINES follow|end PREFIX
  local follow=()
  [[ -f $records/train.log ]] || fail 1 "no log yet; launch.sh starts a run"
  if [[ $2 == follow ]]; then follow=(-F); fi
  if [[ $3 == prefix ]]; then
    tail -n "$1" "${follow[@]}" "$records/train.log" | sed -u "s/^/$(hostname): /"
  else
    exec tail -n "$1" "${follow[@]}" "$records/train.log"
  fi
}

# None of these removes anything at the destination. Hidden directories of checkpoints/ are half-written or half-removed.
copy_checkpoint() { ${shown-} gcloud storage rsync --recursive "--exclude=$half_written" "$1" "$2"; }
copy_rest() {
  ${shown-} gcloud storage rsync --recursive \
    "--exclude=(.*/)?metrics[.]jsonl|(.*/)?[.]lock|(.*/)?checkpoints/[.0-9].*|$half_written" "$1" "$2"
}
fetch_checkpoint() { ${shown-} gcloud storage rsync --recursive "$1" "$2"; }
fetch_rest() {
  ${shown-} gcloud storage rsync --recursive "--exclude=(.*/)?checkpoints/[.0-9].*|complete/.*|logs/.*" "$1" "$2"
}

# For --dry-run: the lines that copy, with STEP for a checkpoint's.
plan() { # push|restore WORKDIR DESTINATION
  local shown=show
  # shellcheck disable=SC2329 # by its name
  show() { printf '#  ' && printf ' %q' "$@" && echo; }
  if [[ $1 == push ]]; then
    copy_rest "$2" "$3"
    copy_checkpoint "$2/checkpoints/STEP" "$3/checkpoints/STEP"
  else
    fetch_rest "$3" "$2/.restored.partial"
    fetch_checkpoint "$3/checkpoints/STEP" "$2/.restored.partial/checkpoints/STEP"
  fi
}

# Copies the run to the bucket, and the runs below it. A checkpoint counts there once DESTINATION/complete/RUN/STEP says that it
# and the metrics up to it are whole, and other files once complete/files names them: then all of them have arrived. With
# KEEP > 0, checkpoints that are gone here and are not among the newest KEEP of their run there are removed from the bucket.
push() { # WORKDIR DESTINATION KEEP
  local failed=0 checkpoints files
  cd "$checkout"
  [[ -d $1 ]] || return 0
  exec 9>"$records/sync.lock"
  flock 9
  # Before anything is copied: what a run writes meanwhile does not count yet.
  checkpoints=$(saved "$1")
  files=$(below "$1" -type f -not -path '*/checkpoints/[0-9]*')
  # First, so that a checkpoint that counts has the settings it was trained with beside it.
  if copy_rest "$1" "$2"; then
    printf '%s\n' "$files" | gcloud storage cp - "$2/complete/files" || failed=1
  else
    failed=1
  fi
  push_checkpoints "$1" "$2" "$checkpoints" || failed=1
  [[ ! -f $records/train.log ]] || gcloud storage cp "$records/train.log" "$2/logs/$(hostname).log" || failed=1
  if ((failed == 0 && $3 > 0)); then prune "$@" || failed=1; fi
  flock -u 9
  return "$failed"
}

push_checkpoints() { # WORKDIR DESTINATION CHECKPOINTS
  local path stamp there all paths=() stamps=() failed=0
  there=$(complete "$2") || failed=1
  mapfile -t all <<<"$3"
  for path in "${all[@]}"; do
    [[ -n $path ]] || continue
    # A checkpoint stays as it is: what this VM has copied, and the bucket holds whole, is not copied again.
    stamp="$2/$path $(stat -c '%.9Y' "$1/$path" 2>/dev/null)" || continue
    if grep -qxF -- "$(marker "$path")" <<<"$there" && grep -qxF -- "$stamp" "$records/pushed" 2>/dev/null; then continue; fi
    if copy_checkpoint "$1/$path" "$2/$path"; then
      paths+=("$path") stamps+=("$stamp")
    elif [[ -d $1/$path ]]; then
      failed=1 # and not just removed by the trainer, which keeps the newest few
    fi
  done
  # After the checkpoints, so that the metrics reach as far as they do; a copy, because a file that grows cannot be uploaded.
  mapfile -t all < <(below "$1" -type f -name metrics.jsonl)
  for path in "${all[@]}"; do
    cp "$1/$path" "$records/metrics.jsonl" && gcloud storage cp "$records/metrics.jsonl" "$2/$path" || return 1
  done
  for path in "${!paths[@]}"; do
    stamp=${stamps[path]} path=$(marker "${paths[path]}")
    if printf '%s\n' "${path##*/}" | gcloud storage cp - "$2/complete/$path"; then
      printf '%s\n' "$stamp" >>"$records/pushed"
    else
      failed=1
    fi
  done
  return "$failed"
}

# RUN/STEP of RUN/checkpoints/STEP, as complete/ names it; STEP of the workdir's own. And back.
marker() { printf '%s\n' "${1%checkpoints/*}${1##*/}"; }
checkpoint() { printf '%s\n' "${1%"${1##*/}"}checkpoints/${1##*/}"; }

# Of lines RUN/STEP, oldest first, those of the newest COUNT of each run, or the others.
newest() { # COUNT [others]
  awk -F/ -v count="$1" -v others="${2-}" '{ line[NR] = $0; sub(/[^\/]*$/, ""); run[NR] = $0; left[$0]++ }
    END { for (i = 1; i <= NR; i++) if ((left[run[i]]-- > count) == (others != "")) print line[i] }'
}

prune() { # WORKDIR DESTINATION KEEP
  local path old
  old=$(complete "$2" | newest "$3" others) || return 1
  mapfile -t old <<<"$old"
  for path in "${old[@]}"; do
    [[ -n $path && ! -d $1/$(checkpoint "$path") ]] || continue
    gcloud storage rm "$2/complete/$path" && gcloud storage rm --recursive "$2/$(checkpoint "$path")" || return 1
  done
}

# Prints what DESTINATION/complete holds. Fails where the bucket cannot be read: to take that for an empty one would start the
# run anew.
listed() { # DESTINATION
  local listing errors line
  errors=$(mktemp)
  if ! listing=$(gcloud storage ls "$1/complete/**" 2>"$errors"); then
    if ! grep -qi 'matched no objects' "$errors"; then
      cat "$errors" >&2
      rm -f "$errors"
      return 1
    fi
  fi
  rm -f "$errors"
  while IFS= read -r line; do printf '%s\n' "${line#"$1/complete/"}"; done <<<"$listing"
}

# Of that the checkpoints, as RUN/STEP, oldest first.
complete() { # DESTINATION
  local listing
  listing=$(listed "$1") || return 1
  only_checkpoints <<<"$listing"
}
only_checkpoints() { grep -E '^(.*/)?[0-9]+$' | sort -V || true; }

take() { # PATH FROM TO
  [[ -n $1 && -e $2/$1 ]] || return 0
  mkdir -p "$(dirname "$3/$1")"
  mv "$2/$1" "$3/$1"
}

# Brings the newest COUNT checkpoints of each run, and the files that had arrived whole, from the bucket, where there is no
# checkpoint here.
restore() { # WORKDIR DESTINATION COUNT
  local workdir=$1 from=$2 there path new files
  cd "$checkout"
  if [[ -n $(newest_checkpoint "$workdir") ]]; then
    say "$workdir: has checkpoints; nothing restored"
    return
  fi
  files=$(listed "$from") || fail 1 "$from: cannot be read; nothing restored"
  there=$(only_checkpoints <<<"$files" | newest "$3" | tac)
  if [[ -z $there ]]; then
    say "$from: holds no checkpoint; a new run"
    return
  fi
  new=$workdir/.restored.partial
  mkdir -p "$new"
  fetch_rest "$from" "$new"
  mapfile -t there <<<"$there"
  for path in "${there[@]}"; do
    path=$(checkpoint "$path")
    mkdir -p "$new/$path"
    fetch_checkpoint "$from/$path" "$new/$path"
  done
  if grep -qx files <<<"$files"; then
    files=$(gcloud storage cat "$from/complete/files")
  else
    files=$(below "$new" -type f -name metrics.jsonl) # one object each, so whole
  fi
  mapfile -t files <<<"$files"
  for path in "${files[@]}"; do take "$path" "$new" "$workdir"; done
  for path in "${there[@]}"; do take "$(checkpoint "$path")" "$new" "$workdir"; done
  # What an earlier attempt fetched may lie there, too, and what had not arrived whole.
  rm -rf -- "$new"
  say "restored step $(newest_checkpoint "$workdir") from $from"
}

sync() { # start WORKDIR DESTINATION KEEP SECONDS | loop ...
  case $1 in
    start)
      shift
      # Whole or not at all: the run may end in this moment, and reads it then.
      printf '%s\0' "$1" "$2" "$3" >"$records/.sync.partial"
      mv "$records/.sync.partial" "$records/sync"
      tmux kill-session -t =wechsel-sync 2>/dev/null || true
      start_session sync sync loop "$@"
      say "copies $1 to $2 every $4 s while a run is running"
      ;;
    loop)
      shift
      exec >>"$records/sync.log" 2>&1
      # Also of a run that has ended already, before it could know of the bucket.
      while true; do
        if push "$1" "$2" "$3"; then
          session run || break
        else
          echo "$(date -u +%FT%TZ) not everything was copied; tried again in $4 s"
        fi
        sleep "$4"
      done
      ;;
  esac
}

main() {
  local verb=${1-}
  shift || true
  case $verb in
    setup) setup "$@" ;;
    launch) launch "$@" ;;
    run) run ;;
    state) state "$@" ;;
    stop) stop "$@" ;;
    logs) logs "$@" ;;
    push) push "$@" ;;
    restore) restore "$@" ;;
    sync) sync "$@" ;;
    plan) plan "$@" ;;
    *) fail 2 "remote.sh: no verb '$verb'" ;;
  esac
}

# One line, so that the file may be replaced while it runs.
main "$@"; exit
