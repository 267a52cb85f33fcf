// Package harness runs a mesh from the built programs, as a user would, on a topology
// that the test chooses.
package harness

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/meshtest/certs"
	"github.com/binnacle-mesh/binnacle/pkg/meshtest/ports"
	"github.com/binnacle-mesh/binnacle/pkg/services"
)

// Services holds the names of the services that have a program, sorted.
var Services = services.Names()

// Root returns the root folder of the repository. It panics if the working directory is
// outside the repository.
func Root() string {
	dir, err := os.Getwd()
	if err != nil {
		panic(err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.work")); err == nil {
			return dir
		}
		if dir == filepath.Dir(dir) {
			panic("no go.work above the working directory")
		}
		dir = filepath.Dir(dir)
	}
}

// Bin returns the path of a built program. If the program is missing, it fails the test
// with an error that names the command that builds it.
func Bin(t testing.TB, name string) string {
	t.Helper()
	p := filepath.Join(Root(), "bin", name)
	if _, err := os.Stat(p); err != nil {
		t.Fatalf("%s is not built; run `make services`", p)
	}
	return p
}

// bin returns the path of a program in Options.Bin, or else in the folder bin.
func (m *Mesh) bin(name string) string {
	if m.opts.Bin != "" {
		return filepath.Join(m.opts.Bin, name)
	}
	return Bin(m.T, name)
}

// Options configures a mesh. The zero value selects the defaults.
type Options struct {
	Noop       bool
	LLM        string   // path of the llm document; empty = none
	Env        []string // added to the environment of every process
	Wrap       []string // command that is started instead of each process, with the process's command line as its last arguments, which it must execute; no effect on compose
	Capture    string   // how content is recorded: plain, encrypted, hashed or off; empty = as in Config, or else plain
	Policies   []string
	Power      bool
	Containerd string
	Packs      string        // folder of packs; empty = bin/packs or, on compose, the packs in the image
	Images     string        // folder of image archives and images.lock; empty = none. On compose it is copied; Images returns the copy
	Webhook    string        // URL that is called for each call that waits for approval (One, OneUnready and Compose only)
	TLS        bool          // TLS with certificates of the test, see Cert; on Cluster for HTTP only
	Dir        string        // state folder; empty = a temporary folder of the test
	Flags      []string      // additional flags for `binnacle up` (One and OneUnready only)
	Config     string        // content of the configuration file, whose path Config returns; empty = the file is not written
	Listen     bool          // listen for NATS clients (One and OneUnready only)
	Networks   []string      // networks of docker-compose.yaml that the test's network replaces (Compose only), so that only their members reach the servers that Env and Config name
	Files      []string      // files that are copied to the configuration folder, each as "SERVICE=PATH" (Compose only); the service finds it as /config/BASE
	Mirror     bool          // run a mirror of the ledger (Processes and Compose only)
	Bin        string        // folder of the built programs; empty = bin of the repository
	Within     time.Duration // time within which the mesh becomes ready; 0 = one minute
}

// Mesh is a mesh that a test has started, or to which it is attached.
type Mesh struct {
	secrets bool // the secrets for the llm document have been stored in the vault
	ca      *certs.Authority
	T       testing.TB
	Name    string // name of the topology, or "running" for a mesh from Attach
	Addr    string
	Dir     string
	Token   string
	// OperatorToken is the operator's token, for requests about the mesh as a whole. It is empty if
	// the state folder has none, as for a mesh of an earlier release whose cell is not open, and in
	// the copies that As returns.
	OperatorToken string
	// ConfigureNATS gives the NATS server of Processes the configuration for the ring of keys as it is
	// now; nil on the other topologies.
	ConfigureNATS func()
	NATS          string // URLs of the NATS servers, separated by commas; empty for a mesh in one process without Options.Listen and for one from Attach

	admin map[string]string // address of the admin listener by process name; unused on compose
	opts  Options
	ready time.Time // when the mesh was last ready; zero if it has not been ready yet
	mu    sync.Mutex
	procs map[string]*Proc
	log   *os.File
}

