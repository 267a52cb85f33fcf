package attack

import (
	"archive/tar"
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
	"github.com/binnacle-mesh/binnacle/e2e/packs/spell"
)

const (
	leakKey = `hünt"er/2\q%41&x+y z=` + "\U0001F511" + `Z9`
	leakPin = "730155029917"
)

// The test runs a pack that prints its secrets in the encodings of package spell and in
// several places of its output and of its standard error. It checks that no response, no
// evidence pack and, except on compose, no file of the mesh contains an encoding of a
// secret.
var _ = register("12.3 secrets in other spellings", func(t *testing.T, m *harness.Mesh) {
	for name, v := range map[string]string{"leak-key": leakKey + "\n", "leak-pin": leakPin} {
		if out, err := m.CLIStdin(v, "secret", "put", name); err != nil {
			t.Fatal(out, err)
		}
	}
	var secret [][]byte // encodings of the secrets that must not occur in any response, evidence pack or file
	for _, how := range spell.Hows {
		s := spell.In(how, leakKey)
		if how == "base64 1" || how == "base64 2" { // the first and last characters of this encoding depend on the surrounding text
			s = s[4 : len(s)-5]
		}
		secret = append(secret, []byte(s))
		quoted, _ := json.Marshal(s)
		if q := quoted[1 : len(quoted)-1]; !bytes.Equal(q, []byte(s)) {
			secret = append(secret, q)
		}
	}
	secret = append(secret, []byte(leakKey), []byte(leakPin), []byte(`hünt\"er/2`), []byte(base64.StdEncoding.EncodeToString([]byte(leakPin)))[:12])
	clean := func(what string, b []byte) {
		t.Helper()
		for _, s := range secret {
			if at := bytes.Index(b, s); at >= 0 {
				t.Errorf("%s holds %q: …%s…", what, s, b[max(0, at-40):min(len(b), at+len(s)+20)])
			}
		}
	}
	for i, how := range spell.Hows {
		session := fmt.Sprintf("s-leak-%d", i)
		for _, where := range []string{"value", "key", "stderr", "cut", "garbage", "number", "schema"} {
			r, err := m.Do(t.Context(), "POST", "/api/v1/packs/cmd.leak", session, fmt.Sprintf(`{"how":%q,"where":%q}`, how, where))
			if err != nil {
				t.Fatal(err)
			}
			clean(how+" as "+where+": the response", r.Body)
			switch where {
			case "value", "key", "number":
				if r.Status != 200 || !bytes.Contains(r.Body, []byte("[secret:leak-")) {
					t.Errorf("%s as %s: %d %s", how, where, r.Status, r.Body)
				}
			case "stderr":
				if !bytes.Contains(r.Body, []byte("exit 3: cannot log in with ")) || !bytes.Contains(r.Body, []byte("[secret:leak-key]")) || !bytes.Contains(r.Body, []byte(" (pin [secret:leak-pin])")) {
					t.Errorf("%s as %s: %d %s", how, where, r.Status, r.Body)
				}
			case "cut":
				if !bytes.Contains(r.Body, []byte("xxx")) || !bytes.Contains(r.Body, []byte("[secret:leak-key]...(truncated)")) {
					t.Errorf("%s as %s: %d %.200s", how, where, r.Status, r.Body)
				}
			}
		}
		pack := filepath.Join(t.TempDir(), "p.tar")
		if out, err := m.CLI("export", "--session", session, "--out", pack); err != nil {
			t.Fatal(out, err)
		}
		n := 0
		f, err := os.Open(pack)
		if err != nil {
			t.Fatal(err)
		}
		for tr := tar.NewReader(f); ; n++ {
			h, err := tr.Next()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			b, err := io.ReadAll(tr)
			if err != nil {
				t.Fatal(err)
			}
			clean(how+": "+h.Name+" of the evidence", b)
		}
		f.Close()
		if n < 3 {
			t.Fatalf("%d files of evidence", n)
		}
	}
	if m.Name == "compose" {
		return // on compose the mesh's files are in volumes; the evidence packs were already searched
	}
	files := 0
	_ = filepath.WalkDir(m.Dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return nil
		}
		if b, err := os.ReadFile(path); err == nil {
			files++
			clean(path, b)
		}
		return nil
	})
	if files < 10 {
		t.Errorf("%d files read", files)
	}
})
