# shellcheck shell=bash
# What the scripts share: settings, their checks, prices, and how a gcloud line is printed or run. Source it, don't run it.

if ((BASH_VERSINFO[0] * 100 + BASH_VERSINFO[1] < 404)); then
  echo "${0##*/}: bash $BASH_VERSION is too old; expected 4.4 or newer; install a newer bash" >&2
  exit 2
fi
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
program=${0##*/}
readonly here program
readonly pricing=https://cloud.google.com/tpu/pricing
readonly prices_source="approximate US list prices of November 2026, which may have changed: $pricing"
# shellcheck disable=SC2034 # the scripts read it
readonly remote="wechsel-jax/tpu_scripts/remote.sh" # on the workers, from the home directory

# Settings: from --flag=value (underscores become hyphens) or a line name=value of the file that --settings names.
declare -A settings=(
  [name]="" [zone]="" [project]="" [type]="" [runtime_version]="" [spot]="true" [bucket]="" [inputs]="" [workdir]=""
  [source]="" [ref]="HEAD" [python]="" [share]="" [network]="" [subnetwork]="" [service_account]="" [internal_ips]="false"
)
# What a script takes beside them: options have a value, switches are true or false, arguments follow "--".
declare -A options=() switches=()
# shellcheck disable=SC2034
arguments=()
dry_run=false

# shellcheck disable=SC2034
readonly settings_help='Settings, each a flag or a line name=value of a file (hyphens become underscores there):
  --settings=FILE         the file; flags win over it
  --name=NAME             of the TPU: the queued resource and its node
  --zone=ZONE             e.g. us-central1-a
  --project=PROJECT       Google Cloud project
  --type=TYPE             v2-8, v3-8, v4-8, v5litepod-8 (v5e), v5p-8, v6e-8 and larger ones
  --runtime-version=V     software of the VM; the usual one for the type if left out
  --spot, --on-demand     cheap and preemptible (the default), or neither
  --bucket=gs://B[/DIR]   where checkpoints and metrics are kept; a run lies at gs://B/DIR/WORKDIR
  --inputs=gs://B/DIR     model and prepared data; setup.sh copies it to inputs/ on every worker
  --workdir=DIR           of the run, on the workers, from the checkout (runs/german)
  --source=DIR|URL        code to install: a checkout here (this one if left out), or a git URL
  --ref=REF               branch, tag or commit of a git URL
  --python=PATH           on the workers, 3.11 or newer; found or installed if left out
  --share=HOST:/PATH      NFS export that all workers mount as shared/ (needed for more than one worker)
  --network, --subnetwork, --service-account, --internal-ips
                          as gcloud takes them
  --dry-run               print the gcloud lines and run nothing
  --help                  this text'

fail() { # STATUS MESSAGE, one line of one or more words
  local status=$1
  shift
  printf '%s: %s\n' "$program" "$*" >&2
  exit "$status"
}

mistake() { fail 2 "$*"; }

say() { printf '%s\n' "$*" >&2; }

# What a script is given is shown by --dry-run and logs, and stands in command lines on the workers, which others there can see.
refuse_secrets() { # WORDS...
  local word
  for word in "$@"; do
    # A number behind the host is its port; ssh's user alone is no secret.
    if [[ $word =~ [Hh][Tt][Tt][Pp][Ss]?://[^/]*@ || $word =~ ://[^/@]*:([^/]*|[0-9]*[^0-9/@][^@]*)@ ]]; then
      word="${word%%://*}://***@${word##*@}"
      mistake "${word//$'\n'/ }: has a password or token in its URL; expected none; use an SSH URL with a key, a public URL or" \
        "a local path"
    elif [[ $word =~ ^--env=([A-Za-z0-9_]*(TOKEN|KEY|SECRET|PASSWORD))= ]]; then
      mistake "--env: ${BASH_REMATCH[1]}: is a secret by its name, which others could see; expected none; log in on the workers" \
        "(wandb login, hf auth login)"
    fi
  done
}

read_settings() { # FILE
  local file=$1 line name value number=0
  [[ -f $file && -r $file ]] || mistake "--settings: $file: no such file; expected lines name=value"
  while IFS= read -r line || [[ -n $line ]]; do
    number=$((number + 1))
    line=${line%$'\r'}
    [[ $line =~ ^[[:space:]]*(#.*)?$ ]] && continue
    [[ $line == *=* ]] || mistake "$file: line $number: no '='; expected name=value"
    name=${line%%=*} value=${line#*=}
    name=${name//[[:space:]]/}
    [[ -n $name && -v settings[$name] ]] ||
      mistake "$file: line $number: no setting '$name'; expected one of: $(setting_names)"
    refuse_secrets "$value"
    settings[$name]=$value
  done <"$file"
}

setting_names() { printf '%s\n' "${!settings[@]}" | sort | paste -sd ' ' -; }

# Reads the command line into settings, options, switches and arguments.
parse() {
  local flag name value given=("$@")
  while (($#)); do # the file first, so that flags win wherever they stand
    case $1 in
      --) break ;;
      --settings=*) read_settings "${1#*=}" ;;
      --settings) [[ $# -gt 1 ]] || mistake "--settings: no value; expected a file" && read_settings "$2" ;;
    esac
    shift
  done
  set -- "${given[@]}"
  while (($#)); do
    flag=$1
    shift
    case $flag in
      --)
        # shellcheck disable=SC2034
        arguments=("$@")
        break
        ;;
      --help | -h) usage && exit 0 ;;
      --dry-run) dry_run=true && continue ;;
      --spot) settings[spot]=true && continue ;;
      --on-demand) settings[spot]=false && continue ;;
      --internal-ips) settings[internal_ips]=true && continue ;;
      --settings=*) continue ;;
      --settings) shift && continue ;;
      --*) ;;
      *) mistake "unexpected argument '$flag'; see $program --help" ;;
    esac
    name=${flag%%=*} name=${name#--}
    if [[ -v switches[$name] ]]; then
      [[ $flag != *=* ]] || mistake "--$name: takes no value; see $program --help"
      switches[$name]=true
      continue
    fi
    if [[ $flag == *=* ]]; then
      value=${flag#*=}
    else
      (($#)) || mistake "$flag: no value; see $program --help"
      value=$1
      shift
    fi
    if [[ -n $name && -v options[$name] ]]; then
      options[$name]=$value
    elif [[ $name =~ ^[a-z-]+$ && -v settings[${name//-/_}] ]]; then
      settings[${name//-/_}]=$value
    else
      mistake "--$name: no such flag; see $program --help"
    fi
  done
}

check() { # NAME PATTERN EXPECTED
  local value=${settings[$1]}
  [[ -n $value ]] || mistake "$1: is not set; expected $3; pass --${1//_/-}=... or put it in the settings file"
  [[ $value =~ $2 && $value != *$'\n'* ]] || mistake "$1: is ${value@Q}; expected $3"
}

check_number() { # OPTION PATTERN EXPECTED
  [[ ${options[$1]} =~ $2 ]] || mistake "--$1: is ${options[$1]@Q}; expected $3"
}

# Checks what names the TPU, and what else is asked for.
require() { # tpu [type] [workdir] [bucket] [inputs] [share]
  local what
  check name '^[a-z]([a-z0-9-]{0,61}[a-z0-9])?$' "lower-case letters, digits and hyphens"
  check zone '^[a-z]+-[a-z]+[0-9]+-[a-z]$' "a zone such as us-central1-a"
  check project '^([a-z0-9.-]+:)?[a-z][a-z0-9-]{4,28}[a-z0-9]$' "a Google Cloud project's id"
  for what in "$@"; do
    case $what in
      type) require_type ;;
      workdir) require_workdir ;;
      bucket | inputs)
        check "$what" '^gs://[a-z0-9][a-z0-9._-]+[a-z0-9](/[^][*?#]*)?$' "gs://BUCKET or gs://BUCKET/DIR without wildcards"
        ;;
      share) check share '^[A-Za-z0-9.-]+:/[A-Za-z0-9._/-]*$' "HOST:/PATH of an NFS export" ;;
    esac
  done
  [[ ${settings[spot]} =~ ^(true|false)$ ]] || mistake "spot: is ${settings[spot]@Q}; expected true or false"
  [[ ${settings[internal_ips]} =~ ^(true|false)$ ]] ||
    mistake "internal_ips: is ${settings[internal_ips]@Q}; expected true or false"
  $dry_run || command -v gcloud >/dev/null ||
    mistake "gcloud: not found; expected Google Cloud's command line on PATH; see https://cloud.google.com/sdk/docs/install"
}

require_type() {
  settings[type]=${settings[type]/#v5e-/v5litepod-} # what people call it, and what Cloud TPU calls it
  check type '^v[0-9]+[a-z]*-[0-9]+$' "a type such as v3-8 or v5litepod-8"
  if [[ -z ${settings[runtime_version]} ]]; then
    settings[runtime_version]=$(price_row 5)
    [[ -n ${settings[runtime_version]} ]] ||
      mistake "runtime_version: is not set, and ${settings[type]} is not known here; pass it"
  fi
  check runtime_version '^[A-Za-z0-9][A-Za-z0-9._-]*$' "a version such as tpu-ubuntu2204-base"
}

require_workdir() {
  settings[workdir]=${settings[workdir]%/}
  check workdir '^[^-]' "a directory such as runs/german"
  # gcloud storage would read these as wildcards.
  [[ ${settings[workdir]} != *[]\[*?\#]* ]] ||
    mistake "workdir: is ${settings[workdir]@Q}; expected a path without [ ] * ? #"
}

# The workers of a slice write one checkpoint together, so their workdir has to be one directory.
require_shared() { # WORKERS
  [[ $1 == 1 || ${settings[workdir]} =~ ^(\./)?shared/ || ${settings[workdir]} == /* ]] ||
    mistake "workdir: is ${settings[workdir]@Q}, on each worker's own disk; with $1 workers" \
      "expected shared/... and --share=HOST:/PATH (NFS)"
}

# How many VMs a type has: up to number 8 one, then one for 8 cores or 4 chips.
workers() {
  local number=${settings[type]##*-} units
  units=$(price_row 2)
  if ((number <= 8)); then echo 1; else echo $((number / (4 * ${units:-2}))); fi
}

# Where the run lies in the bucket.
destination() {
  local workdir=${settings[workdir]#./}
  printf '%s/%s' "${settings[bucket]%/}" "${workdir#/}"
}

# Writes the settings as flags into the array `flags`, for another script.
settings_flags() {
  local name
  flags=()
  $dry_run && flags+=(--dry-run)
  for name in "${!settings[@]}"; do
    case $name in
      spot) if [[ ${settings[spot]} == true ]]; then flags+=(--spot); else flags+=(--on-demand); fi ;;
      internal_ips) if [[ ${settings[internal_ips]} == true ]]; then flags+=(--internal-ips); fi ;;
      *) if [[ -n ${settings[$name]} ]]; then flags+=("--${name//_/-}=${settings[$name]}"); fi ;;
    esac
  done
}

price_row() { # COLUMN
  awk -F '\t' -v type="${settings[type]}" -v column="$1" '
    !/^#/ && ($1 == type || $1 == substr(type, 1, match(type, /-[0-9]+$/) - 1)) { print $column; exit }' "$here/prices.tsv"
}

chips() {
  local units
  units=$(price_row 2)
  [[ -z $units ]] || echo $((${settings[type]##*-} / units))
}

# Dollars an hour of the whole TPU, empty where the type is not known.
price() { # true (spot) | false
  local chip count
  if [[ $1 == true ]]; then chip=$(price_row 4); else chip=$(price_row 3); fi
  count=$(chips)
  [[ -z $chip ]] || awk -v a="$chip" -v b="$count" 'BEGIN { printf "%.2f\n", a * b }'
}

print_price() {
  local spot on_demand tier="on demand"
  spot=$(price true) on_demand=$(price false)
  if [[ -z $on_demand ]]; then
    echo "# price of ${settings[type]}: not known here; see $pricing"
    return
  fi
  if [[ ${settings[spot]} == true ]]; then tier="spot"; fi
  echo "# ${settings[type]}, $(chips) chips, $tier: about \$$(price "${settings[spot]}") an hour" \
    "(spot \$$spot, on demand \$$on_demand)"
  echo "# $prices_source"
}

print_command() { # WORDS...
  local line
  printf -v line '%q ' "$@"
  printf '%s\n' "${line% }"
}

run() { # WORDS...
  if $dry_run; then print_command "$@"; else "$@"; fi
}

where() { place=("--zone=${settings[zone]}" "--project=${settings[project]}" --quiet); }

# Runs words on workers (0, 1-3, all) and returns their exit status: the first that is not 0.
on_workers() { # WORKERS WORDS...
  local workers=$1 words place
  shift
  printf -v words '%q ' "$@"
  where
  [[ ${settings[internal_ips]} == false ]] || place+=(--internal-ip)
  run gcloud compute tpus tpu-vm ssh "${settings[name]}" "${place[@]}" "--worker=$workers" "--command=${words% }"
}

# Prints a line for each worker (see `state` in remote.sh); what gcloud says beside that only where it fails.
worker_states() {
  local errors status=0
  errors=$(mktemp)
  on_workers all bash "$remote" state "${settings[workdir]}" 2>"$errors" || status=$?
  ((status == 0 || status == 127)) || cat "$errors" >&2
  rm -f "$errors"
  return "$status"
}

# Prints the state of the queued resource: ABSENT, UNKNOWN (gcloud failed; its words go to stderr), or Cloud TPU's word for it.
resource_state() {
  local place line errors output
  where
  line=(gcloud compute tpus queued-resources describe "${settings[name]}" "${place[@]}" '--format=value(state.state)')
  errors=$(mktemp)
  if output=$("${line[@]}" 2>"$errors"); then
    echo "${output:-UNKNOWN}"
  elif grep -qi 'NOT_FOUND\|was not found' "$errors"; then
    echo ABSENT
  else
    cat "$errors" >&2
    echo UNKNOWN
  fi
  rm -f "$errors"
}

# The words of the script that reads this file.
refuse_secrets "$@"
