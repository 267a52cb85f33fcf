package e2e

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/egress"
	"github.com/binnacle-mesh/binnacle/pkg/meshtest/certs"
	"github.com/binnacle-mesh/binnacle/pkg/meshtest/ports"
)

// siem is a receiver of a security team: over syslog with TLS (RFC 5425), over HTTPS, or rsyslog over
// RELP with TLS. It ends without a trace of what it has not stored, and starts again at its address.
type siem struct {
	t      *testing.T
	addr   string
	dir    string // with cert.pem and key.pem
	cert   tls.Certificate
	schema *jsonschema.Schema
	serve  func(s *siem) (end func())
	end    func()
	stored string // file with the events that rsyslog has stored

	mu  sync.Mutex
	ids map[string]bool
}

// listen returns a listener at the receiver's address.
func (s *siem) listen() (l net.Listener) {
	s.t.Helper()
	eventually(s.t, "the address is free", 10*time.Second, func() (ok bool) {
		var err error
		l, err = tls.Listen("tcp", s.addr, &tls.Config{Certificates: []tls.Certificate{s.cert}})
		return err == nil
	})
	return l
}

// store stores the document of an event, which must be valid by the schema.
func (s *siem) store(line []byte) {
	var x struct {
		Metadata struct {
			UID string `json:"uid"`
		} `json:"metadata"`
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(line))
	if err == nil {
		err = s.schema.Validate(doc)
	}
	if err == nil {
		err = json.Unmarshal(line, &x)
	}
	if err != nil {
		s.t.Errorf("%v: %s", err, line)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ids[x.Metadata.UID] = true
}

// missing returns the ids that were not stored.
func (s *siem) missing(ids []string) []string {
	if s.stored != "" {
		b, _ := os.ReadFile(s.stored) // it does not exist before the first event
		for line := range bytes.Lines(b) {
			if bytes.HasSuffix(line, []byte("\n")) {
				s.store(line)
			}
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(ids), func(id string) bool { return s.ids[id] })
}

// overSyslog reads messages that have their length before them. When it ends, it closes connections
// without reading what has arrived.
func overSyslog(s *siem) (end func()) {
	l := s.listen()
	var mu sync.Mutex
	var open []net.Conn
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			open = append(open, c)
			mu.Unlock()
			go func() {
				r := bufio.NewReader(c)
				for {
					n, err := r.ReadString(' ')
					size, bad := strconv.Atoi(strings.TrimSpace(n))
					if err != nil || bad != nil {
						return
					}
					b := make([]byte, size)
					if _, err := io.ReadFull(r, b); err != nil {
						return
					}
					_, doc, _ := bytes.Cut(b, []byte(" - {"))
					s.store(append([]byte("{"), doc...))
				}
			}()
		}
	}()
	return func() {
		l.Close()
		mu.Lock()
		defer mu.Unlock()
		for _, c := range open {
			c.Close()
		}
	}
}

// overHTTPS stores the lines of requests. The first request after each start is read and fails, as if
// the receiver had ended before it stored the lines.
func overHTTPS(s *siem) (end func()) {
	l := s.listen()
	var first sync.Once
	srv := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		b, err := io.ReadAll(r.Body)
		first.Do(func() { err = io.ErrUnexpectedEOF })
		if err != nil {
			panic(http.ErrAbortHandler)
		}
		for line := range bytes.Lines(b) {
			s.store(bytes.TrimSpace(line))
		}
	})}
	go func() { _ = srv.Serve(l) }()
	return func() { _ = srv.Close() }
}

