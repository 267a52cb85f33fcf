// Package postgrestest starts real PostgreSQL servers of the Debian package postgresql for tests.
package postgrestest

import (
	"bytes"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Password is the password of the user postgres, who may do everything.
const Password = "harbour"

// unprivileged is the user id with which the server runs in a test of root, since it does not run as root.
const unprivileged = 65534

// Server is a running server on a loopback address with the database postgres.
type Server struct {
	Port string

	t   testing.TB
	bin string
	dir string
}

// Start starts a server, which ends with the test.
func Start(t testing.TB) *Server {
	t.Helper()
	found, err := filepath.Glob("/usr/lib/postgresql/*/bin/postgres")
	if err != nil || len(found) == 0 {
		t.Fatal("PostgreSQL is missing: install the Debian package postgresql")
	}
	s := &Server{t: t, bin: filepath.Dir(found[len(found)-1]), dir: t.TempDir()}
	data, password := filepath.Join(s.dir, "data"), filepath.Join(s.dir, "password")
	err = errors.Join(os.Mkdir(data, 0o700), os.WriteFile(password, []byte(Password+"\n"), 0o644), os.Chmod(s.dir, 0o755), os.Chmod(filepath.Dir(s.dir), 0o755))
	if os.Geteuid() == 0 {
		err = errors.Join(err, os.Chown(data, unprivileged, unprivileged))
	}
	if err != nil {
		t.Fatal(err)
	}
	if c, out := s.command("initdb", "-D", data, "-U", "postgres", "--auth=scram-sha-256", "--pwfile="+password, "--no-sync", "-E", "UTF8"); c.Run() != nil {
		t.Fatalf("initdb: %s", out)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_, s.Port, _ = net.SplitHostPort(l.Addr().String())
	_ = l.Close()
	server, out := s.command("postgres", "-D", data, "-F", "-h", "127.0.0.1", "-p", s.Port, "-k", data)
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = server.Process.Signal(syscall.SIGQUIT) // ends at once
		_ = server.Wait()
	})
	for end := time.Now().Add(time.Minute); s.Login("postgres", Password) != nil; time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("PostgreSQL did not start: %s", out)
		}
	}
	return s
}

// command returns a command of the server's programs and the buffer of its output.
func (s *Server) command(name string, args ...string) (*exec.Cmd, *bytes.Buffer) {
	c, out := exec.Command(filepath.Join(s.bin, name), args...), new(bytes.Buffer)
	c.Stdout, c.Stderr, c.Dir, c.WaitDelay = out, out, s.dir, time.Second
	c.Env = []string{"PATH=/usr/bin:/bin", "LC_ALL=C", "HOME=" + s.dir}
	if os.Geteuid() == 0 {
		c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: unprivileged, Gid: unprivileged}}
	}
	return c, out
}

// Login logs in as a user and selects a row. It returns the error of the server.
func (s *Server) Login(user, password string) error {
	c, out := s.command("psql", "-h", "127.0.0.1", "-p", s.Port, "-U", user, "-d", "postgres", "-w", "-Atc", "SELECT 1")
	c.Env = append(c.Env, "PGPASSWORD="+password)
	if err := c.Run(); err != nil {
		return errors.New(strings.TrimSpace(out.String()))
	}
	return nil
}
