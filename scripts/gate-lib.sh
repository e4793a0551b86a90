# shellcheck shell=bash
# Shared by scripts/gpu-gate and scripts/amd-report: steps with a log and a limit. Set `logs` and `failed=0` before.

# run NAME SECONDS COMMAND...: output to NAME.log, one line about it here; remembers a failure and goes on.
run() {
  local name=$1 limit=$2 start=$SECONDS status=0
  shift 2
  # shellcheck disable=SC2154 # logs: see above
  timeout --kill-after=10 "$limit" "$@" > "$logs/$name.log" 2>&1 || status=$?
  if [ "$status" -eq 0 ]; then
    printf '  ok      %-24s %4d s\n' "$name" $((SECONDS - start))
  else
    printf '  FAILED  %-24s %4d s  exit %d, %s\n' "$name" $((SECONDS - start)) "$status" "$logs/$name.log"
    tail -n 15 "$logs/$name.log" | sed 's/^/          /'
    # shellcheck disable=SC2034 # of the script
    failed=1
    return 1
  fi
}
