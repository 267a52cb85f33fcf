package harness

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/meshtest/certs"
)

// projects is the number of compose projects of the harness that can run at a time on a
// machine.
const projects = 8

// held is the file lock of this process's project. It is released when the process ends.
var held struct {
	sync.Mutex
	name string
	file *os.File
}

// project returns the name of this process's compose project, binnacle-e2e-N with the
// lowest N that no other process uses.
func project(t testing.TB) string {
	t.Helper()
	held.Lock()
	defer held.Unlock()
	for n := 1; held.name == "" && n <= projects; n++ {
		name := fmt.Sprintf("binnacle-e2e-%d", n)
		f, err := os.OpenFile(filepath.Join(os.TempDir(), name+".lock"), os.O_CREATE|os.O_RDWR, 0o666)
		if err != nil {
			t.Fatal(err)
		}
		if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
			f.Close()
			continue
		}
		held.name, held.file = name, f
	}
	if held.name == "" {
		t.Fatalf("%d processes on this machine run tests on compose; wait until one has ended", projects)
	}
	return held.name
}

// Compose starts docker-compose.yaml with the programs in bin, as a project of the test, and
// waits until the mesh is ready. Several test processes can do this at the same time. The
// options that concern services are written to files of the configuration folder, m.Dir/config,
// which a user of compose would edit (config/README.md). Containerd, Flags, Listen and Wrap
// have no effect, and Bin affects only m.CLI.
//
// Servers of the test listen on 127.0.0.1. If the llm document, the webhook, a variable of Env or
// Config contains 127.0.0.1:PORT, the address is replaced by the host's on the network of the test,
// on which a relay for the containers listens. NewLLM and NewProviders can therefore be used on
// compose, too.
//
// m.Dir holds the keys (keys/, admin.token) and m.NATS is the address of the NATS server for the
// host. m.CLI("trust", …) writes changed keys to the volumes of the services,
// m.Dir/volumes/SERVICE. ComposeCLI runs the commands that a user would type.
func Compose(t testing.TB, o Options) *Mesh {
	t.Helper()
	if out, err := exec.Command("docker", "version").CombinedOutput(); err != nil {
		t.Fatalf("the Docker engine does not respond; `make test` installs and starts one (%s)", bytes.TrimSpace(out))
	}
	if out, err := exec.Command("docker", "compose", "version").CombinedOutput(); err != nil {
		t.Fatalf("docker compose v2 is missing; `make test` builds it as a plugin (%s)", bytes.TrimSpace(out))
	}
	m := base(t, "compose", o)
	m.configure()
	// Remove the containers, networks and volumes that a killed test may have left.
	m.compose("--profile", "tools", "down", "-v", "--remove-orphans")
	RemoveOnTimeout(t, project(t))
	t.Cleanup(func() {
		if t.Failed() {
			cmd := m.composeCmd("docker", "compose", "logs", "--no-color", "--tail", "60")
			cmd.Stdout, cmd.Stderr = m.log, m.log
			_ = cmd.Run()
		}
		m.compose("--profile", "tools", "down", "-v", "--remove-orphans")
	})
	m.script("up")
	m.volumes()
	m.NATS = "nats://" + m.ContainerAddr("nats", 1) + ":4222"
	m.WaitReady()
	return m
}

// script runs scripts/compose with one argument. It logs how long the command took.
func (m *Mesh) script(verb string) {
	m.T.Helper()
	defer m.took("scripts/compose " + verb)()
	if out, err := m.composeCmd(filepath.Join(Root(), "scripts/compose"), verb).CombinedOutput(); err != nil {
		m.T.Fatalf("scripts/compose %s: %v\n%s", verb, err, out)
	}
}

// took returns a function that logs how long ago took was called, if that is more than a
// second.
func (m *Mesh) took(what string) func() {
	m.T.Helper()
	began := time.Now()
	return func() {
		m.T.Helper()
		if d := time.Since(began); d > time.Second {
			m.T.Logf("%s took %.1f s", what, d.Seconds())
		}
	}
}