// Proc is one process of the mesh.
type Proc struct {
	cmd  *exec.Cmd
	done chan struct{}
	argv []string
	env  []string
}

// Topologies maps the names of two topologies that need no container engine to the
// functions that start them.
var Topologies = map[string]func(testing.TB, Options) *Mesh{"one": One, "processes": Processes}

func base(t testing.TB, name string, o Options) *Mesh {
	t.Helper()
	m := &Mesh{T: t, Name: name, Dir: o.Dir, opts: o, procs: map[string]*Proc{}, admin: map[string]string{}}
	if m.Dir == "" {
		m.Dir = t.TempDir()
	}
	var err error
	if m.log, err = os.OpenFile(filepath.Join(m.Dir, "mesh.log"), os.O_CREATE|os.O_APPEND|os.O_RDWR, 0o644); err != nil {
		t.Fatal(err)
	}
	m.Addr = ports.Free(t)
	if o.Config != "" && name != "compose" {
		m.Configure(o.Config)
		m.opts.Env = append(slices.Clone(o.Env), "BINNACLE_CONFIG_FILE="+m.Config())
		o.Env = m.opts.Env
	}
	if o.TLS && name != "compose" {
		m.Recertify("first")
		m.opts.Env = append(slices.Clone(o.Env), "BINNACLE_TLS_CERT="+m.Cert(), "BINNACLE_TLS_KEY="+filepath.Join(m.Dir, "tls.key"), "BINNACLE_NATS_CA="+m.Cert())
	}
	OnTimeout(t, m.StopAll)
	t.Cleanup(func() {
		m.StopAll()
		if t.Failed() {
			b, _ := os.ReadFile(m.log.Name())
			t.Logf("mesh log:\n%s", b[max(0, len(b)-4000000):])
		}
	})
	return m
}

func (m *Mesh) packs() string {
	if m.opts.Packs != "" {
		return m.opts.Packs
	}
	return filepath.Join(Root(), "bin/packs")
}

// One starts the whole mesh in one process and waits until it is ready.
func One(t testing.TB, o Options) *Mesh {
	m := OneUnready(t, o)
	m.WaitReady()
	return m
}

// OneUnready is like One, but does not wait for /readyz, for a mesh that is not expected
// to become ready. The tokens are those of an earlier start, or empty.
func OneUnready(t testing.TB, o Options) *Mesh {
	m := base(t, "one", o)
	argv := []string{m.bin("binnacle"), "up", "--addr", m.Addr, "--data", m.Dir, "--packs", m.packs()}
	if o.Webhook != "" {
		argv = append(argv, "--approval-webhook", o.Webhook)
	}
	if o.Noop {
		argv = append(argv, "--noop")
	}
	if o.Power {
		argv = append(argv, "--power")
	}
	if o.LLM != "" {
		argv = append(argv, "--llm", o.LLM)
	}
	if o.Capture != "" {
		argv = append(argv, "--capture", o.Capture)
	}
	if o.Containerd != "" {
		argv = append(argv, "--containerd", o.Containerd)
	}
	for _, p := range o.Policies {
		argv = append(argv, "--policy", p)
	}
	if o.Listen {
		addr := ports.Free(t)
		m.NATS = "nats://" + addr
		argv = append(argv, "--nats-listen", addr)
	}
	var env []string
	if o.Images != "" {
		env = []string{"BINNACLE_IMAGES=" + o.Images}
	}
	m.Start("binnacle", append(argv, o.Flags...), env)
	m.ReadTokens()
	return m
}

// ReadTokens reads the tokens of the administrator and the operator. A token whose file
// does not exist remains as it is.
func (m *Mesh) ReadTokens() {
	for name, to := range map[string]*string{"admin.token": &m.Token, "operator.token": &m.OperatorToken} {
		if tok, err := os.ReadFile(filepath.Join(m.Dir, name)); err == nil {
			*to = strings.TrimSpace(string(tok))
		}
	}
}

