package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const (
	packs   = "../../../../schemas/conformance/packs/"
	pack    = packs + "good-3-calls.tar"
	exports = "../../../../schemas/conformance/exports/"
)

// trusted returns the key id of the root that signed the conformance files in a folder.
func trusted(t *testing.T, folder string) string {
	t.Helper()
	b, err := os.ReadFile(folder + "index.json")
	if err != nil {
		t.Fatal(err)
	}
	var ix struct{ Root string }
	if err := json.Unmarshal(b, &ix); err != nil || ix.Root == "" {
		t.Fatal(err)
	}
	return ix.Root
}

// file writes text to a file in a temporary folder and returns its path.
func file(t *testing.T, name, text string) string {
	t.Helper()
	p := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(p, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return p
}

// TestExitCodes checks exit code and output for combinations of arguments,
// environment and files.
func TestExitCodes(t *testing.T) {
	root, exportRoot := trusted(t, packs), trusted(t, exports)
	rootFile := file(t, "root.kid", root+"\n")
	stranger := file(t, "witnesses.json", `{"quorum":1,"witnesses":[{"name":"w","public_key":"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="}]}`)
	t.Chdir(t.TempDir()) // a folder without data/root.kid
	abs := func(p string) string { return filepath.Join(origin, p) }
	for name, c := range map[string]struct {
		args, env, stdout, stderr string
		code                      int
	}{
		"root by key id":          {"--root " + root + " " + abs(pack), "", "VERIFIED session s-a", "", 0},
		"root by file":            {"--root " + rootFile + " " + abs(pack), "", "VERIFIED", "", 0},
		"root by environment":     {abs(pack), rootFile, "VERIFIED", "", 0},
		"the flag counts first":   {"--root " + root + " " + abs(pack), "k-other", "VERIFIED", "", 0},
		"an export of a tenant":   {"--root " + exportRoot + " " + abs(exports+"good-as-it-was.jsonl"), "", "VERIFIED tenant acme_shop_prod", "", 0},
		"an export changed":       {"--root " + exportRoot + " " + abs(exports+"bad-an-event-changed.jsonl"), "", "", "FAILED: the lines do not have the checkpoint's root", 1},
		"as JSON":                 {"--json --root " + root + " " + abs(pack), "", `"session":"s-a"`, "", 0},
		"help":                    {"-h", "", "", "usage: binnacle-verify", 0},
		"no file":                 {"--root " + root, "", "", "usage: binnacle-verify", 2},
		"two files":               {"--root " + root + " a b", "", "", "usage: binnacle-verify", 2},
		"an unknown flag":         {"--rot x", "", "", "flag provided but not defined", 2},
		"no root":                 {abs(pack), "", "", "no trusted root: give --root", 2},
		"a file that is missing":  {"--root " + root + " nothing.tar", "", "", "nothing.tar", 2},
		"another root":            {"--root k-00000000000000000000000000000000 " + abs(pack), "", "", "FAILED: ", 1},
		"a pack that was changed": {"--root " + root + " " + abs(packs+"bad-a-byte-more.tar"), "", "", "FAILED: ", 1},
		"witnesses that did not":  {"--witnesses " + stranger + " --root " + root + " " + abs(pack), "", "", "FAILED: cosignatures: 0 of the 1", 1},
		"witnesses, no such file": {"--witnesses no.json --root " + root + " " + abs(pack), "", "", "--witnesses no.json:", 2},
		"witnesses, malformed":    {"--witnesses " + rootFile + " --root " + root + " " + abs(pack), "", "", "--witnesses ", 2},
		"kept is the pack itself": {"--kept " + abs(pack) + " --root " + root + " " + abs(pack), "", "VERIFIED", "", 0},
		"kept is no checkpoint":   {"--kept " + rootFile + " --root " + root + " " + abs(pack), "", "", "--kept:", 2},
	} {
		var stdout, stderr bytes.Buffer
		code := run(strings.Fields(c.args), c.env, &stdout, &stderr)
		if code != c.code || !strings.Contains(stdout.String(), c.stdout) || !strings.Contains(stderr.String(), c.stderr) {
			t.Errorf("%s: exit code %d, want %d\nstdout %s\nstderr %s", name, code, c.code, &stdout, &stderr)
		}
		if (stdout.Len() > 0) != (c.stdout != "") || (stderr.Len() > 0) != (c.stderr != "") {
			t.Errorf("%s: reports on the wrong stream\nstdout %s\nstderr %s", name, &stdout, &stderr)
		}
	}
}

// TestDefaultRoot shows that without flag and environment the root is read from
// data/root.kid in the working directory.
func TestDefaultRoot(t *testing.T) {
	t.Chdir(t.TempDir())
	if err := os.Mkdir("data", 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile("data/root.kid", []byte(" k-1 \n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if kid, err := rootKID("", ""); err != nil || kid != "k-1" {
		t.Errorf("%q, %v", kid, err)
	}
}

// TestNotShown shows that the exit code is 2, with a message on standard error, if the
// report cannot be written as text or as JSON.
func TestNotShown(t *testing.T) {
	root, text := trusted(t, packs), pack
	for _, args := range [][]string{{"--root", root, text}, {"--root", root, "--json", text}} {
		var stderr bytes.Buffer
		if code := run(args, "", full{}, &stderr); code != 2 || stderr.Len() == 0 {
			t.Errorf("%v: exit code %d, %s", args, code, &stderr)
		}
	}
}

// full is an io.Writer whose writes fail as on a full disk.
type full struct{}

func (full) Write([]byte) (int, error) { return 0, errors.New("no space left on device") }

// origin is the folder in which the tests start.
var origin = func() string {
	dir, err := os.Getwd()
	if err != nil {
		panic(err)
	}
	return dir
}()
