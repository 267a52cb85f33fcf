package evidence

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// vectorDir holds packs that any verifier must accept, and packs that any
// verifier must reject.
const vectorDir = "../../../schemas/conformance/packs"

type vector struct {
	File  string `json:"file"`
	OK    bool   `json:"ok"`
	About string `json:"about"`
	pack  []byte
}

// vectors returns the published set: valid packs, and invalid packs that were changed in
// many different ways.
func vectors(t *testing.T) (root string, all []vector) {
	w := sample(t, 3)
	add := func(ok bool, about string, pack []byte) {
		name := strings.Trim(strings.Map(func(r rune) rune {
			if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
				return r
			}
			return '-'
		}, strings.ToLower(about)), "-")
		prefix := map[bool]string{true: "good-", false: "bad-"}[ok]
		all = append(all, vector{prefix + name + ".tar", ok, about, pack})
	}
	for _, n := range []int{1, 2, 3} {
		x := sample(t, n)
		add(true, fmt.Sprintf("%d calls", n), build(t, x.source("s-a"), x.keys["audit"]))
	}
	gone := sample(t, 2)
	gone.objects = map[string][]byte{}
	add(true, "an object erased", build(t, gone.source("s-a"), gone.keys["audit"]))
	open := sample(t, 1)
	src := open.source("s-a")
	src.Events = src.Events[:2]
	add(true, "an open call", build(t, src, open.keys["audit"]))
	for name, c := range escalations(t) {
		x := sample(t, 1)
		x.escalated(c.spoil)
		add(c.word == "", "approvals, "+name, build(t, x.source("s-e"), x.keys["audit"]))
	}
	for name, change := range tamperings(w) {
		src := w.source("s-a")
		change(&src)
		if pack, err := bytesOf(src, w.keys["audit"]); err == nil && name != "drop last event" {
			add(false, name, pack)
		}
	}
	for name, c := range redactions(t) {
		add(c.ok, "redacted, "+name, c.pack)
	}
	for name, c := range growths(t) {
		add(c.ok, "grown, "+name, c.pack)
	}
	for name, c := range endings(t) {
		add(c.ok, "bound, "+name, c.pack)
	}
	for name, c := range cells(t) {
		add(c.ok, "tenants, "+name, c.pack)
	}
	add(false, "sealed by an attacker", build(t, w.source("s-a"), key(t, "attacker")))
	add(false, "another root", foreign(t))
	pack := build(t, w.source("s-a"), w.keys["audit"])
	for i := 1; i < 20; i++ {
		flipped := bytes.Clone(pack)
		at := i * len(pack) / 20
		flipped[at] ^= 1
		add(false, fmt.Sprintf("byte %d flipped", at), flipped)
	}
	add(false, "cut", pack[:len(pack)/2])
	add(false, "without its end", pack[:len(pack)-512])
	add(false, "a byte more", append(bytes.Clone(pack), 0))
	add(false, "empty", nil)
	files, err := readTar(pack)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range slices.Sorted(maps.Keys(files)) {
		less := maps.Clone(files)
		delete(less, p)
		tar, err := writeTar(less)
		if err != nil {
			t.Fatal(err)
		}
		add(false, "without "+p[:min(len(p), 30)], tar)
	}
	more := maps.Clone(files)
	more["extra"] = []byte("x")
	tar, err := writeTar(more)
	if err != nil {
		t.Fatal(err)
	}
	add(false, "a file more", tar)
	for name, change := range map[string]func(string) string{
		"white space in an event":   func(s string) string { return strings.Replace(s, `{"actor":`, `{ "actor":`, 1) },
		"a member more in an event": func(s string) string { return strings.Replace(s, `"tenant":"t"`, `"tenant":"t","zone":"z"`, 1) },
		"a doubled member":          func(s string) string { return strings.Replace(s, `"tenant":"t"`, `"tenant":"t","tenant":"t"`, 1) },
	} {
		odd := maps.Clone(files)
		odd[pathEvents] = []byte(change(string(files[pathEvents])))
		tar, err := writeTar(odd)
		if err != nil {
			t.Fatal(err)
		}
		add(false, name, tar)
	}
	slices.SortFunc(all, func(a, b vector) int { return strings.Compare(a.File, b.File) })
	return w.root.KID, all
}

// TestVectors shows that the published packs are reproduced, and verify or fail as the
// index file lists. `go test -update` writes them.
func TestVectors(t *testing.T) {
	root, all := vectors(t)
	index, err := json.MarshalIndent(map[string]any{"format": Format, "root": root, "packs": all}, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := errors.Join(os.RemoveAll(vectorDir), os.MkdirAll(vectorDir, 0o755), os.WriteFile(filepath.Join(vectorDir, "index.json"), append(index, '\n'), 0o644)); err != nil {
			t.Fatal(err)
		}
		for _, v := range all {
			if err := os.WriteFile(filepath.Join(vectorDir, v.File), v.pack, 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	kept, err := os.ReadFile(filepath.Join(vectorDir, "index.json"))
	if err != nil || string(kept) != string(index)+"\n" {
		t.Fatalf("index.json is not of these vectors (%v)", err)
	}
	for _, v := range all {
		b, err := os.ReadFile(filepath.Join(vectorDir, v.File))
		if err != nil || !bytes.Equal(b, v.pack) {
			t.Errorf("%s is not what today's code makes (%v)", v.File, err)
		}
		if _, err := Verify(b, root); (err == nil) != v.OK {
			t.Errorf("%s (%s): %v", v.File, v.About, err)
		}
	}
}
