#!/usr/bin/python3
"""Fetches a page through the proxy of the call, which adds the credential."""
import json
import sys
import urllib.error
import urllib.request

try:
    with urllib.request.urlopen(json.load(sys.stdin)["url"], timeout=15) as page:
        json.dump({"status": page.status, "body": page.read().decode()}, sys.stdout)
except urllib.error.HTTPError as e:
    json.dump({"status": e.code, "body": e.read().decode()}, sys.stdout)
