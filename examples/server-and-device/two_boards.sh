#!/bin/sh
# A server and two simulated boards on this machine. Both get the same model and the same curve, and each ends at a
# point of its own. Minutes: the server trains the proxy meanwhile. Everything lands in this folder.
set -eu
port=${1:-8484}
url=http://127.0.0.1:$port

python "$(dirname "$0")/own_data.py" my.npz

wattune-server serve --store fleet --port "$port" --workers 2 &
server=$!
nano=
trap 'kill $server $nano 2>/dev/null || :' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
until python -c "import urllib.request as web; web.urlopen('$url/v1/models/resnet8-digits')" 2>/dev/null
do
    kill -0 $server # or it has ended, and said why
    sleep 1
done

# Caps: half-way between the least and the most that this training draws on the board.
wattune run --server "$url" --model resnet8-digits --data my.npz --device sim:jetson-nano --cap 4.6W --set name=nano -o nano &
nano=$!
wattune run --server "$url" --model resnet8-digits --data my.npz --device sim:jetson-agx-orin --cap 18.8W --set name=orin -o orin
wait $nano
