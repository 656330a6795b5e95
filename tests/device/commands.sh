#!/usr/bin/env bash
# The tilelamp command on a device. Usage: commands.sh TILELAMP
set -euo pipefail
tilelamp=$1
device=$("$tilelamp" info --json | grep -o 'gpu:[0-9]*' | tail -n 1) || { echo "skipped: no device"; exit 77; }

fail() {
    echo "FAIL: $*"
    exit 1
}
problem="hq6 hk2 q100 k130 d40 f16 causal window:90,0 data:normal"
for policy in high int8 "band:0.5 smooth-k" "sptrans:0.5 state=fp16" "int8 pv=int8" "lamp:fmt=e4m3/e4m11"; do
    host=$("$tilelamp" run "$problem" --policy "$policy" --isa scalar --json)
    there=$("$tilelamp" run "$problem" --policy "$policy" --isa scalar --device "$device" --json)
    [[ $host == *'"kernel": "tlamp_fwd_'*__scalar* && $there == *'"kernel": "tlamp_fwd_'*__portable* ]] ||
        fail "$policy: the kernel is not the device's"
    for field in max_abs_error max_lse_error; do
        [[ $(grep -o "\"$field\": *[^,}]*" <<<"$host") == $(grep -o "\"$field\": *[^,}]*" <<<"$there") ]] ||
            fail "$policy: $field is not the host's"
    done
done
"$tilelamp" compare "$problem" --device "$device" >/dev/null || fail "compare --device $device"
status=0
"$tilelamp" run "$problem" --policy high --device gpu:60000 2>/dev/null || status=$?
((status == 3)) || fail "a device that is not there: exit $status, not 3"
status=0
said=$("$tilelamp" bench --quick --device "$device" 2>&1) || status=$?
((status == 3)) && [[ $said == *"dev gpu bench"* ]] || fail "bench --device $device: exit $status, not 3, with a reason: $said"
echo "passed on $device"
