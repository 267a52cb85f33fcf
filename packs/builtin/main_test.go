package main

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/binnacle-mesh/binnacle/packs/internal/mail/mailtest"
	"github.com/binnacle-mesh/binnacle/packs/internal/pack"
)

// site starts a local server with the services that packs use: a web site, SearXNG's JSON
// API, GitHub's REST API, and the API of a mesh with a model whose text is completion. It
// sets the variables from which packs read the addresses of these services.
func site(t *testing.T, completion string) *httptest.Server {
	t.Helper()
	mux := http.NewServeMux()
	reply := func(pattern string, status int, body string, check func(r *http.Request) bool) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			if check != nil && !check(r) {
				w.WriteHeader(http.StatusUnauthorized)
				return
			}
			if strings.HasPrefix(body, "<") {
				w.Header().Set("Content-Type", "text/html; charset=utf-8")
			}
			w.WriteHeader(status)
			fmt.Fprint(w, body)
		})
	}
	token := func(r *http.Request) bool {
		return r.Header.Get("Authorization") == "Bearer gh-token" && r.Header.Get("X-GitHub-Api-Version") == "2022-11-28"
	}
	key := func(r *http.Request) bool { return r.Header.Get("Authorization") == "Bearer vk" }
	text := strings.Repeat("<p>The moon draws the water towards it, and the tide rises twice a day on most coasts of the world.</p>", 12)
	reply("GET /tides", 200, `<html><head><title>Tides</title></head><body><nav><a href="/home#top">Home</a> <a href="javascript:alert(1)">x</a></nav><article><h1>Tides</h1>`+text+`</article></body></html>`, nil)
	reply("GET /binary", 200, "\xff\xfe\x00", nil)
	reply("GET /repos/octo/harbor/issues", 200, `[{"number":7,"title":"Empty","state":"open","user":{"login":"ann"},"labels":[{"name":"bug"}],"html_url":"https://x/7"},{"number":8,"title":"A change","state":"open","pull_request":{}}]`, token)
	reply("GET /repos/octo/harbor/issues/7", 200, `{"id":70,"number":7,"title":"Empty","body":"No rows.","state":"open","user":{"login":"ann"},"labels":[{"id":1,"name":"bug"}],"comments":2,"html_url":"https://x/7"}`, token)
	reply("GET /repos/octo/harbor/issues/6", 200, `{"number":6,"title":"Bare","body":null,"state":"closed","user":{"login":"ann"},"labels":[],"html_url":"https://x/6"}`, token)
	reply("GET /repos/octo/harbor/issues/8", 200, `{"number":8,"title":"A change","state":"open","user":{"login":"ann"},"labels":[],"pull_request":{"url":"https://x/8"}}`, token)
	reply("GET /repos/octo/moved/issues/7", 301, `{"message":"Moved Permanently"}`, token)
	reply("GET /repos/octo/harbor/issues/5", 410, `{"message":"This issue was deleted"}`, token)
	reply("POST /repos/octo/harbor/issues", 201, `{"id":70,"number":7,"html_url":"https://x/7"}`, token)
	reply("POST /repos/octo/harbor/issues/7/comments", 201, `{"id":71,"html_url":"https://x/7#71"}`, token)
	reply("POST /repos/octo/harbor/pulls", 201, `{"id":80,"number":8,"html_url":"https://x/8"}`, token)
	reply("GET /repos/octo/harbor/pulls/8", 200, `{"number":8,"title":"A change","state":"open","head":{"ref":"tides"},"base":{"ref":"main"},"additions":3}`, token)
	reply("GET /repos/octo/harbor/pulls/8/files", 200, `[{"filename":"a.go","status":"modified","additions":3,"patch":"@@"}]`, token)
	reply("POST /repos/octo/harbor/releases", 201, `{"id":90,"html_url":"https://x/v2"}`, token)
	reply("GET /repos/octo/gone/pulls/8", 404, `{"message":"Not Found"}`, token)
	reply("POST /repos/octo/stale/pulls", 409, `{"message":"Conflict"}`, token)
	mux.HandleFunc("GET /repos/octo/busy/pulls/8", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "7")
		w.WriteHeader(http.StatusTooManyRequests)
	})
	reply("GET /api/v1/packs", 200, `[{"name":"image.convert","description":"Scales a picture.","input_schema":{}},{"name":"doc.parse","description":"Reads.","input_schema":{}}]`, key)
	mux.HandleFunc("POST /v1/chat/completions", func(w http.ResponseWriter, r *http.Request) {
		if !key(r) {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"choices": []any{map[string]any{"message": map[string]any{"role": "assistant", "content": completion}}}})
	})
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	mux.HandleFunc("GET /search", func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("format") != "json" || r.URL.Query().Get("q") == "" {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		fmt.Fprintf(w, `{"query":"tides","results":[{"url":"%[1]s/tides","title":"Tides","content":"twice a day"},{"url":"file:///etc/passwd","title":"x"},{"url":"%[1]s/absent","title":"Absent","content":""}]}`, s.URL)
	})
	t.Setenv("SEARXNG_URL", s.URL)
	t.Setenv("GITHUB_API_URL", s.URL)
	t.Setenv("BINNACLE_URL", s.URL)
	return s
}

