package sql

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/packs/internal/pack"
)

// database returns an SQLite file in base64. It has the table tides and was
// written in the given journal mode.
func database(t *testing.T, journal string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "tides.db")
	db, err := sql.Open("sqlite", path)
	if err == nil {
		_, err = db.Exec(`PRAGMA journal_mode=` + journal + `; CREATE TABLE tides (day TEXT, height REAL, code BLOB, big INTEGER);
INSERT INTO tides VALUES ('Monday', 3.5, x'ff00', 9007199254740993), ('Tuesday', 4, NULL, 2); PRAGMA wal_checkpoint(TRUNCATE)`)
	}
	if err == nil {
		err = db.Close()
	}
	body, err2 := os.ReadFile(path)
	if err := errors.Join(err, err2); err != nil {
		t.Fatal(err)
	}
	return base64.StdEncoding.EncodeToString(body)
}

// TestSQLite reads a file in both journal modes, and shows that no statement writes it,
// attaches a file or runs for ever, that the number of rows is limited, and that an
// invalid file is an error.
func TestSQLite(t *testing.T) {
	for _, journal := range []string{"DELETE", "WAL"} {
		out, err := QueryFile(t.Context(), Input{Database: database(t, journal), Query: "-- all\nSELECT * FROM tides WHERE height > ? ORDER BY day", Args: []any{float64(1)}})
		want := `{"columns":["day","height","code","big"],"rows":[["Monday",3.5,"/wA=","9007199254740993"],["Tuesday",4,null,2]],"count":2,"truncated":false}`
		if got, _ := json.Marshal(out); err != nil || string(got) != want {
			t.Errorf("%s: %v\n%s\n%s", journal, err, got, want)
		}
	}
	db := database(t, "DELETE")
	out, err := QueryFile(t.Context(), Input{Database: db, Query: "SELECT day FROM tides", Limit: 1})
	if err != nil || !out.Truncated || out.Count != 1 {
		t.Error(out, err)
	}
	attached := filepath.Join(t.TempDir(), "attached.db")
	for _, c := range []struct{ query, pointer, code string }{
		{"DELETE FROM tides", "/query", pack.InvalidInput},
		{"WITH x AS (SELECT 1) INSERT INTO tides(day) SELECT 'x' FROM x", "/query", pack.InvalidInput},
		{"ATTACH DATABASE '" + attached + "' AS a", "/query", pack.InvalidInput},
		{"SELECT 1; ATTACH DATABASE '" + attached + "' AS a", "/query", pack.InvalidInput},
		{"PRAGMA query_only=OFF", "/query", pack.InvalidInput},
		{"SELECT none FROM tides", "/query", pack.InvalidInput},
		{"SELECT load_extension('/x')", "/query", pack.InvalidInput},
		{"/* SELECT */", "/query", pack.InvalidInput},
		{"SELECTED", "/query", pack.InvalidInput},
		{"SELECT zeroblob(2000000000)", "", pack.ResourceExhausted},
	} {
		_, err := QueryFile(t.Context(), Input{Database: db, Query: c.query})
		var e *pack.Error
		if !errors.As(err, &e) || e.Code != c.code || e.Pointer != c.pointer {
			t.Errorf("%s: %v", c.query, err)
		}
	}
	if _, err := os.Stat(attached); !os.IsNotExist(err) {
		t.Errorf("another file was attached: %v", err)
	}
	short, stop := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer stop()
	var e *pack.Error
	if _, err := QueryFile(short, Input{Database: db, Query: "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n) SELECT count(*) FROM n"}); !errors.As(err, &e) || e.Code != pack.Timeout {
		t.Errorf("without an end: %v", err)
	}
	for _, bad := range []string{"?", base64.StdEncoding.EncodeToString([]byte("text")), base64.StdEncoding.EncodeToString([]byte(sqliteHeader + strings.Repeat("x", 4096)))} {
		if _, err := QueryFile(t.Context(), Input{Database: bad, Query: "SELECT * FROM tides"}); !errors.As(err, &e) || e.Pointer != "/database_b64" {
			t.Errorf("%.20s: %v", bad, err)
		}
	}
}

