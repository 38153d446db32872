#!/usr/bin/env bash
# Shows the state of the TPU and of the run.
# shellcheck source-path=SCRIPTDIR
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

usage() {
  cat <<TEXT
usage: status.sh [settings]

Prints the queued resource's state, what it costs an hour (with --type), and for every worker what the run does: running,
exited, stopped (by stop.sh), died (without a status: killed, or the VM restarted), idle or unprepared; its exit status, step, newest
checkpoint and the last line of its log.

$settings_help
TEXT
}

parse "$@"
require tpu workdir
workdir=${settings[workdir]}
if $dry_run; then
  where
  print_command gcloud compute tpus queued-resources describe "${settings[name]}" "${place[@]}" '--format=value(state.state)'
  on_workers all bash "$remote" state "$workdir"
  exit 0
fi
state=$(resource_state)
[[ $state != UNKNOWN ]] || fail 1 "${settings[name]}: its state cannot be read; gcloud says why above"
echo "${settings[name]}: $state"
if [[ -n ${settings[type]} ]]; then
  require_type
  print_price
fi
[[ $state == ACTIVE ]] || exit 0
status=0
lines=$(worker_states) || status=$?
if ((status == 127)); then
  echo "not set up; setup.sh first"
elif ((status)); then
  fail 1 "${settings[name]}: cannot be reached; gcloud says why above"
fi
while IFS=$'\t' read -r tag host state code step saved last; do
  [[ $tag == wechsel-state ]] || continue
  echo "$host: $state, exit status $code, step $step, newest checkpoint $saved"
  echo "  $last"
done <<<"$lines"
