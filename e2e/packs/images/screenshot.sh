#!/bin/sh
# Takes a screenshot of a page that is given as HTML, without a network.
set -eu
jq -r .html >/tmp/page.html
chromium-headless-shell --no-sandbox --disable-gpu --user-data-dir=/tmp/profile \
	--window-size=400,300 --screenshot=/tmp/page.png file:///tmp/page.html >/dev/null 2>/tmp/errors || { cat /tmp/errors >&2; exit 1; }
base64 -w0 /tmp/page.png | jq -R '{png: .}'
