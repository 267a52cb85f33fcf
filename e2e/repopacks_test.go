package e2e

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"net/http/cgi"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
)

// gitServer returns the address of a git server with the repositories open.git, which anyone may
// read and write, and closed.git, which requires login, the credentials of Basic authentication in
// base64. Both have a file a.go and a README.md on the branch main, and a branch other. The repository
// sum.git has a program that subtracts instead of adding and a test of it, and notes.git a README.md.
func gitServer(t *testing.T, login string) string {
	t.Helper()
	dir := t.TempDir()
	git := func(at string, args ...string) {
		t.Helper()
		cmd := exec.Command("git", append([]string{"-C", at, "-c", "user.name=ann", "-c", "user.email=ann@example.com", "-c", "init.defaultBranch=main"}, args...)...)
		cmd.Env = append(os.Environ(), "GIT_CONFIG_NOSYSTEM=1", "HOME="+dir)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("git %v: %v\n%s", args, err, out)
		}
	}
	from := filepath.Join(dir, "from")
	if err := os.Mkdir(from, 0o755); err != nil {
		t.Fatal(err)
	}
	git(from, "init", "-q")
	for name, text := range map[string]string{"a.go": "package a\n\nfunc Tide() {}\n", "README.md": "# Tides\n"} {
		if err := os.WriteFile(filepath.Join(from, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	git(from, "add", "-A")
	git(from, "commit", "-q", "-m", "Add a")
	git(from, "branch", "other")
	for name, files := range map[string]map[string]string{
		"sum":   {"sum.sh": "#!/bin/sh\necho $(($1 - $2))\n", "test.sh": "#!/bin/sh\n[ \"$(./sum.sh 2 3)\" = 5 ] || { echo wrong sum; exit 1; }\n"},
		"notes": {"README.md": "# Notes\n"},
	} {
		at := filepath.Join(dir, name)
		if err := os.Mkdir(at, 0o755); err != nil {
			t.Fatal(err)
		}
		for file, text := range files {
			if err := os.WriteFile(filepath.Join(at, file), []byte(text), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		git(at, "init", "-q")
		git(at, "add", "-A")
		git(at, "commit", "-q", "-m", "Begin")
		git(dir, "clone", "-q", "--bare", at, name+".git")
	}
	for _, name := range []string{"open.git", "closed.git"} {
		git(dir, "clone", "-q", "--bare", from, name)
		git(filepath.Join(dir, name), "config", "http.receivepack", "true")
	}
	out, err := exec.Command("git", "--exec-path").Output()
	if err != nil {
		t.Fatal(err)
	}
	backend := &cgi.Handler{Path: filepath.Join(strings.TrimSpace(string(out)), "git-http-backend"), Env: []string{"GIT_PROJECT_ROOT=" + dir, "GIT_HTTP_EXPORT_ALL=1", "HOME=" + dir}}
	site := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/closed.git/") && r.Header.Get("Authorization") != "Basic "+login {
			w.Header().Set("WWW-Authenticate", `Basic realm="git"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		if r.ContentLength < 0 { // CGI has no chunked bodies
			http.Error(w, "length required", http.StatusLengthRequired)
			return
		}
		backend.ServeHTTP(w, r)
	}))
	t.Cleanup(site.Close)
	return site.URL
}

// TestRepoPacks shows, on one process and with one process per service, two session-runners and two
// egress-brokers, that repo.fetch, repo.map and repo.push work with a git server through the
// egress-broker; that a push which would lose commits fails with schema_mismatch; that the broker
// adds the secret, which is neither in the environment of the sandbox's processes, nor in the git
// configuration, nor on the ledger; and the errors of wrong arguments.
func TestRepoPacks(t *testing.T) {
	images := workImages(t)
	login := base64.StdEncoding.EncodeToString([]byte("ann:t0ken-of-the-test"))
	for name, start := range harness.Topologies {
		t.Run(name, func(t *testing.T) {
			at := gitServer(t, login)
			host := strings.TrimPrefix(at, "http://")
			m := start(t, harness.Options{Containerd: containerdSocket, Env: []string{"BINNACLE_IMAGES=" + images, "BINNACLE_WARM=0",
				"BINNACLE_EGRESS_NETWORKS=127.0.0.0/8", "BINNACLE_SANDBOX_HOSTS=" + host, "BINNACLE_SANDBOX_GIT_SECRET=git-login"}})
			if name == "processes" {
				m.StartService("session-runner-b", "session-runner")
				m.StartService("egress-broker-b", "egress-broker")
			}
			cli(t, m, "trust", "sign", write(t, "p0.json", fmt.Sprintf(`{"egress_hosts":[%q]}`, host)))
			cli(t, m, "policy", "activate", filepath.Join(m.Dir, "keys/p0.json"))
			if out, err := m.CLIStdin(login, "secret", "put", "git-login"); err != nil {
				t.Fatal(err, out)
			}
			p := packCaller{t, m, "s-repo"}
			p.must("sandbox.create", `{"image":"shell","memory_mib":256}`)
			out := p.must("repo.fetch", `{"url":"`+at+`/open.git","clone_path":"/work/open"}`)
			if out["branch"] != "main" || out["files"].(float64) != 2 || fmt.Sprint(out["tree"]) != "[README.md a.go]" || !strings.Contains(fmt.Sprint(out["readme"]), "# Tides") {
				t.Errorf("%v", out)
			}
			first := fmt.Sprint(out["commit"])
			const open = `{"clone_path":"/work/open"`
			if out := p.must("repo.map", open+`}`); !strings.Contains(fmt.Sprint(out["map"]), "a.go\n  3: func Tide() {}") || out["files_total"].(float64) != 2 {
				t.Errorf("%v", out)
			}
			p.must("fs.write", open+`,"path":"b.txt","content":"b"}`)
			commit := fmt.Sprint(p.must("git.commit", open+`,"message":"Add b"}`)["commit"])
			if out := p.must("repo.push", open+`}`); out["branch"] != "main" || out["commit"] != commit {
				t.Errorf("%v", out)
			}
			if out := p.must("repo.fetch", `{"url":"`+at+`/open.git","clone_path":"/work/again","ref":"`+first+`","depth":0}`); out["commit"] != first || out["branch"] != "" {
				t.Errorf("a commit: %v", out)
			}
			if out := p.must("repo.fetch", `{"url":"`+at+`/closed.git","clone_path":"/work/closed","ref":"other"}`); out["branch"] != "other" {
				t.Errorf("with a credential: %v", out)
			}
			p.must("fs.write", `{"clone_path":"/work/again","path":"c.txt","content":"c"}`)
			p.must("git.commit", `{"clone_path":"/work/again","message":"Add c"}`)
			for call, want := range map[string]string{
				`repo.push {"clone_path":"/work/again","branch":"main"}`:                         contract.CodeSchemaMismatch,
				`repo.push {"clone_path":"/work/again"}`:                                         "HEAD is detached",
				`repo.push {"clone_path":"/work/open","remote":"none"}`:                          "no remote of this name",
				`repo.push {"clone_path":"/work"}`:                                               "no git repository",
				`repo.fetch {"url":"` + at + `/open.git","clone_path":"/work/open"}`:             "not empty",
				`repo.fetch {"url":"` + at + `/open.git","clone_path":"/work/x","ref":"gone"}`:   "no such branch",
				`repo.fetch {"url":"` + at + `/none.git","clone_path":"/work/x"}`:                "there is no repository",
				`repo.fetch {"url":"http://other.example/a.git","clone_path":"/work/x"}`:         contract.CodeEgressRefused,
				`repo.fetch {"url":"ssh://` + host + `/open.git","clone_path":"/work/x"}`:        "want the HTTP or HTTPS",
				`repo.fetch {"url":"http://ann:b@` + host + `/open.git","clone_path":"/work/x"}`: "has a user",
				`repo.fetch {"url":"` + at + `/open.git","clone_path":"/work/x","ref":"-h"}`:     "ref:",
				`repo.fetch {"url":"` + at + `/open.git","clone_path":"/work/../x"}`:             "clone_path",
			} {
				tool, args, _ := strings.Cut(call, " ")
				if status, _, body := p.call(tool, args); status == 200 || !strings.Contains(body, want) {
					t.Errorf("%s: %d %s", call, status, body)
				}
			}
			if out := p.must("cmd.run", `{"command":["sh","-c","cat /proc/*/environ /work/*/.git/config 2>/dev/null"]}`); strings.Contains(fmt.Sprint(out["stdout"]), login) {
				t.Error("the sandbox has the secret")
			}
			for _, e := range ledger(t, m) {
				if strings.Contains(string(e.Data), login) || strings.Contains(string(e.Data), "t0ken-of-the-test") {
					t.Errorf("%s contains the secret", e.Name)
				}
			}
		})
	}
}