// Attach returns a mesh that is already running, once it is ready; the test does not
// stop it. addr is the address of its gateway and dir its state folder.
func Attach(t testing.TB, addr, dir string) *Mesh {
	t.Helper()
	m := &Mesh{T: t, Name: "running", Addr: addr, Dir: dir, procs: map[string]*Proc{}}
	m.WaitReady()
	return m
}

// PackFolder returns the path of the folder from which the session-runner reads packs,
// or "" for a mesh from Attach. On compose it is a folder of the host that is mounted
// into the container; it exists only if Options.Packs is set.
func (m *Mesh) PackFolder() string {
	switch m.Name {
	case "running":
		return ""
	case "compose":
		return filepath.Join(m.Dir, "config/session-runner/packs")
	}
	return m.packs()
}

// Processes starts a NATS server and one process per service, and waits until the mesh
// is ready.
func Processes(t testing.TB, o Options) *Mesh {
	m := ProcessesUnready(t, o)
	m.WaitReady()
	return m
}

// ProcessesUnready is like Processes, but does not wait for /readyz, for a mesh that is
// not expected to become ready. The administrator's token is the one that `binnacle
// init` wrote, now or at an earlier start.
func ProcessesUnready(t testing.TB, o Options) *Mesh {
	m := base(t, "processes", o)
	binnacle := m.bin("binnacle")
	m.run(binnacle, "init", "--data", m.Dir)
	natsAddr := ports.Free(t)
	m.NATS = "nats://" + natsAddr
	if o.TLS {
		m.NATS = "tls://" + natsAddr
	}
	args := []string{"provision", "--print-config", "--data", m.Dir, "--store", filepath.Join(m.Dir, "nats"), "--nats-listen", natsAddr, "--monitor", ""}
	if o.Power {
		args = append(args, "--power")
	}
	if o.TLS {
		args = append(args, "--nats-tls-cert", m.Cert(), "--nats-tls-key", filepath.Join(m.Dir, "tls.key"))
	}
	path := filepath.Join(m.Dir, "nats.conf")
	m.ConfigureNATS = func() {
		t.Helper()
		if err := os.WriteFile(path+".new", m.run(binnacle, args...), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path+".new", path); err != nil {
			t.Fatal(err)
		}
	}
	m.ConfigureNATS()
	m.Start("nats", []string{m.bin("svc/nats-server"), "-c", path}, nil)
	argv := []string{binnacle, "provision", "--data", m.Dir, "--nats", m.NATS}
	if o.Mirror {
		argv = append(argv, "--mirror")
	}
	m.Start("provision", argv, nil)
	for _, s := range Services {
		m.StartService(s, s)
	}
	m.ReadTokens()
	return m
}

// Cluster starts one process per service with three NATS servers, "nats-1" to "nats-3",
// and waits until the mesh is ready. Every stream has three replicas.
func Cluster(t testing.TB, o Options) *Mesh {
	m := base(t, "cluster", o)
	binnacle := m.bin("binnacle")
	m.run(binnacle, "init", "--data", m.Dir)
	var addrs, routes []string
	for range 3 {
		addrs, routes = append(addrs, ports.Free(t)), append(routes, ports.Free(t))
	}
	m.NATS = "nats://" + strings.Join(addrs, ",nats://")
	for i, addr := range addrs {
		name := fmt.Sprintf("nats-%d", i+1)
		args := []string{"provision", "--print-config", "--data", m.Dir, "--store", filepath.Join(m.Dir, name), "--nats-listen", addr, "--monitor", "",
			"--cluster-server", name, "--cluster-listen", routes[i]}
		for _, r := range routes {
			args = append(args, "--cluster-route", r)
		}
		path := filepath.Join(m.Dir, name+".conf")
		if err := os.WriteFile(path, m.run(binnacle, args...), 0o600); err != nil {
			t.Fatal(err)
		}
		m.Start(name, []string{m.bin("svc/nats-server"), "-c", path}, nil)
	}
	m.Start("provision", []string{binnacle, "provision", "--data", m.Dir, "--nats", m.NATS, "--replicas", "3"}, nil)
	for _, s := range Services {
		m.StartService(s, s)
	}
	m.WaitReady()
	return m
}

