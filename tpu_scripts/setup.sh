#!/usr/bin/env bash
# Installs the code and what it needs on every worker.
# shellcheck source-path=SCRIPTDIR
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

usage() {
  cat <<TEXT
usage: setup.sh [settings] [--no-check]

Brings the code to every worker (a checkout here as a tarball, or a git URL), makes a virtual environment with Python 3.11 or
newer, runs pip install -e ".[train,tpu]", mounts the share and copies the inputs if there are some, and lets JAX count its
devices. The same command again updates code and inputs. Refuses while a run is running.

  --no-check              don't let JAX count the devices

$settings_help
TEXT
}

switches=([no-check]=false)
parse "$@"
require tpu
[[ -z ${settings[share]} ]] || require tpu share
[[ -z ${settings[inputs]} ]] || require tpu inputs
readonly uploaded=".wechsel-jax.tar.gz"
contents=(setup.py pyproject.toml README.md LICENSE wechsel_jax train configs tpu_scripts)

# Both refuse while a run is running: Python reads modules late.
# shellcheck disable=SC2016
readonly busy='if tmux has-session -t =wechsel-run 2>/dev/null; then
echo "a run is running here; stop.sh first" >&2; exit 3; fi'
# shellcheck disable=SC2016
readonly unpack="$busy"'
mkdir -p wechsel-jax && cd wechsel-jax && rm -rf wechsel_jax train configs tpu_scripts && tar -xzf "../$1"'
# shellcheck disable=SC2016
readonly clone="$busy"'
mkdir -p wechsel-jax && cd wechsel-jax && git init --quiet && git config remote.origin.url "$1" || exit
git config remote.origin.fetch "+refs/heads/*:refs/remotes/origin/*"
commit=FETCH_HEAD
if ! git fetch --quiet origin "$2" 2>/dev/null; then
  git fetch --quiet --force --tags origin || exit # no server finds the beginning of a commit'"'"'s name
  [[ $2 =~ ^[0-9a-f]{4,40}$ ]] && commit=$(git rev-parse --quiet --verify "$2^{commit}") || {
    echo "--ref: $2: $1 has none of this name; expected a branch, tag or commit; pass one that it has" >&2; exit 2; }
fi
rm -rf wechsel_jax train configs tpu_scripts && git checkout --quiet --force --detach "$commit"' # also over a tarball's files

upload() { # CHECKOUT
  local checkout=$1 place archive name
  for name in "${contents[@]}"; do
    [[ -e $checkout/$name ]] || mistake "source: $checkout: has no $name; expected a checkout of wechsel-jax or a git URL"
  done
  archive=${TMPDIR:-/tmp}/wechsel-jax.tar.gz
  if ! $dry_run; then
    archive=$(mktemp -d)/wechsel-jax.tar.gz
    # shellcheck disable=SC2064
    trap "rm -rf $(printf %q "${archive%/*}")" EXIT
  fi
  run tar -czf "$archive" -C "$checkout" --exclude=__pycache__ --exclude='*.egg-info' "${contents[@]}"
  where
  [[ ${settings[internal_ips]} == false ]] || place+=(--internal-ip)
  run gcloud compute tpus tpu-vm scp "$archive" "${settings[name]}:$uploaded" "${place[@]}" --worker=all
  on_workers all bash -c "$unpack" unpack "$uploaded"
}

source_=${settings[source]:-$(dirname "$here")}
if [[ $source_ =~ ^(https://|ssh://|git@) ]]; then
  [[ $source_ != *$'\n'* ]] || mistake "source: is ${source_@Q}; expected a git URL"
  check ref '^[A-Za-z0-9_][A-Za-z0-9._/-]*$' "a branch, tag or commit"
  on_workers all bash -c "$clone" clone "$source_" "${settings[ref]}"
elif [[ -d $source_ ]]; then
  upload "$source_"
else
  mistake "source: ${source_@Q}: no such directory; expected a checkout of wechsel-jax or a git URL (https://, ssh://, git@)"
fi
check=check
if ${switches[no-check]}; then check=no-check; fi
on_workers all bash "$remote" setup "$check" "${settings[share]}" "${settings[python]}" "${settings[inputs]%/}"
$dry_run || say "${settings[name]}: ready; launch.sh starts a run"
