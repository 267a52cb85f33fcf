package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/meshtest/postgrestest"
)

// connected returns a folder with the built-in packs, whose manifests name the given host,
// mail server and PostgreSQL server in place of those that they ship with.
func connected(t *testing.T, host, mail, database string) string {
	t.Helper()
	dir, bin := t.TempDir(), filepath.Join(harness.Root(), "bin/packs")
	files, err := filepath.Glob(filepath.Join(bin, "*.pack.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	put := func(path, name string, change func(string) string) {
		body, err := os.ReadFile(path)
		if err == nil && (name == "builtin" || strings.Contains(string(body), "\nprogram: builtin\n")) {
			err = os.WriteFile(filepath.Join(dir, name), []byte(change(string(body))), 0o755)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	addr, port, _ := strings.Cut(host, ":")
	here := fmt.Sprintf("host: %s, port: %s, mode: http", addr, port)
	server := func(at string) (rule, hosts string) {
		addr, port, _ := strings.Cut(at, ":")
		return "host: " + addr + ", port: " + port, "hosts: [" + addr + "]"
	}
	mailRule, mailHosts := server(mail)
	sqlRule, sqlHosts := server(database)
	names := strings.NewReplacer("smtp://mail.example.com:587", "smtp+plain://"+mail, "host: mail.example.com, port: 587", mailRule, "hosts: [mail.example.com]", mailHosts,
		"postgres://reader@db.example.com:5432/harbour", "postgres://postgres@"+database+"/postgres?sslmode=disable", "host: db.example.com, port: 5432", sqlRule, "hosts: [db.example.com]", sqlHosts,
		`egress_hosts: [www.example.com]`, fmt.Sprintf("egress_hosts: [%q]", host), "host: mesh.example.com", here, "host: api.github.com", here, "host: search.example.com", here, "- {host: www.example.com}", "",
		"https://search.example.com", "http://"+host, "https://mesh.example.com", "http://"+host, "env: [BINNACLE_PACK=github", fmt.Sprintf("env: [\"GITHUB_API_URL=http://%s\", BINNACLE_PACK=github", host))
	put(filepath.Join(bin, "builtin"), "builtin", func(s string) string { return s })
	for _, f := range files {
		put(f, filepath.Base(f), names.Replace)
	}
	return dir
}

// Secrets of the packs that connect to a service.
const (
	gitHubToken = "gh-t0ken-of-the-test"
	meshKey     = "vk-of-the-test"
	mailLogin   = "l0gin-of-the-test"
)

// localServices are servers of the test for the packs that connect to a service: one that imitates a web site,
// SearXNG, GitHub and the mesh's API, a mail server, and a real PostgreSQL server.
type localServices struct {
	site           *httptest.Server
	mails          *mailServer
	mail, database string // addresses
}

// startServices starts the servers at loopback addresses.
func startServices(t *testing.T) *localServices {
	t.Helper()
	s := &localServices{database: "127.0.0.1:" + postgrestest.Start(t).Port}
	s.mails, s.mail = startMail(t)
	s.site = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		auth := r.Header.Get("Authorization")
		reply := func(permitted bool, doc string) {
			if !permitted {
				w.WriteHeader(http.StatusUnauthorized)
				return
			}
			fmt.Fprint(w, doc)
		}
		gh, llm := auth == "Bearer "+gitHubToken, auth == "Bearer "+meshKey
		switch r.Method + " " + r.URL.Path {
		case "GET /tides":
			w.Header().Set("Content-Type", "text/html")
			fmt.Fprint(w, "<html><head><title>Tides</title></head><body><article><h1>Tides</h1><p>", strings.Repeat("The tide rises twice a day. ", 40), "</p></article></body></html>")
		case "GET /away":
			http.Redirect(w, r, "http://169.254.169.254/latest", http.StatusFound)
		case "GET /search":
			reply(r.URL.Query().Get("format") == "json", `{"results":[{"url":"http://`+r.Host+`/tides","title":"Tides","content":"c"}]}`)
		case "GET /repos/octo/harbor/issues", "GET /repos/octo/harbor/pulls/8/files":
			reply(gh, `[{"number":7,"title":"Empty","filename":"a.go"}]`)
		case "GET /repos/octo/harbor/pulls/8", "POST /repos/octo/harbor/issues", "POST /repos/octo/harbor/pulls", "GET /repos/octo/harbor/issues/7", "POST /repos/octo/harbor/issues/7/comments", "POST /repos/octo/harbor/releases":
			reply(gh, `{"id":70,"number":8,"title":"echo `+gitHubToken+`","state":"open","html_url":"http://x/8","head":{"ref":"a"},"base":{"ref":"main"}}`)
		case "GET /api/v1/packs":
			reply(llm, `[{"name":"doc.parse","description":"d","input_schema":{}}]`)
		case "POST /v1/chat/completions":
			text, _ := json.Marshal(`{"steps":[{"tool":"doc.parse","args":{}}],"recommendation":{"tool":"doc.parse","suggested_inputs":{},"why":"w"}}`)
			reply(llm, `{"choices":[{"message":{"role":"assistant","content":`+string(text)+`}}]}`)
		default:
			w.WriteHeader(http.StatusNotFound)
		}
	}))
	t.Cleanup(s.site.Close)
	return s
}

