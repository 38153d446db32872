#!/usr/bin/env bash
# Deletes the queued resource and its VMs, after asking.
# shellcheck source-path=SCRIPTDIR
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

usage() {
  cat <<TEXT
usage: delete.sh [settings] [--yes]

Deletes the queued resource with its VMs and their disks; it costs nothing from then on. What is not in the bucket or on a share
is lost: stop.sh, which ends with a copy to the bucket, or sync.sh push first.

  --yes                   don't ask

$settings_help
TEXT
}

switches=([yes]=false)
parse "$@"
require tpu
where
line=(gcloud compute tpus queued-resources delete "${settings[name]}" "${place[@]}" --force)
if ! $dry_run && ! ${switches[yes]}; then
  [[ -t 0 ]] || mistake "--yes: is not set, and there is nobody to ask; expected --yes"
  read -r -p "Deletes ${settings[name]} with its disks; what is not in the bucket is lost. Type its name to go on: " answer
  [[ $answer == "${settings[name]}" ]] || fail 1 "nothing deleted"
fi
run "${line[@]}"
