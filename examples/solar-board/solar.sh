#!/bin/sh
# Train from a battery and a panel; run it again to resume. Everything lands in the folder `solar`.
set -eu
device=${DEVICE:-sim:jetson-nano}
set -- --battery "${BATTERY:-80Wh}" --reserve "${RESERVE:-20%}" --panel "${PANEL:-20W}" --at "${PLACE:-52.52,13.40}"
if [ -n "${CHARGE:-}" ]; then
    set -- "$@" --charge "$CHARGE"
fi
if [ -e solar/training.json ]; then
    echo "solar/training.json is there: training has ended"
elif [ -d solar ]; then
    wattune run --output solar --resume
else
    wattune run --device "$device" --cap "${CAP:-5W}" "$@" --strategy staircase --seeds 1 --output solar
fi