// StartGateway starts another gateway process and returns its address once it is ready.
func (m *Mesh) StartGateway(name string) string {
	first := m.Addr
	m.Addr = ports.Free(m.T)
	defer func() { m.Addr = first }()
	m.StartService(name, "gateway")
	m.WaitReady()
	return m.Addr
}

// StartService starts an instance of a service, as a process with this name. It does not
// wait until the instance is ready.
func (m *Mesh) StartService(name, service string) {
	durability := "process"
	if m.opts.Power {
		durability = "power"
	}
	if m.Name == "cluster" {
		durability = "replicated"
	}
	env := []string{"BINNACLE_NATS=" + m.NATS, "BINNACLE_DURABILITY=" + durability, "BINNACLE_KEYS=" + filepath.Join(m.Dir, "keys"), "BINNACLE_STATE=" + filepath.Join(m.Dir, service)}
	if err := os.MkdirAll(filepath.Join(m.Dir, service), 0o755); err != nil {
		m.T.Fatal(err)
	}
	// Each service reads the variables of its own settings and ignores the others.
	env = append(env, "BINNACLE_LISTEN="+m.Addr, "BINNACLE_CAPTURE="+m.opts.Capture, "BINNACLE_PACKS="+m.packs(), "BINNACLE_CONTAINERD="+m.opts.Containerd,
		"BINNACLE_LLM="+m.opts.LLM, "BINNACLE_POLICY="+strings.Join(m.opts.Policies, ","))
	if m.opts.Images != "" {
		env = append(env, "BINNACLE_IMAGES="+m.opts.Images)
	}
	if m.opts.Noop {
		env = append(env, "BINNACLE_NOOP=1")
	}
	m.Start(name, []string{m.bin("svc/" + service)}, env)
}

func (m *Mesh) run(name string, args ...string) []byte {
	m.T.Helper()
	var errOut bytes.Buffer
	cmd := exec.Command(name, args...)
	cmd.Stderr = &errOut
	out, err := cmd.Output()
	if err != nil {
		m.T.Fatalf("%s %v: %v\n%s", name, args, err, errOut.String())
	}
	return out
}

// Config returns the path of the mesh's configuration file.
func (m *Mesh) Config() string {
	if m.Name == "compose" {
		return filepath.Join(m.Dir, "config/mesh/binnacle.yaml")
	}
	return filepath.Join(m.Dir, "binnacle.yaml")
}

// Configure replaces the mesh's configuration file atomically, as an editor does.
func (m *Mesh) Configure(text string) {
	m.T.Helper()
	next := m.Config() + ".next"
	m.write(next, []byte(text))
	if err := os.Rename(next, m.Config()); err != nil {
		m.T.Fatal(err)
	}
}

// Admin returns the address of the admin listener of a process or, on compose, of the
// service's first container. On other topologies, a process has an admin listener only
// if Options.Config is set; if it has none, the test fails.
func (m *Mesh) Admin(process string) string {
	m.T.Helper()
	if m.Name == "compose" {
		return m.ContainerAddr(process, 1) + ":9464"
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.admin[process] == "" {
		m.T.Fatalf("%s has no admin listener", process)
	}
	return m.admin[process]
}

// Start starts a process of the mesh under a name by which other methods refer to it.
// env is added to its environment.
func (m *Mesh) Start(name string, argv, env []string) {
	m.T.Helper()
	if m.opts.Config != "" {
		m.mu.Lock()
		m.admin[name] = ports.Free(m.T)
		env = append(slices.Clone(env), "BINNACLE_ADMIN="+m.admin[name])
		m.mu.Unlock()
	}
	p := &Proc{argv: argv, env: env, done: make(chan struct{})}
	line := append(slices.Clone(m.opts.Wrap), argv...)
	p.cmd = exec.Command(line[0], line[1:]...)
	p.cmd.Env = append(append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + m.Dir}, m.opts.Env...), env...)
	p.cmd.Stdout, p.cmd.Stderr = m.log, m.log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		m.T.Fatal(err)
	}
	go func() { _ = p.cmd.Wait(); close(p.done) }()
	m.mu.Lock()
	m.procs[name] = p
	m.mu.Unlock()
}

