// Command escape tries to escape from its sandbox, and reports which attempts succeeded.
// The same program is a pack of every tier.
package main

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"time"
)

// attempt is one way to escape from the sandbox; try returns nil if the escape
// succeeded.
type attempt struct {
	name string
	try  func() error
}

func main() {
	burn(wanted())
	attempts := append(calls(),
		attempt{"read /etc/passwd", func() error { return read("/etc/passwd", "root:") }},
		attempt{"read the environment of process 1", func() error { return read("/proc/1/environ", "BINNACLE") }},
		attempt{"read /var/run/docker.sock", func() error { _, err := net.Dial("unix", "/var/run/docker.sock"); return err }},
		attempt{"write /evil", func() error { return os.WriteFile("/evil", nil, 0o644) }},
		attempt{"write /pack/main", func() error { return os.WriteFile("/pack/main", []byte("x"), 0o755) }},
		attempt{"dial the mesh", func() error { _, err := net.DialTimeout("tcp", "127.0.0.1:4222", time.Second); return err }},
		attempt{"dial the metadata service", func() error { _, err := net.DialTimeout("tcp", "169.254.169.254:80", time.Second); return err }},
		attempt{"dial the resolver", func() error {
			_, err := net.DialTimeout("tcp", "8.8.8.8:53", time.Second)
			return err
		}})
	worked := []string{}
	for _, a := range attempts {
		if err := a.try(); err == nil {
			worked = append(worked, a.name)
		}
	}
	out := facts()
	out["attempts"], out["worked"] = len(attempts), worked
	if err := json.NewEncoder(os.Stdout).Encode(map[string]any{"result": out}); err != nil {
		os.Exit(1)
	}
}

// wanted returns the CPU time, in milliseconds, that the caller requests.
func wanted() int64 {
	var in struct {
		BurnMS int64 `json:"burn_ms"`
	}
	_ = json.NewDecoder(os.Stdin).Decode(&in)
	return in.BurnMS
}

// read returns an error unless the file can be read and contains want, because reading
// an empty file does not prove an escape.
func read(path, want string) error {
	b, err := os.ReadFile(path)
	if err == nil && !contains(string(b), want) {
		err = fmt.Errorf("%s has other contents", path)
	}
	return err
}

func contains(s, sub string) bool {
	for i := 0; i+len(sub) <= len(s); i++ {
		if s[i:i+len(sub)] == sub {
			return true
		}
	}
	return false
}