// TestSQLiteArtifact checks that the content of an artifact is read like a file in the arguments, and
// that errors about it name the argument database_artifact. An input with no file or with two, and an
// artifact without content, are errors.
func TestSQLiteArtifact(t *testing.T) {
	db := database(t, "WAL")
	in := func(content string) Input {
		return Input{Artifact: "ar-1", Artifacts: map[string]string{"database_artifact": content}, Query: "SELECT count(*) FROM tides"}
	}
	if out, err := QueryFile(t.Context(), in(db)); err != nil || fmt.Sprint(out.Rows) != "[[2]]" {
		t.Errorf("%v %v", out, err)
	}
	file, err := base64.StdEncoding.DecodeString(db)
	if err != nil {
		t.Fatal(err)
	}
	for i := 4096; i < len(file); i++ {
		file[i] = 0xaa
	}
	both, none, unread := in(db), Input{Query: "SELECT 1"}, Input{Artifact: "ar-1", Query: "SELECT 1"}
	both.Database = db
	writes := in(db)
	writes.Query = "WITH x AS (SELECT 1) DELETE FROM tides"
	for name, c := range map[string]struct {
		in            Input
		pointer, code string
	}{
		"corrupt":    {in(base64.StdEncoding.EncodeToString(file)), "/database_artifact", pack.InvalidInput},
		"text":       {in(base64.StdEncoding.EncodeToString([]byte("text"))), "/database_artifact", pack.InvalidInput},
		"empty":      {in(""), "/database_artifact", pack.InvalidInput},
		"too large":  {in(base64.StdEncoding.EncodeToString(make([]byte, maxArtifact+1))), "/database_artifact", pack.InvalidInput},
		"a write":    {writes, "/query", pack.InvalidInput},
		"both":       {both, "", pack.InvalidInput},
		"neither":    {none, "", pack.InvalidInput},
		"no content": {unread, "", pack.HandlerFailed},
	} {
		var e *pack.Error
		if _, err := QueryFile(t.Context(), c.in); !errors.As(err, &e) || e.Code != c.code || e.Pointer != c.pointer {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// postgres starts PostgreSQL and returns the URL of its database for the user reader, whose
// password is "harbour". The database has the table tides.
func postgres(t *testing.T) string {
	t.Helper()
	found, err := filepath.Glob("/usr/lib/postgresql/*/bin/postgres")
	if err != nil || len(found) == 0 {
		t.Fatal("PostgreSQL is missing: install the Debian package postgresql")
	}
	dir := t.TempDir()
	command := func(stdin, name string, args ...string) (*exec.Cmd, *bytes.Buffer) {
		c, out := exec.Command(filepath.Join(filepath.Dir(found[len(found)-1]), name), args...), &bytes.Buffer{}
		c.Stdin, c.Stdout, c.Stderr, c.Dir = strings.NewReader(stdin), out, out, dir
		c.Env = []string{"PATH=/usr/bin:/bin", "LC_ALL=C", "HOME=" + dir}
		c.WaitDelay = time.Second
		if os.Geteuid() == 0 { // PostgreSQL does not run as root
			c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		}
		return c, out
	}
	data := filepath.Join(dir, "data")
	password := filepath.Join(dir, "password")
	err = errors.Join(os.Mkdir(data, 0o700), os.WriteFile(password, []byte("harbour\n"), 0o644), os.Chmod(dir, 0o755), os.Chmod(filepath.Dir(dir), 0o755))
	if os.Geteuid() == 0 {
		err = errors.Join(err, os.Chown(data, 65534, 65534))
	}
	if err != nil {
		t.Fatal(err)
	}
	if c, out := command("", "initdb", "-D", data, "-U", "postgres", "--auth=scram-sha-256", "--pwfile="+password, "--no-sync", "-E", "UTF8"); c.Run() != nil {
		t.Fatalf("initdb: %s", out)
	}
	const setup = `CREATE TABLE tides (day text, height numeric, at timestamptz, big bigint, flood boolean, raw bytea)
INSERT INTO tides VALUES ('Monday', 3.5, '2026-01-02 03:04:05+00', 9007199254740993, true, '\\xff00'), ('Tuesday', 4, NULL, 2, false, NULL)
CREATE ROLE reader LOGIN PASSWORD 'harbour'
GRANT SELECT, INSERT ON tides TO reader
CREATE SEQUENCE counter
GRANT USAGE ON SEQUENCE counter TO reader
`
	if c, out := command(setup, "postgres", "--single", "-D", data, "-F", "postgres"); c.Run() != nil {
		t.Fatalf("setup: %s", out)
	}
	port := freePort(t)
	server, out := command("", "postgres", "-D", data, "-F", "-h", "127.0.0.1", "-p", port, "-k", data)
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = server.Process.Signal(syscall.SIGQUIT) // ends at once
		_ = server.Wait()
	})
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		if _, err := os.Stat(filepath.Join(data, ".s.PGSQL."+port)); err == nil {
			if c, err := net.Dial("tcp", "127.0.0.1:"+port); err == nil {
				_ = c.Close()
				return "postgres://reader@127.0.0.1:" + port + "/postgres?sslmode=disable"
			}
		}
		if time.Now().After(deadline) {
			t.Fatalf("PostgreSQL did not start: %s", out)
		}
	}
}

