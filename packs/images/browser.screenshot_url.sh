#!/bin/sh
# Takes a screenshot of a page with headless Chromium, in the image chromium. All requests go
# through the proxy of the call, which verifies the certificates of servers; Chromium does not
# verify the proxy's own.
set -eu
fail() {
	jq -nc --arg code "$1" --arg pointer "$2" --arg message "$3" '{_error: {code: $code, pointer: $pointer, message: $message}}'
	exit 1
}
cat >/tmp/input
url=$(jq -r .url /tmp/input)
width=$(jq -r '.width // 1280' /tmp/input)
height=$(jq -r '.height // 800' /tmp/input)
wait=$(jq -r '.wait_ms // 3000' /tmp/input)
case $url in
http://* | https://*) ;;
*) fail invalid_input /url "want an HTTP or HTTPS address" ;;
esac
run() {
	chromium-headless-shell --no-sandbox --disable-gpu --disable-dev-shm-usage --user-data-dir=/tmp/profile --proxy-server="${HTTP_PROXY:?}" \
		--proxy-bypass-list='<-loopback>' --ignore-certificate-errors --hide-scrollbars --virtual-time-budget="$wait" --window-size="$width,$height" "$@" 2>/tmp/errors
}
run --screenshot=/tmp/page.png "$url" >/tmp/out || fail handler_failed "" "Chromium failed: $(tail -c 300 /tmp/errors)"
[ -s /tmp/page.png ] || fail handler_failed /url "the page could not be loaded: $(tail -c 300 /tmp/errors)"
base64 -w0 /tmp/page.png | jq -Rc --arg url "$url" --argjson size "$(wc -c </tmp/page.png)" --argjson width "$width" --argjson height "$height" \
	'{url: $url, png_b64: ., size: $size, width: $width, height: $height}'
