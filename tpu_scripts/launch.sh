#!/usr/bin/env bash
# Starts a run on all workers under tmux.
# shellcheck source-path=SCRIPTDIR
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

usage() {
  cat <<TEXT
usage: launch.sh [settings] [--env=NAME=VALUE ...] -- --config=configs/FILE.py[:name=value] [--config.field=value ...]

Runs python -m train.pretrain with --workdir=WORKDIR --config.distributed.coordinator=auto and what follows "--" on every
worker, inside tmux, so that it outlives the connection. Refuses (status 3) where a run is running. With a bucket, a VM that has no
checkpoint first gets the newest ones from there, and copying to the bucket goes on while the run does (see sync.sh).

  --program=train.NAME    train.pretrain (the default), train.finetune, train.trelm, or train.compare, which runs on a TPU of one
                          worker only
  --env=NAME=VALUE        environment of the run; repeat for more. No secrets: other users of the VM could see them
  --every=SECONDS         between two copies to the bucket (600)
  --keep=N                checkpoints to keep in the bucket beside those on the VM; 0 keeps all (0)
  --newest=N              checkpoints to bring from the bucket (3)

$settings_help
TEXT
}

options=([program]=train.pretrain [every]=600 [keep]=0 [newest]=3)
environment=()
given=()
for argument in "$@"; do # --env may be repeated
  if [[ $argument == --env=* && ! -v ended ]]; then
    environment+=("${argument#--env=}")
  else
    [[ $argument != -- ]] || ended=true
    given+=("$argument")
  fi
done
parse "${given[@]}"
require tpu workdir
case ${options[program]} in
  train.pretrain | train.finetune) together=(--config.distributed.coordinator=auto) ;;
  train.trelm) together=(--config.commonality.distributed.coordinator=auto) ;; # its phases are one program, joined by the first
  train.compare) together=() ;;
  *) mistake "--program: is ${options[program]@Q}; expected train.pretrain, train.finetune, train.trelm or train.compare" ;;
esac
check_number every '^[1-9][0-9]*$' "a number of seconds"
check_number keep '^(0|[1-9][0-9]*)$' "a number of checkpoints"
check_number newest '^[1-9][0-9]*$' "a number of checkpoints"
[[ -z ${settings[bucket]} ]] || require tpu workdir bucket
for pair in "${environment[@]}"; do
  [[ $pair =~ ^[A-Za-z_][A-Za-z0-9_]*= ]] || mistake "--env: is ${pair@Q}; expected NAME=VALUE"
done
config="" fields=()
for argument in "${arguments[@]}"; do
  case $argument in
    --workdir | --workdir=*) mistake "--workdir: belongs before '--'; it is a setting" ;;
    --config=?*) config=$argument ;;
    --*) fields+=("$argument") ;;
    *) mistake "${argument@Q}: expected flags of ${options[program]}, each with =, behind '--'" ;;
  esac
done
[[ -n $config ]] || mistake "--config: is not set; expected --config=configs/FILE.py behind '--'"

require_alone() { # WORKERS
  [[ ${options[program]} != train.compare || $1 == 1 ]] ||
    mistake "--program: train.compare runs on one worker and this TPU has $1; expected a TPU of one, such as v3-8, or" \
      "train.pretrain"
}

if [[ -n ${settings[type]} && ${options[program]} == train.compare ]]; then
  require tpu type
  require_alone "$(workers)"
fi
workdir=${settings[workdir]}
if ! $dry_run; then
  status=0
  states=$(worker_states) || status=$?
  ((status != 127)) || fail 1 "${settings[name]}: not set up; setup.sh first"
  ((status == 0)) || fail 1 "${settings[name]}: cannot be reached; status.sh shows its state"
  ! grep -q $'^wechsel-state\t[^\t]*\trunning\t' <<<"$states" ||
    fail 3 "${settings[name]}: a run is running already; logs.sh shows it, stop.sh ends it"
  require_alone "$(grep -c '^wechsel-state' <<<"$states")"
  require_shared "$(grep -c '^wechsel-state' <<<"$states")"
else
  on_workers all bash "$remote" state "$workdir"
fi
if [[ -n ${settings[bucket]} ]]; then
  on_workers 0 bash "$remote" restore "$workdir" "$(destination)" "${options[newest]}"
fi
# --config has to come before its fields, and the caller's fields win.
on_workers all bash "$remote" launch "$workdir" "${options[program]}" "${#environment[@]}" "${environment[@]}" \
  "$config" "${together[@]}" "${fields[@]}"
if [[ -n ${settings[bucket]} ]]; then
  on_workers 0 bash "$remote" sync start "$workdir" "$(destination)" "${options[keep]}" "${options[every]}"
fi
