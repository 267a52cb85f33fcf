package e2e

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
	"github.com/binnacle-mesh/binnacle/e2e/packs/spell"
	"github.com/binnacle-mesh/binnacle/pkg/meshtest/oauthtest"
)

// canary is a secret of one type, with the parts of its value that must not occur anywhere.
type canary struct {
	kind, value string
	marks       []string
}

func (c *canary) name() string { return "canary-" + c.kind }

// canaries returns a secret of each type. Tokens of the type oauth come from a server.
func canaries(t *testing.T, tokens *oauthtest.Server) (out []canary) {
	t.Helper()
	mark := func() string { return "mark-" + rand.Text() }
	add := func(kind, value string, marks ...string) { out = append(out, canary{kind, value, marks}) }
	key, password, cookie, file := mark(), mark(), mark(), mark()
	add("api_key", key, key)
	add("login", `{"username":"jack","password":"`+password+`"}`, password)
	add("cookie", `{"name":"sid","value":"`+cookie+`","domain":"shop.example"}`, cookie)
	add("file", "first line of the file\n"+file+"\n", file)
	client := oauthClient(t, tokens)
	add("oauth", client, oauthtest.ClientSecret, client[strings.Index(client, "refresh-"):][:34])
	_, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	block, err := ssh.MarshalPrivateKey(private, "")
	if err != nil {
		t.Fatal(err)
	}
	add("ssh", string(pem.EncodeToMemory(block)), inner(string(pem.EncodeToMemory(block)), "PRIVATE KEY", 3))
	certificate, _ := certificateSecret(t)
	add("certificate", certificate, inner(certificate, "PRIVATE KEY", 1))
	return out
}

// inner returns a line of the PEM block of a kind, counted from the line after its first occurrence.
func inner(text, kind string, line int) string {
	return strings.Split(text[strings.Index(text, kind):], "\n")[line]
}

// encodings returns a text, and the bytes by which it can be found in each encoding of a longer text.
func encodings(text string) (out [][]byte) {
	for _, how := range spell.Hows {
		if !strings.HasPrefix(how, "base64") {
			out = append(out, []byte(spell.In(how, text)))
		}
	}
	for before := range 3 { // bytes before the text in the group of three with its first byte
		for _, e := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
			s := e.EncodeToString([]byte(strings.Repeat("x", before) + text))
			out = append(out, []byte(s[(before*8+5)/6:(before+len(text))*8/6]))
		}
	}
	slices.SortFunc(out, bytes.Compare)
	return slices.CompactFunc(out, bytes.Equal)
}

// search looks for spellings of texts. It is safe for concurrent use.
type search struct {
	mu      sync.Mutex
	texts   map[string][][]byte // spellings by text
	planted map[string]bool     // kinds of places that contained the planted text
	found   map[string]bool     // places that contained another text
	plant   string
	places  map[string]int // number of places by kind
}

// see searches one place. kind is the kind of place, in which the planted text must be found.
func (s *search) see(kind, place string, b []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.places[kind]++
	for text, forms := range s.texts {
		for _, form := range forms {
			if !bytes.Contains(b, form) {
				continue
			}
			if text == s.plant {
				s.planted[kind] = true
			} else {
				s.found[fmt.Sprintf("%s: %s contains %q", kind, place, form)] = true
			}
		}
	}
	if m := oauthCredential.Find(b); m != nil {
		s.found[fmt.Sprintf("%s: %s contains %q", kind, place, m)] = true
	}
}

// folder searches the files of a folder.
func (s *search) folder(kind, dir string) {
	_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			if b, err := os.ReadFile(path); err == nil {
				s.see(kind, path, b)
			}
		}
		return nil
	})
}

// archive searches the files of an archive, which may be compressed.
func (s *search) archive(t *testing.T, kind, path string) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	s.see(kind, path, b)
	var r io.Reader = bytes.NewReader(b)
	if bytes.HasPrefix(b, []byte{0x1f, 0x8b}) {
		if r, err = gzip.NewReader(r); err != nil {
			t.Fatal(err)
		}
	}
	for files := tar.NewReader(r); ; {
		h, err := files.Next()
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			t.Fatal(path, err)
		}
		b, err := io.ReadAll(files)
		if err != nil {
			t.Fatal(path, err)
		}
		s.see(kind, path+" "+h.Name, b)
	}
}

