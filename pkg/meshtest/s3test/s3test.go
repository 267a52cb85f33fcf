// Package s3test starts a real S3 endpoint for tests, the Versity S3 Gateway over a folder.
// scripts/versitygw builds it. The users of the endpoint have the rights that
// docs/how-to/artifacts.md gives them.
package s3test

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
)

// Program returns the path of the server's program.
func Program() string {
	if file := os.Getenv("BINNACLE_VERSITYGW"); file != "" {
		return file
	}
	cache, _ := os.UserCacheDir()
	return filepath.Join(cache, "binnacle", "versitygw-1.8.0", "versitygw")
}

// Endpoint is a running server with the bucket Bucket and two users: Writer may list, read and
// write objects of the bucket; Collector may also delete them.
type Endpoint struct {
	URL string

	dir string
}

// Bucket is the name of the bucket.
const Bucket = "artifacts"

// Users of the endpoint. Their secret keys are Secret(name).
const (
	Writer    = "writer"
	Collector = "collector"

	root = "root"
)

// Secret returns the secret key of a user.
func Secret(user string) string { return user + "-secret-of-tests" }

// File writes the credentials of a user to a file, in the form NAME:SECRET, and returns its
// path.
func (e *Endpoint) File(t testing.TB, user string) string {
	t.Helper()
	file := filepath.Join(e.dir, user)
	if err := os.WriteFile(file, []byte(user+":"+Secret(user)+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// Env returns the environment of a mesh that stores artifacts in the bucket.
func (e *Endpoint) Env(t testing.TB) []string {
	t.Helper()
	return []string{"BINNACLE_S3_ENDPOINT=" + e.URL, "BINNACLE_S3_BUCKET=" + Bucket, "BINNACLE_S3_CREDENTIALS_FILE=" + e.File(t, Writer), "BINNACLE_S3_COLLECTOR_FILE=" + e.File(t, Collector)}
}

// Start starts an endpoint that runs until the test ends.
func Start(t testing.TB) *Endpoint {
	t.Helper()
	if _, err := os.Stat(Program()); err != nil {
		t.Fatalf("no S3 endpoint at %s: build it with scripts/versitygw", Program())
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	_ = l.Close()
	e := &Endpoint{URL: "http://" + addr, dir: t.TempDir()}
	folder := func(name string) string {
		dir := filepath.Join(e.dir, name)
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	log, err := os.Create(filepath.Join(e.dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	cmd := exec.Command(Program(), "--port", addr, "--iam-dir", folder("users"), "--health", "/health", "posix", "--sidecar", folder("sidecar"), folder("data"))
	cmd.Env = []string{"ROOT_ACCESS_KEY_ID=" + root, "ROOT_SECRET_ACCESS_KEY=" + Secret(root)}
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			b, _ := os.ReadFile(log.Name())
			t.Logf("log of the S3 endpoint:\n%s", b[max(0, len(b)-10000):])
		}
	})
	for end := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		r, err := http.Get(e.URL + "/health")
		if err == nil {
			_ = r.Body.Close()
			break
		}
		if time.Now().After(end) {
			t.Fatalf("the S3 endpoint does not listen: %v", err)
		}
	}
	e.setUp(t, addr)
	return e
}

// setUp makes the bucket and the users.
func (e *Endpoint) setUp(t testing.TB, addr string) {
	t.Helper()
	for _, user := range []string{Writer, Collector} {
		cmd := exec.Command(Program(), "admin", "--endpoint-url", e.URL, "create-user", "--access", user, "--secret", Secret(user), "--role", "user")
		cmd.Env = []string{"ADMIN_ACCESS_KEY_ID=" + root, "ADMIN_SECRET_ACCESS_KEY=" + Secret(root)}
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("user %s: %v %s", user, err, out)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	c, err := minio.New(addr, &minio.Options{Creds: credentials.NewStaticV4(root, Secret(root), ""), Region: "us-east-1"})
	if err == nil {
		err = c.MakeBucket(ctx, Bucket, minio.MakeBucketOptions{})
	}
	if err == nil {
		err = c.SetBucketPolicy(ctx, Bucket, Policy())
	}
	if err != nil {
		t.Fatal(err)
	}
}

// Policy returns the policy of the bucket.
func Policy() string {
	type statement struct {
		Effect    string
		Principal map[string][]string
		Action    []string
		Resource  []string
	}
	objects, bucket := "arn:aws:s3:::"+Bucket+"/*", "arn:aws:s3:::"+Bucket
	doc, _ := json.Marshal(map[string]any{"Version": "2012-10-17", "Statement": []statement{
		{"Allow", map[string][]string{"AWS": {Writer, Collector}}, []string{"s3:GetObject", "s3:PutObject"}, []string{objects}},
		{"Allow", map[string][]string{"AWS": {Writer, Collector}}, []string{"s3:ListBucket"}, []string{bucket}},
		{"Allow", map[string][]string{"AWS": {Collector}}, []string{"s3:DeleteObject"}, []string{objects}},
	}})
	return string(doc)
}