// overRELP runs rsyslog, which confirms an event once it has written it, and is ended by SIGKILL.
func overRELP(s *siem) (end func()) {
	root := filepath.Join(harness.Root(), ".cache/rsyslog/usr")
	if _, err := os.Stat(root); err != nil {
		s.t.Fatal("rsyslog is missing; scripts/rsyslog downloads it")
	}
	s.stored = filepath.Join(s.dir, "events.jsonl")
	_, port, _ := strings.Cut(s.addr, ":")
	conf := filepath.Join(s.dir, "rsyslog.conf")
	if err := os.WriteFile(conf, fmt.Appendf(nil, `global(workDirectory=%q maxMessageSize="256k")
module(load="imrelp" tls.tlslib="openssl")
template(name="event" type="string" string="%%msg%%\n")
ruleset(name="events" queue.type="Direct") { action(type="omfile" file=%q template="event") }
input(type="imrelp" address="127.0.0.1" port=%q ruleset="events" maxDataSize="256k" tls="on" tls.mycert=%q tls.myprivkey=%q)
`, s.dir, s.stored, port, filepath.Join(s.dir, "cert.pem"), filepath.Join(s.dir, "key.pem")), 0o600); err != nil {
		s.t.Fatal(err)
	}
	lib := filepath.Join(root, "lib/x86_64-linux-gnu")
	var out bytes.Buffer
	cmd := exec.Command(filepath.Join(root, "sbin/rsyslogd"), "-n", "-f", conf, "-i", filepath.Join(s.dir, "pid"), "-M", filepath.Join(lib, "rsyslog"))
	cmd.Env, cmd.Stdout, cmd.Stderr = []string{"LD_LIBRARY_PATH=" + lib}, &out, &out
	if err := cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	end = sync.OnceFunc(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		_ = os.Remove(filepath.Join(s.dir, "pid"))
		if s.t.Failed() {
			s.t.Logf("rsyslog: %s", out.String())
		}
	})
	return end
}