// run runs a pack and returns its output, or its error.
func run(t *testing.T, name, input string) (out map[string]any, failure *pack.Error) {
	t.Helper()
	var stdout bytes.Buffer
	code := pack.Main(packs[name], strings.NewReader(input), &stdout)
	if code == 0 {
		if err := json.Unmarshal(stdout.Bytes(), &out); err != nil {
			t.Fatalf("%s: %v\n%s", name, err, stdout.Bytes())
		}
		return out, nil
	}
	var doc struct {
		Error *pack.Error `json:"_error"`
	}
	if err := json.Unmarshal(stdout.Bytes(), &doc); err != nil || doc.Error == nil {
		t.Fatalf("%s: %v\n%s", name, err, stdout.Bytes())
	}
	return nil, doc.Error
}

// elsewhere holds the packs that other tests run: TestPostgres and TestSolve, beside the code of the
// packs, with servers of their own, and TestBrowserPacks in e2e, with a browser in a sandbox.
var elsewhere = map[string]bool{"sql.server.query": true, "swe.solve": true, "browser.interact": true, "web.scrape_spa": true, "web.test": true}

// TestPacks runs every pack of the program, except those in elsewhere, against local
// servers and documents. A pack without a case fails the test. It also checks that one
// message is sent.
func TestPacks(t *testing.T) {
	database := exampleOf(t, "sql.query")["database_b64"].(string)
	const gh = `"repo":"octo/harbor","_secrets":{"github-token":"gh-token"}`
	const llm = `"model":"m","_secrets":{"pack-llm-key":"vk"}`
	cases := map[string]struct{ input, completion, want string }{
		"doc.parse":             {`{"source_b64":"` + b64("<h1>Tides</h1><p>High at <b>noon</b>.</p>") + `","filename":"a.html"}`, "", `"markdown":"# Tides\n\nHigh at **noon**."`},
		"github.issue.comment":  {`{` + gh + `,"issue_number":7,"body":"b"}`, "", `{"html_url":"https://x/7#71","id":71,"number":7}`},
		"github.issue.create":   {`{` + gh + `,"title":"t","labels":["bug"]}`, "", `"number":7`},
		"github.issue.get":      {`{` + gh + `,"issue_number":7}`, "", `{"body":"No rows.","comments":2,"html_url":"https://x/7","labels":["bug"],"number":7,"state":"open","title":"Empty","user":"ann"}`},
		"github.issue.list":     {`{` + gh + `,"limit":5}`, "", `{"count":1,"issues":[{"html_url":"https://x/7","labels":["bug"],"number":7,"state":"open","title":"Empty","user":"ann"}]}`},
		"github.pr.create":      {`{` + gh + `,"title":"t","head":"tides","base":"main"}`, "", `"number":8`},
		"github.pr.files":       {`{` + gh + `,"number":8}`, "", `"filename":"a.go"`},
		"github.pr.get":         {`{` + gh + `,"number":8}`, "", `"additions":3,"base":"main","body":"","deletions":0,"draft":false,"head":"tides"`},
		"github.release.create": {`{` + gh + `,"tag":"v2"}`, "", `"id":90`},
		"http.fetch":            {`{"url":"URL/binary"}`, "", `"body":"//4A","encoding":"base64"`},
		"image.convert":         {`{"image_b64":"` + picture(t, 8, 4) + `","format":"jpeg","width":2}`, "", `"height":1,`},
		"mesh.plan":             {`{"user_intent":"i",` + llm + `}`, "Here:\n```json\n{\"steps\":[{\"tool\":\"doc.parse\",\"args\":{\"a\":1}},{\"tool\":\"image.convert\"}]}\n```", `{"complexity":"pack-chain","model":"m","steps":[{"args":{"a":1},"order":1,"rationale":"","tool":"doc.parse"},{"args":{},"order":2`},
		"mesh.route":            {`{"user_intent":"i",` + llm + `}`, `{"recommendation":{"tool":"image.convert","suggested_inputs":{"width":9},"why":"w"},"alternatives":[{"tool":"none.such"},{"tool":"doc.parse"}]}`, `{"alternatives":[{"suggested_inputs":{},"tool":"doc.parse","why":""}],"gap":"","model":"m","recommendation":{"suggested_inputs":{"width":9},"tool":"image.convert","why":"w"}}`},
		"research.deep":         {`{"query":"tides",` + llm + `}`, "Twice a day [1].", `"sources_used":1,"synthesis":"Twice a day [1]."`},
		"mail.send":             {`{"to":["bob@mail.test"],"subject":"Tides","text":"High at noon."}`, "", `"recipients":1`},
		"sql.query":             {`{"query":"SELECT day FROM tides","database_b64":"` + database + `"}`, "", `{"columns":["day"],"count":2,"rows":[["Monday"],["Monday"]],"truncated":false}`},
		"slides.render":         {`{"markdown":"---\ntheme: x\n---\n# A\n\n<script>alert(1)</script>\n\n---\n\n# B","format":"html"}`, "", `"slides":2`},
		"web.scrape":            {`{"url":"URL/tides"}`, "", `"title":"Tides"`},
	}
	server, addr := mailtest.Start(t, false, false)
	t.Setenv("SMTP_URL", "smtp+plain://"+addr)
	t.Setenv("MAIL_FROM", "harbour@mail.test")
	defer func() {
		if n := len(server.Mails()); n != 1 {
			t.Errorf("%d messages were sent", n)
		}
	}()
	for name := range packs {
		t.Run(name, func(t *testing.T) {
			c, ok := cases[name]
			if elsewhere[name] {
				return
			}
			if !ok {
				t.Fatal("no case: add one")
			}
			s := site(t, c.completion)
			out, failure := run(t, name, strings.ReplaceAll(c.input, "URL", s.URL))
			if failure != nil {
				t.Fatalf("%+v", failure)
			}
			body, err := json.Marshal(out)
			if err != nil || !strings.Contains(strings.ReplaceAll(string(body), "\\u003c", "<"), c.want) {
				t.Errorf("%s\nwant %s", body, c.want)
			}
		})
	}
}