// TestSecretsNowhere stores a secret of each type, and uses each in calls that succeed and that fail: as a
// value that a tool prints in other encodings, as the credential of a request, as the certificate of a
// client, as the client of an authorization server and as the key of a provider of models. Then neither the
// streams of the NATS server, nor the files, logs, metrics, traces, responses, packs, exports and the backup
// of the mesh, nor the command line or the environment of a process contain a part of a secret in any
// common encoding, also after a service has crashed, which writes no core file. The search finds a text
// that was planted in each of these places.
func TestSecretsNowhere(t *testing.T) {
	for name, start := range harness.Topologies {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := &search{texts: map[string][][]byte{}, planted: map[string]bool{}, found: map[string]bool{}, places: map[string]int{}, plant: "planted-" + rand.Text()}
			var traces sync.Mutex // held while the last span is searched
			collector := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				traces.Lock()
				defer traces.Unlock()
				b, _ := io.ReadAll(r.Body)
				if r.Header.Get("Content-Encoding") == "gzip" {
					z, err := gzip.NewReader(bytes.NewReader(b))
					if err != nil {
						t.Error(err)
						return
					}
					b, _ = io.ReadAll(z)
				}
				s.see("trace", r.URL.Path, b)
			}))
			t.Cleanup(collector.Close)
			tokens := oauthtest.New(true)
			t.Cleanup(tokens.Close)
			secrets := canaries(t, tokens)
			site := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("X-Echo", r.Header.Get("Authorization"))
				fmt.Fprint(w, "for ", r.Header.Get("Authorization"), " ", base64.StdEncoding.EncodeToString([]byte(r.Header.Get("Authorization"))))
			}))
			t.Cleanup(site.Close)
			llm, doc := harness.NewLLM(t)
			refused := "mark-" + rand.Text()
			text, err := os.ReadFile(doc)
			if err != nil {
				t.Fatal(err)
			}
			doc = write(t, "llm.json", strings.Replace(string(text), `"providers":[`, fmt.Sprintf(`"providers":[{"name":"refusing","base_url":%q,"secrets":["llm.refusing"],"models":["good"]},`, llm.URL+"/v1"), 1))
			harness.WriteSecrets(t, doc, map[string]string{"llm.fixture": llm.Key, "llm.refusing": refused})
			s.texts[llm.Key], s.texts[refused], s.texts[s.plant] = encodings(llm.Key), encodings(refused), encodings(s.plant)
			marks := []string{llm.Key, refused}
			for _, c := range secrets {
				for _, mark := range c.marks {
					s.texts[mark] = encodings(mark)
					marks = append(marks, mark)
				}
			}
			host, port, _ := strings.Cut(strings.TrimPrefix(site.URL, "https://"), ":")
			packs := fetchPack(t, fmt.Sprintf("egress:\n- {host: %s, port: %s, paths: [/key], credential: {secret: canary-api_key, header: Authorization, format: 'Bearer {}'}}\n- {host: %s, port: %s, paths: [/certificate], credential: {secret: canary-certificate, format: certificate}}\n", host, port, host, port))
			leakPack(t, packs, secrets)
			roots := write(t, "roots.pem", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: site.Certificate().Raw})))
			m := start(t, harness.Options{Packs: packs, LLM: doc, Listen: true, Config: "# admin listeners\n", Env: []string{"BINNACLE_EGRESS_NETWORKS=127.0.0.0/8", "SSL_CERT_FILE=" + roots,
				"OTEL_EXPORTER_OTLP_ENDPOINT=" + collector.URL, "OTEL_BSP_SCHEDULE_DELAY=100", "BINNACLE_TOKEN_ENDPOINTS=" + strings.TrimPrefix(tokens.URL, "https://"), "BINNACLE_TOKEN_CA=" + roots}})
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			listed := make(chan string, 1)
			go func() { listed <- watchProcesses(ctx, marks...) }()

			u := &leakUse{t: t, m: m, s: s}
			u.store(secrets)
			cli(t, m, "trust", "sign", write(t, "p0.json", fmt.Sprintf(`{"egress":[{"host":%q,"port":%s,"mode":"terminate"}]}`, host, port)))
			cli(t, m, "policy", "activate", filepath.Join(m.Dir, "keys/p0.json"))
			u.deliver(secrets)
			u.request(site.URL)
			u.models()
			u.replace(secrets)
			noCoreDumps(t, m)
			if name != "one" {
				m.Signal("vault-broker", syscall.SIGABRT)
				m.Exited("vault-broker", 20*time.Second)
				if cores, _ := filepath.Glob("core*"); len(cores) > 0 {
					t.Error(cores)
				}
				m.Restart("vault-broker")
				m.WaitReady()
			}
			u.reads()
			eachMessage(t, m, func(stream string, data []byte) { s.see("stream", stream, data) })
			u.exports(name)
			stop()
			if path := <-listed; path != "" {
				t.Errorf("%s contains a secret", path)
			}
			processPlanted(t, s.plant)
			if err := os.WriteFile(filepath.Join(m.Dir, "planted"), []byte(spell.In("hex", s.plant)), 0o600); err != nil {
				t.Fatal(err)
			}
			s.folder("file", m.Dir) // after the mesh has stopped, with its logs
			s.see("log", "log", []byte(m.Log()))
			traces.Lock()
			defer traces.Unlock()
			for place := range s.found {
				t.Error(place)
			}
			for _, kind := range []string{"stream", "response", "pack", "export", "backup", "file"} {
				if !s.planted[kind] {
					t.Errorf("%s: the planted text was not found", kind)
				}
			}
			if s.places["trace"] == 0 || s.places["response"] < 60 || s.places["file"] < 10 {
				t.Errorf("searched: %v", s.places)
			}
		})
	}
}