// forwarder starts `binnacle forward` and returns a function that kills it.
func forwarder(t *testing.T, m *harness.Mesh, to, ca, cursor string, more ...string) (kill func()) {
	t.Helper()
	cmd := exec.Command(harness.Bin(t, "binnacle"), append([]string{"forward", "--to", to, "--ca", ca, "--cursor", cursor, "--follow"}, more...)...)
	cmd.Env = append(os.Environ(), m.Env()...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return sync.OnceFunc(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
}

// TestForwardRestarts shows that every event is delivered over syslog with TLS, over HTTPS and to rsyslog
// over RELP with TLS, as a document that is valid by the schema of OCSF's class, although the receivers
// end and lose what they have not stored, `binnacle forward` is killed, and the mesh is killed: its one
// process or, with one process per service, the gateway, audit and the NATS server. In one process, there
// is a further receiver of syslog and of HTTPS that is reached through the egress-broker, which
// refuses other servers.
func TestForwardRestarts(t *testing.T) {
	for name, start := range harness.Topologies {
		t.Run(name, func(t *testing.T) {
			var brokered map[string]string
			if name == "one" {
				brokered = map[string]string{"syslog+tls": ports.Free(t), "https": ports.Free(t)}
			}
			forwardRestarts(t, start, brokered)
		})
	}
}

// forwardRestarts runs the checks of TestForwardRestarts on a topology. brokered are the addresses of the
// receivers behind the egress-broker, by scheme.
func forwardRestarts(t *testing.T, start func(testing.TB, harness.Options) *harness.Mesh, brokered map[string]string) {
	o := harness.Options{Noop: true}
	if brokered != nil {
		o.Env = []string{"BINNACLE_EXPORTS=" + brokered["syslog+tls"] + "," + brokered["https"]}
	}
	m := start(t, o)
	dir := t.TempDir()
	ca := filepath.Join(dir, "cert.pem")
	certs.Write(t, ca, filepath.Join(dir, "key.pem"), "receiver")
	pair, err := tls.LoadX509KeyPair(ca, filepath.Join(dir, "key.pem"))
	if err != nil {
		t.Fatal(err)
	}
	schema, err := jsonschema.NewCompiler().Compile(filepath.Join(harness.Root(), "services/binnacle/ocsf/testdata/api_activity.json"))
	if err != nil {
		t.Fatal(err)
	}
	receivers, kills := map[string]*siem{}, map[string]func(){}
	for scheme, serve := range map[string]func(*siem) func(){"syslog+tls": overSyslog, "https": overHTTPS, "relp+tls": overRELP} {
		for name, addr := range map[string]string{scheme: ports.Free(t), scheme + " through the broker": brokered[scheme]} {
			if addr != "" {
				receivers[name] = &siem{t: t, addr: addr, dir: dir, cert: pair, schema: schema, serve: serve, ids: map[string]bool{}}
			}
		}
	}
	for _, s := range receivers {
		s.end = s.serve(s)
	}
	exports := filepath.Join(m.Dir, "exports")
	if brokered != nil {
		if out, err := m.CLI("forward", "--to", "https://"+receivers["https"].addr, "--ca", ca, "--cursor", filepath.Join(dir, "other"), "--egress", exports); err == nil || !strings.Contains(err.Error(), "egress-broker.exports") {
			t.Errorf("a server that is not configured: %v %s", err, out)
		}
	}
	forward := func() {
		for name, s := range receivers {
			if kills[name] != nil {
				kills[name]()
			}
			scheme, broker, _ := strings.Cut(name, " ")
			var more []string
			if broker != "" {
				more = []string{"--egress", exports}
			}
			kills[name] = forwarder(t, m, scheme+"://"+s.addr, ca, filepath.Join(dir, name), more...)
		}
	}
	forward()
	t.Cleanup(func() {
		for scheme := range receivers {
			kills[scheme]()
			receivers[scheme].end()
		}
	})
	calls := func(n int) {
		t.Helper()
		for i := range n {
			if r, err := m.Do(t.Context(), "POST", "/api/v1/packs/noop", "", fmt.Sprintf(`{"n":%d}`, i)); err != nil || r.Status != 200 {
				t.Error(r, err)
			}
		}
	}
	delivered := func(when string) {
		t.Helper()
		ids := toDeliver(t, m)
		for scheme, s := range receivers {
			eventually(t, scheme+" has every event "+when, time.Minute, func() bool { return len(s.missing(ids)) == 0 })
		}
		t.Logf("%s: %d events", when, len(ids))
	}
	calls(5)
	delivered("at first")
	for _, s := range receivers {
		s.end()
	}
	calls(5)
	for _, s := range receivers {
		s.end = s.serve(s)
	}
	calls(5)
	delivered("after the receivers had ended")
	var wg sync.WaitGroup
	wg.Go(func() { calls(20) })
	forward()
	wg.Wait()
	delivered("after the forwarders were killed")
	killed := []string{"binnacle"}
	if m.Name == "processes" {
		killed = []string{"nats", "gateway", "audit"}
	}
	for _, name := range killed {
		m.Kill(name)
	}
	for _, name := range killed {
		m.Restart(name)
	}
	m.WaitReady()
	calls(5)
	delivered("after the mesh was killed")
	for name, s := range receivers {
		kills[name]()
		_, port, _ := net.SplitHostPort(s.addr)
		flow := func(f endpointFlow) bool {
			return f.Endpoint == egress.EndpointExports && f.Sender == "forward" && fmt.Sprint(f.Port) == port && f.BytesOut > 0
		}
		if !strings.Contains(name, "broker") {
			if slices.ContainsFunc(endpointFlows(t, m), flow) {
				t.Errorf("%s used the egress-broker", name)
			}
			continue
		}
		eventually(t, "a flow of "+name+" is on the ledger", time.Minute, func() bool { return slices.ContainsFunc(endpointFlows(t, m), flow) })
	}
}

// toDeliver returns the ids of the events of the ledger that are delivered.
func toDeliver(t *testing.T, m *harness.Mesh) (ids []string) {
	t.Helper()
	r, err := m.Do(t.Context(), "GET", "/api/v1/events", "", "")
	if err != nil || r.Status != 200 {
		t.Fatal(r, err)
	}
	between := []string{contract.EventCallProposed, contract.EventAllowed, contract.EventEffectStarted}
	for line := range strings.Lines(string(r.Body)) {
		var l struct {
			Event struct{ ID, Type string }
		}
		if err := json.Unmarshal([]byte(line), &l); err != nil {
			t.Fatal(err)
		}
		if part := strings.Split(l.Event.Type, "."); len(part) < 4 || !slices.Contains(between, part[3]) {
			ids = append(ids, l.Event.ID)
		}
	}
	if len(ids) < 5 {
		t.Fatalf("%d events", len(ids))
	}
	return ids
}