// TestErrors checks the codes of the errors of several packs, and the delay after
// which a call may be repeated. An issue without a body is no error.
func TestErrors(t *testing.T) {
	s := site(t, `{"steps":[{"tool":"none.such"}]}`)
	const token = `"_secrets":{"github-token":"gh-token"}`
	for _, c := range []struct{ name, input, code string }{
		{"http.fetch", `{"url":"file:///etc/passwd"}`, pack.InvalidInput},
		{"http.fetch", `{"url":"http://u:p@localhost/"}`, pack.InvalidInput},
		{"http.fetch", `{"url":"` + s.URL + `","headers":{"Host":"x"}}`, pack.InvalidInput},
		{"http.fetch", `{"url":"http://127.0.0.1:1/"}`, pack.HandlerFailed},
		{"web.scrape", `{"url":"` + s.URL + `/absent"}`, pack.HandlerFailed},
		{"web.scrape", `{"url":"` + s.URL + `/binary"}`, pack.HandlerFailed},
		{"github.pr.get", `{"repo":"../admin","number":8,` + token + `}`, pack.InvalidInput},
		{"github.pr.get", `{"repo":"octo/gone","number":8,` + token + `}`, pack.InvalidInput},
		{"github.pr.get", `{"repo":"octo/harbor","number":8}`, pack.CredentialInvalid},
		{"github.issue.get", `{"repo":"octo/harbor","issue_number":8,` + token + `}`, pack.InvalidInput},
		{"github.issue.get", `{"repo":"octo/harbor","issue_number":9,` + token + `}`, pack.InvalidInput},
		{"github.issue.get", `{"repo":"octo/harbor","issue_number":5,` + token + `}`, pack.InvalidInput},
		{"github.issue.get", `{"repo":"octo/moved","issue_number":7,` + token + `}`, pack.HandlerFailed},
		{"github.issue.get", `{"repo":"octo/harbor","issue_number":7}`, pack.CredentialInvalid},
		{"github.pr.create", `{"repo":"octo/stale",` + token + `}`, pack.SchemaMismatch},
		{"mesh.plan", `{"user_intent":"i","model":"m","_secrets":{"pack-llm-key":"vk"}}`, pack.HandlerFailed},
		{"mesh.plan", `{"user_intent":"i","model":"m","_secrets":{"pack-llm-key":"other"}}`, pack.CredentialInvalid},
		{"mesh.plan", `{"user_intent":"i","model":"m"}`, pack.CredentialInvalid},
		{"image.convert", `{"image_b64":"eA==","format":"png"}`, pack.InvalidInput},
		{"image.convert", `{"image_b64":"?","format":"png"}`, pack.InvalidInput},
		{"doc.parse", `{"source_b64":"` + b64("\xff\xfe") + `"}`, pack.InvalidInput},
		{"doc.parse", `{"source_b64":"` + b64("%PDF-1.4\nx") + `"}`, pack.InvalidInput},
		{"doc.parse", `{"source_b64":"` + b64("PK\x03\x04") + `"}`, pack.InvalidInput},
		{"slides.render", `{"markdown":" ","format":"pdf"}`, pack.InvalidInput},
		{"slides.render", `[]`, pack.InvalidInput},
	} {
		out, failure := run(t, c.name, c.input)
		if failure == nil || failure.Code != c.code || failure.Message == "" {
			t.Errorf("%s %s: %v %+v, want %s", c.name, c.input, out, failure, c.code)
		}
	}
	if out, failure := run(t, "github.issue.get", `{"repo":"octo/harbor","issue_number":6,`+token+`}`); failure != nil || out["body"] != "" || out["state"] != "closed" {
		t.Errorf("an issue without a body: %v %+v", out, failure)
	}
	if _, failure := run(t, "github.pr.get", `{"repo":"octo/busy","number":8}`); failure == nil || failure.RetryAfterMS != 7000 {
		t.Errorf("%+v", failure)
	}
}

