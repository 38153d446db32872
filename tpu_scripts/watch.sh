#!/usr/bin/env bash
# Keeps a run going until it is finished, whatever happens to the machines.
# shellcheck source-path=SCRIPTDIR
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

usage() {
  cat <<TEXT
usage: watch.sh [settings] [limits] -- --config=configs/FILE.py[:name=value] [--config.field=value ...]

Creates the TPU where there is none, sets it up, launches the run (what follows "--" is launch.sh's), looks at it every minute,
and does what is missing again: a preempted TPU is deleted and asked for again, a crashed run launched again from its newest
checkpoint, which lies in the bucket or on the share. Run it where it can stay, e.g. in tmux on a small VM. It may be ended and
started again at any time: what it knows is in Cloud TPU, on the VM and in its state file, and the run goes on without it.

  --max-retries=N         give up after N failures or preemptions in a row without a newer checkpoint (10)
  --max-hours=H           of the TPU being ACTIVE, all VMs together (no limit)
  --max-cost=DOLLARS      the same by the list price, or by --price=DOLLARS an hour (no limit)
  --delete                delete the TPU once the run is finished and in the bucket
  --poll=SECONDS          between two looks (60)
  --longest-wait=SECONDS  between two attempts; waits double up to it (1800)
  --grace=SECONDS         for the last checkpoint when a limit is reached (600)
  --state=FILE            what it remembers (in ~/.local/state/wechsel-jax)
  --env=NAME=VALUE, --every, --keep, --newest, --program
                          as launch.sh takes them

At a limit the run is stopped and copied to the bucket, and then the TPU is deleted.
Status: 0 finished, 1 given up, 2 a mistake in the settings here or of the run (its message is shown), 3 stopped by stop.sh,
4 at a limit.

$settings_help
TEXT
}

options=([max-retries]=10 [max-hours]="" [max-cost]="" [price]="" [poll]=60 [longest-wait]=1800 [grace]=600 [state]=""
  [program]=train.pretrain [every]=600 [keep]=0 [newest]=3)
switches=([delete]=false)
launch_flags=()
given=()
for argument in "$@"; do
  if [[ $argument == --env=* && ! -v ended ]]; then
    launch_flags+=("$argument")
  else
    [[ $argument != -- ]] || ended=true
    given+=("$argument")
  fi
done
parse "${given[@]}"
require tpu type workdir
if [[ -n ${settings[share]} ]]; then require tpu share; else require tpu bucket; fi # a preemption takes the disk with it
[[ -z ${settings[bucket]} ]] || require tpu bucket
[[ -z ${settings[inputs]} ]] || require tpu inputs
for name in max-retries poll longest-wait grace; do check_number $name '^(0|[1-9][0-9]*)$' "a whole number"; done
for name in max-hours max-cost price; do check_number $name '^([0-9]+([.][0-9]+)?)?$' "a number"; done
for name in program every keep newest; do launch_flags+=("--$name=${options[$name]}"); done
hourly=${options[price]:-$(price "${settings[spot]}")}
[[ -z ${options[max-cost]} || -n $hourly ]] ||
  mistake "--max-cost: the price of ${settings[type]} is not known here; pass --price"
require_shared "$(workers)"
settings_flags # flags

# attempts: failures and preemptions in a row without a newer checkpoint than `before`, the newest at the last one.
# seconds: of the TPU being ACTIVE. seen: when it last was.
declare -A memory=([attempts]=0 [checkpoint]=-1 [before]=-1 [seconds]=0 [seen]=0 [preemptions]=0)
state_file=${XDG_STATE_HOME:-$HOME/.local/state}/wechsel-jax/${settings[name]}-${settings[workdir]//[^A-Za-z0-9._-]/_}.watch
state_file=${options[state]:-$state_file}

remember() {
  local name
  for name in "${!memory[@]}"; do printf '%s=%s\n' "$name" "${memory[$name]}"; done >"$state_file.partial"
  mv "$state_file.partial" "$state_file"
}

recall() {
  local name value lock
  lock=$(dirname "$state_file")/${settings[name]}.lock
  mkdir -p "$(dirname "$state_file")"
  if command -v flock >/dev/null; then
    exec 8>"$lock"
    flock -n 8 || mistake "$lock: another watch.sh has it; expected one for each TPU"
  fi
  [[ -f $state_file ]] || return 0
  while IFS='=' read -r name value; do
    [[ -n $name && -v memory[$name] && $value =~ ^-?[0-9]+$ ]] ||
      mistake "$state_file: is damaged; expected name=number lines; remove it to count from 0"
    memory[$name]=$value
  done <"$state_file"
}

# Unlike a plain sleep, ends at once when a signal comes.
pause() { # SECONDS
  sleep "$1" 8>&- &
  wait $! || true
}

log() { printf '%(%F %T)T %s\n' -1 "$*"; }

spent() { # "1.5 hours, about $3.06"
  awk -v s="${memory[seconds]}" -v p="$hourly" \
    'BEGIN { printf "%.1f hours of TPU", s / 3600; if (p != "") printf ", about $%.2f", s / 3600 * p }'
}

# Time since the last look counts when the TPU was ACTIVE then and is now.
count_time() { # STATE
  local now
  printf -v now '%(%s)T' -1
  if [[ $1 == ACTIVE ]]; then
    if ((memory[seen])); then memory[seconds]=$((memory[seconds] + now - memory[seen])); fi
    memory[seen]=$now
  else
    memory[seen]=0
  fi
  remember
}

over_limit() {
  awk -v s="${memory[seconds]}" -v h="${options[max-hours]}" -v d="${options[max-cost]}" -v p="$hourly" \
    'BEGIN { exit !((h != "" && s / 3600 >= h) || (d != "" && s / 3600 * p >= d)) }'
}

script() { # NAME FLAGS...
  local name=$1
  shift
  "$here/$name.sh" "${flags[@]}" "$@" 8>&-
}

# Counts a failure or a preemption; one after progress is number FIRST in a row.
count_attempt() { # FIRST
  if ((memory[checkpoint] > memory[before])); then
    memory[attempts]=$1
    memory[before]=${memory[checkpoint]}
  else
    memory[attempts]=$((memory[attempts] + 1))
  fi
  remember
}

# Counts a failure, gives up after too many, and waits.
setback() { # MESSAGE
  local wait
  count_attempt 1
  if ((memory[attempts] > options[max-retries])); then
    fail 1 "$1; ${memory[attempts]} times in a row without a newer checkpoint: given up after $(spent);" \
      "the TPU may still cost: delete.sh"
  fi
  wait=$((options[poll] << (memory[attempts] < 12 ? memory[attempts] - 1 : 11))) # doubles
  if ((wait > options[longest-wait])); then wait=${options[longest-wait]}; fi
  log "$1; attempt ${memory[attempts]} of ${options[max-retries]}, again in $wait s"
  pause "$wait"
}

create() {
  log "asking for a ${settings[type]}"
  script create --no-wait || setback "the TPU could not be asked for"
}

recreate() { # STATE
  [[ $1 == FAILED ]] || memory[preemptions]=$((memory[preemptions] + 1))
  log "the TPU is $1: deleting it, to ask for another"
  script delete --yes || log "it could not be deleted yet"
  if [[ $1 == FAILED ]]; then
    setback "the request failed"
    return
  fi
  count_attempt 0
  if ((memory[attempts] > options[max-retries])); then
    fail 1 "preempted; ${memory[attempts]} times in a row without a newer checkpoint: given up after $(spent); save more often"
  fi
}

# Stops the run, copies it to the bucket and deletes the TPU, unless what is on its disk would be lost.
end_at_limit() { # STATE
  local status=0
  log "limit reached: $(spent)"
  if [[ $1 == ACTIVE ]]; then
    script stop --for-now "--grace=${options[grace]}" || log "the run could not be stopped in order"
    [[ -z ${settings[bucket]} ]] || script sync push || status=$?
    ((status == 0 || status == 127)) || # 127: not set up, nothing to copy
      fail 4 "limit reached, and the last copy to the bucket failed: the TPU is left and costs on;" \
        "sync.sh push, then delete.sh"
  fi
  [[ $1 == ABSENT ]] || script delete --yes || fail 4 "limit reached, and the TPU could not be deleted: it costs on; delete.sh"
  log "stopped and deleted; watch.sh with a higher limit goes on from the newest checkpoint"
  exit 4
}

finish() {
  log "finished: $(spent), ${memory[preemptions]} preemptions"
  if [[ -n ${settings[bucket]} ]]; then
    script sync push || fail 1 "finished, but the last copy to the bucket failed: the TPU is left and costs on; sync.sh push"
  fi
  if ${switches[delete]}; then
    script delete --yes || fail 1 "finished, but the TPU could not be deleted: it costs on; delete.sh"
  else
    log "the TPU costs on until delete.sh"
  fi
  rm -f "$state_file"
  exit 0
}

# The run's states on all workers, read into these.
declare -A count=()
code="" message="" step=""

read_states() { # LINES
  local tag state status saved last at
  count=([running]=0 [exited]=0 [stopped]=0 [died]=0 [idle]=0 [unprepared]=0 [workers]=0)
  code=0 message="" step="-"
  while IFS=$'\t' read -r tag _ state status at saved last; do
    [[ $tag == wechsel-state ]] || continue
    [[ -v count[$state] ]] || continue
    count[workers]=$((count[workers] + 1))
    count[$state]=$((count[$state] + 1))
    [[ $at == - ]] || step=$at
    if [[ $saved =~ ^[0-9]+$ ]] && ((saved > memory[checkpoint])); then memory[checkpoint]=$saved; fi
    # A mistake explains more than what it did to the other workers.
    if [[ $status =~ ^[0-9]+$ ]] && ((status && (code == 0 || status == 2))); then code=$status message=$last; fi
  done <<<"$1"
  remember
}

uneven=0 uneven_since=0
reported=""

look() {
  local lines status=0
  lines=$(worker_states) || status=$?
  if ((status == 127)); then count=([unprepared]=1); else read_states "$lines"; fi
  if ((status && status != 127)) || ((status == 0 && count[workers] == 0)); then
    unreachable
  elif ((count[unprepared])); then
    log "setting up"
    script setup || setback "setting up failed"
  elif ((count[running] == count[workers])); then
    uneven=0
    [[ $reported == "$step" ]] || log "running, step $step, newest checkpoint ${memory[checkpoint]/#-1/none}, $(spent)"
    reported=$step
    pause "${options[poll]}"
  elif ((count[running])); then
    # Workers do not end in the same moment: the first one still copies what it has saved.
    ((uneven)) || uneven_since=$SECONDS
    uneven=$((uneven + 1))
    if ((uneven > 3 && SECONDS - uneven_since >= 4)); then
      log "some workers ended and others did not: stopping all"
      script stop --for-now --grace=60 || true
    fi
    pause "${options[poll]}"
  else
    uneven=0
    ended
  fi
}

# No worker is running.
ended() {
  local status=0
  if ((count[stopped])); then
    log "stopped by stop.sh at step $step; launch.sh or nothing goes on; the TPU costs on until delete.sh"
    exit 3
  elif ((count[exited] == count[workers] && code == 0)); then
    finish
  elif ((code == 2)) && [[ $message != *distributed[.:]* ]]; then
    fail 2 "the run refuses to go on: $message; the TPU costs on until delete.sh"
  elif ((code)); then
    setback "the run ended with status $code: $message"
  elif ((count[died])); then
    setback "the run ended without a status: it was killed, or a VM restarted"
  fi
  log "launching"
  script launch "${launch_flags[@]}" -- "${arguments[@]}" || status=$?
  case $status in
    0 | 3) pause "${options[poll]}" ;;
    2) fail 2 "launch.sh: see above" ;;
    *) setback "launching failed" ;;
  esac
}

