#!/bin/sh
# Reads the first page of a PDF from a picture of it, without a network.
set -eu
jq -r .pdf | base64 -d >/tmp/in.pdf
pdftoppm -r 200 -png -singlefile /tmp/in.pdf /tmp/page
tesseract /tmp/page.png stdout 2>/tmp/errors | jq -Rs '{text: .}'