// Signal sends a signal to a process. It fails the test if the mesh has no process with
// this name.
func (m *Mesh) Signal(name string, s syscall.Signal) {
	m.T.Helper()
	m.mu.Lock()
	p := m.procs[name]
	m.mu.Unlock()
	if p == nil {
		m.T.Fatalf("no process %s", name)
	}
	if err := p.cmd.Process.Signal(s); err != nil {
		m.T.Logf("signal %s: %v", name, err)
	}
}

// Kill kills a process with SIGKILL and waits until it has ended.
func (m *Mesh) Kill(name string) {
	m.Signal(name, syscall.SIGKILL)
	m.mu.Lock()
	p := m.procs[name]
	m.mu.Unlock()
	<-p.done
}

// Exited waits until a process exits by itself and returns its exit code. It fails the
// test if the process is still running after the given time.
func (m *Mesh) Exited(name string, within time.Duration) int {
	m.T.Helper()
	m.mu.Lock()
	p := m.procs[name]
	m.mu.Unlock()
	select {
	case <-p.done:
	case <-time.After(within):
		m.T.Fatalf("%s still runs after %v", name, within)
	}
	return p.cmd.ProcessState.ExitCode()
}

// Log returns the combined log of all processes of the mesh. On compose, it lacks the
// output of the containers.
func (m *Mesh) Log() string { return string(m.read(m.log.Name())) }

// Restart starts a process again with the same name, arguments and environment. It kills
// the process first if it still runs.
func (m *Mesh) Restart(name string) {
	if m.Runs(name) {
		m.Kill(name)
	}
	m.mu.Lock()
	p := m.procs[name]
	m.mu.Unlock()
	m.Start(name, p.argv, p.env)
}

// Runs reports whether the process with the given name, as last started, is running.
func (m *Mesh) Runs(name string) bool {
	m.mu.Lock()
	p := m.procs[name]
	m.mu.Unlock()
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// Cert returns the path of the certificate authority's certificate in a mesh with TLS.
// On topologies other than compose, it is also the certificate of the servers, which is
// self-signed.
func (m *Mesh) Cert() string { return filepath.Join(m.Dir, "tls.crt") }

// Recertify replaces the certificates of a mesh with TLS by new ones with the common
// name name.
func (m *Mesh) Recertify(name string) {
	m.T.Helper()
	if m.Name == "compose" {
		m.recertify(name)
		return
	}
	certs.Write(m.T, m.Cert(), filepath.Join(m.Dir, "tls.key"), name)
}

// URL returns the base URL of the gateway.
func (m *Mesh) URL() string {
	if m.opts.TLS {
		return "https://" + m.Addr
	}
	return "http://" + m.Addr
}

// client returns an HTTP client that trusts the mesh's current certificate, if it has
// TLS.
func (m *Mesh) client() *http.Client {
	if !m.opts.TLS {
		return http.DefaultClient
	}
	pool := x509.NewCertPool()
	if pem, err := os.ReadFile(m.Cert()); err == nil {
		pool.AppendCertsFromPEM(pem)
	}
	return &http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}}}
}

// Names returns the names of the processes that were started since the last StopAll,
// sorted.
func (m *Mesh) Names() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []string
	for n := range m.procs {
		out = append(out, n)
	}
	slices.Sort(out)
	return out
}

// PID returns the process id of a process.
func (m *Mesh) PID(name string) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.procs[name].cmd.Process.Pid
}