// TestManifests checks that each pack has a manifest with its name and an example, and
// that the outputs which examples state are those of the pack.
func TestManifests(t *testing.T) {
	files, err := filepath.Glob("../manifests/*.pack.yaml")
	if err != nil {
		t.Fatal(err)
	}
	inImages, err := filepath.Glob("../images/*.pack.yaml")
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, f := range append(files, inImages...) {
		body, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		var m struct {
			Name, Program, Description, Class string
			Env                               []string
			Examples                          []struct {
				About         string
				Input, Output map[string]any
			}
		}
		if err := yaml.Unmarshal(body, &m); err != nil {
			t.Fatal(f, err)
		}
		if m.Program != "builtin" {
			continue
		}
		seen[m.Name] = true
		if filepath.Base(f) != m.Name+".pack.yaml" || packs[m.Name] == nil || len(m.Env) == 0 || m.Env[0] != "BINNACLE_PACK="+m.Name || m.Description == "" || m.Class == "" || len(m.Examples) == 0 {
			t.Errorf("%s: %+v", f, m)
		}
		for _, e := range m.Examples {
			if e.Output == nil {
				continue
			}
			in, _ := json.Marshal(e.Input)
			want, _ := json.Marshal(e.Output)
			out, failure := run(t, m.Name, string(in))
			if got, _ := json.Marshal(out); failure != nil || !bytes.Equal(got, want) {
				t.Errorf("%s: %s: %+v %s, want %s", f, e.About, failure, got, want)
			}
		}
	}
	for name := range packs {
		if !seen[name] {
			t.Errorf("neither packs/manifests nor packs/images has %s.pack.yaml", name)
		}
	}
}

// exampleOf returns the input of the first example of a manifest.
func exampleOf(t *testing.T, name string) map[string]any {
	t.Helper()
	body, err := os.ReadFile("../manifests/" + name + ".pack.yaml")
	var m struct {
		Examples []struct{ Input map[string]any }
	}
	if err == nil {
		err = yaml.Unmarshal(body, &m)
	}
	if err != nil || len(m.Examples) == 0 {
		t.Fatal(name, err)
	}
	return m.Examples[0].Input
}

func b64(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) }
