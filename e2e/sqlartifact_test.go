package e2e

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
)

// exampleDatabase returns the SQLite file of the example of sql.query, which has two rows of the
// table tides.
func exampleDatabase(t *testing.T) []byte {
	t.Helper()
	body, err := os.ReadFile(filepath.Join(harness.Root(), "packs/manifests/sql.query.pack.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(body), ", database_b64: ")
	text, _, found := strings.Cut(rest, "}")
	if !found {
		t.Fatal("the manifest has no example with a file")
	}
	file, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		t.Fatal(err)
	}
	return file
}

// TestDatabaseArtifact shows, on one process and with one process per service and two
// session-runners, that sql.query reads an SQLite file that is an artifact of the caller; that no
// statement writes it or attaches another file; that a corrupt or too large file and an artifact
// that does not exist are refused with the pointer of the argument, and that the artifact of another
// principal is refused; that the artifact is unchanged after that and kept as evidence; and that
// its content is not on the ledger.
func TestDatabaseArtifact(t *testing.T) {
	for name, start := range harness.Topologies {
		t.Run(name, func(t *testing.T) {
			m := start(t, harness.Options{})
			if name == "processes" {
				m.StartService("session-runner-b", "session-runner")
			}
			db := exampleDatabase(t)
			put := func(name string, content []byte) string {
				t.Helper()
				return strings.TrimSpace(cli(t, m, "artifact", "put", write(t, name, string(content)), "--type", "application/vnd.sqlite3"))
			}
			id, plain := put("tides.db", db), put("plain.db", []byte("no database"))
			corrupt := put("corrupt.db", append(append([]byte{}, db[:512]...), strings.Repeat("x", len(db)-512)...))
			large := put("large.db", append(append([]byte{}, db...), make([]byte, 32<<20)...))
			call := packCaller{t, m, "s-database"}
			ask := func(artifact, query string) string {
				return fmt.Sprintf(`{"database_artifact":%q,"query":%q}`, artifact, query)
			}
			for range 4 { // with two session-runners, both are likely to execute one
				if out := call.must("sql.query", ask(id, "SELECT day, sum(height) AS metres FROM tides GROUP BY day")); fmt.Sprint(out["rows"]) != "[[Monday 3.5]]" {
					t.Errorf("%v", out)
				}
			}
			const of, at = "/args/database_artifact", "/args/query"
			for _, c := range []struct{ args, pointer, message string }{
				{ask(id, "DELETE FROM tides"), at, "must begin with"},
				{ask(id, "WITH x AS (SELECT 1) INSERT INTO tides(day) SELECT 'x' FROM x"), at, "writes"},
				{ask(id, "ATTACH DATABASE '/etc/passwd' AS a"), at, "must begin with"},
				{ask(id, "SELECT 1; ATTACH DATABASE '/tmp/other.db' AS a"), at, "too many attached databases"},
				{ask(id, "SELECT 1; PRAGMA query_only=OFF; DELETE FROM tides"), at, ""},
				{ask(corrupt, "SELECT * FROM tides"), of, "malformed"},
				{ask(plain, "SELECT 1"), of, "not an SQLite database"},
				{ask(large, "SELECT 1"), of, "the pack accepts 33554432"},
				{ask("ar-"+strings.Repeat("0", 64), "SELECT 1"), of, "no artifact of the caller"},
				{ask("/etc/passwd", "SELECT 1"), of, "pattern"},
				{`{"query":"SELECT 1"}`, "", "want one of database_b64 and database_artifact"},
				{`{"query":"SELECT 1","_artifacts":{"database_artifact":"eA=="}}`, "/args/_artifacts", ""},
			} {
				status, _, body := call.call("sql.query", c.args)
				if status != http.StatusBadRequest || c.pointer != "" && !strings.Contains(body, `"pointer":"`+c.pointer+`"`) || !strings.Contains(body, c.message) {
					t.Errorf("%s: %d %s", c.args, status, body)
				}
			}
			other := m.As(m.TokenFor("nosy", "tools:call"))
			if r, err := other.Do(t.Context(), "POST", "/api/v1/packs/sql.query", "s-nosy", ask(id, "SELECT day FROM tides")); err != nil || r.Status != http.StatusBadRequest || strings.Contains(string(r.Body), "Monday") || !strings.Contains(string(r.Body), "no artifact of the caller") {
				t.Errorf("another principal: %v %+v", err, r)
			}
			if got := cli(t, m, "artifact", "get", id); !strings.HasPrefix(got, string(db)) {
				t.Error("the artifact has changed")
			}
			if out, err := m.CLI("artifact", "delete", id); err == nil {
				t.Errorf("evidence was deleted: %s", out)
			}
			content := base64.StdEncoding.EncodeToString(db[:300])
			for _, e := range ledger(t, m) {
				if strings.Contains(string(e.Data), content) {
					t.Errorf("%s contains the database", e.Name)
				}
			}
			proves(t, m)
		})
	}
}