// configure writes the configuration folder. If services use servers of the test, it
// also writes the compose file that connects these services to the test's network.
func (m *Mesh) configure() {
	m.T.Helper()
	dir := filepath.Join(m.Dir, "config")
	for _, s := range append(slices.Clone(Services), "cli", "mesh", "nats") {
		if err := os.MkdirAll(filepath.Join(dir, s), 0o755); err != nil {
			m.T.Fatal(err)
		}
	}
	o := m.opts
	var reach []string // services that must be able to connect to servers of the test
	env := slices.Clone(o.Env)
	add := func(name, value string) {
		if value != "" {
			env = append(env, name+"="+value)
		}
	}
	flag := func(name, value string, on bool) {
		if on {
			add(name, value)
		}
	}
	flag("BINNACLE_NOOP", "1", o.Noop)
	flag("BINNACLE_MIRROR", "1", o.Mirror)
	flag("BINNACLE_DURABILITY", "power", o.Power)
	add("BINNACLE_CAPTURE", o.Capture)
	if add("BINNACLE_APPROVAL_WEBHOOK", o.Webhook); o.Webhook != "" {
		reach = append(reach, "egress-broker")
	}
	if loopback.MatchString(strings.Join(o.Env, "\n")) { // as in docker-compose.yaml, no other service has a way out
		reach = append(reach, "egress-broker", "mcp-router")
	}
	for _, f := range o.Files {
		service, path, _ := strings.Cut(f, "=")
		m.owned(filepath.Join(dir, service, filepath.Base(path)), m.read(path))
	}
	if o.TLS {
		env = append(env, m.configureTLS()...)
	}
	if o.Config != "" {
		m.write(m.Config(), m.reachable([]byte(o.Config)))
	}
	m.write(filepath.Join(dir, "mesh.env"), m.reachable([]byte(strings.Join(env, "\n")+"\n")))
	if o.LLM != "" {
		m.write(filepath.Join(dir, "llm-router/llm.json"), m.reachable(m.read(o.LLM)))
		reach = append(reach, "llm-router")
	}
	for i, p := range o.Policies {
		m.write(filepath.Join(dir, "policy", fmt.Sprintf("%02d-%s", i, filepath.Base(p))), m.read(p))
	}
	if o.Packs != "" {
		if err := os.CopyFS(filepath.Join(dir, "session-runner/packs"), os.DirFS(o.Packs)); err != nil {
			m.T.Fatal(err)
		}
	}
	if o.Images != "" {
		if err := os.CopyFS(m.Images(), os.DirFS(o.Images)); err != nil {
			m.T.Fatal(err)
		}
	}
	if len(reach) == 0 && len(o.Networks) == 0 {
		return
	}
	slices.Sort(reach)
	more := "networks:\n  test: { external: true, name: " + testNetwork(m.T) + " }\n"
	for _, n := range o.Networks {
		more += "  " + n + ": !override { external: true, name: " + testNetwork(m.T) + " }\n"
	}
	more += "services:\n"
	if len(reach) == 0 {
		more = strings.TrimSuffix(more, "services:\n")
	}
	for _, s := range slices.Compact(reach) {
		more += "  " + s + ": { networks: [test] }\n"
	}
	m.write(m.override(), []byte(more))
}

// override returns the path of a compose file that, if it exists, is merged with
// docker-compose.yaml.
func (m *Mesh) override() string { return filepath.Join(m.Dir, "compose.test.yaml") }

var loopback = regexp.MustCompile(`127\.0\.0\.1:(\d+)`)

// reachable replaces each loopback address with a port in doc by the host's address on
// the test's network, and starts a relay for each such port.
func (m *Mesh) reachable(doc []byte) []byte {
	if !loopback.Match(doc) {
		return doc
	}
	host := testHost(m.T)
	return loopback.ReplaceAllFunc(doc, func(addr []byte) []byte {
		_, port, _ := strings.Cut(string(addr), ":")
		relay(m.T, host+":"+port, string(addr))
		return []byte(host + ":" + port)
	})
}

// ComposeHost returns the host's address on the test's network.
func ComposeHost(t testing.TB) string { return testHost(t) }

func (m *Mesh) read(path string) []byte {
	m.T.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		m.T.Fatal(err)
	}
	return b
}

func (m *Mesh) write(path string, b []byte) {
	m.T.Helper()
	if err := os.WriteFile(path, b, 0o644); err != nil {
		m.T.Fatal(err)
	}
}

// ContainerAddr returns the IP address of a service's nth container on the internal
// network, which the host can reach.
func (m *Mesh) ContainerAddr(service string, n int) string {
	m.T.Helper()
	return m.Inspect(service, n, `{{(index .NetworkSettings.Networks "`+project(m.T)+`_mesh").IPAddress}}`)
}

// Container returns the name of a service's nth container.
func (m *Mesh) Container(service string, n int) string {
	m.T.Helper()
	return fmt.Sprintf("%s-%s-%d", project(m.T), service, n)
}

// Inspect returns the output of `docker inspect -f format` for a service's nth
// container.
func (m *Mesh) Inspect(service string, n int, format string) string {
	m.T.Helper()
	out, err := exec.Command("docker", "inspect", "-f", format, m.Container(service, n)).CombinedOutput()
	if err != nil {
		m.T.Fatalf("docker inspect: %v\n%s", err, out)
	}
	return strings.TrimSpace(string(out))
}

