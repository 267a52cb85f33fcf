package mesh

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/services"
)

const root = "../../.."

// TestParts checks that the services of a mesh in one process are those of the registry,
// and that the bus declaration of each agrees with the registry.
func TestParts(t *testing.T) {
	decls := Declarations()
	var names []string
	for _, d := range decls {
		names = append(names, d.Service)
		s, ok := services.Get(d.Service)
		if !ok {
			t.Errorf("%s is not in package services", d.Service)
			continue
		}
		if d.Slots != s.Slots || d.Prefix != s.Instance {
			t.Errorf("%s declares %d slots and instances %q; the registry says %d and %q", d.Service, d.Slots, d.Prefix, s.Slots, s.Instance)
		}
		takes := slices.ContainsFunc(d.Work, func(w bus.Work) bool { return slices.Equal(w.Filters, []string{bus.AllowedFilter(d.Service)}) })
		handsOut := slices.ContainsFunc(d.Readers, func(r bus.Reader) bool { return slices.Contains(r.Filters, bus.HandOutFilter) }) // to callers, who execute the calls
		if (takes || handsOut) != s.Executes || handsOut != (d.Service == services.Gateway) {
			t.Errorf("%s declares that it takes allowed calls: %t, that it hands them out: %t; it is an executor by the registry: %t", d.Service, takes, handsOut, s.Executes)
		}
	}
	if !slices.Equal(names, services.Names()) {
		t.Errorf("parts are %v, the registry has %v", names, services.Names())
	}
}

