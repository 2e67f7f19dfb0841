#!/bin/sh
# A Hocket worker in POSIX shell, with curl and jq: change `work`, and keep the rest.
#
#   HOCKET_URL=http://127.0.0.1:7315 HOCKET_TOKEN=hkt_… HOCKET_KINDS=acme.* sh worker.sh
#
# It counts leases in whole seconds: give it 3 or more.
set -u

# Your work: it reads a payload and prints a result, both JSON. To fail, it prints why on stderr and exits with 1. It
# gets SIGTERM once the job is cancelled or another worker's.
work() {
  payload=$(cat)
  sleep "$(printf %s "$payload" | jq '(.ms // 0) / 1000')" &
  trap "kill $!; exit 1" TERM
  wait $!
  printf %s "$payload" | jq -er '.fail // empty' >&2 && exit 1
  printf %s "$payload" | jq .echo
}

url=${HOCKET_URL%/} lease_s=$((${HOCKET_LEASE_MS:-30000} / 1000)) wait_ms=${HOCKET_WAIT_MS:-20000} room=${HOCKET_COUNT:-4}
worker=shell-$$-$(od -An -N8 -tx1 /dev/urandom | tr -d ' \n') # names this process alone
kinds=[\"$(printf %s "$HOCKET_KINDS" | sed 's/,/","/g')\"]
# Files: holds/JOB says what is held; in.JOB has its payload, pid.JOB its process, until.JOB the end of its lease.
dir=$(mktemp -d) && cd "$dir" && mkdir holds || exit 1
trap 'rm -rf "$dir"' EXIT
(umask 077 && printf 'Authorization: Bearer %s\nContent-Type: application/json\n' "$HOCKET_TOKEN" >headers)

# ask NAME PATH SECONDS: sends body.NAME and puts the answer into answer.NAME. Gives 0 for an answer, 1 for a final
# refusal, and 2 if no whole answer came: then the server may have done its part, and the same request is repeated.
ask() {
  curl -s -o "answer.$1" -w '%{http_code}' -m "$3" -H @headers --data-binary "@body.$1" "$url/v1/jobs/$2" >"status.$1" &
  curl=$!
  wait $curl || return 2
  case $(cat "status.$1") in 2??) return 0 ;; 429 | 5??) return 2 ;; *) return 1 ;; esac
}

stop() { # the job is cancelled, or no longer this worker's
  rm -f "holds/$1"
  [ -e "pid.$1" ] && kill "$(cat "pid.$1")" 2>/dev/null
}

# Renews all holds with one request. Their leases count from before it, so that no clocks are compared.
renew() {
  held=$(cat holds/* 2>/dev/null)
  [ "$held" ] || return
  asked=$(date +%s)
  printf '{"worker": "%s", "holds": [%s]}' "$worker" "${held%,}" >"body.$1"
  if ask "$1" renew $(((lease_s + 2) / 3)); then
    jq -r '.drain, (.holds[] | .state, .job_id, ((.lease_ms // 0) / 1000 | floor))' "answer.$1" >"list.$1"
    { read -r drain && while read -r state && read -r job && read -r seconds; do
      if [ "$state" = held ]; then echo $((asked + seconds)) >"until.$job"; else stop "$job"; fi
    done; } <"list.$1"
    [ "$drain" = true ] && kill $$
  fi
  # A job that came meanwhile is not judged: its answer may be late, and then another renewal is under way.
  now=$(date +%s)
  for job in $(jq -r '.holds[].job_id' "body.$1"); do
    [ -e "holds/$job" ] && [ "$now" -ge "$(cat "until.$job")" ] 2>/dev/null && stop "$job"
  done
}

run() { # JOB FENCE
  work <"in.$1" >"out.$1" 2>"err.$1" &
  echo $! >"pid.$1"
  if wait $!; then
    how=complete && printf '{"fence": %s, "result": %s}' "$2" "$(cat "out.$1")" >"body.$1"
  else
    how=fail && jq -cRs --argjson fence "$2" '{fence: $fence, error: ., retry: false}' "err.$1" >"body.$1"
  fi
  pause=1
  while [ -e "holds/$1" ]; do
    ask "$1" "$1/$how" 10
    case $? in
    0) break ;;
    1) echo "refused: $(cat "answer.$1")" >&2 && break ;; # final: another worker has the job
    esac
    sleep $pause && pause=$((pause < 5 ? pause + 1 : 5))
  done
  rm -f "holds/$1" ./*."$1"
}

# The renewals stop with this process, even if it is killed: then the leases end, and other workers get the jobs.
while sleep $((lease_s / 3)) && kill -0 $$ 2>/dev/null; do renew renewal; done &
renewing=$!
draining='' code=0 curl=''
trap 'draining=1 && [ "$curl" ] && kill "$curl" 2>/dev/null' TERM INT
while [ ! "$draining" ]; do
  free=$((room - $(ls holds | wc -l)))
  [ $free -eq 0 ] && sleep 0.2 && continue
  # A repeated request has the same claim_id, and so gets the same jobs.
  claim_id=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n') asked=$(date +%s)
  printf '{"worker": "%s", "claim_id": "%s", "kinds": %s, "count": %s, "lease_ms": %s, "wait_ms": %s}' \
    "$worker" "$claim_id" "$kinds" $free $((lease_s * 1000)) "$wait_ms" >body.claim
  pause=1
  until ask claim claim $((wait_ms / 1000 + 10)); do
    [ $? -eq 1 ] && echo "the server refuses claims: $(cat answer.claim)" >&2 && draining=1 code=1
    [ "$draining" ] && break 2 # The connection has ended with the request, and what was claimed goes back.
    sleep $pause && pause=$((pause < 5 ? pause + 1 : 5))
  done
  jq -r '.drain, (.jobs[] | .job_id, .fence, (.lease_ms / 1000 | floor), (.payload | tojson))' answer.claim >list.claim
  new=''
  { read -r drain && while read -r job && read -r fence && read -r seconds && read -r payload; do
    printf %s "$payload" >"in.$job" && echo $((asked + seconds)) >"until.$job"
    printf '{"job_id": "%s", "fence": %s},' "$job" "$fence" >"holds/$job"
    new="$new $job:$fence"
  done; } <list.claim
  [ "$drain" = true ] && draining=1
  # Nobody knows how long the answer was under way, and a renewal is short.
  [ "$new" ] && [ $(($(date +%s) - asked)) -gt $((lease_s / 3)) ] && renew late
  for each in $new; do
    [ -e "holds/${each%:*}" ] && run "${each%:*}" "${each#*:}" &
  done
done
while [ "$(ls holds)" ]; do sleep 0.2; done
kill $renewing
printf '{"worker": "%s"}' "$worker" >body.goodbye
ask goodbye goodbye 5 || ask goodbye goodbye 5
exit $code