// Volume returns the path of a volume on the host. A running mesh may change the files
// in it at any time.
func (m *Mesh) Volume(name string) string {
	m.T.Helper()
	out, err := exec.Command("docker", "volume", "inspect", "-f", "{{.Mountpoint}}", project(m.T)+"_"+name).Output()
	if err != nil {
		m.T.Fatalf("docker volume inspect: %v", err)
	}
	return strings.TrimSpace(string(out))
}

// configureTLS writes certificates, keys and the certificate authority to the folders
// that config/README.md lists for them. It returns the environment variables that
// contain the paths of these files in the containers.
func (m *Mesh) configureTLS() []string {
	m.ca = certs.NewAuthority(m.T, m.Cert())
	m.Recertify("first")
	for _, s := range []string{"nats", "cli"} {
		m.write(filepath.Join(m.Dir, "config", s, "ca.crt"), m.read(m.Cert()))
	}
	return append([]string{"BINNACLE_TLS_CERT=/config/tls.crt", "BINNACLE_TLS_KEY=/config/tls.key", "BINNACLE_CA=/config/ca.crt", "BINNACLE_NATS_TLS_CA=/config/ca.crt"}, tlsVariables...)
}

// tlsVariables lists the variables that enable TLS in the NATS server.
var tlsVariables = []string{"BINNACLE_NATS_TLS_CERT=/config/tls.crt", "BINNACLE_NATS_TLS_KEY=/config/tls.key"}

// recertify replaces the certificates by new ones with the common name name, as a user
// of compose would. The files are readable by user 65532, as which the services run.
func (m *Mesh) recertify(name string) {
	for _, s := range []string{"gateway", "nats"} {
		m.CertifyService(m.ca, s, name)
	}
}

// CertifyService replaces, on compose, the certificate and key of the service gateway or
// nats by new ones. ca signs the certificate, which has the common name name and is
// valid for 127.0.0.1, localhost and the service's name.
func (m *Mesh) CertifyService(ca *certs.Authority, service, name string) {
	m.T.Helper()
	to, tmp := filepath.Join(m.Dir, "config", service), m.T.TempDir()
	ca.Write(m.T, filepath.Join(tmp, "tls.crt"), filepath.Join(tmp, "tls.key"), name, service)
	for _, f := range []string{"tls.crt", "tls.key"} {
		m.owned(filepath.Join(to, f), m.read(filepath.Join(tmp, f)))
	}
}

// owned replaces a file by one that only the user of the services, 65532, can read.
func (m *Mesh) owned(path string, content []byte) {
	m.T.Helper()
	m.write(path+".new", content)
	if err := errors.Join(os.Chmod(path+".new", 0o600), os.Chown(path+".new", 65532, 65532), os.Rename(path+".new", path)); err != nil {
		m.T.Fatal(err)
	}
}

func (m *Mesh) composeCmd(argv ...string) *exec.Cmd {
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Dir = Root()
	_, port, _ := strings.Cut(m.Addr, ":")
	cmd.Env = append(os.Environ(), "COMPOSE_PROJECT_NAME="+project(m.T), "COMPOSE_PROGRESS=plain", "BINNACLE_PORT="+port, "BINNACLE_COMPOSE_STATE="+m.Dir, "BINNACLE_COMPOSE_CONFIG="+filepath.Join(m.Dir, "config"),
		"BINNACLE_COMPOSE_CLOSED=false") // tests connect from the host; TestComposeHost shows the default
	if m.opts.TLS {
		cmd.Env = append(cmd.Env, "BINNACLE_SCHEME=https")
	}
	if _, err := os.Stat(m.override()); err == nil {
		cmd.Env = append(cmd.Env, "COMPOSE_FILE=docker-compose.yaml:"+m.override())
	}
	return cmd
}

// ComposeCLI runs one docker compose command in the mesh's project and returns its
// standard output.
func (m *Mesh) ComposeCLI(args ...string) (string, error) {
	m.T.Helper()
	defer m.took("docker compose " + strings.Join(args, " "))()
	http.DefaultClient.CloseIdleConnections() // the balancer exits only when the connections through it are closed, or after its drain time
	cmd := m.composeCmd(append([]string{"docker", "compose"}, args...)...)
	var errOut bytes.Buffer
	cmd.Stderr = &errOut
	out, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("docker compose %s: %w: %s", strings.Join(args, " "), err, errOut.String())
	}
	return string(out), err
}

