package e2e

import (
	"net"
	"os/exec"
	"slices"
	"testing"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
)

// waysOut checks, from within a container of each service on compose, that only the gateway,
// the llm-router and the egress-broker can connect to an address outside of the internal
// network. m must not be configured with servers of the test, which would add a network.
func waysOut(t *testing.T, m *harness.Mesh) {
	t.Helper()
	l, err := net.Listen("tcp", harness.ComposeHost(t)+":0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	host, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	for _, service := range append([]string{"nats", "provision"}, harness.Services...) {
		pid := m.Inspect(service, 1, "{{.State.Pid}}")
		out, err := exec.Command("nsenter", "-t", pid, "-n", "timeout", "5", "bash", "-c", "exec 3<>/dev/tcp/"+host+"/"+port).CombinedOutput()
		if want := slices.Contains([]string{"egress-broker", "gateway", "llm-router"}, service); (err == nil) != want {
			t.Errorf("%s can connect to the outside: %v, want %v\n%s", service, err == nil, want, out)
		}
	}
}
