#!/bin/sh
# Reads the text of a scanned page, or of the pages of a PDF, in the image ocr.
set -eu
fail() {
	jq -nc --arg code "$1" --arg pointer "$2" --arg message "$3" '{_error: {code: $code, pointer: $pointer, message: $message}}'
	exit 1
}
cat >/tmp/input
language=$(jq -r '.language // "eng"' /tmp/input)
limit=$(jq -r '.max_pages // 10' /tmp/input)
[ -f "/usr/share/tesseract-ocr/5/tessdata/$language.traineddata" ] || fail invalid_input /language "the image has no data of this language"
jq -r .source_b64 /tmp/input | base64 -d >/tmp/source 2>/tmp/errors || fail invalid_input /source_b64 "not base64"
pages=1
case $(head -c 5 /tmp/source | tr -d '\0') in
%PDF-)
	pdfinfo /tmp/source >/tmp/info 2>/tmp/errors || :
	pages=
	while read -r name value; do
		[ "$name" != Pages: ] || pages=$value
	done </tmp/info
	[ -n "$pages" ] || fail invalid_input /source_b64 "the PDF cannot be read: $(head -c 300 /tmp/errors)"
	pdftoppm -r 200 -png -l "$limit" /tmp/source /tmp/page 2>/tmp/errors || fail invalid_input /source_b64 "the PDF cannot be read: $(head -c 300 /tmp/errors)"
	;;
*) mv /tmp/source /tmp/page-1 ;;
esac
: >/tmp/text
all=$(ls /tmp/page-* | wc -l)
read=0
for page in /tmp/page-*; do
	printf '{"_progress":{"percent":%d,"message":"page %d of %d"}}\n' $((read * 100 / all)) $((read + 1)) "$all" >&2
	read=$((read + 1))
	OMP_THREAD_LIMIT=1 tesseract "$page" stdout -l "$language" >>/tmp/text 2>/tmp/errors || fail invalid_input /source_b64 "not a PDF or a picture: $(head -c 300 /tmp/errors)"
done
jq -Rsc --arg language "$language" --argjson pages "$pages" --argjson limit "$limit" \
	'{text: ., language: $language, pages: $pages, truncated: ($pages > $limit)}' /tmp/text