// leakPack builds the pack cmd.canaries into a folder of packs. It receives the secrets.
func leakPack(t *testing.T, dir string, secrets []canary) {
	t.Helper()
	cmd := exec.Command("go", "build", "-o", filepath.Join(dir, "canaries"), "./packs/leak")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	manifest := "name: cmd.canaries\ninput_schema:\n  properties: {how: string, where: string, secret: string}\noutput_schema:\n  required: [result]\n  properties: {result: object}\nsecrets:\n"
	for _, c := range secrets {
		manifest += "- {name: " + c.name() + ", hosts: [api.example.com]}\n"
	}
	manifest = strings.Replace(manifest, "- {name: canary-certificate, hosts: [api.example.com]}\n", "- {name: canary-certificate}\n", 1)
	if err := os.WriteFile(filepath.Join(dir, "canaries.pack.yaml"), []byte(manifest), 0o644); err != nil {
		t.Fatal(err)
	}
}

// processPlanted checks that the search of processes finds a text in a command line and in an environment.
func processPlanted(t *testing.T, plant string) {
	t.Helper()
	for _, cmd := range []*exec.Cmd{exec.Command("sleep", "60", "0."+strings.Repeat("0", 9)), exec.Command("sh", "-c", "sleep 60; : "+plant)} {
		if cmd.Args[0] == "sleep" {
			cmd.Env = []string{"PLANTED=" + plant}
		}
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		if watchProcesses(ctx, plant) == "" {
			t.Errorf("%v: the planted text was not found", cmd.Args)
		}
		cancel()
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		_ = cmd.Wait()
	}
}

// leakUse uses secrets, and searches what it receives.
type leakUse struct {
	t *testing.T
	m *harness.Mesh
	s *search
}

// do sends a request and searches the response, whose status must be one of want.
func (u *leakUse) do(method, path, body string, header map[string]string, want ...int) string {
	u.t.Helper()
	r, err := u.m.DoHeader(u.t.Context(), method, path, body, header)
	if err != nil {
		u.t.Fatal(err)
	}
	u.s.see("response", method+" "+path, append(fmt.Appendf(nil, "%v", r.Header), r.Body...))
	if len(want) > 0 && !slices.Contains(want, r.Status) {
		u.t.Errorf("%s %s: %d %.300s", method, path, r.Status, r.Body)
	}
	return string(r.Body)
}

// cli runs a command with a text as standard input, and searches what it prints.
func (u *leakUse) cli(stdin string, args ...string) error {
	out, err := u.m.CLIStdin(stdin, args...)
	u.s.see("response", strings.Join(args, " "), fmt.Appendf(nil, "%s %v", out, err))
	return err
}

// store stores each secret, also in ways that are rejected.
func (u *leakUse) store(secrets []canary) {
	u.t.Helper()
	for i, c := range secrets {
		other := secrets[(i+1)%len(secrets)].kind
		if other == "file" { // accepts every value
			other = "ssh"
		}
		if err := u.cli(c.value, "secret", "put", c.name(), "--type", other); err == nil {
			u.t.Errorf("a value of type %s was accepted as one of type %s", c.kind, other)
		}
		if err := u.cli(c.value, "secret", "put", c.name(), "--type", c.kind); err != nil {
			u.t.Fatal(err)
		}
		quoted := spell.In("plain", c.value)
		u.do("POST", "/api/v1/secrets", `{"name":"x","value":["`+quoted+`"]}`, nil, http.StatusBadRequest)
		u.do("POST", "/api/v1/secrets", `{"name":"x","value":"`+quoted, nil, http.StatusBadRequest)
		u.do("POST", "/api/v1/secrets", `{"name":"x","value":"`+quoted+`"}`, map[string]string{"Authorization": "Bearer none"}, http.StatusUnauthorized)
	}
}

