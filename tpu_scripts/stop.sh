#!/usr/bin/env bash
# Ends the run: SIGTERM, so that it saves a checkpoint, and SIGKILL only after a while.
# shellcheck source-path=SCRIPTDIR
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

usage() {
  cat <<TEXT
usage: stop.sh [settings] [--grace=SECONDS]

Sends SIGTERM to the run on all workers, waits for its checkpoint and for the last copy to the bucket, and kills it after
--grace seconds. watch.sh does not start it again; launch.sh does. The TPU goes on costing until delete.sh.

  --grace=SECONDS         until SIGKILL (600)

$settings_help
TEXT
}

options=([grace]=600)
switches=([for-now]=false) # watch.sh: it will be launched again
parse "$@"
require tpu
check_number grace '^(0|[1-9][0-9]*)$' "a number of seconds"
mark=for-good
if ${switches[for-now]}; then mark=for-now; fi
on_workers all bash "$remote" stop "${options[grace]}" "$mark"
