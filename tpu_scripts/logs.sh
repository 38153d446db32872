#!/usr/bin/env bash
# Shows the end of the run's log.
# shellcheck source-path=SCRIPTDIR
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

usage() {
  cat <<TEXT
usage: logs.sh [settings] [--worker=0|1-3|all] [--lines=N] [--follow]

  --worker=WORKERS        whose (0); lines of more than one begin with the worker's host name
  --lines=N               how many (50)
  --follow                go on until Ctrl-C, which does not touch the run

$settings_help
TEXT
}

options=([worker]=0 [lines]=50)
switches=([follow]=false)
parse "$@"
require tpu
check_number worker '^([0-9]+([,-][0-9]+)*|all)$' "0, 1-3, 0,2 or all"
check_number lines '^(0|[1-9][0-9]*)$' "a number of lines"
mode=end prefix=plain
if ${switches[follow]}; then mode=follow; fi
if [[ ! ${options[worker]} =~ ^[0-9]+$ ]]; then prefix=prefix; fi
on_workers "${options[worker]}" bash "$remote" logs "${options[lines]}" "$mode" "$prefix"
