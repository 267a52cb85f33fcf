package hostpath

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestStrip(t *testing.T) {
	for in, want := range map[string]string{
		"open /var/lib/binnacle/audit/tile/0/x001: no such file or directory": "open x001: no such file or directory",
		"fork/exec /tmp/packs/upper: permission denied":                       "fork/exec upper: permission denied",
		`rename "/home/a/b" "/home/a/c": busy`:                                `rename "b" "c": busy`,
		"GET /api/v1/calls/c-1 has its end":                                   "GET /api/v1/calls/c-1 has its end",
		"at http://host/var/x":                                                "at http://host/var/x",
		"/args/text: want a string":                                           "/args/text: want a string",
		"input/output error":                                                  "input/output error",
		"/tmp/":                                                               "tmp",
		"no path":                                                             "no path",
	} {
		if got := Strip(in); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
	list, err := os.ReadDir("/")
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range list {
		if got := Strip("open /" + d.Name() + "/a: denied"); !strings.HasPrefix(d.Name(), ".") && got != "open a: denied" {
			t.Errorf("%s: %s", d.Name(), got)
		}
	}
	_, err = os.ReadFile(filepath.Join(t.TempDir(), "none"))
	if got := Strip(err.Error()); strings.Contains(got, os.TempDir()) {
		t.Error(got)
	}
}
