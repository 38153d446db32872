#!/usr/bin/env bash
# Asks for a TPU as a queued resource and waits until it is there.
# shellcheck source-path=SCRIPTDIR
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

usage() {
  cat <<TEXT
usage: create.sh [settings] [--no-wait] [--valid-until=DURATION]

Asks Cloud TPU for a queued resource with one node, both called NAME, and waits until it is ACTIVE. A request that waits costs
nothing; from ACTIVE on it costs what is printed. One that is there already is waited for and not asked for again.

  --no-wait               don't wait; status.sh shows the state
  --valid-until=DURATION  give up when it could not be had within that time (6h, 2d); it becomes FAILED then
  --poll=SECONDS          between two looks (30)

$settings_help
TEXT
}

options=([valid-until]="" [poll]=30)
switches=([no-wait]=false)
parse "$@"
require tpu type
check_number poll '^(0|[1-9][0-9]*)$' "a number of seconds"
[[ ${options[valid-until]} =~ ^([0-9]+[smhd])?$ ]] || mistake "--valid-until: is ${options[valid-until]@Q}; expected e.g. 6h"

request() {
  local place line
  where
  line=(gcloud compute tpus queued-resources create "${settings[name]}" "${place[@]}" "--node-id=${settings[name]}"
    "--accelerator-type=${settings[type]}" "--runtime-version=${settings[runtime_version]}")
  [[ ${settings[spot]} == false ]] || line+=(--spot)
  [[ ${settings[internal_ips]} == false ]] || line+=(--internal-ips)
  [[ -z ${settings[network]} ]] || line+=("--network=${settings[network]}")
  [[ -z ${settings[subnetwork]} ]] || line+=("--subnetwork=${settings[subnetwork]}")
  [[ -z ${settings[service_account]} ]] || line+=("--service-account=${settings[service_account]}")
  [[ -z ${options[valid-until]} ]] || line+=("--valid-until-duration=${options[valid-until]}")
  run "${line[@]}"
}

await() {
  local state last=""
  while true; do
    state=$(resource_state)
    [[ $state == "$last" ]] || say "$(date -u +%H:%M:%SZ) ${settings[name]}: $state"
    last=$state
    case $state in
      ACTIVE) return ;;
      FAILED | SUSPENDING | SUSPENDED)
        fail 1 "${settings[name]}: is $state and will not become ACTIVE; delete.sh removes the request, then create again"
        ;;
      ABSENT) fail 1 "${settings[name]}: the request is gone; create again" ;;
    esac
    sleep "${options[poll]}"
  done
}

print_price
if $dry_run; then
  request
  where
  ${switches[no-wait]} || {
    echo "# until it prints ACTIVE:"
    print_command gcloud compute tpus queued-resources describe "${settings[name]}" "${place[@]}" '--format=value(state.state)'
  }
  exit 0
fi
state=$(resource_state)
case $state in
  ABSENT) request || fail 1 "${settings[name]}: the request was not taken; gcloud says why above" ;;
  UNKNOWN) fail 1 "${settings[name]}: its state cannot be read; gcloud says why above" ;;
  *) say "${settings[name]}: there already ($state)" ;;
esac
${switches[no-wait]} || await