// TestBuildLists checks that the services that the Makefile and the image build find are
// those of the registry, and that images have a program and a folder of keys for each.
func TestBuildLists(t *testing.T) {
	mains, err := filepath.Glob(filepath.Join(root, "services/*/main.go"))
	if err != nil {
		t.Fatal(err)
	}
	var folders []string
	for _, m := range mains {
		if name := filepath.Base(filepath.Dir(m)); name != "binnacle" {
			folders = append(folders, name)
		}
	}
	want := services.Names()
	if !slices.Equal(folders, want) {
		t.Errorf("folders of services are %v, the registry has %v", folders, want)
	}
	out, err := exec.Command("make", "-s", "-C", root, "print-services").Output()
	if err != nil || !slices.Equal(slices.Sorted(slices.Values(strings.Fields(string(out)))), want) {
		t.Errorf("make builds %s (%v), the registry has %v", out, err, want)
	}
	built, images := t.TempDir(), filepath.Join(t.TempDir(), "out")
	for _, f := range append(slices.Clone(want), "nats-server", "balancer", "../binnacle", "../packs/x") {
		path := filepath.Join(built, "svc", f)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, nil, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if out, err := exec.Command(filepath.Join(root, "deploy/images/build"), "--from", built, images).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for folder, want := range map[string][]string{"bin": append(slices.Clone(want), "balancer", "binnacle", "nats-server"), "owned/keys": append(slices.Clone(want), "nats", "provision")} {
		slices.Sort(want)
		var have []string
		entries, err := os.ReadDir(filepath.Join(images, folder))
		for _, e := range entries {
			have = append(have, e.Name())
		}
		if err != nil || !slices.Equal(have, want) {
			t.Errorf("images have %v in %s (%v), want %v", have, folder, err, want)
		}
	}
}

// composeFile holds the members of docker-compose.yaml that the registry determines.
type composeFile struct {
	Keys     composeService `yaml:"x-keys"`
	Services map[string]composeService
	Volumes  map[string]any
	Networks map[string]struct {
		Internal bool
		Options  map[string]string `yaml:"driver_opts"`
	}
}

type composeService struct {
	Image   string
	Command []string
	Build   struct {
		Args map[string]string
	}
	Volumes     []string
	Tmpfs       []string
	Healthcheck map[string]any
	Restart     string
	Networks    []string
	NetworkMode string `yaml:"network_mode"`
}

// helpers lists the containers that are not services of the registry.
var helpers = []string{"balancer", "cli", "forward", "init", "keys", "nats", "provision", "recover"}

// TestCompose checks that docker-compose.yaml runs each program of the registry from its
// own image, with a health check, a restart policy and only its own keys, and with a
// volume if and only if the service has a state folder. Every other container must be
// one of helpers.
func TestCompose(t *testing.T) {
	raw, err := os.ReadFile(filepath.Join(root, "docker-compose.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var doc composeFile
	if err := yaml.Unmarshal(raw, &doc); err != nil {
		t.Fatal(err)
	}
	for name := range doc.Services {
		if s, ok := services.Get(name); !slices.Contains(helpers, name) && (!ok || s.Reserved) {
			t.Errorf("service %s is not in package services", name)
		}
	}
	for _, s := range services.Programs() {
		for _, what := range faults(&doc, &s) {
			t.Errorf("service %s: %s", s.Name, what)
		}
	}
	unknown := services.Service{Name: "unknown", Slots: 1}
	if len(faults(&doc, &unknown)) == 0 {
		t.Error("a service that is not in the file would be found complete")
	}
}

// TestScraped checks that the configuration for Prometheus in docs/how-to/monitor.md names
// every program of the registry and the provisioner.
func TestScraped(t *testing.T) {
	raw, err := os.ReadFile(filepath.Join(root, "docs/how-to/monitor.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(raw), "- targets: [")
	targets, _, _ := strings.Cut(rest, "]")
	want := []string{services.Provision + ":9464"}
	for _, s := range services.Programs() {
		want = append(want, s.Name+":9464")
	}
	slices.Sort(want)
	if targets != strings.Join(want, ", ") {
		t.Errorf("the targets are %s, want %s", targets, strings.Join(want, ", "))
	}
}

// TestComposeNetworks checks that, according to docker-compose.yaml, only the egress-broker,
// the llm-router, the mcp-router and the balancer, which publishes the port, are
// on a network with a way out, that no container has the network of the host, that the host
// has no address on an internal network, that only the vault-broker is on the network of Vault, and
// only the egress-broker on that of servers.
func TestComposeNetworks(t *testing.T) {
	raw, err := os.ReadFile(filepath.Join(root, "docker-compose.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var doc composeFile
	if err := yaml.Unmarshal(raw, &doc); err != nil {
		t.Fatal(err)
	}
	var out []string
	for name, s := range doc.Services {
		if s.NetworkMode != "" && s.NetworkMode != "none" {
			t.Errorf("%s: network_mode %s", name, s.NetworkMode)
		}
		if s.NetworkMode == "" && len(s.Networks) == 0 {
			t.Errorf("%s is on the default network, which has a way out", name)
		}
		if slices.ContainsFunc(s.Networks, func(n string) bool { return !doc.Networks[n].Internal }) {
			out = append(out, name)
		}
	}
	for name, n := range doc.Networks {
		if v := n.Options["com.docker.network.bridge.inhibit_ipv4"]; n.Internal && v != "true" && v != "${BINNACLE_COMPOSE_CLOSED:-true}" {
			t.Errorf("the host has an address on network %s: %q", name, v)
		}
	}
	for name, s := range doc.Services {
		for network, member := range map[string]string{"vault": "vault-broker", "servers": "egress-broker"} {
			if slices.Contains(s.Networks, network) && name != member {
				t.Errorf("%s is on the network %s", name, network)
			}
		}
	}
	slices.Sort(out)
	if want := []string{"balancer", "egress-broker", "llm-router", "mcp-router"}; !slices.Equal(out, want) {
		t.Errorf("%v have a way out, want %v", out, want)
	}
}

// faults returns the differences between the file and the registry for one service.
func faults(doc *composeFile, s *services.Service) (out []string) {
	c, ok := doc.Services[s.Name]
	if !ok {
		return []string{"is not in the file"}
	}
	keys := "keys-" + s.Name
	if c.Image != "binnacle/"+s.Name+":local" || c.Build.Args["PROGRAM"] != s.Name {
		out = append(out, "runs image "+c.Image+" of program "+c.Build.Args["PROGRAM"])
	}
	if len(c.Healthcheck) == 0 || c.Restart == "" {
		out = append(out, "lacks <<: *service or a health check")
	}
	if !slices.Contains(doc.Keys.Volumes, keys+":/keys/"+s.Name) {
		out = append(out, "x-keys does not mount "+keys)
	}
	if _, ok := doc.Volumes[keys]; !ok {
		out = append(out, "volumes lack "+keys)
	}
	state := false
	for _, v := range c.Volumes {
		switch source, at, _ := strings.Cut(v, ":"); {
		case at == "/state":
			_, state = doc.Volumes[source]
		case strings.HasPrefix(source, "keys-") && v != keys+":/run/secrets:ro":
			out = append(out, "mounts "+v)
		}
	}
	if !slices.Contains(c.Volumes, keys+":/run/secrets:ro") {
		out = append(out, "does not mount its keys, "+keys+":/run/secrets:ro")
	}
	if state != (s.State != "") {
		out = append(out, "has a volume at /state: "+strings.Join(c.Volumes, " ")+", against the registry")
	}
	return out
}
