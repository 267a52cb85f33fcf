// Command escape tries to escape from its sandbox, and reports which attempts succeeded.
// The same program is a pack of every tier.
package main

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"strings"
	"time"
)

// attempt is one way to escape from the sandbox; try returns nil if the escape
// succeeded.
type attempt struct {
	name string
	try  func() error
}

func main() {
	var in struct {
		BurnMS int64  `json:"burn_ms"` // CPU time to use, in milliseconds
		How    string `json:"how"`     // a resource to use up; "" means to try the escapes
	}
	_ = json.NewDecoder(os.Stdin).Decode(&in)
	burn(in.BurnMS)
	out := facts()
	if in.How != "" {
		out = exhaust(in.How)
	} else {
		escape(out)
	}
	if err := json.NewEncoder(os.Stdout).Encode(map[string]any{"result": out}); err != nil {
		os.Exit(1)
	}
}

// escape adds the number of attempts, and those which succeeded, to out.
func escape(out map[string]any) {
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
	out["attempts"], out["worked"] = len(attempts), worked
}

// exhaust uses up a resource of the sandbox: the room for data in a folder ("disk /work"), the
// number of its files ("names /work"), or the processes ("forks"). If that fails, as it must for
// a folder, the program exits with code 1 and the error on standard error; the folder stays full.
func exhaust(how string) map[string]any {
	what, dir, _ := strings.Cut(how, " ")
	var err error
	switch what {
	case "disk":
		var f *os.File
		f, err = os.Create(dir + "/file")
		for b := make([]byte, 1<<20); err == nil; {
			_, err = f.Write(b)
		}
	case "names":
		for n := 0; err == nil; n++ {
			err = os.Mkdir(fmt.Sprintf("%s/%d", dir, n), 0o700)
		}
	default:
		return map[string]any{"forks": forks()}
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
	return nil
}

// read returns an error unless the file can be read and contains want, because reading
// an empty file does not prove an escape.
func read(path, want string) error {
	b, err := os.ReadFile(path)
	if err == nil && !strings.Contains(string(b), want) {
		err = fmt.Errorf("%s has other contents", path)
	}
	return err
}