// at returns an address of the servers with another host.
func at(host, address string) string { return host + address[strings.LastIndexByte(address, ':'):] }

// packs returns the folder of packs that connect to the servers by the given host.
func (s *localServices) packs(t *testing.T, host string) string {
	t.Helper()
	return connected(t, at(host, s.site.URL), at(host, s.mail), at(host, s.database))
}

// ceilings returns P0 ceilings that permit the servers.
func (s *localServices) ceilings(host string) string {
	tcp := func(address string) string {
		return fmt.Sprintf(`{"host":%q,"port":%s,"mode":"tcp"}`, host, address[strings.LastIndexByte(address, ':')+1:])
	}
	return fmt.Sprintf(`{"egress_hosts":[%q],"egress":[%s,%s]}`, at(host, s.site.URL), tcp(s.mail), tcp(s.database))
}

// run stores the secrets and calls each pack that connects to a service, except mail.send, on a mesh
// whose ceilings permit the servers, which it reaches by the given host.
func (s *localServices) run(t *testing.T, m *harness.Mesh, host string) {
	t.Helper()
	for name, value := range map[string]string{"github-token": gitHubToken, "pack-llm-key": meshKey, "smtp-login": "ann:" + mailLogin, "sql-password": postgrestest.Password} {
		if out, err := m.CLIStdin(value, "secret", "put", name); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	url := "http://" + at(host, s.site.URL)
	p := packCaller{t, m, "s-connected"}
	for _, c := range [][3]string{
		{"http.fetch", `{"url":"` + url + `/tides"}`, `"status":200`},
		{"web.scrape", `{"url":"` + url + `/tides"}`, `"title":"Tides"`},
		{"research.deep", `{"query":"tides","model":"m"}`, `"sources_used":1`},
		{"github.issue.list", `{"repo":"octo/harbor"}`, `"count":1`},
		{"github.issue.get", `{"repo":"octo/harbor","issue_number":7}`, `"title":"echo `},
		{"github.issue.create", `{"repo":"octo/harbor","title":"t"}`, `"number":8`},
		{"github.issue.comment", `{"repo":"octo/harbor","issue_number":7,"body":"b"}`, `"id":70`},
		{"github.pr.create", `{"repo":"octo/harbor","title":"t","head":"a","base":"main"}`, `"number":8`},
		{"github.pr.get", `{"repo":"octo/harbor","number":8}`, `"title":"echo `},
		{"github.pr.files", `{"repo":"octo/harbor","number":8}`, `"filename":"a.go"`},
		{"github.release.create", `{"repo":"octo/harbor","tag":"v1"}`, `"id":70`},
		{"mesh.route", `{"user_intent":"i","model":"m"}`, `"tool":"doc.parse"`},
		{"mesh.plan", `{"user_intent":"i","model":"m"}`, `"order":1`},
		{"sql.server.query", `{"query":"SELECT $1::int + 1 AS n","args":[41]}`, `"rows":[[42]]`},
	} {
		if status, _, body := p.call(c[0], c[1]); status != 200 || !strings.Contains(body, c[2]) || strings.Contains(body, gitHubToken) {
			t.Errorf("%s: %d %s", c[0], status, body)
		}
	}
	p.session = "s-writes"
	if status, _, body := p.call("sql.server.query", `{"query":"WITH x AS (UPDATE pg_database SET datconnlimit = 1 RETURNING 1) SELECT * FROM x"}`); status != 400 || !strings.Contains(body, "read-only") {
		t.Errorf("a statement that writes, by a user who may: %d %s", status, body)
	}
	p.session = "s-away"
	if status, _, body := p.call("http.fetch", `{"url":"`+url+`/away"}`); status != 400 || !strings.Contains(body, "egress to 169.254.169.254 was refused") {
		t.Errorf("a redirect: %d %s", status, body)
	}
}

// TestConnectedPacks runs the built-in packs that connect to a service, each in its sandbox and
// through its proxy, against the servers of startServices, on one process and with one process per
// service. It shows that a redirect to a host that is not permitted is refused, that the broker adds
// the tokens of GitHub and of the mesh, that the GitHub token is in no output and no secret is on the
// ledger, that a database is not written, and that a pack is denied as long as the ceilings do not
// permit its host. TestComposeConfigured runs the packs on compose.
func TestConnectedPacks(t *testing.T) {
	const host = "127.0.0.1"
	s := startServices(t)
	for name, start := range harness.Topologies {
		t.Run(name, func(t *testing.T) {
			m := start(t, harness.Options{Packs: s.packs(t, host), Env: []string{"BINNACLE_EGRESS_NETWORKS=127.0.0.0/8"}})
			if status, _, body := (packCaller{t, m, "s-connected"}).call("http.fetch", `{"url":"`+s.site.URL+`/tides"}`); status != 403 || !strings.Contains(body, "DATA_EGRESS_BLOCKED") {
				t.Errorf("without ceilings: %d %s", status, body)
			}
			cli(t, m, "trust", "sign", write(t, "p0.json", s.ceilings(host)))
			cli(t, m, "policy", "activate", filepath.Join(m.Dir, "keys/p0.json"))
			s.run(t, m, host)
			if status, _, body := (packCaller{t, m, "s-writes"}).call("http.fetch", `{"url":"`+s.site.URL+`/tides"}`); status != 403 || !strings.Contains(body, contract.ReasonTaintedDataEgressDeny) {
				t.Errorf("after a program of the session received a secret: %d %s", status, body)
			}
			s.mails.mails = nil
			sendsMail(t, m, s.mails)
			for _, e := range ledger(t, m) {
				for _, secret := range []string{gitHubToken, mailLogin, meshKey} {
					if strings.Contains(string(e.Data), secret) {
						t.Errorf("%s contains a secret", e.Name)
					}
				}
			}
		})
	}
}

// TestPackTest calls the built-in packs with the examples of their manifests, each in its
// sandbox, on one process and with one process per service. It shows that an example whose
// output differs fails, and that the errors for a misspelt pack, member and value each
// suggest the correct spelling.
func TestPackTest(t *testing.T) {
	packs := filepath.Join(harness.Root(), "bin/packs")
	for name, start := range harness.Topologies {
		t.Run(name, func(t *testing.T) {
			m := start(t, harness.Options{})
			var results []struct{ Pack, Result, Error string }
			if out := cli(t, m, "pack", "test", packs, "--json"); json.Unmarshal([]byte(out), &results) != nil {
				t.Fatal(out)
			}
			passed := map[string]bool{}
			for _, r := range results {
				passed[r.Pack] = r.Result == "passed"
			}
			for _, p := range []string{"doc.parse", "image.convert", "slides.render", "sql.query"} {
				if !passed[p] {
					t.Errorf("%s: %+v", p, results)
				}
			}
			for path, want := range map[string]string{
				`image.convert {"image_b64":"eA==","formt":"png"}`:  `"did_you_mean":["format"]`,
				`image.convert {"image_b64":"eA==","format":"pgn"}`: `"did_you_mean":["png"]`,
				`image.convrt {}`: `"did_you_mean":["image.convert"]`,
			} {
				tool, args, _ := strings.Cut(path, " ")
				r, err := m.Do(t.Context(), "POST", "/api/v1/packs/"+tool, "s-near", args)
				if err != nil || r.Status == 200 || !strings.Contains(string(r.Body), want) {
					t.Errorf("%s: %v %d %s", path, err, r.Status, r.Body)
				}
			}
			dir := t.TempDir()
			for _, f := range []string{"builtin", "sql.query.pack.yaml"} {
				body, err := os.ReadFile(filepath.Join(packs, f))
				if err == nil {
					err = os.WriteFile(filepath.Join(dir, f), []byte(strings.Replace(string(body), "rows: [[Monday, 3.5]]", "rows: [[Monday, 4]]", 1)), 0o755)
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			if out, err := m.CLI("pack", "test", dir); err == nil || !strings.Contains(err.Error(), "1 of 1 examples failed") || !strings.Contains(out, "the manifest states") {
				t.Errorf("another output: %v\n%s", err, out)
			}
		})
	}
}
