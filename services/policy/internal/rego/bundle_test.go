package rego

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/open-policy-agent/opa/v1/bundle"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/sign"
)

// TestShape checks the limits of nesting and of else branches in modules, exactly at and
// above each of them, and that brackets in strings and comments do not count.
func TestShape(t *testing.T) {
	deep, deeper := strings.Repeat("[", canon.MaxDepth), strings.Repeat("[", canon.MaxDepth+1)
	for _, c := range []struct {
		name, text string
		ok         bool
	}{
		{"p.rego", deep, true}, {"p.rego", deeper, false},
		{"p.rego", strings.Repeat("(", canon.MaxDepth) + "{", false},
		{"p.rego", deep + "]" + "{" + "}" + "(", true},
		{"p.rego", deep + "]" + "((", false},
		{"p.rego", strings.Repeat("]", 9) + deep, true},
		{"p.rego", strings.Repeat("]", 9) + deeper, false},
		{"p.rego", `"` + deeper + `"`, true}, {"p.rego", "`" + deeper + "`", true}, {"p.rego", "#" + deeper, true},
		{"p.rego", `""` + deeper, false}, {"p.rego", "``" + deeper, false}, {"p.rego", "#\n" + deeper, false},
		{"p.rego", `"\"` + deeper + `"`, true}, {"p.rego", `"\\"` + deeper, false}, {"p.rego", "`\\`" + deeper, false},
		{"p.rego", `"` + "\n" + deeper, false}, // the string ends with the line
		{"p.rego", "`\n" + deeper + "`", true},
		{"p.rego", `"` + "`" + `"` + deeper, false},
		{"p.rego", `"` + deeper, true}, {"p.rego", `"\`, true},
		{"p.rego", strings.Repeat("else ", maxElse), true}, {"p.rego", strings.Repeat("else ", maxElse+1), false},
		{"p.rego", strings.Repeat("elsa ", maxElse+1), true},
		{"data.json", deep + strings.Repeat("]", canon.MaxDepth), true}, {"data.json", deeper + strings.Repeat("]", canon.MaxDepth+1), false},
		{"a/.manifest", deeper, false}, {"a/b.json", deeper, false}, {"a.yaml", deeper, true},
	} {
		if err := checkShape(c.name, []byte(c.text)); (err == nil) != c.ok || err != nil && !strings.HasPrefix(err.Error(), "bundle: "+c.name+": ") {
			t.Errorf("%s %.20q… of %d bytes: %v", c.name, c.text, len(c.text), err)
		}
	}
}

// archived returns a gzipped tar archive of entries.
func archived(t *testing.T, entries ...tar.Header) []byte {
	t.Helper()
	var out bytes.Buffer
	z := gzip.NewWriter(&out)
	w := tar.NewWriter(z)
	for _, h := range entries {
		body := []byte(h.Linkname) // the content of a file, in these tests
		if h.Typeflag != tar.TypeReg {
			body = nil
		} else {
			h.Linkname = ""
		}
		h.Size = int64(len(body))
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(body); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(w.Close(), z.Close()); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// TestFiles checks the paths of the files of a bundle, that entries which are no files are
// left out, and the errors of paths that occur twice and of bundles that are no archives or
// too large.
func TestFiles(t *testing.T) {
	file := func(name, text string) tar.Header {
		return tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o644, Linkname: text}
	}
	files, err := Files(archived(t, tar.Header{Name: "/a/", Typeflag: tar.TypeDir, Mode: 0o755}, tar.Header{Name: "/a/link.rego", Typeflag: tar.TypeSymlink, Linkname: "p.rego"}, file("/a/p.rego", "x"), file("b.json", "{}")))
	if err != nil || len(files) != 2 || string(files["a/p.rego"]) != "x" || string(files["b.json"]) != "{}" {
		t.Errorf("%v %v", files, err)
	}
	random := make([]byte, MaxBundle+1) // not compressible
	_, _ = rand.Read(random)
	packed := func(n int) []byte {
		var out bytes.Buffer
		z := gzip.NewWriter(&out)
		_, _ = z.Write(make([]byte, n))
		_ = z.Close()
		return out.Bytes()
	}
	for want, doc := range map[string][]byte{
		"bundle: holds a.yaml twice":             archived(t, file("a.yaml", "x"), file("/x/../a.yaml", "y")),
		"bundle: is not a gzipped tar":           []byte("PK"),
		"bundle: 4194305 bytes, at most 4194304": random,
		"bundle: is cut off or damaged":          archived(t, file("a.yaml", "x"))[:20],
		"bundle: unpacks to more than 16777216":  packed(4*MaxBundle + 1),
		"bundle: a.json: ":                       archived(t, file("a.json", strings.Repeat("[", 200))),
	} {
		if files, err := Files(doc); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%v %v, want %s", files, err, want)
		}
	}
	if _, err := Files(packed(4 * MaxBundle)); err != nil { // zero blocks end an archive
		t.Error(err)
	}
	if _, err := Files(random[:MaxBundle]); err == nil || strings.Contains(err.Error(), "at most") {
		t.Error(err)
	}
	for name, want := range map[string]string{"../p.rego": `bundle: path "../p.rego"`, "a//p.rego": `bundle: path "a//p.rego"`, "/p.rego": `bundle: path "/p.rego"`} {
		if _, err := Build(map[string][]byte{name: []byte("package x")}, "", nil); err == nil || err.Error() != want {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := Build(map[string][]byte{"binnacle/data.json": []byte(`{}`)}, "", nil); err == nil || !strings.Contains(err.Error(), "contains no Rego module") {
		t.Error(err)
	}
	seed := sha256.Sum256(nil)
	if _, err := Build(map[string][]byte{"p.rego": []byte("package x"), "binnacle/data.json": []byte(`{`)}, "k", seed[:]); err == nil || !strings.Contains(err.Error(), "binnacle/data.json") {
		t.Error(err)
	}
}

// TestOldBundle checks the bundles of release 0.1, and the errors of other JSON documents.
func TestOldBundle(t *testing.T) {
	e, err := Compile(t.Context(), []byte(`{"modules":{"p.rego":"package binnacle.p1\nimport rego.v1\nanswer := {\"verdict\": \"ALLOW\", \"reason_code\": \"RULE_OLD\"}"}}`))
	if err != nil {
		t.Fatal(err)
	}
	if a := ask(t, e, facts(), `{}`); a.Reason != "RULE_OLD" {
		t.Errorf("%+v", a)
	}
	for doc, want := range map[string]string{
		`{"modules":{}}`: "neither", `{"modules":1}`: "neither", `{`: "neither", `{"a":` + strings.Repeat("[", 200): "128", ``: "gzipped tar",
		`{"modules":{"p.rego":"package"}}`: "p.rego", `{"modules":{"data.json":"{}"}}`: "no Rego module",
	} {
		if _, err := Compile(t.Context(), []byte(doc)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.30s: %v", doc, err)
		}
	}
}

// TestSignatures checks the errors of bundles whose signature file has another number of
// signatures than one, or a signature whose header is malformed or names no known key or
// another algorithm.
func TestSignatures(t *testing.T) {
	seed := sha256.Sum256([]byte("bundles"))
	k, err := sign.NewKey(seed[:])
	if err != nil {
		t.Fatal(err)
	}
	const src = "package binnacle.p1\nimport rego.v1\nanswer := 1\n"
	good, err := Build(map[string][]byte{"p.rego": []byte(src)}, k.KID, seed[:])
	if err != nil {
		t.Fatal(err)
	}
	files, err := Files(good)
	if err != nil {
		t.Fatal(err)
	}
	var sc bundle.SignaturesConfig
	if err := json.Unmarshal(files[".signatures.json"], &sc); err != nil {
		t.Fatal(err)
	}
	token := sc.Signatures[0]
	head := func(text string) string {
		_, rest, _ := strings.Cut(token, ".")
		return base64.RawURLEncoding.EncodeToString([]byte(text)) + "." + rest
	}
	for name, c := range map[string]struct {
		tokens []string
		want   string
	}{
		"one":               {[]string{token}, ""},
		"none":              {nil, "want exactly one signature"},
		"two":               {[]string{token, token}, "want exactly one signature"},
		"no dot":            {[]string{"e30"}, "is not a JWT"},
		"no base64":         {[]string{"!.x.y"}, "is not a JWT"},
		"no JSON":           {[]string{head("x")}, "names no key id"},
		"no key":            {[]string{head(`{"alg":"EdDSA"}`)}, "names no key id"},
		"another algorithm": {[]string{head(`{"alg":"HS256","kid":"k"}`)}, "another algorithm than EdDSA"},
		"no algorithm":      {[]string{head(`{"alg":"none","kid":"k"}`)}, "another algorithm than EdDSA"},
		"unknown key":       {[]string{head(`{"alg":"EdDSA","kid":"k"}`)}, "bundle: no key k"},
	} {
		sigs, err := json.Marshal(bundle.SignaturesConfig{Signatures: c.tokens})
		if err != nil {
			t.Fatal(err)
		}
		doc, err := Build(map[string][]byte{"p.rego": []byte(src), ".signatures.json": sigs}, "", nil)
		if err != nil {
			t.Fatal(err)
		}
		kid, err := Verify(doc, func(kid string) ([]byte, error) {
			if kid != k.KID {
				return nil, errors.New("no key " + kid)
			}
			return k.Public(), nil
		})
		if (err == nil) != (c.want == "") || err != nil && (!strings.Contains(err.Error(), c.want) || kid != "") {
			t.Errorf("%s: %s %v, want %q", name, kid, err, c.want)
		}
	}
	if _, err := Verify(nil, nil); err == nil {
		t.Error("a bundle of no bytes is verified")
	}
	if _, err := Verify(good, func(string) ([]byte, error) { return nil, nil }); err == nil {
		t.Error("verified with a key of no bytes")
	}
}
