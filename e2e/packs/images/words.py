#!/usr/bin/env python3
import collections, json, sys
text = json.load(sys.stdin)["text"]
json.dump({"words": dict(collections.Counter(text.lower().split()))}, sys.stdout)
