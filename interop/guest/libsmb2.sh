#!/bin/sh
# Uses a share with smb2-ls and smb2-cp of libsmb2, and prints how each step ended.
#
#   libsmb2.sh SERVER SHARE USER PASSWORD
server=$1 share=$2 user=$3 password=$4
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
printf ':%s:%s\n' "$user" "$password" >"$scratch/ntlm"
export NTLM_USER_FILE="$scratch/ntlm"
# Without a timeout, libsmb2 gives up if the second of the clock changes while it connects.
at="smb://$user@$server/$share"

step() {
  name=$1; shift
  if "$@" >"$scratch/log" 2>&1; then echo "$name ok"; else echo "$name failed"; cat "$scratch/log" >&2; fi
}

lists() { smb2-ls "$at/?timeout=60" >"$scratch/list" && grep -q "$1" "$scratch/list"; }
# smb2-cp ends with 0 if it fails, so the files are compared.
there_and_back() {
  head -c "$1" /dev/urandom >"$scratch/f$1"
  smb2-cp "$scratch/f$1" "$at/c$1?timeout=60"
  lists "c$1 .*[^0-9]$1" && smb2-cp "$at/c$1?timeout=60" "$scratch/b$1" && cmp "$scratch/f$1" "$scratch/b$1"
}

step list-empty lists '\.\.'
for size in 1 4095 65537 1048576 3145729; do step "file-$size" there_and_back "$size"; done