// TestPostgres reads a database of a real server. It checks the code of each refused statement,
// that no statement has inserted a row, and the error for a wrong password.
func TestPostgres(t *testing.T) {
	t.Setenv("DATABASE_URL", postgres(t))
	login := map[string]string{passwordSecret: "harbour"}
	query := func(q string, args ...any) (Output, error) {
		ctx, stop := context.WithTimeout(t.Context(), time.Minute)
		defer stop()
		return QueryServer(ctx, Input{Query: q, Args: args, Secrets: login})
	}
	want := `{"columns":["day","height","at","big","flood","raw"],"rows":[["Monday","3.5","2026-01-02T03:04:05Z","9007199254740993",true,"\\xff00"],["Tuesday","4",null,2,false,null]],"count":2,"truncated":false}`
	var out Output
	var err error
	for range 50 { // it accepts connections before it is ready
		if out, err = query("SELECT * FROM tides WHERE height > $1 ORDER BY day", float64(1)); err == nil || !strings.Contains(err.Error(), "57P03") {
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	if got, _ := json.Marshal(out); err != nil || string(got) != want {
		t.Errorf("%v\n%s\n%s", err, got, want)
	}
	for _, c := range []struct{ query, code string }{
		{"INSERT INTO tides(day) VALUES ('x')", pack.InvalidInput},
		{"WITH x AS (INSERT INTO tides(day) VALUES ('x') RETURNING day) SELECT * FROM x", pack.InvalidInput},
		{"SELECT nextval('counter')", pack.InvalidInput},
		{"EXPLAIN ANALYZE INSERT INTO tides(day) VALUES ('x')", pack.InvalidInput},
		{"SELECT 1; INSERT INTO tides(day) VALUES ('x')", pack.InvalidInput},
		{"SELECT set_config('transaction_read_only', 'off', false)", pack.HandlerFailed},
		{"SELECT * FROM none", pack.InvalidInput},
		{"SELECT 1/0", pack.InvalidInput},
	} {
		_, err := query(c.query)
		var e *pack.Error
		if !errors.As(err, &e) || e.Code != c.code {
			t.Errorf("%s: %v", c.query, err)
		}
	}
	if out, err := query("SELECT count(*) FROM tides"); err != nil || out.Rows[0][0] != int64(2) {
		t.Errorf("after writes: %v %v", out, err)
	}
	login[passwordSecret] = "wrong"
	var e *pack.Error
	if _, err := query("SELECT 1"); !errors.As(err, &e) || e.Code != pack.CredentialInvalid || strings.Contains(e.Message, "wrong") {
		t.Errorf("a wrong password: %v", err)
	}
}

// TestServerConfig checks that the connection to a server uses TLS with verification and has
// no fallbacks, and that invalid addresses are errors.
func TestServerConfig(t *testing.T) {
	conf, err := serverConfig("postgres://reader@db.test/tides", "p")
	if err != nil || conf.TLSConfig == nil || conf.TLSConfig.InsecureSkipVerify || conf.TLSConfig.ServerName != "db.test" || conf.Password != "p" || len(conf.Fallbacks) != 0 {
		t.Errorf("%+v %v", conf, err)
	}
	for _, bad := range []string{"", "mysql://x", "postgres://x@h:port/d"} {
		if _, err := serverConfig(bad, ""); err == nil {
			t.Errorf("%s: no error", bad)
		}
	}
}

// TestServerConfigEnvironment checks that the configuration of a connection does not depend
// on the variables of libpq or on files in the home folder, and that the address cannot name
// such files.
func TestServerConfigEnvironment(t *testing.T) {
	const address = "postgres://reader@db.test"
	want, err := serverConfig(address, "")
	if err != nil {
		t.Fatal(err)
	}
	home := t.TempDir()
	service := filepath.Join(home, ".pg_service.conf")
	for name, text := range map[string]string{service: "[evil]\nhost=evil.test\nsslmode=disable\n", filepath.Join(home, ".pgpass"): "*:*:*:*:stolen\n", filepath.Join(home, ".postgresql", "root.crt"): "no certificate"} {
		if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for name, value := range map[string]string{"HOME": home, "PGSERVICE": "evil", "PGSERVICEFILE": service, "PGPASSFILE": filepath.Join(home, ".pgpass"), "PGDATABASE": "evil", "PGPORT": "1", "PGUSER": "evil", "PGSSLMODE": "disable",
		"PGOPTIONS": "-c default_transaction_read_only=off", "PGSSLROOTCERT": filepath.Join(home, ".postgresql", "root.crt"), "PGSSLSNI": "0", "PGCONNECT_TIMEOUT": "1", "PGTARGETSESSIONATTRS": "standby"} {
		t.Run(name, func(t *testing.T) {
			t.Setenv(name, value)
			before := os.Getenv("HOME")
			got, err := serverConfig(address, "")
			if err != nil {
				t.Fatal(err)
			}
			if got.Host != want.Host || got.Port != want.Port || got.Database != want.Database || got.User != want.User || got.Password != "" || got.TLSConfig.ServerName != want.TLSConfig.ServerName ||
				len(got.Fallbacks) != 0 || !maps.Equal(got.RuntimeParams, want.RuntimeParams) || got.ConnectTimeout != want.ConnectTimeout || (got.ValidateConnect == nil) != (want.ValidateConnect == nil) {
				t.Errorf("got %s@%s:%d/%s %v, want %s@%s:%d/%s %v", got.User, got.Host, got.Port, got.Database, got.RuntimeParams, want.User, want.Host, want.Port, want.Database, want.RuntimeParams)
			}
			if os.Getenv("HOME") != before {
				t.Error("HOME is not restored")
			}
		})
	}
	for _, query := range []string{"?service=evil&servicefile=" + service, "?servicefile=" + service, "?passfile=" + filepath.Join(home, ".pgpass")} {
		if _, err := serverConfig(address+query, ""); err == nil {
			t.Errorf("%s: no error", query)
		}
	}
}

// freePort returns a port on which nothing listens.
func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return fmt.Sprint(l.Addr().(*net.TCPAddr).Port)
}
