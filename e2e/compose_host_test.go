package e2e

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
)

// docker runs a docker command and returns its standard output.
func docker(t *testing.T, args ...string) string {
	t.Helper()
	cmd := exec.Command("docker", args...)
	cmd.Dir = harness.Root()
	var errors bytes.Buffer
	cmd.Stderr = &errors
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("docker %s: %v\n%s", strings.Join(args, " "), err, errors.Bytes())
	}
	return strings.TrimSpace(string(out))
}

// busybox imports an image with busybox, and returns its name.
func busybox(t *testing.T) string {
	t.Helper()
	program, err := os.ReadFile("/bin/busybox")
	if err != nil {
		t.Fatalf("%v: install the Debian package busybox-static", err)
	}
	var root bytes.Buffer
	w := tar.NewWriter(&root)
	if err := w.WriteHeader(&tar.Header{Name: "bin/busybox", Typeflag: tar.TypeReg, Mode: 0o755, Size: int64(len(program))}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(program); err != nil || w.Close() != nil {
		t.Fatal(err)
	}
	image := fmt.Sprintf("binnacle-e2e-busybox-%d", os.Getpid())
	load := exec.Command("docker", "import", "-", image)
	load.Stdin = &root
	if out, err := load.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	t.Cleanup(func() { docker(t, "rmi", "-f", image) })
	return image
}

// TestComposeHost shows that a container on one of the internal networks of docker-compose.yaml
// reaches no IPv4 address of the host, and that a container on an internal network without the
// options of these networks reaches one.
func TestComposeHost(t *testing.T) {
	var doc struct {
		Networks map[string]struct {
			Internal bool
			Options  map[string]string `json:"driver_opts"`
		}
	}
	if err := json.Unmarshal([]byte(docker(t, "compose", "-f", "docker-compose.yaml", "config", "--format", "json")), &doc); err != nil {
		t.Fatal(err)
	}
	image := busybox(t)
	l, err := net.Listen("tcp", "0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = c.Write([]byte("host"))
			_ = c.Close()
		}
	}()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	// reached returns the addresses of the host that a container on a network with the
	// options reaches.
	reached := func(name string, options map[string]string) string {
		t.Helper()
		network := fmt.Sprintf("binnacle-e2e-%s-%d", name, os.Getpid())
		args := []string{"network", "create", "--internal"}
		for k, v := range options {
			args = append(args, "--opt", k+"="+v)
		}
		docker(t, append(args, network)...)
		t.Cleanup(func() { docker(t, "network", "rm", network) })
		hosts := docker(t, "network", "inspect", "-f", "{{(index .IPAM.Config 0).Gateway}}", network)
		addrs, err := net.InterfaceAddrs()
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range addrs {
			if n, ok := a.(*net.IPNet); ok && n.IP.To4() != nil && !n.IP.IsLoopback() {
				hosts += " " + n.IP.String()
			}
		}
		return docker(t, "run", "--rm", "--network", network, image, "/bin/busybox", "sh", "-c",
			`for a in `+hosts+`; do [ "$(/bin/busybox nc -w 5 $a `+port+` </dev/null 2>/dev/null)" = host ] && echo $a & done; wait`)
	}
	if got := reached("open", nil); got == "" {
		t.Error("a container on an internal network of Docker does not reach the host: the test shows nothing")
	}
	closed := 0
	for name, n := range doc.Networks {
		if !n.Internal {
			continue
		}
		closed++
		if got := reached(name, n.Options); got != "" {
			t.Errorf("a container on network %s reaches the host at %s", name, got)
		}
	}
	if closed != 3 {
		t.Errorf("%d internal networks in docker-compose.yaml, want mesh, servers and vault", closed)
	}
}