// compose runs one docker compose command, up to four times if it fails: the engine may
// refuse to remove a network whose last container has just ended. If the last attempt
// fails, the test fails, except if all that remains is a network that the engine refuses
// to remove: the next project uses it.
func (m *Mesh) compose(args ...string) {
	m.T.Helper()
	var err error
	for range 4 {
		if _, err = m.ComposeCLI(args...); err == nil {
			return
		}
		if strings.Contains(err.Error(), "has active endpoints") {
			RemoveEndpoints(m.T, project(m.T))
		}
		time.Sleep(time.Second)
	}
	if strings.Contains(err.Error(), "has active endpoints") {
		m.T.Log(err)
		return
	}
	m.T.Fatal(err)
}

// RemoveEndpoints removes the endpoints of a project's networks that have no container.
// The engine leaves such an endpoint behind if a container is removed while it is being
// restarted, and then refuses to remove the network.
func RemoveEndpoints(t testing.TB, project string) {
	t.Helper()
	out, err := exec.Command("docker", "network", "ls", "-q", "--filter", "label=com.docker.compose.project="+project).Output()
	if err != nil {
		t.Log("docker network ls: ", err)
		return
	}
	for _, id := range strings.Fields(string(out)) {
		out, err := exec.Command("docker", "network", "inspect", "-f", "{{range $id, $e := .Containers}}{{$id}} {{$e.Name}}\n{{end}}", id).Output()
		if err != nil {
			t.Log("docker network inspect: ", err)
			continue
		}
		for line := range strings.Lines(string(out)) {
			container, name, _ := strings.Cut(strings.TrimSpace(line), " ")
			if name == "" || exec.Command("docker", "container", "inspect", container).Run() == nil {
				t.Logf("network %s has container %s", id, name)
				continue
			}
			out, err := exec.Command("docker", "network", "disconnect", "-f", id, name).CombinedOutput()
			t.Logf("removed the endpoint %s of network %s: %s %v", name, id, out, err)
		}
	}
}

// ComposeShell builds the images and removes the remains of an earlier test. It returns
// the name of the test's project, and the variables that a shell needs in its
// environment to run `docker compose` for it, with a configuration folder of the test.
// The project is removed at the end of the test.
func ComposeShell(t testing.TB) (env []string, name string) {
	t.Helper()
	m := base(t, "compose", Options{})
	m.configure()
	name = project(t)
	RemoveOnTimeout(t, name)
	down := func() {
		m.compose("--profile", "tools", "down", "-v", "--remove-orphans")
		// The commands of a documentation page create a volume of keys. `down -v` does
		// not remove it, because in a mesh of the harness the keys are in a folder. A new
		// NATS server would reject those keys.
		if out, err := exec.Command("docker", "volume", "rm", "-f", name+"_ring").CombinedOutput(); err != nil {
			t.Errorf("volume of the ring: %v\n%s", err, out)
		}
	}
	down()
	t.Cleanup(down)
	m.script("images")
	return []string{"COMPOSE_PROJECT_NAME=" + name, "COMPOSE_PROGRESS=quiet", "BINNACLE_COMPOSE_CONFIG=" + filepath.Join(m.Dir, "config")}, name
}

// volumes creates a link from m.Dir/volumes/SERVICE to each service's volume of keys, so
// that the command line on this host can write keys to them.
func (m *Mesh) volumes() {
	m.T.Helper()
	dir := filepath.Join(m.Dir, "volumes")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		m.T.Fatal(err)
	}
	for _, s := range append([]string{"nats", "provision"}, Services...) {
		if err := os.Symlink(m.Volume("keys-"+s), filepath.Join(dir, s)); err != nil {
			m.T.Fatal(err)
		}
	}
}

// Scale sets the number of instances of services, for example "policy=3", and waits
// until they are healthy. It does not change other services.
func (m *Mesh) Scale(what ...string) {
	args := []string{"up", "-d", "--wait", "--no-deps"}
	for _, w := range what {
		service, _, _ := strings.Cut(w, "=")
		args = append(args, "--scale", w, service)
	}
	m.compose(args...)
}

// Keys runs a command of the command line in the container that has all keys, and returns
// its standard output without surrounding white space. An error fails the test.
func (m *Mesh) Keys(args ...string) string {
	m.T.Helper()
	out, err := m.ComposeCLI(append([]string{"run", "--rm", "-T", "--no-deps", "keys"}, args...)...)
	if err != nil {
		m.T.Fatal(err)
	}
	return strings.TrimSpace(out)
}

// KeysStdin runs a command as Keys does, with a standard input.
func (m *Mesh) KeysStdin(stdin string, args ...string) {
	m.T.Helper()
	cmd := m.composeCmd(append([]string{"docker", "compose", "run", "--rm", "-T", "--no-deps", "keys"}, args...)...)
	cmd.Stdin = strings.NewReader(stdin)
	if out, err := cmd.CombinedOutput(); err != nil {
		m.T.Fatalf("%v: %s", err, out)
	}
}