// deliver releases each secret to a tool, which prints it and fails in several ways.
func (u *leakUse) deliver(secrets []canary) {
	u.t.Helper()
	session := map[string]string{"X-Binnacle-Session": "s-leak"}
	for i, c := range secrets {
		for _, how := range []string{"plain", spell.Hows[i*2%len(spell.Hows)], u.s.plant} {
			if out := u.do("POST", "/api/v1/packs/cmd.canaries", fmt.Sprintf(`{"how":%q,"where":"value","secret":%q}`, how, c.name()), session, http.StatusOK); !strings.Contains(out, "[secret:"+c.name()+"]") {
				u.t.Errorf("%s as %s: %.300s", c.kind, how, out)
			}
		}
		for _, where := range []string{"stderr", []string{"garbage", "schema", "cut"}[i%3]} {
			u.do("POST", "/api/v1/packs/cmd.canaries", fmt.Sprintf(`{"how":"plain","where":%q,"secret":%q}`, where, c.name()), session)
		}
	}
}

// request sends requests with credentials.
func (u *leakUse) request(site string) {
	u.t.Helper()
	for path, want := range map[string]string{"/key": "[secret:canary-api_key]", "/certificate": "for ", "/other": "path_denied"} {
		if out := u.do("POST", "/api/v1/packs/cmd.fetch", fmt.Sprintf(`{"url":%q}`, site+path), nil, http.StatusOK); !strings.Contains(out, want) {
			u.t.Errorf("%s: %.400s", path, out)
		}
	}
}

// models sends requests to two models, with a key that the provider of the second one refuses with an error
// that contains it.
func (u *leakUse) models() {
	u.t.Helper()
	for model, want := range map[string]string{"fixture/good": "You said: ahoy", "refusing/good": "credential_invalid"} {
		if out := u.do("POST", "/v1/chat/completions", fmt.Sprintf(`{"model":%q,"messages":[{"role":"user","content":"ahoy"}]}`, model), nil); !strings.Contains(out, want) {
			u.t.Errorf("%s: %.300s", model, out)
		}
	}
}

// replace replaces, deletes and restores secrets, and uses one that is deleted.
func (u *leakUse) replace(secrets []canary) {
	u.t.Helper()
	first := secrets[0]
	if err := u.cli(first.value, "secret", "put", first.name(), "--type", first.kind, "--overlap", "1h"); err != nil {
		u.t.Error(err)
	}
	for _, verb := range []string{"delete", "restore", "show"} {
		if err := u.cli("", "secret", verb, first.name()); err != nil {
			u.t.Error(err)
		}
		if verb == "delete" {
			u.do("POST", "/api/v1/packs/cmd.canaries", fmt.Sprintf(`{"how":"plain","where":"value","secret":%q}`, first.name()), nil)
		}
	}
	if err := u.cli("", "secret", "list"); err != nil {
		u.t.Error(err)
	}
}

// reads reads what the gateways and the admin listeners return.
func (u *leakUse) reads() {
	u.t.Helper()
	for _, path := range []string{"/api/v1/events", "/helm/receipts", "/api/v1/views/audit", "/api/v1/ledger", "/metrics", "/readyz", "/openapi.json"} {
		for _, as := range []*harness.Mesh{u.m, u.m.Operator()} {
			(&leakUse{u.t, as, u.s}).do("GET", path, "", nil)
		}
	}
	for _, process := range u.m.Names() {
		if process == "nats" {
			continue
		}
		for _, path := range []string{"/metrics", "/readyz"} {
			r, err := http.Get("http://" + u.m.Admin(process) + path)
			if err != nil {
				u.t.Error(err)
				continue
			}
			b, err := io.ReadAll(r.Body)
			if _ = r.Body.Close(); err != nil {
				u.t.Error(err)
			}
			u.s.see("response", process+" "+path, b)
		}
	}
}

// exports exports a session, the tenant and the ledger, and takes a backup. It stops the mesh.
func (u *leakUse) exports(topology string) {
	u.t.Helper()
	dir := u.t.TempDir()
	pack, tenant, ledger, backup := filepath.Join(dir, "p.tar"), filepath.Join(dir, "t.jsonl"), filepath.Join(dir, "l.jsonl"), filepath.Join(dir, "mesh.backup")
	cli(u.t, u.m, "export", "--session", "s-leak", "--out", pack)
	cli(u.t, u.m, "tenant", "export", "default", "--out", tenant)
	cli(u.t, u.m, "export", "--ledger", "--out", ledger)
	args := []string{"backup", "--out", backup}
	if topology == "one" {
		u.m.StopAll()
	} else {
		args = append(args, "--nats", u.m.NATS, "--vault", filepath.Join(u.m.Dir, "vault-broker"))
	}
	cli(u.t, u.m, args...)
	u.m.StopAll()
	u.s.archive(u.t, "pack", pack)
	u.s.archive(u.t, "backup", backup)
	for _, file := range []string{tenant, ledger} {
		b, err := os.ReadFile(file)
		if err != nil {
			u.t.Fatal(err)
		}
		u.s.see("export", file, b)
	}
}