# The queued resource can be ACTIVE for a while after its VM was preempted.
unreachable() {
  local node place
  where
  node=$(gcloud compute tpus tpu-vm describe "${settings[name]}" "${place[@]}" '--format=value(state)' || echo UNKNOWN)
  case $node in
    PREEMPTED | TERMINATED | STOPPED) recreate "$node" ;;
    *)
      log "the workers cannot be reached (node: $node); nothing is done to them"
      pause "${options[poll]}"
      ;;
  esac
}

dry_cycle() {
  echo "# where there is none, or after a preemption (SUSPENDED) following delete:"
  script delete --yes
  script create
  echo "# on a new VM:"
  script setup
  script launch "${launch_flags[@]}" -- "${arguments[@]}"
  echo "# every ${options[poll]} s:"
  on_workers all bash "$remote" state "${settings[workdir]}"
  echo "# when it is finished:"
  [[ -z ${settings[bucket]} ]] || script sync push
  if ${switches[delete]}; then script delete --yes; fi
}

# launch.sh checks what it is given before anything costs money.
"$here/launch.sh" "${flags[@]}" --dry-run "${launch_flags[@]}" -- "${arguments[@]}" >/dev/null || exit
if $dry_run; then
  dry_cycle
  exit 0
fi
recall
trap 'log "watch.sh ends; the run goes on; the same command watches again"; exit 130' INT TERM
log "watching ${settings[name]}; so far $(spent)"
last=""
while true; do
  state=$(resource_state)
  [[ $state == UNKNOWN ]] || count_time "$state"
  [[ $state == "$last" ]] || log "${settings[name]}: $state"
  last=$state
  if [[ $state != UNKNOWN ]] && over_limit; then end_at_limit "$state"; fi
  case $state in
    ABSENT) create ;;
    FAILED | SUSPENDED) recreate "$state" ;;
    ACTIVE) look ;;
    *) pause "${options[poll]}" ;;
  esac
done