// StopAll ends every process by SIGTERM and waits for it: the services first, then
// provision and the NATS servers. A process that does not end within 15 s is killed and
// fails the test.
func (m *Mesh) StopAll() {
	m.mu.Lock()
	procs := m.procs
	m.procs = map[string]*Proc{}
	m.mu.Unlock()
	stop := func(p *Proc) {
		_ = p.cmd.Process.Signal(syscall.SIGCONT)
		_ = p.cmd.Process.Signal(syscall.SIGTERM)
		select {
		case <-p.done:
		case <-time.After(30 * time.Second):
			m.T.Errorf("%s did not end within 30 s of SIGTERM", p.argv[0])
			_ = p.cmd.Process.Kill()
			<-p.done
		}
	}
	var wg sync.WaitGroup
	for name, p := range procs {
		if !strings.HasPrefix(name, "nats") && name != "provision" {
			wg.Go(func() { stop(p) })
		}
	}
	wg.Wait()
	for _, name := range []string{"provision", "nats", "nats-1", "nats-2", "nats-3"} {
		if p := procs[name]; p != nil {
			stop(p)
		}
	}
}

// dump ends processes with SIGQUIT, so that they write the stacks of their goroutines to
// the log. It omits NATS servers, and each process whose name is that of a service with
// an instance that the response of /readyz lists as ready.
func (m *Mesh) dump(readyz string) {
	var doc struct {
		Services map[string][]struct {
			OK bool `json:"ok"`
		} `json:"services"`
	}
	_ = json.Unmarshal([]byte(readyz), &doc)
	for _, n := range m.Names() { // one at a time, so that their outputs are not interleaved
		well := strings.HasPrefix(n, "nats")
		for _, i := range doc.Services[n] {
			well = well || i.OK
		}
		if !well {
			m.Signal(n, syscall.SIGQUIT)
			time.Sleep(time.Second)
		}
	}
}

// WaitReady waits until /readyz succeeds, reads the tokens, and stores the
// secrets of the llm document if that has not been done. If the mesh does not become
// ready within Options.Within, the test fails.
func (m *Mesh) WaitReady() {
	m.T.Helper()
	if !m.ready.IsZero() { // a gateway caches its state for a second, so the state may be from before the restart
		time.Sleep(1100 * time.Millisecond)
	}
	var last string
	for end := time.Now().Add(cmp.Or(m.opts.Within, time.Minute)); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		status, b, err := m.readyz()
		if err != nil {
			last = err.Error()
			continue
		}
		if last = string(b); status == http.StatusOK {
			if m.ReadTokens(); m.Token == "" {
				m.T.Fatalf("no administrator's token in %s", m.Dir)
			}
			m.ready = time.Now()
			m.putSecrets()
			return
		}
	}
	m.dump(last)
	m.T.Fatalf("mesh not ready: %s", last)
}

// readyz requests /readyz. It waits at most ten seconds for the response.
func (m *Mesh) readyz() (status int, body []byte, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, m.URL()+"/readyz", nil)
	if err != nil {
		return 0, nil, err
	}
	r, err := m.client().Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer r.Body.Close()
	body, err = io.ReadAll(r.Body)
	return r.StatusCode, body, err
}

// putSecrets stores in the vault the secrets that the llm document names. Later calls do
// nothing.
func (m *Mesh) putSecrets() {
	if m.opts.LLM == "" || m.secrets {
		return
	}
	m.secrets = true
	b, err := os.ReadFile(secretsFile(m.opts.LLM))
	if err != nil {
		m.T.Fatal(err)
	}
	var values map[string]string
	if err := json.Unmarshal(b, &values); err != nil {
		m.T.Fatal(err)
	}
	for name, v := range values {
		if out, err := m.CLIStdin(v, "secret", "put", name); err != nil {
			m.T.Fatal(out, err)
		}
	}
}

// Images returns the session-runner's folder of images, as this host sees it.
func (m *Mesh) Images() string {
	if m.Name == "compose" {
		return filepath.Join(m.Dir, "config/session-runner/images")
	}
	return m.opts.Images
}

