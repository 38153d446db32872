#!/usr/bin/env bash
# Copies a run to the bucket, once or from now on, or back from it.
# shellcheck source-path=SCRIPTDIR
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

usage() {
  cat <<TEXT
usage: sync.sh [settings] push | start | restore

  push                    copies checkpoints, metrics and export to the bucket now
  start                   does so every --every seconds while a run is running, and once more when it ends (launch.sh does this)
  restore                 brings the newest checkpoints and the rest of the run to a VM that has none (launch.sh does this)

Half-written checkpoints are left out. A checkpoint in the bucket counts only once complete/STEP there says that it is whole, of a
run below the workdir complete/RUN/STEP, and another file once complete/files names it.
Nothing in the bucket is removed unless --keep is given, and then only checkpoints that are neither on the VM nor among the
newest N whole ones there. Everything is copied by worker 0; with more than one worker the run has to lie on a share.

  --every=SECONDS         between two copies (600)
  --keep=N                checkpoints to keep in the bucket beside those on the VM; 0 keeps all (0)
  --newest=N              checkpoints to bring back (3)

$settings_help
TEXT
}

options=([every]=600 [keep]=0 [newest]=3)
verb=""
given=()
for argument in "$@"; do
  if [[ -z $verb && $argument =~ ^(push|start|restore)$ ]]; then verb=$argument; else given+=("$argument"); fi
done
parse "${given[@]}"
[[ -n $verb ]] || mistake "expected push, start or restore; see sync.sh --help"
require tpu workdir bucket
check_number every '^[1-9][0-9]*$' "a number of seconds"
check_number keep '^(0|[1-9][0-9]*)$' "a number of checkpoints"
check_number newest '^[1-9][0-9]*$' "a number of checkpoints"
workdir=${settings[workdir]}
if $dry_run; then
  echo "# on worker 0 this then runs, for each checkpoint STEP:"
  bash "$here/remote.sh" plan "${verb/start/push}" "$workdir" "$(destination)"
fi
case $verb in
  push) on_workers 0 bash "$remote" push "$workdir" "$(destination)" "${options[keep]}" ;;
  start) on_workers 0 bash "$remote" sync start "$workdir" "$(destination)" "${options[keep]}" "${options[every]}" ;;
  restore) on_workers 0 bash "$remote" restore "$workdir" "$(destination)" "${options[newest]}" ;;
esac