// Env returns the environment variables with which the binnacle command connects to the
// mesh.
func (m *Mesh) Env() []string {
	env := []string{"BINNACLE_ADDR=" + strings.TrimPrefix(m.URL(), "http://"), "BINNACLE_CA=", "BINNACLE_TOKEN=" + m.Token, "BINNACLE_OPERATOR_TOKEN=" + m.OperatorToken, "BINNACLE_DATA=" + m.Dir, "BINNACLE_ROOT=" + filepath.Join(m.Dir, "root.kid")}
	if m.opts.TLS {
		env = append(env, "BINNACLE_CA="+m.Cert())
	}
	if m.Name == "compose" && m.opts.TLS {
		env = append(env, tlsVariables...)
	}
	if m.Name == "compose" {
		env = append(env, "BINNACLE_DISTRIBUTE="+filepath.Join(m.Dir, "volumes"))
	}
	return env
}

// CLI runs the binnacle command against the mesh and returns its standard output. The
// error contains its standard error. The command is killed after ten minutes.
func (m *Mesh) CLI(args ...string) (string, error) { return m.CLIStdin("", args...) }

// CLIStdin is like CLI, with stdin as the command's standard input.
func (m *Mesh) CLIStdin(stdin string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, m.bin("binnacle"), args...)
	cmd.Env = append(os.Environ(), m.Env()...)
	cmd.Stdin = strings.NewReader(stdin)
	var errOut bytes.Buffer
	cmd.Stderr = &errOut
	out, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("binnacle %s: %w: %s", strings.Join(args, " "), err, errOut.String())
	}
	return string(out), err
}

// Connect connects to the mesh's NATS server with the identity of a service. The
// connection is closed at the end of the test. A mesh with TLS is not supported.
func (m *Mesh) Connect(t testing.TB, service string) *bus.Conn {
	t.Helper()
	seed, err := os.ReadFile(filepath.Join(m.Dir, "keys", service+".nkey"))
	if err != nil {
		t.Fatal(err)
	}
	c, err := bus.Connect(bus.Dialer{URL: m.NATS}, bytes.TrimSpace(seed), service, service == "provision")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// TokenFor returns a new token for an actor, with the given scopes.
func (m *Mesh) TokenFor(actor string, scopes ...string) string {
	m.T.Helper()
	args := []string{"token", "create", "--actor", actor}
	for _, s := range scopes {
		args = append(args, "--scope", s)
	}
	out, err := m.CLI(args...)
	if err != nil {
		m.T.Fatal(err)
	}
	return strings.TrimSpace(out)
}

// As returns a copy of the mesh that uses another token for requests and commands. The
// copy has no processes, and of the options only Bin, so it does not use TLS.
func (m *Mesh) As(token string) *Mesh {
	return &Mesh{T: m.T, Name: m.Name, Addr: m.Addr, Dir: m.Dir, Token: token, NATS: m.NATS, opts: Options{Bin: m.opts.Bin}}
}

// Operator returns a copy of the mesh that uses the operator's token for all requests and
// commands, or m itself if there is none. The copy has no processes.
func (m *Mesh) Operator() *Mesh {
	if m.OperatorToken == "" {
		return m
	}
	o := m.As(m.OperatorToken)
	o.ca, o.opts.TLS = m.ca, m.opts.TLS
	return o
}

// AgreedKey creates a virtual key that makes calls as actor, after actor has consented
// to it. It returns the output of `binnacle key create`, to which args are added.
func (m *Mesh) AgreedKey(id, actor string, args ...string) (string, error) {
	scopes := []string{"--scope", "llm:call"}
	if _, err := m.As(m.TokenFor(actor, "llm:call")).CLI(append([]string{"key", "consent", id, "--maker", "admin"}, scopes...)...); err != nil {
		return "", err
	}
	return m.CLI(append([]string{"key", "create", id, "--actor", actor}, args...)...)
}
